"""Counters written in the rows of a dump: pools, process, device, each a ledger of its own (spec/msmemscope 11.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, Int64Array, concat_tables, empty_totals, from_int64, to_int64
from .memscope_blocks import NONE, DumpBlocks, device_name
from .memscope_events import NO_DEVICE
from .report import ReadReport

BoolArray = npt.NDArray[np.bool_]
PROCESS, DEVICE = "APP", "device"


def build_totals(events: pd.DataFrame, built: DumpBlocks, report: ReadReport) -> pd.DataFrame:
    """Build the ``totals`` of one process, without ``source``.

    ``used`` is *allocated* of the row's pool after the event, ``total`` is *reserved*; for CPU tensors ``total`` is
    what is allocated. ``process_used`` and ``device_used`` are *reserved* of the scopes process and device: resident
    memory that the driver saw, repeated between its queries, of which only the changes are kept.
    """
    rows = np.flatnonzero(events["event"].isin(("MALLOC", "FREE")).to_numpy() & ~events["shadow"].to_numpy())
    rows = rows[np.lexsort((events["event_id"].to_numpy()[rows], events["t_ns"].to_numpy()[rows]))]
    if not len(rows):
        return empty_totals().drop(columns="source")
    part = events.iloc[rows]
    device = _devices(part, built, rows)
    parts = [
        _pool_totals(part, built, rows, device, report),
        _changes(part, "process_used_bytes", "process", PROCESS, device),
        _changes(part, "device_used_bytes", "device", DEVICE, device),
    ]
    for one in parts:
        one["origin"] = pd.Categorical.from_codes(np.zeros(len(one), np.int8), ["recorded"])
    totals = concat_tables([*parts, _sums(built.frame, parts[0], report)])
    return totals.sort_values("t_ns", kind="stable", ignore_index=True)


def _devices(part: pd.DataFrame, built: DumpBlocks, rows: Int64Array) -> pd.Categorical:
    """Device of each row, from its block where the row does not say."""
    names = part["device"].astype(object).map(lambda text: None if text == NO_DEVICE else device_name(text))
    block = built.block_of_event[rows]
    of_block = np.array([*built.frame["device"].astype(object), None], dtype=object)[block]
    return pd.Categorical(np.where(names.isna() & (block != NONE), of_block, names))


def _pool_totals(
    part: pd.DataFrame, built: DumpBlocks, rows: Int64Array, device: pd.Categorical, report: ReadReport
) -> pd.DataFrame:
    pool = built.pool_of_event[rows]
    tensor = np.asarray(pool == "HOST_TENSOR")
    used, total = to_int64(part["used_bytes"]), to_int64(part["total_bytes"])
    allocated = np.where(tensor, total, used)
    reserved = np.where(tensor, NA_NS, total)
    allocated = _credible(part, allocated, device, pool, report)
    known = (allocated != NA_NS) & (device.codes >= 0) & (pool.codes >= 0)
    t = part["t_ns"].to_numpy(np.int64)[known]
    return _frame("pool", pool[known], device[known], t, reserved[known], allocated[known])


def _credible(
    part: pd.DataFrame, allocated: Int64Array, device: pd.Categorical, pool: pd.Categorical, report: ReadReport
) -> Int64Array:
    """Drop what cannot be: a counter below the block that was just allocated, or below zero.

    A pool for which most samples are such (``used:0`` throughout) has no counter at all.
    """
    size = np.abs(to_int64(part["size_bytes"], na=0))
    is_malloc = (part["event"] == "MALLOC").to_numpy()
    wrong = (allocated != NA_NS) & ((allocated < 0) | (is_malloc & (allocated < size)))
    if not wrong.any():
        return allocated
    series = pd.Series(device.codes.astype(np.int64) * (len(pool.categories) + 1) + pool.codes)
    judged = is_malloc & (allocated != NA_NS)
    share = pd.Series(wrong[judged]).groupby(series[judged].to_numpy()).mean()
    hopeless = series.isin(share.index[share > 0.5]).to_numpy() & (allocated != NA_NS)
    report.note("counters below what was just allocated: not used", int((wrong | hopeless).sum()))
    return np.where(wrong | hopeless, NA_NS, allocated)


def _sums(blocks: pd.DataFrame, recorded: pd.DataFrame, report: ReadReport) -> pd.DataFrame:
    """Running sums of the blocks of every pool and device that has no counter of its own; origin ``rows``."""
    there = {*zip(recorded["device"], recorded["component"], strict=True)}
    parts = []
    for (device, pool), part in blocks.groupby(["device", "pool"], observed=True, sort=False):
        if (device, pool) in there:
            continue
        size, alloc, free = part["size_bytes"].to_numpy(np.int64), to_int64(part["alloc_ns"]), to_int64(part["free_ns"])
        begins, ends = alloc != NA_NS, free != NA_NS
        t = np.concatenate([free[ends], alloc[begins]])
        change = np.concatenate([-size[ends], size[begins]])
        order = np.argsort(t, kind="stable")  # at one instant releases come first
        level = int(size[~begins].sum()) + np.cumsum(change[order])
        t = t[order]
        settled = np.append(t[1:] != t[:-1], True) if len(t) else np.empty(0, dtype=bool)
        if n := int(settled.sum()):
            where, what = (pd.Categorical.from_codes(np.zeros(n, np.int8), [str(text)]) for text in (device, pool))
            parts.append(_frame("pool", what, where, t[settled], np.full(n, NA_NS), level[settled]))
            report.note(f"no counter for {pool} on {device}: its curve is the sum of its blocks")
    if not parts:
        return empty_totals().drop(columns="source")
    sums = concat_tables(parts)
    sums["origin"] = pd.Categorical.from_codes(np.zeros(len(sums), np.int8), ["rows"])
    return sums


def _changes(part: pd.DataFrame, column: str, scope: str, component: str, device: pd.Categorical) -> pd.DataFrame:
    """Samples at which a resident figure changed, and the last one, per device."""
    values = to_int64(part[column])
    known = np.flatnonzero((values != NA_NS) & (values >= 0) & (device.codes >= 0))
    if not len(known):
        return empty_totals().drop(columns="source")
    order = known[np.argsort(device.codes[known], kind="stable")]
    dev, level = device.codes[order], values[order]
    other = np.append(True, (dev[1:] != dev[:-1]) | (level[1:] != level[:-1]))
    last = np.append(dev[1:] != dev[:-1], True)
    chosen = np.sort(order[other | last])
    name = pd.Categorical.from_codes(np.zeros(len(chosen), np.int8), [component])
    t = part["t_ns"].to_numpy(np.int64)[chosen]
    return _frame(scope, name, device[chosen], t, values[chosen], np.full(len(chosen), NA_NS))


def _frame(
    scope: str,
    component: pd.Categorical,
    device: pd.Categorical,
    t: Int64Array,
    reserved: Int64Array,
    allocated: Int64Array,
) -> pd.DataFrame:
    n = len(t)
    return pd.DataFrame(
        {
            "scope": pd.Categorical.from_codes(np.zeros(n, np.int8), [scope]),
            "component": component.remove_unused_categories(),
            "device": device.remove_unused_categories(),
            "t_ns": t,
            "allocated_bytes": from_int64(allocated),
            "reserved_bytes": from_int64(reserved),
            "active_bytes": from_int64(np.full(n, NA_NS)),
        }
    )
