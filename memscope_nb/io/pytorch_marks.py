"""Marks of a snapshot: annotated ranges and steps, failed allocations, changes of segments (spec/pytorch)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import Int64Array
from ..units import format_bytes
from .pytorch_lives import SEGMENT_SIGNS
from .pytorch_rows import ACTIONS, Numbers, Rows
from .report import ReadReport
from .trace_sink import STEP_NAME

_POINTS = {"oom": "oom", "snapshot": "snapshot", **dict.fromkeys(SEGMENT_SIGNS, "segment")}
_TEXT_STEP = re.compile(r"\s+")


def entry_marks(
    rows: Rows, numbers: Numbers, columns: dict[str, npt.NDArray[Any]], times: Int64Array
) -> Iterator[dict[str, Any]]:
    """Yield a mark for every entry that is no life of a block.

    Parameters
    ----------
    rows : Rows
        Of the file.
    numbers : range or int64 array
        Entries of the device.
    columns : dict of array
        Their columns.
    times : int64 array
        Their times.
    """
    action = columns["action"]
    wanted, pools = [ACTIONS.index(name) for name in _POINTS], list(rows.pools)
    for at in np.flatnonzero(np.isin(action, wanted)).tolist():
        name, size = ACTIONS[int(action[at])], int(columns["size"][at])
        attrs: dict[str, Any] = {"size_bytes": size, "event_id": at}
        text = name
        if name == "oom":
            attrs["device_free_bytes"] = rows.device_free.get(int(numbers[at]))
            attrs["stream"] = rows.oom_streams.get(int(numbers[at]))
            text = f"out of memory: {format_bytes(size)} asked for"
        elif name in SEGMENT_SIGNS:
            attrs |= {"addr": int(columns["addr"][at]), "stream": int(columns["stream"][at])}
        if name != "snapshot" and columns["pool"][at] >= 0:
            attrs["pool_id"] = pools[int(columns["pool"][at])]
        t = int(times[at])
        yield _mark(_POINTS[name], text, t, t, attrs, stack=int(columns["stack"][at]))


def annotation_marks(
    edges: Any, device: int, window: tuple[int, int] | None, report: ReadReport
) -> Iterator[dict[str, Any]]:
    """Pair the edges of annotated ranges by name with a stack, because ranges nest (spec 1.5).

    Parameters
    ----------
    edges : list of dict
        ``external_annotations``.
    device : int
        Only those of this device.
    window : (int, int), optional
        Of the history; ``None`` if its entries have no times, so that nothing can be placed on their axis.
    report : ReadReport
        Receives edges without a partner.
    """
    mine = [edge for edge in edges if type(edge) is dict and edge.get("device", device) == device]
    usable = [edge for edge in mine if type(edge.get("time_us")) is int and 0 < edge["time_us"] < 1 << 53]
    if len(usable) < len(mine):
        report.skip("annotations without a time", len(mine) - len(usable))
    if window is None:
        if usable:
            report.note("annotations left out: the history has no times to place them by", len(usable))
        return
    open_edges: dict[str, list[int]] = {}
    n_alone = 0
    for edge in sorted(usable, key=lambda e: int(e["time_us"])):
        text = edge.get("name")
        name, t = _TEXT_STEP.sub(" ", text) if type(text) is str else "", edge["time_us"] * 1000
        if edge.get("stage") == "START":
            open_edges.setdefault(name, []).append(t)
        elif open_edges.get(name):
            yield _range(name, open_edges[name].pop(), t, {})
        else:
            n_alone += 1
    for name, starts in open_edges.items():
        for t in starts:
            yield _range(name, t, max(t, window[1]), {"open": True})
    if n_alone:
        report.note("ends of annotations whose start is not there", n_alone)


def _range(name: str, start: int, end: int, attrs: dict[str, Any]) -> dict[str, Any]:
    match = STEP_NAME.fullmatch(name)
    return _mark("step" if match else "range", name, start, end, attrs, step=int(match[1]) if match else None)


def _mark(
    kind: str, name: str, start: int, end: int, attrs: dict[str, Any], *, step: int | None = None, stack: int = -1
) -> dict[str, Any]:
    return {
        "kind": kind, "name": name, "step": step, "start_ns": start, "end_ns": end, "stack_id": stack, "attrs": attrs,
    }  # fmt: skip


def marks_frame(found: Iterable[dict[str, Any]], device: str) -> pd.DataFrame:
    """Return the ``marks`` table of one source, by time; the outer one of two that start together comes first."""
    marks = sorted(found, key=lambda mark: (mark["start_ns"], -mark["end_ns"]))

    def column(name: str) -> list[Any]:
        return [mark[name] for mark in marks]

    return pd.DataFrame(
        {
            "kind": pd.Categorical(column("kind")),
            "name": pd.Series(column("name"), dtype=object),
            "step": pd.array(column("step"), dtype="Int64"),
            "tid": pd.array([pd.NA] * len(marks), dtype="Int64"),
            "device": pd.Categorical([device] * len(marks), [device]),
            "start_ns": np.array(column("start_ns"), dtype=np.int64),
            "end_ns": np.array(column("end_ns"), dtype=np.int64),
            "stack_id": np.array(column("stack_id"), dtype=np.int32),
            "attrs": pd.Series(column("attrs"), dtype=object),
        }
    )
