"""A line of *allocated* that fits into a table row: highest and lowest level of every column, exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..analysis.series import Series
from ..analysis.timeline import reduce_levels
from ..model import NA_NS, Int64Array

COLUMNS = 150
HEIGHT = 30
GAP = 2
"""Columns between two recordings."""


@dataclass(frozen=True)
class Spark:
    """Levels of one timeline in columns, one recording after the other; pauses between them are left out."""

    x: tuple[int, ...]
    """Number of each column; a jump is a pause."""
    low: tuple[int, ...]
    high: tuple[int, ...]
    peak_x: int | None = None

    @property
    def width(self) -> int:
        """Columns in all."""
        return self.x[-1] + 1 if self.x else 0


def spark_of(track: Sequence[Series], peak_ns: int | None, *, columns: int = COLUMNS) -> Spark:
    """Reduce the recordings of a track, in time order, to columns that keep their lowest and highest level.

    Each recording gets columns in proportion to its length, at least one. Where there are so many that this does not
    fit, neighbours share a column.
    """
    windows = [one.window for one in track]
    lengths = np.array([end - start + 1 for start, end in windows], dtype=np.int64)
    gap = GAP if len(track) * (GAP + 1) <= columns else 0
    room = max(columns - gap * (len(track) - 1), 1)
    counts = np.minimum(np.maximum((lengths / lengths.sum() * room).astype(np.int64), 1), lengths)
    x: list[int] = []
    low: list[int] = []
    high: list[int] = []
    peak_x, at = None, 0
    for one, count in zip(track, counts.tolist(), strict=True):
        edges = _edges(one.window, count)
        if peak_ns is not None and peak_x is None and one.window[0] <= peak_ns <= one.window[1]:
            peak_x = at + int(np.searchsorted(edges, peak_ns, side="right")) - 1
        t, level = _levels(one)
        if len(t):
            lowest, highest = reduce_levels(t, level, edges[:-1], edges[1:] - 1)
            x += range(at, at + count)
            low += lowest.tolist()
            high += highest.tolist()
        at += count + gap
    return _fitted(Spark(tuple(x), tuple(low), tuple(high), peak_x), columns)


def _levels(one: Series) -> tuple[Int64Array, Int64Array]:
    """Times and levels of *allocated*: the recorded samples, or where there is none the sums of the rows."""
    if "allocated" in one.recorded:
        known = one.recorded["allocated"] != NA_NS
        return one.t[known], one.recorded["allocated"][known]
    t = one.lives["allocated"].instants
    t = t[t <= one.window[1]]
    return t, one.lives["allocated"].bytes_at(t)


def _edges(window: tuple[int, int], count: int) -> Int64Array:
    """Cut a window into ``count`` parts of whole ns."""
    length = window[1] - window[0] + 1
    return window[0] + np.array([length * i // count for i in range(count + 1)], dtype=np.int64)


def _fitted(spark: Spark, columns: int) -> Spark:
    """Join columns until they fit."""
    share = -(-spark.width // columns) if spark.width > columns + GAP else 1
    if share <= 1:
        return spark
    groups: dict[int, tuple[int, int]] = {}
    for x, low, high in zip(spark.x, spark.low, spark.high, strict=True):
        before = groups.get(x // share, (low, high))
        groups[x // share] = min(before[0], low), max(before[1], high)
    lows, highs = zip(*groups.values(), strict=True)
    return Spark(tuple(groups), lows, highs, None if spark.peak_x is None else spark.peak_x // share)


def spark_svg(spark: Spark, scale_bytes: int, label: str) -> str:
    """Draw a sparkline; 0 is at the bottom, ``scale_bytes`` at the top. ``label`` is HTML-safe text for its title."""
    if not spark.x or scale_bytes <= 0:
        return ""
    width = max(spark.width, COLUMNS)
    tops = _area(spark.x, [_y(level, scale_bytes) for level in spark.high])
    floors = _area(spark.x, [_y(level, scale_bytes) for level in spark.low])
    mark = ""
    if spark.peak_x is not None and spark.peak_x in spark.x:
        y = _y(spark.high[spark.x.index(spark.peak_x)], scale_bytes)
        mark = f'<circle cx="{spark.peak_x + 0.5}" cy="{y:g}" r="2"/>'
    return (
        f'<svg class="spark" viewBox="-2 -2 {width + 4} {HEIGHT + 3}" role="img"><title>{label}</title>'
        f'<path class="hi" d="{tops}"/><path class="lo" d="{floors}"/>{mark}</svg>'
    )


def _y(level: int, scale: int) -> float:
    return round(HEIGHT * (1 - min(max(level, 0) / scale, 1)), 1)


def _area(x: Sequence[int], y: Sequence[float]) -> str:
    """Draw a filled step line over the columns; it goes down to zero at a pause."""
    parts: list[str] = []
    run = 0
    for i, (column, level) in enumerate(zip(x, y, strict=True)):
        follows = i > 0 and column == x[i - 1] + 1
        if follows and level == y[i - 1]:
            run += 1
            continue
        parts.append(f"h{run}" if run else "")
        parts.append(f"V{level:g}" if follows else f"V{HEIGHT}M{column} {HEIGHT}V{level:g}")
        run = 1
    return "".join(parts).removeprefix(f"V{HEIGHT}") + f"h{run}V{HEIGHT}"
