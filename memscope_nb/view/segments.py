"""Segment maps as columns of a payload: ranges and blocks at places of an axis without the addresses never mapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.segment_map import PoolMap, map_caveats, pool_keys, pool_map
from ..analysis.segment_ranges import compact_axis, places_on
from ..analysis.series import Series
from ..model import Int64Array, MemoryProfile

RANGES = ("seg_t", "seg_life", "seg_pos", "seg_size", "seg_kind", "seg_series")
BLOCKS = ("map_t", "map_life", "map_late", "map_pos", "map_size", "map_id", "map_series")
SORTED = ("seg_t", "map_t")
"""Columns that never fall."""
MAX_STRETCHES = 5000


@dataclass(frozen=True)
class SegmentColumns:
    """What a page needs to draw the address space of a timeline.

    Attributes
    ----------
    header : list
        One entry a series: ``None``, or ``{"size", "stretches", "kinds", "notes"}``. ``stretches`` are ``[address as
        hex text, place, bytes]``: addresses that were mapped at some time, in order, without the holes between them.
        ``kinds`` are ``{"stream", "pool", "type", "grows"}``; ranges of different kinds serve different requests.
    ranges : dict
        ``seg_t seg_life`` (mapped, ns) ``seg_pos seg_size`` (place and bytes) ``seg_kind seg_series``, by ``seg_t``.
    blocks : dict
        ``map_t``, ``map_life`` (in use), ``map_late`` (pending free after that), ``map_pos map_size map_id
        map_series``, by ``map_t``. Sizes are rounded ones.
    """

    header: list[dict[str, Any] | None] = field(default_factory=list)
    ranges: dict[str, Int64Array] = field(default_factory=dict)
    blocks: dict[str, Int64Array] = field(default_factory=dict)

    def within(self, start: int, end: int) -> dict[str, Int64Array]:
        """Return the columns of what overlaps a window; nothing where there are no segments."""
        if not self.header:
            return {}
        r, b = self.ranges, self.blocks
        some = np.flatnonzero((r["seg_t"] < end) & (r["seg_t"] + r["seg_life"] > start))
        few = np.flatnonzero((b["map_t"] < end) & (b["map_t"] + b["map_life"] + b["map_late"] > start))
        return {key: values[some] for key, values in r.items()} | {key: values[few] for key, values in b.items()}


def segment_columns(profile: MemoryProfile, tracks: Sequence[Sequence[Series]], t0: int) -> SegmentColumns:
    """Lay out the pools of a timeline; empty if there are no segments, or only some of the blocks."""
    if not len(profile.segments) or not profile.complete:
        return SegmentColumns()
    known = set(pool_keys(profile))
    header: list[dict[str, Any] | None] = []
    ranges: list[dict[str, Int64Array]] = []
    blocks: list[dict[str, Int64Array]] = []
    for k, track in enumerate(tracks):
        maps = [pool_map(profile, key) for one in track if (key := (one.source, one.device, one.pool)) in known]
        axis = compact_axis([one for pool in maps for one in pool.ranges])
        if not axis or len(axis) > MAX_STRETCHES:
            header.append(None)
            continue
        kinds: dict[tuple[Any, ...], int] = {}
        ranges += [_ranges(pool, axis, kinds, k, t0) for pool in maps]
        blocks += [_blocks(pool, axis, k, t0) for pool in maps]
        header.append(_header(maps, axis, kinds))
    if not any(header):
        return SegmentColumns()
    return SegmentColumns(header, _joined(ranges, RANGES, "seg_t"), _joined(blocks, BLOCKS, "map_t"))


def _header(
    maps: Sequence[PoolMap], axis: list[tuple[int, int, int]], kinds: dict[tuple[Any, ...], int]
) -> dict[str, Any]:
    """Describe an axis; handles of streams are numbered as they come, 0 is the default stream."""
    streams = {0: "default stream"}
    for stream, *_ in kinds:
        streams.setdefault(stream, f"stream {len(streams)}")
    counts: Counter[str] = sum((one.counts for one in maps), Counter())
    every = pd.concat([one.blocks[["is_estimated"]] for one in maps])
    return {
        "size": axis[-1][2] + axis[-1][1] - axis[-1][0],
        "stretches": [[hex(start), place, end - start] for start, end, place in axis],
        "kinds": [
            {
                "stream": streams[stream],
                "pool": "" if pool_id == "0,0" else f"private pool {pool_id}",
                "type": kind,
                "grows": grows,
            }
            for stream, pool_id, kind, grows in kinds
        ],
        "notes": list(map_caveats(counts, every)),
    }


def _ranges(
    pool: PoolMap, axis: list[tuple[int, int, int]], kinds: dict[tuple[Any, ...], int], k: int, t0: int
) -> dict[str, Int64Array]:
    ranges = pool.ranges
    start = np.array([one.start_ns for one in ranges], dtype=np.int64)
    codes = [
        kinds.setdefault((one.stream, one.pool_id, one.segment_type, one.is_expandable), len(kinds)) for one in ranges
    ]
    return {
        "seg_t": start - t0,
        "seg_life": np.array([one.end_ns for one in ranges], dtype=np.int64) - start,
        "seg_pos": places_on(axis, np.array([one.start for one in ranges], dtype=np.uint64)),
        "seg_size": np.array([one.end - one.start for one in ranges], dtype=np.int64),
        "seg_kind": np.array(codes, dtype=np.int64),
        "seg_series": np.full(len(ranges), k, dtype=np.int64),
    }


def _blocks(pool: PoolMap, axis: list[tuple[int, int, int]], k: int, t0: int) -> dict[str, Int64Array]:
    table = pool.blocks
    start, request, end = (table[name].to_numpy(np.int64) for name in ("start_ns", "request_ns", "end_ns"))
    request = np.clip(request, start, end)
    return {
        "map_t": start - t0,
        "map_life": request - start,
        "map_late": end - request,
        "map_pos": places_on(axis, table["addr"].to_numpy(np.uint64)),
        "map_size": table["size_bytes"].to_numpy(np.int64),
        "map_id": table["block_id"].to_numpy(np.int64),
        "map_series": np.full(len(table), k, dtype=np.int64),
    }


def _joined(parts: Sequence[dict[str, Int64Array]], names: Sequence[str], by: str) -> dict[str, Int64Array]:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    order = np.argsort(columns[by], kind="stable")
    return {name: values[order] for name, values in columns.items()}
