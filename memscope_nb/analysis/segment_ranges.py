"""When which addresses were mapped, from the segments at the end and the changes before it, going back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..model import MemoryProfile, to_int64
from .pool_rounding import SMALL_SEGMENT_BYTES

WORD = 1 << 64
UNKNOWN_POOL = "?"
WORKSPACE = "WORKSPACE"
_NOWHERE = "bytes of segments that came and are nowhere at the end"
_TWICE = "bytes of segments that went and are still there"


@dataclass(frozen=True)
class Range:
    """Addresses ``[start, end)``, mapped over ``[start_ns, end_ns)``."""

    start: int
    end: int
    start_ns: int
    end_ns: int
    pool_id: str
    stream: int
    segment_type: str
    is_expandable: bool

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
    now = _at_end(profile, source, device, pool, window)
    known = {one.pool_id for one in now}
    found: list[Range] = []
    counts: Counter[str] = Counter()
    for name, t, attrs in _changes(profile, source, device) if pool != WORKSPACE else ():
        start = int(attrs["addr"]) % WORD
        end = start + int(attrs["size_bytes"])
        if name in ("segment_alloc", "segment_map"):
            _undo_coming(now, (start, end), t, found, counts)
        else:
            _undo_going(now, (start, end), t, name == "segment_unmap", attrs, known, counts, window[0])
    found += now
    return sorted(found, key=lambda r: (r.start, r.start_ns)), Counter({k: v for k, v in counts.items() if v})


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
    part = table[((table["source"] == source) & (table["device"] == device) & (table["pool"] == pool)).to_numpy()]
    plain = (part[name].tolist() for name in ("addr", "size_bytes", "pool_id", "segment_type", "is_expandable"))
    addr, sizes, pools, kinds, growing = plain
    rows = zip(addr, sizes, pools, to_int64(part["stream"]).tolist(), kinds, growing, strict=True)
    found = [Range(a, a + size, *window, p, stream, kind, grows) for a, size, p, stream, kind, grows in rows if size]
    found.sort(key=lambda r: r.start)
    return found


def _undo_coming(now: list[Range], span: tuple[int, int], t: int, found: list[Range], counts: Counter[str]) -> None:
    """A range came at ``t``: it was not there before; what is left of the ranges it is part of stays."""
    start, end = span
    first = bisect_right(now, start, key=lambda r: r.end)
    last = bisect_left(now, end, key=lambda r: r.start)
    left: list[Range] = []
    covered = 0
    for one in now[first:last]:
        low, high = max(one.start, start), min(one.end, end)
        covered += high - low
        if t < one.end_ns:
            found.append(replace(one, start=low, end=high, start_ns=t))
        if one.start < low:
            left.append(replace(one, end=low))
        if one.end > high:
            left.append(replace(one, start=high))
    now[first:last] = left
    counts[_NOWHERE] += end - start - covered


def _undo_going(
    now: list[Range],
    span: tuple[int, int],
    t: int,
    is_expandable: bool,
    attrs: dict[str, Any],
    known: set[str],
    counts: Counter[str],
    begin_ns: int,
) -> None:
    """A range went at ``t``: it was there before, but for what is mapped later without having come again."""
    start, end = span
    first = bisect_right(now, start, key=lambda r: r.end)
    last = bisect_left(now, end, key=lambda r: r.start)
    there = now[first:last]
    size, at = end - start, start
    pool_id = str(attrs.get("pool_id") or (next(iter(known)) if len(known) == 1 else UNKNOWN_POOL))
    stream = _signed(int(attrs.get("stream", 0)))
    kind = "small" if size == SMALL_SEGMENT_BYTES else "large"
    if is_expandable:
        near = [r for r in now[max(first - 1, 0) : last + 1] if r.is_expandable and r.stream == stream]
        beside = [r for r in near if r.end == start or r.start == end]
        if beside:
            kind = beside[0].segment_type
            pool_id = beside[0].pool_id if pool_id == UNKNOWN_POOL else pool_id
    new: list[Range] = []
    for low, high in [(r.start, r.end) for r in there] + [(end, end)]:
        if at < min(low, end):
            new.append(Range(at, min(low, end), begin_ns, t, pool_id, stream, kind, is_expandable))
        at = max(at, high)
    counts[_TWICE] += size - sum(one.end - one.start for one in new)
    now[first:last] = sorted([*there, *new], key=lambda r: r.start)


def _signed(value: int) -> int:
    """Return a handle of 64 bit as the signed number that tables hold."""
    value %= WORD
    return value - WORD if value >= WORD // 2 else value


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
