"""Which operator and which stack belong to a block (spec/ascend_profiler 6.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, from_int64, to_int64
from .intervals import IntervalIndex
from .report import ReadReport
from .trace_view import Trace

Int64Array = npt.NDArray[np.int64]


def join_operators(blocks: pd.DataFrame, trace: Trace, report: ReadReport) -> pd.DataFrame:
    """Add thread, stack and its kind to each block.

    The operator of a block has the same name, runs at the allocation and started last. Its stack is the block's *own*
    stack. Without one, the sequence number of the operator, or else of the innermost operator around it on its thread
    that has one, leads to a *forward* stack: that of the last started forward operator with the same number.

    Parameters
    ----------
    blocks : pandas.DataFrame
        With ``name`` and ``alloc_ns``.
    trace : Trace
        Operators of the same process.
    report : ReadReport
        Receives the coverage as facts.
    """
    ops = trace.ops
    names = ops["name"].cat.categories
    # Codes of one dictionary for both sides; -1: a name that no operator has, or an empty one.
    to_op_code = names.get_indexer(pd.Index(blocks["name"].cat.categories.astype(object)))
    to_op_code[[str(name) == "" for name in blocks["name"].cat.categories]] = -1
    group = np.append(to_op_code, -1)[blocks["name"].cat.codes.to_numpy()].astype(np.int64)
    alloc = to_int64(blocks["alloc_ns"])
    start, end = ops["start_ns"].to_numpy(np.int64), ops["end_ns"].to_numpy(np.int64)
    by_name = IntervalIndex(ops["name"].cat.codes.to_numpy().astype(np.int64), start, end)
    known = (group >= 0) & (alloc != NA_NS)
    op = np.full(len(blocks), -1, dtype=np.int64)
    op[known] = by_name.last_running(group[known], alloc[known])

    found = op >= 0
    stack = np.full(len(blocks), -1, dtype=np.int64)
    stack[found] = ops["stack_id"].to_numpy(np.int64)[op[found]]
    own = stack >= 0
    open_rows = np.flatnonzero(found & ~own)
    stack[open_rows], ambiguous = _forward_stacks(ops, op[open_rows], alloc[open_rows])
    kind = np.where(own, 1, np.where(stack >= 0, 2, 0)).astype(np.int8)
    tid = np.full(len(blocks), NA_NS, dtype=np.int64)
    tid[found] = ops["tid"].to_numpy(np.int64)[op[found]]
    report.facts |= {
        "n_in_operator": int(found.sum()),
        "n_own_stack": int(own.sum()),
        "n_forward_stack": int((kind == 2).sum()),
        "n_no_stack": int((kind == 0).sum()),
        "n_ambiguous_stack": int(ambiguous.sum()),
    }
    return blocks.assign(
        tid=from_int64(tid),
        stack_id=stack.astype(np.int32),
        stack_kind=pd.Categorical.from_codes(kind, ["none", "own", "forward"]),
    )


def _forward_stacks(ops: pd.DataFrame, op: Int64Array, alloc: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Stack of the forward operator with the same sequence number (-1: none), and whether several disagree."""
    sequence = ops["sequence"].to_numpy(np.int64)
    number = sequence[op]
    unnumbered = np.flatnonzero(number < 0)
    number[unnumbered] = _enclosing_number(ops, op[unnumbered], alloc[unnumbered])

    candidates = ops[(ops["sequence"] >= 0) & (ops["fwd_tid"] == 0) & (ops["stack_id"] >= 0)]
    last = candidates.sort_values("start_ns", kind="stable").drop_duplicates("sequence", keep="last")
    at = pd.Index(last["sequence"].to_numpy(np.int64)).get_indexer(number)
    several = candidates.groupby("sequence")["stack_id"].nunique().reindex(last["sequence"]).to_numpy() > 1
    stacks = np.append(last["stack_id"].to_numpy(np.int64), -1)
    return stacks[at], np.append(several, False)[at]


def _enclosing_number(ops: pd.DataFrame, op: Int64Array, alloc: Int64Array) -> Int64Array:
    """Sequence number of the innermost numbered operator running then on the operator's thread, or -1."""
    numbered = ops[ops["sequence"] >= 0]
    threads = pd.Index(ops["tid"].unique())
    index = IntervalIndex(
        threads.get_indexer(numbered["tid"]).astype(np.int64),
        numbered["start_ns"].to_numpy(np.int64),
        numbered["end_ns"].to_numpy(np.int64),
    )
    thread = threads.get_indexer(ops["tid"].to_numpy()[op]).astype(np.int64)
    around = index.last_running(thread, alloc)
    numbers = np.append(numbered["sequence"].to_numpy(np.int64), -1)
    return numbers[around]
