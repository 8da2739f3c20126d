"""Kineto chrome traces with memory events to tables: one source for each file (spec/pytorch 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError
from ..model import NA_NS, concat_tables, empty_blocks, empty_totals, from_int64
from ..units import format_bytes
from .ascend_tables import SourceTables
from .kineto_events import KinetoSink, read_events
from .kineto_stacks import Columns, Running, StackTree, forward_calls, python_parents
from .pytorch_lives import ALLOC, FREE, Lives, find_lives
from .report import OnBytes, ReadReport, ignore_bytes
from .trace_sink import STEP_NAME

DEVICE_TYPES = {
    0: "CPU", 1: "CUDA", 2: "MKLDNN", 3: "OPENGL", 4: "OPENCL", 5: "IDEEP", 6: "HIP", 7: "FPGA", 8: "MAIA", 9: "XLA",
    10: "VULKAN", 11: "METAL", 12: "XPU", 13: "MPS", 14: "META", 15: "HPU", 16: "VE", 17: "LAZY", 18: "IPU",
    19: "MTIA", 20: "NPU",
}  # fmt: skip
"""Codes of c10 (spec 2.3)."""
CPU, NPU = 0, 20
NO_MEMORY = (
    "no [memory] event: record with torch.profiler.profile(profile_memory=True, with_stack=True). With "
    "profile_all_threads=True they get lost although profile_memory is on (PyTorch issue 166121)"
)


def read_kineto(path: Path, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> SourceTables:
    """Read a Kineto trace: blocks of every device in it, recorded totals, steps and ranges, operators, stacks.

    Parameters
    ----------
    path : Path
        ``*.pt.trace.json``, plain or gzipped.
    report : ReadReport
        Receives remarks and facts.
    on_bytes : callable
        Progress.

    Raises
    ------
    InputError
        If the file has no memory events.
    """
    sink, envelope = read_events(path, report=report, on_bytes=on_bytes)
    base = envelope.get("baseTimeNanoseconds")
    base_ns = base if type(base) is int and 0 <= base < 1 << 62 else 0
    memory = _by_time(_shifted(sink.table("memory"), base_ns))
    ops, python, ranges = (_shifted(sink.table(name), base_ns) for name in ("ops", "python", "ranges"))
    events = {key: values[memory["is_oom"] == 0] for key, values in memory.items()}
    if not len(events["start"]):
        raise InputError(f"{path.name}: {NO_MEMORY}")
    _tell_envelope(envelope, base_ns, report)
    names = sink.name_list()
    devices = list(_devices(events))
    lives = [find_lives(*_trace(device_events), None) for _, _, device_events in devices]
    stacks, (block_stacks, op_stacks), kinds, block_ops = _join(sink, names, devices, lives, ops, python, report)
    parts, first = [], 0
    for (device, pool, mine), found in zip(devices, lives, strict=True):
        rows = slice(first, first + len(found))
        first += len(found)
        parts.append(_blocks(found, mine, device, pool, block_stacks[rows], kinds[rows], (names, ops, block_ops[rows])))
        _tell_lives(found, mine, device, report)
    window = int(events["start"].min()), int(events["start"].max())
    return SourceTables(
        blocks=_sorted(concat_tables(parts) if parts else empty_blocks()),
        totals=concat_tables([_totals(*one) for one in devices]) if devices else empty_totals(),
        marks=_marks(ranges, ops, memory, names),
        ops=_ops(ops, op_stacks, names),
        stacks=stacks,
        window=window,
        pid=max(sink.pids, key=lambda pid: sink.pids[pid]) if sink.pids else None,
        host=envelope["host_name"] if isinstance(envelope.get("host_name"), str) else None,
        kind="kineto",
    )


def _shifted(table: Columns, base_ns: int) -> Columns:
    """Count times from the Unix epoch."""
    return {key: values + base_ns if key in ("start", "end") else values for key, values in table.items()}


def _by_time(table: Columns) -> Columns:
    """Sort memory events: those of several threads may be written out of order (spec 2.3)."""
    order = np.argsort(table["start"], kind="stable")
    return {key: values[order] for key, values in table.items()}


def _devices(events: Columns) -> Iterator[tuple[str, str, Columns]]:
    """Yield name, pool and events of each device; accelerators before the host, those with most events first."""
    keys, counts = np.unique(np.stack([events["device_type"], events["device_id"]]), axis=1, return_counts=True)
    for at in sorted(range(len(counts)), key=lambda i: (keys[0, i] == CPU, -counts[i])):
        kind, number = int(keys[0, at]), int(keys[1, at])
        name = DEVICE_TYPES.get(kind, f"TYPE{kind}")
        rows = (events["device_type"] == kind) & (events["device_id"] == number)
        pool = "PTA" if kind == NPU else name
        yield name if number < 0 else f"{name}:{number}", pool, {key: values[rows] for key, values in events.items()}


def _trace(events: Columns) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64], Any, npt.NDArray[np.int32]]:
    """Memory events as entries of a snapshot: one free instead of request and completion."""
    action = np.where(events["n_bytes"] >= 0, ALLOC, FREE).astype(np.int32)
    return action, events["addr"].view(np.uint64), np.abs(events["n_bytes"]), np.full(len(action), -1, np.int32)


# -- stacks -----------------------------------------------------------------------------------------------------


def _join(
    sink: KinetoSink,
    names: list[str],
    devices: list[tuple[str, str, Columns]],
    lives: list[Lives],
    ops: Columns,
    python: Columns,
    report: ReadReport,
) -> tuple[pd.DataFrame, list[npt.NDArray[np.int32]], npt.NDArray[np.int8], npt.NDArray[np.int64]]:
    """Find stack and operator of every block, and the stack of every operator."""
    rows = [np.frombuffer(found.stack_row, np.int64) for found in lives]
    t, tid, verbose = (
        np.concatenate([mine[key][row] for (_, _, mine), row in zip(devices, rows, strict=True)])
        for key in ("start", "tid", "stack")
    )
    released = np.concatenate([np.frombuffer(found.alloc, np.int64) < 0 for found in lives])
    running = Running(python)
    calls_of_ops = running.at(ops["tid"], ops["start"])
    own, forward = running.at(tid, t), forward_calls(ops, calls_of_ops, t, tid)
    forward[released] = -1
    block_ops = Running(ops).at(tid, t)
    block_ops[released] = -1
    tree = StackTree(python["name"], python_parents(python, report))
    stack = tree.numbers(np.where(forward >= 0, forward, own))
    texts = list(sink.stacks)
    for at in np.flatnonzero((stack < 0) & (verbose >= 0)).tolist():
        stack[at] = _verbose_stack(texts[int(verbose[at])], tree, names)
    kind = np.where(stack < 0, 0, np.where(forward >= 0, 2, 1)).astype(np.int8)
    kind[released] = 0
    table, ids = tree.kept(names, [stack, tree.numbers(calls_of_ops)])
    report.facts |= {
        "n_in_operator": int((block_ops >= 0).sum()),
        "n_own_stack": int((kind == 1).sum()),
        "n_forward_stack": int((kind == 2).sum()),
        "n_no_stack": int((kind == 0).sum()),
    }
    if not len(python["start"]) and not texts:
        report.note("no Python calls: record with with_stack=True for stacks")
    return table, ids, kind, block_ops


def _verbose_stack(text: str, tree: StackTree, names: list[str]) -> int:
    """Number of a ``Call stack`` text, ``inner;outer;`` (spec 2.3)."""
    number = -1
    for frame in reversed([part.strip() for part in text.split(";") if part.strip()]):
        names.append(frame)
        number = tree.add(len(names) - 1, number)
    return number


# -- tables -----------------------------------------------------------------------------------------------------


def _blocks(
    lives: Lives,
    events: Columns,
    device: str,
    pool: str,
    stack: npt.NDArray[np.int32],
    kind: npt.NDArray[np.int8],
    operator: tuple[list[str], Columns, npt.NDArray[np.int64]],
) -> pd.DataFrame:
    names, ops, op = operator
    alloc, free = np.frombuffer(lives.alloc, np.int64), np.frombuffer(lives.done, np.int64)
    codes = np.where(op >= 0, ops["name"][op], -1) if len(ops["name"]) else np.full(len(op), -1, dtype=np.int64)
    zeros = np.zeros(len(lives), dtype=np.int8)

    def at(column: str, rows: npt.NDArray[np.int64]) -> pd.arrays.IntegerArray:
        return from_int64(np.where(rows >= 0, events[column][rows], NA_NS))

    def counter(column: str) -> pd.arrays.IntegerArray:
        values = np.where(alloc >= 0, events[column][alloc], NA_NS)
        return from_int64(np.where(values < 0, NA_NS, values))  # a writer may leave it out

    totals = {"allocated_bytes": counter("allocated")}
    if pool != "CPU":  # there is no pool: the counter is 0 throughout
        totals["reserved_bytes"] = counter("reserved")
    return pd.DataFrame(
        {
            "device": pd.Categorical.from_codes(zeros, [device]),
            "pool": pd.Categorical.from_codes(zeros, [pool]),
            "name": _named(codes, names),
            "tid": from_int64(events["tid"][np.frombuffer(lives.stack_row, np.int64)]),
            "stack_id": stack,
            "stack_kind": pd.Categorical.from_codes(kind, ["none", "own", "forward"]),
            "size_bytes": np.frombuffer(lives.size, np.int64),
            "alloc_ns": at("start", alloc),
            "free_ns": at("start", free),
            "active_free_ns": at("start", free),
            **totals,
            "addr": pd.array(np.frombuffer(lives.addr, np.uint64).copy(), dtype="UInt64"),
            "flags": np.frombuffer(lives.flags, np.uint16).copy(),
        }
    )


def _named(codes: npt.NDArray[np.int64], names: list[str]) -> pd.Categorical:
    """Names by number as categories; without a name, an empty one."""
    used = np.unique(codes[codes >= 0])
    texts = [names[code] for code in used.tolist()]
    known = {text: number for number, text in enumerate(dict.fromkeys(["", *texts]))}
    mapping = np.zeros(int(used.max(initial=-1)) + 2, dtype=np.int32)
    mapping[used] = [known[text] for text in texts]
    return pd.Categorical.from_codes(mapping[np.where(codes >= 0, codes, len(mapping) - 1)], list(known))


def _sorted(blocks: pd.DataFrame) -> pd.DataFrame:
    alloc = blocks["alloc_ns"].to_numpy(dtype=np.int64, na_value=NA_NS)
    return blocks.iloc[np.argsort(alloc, kind="stable")].reset_index(drop=True)


def _totals(device: str, pool: str, events: Columns) -> pd.DataFrame:
    """The counters as recorded, after each event."""
    zeros = np.zeros(len(events["start"]), dtype=np.int8)
    levels = {"allocated_bytes": from_int64(np.where(events["allocated"] >= 0, events["allocated"], NA_NS))}
    reserved = events["reserved"] if pool != "CPU" else np.full(len(zeros), -1, dtype=np.int64)  # 0 would be a lie
    levels["reserved_bytes"] = from_int64(np.where(reserved >= 0, reserved, NA_NS))
    return pd.DataFrame(
        {
            "scope": pd.Categorical.from_codes(zeros, ["pool"]),
            "component": pd.Categorical.from_codes(zeros, [pool]),
            "device": pd.Categorical.from_codes(zeros, [device]),
            "t_ns": events["start"],
            **levels,
            "origin": pd.Categorical.from_codes(zeros, ["recorded"]),
        }
    )


def _ops(ops: Columns, stack: npt.NDArray[np.int32], names: list[str]) -> pd.DataFrame:
    order = np.argsort(ops["start"], kind="stable")
    return pd.DataFrame(
        {
            "name": _named(ops["name"], names),
            "tid": ops["tid"],
            "start_ns": ops["start"],
            "end_ns": ops["end"],
            "sequence": ops["sequence"],
            "fwd_tid": ops["fwd_tid"],
            "stack_id": stack,
        }
    ).iloc[order].reset_index(drop=True)  # fmt: skip


def _marks(ranges: Columns, ops: Columns, memory: Columns, names: list[str]) -> pd.DataFrame:
    """Steps, annotated ranges and failed allocations, by time; old writers make a step an operator."""
    found = [_range(ranges, at, names) for at in range(len(ranges["start"]))]
    if not any(mark[0] == "step" for mark in found):
        steps = np.flatnonzero([STEP_NAME.fullmatch(name) is not None for name in names])
        found += [_range(ops, at, names) for at in np.flatnonzero(np.isin(ops["name"], steps)).tolist()]
    for at in np.flatnonzero(memory["is_oom"]).tolist():
        size, t = abs(int(memory["n_bytes"][at])), int(memory["start"][at])
        found.append(("oom", f"out of memory: {format_bytes(size)} asked for", None, int(memory["tid"][at]), t, t))
    found.sort(key=lambda mark: (mark[4], -mark[5]))
    kind, name, step, tid, start, end = ([mark[i] for mark in found] for i in range(6))
    return pd.DataFrame(
        {
            "kind": pd.Categorical(kind, ["step", "range", "oom"]),
            "name": pd.Series(name, dtype=object),
            "step": pd.array(step, dtype="Int64"),
            "tid": pd.array(tid, dtype="Int64"),
            "start_ns": np.array(start, dtype=np.int64),
            "end_ns": np.array(end, dtype=np.int64),
        }
    )


def _range(table: Columns, at: int, names: list[str]) -> tuple[str, str, int | None, int, int, int]:
    name = names[int(table["name"][at])]
    match = STEP_NAME.fullmatch(name)
    span = int(table["tid"][at]), int(table["start"][at]), int(table["end"][at])
    return "step" if match else "range", name, int(match[1]) if match else None, *span


# -- remarks ----------------------------------------------------------------------------------------------------


def _tell_envelope(envelope: dict[str, Any], base_ns: int, report: ReadReport) -> None:
    kept = ("with_stack", "profile_memory", "record_shapes", "with_modules", "trace_id", "schemaVersion")
    facts: dict[str, Any] = {key: envelope[key] for key in kept if type(envelope.get(key)) in (int, str, bool)}
    facts |= {"base_ns": base_ns, "streams": "a Kineto trace has none", "active_bytes": "not recorded by Kineto"}
    properties = envelope.get("deviceProperties")
    for one in properties if isinstance(properties, list) else ():
        if isinstance(one, dict) and type(one.get("totalGlobalMem")) is int:
            facts.setdefault("capacity_bytes", {})[str(one.get("id"))] = one["totalGlobalMem"]
    distributed = envelope.get("distributedInfo")
    if isinstance(distributed, dict):
        facts["distributed"] = {k: v for k, v in distributed.items() if type(v) in (int, str)}
    report.facts |= facts


def _tell_lives(lives: Lives, events: Columns, device: str, report: ReadReport) -> None:
    """Say what was inferred, and how far the recorded counter and the events are apart (spec 2.3)."""
    for text, count in sorted(lives.counts.items()):
        report.note(f"{device}: {text}", count)
    running = np.cumsum(events["n_bytes"])
    known = events["allocated"] >= 0
    apart = (events["allocated"] - running)[known]
    worst = int(np.abs(apart - apart[0]).max(initial=0)) if len(apart) else 0
    report.facts[f"worst_total_difference_bytes {device}"] = worst
    report.facts[f"before_window_bytes {device}"] = int(apart[0]) if len(apart) else None
    if worst:
        report.note(f"{device}: the recorded total and the sum of events differ by up to {format_bytes(worst)}")
