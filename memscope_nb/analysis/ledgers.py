"""The peak of every ledger of a timeline and when it was: pools, the process, the device. None vouches for another."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model import MemoryProfile, to_int64
from .series import LEDGERS, Series
from .timeline import Timeline, tracks

LEDGER_COLUMNS = ("scope", "pool", "ledger", "peak_bytes", "peak_ns", "source", "n_samples", "origin")


def line_ledgers(profile: MemoryProfile, line: Timeline) -> pd.DataFrame:
    """Return the peak of each ledger of a timeline.

    Returns
    -------
    pandas.DataFrame
        ``scope`` (``pool``, ``process``, ``device``), ``pool`` (empty for the last two), ``ledger`` (``allocated
        active reserved resident``), ``peak_bytes peak_ns`` (the first of equal ones), ``source``, ``n_samples`` in all
        sources, ``origin`` (``recorded``, ``rows``; ``none``: the sum of the rows). The largest pool comes first.
        Each ledger has its own peak at its own instant: those of one row say nothing about another row.
    """
    rows: list[tuple[object, ...]] = []
    for pool in line_pools(line):
        series = [one for one in line.series if one.pool == pool]
        recorded = [ledger for ledger in LEDGERS if any(one.peak(ledger) for one in series)]
        for ledger in recorded or ["allocated"]:
            rows += _highest(series, pool, ledger)
    rows += _sampled(profile, line, "process") + _sampled(profile, line, "device")
    frame = pd.DataFrame(rows, columns=list(LEDGER_COLUMNS))
    return frame.astype(dict.fromkeys(("peak_bytes", "peak_ns", "source", "n_samples"), "Int64"))


def line_pools(line: Timeline) -> list[str]:
    """Pools of a timeline, the one with the highest allocated first."""
    return list(dict.fromkeys(track[0].pool for track in tracks(line)))


def _highest(series: list[Series], pool: str, ledger: str) -> list[tuple[object, ...]]:
    found = [(*at, one) for one in series if (at := one.peak(ledger))]
    n_samples = sum(len(one.t) for one in series if one.peak(ledger))
    if not found:
        found = [(*at, one) for one in series if (at := live_peak(one))]
    if not found:
        return []
    t, level, one = max(found, key=lambda entry: (entry[1], -entry[0]))
    return [("pool", pool, ledger, level, t, one.source, n_samples, one.origin if n_samples else "none")]


def live_peak(one: Series) -> tuple[int, int] | None:
    """First instant and bytes of the highest sum of the live rows of a series."""
    instants = one.lives["allocated"].instants
    if not len(instants):
        return None
    levels = one.lives["allocated"].bytes_at(instants)
    at = int(np.argmax(levels))
    return int(instants[at]), int(levels[at])


def _sampled(profile: MemoryProfile, line: Timeline, scope: str) -> list[tuple[object, ...]]:
    totals = profile.totals
    if "reserved_bytes" not in totals:
        return []
    mine = (totals["scope"] == scope) & (totals["device"] == line.device) & totals["reserved_bytes"].notna()
    samples = totals[mine & totals["source"].isin(line.sources)].sort_values("t_ns", kind="stable")
    if not len(samples):
        return []
    levels = to_int64(samples["reserved_bytes"])
    at = int(np.argmax(levels))
    source, t = int(samples["source"].iloc[at]), int(samples["t_ns"].iloc[at])
    return [(scope, "", "resident", int(levels[at]), t, source, len(samples), "recorded")]
