"""Which operator ran when memory was asked for: interval joins on integer keys (spec/ascend_profiler 6.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


class IntervalIndex:
    """Closed intervals ``[start, end]`` in groups, searched for the one that started last and still runs.

    Parameters
    ----------
    group, start, end : int64 array of shape (n,)
        Groups are small non-negative integers. Of intervals with equal group and start, the later one in the input
        counts as the later start.
    """

    def __init__(self, group: Int64Array, start: Int64Array, end: Int64Array) -> None:
        self.order = np.lexsort((np.arange(len(start)), start, group)).astype(np.int64)
        # One sorted key for (group, start): ranks instead of times, since both together do not fit in 64 bits. The rank
        # of a time is the number of starts up to it.
        self._times = np.sort(start)
        self._width = len(start) + 1
        self._key = (group * self._width + self._rank(start))[self.order]
        # A pyramid of maxima over the ends: level k holds the maximum of runs of 2**k neighbours. It finds the last
        # candidate that still runs in O(log n), however many nearer ones have ended.
        self._levels = [end[self.order]]
        while len(self._levels[-1]) > 1:
            last = self._levels[-1]
            padded = np.append(last, np.iinfo(np.int64).min) if len(last) % 2 else last
            self._levels.append(np.maximum(padded[0::2], padded[1::2]))

    def _rank(self, t: Int64Array) -> Int64Array:
        return np.searchsorted(self._times, t, side="right").astype(np.int64)

    def last_running(self, group: Int64Array, t: Int64Array) -> Int64Array:
        """Position (in the input) of the interval of the group with the latest start that contains ``t``, or -1."""
        if not len(self.order):
            return np.full(len(t), -1, dtype=np.int64)
        base = group * self._width
        lo = np.searchsorted(self._key, base, side="left").astype(np.int64)
        hi = np.searchsorted(self._key, base + self._rank(t), side="right").astype(np.int64)
        found = self._last_ending_from(lo, hi, t)
        return np.where(found >= 0, self.order[found], -1)

    def _last_ending_from(self, lo: Int64Array, hi: Int64Array, t: Int64Array) -> Int64Array:
        """Largest position in ``[lo, hi)`` whose end is at least ``t``; -1 if there is none."""
        found = np.full(len(t), -1, dtype=np.int64)
        # Climb from the right edge: at each level an odd edge leaves one whole run to its left to be looked at.
        edge, active = hi.copy(), np.arange(len(t))
        hits: list[tuple[int, Int64Array, Int64Array]] = []
        for level, maxima in enumerate(self._levels):
            active = active[edge[active] > 0]
            odd = active[(edge[active] & 1) == 1]
            run = edge[odd] - 1
            hit = (maxima[run] >= t[odd]) & (((run + 1) << level) > lo[odd])
            hits.append((level, odd[hit], run[hit]))
            active = np.setdiff1d(active, odd[hit], assume_unique=True)
            edge[active] >>= 1
        # Descend from each such run to its last element that still runs.
        for level, who, run in hits:
            for below in range(level - 1, -1, -1):
                right = 2 * run + 1
                maxima = self._levels[below]
                inside = right < len(maxima)
                go = inside & (maxima[np.where(inside, right, 0)] >= t[who])
                run = np.where(go, right, 2 * run)
            found[who] = run
        return np.where(found >= lo, found, -1)
