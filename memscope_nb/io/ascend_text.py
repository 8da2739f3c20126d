"""Text export of the Ascend PyTorch Profiler: CSV files and trace to tables (spec/ascend_profiler 3-6)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError
from ..model import NA_NS, BlockFlag, concat_tables, empty_blocks, empty_marks, empty_ops, empty_totals, from_int64
from ..stacks import stacks_frame
from .csv_table import Kind, Table, read_table
from .op_join import join_operators
from .report import OnBytes, ReadReport, ignore_bytes
from .trace_view import Trace, read_trace

Int64Array = npt.NDArray[np.int64]

GE_PREFIX = "cann::"
PTA, GE = "PTA", "GE"
SYNTHETIC_SUFFIX = "+GE"
"""Components such as ``PTA+GE`` repeat what other rows say (spec 4)."""

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


@dataclass(frozen=True)
class SourceTables:
    """Tables of one source, without the ``source`` and ``block_id`` columns, and its window."""

    blocks: pd.DataFrame
    totals: pd.DataFrame
    marks: pd.DataFrame
    ops: pd.DataFrame
    stacks: pd.DataFrame
    window: tuple[int, int] | None
    pid: int | None = None


def read_text_export(output: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> SourceTables:
    """Read one ``ASCEND_PROFILER_OUTPUT`` folder.

    Parameters
    ----------
    output : Path
        The folder.
    report : ReadReport
        Receives counts and remarks; ``report.partial`` when a part is missing or broken.
    on_bytes : callable
        Progress.

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
    blocks, row_totals = _blocks(rows, report) if rows else (empty_blocks(), empty_totals())
    totals = _totals(record, "pool", report) if record else empty_totals()
    recorded = set(totals.loc[totals["scope"] == "pool", "component"])
    # A pool without recorded samples is described by both ends of its rows instead.
    row_totals = row_totals[~row_totals["component"].isin(recorded)]
    if rows and not recorded:
        report.note("no recorded totals: curves use the totals written in the rows")
    modules = _read_modules(output / "npu_module_mem.csv", report, on_bytes)
    totals = concat_tables([totals, row_totals, modules])
    trace = _read_stacks(output, report, on_bytes)
    if trace is not None:
        blocks = join_operators(blocks, trace, report)
    return SourceTables(
        blocks=blocks,
        totals=totals,
        marks=trace.marks if trace else empty_marks().drop(columns="source"),
        ops=trace.ops if trace else empty_ops().drop(columns="source"),
        stacks=trace.stacks if trace else stacks_frame([]),
        window=_window(blocks, totals),
        pid=trace.pid if trace else None,
    )


def _read_part(
    path: Path, kinds: dict[str, Kind], required: tuple[str, ...], report: ReadReport, on_bytes: OnBytes
) -> Table | None:
    """One file; its absence or ruin makes the source partial and stops nothing else."""
    if not path.is_file():
        report.lose(f"{path.name} is missing (recorded with profile_memory=True and exported as text?)")
        return None
    try:
        return read_table(path, kinds, required=required, report=report, on_bytes=on_bytes)
    except (InputError, OSError) as error:
        report.lose(str(error))
        return None


def _device(table: Table) -> pd.Categorical:
    return table.text("device type" if "device type" in table else "device")


# -- operator_memory.csv ----------------------------------------------------------------------------------------


def _blocks(table: Table, report: ReadReport) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Blocks sorted by allocation, and pool totals from both ends of the rows."""
    name = table.text("name")
    in_ge = np.array([str(n).startswith(GE_PREFIX) for n in name.categories], dtype=bool)
    is_ge = np.append(in_ge, False)[name.codes]
    size, alloc = table.ints("size"), table.ints("allocation time")
    free, active_free = table.ints("release time"), table.ints("active release time")
    free = np.where(is_ge & _ge_open(table, alloc, free), NA_NS, free)
    older = size < 0
    keep = _usable(table, size, alloc, free, report)
    _check_times(table, keep & ~is_ge, alloc, free, report)
    if (n_older := int((older & keep).sum())) > 0:
        report.note(
            f"{table.path.name}: releases of memory from before the window, written with negative sizes", n_older
        )
    _note_rounding(table, report)
    frame = pd.DataFrame(
        {
            "device": _device(table),
            "pool": pd.Categorical.from_codes(is_ge.astype(np.int8), [PTA, GE]),
            "name": name,
            "stack_id": np.int32(-1),
            "stack_kind": pd.Categorical.from_codes(np.zeros(table.n_rows, np.int8), ["none", "own", "forward"]),
            "size_bytes": np.abs(size),
            "alloc_ns": from_int64(alloc),
            "free_ns": from_int64(free),
            "active_free_ns": from_int64(active_free),
            "allocated_bytes": from_int64(table.ints("allocation total allocated")),
            "reserved_bytes": from_int64(table.ints("allocation total reserved")),
            "active_bytes": from_int64(table.ints("allocation total active")),
            "stream": from_int64(table.ints("stream ptr")),
            "flags": np.where(older, BlockFlag.OLDER, BlockFlag.NONE).astype(np.uint16),
        }
    )
    totals = _row_totals(table, frame, keep)
    frame = frame[keep]
    order = np.lexsort((np.arange(len(frame)), alloc[keep]))
    return frame.iloc[order].reset_index(drop=True), totals


def _ge_open(table: Table, alloc: Int64Array, free: Int64Array) -> npt.NDArray[np.bool_]:
    """GE rows that look like zero-length lives are unreleased (spec 3.5)."""
    no_totals = np.isin(table.ints("release total allocated"), (0, NA_NS))
    return (free == alloc) & np.isin(table.ints("duration"), (0, NA_NS)) & no_totals


def _usable(
    table: Table, size: Int64Array, alloc: Int64Array, free: Int64Array, report: ReadReport
) -> npt.NDArray[np.bool_]:
    """Rows that describe a block; the others are counted by reason."""
    keep = np.ones(table.n_rows, dtype=bool)
    reasons = {
        "no size": size == NA_NS,
        "neither an allocation nor a release time": (alloc == NA_NS) & ((free == NA_NS) | (size >= 0)),
        "released before it was allocated": (free != NA_NS) & (alloc != NA_NS) & (free < alloc),
    }
    for reason, bad in reasons.items():
        bad = bad & keep
        if bad.any():
            report.skip(f"{table.path.name}: rows with {reason}", int(bad.sum()), f"line {int(np.argmax(bad)) + 2}")
        keep &= ~bad
    return keep


def _check_times(
    table: Table, rows: npt.NDArray[np.bool_], alloc: Int64Array, free: Int64Array, report: ReadReport
) -> None:
    """``Duration`` is written independently of the two times: it must be their difference to the ns (spec 3.7)."""
    duration = table.ints("duration")
    known = rows & (free != NA_NS) & (duration != NA_NS)
    wrong = known & (np.where(known, free - alloc, 0) != np.where(known, duration, 0))
    report.facts["n_duration_checked"] = int(known.sum())
    if wrong.any():
        line = int(np.argmax(wrong)) + 2
        report.note(f"{table.path.name}: durations that are not release - allocation", int(wrong.sum()), f"line {line}")


def _note_rounding(table: Table, report: ReadReport) -> None:
    cut = {name: int((half > 0).sum()) for name, half in table.rounding.items()}
    if n_cut := sum(cut.values()):
        worst = max(int(half.max(initial=0)) for half in table.rounding.values())
        report.repair(
            f"{table.path.name}: totals shortened by a re-save, taken to the nearest byte (±{worst} B)", n_cut
        )
    report.count("n_rounded", n_cut)


def _row_totals(table: Table, frame: pd.DataFrame, keep: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Samples of the pool counters: after the allocation, and at the free event (spec 3.3)."""
    alloc, free = table.ints("allocation time"), table.ints("release time")
    late = table.ints("active release time")
    ends = np.where(free == NA_NS, late, free)
    open_rows = frame["free_ns"].isna().to_numpy() & frame["active_free_ns"].isna().to_numpy()
    parts = []
    for side, t in (("allocation", alloc), ("release", np.where(open_rows, NA_NS, ends))):
        columns = {k: table.ints(f"{side} total {k}") for k in ("allocated", "reserved", "active")}
        rows = keep & (t != NA_NS) & (columns["allocated"] != NA_NS)
        part = frame.loc[rows, ["device", "pool"]].rename(columns={"pool": "component"})
        part["t_ns"] = t[rows]
        for k, values in columns.items():
            part[f"{k}_bytes"] = from_int64(values[rows])
        part["tolerance_bytes"] = table.rounding.get(f"{side} total allocated", np.zeros(table.n_rows, np.int64))[rows]
        parts.append(part)
    totals = concat_tables(parts)
    totals["scope"] = pd.Categorical.from_codes(np.zeros(len(totals), np.int8), ["pool"])
    totals["origin"] = pd.Categorical.from_codes(np.zeros(len(totals), np.int8), ["rows"])
    return totals.sort_values("t_ns", kind="stable", ignore_index=True)


# -- memory_record.csv, npu_module_mem.csv ----------------------------------------------------------------------


def _totals(table: Table, default_scope: str, report: ReadReport) -> pd.DataFrame:
    """Counter samples sorted by time; ``APP`` is the process, other components are pools."""
    component = table.text("component")
    names = [str(name) for name in component.categories]
    synthetic = np.array([name.endswith(SYNTHETIC_SUFFIX) for name in names], dtype=bool)
    scopes = ["process" if name == "APP" and default_scope == "pool" else default_scope for name in names]
    scope_names = sorted(set(scopes))
    scope_codes = np.array([scope_names.index(scope) for scope in scopes], dtype=np.int8)
    keep = ~np.append(synthetic, False)[component.codes]
    t = table.ints("timestamp")
    if (n_bad := int((keep & (t == NA_NS)).sum())) > 0:
        report.skip(f"{table.path.name}: samples without a time", n_bad)
    keep &= t != NA_NS
    _note_rounding(table, report)
    frame = pd.DataFrame(
        {
            "scope": pd.Categorical.from_codes(scope_codes[component.codes] if len(scope_codes) else [], scope_names),
            "component": component,
            "device": _device(table),
            "t_ns": t,
            "allocated_bytes": from_int64(table.ints("total allocated")),
            "reserved_bytes": from_int64(table.ints("total reserved")),
            "active_bytes": from_int64(table.ints("total active")),
            "tolerance_bytes": table.rounding.get("total allocated", np.zeros(table.n_rows, np.int64)),
            "origin": pd.Categorical.from_codes(np.zeros(table.n_rows, np.int8), ["recorded"]),
        }
    )[keep]
    frame["component"] = frame["component"].cat.remove_unused_categories()
    return frame.sort_values("t_ns", kind="stable", ignore_index=True)


def _read_modules(path: Path, report: ReadReport, on_bytes: OnBytes) -> pd.DataFrame:
    """Memory of modules outside the pool; components that are zero throughout are dropped (spec 5)."""
    if not path.is_file():
        return empty_totals()
    try:
        table = read_table(path, RECORD_COLUMNS, required=("component", "timestamp"), report=report, on_bytes=on_bytes)
    except (InputError, OSError) as error:
        report.lose(str(error))
        return empty_totals()
    totals = _totals(table, "module", report)
    used = totals.loc[totals["reserved_bytes"].fillna(0) != 0, "component"].unique()
    totals = totals[totals["component"].isin(used)].reset_index(drop=True)
    totals["component"] = totals["component"].cat.remove_unused_categories()
    return totals


# -- trace_view.json --------------------------------------------------------------------------------------------


def _read_stacks(output: Path, report: ReadReport, on_bytes: OnBytes) -> Trace | None:
    path = next((p for n in ("trace_view.json", "trace_view.json.gz") if (p := output / n).is_file()), None)
    if path is None:
        report.lose("trace_view.json is missing: no stacks, steps or ranges; everything else is complete")
        return None
    try:
        trace = read_trace(path, report=report, on_bytes=on_bytes)
    except OSError as error:
        report.lose(f"{path.name}: {error}: no stacks")
        return None
    if trace.relative:
        report.lose(f"{path.name}: its times do not start at the epoch, another clock than the memory files: no stacks")
        return None
    return trace


def _window(blocks: pd.DataFrame, totals: pd.DataFrame) -> tuple[int, int] | None:
    """First to last allocator record of any pool (spec 3.3a); other samples are context."""
    times = [totals.loc[totals["scope"] == "pool", "t_ns"].to_numpy(dtype=np.int64)]
    for column in ("alloc_ns", "free_ns", "active_free_ns"):
        times.append(blocks[column].dropna().to_numpy(dtype=np.int64))
    every = np.concatenate(times)
    return (int(every.min()), int(every.max())) if len(every) else None
