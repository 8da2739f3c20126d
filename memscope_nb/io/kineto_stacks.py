"""Call stacks of a Kineto trace: Python calls by their parents' ids, containment where an id leads nowhere (2.5)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..stacks import Frames, stacks_frame
from .intervals import IntervalIndex
from .report import ReadReport

Int64Array = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[np.int64]]

MAX_DEPTH = 10_000
"""Deeper than Python itself goes: a cycle of parents."""


class Running:
    """Finds the innermost interval of a thread that contains an instant.

    Parameters
    ----------
    table : dict of int64 array
        ``start``, ``end`` and ``tid``.
    """

    def __init__(self, table: Columns) -> None:
        self._threads = pd.Index(np.unique(table["tid"]))
        self._index = IntervalIndex(self._group(table["tid"]), table["start"], table["end"])

    def _group(self, tid: Int64Array) -> Int64Array:
        group = self._threads.get_indexer(tid).astype(np.int64)
        return np.where(group < 0, len(self._threads), group)

    def at(self, tid: Int64Array, t: Int64Array) -> Int64Array:
        """Position of the interval, -1 for none."""
        return self._index.last_running(self._group(tid), t)


def python_parents(python: Columns, report: ReadReport) -> Int64Array:
    """Return the position of the caller of each Python call, -1 for a root.

    The id names it. Where there is no id, or none that is there and encloses the call, the innermost call of the same
    thread that encloses it does.
    """
    n = len(python["start"])
    ids = pd.Index(python["python_id"])
    order = np.arange(n)
    if not ids.is_unique:
        ids, order = ids[~ids.duplicated()], order[~ids.duplicated()]
    found = ids.get_indexer(python["python_parent"])
    parent = np.where(found >= 0, order[np.maximum(found, 0)] if n else found, -1).astype(np.int64)
    parent[python["python_parent"] < 0] = -1
    safe = np.maximum(parent, 0)
    encloses = (python["start"][safe] <= python["start"]) & (python["end"][safe] >= python["end"]) if n else parent < 0
    has_id = python["python_id"] >= 0
    is_root = has_id & (python["python_parent"] < 0)
    lost = ~is_root & ((parent < 0) | ~encloses | ~has_id)
    if lost.any():
        report.note("Python calls whose caller is told by containment, not by its id", int(lost.sum()))
        parent[lost] = _enclosing(python)[lost]
    return parent


def _enclosing(python: Columns) -> Int64Array:
    """Position of the innermost call around each one on its thread, by a stack over starts."""
    start, end, tid = python["start"], python["end"], python["tid"]
    parent = np.full(len(start), -1, dtype=np.int64)
    stack: list[int] = []
    for at in np.lexsort((np.arange(len(start)), -end, start, tid)).tolist():
        while stack and (
            tid[stack[-1]] != tid[at] or end[stack[-1]] < end[at] or end[stack[-1]] <= start[at] < end[at]
        ):
            stack.pop()
        if stack:
            parent[at] = stack[-1]
        stack.append(at)
    return parent


class StackTree:
    """Numbers stacks as paths in a tree, so that a shared outer part is kept once.

    Parameters
    ----------
    names : int64 array
        Name of each Python call, as a number.
    parents : int64 array
        Position of its caller.
    """

    def __init__(self, names: Int64Array, parents: Int64Array) -> None:
        self._names, self._parents = names, parents
        self._of_call: dict[int, int] = {-1: -1}
        self._paths: dict[tuple[int, int], int] = {}

    def numbers(self, calls: Int64Array) -> npt.NDArray[np.int32]:
        """Return the number of the stack of each call (a position, -1 for none)."""
        distinct, back = np.unique(calls, return_inverse=True)
        return np.array([self._number(call) for call in distinct.tolist()], dtype=np.int32)[back]

    def _number(self, call: int) -> int:
        path: list[int] = []
        while call not in self._of_call and len(path) < MAX_DEPTH:
            path.append(call)
            call = int(self._parents[call])
        number = self._of_call.get(call, -1)
        for one in reversed(path):
            number = self._paths.setdefault((int(self._names[one]), number), len(self._paths))
            self._of_call[one] = number
        return number

    def add(self, name: int, outer: int) -> int:
        """Return the number of a stack with one more frame on the inside."""
        return self._paths.setdefault((name, outer), len(self._paths))

    def kept(
        self, names: list[str], ids: list[npt.NDArray[np.int32]]
    ) -> tuple[pd.DataFrame, list[npt.NDArray[np.int32]]]:
        """Return the table of the stacks that are used, and their new numbers in place of the old ones."""
        used = np.unique(np.concatenate([*ids, np.array([-1], dtype=np.int32)]))
        used = used[used >= 0]
        paths = list(self._paths)
        mapping = np.full(len(paths) + 1, -1, dtype=np.int32)
        mapping[used] = np.arange(len(used), dtype=np.int32)
        frames = (self._frames(number, paths, names) for number in used.tolist())
        return stacks_frame(frames), [mapping[one] for one in ids]

    @staticmethod
    def _frames(number: int, paths: list[tuple[int, int]], names: list[str]) -> Frames:
        found = []
        while number >= 0:
            name, number = paths[number]
            found.append(names[name])
        return tuple(found)


def forward_calls(ops: Columns, calls: Int64Array, t: Int64Array, tid: Int64Array) -> Int64Array:
    """Return the Python call of the forward operator that memory of the backward pass belongs to, -1 for none.

    The innermost operator at the instant that has a sequence number and a forward thread is a backward node. Of the
    forward operators of that number, the one that starts last counts (spec 2.4).

    Parameters
    ----------
    ops : dict of int64 array
        All operators.
    calls : int64 array
        Python call around each of them.
    t, tid : int64 array
        Instants and their threads.
    """
    op = np.flatnonzero(ops["sequence"] >= 0)
    if not len(op):
        return np.full(len(t), -1, dtype=np.int64)
    found = Running({key: ops[key][op] for key in ("start", "end", "tid")}).at(tid, t)
    node = op[found]
    sequence = np.where((found >= 0) & (ops["fwd_tid"][node] > 0), ops["sequence"][node], -1)
    forward = op[(ops["fwd_tid"][op] <= 0) & (calls[op] >= 0)]
    forward = forward[np.lexsort((forward, ops["start"][forward], ops["sequence"][forward]))]
    number = ops["sequence"][forward]
    last = np.append(number[1:] != number[:-1], True)[: len(number)]
    at = pd.Index(number[last]).get_indexer(sequence)
    return np.where((sequence >= 0) & (at >= 0), np.append(calls[forward][last], -1)[at], -1)
