"""Blocks and totals of an Ascend collection from typed columns, the same for the text and the database export.

Both readers deliver a :class:`~memscope_nb.io.csv_table.Table` whose columns carry the names of the text export; what a
row means is decided here, once (spec/ascend_profiler 3-5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import (
    NA_NS,
    BlockFlag,
    concat_tables,
    empty_blocks,
    empty_marks,
    empty_ops,
    empty_totals,
    from_int64,
    to_int64,
)
from ..stacks import stacks_frame
from .csv_table import Table
from .op_join import join_operators
from .report import ReadReport
from .trace_view import Trace

Int64Array = npt.NDArray[np.int64]

GE_PREFIX = "cann::"
PTA, GE, WORKSPACE, MINDSPORE = "PTA", "GE", "WORKSPACE", "MINDSPORE"
_POOL_NAMES = {"mindspore": MINDSPORE, "workspace": WORKSPACE}
SYNTHETIC_SUFFIX = "+GE"
"""Components such as ``PTA+GE`` repeat what other rows say (spec 4)."""


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
    host: str | None = None
    kind: str = "ascend_text"

    @property
    def more(self) -> dict[str, pd.DataFrame]:
        """Tables that only some formats have, by their name in the profile; with their ``source`` column."""
        return {}


def memory_tables(rows: Table | None, recorded: pd.DataFrame, report: ReadReport) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Build blocks and totals; a pool without recorded samples is described by both ends of its rows instead.

    Parameters
    ----------
    rows : Table, optional
        One row a block, with the columns of ``operator_memory.csv``.
    recorded : pandas.DataFrame
        Samples of the counters, by :func:`read_totals`.
    report : ReadReport
        Receives counts and remarks.
    """
    pools = _pools(recorded)
    blocks, row_totals = read_blocks(rows, report, pools) if rows else (empty_blocks(), empty_totals())
    blocks, row_totals = _name_pools(blocks, row_totals, recorded)
    blocks = _without_phantoms(blocks, report)
    row_totals = row_totals[~row_totals["component"].isin(pools)]
    if rows and not pools:
        report.note("no recorded totals: curves use the totals written in the rows")
    return blocks, concat_tables([recorded, row_totals])


def _pools(totals: pd.DataFrame) -> set[str]:
    """Pools with samples, found by their codes: a comparison of text for millions of rows is slow."""
    scope, component = totals["scope"].cat, totals["component"].cat
    in_pool = np.append(scope.categories == "pool", False)[scope.codes.to_numpy()]
    return set(component.categories[np.unique(component.codes.to_numpy()[in_pool])])


def _name_pools(
    blocks: pd.DataFrame, row_totals: pd.DataFrame, recorded: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tell pools that the rows do not name: MindSpore's own, and the workspace allocator (spec 3.6, 4)."""
    pools = _pools(recorded)
    if MINDSPORE in pools and PTA not in pools:
        blocks = blocks.assign(pool=blocks["pool"].cat.rename_categories({PTA: MINDSPORE}))
        row_totals = row_totals.assign(component=row_totals["component"].cat.rename_categories({PTA: MINDSPORE}))
    if WORKSPACE in pools:
        samples = recorded[recorded["scope"] == "pool"]
        workspace = samples.loc[samples["component"] == WORKSPACE, "t_ns"]
        # No column tells a workspace row; but its allocation is the instant of a sample of that allocator and of none
        # of the caching allocator.
        times = np.setdiff1d(workspace, samples.loc[samples["component"] == PTA, "t_ns"])
        mine = (blocks["pool"] == PTA).to_numpy() & np.isin(to_int64(blocks["alloc_ns"]), times)
        pool = blocks["pool"].cat.add_categories(WORKSPACE)
        blocks = blocks.assign(pool=pool.where(~mine, WORKSPACE))
    return blocks, row_totals


PHANTOM_NS = 1_000_000
"""A phantom precedes the row of the same workspace by the time of one allocator call."""


def _without_phantoms(blocks: pd.DataFrame, report: ReadReport) -> pd.DataFrame:
    """Drop rows that repeat a workspace (spec 3.6): open, followed at once by a row of equal size and equal total.

    The second row must look like a workspace (released without active release) or be known as one; an allocated total
    that did not grow between the two says that both are the same memory.
    """
    if len(blocks) < 2 or "allocated_bytes" not in blocks:
        return blocks
    alloc, size = to_int64(blocks["alloc_ns"]), blocks["size_bytes"].to_numpy()
    total, pool = to_int64(blocks["allocated_bytes"]), blocks["pool"].cat.codes.to_numpy()
    device = blocks["device"].cat.codes.to_numpy()
    never = blocks["free_ns"].isna().to_numpy() & blocks["active_free_ns"].isna().to_numpy()
    as_workspace = blocks["free_ns"].notna().to_numpy() & blocks["active_free_ns"].isna().to_numpy()
    as_workspace |= (blocks["pool"] == WORKSPACE).to_numpy()
    as_workspace &= (blocks["pool"] != GE).to_numpy()
    same = (size[1:] == size[:-1]) & (pool[1:] == pool[:-1]) & (device[1:] == device[:-1])
    same &= (alloc[:-1] != NA_NS) & (alloc[1:] - alloc[:-1] <= PHANTOM_NS)
    same &= (total[1:] == total[:-1]) & (total[1:] != NA_NS)
    phantom = np.append(same & never[:-1] & as_workspace[1:], False)
    if phantom.any():
        first = int(alloc[np.argmax(phantom)])
        report.note("workspace rows that only repeat the next row, not counted", int(phantom.sum()), f"at {first} ns")
        report.facts["n_phantom"] = int(phantom.sum())
        blocks = blocks[~phantom].reset_index(drop=True)
    return blocks


def source_tables(
    blocks: pd.DataFrame,
    totals: pd.DataFrame,
    trace: Trace | None,
    report: ReadReport,
) -> SourceTables:
    """Join the blocks with the operators of the trace, if there is one, and find the window."""
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


def _device(table: Table) -> pd.Categorical:
    return table.text("device type" if "device type" in table else "device")


# -- blocks ----------------------------------------------------------------------------------------


def read_blocks(table: Table, report: ReadReport, recorded: set[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Blocks sorted by allocation; and pool totals from both ends of the rows, unless all pools are ``recorded``.

    The columns of the table are used up.
    """
    name = table.text("name")
    in_ge = np.array([str(n).startswith(GE_PREFIX) for n in name.categories], dtype=bool)
    is_ge = np.append(in_ge, False)[name.codes]
    size, alloc = table.ints("size"), table.ints("allocation time")
    free, active_free = table.ints("release time"), table.ints("active release time")
    free = np.where(is_ge & _ge_open(table, alloc, free), NA_NS, free)
    older = (size < 0) & is_ge & (alloc == NA_NS)  # only the graph engine of older CANN writes these (spec 3.5)
    keep = _usable(table, np.where(older, -size, size), alloc, free, older, report)
    _check_times(table, keep & ~is_ge, alloc, free, report)
    if (n_older := int((older & keep).sum())) > 0:
        report.note(
            f"{table.path.name}: releases of memory from before the window, written with negative sizes", n_older
        )
    _note_rounding(table, report)
    device, pool = _device(table), pd.Categorical.from_codes(is_ge.astype(np.int8), [PTA, GE])
    unknown = {GE} if is_ge.all() else {PTA, GE} if is_ge.any() else {PTA}
    if unknown - recorded - ({PTA} if MINDSPORE in recorded else set()):
        totals = _row_totals(table, device, pool, (free == NA_NS) & (active_free == NA_NS), keep)
    else:
        totals = empty_totals()
    # Column by column, each freed where it came from.
    rows = in_time(alloc, keep)
    columns = {
        "device": pd.Categorical.from_codes(device.codes[rows], device.categories),
        "pool": pd.Categorical.from_codes(pool.codes[rows], pool.categories),
        "name": pd.Categorical.from_codes(name.codes[rows], name.categories),
    }
    n_rows = len(columns["pool"])
    columns |= {
        "stack_id": np.full(n_rows, -1, dtype=np.int32),
        "stack_kind": pd.Categorical.from_codes(np.zeros(n_rows, np.int8), ["none", "own", "forward"]),
        "size_bytes": np.abs(size)[rows],
        "alloc_ns": from_int64(alloc[rows]),
        "free_ns": from_int64(free[rows]),
        "active_free_ns": from_int64(active_free[rows]),
    }
    for key in ("allocated", "reserved", "active"):
        columns[f"{key}_bytes"] = from_int64(table.take(f"allocation total {key}")[rows])
    columns["stream"] = from_int64(table.take("stream ptr")[rows])
    columns["flags"] = np.where(older, BlockFlag.OLDER, BlockFlag.NONE).astype(np.uint16)[rows]
    return pd.DataFrame(columns, copy=False), totals


def _ge_open(table: Table, alloc: Int64Array, free: Int64Array) -> npt.NDArray[np.bool_]:
    """GE rows that look like zero-length lives are unreleased (spec 3.5)."""
    no_totals = np.isin(table.ints("release total allocated"), (0, NA_NS))
    return (free == alloc) & np.isin(table.ints("duration"), (0, NA_NS)) & no_totals


def _usable(
    table: Table,
    size: Int64Array,
    alloc: Int64Array,
    free: Int64Array,
    older: npt.NDArray[np.bool_],
    report: ReadReport,
) -> npt.NDArray[np.bool_]:
    """Rows that describe a block; the others are counted by reason."""
    keep = np.ones(table.n_rows, dtype=bool)
    reasons = {
        "no size": size == NA_NS,
        "a negative size, which repeats the release of another row": size < 0,
        "neither an allocation nor a release time": (alloc == NA_NS) & ((free == NA_NS) | ~older),
        "released before it was allocated": (free != NA_NS) & (alloc != NA_NS) & (free < alloc),
    }
    for reason, bad in reasons.items():
        bad = bad & keep
        if bad.any():
            report.skip(f"{table.path.name}: rows with {reason}", int(bad.sum()), table.where(int(np.argmax(bad))))
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
        place = table.where(int(np.argmax(wrong)))
        report.note(f"{table.path.name}: durations that are not release - allocation", int(wrong.sum()), place)


def _note_rounding(table: Table, report: ReadReport) -> None:
    cut = {name: int((half > 0).sum()) for name, half in table.rounding.items()}
    if n_cut := sum(cut.values()):
        worst = max(int(half.max(initial=0)) for half in table.rounding.values())
        report.repair(
            f"{table.path.name}: totals shortened by a re-save, taken to the nearest byte (±{worst} B)", n_cut
        )
    report.count("n_rounded", n_cut)


def _row_totals(
    table: Table,
    device: pd.Categorical,
    pool: pd.Categorical,
    is_open: npt.NDArray[np.bool_],
    keep: npt.NDArray[np.bool_],
) -> pd.DataFrame:
    """Samples of the pool counters: after the allocation, and at the free event (spec 3.3)."""
    alloc, free = table.ints("allocation time"), table.ints("release time")
    late = table.ints("active release time")
    ends = np.where(free == NA_NS, late, free)
    parts = []
    for side, t in (("allocation", alloc), ("release", np.where(is_open, NA_NS, ends))):
        columns = {k: table.ints(f"{side} total {k}") for k in ("allocated", "reserved", "active")}
        rows = keep & (t != NA_NS) & (columns["allocated"] != NA_NS)
        part = pd.DataFrame({"device": device[rows], "component": pool[rows], "t_ns": t[rows]})
        for k, values in columns.items():
            part[f"{k}_bytes"] = from_int64(values[rows])
        part["tolerance_bytes"] = table.rounding.get(f"{side} total allocated", np.zeros(table.n_rows, np.int64))[rows]
        parts.append(part)
    totals = concat_tables(parts)
    totals["scope"] = pd.Categorical.from_codes(np.zeros(len(totals), np.int8), ["pool"])
    totals["origin"] = pd.Categorical.from_codes(np.zeros(len(totals), np.int8), ["rows"])
    return totals.sort_values("t_ns", kind="stable", ignore_index=True)


# -- totals ----------------------------------------------------------------------


def read_totals(table: Table, default_scope: str, report: ReadReport) -> pd.DataFrame:
    """Counter samples sorted by time; ``APP`` is the process, other components are pools."""
    component = table.text("component")
    if default_scope == "pool":
        wanted = [_POOL_NAMES.get(str(name).lower(), str(name)) for name in component.categories]
        if len(set(wanted)) == len(wanted):
            component = component.rename_categories(wanted)
    names = [str(name) for name in component.categories]
    synthetic = np.array([name.endswith(SYNTHETIC_SUFFIX) for name in names], dtype=bool)
    scopes = ["process" if name == "APP" and default_scope == "pool" else default_scope for name in names]
    scope_names = sorted(set(scopes))
    scope_codes = np.array([scope_names.index(scope) for scope in scopes], dtype=np.int8)
    keep = ~np.append(synthetic, False)[component.codes]
    t = table.take("timestamp")
    if (n_bad := int((keep & (t == NA_NS)).sum())) > 0:
        report.skip(f"{table.path.name}: samples without a time", n_bad)
    keep &= t != NA_NS
    _note_rounding(table, report)
    rows = in_time(t, keep)
    device = _device(table)
    columns = {
        "scope": pd.Categorical.from_codes(scope_codes[component.codes[rows]] if len(scope_codes) else [], scope_names),
        "component": pd.Categorical.from_codes(component.codes[rows], component.categories).remove_unused_categories(),
        "device": pd.Categorical.from_codes(device.codes[rows], device.categories),
        "t_ns": t[rows],
    }
    del t
    # Column by column, each freed where it came from: there are millions of samples.
    for name in ("allocated", "reserved", "active"):
        columns[f"{name}_bytes"] = from_int64(table.take(f"total {name}")[rows])
    rounding = table.rounding.get("total allocated")
    if rounding is not None and rounding.any():
        columns["tolerance_bytes"] = rounding[rows]
    columns["origin"] = pd.Categorical.from_codes(np.zeros(len(columns["t_ns"]), np.int8), ["recorded"])
    return pd.DataFrame(columns, copy=False)


def in_time(t: Int64Array, keep: npt.NDArray[np.bool_]) -> Int64Array | slice:
    """Positions of the rows to keep by time, in file order where it is equal; a slice of all if they are so already."""
    if keep.all() and (t[1:] >= t[:-1]).all():
        return slice(None)
    kept = np.flatnonzero(keep)
    return kept[np.argsort(t[kept], kind="stable")]


def without_idle(totals: pd.DataFrame) -> pd.DataFrame:
    """Drop the components that are zero throughout (spec 5)."""
    used = totals.loc[totals["reserved_bytes"].fillna(0) != 0, "component"].unique()
    totals = totals[totals["component"].isin(used)].reset_index(drop=True)
    totals["component"] = totals["component"].cat.remove_unused_categories()
    return totals


def _window(blocks: pd.DataFrame, totals: pd.DataFrame) -> tuple[int, int] | None:
    """First to last allocator record of any pool (spec 3.3a); other samples are context."""
    in_pool = np.append(totals["scope"].cat.categories == "pool", False)[totals["scope"].cat.codes.to_numpy()]
    times = [totals["t_ns"].to_numpy(dtype=np.int64)[in_pool]]
    for column in ("alloc_ns", "free_ns", "active_free_ns"):
        values = to_int64(blocks[column])
        times.append(values[values != NA_NS])
    ends = [(int(some.min()), int(some.max())) for some in times if len(some)]
    return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None
