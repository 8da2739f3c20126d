"""Text that CANN exports itself, without the framework: graph-engine blocks only (spec/ascend_profiler 3.2, 4, 5).

``operator_memory_<time>.csv`` (KB totals, no release times), ``memory_record_<time>.csv`` and
``npu_module_mem_<time>.csv``, each possibly cut into slices or empty, in ``mindstudio_profiler_output``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import NA_NS, concat_tables, empty_totals
from .ascend_tables import GE_PREFIX, SourceTables, memory_tables, read_totals, source_tables, without_idle
from .csv_table import Column, Kind, Table, read_table
from .report import OnBytes, ReadReport, ignore_bytes

OPERATORS: dict[str, Kind] = {
    "device id": "text",
    "name": "text",
    "size": "bytes",
    "allocation time": "time",
    "release time": "time",
    "duration": "time",
    "allocation total allocated": "bytes",
    "allocation total reserved": "bytes",
    "release total allocated": "bytes",
    "release total reserved": "bytes",
    "device": "text",
}
RECORDS: dict[str, Kind] = {
    "device id": "text",
    "component": "text",
    "timestamp": "time",
    "total allocated": "bytes",
    "total reserved": "bytes",
    "device": "text",
}


def read_cann_export(files: Sequence[Path], *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> SourceTables:
    """Read the CANN-level files of one collection.

    Parameters
    ----------
    files : sequence of Path
        As :func:`~memscope_nb.io.ascend_files.cann_files` lists them.
    report, on_bytes
        As for the framework's export.

    Raises
    ------
    InputError
        If there are neither rows nor samples.
    """
    report.lose("only CANN's own export is there: blocks of the graph engine, none of the framework's, no stacks")
    rows = _joined(files, "operator_memory", OPERATORS, ("name", "size", "allocation time"), report, on_bytes)
    record = _joined(files, "memory_record", RECORDS, ("component", "timestamp"), report, on_bytes)
    modules = _joined(files, "npu_module_mem", RECORDS, ("component", "timestamp"), report, on_bytes)
    if rows is None and record is None:
        raise InputError("; ".join(report.warnings))
    recorded = read_totals(record, "pool", report) if record else empty_totals()
    blocks, totals = memory_tables(_as_framework_writes(rows) if rows else None, recorded, report)
    if modules:
        totals = concat_tables([totals, without_idle(read_totals(modules, "module", report))])
    return source_tables(blocks, totals, None, report)


def _joined(
    files: Sequence[Path],
    kind: str,
    columns: Mapping[str, Kind],
    required: tuple[str, ...],
    report: ReadReport,
    on_bytes: OnBytes,
) -> Table | None:
    """Read all slices of one kind of file as one table."""
    tables = []
    for path in files:
        if path.name.startswith(kind):
            try:
                tables.append(read_table(path, columns, required=required, report=report, on_bytes=on_bytes))
            except (InputError, OSError) as error:
                report.lose(str(error))
    if not tables:
        return None
    first = tables[0]
    joined: dict[str, Column] = {}
    for name in first.columns:
        parts = [table.columns[name] for table in tables if name in table]
        if len(parts) < len(tables):
            report.lose(f"{first.path.name}: slices have different columns; {name} is left out")
        elif isinstance(parts[0], pd.Categorical):
            joined[name] = pd.api.types.union_categoricals(parts)
        else:
            joined[name] = np.concatenate(parts)
    rounding = {
        name: np.concatenate([table.rounding[name] for table in tables]) for name in first.rounding if name in joined
    }
    return replace(first, n_rows=sum(table.n_rows for table in tables), columns=joined, rounding=rounding)


def _as_framework_writes(table: Table) -> Table:
    """Give rows the prefix and the release time that torch_npu adds: allocation + duration (spec 3.2)."""
    name = table.text("name")
    prefixed = name.rename_categories([f"{GE_PREFIX}{text}" for text in name.categories])
    columns: dict[str, Column] = {**table.columns, "name": prefixed}
    if "release time" not in table:
        alloc, duration = table.ints("allocation time"), table.ints("duration")
        known = (alloc != NA_NS) & (duration != NA_NS)
        columns["release time"] = np.where(known, np.where(known, alloc, 0) + np.where(known, duration, 0), NA_NS)
    return replace(table, columns=columns)
