"""Blocks and counters of a database export, under the names of the text export (spec/ascend_profiler 7)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from ..model import NA_NS, concat_tables, empty_totals
from .ascend_tables import GE, GE_PREFIX, SYNTHETIC_SUFFIX, memory_tables, read_totals, without_idle
from .csv_table import Column, Table
from .report import ReadReport
from .sqlite_file import Database

Int64Array = npt.NDArray[np.int64]

UNNAMED = 4294967295
"""Id of the empty name; it has no row in STRING_IDS."""

OPERATOR_COLUMNS = {
    "size": "size",
    "allocation time": "allocationTime",
    "release time": "releaseTime",
    "active release time": "activeReleaseTime",
    "duration": "duration",
    "allocation total allocated": "allocationTotalAllocated",
    "allocation total reserved": "allocationTotalReserved",
    "allocation total active": "allocationTotalActive",
    "release total allocated": "releaseTotalAllocated",
    "release total reserved": "releaseTotalReserved",
    "release total active": "releaseTotalActive",
    "stream ptr": "streamPtr",
}
RECORD_COLUMNS = {
    "timestamp": "timestamp",
    "total allocated": "totalAllocated",
    "total reserved": "totalReserved",
    "total active": "totalActive",
}


class DatabaseTable(Table):
    """Columns of a table of the database, under the names of the text export."""

    def where(self, row: int) -> str:
        """Name the place of a row, for remarks."""
        return f"row {row + 1}"


def read_memory(database: Database, report: ReadReport) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Blocks, and the counters of pools, process, device and modules."""
    rows, pools = _operator_memory(database, report), _memory_record(database, report)
    has_rows, has_totals = _has_graph_engine(rows), bool((pools["component"] == GE).any())
    if "NPU_OP_MEM" in database and not (has_rows and has_totals):
        engine_rows, engine_totals = _graph_engine(database, report)
        rows = rows if has_rows else _joined(rows, engine_rows)
        pools = pools if has_totals else concat_tables([pools, engine_totals])
    process, device = _process_memory(database, report)
    recorded = concat_tables([process, pools]).sort_values("t_ns", kind="stable", ignore_index=True)
    blocks, totals = memory_tables(rows, recorded, report)
    return blocks, concat_tables([totals, device, _modules(database, report)])


def _usable(database: Database, table: str, needed: tuple[str, ...], report: ReadReport) -> bool:
    """Whether a table is there with the columns without which its rows say nothing."""
    if table not in database:
        return False
    if lacking := database.lacking(table, needed):
        report.lose(f"table {table} has no column {', '.join(lacking)}: it is not used")
    return not lacking


# -- pieces of a table --------------------------------------------------------------------------------------------


def _table(name: str, columns: Mapping[str, Column]) -> DatabaseTable:
    n_rows = len(next(iter(columns.values())))
    return DatabaseTable(Path(name), n_rows, dict(columns), {})


def _joined(first: DatabaseTable | None, second: DatabaseTable) -> DatabaseTable:
    """Rows of both; a column that one of them lacks is unknown there."""
    if first is None or not first.n_rows:
        return second
    if not second.n_rows:
        return first
    columns: dict[str, Column] = {}
    for name in dict.fromkeys((*first.columns, *second.columns)):
        column = first.columns.get(name, second.columns.get(name))
        if isinstance(column, pd.Categorical):
            columns[name] = union_categoricals([first.text(name), second.text(name)])
        else:
            columns[name] = np.concatenate([first.ints(name), second.ints(name)])
    return _table(first.path.name, columns)


def _devices(ids: Int64Array) -> pd.Categorical:
    """Names as in the text export; an unknown device has a name of its own, so that it joins no other."""
    unique, codes = np.unique(ids, return_inverse=True)
    names, labels = pd.factorize(np.array([f"NPU:{n}" if n >= 0 else "NPU:?" for n in unique.tolist()], dtype=object))
    return pd.Categorical.from_codes(names[codes] if len(names) else [], labels)


def _has_graph_engine(rows: DatabaseTable | None) -> bool:
    return rows is not None and any(str(name).startswith(GE_PREFIX) for name in rows.text("name").categories)


# -- OP_MEMORY, MEMORY_RECORD -------------------------------------------------------------------------------------


def _operator_memory(database: Database, report: ReadReport) -> DatabaseTable | None:
    if not _usable(database, "OP_MEMORY", ("size", "allocationTime"), report):
        return None
    read = database.ints("OP_MEMORY", ["name", "deviceId", *OPERATOR_COLUMNS.values()])
    columns: dict[str, Column] = {text: read[column] for text, column in OPERATOR_COLUMNS.items()}
    # The graph engine's names have no prefix here; its rows are those without a stream and an active total.
    in_engine = (read["streamPtr"] == NA_NS) & (read["allocationTotalActive"] == NA_NS)
    columns["name"] = names = _names(database, read["name"], in_engine)
    columns["device type"] = _devices(read["deviceId"])
    unknown = ~np.isin(read["name"], (UNNAMED, NA_NS)) & np.asarray(names.isin(["", GE_PREFIX]))
    if unknown.any():
        report.note("OP_MEMORY: names that STRING_IDS does not have", int(unknown.sum()))
    return _table("OP_MEMORY", columns)


def _names(database: Database, ids: Int64Array, in_engine: npt.NDArray[np.bool_]) -> pd.Categorical:
    """Names with the prefix that tells the graph engine's rows from the framework's, as in the text export."""
    plain = database.categories(ids)
    labels = [*plain.categories, *(GE_PREFIX + str(name) for name in plain.categories)]
    codes = plain.codes.astype(np.int64) + np.where(in_engine, len(plain.categories), 0)
    merged, unique = pd.factorize(np.array(labels, dtype=object))  # a framework's name may begin like that, too
    named = pd.Categorical.from_codes(merged[codes] if len(merged) else [], unique)
    return named.remove_unused_categories()


def _memory_record(database: Database, report: ReadReport) -> pd.DataFrame:
    if not _usable(database, "MEMORY_RECORD", ("component", "timestamp"), report):
        return empty_totals()
    ids = database.distinct("MEMORY_RECORD", "component")
    names = dict(zip(ids, database.texts(np.array(ids, dtype=np.int64)), strict=True))
    if None in names.values():
        # Such a sample could be of any pool, or a sum of pools.
        report.lose("MEMORY_RECORD: components that STRING_IDS does not have; their samples are left out")
    # Sums of pools are half of the table: they stay in the file.
    wanted = [number for number, name in names.items() if name is not None and not name.endswith(SYNTHETIC_SUFFIX)]
    read = database.ints(
        "MEMORY_RECORD", ["component", "deviceId", *RECORD_COLUMNS.values()], where={"component": wanted}
    )
    component = database.categories(read["component"])
    columns: dict[str, Column] = {text: read[column] for text, column in RECORD_COLUMNS.items()}
    # The graph engine has no active total: the text leaves it empty where the database has 0.
    engine = np.asarray(component == GE)
    columns["total active"] = np.where(engine & (read["totalActive"] == 0), NA_NS, read["totalActive"])
    columns["component"] = component
    columns["device type"] = _devices(read["deviceId"])
    return read_totals(_table("MEMORY_RECORD", columns), "pool", report)


# -- NPU_MEM, NPU_MODULE_MEM --------------------------------------------------------------------------------------


def _process_memory(database: Database, report: ReadReport) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Device memory of the process (the ``APP`` of the text export) and of the whole device, sampled."""
    read = database.ints("NPU_MEM", ["type", "ddr", "hbm", "timestampNs", "deviceId"])
    parts = [np.where(read[k] == NA_NS, 0, read[k]) for k in ("hbm", "ddr")]
    unknown = (read["hbm"] == NA_NS) & (read["ddr"] == NA_NS)
    resident = np.where(unknown, NA_NS, parts[0] + parts[1])
    kinds = _enumerated(database, read["type"], ("app", "device"))
    totals = []
    for kind, component, scope in (("app", "APP", "process"), ("device", "device", "device")):
        rows = np.flatnonzero(np.asarray(kinds == kind))
        table = _samples(
            "NPU_MEM", np.full(len(rows), component), read["timestampNs"], resident, read["deviceId"], rows
        )
        totals.append(read_totals(table, scope, report))
    return totals[0], totals[1]


def _modules(database: Database, report: ReadReport) -> pd.DataFrame:
    read = database.ints("NPU_MODULE_MEM", ["moduleId", "timestampNs", "totalReserved", "deviceId"])
    names = database.categories(read["moduleId"], missing=None, table="ENUM_MODULE", value="name")
    table = _samples(
        "NPU_MODULE_MEM",
        names,
        read["timestampNs"],
        read["totalReserved"],
        read["deviceId"],
        np.arange(len(names)),
    )
    return without_idle(read_totals(table, "module", report))


def _samples(
    name: str, component: object, t: Int64Array, reserved: Int64Array, device: Int64Array, rows: Int64Array
) -> DatabaseTable:
    columns: dict[str, Column] = {
        "component": pd.Categorical(component),
        "timestamp": t[rows],
        "total reserved": reserved[rows],
        "device type": _devices(device[rows]),
    }
    return _table(name, columns)


def _enumerated(database: Database, ids: Int64Array, expected: tuple[str, ...]) -> pd.Categorical:
    """Texts of a column that refers to STRING_IDS now and to ENUM_MEMORY in older files: whichever fits more rows."""
    now = database.categories(ids)
    before = database.categories(ids, table="ENUM_MEMORY", value="name")
    return before if before.isin(expected).sum() > now.isin(expected).sum() else now


# -- NPU_OP_MEM ---------------------------------------------------------------------------------------------------


def _graph_engine(database: Database, report: ReadReport) -> tuple[DatabaseTable, pd.DataFrame]:
    """Blocks and totals of the graph engine from its raw events.

    An allocation ends at the next release of the same address on the same device. A release without allocation frees
    memory from before the window; it is written as older CANN did, with a negative size.
    """
    columns = ["operatorName", "addr", "type", "size", "timestampNs", "totalAllocate", "totalReserve"]
    read = database.ints("NPU_OP_MEM", [*columns, "component", "deviceId"])
    kind = _enumerated(database, read["type"], ("allocate", "release"))
    component = database.categories(read["component"])
    synthetic = np.array([str(name).endswith(SYNTHETIC_SUFFIX) for name in component.categories], dtype=bool)
    starts, ends = np.asarray(kind == "allocate"), np.asarray(kind == "release")
    usable = (starts | ends) & (read["timestampNs"] != NA_NS) & ~np.append(synthetic, False)[component.codes]
    if (n_bad := int((~usable).sum())) > 0:
        report.skip("NPU_OP_MEM: events that repeat others, or of no known type or time", n_bad)
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((rows, read["timestampNs"][rows]))]
    event = {name: values[rows] for name, values in read.items()}
    alloc, free = _paired(event["deviceId"], event["addr"], starts[rows])
    # One row a life: its first event, or its release where that is all there is.
    first, last = np.where(alloc >= 0, alloc, free), np.where(free >= 0, free, alloc)
    size = np.abs(event["size"][first])
    began, ended = alloc >= 0, free >= 0
    names = _names(database, event["operatorName"][first], np.ones(len(first), dtype=bool))
    blocks: dict[str, Column] = {
        "name": names,
        "size": np.where(event["size"][first] == NA_NS, NA_NS, np.where(began, size, -size)),
        "allocation time": np.where(began, event["timestampNs"][first], NA_NS),
        "release time": np.where(ended, event["timestampNs"][last], NA_NS),
        "allocation total allocated": np.where(began, event["totalAllocate"][first], NA_NS),
        "allocation total reserved": np.where(began, event["totalReserve"][first], NA_NS),
        "release total allocated": np.where(ended, event["totalAllocate"][last], NA_NS),
        "release total reserved": np.where(ended, event["totalReserve"][last], NA_NS),
        "device type": _devices(event["deviceId"][first]),
    }
    record: dict[str, Column] = {
        "component": pd.Categorical.from_codes(np.zeros(len(rows), dtype=np.int8), [GE]),
        "timestamp": event["timestampNs"],
        "total allocated": event["totalAllocate"],
        "total reserved": event["totalReserve"],
        "device type": _devices(event["deviceId"]),
    }
    return _table("NPU_OP_MEM", blocks), read_totals(_table("NPU_OP_MEM", record), "pool", report)


def _paired(device: Int64Array, address: Int64Array, starts: npt.NDArray[np.bool_]) -> tuple[Int64Array, Int64Array]:
    """Positions of the first and the last event of each life, -1 where it was not seen; events come in time order."""
    order = np.lexsort((np.arange(len(address)), address, device)).astype(np.int64)
    follows = np.zeros(len(order), dtype=bool)  # this event ends the life that the one before it began
    same = (device[order][1:] == device[order][:-1]) & (address[order][1:] == address[order][:-1])
    follows[1:] = same & starts[order][:-1] & ~starts[order][1:]
    begins = starts[order]
    closed = np.append(follows[1:], False) & begins
    after = np.append(order[1:], -1)
    alloc = np.concatenate([order[begins], np.full(int((~begins & ~follows).sum()), -1, dtype=np.int64)])
    free = np.concatenate([np.where(closed, after, -1)[begins], order[~begins & ~follows]])
    return alloc, free
