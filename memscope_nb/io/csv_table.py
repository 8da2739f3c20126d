"""Typed columns from the CSV files of profilers: exact times, exact bytes, every bad cell counted.

Columns are mapped by header name and the unit in the header text (``Size(KB)``); missing columns are accepted, unknown
ones ignored (spec/ascend_profiler 3.2). Arrow cuts the text into cells, block by block, and :mod:`.csv_columns` turns
them into integers; a file whose quoting Arrow refuses is read row by row by the :mod:`csv` module and converted alike.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from ..errors import InputError
from ..model import NA_NS
from .csv_blocks import line_blocks, parse_block, python_batches, skip_rows
from .csv_columns import Int64Array, NeedsTextError, Place, integers, sizes, times, whole_sizes
from .report import OnBytes, ReadReport, ignore_bytes

Kind = Literal["text", "time", "bytes", "int"]
Column: TypeAlias = "npt.NDArray[np.int64] | pd.Categorical"

BLOCK_BYTES = 1 << 20
_HEADER = re.compile(r"(?P<name>[^()]*?)\s*(?:\((?P<unit>[^()]*)\))?")
_UNIT_FACTOR = {"b": 1, "byte": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


@dataclass(frozen=True)
class Header:
    """The header line of a file."""

    cells: tuple[str, ...]
    units: Mapping[str, str]
    encoding: str

    @property
    def names(self) -> tuple[str, ...]:
        """Normalised column names: lower case, without the unit."""
        return tuple(self.units)


@dataclass(frozen=True)
class Table:
    """Typed columns of one file; integer columns hold ``NA_NS`` where a cell was empty or unreadable."""

    path: Path
    n_rows: int
    columns: dict[str, Column]
    rounding: Mapping[str, npt.NDArray[np.int64]]
    """For byte columns: half the last printed digit in bytes where the text is not a whole number of bytes, else 0."""
    kept: npt.NDArray[np.bool_] | None = None
    """Which rows of the file are here, if not all."""

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def ints(self, name: str) -> npt.NDArray[np.int64]:
        """Return an integer column; all unknown if the file lacks it."""
        column = self.columns.get(name)
        return column if isinstance(column, np.ndarray) else np.full(self.n_rows, NA_NS, dtype=np.int64)

    def take(self, name: str) -> npt.NDArray[np.int64]:
        """Hand an integer column over: it is no longer kept here."""
        values = self.ints(name)
        self.columns.pop(name, None)
        return values

    def text(self, name: str) -> pd.Categorical:
        """Return a text column; all empty if the file lacks it."""
        column = self.columns.get(name)
        if isinstance(column, pd.Categorical):
            return column
        return pd.Categorical.from_codes(np.zeros(self.n_rows, dtype=np.int8), [""])

    def where(self, row: int) -> str:
        """Name the place of a row, for remarks."""
        return f"line {(row if self.kept is None else int(np.flatnonzero(self.kept)[row])) + 2}"


def read_header(path: Path) -> Header:
    """Read the first line: normalised names with their units, and the file's encoding (UTF-8, else GB18030)."""
    with path.open("rb") as file:
        line = file.readline()
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError:
            continue
        try:
            cells = tuple(cell.strip() for cell in next(csv.reader([text]), []))
        except csv.Error as error:  # NUL bytes, before Python 3.11
            raise InputError(f"{path.name}: the header line cannot be read ({error}); is this a CSV file?") from None
        units: dict[str, str] = {}
        for cell in cells:
            match = _HEADER.fullmatch(cell)
            name, unit = (match["name"], match["unit"] or "") if match else (cell, "")
            units[" ".join(name.lower().replace("_", " ").split())] = unit.strip().lower()
        if len(units) != len(cells):
            raise InputError(f"{path}: the header names a column twice: {text.strip()!r}")
        return Header(cells, units, encoding)
    raise InputError(f"{path}: the header line is neither UTF-8 nor GB18030 text; is this a CSV file?")


def read_table(
    path: Path,
    kinds: Mapping[str, Kind],
    *,
    required: tuple[str, ...],
    report: ReadReport,
    on_bytes: OnBytes = ignore_bytes,
    drop: tuple[str, str] | None = None,
) -> Table:
    """Read the columns named in ``kinds`` from a CSV file.

    Parameters
    ----------
    path : Path
        The file.
    kinds : mapping
        Normalised column name to kind: ``text`` (a Categorical), ``time`` (microseconds text to int64 ns), ``bytes``
        (KB or MB text, by the header's unit, to int64 bytes), ``int``.
    required : tuple of str
        Columns without which the file is refused.
    report : ReadReport
        Receives every skipped row and unreadable cell.
    on_bytes : callable
        Progress.
    drop : (str, str), optional
        A text column and a suffix: rows in which it ends so are left out before anything is converted.

    Raises
    ------
    InputError
        If a required column is missing or a spreadsheet program has destroyed the times (``1.69512E+15``).
    """
    header = read_header(path)
    missing = [name for name in required if name not in header.names]
    if missing:
        raise InputError(
            f"{path.name}: no column {', '.join(missing)}; the header is {', '.join(header.cells) or 'empty'}"
        )
    wanted = {name: kind for name, kind in kinds.items() if name in header.names}
    drop = drop if drop and wanted.get(drop[0]) == "text" else None
    part = ReadReport()
    collector = _Collector(path, header, wanted, part, drop)
    progress = _Progress(path.stat().st_size, on_bytes)
    try:
        _read_blocks(path, header, collector, progress)
    except pa.ArrowInvalid as error:
        # Quotes that do not close, or bytes of another encoding: start again the slow way, which never refuses a file.
        part = ReadReport()
        collector = _Collector(path, header, wanted, part, drop)
        part.repair(f"{path.name}: read row by row ({str(error).splitlines()[0][:120]})")
        for batch in python_batches(path, header.names, header.encoding, part):
            collector.add(batch, path.stat().st_size)
    _merge(part, report)
    progress.reached(progress.total)
    return collector.table()


def _merge(part: ReadReport, report: ReadReport) -> None:
    report.n_skipped += part.n_skipped
    report.n_repaired += part.n_repaired
    for note in part.notes.values():
        report.note(note.text, note.count, note.example)


class _Progress:
    """Reports bytes once, however often a file is read."""

    def __init__(self, total: int, on_bytes: OnBytes) -> None:
        self.total, self._on_bytes, self._told = total, on_bytes, 0

    def reached(self, n_bytes: int) -> None:
        news = min(n_bytes, self.total) - self._told
        if news > 0:
            self._told += news
            self._on_bytes(news)


def _read_blocks(path: Path, header: Header, collector: _Collector, progress: _Progress) -> None:
    """Read a file by Arrow, block by block, each freed before the next; sizes as numbers as long as all are plain."""
    types: dict[Kind, pa.DataType] = {"text": pa.dictionary(pa.int32(), pa.string()), "bytes": pa.float64()}
    numbers = {name: types.get(kind, pa.string()) for name, kind in collector.kinds.items()}
    texts = {name: pa.string() if pa.types.is_floating(kind) else kind for name, kind in numbers.items()}
    as_numbers = True
    with path.open("rb", buffering=0) as file:
        for block, n_read in line_blocks(file, BLOCK_BYTES):
            if as_numbers:
                try:
                    batch, skipped = parse_block(block, header.names, header.encoding, numbers)
                    collector.add(batch, len(block))
                except (pa.ArrowInvalid, NeedsTextError):
                    as_numbers = False
            if not as_numbers:
                batch, skipped = parse_block(block, header.names, header.encoding, texts)
                collector.add(batch, len(block))
            for text in skipped:
                skip_rows(collector.report, path, 1, f"{text[:80]!r}")
            progress.reached(n_read)


class _Collector:
    """Converts batches of cells and keeps only the typed columns."""

    def __init__(
        self, path: Path, header: Header, kinds: Mapping[str, Kind], report: ReadReport, drop: tuple[str, str] | None
    ) -> None:
        self.path, self.header, self.kinds, self.report, self.drop = path, header, kinds, report, drop
        self._n_lines = self._n_bytes = 0
        self._columns = {name: _Growing(np.int32 if kind == "text" else np.int64) for name, kind in kinds.items()}
        self._rounding: dict[str, _Growing] = {}
        self._kept = _Growing(np.bool_)
        self._texts: dict[str, dict[str, int]] = {name: {} for name, kind in kinds.items() if kind == "text"}
        self._factors: dict[str, int] = {}
        for name in (name for name, kind in kinds.items() if kind == "bytes"):
            factor = _UNIT_FACTOR.get(header.units[name])
            if factor is None:
                raise InputError(f"{path.name}: column {name} has no known unit (KB or MB) in its header")
            self._factors[name] = factor

    def add(self, batch: pa.RecordBatch | None, n_bytes: int) -> None:
        """Convert the cells of a block of so many bytes, all or none; the block can be freed afterwards."""
        if batch is None:
            return
        n_lines = batch.num_rows
        kept = self._wanted_rows(batch)
        if kept is not None:
            batch = batch.filter(pa.array(kept))

        def place(row: int) -> str:
            return f"line {self._n_lines + (row if kept is None else int(np.flatnonzero(kept)[row])) + 2}"

        values = {name: self._convert(name, kind, batch.column(name), place) for name, kind in self.kinds.items()}
        self._n_lines += n_lines
        self._n_bytes += n_bytes
        expected = self._expected_rows()
        for name, (column, rounding) in values.items():
            if rounding is not None and (rounding.any() or name in self._rounding):
                self._rounding.setdefault(name, _Growing(np.int64, self._columns[name].n)).extend(rounding, expected)
            elif name in self._rounding:
                self._rounding[name].extend(np.zeros(len(column), dtype=np.int64), expected)
            self._columns[name].extend(column, expected)
        if kept is not None:
            self._kept.extend(kept, expected)

    def _expected_rows(self) -> int:
        """How many lines the file has, by those seen so far."""
        return int(self._n_lines * (self.path.stat().st_size / max(1, self._n_bytes)) * 1.02) + 1

    def _convert(
        self, name: str, kind: Kind, cells: pa.Array, place: Place
    ) -> tuple[npt.NDArray[Any], Int64Array | None]:
        if kind == "text":
            return self._codes(name, cells), None
        if kind == "time":
            return times(cells, name, self.path.name, place, self.report), None
        if kind == "int":
            return integers(cells, name, self.path.name, place, self.report), None
        if pa.types.is_floating(cells.type):
            return whole_sizes(cells, self._factors[name]), None
        return sizes(cells, self._factors[name], name, self.path.name, place, self.report)

    def _wanted_rows(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Which rows of a block to keep, None for all."""
        if self.drop is None:
            return None
        texts, codes = _encoded(batch.column(self.drop[0]))
        return np.array([not text.endswith(self.drop[1]) for text in texts] or [True], dtype=bool)[codes]

    def _codes(self, name: str, cells: pa.Array) -> npt.NDArray[np.int32]:
        """One number per distinct text, the same over all batches."""
        texts, codes = _encoded(cells)
        known = self._texts[name]
        return np.array([known.setdefault(text, len(known)) for text in texts] or [0], dtype=np.int32)[codes]

    def table(self) -> Table:
        """Return all columns."""
        columns: dict[str, Column] = {}
        for name, growing in self._columns.items():
            values = growing.values()
            columns[name] = (
                pd.Categorical.from_codes(values, list(self._texts[name])) if name in self._texts else values
            )
        n_rows = max((growing.n for growing in self._columns.values()), default=0)
        none = np.broadcast_to(np.int64(0), n_rows)  # takes no memory
        rounding = {name: self._rounding[name].values() if name in self._rounding else none for name in self._factors}
        return Table(self.path, n_rows, columns, rounding, None if self.drop is None else self._kept.values())


class _Growing:
    """A column that is filled in place; room that is not used yet is address space, not memory."""

    def __init__(self, dtype: type[np.generic], n_zeros: int = 0) -> None:
        self._room: npt.NDArray[Any] = np.zeros(n_zeros, dtype=dtype)
        self.n = n_zeros

    def extend(self, values: npt.NDArray[Any], expected: int) -> None:
        end = self.n + len(values)
        if end > len(self._room):
            room = np.empty(max(expected, end + end // 4), dtype=self._room.dtype)
            room[: self.n] = self._room[: self.n]
            self._room = room
        self._room[self.n : end] = values
        self.n = end

    def values(self) -> npt.NDArray[Any]:
        return self._room[: self.n]


def _encoded(cells: pa.Array) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Distinct texts, and the position of each cell's text among them."""
    encoded = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
    return [text.strip() for text in encoded.dictionary.to_pylist()], encoded.indices.to_numpy(zero_copy_only=False)
