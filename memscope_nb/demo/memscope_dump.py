"""Writes the simulated run as the dump that msMemScope leaves on disk, as CSV or database (spec/msmemscope 1-3)."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from memscope_nb.units import NS_PER_S

from . import frames
from .dump_access import build_accesses
from .dump_folder import LOCAL_TIME, new_folder
from .dump_rows import MARK, NONE, STACK_DEPTH, Attrs, Row, build_rows, hexadecimal
from .dump_simulate import simulate_process
from .dump_truth import ProcessTruth, count_dump
from .records import Process, PythonCall, Stack
from .transformer import WORLD_SIZE

DumpFormat = Literal["csv", "db"]

HEADER = (
    "ID", "Event", "Event Type", "Name", "Timestamp(ns)", "Process Id", "Thread Id", "Device Id", "Ptr", "Attr",
    "Call Stack(Python)", "Call Stack(C)",
)  # fmt: skip
TRACE_HEADER = ("FuncInfo", "StartTime(ns)", "EndTime(ns)", "Thread Id", "Process Id")
DUMP_ITERATIONS = 5
"""The rules for leaks over steps need four steps after the first one."""
SCHEMA = """
CREATE TABLE memscope_dump ("ID" INTEGER, "Event" TEXT, "Event Type" TEXT, "Name" TEXT, "Timestamp(ns)" INTEGER,
 "Process Id" INTEGER, "Thread Id" INTEGER, "Device Id" TEXT, "Ptr" TEXT, "Attr" TEXT, "Call Stack(Python)" TEXT,
 "Call Stack(C)" TEXT);
CREATE TABLE python_trace_{pid} ("FuncInfo" TEXT, "StartTime(ns)" TEXT, "EndTime(ns)" TEXT, "Thread Id" INTEGER,
 "Process Id" INTEGER);
"""


@dataclass(frozen=True)
class DumpTruth:
    """A written dump: how it was made, and the truth about each process.

    Attributes
    ----------
    mark : str
        Text of the mark after each step, for `check_leaks`.
    leak_site : str
        Innermost Python frame of the leak.
    """

    seed: int
    ranks: int
    iterations: int
    leak: bool
    format: DumpFormat
    processes: tuple[ProcessTruth, ...]
    mark: str = MARK
    leak_site: str = frames.LEAK


def write_demo_dump(
    out_dir: str | os.PathLike[str],
    *,
    seed: int = 0,
    ranks: int = 1,
    iterations: int = DUMP_ITERATIONS,
    leak: bool = True,
    format: DumpFormat = "csv",
) -> DumpTruth:
    """Simulate a run and write it as msMemScope would have dumped it, one folder per process.

    It is the run of `write_demo` with the same seed, recorded from the first block to the last: same times, sizes and
    addresses. An iteration is a step.

    Parameters
    ----------
    out_dir : path
        A folder that does not exist yet or is empty. The tree appears in it when all is written.
    seed, ranks, iterations : int
        See `simulate_run`. The same arguments write the same bytes (databases: the same rows).
    leak : bool
        ``False`` writes the repaired program: the same operators at the same times, but what leaked is released.
    format : {"csv", "db"}
        Text, with the Python trace beside it, or databases.

    Returns
    -------
    DumpTruth
        What is in the dump.

    Raises
    ------
    InputError
        When ``out_dir`` is a file or a folder with something in it.
    ValueError
        For another ``format`` and for numbers that `simulate_run` refuses.
    """
    if format not in ("csv", "db"):
        raise ValueError(f"format is {format!r}; expected 'csv' or 'db'")
    with new_folder(out_dir) as folder:
        processes = write_processes(folder, seed=seed, ranks=ranks, iterations=iterations, leak=leak, format=format)
    return DumpTruth(seed, ranks, iterations, leak, format, processes)


def write_processes(
    folder: Path, *, seed: int, ranks: int, iterations: int, leak: bool = True, format: DumpFormat = "csv"
) -> tuple[ProcessTruth, ...]:
    """Write the folders of all processes into an existing folder; see `write_demo_dump`."""
    if not 1 <= ranks <= WORLD_SIZE:
        raise ValueError(f"ranks is {ranks}; the simulated node has 1 to {WORLD_SIZE} ranks")
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}; at least 1 is needed")
    return tuple(_write_process(folder, seed, rank, iterations, leak, format) for rank in range(ranks))


def _write_process(root: Path, seed: int, rank: int, iterations: int, leak: bool, format: DumpFormat) -> ProcessTruth:
    log = simulate_process(seed, rank, iterations, leak=leak)
    accesses = build_accesses(log)
    rows = build_rows(log, accesses)
    process, stamp = log.process, _stamp(log.start_ns)
    folder = root / f"msmemscope_{process.pid}_{stamp}_ascend"
    dump = folder / f"device_{process.device}" / "dump"
    dump.mkdir(parents=True)
    (folder / "config.json").write_bytes(json.dumps(_config(format), indent=4).encode())
    calls = sorted((call for visit in log.visits for call in visit.calls), key=lambda call: call.end_ns)
    if format == "csv":
        _write_lines(dump / f"memscope_dump_{stamp}.csv", _csv_lines(rows, process))
        _write_lines(dump / f"python_trace_{_stamp(calls[0].end_ns)}.csv", _trace_lines(calls, process))
    else:
        _write_database(dump / f"memscope_dump_{stamp}.db", rows, calls, process)
    return count_dump(log, rows, accesses, folder=folder.name)


def _stamp(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns // NS_PER_S, tz=LOCAL_TIME).strftime("%Y%m%d%H%M%S")


def _config(format: DumpFormat) -> dict[str, object]:
    return {
        "enableCStack": True,
        "enablePyStack": True,
        "enableCompare": False,
        "cStackDepth": STACK_DEPTH,
        "pyStackDepth": STACK_DEPTH,
        "levelType": 0b11,
        "eventType": 0b1111,
        "dumpEventType": 0b1111,
        "analysisType": 0b11,
        "oomTopK": 10,
        "collectMode": 1,
        "outputDir": "/opt/train/memscopeDumpResults",
        "dataFormat": int(format == "db"),
        "collectAllNpu": True,
        "collectCpu": False,
        "npuSlots": 0,
        "logLevel": 2,
        "isEffective": True,
        "SelectedStepList": {"stepIdList": [0, 0, 0, 0, 0], "stepCount": 0},
        "watchConfig": {"isWatched": False, "fullContent": False, "start": "", "end": "", "outputId": 4294967295},
    }


# -- text ---------------------------------------------------------------------------------------------------------


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())  # bytes: no platform may change the line ends


def _csv_lines(rows: Iterable[Row], process: Process) -> Iterator[str]:
    """Rows glued together, as the recorder does it: no cell is escaped."""
    yield ",".join(HEADER)
    for row in rows:
        name = f'"{row.name}"' if row.event == "MSTX" else row.name
        attrs = '"{' + ",".join(f"{key}:{value}" for key, value in row.attrs) + '}"' if row.attrs else ""
        yield ",".join(
            [*map(str, _fixed(row, name, process)), attrs, _quoted_stack(row.stack), _quoted_stack(row.c_stack)]
        )


def _fixed(row: Row, name: str, process: Process) -> tuple[object, ...]:
    """The cells that text and database share."""
    device = str(process.device) if row.has_device else NONE
    pointer = NONE if row.address is None else hexadecimal(row.address)
    return row.event_id, row.event, row.type, name, row.t_ns, process.pid, row.tid, device, pointer


def _quoted_stack(stack: Stack | None) -> str:
    """Frames with a line end after each, in quotes; a thread without Python has no frames to tell."""
    if stack is None:
        return '"NA"'
    return '"' + "".join(f"{frame}\n" for frame in stack) + '"' if stack else ""


def _trace_lines(calls: Iterable[PythonCall], process: Process) -> Iterator[str]:
    yield ",".join(TRACE_HEADER)
    for row in _trace_rows(calls, process):
        yield ",".join(map(str, row))


def _trace_rows(calls: Iterable[PythonCall], process: Process) -> Iterator[tuple[str, str, str, int, int]]:
    """Calls in the order in which they return."""
    for call in calls:
        yield call.name, str(call.start_ns), str(call.end_ns), call.tid, process.pid


# -- database -----------------------------------------------------------------------------------------------------


def _write_database(path: Path, rows: Iterable[Row], calls: Iterable[PythonCall], process: Process) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # as in real files; the log itself goes when it is closed
        connection.executescript(SCHEMA.format(pid=process.pid))
        cells = ",".join("?" * len(HEADER))
        connection.executemany(
            f"INSERT INTO memscope_dump VALUES ({cells})", (_database_row(row, process) for row in rows)
        )
        cells = ",".join("?" * len(TRACE_HEADER))
        connection.executemany(f"INSERT INTO python_trace_{process.pid} VALUES ({cells})", _trace_rows(calls, process))
        connection.commit()


def _database_row(row: Row, process: Process) -> tuple[object, ...]:
    """Quotes of names and stacks are kept, attributes are JSON with texts only."""
    name = f'"{row.name}"' if row.event == "MSTX" else row.name
    return *_fixed(row, name, process), _json(row.attrs), _quoted_stack(row.stack), _quoted_stack(row.c_stack)


def _json(attrs: Attrs) -> str:
    return json.dumps(dict(attrs), separators=(",", ":"), ensure_ascii=False)
