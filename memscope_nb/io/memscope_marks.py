"""Marks of one process: steps, ranges, points, snapshots, OOMs, start and stop of tracing (spec/msmemscope 2.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .memscope_attrs import parse_attrs
from .memscope_blocks import device_name
from .memscope_events import NO_DEVICE, parse_address
from .report import ReadReport

STEP_RANGE = "step start"
_RANGE_END = re.compile(r"Range end from id ([0-9]{1,18})")
_MARK_EVENTS = ("MSTX", "SYSTEM", "SNAPSHOT", "OOM_DETAIL")


@dataclass(frozen=True)
class _Row:
    event: str
    type: str
    name: str
    t_ns: int
    event_id: int
    tid: Any
    device: str | None
    attrs: str
    stack_id: int


def build_marks(events: pd.DataFrame, window_end: int | None, report: ReadReport) -> pd.DataFrame:
    """Build the ``marks`` of one process, without ``source``.

    ``kind`` is ``step``, ``range``, ``mark``, ``snapshot``, ``oom`` or ``system`` (ACL and trace start and stop).
    Ranges and steps that never end last to the end of the window, with ``open`` in ``attrs``; of an OOM the rows that
    describe live blocks are in its ``attrs``.
    """
    chosen = events[events["event"].isin(_MARK_EVENTS)].sort_values("event_id", kind="stable")
    rows = [_row(row) for row in chosen.itertuples()]
    last = max([row.t_ns for row in rows] + ([window_end] if window_end is not None else []), default=0)
    marks = [
        *_ranges([row for row in rows if row.event == "MSTX"], last, report),
        *_python_steps([row for row in rows if row.type == "STEP"], last, report, rows),
        *_points(rows),
        *_ooms([row for row in rows if row.event == "OOM_DETAIL"]),
    ]
    return _frame(marks)


def _row(row: Any) -> _Row:
    device = None if row.device == NO_DEVICE else device_name(str(row.device))
    name = "" if row.name == "N/A" else str(row.name)
    tid = None if pd.isna(row.tid) else int(row.tid)
    return _Row(
        str(row.event), str(row.type), name, int(row.t_ns), int(row.event_id), tid, device, row.attrs, int(row.stack_id)
    )


def _mark(
    kind: str, name: str, start: _Row, end: _Row | int, attrs: dict[str, Any] | None = None, *, step: int | None = None
) -> dict[str, Any]:
    """One mark; ``end`` is a row or, for one that never ended, the end of the window."""
    is_open = isinstance(end, int)
    return {
        "kind": kind,
        "name": name,
        "step": step,
        "tid": start.tid,
        "device": start.device,
        "start_ns": start.t_ns,
        "end_ns": max(end if isinstance(end, int) else end.t_ns, start.t_ns),
        "start_event_id": start.event_id,
        "end_event_id": None if isinstance(end, int) else end.event_id,
        "stack_id": start.stack_id,
        "attrs": ({"open": True} if is_open else {}) | (attrs or {}),
    }


def _ranges(rows: Sequence[_Row], last: int, report: ReadReport) -> Iterable[dict[str, Any]]:
    """Pair ``Range end from id N`` with the N-th range that the process started; ``step start`` counts steps."""
    ends: dict[int, _Row] = {}
    n_unknown = 0
    starts = [row for row in rows if row.type == "RANGE_START"]
    for row in rows:
        if row.type == "RANGE_END":
            match = _RANGE_END.fullmatch(row.name.strip())
            if match is None or not 1 <= int(match[1]) <= len(starts):
                n_unknown += 1
            else:
                ends.setdefault(int(match[1]), row)
    if n_unknown:
        report.note("ends of mstx ranges whose start is not there", n_unknown)
    step = 0
    for number, row in enumerate(starts, 1):
        end = ends.get(number, last)
        if row.name == STEP_RANGE:
            step += 1
            yield _mark("step", f"step {step}", row, end, {"origin": "mstx"}, step=step)
        else:
            yield _mark("range", row.name, row, end)


def _python_steps(
    calls: Sequence[_Row], last: int, report: ReadReport, rows: Sequence[_Row]
) -> Iterable[dict[str, Any]]:
    """Call n of ``step()`` begins step n + 1; what comes before the first call belongs to no recorded step."""
    if not calls:
        return
    first_range = next((r for r in rows if r.type == "RANGE_START" and r.name == STEP_RANGE), None)
    if first_range is not None:
        # The tool takes the kind of step that it sees first and refuses the other one.
        report.note("steps from both mstx ranges and msmemscope.step(): the latter were left out", len(calls))
        return
    for i, call in enumerate(calls):
        number = int(call.name) if re.fullmatch("[0-9]{1,9}", call.name) else i + 1
        end: _Row | int = calls[i + 1] if i + 1 < len(calls) else last
        yield _mark("step", f"step {number + 1}", call, end, {"origin": "python"}, step=number + 1)


def _points(rows: Sequence[_Row]) -> Iterable[dict[str, Any]]:
    for row in rows:
        if row.event == "MSTX" and row.type == "MARK":
            yield _mark("mark", row.name, row, row)
        elif row.event == "SYSTEM" and row.type != "STEP":
            yield _mark("system", row.type, row, row, _numbers(row.attrs))
        elif row.event == "SNAPSHOT":
            yield _mark("snapshot", row.name, row, row, _numbers(row.attrs))


def _ooms(rows: Sequence[_Row]) -> Iterable[dict[str, Any]]:
    """One mark for each trigger; the rows of live blocks after it are its ``recent`` and ``top`` lists."""
    found: list[dict[str, Any]] = []
    for row in rows:
        values = _numbers(row.attrs)
        if row.type == "OOM_TRIGGER" or not found:
            found.append(_mark("oom", row.name or row.type, row, row, {"recent": [], "top": []}))
            if row.type == "OOM_TRIGGER":
                found[-1]["attrs"] |= values
                continue
        kind = "recent" if row.type == "OOM_RECENT_ALLOC" else "top"
        found[-1]["attrs"][kind].append(values | {"event_id": row.event_id, "stack_id": row.stack_id})
    return found


def _numbers(attrs: str) -> dict[str, Any]:
    """Values of an Attr cell: integers, addresses and decimal rates as numbers, the rest as text."""
    found: dict[str, Any] = {}
    for key, text in parse_attrs(attrs).items():
        if key in ("ptr", "addr"):
            found[key] = parse_address(text)
        elif re.fullmatch("-?[0-9]{1,30}", text):
            found[key] = int(text)
        elif key.endswith("_rate") and re.fullmatch(r"-?\d+\.\d+", text):
            found[key] = float(text)
        else:
            found[key] = text
    return found


def _frame(marks: list[dict[str, Any]]) -> pd.DataFrame:
    marks.sort(key=lambda mark: (mark["start_ns"], mark["start_event_id"]))

    def column(name: str) -> list[Any]:
        return [mark[name] for mark in marks]

    return pd.DataFrame(
        {
            "kind": pd.Categorical(column("kind")),
            "name": pd.Series(column("name"), dtype=object),
            "step": pd.array(column("step"), dtype="Int64"),
            "tid": pd.array(column("tid"), dtype="Int64"),
            "device": pd.Categorical(column("device")),
            "start_ns": np.array(column("start_ns"), dtype=np.int64),
            "end_ns": np.array(column("end_ns"), dtype=np.int64),
            "start_event_id": pd.array(column("start_event_id"), dtype="Int64"),
            "end_event_id": pd.array(column("end_event_id"), dtype="Int64"),
            "stack_id": np.array(column("stack_id"), dtype=np.int32),
            "attrs": pd.Series(column("attrs"), dtype=object),
        }
    )
