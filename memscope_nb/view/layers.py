"""Layers on the device as step columns that share their times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..analysis.layers import line_layers, module_columns
from ..analysis.thin import thin_rows
from ..analysis.timeline import Timeline
from ..model import Int64Array, MemoryProfile

MAX_MODULES = 3
MAX_COLUMNS = 1000
NO_DATA = -1


@dataclass(frozen=True)
class LayerColumns:
    """Levels of each layer at common offsets; ``NO_DATA`` from the end of a recording to the next one."""

    names: tuple[tuple[str, str], ...]
    """Key and label of each layer, from the bottom."""
    t: Int64Array
    levels: tuple[Int64Array, ...]

    def within(self, start: int, end: int) -> tuple[Int64Array, tuple[Int64Array, ...]]:
        """Return the samples of a window, and the one that holds at its start."""
        first = max(int(np.searchsorted(self.t, start, side="right")) - 1, 0)
        stop = int(np.searchsorted(self.t, end, side="right"))
        return self.t[first:stop], tuple(values[first:stop] for values in self.levels)


def device_layers(profile: MemoryProfile, line: Timeline, t0: int) -> LayerColumns:
    """Stack what a timeline's device held: pools, the largest modules, the rest of the process.

    The signed rest of :func:`memscope_nb.layers` is drawn where it is positive; where it is negative, the stack
    reaches above the residency, which the page draws as its own line.
    """
    frame = line_layers(profile, line)
    if not len(frame):
        return LayerColumns((), np.empty(0, dtype=np.int64), ())
    columns = module_columns(frame)
    modules = frame[columns].fillna(0).astype(np.int64)
    by_size = modules.max().sort_values(ascending=False).index
    shown, small = list(by_size[:MAX_MODULES]), list(by_size[MAX_MODULES:])
    levels = {
        ("allocated", "allocated by the pools"): frame["allocated_bytes"],
        ("cached", "reserved, free"): frame["cached_bytes"],
        **{("module", c.removeprefix("module_").removesuffix("_bytes")): modules[c] for c in shown},
        ("other", "other"): modules[small].sum(axis=1) + frame["other_bytes"].clip(lower=0),
    }
    t, values = _with_gaps(frame, line, [level.to_numpy(np.int64) for level in levels.values()], t0)
    return LayerColumns(tuple(levels), t, values)


def _with_gaps(
    frame: pd.DataFrame, line: Timeline, levels: list[Int64Array], t0: int
) -> tuple[Int64Array, tuple[Int64Array, ...]]:
    """Clip each source's samples to its window, thin them, and end them with a gap."""
    windows = {one.source: one.window for one in line.series}
    times: list[Int64Array] = []
    parts: list[list[Int64Array]] = [[] for _ in levels]
    order = list(line.sources)
    for source in order:
        rows = np.flatnonzero(frame["source"].to_numpy() == source)
        start, end = windows[source]
        t = frame["t_ns"].to_numpy(np.int64)[rows]
        before = max(int(np.searchsorted(t, start, side="right")) - 1, 0)
        rows = rows[before : max(int(np.searchsorted(t, end, side="right")), before + 1)]
        if not len(rows):
            continue
        t = np.maximum(frame["t_ns"].to_numpy(np.int64)[rows], start)
        kept = thin_rows(t, [level[rows] for level in levels], MAX_COLUMNS)
        times.append(np.append(np.minimum(t[kept], end), end + 1) - t0)
        for part, level in zip(parts, levels, strict=True):
            part.append(np.append(np.maximum(level[rows][kept], 0), NO_DATA))
    if not times:
        return np.empty(0, dtype=np.int64), tuple(np.empty(0, dtype=np.int64) for _ in levels)
    return np.concatenate(times), tuple(np.concatenate(part) for part in parts)
