"""Snapshots of one process whose histories overlap: the ring buffer was dumped again before it was overwritten.

The later file then tells the same lives once more. They are flagged, and the source says up to when it repeats another,
so that sums over recordings count nothing twice. Two files repeat each other if the entries of one are those of the
other by a constant distance, and all allocations in the shared part agree in time (to the microsecond that the recorder
wrote), address and size. Without times nothing is marked: a program that does the same in every step leaves equal
histories of different steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import BlockFlag, Int64Array, MemoryProfile, to_int64

_KEY = ["us", "addr", "size"]


def mark_repeats(profile: MemoryProfile) -> MemoryProfile:
    """Flag the lives that an earlier snapshot of the same process told, and say so on their source.

    Adds the facts ``n_repeated`` and ``repeats_until_ns`` (the instant from which a source tells something new).
    """
    sources = profile.sources
    timed = [
        row
        for row in sources[(sources["kind"] == "pytorch_snapshot") & (sources["status"] != "failed")].itertuples()
        if row.facts.get("time_axis") == "time"
    ]
    if len(timed) < 2:
        return profile
    rows_of = profile.blocks.groupby("source", sort=False).indices
    device = profile.blocks.drop_duplicates("source").set_index("source")["device"].astype(str).to_dict()
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in timed:
        key = (row.run, *(None if pd.isna(v) else v for v in (row.rank_id, row.pid)), device.get(row.source))
        groups.setdefault(key, []).append(row)
    flags, facts = profile.blocks["flags"].to_numpy().copy(), {}
    for group in groups.values():
        group.sort(key=lambda row: (row.start_ns, row.end_ns, row.source))
        for at, row in enumerate(group):
            before = [other for other in group[:at] if other.end_ns >= row.start_ns and other.source in rows_of]
            if before and row.source in rows_of:
                best = max((_shared(profile.blocks, rows_of, other, row) for other in before), key=lambda one: one[1])
                if len(best[0]):
                    flags[best[0]] |= int(BlockFlag.REPEATED)
                    facts[int(row.source)] = len(best[0]), best[1], best[2]
    if not facts:
        return profile
    return replace(profile, sources=_told(sources, facts), blocks=profile.blocks.assign(flags=flags))


def _allocations(blocks: pd.DataFrame, rows: Int64Array) -> pd.DataFrame:
    """Entry, time, address and size of the allocations of a source."""
    part = blocks.iloc[rows]
    known = part["alloc_ns"].notna().to_numpy() & (part["pool"] != "WORKSPACE").to_numpy()
    part = part[known]
    return pd.DataFrame(
        {
            "us": to_int64(part["alloc_ns"]) // 1000,
            "addr": part["addr"].to_numpy(np.uint64),
            "size": part["size_bytes"].to_numpy(np.int64),
            "entry": to_int64(part["event_id"]),
            "row": rows[known],
        }
    )


def _shared(
    blocks: pd.DataFrame, rows_of: dict[int, npt.NDArray[np.int64]], other: Any, row: Any
) -> tuple[Int64Array, int, str]:
    """Return the rows of a source that an earlier one has, until when, and its path; no rows if it is another process.

    The entries of the later file follow those of the earlier one at a constant distance. Every allocation in the part
    that both hold must be in both.
    """
    nothing = np.empty(0, dtype=np.int64), 0, ""
    a, b = (_allocations(blocks, rows_of[one.source]) for one in (other, row))
    pairs = a.merge(b, on=_KEY, suffixes=("_a", "_b"))
    if not len(pairs):
        return nothing
    distance = int((pairs["entry_a"] - pairs["entry_b"]).mode().iloc[0])
    last = int(other.facts["n_entries"]) - 1 - distance
    same = pairs[pairs["entry_a"] - pairs["entry_b"] == distance]
    n_a, n_b = int((a["entry"] >= distance).sum()), int(((b["entry"] <= last) & (b["entry"] >= -distance)).sum())
    if not len(same) == n_a == n_b:
        return nothing
    return same["row_b"].to_numpy(np.int64), _time_of(blocks.iloc[rows_of[row.source]], last), str(other.path)


def _time_of(mine: pd.DataFrame, last: int) -> int:
    """Time of the last change of *allocated* up to an entry."""
    times = [
        to_int64(mine[time])[to_int64(mine[entry], na=last + 1) <= last]
        for entry, time in (("event_id", "alloc_ns"), ("free_event_id", "free_ns"))
    ]
    return int(np.concatenate(times).max())


def _told(sources: pd.DataFrame, facts: dict[int, tuple[int, int, str]]) -> pd.DataFrame:
    warnings, told = list(sources["warnings"]), list(sources["facts"])
    for at, source in enumerate(sources["source"].tolist()):
        if source not in facts:
            continue
        n_repeated, until, path = facts[source]
        text = (
            f"{n_repeated} lives repeat those of {path}: the ring buffer was dumped again; they are flagged, and "
            "growth counts from where the other file ends"
        )
        warnings[at] = (*warnings[at], text)
        told[at] = {**told[at], "n_repeated": n_repeated, "repeats_until_ns": until}
    return sources.assign(
        warnings=pd.Series(warnings, index=sources.index, dtype=object),
        facts=pd.Series(told, index=sources.index, dtype=object),
    )
