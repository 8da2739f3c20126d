"""Writes a collection of the simulated run as the database that the Ascend PyTorch Profiler exports."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from heapq import merge
from pathlib import Path

from .records import Collection, GraphEvent, Op, PoolEvent, Totals
from .samples import MODULES

Row = tuple[object, ...]

SCHEMA = """
CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY,value TEXT);
CREATE TABLE ENUM_API_TYPE (id INTEGER PRIMARY KEY,name TEXT);
CREATE TABLE ENUM_MODULE (id INTEGER PRIMARY KEY,name TEXT);
CREATE TABLE ENUM_MSTX_EVENT_TYPE (id INTEGER PRIMARY KEY,name TEXT);
CREATE TABLE HOST_INFO (hostUid TEXT,hostName TEXT);
CREATE TABLE NPU_INFO (id INTEGER,name TEXT);
CREATE TABLE META_DATA (name TEXT,value TEXT);
CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER);
CREATE TABLE SESSION_TIME_INFO (startTimeNs INTEGER,endTimeNs INTEGER);
CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER);
CREATE TABLE OP_MEMORY (name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER,
 activeReleaseTime INTEGER, duration INTEGER, activeDuration INTEGER, allocationTotalAllocated INTEGER,
 allocationTotalReserved INTEGER, allocationTotalActive INTEGER, releaseTotalAllocated INTEGER,
 releaseTotalReserved INTEGER, releaseTotalActive INTEGER, streamPtr INTEGER, deviceId INTEGER);
CREATE TABLE MEMORY_RECORD (component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER,
 totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER);
CREATE TABLE NPU_MEM (type INTEGER,ddr NUMERIC,hbm NUMERIC,timestampNs INTEGER,deviceId INTEGER);
CREATE TABLE NPU_MODULE_MEM (moduleId INTEGER,timestampNs INTEGER,totalReserved NUMERIC,deviceId INTEGER);
CREATE TABLE NPU_OP_MEM (operatorName INTEGER,addr INTEGER,type INTEGER,size INTEGER,timestampNs INTEGER,
 globalTid INTEGER,totalAllocate NUMERIC,totalReserve NUMERIC,component INTEGER,deviceId INTEGER);
CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER,
 sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER, callchainId INTEGER,
 type INTEGER, depth integer);
CREATE TABLE PYTORCH_CALLCHAINS (id INTEGER, stack INTEGER, stackDepth INTEGER);
CREATE TABLE MSTX_EVENTS (startNs INTEGER,endNs INTEGER,eventType INTEGER,rangeId INTEGER,category INTEGER,
 message INTEGER,globalTid INTEGER,endGlobalTid INTEGER,domainId INTEGER,connectionId INTEGER);
"""
API_TYPES = {
    5000: "runtime",
    5500: "hccl",
    10000: "node",
    15000: "model",
    20000: "acl",
    50001: "op",
    50002: "queue",
    50003: "trace",
    50004: "mstx",
}
OP, QUEUE, TRACE = 50001, 50002, 50003
MSTX_TYPES = ("marker", "push/pop", "start/end", "marker_ex")
NONE = 4294967295  # no text, no number
SHAPE_BREAK = ";\r\n"
OTHER_PROCESSES_BYTES = 248 << 20  # on the device beside this one
GRAPH_BASE = 0x12C0_4120_0000


class Strings:
    """Numbers of texts, one counter for CANN and one for the framework, which therefore repeat some texts."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, str], int] = {}
        self._next = {0: 0, 1 << 28: 1 << 28}

    def cann(self, text: str) -> int:
        """Return the number of a text of CANN."""
        return self._id(0, text)

    def torch(self, text: str) -> int:
        """Return the number of a text of the framework; an empty one has none."""
        return self._id(1 << 28, text) if text else NONE

    def _id(self, first: int, text: str) -> int:
        if (first, text) not in self._ids:
            self._ids[first, text] = self._next[first]
            self._next[first] += 1
        return self._ids[first, text]

    def rows(self) -> Iterator[Row]:
        """Yield number and text."""
        for (_, text), number in self._ids.items():
            yield number, text


def write_database(path: Path, collection: Collection, metadata: dict[str, object]) -> None:
    """Write ``ascend_pytorch_profiler_<rank>.db``.

    Parameters
    ----------
    path : Path
        The file, which must not exist.
    collection : Collection
        What happened.
    metadata : dict
        Goes into META_DATA, each value as JSON text.
    """
    strings = Strings()
    process = collection.process
    meta = {"SCHEMA_VERSION": "1.0.0", **{key: json.dumps(value) for key, value in metadata.items()}}
    tables: dict[str, Iterable[Row]] = {
        "ENUM_API_TYPE": API_TYPES.items(),
        "ENUM_MODULE": ((n, name) for n, name in enumerate(MODULES) if not name.isdecimal()),
        "ENUM_MSTX_EVENT_TYPE": enumerate(MSTX_TYPES),
        "HOST_INFO": [("3538958389648580163", process.host)],
        "NPU_INFO": [(process.device, "Ascend910B")],
        "META_DATA": meta.items(),
        "RANK_DEVICE_MAP": [(process.rank, process.device)],
        "SESSION_TIME_INFO": [(collection.start_ns, collection.end_ns)],
        "STEP_TIME": _steps(collection),
        "NPU_OP_MEM": _graph_events(collection, strings),
        "NPU_MEM": _process_memory(collection, strings),
        "NPU_MODULE_MEM": _modules(collection),
        "OP_MEMORY": _blocks(collection, strings),
        "MEMORY_RECORD": _records(collection, strings),
        "PYTORCH_API": _api(collection, strings),
        "PYTORCH_CALLCHAINS": _chains(collection, strings),
        "MSTX_EVENTS": _ranges(collection, strings),
        "STRING_IDS": strings.rows(),  # the last: the others fill it
    }
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # as in real files; the log itself goes when it is closed
        connection.executescript(SCHEMA)
        for name, rows in tables.items():
            width = len(connection.execute(f"SELECT * FROM {name}").description)
            connection.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * width)})", rows)
        connection.commit()


def _steps(collection: Collection) -> Iterator[Row]:
    for op in collection.ops:
        if op.name.startswith("ProfilerStep#"):
            yield int(op.name.split("#")[1]), op.start_ns, op.end_ns


# -- memory -------------------------------------------------------------------------------------------------------


def _minus(end_ns: int | None, start_ns: int) -> int | None:
    return None if end_ns is None else end_ns - start_ns


def _levels(totals: Totals | None) -> Row:
    return (None,) * 3 if totals is None else (totals.allocated_bytes, totals.reserved_bytes, totals.active_bytes)


def _blocks(collection: Collection, strings: Strings) -> Iterator[Row]:
    """Framework rows in order of allocation, then the graph engine's, whose names have no prefix here."""
    device = collection.process.device
    for b in collection.blocks:
        times = (b.alloc_ns, b.free_ns, b.block_free_ns)
        durations = (_minus(b.free_ns, b.alloc_ns), _minus(b.block_free_ns, b.alloc_ns))
        levels = (*_levels(b.at_alloc), *_levels(b.at_release))
        yield strings.torch(b.name), b.size_bytes, *times, *durations, *levels, b.stream, device
    for g in collection.graph_blocks:
        times = (g.alloc_ns, g.free_ns, None)
        after = (g.allocated_at_free_bytes, None if g.free_ns is None else g.reserved_bytes, None)
        levels = (g.allocated_at_alloc_bytes, g.reserved_bytes, None, *after)
        duration = _minus(g.free_ns, g.alloc_ns)
        yield strings.cann(g.name), g.size_bytes, *times, duration, None, *levels, None, device


def _records(collection: Collection, strings: Strings) -> Iterator[Row]:
    """Every event of both pools by time, each followed by the sum of the two; the process is in NPU_MEM."""
    device = collection.process.device
    pool, engine = Totals(0, 0, 0), GraphEvent(0, 0, 0)
    by_time: Iterator[PoolEvent | GraphEvent] = merge(
        collection.events, collection.graph_events, key=lambda event: event.t_ns
    )
    for event in by_time:
        if isinstance(event, PoolEvent):
            pool = event.totals
            yield strings.torch("PTA"), event.t_ns, *_levels(pool), event.stream, device
        else:
            engine = event
            yield strings.torch("GE"), event.t_ns, engine.allocated_bytes, engine.reserved_bytes, 0, None, device
        stream = event.stream if isinstance(event, PoolEvent) else None
        both = (pool.allocated_bytes + engine.allocated_bytes, pool.reserved_bytes + engine.reserved_bytes)
        yield strings.torch("PTA+GE"), event.t_ns, *both, pool.active_bytes, stream, device


def _graph_events(collection: Collection, strings: Strings) -> Iterator[Row]:
    """Raw events of the graph engine by time, with addresses."""
    process = collection.process
    events: list[Row] = []
    for number, g in enumerate(collection.graph_blocks):
        ends = [("allocate", g.alloc_ns, g.allocated_at_alloc_bytes), ("release", g.free_ns, g.allocated_at_free_bytes)]
        address = GRAPH_BASE + (number % 4 << 26)
        for kind, t_ns, level in ends:
            if t_ns is not None:
                who = process.pid << 32 | process.main_tid
                name, type_id, pool = strings.cann(g.name), strings.cann(kind), strings.cann("GE")
                totals = (level, g.reserved_bytes)
                events.append((name, address, type_id, g.size_bytes, t_ns, who, *totals, pool, process.device))
    yield from sorted(events, key=lambda event: int(str(event[4])))


def _process_memory(collection: Collection, strings: Strings) -> Iterator[Row]:
    for kind, more in (("app", 0), ("device", OTHER_PROCESSES_BYTES)):
        for sample in collection.process_samples:
            yield strings.cann(kind), 0, sample.resident_bytes + more, sample.t_ns, collection.process.device


def _modules(collection: Collection) -> Iterator[Row]:
    number = {name: int(name) if name.isdecimal() else n for n, name in enumerate(MODULES)}
    for sample in collection.module_samples:
        yield number[sample.component], sample.t_ns, sample.reserved_bytes, collection.process.device


# -- operators ----------------------------------------------------------------------------------------------------


def _api(collection: Collection, strings: Strings) -> Iterator[Row]:
    """Queue tasks, operators and Python functions; times are text, as in real files."""
    process = collection.process
    tids = {op.op_id: op.tid for op in collection.ops}
    for task in collection.tasks:
        for name, tid, start, end in (
            ("Enqueue", tids[task.op_id], task.enqueue_ns, task.enqueue_end_ns),
            (f"Dequeue@{task.kernel}", process.queue_tid, task.dequeue_ns, task.dequeue_end_ns),
        ):
            who = (str(start), str(end), process.pid << 32 | tid)
            yield *who, task.correlation_id, strings.torch(name), *(None,) * 5, QUEUE, 1
    for op in collection.ops:
        yield _operator(op, process.pid, strings)
    for call in collection.python_calls:
        who = (str(call.start_ns), str(call.end_ns), process.pid << 32 | call.tid)
        yield *who, None, strings.torch(call.name), *(None,) * 5, TRACE, 0


def _operator(op: Op, pid: int, strings: Strings) -> Row:
    shapes = strings.torch(SHAPE_BREAK.join(op.dims)) if op.dims else None
    chain = op.op_id if op.stack else None
    who = (str(op.start_ns), str(op.end_ns), pid << 32 | op.tid)
    return *who, None, strings.torch(op.name), op.sequence, op.fwd_tid, None, shapes, chain, OP, 0


def _chains(collection: Collection, strings: Strings) -> Iterator[Row]:
    """One chain an operator, though most repeat the stack of another."""
    for op in collection.ops:
        for depth, frame in enumerate(op.stack or ()):
            yield op.op_id, strings.torch(frame), depth


def _ranges(collection: Collection, strings: Strings) -> Iterator[Row]:
    domain = strings.cann("default")
    for number, mark in enumerate(collection.ranges):
        who = collection.process.pid << 32 | mark.tid
        texts = (strings.cann(mark.kind), strings.cann(mark.name))
        yield mark.start_ns, mark.end_ns, MSTX_TYPES.index("push/pop"), NONE, *texts, who, who, domain, number
