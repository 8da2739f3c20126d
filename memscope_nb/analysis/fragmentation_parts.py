"""Idle memory of a pool by the reason why a request cannot have it, and the blocks that keep it apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import Int64Array
from .pool_rounding import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES, Rounding, segment_bytes, size_class
from .pool_state import PoolState
from .segment_ranges import DEFAULT_POOL, UNKNOWN_POOL

REASONS = (
    "usable", "too small", "other stream", "private pool", "other pool", "other size class", "kept whole",
    "pool unknown",
)  # fmt: skip
"""Why a request gets a free range or not, the first that is true, from the pool to the range; together they are all
idle bytes. ``kept whole``: ``max_split_size`` forbids to cut it."""
ON_STREAM = ("usable", "too small", "kept whole")
"""Ranges in the segments that the request is served from."""
PIN_COLUMNS = (
    "block_id", "segment", "addr", "size_bytes", "requested_bytes", "idle_before_bytes", "idle_after_bytes",
    "idle_bytes", "reason", "is_pending", "stack_id",
)  # fmt: skip
FIT_COLUMNS = ("route", "block_id", "segment", "addr", "size_bytes", "requested_bytes", "is_pending", "stack_id")
DOMAIN_COLUMNS = (
    "pool_id", "stream", "segment_type", "n_segments", "reserved_bytes", "allocated_bytes", "pending_bytes",
    "idle_bytes", "n_ranges", "largest_bytes", "external_fragmentation", "rounding_bytes", "releasable_bytes",
    "inactive_split_bytes", "inactive_split_fixed_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Attributes
    ----------
    n_bytes, needed_bytes : int
        As recorded, and the block that it takes.
    stream : int
        Handle as in the tables.
    pool_id : str
        Pool.
    assumed : tuple of str
        Which of these are not recorded, in words.
    device_free_bytes : int, optional
        What the driver had free at that moment.
    """

    n_bytes: int
    needed_bytes: int
    stream: int
    pool_id: str = DEFAULT_POOL
    assumed: tuple[str, ...] = ()
    device_free_bytes: int | None = None

    @property
    def segment_type(self) -> str:
        """Half of the pool that serves it."""
        return size_class(self.needed_bytes)

    @property
    def from_driver_bytes(self) -> int:
        """What the driver would have to give for it."""
        return segment_bytes(self.needed_bytes)


@dataclass(frozen=True)
class Fit:
    """Blocks without which a request would fit; ``is_cheapest`` if no others are known to be fewer bytes."""

    route: str
    blocks: Int64Array
    room_bytes: int
    is_cheapest: bool


def reasons_of(state: PoolState, request: Request, rounding: Rounding) -> np.ndarray:
    """Return the reason of every free range, see :data:`REASONS`."""
    segments, ranges = state.segments, state.ranges
    of = ranges["segment"].to_numpy()
    size, pool = ranges["size_bytes"].to_numpy(), segments["pool_id"].to_numpy(dtype=object)[of]
    conditions = [
        pool == UNKNOWN_POOL,
        (pool != request.pool_id) & (pool != DEFAULT_POOL),
        pool != request.pool_id,
        segments["stream"].to_numpy()[of] != request.stream,
        segments["segment_type"].to_numpy(dtype=object)[of] != request.segment_type,
        _kept_whole(size, request.needed_bytes, rounding.max_split_bytes),
        size >= request.needed_bytes,
    ]
    names = [REASONS[i] for i in (7, 3, 4, 2, 5, 6, 0)]
    return np.select(conditions, [np.full(len(of), name, dtype=object) for name in names], REASONS[1])


def _kept_whole(size: Int64Array, needed: int, limit: int | None) -> np.ndarray:
    """Say which large enough ranges are not given out because of ``max_split_size``."""
    if limit is None:
        return np.zeros(len(size), dtype=bool)
    if needed < limit:
        return (size >= limit) & (size >= needed)
    return np.asarray(size >= needed + LARGE_SEGMENT_BYTES)


def on_stream_segments(state: PoolState, request: Request) -> np.ndarray:
    """Say which segments serve the request."""
    segments = state.segments
    return (
        (segments["pool_id"] == request.pool_id)
        & (segments["stream"] == request.stream)
        & (segments["segment_type"] == request.segment_type)
    ).to_numpy()


def whole_idle(state: PoolState) -> np.ndarray:
    """Say which segments hold no block."""
    empty = np.ones(len(state.segments), dtype=bool)
    empty[state.blocks["segment"].to_numpy()] = False
    return empty


def releasable_bytes(state: PoolState) -> int:
    """Bytes of segments without a block, private pools left out: the allocator gives these back before it gives up."""
    segments = state.segments
    mine = whole_idle(state) & (segments["pool_id"] == DEFAULT_POOL).to_numpy()
    return int(segments["size_bytes"].to_numpy()[mine].sum())


def find_pins(state: PoolState, reasons: np.ndarray) -> pd.DataFrame:
    """Return the blocks beside free ranges and how much lies on either side, most idle bytes first.

    A range between two blocks stands at both of them: the sum over blocks is more than what is idle.
    """
    blocks, ranges = state.blocks, state.ranges
    before, after = np.zeros(len(blocks), dtype=np.int64), np.zeros(len(blocks), dtype=np.int64)
    reason = np.full(len(blocks), "", dtype=object)
    size = ranges["size_bytes"].to_numpy()
    for side, sums in (("after", before), ("before", after)):
        block = ranges[side].to_numpy()
        has = block >= 0
        sums[block[has]] = size[has]
        larger = np.zeros(len(blocks), dtype=np.int64) if sums is before else before
        takes = has.copy()
        takes[has] = size[has] > larger[block[has]]
        reason[block[takes]] = reasons[takes]
    rows = np.flatnonzero(before + after)
    frame = blocks.iloc[rows].assign(
        idle_before_bytes=before[rows],
        idle_after_bytes=after[rows],
        idle_bytes=(before + after)[rows],
        reason=reason[rows],
    )
    order = np.argsort(-frame["idle_bytes"].to_numpy(), kind="stable")
    return frame.iloc[order][list(PIN_COLUMNS)]


# -- would it fit -----------------------------------------------------------------------------------------------


def fit_by_merging(state: PoolState, request: Request) -> Fit | None:
    """Find the neighbouring blocks with the fewest bytes without which one free range were large enough.

    Ranges join inside one segment only: two segments are two mappings, even where their addresses follow each other.
    ``None`` if there are no such blocks, or if they would be more than half of the room: then memory is simply in use.
    """
    blocks, segments = state.blocks, state.segments
    mine = np.flatnonzero(on_stream_segments(state, request)[blocks["segment"].to_numpy()])
    if not len(mine):
        return None
    part = blocks.iloc[mine]
    segment, size = part["segment"].to_numpy(), part["size_bytes"].to_numpy()
    sizes = segments["size_bytes"].to_numpy()
    base = np.append(0, np.cumsum(sizes + 1))[:-1]
    start = base[segment] + part["offset"].to_numpy()
    end = start + size
    same = segment[1:] == segment[:-1]
    left = np.where(np.append(False, same), np.append(0, end[:-1]), base[segment])
    right = np.where(np.append(same, False), np.append(start[1:], 0), base[segment] + sizes[segment])
    last = np.searchsorted(right, left + request.needed_bytes, side="left")
    window = _cheapest_window(_Windows(segment, left, right, np.append(0, np.cumsum(size))), last)
    if window is None:
        return None
    first, to = window
    return Fit("merge", mine[np.arange(first, to + 1)], int(right[to] - left[first]), is_cheapest=True)


@dataclass(frozen=True)
class _Windows:
    """Runs of neighbouring blocks of one segment, with the free ranges on both sides: from block i to block k."""

    segment: Int64Array
    left: Int64Array
    right: Int64Array
    """Where the free range before, and after, each block begins and ends; segments never touch."""
    sums: Int64Array
    """Bytes of all blocks before each one."""

    def used(self, first: Int64Array, last: Int64Array) -> Int64Array:
        """Bytes of the blocks of some runs."""
        return self.sums[last + 1] - self.sums[first]

    def inside(self, first: Int64Array, last: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether runs end in the segment in which they begin."""
        there = last < len(self.segment)
        there[there] = self.segment[last[there]] == self.segment[first[there]]
        return there

    def least_left(self) -> Int64Array:
        """Return the least that ``2 * used - room`` of a run can still become if it ends at a block or later."""
        ends = 2 * self.sums[1:] - self.right
        apart = (np.ptp(ends) + 1) * np.append(0, np.cumsum(self.segment[1:] != self.segment[:-1]))
        least: Int64Array = np.minimum.accumulate((ends + apart)[::-1])[::-1] - apart
        return least


def _cheapest_window(runs: _Windows, last: Int64Array) -> tuple[int, int] | None:
    """Find the run with fewest bytes in use that is long enough and mostly idle; ``last``: where it is long enough.

    A run that is just long enough may be mostly in use, and a longer one, with more room behind, not: so every run
    grows block by block until it is mostly idle, or costs more than the best one.
    """
    first = np.arange(len(last))
    keep = runs.inside(first, last)
    first, last = first[keep], last[keep]
    keep = runs.least_left()[last] <= 2 * runs.sums[first] - runs.left[first]
    first, last = first[keep], last[keep]
    best: tuple[int, int, int, int] | None = None
    while len(first):
        used = runs.used(first, last)
        done = 2 * used <= runs.right[last] - runs.left[first]  # as _is_mostly_idle
        if done.any():
            at = np.flatnonzero(done)[np.lexsort((last[done] - first[done], used[done]))[0]]
            found = (int(used[at]), int(last[at] - first[at]), int(first[at]), int(last[at]))
            best = found if best is None else min(best, found)
        first, last = first[~done], last[~done] + 1
        keep = runs.inside(first, last)
        first, last = first[keep], last[keep]
        if best is not None:
            keep = runs.used(first, last) < best[0]
            first, last = first[keep], last[keep]
    return None if best is None else best[2:]


def fit_by_release(state: PoolState, request: Request) -> Fit | None:
    """Find segments that could go back to the driver but for some blocks, until the driver could serve the request.

    Only segments that do not grow, and none of private pools, which keep theirs. The cheapest one segment, or several
    by fewest bytes in use for each byte that comes free, which need not be the best choice.
    """
    if request.device_free_bytes is None:
        return None
    segments, blocks = state.segments, state.blocks
    missing = request.from_driver_bytes - request.device_free_bytes - releasable_bytes(state)
    sizes = segments["size_bytes"].to_numpy()
    used = np.bincount(blocks["segment"], weights=blocks["size_bytes"], minlength=len(segments)).astype(np.int64)
    can = (segments["pool_id"] == DEFAULT_POOL).to_numpy() & ~segments["is_expandable"].to_numpy() & (used > 0)
    rows = np.flatnonzero(can)
    if missing <= 0 or int(sizes[rows].sum()) < missing:
        return None
    alone = rows[sizes[rows] >= missing]
    order = rows[np.argsort(used[rows] / sizes[rows], kind="stable")]
    several = order[: int(np.searchsorted(np.cumsum(sizes[order]), missing)) + 1]
    chosen = several
    if len(alone):
        one = alone[int(np.argmin(used[alone]))]
        chosen = np.array([one]) if used[one] <= used[several].sum() else several
    if not _is_mostly_idle(int(used[chosen].sum()), int(sizes[chosen].sum())):
        return None
    found = np.flatnonzero(np.isin(blocks["segment"].to_numpy(), chosen))
    return Fit("release", found, int(sizes[chosen].sum()), is_cheapest=False)


def _is_mostly_idle(used_bytes: int, room_bytes: int) -> bool:
    """Whether blocks stand in the way of idle memory; where they are most of it, the memory is simply in use."""
    return 2 * used_bytes <= room_bytes


def fit_frame(state: PoolState, fit: Fit) -> pd.DataFrame:
    """Return the blocks of a fit."""
    return state.blocks.iloc[fit.blocks].assign(route=fit.route)[list(FIT_COLUMNS)]


def mappable_bytes(state: PoolState, request: Request) -> int | None:
    """Longest range that a growing segment could offer by mapping what the driver has free behind its last pages.

    ``None`` without growing segments in the right place, or if it is unknown what was free. Holes between mapped parts
    are not counted: the snapshot does not tell which parts share a reservation.
    """
    mine = on_stream_segments(state, request) & state.segments["is_expandable"].to_numpy()
    if request.device_free_bytes is None or not mine.any():
        return None
    grain = SMALL_SEGMENT_BYTES if request.segment_type == "small" else LARGE_SEGMENT_BYTES
    ranges = state.ranges
    at_end = mine[ranges["segment"].to_numpy()] & (ranges["after"] < 0).to_numpy()
    return (
        int(ranges.loc[at_end, "size_bytes"].max() if at_end.any() else 0) + request.device_free_bytes // grain * grain
    )


# -- domains ----------------------------------------------------------------------------------------------------


def domains_frame(state: PoolState) -> pd.DataFrame:
    """Return the figures of spec/pytorch 1.11 for each pool, stream and size class; none serves another's requests.

    ``inactive_split_bytes`` are idle bytes in segments that also hold a block; the allocator's own statistic leaves out
    segments that grow, as ``inactive_split_fixed_bytes`` does.
    """
    keys = ["pool_id", "stream", "segment_type"]
    segments, blocks, ranges = state.segments, state.blocks, state.ranges
    empty = whole_idle(state)
    sums = segments.assign(releasable_bytes=np.where(empty, segments["size_bytes"], 0))
    n = len(segments)

    def by_segment(table: pd.DataFrame, values: np.ndarray) -> Int64Array:
        total = np.zeros(n, dtype=np.int64)
        np.add.at(total, table["segment"].to_numpy(), values)
        return total

    size, pending = blocks["size_bytes"].to_numpy(), blocks["is_pending"].to_numpy()
    idle = by_segment(ranges, ranges["size_bytes"].to_numpy())
    largest = np.zeros(n, dtype=np.int64)
    np.maximum.at(largest, ranges["segment"].to_numpy(), ranges["size_bytes"].to_numpy())
    sums = sums.assign(
        allocated_bytes=by_segment(blocks, np.where(pending, 0, size)),
        pending_bytes=by_segment(blocks, np.where(pending, size, 0)),
        idle_bytes=idle,
        n_ranges=by_segment(ranges, np.ones(len(ranges), dtype=np.int64)),
        largest_bytes=largest,
        rounding_bytes=by_segment(blocks, size - blocks["requested_bytes"].to_numpy()),
        inactive_split_bytes=np.where(empty, 0, idle),
        inactive_split_fixed_bytes=np.where(empty | segments["is_expandable"].to_numpy(), 0, idle),
        n_segments=1,
        reserved_bytes=segments["size_bytes"],
    )
    how = {c: "max" if c == "largest_bytes" else "sum" for c in DOMAIN_COLUMNS[3:] if c != "external_fragmentation"}
    frame = sums.groupby(keys, sort=False).agg(how).reset_index()
    share = 1 - frame["largest_bytes"] / frame["idle_bytes"].where(frame["idle_bytes"] > 0)
    frame = frame.assign(external_fragmentation=share.astype("Float64"))[list(DOMAIN_COLUMNS)]
    return frame.sort_values("reserved_bytes", ascending=False, kind="stable", ignore_index=True)
