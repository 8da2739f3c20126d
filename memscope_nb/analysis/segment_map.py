"""Addresses over time: what the driver gave, which blocks lay there, and the free gaps between them at an instant.

Built from the segments at the end of a snapshot, its segment changes, and the lives of its blocks (spec/pytorch 1.7). A
range is a piece of address space over the time in which it was mapped; blocks lie inside ranges and never on each
other. Where the file contradicts itself, the later allocation holds and the other one is cut; how often is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..errors import InputError, MissingFactError
from ..model import NA_NS, Int64Array, MemoryProfile, block_ends, block_starts, from_int64, to_int64
from ..units import format_bytes
from .facts import missing_fact
from .pool_rounding import Rounding
from .pool_state import free_ranges
from .result import Result
from .segment_ranges import Range, joined_ranges, ranges_of
from .segment_sweep import lay_out

KEYS = ("source", "device", "pool")
RANGE_COLUMNS = (
    *KEYS, "addr", "size_bytes", "start_ns", "end_ns", "pool_id", "stream", "segment_type", "is_expandable",
)  # fmt: skip
MAP_BLOCK_COLUMNS = (
    *KEYS, "block_id", "addr", "size_bytes", "requested_bytes", "start_ns", "request_ns", "end_ns", "is_estimated",
)  # fmt: skip
GAP_COLUMNS = (
    *KEYS, "addr", "size_bytes", "segment_addr", "segment_bytes", "offset_bytes", "stream", "pool_id", "segment_type",
    "is_expandable", "left_block_id", "left_bytes", "left_site", "right_block_id", "right_bytes", "right_site",
)  # fmt: skip
NEEDS = (
    "addresses of segments come with a memory snapshot: record with "
    "torch.cuda.memory._record_memory_history(enabled='all', context='all'), then _dump_snapshot(file) "
    "(torch.npu.memory, torch.xpu.memory alike)"
)


@dataclass(frozen=True, repr=False)
class SegmentMap(Result):
    """Address × time of one or more pools. ``frame`` has a row for each mapped range.

    Attributes
    ----------
    frame : pandas.DataFrame
        ``source device pool addr size_bytes start_ns end_ns pool_id stream segment_type is_expandable``: mapped over
        ``[start_ns, end_ns)``. Ranges never overlap. Neighbours of one expandable segment are ranges of their own.
    blocks : pandas.DataFrame
        ``block_id addr size_bytes requested_bytes start_ns request_ns end_ns is_estimated``: in use over
        ``[start_ns, request_ns)``, pending free (released, not yet reusable) over ``[request_ns, end_ns)``.
        ``size_bytes`` is rounded: recorded for blocks alive at the end, estimated from the request for others.
    counts : dict
        How often the recording contradicts itself, by kind.
    """

    blocks: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(MAP_BLOCK_COLUMNS)), repr=False)
    counts: dict[str, int] = field(default_factory=dict)

    def levels_at(self, t_ns: int) -> pd.DataFrame:
        """Return ``mapped_bytes active_bytes pending_bytes idle_bytes`` of each range that is mapped at an instant."""
        here = self.frame[(self.frame["start_ns"] <= t_ns) & (self.frame["end_ns"] > t_ns)].reset_index(drop=True)
        there = self.blocks[(self.blocks["start_ns"] <= t_ns) & (self.blocks["end_ns"] > t_ns)]
        active, pending = np.zeros(len(here), np.int64), np.zeros(len(here), np.int64)
        starts, sizes = [int(a) for a in here["addr"]], here["size_bytes"].tolist()
        order = np.argsort(here["addr"].to_numpy(np.uint64), kind="stable")
        sorted_starts = here["addr"].to_numpy(np.uint64)[order]
        for block in there.itertuples():
            at, left, end = int(block.addr), int(block.size_bytes), int(block.addr) + int(block.size_bytes)
            k = int(np.searchsorted(sorted_starts, np.uint64(at), side="right")) - 1
            while left and k < len(order):  # a block of an expandable segment may lie in several ranges
                row = int(order[k])
                inside = min(starts[row] + sizes[row], end) - at
                (pending if block.request_ns <= t_ns else active)[row] += inside
                at, left, k = at + inside, left - inside, k + 1
        here["mapped_bytes"], here["active_bytes"], here["pending_bytes"] = here["size_bytes"], active, pending
        here["idle_bytes"] = here["mapped_bytes"] - active - pending
        return here


@dataclass(frozen=True)
class PoolMap:
    """Ranges and blocks of one pool; times in ns since the epoch."""

    key: tuple[int, str, str]
    ranges: list[Range]
    blocks: pd.DataFrame
    counts: Counter[str]

    def ranges_frame(self) -> pd.DataFrame:
        """Return the ranges as a table, by address and time."""
        return range_columns(self.ranges).assign(**dict(zip(KEYS, self.key, strict=True)))[list(RANGE_COLUMNS)]


def range_columns(ranges: list[Range]) -> pd.DataFrame:
    """Return ranges as a table, in their order."""
    return pd.DataFrame(
        {
            "addr": pd.array(np.array([one.start for one in ranges], dtype=np.uint64), dtype="UInt64"),
            "size_bytes": np.array([one.size for one in ranges], dtype=np.int64),
            "start_ns": np.array([one.start_ns for one in ranges], dtype=np.int64),
            "end_ns": np.array([one.end_ns for one in ranges], dtype=np.int64),
            "pool_id": pd.Series([one.pool_id for one in ranges], dtype=object),
            "stream": from_int64(np.array([one.stream for one in ranges], dtype=np.int64)),
            "segment_type": pd.Series([one.segment_type for one in ranges], dtype=object),
            "is_expandable": np.array([one.is_expandable for one in ranges], dtype=bool),
        }
    )


def pool_keys(
    profile: MemoryProfile, *, source: int | None = None, device: str | None = None, pool: str | None = None
) -> list[tuple[int, str, str]]:
    """Return (source, device, pool) of the pools with segments that are asked for.

    Raises
    ------
    MissingFactError
        If the recording has no segments at all.
    InputError
        If none fits, or blocks were selected: what is left out would look free.
    """
    if not len(profile.segments):
        raise missing_fact(profile, "segment_map", NEEDS)
    if not profile.complete:
        raise InputError("blocks were selected, and what was left out would look free: pass the whole profile")
    keys = profile.segments[list(KEYS)].drop_duplicates()
    every = sorted((int(s), str(d), str(p)) for s, d, p in keys.itertuples(index=False))
    found = [k for k in every if source in (None, k[0]) and device in (None, k[1]) and pool in (None, k[2])]
    if not found:
        there = "; ".join(f"source {s} {d} {p}" for s, d, p in every[:20])
        raise InputError(f"no pool with source={source}, device={device!r}, pool={pool!r}; there is: {there}")
    return found


def pool_map(profile: MemoryProfile, key: tuple[int, str, str]) -> PoolMap:
    """Lay out one pool over the whole window of its source."""
    source, device, pool = key
    row = profile.sources[profile.sources["source"] == source].iloc[0]
    window = int(row["start_ns"]), int(row["end_ns"]) + 1
    ranges, counts = ranges_of(profile, source, device, pool, window)
    facts = row["facts"] if isinstance(row["facts"], dict) else {}
    blocks = _pool_blocks(profile, key, Rounding.of(facts))
    laid, more = lay_out(ranges, blocks, max_split_bytes=Rounding.of(facts).max_split_bytes)
    return PoolMap(key, ranges, laid, counts + more)


def _pool_blocks(profile: MemoryProfile, key: tuple[int, str, str], rounding: Rounding) -> pd.DataFrame:
    blocks = profile.blocks
    mine = (blocks["source"] == key[0]) & (blocks["device"] == key[1]) & (blocks["pool"] == key[2])
    rows = np.flatnonzero(mine.to_numpy() & blocks["addr"].notna().to_numpy())
    part = blocks.iloc[rows]
    requested = part["size_bytes"].to_numpy(np.int64)
    rounded = to_int64(part["rounded_bytes"]) if "rounded_bytes" in part else np.full(len(part), NA_NS)
    return pd.DataFrame(
        {
            "block_id": part["block_id"].to_numpy(np.int64),
            "addr": part["addr"].to_numpy(np.uint64),
            "size_bytes": np.where(rounded == NA_NS, rounding.round_all(requested), rounded),
            "requested_bytes": requested,
            "start_ns": block_starts(profile)[rows],
            "request_ns": block_ends(profile)[rows],
            "end_ns": block_ends(profile, ledger="active")[rows],
            "is_estimated": rounded == NA_NS,
        }
    )


def segment_map(
    profile: MemoryProfile, *, source: int | None = None, device: str | None = None, pool: str | None = None
) -> SegmentMap:
    """Lay out the address space of pools over time: mapped ranges, and the blocks in them.

    Parameters
    ----------
    profile : MemoryProfile
        Of memory snapshots.
    source, device, pool : optional
        Only these.

    Raises
    ------
    MissingFactError
        If the recording has no segments.
    InputError
        If nothing fits, or the profile is a selection of blocks.
    """
    maps = [pool_map(profile, key) for key in pool_keys(profile, source=source, device=device, pool=pool)]
    counts: Counter[str] = sum((one.counts for one in maps), Counter())
    frame = pd.concat([one.ranges_frame() for one in maps], ignore_index=True)
    parts = [one.blocks.assign(**dict(zip(KEYS, one.key, strict=True)))[list(MAP_BLOCK_COLUMNS)] for one in maps]
    blocks = pd.concat(parts, ignore_index=True)
    blocks["addr"] = pd.array(blocks["addr"].to_numpy(np.uint64), dtype="UInt64")
    return SegmentMap(frame, tuple(map_caveats(counts, blocks)), blocks, dict(counts))


def map_caveats(counts: Counter[str], blocks: pd.DataFrame) -> Iterator[str]:
    """Say what was estimated, and what contradicts itself."""
    n_estimated = int(blocks["is_estimated"].sum())
    if n_estimated:
        yield (
            f"the rounded size of {n_estimated:,} blocks that were gone at the end is worked out from their request: "
            "gaps beside them are estimates"
        )
    for text, n in sorted(counts.items()):
        yield f"{text}: {format_bytes(n) if text.startswith('bytes') else f'{n:,}'}"


def free_gaps(
    profile: MemoryProfile,
    t_ns: int,
    *,
    source: int | None = None,
    device: str | None = None,
    pool: str | None = None,
) -> pd.DataFrame:
    """Return the free ranges of pools at an instant, largest first, with the blocks beside each.

    Parameters
    ----------
    profile : MemoryProfile
        Of memory snapshots.
    t_ns : int
        After everything that happened up to then.
    source, device, pool : optional
        Only these.

    Returns
    -------
    pandas.DataFrame
        ``source device pool addr size_bytes segment_addr segment_bytes offset_bytes stream pool_id segment_type
        is_expandable``, then ``left_block_id left_bytes left_site`` and the same of the right side; -1, 0 and an empty
        text at the edge of a segment. A request can be served from one gap only: of its own stream, pool and type.

    Raises
    ------
    MissingFactError
        If the recording has no segments.
    InputError
        If nothing fits or was recorded at that instant, or the profile is a selection of blocks.
    """
    keys = pool_keys(profile, source=source, device=device, pool=pool)
    sources = profile.sources.set_index("source")
    spans = {s: (int(sources.at[s, "start_ns"]), int(sources.at[s, "end_ns"])) for s in {key[0] for key in keys}}
    keys = [key for key in keys if spans[key[0]][0] <= t_ns <= spans[key[0]][1]]
    if not keys:
        told = ", ".join(f"{a}..{b}" for a, b in sorted(set(spans.values()))[:10])
        raise InputError(f"nothing was recorded at {t_ns}; windows are {told}")
    sites = _sites(profile)
    frame = pd.concat([_gaps(pool_map(profile, key), t_ns, sites) for key in keys], ignore_index=True)
    return frame.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)


def _sites(profile: MemoryProfile) -> pd.Series:
    """Site of each block by its id."""
    texts = np.append(profile.stacks["site"].to_numpy(dtype=object), "")
    return pd.Series(texts[profile.blocks["stack_id"].to_numpy()], index=profile.blocks["block_id"].to_numpy())


def _gaps(one: PoolMap, t_ns: int, sites: pd.Series) -> pd.DataFrame:
    segments = range_columns(joined_ranges([r for r in one.ranges if r.start_ns <= t_ns < r.end_ns]))
    blocks = one.blocks[(one.blocks["start_ns"] <= t_ns) & (one.blocks["end_ns"] > t_ns)].sort_values("addr")
    starts, addr = segments["addr"].to_numpy(np.uint64), blocks["addr"].to_numpy(np.uint64)
    segment = np.searchsorted(starts, addr, side="right") - 1
    offset = (addr - starts[segment]).astype(np.int64) if len(addr) else np.empty(0, np.int64)
    free = free_ranges(segments, blocks.assign(segment=segment, offset=offset))
    around = segments.iloc[free["segment"].to_numpy()].reset_index(drop=True)
    return around.assign(
        addr=pd.array(free["addr"], dtype="UInt64"),
        size_bytes=free["size_bytes"],
        segment_addr=around["addr"],
        segment_bytes=around["size_bytes"],
        offset_bytes=free["offset"],
        **_neighbour("left", free["before"].to_numpy(), blocks, sites),
        **_neighbour("right", free["after"].to_numpy(), blocks, sites),
        **dict(zip(KEYS, one.key, strict=True)),
    )[list(GAP_COLUMNS)]


def _neighbour(side: str, at: Int64Array, blocks: pd.DataFrame, sites: pd.Series) -> dict[str, Any]:
    ids = np.append(blocks["block_id"].to_numpy(np.int64), -1)[at]
    return {
        f"{side}_block_id": ids,
        f"{side}_bytes": np.append(blocks["size_bytes"].to_numpy(np.int64), 0)[at],
        f"{side}_site": pd.Series(sites.reindex(ids).fillna("").to_numpy(), dtype=object),
    }


__all__ = ["MissingFactError", "PoolMap", "SegmentMap", "free_gaps", "pool_keys", "pool_map", "segment_map"]
