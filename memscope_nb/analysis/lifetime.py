"""Lifetime classes: what a block's life spans tells what it is for (design section 1)."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, block_ends, block_starts, is_open, to_int64
from .once import once_a_profile

LIFETIMES = ("open", "older", "phase", "step", "fwdbwd", "transient")
"""In order of precedence."""

LIFETIME_LABELS = {
    "open": "open at the end",
    "older": "older than the window",
    "phase": "crosses a phase",
    "step": "crosses a step",
    "fwdbwd": "forward to backward",
    "transient": "transient",
}

_BACKWARD_NAME = re.compile(r"autograd::engine|Backward\d*$")


@once_a_profile
def lifetimes(profile: MemoryProfile) -> pd.Categorical:
    """Return the lifetime class of every block.

    ``open``: no release seen. ``older``: allocated before the window. ``phase``: alive across the edge of an outermost
    mstx range. ``step``: alive across the start of a profiler step. ``fwdbwd``: allocated before and freed after the
    moment at which a backward pass begins (known from the operators of the trace). Else ``transient``.
    """
    blocks = profile.blocks
    starts, ends = block_starts(profile), block_ends(profile)
    codes = np.full(len(blocks), LIFETIMES.index("transient"), dtype=np.int8)
    ops_of = dict(tuple(profile.ops.groupby("source", sort=False)))
    marks_of = dict(tuple(profile.marks.groupby("source", sort=False)))
    for source, rows in blocks.groupby("source", sort=False).indices.items():
        marks = marks_of.get(source, profile.marks.iloc[:0])
        edges = {
            "fwdbwd": backward_starts(ops_of[source]) if source in ops_of else np.empty(0, dtype=np.int64),
            "step": np.sort(marks.loc[marks["kind"] == "step", "start_ns"].to_numpy(np.int64)),
            "phase": outer_edges(marks[marks["kind"] == "range"]),
        }
        for name, times in edges.items():  # later ones take precedence
            codes[rows[_crosses(times, starts[rows], ends[rows])]] = LIFETIMES.index(name)
    codes[to_int64(blocks["alloc_ns"]) == NA_NS] = LIFETIMES.index("older")
    codes[is_open(blocks)] = LIFETIMES.index("open")
    return pd.Categorical.from_codes(codes, list(LIFETIMES))


def _crosses(edges: Int64Array, starts: Int64Array, ends: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether an edge lies strictly inside each half-open life."""
    crossed: npt.NDArray[np.bool_] = np.searchsorted(edges, starts, side="right") < np.searchsorted(
        edges, ends, side="left"
    )
    return crossed


def outer_edges(ranges: pd.DataFrame) -> Int64Array:
    """Starts and ends of the ranges that lie in no other range, sorted."""
    if not len(ranges):
        return np.empty(0, dtype=np.int64)
    ordered = ranges.sort_values(["start_ns", "end_ns"], ascending=[True, False])
    start, end = ordered["start_ns"].to_numpy(np.int64), ordered["end_ns"].to_numpy(np.int64)
    before = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end[:-1]))
    outer = end > before
    return np.unique(np.concatenate([start[outer], end[outer]]))


def backward_starts(ops: pd.DataFrame) -> Int64Array:
    """Instants at which a backward pass begins: a backward operator after a numbered forward one."""
    names = ops["name"].cat.categories
    engine = np.array([_BACKWARD_NAME.search(str(name)) is not None for name in names], dtype=bool)
    backward = (ops["fwd_tid"] > 0).to_numpy() | np.append(engine, False)[ops["name"].cat.codes.to_numpy()]
    forward = ~backward & (ops["sequence"] >= 0).to_numpy()
    chosen = backward | forward
    start, is_backward = ops["start_ns"].to_numpy(np.int64)[chosen], backward[chosen]
    order = np.argsort(start, kind="stable")
    start, is_backward = start[order], is_backward[order]
    begins = is_backward & ~np.append(False, is_backward[:-1])
    return np.unique(start[begins])
