"""Levels that hold until their next change: what a payload stores of curves beside the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..analysis.series import Series
from ..analysis.thin import thin_rows
from ..model import NA_NS, Int64Array, to_int64

OVERVIEW_COLUMNS = 500
IDLE_SHARE = 0.02
"""Least share of a timeline that a stretch without any change needs to be worth folding."""


@dataclass(frozen=True)
class Steps:
    """A level that holds until the next change; ``NA_NS`` = no data."""

    t: Int64Array
    level: Int64Array

    def within(self, start: int, end: int) -> Steps:
        """Return the changes of a window, and the one that holds at its start."""
        first = max(int(np.searchsorted(self.t, start, side="right")) - 1, 0)
        stop = int(np.searchsorted(self.t, end, side="right"))
        return Steps(self.t[first:stop], self.level[first:stop])


def base_of(steps: Steps) -> int:
    """Return the lowest level if it is negative, else 0."""
    known = steps.level[steps.level != NA_NS]
    return min(int(known.min()), 0) if len(known) else 0


def window_steps(one: Series, ledger: str, t0: int) -> Steps:
    """Return the changes of what a ledger holds beyond the live blocks; for reserved, of the ledger itself."""
    if ledger == "reserved":
        level = one.recorded.get(ledger, np.empty(0, dtype=np.int64))
        t, level = one.t[level != NA_NS] if len(level) else level, level[level != NA_NS]
    else:
        t, level, _ = one.rest(ledger)
    if not len(t) and ledger == "allocated":  # nothing recorded: the curve is the sum of the rows
        t, level = np.array([one.window[0]], dtype=np.int64), np.zeros(1, dtype=np.int64)
    return clip_steps(t, level, one.window, t0)


def clip_steps(t: Int64Array, level: Int64Array, window: tuple[int, int], t0: int) -> Steps:
    """Bring samples to changes inside a window: the first level holds from its start, no data after its end."""
    if not len(t):
        return Steps(np.array([window[0] - t0]), np.array([NA_NS]))
    before = max(int(np.searchsorted(t, window[0], side="right")) - 1, 0)
    t, level = t[before:].copy(), level[before:]
    t[0] = window[0]
    inside = t <= window[1]
    t, level = t[inside], level[inside]
    last = np.append(t[1:] != t[:-1], True)
    t, level = t[last], level[last]
    changed = np.append(True, level[1:] != level[:-1])
    return Steps(np.append(t[changed], window[1] + 1) - t0, np.append(level[changed], NA_NS))


def join_steps(parts: Sequence[Steps]) -> Steps:
    """Put the steps of sources that follow each other into one."""
    if not parts:
        return Steps(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    return Steps(np.concatenate([part.t for part in parts]), np.concatenate([part.level for part in parts]))


def idle_stretches(changes: Sequence[Int64Array], span: tuple[int, int]) -> list[list[int]]:
    """Return the stretches ``[start, end]`` of a span in which nothing changes for more than a share of it."""
    every = np.concatenate([np.array(span, dtype=np.int64), *changes])
    t = np.sort(every[(every >= span[0]) & (every <= span[1])])
    long = np.flatnonzero(np.diff(t) > IDLE_SHARE * (span[1] - span[0]))
    return [[int(t[i]), int(t[i + 1])] for i in long]


def overview_steps(curve: pd.DataFrame, window: tuple[int, int], t0: int) -> Steps:
    """Thin a curve for the strip of the whole timeline."""
    t, level = curve["t_ns"].to_numpy(np.int64), to_int64(curve["allocated_bytes"])
    rows = thin_rows(t, [level], OVERVIEW_COLUMNS)
    return Steps(np.append(t[rows], window[1] + 1) - t0, np.append(level[rows], NA_NS))
