"""Plain pickles, read as a stream: dict, list, tuple, str, int, float, bool, None, nothing else (spec/pytorch 1.12).

There is no opcode here that imports, calls or builds anything: what a genuine snapshot never holds is refused by name.
The standard unpickler with its ``find_class`` closed would be as safe against code, but not against size: a few bytes
make it allocate a table of gigabytes (``LONG_BINPUT``) or hash a tuple nested a million times, and it keeps every
object until the end. This one hands dicts to a :class:`Reducer` as soon as they are whole and forgets them.
"""

from __future__ import annotations

import re
import struct
from typing import Any, NoReturn, Protocol

from ..errors import InputError

CHUNK_BYTES = 1 << 20
MAX_MARKS = 100
"""Containers open at once; a snapshot has seven."""
MAX_EMPTY_RUN = 4096
"""Empty containers in a row: a list of traces has one per device, nesting without end has many."""
MAX_TEXT_BYTES = 1 << 26
MAX_KEPT = 4_000_000
"""Dicts and lists that no reducer took: segments and their blocks."""

_FRAME_ITEMS = 6
_MANY = 10_000
"""Entries on the stack that are joined although their list is not whole."""
_LOOK_AHEAD = 16
"""No opcode with its fixed argument is longer."""
_HOLE = object()
_DOUBLE = struct.Struct(">d")
_GET = struct.Struct("<xI")
_GETS = re.compile(rb"(?:j.{4})+", re.DOTALL)
_FIRST = (b"\x80", b"c", b"(", b"i")
"""How a pickle begins; older protocols are followed as far as what they want to import."""
_BY_NAME = {0x63: "GLOBAL", 0x69: "INST"}
_FORBIDDEN = {
    0x52: "REDUCE (a call)", 0x62: "BUILD (sets an object's state)", 0x6F: "OBJ (makes an object)",
    0x81: "NEWOBJ (makes an object)", 0x92: "NEWOBJ_EX (makes an object)", 0x50: "PERSID (an object outside)",
    0x51: "BINPERSID (an object outside)", 0x82: "EXT1 (a registered global)", 0x83: "EXT2 (a registered global)",
    0x84: "EXT4 (a registered global)", 0x97: "NEXT_BUFFER (a buffer outside)", 0x98: "READONLY_BUFFER",
    0x42: "BINBYTES (bytes)", 0x43: "SHORT_BINBYTES (bytes)", 0x8E: "BINBYTES8 (bytes)", 0x96: "BYTEARRAY8 (bytes)",
    0x8F: "EMPTY_SET (a set)", 0x90: "ADDITEMS (a set)", 0x91: "FROZENSET (a set)",
}  # fmt: skip


class Stream(Protocol):
    """A binary file, plain or decompressed."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        ...


class Reducer(Protocol):
    """Takes what is whole, so that the objects need not be kept."""

    def reduce(self, found: dict[Any, Any]) -> Any:
        """Return what stands for a dict from now on: itself, or something smaller."""
        ...

    def known(self, items: list[Any]) -> Any:
        """Return what stands for a dict with these keys and values, if such a one was seen, else ``None``."""
        ...

    def stack_of(self, frames: list[Any]) -> Any:
        """Return what stands for the ``frames`` list of a dict."""
        ...

    def pack(self, items: list[Any]) -> list[Any]:
        """Return what stands for items that were just appended to a list."""
        ...


class PlainUnpickler:
    """Reads one plain pickle of protocol 2 to 5.

    Parameters
    ----------
    stream : Stream
        At its beginning.
    reducer : Reducer
        Asked about every dict once it has its items.
    name : str
        Of the file, for messages.
    """

    def __init__(self, stream: Stream, reducer: Reducer, name: str) -> None:
        self._stream, self._reducer, self._name = stream, reducer, name
        self._buffer = b""
        self._before = 0
        self._at_end = False
        self._memo: list[Any] = []
        self._place: dict[int, int] = {}
        """Memo index of the containers that are still being filled, by identity."""
        self._n_kept = 0

    def load(self) -> Any:
        """Return the object.

        Raises
        ------
        InputError
            If the file is no plain pickle: says what was refused, and at which byte.
        """
        try:
            return self._run()
        except (IndexError, struct.error):
            self._fail(len(self._buffer), "damaged, or it ends in the middle (cut while copying or writing?)")
        except MemoryError:
            self._fail(0, "needs more memory than there is")

    # -- text -----------------------------------------------------------------------------------------------------

    def _fail(self, at: int, reason: str) -> NoReturn:
        raise InputError(f"{self._name}: byte {self._before + at}: {reason}")

    def _refuse(self, at: int, what: str) -> NoReturn:
        self._fail(
            at,
            f"refused {what}. A memory snapshot consists of plain dicts, lists, texts and numbers; this file is "
            "something else, and running what it asks for could harm. Nothing was run",
        )

    def _more(self, at: int, wanted: int) -> int:
        """Drop what was consumed and read on; return the new position."""
        parts = [self._buffer[at:]]
        n_here = len(parts[0])
        while n_here < wanted and not self._at_end:
            data = self._stream.read(CHUNK_BYTES)
            self._at_end = not data
            parts.append(data)
            n_here += len(data)
        self._buffer = b"".join(parts)
        self._before += at
        return 0

    def _text(self, at: int, n_bytes: int) -> tuple[str, int]:
        if n_bytes > MAX_TEXT_BYTES:
            self._fail(at, f"a text of {n_bytes} bytes; none in a snapshot is longer than {MAX_TEXT_BYTES}")
        if at + n_bytes > len(self._buffer):
            at = self._more(at, n_bytes)
            if n_bytes > len(self._buffer):
                raise IndexError
        return self._buffer[at : at + n_bytes].decode("utf-8", "replace"), at + n_bytes

    # -- objects --------------------------------------------------------------------------------------------------

    def _count_kept(self, at: int) -> None:
        self._n_kept += 1
        if self._n_kept > MAX_KEPT:
            self._fail(at, f"more than {MAX_KEPT} dicts and lists beside the history; no snapshot has so many")

    def _put(self, at: int, index: int, top: Any) -> None:
        memo = self._memo
        if index > len(memo):  # a writer may leave numbers out, though not more than it wrote bytes
            if index > self._before + at:
                self._fail(at, f"memo number {index} in a file that is only {self._before + at} bytes long so far")
            memo.extend([_HOLE] * (index - len(memo)))
        if index == len(memo):
            memo.append(top)
        else:
            memo[index] = top
        if type(top) is dict or type(top) is list:
            self._place[id(top)] = index

    def _replace(self, old: Any, new: Any) -> None:
        """Let later references to an object lead to what stands for it, so that it can go."""
        index = self._place.pop(id(old), -1)
        if index >= 0 and self._memo[index] is old:
            self._memo[index] = new

    def _set_items(self, at: int, target: Any, items: list[Any]) -> Any:
        """Fill a dict and hand it on; a key is a text or a number, so that no hash goes deep."""
        if type(target) is not dict:
            self._fail(at, "items for something that is no dict")
        if len(items) == _FRAME_ITEMS and not target and (known := self._reducer.known(items)) is not None:
            self._replace(target, known)
            return known
        keys = items[0::2]
        for key in keys:
            if type(key) is not str and type(key) is not int:
                self._fail(at, f"a key of type {type(key).__name__}; those of a snapshot are texts")
        target.update(zip(keys, items[1::2], strict=False))
        frames = target.get("frames")
        if type(frames) is list:
            stack = target["frames"] = self._reducer.stack_of(frames)
            self._replace(frames, stack)
        new = self._reducer.reduce(target)
        if new is target:
            self._count_kept(at)
        else:
            self._replace(target, new)
        return new

    def _append(self, at: int, target: Any, items: list[Any]) -> None:
        if type(target) is not list:
            self._fail(at, "items for something that is no list")
        self._n_kept += 1 if not target else 0
        target.extend(self._reducer.pack(items))

    # -- opcodes --------------------------------------------------------------------------------------------------

    def _run(self) -> Any:  # one long loop: a call for each opcode would take longer than the work
        memo, marks, stack = self._memo, [], []  # type: list[Any], list[int], list[Any]
        pos, n_empty = self._more(0, _LOOK_AHEAD), 0
        data = self._buffer
        safe = len(data) - _LOOK_AHEAD
        number = int.from_bytes
        if data[:1] not in _FIRST:
            self._fail(0, f"not a pickle of protocol 2 to 5 (it starts with {data[:12]!r})")
        while True:
            if pos > safe and not self._at_end:
                pos = self._more(pos, _LOOK_AHEAD)
                data = self._buffer
                safe = len(data) - _LOOK_AHEAD
            op = data[pos]
            pos += 1
            if op == 0x68:  # BINGET
                stack.append(memo[data[pos]])
                pos += 1
            elif op == 0x6A:  # LONG_BINGET; a stack is a run of them
                if data[pos + 4 : pos + 5] == b"j":
                    end = _GETS.match(data, pos - 1).end()  # type: ignore[union-attr]
                    stack += [memo[index] for (index,) in _GET.iter_unpack(data[pos - 1 : end])]
                    pos = end
                else:
                    stack.append(memo[number(data[pos : pos + 4], "little")])
                    pos += 4
            elif op == 0x94:  # MEMOIZE
                self._put(pos, len(memo), stack[-1])
            elif op == 0x72:  # LONG_BINPUT
                self._put(pos, number(data[pos : pos + 4], "little"), stack[-1])
                pos += 4
            elif op == 0x4B:  # BININT1
                stack.append(data[pos])
                pos += 1
            elif op == 0x8A:  # LONG1
                end = pos + 1 + data[pos]
                if end > len(data):
                    pos, data = self._long(pos, end)
                    safe, end = len(data) - _LOOK_AHEAD, pos + 1 + data[pos]
                stack.append(number(data[pos + 1 : end], "little", signed=True))
                pos = end
            elif op == 0x4D:  # BININT2
                stack.append(data[pos] | data[pos + 1] << 8)
                pos += 2
            elif op == 0x4A:  # BININT
                stack.append(number(data[pos : pos + 4], "little", signed=True))
                pos += 4
            elif op == 0x28:  # MARK
                marks.append(len(stack))
                n_empty = 0
                if len(marks) > MAX_MARKS:
                    self._fail(pos, f"nested deeper than {MAX_MARKS} levels; a snapshot has seven")
            elif op == 0x7D or op == 0x5D:  # EMPTY_DICT, EMPTY_LIST
                stack.append({} if op == 0x7D else [])
                n_empty += 1
                if n_empty > MAX_EMPTY_RUN:
                    self._fail(pos, f"{MAX_EMPTY_RUN} containers opened in a row: nested too deep for a snapshot")
            elif op == 0x75:  # SETITEMS
                first = marks.pop()
                stack[first - 1] = self._set_items(pos, stack[first - 1], stack[first:])
                del stack[first:]
                if len(stack) > _MANY and marks:  # the C++ writer appends a whole history at once
                    stack[marks[-1] :] = self._reducer.pack(stack[marks[-1] :])
            elif op == 0x73:  # SETITEM
                stack[-3] = self._set_items(pos, stack[-3], stack[-2:])
                del stack[-2:]
            elif op == 0x65:  # APPENDS
                first = marks.pop()
                self._append(pos, stack[first - 1], stack[first:])
                del stack[first:]
            elif op == 0x61:  # APPEND
                self._append(pos, stack[-2], stack[-1:])
                del stack[-1]
            elif op == 0x71:  # BINPUT
                self._put(pos, data[pos], stack[-1])
                pos += 1
            elif op == 0x8C or op == 0x58 or op == 0x8D:  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
                width = 1 if op == 0x8C else 4 if op == 0x58 else 8
                text, pos = self._text(pos + width, number(data[pos : pos + width], "little"))
                data = self._buffer
                safe = len(data) - _LOOK_AHEAD
                stack.append(text)
            elif op == 0x86 and type(stack[-1]) is int and type(stack[-2]) is int:  # TUPLE2: a pool
                stack[-2:] = [(stack[-2], stack[-1])]
            elif op == 0x4E:
                stack.append(None)
            elif op == 0x88 or op == 0x89:
                stack.append(op == 0x88)
            elif op == 0x47:  # BINFLOAT
                stack.append(_DOUBLE.unpack_from(data, pos)[0])
                pos += 8
            elif op == 0x95:  # FRAME: only tells how far the writer buffered
                pos += 8
            elif op == 0x80:  # PROTO
                if not 2 <= data[pos] <= 5:
                    self._fail(pos, f"pickle protocol {data[pos]}; 2 to 5 are known")
                pos += 1
            elif op == 0x2E:  # STOP
                if len(stack) != 1 or marks:
                    self._fail(pos, "ends with unfinished containers")
                return stack[0]
            else:
                self._rare(op, pos, stack, marks)

    def _long(self, at: int, end: int) -> tuple[int, bytes]:
        """Read on for an integer that is longer than the look-ahead."""
        at = self._more(at, end - at)
        if at + 1 + self._buffer[at] > len(self._buffer):
            raise IndexError
        return at, self._buffer

    def _rare(self, op: int, at: int, stack: list[Any], marks: list[int]) -> None:
        """Tuples of other lengths, and everything that is refused."""
        if op in (0x29, 0x74, 0x85, 0x86, 0x87):  # EMPTY_TUPLE, TUPLE, TUPLE1 to TUPLE3
            first = marks.pop() if op == 0x74 else len(stack) - {0x29: 0, 0x85: 1, 0x86: 2, 0x87: 3}[op]
            if first < 0:
                raise IndexError
            items = tuple(stack[first:])
            if any(type(item) not in (int, str, bool, float) for item in items):
                self._fail(at, "a tuple of something other than numbers and texts; a snapshot has none")
            stack[first:] = [items]
            return
        if op in _BY_NAME:
            at = self._more(at, 1 << 10)
            names = self._buffer[:2048].split(b"\n")[:2]
            self._refuse(at, f"the global {b'.'.join(names).decode('utf-8', 'replace')[:200]!r}")
        if op == 0x93:  # STACK_GLOBAL
            names_ = [str(part)[:100] for part in stack[-2:] if isinstance(part, str)]
            self._refuse(at, f"the global {'.'.join(names_)!r}")
        if op in _FORBIDDEN:
            self._refuse(at, _FORBIDDEN[op])
        self._fail(at - 1, f"opcode {op:#04x}, which no plain pickle of protocol 2 to 5 holds")
