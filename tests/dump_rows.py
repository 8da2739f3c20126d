"""msMemScope dumps of a few literal rows, in every way the tool writes them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
T0 = 1_780_000_000_000_000_000

Row = tuple[str, ...]


def cells(
    event_id: int | str,
    event: str,
    type_name: str,
    name: str = "N/A",
    *,
    t: int | None = None,
    pid: int | str = 100,
    tid: int | str | None = None,
    device: int | str = 0,
    ptr: int | str = "N/A",
    stack: str = "",
    c_stack: str = "",
    **attrs: object,
) -> Row:
    """The cells of one row; the time is 1 µs an ID."""
    time = T0 + int(event_id) * 1000 if t is None else t
    where = f"0x{ptr:016x}" if isinstance(ptr, int) else ptr
    attr = "{" + ",".join(f"{key}:{value}" for key, value in attrs.items()) + "}" if attrs else ""
    thread = pid if tid is None else tid
    return tuple(
        str(value)
        for value in (event_id, event, type_name, name, time, pid, thread, device, where, attr, stack, c_stack)
    )


def malloc(event_id: int, ptr: int, size: int, *, pool: str = "HAL", life: int | None = None, **more: object) -> Row:
    """A MALLOC row; ``life`` is the allocation id."""
    return _block("MALLOC", event_id, ptr, size, pool, life, more)


def free(event_id: int, ptr: int, size: int, *, pool: str = "HAL", life: int | None = None, **more: object) -> Row:
    """A FREE row."""
    return _block("FREE", event_id, ptr, size, pool, life, more)


def _block(event: str, event_id: int, ptr: int, size: int, pool: str, life: int | None, more: dict[str, object]) -> Row:
    own = {"allocation_id": life} if life is not None else {}
    return cells(event_id, event, pool, ptr=ptr, **own, addr=f"0x{ptr:016x}", size=size, **more)  # type: ignore[arg-type]


def mark(event_id: int, text: str, *, kind: str = "Mark", **more: object) -> Row:
    """An MSTX row."""
    return cells(event_id, "MSTX", kind, text, **more)  # type: ignore[arg-type]


def line(row: Row) -> str:
    """The row as the tool glues it together, quotes not doubled."""
    quoted = [
        f'"{cell}"' if (i == 3 and row[1] == "MSTX") or (i == 9 and cell) or (i >= 10 and cell) else cell
        for i, cell in enumerate(row)
    ]
    return ",".join(quoted) + "\n"


def write_csv(path: Path, rows: Iterable[Row], *, header: str = HEADER) -> Path:
    """Write a dump; the file's folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((header + "\n" + "".join(line(row) for row in rows)).encode())
    return path


def write_db(path: Path, rows: Sequence[Row], *, table: str = "memscope_dump", traces: Sequence[Row] = ()) -> Path:
    """Write the same rows as a database: Attr as JSON, quotes around marks and stacks kept (spec/msmemscope 3.1)."""
    names = HEADER.split(",")
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        kinds = ["INTEGER" if i in (0, 4, 5, 6) else "TEXT" for i in range(12)]
        columns = ", ".join(f'"{name}" {kind}' for name, kind in zip(names, kinds, strict=True))
        connection.execute(f"CREATE TABLE {table} ({columns})")
        marks = ", ".join("?" * 12)
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", [_stored(row) for row in rows])
        if traces:
            connection.execute(
                'CREATE TABLE python_trace_100 ("FuncInfo" TEXT, "StartTime(ns)" TEXT, "EndTime(ns)" TEXT, '
                '"Thread Id" INTEGER, "Process Id" INTEGER)'
            )
            connection.executemany("INSERT INTO python_trace_100 VALUES (?, ?, ?, ?, ?)", traces)
        connection.commit()
    return path


def _stored(row: Row) -> tuple[object, ...]:
    values: list[object] = list(row)
    for i in (0, 4, 5, 6):
        values[i] = -1 if row[i] == "N/A" else int(row[i])
    if row[1] == "MSTX":
        values[3] = f'"{row[3]}"'
    inner = row[9].strip("{}")
    pairs: dict[str, str] = {}
    last = ""
    for piece in inner.split(",") if inner else ():
        key, colon, value = piece.partition(":")
        if colon:
            last, pairs[key] = key, value
        else:
            pairs[last] += "," + piece
    values[9] = json.dumps(pairs, separators=(",", ":"))
    for i in (10, 11):
        values[i] = f'"{row[i]}"' if row[i] else ""
    return tuple(values)
