"""Events of a Kineto trace as columns, read as a stream (spec/pytorch 2)."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..units import us_to_ns
from .pytorch_rows import Texts
from .report import OnBytes, ReadReport
from .streams import open_stream
from .trace_columns import clean, exact_ns
from .trace_pieces import PieceReader
from .trace_view import Prefixed, ijson_events

HEAD_BYTES = 1 << 22
_WRAPPER = re.compile(rb'"traceEvents"[ \t\r\n]*:')
_OBJECT_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+>")
_WORD = (1 << 64) - 1
NONE = -1


class KinetoArgs(msgspec.Struct, gc=False):
    """The arguments that matter here."""

    addr: Any = msgspec.field(name="Addr", default=None)
    n_bytes: Any = msgspec.field(name="Bytes", default=None)
    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)
    device_id: Any = msgspec.field(name="Device Id", default=None)
    stack: Any = msgspec.field(name="Call stack", default=None)
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    fwd_tid: Any = msgspec.field(name="Fwd thread id", default=None)
    python_id: Any = msgspec.field(name="Python id", default=None)
    python_parent: Any = msgspec.field(name="Python parent id", default=None)


class KinetoEvent(msgspec.Struct, gc=False):
    """One event; times stay text until they are exact."""

    ph: str = "X"
    cat: str | None = None
    name: str = ""
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw(b"0")
    pid: int | str | None = None
    tid: int | str | None = None
    args: KinetoArgs | None = None


_DECODER = msgspec.json.Decoder(list[KinetoEvent])
_NO_ARGS = KinetoArgs()
_ARG_NAMES = {field.encode_name: field.name for field in msgspec.structs.fields(KinetoArgs)}
MEMORY, OOM = "[memory]", "[OutOfMemory]"
_RANGES = ("user_annotation",)


class KinetoSink:
    """Collects memory events, operators, Python calls and annotations, in file order.

    Attributes
    ----------
    memory, ops, python, ranges : dict of array
        Columns; every table has ``start`` and ``tid``, and all but the first ``end`` and ``name`` (a number in
        ``names``).
    """

    def __init__(self, report: ReadReport, file_name: str) -> None:
        self._report, self._file_name = report, file_name
        self.names, self.stacks = Texts(), Texts()
        spans = ("start", "end", "tid", "name")
        self.memory = _columns(
            "start", "tid", "addr", "n_bytes", "allocated", "reserved", "device_type", "device_id", "stack", "is_oom"
        )
        self.ops = _columns(*spans, "sequence", "fwd_tid")
        self.python = _columns(*spans, "python_id", "python_parent")
        self.ranges = _columns(*spans)
        self.pids: dict[int, int] = {}

    # -- events ---------------------------------------------------------------------------------------------------

    def add(self, event: dict[str, Any]) -> None:
        """Add one event that was decoded with exact numbers."""
        found = event.get("args")
        args = found if isinstance(found, dict) else {}
        known = {field: args[name] for name, field in _ARG_NAMES.items() if name in args}
        ph, cat, name = (value if isinstance(value := event.get(key), str) else "" for key in ("ph", "cat", "name"))
        one = KinetoEvent(
            ph=ph, cat=cat, name=name, pid=event.get("pid"), tid=event.get("tid"), args=KinetoArgs(**known)
        )
        kind = _table(one)
        if kind is None:
            return
        try:
            start = us_to_ns(event["ts"])
            end = start + us_to_ns(event.get("dur", 0))
            fits = max(abs(start), abs(end)) < 1 << 62
        except (KeyError, ValueError, TypeError):
            fits = False
        if not fits:
            self._report.skip(f"{self._file_name}: events without a readable time", 1, repr(one.name)[:60])
            return
        self._add(kind, one, start, end)

    @staticmethod
    def decode(piece: memoryview) -> list[KinetoEvent]:
        """Decode an array of events."""
        return _DECODER.decode(piece)

    def add_decoded(self, events: Sequence[KinetoEvent]) -> int:
        """Add the events of a piece, the same as :meth:`add` for each of them; return their number."""
        chosen = [(kind, event) for event in events if (kind := _table(event)) is not None]
        if chosen:
            self._add_chosen(chosen)
        return len(events)

    def _add_chosen(self, chosen: Sequence[tuple[str, KinetoEvent]]) -> None:
        start = exact_ns([event.ts for _, event in chosen])
        length = exact_ns([event.dur for _, event in chosen])
        if start is None or length is None:
            for _, event in chosen:
                self.add(_as_dict(event))
            return
        for (kind, event), begin, dur in zip(chosen, start.tolist(), length.tolist(), strict=True):
            self._add(kind, event, begin, begin + dur)

    def _add(self, kind: str, event: KinetoEvent, start: int, end: int) -> None:
        args = event.args or _NO_ARGS
        tid = _whole(event.tid, NONE)
        if kind == "memory":
            self._add_memory(event, args, start, tid)
            return
        table: dict[str, array[int]] = getattr(self, kind)
        table["start"].append(start)
        table["end"].append(end)
        table["tid"].append(tid)
        table["name"].append(self.names[event.name])
        if kind == "ops":
            table["sequence"].append(_whole(args.sequence, NONE))
            table["fwd_tid"].append(_whole(args.fwd_tid, 0))
        elif kind == "python":
            table["python_id"].append(_whole(args.python_id, NONE))
            table["python_parent"].append(_whole(args.python_parent, NONE))

    def _add_memory(self, event: KinetoEvent, args: KinetoArgs, start: int, tid: int) -> None:
        addr, n_bytes, is_oom = args.addr, args.n_bytes, event.name == OOM
        if type(n_bytes) is not int or (type(addr) is not int and not is_oom) or abs(n_bytes) >= 1 << 62:
            self._report.skip(f"{self._file_name}: memory events without an address or a size")
            return
        pid = _whole(event.pid, NONE)
        self.pids[pid] = self.pids.get(pid, 0) + 1
        values = {
            "start": start, "tid": tid, "addr": _signed(addr) if type(addr) is int else 0, "n_bytes": n_bytes,
            "allocated": _whole(args.allocated, NONE), "reserved": _whole(args.reserved, NONE),
            "device_type": _whole(args.device_type, 0), "device_id": _whole(args.device_id, NONE),
            "stack": self.stacks[args.stack] if isinstance(args.stack, str) and args.stack else NONE,
            "is_oom": int(is_oom),
        }  # fmt: skip
        for key, value in values.items():
            self.memory[key].append(value)

    # -- result ---------------------------------------------------------------------------------------------------

    def table(self, name: str) -> dict[str, npt.NDArray[np.int64]]:
        """Return the columns of a table without copying them."""
        return {key: np.frombuffer(values, np.int64) for key, values in getattr(self, name).items()}

    def name_list(self) -> list[str]:
        """Return the names by number; objects' addresses are left out, so that equal calls have equal names."""
        return [_OBJECT_ADDRESS.sub(" object>", clean(name)) for name in self.names]


def _columns(*names: str) -> dict[str, array[int]]:
    return {name: array("q") for name in names}


def _table(event: KinetoEvent) -> str | None:
    """Name of the table that an event belongs to."""
    if event.name in (MEMORY, OOM) and event.ph in ("i", "I"):
        return "memory"
    if event.ph != "X":
        return None
    if event.cat == "cpu_op":
        return "ops"
    if event.cat == "python_function":
        return "python"
    return "ranges" if event.cat in _RANGES else None


def _whole(value: object, default: int) -> int:
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else default


def _signed(value: int) -> int:
    """Return a 64 bit address as int64, the same modulo 2**64."""
    return ((value & _WORD) + (1 << 63)) % (1 << 64) - (1 << 63)


def _as_dict(event: KinetoEvent) -> dict[str, Any]:
    """Undo the typed decoding, for times that the columns cannot take."""
    from decimal import Decimal

    fields: dict[str, Any] = {"ph": event.ph, "cat": event.cat, "name": event.name, "pid": event.pid, "tid": event.tid}
    for key, raw in (("ts", event.ts), ("dur", event.dur)):
        if bytes(raw):
            fields[key] = json.loads(bytes(raw), parse_float=Decimal)
    args = event.args or _NO_ARGS
    return fields | {"args": {name: getattr(args, field) for name, field in _ARG_NAMES.items()}}


def read_events(path: Path, *, report: ReadReport, on_bytes: OnBytes) -> tuple[KinetoSink, dict[str, Any]]:
    """Read a trace, plain or gzipped; return its events and the other keys of its envelope.

    Raises
    ------
    InputError
        If the file cannot be read, or is no trace.
    """
    sink = KinetoSink(report, path.name)
    try:
        with open_stream(path, on_bytes=on_bytes) as stream:
            pieces = PieceReader(stream, sink, report, path.name)
            pieces.run()
            for event in ijson_events(Prefixed(stream, pieces.rest()), pieces.n_events, report, path.name):
                sink.add(event)
            report.facts["n_events"] = pieces.n_events
        return sink, _envelope(path)
    except (OSError, EOFError) as error:
        raise InputError(f"{path.name}: cannot be read ({error})") from error


def _envelope(path: Path) -> dict[str, Any]:
    """Return what stands before ``traceEvents``: writers put the settings there; empty for a bare list."""
    with open_stream(path) as stream:
        head = b""
        while len(head) < HEAD_BYTES and not _WRAPPER.search(head, max(0, len(head) - (1 << 17))):
            data = stream.read(1 << 16)
            if not data:
                break
            head += data
    match = _WRAPPER.search(head)
    if match is None or not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return {}
    try:
        found = json.loads(head[: match.start()].decode("utf-8-sig", "replace").rstrip().rstrip(",") + "}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
