"""Rows of a msMemScope dump database (SQLite), as the same batches of text as from CSV (spec/msmemscope 3.1).

The file is never written: without a journal beside it it is opened as immutable, else a copy is read.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from ..errors import InputError
from .memscope_rows import COLUMNS, REQUIRED
from .report import OnBytes, ReadReport, ignore_bytes

MAGIC = b"SQLite format 3\x00"
TABLES = ("memscope_dump", "leaks_dump")
"""Preferred first: a converter may have left the old one beside the new."""
BATCH_ROWS = 50_000
_TRACE_TABLE = re.compile(r"python_trace_(\d+)")
_NAMES = {
    "id": "id", "event": "event", "event type": "type", "name": "name", "timestamp(ns)": "time", "process id": "pid",
    "thread id": "tid", "device id": "device", "ptr": "ptr", "attr": "attrs", "call stack(python)": "py_stack",
    "call stack(c)": "c_stack",
}  # fmt: skip


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database without ever touching its folder."""
    journal = [path.with_name(path.name + end) for end in ("-wal", "-journal")]
    with tempfile.TemporaryDirectory(prefix="memscope-nb-") as folder:
        source, how = path, "mode=ro&immutable=1"
        if any(file.is_file() and file.stat().st_size for file in journal):
            source, how = Path(folder, path.name), "mode=rwc"
            for file in (path, *journal):
                if file.is_file():
                    shutil.copyfile(file, Path(folder, file.name))
        connection = sqlite3.connect(f"file:{quote(str(source.absolute()))}?{how}", uri=True)
        # Text that is not UTF-8 must not stop the reading of all other rows.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            yield connection
        finally:
            connection.close()


def dump_table(path: Path) -> str | None:
    """Name of the dump table of a database, ``None`` for any other file."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
        with open_database(path) as connection:
            there = _tables(connection)
            return next((there[name] for name in TABLES if name in there), None)
    except (OSError, sqlite3.Error):
        return None


def _tables(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    # Views and virtual tables run code of the file's author.
    return {str(name).lower(): str(name) for name, sql in rows if "virtual" not in str(sql)[:20].lower()}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def read_database(path: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the dump table in the order in which they were written; ``row`` counts from 1.

    Raises
    ------
    InputError
        If there is no dump table, it lacks a column, or the file is damaged before its first row.
    """
    n_bytes, n_read, n_rows = path.stat().st_size, 0, 0
    try:
        with open_database(path) as connection:
            there = _tables(connection)
            table = next((there[name] for name in TABLES if name in there), None)
            if table is None:
                raise InputError(
                    f"{path}: no table memscope_dump or leaks_dump; there is: {', '.join(there) or 'none'}"
                )
            names = {
                str(row[1]).lower(): str(row[1]) for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")
            }
            columns = {_NAMES[name]: real for name, real in names.items() if name in _NAMES}
            if missing := [name for name in REQUIRED if name not in columns]:
                raise InputError(f"{path}: table {table} has no column for {', '.join(missing)}")
            (total,) = connection.execute(f"SELECT COUNT(*) FROM {_quoted(table)}").fetchone()
            chosen = ", ".join(_quoted(columns[name]) for name in COLUMNS if name in columns)
            cursor = connection.execute(f"SELECT {chosen} FROM {_quoted(table)}")
            while rows := cursor.fetchmany(BATCH_ROWS):
                yield _batch(rows, [name for name in COLUMNS if name in columns], n_rows + 1)
                n_rows += len(rows)
                share = n_bytes * n_rows // max(total, n_rows)
                on_bytes(share - n_read)
                n_read = share
    except sqlite3.Error as error:
        if not n_rows:
            raise InputError(f"{path}: damaged database ({error}); copy it together with its -wal file") from None
        report.lose(f"{path.name}: damaged after row {n_rows} ({error}); what follows is missing")


def _batch(rows: list[tuple[object, ...]], names: list[str], first_row: int) -> pa.RecordBatch:
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    arrays = []
    for name in COLUMNS:
        values = columns.get(name)
        if values is None:
            arrays.append(pa.array([""] * len(rows), pa.string()))
        else:
            arrays.append(pa.array([_text(value) for value in values], pa.string()))
    arrays.append(pa.array(range(first_row, first_row + len(rows)), pa.int64()))
    return pa.RecordBatch.from_arrays(arrays, names=[*COLUMNS, "row"])


def _text(value: object) -> str:
    if value.__class__ is str:
        return value
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def python_trace_rows(path: Path, pid: int | None) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the rows of ``python_trace_<PID>`` tables as text: function, start, end, thread, process."""
    with open_database(path) as connection:
        for lower, table in sorted(_tables(connection).items()):
            match = _TRACE_TABLE.fullmatch(lower)
            if match is None or (pid is not None and int(match[1]) != pid):
                continue
            names = {str(r[1]).lower(): str(r[1]) for r in connection.execute(f"PRAGMA table_info({_quoted(table)})")}
            wanted = ("funcinfo", "starttime(ns)", "endtime(ns)", "thread id", "process id")
            if not set(wanted[:3]) <= set(names):
                continue
            chosen = ", ".join(_quoted(names[name]) if name in names else "NULL" for name in wanted)
            for row in connection.execute(f"SELECT {chosen} FROM {_quoted(table)}"):
                function, start, end, tid, process = (_text(value) for value in row)
                yield function, start, end, tid, process or match[1]
