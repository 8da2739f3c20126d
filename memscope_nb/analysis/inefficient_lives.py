"""When each block was idle: before its first use, between two uses, after the last one (spec/msmemscope 9, 13.5).

An *API* is an operator that no other one of its thread surrounds, or a row outside of any operator. Threads, devices
and pools are kept apart; what counts is whether the memory could have served another block meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, BlockFlag, MemoryProfile, block_ends, is_open, to_int64
from .align_bytes import devices_of_ops
from .align_nesting import NONE, Nesting, event_places
from .inefficient_api import EARLY, IDLE, LATE

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Points:
    """Rows of one kind with the API around each: IDs and times of its start and end, of the row itself if alone."""

    event_id: Int64Array
    t: Int64Array
    begin: Int64Array
    end: Int64Array
    begin_t: Int64Array
    end_t: Int64Array


@dataclass(frozen=True)
class Lives:
    """Blocks, their allocations and releases (position is that of the block), accesses by block and ID."""

    blocks: pd.DataFrame
    born: Points
    freed: Points
    accesses: Points
    block_of_access: Int64Array
    place: Int64Array
    """Number of the process and device of each block."""
    starts: tuple[Int64Array, Int64Array]
    """Process and device, and ID, of every start of an API."""


def build_lives(profile: MemoryProfile) -> Lives:
    """Put the rows of each block beside the APIs that they lie in."""
    blocks = profile.blocks[profile.blocks["event_id"].notna()].reset_index(drop=True)
    ops = profile.ops[profile.ops["kind"].isin(("aten", "atb")) & profile.ops["start_event_id"].notna()]
    accesses = profile.accesses
    of_block = pd.Index(blocks["block_id"]).get_indexer(accesses["block_id"]).astype(np.int64)
    accesses, of_block = accesses[of_block >= 0], of_block[of_block >= 0]
    order = np.lexsort((accesses["event_id"].to_numpy(), of_block))
    accesses, of_block = accesses.iloc[order], of_block[order]
    source = blocks["source"].to_numpy(np.int64)
    freed = to_int64(blocks["free_event_id"])
    items = [
        (source, to_int64(blocks["tid"], na=NONE), to_int64(blocks["event_id"]), to_int64(blocks["alloc_ns"])),
        (source, _free_threads(profile, source, freed), freed, to_int64(blocks["free_ns"])),
        (source[of_block], to_int64(accesses["tid"], na=NONE), accesses["event_id"].to_numpy(np.int64),
         accesses["t_ns"].to_numpy(np.int64)),
    ]  # fmt: skip
    points, alone, outermost = _points(ops, items)
    op_source, op_start = ops["source"].to_numpy(np.int64), to_int64(ops["start_event_id"])
    keys = pd.DataFrame(
        {
            "source": np.concatenate([source, op_source[outermost]]),
            "device": np.concatenate(
                [blocks["device"].astype(object), devices_of_ops(profile, op_source, op_start)[outermost]]
            ),
        }
    )
    number = keys.groupby(["source", "device"], sort=False, dropna=False).ngroup().to_numpy(np.int64)
    place = number[: len(blocks)]
    where = np.concatenate([number[len(blocks) :], place[alone[0]], place[alone[1]], place[of_block][alone[2]]])
    at = np.concatenate([op_start[outermost], *(p.event_id[a] for p, a in zip(points, alone, strict=True))])
    known = at != NA_NS
    return Lives(blocks, points[0], points[1], points[2], of_block, place, (where[known], at[known]))


def _free_threads(profile: MemoryProfile, source: Int64Array, freed: Int64Array) -> Int64Array:
    rows = profile.events.loc[profile.events["event"] == "FREE", ["source", "event_id", "tid"]]
    at = event_places(rows["source"].to_numpy(np.int64), rows["event_id"].to_numpy(np.int64), source, freed)
    return np.append(to_int64(rows["tid"], na=NONE), NONE)[at]


def _points(
    ops: pd.DataFrame, items: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]]
) -> tuple[list[Points], list[BoolArray], Int64Array]:
    """The API around each row, which rows are alone, and the positions of the operators that are APIs."""
    threads = pd.DataFrame(
        {
            "source": np.concatenate([ops["source"], *(item[0] for item in items)]),
            "tid": np.concatenate([ops["tid"], *(item[1] for item in items)]),
        }
    )
    group = threads.groupby(["source", "tid"], sort=False).ngroup().to_numpy(np.int64)
    n = len(ops)
    start, end = to_int64(ops["start_event_id"]), to_int64(ops["end_event_id"])
    start_t, end_t = ops["start_ns"].to_numpy(np.int64), ops["end_ns"].to_numpy(np.int64)
    nest = Nesting(group[:n], start, end, group[n:], np.concatenate([item[2] for item in items]))
    outer = np.append(nest.outer(), NONE)[nest.inner]
    cuts = np.cumsum([len(item[2]) for item in items])[:-1]
    points, alone = [], []
    for (_, _, event_id, t), op in zip(items, np.split(outer, cuts), strict=True):
        by_itself = op == NONE
        columns = (
            np.where(by_itself, own, np.append(of_op, 0)[op])
            for own, of_op in ((event_id, start), (event_id, end), (t, start_t), (t, end_t))
        )
        points.append(Points(event_id, t, *columns))
        alone.append(by_itself)
    return points, alone, np.flatnonzero(nest.parent == NONE)


def life_ends(profile: MemoryProfile) -> Int64Array:
    """End of each block; one that is never released lives to the last row of its process, whatever that row is."""
    ends = block_ends(profile)
    if not len(profile.events):
        return ends
    last = profile.events.groupby("source")["t_ns"].max().reindex(profile.blocks["source"]).fillna(NA_NS)
    return np.where(is_open(profile.blocks), np.maximum(ends, last.to_numpy(np.int64)), ends)


# -- stretches of time in which a block served nobody -----------------------------------------------------------


@dataclass(frozen=True)
class Stretches:
    """Idle time of blocks: one row per stretch, and the event at which it is known."""

    block: Int64Array
    label: str
    start_ns: Int64Array
    end_ns: Int64Array
    event_id: Int64Array
    n_apis: Int64Array


Judge = Callable[[str, Int64Array, Int64Array, Int64Array], BoolArray]
"""Whether a label holds, from the block, the length in ns and the life of the block in ns."""


class Counter:
    """Counts events of a group between two IDs."""

    def __init__(self, group: Int64Array, event_id: Int64Array) -> None:
        self.ids = np.unique(event_id)
        self.keys = np.sort(group * (len(self.ids) + 2) + np.searchsorted(self.ids, event_id) + 1)

    def between(self, group: Int64Array, after: Int64Array, up_to: Int64Array) -> Int64Array:
        """Events with ``after < ID <= up_to``."""
        low, high = (np.searchsorted(self.ids, bound, side="right") for bound in (after, up_to))
        base = group * (len(self.ids) + 2)
        count = np.searchsorted(self.keys, base + high, side="right") - np.searchsorted(
            self.keys, base + low, side="right"
        )
        return np.asarray(count, dtype=np.int64)


def stretches_by_api(lives: Lives, threshold: int, unit: str) -> list[Stretches]:
    """Before the use: something was freed meanwhile; after it: something was allocated; between: too many APIs."""
    pool = lives.blocks["pool"].cat.codes.to_numpy().astype(np.int64)
    series = lives.place * (int(pool.max(initial=0)) + 1) + pool
    flags = lives.blocks["flags"].to_numpy(np.uint16)
    seen = flags & np.uint16(BlockFlag.PROMOTED) == 0
    gone = (lives.freed.event_id != NA_NS) & (flags & np.uint16(BlockFlag.SYNTHETIC_FREE) == 0)
    apis = Counter(*lives.starts)
    mallocs, frees = Counter(series[seen], lives.born.event_id[seen]), Counter(
        series[gone], lives.freed.event_id[gone]
    )  # fmt: skip
    return [
        _idle(lives, apis, threshold, unit),
        _early(lives, series, frees, apis, seen),
        _late(lives, series, mallocs, apis, gone),
    ]


def _early(lives: Lives, series: Int64Array, frees: Counter, apis: Counter, seen: BoolArray) -> Stretches:
    of, use, born = lives.block_of_access, lives.accesses, lives.born
    other = np.flatnonzero(use.begin != born.begin[of])
    block, first = np.unique(of[other], return_index=True)
    at = other[first]
    good = seen[block] & (frees.between(series[block], born.end[block], use.begin[at] - 1) > 0)
    block, at = block[good], at[good]
    n = apis.between(lives.place[block], born.begin[block], use.begin[at])
    return Stretches(block, EARLY, born.t[block], use.begin_t[at], use.event_id[at], n)


def _late(lives: Lives, series: Int64Array, mallocs: Counter, apis: Counter, gone: BoolArray) -> Stretches:
    of, use, freed = lives.block_of_access, lives.accesses, lives.freed
    last = np.flatnonzero(np.append(of[1:] != of[:-1], True)) if len(of) else np.empty(0, dtype=np.int64)
    block = of[last]
    keep = gone[block] & (use.begin[last] != freed.begin[block])
    block, last = block[keep], last[keep]
    good = mallocs.between(series[block], use.end[last], freed.begin[block] - 1) > 0
    block, last = block[good], last[good]
    n = apis.between(lives.place[block], use.begin[last], freed.begin[block])
    return Stretches(block, LATE, use.end_t[last], freed.t[block], freed.event_id[block], n)


def _idle(lives: Lives, apis: Counter, threshold: int, unit: str) -> Stretches:
    of, use = lives.block_of_access, lives.accesses
    at = np.flatnonzero(np.append(False, of[1:] == of[:-1])) if len(of) else np.empty(0, dtype=np.int64)
    n = apis.between(lives.place[of[at]], use.begin[at - 1], use.begin[at])
    size = n if unit == "api" else use.begin_t[at] - use.end_t[at - 1]
    at, n = at[size > threshold], n[size > threshold]
    return Stretches(of[at], IDLE, use.end_t[at - 1], use.begin_t[at], use.event_id[at], n)


def stretches_by_time(lives: Lives, profile: MemoryProfile, judge: Judge) -> list[Stretches]:
    """Insight's filter by wall time; the longest pause lies between accesses that follow each other.

    A block that is never released counts as released at the end of the recording, as there.
    """
    of, use = lives.block_of_access, lives.accesses
    if not len(of):
        return []
    apis = Counter(*lives.starts)
    position = pd.Index(profile.blocks["block_id"]).get_indexer(lives.blocks["block_id"])
    born = lives.born.t
    ends = life_ends(profile)[position]
    life = np.maximum(ends - born, 0)
    edge = of[1:] != of[:-1]
    first, last = np.flatnonzero(np.append(True, edge)), np.flatnonzero(np.append(edge, True))
    later = np.flatnonzero(np.append(False, ~edge))
    freed_id = np.where(lives.freed.event_id == NA_NS, np.iinfo(np.int64).max, lives.freed.event_id)
    parts = (
        (IDLE, of[later], use.t[later - 1], use.t[later], use.begin[later - 1], use.event_id[later]),
        (EARLY, of[first], born[of[first]], use.t[first], lives.born.begin[of[first]], use.event_id[first]),
        (LATE, of[last], use.t[last], ends[of[last]], use.begin[last], freed_id[of[last]]),
    )
    found = []
    for label, block, start, end, begin, event_id in parts:
        good = (end > start) & judge(label, block, end - start, life[block])
        if label == LATE:
            good &= start > born[block]
        block, start, end, begin, event_id = (x[good] for x in (block, start, end, begin, event_id))
        found.append(Stretches(block, label, start, end, event_id, apis.between(lives.place[block], begin, event_id)))
    return found
