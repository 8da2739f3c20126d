"""What operators and kernels of one recording change in memory (spec/msmemscope 7.6).

A byte counts where it happens: an allocation or release belongs to the operators that surround it in its own thread,
on its device. Rows that stand for something unseen (promoted blocks, releases while nobody looked) belong to none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import MissingFactError
from ..model import NA_NS, BlockFlag, MemoryProfile, to_int64
from .align_nesting import NONE, Nesting, event_places

Int64Array = npt.NDArray[np.int64]
POOLS = ("PTA", "PTA_WORKSPACE", "ATB", "MINDSPORE")
MEASURES = ("bytes", "gross_bytes", "peak_bytes", "own_bytes", "own_gross_bytes")
_HOW = {
    "op": "no operator rows: record with msmemscope.config(events='alloc,free,launch', level='op')",
    "kernel": "no kernel launches: record with msmemscope.config(events='alloc,free,launch', level='kernel')",
}


@dataclass(frozen=True)
class Side:
    """Elements of one recording and its allocations.

    ``elements``: ``source tid device event name parent step stack_id event_id depth`` and :data:`MEASURES`; the event
    is the launch of a kernel, the start of an operator.
    ``allocations``: ``device event name stack_id size_bytes``; the name of what surrounds it, empty for nothing.
    """

    elements: pd.DataFrame
    allocations: pd.DataFrame


def measured(profile: MemoryProfile, levels: tuple[str, ...], pools: tuple[str, ...]) -> Side:
    """Measure every element of the levels.

    Raises
    ------
    MissingFactError
        If the recording has none.
    """
    changes = _changes(profile, pools)
    parts = []
    for level in levels:
        elements = _operators(profile) if level == "op" else _launches(profile)
        if not len(elements):
            raise MissingFactError(f"{profile.sources['path'].iloc[0]}: {_HOW[level]}")
        parts.append(_level(elements, changes, by_thread=level == "op"))
    frame = pd.concat([part.elements for part in parts], ignore_index=True)
    frame["step"] = _steps(profile, frame)
    return Side(frame, pd.concat([part.allocations for part in parts], ignore_index=True))


def _changes(profile: MemoryProfile, pools: tuple[str, ...]) -> pd.DataFrame:
    """Allocations and releases of the pools: ``source tid device at delta stack_id``."""
    blocks = profile.blocks[profile.blocks["pool"].isin(pools)]
    flags = blocks["flags"].to_numpy(np.uint16)
    born, freed = to_int64(blocks["event_id"]), to_int64(blocks["free_event_id"])
    size = blocks["size_bytes"].to_numpy(np.int64)
    source = blocks["source"].to_numpy(np.int64)
    seen = np.flatnonzero((born != NA_NS) & (flags & np.uint16(BlockFlag.PROMOTED) == 0))
    gone = np.flatnonzero((freed != NA_NS) & (flags & np.uint16(BlockFlag.SYNTHETIC_FREE) == 0))
    frees = profile.events.loc[profile.events["event"] == "FREE", ["source", "event_id", "tid"]]
    place = event_places(
        frees["source"].to_numpy(np.int64), frees["event_id"].to_numpy(np.int64), source[gone], freed[gone]
    )
    free_tid = np.append(to_int64(frees["tid"], na=NONE), NONE)[place]
    rows = np.concatenate([seen, gone])
    return pd.DataFrame(
        {
            "source": source[rows],
            "tid": np.concatenate([to_int64(blocks["tid"], na=NONE)[seen], free_tid]),
            "device": blocks["device"].astype(object).to_numpy()[rows],
            "at": np.concatenate([born[seen], freed[gone]]),
            "delta": np.concatenate([size[seen], -size[gone]]),
            "stack_id": blocks["stack_id"].to_numpy(np.int64)[rows],
        }
    )


def devices_of_ops(profile: MemoryProfile, source: Int64Array, event_id: Int64Array) -> npt.NDArray[np.object_]:
    """Device of operators, in the words of other tables: that of their START row."""
    events = profile.events
    rows = events.loc[events["event"] == "OP_LAUNCH", ["source", "event_id", "device"]]
    place = event_places(rows["source"].to_numpy(np.int64), rows["event_id"].to_numpy(np.int64), source, event_id)
    names = [_device_name(str(name)) for name in rows["device"].cat.categories]
    codes = np.append(rows["device"].cat.codes.to_numpy(), NONE)[place]
    return np.array([*names, ""], dtype=object)[codes]


def _device_name(text: str) -> str:
    return f"NPU:{text}" if text.isdecimal() else text.upper()


def _operators(profile: MemoryProfile) -> pd.DataFrame:
    ops = profile.ops
    if "start_event_id" not in ops or "kind" not in ops:
        return pd.DataFrame()
    ops = ops[ops["kind"].isin(("aten", "atb")) & ops["start_event_id"].notna()]
    source, start = ops["source"].to_numpy(np.int64), to_int64(ops["start_event_id"])
    return pd.DataFrame(
        {
            "source": source,
            "tid": ops["tid"].to_numpy(np.int64),
            "device": devices_of_ops(profile, source, start),
            "event": "OP_LAUNCH",
            "name": ops["name"].astype(object).to_numpy(),
            "stack_id": ops["stack_id"].to_numpy(np.int64),
            "event_id": start,
            "start": start,
            "end": to_int64(ops["end_event_id"]),
        }
    )


def _launches(profile: MemoryProfile) -> pd.DataFrame:
    """Kernel launches; each spans from the launch before it on its device, in any thread of the process."""
    events = profile.events
    rows = events.loc[events["type"] == "KERNEL_LAUNCH", ["source", "tid", "device", "name", "stack_id", "event_id"]]
    rows = rows.sort_values(["source", "device", "event_id"], kind="stable", ignore_index=True)
    event_id, source = rows["event_id"].to_numpy(np.int64), rows["source"].to_numpy(np.int64)
    device = rows["device"].cat.codes.to_numpy()
    if not len(rows):
        return pd.DataFrame()
    same = np.append(False, (source[1:] == source[:-1]) & (device[1:] == device[:-1]))
    names = np.array([_device_name(str(name)) for name in rows["device"].cat.categories] + [""], dtype=object)
    return pd.DataFrame(
        {
            "source": source,
            "tid": to_int64(rows["tid"], na=NONE),
            "device": names[device],
            "event": "KERNEL_LAUNCH",
            "name": rows["name"].astype(object).to_numpy(),
            "stack_id": rows["stack_id"].to_numpy(np.int64),
            "event_id": event_id,
            "start": np.where(same, np.roll(event_id, 1), -1),
            "end": event_id,
        }
    )


def _level(elements: pd.DataFrame, changes: pd.DataFrame, *, by_thread: bool) -> Side:
    keys = ["source", "device", *(["tid"] if by_thread else [])]
    both = pd.concat([elements[keys], changes[keys]], ignore_index=True)
    group = both.groupby(keys, sort=False, dropna=False).ngroup().to_numpy(np.int64)
    n = len(elements)
    delta = changes["delta"].to_numpy(np.int64)
    taken = np.maximum(delta, 0)
    nest = Nesting(
        group[:n], elements["start"].to_numpy(np.int64), elements["end"].to_numpy(np.int64),
        group[n:], changes["at"].to_numpy(np.int64),
    )  # fmt: skip
    inner = nest.inner
    own, own_gross = np.zeros(n + 1, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    np.add.at(own, inner, delta)
    np.add.at(own_gross, inner, taken)
    names = np.append(elements["name"].to_numpy(dtype=object), "")
    frame = elements.drop(columns=["start", "end"]).assign(
        bytes=nest.sums(delta),
        gross_bytes=nest.sums(taken),
        peak_bytes=nest.peaks(delta),
        own_bytes=own[:n],
        own_gross_bytes=own_gross[:n],
        depth=nest.depth if by_thread else 1,
        parent=names[nest.parent] if by_thread else "",
    )
    allocated = np.flatnonzero(delta > 0)
    rows = changes.iloc[allocated]
    allocations = pd.DataFrame(
        {
            "device": rows["device"].to_numpy(),
            "event": elements["event"].iloc[0],
            "name": names[inner[allocated]],
            "stack_id": rows["stack_id"].to_numpy(),
            "size_bytes": delta[allocated],
        }
    )
    return Side(frame, allocations)


def _steps(profile: MemoryProfile, elements: pd.DataFrame) -> Int64Array:
    """Step of each element: the last one to begin before it in its process, 0 for none (spec/msmemscope 6.1)."""
    step = np.zeros(len(elements), dtype=np.int64)
    marks = profile.marks
    if "start_event_id" not in marks:
        return step
    marks = marks[(marks["kind"] == "step") & marks["step"].notna() & marks["start_event_id"].notna()]
    source, at = elements["source"].to_numpy(), elements["event_id"].to_numpy(np.int64)
    for number, own in marks.sort_values("start_event_id").groupby("source"):
        mine = np.flatnonzero(source == number)
        place = np.searchsorted(to_int64(own["start_event_id"]), at[mine], side="right")
        step[mine] = np.append(0, to_int64(own["step"]))[place]
    return step
