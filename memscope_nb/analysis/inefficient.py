"""Blocks that hold memory while nobody uses it: allocated early, released late, idle in between."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, BlockFlag, MemoryProfile, as_profile, block_starts, from_int64
from ..units import NS_PER_S, format_bytes
from .facts import missing_fact
from .inefficient_api import EARLY, IDLE, LABELS, LATE, replay
from .inefficient_lives import Int64Array, Lives, Stretches, build_lives, life_ends, stretches_by_api, stretches_by_time
from .inefficient_waste import Idle, Levels
from .result import Result, records

Limits = int | Mapping[str, int] | None
KEY_COLUMNS = ("pid", "event_id", "size_bytes", "labels", "wasted_byte_s", "peak_gain_bytes")
_MORE = ("device", "pool", "allocation_id", "owner", "name", "stack_id", "source", "block_id", "alloc_ns", "free_ns")
_NS = {EARLY: "early_ns", LATE: "late_ns", IDLE: "idle_ns"}
_HOW = (
    "{} needs to know which operator used which block: record with "
    "msmemscope.config(events='alloc,free,launch,access', level='op')"
)


@dataclass(frozen=True, repr=False)
class Inefficiency(Result):
    """Blocks with idle memory, the one with the greatest effect on a peak first, then by bytes times seconds.

    Attributes
    ----------
    frame : pandas.DataFrame
        ``pid event_id size_bytes labels wasted_byte_s peak_gain_bytes`` and more. ``labels`` is a list in the order
        in which they show; ``peak_gain_bytes`` is how far the peak of its pool would fall if this block alone were
        not there in its idle time.
    by_stack : pandas.DataFrame
        Sums by call stack, operator and owner, largest waste first.
    peaks : pandas.DataFrame
        One row per process, device and pool: the peak as it is and with all idle time taken away.
    compat : "msmemscope" or None
        Whether the labels are the original tool's.
    """

    by_stack: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    peaks: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    compat: Literal["msmemscope"] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return super().to_dict() | {"by_stack": records(self.by_stack), "peaks": records(self.peaks)}

    def _repr_html_(self) -> str:
        tables = (self.peaks, self.by_stack.head(20))
        head = "".join(table.to_html(escape=True, border=0, na_rep="", index=False) for table in tables)
        return head + Result(self.frame.head(1000), self.caveats)._repr_html_()


def find_inefficient(
    p: MemoryProfile | str | os.PathLike[str],
    *,
    mem_size: int = 0,
    inefficient_type: str | Sequence[str] | None = None,
    idle_threshold: int = 3000,
    unit: Literal["api", "ns"] = "api",
    wall_ns: Limits = None,
    wall_percent: Limits = None,
    compat: Literal["msmemscope"] | None = None,
) -> Inefficiency:
    """Find blocks that hold memory while nobody uses it.

    Parameters
    ----------
    p : MemoryProfile or path
        A msMemScope dump with accesses.
    mem_size : int
        Leave out smaller blocks (bytes).
    inefficient_type : str or list of str, optional
        ``early_allocation``: between the operator that allocated a block and the first other one that used it,
        something in its pool was released, so that it could have been allocated afterwards.
        ``late_deallocation``: between the last use and the release something was allocated.
        ``temporary_idleness``: two uses lie more than ``idle_threshold`` apart. All three if not given.
    idle_threshold : int
        In ``unit``.
    unit : "api" or "ns"
        ``api`` counts operators on the device that no other one surrounds, and rows outside of any.
    wall_ns, wall_percent : int or mapping of label to int, optional
        Judge by time instead, as MindStudio Insight does: a label holds where its time (from the allocation to the
        first access, from the last one to the release, the longest between two) is more than so many ns or than so
        many percent (1 to 99) of the block's life.
    compat : "msmemscope", optional
        Exactly the labels of the original tool: threads and devices of a process in one count. Costs are NA.

    Returns
    -------
    Inefficiency

    Raises
    ------
    ValueError
        For parameters out of range, in the original's words.
    MissingFactError
        If the recording has no accesses or no operators (with ``compat``: nothing is found, as there).

    Notes
    -----
    A use is an access in another operator than the allocating one: that one touches its result even where it only
    reserves memory. A block without such an access gets no label for being early or late.
    """
    wanted = _checked(mem_size, inefficient_type, idle_threshold, unit, compat)
    limits = _limits(wall_ns, wall_percent)
    if compat and (limits or unit != "api"):
        raise ValueError("compat='msmemscope' counts APIs: leave unit, wall_ns and wall_percent alone")
    profile = as_profile(p)
    if compat and len(profile.events):
        return _reference(profile, mem_size, wanted, idle_threshold)
    if not len(profile.accesses) or "start_event_id" not in profile.ops:
        raise missing_fact(profile, "find_inefficient", _HOW.format("find_inefficient"))
    lives = build_lives(profile)
    if limits:
        found = stretches_by_time(lives, profile, _judge(*limits))
    else:
        found = stretches_by_api(lives, idle_threshold, unit)
    found = [_large(part, lives, mem_size) for part in found if part.label in wanted]
    return _result(profile, lives, found)


# -- parameters -------------------------------------------------------------------------------------------------


def _checked(mem_size: int, types: Any, threshold: int, unit: str, compat: str | None) -> tuple[str, ...]:
    if compat not in (None, "msmemscope"):
        raise ValueError(f"compat must be None or 'msmemscope', not {compat!r}")
    if unit not in ("api", "ns"):
        raise ValueError(f"unit must be 'api' or 'ns', not {unit!r}")
    if not _is_int(mem_size) or mem_size < 0:
        raise ValueError("Memory size must be a non-negative integer")
    if not _is_int(threshold) or threshold <= 0:
        raise ValueError("Idle threshold must be a positive integer")
    if types is None:
        return LABELS
    chosen = (types,) if isinstance(types, str) else tuple(types) if isinstance(types, (list, tuple, set)) else ()
    if not chosen:
        raise ValueError("Inefficient type must be a non-empty list or a single valid string")
    for name in chosen:
        if name not in LABELS:
            raise ValueError(f"Invalid inefficient type: {name}, valid values are {list(LABELS)}")
    return chosen


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _limits(wall_ns: Limits, wall_percent: Limits) -> tuple[dict[str, int], dict[str, int]] | None:
    found = []
    for name, limits, most in (("wall_ns", wall_ns, None), ("wall_percent", wall_percent, 99)):
        table = dict(limits) if isinstance(limits, Mapping) else {} if limits is None else dict.fromkeys(LABELS, limits)
        least = 0 if most is None else 1
        for label, limit in table.items():
            if label not in LABELS:
                raise ValueError(f"{name}: {label!r} is no label; there are {', '.join(LABELS)}")
            if not _is_int(limit) or limit < least or (most is not None and limit > most):
                raise ValueError(f"{name} must be whole numbers from {least}{f' to {most}' if most else ''}")
        found.append(table)
    return (found[0], found[1]) if found[0] or found[1] else None


def _judge(longest: dict[str, int], percent: dict[str, int]) -> Any:
    def judge(label: str, _: Int64Array, length: Int64Array, life: Int64Array) -> npt.NDArray[np.bool_]:
        good = np.zeros(len(length), dtype=bool)
        if label in longest:
            good |= length > longest[label]
        if label in percent:  # in parts, since a hundred times a life may not fit
            good |= length > life // 100 * percent[label] + life % 100 * percent[label] // 100
        return good

    return judge


# -- results ----------------------------------------------------------------------------------------------------


def _large(part: Stretches, lives: Lives, mem_size: int) -> Stretches:
    keep = lives.blocks["size_bytes"].to_numpy(np.int64)[part.block] >= mem_size
    columns = (part.start_ns, part.end_ns, part.event_id, part.n_apis)
    return Stretches(part.block[keep], part.label, *(values[keep] for values in columns))


def _result(profile: MemoryProfile, lives: Lives, found: list[Stretches]) -> Inefficiency:
    block = np.concatenate([np.empty(0, np.int64), *(part.block for part in found)])
    labels = _labels(found)
    chosen = np.array(sorted(labels), dtype=np.int64)
    frame = lives.blocks.iloc[chosen].reset_index(drop=True)
    frame["pid"] = profile.sources.set_index("source")["pid"].reindex(frame["source"]).to_numpy()
    frame["labels"] = pd.Series([labels[number] for number in chosen.tolist()], dtype=object)
    for part in found:
        length = np.zeros(len(lives.blocks), dtype=np.int64)
        np.add.at(length, part.block, np.maximum(part.end_ns - part.start_ns, 0))
        frame[_NS[part.label]] = length[chosen]
        if part.label == IDLE:
            apis = np.zeros(len(lives.blocks), dtype=np.int64)
            np.maximum.at(apis, part.block, part.n_apis)
            frame["idle_apis"] = apis[chosen]
    position = pd.Index(profile.blocks["block_id"]).get_indexer(lives.blocks["block_id"]).astype(np.int64)
    start, end = (
        np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in found)])
        for name in ("start_ns", "end_ns")
    )
    own = position[block]
    ends = life_ends(profile)
    idle = Idle.of(own, np.maximum(start, block_starts(profile)[own]), np.minimum(end, ends[own]))
    levels = Levels(profile, ends)
    _add_costs(frame, idle, levels, position[chosen])
    frame = frame.sort_values(["peak_gain_bytes", "wasted_byte_s"], ascending=False, kind="stable", ignore_index=True)
    frame["rank_by_waste"] = frame["wasted_byte_s"].rank(method="first", ascending=False).astype(np.int64)
    shown = [*KEY_COLUMNS, "rank_by_waste", *(n for n in (*_NS.values(), "idle_apis", *_MORE) if n in frame)]
    frame = frame[shown]
    return Inefficiency(frame, _caveats(profile, lives), _by_stack(profile, frame), _peaks(profile, levels, idle))


def _labels(found: list[Stretches]) -> dict[int, list[str]]:
    """Labels of each block in the order of the events that show them; at one event idleness comes first."""
    names = np.repeat(np.arange(len(found)), [len(part.block) for part in found])
    block = np.concatenate([np.empty(0, np.int64), *(part.block for part in found)])
    event = np.concatenate([np.empty(0, np.int64), *(part.event_id for part in found)])
    table: dict[int, list[str]] = {}
    for i in np.lexsort((names, event, block)).tolist():  # idleness is the first part
        own = table.setdefault(int(block[i]), [])
        if found[names[i]].label not in own:
            own.append(found[names[i]].label)
    return table


def _add_costs(frame: pd.DataFrame, idle: Idle, levels: Levels, position: Int64Array) -> None:
    time = np.zeros(len(levels.size), dtype=np.int64)
    np.add.at(time, idle.block, idle.end_ns - idle.start_ns)
    frame["wasted_byte_s"] = time[position] / NS_PER_S * frame["size_bytes"].to_numpy(np.int64)
    blocks, bytes_ = levels.gains(idle)
    gains = np.zeros(len(levels.size), dtype=np.int64)
    gains[blocks] = bytes_
    frame["peak_gain_bytes"] = gains[position]


def _by_stack(profile: MemoryProfile, frame: pd.DataFrame) -> pd.DataFrame:
    sites = np.append(profile.stacks["site"].to_numpy(dtype=object), "")
    table = frame[["name", "stack_id", "size_bytes", "wasted_byte_s", "peak_gain_bytes"]].assign(
        owner=frame["owner"].astype(object).fillna("") if "owner" in frame else "",
        site=sites[frame["stack_id"].to_numpy(np.int64)],
        labels=frame["labels"].map(",".join).astype(object),
        name=frame["name"].astype(object),
    )
    keys = ["name", "owner", "site", "stack_id", "labels"]
    grouped = table.groupby(keys, sort=False, dropna=False)
    sums = grouped.agg(
        n_blocks=("size_bytes", "size"), size_bytes=("size_bytes", "sum"), wasted_byte_s=("wasted_byte_s", "sum"),
        best_peak_gain_bytes=("peak_gain_bytes", "max"),
    )  # fmt: skip
    return sums.reset_index().sort_values("wasted_byte_s", ascending=False, kind="stable", ignore_index=True)


def _peaks(profile: MemoryProfile, levels: Levels, idle: Idle) -> pd.DataFrame:
    first = np.unique(levels.group, return_index=True)[1]
    table = levels.blocks[["source", "device", "pool"]].iloc[first].reset_index(drop=True)
    table.insert(1, "pid", profile.sources.set_index("source")["pid"].reindex(table["source"]).to_numpy())
    table["n_blocks"] = np.bincount(levels.group[np.unique(idle.block)], minlength=levels.n_groups)
    table["peak_bytes"] = levels.peaks()
    table["peak_without_idle_bytes"] = levels.peaks_without(idle)
    table["peak_gain_bytes"] = table["peak_bytes"] - table["peak_without_idle_bytes"]
    order = ["peak_gain_bytes", "peak_bytes"]
    return table[table["n_blocks"] > 0].sort_values(order, ascending=False, kind="stable", ignore_index=True)


def _caveats(profile: MemoryProfile, lives: Lives) -> tuple[str, ...]:
    notes = []
    judged = np.zeros(len(lives.blocks), dtype=bool)
    judged[lives.block_of_access] = True
    pools = set(lives.blocks["pool"].astype(str)[judged])
    silent = ~judged & lives.blocks["pool"].isin(pools).to_numpy()
    if silent.any():
        size = format_bytes(int(lives.blocks["size_bytes"].to_numpy()[silent].sum()))
        notes.append(f"{int(silent.sum())} blocks ({size}) have no recorded access: nothing is said about them")
    lost = int((profile.accesses["block_id"] < 0).sum())
    if lost:
        notes.append(f"{lost} accesses are to memory whose allocation was not recorded")
    if (lives.blocks["flags"].to_numpy(np.uint16) & np.uint16(BlockFlag.PROMOTED)).any():
        notes.append("blocks from before start() are not judged for being allocated early")
    return tuple(notes)


def _reference(profile: MemoryProfile, mem_size: int, wanted: tuple[str, ...], threshold: int) -> Inefficiency:
    """The original's labels, on its rows; blocks are looked up for the costs of what it found."""
    rows = replay(profile, mem_size, wanted, threshold)
    rows["pid"] = profile.sources.set_index("source")["pid"].reindex(rows["source"]).to_numpy()
    rows = rows.sort_values(["pid", "event_id"], kind="stable", ignore_index=True)
    frame = rows.assign(wasted_byte_s=np.nan, peak_gain_bytes=from_int64(np.full(len(rows), NA_NS)))
    caveats = ("the original tool's labels: threads and devices of a process share one count of APIs",)
    shown = [*KEY_COLUMNS, "source", "file", "row"]
    return Inefficiency(frame[shown], caveats, compat="msmemscope")
