"""Text export of the Ascend PyTorch Profiler: CSV files and trace to tables (spec/ascend_profiler 3-6)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..errors import InputError
from ..model import concat_tables, empty_totals
from .ascend_tables import SYNTHETIC_SUFFIX, SourceTables, memory_tables, read_totals, source_tables, without_idle
from .csv_table import Kind, Table, read_table
from .heap import give_back
from .report import OnBytes, ReadReport, ignore_bytes
from .trace_view import Trace, TraceReader, read_trace

OPERATOR_COLUMNS: dict[str, Kind] = {
    "name": "text",
    "size": "bytes",
    "allocation time": "time",
    "release time": "time",
    "active release time": "time",
    "duration": "time",
    "allocation total allocated": "bytes",
    "allocation total reserved": "bytes",
    "allocation total active": "bytes",
    "release total allocated": "bytes",
    "release total reserved": "bytes",
    "release total active": "bytes",
    "stream ptr": "int",
    "device type": "text",
    "device": "text",
}
RECORD_COLUMNS: dict[str, Kind] = {
    "component": "text",
    "timestamp": "time",
    "total allocated": "bytes",
    "total reserved": "bytes",
    "total active": "bytes",
    "device type": "text",
    "device": "text",
}


def read_text_export(
    output: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes, reader: TraceReader = "auto"
) -> SourceTables:
    """Read one ``ASCEND_PROFILER_OUTPUT`` folder.

    Parameters
    ----------
    output : Path
        The folder.
    report : ReadReport
        Receives counts and remarks; ``report.partial`` when a part is missing or broken.
    on_bytes : callable
        Progress.
    reader : {"auto", "ijson"}
        How to read the trace, see :func:`~memscope_nb.io.trace_view.read_trace`.

    Raises
    ------
    InputError
        If neither blocks nor recorded totals can be read.
    """
    rows = _read_part(
        output / "operator_memory.csv", OPERATOR_COLUMNS, ("name", "size", "allocation time"), report, on_bytes
    )
    record = _read_part(output / "memory_record.csv", RECORD_COLUMNS, ("component", "timestamp"), report, on_bytes)
    if rows is None and record is None:
        raise InputError("; ".join(report.warnings) or "no memory files")
    recorded = read_totals(record, "pool", report) if record else empty_totals()
    del record  # free before the trace is read
    give_back()
    blocks, totals = memory_tables(rows, recorded, report)
    del rows, recorded
    give_back()
    totals = concat_tables([totals, _read_modules(output / "npu_module_mem.csv", report, on_bytes)], use_up=True)
    give_back()
    trace = _read_stacks(output, report, on_bytes, reader)
    tables = source_tables(blocks, totals, trace, report)
    del blocks, totals, trace
    give_back()
    return tables


def _read_part(
    path: Path, kinds: dict[str, Kind], required: tuple[str, ...], report: ReadReport, on_bytes: OnBytes
) -> Table | None:
    """One file; its absence or ruin makes the source partial and stops nothing else."""
    if not path.is_file():
        report.lose(f"{path.name} is missing (recorded with profile_memory=True and exported as text?)")
        return None
    try:
        drop = ("component", SYNTHETIC_SUFFIX)
        return read_table(path, kinds, required=required, report=report, on_bytes=on_bytes, drop=drop)
    except (InputError, OSError) as error:
        report.lose(str(error))
        return None


# -- npu_module_mem.csv -----------------------------------------------------------------------------------------------


def _read_modules(path: Path, report: ReadReport, on_bytes: OnBytes) -> pd.DataFrame:
    """Memory of modules outside the pool; components that are zero throughout are dropped (spec 5)."""
    if not path.is_file():
        return empty_totals()
    try:
        table = read_table(path, RECORD_COLUMNS, required=("component", "timestamp"), report=report, on_bytes=on_bytes)
    except (InputError, OSError) as error:
        report.lose(str(error))
        return empty_totals()
    return without_idle(read_totals(table, "module", report))


# -- trace_view.json --------------------------------------------------------------------------------------------


def _read_stacks(output: Path, report: ReadReport, on_bytes: OnBytes, reader: TraceReader) -> Trace | None:
    path = next((p for n in ("trace_view.json", "trace_view.json.gz") if (p := output / n).is_file()), None)
    if path is None:
        report.lose("trace_view.json is missing: no stacks, steps or ranges; everything else is complete")
        return None
    try:
        trace = read_trace(path, report=report, on_bytes=on_bytes, reader=reader)
    except OSError as error:
        report.lose(f"{path.name}: {error}: no stacks")
        return None
    if trace.relative:
        report.lose(f"{path.name}: its times do not start at the epoch, another clock than the memory files: no stacks")
        return None
    return trace
