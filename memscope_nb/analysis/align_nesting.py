"""Intervals that nest, and events inside them: sums, peaks, the innermost and outermost interval of each event.

Everything is ordered by event ID, the order of creation in a process; a *group* is what is looked at by itself (a
thread on a device). No loop runs over rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
NONE = -1
_END, _START, _EVENT = 0, 1, 2


class Nesting:
    """Intervals ``(start, end)`` and events of the same groups, in one order.

    Parameters
    ----------
    group, start, end : int64 arrays
        The intervals. Where one ends at the start of another, it ends first.
    event_group, event_at : int64 arrays
        The events.

    Attributes
    ----------
    depth, parent : int64 arrays
        For each interval: 1 for an outermost one; position of the one around it or ``NONE``.
    inner : int64 array
        For each event: position of the innermost interval around it or ``NONE``.
    """

    def __init__(
        self, group: Int64Array, start: Int64Array, end: Int64Array, event_group: Int64Array, event_at: Int64Array
    ) -> None:
        self.n, self.m = len(start), len(event_at)
        self._end = end
        at = np.concatenate([start, end, event_at])
        kind = np.repeat([_START, _END, _EVENT], [self.n, self.n, self.m])
        order = np.lexsort((kind, at, np.concatenate([group, group, event_group])))
        self._rank = np.empty(len(order), dtype=np.int64)
        self._rank[order] = np.arange(len(order))
        step = np.repeat([1, -1, 0], [self.n, self.n, self.m])
        depth = self._running(step)
        self.depth = depth[: self.n]
        self.parent, self.inner = self._enclosing(group, event_group, depth, event_at, start)

    def _running(self, values: Int64Array) -> Int64Array:
        """Sum of what comes up to each item, itself included, over all groups."""
        ordered = np.empty(len(values), dtype=np.int64)
        ordered[self._rank] = values
        return np.cumsum(ordered)[self._rank]

    def _enclosing(
        self, group: Int64Array, event_group: Int64Array, depth: Int64Array, event_at: Int64Array, start: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The latest start one level up, or at the level of an event: what began there and has not ended."""
        n, m = self.n, self.m
        mine, event_depth = depth[:n], depth[2 * n :]
        groups = np.concatenate([group, group, event_group])
        levels = np.concatenate([mine, mine - 1, event_depth])
        ranks = np.concatenate([self._rank[:n], self._rank[:n], self._rank[2 * n :]])
        opens = np.repeat([True, False, False], [n, n, m])
        order = np.lexsort((opens, ranks, levels, groups))
        last = np.maximum.accumulate(np.where(opens[order], np.arange(len(order)), NONE)) if len(order) else order
        source = order[np.maximum(last, 0)] if len(order) else order
        same = (last >= 0) & (groups[source] == groups[order]) & (levels[source] == levels[order])
        found = np.full(len(order), NONE, dtype=np.int64)
        found[order] = np.where(same, source, NONE)
        parent, inner = found[n : 2 * n], found[2 * n :]
        if n:
            parent = np.where((parent >= 0) & (self._end[parent] >= start), parent, NONE)
            inner = np.where((inner >= 0) & (self._end[inner] >= event_at), inner, NONE)
        return parent, inner

    def outer(self) -> Int64Array:
        """Position of the outermost interval around each interval, itself if there is none."""
        top = np.where(self.parent == NONE, np.arange(self.n), self.parent)
        while (top != (higher := top[top])).any():
            top = higher
        return top

    def sums(self, values: Int64Array) -> Int64Array:
        """Sum of a value of the events inside each interval."""
        running = self._running(np.concatenate([np.zeros(2 * self.n, dtype=np.int64), values]))
        return running[self.n : 2 * self.n] - running[: self.n]

    def peaks(self, values: Int64Array) -> Int64Array:
        """How far the running sum of a value rises inside each interval above its start; at least 0."""
        running = self._running(np.concatenate([np.zeros(2 * self.n, dtype=np.int64), values]))
        count = self._running(np.repeat([0, 1], [2 * self.n, self.m]).astype(np.int64))
        levels = np.empty(self.m, dtype=np.int64)
        levels[count[2 * self.n :] - 1] = running[2 * self.n :]
        base = running[: self.n]
        highest = range_max(levels, count[: self.n], count[self.n : 2 * self.n], empty=np.iinfo(np.int64).min)
        return np.maximum(highest, base) - base


def range_max(values: Int64Array, first: Int64Array, end: Int64Array, *, empty: int) -> Int64Array:
    """Greatest value of each range ``[first, end)``, ``empty`` for one without values; memory of two columns."""
    found = np.full(len(first), empty, dtype=np.int64)
    length = np.asarray(end - first)
    level = np.where(length > 0, np.frexp(length.astype(np.float64))[1] - 1, NONE)
    table, width = values, 1
    for power in range(int(level.max(initial=NONE)) + 1):
        at = np.flatnonzero(level == power)
        if at.size:
            found[at] = np.maximum(table[first[at]], table[end[at] - width])
        table = np.maximum(table[:-width], table[width:]) if len(table) > width else table[:0]
        width *= 2
    return found


def event_places(source: Int64Array, event_id: Int64Array, in_source: Int64Array, wanted: Int64Array) -> Int64Array:
    """Position of the first row with each (source, event ID), ``NONE`` where there is none."""
    found = np.full(len(wanted), NONE, dtype=np.int64)
    if not len(event_id) or not len(wanted):
        return found
    ids = np.unique(event_id)
    order = np.lexsort((event_id, source))
    keys = source[order] * (len(ids) + 1) + np.searchsorted(ids, event_id[order])
    number = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    asked = in_source * (len(ids) + 1) + number
    place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    hit = (keys[place] == asked) & (ids[number] == wanted)
    found[hit] = order[place[hit]]
    return found
