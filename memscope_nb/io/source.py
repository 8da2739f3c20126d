"""Reading one source: which export, what went wrong, what the cache already knows."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from .ascend import Collection
from .ascend_cann import read_cann_export
from .ascend_db import TEXT_OF_TABLE, missing_tables, read_database_export
from .ascend_tables import SourceTables
from .ascend_text import read_text_export
from .cache import read_entry, source_key, write_entry
from .memscope_dump import read_dump
from .memscope_find import DumpCollection
from .pytorch_find import TorchCollection
from .pytorch_source import read_torch
from .report import Note, OnBytes, ReadReport, ignore_bytes
from .trace_view import TraceReader


@dataclass
class SourceRead:
    """One source after reading."""

    collection: Collection
    report: ReadReport
    tables: SourceTables | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """``ok``, ``partial`` or ``failed``."""
        return "failed" if self.tables is None else "partial" if self.report.partial else "ok"


def read_sources(
    collection: Collection,
    *,
    on_bytes: OnBytes = ignore_bytes,
    reader: TraceReader = "auto",
    cache: Path | None = None,
) -> list[SourceRead]:
    """Read what belongs together: one collection is one source, the files of a dump are one for each process.

    Parameters
    ----------
    collection : Collection
        What to read.
    on_bytes : callable
        Progress.
    reader : {"auto", "ijson"}
        How to read traces.
    cache : Path, optional
        Folder of what was parsed before; dumps, snapshots and Kineto traces are not kept there.
    """
    if not isinstance(collection, (DumpCollection, TorchCollection)):
        return [_cached(collection, cache, on_bytes, reader)]
    report = ReadReport()
    for note in collection.notes:
        report.note(note)
    try:
        processes = (
            read_torch(collection, report=report, on_bytes=on_bytes)
            if isinstance(collection, TorchCollection)
            else read_dump(collection, report=report, on_bytes=on_bytes)
        )
    except InputError as error:
        report.notes.clear()
        report.note(str(error))
        return [SourceRead(collection, report, facts=collection.facts)]
    return [
        SourceRead(replace(collection, pid=one.pid), one.report, one.tables, collection.facts | one.report.facts)
        for one in processes
    ]


def _cached(collection: Collection, cache: Path | None, on_bytes: OnBytes, reader: TraceReader) -> SourceRead:
    """Take a collection from the cache, or read it and keep it there unless it failed."""
    if cache is None or collection.problem:
        return read_collection(collection, on_bytes=on_bytes, reader=reader)
    try:
        key = source_key(collection.path, collection.input_files, reader=reader)
    except OSError:
        return read_collection(collection, on_bytes=on_bytes, reader=reader)
    entry = read_entry(cache, key)
    if entry is not None and (restored := _restored(collection, *entry)) is not None:
        on_bytes(collection.n_bytes)
        return restored
    read = read_collection(collection, on_bytes=on_bytes, reader=reader)
    if read.tables is not None:
        write_entry(cache, key, {name: getattr(read.tables, name) for name in CACHED_TABLES}, _notes(read))
    return read


CACHED_TABLES = ("blocks", "totals", "marks", "ops", "stacks")


def _notes(read: SourceRead) -> dict[str, Any]:
    """What a source says beside its tables, as JSON-ready values."""
    tables, report = read.tables, read.report
    assert tables is not None
    plain = {key: getattr(tables, key) for key in ("window", "pid", "host", "kind")}
    counts = {key: getattr(report, key) for key in ("n_skipped", "n_repaired", "facts", "partial")}
    return plain | counts | {"notes": [vars(note) for note in report.notes.values()]}


def _restored(collection: Collection, tables: dict[str, Any], notes: dict[str, Any]) -> SourceRead | None:
    """Build a source from the cache; ``None`` if the entry lacks something."""
    try:
        report = ReadReport(notes["n_skipped"], notes["n_repaired"], facts=notes["facts"], partial=notes["partial"])
        report.notes = {note["text"]: Note(**note) for note in notes["notes"]}
        window = None if notes["window"] is None else (notes["window"][0], notes["window"][1])
        kept = SourceTables(
            **{name: tables[name] for name in CACHED_TABLES},
            window=window,
            pid=notes["pid"],
            host=notes["host"],
            kind=notes["kind"],
        )
    except (KeyError, TypeError, IndexError):
        return None
    return SourceRead(collection, report, kept, collection.facts | report.facts)


def read_collection(
    collection: Collection, *, on_bytes: OnBytes = ignore_bytes, reader: TraceReader = "auto"
) -> SourceRead:
    """Read one collection; whatever is wrong with it ends up in its report."""
    report = ReadReport()
    for note in collection.notes:
        report.note(note)
    read = SourceRead(collection, report)
    try:
        read.tables = _read_tables(collection, report, on_bytes, reader)
    except InputError as error:
        report.notes.clear()
        report.note(str(error))
    except Exception as error:  # a fault of ours or of the file: this source is lost, the others are not
        report.note(f"reader failed: {type(error).__name__}: {error}")
    read.facts = collection.facts | report.facts
    return read


def _read_tables(collection: Collection, report: ReadReport, on_bytes: OnBytes, reader: TraceReader) -> SourceTables:
    """Read one export of a collection: the database where both are there, unless the text has more.

    Both tell the same story. The database tells it in whole nanoseconds and bytes, marks the graph engine's open blocks
    as such (the text cannot be told from lives of zero length), adds the whole device's memory and the collection's
    window, and is read faster than the JSON of a trace. A database may still lack a table whose text file is there.
    """
    database = collection.database
    if collection.problem:
        raise InputError(collection.problem)
    if database is None and not collection.text_files:
        report.facts["export"] = "cann text"
        return read_cann_export(collection.cann_files, report=report, on_bytes=on_bytes)
    if database is None:
        return _read_text(collection, report, on_bytes, reader)
    if not collection.text_files or collection.is_cann_only:
        return _read_database(database, collection, report, on_bytes)
    trial = deepcopy(report)
    try:
        if less := missing_tables(database, _with_text(collection)):
            report.note(f"both exports are there; read the text: {database.name} has no table {', '.join(less)}")
            return _read_text(collection, report, on_bytes, reader)
        tables = _read_database(database, collection, trial, on_bytes)
    except InputError as error:
        report.lose(f"both exports are there; read the text, because of the other: {error}")
        return _read_text(collection, report, on_bytes, reader)
    if trial.partial:  # damaged: the text can be whole
        report.lose(f"both exports are there; read the text, because of the other: {'; '.join(trial.warnings)}")
        return _read_text(collection, report, on_bytes, reader)
    vars(report).update(vars(trial))
    report.note(f"both exports are there; read the database {database.name}, which is exact")
    return tables


def _read_text(collection: Collection, report: ReadReport, on_bytes: OnBytes, reader: TraceReader) -> SourceTables:
    report.facts["export"] = "text"
    return read_text_export(collection.text_files[0].parent, report=report, on_bytes=on_bytes, reader=reader)


def _read_database(database: Path, collection: Collection, report: ReadReport, on_bytes: OnBytes) -> SourceTables:
    report.facts["export"] = "database"
    if collection.is_cann_only and (collection.info or collection.output):
        report.lose(f"the framework's memory is not exported: {collection.problem_of_export}; this is what CANN has")
    return read_database_export(database, report=report, on_bytes=on_bytes)


def _with_text(collection: Collection) -> tuple[str, ...]:
    """Tables whose content a text file has, too."""
    there = {file.name.removesuffix(".gz") for file in collection.text_files}
    return tuple(table for table, file in TEXT_OF_TABLE.items() if file in there)
