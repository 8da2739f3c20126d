"""What each recording left behind, and what happened between two of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, to_int64
from .result import Result
from .series import Series, series_curve
from .timeline import Timeline, timelines

LEVELS = ("baseline_bytes", "peak_bytes", "end_bytes", "left_bytes", "next_baseline_bytes", "between_bytes")


def collection_growth(profile: MemoryProfile) -> Result:
    """Follow the level of each pool from one recording of a rank to the next.

    Returns
    -------
    Result
        One row per source and pool, in time order: ``run rank_id device pool source role collection start_ns``, the
        level before the first event (``baseline_bytes``), ``peak_bytes``, after the last one (``end_bytes``), what the
        phase left behind (``left_bytes`` = end - baseline), the role and baseline of the next recording, the gap to it
        (``gap_ns``) and what changed while nothing was recorded (``between_bytes`` = next baseline - end). Levels are
        of *allocated*; a pool without recorded totals has none. A snapshot that repeats the history of an earlier one
        counts from where that one ends.
    """
    rows = [row for line in timelines(profile) for row in _line_rows(profile, line)]
    frame = _frame(rows)
    return Result(frame, _caveats(frame, profile.sources.set_index("source")))


def line_growth(profile: MemoryProfile, line: Timeline) -> pd.DataFrame:
    """Return the rows of one timeline, see :func:`collection_growth`."""
    return _frame(_line_rows(profile, line))


def _line_rows(profile: MemoryProfile, line: Timeline) -> list[dict[str, object]]:
    whose = profile.sources.set_index("source")
    since = {s: f["repeats_until_ns"] for s, f in whose["facts"].items() if f and "repeats_until_ns" in f}
    rows = []
    for pool in dict.fromkeys(one.pool for one in line.series):
        series = [one for one in line.series if one.pool == pool]
        for one, after in zip(series, [*series[1:], None], strict=True):
            key = {"run": line.run, "rank_id": line.rank_id, "device": line.device, "pool": pool, "source": one.source}
            names = {"role": whose.at[one.source, "role"], "collection": whose.at[one.source, "collection"]}
            rows.append(key | names | _levels(one, since.get(one.source)) | _next(one, after, whose, since))
    return rows


def _frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    columns = ["run", "rank_id", "device", "pool", "source", "role", "collection", "start_ns", "baseline_bytes"]
    columns += ["peak_bytes", "end_bytes", "left_bytes", "next_role", "next_baseline_bytes", "gap_ns", "between_bytes"]
    frame = pd.DataFrame(rows, columns=columns)
    numbers = [*LEVELS, "rank_id", "collection", "source", "start_ns", "gap_ns"]
    return frame.astype(dict.fromkeys(numbers, "Int64"))


def _edges(one: Series, since: int | None) -> tuple[int, int] | None:
    """Level before the first event (or where the new part begins) and after the last one."""
    ends = one.edge_levels()
    if ends is None or since is None:
        return ends
    t, level = _known(one)
    return int(level[max(int(np.searchsorted(t, since, side="right")) - 1, 0)]), ends[1]


def _known(one: Series) -> tuple[Int64Array, Int64Array]:
    curve = series_curve(one)
    t, level = curve["t_ns"].to_numpy(np.int64), to_int64(curve["allocated_bytes"])
    return t[level != NA_NS], level[level != NA_NS]


def _peak(one: Series, since: int | None) -> tuple[int, int] | None:
    if since is None:
        return one.peak("allocated")
    t, level = _known(one)
    first = max(int(np.searchsorted(t, since, side="right")) - 1, 0)
    at = first + int(np.argmax(level[first:]))
    return int(t[at]), int(level[at])


def _levels(one: Series, since: int | None) -> dict[str, object]:
    ends = _edges(one, since)
    peak = _peak(one, since) if ends or since is None else None
    return {
        "start_ns": one.window[0] if since is None else since,
        "baseline_bytes": ends[0] if ends else pd.NA,
        "peak_bytes": peak[1] if peak else pd.NA,
        "end_bytes": ends[1] if ends else pd.NA,
        "left_bytes": ends[1] - ends[0] if ends else pd.NA,
    }


def _next(one: Series, after: Series | None, whose: pd.DataFrame, since: dict[int, int]) -> dict[str, object]:
    if after is None:
        return {"next_role": None, "next_baseline_bytes": pd.NA, "gap_ns": pd.NA, "between_bytes": pd.NA}
    here, there = one.edge_levels(), _edges(after, since.get(after.source))
    return {
        "next_role": whose.at[after.source, "role"],
        "next_baseline_bytes": there[0] if there else pd.NA,
        "gap_ns": since.get(after.source, after.window[0]) - one.window[1],
        "between_bytes": there[0] - here[1] if here and there else pd.NA,
    }


def _caveats(frame: pd.DataFrame, whose: pd.DataFrame) -> tuple[str, ...]:
    notes = []
    facts = [f if isinstance(f, dict) else {} for f in whose["facts"]]
    n_repeats = sum("repeats_until_ns" in f for f in facts)
    if n_repeats:
        notes.append(f"{n_repeats} snapshots repeat a part of an earlier one's history: that part is counted once")
    if sum(f.get("time_axis") == "event order" for f in facts) > 1:
        notes.append("snapshots without times: whether their histories overlap cannot be told")
    if not frame["next_role"].notna().any():
        notes.append("each rank has a single recording: nothing to follow; record the same phases in several steps")
    if (frame["gap_ns"].fillna(0) < 0).any():
        notes.append("some recordings of a rank overlap: their levels are of different processes or repeat each other")
    repeats = frame.groupby(["run", "rank_id", "pool", "role"], dropna=False).size()
    if len(repeats) and int(repeats.max()) < 3:
        notes.append(
            "fewer than three recordings of a role: a trend over them is undecided; record at least four steps"
        )
    return tuple(notes)


def role_growth(profile: MemoryProfile) -> pd.DataFrame:
    """Return, for each rank, pool and role, what all its recordings together left behind.

    Returns
    -------
    pandas.DataFrame
        ``run rank_id device pool role n_collections left_bytes left_min_bytes left_max_bytes``; the sums of
        ``left_bytes`` and of what happened in between give the change of the rank's level exactly.
    """
    frame = collection_growth(profile).frame
    keys = ["run", "rank_id", "device", "pool", "role"]
    grouped = frame.groupby(keys, dropna=False, sort=False)["left_bytes"]
    out = grouped.agg(
        n_collections="size",
        left_bytes=lambda s: s.sum(min_count=1),
        left_min_bytes="min",
        left_max_bytes="max",
    )
    return out.reset_index().astype({"n_collections": np.int64})
