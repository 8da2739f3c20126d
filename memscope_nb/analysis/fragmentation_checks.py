"""What a pool at an instant adds up to, against everything in the recording that tells of it independently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..model import NA_NS, MemoryProfile, to_int64
from ..units import format_bytes
from .pool_state import PoolState

CHECK_COLUMNS = ("source", "device", "kind", "what", "recorded_bytes", "computed_bytes", "difference_bytes")
"""``difference_bytes`` = recorded - computed. Nothing here enters the terms: a difference is only named. ``kind``:
``segments`` (sums that the recorder wrote), ``history`` (levels of the trace), ``contradiction`` (found going back)."""


def check_state(profile: MemoryProfile, state: PoolState) -> pd.DataFrame:
    """Compare a pool with the segments' own sums where it is the recorded state, and with the history's levels.

    Returns
    -------
    pandas.DataFrame
        One row for each comparison that the recording allows, and one for each contradiction met on the way.
    """
    rows = [*_of_history(profile, state), *_of_problems(state)]
    if is_recorded_state(profile, state):
        rows += _of_segments(profile, state)
    frame = pd.DataFrame(rows, columns=["kind", "what", "recorded_bytes", "computed_bytes"])
    frame = frame.astype({"recorded_bytes": "Int64", "computed_bytes": "Int64"})
    difference = frame["recorded_bytes"] - frame["computed_bytes"]
    return frame.assign(source=state.source, device=state.device, difference_bytes=difference)[list(CHECK_COLUMNS)]


def is_recorded_state(profile: MemoryProfile, state: PoolState) -> bool:
    """Whether nothing changed from the instant to the end, so that the state is the one in the file."""
    if (state.segments["recorded"] < 0).any() or state.blocks["is_estimated"].any():
        return False
    marks, blocks, t = profile.marks, profile.blocks, state.t_ns
    mine = (marks["source"] == state.source) & (marks["kind"] == "segment")
    if "device" in marks:
        mine &= marks["device"] == state.device
    if (marks.loc[mine, "start_ns"] > t).any():
        return False
    mine = (blocks["source"] == state.source) & (blocks["device"] == state.device) & (blocks["pool"] == state.pool)
    end = int(profile.sources.set_index("source")["end_ns"].at[state.source])
    part = blocks[mine]
    times = np.concatenate([to_int64(part[key]) for key in ("alloc_ns", "free_ns", "active_free_ns") if key in part])
    return not ((times > t) & (times <= end)).any()


def _of_segments(profile: MemoryProfile, state: PoolState) -> Iterator[dict[str, Any]]:
    """Compare with the sums that the recorder wrote, and with the idle blocks of the file."""
    table = profile.segments.iloc[state.segments["recorded"].to_numpy()]
    blocks, ranges, n = state.blocks, state.ranges, len(table)
    size, pending = blocks["size_bytes"].to_numpy(), blocks["is_pending"].to_numpy()
    computed = {
        "recorded_allocated_bytes": int(size[~pending].sum()),
        "recorded_active_bytes": int(size.sum()),
        "recorded_requested_bytes": int(blocks["requested_bytes"].sum()),
    }
    names = {"allocated": "allocated_size", "active": "active_size", "requested": "requested_size"}
    for key, field in names.items():
        column = f"recorded_{key}_bytes"
        if column in table and len(table) and table[column].notna().all():
            yield _row("segments", f"{field} of the segments", int(table[column].sum()), computed[column])
    listed = table[["allocated_bytes", "pending_bytes", "free_bytes"]].sum(axis=1)
    yield _row("segments", "total_size, against all blocks", int(table["size_bytes"].sum()), int(listed.sum()))
    yield _row("segments", "inactive blocks", int(table["free_bytes"].sum()), int(ranges["size_bytes"].sum()))
    largest = np.zeros(n, dtype=np.int64)
    np.maximum.at(largest, ranges["segment"].to_numpy(), ranges["size_bytes"].to_numpy())
    recorded = int(table["largest_free_bytes"].sum())
    yield _row("segments", "largest inactive block of each, added up", recorded, int(largest.sum()))


def _of_history(profile: MemoryProfile, state: PoolState) -> Iterator[dict[str, Any]]:
    """Compare with the last levels that the history has up to the instant; its sizes are those asked for."""
    totals = profile.totals
    mine = (totals["source"] == state.source) & (totals["device"] == state.device)
    mine &= (totals["component"] == state.pool) & (totals["origin"] == "rows") & (totals["t_ns"] <= state.t_ns)
    rows = np.flatnonzero(mine.to_numpy())
    if not len(rows):
        return
    last = totals.iloc[rows[-1:]]
    blocks = state.blocks
    asked, pending = blocks["requested_bytes"].to_numpy(), blocks["is_pending"].to_numpy()
    computed = {
        "allocated": int(asked[~pending].sum()),
        "active": int(asked.sum()),
        "reserved": int(state.segments["size_bytes"].sum()),
    }
    for ledger, value in computed.items():
        level = int(to_int64(last[f"{ledger}_bytes"])[0])
        if level != NA_NS:
            yield _row("history", f"{ledger} (sizes as asked for)", level, value)


def _of_problems(state: PoolState) -> Iterator[dict[str, Any]]:
    for text, n_bytes in sorted(state.problems.items()):
        yield _row("contradiction", text, n_bytes, 0)


def _row(kind: str, what: str, recorded: int, computed: int) -> dict[str, Any]:
    return {"kind": kind, "what": what, "recorded_bytes": recorded, "computed_bytes": computed}


def unsure_bytes(checks: pd.DataFrame, *, is_recorded: bool) -> int:
    """Add up the differences that bear on a state: of one as recorded those of the segments, else of the history."""
    bears = checks["kind"].isin(["contradiction", "segments" if is_recorded else "history"])
    return int(checks.loc[bears, "difference_bytes"].abs().sum())


def tell_differences(checks: pd.DataFrame) -> Iterator[str]:
    """Name every difference."""
    for row in checks[checks["difference_bytes"] != 0].itertuples():
        yield (
            f"source {row.source} {row.device}: {row.kind}: {row.what}: recorded {row.recorded_bytes:,} B, computed "
            f"{row.computed_bytes:,} B, difference {format_bytes(int(row.difference_bytes), signed=True)}"
        )
