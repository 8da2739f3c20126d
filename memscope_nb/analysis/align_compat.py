"""The original tool's comparison, faults included (spec/msmemscope 7.1-7.5): what it would write and print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ..model import MemoryProfile, to_int64
from .align_script import ABSENT, Int64Array, edit_script

FAILED = "[msmemscope] ERROR: Memory comparison failed!"
TYPES = {"op": ("ATEN_END", "ATB_END"), "kernel": ("KERNEL_LAUNCH",)}
_FRAMEWORKS = ("PTA", "MINDSPORE")
_GUARDED = tuple("=+-@")
Rows = list[tuple[str, str, str, int | None, int | None]]


@dataclass(frozen=True)
class _Sequence:
    """Elements of one device, and the change that each is shown with."""

    name: list[str]
    event: list[str]
    size: Int64Array


def replay(base: MemoryProfile, compare: MemoryProfile, levels: tuple[str, ...]) -> tuple[Rows, list[str], bool]:
    """Compare as the original tool does.

    Returns
    -------
    rows : list
        Device, event, name, base bytes, compare bytes; ``None`` for ``N/A``. Devices come last first, as from the
        hash table of the runs that we know; the tool promises no order.
    messages : list of str
        What it prints.
    is_shortest : bool
        False where the original would have run out of its minute.
    """
    messages = [text for profile in (base, compare) for text in _unreadable(profile)]
    if messages:
        return [], [*messages, FAILED], True
    sides = [_by_time(profile) for profile in (base, compare)]
    framework, problem = _framework(sides, levels)
    if problem:
        return [], [problem, FAILED], True
    wanted = [name for level in levels for name in TYPES[level]]
    parts: list[Rows] = []
    is_shortest = True
    for device in _devices(sides):
        one, two = (_sequence(side[side["device"] == device], wanted, framework) for side in sides)
        if not one.name and not two.name:
            messages.append(f"Device {device} has empty kernelLaunch/op data!")
            continue
        found, exact = _matched(device, one, two)
        parts.append(found)
        is_shortest &= exact
    rows = [row for part in reversed(parts) for row in part]
    if not rows:
        messages += ["Empty comparison result data!", FAILED]
    return rows, messages, is_shortest


def _unreadable(profile: MemoryProfile) -> list[str]:
    """Its reader goes by lines: a stack, which has several, makes a CSV file unreadable."""
    texts = []
    events = profile.events
    stacked = events[(events["stack_id"] >= 0) | (events["c_stack_id"] >= 0)]
    if not len(stacked):
        return []
    files = profile.sources.set_index("source")["facts"]
    lines: dict[str, int] = {}
    for source, file, row in stacked.groupby(["source", "file"])["row"].min().reset_index().itertuples(index=False):
        path = files[source]["files"][file]
        lines[path] = min(int(row), lines.get(path, int(row)))
    for path, line in lines.items():
        if Path(path).suffix != ".db":
            texts.append(f"The file {path} on line {line} is invalid!")
    return texts


def _by_time(profile: MemoryProfile) -> pd.DataFrame:
    """Rows of all processes whose device is a number, by time; equal times in the order of the file."""
    events = profile.events
    names = events["device"].cat.categories
    numeric = [name for name in names if str(name).isdecimal()]
    columns = ["source", "file", "row", "event", "type", "name", "t_ns", "device", "size_bytes"]
    part = events.loc[events["device"].isin(numeric), columns]
    order = np.lexsort([part[name].to_numpy() for name in ("row", "file", "t_ns")])
    return part.iloc[order]


def _devices(sides: list[pd.DataFrame]) -> list[str]:
    """Devices in the order in which the files name them, base first."""
    first = [side.sort_values(["file", "row"], kind="stable")["device"].astype(str).drop_duplicates() for side in sides]
    return list(dict.fromkeys(text for names in first for text in names))


def _framework(sides: list[pd.DataFrame], levels: tuple[str, ...]) -> tuple[str, str]:
    """The allocator whose rows count, and what stops the tool."""
    found: list[str] = []
    for side in sides:
        there = side[side["type"].isin(_FRAMEWORKS)].sort_values(["file", "row"], kind="stable")
        found += there["type"].astype(str).drop_duplicates().tolist()
    if len(set(found)) > 1:
        return "", "both PTA and MINDSPORE rows: the original tool compares data of one framework only"
    if "MINDSPORE" in found and "op" in levels:
        return "", "MINDSPORE data: the original tool compares them at level kernel only"
    return (found[0] if found else ""), ""


def _sequence(rows: pd.DataFrame, wanted: list[str], framework: str) -> _Sequence:
    """Elements of a device; each shows the size in the first row of the framework at or after it."""
    at = np.flatnonzero(rows["type"].isin(wanted).to_numpy())
    name = rows["name"].astype(str).to_numpy()[at].tolist()
    if any(text.startswith(_GUARDED) for text in name):
        return _Sequence([], [], np.empty(0, dtype=np.int64))
    pool = np.flatnonzero((rows["type"] == framework).to_numpy()) if framework else np.empty(0, dtype=np.int64)
    sizes = np.append(to_int64(rows["size_bytes"], na=0)[pool], 0)
    return _Sequence(name, rows["event"].astype(str).to_numpy()[at].tolist(), sizes[np.searchsorted(pool, at)])


def _matched(device: str, one: _Sequence, two: _Sequence) -> tuple[Rows, bool]:
    codes = pd.factorize(np.array([*one.name, *two.name], dtype=object))[0].astype(np.int32)
    script = edit_script(codes[: len(one.name)], codes[len(one.name) :])
    rows: Rows = []
    for i, j in zip(script.base.tolist(), script.compare.tolist(), strict=True):
        shown, at = (two, j) if j != ABSENT else (one, i)
        if not shown.name[at]:  # an empty name stands for "not there" inside the tool
            rows.append((device, "", "", None, None))
            continue
        sizes = (int(one.size[i]) if i != ABSENT else None, int(two.size[j]) if j != ABSENT else None)
        rows.append((device, shown.event[at], shown.name[at], *sizes))
    return rows, script.is_shortest
