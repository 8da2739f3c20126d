"""Timelines: one rank of one run on one device, all its sources in time order; roles, ranges and steps on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, concat_tables, to_int64
from ..units import NS_PER_S
from .series import Series, iter_series, series_curve

PhaseKind = Literal["role", "range", "step"]
PHASE_KINDS: tuple[PhaseKind, ...] = ("role", "range", "step")

MAX_SPAN_NS = 60 * 24 * 3600 * NS_PER_S
"""Longest timeline: offsets stay far below the 104 days that a JavaScript number holds to the nanosecond."""


@dataclass(frozen=True)
class Timeline:
    """What one page shows. Blocks of one source never run into the next; a gap is a gap."""

    run: str
    rank_id: int | None
    device: str
    host: str | None
    series: tuple[Series, ...]
    """By start of their source, the largest pool of a source first."""
    part: int = 0
    """Counts the timelines of one rank whose recordings lie too far apart to share an axis."""

    @property
    def sources(self) -> tuple[int, ...]:
        """Source numbers in time order."""
        return tuple(dict.fromkeys(one.source for one in self.series))

    @property
    def span(self) -> tuple[int, int]:
        """First and last record of all sources."""
        return min(one.window[0] for one in self.series), max(one.window[1] for one in self.series)

    @property
    def label(self) -> str:
        """Short name for people: ``rank 0 · NPU:0``."""
        rank = "" if self.rank_id is None else f"rank {self.rank_id} · "
        return f"{rank}{self.device}" + (f" · part {self.part + 1}" if self.part else "")


def timelines(profile: MemoryProfile) -> list[Timeline]:
    """Group the series of a profile by run, rank and device; a source without a rank stands alone."""
    sources = profile.sources.set_index("source")
    groups: dict[tuple[str, int | None, int, str], list[Series]] = {}
    for one in iter_series(profile):
        whose = sources.loc[one.source]
        rank = None if pd.isna(whose["rank_id"]) else int(whose["rank_id"])
        alone = one.source if rank is None else -1
        groups.setdefault((str(whose["run"]), rank, alone, one.device), []).append(one)
    found = []
    for (run, rank, _, device), series in groups.items():
        series.sort(key=lambda s: (s.window[0], s.source, -((s.peak("allocated") or (0, 0))[1]), s.pool))
        for part, near in enumerate(_near(series)):
            host = sources.loc[near[0].source, "host"]
            found.append(Timeline(run, rank, device, host if isinstance(host, str) else None, tuple(near), part))
    found.sort(key=lambda t: (t.run, t.rank_id is None, t.rank_id or 0, t.device, t.span[0]))
    return found


def _near(series: Sequence[Series]) -> list[list[Series]]:
    """Split series, in time order, that lie months apart: they are different runs in one folder."""
    parts: list[list[Series]] = []
    for one in series:
        if parts and one.window[1] - parts[-1][0].window[0] < MAX_SPAN_NS:
            parts[-1].append(one)
        else:
            parts.append([one])
    return parts


def phases(profile: MemoryProfile, *, kinds: Iterable[PhaseKind] = PHASE_KINDS) -> pd.DataFrame:
    """Return peak, floor and end level of every phase and step.

    Parameters
    ----------
    profile : MemoryProfile
        The profile.
    kinds : iterable of {"role", "range", "step"}
        ``role``: a whole source, named by its role. ``range``: an mstx range. ``step``: a profiler step.

    Returns
    -------
    pandas.DataFrame
        ``run rank_id device source pool kind name start_ns end_ns peak_bytes floor_bytes end_bytes``, in time order,
        one row for each phase and pool. Levels are of *allocated*, over the part of the phase inside the recorded
        window; a phase entirely outside it has unknown levels.
    """
    parts = [line_phases(profile, line, kinds=kinds) for line in timelines(profile)]
    frame = concat_tables(parts) if parts else pd.DataFrame(columns=list(PHASE_COLUMNS))
    return frame.sort_values(["run", "rank_id", "device", "start_ns", "end_ns"], kind="stable", ignore_index=True)


def line_phases(profile: MemoryProfile, line: Timeline, *, kinds: Iterable[PhaseKind] = PHASE_KINDS) -> pd.DataFrame:
    """Return the phases of one timeline; see :func:`phases`."""
    wanted = set(kinds)
    marks = profile.marks[profile.marks["source"].isin(line.sources)]
    marks_of = dict(tuple(marks.groupby("source", sort=False)))
    roles = profile.sources.set_index("source")["role"]
    parts = []
    for one in line.series:
        spans = _spans(str(roles[one.source]), one, marks_of.get(one.source), wanted)
        levels = interval_levels(one, spans["start_ns"].to_numpy(np.int64), spans["end_ns"].to_numpy(np.int64))
        whose = {"run": line.run, "device": line.device, "source": one.source, "pool": one.pool}
        rank = pd.array([line.rank_id] * len(spans), dtype="Int64")
        parts.append(pd.concat([spans.assign(rank_id=rank, **whose), levels], axis=1)[list(PHASE_COLUMNS)])
    return concat_tables(parts)


PHASE_COLUMNS = (
    "run", "rank_id", "device", "source", "pool", "kind", "name", "start_ns", "end_ns",
    "peak_bytes", "floor_bytes", "end_bytes",
)  # fmt: skip


def _spans(role: str, one: Series, marks: pd.DataFrame | None, kinds: set[PhaseKind]) -> pd.DataFrame:
    rows: list[tuple[str, str, int, int]] = []
    if "role" in kinds:
        rows.append(("role", role, *one.window))
    if marks is not None:
        chosen = marks[marks["kind"].isin(kinds)]
        rows += zip(chosen["kind"].astype(str), chosen["name"], chosen["start_ns"], chosen["end_ns"], strict=True)
    frame = pd.DataFrame(rows, columns=["kind", "name", "start_ns", "end_ns"])
    return frame.astype({"start_ns": "int64", "end_ns": "int64"})


def interval_levels(series: Series, start: Int64Array, end: Int64Array) -> pd.DataFrame:
    """Highest, lowest and last level of *allocated* over closed intervals ``[start, end]``, clipped to the window."""
    curve = series_curve(series)
    t, level = curve["t_ns"].to_numpy(np.int64), to_int64(curve["allocated_bytes"])
    known = level != NA_NS
    t, level = t[known], level[known]
    outside = (end < series.window[0]) | (start > series.window[1]) | (len(t) == 0)
    if len(t) == 0:
        return pd.DataFrame(
            {k: pd.array([pd.NA] * len(start), dtype="Int64") for k in ("peak_bytes", "floor_bytes", "end_bytes")}
        )
    lowest, highest = reduce_levels(t, level, start, end)
    last = level[np.maximum(np.searchsorted(t, np.maximum(start, end), side="right") - 1, 0)]
    return pd.DataFrame(
        {
            name: pd.array(np.where(outside, 0, values), dtype="Int64").copy()
            for name, values in {"peak_bytes": highest, "floor_bytes": lowest, "end_bytes": last}.items()
        }
    ).mask(pd.Series(outside))


def reduce_levels(
    t: Int64Array, level: Int64Array, start: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Lowest and highest level over closed intervals; a level holds until the next one (the first one also before it).

    Parameters
    ----------
    t, level : int64 arrays of shape (n,), n > 0
        Times in ascending order, and the levels from then on.
    start, end : int64 arrays of shape (m,)
        The intervals.
    """
    first = np.maximum(np.searchsorted(t, start, side="right") - 1, 0)
    stop = np.maximum(np.searchsorted(t, end, side="right"), first + 1)
    return _reduce(np.minimum, level, first, stop), _reduce(np.maximum, level, first, stop)


def _reduce(ufunc: np.ufunc, values: Int64Array, first: Int64Array, stop: Int64Array) -> Int64Array:
    """Reduce ``values[first:stop]`` for many overlapping ranges (none empty)."""
    pairs = np.stack([first, stop], axis=1).ravel()
    padded = np.append(values, values[-1])  # reduceat takes no index past the end
    reduced: Int64Array = ufunc.reduceat(padded, pairs)[::2]
    return reduced


def tracks(line: Timeline) -> list[list[Series]]:
    """Split the series of a timeline into drawable ones: one pool each, no two sources at the same time.

    Sources of one rank normally follow each other; when two overlap (another process on the same device) they go to
    tracks of their own, because levels of two series must not be added silently.
    """
    found: dict[str, list[list[Series]]] = {}
    for one in line.series:
        lanes = found.setdefault(one.pool, [])
        free = next((lane for lane in lanes if lane[-1].window[1] < one.window[0]), None)
        if free is None:
            lanes.append([one])
        else:
            free.append(one)
    every = [lane for lanes in found.values() for lane in lanes]
    return sorted(every, key=_track_peak, reverse=True)


def _track_peak(track: Sequence[Series]) -> int:
    return max((one.peak("allocated") or (0, 0))[1] for one in track)
