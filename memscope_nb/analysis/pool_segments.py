"""Segments of a pool at an instant, from those at the end of a snapshot, going back (spec/pytorch 1.7)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, MemoryProfile, to_int64
from .pool_rounding import SMALL_SEGMENT_BYTES

_WORD = 1 << 64
UNKNOWN_POOL = "?"


@dataclass(frozen=True)
class SegmentRange:
    """A range of addresses that the driver gave, ``[start, end)``.

    Attributes
    ----------
    row : int
        Row of ``profile.segments`` whose record is still true of this range; -1 for one that was rebuilt.
    """

    start: int
    end: int
    pool_id: str
    stream: int
    segment_type: str
    is_expandable: bool
    row: int = -1

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


@dataclass
class _Undo:
    """Ranges in address order, while changes are undone from the last one backwards."""

    ranges: list[SegmentRange]
    counts: Counter[str]

    def remove(self, start: int, end: int) -> None:
        """Undo a segment that came, or pages that were mapped: what is left of a range stays."""
        first = bisect_right(self.ranges, start, key=lambda r: r.end)
        last = bisect_left(self.ranges, end, key=lambda r: r.start)
        left: list[SegmentRange] = []
        covered = 0
        for one in self.ranges[first:last]:
            covered += min(one.end, end) - max(one.start, start)
            if one.start < start:
                left.append(replace(one, end=start, row=-1))
            if one.end > end:
                left.append(replace(one, start=end, row=-1))
        self.ranges[first:last] = left
        self.counts["bytes that came and are nowhere at the end"] += end - start - covered

    def put_back(self, new: SegmentRange) -> None:
        """Undo a segment that went, or pages that were unmapped: pages join their neighbours of the same stream."""
        at = bisect_left(self.ranges, new.start, key=lambda r: r.start)
        before, after = self.ranges[at - 1 : at] if at else [], self.ranges[at : at + 1]
        if (before and before[0].end > new.start) or (after and after[0].start < new.end):
            self.counts["bytes that went and are still there"] += new.size
            return
        first, last = at, at
        if new.is_expandable:
            for near in (*before, *after):
                if not (near.is_expandable and near.stream == new.stream and new.pool_id in (near.pool_id, "?")):
                    continue
                new = replace(new, pool_id=near.pool_id, segment_type=near.segment_type)
                if near.end == new.start:
                    new, first = replace(new, start=near.start), at - 1
                elif near.start == new.end:
                    new, last = replace(new, end=near.end), at + 1
        self.ranges[first:last] = [new]


def segments_at(
    profile: MemoryProfile, source: int, device: str, pool: str, t_ns: int
) -> tuple[list[SegmentRange], Counter[str]]:
    """Return the segments of a pool at an instant, by address, and what contradicted going back.

    Parameters
    ----------
    profile : MemoryProfile
        With segments.
    source, device, pool
        Whose segments.
    t_ns : int
        Changes later than this are undone.
    """
    table = profile.segments
    mine = (table["source"] == source) & (table["device"] == device) & (table["pool"] == pool)
    ranges = sorted(_recorded(table, np.flatnonzero(mine.to_numpy())), key=lambda r: r.start)
    state = _Undo(ranges, Counter())
    marks = profile.marks
    later = (marks["source"] == source) & (marks["kind"] == "segment") & (marks["start_ns"] > t_ns)
    if "device" in marks:
        later &= (marks["device"] == device).to_numpy()
    for mark in marks[later].sort_values("start_ns", kind="stable").iloc[::-1].itertuples():
        attrs = mark.attrs
        start = int(attrs["addr"]) % _WORD
        if mark.name in ("segment_alloc", "segment_map"):
            state.remove(start, start + int(attrs["size_bytes"]))
        else:
            state.put_back(_restored(mark.name, start, attrs, state.ranges))
    return state.ranges, Counter({text: n for text, n in state.counts.items() if n})


def _recorded(table: pd.DataFrame, rows: npt.NDArray[np.int64]) -> list[SegmentRange]:
    part = table.iloc[rows]
    return [
        SegmentRange(int(addr), int(addr) + int(size), str(pool_id), int(stream), str(kind), bool(grows), int(row))
        for row, addr, size, pool_id, stream, kind, grows in zip(
            rows, part["addr"], part["size_bytes"], part["pool_id"], to_int64(part["stream"]), part["segment_type"],
            part["is_expandable"], strict=True,
        )
    ]  # fmt: skip


def _restored(action: str, start: int, attrs: dict[str, Any], ranges: list[SegmentRange]) -> SegmentRange:
    """Describe a range that went; its half of the pool follows from its size, where no neighbour tells."""
    size, pool_id = int(attrs["size_bytes"]), str(attrs.get("pool_id", UNKNOWN_POOL))
    kind = "small" if size == SMALL_SEGMENT_BYTES else "large"
    stream = as_signed_word(int(attrs.get("stream", 0)))
    if pool_id == UNKNOWN_POOL and ranges and all(one.pool_id == "0,0" for one in ranges):
        pool_id = "0,0"  # the recording knows of no other pool
    return SegmentRange(start, start + size, pool_id, stream, kind, action == "segment_unmap")


def as_signed_word(value: int) -> int:
    """Return a handle of 64 bit as the signed number that tables hold."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


def known_stream(value: int) -> int | None:
    """Return a stream of a table, ``None`` where it is unknown."""
    return None if value == NA_NS else int(value)
