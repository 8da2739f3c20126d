"""When which addresses were mapped, from the segments at the end and the changes before it, going back (1.7)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..model import MemoryProfile, to_int64
from .pool_rounding import SMALL_SEGMENT_BYTES

_WORD = 1 << 64
DEFAULT_POOL = "0,0"
UNKNOWN_POOL = "?"
WORKSPACE = "WORKSPACE"
_NOWHERE = "bytes of segments that came and are nowhere at the end"
_TWICE = "bytes of segments that went and are still there"


@dataclass(frozen=True)
class Range:
    """Addresses ``[start, end)``, mapped over ``[start_ns, end_ns)``.

    Attributes
    ----------
    row : int
        Row of ``profile.segments`` whose record is still true of the range; -1 for one that was rebuilt.
    """

    start: int
    end: int
    start_ns: int
    end_ns: int
    pool_id: str
    stream: int
    segment_type: str
    is_expandable: bool
    row: int = -1

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    def part(self, start: int, end: int) -> Range:
        """Return some of its addresses; a record is true of all of them only."""
        is_whole = (start, end) == (self.start, self.end)
        return replace(self, start=start, end=end, row=self.row if is_whole else -1)

    def grows_into(self, other: Range) -> bool:
        """Whether a range begins where this one ends, and both are of one expandable segment."""
        both = self.is_expandable and other.is_expandable
        return both and self.end == other.start and (self.stream, self.pool_id) == (other.stream, other.pool_id)


def ranges_of(
    profile: MemoryProfile, source: int, device: str, pool: str, window: tuple[int, int]
) -> tuple[list[Range], Counter[str]]:
    """Return the mapped ranges of a pool by address and time, and what contradicted.

    Parameters
    ----------
    profile : MemoryProfile
        With segments and marks.
    source, device, pool
        Whose; operator workspaces have no changes.
    window : (int, int)
        From the first record until right behind the last one.
    """
    at_end = [one for one in _at_end(profile, source, device, pool, window) if one.size]
    back = _Back(at_end, window[0])
    for change in _changes(profile, source, device) if pool != WORKSPACE else ():
        back.undo(*change)
    return sorted([*back.gone, *back.now], key=lambda r: (r.start, r.start_ns)), back.contradictions()


def segments_at(
    profile: MemoryProfile, source: int, device: str, pool: str, t_ns: int
) -> tuple[list[Range], Counter[str]]:
    """Return the segments of a pool at an instant, by address, and what contradicted going back as far as that.

    Parameters
    ----------
    profile : MemoryProfile
        With segments and marks.
    source, device, pool
        Whose; none of operator workspaces.
    t_ns : int
        Changes later than this are undone.
    """
    back = _Back(_at_end(profile, source, device, pool, (t_ns, t_ns + 1)), t_ns)
    for name, t, attrs in _changes(profile, source, device):
        if t <= t_ns:
            break
        back.undo(name, t, attrs)
    return joined_ranges(back.now, listed_apart=True), back.contradictions()


def joined_ranges(ranges: list[Range], *, listed_apart: bool = False) -> list[Range]:
    """Join the neighbours of one expandable segment: blocks may lie across them.

    Parameters
    ----------
    ranges : list of Range
        At one instant, by address.
    listed_apart : bool
        Whether two that the recording lists side by side stay two.
    """
    found: list[Range] = []
    for k, one in enumerate(ranges):
        two = listed_apart and one.row >= 0 and ranges[k - 1].row >= 0
        if found and found[-1].grows_into(one) and not two:
            found[-1] = replace(found[-1], end=one.end, row=-1)
        else:
            found.append(one)
    return found


def _changes(profile: MemoryProfile, source: int, device: str) -> list[tuple[str, int, dict[str, Any]]]:
    """Changes of segments, the last one first."""
    marks = profile.marks
    mine = ((marks["source"] == source) & (marks["kind"] == "segment")).to_numpy()
    if "device" in marks:
        mine = mine & (marks["device"] == device).to_numpy()
    part = marks[mine].sort_values("start_ns", kind="stable").iloc[::-1]
    return list(zip(part["name"], part["start_ns"].tolist(), part["attrs"], strict=True))


def _at_end(profile: MemoryProfile, source: int, device: str, pool: str, window: tuple[int, int]) -> list[Range]:
    table = profile.segments
    rows = np.flatnonzero((table["source"] == source) & (table["device"] == device) & (table["pool"] == pool))
    part = table.iloc[rows]
    plain = (part[name].tolist() for name in ("addr", "size_bytes", "pool_id", "segment_type", "is_expandable"))
    addr, sizes, pools, kinds, growing = plain
    streams = to_int64(part["stream"]).tolist()
    lines = zip(addr, sizes, pools, streams, kinds, growing, rows.tolist(), strict=True)
    found = [Range(a, a + size, *window, *rest) for a, size, *rest in lines]
    found.sort(key=lambda r: r.start)
    return found


class _Back:
    """What is mapped now, while changes are undone from the last one backwards, and what was mapped later only."""

    def __init__(self, at_end: list[Range], begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.now = at_end
        """By address."""
        self.gone: list[Range] = []
        self.counts: Counter[str] = Counter()
        is_plain = {one.pool_id for one in at_end} == {DEFAULT_POOL}
        self.unnamed = DEFAULT_POOL if is_plain else UNKNOWN_POOL
        """Pool of a change that names none."""

    def undo(self, name: str, t: int, attrs: dict[str, Any]) -> None:
        start = int(attrs["addr"]) % _WORD
        end = start + int(attrs["size_bytes"])
        first = bisect_right(self.now, start, key=lambda r: r.end)
        last = bisect_left(self.now, end, key=lambda r: r.start)
        if name in ("segment_alloc", "segment_map"):
            self.now[first:last] = self._before_coming(self.now[first:last], start, end, t)
        else:
            one = self._that_went(start, end, t, attrs, self.now[max(first - 1, 0) : last + 1], name == "segment_unmap")
            self.now[first:last] = self._before_going(self.now[first:last], one)

    def _before_coming(self, there: list[Range], start: int, end: int, t: int) -> list[Range]:
        """Nothing of it was there before; what is left of the ranges it is part of stays."""
        left: list[Range] = []
        covered = 0
        for one in there:
            low, high = max(one.start, start), min(one.end, end)
            covered += high - low
            if t < one.end_ns:
                self.gone.append(replace(one.part(low, high), start_ns=t))
            if one.start < low:
                left.append(one.part(one.start, low))
            if one.end > high:
                left.append(one.part(high, one.end))
        self.counts[_NOWHERE] += end - start - covered
        return left

    def _before_going(self, there: list[Range], gone: Range) -> list[Range]:
        """All of it was there before, but for what is mapped later without having come again."""
        new: list[Range] = []
        at = gone.start
        for low, high in [(r.start, r.end) for r in there] + [(gone.end, gone.end)]:
            if at < min(low, gone.end):
                new.append(gone.part(at, min(low, gone.end)))
            at = max(at, high)
        self.counts[_TWICE] += gone.size - sum(one.size for one in new)
        return sorted([*there, *new], key=lambda r: r.start)

    def _that_went(
        self, start: int, end: int, t: int, attrs: dict[str, Any], around: list[Range], is_expandable: bool
    ) -> Range:
        """Describe it; its half of the pool follows from its size, where no neighbour of its own segment tells."""
        pool_id = str(attrs.get("pool_id") or self.unnamed)
        stream = as_signed_word(int(attrs.get("stream", 0)))
        kind = "small" if end - start == SMALL_SEGMENT_BYTES else "large"
        if is_expandable:
            near = (r for r in around if r.is_expandable and r.stream == stream)
            beside = [r for r in near if r.end == start or r.start == end]
            if pool_id == UNKNOWN_POOL and beside:
                pool_id = beside[0].pool_id
            kind = next((r.segment_type for r in beside if r.pool_id == pool_id), kind)
        return Range(start, end, self.begin_ns, t, pool_id, stream, kind, is_expandable)

    def contradictions(self) -> Counter[str]:
        """Return bytes by kind, those that are any."""
        return Counter({text: n for text, n in self.counts.items() if n})


def as_signed_word(value: int) -> int:
    """Return a handle of 64 bit as the signed number that tables hold."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


def compact_axis(ranges: list[Range]) -> list[tuple[int, int, int]]:
    """Fold the addresses that are never mapped: return (start, end, position) of each stretch that is."""
    stretches: list[tuple[int, int, int]] = []
    for start, end in sorted((one.start, one.end) for one in ranges):
        if stretches and start <= stretches[-1][1]:
            low, high, place = stretches[-1]
            stretches[-1] = low, max(high, end), place
        else:
            place = stretches[-1][2] + stretches[-1][1] - stretches[-1][0] if stretches else 0
            stretches.append((start, end, place))
    return stretches


def places_on(stretches: list[tuple[int, int, int]], addr: np.ndarray[Any, np.dtype[np.uint64]]) -> Any:
    """Return the position of addresses on a compact axis; all must lie on it."""
    starts = np.array([one[0] for one in stretches], dtype=np.uint64)
    place = np.array([one[2] for one in stretches], dtype=np.int64)
    at = np.searchsorted(starts, addr, side="right") - 1
    return place[at] + (addr - starts[at]).astype(np.int64)
