"""Files as streams of bytes, plain or gzipped, counted for the progress bar."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from .report import OnBytes, ignore_bytes

CHUNK_BYTES = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"


class Readable(Protocol):
    """What can be read piece by piece."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        ...


class Stream(Readable, Protocol):
    """What can be read into a buffer, too."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of the buffer; 0 at the end."""
        ...


@contextmanager
def open_stream(path: Path, *, on_bytes: OnBytes = ignore_bytes) -> Iterator[Stream]:
    """Open a file, decompressed if it begins like a gzip; ``on_bytes`` is told the bytes on disk."""
    with path.open("rb", buffering=0) as raw:
        is_gzip = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        counted = CountedFile(raw, on_bytes)
        yield Unzipped(counted) if is_gzip else counted


class CountedFile:
    """Counts the raw bytes that pass, for the progress bar."""

    def __init__(self, file: io.FileIO, on_bytes: OnBytes) -> None:
        self._file, self._on_bytes = file, on_bytes

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        data = self._file.read(size) or b""
        self._on_bytes(len(data))
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of the buffer; 0 at the end."""
        n_read = self._file.readinto(buffer) or 0
        self._on_bytes(n_read)
        return n_read


class Unzipped:
    """Decompresses as far as the data goes; :class:`gzip.GzipFile` would drop what precedes a cut."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._zip = zlib.decompressobj(wbits=31)
        self._error: zlib.error | None = None

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes; none at the end."""
        if self._error is not None:  # damaged data stay damaged, whoever asks next
            raise self._error
        data = b""
        while not data:
            raw = self._zip.unconsumed_tail or self._zip.unused_data or self._file.read(CHUNK_BYTES)
            if not raw:
                break
            if self._zip.eof:  # another member follows
                self._zip = zlib.decompressobj(wbits=31)
            try:
                data = self._zip.decompress(raw, size)
            except zlib.error as error:
                self._error = error
                raise
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of the buffer; 0 at the end."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
