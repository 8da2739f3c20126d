"""What each recording left behind, and what happened between two of them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model import MemoryProfile
from .result import Result
from .series import Series
from .timeline import timelines

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
        of *allocated*; a pool without recorded totals has none.
    """
    whose = profile.sources.set_index("source")
    rows = []
    for line in timelines(profile):
        for pool in dict.fromkeys(one.pool for one in line.series):
            series = [one for one in line.series if one.pool == pool]
            for one, after in zip(series, [*series[1:], None], strict=True):
                key = {
                    "run": line.run,
                    "rank_id": line.rank_id,
                    "device": line.device,
                    "pool": pool,
                    "source": one.source,
                }
                names = {"role": whose.at[one.source, "role"], "collection": whose.at[one.source, "collection"]}
                rows.append(key | names | _levels(one) | _next(one, after, whose))
    columns = ["run", "rank_id", "device", "pool", "source", "role", "collection", "start_ns", "baseline_bytes"]
    columns += ["peak_bytes", "end_bytes", "left_bytes", "next_role", "next_baseline_bytes", "gap_ns", "between_bytes"]
    frame = pd.DataFrame(rows, columns=columns)
    numbers = [*LEVELS, "rank_id", "collection", "source", "start_ns", "gap_ns"]
    frame = frame.astype(dict.fromkeys(numbers, "Int64"))
    return Result(frame, _caveats(frame))


def _levels(one: Series) -> dict[str, object]:
    ends, peak = one.edge_levels(), one.peak("allocated")
    return {
        "start_ns": one.window[0],
        "baseline_bytes": ends[0] if ends else pd.NA,
        "peak_bytes": peak[1] if peak else pd.NA,
        "end_bytes": ends[1] if ends else pd.NA,
        "left_bytes": ends[1] - ends[0] if ends else pd.NA,
    }


def _next(one: Series, after: Series | None, whose: pd.DataFrame) -> dict[str, object]:
    if after is None:
        return {"next_role": None, "next_baseline_bytes": pd.NA, "gap_ns": pd.NA, "between_bytes": pd.NA}
    here, there = one.edge_levels(), after.edge_levels()
    return {
        "next_role": whose.at[after.source, "role"],
        "next_baseline_bytes": there[0] if there else pd.NA,
        "gap_ns": after.window[0] - one.window[1],
        "between_bytes": there[0] - here[1] if here and there else pd.NA,
    }


def _caveats(frame: pd.DataFrame) -> tuple[str, ...]:
    notes = []
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
