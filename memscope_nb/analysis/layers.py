"""What lies on the device: the pool, what the process holds beside it, and what the pool counts but the device lacks.

A pool's counter and the residency of the process are different ledgers. A colocated engine that sleeps releases memory
below the framework: then reserved exceeds resident, and the difference is *unbacked*, not an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, to_int64
from ..units import format_bytes, format_duration
from .facts import missing_fact
from .result import Result
from .series import Series
from .timeline import Timeline, timelines

INSIDE_POOL_MODULES = ("APP", "GE")
"""Modules that repeat what the pools reserve (spec/ascend_profiler 5): not outside of them."""

CONTAINING_POOLS = ("HAL", "HOST")
"""Pools of a msMemScope dump that are no part of the device memory beside the others: the driver's, and the host's."""


@dataclass(frozen=True, repr=False)
class Layers(Result):
    """Layers at every sample of the process, and how often it was sampled."""

    interval_ns: int = 0
    pools: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def layers(profile: MemoryProfile) -> Layers:
    """Split what the process holds on each device at every sample of it.

    Returns
    -------
    Layers
        ``frame``: ``source device t_ns allocated_bytes cached_bytes`` (reserved but free) ``reserved_bytes`` (of all
        recorded pools of the device), one ``module_<name>_bytes`` for each module outside the pools, ``other_bytes``
        and ``resident_bytes`` (process). At every row ``reserved + modules + other = resident``: *other* is the signed
        rest. ``unbacked_bytes`` is reserved beyond residency: a lower bound of what the pool counts but the device
        lacks.

    Raises
    ------
    MissingFactError
        If no process was sampled.
    """
    parts = [(line.series, line_layers(profile, line)) for line in timelines(profile)]
    parts = [(series, frame) for series, frame in parts if len(frame)]
    if not parts:
        raise missing_fact(
            profile,
            "layers",
            "the residency of the process was not recorded: record with NPU activity and a profiler level of at least "
            "Level0 (verl: profiler.tool_config.npu.level=level0)",
        )
    frame = pd.concat([frame for _, frame in parts], ignore_index=True)
    columns = module_columns(frame)
    frame = frame.fillna(dict.fromkeys(columns, 0)).astype(dict.fromkeys(columns, np.int64))  # absent: always zero
    gaps = [np.diff(part["t_ns"].to_numpy(np.int64)) for _, part in frame.groupby(["source", "device"], sort=False)]
    interval = int(np.median(np.concatenate(gaps))) if sum(map(len, gaps)) else 0
    pools = tuple(sorted({one.pool for line, _ in parts for one in _disjoint([o for o in line if o.recorded])}))
    names = tuple(column.removeprefix("module_").removesuffix("_bytes") for column in columns)
    return Layers(frame, _caveats(frame, how_sampled(profile.sources["kind"], interval), pools), interval, pools, names)


def module_columns(frame: pd.DataFrame) -> list[str]:
    """Return the columns of modules in a frame of layers."""
    return [column for column in frame if column.startswith("module_")]


def line_layers(profile: MemoryProfile, line: Timeline) -> pd.DataFrame:
    """Return the layers of one timeline, see :func:`layers`; no rows if its process was not sampled."""
    totals = profile.totals
    mine = (totals["scope"] == "process") & (totals["device"] == line.device) & totals["reserved_bytes"].notna()
    process = totals[mine & totals["source"].isin(line.sources)]
    parts = []
    for source, samples in process.groupby("source", sort=True):
        samples = samples.sort_values("t_ns", kind="stable")
        t = samples["t_ns"].to_numpy(np.int64)
        series = _disjoint([one for one in line.series if one.source == source and one.recorded])
        modules = _modules(profile, source, line.device, t)
        parts.append(_split(int(source), line.device, t, to_int64(samples["reserved_bytes"]), series, modules))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _disjoint(series: list[Series]) -> list[Series]:
    """Leave out pools that contain others: the driver's own (HAL) holds the segments of the framework's pools."""
    framework = [one for one in series if one.pool not in CONTAINING_POOLS]
    return framework or [one for one in series if one.pool == "HAL"]


def _split(
    source: int, device: str, t: Int64Array, resident: Int64Array, series: list[Series], modules: dict[str, Int64Array]
) -> pd.DataFrame:
    zero = np.zeros(len(t), np.int64)
    reserved, allocated = (sum((_level(one, k, t) for one in series), zero) for k in ("reserved", "allocated"))
    known = sum(modules.values(), zero)
    return pd.DataFrame(
        {
            "source": np.full(len(t), source, dtype=np.int32),
            "device": device,
            "t_ns": t,
            "allocated_bytes": allocated,
            "cached_bytes": reserved - allocated,
            "reserved_bytes": reserved,
            **{f"module_{name}_bytes": values for name, values in modules.items()},
            "other_bytes": resident - reserved - known,
            "resident_bytes": resident,
            "unbacked_bytes": np.maximum(reserved - resident, 0),
        }
    )


def _level(one: Series, ledger: str, t: Int64Array) -> Int64Array:
    """Last recorded level at or before each instant; before the first sample, the first one."""
    values = one.recorded.get(ledger)
    if values is None:
        return np.zeros(len(t), dtype=np.int64)
    has = values != NA_NS
    return _held(one.t[has], values[has], t)


def _held(sample_t: Int64Array, values: Int64Array, t: Int64Array) -> Int64Array:
    held: Int64Array = values[np.maximum(np.searchsorted(sample_t, t, side="right") - 1, 0)]
    return held


def _modules(profile: MemoryProfile, source: int, device: str, t: Int64Array) -> dict[str, Int64Array]:
    totals = profile.totals
    mine = (totals["scope"] == "module") & (totals["source"] == source) & (totals["device"] == device)
    found = {}
    for name, samples in totals[mine].groupby("component", observed=True, sort=True):
        if name not in INSIDE_POOL_MODULES:
            samples = samples.sort_values("t_ns", kind="stable")
            found[str(name)] = _held(samples["t_ns"].to_numpy(np.int64), to_int64(samples["reserved_bytes"], na=0), t)
    return found


def how_sampled(kinds: pd.Series, interval_ns: int) -> str:
    """Say when the memory of the process was asked for: by a clock, or at events (spec/msmemscope 2)."""
    if kinds.astype(str).str.startswith("memscope_").all():
        return "sampled at events of the driver"
    return f"sampled every {format_duration(interval_ns)}"


def _caveats(frame: pd.DataFrame, sampled: str, pools: tuple[str, ...]) -> tuple[str, ...]:
    notes = [f"residency is {sampled}: changes in between are not seen"]
    notes.append(f"reserved is that of the recorded pools ({', '.join(pools) or 'none'}); others count as outside")
    lowest = int(frame["other_bytes"].min())
    if lowest < 0:
        notes.append(
            f"pools and modules exceed the process by up to {format_bytes(-lowest)}: the pool counts memory that is "
            "not on the device (a sleeping engine), or the ledgers were sampled at different instants"
        )
    return tuple(notes)
