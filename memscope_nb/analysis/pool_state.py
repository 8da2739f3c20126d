"""A pool at an instant: segments, the blocks in them, the free ranges between, and how sure each number is.

The state at the end is recorded. Going back, a block that is gone at the end has only the size that was asked for; it
is rounded as the allocator does it, and counted as estimated (spec/pytorch 1.7).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError
from ..model import NA_NS, BlockFlag, Int64Array, MemoryProfile, block_ends, block_starts, to_int64
from .facts import missing_fact
from .pool_rounding import SMALL_BYTES, Rounding
from .segment_ranges import WORKSPACE, Range, segments_at

HOW_TO_RECORD = (
    "segments come with a memory snapshot: torch.cuda.memory._record_memory_history(), then "
    "torch.cuda.memory._dump_snapshot('name.pickle') (torch.npu.memory for an NPU)"
)
SEGMENT_COLUMNS = ("segment", "addr", "size_bytes", "pool_id", "stream", "segment_type", "is_expandable", "recorded")
BLOCK_COLUMNS = (
    "block_id", "segment", "addr", "offset", "size_bytes", "requested_bytes", "is_pending", "is_estimated", "stack_id",
)  # fmt: skip
RANGE_COLUMNS = ("segment", "addr", "offset", "size_bytes", "before", "after")

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class PoolState:
    """One pool of one device at an instant. Offsets are bytes from the start of the block's segment.

    Attributes
    ----------
    segments : pandas.DataFrame
        By address; ``segment`` is the row, ``recorded`` the row of ``profile.segments``, -1 for one that was rebuilt.
    blocks : pandas.DataFrame
        In use or waiting for another stream, by address; ``size_bytes`` as the allocator rounded it.
    ranges : pandas.DataFrame
        Free ranges, by address; ``before`` and ``after`` are the rows of the blocks beside each, -1 for an edge.
    problems : Counter
        What contradicts itself, with bytes or blocks.
    n_inferred : int
        Blocks that are there because nobody saw their release.
    """

    source: int
    device: str
    pool: str
    t_ns: int
    segments: pd.DataFrame
    blocks: pd.DataFrame
    ranges: pd.DataFrame
    problems: Counter[str]
    n_inferred: int

    @property
    def n_estimated(self) -> int:
        """Blocks whose rounded size is worked out from the request."""
        return int(self.blocks["is_estimated"].sum())


def check_facts(profile: MemoryProfile) -> None:
    """Refuse a profile whose pools cannot be rebuilt.

    Raises
    ------
    MissingFactError
        If there are no segments.
    InputError
        If the profile is a selection of blocks, which would make the others look free, or of time, which lacks the
        changes that lead back from the segments, a state at the end.
    """
    if not len(profile.segments):
        raise missing_fact(profile, "fragmentation", f"this recording has no segments of a pool: {HOW_TO_RECORD}")
    if not profile.complete:
        raise InputError("blocks were selected: what was left out would look free; pass the whole profile")
    for facts, end_ns in zip(profile.sources["facts"], profile.sources["end_ns"], strict=True):
        told = (facts or {}).get("state_ns")
        if told is not None and not pd.isna(end_ns) and told != end_ns:
            raise InputError(
                "a part of the time was selected, but segments are a state at the end; pass the whole profile"
            )


def pool_state(
    profile: MemoryProfile, source: int, device: str, pool: str, t_ns: int, *, rounding: Rounding
) -> PoolState:
    """Rebuild a pool at an instant; see :func:`check_facts` for what it takes.

    Parameters
    ----------
    profile : MemoryProfile
        With all blocks and segments.
    source, device, pool
        Whose pool.
    t_ns : int
        After everything that happened up to then.
    rounding : Rounding
        Rules of the allocator.
    """
    ranges, problems = segments_at(profile, source, device, pool, t_ns)
    rows = _alive(profile, source, device, pool, t_ns)
    segments = _segments_frame(ranges)
    blocks, inferred = _blocks_frame(profile, rows, segments, t_ns, rounding, problems)
    return PoolState(
        source, device, pool, t_ns, segments, blocks, free_ranges(segments, blocks), problems, inferred
    )  # fmt: skip


def _alive(profile: MemoryProfile, source: int, device: str, pool: str, t_ns: int) -> Int64Array:
    blocks = profile.blocks
    mine = (blocks["source"] == source) & (blocks["device"] == device) & (blocks["pool"] == pool)
    there = (block_starts(profile) <= t_ns) & (block_ends(profile, ledger="active") > t_ns)
    return np.flatnonzero(mine.to_numpy() & there).astype(np.int64)


def _segments_frame(ranges: list[Range]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "segment": np.arange(len(ranges), dtype=np.int64),
            "addr": np.array([one.start for one in ranges], dtype=np.uint64),
            "size_bytes": np.array([one.size for one in ranges], dtype=np.int64),
            "pool_id": pd.array([one.pool_id for one in ranges], dtype=object),
            "stream": np.array([one.stream for one in ranges], dtype=np.int64),
            "segment_type": pd.array([one.segment_type for one in ranges], dtype=object),
            "is_expandable": np.array([one.is_expandable for one in ranges], dtype=bool),
            "recorded": np.array([one.row for one in ranges], dtype=np.int64),
        },
        columns=list(SEGMENT_COLUMNS),
    )


def _blocks_frame(
    profile: MemoryProfile,
    rows: Int64Array,
    segments: pd.DataFrame,
    t_ns: int,
    rounding: Rounding,
    problems: Counter[str],
) -> tuple[pd.DataFrame, int]:
    """Lay the blocks into the segments; what lies in none, or on another block, is told and left out."""
    found = profile.blocks.iloc[rows]
    addr = found["addr"].to_numpy(np.uint64, na_value=0)
    order = np.argsort(addr, kind="stable")
    found, addr = found.iloc[order], addr[order]
    starts, sizes = segments["addr"].to_numpy(), segments["size_bytes"].to_numpy()
    segment = np.searchsorted(starts, addr, side="right").astype(np.int64) - 1
    offset = (addr - _take(starts, segment)).view(np.int64)
    inside = (segment >= 0) & (offset >= 0) & (offset < _take(sizes, segment))
    twice = np.append(False, addr[1:] == addr[:-1]) & inside
    requested = found["size_bytes"].to_numpy(np.int64)
    for text, lost in (("bytes of blocks outside every segment", ~inside), ("bytes of blocks on one address", twice)):
        if lost.any():
            problems[text] += int(requested[lost].sum())
    keep = inside & ~twice
    found, addr, segment, offset, requested = found[keep], addr[keep], segment[keep], offset[keep], requested[keep]
    rounded = to_int64(found["rounded_bytes"]) if "rounded_bytes" in found else np.full(len(found), NA_NS)
    estimated = rounded == NA_NS
    size = np.where(estimated, rounding.round_all(requested), rounded)
    room = _room(segment, offset, sizes)
    size = _with_slack(size, room, estimated, segments, segment, rounding)
    if (over := size > room).any():
        problems["bytes by which blocks overlap what follows them"] += int((size - room)[over].sum())
    flags = found["flags"].to_numpy()
    free = to_int64(found["free_ns"], na=t_ns + 1)
    frame = pd.DataFrame(
        {
            "block_id": found["block_id"].to_numpy(np.int64),
            "segment": segment,
            "addr": addr,
            "offset": offset,
            "size_bytes": np.minimum(size, room),
            "requested_bytes": requested,
            "is_pending": free <= t_ns,
            "is_estimated": estimated,
            "stack_id": found["stack_id"].to_numpy(np.int32),
        },
        columns=list(BLOCK_COLUMNS),
    )
    # Not those that only lost the entry of their request: the history starts at their completion.
    inferred = (flags & BlockFlag.SYNTHETIC_FREE != 0) & (flags & (BlockFlag.PENDING | BlockFlag.RELEASE_STACK) == 0)
    return frame, int(inferred.sum())


def _take(values: npt.NDArray[np.generic], positions: Int64Array) -> npt.NDArray[np.generic]:
    return values[np.maximum(positions, 0)] if len(values) else np.zeros(len(positions), dtype=values.dtype)


def _room(segment: Int64Array, offset: Int64Array, sizes: Int64Array) -> Int64Array:
    """Bytes up to the next block of the segment, or to its end."""
    ends = sizes[segment]
    same = segment[1:] == segment[:-1]
    ends[:-1] = np.where(same, offset[1:], ends[:-1])
    room: Int64Array = ends - offset
    return room


def _with_slack(
    size: Int64Array,
    room: Int64Array,
    estimated: npt.NDArray[np.bool_],
    segments: pd.DataFrame,
    segment: Int64Array,
    rounding: Rounding,
) -> Int64Array:
    """Give a block the rest of what it was cut from where the allocator does not split.

    In large segments that do not grow, a rest of up to 1 MiB is not split off; blocks of ``max_split_size`` on are not
    split at all. Small segments and growing ones split everything.
    """
    fixed = (segments["segment_type"] != "small").to_numpy() & ~segments["is_expandable"].to_numpy()
    rest = room - size
    unsplit = (rest > 0) & (rest <= SMALL_BYTES)
    if rounding.max_split_bytes is not None:
        unsplit |= (rest > 0) & (size >= rounding.max_split_bytes)
    return np.where(estimated & fixed[segment] & unsplit, room, size)


def free_ranges(segments: pd.DataFrame, blocks: pd.DataFrame) -> pd.DataFrame:
    """Return what lies between the edges of segments and blocks, by address.

    Parameters
    ----------
    segments : pandas.DataFrame
        ``addr size_bytes``, by address; none overlap.
    blocks : pandas.DataFrame
        ``segment offset size_bytes``, by address; inside their segments, and none overlap.

    Returns
    -------
    pandas.DataFrame
        As :attr:`PoolState.ranges`.

    Notes
    -----
    The k-th end (of a block, or a segment's own start) and the k-th start (of a block, or a segment's own end) enclose
    the k-th range: along an axis where the segments follow each other with a gap of one.
    """
    sizes = segments["size_bytes"].to_numpy(np.int64)
    base = np.append(0, np.cumsum(sizes + 1))[:-1].astype(np.int64)
    segment = blocks["segment"].to_numpy(np.int64)
    starts = base[segment] + blocks["offset"].to_numpy(np.int64)
    ends = starts + blocks["size_bytes"].to_numpy(np.int64)
    none, numbers = np.full(len(segments), -1, dtype=np.int64), np.arange(len(blocks), dtype=np.int64)
    begin, end = np.concatenate([base, ends]), np.concatenate([base + sizes, starts])
    # At one place a segment's start comes before its first block's, a block's end before that of its segment.
    by_begin = np.lexsort((np.concatenate([none, numbers]), begin))
    by_end = np.lexsort((np.concatenate([np.full(len(segments), len(blocks)), numbers]), end))
    begin, end = begin[by_begin], end[by_end]
    owner = np.concatenate([np.arange(len(segments)), segment])[by_begin]
    free = end > begin
    offset = (begin - base[owner])[free] if len(segments) else begin[free]
    owner = owner[free]
    return pd.DataFrame(
        {
            "segment": owner,
            "addr": segments["addr"].to_numpy(np.uint64)[owner] + offset.astype(np.uint64),
            "offset": offset,
            "size_bytes": (end - begin)[free],
            "before": np.concatenate([none, numbers])[by_begin][free],
            "after": np.concatenate([none, numbers])[by_end][free],
        },
        columns=list(RANGE_COLUMNS),
    )


def pools_of(profile: MemoryProfile) -> list[tuple[int, str, str]]:
    """Return (source, device, pool) of every pool with segments; operator workspaces are another allocator's."""
    keys = ["source", "device", "pool"]
    with_segments = profile.segments[keys].drop_duplicates()
    return sorted(
        (int(source), str(device), str(pool))
        for source, device, pool in with_segments.itertuples(index=False)
        if pool != WORKSPACE
    )


__all__ = ["HOW_TO_RECORD", "PoolState", "free_ranges", "pool_state", "pools_of"]
