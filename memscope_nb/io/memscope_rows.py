"""Rows of a msMemScope dump CSV, whole and in order, as batches of text cells (spec/msmemscope 2).

The tool glues its rows together: cells hold line ends (stacks), quotes inside marks are not doubled and bare names may
hold commas. A row is therefore found by how it begins, not by its quotes. Rows whose quotes are in order (checked by
columns of bytes) go through Arrow; only the others are read one by one, from both ends towards the broken cell.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from ..errors import InputError
from .report import OnBytes, ReadReport, ignore_bytes

CHUNK_BYTES = 8 << 20
MAX_HEADER_BYTES = 1 << 16
COLUMNS = ("id", "event", "type", "name", "time", "pid", "tid", "device", "ptr", "attrs", "py_stack", "c_stack")
"""What every batch has, in this order; all text."""

_HEADERS = {
    "id": "id", "record index": "id", "event": "event", "event type": "type", "name": "name", "timestamp(ns)": "time",
    "timestamp(us)": "time", "process id": "pid", "thread id": "tid", "device id": "device", "ptr": "ptr",
    "addr": "ptr", "attr": "attrs", "call stack(python)": "py_stack", "call stack(c)": "c_stack", "size(byte)": "size",
    "total allocated(byte)": "used", "total reserved(byte)": "total",
}  # fmt: skip
REQUIRED = ("id", "event", "type", "time", "pid", "device")

_EVENTS = "SYSTEM|MALLOC|FREE|ACCESS|OP_LAUNCH|KERNEL_LAUNCH|MSTX|SNAPSHOT|OOM_DETAIL|Event"
_ROW_START = re.compile(
    rf'\n(?="?\d{{1,20}}"?,"?[A-Za-z_]{{2,24}}"?,[^,\n]{{2,40}},|[^,\n]{{0,24}},"?(?:{_EVENTS})"?,)'.encode()
)
_BROKEN = re.compile(
    r'"?(?P<id>[^,"]{0,24})"?,(?P<event>[^,\n]*),(?P<type>[^,\n]*),(?P<name>.*?),'
    r"(?P<time>\d{10,20}),(?P<pid>-?\d+|N/A|),(?P<tid>-?\d+|N/A|),(?P<device>[^,\n]{0,16}),"
    r"(?P<ptr>0x[0-9a-fA-F]+|\d+|N/A|),(?P<rest>.*)",
    re.DOTALL,
)
_REST = re.compile(r'"?(?P<attrs>\{.*?\}|)"?(?:,(?P<stacks>.*))?', re.DOTALL)
_MAX_JOINED = 8
"""A cell that itself looks like the start of rows joins at most so many pieces."""


@dataclass(frozen=True)
class DumpHeader:
    """The header of a dump: what each column is, in file order (unknown ones keep their text)."""

    columns: tuple[str, ...]
    n_bytes: int

    @property
    def resyncs(self) -> bool:
        """Whether rows can be told by how they begin."""
        return self.columns[:2] == ("id", "event")

    @property
    def is_legacy(self) -> bool:
        """Whether sizes and totals are columns of their own (until May 2025) instead of an Attr cell."""
        return "size" in self.columns


def sniff_header(first: bytes) -> DumpHeader | None:
    """Recognise the header of a dump in the first bytes of a file, in any letter case; ``None`` for other files."""
    line, end, _ = first.partition(b"\n")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    cells = [cell.strip().strip('"').lower() for cell in text.rstrip("\r").split(",")]
    columns = tuple(_HEADERS.get(" ".join(cell.split()), cell) for cell in cells)
    if not set(REQUIRED) <= set(columns) or len(set(columns)) != len(columns):
        return None
    return DumpHeader(columns, len(line) + len(end))


def read_rows(path: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a dump as batches of :data:`COLUMNS` and ``row`` (the record number, the header being 1).

    Rows that repeat the header are left out; rows that cannot be read are counted in the report.

    Raises
    ------
    InputError
        If the file does not begin with a dump's header.
    """
    with path.open("rb") as file:
        header = sniff_header(file.read(MAX_HEADER_BYTES))
        if header is None:
            raise InputError(f"{path}: no dump header; expected columns such as ID,Event,Event Type,Timestamp(ns)")
        file.seek(header.n_bytes)
        on_bytes(header.n_bytes)
        reader = _Reader(path.name, header, report)
        rest = b""
        while block := file.read(CHUNK_BYTES):
            on_bytes(len(block))
            chunk = rest + block
            cut = reader.last_start(chunk)
            rest = chunk[cut:]
            if cut:
                yield reader.batch(chunk[:cut])
        if rest.strip():
            yield reader.batch(rest)


class _Reader:
    def __init__(self, name: str, header: DumpHeader, report: ReadReport) -> None:
        self.name, self.header, self.report = name, header, report
        self.next_row = 2

    def starts(self, chunk: bytes) -> npt.NDArray[np.int64]:
        """Offsets at which rows begin, the first one included."""
        if self.header.resyncs:
            found = [match.end() for match in _ROW_START.finditer(chunk)]
            return np.array([0, *found], dtype=np.int64)
        data = np.frombuffer(chunk, dtype=np.uint8)
        lines, quotes = np.flatnonzero(data == ord("\n")), np.flatnonzero(data == ord('"'))
        outside = lines[np.searchsorted(quotes, lines) % 2 == 0] + 1
        return np.concatenate([[0], outside[outside < len(chunk)]]).astype(np.int64)

    def last_start(self, chunk: bytes) -> int:
        """Offset of the last row of a chunk, which may go on in the next one; 0 if there is no other row."""
        if not self.header.resyncs:
            return int(self.starts(chunk)[-1])
        # Only the tail is searched: the last line or two where there are no stacks.
        size = 1 << 16
        while True:
            tail = max(len(chunk) - size, 0)
            found = [match.end() for match in _ROW_START.finditer(chunk, tail)]
            if found or not tail:
                return found[-1] if found else 0
            size *= 8

    def batch(self, chunk: bytes) -> pa.RecordBatch:
        """Whole rows as text cells."""
        try:
            chunk.decode()
        except UnicodeDecodeError as error:
            self.report.repair(f"{self.name}: bytes that are not UTF-8 text were replaced", 1, f"byte {error.start}")
            chunk = chunk.decode(errors="replace").encode()
        starts = self.starts(chunk)
        regular = _regular(chunk, starts, len(self.header.columns))
        numbers = np.arange(len(starts), dtype=np.int64) + self.next_row
        self.next_row += len(starts)
        ends = np.append(starts[1:], len(chunk))
        whole = chunk
        if not regular.all():
            whole = b"".join(chunk[starts[i] : ends[i]] for i in np.flatnonzero(regular))
        cells = self._fast(whole)
        if cells.num_rows != int(regular.sum()):  # a structure that the check above does not know: read it slowly
            cells, regular = self._fast(b""), np.zeros(len(starts), dtype=bool)
        order = numbers[regular]
        if not regular.all():
            broken, their_numbers = self._slow(chunk, starts, ends, regular, numbers)
            cells = pa.Table.from_batches([cells, broken]).combine_chunks()
            order = np.concatenate([order, their_numbers])
            place = np.argsort(order, kind="stable")
            cells, order = _one_batch(cells.take(pa.array(place))), order[place]
        return self._finish(cells, order)

    def _fast(self, chunk: bytes) -> pa.RecordBatch:
        names = list(self.header.columns)
        if chunk:
            table = pa_csv.read_csv(
                pa.py_buffer(chunk),
                read_options=pa_csv.ReadOptions(column_names=names, block_size=len(chunk) + 1, use_threads=False),
                parse_options=pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=lambda row: "skip"),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                ),
            )
            return _one_batch(table)
        return _no_rows(names)

    def _slow(
        self,
        chunk: bytes,
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        regular: npt.NDArray[np.bool_],
        numbers: npt.NDArray[np.int64],
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        """Rows with broken quotes or another number of cells, one by one."""
        rows: list[list[str]] = []
        kept: list[int] = []
        done = -1
        for i in np.flatnonzero(~regular):
            if i <= done:
                continue
            text = chunk[starts[i] : ends[i]].decode().rstrip("\r\n")
            if not text.strip():
                continue
            cells: list[str] | None = None
            last = int(i)
            if text.count('"') % 2:
                cells, last = self._joined(chunk, starts, ends, int(i))
            if cells is None:
                cells, last = self._cells(text), int(i)
            if cells is None:
                self.report.skip(f"{self.name}: rows that are cut or broken", 1, f"record {numbers[i]}: {text[:80]!r}")
                continue
            done = last
            rows.append(cells)
            kept.append(int(numbers[i]))
        names = list(self.header.columns)
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        batch = pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], names=names)
        return batch, np.array(kept, dtype=np.int64)

    def _joined(
        self, chunk: bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], i: int
    ) -> tuple[list[str] | None, int]:
        """Read a row whose quoted cell holds lines that look like rows."""
        for last in range(i + 1, min(i + _MAX_JOINED, len(starts))):
            cells = _well_quoted(chunk[starts[i] : ends[last]].decode().rstrip("\r\n"), len(self.header.columns))
            if cells is not None:
                return cells, last
        return None, i

    def _cells(self, text: str) -> list[str] | None:
        width = len(self.header.columns)
        cells = _well_quoted(text, width)
        if cells is None and self.header.columns == COLUMNS[: len(self.header.columns)]:
            cells = _from_both_ends(text, width)
            if cells is not None:
                self.report.repair(f"{self.name}: rows with broken quotes or commas were put right", 1, text[:80])
        return cells

    def _finish(self, cells: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Bring the columns into the common order; drop repeated headers."""
        there = dict(zip(cells.schema.names, cells.columns, strict=True))
        if self.header.is_legacy:
            there["attrs"] = _legacy_attrs(there)
        empty = pa.array([""] * cells.num_rows, pa.string())
        batch = pa.RecordBatch.from_arrays(
            [*(there.get(name, empty) for name in COLUMNS), pa.array(numbers)], names=[*COLUMNS, "row"]
        )
        ids = batch.column("id").to_numpy(zero_copy_only=False)
        again = np.isin(ids, ("ID", "Record Index"))
        return batch.filter(pa.array(~again)) if again.any() else batch


def _no_rows(names: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], pa.string()) for _ in names], names=names)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else _no_rows(table.schema.names)


def _regular(chunk: bytes, starts: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.bool_]:
    """Whether each row has its quotes in order, the right number of cells, and ends with its only bare line end.

    In order means: quotes open right after a comma or at the start of the row and close right before a comma or the
    end of a line, in turn. A doubled quote is not, so that such rows are read by the csv module.
    """
    data = np.frombuffer(chunk, dtype=np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    n_rows = len(starts)
    row = np.searchsorted(starts, quotes, side="right") - 1
    n_quotes = np.bincount(row, minlength=n_rows)
    first = np.cumsum(n_quotes) - n_quotes
    opens = (np.arange(len(quotes)) - first[row]) % 2 == 0
    before = data[np.maximum(quotes - 1, 0)]
    after = data[np.minimum(quotes + 1, len(data) - 1)]
    at_start = quotes == starts[row]
    at_end = quotes == len(data) - 1
    right = np.where(opens, at_start | (before == ord(",")), at_end | np.isin(after, (ord(","), ord("\n"), ord("\r"))))
    good = n_quotes % 2 == 0
    good[row[~right]] = False
    for byte, least, most in ((ord(","), width - 1, width - 1), (ord("\n"), 0, 1)):
        at = np.flatnonzero(data == byte)
        rows = np.searchsorted(starts, at, side="right") - 1
        outside = (np.searchsorted(quotes, at) - first[rows]) % 2 == 0
        count = np.bincount(rows[outside], minlength=n_rows)
        good &= (count >= least) & (count <= most)
    return good


def _well_quoted(text: str, width: int) -> list[str] | None:
    """Cells of a row that is proper CSV; missing stack cells are empty."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return None
    if len(rows) != 1 or not width - 2 <= len(rows[0]) <= width:
        return None
    return rows[0] + [""] * (width - len(rows[0]))


def _from_both_ends(text: str, width: int) -> list[str] | None:
    """Cells of a row whose name holds bare quotes or commas: what lies around it has a fixed form."""
    match = _BROKEN.fullmatch(text)
    if match is None:
        return None
    name = match["name"]
    if len(name) >= 2 and name[0] == name[-1] == '"':
        name = name[1:-1]
    rest = _REST.fullmatch(match["rest"])
    if rest is None:
        return None
    stacks = _split_stacks(rest["stacks"] or "")
    fixed = [match[k] for k in ("id", "event", "type")]
    cells = [*fixed, name, *(match[k] for k in ("time", "pid", "tid", "device", "ptr")), rest["attrs"], *stacks]
    return cells[:width]


def _split_stacks(text: str) -> tuple[str, str]:
    """Split the last two cells; a quote inside a frame does not matter."""
    python, found, native = text.partition('",') if text.startswith('"') else text.partition(",")
    return python.removeprefix('"').removesuffix('"' if not found else ""), native.removeprefix('"').removesuffix('"')


def _legacy_attrs(there: dict[str, pa.Array]) -> pa.Array:
    """Columns of the header of February 2025 in the words of the Attr cell, so that one way of reading serves both."""
    n_rows = len(there["id"])
    parts = ["{addr:" + (ptr or "") for ptr in there.get("ptr", pa.array([""] * n_rows)).to_pylist()]
    for key in ("size", "used", "total"):
        values = there.get(key, pa.array([""] * n_rows)).to_pylist()
        known = [f",{key}:{value.strip()}" if value.strip().lstrip("-").isdecimal() else "" for value in values]
        parts = [before + this for before, this in zip(parts, known, strict=True)]
    return pa.array([part + "}" for part in parts], pa.string())
