"""Cut a JSON array of events into pieces that prove themselves, and decode each with typed structs.

The buffer starts right after an event of the array (or at its ``[``). Take a comma that stands between ``}`` and ``{``:
is it between two events, or inside a string or a nested list? Decode what lies before it, closed by ``]``. JSON is read
left to right from a known state, so that the piece is a whole array **exactly** if the parser is between two events at
the comma: inside a string the text would not end, inside a nested list the ``]`` would close the wrong bracket. Success
proves the cut; a failure costs one decoding and an earlier comma is tried. Nothing here counts quotes or brackets.

What the typed decoder refuses (NaN, an argument of another type, lone surrogates…) is decoded event by event by
:mod:`json` from the same proved place; what that refuses too is left to the caller, with everything after it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from .report import ReadReport

BLOCK_BYTES = 1 << 20
MAX_EVENT_BYTES = 1 << 28
"""Longer texts without the end of an event are left to a reader that needs no buffer."""

_CUT_TRIES = 4
_COMMA, _BRACE = b",}"
_SPACE = b" \t\n\r"
_SPACES = re.compile(r"[ \t\n\r]*")
_LONGEST_TOKEN = 16
_WRAPPER = re.compile(rb'"traceEvents"[ \t\n\r]*:[ \t\n\r]*\[')
_ODD = re.compile(
    "[\udc80-\udcff]"  # a byte that is not UTF-8
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"  # the first half of a surrogate pair alone, or the second
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)


class PieceSink(Protocol):
    """Decodes pieces as it needs them, and takes the events that no decoder of types can read."""

    def decode(self, piece: memoryview, /) -> Any:
        """Decode a whole array of events.

        Raises
        ------
        msgspec.DecodeError, RecursionError
            If it is none.
        """
        ...

    def add_decoded(self, events: Any, /) -> int:
        """Add what :meth:`decode` returned; return how many elements the array had."""
        ...

    def add(self, event: dict[str, Any], /) -> None:
        """Add one event."""
        ...


class Readable(Protocol):
    """A binary file, plain or decompressed."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of the buffer; 0 at the end."""
        ...


class PieceReader:
    """Reads the events of one array into a sink, as far as it can prove where they end.

    Parameters
    ----------
    stream : Readable
        At its beginning.
    sink : PieceSink
        Decodes and receives the events in file order.
    report : ReadReport
        Receives what was read although it is not strict JSON.
    file_name : str
        For remarks.
    block_bytes : int
        How much to read at a time.

    Attributes
    ----------
    n_events : int
        Elements of the array read so far.
    """

    def __init__(
        self, stream: Readable, sink: PieceSink, report: ReadReport, file_name: str, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._stream, self._sink, self._report, self._file_name = stream, sink, report, file_name
        self._block = block_bytes
        self._buffer = bytearray(2 * block_bytes)  # replaced, never resized: pieces look into it
        self._start = self._end = 0
        self._at_end = self._stopped = False
        self._head = b""
        self.n_events = 0

    def run(self) -> None:
        """Read until the end, or until the text can no longer be cut."""
        if self._fill() and self._open_array():
            while not self._stopped and (self._consume() or self._fill()):
                pass

    def rest(self) -> bytes:
        """Return what was read but not consumed, as the start of a JSON text; one empty event stands for the others."""
        done = self._head + b"[{}" if self.n_events else self._head
        return done + bytes(memoryview(self._buffer)[self._start : self._end])

    # -- buffer ---------------------------------------------------------------------------------------------------

    def _fill(self) -> bool:
        """Read on behind what is left; False at the end of the file or when an event is too long."""
        left = self._end - self._start
        if self._at_end or self._stopped or left > MAX_EVENT_BYTES:
            return False
        # An event longer than a block doubles what is read next: linear work in total.
        wanted = left + max(self._block, left)
        rest = bytes(memoryview(self._buffer)[self._start : self._end])
        if wanted > len(self._buffer):
            self._buffer = bytearray(wanted)
        view = memoryview(self._buffer)
        view[:left] = rest
        self._start, self._end = 0, left
        try:
            while self._end < wanted and (n_read := self._stream.readinto(view[self._end : wanted])):
                self._end += n_read
        except (OSError, zlib.error):  # the stream raises it again for whoever reads the rest
            self._stopped = True
        self._at_end = self._end < wanted
        return self._end > left

    def _open_array(self) -> bool:
        """Find the ``[`` of the events: the first character, or the value of ``traceEvents`` in an object."""
        if self._buffer.startswith(b"\xef\xbb\xbf"):
            self._start = 3
        self._skip_space()
        first = self._buffer[self._start : min(self._start + 1, self._end)]
        if first == b"[":
            return True
        match = _WRAPPER.search(self._buffer, self._start, self._end) if first == b"{" else None
        if match is None:
            return False
        # The same proof: closed here, the object is whole exactly if its last key is this one, at the top level.
        try:
            pairs = json.loads(bytes(self._buffer[self._start : match.end()]) + b"]}", object_pairs_hook=list)
        except (ValueError, RecursionError):
            return False
        if [key for key, _ in pairs].count("traceEvents") != 1 or pairs[-1] != ("traceEvents", []):
            return False
        self._head = b'{"traceEvents":'
        self._start = match.end() - 1
        return True

    def _skip_space(self) -> None:
        while self._start < self._end and self._buffer[self._start] in _SPACE:
            self._start += 1

    # -- pieces ---------------------------------------------------------------------------------------------------

    @property
    def _separator(self) -> bytes:
        """What must stand before the next event."""
        return b"," if self.n_events else b"["

    def _consume(self) -> bool:
        """Decode as many events as can be proved whole; False if more text is needed."""
        self._skip_space()
        if self._start == self._end:
            return False
        if self._buffer[self._start : self._start + 1] != self._separator:
            self._stopped = True  # the array is over, or broken here
            return False
        tried = False
        for cut in self._cuts():
            tried = True
            if self._decode(cut):
                return True
        return (tried or self._at_end) and self._decode_leniently()

    def _cuts(self) -> Iterator[int]:
        """Positions of commas between ``}`` and ``{``, from the end."""
        data, brace = self._buffer, self._end
        for _ in range(_CUT_TRIES):
            at = self._start
            while at == self._start:
                if (brace := data.rfind(b"{", self._start + 1, brace)) < 0:
                    return
                at = self._before(brace)
                if data[at] != _COMMA or data[self._before(at)] != _BRACE:
                    at = self._start
            yield at

    def _before(self, position: int) -> int:
        """Position of the character before, spaces left out; the one at the start is none."""
        position -= 1
        while position > self._start and self._buffer[position] in _SPACE:
            position -= 1
        return position

    def _decode(self, cut: int) -> bool:
        """Decode the piece up to a comma; False, and nothing done, unless that proves the cut."""
        data, start = self._buffer, self._start
        separator = data[start]
        data[start], data[cut] = b"[]"
        try:
            piece = memoryview(data)[start : cut + 1]
            events = self._sink.decode(piece)
            is_utf8 = _is_utf8(piece)  # the decoder does not look into the strings that it skips
        except (msgspec.DecodeError, RecursionError):
            return False
        finally:
            data[start], data[cut] = separator, _COMMA
        self.n_events += self._sink.add_decoded(events)
        self._start = cut
        if not is_utf8:
            self._note_odd()
        return True

    def _decode_leniently(self) -> bool:
        """Decode one event after the other by :mod:`json`; False if there is no whole one."""
        text = bytes(memoryview(self._buffer)[self._start : self._end]).decode("utf-8", "surrogateescape")
        decoder = _LenientDecoder()
        done = 0
        while (at := self._event_start(text, done)) is not None:
            try:
                element, end = decoder.decode(text, at)
            except (ValueError, ArithmeticError, RecursionError) as error:
                # Broken for good, not only cut at the end of the buffer? Then a reader that names the fault goes on.
                self._stopped = done == 0 and not _may_be_cut(error, text)
                break
            if end == len(text) and not self._at_end and not isinstance(element, dict):
                break  # a number may go on
            self.n_events += 1
            if decoder.odd or _ODD.search(text, at, end):
                self._note_odd()
            if isinstance(element, dict):
                self._sink.add(element)
            else:
                self._report.skip(f"{self._file_name}: trace elements that are not events", 1, repr(element)[:60])
            done = end
        self._start += len(text[:done].encode("utf-8", "surrogateescape"))
        return done > 0

    def _event_start(self, text: str, at: int) -> int | None:
        """Position of the event after the separator at a position; None without both."""
        at = _next(text, at)
        if text[at : at + 1] != self._separator.decode():
            return None
        at = _next(text, at + 1)
        return at if at < len(text) and text[at] != "]" else None

    def _note_odd(self) -> None:
        self._report.repair(
            f"{self._file_name}: not quite JSON (NaN, raw control characters, half a character, bytes that are not "
            "UTF-8), read all the same",
            1,
            f"event {self.n_events}",
        )


class _LenientDecoder:
    """Decodes single values as :mod:`ijson` does, with exact numbers, and some that are not JSON as well."""

    def __init__(self) -> None:
        self.odd = False
        self._strict, self._loose = (
            json.JSONDecoder(parse_float=Decimal, parse_int=_integer, parse_constant=self._constant, strict=strict)
            for strict in (True, False)
        )

    def decode(self, text: str, at: int) -> tuple[Any, int]:
        """Return the value at a position and where it ends; ``odd`` tells whether it was strict JSON."""
        self.odd = False
        try:
            return self._strict.raw_decode(text, at)
        except json.JSONDecodeError as error:
            if "control character" not in error.msg:
                raise
        self.odd = True
        return self._loose.raw_decode(text, at)

    def _constant(self, name: str) -> float:
        self.odd = True
        return float(name)


def _integer(text: str) -> int | Decimal:
    """Read an integer of any length; Python refuses more than 4300 digits and ijson crashes on them."""
    return int(text) if len(text) < 1000 else Decimal(text)


def _may_be_cut(error: Exception, text: str) -> bool:
    """Whether more text can help: all that json says about a cut is near the end, but for an open string."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos > len(text) - _LONGEST_TOKEN


def _is_utf8(piece: memoryview) -> bool:
    """Check the encoding without decoding: as one long text of Arrow."""
    offsets = pa.py_buffer(np.array([0, len(piece)], dtype=np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(piece)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _next(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    return match.end() if match else at
