"""msMemScope dumps to tables: one source per process, with its device files together (spec/msmemscope 14)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import empty_accesses, empty_events
from .ascend_tables import SourceTables
from .memscope_blocks import DumpBlocks, build_blocks
from .memscope_db import python_trace_rows, read_database
from .memscope_events import EventCollector
from .memscope_find import DumpCollection, kind_of
from .memscope_marks import build_marks
from .memscope_ops import build_accesses, build_ops, join_ops, python_ops, running_op
from .memscope_rows import read_rows
from .memscope_totals import build_totals
from .report import OnBytes, ReadReport, ignore_bytes

TraceRow = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class DumpTables(SourceTables):
    """Tables of one process of a dump."""

    events: pd.DataFrame = field(default_factory=empty_events)
    accesses: pd.DataFrame = field(default_factory=empty_accesses)

    @property
    def more(self) -> dict[str, pd.DataFrame]:
        """Raw rows and accesses."""
        return {"events": self.events, "accesses": self.accesses}


@dataclass(frozen=True)
class ProcessRead:
    """One process: its tables, ``None`` if they could not be built, and what there is to say."""

    pid: int | None
    tables: DumpTables | None
    report: ReadReport


def read_dump(collection: DumpCollection, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> list[ProcessRead]:
    """Read the files of a dump; one entry for each process in them.

    Parameters
    ----------
    collection : DumpCollection
        What to read.
    report : ReadReport
        Remarks on the files; every process gets a copy, the counts go to the first one.
    on_bytes : callable
        Progress.

    Raises
    ------
    InputError
        If no file has a row that can be read.
    """
    collector = EventCollector(report)
    problems = []
    for file in collection.files:
        collector.n_files += 1
        try:
            _collect(file, collector, on_bytes)
        except (InputError, OSError) as error:  # the files of other devices are still of use
            problems.append(str(error))
    if not collector.n_rows:
        raise InputError("; ".join(problems) or f"{collection.path}: the dump has no rows")
    for problem in problems:
        report.lose(problem)
    processes, stacks = collector.by_process()
    del collector
    reads: list[ProcessRead] = []
    for pid, events in processes.items():
        own = deepcopy(report)
        if reads:
            own.n_skipped = own.n_repaired = 0
        reads.append(_process(pid, events, stacks, collection, own, on_bytes))
    return reads


def _collect(file: Path, collector: EventCollector, on_bytes: OnBytes) -> None:
    kind = kind_of(file)
    read = read_database if kind == "db" else read_rows
    for batch in read(file, report=collector.report, on_bytes=on_bytes):
        collector.add(batch, is_database=kind == "db")


def _process(
    pid: int | None,
    events: pd.DataFrame,
    stacks: pd.DataFrame,
    collection: DumpCollection,
    report: ReadReport,
    on_bytes: OnBytes,
) -> ProcessRead:
    """Build the tables of one process; a fault of ours loses this process and no other."""
    try:
        light = events.drop(columns="attrs")  # the widest column: not to be copied with every choice of rows
        built = build_blocks(light, report)
        window = _window(light)
        ops = _ops(light, pid, collection, report, on_bytes)
        tables = DumpTables(
            blocks=_finished(light, built, ops),
            totals=build_totals(light, built, report),
            marks=build_marks(events, window[1] if window else None, report),
            ops=ops,
            stacks=stacks,
            window=window,
            pid=pid,
            kind=collection.kind,
            events=events,
            accesses=build_accesses(light, built.frame, ops),
        )
    except Exception as error:
        report.note(f"reader failed: {type(error).__name__}: {error}")
        return ProcessRead(pid, None, report)
    report.facts["n_events"] = len(events)
    return ProcessRead(pid, tables, report)


def _window(events: pd.DataFrame) -> tuple[int, int] | None:
    """First to last allocator row."""
    t = events.loc[events["event"].isin(("MALLOC", "FREE")), "t_ns"]
    return (int(t.min()), int(t.max())) if len(t) else None


def _finished(events: pd.DataFrame, built: DumpBlocks, ops: pd.DataFrame) -> pd.DataFrame:
    """Name blocks after the operator that was running, and add the columns that all readers fill."""
    frame = built.frame
    rows = np.flatnonzero((events["event"] == "MALLOC").to_numpy())
    block = built.block_of_event[rows]
    rows, block = rows[block >= 0], block[block >= 0]
    codes = np.full(len(frame), -1, dtype=np.int64)
    at = running_op(events, rows, ops)
    codes[block] = np.where(at >= 0, ops["name"].cat.codes.to_numpy()[at] if len(ops) else -1, -1)
    known = list(ops["name"].cat.categories)
    names = known if "" in known else [*known, ""]
    codes = np.where(codes < 0, names.index(""), codes)
    name = pd.Categorical.from_codes(codes, names).remove_unused_categories()
    own = (frame["stack_id"] >= 0).to_numpy().astype(np.int8)
    frame.insert(2, "name", name)
    frame["stack_kind"] = pd.Categorical.from_codes(own, ["none", "own", "forward"])
    return frame


# -- Python trace -----------------------------------------------------------------------------------------------


def _ops(
    events: pd.DataFrame, pid: int | None, collection: DumpCollection, report: ReadReport, on_bytes: OnBytes
) -> pd.DataFrame:
    ops = build_ops(events, report)
    databases = [file for file in collection.files if kind_of(file) == "db"]
    if not databases and not collection.trace_files:
        return ops
    rows: list[Iterable[TraceRow]] = [python_trace_rows(file, pid) for file in databases]
    rows += [_trace_file(file, on_bytes) for file in collection.trace_files]
    try:
        return join_ops([ops, python_ops(chain.from_iterable(rows), pid, report)])
    except (OSError, sqlite3.Error) as error:
        report.lose(f"Python trace: {error}")
        return ops


def _trace_file(path: Path, on_bytes: OnBytes) -> Iterator[TraceRow]:
    """Rows of a Python trace; its first field is not quoted, so that the last four commas count (spec 3.2)."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            on_bytes(len(line))
            parts = line.decode("utf-8", "replace").rstrip("\r\n").rsplit(",", 4)
            if number == 0 or len(parts) != 5 or parts[1].startswith("StartTime"):
                continue
            yield parts[0], parts[1], parts[2], parts[3], parts[4]
