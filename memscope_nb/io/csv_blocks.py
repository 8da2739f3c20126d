"""Lines of a CSV file to batches of cells: by Arrow in blocks of whole lines, or by :mod:`csv` row by row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from .csv_columns import EMPTY_CELLS
from .report import ReadReport


def line_blocks(file: io.FileIO, block_bytes: int) -> Iterator[tuple[memoryview, int]]:
    """Cut a file behind the ends of lines, its first line left out; with the number of bytes read so far.

    Each block is valid until the next one: one buffer serves all. (Arrow's own stream reads dozens of blocks ahead.)
    """
    buffer = bytearray(2 * block_bytes)
    end = n_read = 0
    is_first = True
    while True:
        if len(buffer) - end < block_bytes:  # a line longer than a block
            buffer = buffer.ljust(2 * len(buffer))
        n_new = file.readinto(memoryview(buffer)[end : end + block_bytes]) or 0
        n_read, end = n_read + n_new, end + n_new
        cut = buffer.rfind(b"\n", 0, end) + 1 if n_new else end
        start = (buffer.find(b"\n", 0, cut) + 1 or cut) if is_first else 0
        if cut > start:
            yield memoryview(buffer)[start:cut], n_read
        if not n_new:
            return
        is_first = is_first and not cut
        buffer[: end - cut] = bytes(memoryview(buffer)[cut:end])
        end -= cut


def parse_block(
    block: memoryview, names: Sequence[str], encoding: str, types: Mapping[str, pa.DataType]
) -> tuple[pa.RecordBatch | None, list[str]]:
    """Cut whole lines into typed cells; also return the lines with another number of cells than ``names``.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a cell is not of its type, a quote does not close, or the text has another encoding.
    """
    skipped: list[str] = []

    def skip(row: Any) -> str:
        if row.text.strip():
            skipped.append(row.text)
        return "skip" if "\n" not in row.text.strip() else "error"  # a quote that swallows lines: not this way

    options: dict[str, Any] = {
        "read_options": pa_csv.ReadOptions(
            block_size=len(block) + 1,
            use_threads=False,
            column_names=list(names),
            encoding="utf-8" if encoding == "utf-8-sig" else encoding,
        ),
        "parse_options": pa_csv.ParseOptions(invalid_row_handler=skip),
        "convert_options": pa_csv.ConvertOptions(
            column_types=types, include_columns=list(types), strings_can_be_null=False, null_values=EMPTY_CELLS
        ),
    }
    batches = pa_csv.read_csv(pa.BufferReader(pa.py_buffer(block)), **options).combine_chunks().to_batches()
    return (batches[0] if batches else None), skipped


def python_batches(
    path: Path, names: Sequence[str], encoding: str, report: ReadReport, size: int = 20_000
) -> Iterator[pa.RecordBatch]:
    """Read line by line: slow, and never refuses a file. A quote that does not close costs its own line only."""
    try:
        path.read_text(encoding=encoding)
    except UnicodeDecodeError:
        encoding = "gb18030"
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        file.readline()
        numbered = enumerate(file, start=2)
        while chunk := list(islice(numbered, size)):
            rows = [(number, _cells(line)) for number, line in chunk if line.strip()]
            broken = [number for number, cells in rows if len(cells) != len(names)]
            if broken:
                skip_rows(report, path, len(broken), f"line {broken[0]}")
            columns = list(zip(*(cells for _, cells in rows if len(cells) == len(names)), strict=True))
            arrays = [pa.array(column, pa.string()) for column in columns or [()] * len(names)]
            yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def _cells(line: str) -> list[str]:
    """Cells of one line; none if its quotes do not close or it cannot be cut."""
    try:
        return next(csv.reader([line]), []) if line.count('"') % 2 == 0 else []
    except csv.Error:  # NUL bytes before Python 3.11, a cell of more than 128 KiB
        return []


def skip_rows(report: ReadReport, path: Path, count: int, example: str) -> None:
    """Count rows that do not fit the header."""
    report.skip(f"{path.name}: rows with another number of cells than the header", count, example)
