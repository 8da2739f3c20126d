"""Pool blocks that outlive the step after their own, and how each pool moves within and over steps (spec/msmemscope 6).

Both rules are those of msMemScope's online analysis, replayed on its dump; the drift of each step's lowest level, peak
and end is ours, and is what tells a leak from a step that needs much.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import BlockFlag, Int64Array, MemoryProfile, as_profile, to_int64
from ..units import MIB, format_bytes
from .facts import missing_fact
from .result import Result, records
from .series import iter_series
from .timeline import interval_levels

POOLS = ("PTA", "ATB", "MINDSPORE")
_TITLES = {"PTA": "Pytorch Caching memory pool", "ATB": "ATB memory pool", "MINDSPORE": "Mindspore memory pool"}
MIN_STEPS = 4
"""Steps without the first one that a verdict on growth needs: three rises in a row."""
LEAK_COLUMNS = (
    "pid", "device", "pool", "addr", "step", "size_bytes", "kernel_index", "freed", "event_id", "allocation_id",
    "owner", "stack_id", "source", "name", "alloc_ns", "free_ns",
)  # fmt: skip
_NEVER = np.iinfo(np.int64).max
_HOW = "wrap each step in an mstx range named 'step start' or call msmemscope.step(), and record at least five steps"


@dataclass(frozen=True, repr=False)
class StepLeaks(Result):
    """Blocks that outlived the step after their own: one row per block in ``frame``.

    Attributes
    ----------
    fluctuation : pandas.DataFrame
        Per process, device and pool: the steps with the smallest and largest ``ratio`` of lowest to highest level.
    steps : pandas.DataFrame
        Level of each pool at the start and end of each step, its lowest and its peak.
    growth : pandas.DataFrame
        Per series: change of floor, peak and end over the steps after the first, and a verdict from the floors.
    messages : tuple of str
        With ``compat``: the lines that the original tool prints at the end.
    """

    fluctuation: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    steps: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    growth: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    messages: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        tables = {name: records(getattr(self, name)) for name in ("fluctuation", "steps", "growth")}
        return super().to_dict() | tables | {"messages": list(self.messages)}

    def _repr_html_(self) -> str:
        tables = (self.growth, self.fluctuation)
        return "".join(t.to_html(escape=True, border=0, na_rep="", index=False) for t in tables) + super()._repr_html_()


def step_leaks(
    p_or_path: MemoryProfile | str | os.PathLike[str],
    *,
    pools: Sequence[str] = POOLS,
    compat: Literal["msmemscope"] | None = None,
) -> StepLeaks:
    """Find pool blocks that outlive the step after their own, and how the pools move over steps.

    A block allocated in a step (after the first) that is alive at the end of a later step is listed; ``freed`` tells
    whether it was released afterwards (``late``). Blocks of the last step are never listed.

    Parameters
    ----------
    p_or_path : MemoryProfile or path
        A msMemScope dump with steps.
    pools : sequence of str
        Pools to look into.
    compat : "msmemscope", optional
        Take any end of an mstx range on the device for the end of its step, and 0 for "no value", as the tool does.

    Raises
    ------
    ValueError
        For another ``compat``.
    MissingFactError
        If there are no event IDs or no steps.
    """
    if compat not in (None, "msmemscope"):
        raise ValueError(f"compat must be None or 'msmemscope', not {compat!r}")
    profile = as_profile(p_or_path)
    steps = profile.marks[profile.marks["kind"] == "step"]
    if not len(profile.events) or not len(steps) or "start_event_id" not in steps:
        raise missing_fact(profile, "step_leaks", f"step_leaks needs a msMemScope dump with steps: {_HOW}")
    leaks: list[pd.DataFrame] = []
    fluctuation: list[dict[str, Any]] = []
    messages: list[str] = []
    for clock in _clocks(profile, steps, exact=compat is None):
        found = _kept(profile, clock, pools)
        moved = _fluctuation(profile, clock, pools, exact=compat is None)
        leaks.append(found)
        fluctuation += moved
        if compat:
            messages += _printed(clock, found, moved)
    frame = pd.concat(leaks, ignore_index=True) if leaks else pd.DataFrame(columns=list(LEAK_COLUMNS))
    levels = _levels(profile, steps, pools)
    growth = _growth(levels)
    return StepLeaks(
        frame[list(LEAK_COLUMNS)], _caveats(frame, growth), pd.DataFrame(fluctuation, columns=list(_MOVED)), levels,
        growth, tuple(messages),
    )  # fmt: skip


# -- which step is when -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Clock:
    """Starts and ends of steps on one device of one process, in the order of (time, event ID)."""

    source: int
    pid: Any
    device: str
    start: Int64Array
    """Two columns: time and event ID."""
    start_step: Int64Array
    end: Int64Array
    end_step: Int64Array


def _clocks(profile: MemoryProfile, steps: pd.DataFrame, *, exact: bool) -> Iterator[_Clock]:
    pids = profile.sources.set_index("source")["pid"]
    devices = profile.blocks.groupby("source", sort=True)["device"].unique()
    for source, mine in steps.groupby("source", sort=True):
        for device in sorted(map(str, devices.get(source, []))):
            here = mine[(mine["device"] == device) | mine["device"].isna()]
            if not len(here):
                continue
            here = here.sort_values(["start_ns", "start_event_id"])
            start = np.stack([here["start_ns"].to_numpy(np.int64), to_int64(here["start_event_id"])], axis=1)
            numbers = to_int64(here["step"])
            closed = here["end_event_id"].notna().to_numpy()
            end = np.stack([here["end_ns"].to_numpy(np.int64), to_int64(here["end_event_id"])], axis=1)[closed]
            end_step = numbers[closed]
            if not exact and here["device"].notna().any():
                end = _any_range_end(profile, int(source), device)
                at = _place(start, end, side="right")
                end, end_step = end[at > 0], numbers[np.maximum(at - 1, 0)][at > 0]
            order = np.lexsort((end[:, 1], end[:, 0]))
            yield _Clock(int(source), pids[source], device, start, numbers, end[order], end_step[order])


def _any_range_end(profile: MemoryProfile, source: int, device: str) -> Int64Array:
    """Ends of all mstx ranges on a device: the tool cannot tell whose they are (spec 6.1)."""
    events = profile.events
    chosen = (events["source"] == source) & (events["type"] == "RANGE_END") & (events["device"] == _raw(device))
    rows = events.loc[chosen, ["t_ns", "event_id"]].sort_values(["t_ns", "event_id"])
    return rows.to_numpy(np.int64)


def _raw(device: str) -> str:
    """Device text in ``events``."""
    return device.removeprefix("NPU:").lower()


def _place(edges: Int64Array, points: Int64Array, *, side: Literal["left", "right"]) -> Int64Array:
    """Do what ``searchsorted`` does, for sorted pairs (time, event ID)."""
    both = np.concatenate([edges, points])
    is_point = np.append(np.zeros(len(edges), dtype=bool), np.ones(len(points), dtype=bool))
    order = np.lexsort((is_point if side == "right" else ~is_point, both[:, 1], both[:, 0]))
    passed = np.cumsum(~is_point[order])
    found = np.empty(len(points), dtype=np.int64)
    found[order[is_point[order]] - len(edges)] = passed[is_point[order]]
    return found


# -- blocks that outlive the next step (spec 6.2) ---------------------------------------------------------------


def _kept(profile: MemoryProfile, clock: _Clock, pools: Sequence[str]) -> pd.DataFrame:
    blocks = profile.blocks
    chosen = (blocks["source"] == clock.source) & (blocks["device"] == clock.device) & blocks["pool"].isin(pools)
    promoted = (blocks["flags"].to_numpy(np.uint16) & np.uint16(BlockFlag.PROMOTED)) != 0
    part = blocks[chosen.to_numpy() & blocks["alloc_ns"].notna().to_numpy() & ~promoted]
    began = np.stack([to_int64(part["alloc_ns"]), to_int64(part["event_id"])], axis=1)
    freed = to_int64(part["free_ns"], na=_NEVER)
    ended = np.stack([freed, to_int64(part["free_event_id"], na=_NEVER)], axis=1)
    at = _place(clock.start, began, side="right")
    step = np.where(at > 0, clock.start_step[np.maximum(at - 1, 0)], 0)
    reached = np.maximum.accumulate(clock.end_step) if len(clock.end_step) else clock.end_step
    check = np.searchsorted(reached, step + 1, side="left")  # the first end of a later step
    later = np.maximum(check, _place(clock.end, began, side="right"))
    kept = (step > 1) & (later < len(clock.end)) & (_place(clock.end, ended, side="left") > later)
    found = part[kept].assign(
        pid=clock.pid,
        step=step[kept],
        kernel_index=_kernels_before(profile, clock.source, began[kept]),
        freed=pd.Categorical(np.where(freed[kept] == _NEVER, "never", "late"), ["never", "late"]),
    )
    # The tool keys what it found by address, pool and step: of equal ones the last counts.
    found = found.sort_values(["step", "event_id"], kind="stable").drop_duplicates(
        ["addr", "pool", "step"], keep="last"
    )
    return found[list(LEAK_COLUMNS)]


def _kernels_before(profile: MemoryProfile, source: int, began: Int64Array) -> Int64Array:
    """Number of KERNEL_LAUNCH events of the process before each allocation."""
    events = profile.events
    chosen = (events["source"] == source) & (events["event"] == "KERNEL_LAUNCH") & (events["type"] == "KERNEL_LAUNCH")
    edges = events.loc[chosen, ["t_ns", "event_id"]].sort_values(["t_ns", "event_id"]).to_numpy(np.int64)
    return _place(edges, began, side="left")


# -- movement within a step (spec 6.3) --------------------------------------------------------------------------

_MOVED = ("source", "pid", "device", "pool", "kind", "ratio", "min_bytes", "max_bytes", "step")


def _fluctuation(profile: MemoryProfile, clock: _Clock, pools: Sequence[str], *, exact: bool) -> list[dict[str, Any]]:
    """Smallest and largest min/max of the pool's counter over the steps; what precedes step 2 does not count."""
    events = profile.events
    chosen = (
        (events["source"] == clock.source)
        & (events["device"] == _raw(clock.device))
        & events["event"].isin(("MALLOC", "FREE"))
        & events["used_bytes"].notna()
    )
    second = np.flatnonzero(clock.start_step >= 2)
    rows = events[chosen]
    if not len(rows) or not len(second) or not len(clock.end):
        return []
    if exact:  # the counter of a workspace is not that of the pool under whose name it is written
        rows = rows[~rows["owner"].astype(object).fillna("").astype(str).str.startswith("PTA_WORKSPACE").to_numpy()]
    rows = rows.sort_values(["t_ns", "event_id"], kind="stable")
    point = rows[["t_ns", "event_id"]].to_numpy(np.int64)
    counted = _place(clock.start[second[:1]], point, side="right") > 0
    interval = _place(clock.end, point, side="right")
    found: list[dict[str, Any]] = []
    for pool in pools:
        mine = counted & (rows["type"] == pool).to_numpy() & (interval < len(clock.end))
        used = rows["used_bytes"].to_numpy(np.int64)[mine]
        spans = pd.DataFrame({"at": interval[mine], "used": used}).groupby("at")["used"].agg(["min", "max"])
        spans["step"] = clock.end_step[spans.index.to_numpy()]
        spans = spans[(spans["step"] >= 2) & (spans["max"] > 0)]
        if len(spans):
            key = {"source": clock.source, "pid": clock.pid, "device": clock.device, "pool": pool}
            found += [key | one for one in _extremes(spans, exact=exact)]
    return found


def _extremes(spans: pd.DataFrame, *, exact: bool) -> list[dict[str, Any]]:
    ratio = (spans["min"] / spans["max"]).to_numpy()
    low = high = 0
    for i in range(1, len(ratio)):
        # The tool takes 0 for "no value yet", so that a ratio of 0 is replaced by the next one.
        if ratio[i] < ratio[low] or (not exact and ratio[low] == 0):
            low = i
        if ratio[i] > ratio[high]:
            high = i
    return [
        {
            "kind": kind,
            "ratio": float(ratio[i]),
            "min_bytes": int(spans["min"].iloc[i]),
            "max_bytes": int(spans["max"].iloc[i]),
            "step": int(spans["step"].iloc[i]),
        }
        for kind, i in (("MinGap", low), ("MaxGap", high))
    ]


def _printed(clock: _Clock, leaks: pd.DataFrame, moved: list[dict[str, Any]]) -> list[str]:
    """Write the tool's lines; the layout of the table of gaps is approximate (spec 6.3 does not fix it)."""
    device, lines = _raw(clock.device), []
    if len(leaks):
        lines.append(f"====== ERROR: Detected memory leaks on device {device} ======")
        lines += [
            f"Direct {_TITLES.get(row.pool, row.pool)} leak of {row.size_bytes / MIB:.6f} Mb(s) at {row.addr:#x} in "
            f"kernel_{row.kernel_index} at step {row.step}."
            for row in leaks.itertuples()
        ]
        total = leaks["size_bytes"].sum() / MIB
        lines.append(f"====== SUMMARY: {total:g} Mb(s) leaked in {len(leaks)} allocation(s) ======")
    for first in moved[::2]:
        lines.append(f"======= {_TITLES.get(first['pool'], first['pool'])} Gap Analysis of Device {device} =======")
        lines.append("MinAlloc/MaxAlloc(%)  MinAllocMem(MB)  StepId")
        lines += [
            f"{one['kind']} {one['ratio'] * 100:.4f} {one['min_bytes'] / MIB:.4f} {one['step']}"
            for one in moved
            if one["pool"] == first["pool"]
        ]
    return lines


# -- drift over steps -------------------------------------------------------------------------------------------

_STEP_COLUMNS = ("source", "pid", "device", "pool", "step", "start_ns", "end_ns", "complete", "start_bytes",
                 "floor_bytes", "peak_bytes", "end_bytes")  # fmt: skip


def _levels(profile: MemoryProfile, steps: pd.DataFrame, pools: Sequence[str]) -> pd.DataFrame:
    """Levels of each pool in each step of its device."""
    pids = profile.sources.set_index("source")["pid"]
    parts = []
    for one in iter_series(profile):
        mine = steps[(steps["source"] == one.source) & ((steps["device"] == one.device) | steps["device"].isna())]
        if one.pool not in pools or not len(mine):
            continue
        mine = mine.sort_values("start_ns")
        start, end = mine["start_ns"].to_numpy(np.int64), mine["end_ns"].to_numpy(np.int64)
        inside = interval_levels(one, start, end).reset_index(drop=True)
        frame = pd.DataFrame(
            {
                "source": one.source, "pid": pids[one.source], "device": one.device, "pool": one.pool,
                "step": to_int64(mine["step"]), "start_ns": start, "end_ns": end,
                "complete": mine["end_event_id"].notna().to_numpy(),
                "start_bytes": interval_levels(one, start, start)["end_bytes"].to_numpy(),
            }
        )  # fmt: skip
        parts.append(frame.join(inside))
    levels = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(_STEP_COLUMNS))
    numbers = ("start_bytes", "floor_bytes", "peak_bytes", "end_bytes")
    return levels[list(_STEP_COLUMNS)].astype(dict.fromkeys(numbers, "Int64"))


_GROWTH_COLUMNS = ("source", "pid", "device", "pool", "n_steps", "floor_drift_bytes", "peak_drift_bytes",
                   "end_drift_bytes", "n_rises", "verdict", "reason")  # fmt: skip


def _growth(levels: pd.DataFrame) -> pd.DataFrame:
    """Judge by the floors of complete steps after the first: peaks follow the input, floors only what is kept."""
    rows = []
    for key, part in levels.groupby(["source", "pid", "device", "pool"], sort=False, dropna=False):
        part = part[part["complete"].astype(bool) & (part["step"] > 1) & part["floor_bytes"].notna()]
        drift = {
            f"{name}_drift_bytes": int(part[f"{name}_bytes"].iloc[-1] - part[f"{name}_bytes"].iloc[0])
            if len(part)
            else pd.NA
            for name in ("floor", "peak", "end")
        }
        change = np.diff(part["floor_bytes"].to_numpy(np.int64))
        rows.append(
            dict(zip(("source", "pid", "device", "pool"), key, strict=True))
            | {"n_steps": len(part), "n_rises": int((change > 0).sum())}
            | drift
            | _verdict(change, len(part))
        )
    return pd.DataFrame(rows, columns=list(_GROWTH_COLUMNS))


def _verdict(change: npt.NDArray[np.int64], n_steps: int) -> dict[str, str]:
    if n_steps < MIN_STEPS:
        reason = f"{n_steps} complete steps after the first, needed are {MIN_STEPS}: {_HOW}"
        return {"verdict": "undecided", "reason": reason}
    total = int(change.sum())
    if (change >= 0).all() and (change > 0).sum() >= MIN_STEPS - 1:
        return {"verdict": "growing", "reason": f"the lowest level of a step never fell and rose {format_bytes(total)}"}
    if total <= 0:
        return {"verdict": "steady", "reason": "the lowest level of the last step is not above that of the second"}
    reason = f"the lowest level rose {format_bytes(total)} in all, but not step by step: record more steps"
    return {"verdict": "undecided", "reason": reason}


def _caveats(frame: pd.DataFrame, growth: pd.DataFrame) -> tuple[str, ...]:
    notes = []
    if len(frame) and (frame["freed"] == "late").any():
        notes.append("late ones outlived the next step and were released then: caches, saved results, not lost memory")
    if (growth["verdict"] == "undecided").any():
        notes.append("blocks kept over one step are no proof of a leak: see growth for the floors over steps")
    if len(frame) and not (frame["kernel_index"] > 0).any():
        notes.append("kernel_index is 0 without kernel launches: record with level='kernel'")
    return tuple(notes)
