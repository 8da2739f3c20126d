"""Operators, steps and ranges of a trace as columns: 44 bytes an operator and one text per distinct stack."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import compress
from typing import Any, TypeVar

import msgspec
import numpy as np
import pandas as pd

from ..model import from_int64
from ..units import us_to_ns
from .report import ReadReport
from .trace_columns import NameCodes, RawStacks, clean, exact_ints, exact_ns

STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
EPOCH_MIN_NS = 10**17
"""Times below (1973) cannot be epoch times: the trace was written relative to its first event."""


class Args(msgspec.Struct, gc=False):
    """The three arguments of an operator that matter here."""

    stack: msgspec.Raw = msgspec.field(name="Call stack", default=None)  # type: ignore[assignment]
    sequence: int | str | None = msgspec.field(name="Sequence number", default=-1)
    fwd_tid: int | str | None = msgspec.field(name="Fwd thread id", default=0)


class Event(msgspec.Struct, gc=False):
    """One event as the fast reader decodes it; :class:`msgspec.Raw` keeps numbers exact and stacks undecoded."""

    ph: str = "X"
    cat: str | None = None
    name: str = ""
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw(b"0")
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None


class Probe(msgspec.Struct, gc=False):
    """Just enough of an event to see that it does not matter here."""

    ph: str = "X"
    cat: str | None = None
    pid: int | str | None = None


AnyEvent = TypeVar("AnyEvent", Event, Probe)

_NO_ARGS = Args()
_DECODER = msgspec.json.Decoder(list[Event])
_PROBE = msgspec.json.Decoder(list[Probe])


@dataclass(frozen=True)
class Trace:
    """What a trace tells about memory: tables of the model without the ``source`` column, except ``stacks``."""

    ops: pd.DataFrame
    marks: pd.DataFrame
    stacks: pd.DataFrame
    pid: int | None
    relative: bool
    """Times do not share the clock of the memory files: nothing can be joined."""


class TraceSink:
    """Collects operators column by column, one event (:meth:`add`) or one piece (:meth:`add_piece`) at a time.

    Parameters
    ----------
    report : ReadReport
        Receives operators without a readable time.
    file_name : str
        For remarks.
    names : collection of str, optional
        Keep only operators with one of these names, with a sequence number or of a backward pass, and steps.
    """

    def __init__(self, report: ReadReport, file_name: str, names: Collection[str] | None = None) -> None:
        self._report, self._file_name = report, file_name
        self._wanted_names = None if names is None else frozenset(names)
        self._names = NameCodes(self._wanted_names)
        self._stacks = RawStacks()
        self._name = array("i")
        self._stack = array("i")
        self._columns = {key: array("q") for key in ("tid", "start_ns", "end_ns", "sequence", "fwd_tid")}
        self._ranges: list[tuple[str, int, int, int, int]] = []
        self._pids: dict[int, int] = {}
        self._is_quiet = False
        """The last piece had nothing of interest: the device's part of the file, where a glance is enough."""

    # -- one event ------------------------------------------------------------------------------------------------

    def add(self, event: dict[str, Any]) -> None:
        """Add one event decoded with exact numbers (``Decimal``)."""
        if event.get("ph", "X") != "X":
            return
        category = event.get("cat")
        # Ranges of mstx carry no category and lie under the host process; device tracks come later in the file and
        # under other pids, so that this keeps next to nothing else (filtered once more in `result`).
        pid = _whole(event.get("pid"), -1)
        if category != "cpu_op" and (category is not None or (self._pids and pid not in self._pids)):
            return
        name = event.get("name")
        try:
            start = us_to_ns(event["ts"])
            end = start + us_to_ns(event.get("dur", 0))
            fits = max(abs(start), abs(end)) < 1 << 63
        except (KeyError, ValueError, TypeError):
            fits = False
        if not fits:
            if category == "cpu_op":
                self._report.skip(f"{self._file_name}: operators without a readable time", 1, repr(name)[:60])
            return
        text = name if isinstance(name, str) else ""
        tid = _whole(event.get("tid"), -1)
        if category == "cpu_op":
            self._pids[pid] = self._pids.get(pid, 0) + 1
            self._add_operator(text, tid, start, end, event.get("args"))
        else:
            self._ranges.append((text, pid, tid, start, end))

    def _add_operator(self, name: str, tid: int, start: int, end: int, args: object) -> None:
        known = args if isinstance(args, dict) else {}
        sequence, fwd_tid = _whole(known.get("Sequence number"), -1), _whole(known.get("Fwd thread id"), 0)
        code = self._names[name]
        if not (self._names.wanted[code] or sequence >= 0 or fwd_tid > 0):
            return
        stack = known.get("Call stack")
        self._name.append(code)
        self._stack.append(self._stacks.intern_text(stack) if isinstance(stack, str) else -1)
        for key, value in zip(self._columns, (tid, start, end, sequence, fwd_tid), strict=True):
            self._columns[key].append(value)

    # -- one piece ------------------------------------------------------------------------------------------------

    def decode(self, piece: memoryview) -> tuple[list[Event], int]:
        """Decode an array of events; return those worth adding (all or none), and their number."""
        glance = _PROBE.decode(piece) if self._is_quiet else []
        events = [] if glance and self.can_skip(glance) else _DECODER.decode(piece)
        return events, len(events or glance)

    def add_decoded(self, decoded: tuple[list[Event], int]) -> int:
        """Add the events of a piece; return how many it had."""
        events, n_events = decoded
        self._is_quiet = not (events and self.add_piece(events))
        return n_events

    def add_piece(self, events: Sequence[Event]) -> bool:
        """Add the events of a piece: exactly what :meth:`add` gives for each of them in turn.

        Returns whether there was an operator among them.
        """
        ops = [e for e in events if e.cat == "cpu_op" and e.ph == "X"]
        pids = {e.pid for e in ops}
        known = self._pids
        if any(_whole(pid, -1) not in known for pid in pids):
            self._add_singly(events)  # which ranges count depends on the operators before them
            return True
        if len(ops) < len(events):
            self._add_singly(self._possible_ranges(events))
        if not ops:
            return False
        if self._add_operators(ops):
            for pid, count in Counter([e.pid for e in ops] if len(pids) > 1 else {pids.pop(): len(ops)}).items():
                known[_whole(pid, -1)] += count
        else:
            self._add_singly(ops)
        return True

    def can_skip(self, events: Sequence[Probe]) -> bool:
        """Whether none of these events is an operator or can be a range."""
        return bool(self._pids) and "cpu_op" not in {e.cat for e in events} and not self._possible_ranges(events)

    def _possible_ranges(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        loose = [e for e in events if e.cat is None and e.ph == "X"]
        known = self._pids
        # Mostly the device's tracks: a look at their few process numbers settles it.
        pids = {e.pid for e in loose}
        wanted = {pid for pid in pids if not known or pid in known or isinstance(pid, str)}
        return [e for e in loose if e.pid in wanted] if wanted else []

    def _add_singly(self, events: Sequence[Event]) -> None:
        for event in events:
            self.add(_as_dict(event))

    def _add_operators(self, ops: Sequence[Event]) -> bool:
        """Add operators as whole columns; False (and nothing added) where a value is out of the ordinary."""
        args = [e.args or _NO_ARGS for e in ops]
        start, length = exact_ns([e.ts for e in ops]), exact_ns([e.dur for e in ops])
        tid, sequence, fwd_tid = (
            exact_ints([e.tid for e in ops]),
            exact_ints([a.sequence for a in args]),
            exact_ints([a.fwd_tid for a in args]),
        )
        if start is None or length is None or tid is None or sequence is None or fwd_tid is None:
            return False
        if int(start.max()) + int(length.max()) >= 1 << 63:
            return False
        codes = np.fromiter(map(self._names.__getitem__, [e.name for e in ops]), np.int32, len(ops))
        stacks = [a.stack for a in args]
        if self._wanted_names is not None:
            keep = np.frombuffer(self._names.wanted, np.bool_)[codes] | (sequence >= 0) | (fwd_tid > 0)
            if not keep.all():
                codes, tid, sequence, fwd_tid = codes[keep], tid[keep], sequence[keep], fwd_tid[keep]
                start, length, stacks = start[keep], length[keep], list(compress(stacks, keep.tolist()))
        self._name.frombytes(codes.tobytes())
        self._stack.extend(self._stacks.intern(stacks))
        for key, values in zip(self._columns, (tid, start, start + length, sequence, fwd_tid), strict=True):
            self._columns[key].frombytes(values.tobytes())
        return True

    # -- tables ---------------------------------------------------------------------------------------------------

    def result(self) -> Trace:
        """Return the tables; the sink is used up."""
        codes, names = self._names.compact(np.frombuffer(self._name, np.int32))
        stack_ids, stacks = self._stacks.compact(np.frombuffer(self._stack, np.int32))
        columns = {key: np.frombuffer(values, np.int64) for key, values in self._columns.items()}
        ops = pd.DataFrame(
            {"name": pd.Categorical.from_codes(codes, names), **columns, "stack_id": stack_ids}, copy=False
        )
        relative = bool(len(ops)) and int(ops["start_ns"].max()) < EPOCH_MIN_NS
        pid = max(self._pids, key=lambda p: self._pids[p]) if self._pids else None
        return Trace(ops, self._marks(ops), stacks.to_frame(), pid, relative)

    def _marks(self, ops: pd.DataFrame) -> pd.DataFrame:
        """Steps (operators named ``ProfilerStep#N``) and mstx ranges, by start."""
        categories = ops["name"].cat.categories
        steps = np.flatnonzero([STEP_NAME.fullmatch(name) is not None for name in categories])
        rows = ops[np.isin(ops["name"].cat.codes.to_numpy(), steps)]
        numbers = [int(m[1]) if (m := STEP_NAME.fullmatch(name)) else -1 for name in rows["name"].astype(str)]
        ranges = [r for r in self._ranges if r[1] in self._pids]
        found = [("step", n, k, t, a, b) for n, k, t, a, b in zip(
            rows["name"].astype(str), numbers, rows["tid"], rows["start_ns"], rows["end_ns"], strict=True)]  # fmt: skip
        found += [("range", clean(name), -1, tid, start, end) for name, _, tid, start, end in ranges]
        found.sort(key=lambda mark: (mark[4], -mark[5]))
        kind, name, step, tid, start, end = (
            (list(column) for column in zip(*found, strict=True)) if found else ([],) * 6
        )
        return pd.DataFrame(
            {
                "kind": pd.Categorical(kind, ["step", "range"]),
                "name": pd.Series(name, dtype=object),
                "step": from_int64(np.array(step, dtype=np.int64), na=-1),
                "tid": from_int64(np.array(tid, dtype=np.int64), na=-1),
                "start_ns": np.array(start, dtype=np.int64),
                "end_ns": np.array(end, dtype=np.int64),
            }
        )


def _as_dict(event: Event) -> dict[str, Any]:
    """Undo the typed decoding, for what the columns cannot take."""
    fields: dict[str, Any] = {"ph": event.ph, "cat": event.cat, "name": event.name, "pid": event.pid, "tid": event.tid}
    fields |= {key: _loads(raw) for key, raw in (("ts", event.ts), ("dur", event.dur)) if bytes(raw)}
    if (args := event.args) is not None:
        stack = {} if args.stack is None else {"Call stack": _loads(args.stack)}
        fields["args"] = {"Sequence number": args.sequence, "Fwd thread id": args.fwd_tid, **stack}
    return fields


def _loads(raw: msgspec.Raw) -> Any:
    return json.loads(bytes(raw).decode("utf-8", "surrogateescape"), parse_float=Decimal)


def _whole(value: object, default: int) -> int:
    if isinstance(value, (int, Decimal)) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 19 else default
