"""Which operator and which stack belong to a block (spec/ascend_profiler 6.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, from_int64, to_int64
from .intervals import IntervalIndex
from .report import ReadReport
from .trace_view import Trace

Int64Array = npt.NDArray[np.int64]

_AT_A_TIME = 1 << 17


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
    n_rows = len(blocks)
    stack, kind = np.full(n_rows, -1, dtype=np.int32), np.zeros(n_rows, dtype=np.int8)
    tid, found, ambiguous = np.full(n_rows, NA_NS, dtype=np.int64), np.zeros(n_rows, dtype=bool), 0
    if len(trace.ops):
        own, forward = _OwnOperators(trace.ops, blocks["name"].cat.categories), _ForwardStacks(trace.ops)
        codes, alloc = blocks["name"].cat.codes.to_numpy(), to_int64(blocks["alloc_ns"])
        stack_ids, threads = trace.ops["stack_id"].to_numpy(), trace.ops["tid"].to_numpy(np.int64)
        for first in range(0, n_rows, _AT_A_TIME):  # a dozen arrays in between are as long as this, not as the file
            rows = slice(first, first + _AT_A_TIME)
            op = own.find(codes[rows], alloc[rows])
            inside = np.flatnonzero(op >= 0)
            found[rows] = op >= 0
            tid[rows][inside] = threads[op[inside]]
            stack[rows][inside] = stack_ids[op[inside]]
            kind[rows] = stack[rows] >= 0
            without = inside[stack[rows][inside] < 0]
            stack[rows][without], several = forward.find(op[without], alloc[rows][without])
            kind[rows][without] = np.where(stack[rows][without] >= 0, 2, 0)
            ambiguous += int(several.sum())
    report.facts |= {
        "n_in_operator": int(found.sum()),
        "n_own_stack": int((kind == 1).sum()),
        "n_forward_stack": int((kind == 2).sum()),
        "n_no_stack": int((kind == 0).sum()),
        "n_ambiguous_stack": ambiguous,
    }
    return blocks.assign(
        tid=from_int64(tid),
        stack_id=stack,
        stack_kind=pd.Categorical.from_codes(kind, ["none", "own", "forward"]),
    )


class _OwnOperators:
    """Finds the operator of a block among those of its name.

    Parameters
    ----------
    ops : pandas.DataFrame
        Operators.
    names : pandas.Index
        The names that the codes of blocks stand for.
    """

    def __init__(self, ops: pd.DataFrame, names: pd.Index) -> None:
        # Codes of one dictionary for both sides; -1: a name that no operator has, or an empty one.
        to_op_code = ops["name"].cat.categories.get_indexer(pd.Index(names.astype(object)))
        to_op_code[[str(name) == "" for name in names]] = -1
        self._to_op_code = np.append(to_op_code, -1).astype(np.int64)
        start, end = ops["start_ns"].to_numpy(np.int64), ops["end_ns"].to_numpy(np.int64)
        self._index = IntervalIndex(ops["name"].cat.codes.to_numpy().astype(np.int64), start, end)

    def find(self, codes: npt.NDArray[np.signedinteger[Any]], alloc: Int64Array) -> Int64Array:
        """Position of the operator that a block was allocated in, -1 where there is none."""
        group = self._to_op_code[codes]
        known = (group >= 0) & (alloc != NA_NS)
        op = np.full(len(codes), -1, dtype=np.int64)
        op[known] = self._index.last_running(group[known], alloc[known])
        return op


class _ForwardStacks:
    """Finds the stack of the forward operator that an operator of the backward pass belongs to."""

    def __init__(self, ops: pd.DataFrame) -> None:
        self._sequence = ops["sequence"].to_numpy(np.int64)
        self._tid = ops["tid"].to_numpy(np.int64)
        numbered = np.flatnonzero(self._sequence >= 0)
        self._numbers = np.append(self._sequence[numbered], -1)
        self._threads = pd.Index(np.unique(self._tid[numbered]))
        start = ops["start_ns"].to_numpy(np.int64)
        self._around = IntervalIndex(
            self._threads.get_indexer(self._tid[numbered]).astype(np.int64),
            start[numbered],
            ops["end_ns"].to_numpy(np.int64)[numbered],
        )
        stack = ops["stack_id"].to_numpy()
        forward = numbered[(ops["fwd_tid"].to_numpy()[numbered] == 0) & (stack[numbered] >= 0)]
        forward = forward[np.lexsort((forward, start[forward], self._sequence[forward]))]
        number, stack = self._sequence[forward], stack[forward]
        # Of equal numbers the last one counts; do all of them have the same stack?
        last = np.flatnonzero(np.append(number[1:] != number[:-1], True)[: len(number)])
        first = np.append(0, last[:-1] + 1)[: len(last)]
        lowest, highest = (f.reduceat(stack, first) if len(first) else stack for f in (np.minimum, np.maximum))
        self._index = pd.Index(number[last])
        self._stack = np.append(stack[last], -1)
        self._several = np.append(lowest != highest, False)

    def find(self, op: Int64Array, alloc: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """Stack of the forward operator with the same sequence number (-1: none), and whether several disagree.

        The number is that of the operator, or of the innermost numbered one that runs around it on its thread.
        """
        number = self._sequence[op]
        rows = np.flatnonzero(number < 0)
        thread = self._threads.get_indexer(self._tid[op[rows]]).astype(np.int64)
        number[rows] = self._numbers[self._around.last_running(thread, alloc[rows])]
        at = self._index.get_indexer(number)
        return self._stack[at], self._several[at]
