"""What idle memory costs: bytes times seconds, and how far the peak would fall without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import MemoryProfile, block_starts
from .align_nesting import range_max

Int64Array = npt.NDArray[np.int64]
_LOWEST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Idle:
    """Stretches that do not overlap within a block, by block and start: position of the block in the profile."""

    block: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array

    @classmethod
    def of(cls, block: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> Idle:
        """Sort and, where times disagree with IDs, cut what overlaps."""
        order = np.lexsort((end_ns, start_ns, block))
        frame = pd.DataFrame({"block": block[order], "start": start_ns[order], "end": end_ns[order]})
        before = frame.groupby("block")["end"].cummax().groupby(frame["block"]).shift(fill_value=_LOWEST)
        start = np.maximum(frame["start"].to_numpy(np.int64), before.to_numpy(np.int64))
        keep = start < frame["end"].to_numpy()
        return cls(frame["block"].to_numpy(np.int64)[keep], start[keep], frame["end"].to_numpy(np.int64)[keep])


class Levels:
    """Bytes in live blocks over time, for each process, device and pool by itself."""

    def __init__(self, profile: MemoryProfile, ends: Int64Array) -> None:
        blocks = profile.blocks
        self.blocks = blocks
        self.size = blocks["size_bytes"].to_numpy(np.int64)
        keys = blocks[["source", "device", "pool"]]
        self.group = keys.groupby(list(keys), observed=True, sort=False).ngroup().to_numpy(np.int64)
        self.n_groups = int(self.group.max(initial=-1)) + 1
        starts = block_starts(profile)
        alive = ends > starts
        self._change_group = np.tile(self.group[alive], 2)
        self._change_at = np.concatenate([starts[alive], ends[alive]])
        self._change = np.concatenate([self.size[alive], -self.size[alive]])
        self.times, self.keys, self.levels = self._series(self._change_group, self._change_at, self._change)
        self.first = np.searchsorted(self.keys, np.arange(self.n_groups) * self._width)
        self.last = np.append(self.first[1:], len(self.keys))

    def _series(self, group: Int64Array, at: Int64Array, change: Int64Array) -> tuple[Int64Array, ...]:
        """Distinct instants, key and level of each (group, instant); at one instant only what is left counts."""
        times, rank = np.unique(at, return_inverse=True)
        self._width = len(times) + 2
        keys, inverse = np.unique(group * self._width + rank + 1, return_inverse=True)
        sums = np.zeros(len(keys), dtype=np.int64)
        np.add.at(sums, inverse, change)
        levels = np.cumsum(sums)  # groups end at 0, so that the running sum serves all
        return times, keys, levels

    def peaks(self) -> Int64Array:
        """Highest level of each group."""
        return range_max(self.levels, self.first, self.last, empty=0)

    def _standing(self, group: Int64Array, t: Int64Array) -> Int64Array:
        """Position of the level that holds at an instant."""
        rank = np.searchsorted(self.times, t, side="right")
        place = np.searchsorted(self.keys, group * self._width + rank, side="right") - 1
        return np.maximum(place, self.first[group])

    def _from(self, group: Int64Array, t: Int64Array) -> Int64Array:
        """Position of the first level that begins at an instant or later."""
        rank = np.searchsorted(self.times, t, side="left")
        return np.asarray(np.searchsorted(self.keys, group * self._width + rank + 1, side="left"), dtype=np.int64)

    def gains(self, idle: Idle) -> tuple[Int64Array, Int64Array]:
        """How far the peak would fall if one block alone were not there while it is idle: blocks, bytes."""
        block, first = np.unique(idle.block, return_index=True)
        n = len(block)
        if not n:
            return block, np.empty(0, dtype=np.int64)
        owner = np.searchsorted(block, idle.block)
        group = self.group[idle.block]
        begin, end = self._from(group, idle.start_ns), self._from(group, idle.end_ns)
        inside = np.full(n, _LOWEST, dtype=np.int64)
        np.maximum.at(inside, owner, range_max(self.levels, self._standing(group, idle.start_ns), end, empty=_LOWEST))
        is_first = np.zeros(len(owner), dtype=bool)
        is_first[first] = True
        after = self._standing(group, idle.end_ns)
        low = np.where(is_first, self.first[group], np.roll(after, 1))
        last = np.append(first[1:], len(owner)) - 1
        outside = np.full(n, _LOWEST, dtype=np.int64)
        np.maximum.at(outside, owner, range_max(self.levels, low, begin, empty=_LOWEST))
        own = self.group[block]
        outside = np.maximum(outside, range_max(self.levels, after[last], self.last[own], empty=_LOWEST))
        return block, self.peaks()[own] - np.maximum(outside, inside - self.size[block])

    def peaks_without(self, idle: Idle) -> Int64Array:
        """Highest level of each group if no block were there while it is idle."""
        size = self.size[idle.block]
        group = np.concatenate([self._change_group, np.tile(self.group[idle.block], 2)])
        at = np.concatenate([self._change_at, idle.start_ns, idle.end_ns])
        times, rank = np.unique(at, return_inverse=True)
        keys, inverse = np.unique(group * (len(times) + 1) + rank, return_inverse=True)
        sums = np.zeros(len(keys), dtype=np.int64)
        np.add.at(sums, inverse, np.concatenate([self._change, -size, size]))
        first = np.searchsorted(keys, np.arange(self.n_groups) * (len(times) + 1))
        return range_max(np.cumsum(sums), first, np.append(first[1:], len(keys)), empty=0)
