"""Typed columns from the CSV files of profilers: exact times, exact bytes, every bad cell counted.

Columns are mapped by header name and the unit in the header text (``Size(KB)``); missing columns are accepted, unknown
ones ignored (spec/ascend_profiler 3.2). Arrow cuts the text into cells and converts whole columns; a file whose quoting
Arrow refuses is read row by row by the :mod:`csv` module into the same conversion.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from ..errors import InputError
from ..model import NA_NS
from .report import OnBytes, ReadReport, ignore_bytes

Kind = Literal["text", "time", "bytes", "int"]
Column: TypeAlias = "npt.NDArray[np.int64] | pd.Categorical"

BLOCK_BYTES = 1 << 20
_HEADER = re.compile(r"(?P<name>[^()]*?)\s*(?:\((?P<unit>[^()]*)\))?")
_UNIT_FACTOR = {"b": 1, "byte": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_EMPTY_CELLS = pa.array(["", "N/A", "NA", "nan", "None", "null"])
_TIME = r"^-?\d+(\.\d{1,3})?$"
_LONG_TIME = r"^(-?\d+\.\d{3})\d+$"
_EXPONENT = r"^-?\d+(\.\d*)?[eE][+-]?\d+$"


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
    columns: Mapping[str, Column]
    rounding: Mapping[str, npt.NDArray[np.int64]]
    """For byte columns: half the last printed digit in bytes where the text is not a whole number of bytes, else 0."""

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def ints(self, name: str) -> npt.NDArray[np.int64]:
        """Return an integer column; all unknown if the file lacks it."""
        column = self.columns.get(name)
        return column if isinstance(column, np.ndarray) else np.full(self.n_rows, NA_NS, dtype=np.int64)

    def text(self, name: str) -> pd.Categorical:
        """Return a text column; all empty if the file lacks it."""
        column = self.columns.get(name)
        return column if isinstance(column, pd.Categorical) else pd.Categorical([""] * self.n_rows)


def read_header(path: Path) -> Header:
    """Read the first line: normalised names with their units, and the file's encoding (UTF-8, else GB18030)."""
    with path.open("rb") as file:
        line = file.readline()
    for encoding in ("utf-8-sig", "gb18030"):
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError:
            continue
        cells = tuple(cell.strip() for cell in next(csv.reader([text]), []))
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
    collector = _Collector(path, header, wanted, report)
    try:
        for batch in _arrow_batches(path, header, header.encoding, report, on_bytes):
            collector.add(batch)
    except pa.ArrowInvalid as error:
        # Quotes that do not close, or bytes of another encoding: start again the slow way, which never refuses a file.
        collector = _Collector(path, header, wanted, report)
        report.repair(f"{path.name}: read row by row ({str(error).splitlines()[0][:120]})")
        for batch in _python_batches(path, header, report):
            collector.add(batch)
    return collector.table()


def _arrow_batches(
    path: Path, header: Header, encoding: str, report: ReadReport, on_bytes: OnBytes
) -> Iterator[pa.RecordBatch]:
    def skip(row: Any) -> str:
        if row.text.strip():
            report.skip(f"{path.name}: rows with another number of cells than the header", 1, f"{row.text[:80]!r}")
        return "skip"

    options: dict[str, Any] = {
        "read_options": pa_csv.ReadOptions(
            block_size=BLOCK_BYTES,
            use_threads=False,
            column_names=list(header.names),
            skip_rows=1,
            encoding="utf-8" if encoding == "utf-8-sig" else encoding,
        ),
        "parse_options": pa_csv.ParseOptions(invalid_row_handler=skip),
        "convert_options": pa_csv.ConvertOptions(
            column_types=dict.fromkeys(header.names, pa.string()), strings_can_be_null=False
        ),
    }
    if path.stat().st_size == 0:
        return
    try:
        reader = pa_csv.open_csv(path, **options)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):  # only a header
            return
        raise
    with reader:
        for batch in reader:
            on_bytes(batch.nbytes)
            yield batch


def _python_batches(path: Path, header: Header, report: ReadReport, size: int = 20_000) -> Iterator[pa.RecordBatch]:
    encoding = header.encoding
    try:
        path.read_text(encoding=encoding)
    except UnicodeDecodeError:
        encoding = "gb18030"
    width = len(header.cells)
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        rows = csv.reader(file)
        next(rows, None)
        while chunk := list(islice(rows, size)):
            whole = [row for row in chunk if len(row) == width]
            if len(whole) < len(chunk):
                broken = [row for row in chunk if len(row) != width and any(cell.strip() for cell in row)]
                report.skip(
                    f"{path.name}: rows with another number of cells than the header",
                    len(broken),
                    f"near line {rows.line_num}",
                )
            columns = list(zip(*whole, strict=True)) or [()] * width
            yield pa.RecordBatch.from_arrays([pa.array(c, pa.string()) for c in columns], names=list(header.names))


class _Collector:
    """Converts batches of text cells and keeps only the typed columns."""

    def __init__(self, path: Path, header: Header, kinds: Mapping[str, Kind], report: ReadReport) -> None:
        self.path, self.header, self.kinds, self.report = path, header, kinds, report
        self.n_rows = 0
        self.parts: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in kinds}
        self.rounding: dict[str, list[npt.NDArray[np.int64]]] = {n: [] for n, kind in kinds.items() if kind == "bytes"}
        self.texts: dict[str, dict[str, int]] = {name: {} for name, kind in kinds.items() if kind == "text"}

    def add(self, batch: pa.RecordBatch) -> None:
        for name, kind in self.kinds.items():
            cells = pc.utf8_trim_whitespace(batch.column(name))
            if kind == "text":
                self.parts[name].append(self._codes(name, cells))
                continue
            cells = pc.if_else(pc.is_in(cells, value_set=_EMPTY_CELLS), pa.scalar(None, pa.string()), cells)
            if kind == "time":
                self.parts[name].append(self._times(name, cells))
            elif kind == "bytes":
                values, rounding = self._bytes(name, cells)
                self.parts[name].append(values)
                self.rounding[name].append(rounding)
            else:
                self.parts[name].append(self._numbers(name, cells, r"^-?\d{1,18}$", pa.int64()))
        self.n_rows += batch.num_rows

    def table(self) -> Table:
        columns: dict[str, Column] = {}
        for name, parts in self.parts.items():
            column = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
            columns[name] = pd.Categorical.from_codes(column, list(self.texts[name])) if name in self.texts else column
        rounding = {n: np.concatenate(p) if p else np.empty(0, dtype=np.int64) for n, p in self.rounding.items()}
        return Table(self.path, self.n_rows, columns, rounding)

    def _codes(self, name: str, cells: pa.StringArray) -> npt.NDArray[np.int64]:
        """One number per distinct text, the same over all batches."""
        encoded = cells.dictionary_encode()
        known = self.texts[name]
        mapping = np.array(
            [known.setdefault(text, len(known)) for text in encoded.dictionary.to_pylist()], dtype=np.int64
        )
        return mapping[encoded.indices.to_numpy(zero_copy_only=False)] if len(mapping) else np.empty(0, dtype=np.int64)

    def _times(self, name: str, cells: pa.StringArray) -> npt.NDArray[np.int64]:
        """Decimal microseconds to integer ns without a float (spec/ascend_profiler 8)."""
        damaged = pc.fill_null(pc.match_substring_regex(cells, _EXPONENT), False)
        if pc.any(damaged).as_py():
            value = cells.filter(damaged)[0].as_py()
            raise InputError(
                f"{self.path.name}: times such as {value} have lost their resolution (saved by a spreadsheet program); "
                "use the original file or export it again"
            )
        long = pc.fill_null(pc.match_substring_regex(cells, _LONG_TIME), False)
        if pc.any(long).as_py():
            self.report.repair(f"{self.path.name}: {name} cut to whole nanoseconds", pc.sum(long).as_py())
            cells = pc.replace_substring_regex(cells, _LONG_TIME, r"\1")
        good = self._readable(name, cells, _TIME)
        decimals = good.cast(pa.decimal128(22, 3))
        ns = pc.multiply(decimals, pa.scalar(1000, pa.decimal128(4, 0))).cast(pa.int64())
        return _filled(ns)

    def _bytes(self, name: str, cells: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sizes to bytes; where the text is not a whole number of bytes also half its last digit.

        A float64 is exact here: sizes are multiples of 512 B, so their text in KB or MB is a dyadic number, which
        parsing returns exactly; other text was rounded by its producer and is brought to the nearest byte.
        """
        good = self._readable(name, cells, r"^-?\d+(\.\d+)?([eE][+-]?\d{1,2})?$")
        factor = _UNIT_FACTOR.get(self.header.units[name])
        if factor is None:
            raise InputError(f"{self.path.name}: column {name} has no known unit (KB or MB) in its header")
        scaled = pc.fill_null(good.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False) * factor
        whole = np.rint(scaled)
        known = np.isfinite(scaled)
        values = np.where(known, np.where(known, whole, 0).astype(np.int64), NA_NS)
        rounding = np.zeros(len(values), dtype=np.int64)
        cut = np.flatnonzero(known & (np.abs(scaled - whole) > 1e-4))
        for i in cut:  # few: only the cells that a producer or a re-save rounded
            decimals = len(good[int(i)].as_py().partition(".")[2])
            rounding[i] = int(np.ceil(factor * 0.5 * 10.0**-decimals))
        return values, rounding

    def _numbers(self, name: str, cells: pa.StringArray, pattern: str, kind: pa.DataType) -> npt.NDArray[np.int64]:
        return _filled(self._readable(name, cells, pattern).cast(kind))

    def _readable(self, name: str, cells: pa.StringArray, pattern: str) -> pa.StringArray:
        """Cells that match; the others become unknown and are counted with line and value."""
        bad = pc.fill_null(pc.invert(pc.match_substring_regex(cells, pattern)), False)
        if pc.any(bad).as_py():
            first = int(pc.index(bad, True).as_py())
            example = f"line {self.n_rows + first + 2}: {cells[first].as_py()[:60]!r}"
            self.report.repair(
                f"{self.path.name}: unreadable cells in {name} taken as unknown", pc.sum(bad).as_py(), example
            )
            cells = pc.if_else(bad, pa.scalar(None, pa.string()), cells)
        return cells


def _filled(values: pa.Array) -> npt.NDArray[np.int64]:
    filled: npt.NDArray[np.int64] = pc.fill_null(values, NA_NS).to_numpy(zero_copy_only=False)
    return filled
