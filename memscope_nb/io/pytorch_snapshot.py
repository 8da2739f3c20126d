"""PyTorch memory snapshots to tables: one source for each device with a history or segments (spec/pytorch 1)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError
from ..model import Int64Array, concat_tables, empty_ops, empty_segments
from ..stacks import stacks_frame
from ..units import format_bytes
from .ascend_tables import WORKSPACE, SourceTables
from .heap import give_back
from .pytorch_find import TorchCollection
from .pytorch_lives import ALLOC, event_times
from .pytorch_marks import annotation_marks, entry_marks, marks_frame
from .pytorch_open import read_document
from .pytorch_rows import ACTIONS, Numbers, Rows, row_numbers
from .pytorch_segments import State, read_segments, segments_frame
from .pytorch_tables import DeviceHistory, pool_tables
from .report import OnBytes, ReadReport, ignore_bytes

ORDER_SPACE_NS = 10**12
"""Without times the files of a set follow each other at this distance on a made-up axis, an entry taking 1 µs."""

POOLS = {"NPU": "PTA", "CUDA": "CUDA", "XPU": "XPU"}
HOST = -1
MAX_DIVISIONS = 64
_WORKSPACE, _SEGMENT_ALLOC = ACTIONS.index("workspace_snapshot"), ACTIONS.index("segment_alloc")
_LACKS = (
    "no stacks: record with _record_memory_history(context='all', stacks='all')",
    "no history, only the state at the end: call _record_memory_history(enabled='all') before the part of interest",
    "no steps or ranges: wrap the loop in record_function('step'), or profile with profiler.step() at the same time",
)


@dataclass(frozen=True)
class SnapshotTables(SourceTables):
    """Tables of one device of a snapshot."""

    segments: pd.DataFrame = field(default_factory=empty_segments)

    @property
    def more(self) -> dict[str, pd.DataFrame]:
        """The pools as they were at the end."""
        return {"segments": self.segments}


@dataclass(frozen=True)
class DeviceRead:
    """One device: its tables, ``None`` if they could not be built, and what there is to say."""

    device: int
    tables: SnapshotTables | None
    report: ReadReport


@dataclass(frozen=True)
class Trace:
    """History of one device: numbers of its entries in the file, and columns of what they say."""

    numbers: Numbers = range(0)
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=lambda: Rows().take_arrays())


@dataclass(frozen=True)
class _Snapshot:
    """What is in a file, by device. A trace is taken out when its device is read, so that its columns can go."""

    rows: Rows
    traces: dict[int, Trace]
    states: dict[int, State] | None
    annotations: Any
    backend: str


def read_snapshot(
    collection: TorchCollection, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes
) -> list[DeviceRead]:
    """Read a snapshot file; one entry for each device that it tells of.

    Parameters
    ----------
    collection : TorchCollection
        What to read.
    report : ReadReport
        Remarks on the file; every device gets a copy, the counts go to the first one.
    on_bytes : callable
        Progress.

    Raises
    ------
    InputError
        If the file is no plain snapshot or holds nothing.
    """
    snapshot = _parts(*read_document(collection.path, on_bytes=on_bytes), report, collection.path.name)
    give_back()
    devices = sorted({*snapshot.traces, *(snapshot.states or {})}, key=lambda d: (d == HOST, d))
    if not devices:
        raise InputError(f"{collection.path.name}: neither history nor segments; was anything allocated or recorded?")
    reads: list[DeviceRead] = []
    for device in devices:
        own = deepcopy(report)
        if reads:
            own.n_skipped = own.n_repaired = 0
        try:
            tables = _device(snapshot, device, collection, own)
        except Exception as error:  # a fault of ours loses this device and no other
            own.note(f"reader failed: {type(error).__name__}: {error}")
            reads.append(DeviceRead(device, None, own))
            continue
        reads.append(DeviceRead(device, tables, own))
    del snapshot
    give_back()
    return reads


# -- the file ---------------------------------------------------------------------------------------------------


def _parts(top: Any, rows: Rows, report: ReadReport, name: str) -> _Snapshot:
    """Check the outermost shape (spec 1.2); a bare list is the old form, segments only."""
    top = {"segments": top} if type(top) is list else top
    if type(top) is not dict or not ({"segments", "device_traces", "host_segments", "host_traces"} & set(top)):
        shape = f"a dict with {sorted(map(str, top))[:5]}" if type(top) is dict else f"a {type(top).__name__}"
        raise InputError(f"{name}: {shape}, not a memory snapshot (segments, device_traces)")
    listed = top.get("device_traces")
    try:
        numbers = _entries(top.get("host_traces"), listed if type(listed) is list else [], rows)
        states = _states(top, rows, report)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if rows.n_odd:
        report.skip("trace entries whose address or size is no usable number", rows.n_odd)
    settings = top.get("allocator_settings")
    report.facts |= _settings(settings, report)
    traces = _traces(rows, numbers)
    return _Snapshot(
        rows,
        traces,
        states,
        _listed(top, "external_annotations"),
        _backend(rows, [trace.columns for trace in traces.values()], settings, report),
    )


def _entries(host: Any, listed: list[Any], rows: Rows) -> dict[int, Numbers]:
    """Numbers of the entries of each device that has some; all together are not more than the file holds."""
    found: dict[int, Numbers] = {}
    left = rows.n_rows
    for device, trace in [*enumerate(listed), (HOST, host)]:
        numbers = row_numbers(trace, left)
        left -= len(numbers)
        if len(numbers):
            found[device] = _as_range(numbers)
    return found


def _as_range(numbers: Int64Array) -> Numbers:
    """Entries of a device mostly follow each other in the file: then their numbers take no memory."""
    follow = (numbers[1:] == numbers[:-1] + 1).all()
    return range(int(numbers[0]), int(numbers[-1]) + 1) if follow else numbers


def _traces(rows: Rows, found: dict[int, Numbers]) -> dict[int, Trace]:
    """Part the columns by device; they are copied only where the entries do not follow each other."""
    columns, traces = rows.take_arrays(), {}
    for device, numbers in found.items():
        chosen = slice(numbers.start, numbers.stop) if isinstance(numbers, range) else numbers
        traces[device] = Trace(numbers, {key: values[chosen] for key, values in columns.items()})
    return traces


def _backend(rows: Rows, traces: Sequence[dict[str, Any]], settings: Any, report: ReadReport) -> str:
    """Tell whose memory it is; nothing in the file says so (spec 1.8): entries, file names of frames, then habits."""
    backend, known_by = "CUDA", "assumed"
    if traces:
        timed = any((columns["time_us"] > 0).any() for columns in traces)
        pooled = any((columns["pool"] >= 0).any() for columns in traces)
        workspace = any((columns["action"] == _WORKSPACE).any() for columns in traces)
        if workspace or "torch_npu" in rows.backends:
            backend, known_by = "NPU", "entries" if "torch_npu" not in rows.backends else "frames"
        elif "torch/xpu" in rows.backends:
            backend, known_by = "XPU", "frames"
        elif type(settings) is dict or timed or not pooled:
            backend, known_by = "CUDA", "fields"
        else:  # pools but no times: only torch_npu writes that
            backend, known_by = "NPU", "fields"
    elif type(settings) is dict:
        known_by = "fields"
    report.facts |= {"backend": backend, "backend_known_by": known_by}
    if known_by == "assumed":
        report.note("the file does not tell the kind of device: taken for CUDA")
    return backend


def _listed(top: dict[Any, Any], key: str) -> list[Any]:
    value = top.get(key)
    return value if type(value) is list else []


def _states(top: dict[Any, Any], rows: Rows, report: ReadReport) -> dict[int, State] | None:
    """Segments by device; ``None`` if the file has none although there should be some."""
    states = read_segments(top.get("segments"), rows, report)
    host = read_segments(top.get("host_segments"), rows, report)
    if host:
        merged = State()
        for state in host.values():
            offset = len(merged.segments)
            merged.segments += state.segments
            merged.blocks += [type(b)(**(vars(b) | {"segment": b.segment + offset})) for b in state.blocks]
        states[HOST] = merged
    return states or None


def _settings(found: Any, report: ReadReport) -> dict[str, Any]:
    """Allocator settings that are plain values, and whether the ring buffer overflowed (spec 1.6)."""
    if type(found) is not dict:
        return {}
    plain: dict[str, Any] = {str(k): v for k, v in found.items() if type(v) in (int, float, str, bool)}
    if plain.get("trace_alloc_overflowed"):
        report.note(
            "the ring buffer overflowed, the oldest entries are lost: record with a larger max_entries "
            f"(it was {plain.get('trace_alloc_max_entries', 'unknown')})"
        )
    divisions = found.get("roundup_power2_divisions")
    if type(divisions) is dict:
        sizes = [(k, v) for k, v in list(divisions.items())[:MAX_DIVISIONS] if type(k) is str and type(v) is int]
        plain["roundup_power2_divisions"] = dict(sizes)
    return {"allocator_settings": plain}


# -- one device -------------------------------------------------------------------------------------------------


def _device(snapshot: _Snapshot, device: int, collection: TorchCollection, report: ReadReport) -> SnapshotTables:
    rows, name = snapshot.rows, "CPU" if device == HOST else f"{snapshot.backend}:{device}"
    pool = "HOST" if device == HOST else POOLS[snapshot.backend]
    trace = snapshot.traces.pop(device, Trace())
    n_front, workspace = _workspace_front(trace.columns["action"], trace.columns["addr"])
    trace = Trace(trace.numbers[n_front:], {key: values[n_front:] for key, values in trace.columns.items()})
    n_entries = len(trace.numbers)
    _tell_unknown(trace.columns["action"], list(rows.actions), report)
    start = (1 + collection.ordinal) * ORDER_SPACE_NS
    times, axis, n_back = event_times(trace.columns.pop("time_us"), start_ns=start)
    window = (int(times[0]) - 1, int(times[-1])) if n_entries else (start, start)
    _tell_axis(axis, n_back, n_entries, report)
    report.facts["state_ns"] = window[1]
    state = None if snapshot.states is None else snapshot.states.get(device, State())
    main, side = state.split(workspace) if state is not None else (None, State())
    marks = [*entry_marks(rows, trace.numbers, trace.columns, times)]
    history = DeviceHistory(rows, trace.columns | {"t_ns": times}, window)
    del trace, times  # the history alone has them now, and is used up below
    parts = [pool_tables(history, main, name, pool, report)]
    if side.segments:
        parts.append(pool_tables(DeviceHistory.without_entries(rows, window), side, name, WORKSPACE, report))
    states = {pool: main or State()} | ({WORKSPACE: side} if side.segments else {})
    timed = window if axis == "time" and n_entries else None
    marks += annotation_marks(snapshot.annotations, device, timed, report)
    tables = _compact(parts, marks_frame(marks, name), segments_frame(states, name), history)
    _tell_lacks(tables, n_entries, report)
    return tables


def _workspace_front(action: Any, addr: Any) -> tuple[int, set[int]]:
    """Count the entries at the front that are state, not history, and the workspaces they tell of (spec 1.8)."""
    at, found = 0, set()
    while at + 2 < len(action) and tuple(action[at : at + 3]) == (_WORKSPACE, _SEGMENT_ALLOC, ALLOC):
        found |= {int(addr[at + 1]), int(addr[at + 2])}
        at += 3
    return at, found


def _tell_unknown(action: Any, names: Sequence[str], report: ReadReport) -> None:
    """Count the entries that newer writers added and that no rule here knows."""
    numbers, counts = np.unique(action[action >= len(ACTIONS)], return_counts=True)
    for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
        if names[number]:  # without a name: already counted as unusable
            report.note(f"entries of an unknown action, left out: {names[number][:80]!r}", count)


def _tell_axis(axis: str, n_back: int, n_entries: int, report: ReadReport) -> None:
    report.facts |= {"time_axis": axis, "n_entries": n_entries}
    if axis != "time":
        report.note(
            "event order: the file has no times (torch_npu and old PyTorch write none); one entry is drawn as 1 µs, "
            "durations and the order against other files mean nothing"
        )
    if n_back:
        report.repair("entries whose clock stepped back: the order of the allocator is kept", n_back)


def _compact(
    parts: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
    marks: pd.DataFrame,
    segments: pd.DataFrame,
    history: DeviceHistory,
) -> SnapshotTables:
    """Join the pools, and keep the stacks that this device uses."""
    blocks = concat_tables([blocks for blocks, _ in parts])
    totals = concat_tables([totals for _, totals in parts])
    tables = {"blocks": blocks, "marks": marks, "segments": segments}
    used = np.unique(np.concatenate([table["stack_id"].to_numpy() for table in tables.values()]))
    used = used[used >= 0]
    mapping = np.full(len(history.rows.stacks) + 1, -1, dtype=np.int32)
    mapping[used] = np.arange(len(used), dtype=np.int32)
    for table in tables.values():
        table["stack_id"] = mapping[table["stack_id"].to_numpy()]
    return SnapshotTables(
        blocks=blocks,
        totals=totals,
        marks=marks,
        ops=empty_ops().drop(columns="source"),
        stacks=stacks_frame(history.rows.stack_frames(number) for number in used.tolist()),
        window=history.window,
        kind="pytorch_snapshot",
        segments=segments,
    )


def _tell_lacks(tables: SnapshotTables, n_entries: int, report: ReadReport) -> None:
    """Name the facts that this recording lacks, and what would record them."""
    lacks = {
        _LACKS[0]: not len(tables.stacks),
        _LACKS[1]: not n_entries,
        _LACKS[2]: not tables.marks["kind"].isin(["step", "range"]).any(),
    }
    for text, lacking in lacks.items():
        if lacking:
            report.note(text)
    report.facts["operators"] = "a snapshot has none"
    private = set(tables.segments["pool_id"]) - {"0,0"}
    if private:
        size = int(tables.segments.loc[tables.segments["pool_id"] != "0,0", "size_bytes"].sum())
        report.facts |= {"n_private_pools": len(private), "private_pool_bytes": size}
        report.note(
            f"{len(private)} private pools (CUDA graphs, MemPool) hold {format_bytes(size)}: what is free in them "
            "does not serve other requests"
        )
