"""``trace_view.json``: operators with their stacks, profiler steps and mstx ranges (spec/ascend_profiler 6).

The file is one JSON array of events, streamed. Files that end too early (no ``]``, ``,]``, cut in the middle, a cut
gzip) give the events before the break and a remark. Two readers give the same rows: pieces decoded by msgspec
(:mod:`.trace_pieces`), and ijson, which is slow and plain; the second goes on where the first cannot.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

import ijson

from ..errors import InputError
from .report import OnBytes, ReadReport, ignore_bytes
from .streams import CHUNK_BYTES, Readable, open_stream
from .trace_pieces import PieceReader
from .trace_sink import EPOCH_MIN_NS, STEP_NAME, Trace, TraceSink

__all__ = ["EPOCH_MIN_NS", "STEP_NAME", "Trace", "TraceReader", "read_trace"]

TraceReader = Literal["auto", "ijson"]

_BROKEN = (ijson.JSONError, EOFError, OSError, zlib.error, ValueError, ArithmeticError)


def read_trace(
    path: Path,
    *,
    report: ReadReport,
    on_bytes: OnBytes = ignore_bytes,
    reader: TraceReader = "auto",
    names: Collection[str] | None = None,
) -> Trace:
    """Read the operators, steps and ranges of a trace, plain or gzipped.

    Parameters
    ----------
    path : Path
        ``trace_view.json`` or a ``.gz`` of it.
    report : ReadReport
        Receives what was skipped; a file that breaks off makes the source partial.
    on_bytes : callable
        Progress.
    reader : {"auto", "ijson"}
        ``"ijson"`` reads everything with ijson: four times slower, and a check on the other one.
    names : collection of str, optional
        Names that rows of the memory files have. Of the other operators only those with a sequence number, of the
        backward pass and the steps are kept: nothing else can be asked for.
    """
    if reader not in ("auto", "ijson"):
        raise InputError(f"reader={reader!r}: expected 'auto' or 'ijson'")
    sink = TraceSink(report, path.name, names)
    with open_stream(path, on_bytes=on_bytes) as stream:
        n_events, head = 0, b""
        if reader == "auto":
            pieces = PieceReader(stream, sink, report, path.name)
            pieces.run()
            n_events, head = pieces.n_events, pieces.rest()
        for event in ijson_events(Prefixed(stream, head), n_events, report, path.name):
            sink.add(event)
    return sink.result()


def ijson_events(stream: Prefixed, n_before: int, report: ReadReport, file_name: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a text in order, up to the first that is not whole, and say how the text ends.

    ``n_before`` events were read by other means; if there are any, the first one here is an empty stand-in for them.
    """
    prefix = {b"[": "item", b"{": "traceEvents.item"}.get(stream.first)
    if prefix is None:
        report.lose(f"{file_name}: not a JSON trace (it starts with {stream.first!r}): no stacks")
        return
    n_events = n_before - 1 if n_before else 0
    try:
        for event in ijson.items(stream, prefix, buf_size=CHUNK_BYTES):
            n_events += 1
            if n_events == n_before:
                continue
            if isinstance(event, dict):
                yield event
            else:
                report.skip(f"{file_name}: trace elements that are not events", 1, repr(event)[:60])
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:120]
        if stream.ended_by_comma_bracket:
            report.repair(f"{file_name}: ends in ',]' (no device events were exported); all {n_events} events read")
        elif stream.lacks_bracket:
            report.repair(f"{file_name}: has no closing bracket (analysis interrupted?); {n_events} events read")
        else:
            report.lose(f"{file_name}: broken after {n_events} events ({reason}); later operators have no stacks")


class Prefixed:
    """A stream that has looked at its first character and remembers its last ones."""

    def __init__(self, file: Readable, head: bytes = b"") -> None:
        self._file = file
        self._tail = b""
        self.ended = False
        while len(head) < 4 and (more := file.read(4 - len(head))):
            head += more
        head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        while not head and (more := file.read(CHUNK_BYTES)):
            head = more.lstrip()
        self.first = head[:1]
        self._head = head

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        if size == 0:
            return b""
        data, self._head = (self._head, b"") if self._head else (self._file.read(size), b"")
        self._tail = (self._tail + data)[-64:]
        self.ended = not data
        return data

    @property
    def ended_by_comma_bracket(self) -> bool:
        """Whether a comma stands before the closing bracket."""
        return re.search(rb"}\s*,\s*]\s*}?\s*$", self._tail) is not None

    @property
    def lacks_bracket(self) -> bool:
        """Whether the text ends between two events, so that none of them was cut."""
        return self.ended and re.search(rb"}\s*,?\s*$", self._tail) is not None
