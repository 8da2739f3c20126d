"""Database export of the Ascend PyTorch Profiler to the same tables as the text export (spec/ascend_profiler 7).

The rows of the database are renamed to the columns of the text files and then handed to the same code: what a block, a
sample or an operator means is decided in one place. Times and sizes are whole numbers here: nothing is rounded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..model import NA_NS
from .ascend_db_memory import read_memory
from .ascend_db_trace import process_of, read_marks, read_trace_tables
from .ascend_tables import SourceTables, source_tables
from .report import OnBytes, ReadReport, ignore_bytes
from .sqlite_file import Database, open_database

MEMORY_TABLES = ("OP_MEMORY", "MEMORY_RECORD", "NPU_MEM", "NPU_OP_MEM")
LARGE_TABLES = (*MEMORY_TABLES, "NPU_MODULE_MEM", "PYTORCH_API", "PYTORCH_CALLCHAINS", "MSTX_EVENTS")
TEXT_OF_TABLE = {
    "OP_MEMORY": "operator_memory.csv",
    "MEMORY_RECORD": "memory_record.csv",
    "NPU_MODULE_MEM": "npu_module_mem.csv",
    "PYTORCH_API": "trace_view.json",
}
"""Which file of the text export has the content of a table."""


@dataclass(frozen=True)
class Identity:
    """Whose recording it is, as far as the database tells."""

    rank_id: int | None = None
    role: str | None = None


def read_identity(path: Path) -> Identity:
    """Read the rank from RANK_DEVICE_MAP and the role from META_DATA; what cannot be read is unknown."""
    try:
        with open_database(path, report=ReadReport()) as database:
            ranks = np.unique(database.ints("RANK_DEVICE_MAP", ["rankId"])["rankId"])
            ranks = ranks[ranks >= 0]  # -1: a single process
            role = _text_of_json(dict(database.pairs("META_DATA", "name", "value")).get("role", ""))
    except InputError:
        return Identity()
    return Identity(int(ranks[0]) if len(ranks) == 1 else None, role)


def _text_of_json(value: str) -> str | None:
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return value or None
    return content if isinstance(content, str) else None


def missing_tables(path: Path, tables: tuple[str, ...]) -> tuple[str, ...]:
    """Which of some tables a database lacks.

    Raises
    ------
    InputError
        If it cannot be opened.
    """
    with open_database(path, report=ReadReport()) as database:
        return tuple(table for table in tables if table not in database)


def read_database_export(path: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> SourceTables:
    """Read ``ascend_pytorch_profiler*.db``, or a ``msprof_*.db`` with what CANN alone knows.

    Parameters
    ----------
    path : Path
        The database. It is opened for reading only and nothing is written beside it.
    report : ReadReport
        Receives counts and remarks; ``report.partial`` when a part is missing or damaged.
    on_bytes : callable
        Progress.

    Raises
    ------
    InputError
        If it is not a readable SQLite database or has no table about memory.
    """
    with open_database(path, report=report, on_bytes=on_bytes) as database:
        if not any(table in database for table in MEMORY_TABLES):
            raise InputError(
                f"{path.name}: no table about memory ({', '.join(MEMORY_TABLES)}); recorded with profile_memory=True?"
            )
        database.expect(*LARGE_TABLES)
        return _read(database, report)


def _read(database: Database, report: ReadReport) -> SourceTables:
    _tell_missing(database, report)
    blocks, totals = read_memory(database, report)
    trace = read_trace_tables(database, report)
    tables = source_tables(blocks, totals, trace, report)
    if trace is None:
        tables = replace(tables, marks=read_marks(database, None, report))
    report.facts |= _facts(database)
    host = next((name for name, _ in database.pairs("HOST_INFO", "hostName", "hostName") if name), None)
    pid = tables.pid if trace else process_of(database.ints("NPU_OP_MEM", ["globalTid"])["globalTid"])
    return replace(tables, pid=pid, host=host, kind="ascend_db")


def _tell_missing(database: Database, report: ReadReport) -> None:
    """Say what each missing table costs; a database of CANN alone lacks those of the framework by nature."""
    of_framework = {
        "OP_MEMORY": "no blocks of the framework (recorded with profile_memory=True?)",
        "MEMORY_RECORD": "curves use the totals written in the rows",
        "PYTORCH_API": "no stacks and no operators; everything else is complete",
    }
    if not any(table in database for table in of_framework):
        report.note("a database of CANN alone: the graph engine's pool, no framework memory, operators or stacks")
        return
    for table, cost in of_framework.items():
        if table not in database:
            report.lose(f"table {table} is missing: {cost}")
    if "STRING_IDS" not in database:
        report.lose("table STRING_IDS is missing: no names, no stacks, and pools cannot be told apart")
    for table, cost in {
        "NPU_MEM": "no memory of the whole process",
        "NPU_MODULE_MEM": "no memory of other modules",
        "PYTORCH_CALLCHAINS": "no stacks (recorded with with_stack=True?)",
    }.items():
        if table not in database:
            report.note(f"table {table} is missing: {cost}")


def _facts(database: Database) -> dict[str, object]:
    facts: dict[str, object] = {}
    window = database.ints("SESSION_TIME_INFO", ["startTimeNs", "endTimeNs"])
    if len(window["startTimeNs"]) and NA_NS not in (start_end := [int(window[k][0]) for k in window]):
        facts["collection_window_ns"] = start_end
    metadata = dict(database.pairs("META_DATA", "name", "value"))
    if "SCHEMA_VERSION" in metadata:
        facts["schema_version"] = metadata["SCHEMA_VERSION"]
    return facts
