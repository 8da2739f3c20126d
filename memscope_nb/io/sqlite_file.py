"""SQLite files as columns of integers: read without a trace beside the file, exact, in chunks.

Nothing of a file is trusted: only tables stored as such are read (no views, no virtual tables), names of tables and
columns come from the reader's own constants, values are bound, and each cell becomes an int64 or unknown without ever
passing through a float.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError
from ..model import NA_NS
from .report import OnBytes, ReadReport, ignore_bytes

Int64Array = npt.NDArray[np.int64]

CHUNK_ROWS = 1 << 14
_ASK_AT_ONCE = 500  # bound values in one statement; old SQLite takes 999
_EXACT_REAL = 1 << 53
_UNKNOWN = f"({NA_NS + 1} - 1)"  # SQL for NA_NS; its literal would be read as a float
_SIDECARS = ("-wal", "-journal")


@contextmanager
def open_database(path: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> Iterator[Database]:
    """Open a SQLite file for reading and leave its folder as it is.

    A file by itself is opened as *immutable*: SQLite then makes no ``-shm`` or ``-wal`` beside it, needs no right to
    write and takes no lock. With a ``-wal`` or a hot ``-journal`` beside it the file alone is not the truth; both are
    copied to a temporary folder, where SQLite may put them together.

    Raises
    ------
    InputError
        If it is not a SQLite file or cannot be opened or copied.
    """
    try:
        before = path.stat()
        sidecars = [file for end in _SIDECARS if _has_content(file := path.with_name(path.name + end))]
        with tempfile.TemporaryDirectory(prefix="memscope_nb_") if sidecars else nullcontext() as folder:
            if folder:
                for file in (path, *sidecars):
                    shutil.copyfile(file, Path(folder, file.name))
                names = " and ".join(file.name for file in sidecars)
                report.note(f"{path.name}: read together with {names}, from a temporary copy")
            place, mode = (Path(folder, path.name), "mode=rw") if folder else (path.resolve(), "mode=ro&immutable=1")
            with closing(sqlite3.connect(f"{place.as_uri()}?{mode}", uri=True, isolation_level=None)) as connection:
                database = Database(connection, path.name, before.st_size, report, on_bytes)
                yield database
                database.finish()
        after = path.stat()
    except (sqlite3.Error, OSError) as error:
        raise InputError(f"{path.name}: cannot be read as a SQLite database ({error})") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        report.lose(f"{path.name}: changed while it was read (analysis still running?); load it again")


class Database:
    """An open SQLite file: which tables and columns there are, and their content as arrays.

    Parameters
    ----------
    connection : sqlite3.Connection
        Open for reading.
    name : str
        Of the file, for messages.
    n_bytes : int
        Its size, for the progress.
    report : ReadReport
        Told what is lost where a table breaks off.
    on_bytes : callable
        Progress.
    """

    def __init__(
        self, connection: sqlite3.Connection, name: str, n_bytes: int, report: ReadReport, on_bytes: OnBytes
    ) -> None:
        self.name = name
        self._connection, self._report = connection, report
        self._on_bytes, self._bytes_left, self._bytes_a_row = on_bytes, n_bytes, 0.0
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
        # Real tables only: a view or a virtual table can hide any computation behind a name that we read.
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0").fetchall()
        self._columns = {
            str(table): frozenset(
                str(column).lower()
                for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
            )
            for (table,) in tables
        }

    def __contains__(self, table: str) -> bool:
        return table in self._columns

    def lacking(self, table: str, columns: Sequence[str]) -> list[str]:
        """Those of some columns that a table does not have."""
        there = self._columns.get(table, frozenset())
        return [column for column in columns if column.lower() not in there]

    def expect(self, *tables: str) -> None:
        """Name the tables that will be read in full, so that progress can be told in shares of the file."""
        n_rows = 0
        for table in filter(self.__contains__, tables):
            # Rows are numbered from 1: the last number is found at once, counting would read the table.
            with suppress(sqlite3.DatabaseError):
                (last,) = self._connection.execute(f"SELECT max(rowid) FROM {_quoted(table)}").fetchone()
                n_rows += last if isinstance(last, int) and last > 0 else 0
        self._bytes_a_row = self._bytes_left / n_rows if n_rows else 0.0

    def finish(self) -> None:
        """Count the rest of the file as read."""
        self._on_bytes(self._bytes_left)
        self._bytes_left = 0

    def _advance(self, n_rows: int) -> None:
        n_bytes = min(int(n_rows * self._bytes_a_row), self._bytes_left)
        self._bytes_left -= n_bytes
        self._on_bytes(n_bytes)

    def chunks(
        self,
        table: str,
        columns: Sequence[str],
        *,
        where: Mapping[str, Sequence[int]] | None = None,
        order_by: Sequence[str] = (),
        n_rows: int = CHUNK_ROWS,
    ) -> Iterator[Int64Array]:
        """Yield integer columns of a table as arrays of shape (columns, rows), in the order of the file.

        ``NA_NS`` stands for NULL, for what is no integer, and for a column that the table lacks. ``where`` keeps the
        rows with one of some values; a condition on a column that is lacking holds for all rows. A table that is
        damaged gives the rows before the damage, and the report says so.
        """
        there = self._columns.get(table, frozenset())
        if not there:
            return
        conditions = {column: values for column, values in (where or {}).items() if column.lower() in there}
        shown = [_integer(column) if column.lower() in there else _UNKNOWN for column in columns]
        # NOT INDEXED: an index that a viewer added could cover all columns and then set the order.
        sql = f"SELECT {', '.join(shown)} FROM {_quoted(table)} NOT INDEXED"
        if conditions:
            lists = (f"{_integer(column)} IN ({_marks(len(values))})" for column, values in conditions.items())
            sql += " WHERE " + " AND ".join(lists)
        if order_by:
            sql += " ORDER BY " + ", ".join(str(columns.index(column) + 1) for column in order_by)
        n_read = 0
        try:
            cursor = self._connection.execute(sql, list(chain.from_iterable(conditions.values())))
            while rows := cursor.fetchmany(n_rows):
                flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * len(columns))
                n_read += len(rows)
                self._advance(len(rows))
                yield flat.reshape(len(rows), len(columns)).T
        except sqlite3.DatabaseError as error:
            self._report.lose(f"{self.name}: {table} is damaged after {n_read} rows ({error})")

    def ints(
        self, table: str, columns: Sequence[str], *, where: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, Int64Array]:
        """Read integer columns of a table whole; see :meth:`chunks`."""
        parts: list[list[Int64Array]] = [[np.empty(0, dtype=np.int64)] for _ in columns]
        for chunk in self.chunks(table, columns, where=where):
            for part, values in zip(parts, chunk, strict=True):
                part.append(values.copy())
        read: dict[str, Int64Array] = {}
        for column, part in zip(columns, parts, strict=True):
            read[column] = np.concatenate(part)
            part.clear()  # one column at a time is held twice, not all of them
        return read

    def distinct(self, table: str, column: str) -> list[int]:
        """Values of an integer column, each once, unknown ones left out."""
        if column.lower() not in self._columns.get(table, frozenset()):
            return []
        sql = f"SELECT DISTINCT {_integer(column)} FROM {_quoted(table)}"
        try:
            return sorted(value for (value,) in self._connection.execute(sql) if value != NA_NS)
        except sqlite3.DatabaseError:
            return []  # reading the table will tell

    def texts(self, ids: Int64Array, *, table: str = "STRING_IDS", value: str = "value") -> list[str | None]:
        """Look numbers up in a table of texts by its column ``id``; ``None`` where there is none."""
        if not {"id", value} <= self._columns.get(table, frozenset()):
            return [None] * len(ids)
        found: dict[int, str] = {}
        numbers = [int(number) for number in np.unique(ids)]
        try:
            for at in range(0, len(numbers), _ASK_AT_ONCE):
                asked = numbers[at : at + _ASK_AT_ONCE]
                sql = f"SELECT id, {_quoted(value)} FROM {_quoted(table)} WHERE id IN ({_marks(len(asked))})"
                found.update((n, text) for n, text in self._connection.execute(sql, asked) if isinstance(text, str))
        except sqlite3.DatabaseError as error:
            self._report.lose(f"{self.name}: {table} is damaged ({error}): names are missing")
        return [found.get(number) for number in ids.tolist()]

    def categories(
        self, ids: Int64Array, *, missing: str | None = "", table: str = "STRING_IDS", value: str = "value"
    ) -> pd.Categorical:
        """Texts of a column of numbers, looked up once for each distinct number.

        Several numbers may have the same text. A number without text gives ``missing``, or itself as text where that
        is ``None``.
        """
        unique, codes = np.unique(ids, return_inverse=True)
        texts = self.texts(unique, table=table, value=value)
        named = [
            text if text is not None else str(number) if missing is None else missing
            for number, text in zip(unique.tolist(), texts, strict=True)
        ]
        merged, labels = pd.factorize(np.array(named, dtype=object))
        return pd.Categorical.from_codes(merged[codes] if len(merged) else [], labels)

    def pairs(self, table: str, key: str, value: str, *, limit: int = 1000) -> list[tuple[str, str]]:
        """First rows of a small table as texts, NULL as an empty one."""
        if not {key.lower(), value.lower()} <= self._columns.get(table, frozenset()):
            return []
        sql = f"SELECT {_quoted(key)}, {_quoted(value)} FROM {_quoted(table)} LIMIT {int(limit)}"
        try:
            return [
                ("" if k is None else str(k), "" if v is None else str(v)) for k, v in self._connection.execute(sql)
            ]
        except sqlite3.DatabaseError:
            return []


def _marks(number: int) -> str:
    return ",".join("?" * number)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _integer(column: str) -> str:
    """SQL that gives a cell as an integer, or ``NA_NS``.

    The declared type says little: times of PYTORCH_API are stored as text. Text counts if it is the decimal form of an
    integer; a float counts where it still is exact, which a time in ns never is.
    """
    c, na = _quoted(column), _UNKNOWN
    return (
        f"CASE typeof({c}) WHEN 'integer' THEN {c}"
        f" WHEN 'text' THEN CASE WHEN CAST(CAST({c} AS INTEGER) AS TEXT) = trim({c}) THEN CAST({c} AS INTEGER)"
        f" ELSE {na} END"
        f" WHEN 'real' THEN CASE WHEN abs({c}) < {_EXACT_REAL} THEN CAST(round({c}) AS INTEGER) ELSE {na} END"
        f" ELSE {na} END"
    )


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
