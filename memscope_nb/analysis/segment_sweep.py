"""Laying blocks into ranges in the order of time, so that none lies outside, and none on another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter

import numpy as np
import pandas as pd

from .pool_rounding import SMALL_BYTES
from .segment_ranges import Range

OUTSIDE = "blocks outside every mapped range, left out"
ON_OTHERS = "blocks that end early because something else was allocated at their addresses"
UNMAPPED = "blocks that end early because their range was unmapped"
_BLOCK_ENDS, _RANGE_ENDS, _RANGE_STARTS, _BLOCK_STARTS = range(4)
"""What comes first at one instant."""


class _Layout:
    """What is mapped and what lies there now."""

    def __init__(self, ranges: list[Range], blocks: pd.DataFrame, max_split_bytes: int | None) -> None:
        self.ranges, self.max_split = ranges, max_split_bytes
        self.addr = [int(a) for a in blocks["addr"]]
        self.size, self.requested = blocks["size_bytes"].tolist(), blocks["requested_bytes"].tolist()
        self.estimated = blocks["is_estimated"].tolist()
        self.stop: dict[int, int] = {}
        """Block to the instant at which it ends early."""
        self.outside: set[int] = set()
        self.mapped: list[tuple[int, int]] = []
        """(start, range), by address."""
        self.live: list[tuple[int, int]] = []
        """(address, block), by address."""
        self.counts: Counter[str] = Counter()

    def room(self, addr: int) -> tuple[int, Range] | None:
        """Return where the mapped range around an address ends, and the range; ``None`` outside."""
        k = bisect_right(self.mapped, (addr, len(self.ranges))) - 1
        if k < 0:
            return None
        one = self.ranges[self.mapped[k][1]]
        if addr >= one.end:
            return None
        last = one
        while (k := k + 1) < len(self.mapped) and last.grows_into(after := self.ranges[self.mapped[k][1]]):
            last = after
        return last.end, one

    def _drop(self, position: int, t: int, why: str) -> None:
        _, block = self.live.pop(position)
        self.stop[block] = t
        self.counts[why] += 1

    def start(self, block: int, t: int) -> None:
        addr = self.addr[block]
        found = self.room(addr)
        if found is None:
            self.outside.add(block)
            self.counts[OUTSIDE] += 1
            return
        limit, around = found
        needs = addr + min(self.requested[block], self.size[block])
        k = bisect_left(self.live, (addr, -1))
        if k and self._end(k - 1) > addr:
            before = self.live[k - 1][1]
            if self.estimated[before] and self.addr[before] + self.requested[before] <= addr:
                self.size[before] = addr - self.addr[before]
            else:
                self._drop(k - 1, t, ON_OTHERS)
                k -= 1
        while k < len(self.live) and self.live[k][0] < min(needs, limit):
            self._drop(k, t, ON_OTHERS)
        limit = min(limit, self.live[k][0]) if k < len(self.live) else limit
        end = min(addr + self.size[block], limit)
        if self.estimated[block] and self._is_unsplit(limit - end, end - addr, around):
            end = limit
        self.size[block] = end - addr
        self.live.insert(k, (addr, block))

    def _is_unsplit(self, rest: int, size: int, around: Range) -> bool:
        """Whether the allocator hands out the rest, too: in large segments that do not grow, up to 1 MiB."""
        if around.is_expandable or around.segment_type == "small" or rest <= 0:
            return False
        return rest <= SMALL_BYTES or (self.max_split is not None and size >= self.max_split)

    def _end(self, position: int) -> int:
        addr, block = self.live[position]
        return addr + self.size[block]

    def end(self, block: int) -> None:
        if block not in self.stop and block not in self.outside:
            k = bisect_left(self.live, (self.addr[block], block))
            if k < len(self.live) and self.live[k][1] == block:
                self.live.pop(k)

    def map(self, number: int) -> None:
        insort(self.mapped, (self.ranges[number].start, number))

    def unmap(self, number: int, t: int) -> None:
        one = self.ranges[number]
        self.mapped.pop(bisect_left(self.mapped, (one.start, number)))
        k = bisect_left(self.live, (one.start, -1))
        k -= 1 if k and self._end(k - 1) > one.start else 0
        while k < len(self.live) and self.live[k][0] < one.end:
            self._drop(k, t, UNMAPPED)


def lay_out(
    ranges: list[Range], blocks: pd.DataFrame, *, max_split_bytes: int | None
) -> tuple[pd.DataFrame, Counter[str]]:
    """Give every block its place and time; return the blocks that have one, and what contradicted.

    Parameters
    ----------
    ranges : list of Range
        Mapped addresses; no two overlap.
    blocks : pandas.DataFrame
        ``block_id addr size_bytes requested_bytes start_ns request_ns end_ns is_estimated``.
    max_split_bytes : int, optional
        Blocks from this size on are not split.

    Returns
    -------
    blocks : pandas.DataFrame
        The same columns. An estimated size is enlarged where the allocator would not have split off the rest, and cut
        at the next block; a block ends early where the recording contradicts its end.
    counts : Counter
        Contradictions.
    """
    layout = _Layout(ranges, blocks, max_split_bytes)
    for t, kind, number in _events(ranges, blocks):
        if kind == _BLOCK_STARTS:
            layout.start(number, t)
        elif kind == _BLOCK_ENDS:
            layout.end(number)
        elif kind == _RANGE_STARTS:
            layout.map(number)
        else:
            layout.unmap(number, t)
    out = blocks.assign(size_bytes=np.array(layout.size, dtype=np.int64))
    keep = np.ones(len(blocks), dtype=bool)
    keep[list(layout.outside)] = False
    if layout.stop:
        rows, stops = (np.array(list(part), dtype=np.int64) for part in (layout.stop, layout.stop.values()))
        for column in ("request_ns", "end_ns"):
            values = out[column].to_numpy(np.int64).copy()
            values[rows] = np.minimum(values[rows], stops)
            out[column] = values
    keep &= (out["end_ns"] > out["start_ns"]).to_numpy() & (out["size_bytes"] > 0).to_numpy()
    return out[keep].reset_index(drop=True), layout.counts


def _events(ranges: list[Range], blocks: pd.DataFrame) -> zip[tuple[int, int, int]]:
    """Instant, kind and number of everything that starts or ends, in order."""
    n, m = len(ranges), len(blocks)
    t = np.concatenate(
        [
            blocks["end_ns"].to_numpy(np.int64),
            np.array([one.end_ns for one in ranges], dtype=np.int64),
            np.array([one.start_ns for one in ranges], dtype=np.int64),
            blocks["start_ns"].to_numpy(np.int64),
        ]
    )
    kind = np.repeat([_BLOCK_ENDS, _RANGE_ENDS, _RANGE_STARTS, _BLOCK_STARTS], [m, n, n, m])
    number = np.concatenate([np.arange(m), np.arange(n), np.arange(n), np.arange(m)])
    zero = blocks["end_ns"].to_numpy(np.int64) <= blocks["start_ns"].to_numpy(np.int64)
    lasting = np.concatenate([~zero, np.ones(2 * n, dtype=bool), ~zero])
    t, kind, number = t[lasting], kind[lasting], number[lasting]
    order = np.lexsort((number, kind, t))
    return zip(t[order].tolist(), kind[order].tolist(), number[order].tolist(), strict=True)
