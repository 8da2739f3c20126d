"""``trace_view.json``: operators with their stacks, profiler steps and mstx ranges (spec/ascend_profiler 6).

The file is one JSON array of events, streamed. Files that end too early (no ``]``, ``,]``, cut in the middle, a cut
gzip) give the events before the break and a remark.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import ijson
import numpy as np
import pandas as pd

from ..model import from_int64
from ..stacks import StackPool
from ..units import us_to_ns
from .report import OnBytes, ReadReport, ignore_bytes

STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
EPOCH_MIN_NS = 10**17
"""Times below (1973) cannot be epoch times: the trace was written relative to its first event."""

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Trace:
    """What a trace tells about memory: tables of the model without the ``source`` column, except ``stacks``."""

    ops: pd.DataFrame
    marks: pd.DataFrame
    stacks: pd.DataFrame
    pid: int | None
    relative: bool
    """Times do not share the clock of the memory files: nothing can be joined."""


def read_trace(path: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> Trace:
    """Read the operators, steps and ranges of a trace, plain or gzipped.

    Parameters
    ----------
    path : Path
        ``trace_view.json`` or a ``.gz`` of it.
    report : ReadReport
        Receives what was skipped; a file that breaks off makes the source partial.
    on_bytes : callable
        Progress.
    """
    sink = _Sink(report, path.name)
    for event in iter_events(path, report=report, on_bytes=on_bytes):
        sink.add(event)
    return sink.result()


def iter_events(path: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace in file order, up to the first that is not whole."""
    with path.open("rb") as raw:
        counted = _CountedFile(raw, on_bytes)
        is_gzip = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = _Prefixed(_Unzipped(counted) if is_gzip else counted)
        prefix = {b"[": "item", b"{": "traceEvents.item"}.get(stream.first)
        if prefix is None:
            report.lose(f"{path.name}: not a JSON trace (it starts with {stream.first!r}): no stacks")
            return
        n_events = 0
        try:
            for event in ijson.items(stream, prefix, buf_size=_CHUNK):
                n_events += 1
                if isinstance(event, dict):
                    yield event
                else:
                    report.skip(f"{path.name}: trace elements that are not events", 1, repr(event)[:60])
        except (ijson.JSONError, EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:120]
            if stream.ended_by_comma_bracket:
                report.repair(f"{path.name}: ends in ',]' (no device events were exported); all {n_events} events read")
            elif stream.lacks_bracket:
                report.repair(f"{path.name}: has no closing bracket (analysis interrupted?); {n_events} events read")
            else:
                report.lose(f"{path.name}: broken after {n_events} events ({reason}); later operators have no stacks")


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _CountedFile:
    """Counts the raw bytes that pass, for the progress bar."""

    def __init__(self, file: _Readable, on_bytes: OnBytes) -> None:
        self._file, self._on_bytes = file, on_bytes

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._on_bytes(len(data))
        return data


class _Unzipped:
    """Decompresses as far as the data goes; :class:`gzip.GzipFile` would drop what precedes a cut."""

    def __init__(self, file: _Readable) -> None:
        self._file = file
        self._zip = zlib.decompressobj(wbits=31)

    def read(self, size: int = -1) -> bytes:
        data = b""
        while not data:
            raw = self._zip.unconsumed_tail or self._zip.unused_data or self._file.read(_CHUNK)
            if not raw:
                break
            if self._zip.eof:  # another member follows
                self._zip = zlib.decompressobj(wbits=31)
            data = self._zip.decompress(raw, max(size, 0) or _CHUNK)
        return data


class _Prefixed:
    """A stream that has looked at its first character and remembers its last ones."""

    def __init__(self, file: _Readable) -> None:
        self._file = file
        self._tail = b""
        head = b""
        while len(head) < 4 and (more := file.read(4 - len(head))):
            head += more
        head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        while not head and (more := file.read(_CHUNK)):
            head = more.lstrip()
        self.first = head[:1]
        self._head = head

    def read(self, size: int = -1) -> bytes:
        if size == 0:
            return b""
        data, self._head = (self._head, b"") if self._head else (self._file.read(size), b"")
        self._tail = (self._tail + data)[-64:]
        return data

    @property
    def ended_by_comma_bracket(self) -> bool:
        return re.search(rb"}\s*,\s*]\s*}?\s*$", self._tail) is not None

    @property
    def lacks_bracket(self) -> bool:
        """Whether the text ends between two events, so that none of them was cut."""
        return re.search(rb"}\s*,?\s*$", self._tail) is not None


class _Sink:
    """Collects operators column by column: 48 bytes an operator and one text per distinct stack."""

    def __init__(self, report: ReadReport, file_name: str) -> None:
        self._report, self._file_name = report, file_name
        self._names: dict[str, int] = {}
        self._stacks = StackPool()
        self._name = array("i")
        self._stack = array("i")
        self._columns = {key: array("q") for key in ("tid", "start_ns", "end_ns", "sequence", "fwd_tid")}
        self._ranges: list[tuple[str, int, int, int, int]] = []
        self._pids: dict[int, int] = {}

    def add(self, event: dict[str, Any]) -> None:
        if event.get("ph", "X") != "X":
            return
        category = event.get("cat")
        # Ranges of mstx carry no category and lie under the host process; device tracks come later in the file and
        # under other pids, so that this keeps next to nothing else (filtered once more in `result`).
        if category != "cpu_op" and (category is not None or (self._pids and event.get("pid") not in self._pids)):
            return
        name = event.get("name")
        try:
            start = us_to_ns(event["ts"])
            end = start + us_to_ns(event.get("dur", 0))
        except (KeyError, ValueError, TypeError):
            if category == "cpu_op":
                self._report.skip(f"{self._file_name}: operators without a readable time", 1, repr(name)[:60])
            return
        text = name if isinstance(name, str) else ""
        tid, pid = _whole(event.get("tid"), -1), _whole(event.get("pid"), -1)
        if category == "cpu_op":
            self._pids[pid] = self._pids.get(pid, 0) + 1
            self._add_operator(text, tid, start, end, event.get("args"))
        else:
            self._ranges.append((text, pid, tid, start, end))

    def _add_operator(self, name: str, tid: int, start: int, end: int, args: object) -> None:
        known = args if isinstance(args, dict) else {}
        stack = known.get("Call stack")
        self._name.append(self._names.setdefault(name, len(self._names)))
        self._stack.append(self._stacks.intern(_clean(stack)) if isinstance(stack, str) else -1)
        columns = self._columns
        columns["tid"].append(tid)
        columns["start_ns"].append(start)
        columns["end_ns"].append(end)
        columns["sequence"].append(_whole(known.get("Sequence number"), -1))
        columns["fwd_tid"].append(_whole(known.get("Fwd thread id"), 0))

    def result(self) -> Trace:
        codes = np.frombuffer(self._name, dtype=np.int32) if self._name else np.empty(0, dtype=np.int32)
        names = pd.Categorical.from_codes(codes, [_clean(name) for name in _unique(self._names)])
        columns = {k: np.array(v, dtype=np.int64) for k, v in self._columns.items()}
        ops = pd.DataFrame({"name": names, **columns, "stack_id": np.array(self._stack, dtype=np.int32)})
        relative = bool(len(ops)) and int(ops["start_ns"].max()) < EPOCH_MIN_NS
        pid = max(self._pids, key=lambda p: self._pids[p]) if self._pids else None
        return Trace(ops, self._marks(ops), self._stacks.to_frame(), pid, relative)

    def _marks(self, ops: pd.DataFrame) -> pd.DataFrame:
        """Steps (operators named ``ProfilerStep#N``) and mstx ranges, by start."""
        categories = ops["name"].cat.categories
        steps = np.flatnonzero([STEP_NAME.fullmatch(name) is not None for name in categories])
        rows = ops[np.isin(ops["name"].cat.codes.to_numpy(), steps)]
        numbers = [int(m[1]) if (m := STEP_NAME.fullmatch(name)) else -1 for name in rows["name"].astype(str)]
        ranges = [r for r in self._ranges if r[1] in self._pids]
        found = [("step", n, k, t, a, b) for n, k, t, a, b in zip(
            rows["name"].astype(str), numbers, rows["tid"], rows["start_ns"], rows["end_ns"], strict=True)]  # fmt: skip
        found += [("range", _clean(name), -1, tid, start, end) for name, _, tid, start, end in ranges]
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


def _whole(value: object, default: int) -> int:
    if isinstance(value, (int, Decimal)) and -(1 << 63) <= value < 1 << 63:
        return int(value)
    return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 19 else default


def _clean(text: str) -> str:
    """Replace lone surrogates, which JSON allows and UTF-8 (Arrow, HTML) does not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _unique(names: dict[str, int]) -> Iterator[str]:
    """Category names must differ even after cleaning."""
    seen: dict[str, int] = {}
    for name in names:
        cleaned = _clean(name)
        count = seen[cleaned] = seen.get(cleaned, 0) + 1
        yield cleaned if count == 1 else f"{cleaned} ({count})"
