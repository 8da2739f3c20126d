"""A profile in a few rows and lines: levels and peaks of each series."""

from __future__ import annotations

import pandas as pd

from ..model import MemoryProfile, is_open
from ..units import format_bytes
from .series import balance, iter_series


def summarize(profile: MemoryProfile) -> pd.DataFrame:
    """Return one row per series: counts, baseline, peaks per ledger, end level, older memory.

    ``baseline_bytes`` is what was allocated before the first recorded event. Of equal peaks the first counts.
    ``resident_peak_bytes`` is the peak of the process samples on that device: another ledger, sampled, which neither
    confirms nor refutes the pool's. ``n_unexplained`` counts rises of older memory; 0 is expected.
    """
    sources = profile.sources.set_index("source")
    process = profile.totals[profile.totals["scope"] == "process"]
    resident = process.groupby(["source", "device"], observed=True)["reserved_bytes"].max()
    rows = []
    for one in iter_series(profile):
        whose, check = sources.loc[one.source], balance(one)
        allocated, reserved = one.peak("allocated"), one.peak("reserved")
        ends = one.edge_levels()
        n_open = int(is_open(profile.blocks.iloc[one.rows]).sum())
        rows.append(
            {
                "run": whose["run"],
                "role": whose["role"],
                "rank_id": whose["rank_id"],
                "device": one.device,
                "pool": one.pool,
                "collection": whose["collection"],
                "source": one.source,
                "n_blocks": len(one.rows),
                "n_open": n_open,
                "baseline_bytes": ends[0] if check and ends else pd.NA,
                "peak_bytes": allocated[1] if allocated else pd.NA,
                "peak_ns": allocated[0] if allocated else pd.NA,
                "reserved_peak_bytes": reserved[1] if reserved else pd.NA,
                "resident_peak_bytes": resident.get((one.source, one.device), pd.NA),
                "end_bytes": ends[1] if ends else pd.NA,
                "older_start_bytes": check.start_bytes if check else pd.NA,
                "older_end_bytes": check.end_bytes if check else pd.NA,
                "n_older_falls": check.n_falls if check else pd.NA,
                "n_unexplained": check.n_rises if check else pd.NA,
            }
        )
    frame = pd.DataFrame(rows, columns=SUMMARY_COLUMNS)
    numbers = [name for name in SUMMARY_COLUMNS if name not in ("run", "role", "device", "pool")]
    return frame.astype(dict.fromkeys(numbers, "Int64"))


SUMMARY_COLUMNS = (
    "run", "role", "rank_id", "device", "pool", "collection", "source", "n_blocks", "n_open", "baseline_bytes",
    "peak_bytes", "peak_ns", "reserved_peak_bytes", "resident_peak_bytes", "end_bytes", "older_start_bytes",
    "older_end_bytes", "n_older_falls", "n_unexplained",
)  # fmt: skip


def describe(profile: MemoryProfile) -> str:
    """Return a few lines about a profile, for people at a prompt."""
    sources = profile.sources
    ranks = sources["rank_id"].nunique(dropna=False)
    lines = [
        f"MemoryProfile: {len(sources)} sources, {ranks} ranks, {len(profile.blocks):,} blocks, "
        f"{len(profile.stacks):,} stacks"
    ]
    summary = summarize(profile)
    for row in summary.head(12).itertuples():
        rank = "rank ?" if pd.isna(row.rank_id) else f"rank {row.rank_id}"
        peak = "peak unknown" if pd.isna(row.peak_bytes) else f"peak {format_bytes(int(row.peak_bytes))}"
        reserved = (
            "" if pd.isna(row.reserved_peak_bytes) else f", reserved {format_bytes(int(row.reserved_peak_bytes))}"
        )
        lines.append(
            f"  {row.role} #{row.collection} {rank} {row.device} {row.pool}: {peak}{reserved}, "
            f"{row.n_blocks:,} blocks, {row.n_open:,} open"
        )
    lines.append(f"  {_checks(profile, summary)}")
    for row in sources[sources["status"] != "ok"].head(12).itertuples():
        lines.append(f"  {row.status}: {row.path}: {'; '.join(row.warnings)}")
    return "\n".join(lines)


def _checks(profile: MemoryProfile, summary: pd.DataFrame) -> str:
    """One line on how far the numbers can be trusted; see check_quality for more."""
    n_rises = summary["n_unexplained"]
    known = n_rises.notna()
    if not known.any():
        balance_text = "no recorded totals to check against"
    elif n_rises[known].sum():
        balance_text = f"{n_rises[known].sum()} UNEXPLAINED rises in {int((n_rises[known] > 0).sum())} series"
    else:
        balance_text = f"{int(known.sum())} series balance"
    counts = {name: int(profile.sources[f"n_{name}"].sum()) for name in ("skipped", "repaired")}
    return f"checks: {balance_text}; {counts['skipped']} rows skipped, {counts['repaired']} values repaired"
