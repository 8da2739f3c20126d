"""Opening a PyTorch snapshot: plain or gzipped, pickle or JSON, within limits (spec/pytorch 1.12)."""

from __future__ import annotations

import gc
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..units import format_bytes
from .pytorch_pickle import PlainUnpickler
from .pytorch_rows import Rows
from .report import OnBytes, ignore_bytes
from .streams import Readable, open_stream

LIMIT_VARIABLE = "MEMSCOPE_MAX_SNAPSHOT_BYTES"
DEFAULT_LIMIT = 16 << 30
JSON_LIMIT = 1 << 30
"""A JSON text is decoded whole."""


class LimitedStream:
    """Counts what passes and stops at a limit: a small archive can hold a file without end."""

    def __init__(self, file: Readable, limit: int, name: str) -> None:
        self._file, self._left, self._limit, self._name = file, limit, limit, name
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them."""
        while len(self._head) < size and (data := self._file.read(size - len(self._head))):
            self._head += data
        return self._head

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes."""
        if self._head:
            data, self._head = self._head, b""
        else:
            data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise InputError(
                f"{self._name}: more than {format_bytes(self._limit)}; if you trust the file, raise the limit with "
                f"{LIMIT_VARIABLE} (bytes)"
            )
        return data


def size_limit() -> int:
    """Return how many bytes a snapshot may have, decompressed."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    return int(text) if text.isdecimal() else DEFAULT_LIMIT


def read_document(path: Path, *, on_bytes: OnBytes = ignore_bytes) -> tuple[Any, Rows]:
    """Read a snapshot file; its entries, frames and stacks are in the rows, everything else in the object.

    Raises
    ------
    InputError
        If the file is too large, damaged, or no plain snapshot.
    """
    rows = Rows()
    try:
        with open_stream(path, on_bytes=on_bytes) as file:
            stream = LimitedStream(file, size_limit(), path.name)
            head = stream.peek(64).lstrip(b"\xef\xbb\xbf \t\r\n")
            with _no_collection():
                if head[:1] in (b"{", b"["):
                    return _read_json(stream, rows, path.name), rows
                return PlainUnpickler(stream, rows, path.name).load(), rows
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path.name}: cannot be read ({error})") from error
    except (MemoryError, RecursionError) as error:
        raise InputError(f"{path.name}: needs more memory or depth than there is ({type(error).__name__})") from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold the cyclic garbage collector: nothing here is cyclic, and it would look at every block again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_json(stream: LimitedStream, rows: Rows, name: str) -> Any:
    parts, total = [], 0
    while data := stream.read(1 << 20):
        parts.append(data)
        total += len(data)
        if total > JSON_LIMIT:
            raise InputError(f"{name}: a JSON snapshot of more than {format_bytes(JSON_LIMIT)}; keep it as a pickle")
    try:
        return json.loads(b"".join(parts).decode("utf-8-sig", "replace"), object_hook=rows.reduce_json)
    except ValueError as error:
        raise InputError(f"{name}: not JSON: {error}") from error
