"""Layers of a device over time: each counter lies inside the next one, and what does not fit is told (spec 11.3)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, as_profile, distinct, from_int64, to_int64
from ..units import format_bytes
from .decompose_tree import held
from .facts import missing_fact
from .result import Result
from .thin import thin_rows

LAYERS = ("outside_process_bytes", "outside_hal_bytes", "outside_pools_bytes", "cached_bytes", "allocated_bytes")
"""From the outside in; with ``remainder_bytes`` they add up to the outermost counter."""
_COUNTERS = ("device_used_bytes", "process_used_bytes", "hal_bytes", "reserved_bytes", "allocated_bytes")
_NAMES = ("device", "process", "HAL", "pools", "allocated")
LAYER_COLUMNS = ("source", "device", "t_ns", *_COUNTERS[:4], *LAYERS, "remainder_bytes", "outermost")
HOW_TO_RECORD = (
    "record with msmemscope.config(events='alloc,free'); process_used and device_used are written since msMemScope of "
    "August 2026"
)


@dataclass(frozen=True, repr=False)
class DeviceLayers(Result):
    """Layers of each process on each device.

    Attributes
    ----------
    frame : pandas.DataFrame
        In order of time: the counters, the layers between them (never negative, unknown where a counter is), and
        ``remainder_bytes`` (never positive): by how much inner counters exceed outer ones. Layers and remainder add up
        to the counter that ``outermost`` names.
    pools : dict
        (source, device) to the pools whose counters are added up.
    """

    pools: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)


def device_layers(p: MemoryProfile | str | os.PathLike[str], *, points: int | None = 2000) -> DeviceLayers:
    """Split what lies on each device: other processes, this one outside HAL, HAL outside pools, cached, allocated.

    Parameters
    ----------
    p : MemoryProfile or path
        A msMemScope dump (spec/msmemscope 11.3). For the Ascend profiler see :func:`memscope_nb.layers`.
    points : int, optional
        Thin to about this many columns of a plot; the extremes of every layer stay. ``None`` keeps every sample.

    Raises
    ------
    MissingFactError
        If no counter of HAL, the process or the device was recorded.
    """
    profile = as_profile(p)
    totals = profile.totals
    device = totals["device"].astype(str).str.startswith("NPU").to_numpy()
    hal = (totals["scope"] == "pool") & (totals["component"] == "HAL")
    outer = hal | totals["scope"].isin(("process", "device"))
    keys = totals.loc[outer.to_numpy() & device, ["source", "device"]].drop_duplicates()
    if not len(profile.events) or not len(keys):
        raise missing_fact(profile, "device_layers", f"nothing around the pools was recorded: {HOW_TO_RECORD}")
    parts: list[pd.DataFrame] = []
    pools: dict[tuple[int, str], tuple[str, ...]] = {}
    notes: list[str] = []
    for source, name in sorted((int(s), str(d)) for s, d in keys.itertuples(index=False)):
        mine = totals[(totals["source"] == source) & (totals["device"] == name)]
        frame, inside = _layers(mine, notes)
        rows = np.arange(len(frame))
        if points is not None:
            levels = [to_int64(frame[column]) for column in (*LAYERS, "remainder_bytes")]
            rows = thin_rows(frame["t_ns"].to_numpy(np.int64), levels, points)
        parts.append(frame.iloc[rows].assign(source=np.int32(source), device=name))
        pools[source, name] = inside
    frame = pd.concat(parts, ignore_index=True)[list(LAYER_COLUMNS)]
    return DeviceLayers(frame, tuple(dict.fromkeys([*notes, *_caveats(frame, pools)])), pools)


def _samples(mine: pd.DataFrame, scope: str, component: str | None, column: str) -> tuple[Int64Array, Int64Array]:
    """Times and values of one counter, the last sample of each instant."""
    chosen = mine[(mine["scope"] == scope) & mine[column].notna()]
    if component is not None:
        chosen = chosen[chosen["component"] == component]
    chosen = chosen.sort_values("t_ns", kind="stable")
    t = chosen["t_ns"].to_numpy(np.int64)
    last = np.append(t[1:] != t[:-1], True) if len(t) else np.empty(0, dtype=bool)
    return t[last], to_int64(chosen[column])[last]


def _layers(mine: pd.DataFrame, notes: list[str]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    t = distinct(mine["t_ns"].to_numpy(np.int64))
    components = mine.loc[mine["scope"] == "pool", "component"].astype(str).unique()
    pools = tuple(sorted(name for name in components if name != "HAL"))
    levels = [
        _level(mine, "device", None, "reserved_bytes", t),
        _level(mine, "process", None, "reserved_bytes", t),
        _level(mine, "pool", "HAL", "allocated_bytes", t),
        *_pool_levels(mine, pools, t, notes),
    ]
    gaps = [_between(outer, inner) for outer, inner in zip(_known_outer(levels), levels, strict=True)]
    layers: dict[str, Int64Array] = {}
    remainder = np.zeros(len(t), dtype=np.int64)
    for i, name in enumerate(LAYERS[:-1]):
        gap = gaps[i + 1]
        layers[name] = np.where(gap == NA_NS, NA_NS, np.maximum(gap, 0))
        remainder += np.where(gap == NA_NS, 0, np.minimum(gap, 0))
    layers[LAYERS[-1]] = levels[-1]
    known = [level[0] != NA_NS for level in levels]  # a counter is known at all instants or at none
    columns: dict[str, Any] = {"t_ns": t} | dict(zip(_COUNTERS[:4], levels, strict=False)) | layers
    nullable = {name: from_int64(values) for name, values in columns.items() if name != "t_ns"}
    frame = pd.DataFrame({"t_ns": t} | nullable | {"remainder_bytes": from_int64(remainder)})
    return frame.assign(outermost=_NAMES[known.index(True)]), pools


def _level(mine: pd.DataFrame, scope: str, component: str | None, column: str, t: Int64Array) -> Int64Array:
    sample_t, values = _samples(mine, scope, component, column)
    return held(sample_t, values, t) if len(sample_t) else np.full(len(t), NA_NS, dtype=np.int64)


def _pool_levels(mine: pd.DataFrame, pools: Sequence[str], t: Int64Array, notes: list[str]) -> list[Int64Array]:
    """Reserved and allocated bytes of all pools; a pool without a counter of reserved counts as full."""
    sums = [np.zeros(len(t), dtype=np.int64), np.zeros(len(t), dtype=np.int64)]
    for name in pools:
        reserved, allocated = (
            _level(mine, "pool", name, column, t) for column in ("reserved_bytes", "allocated_bytes")
        )
        if (reserved == NA_NS).all():
            notes.append(f"{name}: reserved was not recorded, what is allocated stands for it")
            reserved = allocated
        sums[0] += np.where(reserved == NA_NS, 0, reserved)
        sums[1] += np.where(allocated == NA_NS, 0, allocated)
    return sums


def _known_outer(levels: Sequence[Int64Array]) -> list[Int64Array]:
    """For each counter the nearest known one outside of it."""
    outer = np.full(len(levels[0]), NA_NS, dtype=np.int64)
    found = []
    for level in levels:
        found.append(outer)
        outer = np.where(level == NA_NS, outer, level)
    return found


def _between(outer: Int64Array, inner: Int64Array) -> Int64Array:
    return np.where((outer == NA_NS) | (inner == NA_NS), NA_NS, outer - inner)


def _caveats(frame: pd.DataFrame, pools: dict[tuple[int, str], tuple[str, ...]]) -> list[str]:
    notes = []
    missing = sorted(name for name, column in zip(_NAMES, _COUNTERS[:3], strict=False) if frame[column].isna().any())
    if missing:
        notes.append(f"no counter of {', '.join(missing)}: that layer is unknown ({HOW_TO_RECORD})")
    lowest = int(frame["remainder_bytes"].min())
    if lowest < 0:
        notes.append(
            f"inner counters exceed outer ones by up to {format_bytes(-lowest)}: they are sampled at different "
            "moments, HAL memory from before start() is not counted, or memory is counted that is not on the device"
        )
    if any(len(names) > 1 for names in pools.values()):
        notes.append("reserved of several pools is added up: one that lives in another is counted twice")
    if frame.groupby("device")["source"].nunique().max() > 1:
        notes.append("several processes on a device: outside_process_bytes of each holds the others")
    notes.append("device and process are queried at HAL events only, the device in steps of 1 MiB")
    return notes
