"""Operators, kernels and accesses of one process (spec/msmemscope 2.3, 3.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, Int64Array, concat_tables, empty_accesses, from_int64, to_int64
from .memscope_blocks import NONE, pair_by_nesting
from .report import ReadReport

BoolArray = npt.NDArray[np.bool_]
_PAIRS = {
    "ATEN": "aten",
    "ATB": "atb",
    "KERNEL_EXECUTE": "kernel_execute",
    "KERNEL": "atb_kernel",
}
"""Prefix of ``_START`` and ``_END`` types, and the kind of the operator."""
LAUNCH = "KERNEL_LAUNCH"
_NUMBER = re.compile("[0-9]{1,19}")


def build_ops(events: pd.DataFrame, report: ReadReport) -> pd.DataFrame:
    """Build the ``ops`` of one process, without ``source``: pairs of START and END in one thread, and kernel launches.

    An operator whose start or end is missing has no interval and is counted; a launch is an instant.
    """
    order = np.argsort(events["event_id"].to_numpy(), kind="stable")
    types = events["type"].cat.categories
    family = np.array([_family(str(name)) for name in types] + [NONE], dtype=np.int64)[events["type"].cat.codes]
    starts = np.array([str(name).endswith("_START") for name in types] + [False], dtype=bool)[events["type"].cat.codes]
    rows = order[family[order] != NONE]
    tid = to_int64(events["tid"], na=NONE)
    names = events["name"].cat.codes.to_numpy()
    key = pd.factorize(tid[rows])[0] * len(_PAIRS) + family[rows]
    pairing = pair_by_nesting(key, starts[rows])
    both = (pairing.malloc != NONE) & (pairing.free != NONE)
    begin, end = rows[pairing.malloc[both]], rows[pairing.free[both]]
    same = names[begin] == names[end]
    n_lost = int((~both).sum()) + 2 * int((~same).sum())
    if n_lost:
        report.note("operators whose start or end is not there", n_lost)
    begin, end = begin[same], end[same]
    launches = np.flatnonzero((events["type"] == LAUNCH).to_numpy())
    first, last = np.concatenate([begin, launches]), np.concatenate([end, launches])
    kinds = [*_PAIRS.values(), "launch"]
    kind = np.concatenate([family[begin], np.full(len(launches), len(kinds) - 1)])
    t, ids = events["t_ns"].to_numpy(np.int64), events["event_id"].to_numpy(np.int64)
    frame = pd.DataFrame(
        {
            "tid": tid[first],
            "name": events["name"].array[first].remove_unused_categories(),
            "kind": pd.Categorical.from_codes(kind, kinds),
            "start_ns": t[first],
            "end_ns": np.maximum(t[last], t[first]),
            "sequence": np.full(len(first), -1, dtype=np.int64),
            "fwd_tid": np.zeros(len(first), dtype=np.int64),
            "stack_id": events["stack_id"].to_numpy()[first],
            "start_event_id": from_int64(ids[first]),
            "end_event_id": from_int64(ids[last]),
        }
    )
    return frame.sort_values(["start_ns", "start_event_id"], kind="stable", ignore_index=True)


def _family(type_name: str) -> int:
    prefix = type_name.removesuffix("_START").removesuffix("_END")
    return list(_PAIRS).index(prefix) if prefix != type_name and prefix in _PAIRS else NONE


def running_op(events: pd.DataFrame, rows: Int64Array, ops: pd.DataFrame) -> Int64Array:
    """Position in ``ops`` of the innermost ATen or ATB operator of the thread that surrounds each row, by ID; or -1.

    Operators of a thread are nested, so that the latest one to start before a row, or one that encloses it, is it.
    """
    found = np.full(len(rows), NONE, dtype=np.int64)
    chosen = np.flatnonzero(ops["kind"].isin(("aten", "atb")).to_numpy())
    if not len(chosen) or not len(rows):
        return found
    op_tid = ops["tid"].to_numpy(np.int64)[chosen]
    start, end = (to_int64(ops[name])[chosen] for name in ("start_event_id", "end_event_id"))
    order = np.lexsort((start, op_tid))
    chosen, op_tid, start, end = chosen[order], op_tid[order], start[order], end[order]
    parent = _parents(op_tid, end)
    tid = to_int64(events["tid"], na=NONE)[rows]
    ids = events["event_id"].to_numpy(np.int64)[rows]
    at = _latest(op_tid, start, tid, ids)
    while (open_rows := np.flatnonzero((at != NONE) & (end[at] < ids))).size:
        at[open_rows] = parent[at[open_rows]]
    found[at != NONE] = chosen[at[at != NONE]]
    return found


def _parents(tid: Int64Array, end: Int64Array) -> Int64Array:
    """Enclosing operator of each, for operators sorted by thread and start."""
    parent = np.full(len(tid), NONE, dtype=np.int64)
    stack: list[int] = []
    ends, tids = end.tolist(), tid.tolist()
    for i, (this_tid, this_end) in enumerate(zip(tids, ends, strict=True)):
        while stack and (tids[stack[-1]] != this_tid or ends[stack[-1]] < this_end):
            stack.pop()
        if stack:
            parent[i] = stack[-1]
        stack.append(i)
    return parent


def _latest(op_tid: Int64Array, start: Int64Array, tid: Int64Array, ids: Int64Array) -> Int64Array:
    """Last operator of the same thread that starts before each ID."""
    at = np.full(len(tid), NONE, dtype=np.int64)
    edges = np.flatnonzero(np.append(True, op_tid[1:] != op_tid[:-1]))
    for low, high in zip(edges, [*edges[1:], len(op_tid)], strict=True):
        mine = np.flatnonzero(tid == op_tid[low])
        place = np.searchsorted(start[low:high], ids[mine], side="left") - 1
        at[mine] = np.where(place >= 0, place + low, NONE)
    return at


def build_accesses(events: pd.DataFrame, blocks: pd.DataFrame, ops: pd.DataFrame) -> pd.DataFrame:
    """Build the ``accesses`` of one process (``source`` 0); ``block_id`` is the position in ``blocks``."""
    rows = np.flatnonzero((events["event"] == "ACCESS").to_numpy())
    if not len(rows):
        return empty_accesses()
    part = events.iloc[rows]
    op = running_op(events, rows, ops)
    op_ids = np.append(to_int64(ops["start_event_id"]), NA_NS)
    frame = pd.DataFrame(
        {
            "source": np.zeros(len(rows), dtype=np.int32),
            "block_id": _blocks_of(part, blocks),
            "t_ns": part["t_ns"].to_numpy(np.int64),
            "event_id": part["event_id"].to_numpy(np.int64),
            "kind": part["type"].array.remove_unused_categories(),
            "name": part["name"].array.remove_unused_categories(),
            "tid": part["tid"].array,
            "size_bytes": part["size_bytes"].abs().array,
            "op_event_id": from_int64(op_ids[op]),
        }
    )
    return frame.sort_values(["t_ns", "event_id"], kind="stable", ignore_index=True)


def _blocks_of(part: pd.DataFrame, blocks: pd.DataFrame) -> Int64Array:
    """Block of each access: by allocation id, else the one that lives at exactly this address."""
    wanted = to_int64(part["allocation_id"])
    found = np.full(len(part), NONE, dtype=np.int64)
    if not len(blocks):
        return found
    there = to_int64(blocks["allocation_id"])
    order = np.argsort(there, kind="stable")
    place = np.searchsorted(there[order], wanted, side="right") - 1
    hit = (place >= 0) & (there[order][np.maximum(place, 0)] == wanted) & (wanted != NA_NS)
    found[hit] = order[place[hit]]
    lost = np.flatnonzero((wanted == NA_NS) & part["addr"].notna().to_numpy())
    if len(lost):
        found[lost] = _by_address(part.iloc[lost], blocks)
    return found


def _by_address(part: pd.DataFrame, blocks: pd.DataFrame) -> Int64Array:
    """Latest block of the pool that was allocated at the address before the access, if it was not freed by then."""
    left = pd.DataFrame(
        {
            "addr": part["addr"].to_numpy(np.uint64, na_value=0),
            "pool": part["access_pool"].astype(object),
            "event_id": part["event_id"].to_numpy(np.int64),
            "row": np.arange(len(part)),
        }
    )
    known = blocks["event_id"].notna().to_numpy()
    right = pd.DataFrame(
        {
            "addr": blocks["addr"].to_numpy(np.uint64, na_value=0)[known],
            "pool": blocks["pool"].astype(object)[known].str.replace("PTA_WORKSPACE", "PTA"),
            "event_id": to_int64(blocks["event_id"])[known],
            "end_id": to_int64(blocks["free_event_id"], na=np.iinfo(np.int64).max)[known],
            "block": np.flatnonzero(known),
        }
    )
    joined = pd.merge_asof(
        left.sort_values("event_id"), right.sort_values("event_id"), on="event_id", by=["addr", "pool"]
    )
    alive = (joined["end_id"] > joined["event_id"]).to_numpy()
    found = np.full(len(part), NONE, dtype=np.int64)
    found[joined["row"].to_numpy()[alive]] = joined["block"].to_numpy()[alive].astype(np.int64)
    return found


def python_ops(rows: Iterable[tuple[str, str, str, str, str]], pid: int | None, report: ReadReport) -> pd.DataFrame:
    """Build ``ops`` of kind ``python`` from the rows of a Python trace; calls without a start or an end are counted."""
    names: dict[str, int] = {}
    codes, tids, starts, ends = [], [], [], []
    n_open = n_bad = 0
    for function, start, end, tid, process in rows:
        if pid is not None and process.strip() != str(pid):
            continue
        start, end, tid = start.strip(), end.strip(), tid.strip()
        if _NUMBER.fullmatch(start) and _NUMBER.fullmatch(end) and int(start) <= int(end) < 1 << 62:
            codes.append(names.setdefault(function, len(names)))
            tids.append(int(tid) if _NUMBER.fullmatch(tid) and int(tid) < 1 << 62 else NONE)
            starts.append(int(start))
            ends.append(int(end))
        elif "N/A" in (start, end):
            n_open += 1
        else:
            n_bad += 1
    if n_open:
        report.note("Python calls that began before the trace or were running at its end", n_open)
    if n_bad:
        report.skip("rows of the Python trace without a usable time", n_bad)
    n = len(codes)
    frame = pd.DataFrame(
        {
            "tid": np.array(tids, dtype=np.int64),
            "name": pd.Categorical.from_codes(np.array(codes, dtype=np.int64), list(names)),
            "kind": pd.Categorical.from_codes(np.zeros(n, dtype=np.int8), ["python"]),
            "start_ns": np.array(starts, dtype=np.int64),
            "end_ns": np.array(ends, dtype=np.int64),
            "sequence": np.full(n, -1, dtype=np.int64),
            "fwd_tid": np.zeros(n, dtype=np.int64),
            "stack_id": np.full(n, -1, dtype=np.int32),
            "start_event_id": from_int64(np.full(n, NA_NS)),
            "end_event_id": from_int64(np.full(n, NA_NS)),
        }
    )
    return frame.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)


def join_ops(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Join operators of several origins by their start."""
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else parts[0]
    return concat_tables(filled).sort_values("start_ns", kind="stable", ignore_index=True)
