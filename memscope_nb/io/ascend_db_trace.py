"""Operators, stacks, steps and ranges of a database export, as the trace of the text export gives them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, from_int64
from ..stacks import Frames, stacks_frame
from .report import ReadReport
from .sqlite_file import Database
from .trace_view import EPOCH_MIN_NS, STEP_NAME, Trace

Int64Array = npt.NDArray[np.int64]

OPERATOR = 50001
"""``PYTORCH_API.type`` of operators (ENUM_API_TYPE); the others are queue tasks, Python functions and marks."""
MARKERS, RANGES = (0, 3), (1, 2)
"""``MSTX_EVENTS.eventType`` of instants and of intervals."""
TID_BITS = (1 << 32) - 1
_CHAIN_ROWS = 1 << 16


def read_trace_tables(database: Database, report: ReadReport) -> Trace | None:
    """Read the operators with their stacks, and the marks; ``None`` without a table of operators."""
    if "PYTORCH_API" not in database:
        return None
    columns = ["startNs", "endNs", "globalTid", "name", "sequenceNumber", "fwdThreadId", "callchainId"]
    read = database.ints("PYTORCH_API", columns, where={"type": [OPERATOR]})
    good = (read["startNs"] != NA_NS) & (read["endNs"] >= read["startNs"])
    if (n_bad := int((~good).sum())) > 0:
        report.skip("PYTORCH_API: operators without a readable time", n_bad, f"row {int(np.argmin(good)) + 1}")
        read = {name: values[good] for name, values in read.items()}
    if len(read["startNs"]) and int(read["startNs"].max()) < EPOCH_MIN_NS:
        report.lose("PYTORCH_API: its times do not start at the epoch, another clock than the memory's: no stacks")
        return None
    stack_of, stacks = _stacks(database, report)
    sequence, fwd_tid = read["sequenceNumber"], read["fwdThreadId"]
    ops = pd.DataFrame(
        {
            "name": database.categories(read["name"]),
            "tid": _tids(read["globalTid"]),
            "start_ns": read["startNs"],
            "end_ns": read["endNs"],
            "sequence": np.where(sequence == NA_NS, -1, sequence),
            "fwd_tid": np.where(fwd_tid == NA_NS, 0, fwd_tid),
            "stack_id": _looked_up(read["callchainId"], *stack_of).astype(np.int32),
        }
    )
    return Trace(ops, read_marks(database, ops, report), stacks, process_of(read["globalTid"]), relative=False)


def _tids(global_tid: Int64Array) -> Int64Array:
    """Thread of ``pid << 32 | tid``; -1 where it is unknown."""
    return np.where(global_tid == NA_NS, -1, global_tid & TID_BITS)


def process_of(global_tid: Int64Array) -> int | None:
    """Process that most records belong to."""
    pids, counts = np.unique(global_tid[global_tid != NA_NS] >> 32, return_counts=True)
    return int(pids[np.argmax(counts)]) if len(pids) else None


# -- PYTORCH_CALLCHAINS -------------------------------------------------------------------------------------------


def _stacks(database: Database, report: ReadReport) -> tuple[tuple[Int64Array, Int64Array], pd.DataFrame]:
    """Stack number of each chain (sorted), and the distinct stacks.

    Files have one chain an operator, the same stack thousands of times over. The chains pass by in order and only the
    distinct ones are kept, as numbers of frames; texts are looked up once at the end.
    """
    known: dict[bytes, int] = {}
    chains, numbers = [], []
    for chain, frames in _iter_chains(database):
        chains.append(chain)
        numbers.append(known.setdefault(frames.tobytes(), len(known)))
    frame_ids = [np.frombuffer(raw, dtype=np.int64) for raw in known]
    unique = np.unique(np.concatenate(frame_ids)) if frame_ids else np.empty(0, dtype=np.int64)
    texts = database.texts(unique)
    if (n_lost := sum(text is None for text in texts)) > 0:
        report.note("PYTORCH_CALLCHAINS: frames that STRING_IDS does not have", n_lost)
    text_of = dict(zip(unique.tolist(), ((text or "").strip() for text in texts), strict=True))
    # Numbers of frames may differ where their texts do not: count distinct texts.
    distinct: dict[Frames, int] = {}
    final = []
    for ids in frame_ids:
        stack = tuple(text for number in ids.tolist() if (text := text_of[number]))
        final.append(distinct.setdefault(stack, len(distinct)) if stack else -1)
    stack_of = np.array(final, dtype=np.int64)[np.array(numbers, dtype=np.int64)]
    return (np.array(chains, dtype=np.int64), stack_of), stacks_frame(distinct)


def _iter_chains(database: Database) -> Iterator[tuple[int, Int64Array]]:
    """Yield each chain's number and its frames' numbers, innermost first; by number."""
    rest = np.empty((3, 0), dtype=np.int64)
    pieces = database.chunks(
        "PYTORCH_CALLCHAINS", ["id", "stackDepth", "stack"], order_by=["id", "stackDepth"], n_rows=_CHAIN_ROWS
    )
    for piece in pieces:
        rows = np.concatenate([rest, piece], axis=1)
        edges = np.flatnonzero(np.diff(rows[0])) + 1
        last = int(edges[-1]) if len(edges) else 0
        yield from _cut(rows[:, :last], edges[:-1])
        rest = rows[:, last:]  # the last chain may go on in the next piece
    yield from _cut(rest, np.empty(0, dtype=np.int64))


def _cut(rows: Int64Array, edges: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """Yield number and frames of each chain in rows that are ordered by chain."""
    if rows.shape[1]:
        starts = [0, *edges.tolist()]
        yield from zip(rows[0, starts].tolist(), np.split(rows[2], edges), strict=True)


def _looked_up(keys: Int64Array, known: Int64Array, values: Int64Array) -> Int64Array:
    """Value of each key among sorted known ones, -1 for others."""
    if not len(known):
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where((known[at] == keys) & (keys != NA_NS), values[at], -1)


# -- steps, MSTX_EVENTS -------------------------------------------------------------------------------------------


def read_marks(database: Database, ops: pd.DataFrame | None, report: ReadReport) -> pd.DataFrame:
    """Steps, ranges and instants, by start; enclosing ones first.

    Steps are the operators named ``ProfilerStep#N``, as in the text export; without any, those of STEP_TIME.
    """
    steps = _steps_of_operators(ops) if ops is not None else None
    if steps is None or not len(steps):
        steps = _steps_of_table(database)
    marks = pd.concat([steps, _ranges(database, report)], ignore_index=True)
    order = np.lexsort((np.arange(len(marks)), -marks["end_ns"].to_numpy(), marks["start_ns"].to_numpy()))
    marks = marks.iloc[order].reset_index(drop=True)
    kinds = ["step", "range", "mark"] if (marks["kind"] == "mark").any() else ["step", "range"]
    return marks.assign(kind=pd.Categorical(marks["kind"], kinds))


def _steps_of_operators(ops: pd.DataFrame) -> pd.DataFrame:
    matches = {name: m for name in ops["name"].cat.categories if (m := STEP_NAME.fullmatch(name))}
    rows = ops[ops["name"].isin(list(matches))]
    numbers = np.array([int(matches[name][1]) for name in rows["name"]], dtype=np.int64)
    columns = (rows[name].to_numpy(np.int64) for name in ("tid", "start_ns", "end_ns"))
    return _marks("step", rows["name"].astype(object).to_numpy(), numbers, *columns)


def _steps_of_table(database: Database) -> pd.DataFrame:
    read = database.ints("STEP_TIME", ["id", "startNs", "endNs"])
    good = (read["startNs"] != NA_NS) & (read["endNs"] >= read["startNs"]) & (read["id"] >= 0)
    number, start, end = (values[good] for values in read.values())
    names = np.array([f"ProfilerStep#{n}" for n in number.tolist()], dtype=object)
    return _marks("step", names, number, np.full(len(number), -1, dtype=np.int64), start, end)


def _ranges(database: Database, report: ReadReport) -> pd.DataFrame:
    read = database.ints("MSTX_EVENTS", ["startNs", "endNs", "eventType", "message", "globalTid"])
    instant = np.isin(read["eventType"], MARKERS)
    end = np.where(instant, read["startNs"], read["endNs"])
    good = (read["startNs"] != NA_NS) & (end >= read["startNs"]) & np.isin(read["eventType"], (*MARKERS, *RANGES))
    if (n_bad := int((~good).sum())) > 0:
        report.skip("MSTX_EVENTS: events without both times or of no known type", n_bad)
    names = database.categories(read["message"]).astype(object)
    frame = _marks(
        np.where(instant, "mark", "range"),
        np.asarray(names, dtype=object),
        np.full(len(end), -1, dtype=np.int64),
        _tids(read["globalTid"]),
        read["startNs"],
        end,
    )
    return frame[good]


def _marks(
    kind: object, name: object, step: Int64Array, tid: Int64Array, start: Int64Array, end: Int64Array
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "kind": pd.Series(kind, index=range(len(start)), dtype=object),
            "name": pd.Series(name, index=range(len(start)), dtype=object),
            "step": from_int64(step, na=-1),
            "tid": from_int64(tid, na=-1),
            "start_ns": start,
            "end_ns": end,
        }
    )
