"""Collections and profiles of a few literal rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from memscope_nb.model import MemoryProfile
from memscope_nb.stacks import stacks_frame

OPERATOR_HEADER = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),Active Duration(us),"
    "Allocation Total Allocated(MB),Allocation Total Reserved(MB),Allocation Total Active(MB),"
    "Release Total Allocated(MB),Release Total Reserved(MB),Release Total Active(MB),Stream Ptr,Device Type"
)
RECORD_HEADER = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type"
T0 = 1_700_000_000_000_000  # µs


def us(offset: float) -> str:
    """Time text at an offset in µs from T0, as the profiler writes it."""
    ns = round(offset * 1000)
    return f"{T0 + ns // 1000}.{ns % 1000:03d}\t"


def ns(offset: float) -> int:
    """The same instant in ns."""
    return T0 * 1000 + round(offset * 1000)


def row(name: str, kib: float, alloc: float, free: float | None, late: float | None, total_mib: float) -> str:
    """One row of operator_memory.csv; the release total is left to what the rule gives."""
    release = ["" if t is None else us(t) for t in (free, late)]
    durations = ["" if t is None else f"{t - alloc:.3f}\t" for t in (free, late)]
    ends = [] if free is None and late is None else [total_mib - kib / 1024, 64.0, total_mib - kib / 1024]
    totals = [total_mib, 64.0, total_mib, *(ends or ["", "", ""])]
    return ",".join([name, str(kib), us(alloc), *release, *durations, *map(str, totals), "2", "NPU:0"])


def record(component: str, t: float, allocated: float | str, reserved: float = 64.0, active: float | str = "") -> str:
    """One row of memory_record.csv."""
    shown = allocated if active == "" and component == "PTA" else active
    return ",".join([component, us(t), str(allocated), str(reserved), str(shown), "2", "NPU:0"])


def write_collection(
    root: Path,
    *,
    name: str = "my_host_77_20260101000000000_ascend_pt",
    role: str = "actor",
    rank: int | str | None = 0,
    operators: Sequence[str] | bytes | None = (),
    records: Sequence[str] | None = (),
    trace: str | bytes | Sequence[dict] | None = None,
    metadata: dict | None = None,
    info: dict | None = None,
) -> Path:
    """Write a collection below ``root/role``; parts given as ``None`` are left out."""
    folder = root / role / name
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    info_name = "profiler_info.json" if rank is None else f"profiler_info_{rank}.json"
    (folder / info_name).write_text(json.dumps(info or {"rank_id": str(rank)}))
    if metadata is not None:
        (folder / "profiler_metadata.json").write_text(json.dumps(metadata))
    for file, header, rows in (
        ("operator_memory.csv", OPERATOR_HEADER, operators),
        ("memory_record.csv", RECORD_HEADER, records),
    ):
        if isinstance(rows, bytes):
            (output / file).write_bytes(rows)
        elif rows is not None:
            (output / file).write_bytes("".join(line + "\r\n" for line in (header, *rows)).encode())
    if trace is not None:
        data = trace if isinstance(trace, (str, bytes)) else json.dumps(list(trace))
        (output / "trace_view.json").write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def op(
    name: str, start: float, dur: float, *, tid: int = 1, seq: int = -1, fwd: int = 0, stack: str | None = None
) -> dict:
    """One cpu_op event of a trace."""
    args: dict[str, object] = {"Sequence number": seq, "Fwd thread id": fwd}
    if stack is not None:
        args["Call stack"] = stack
    ts = us(start).strip()
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 77, "tid": tid, "ts": ts, "dur": dur, "args": args}


def profile_of(
    blocks: Sequence[tuple[int, int | None, int]],
    *,
    older: int = 0,
    window: tuple[int, int] | None = None,
    names: Sequence[str] | None = None,
    late: Sequence[int | None] | None = None,
    record_totals: bool = True,
) -> MemoryProfile:
    """A profile of one series from ``(alloc, free or None, size)``, with exact totals at every event.

    ``older`` bytes are allocated before the window and stay.
    """
    alloc = np.array([b[0] for b in blocks], dtype=np.int64)
    ends = [b[1] for b in blocks]
    active = list(late) if late is not None else ends
    size = np.array([b[2] for b in blocks], dtype=np.int64)
    first_end = [min((e for e in pair if e is not None), default=None) for pair in zip(ends, active, strict=True)]
    events = sorted({*alloc.tolist(), *(e for e in (*ends, *active) if e is not None)})
    window = window or (events[0], events[-1])

    def levels(last: Sequence[int | None]) -> list[int]:
        change = dict.fromkeys(events, 0)
        for (start, _, n_bytes), end in zip(blocks, last, strict=True):
            change[start] += n_bytes
            if end is not None:
                change[end] -= n_bytes
        return list(itertools.accumulate(change.values(), initial=older))[1:]

    n = len(blocks)
    table = pd.DataFrame(
        {
            "block_id": np.arange(n, dtype=np.int64),
            "source": np.zeros(n, dtype=np.int32),
            "device": pd.Categorical(["NPU:0"] * n),
            "pool": pd.Categorical(["PTA"] * n),
            "name": pd.Categorical(list(names) if names else ["op"] * n),
            "stack_id": np.full(n, -1, dtype=np.int32),
            "stack_kind": pd.Categorical(["none"] * n, ["none", "own", "forward"]),
            "size_bytes": size,
            "alloc_ns": pd.array(alloc, dtype="Int64"),
            "free_ns": pd.array(ends, dtype="Int64"),
            "active_free_ns": pd.array(active, dtype="Int64"),
            "flags": np.zeros(n, dtype=np.uint16),
        }
    )
    totals = pd.DataFrame(
        {
            "source": np.zeros(len(events), dtype=np.int32),
            "scope": pd.Categorical(["pool"] * len(events)),
            "component": pd.Categorical(["PTA"] * len(events)),
            "device": pd.Categorical(["NPU:0"] * len(events)),
            "t_ns": np.array(events, dtype=np.int64),
            "allocated_bytes": pd.array(levels(first_end), dtype="Int64"),
            "reserved_bytes": pd.array([1 << 40] * len(events), dtype="Int64"),
            "active_bytes": pd.array(levels(active), dtype="Int64"),
            "origin": pd.Categorical(["recorded"] * len(events)),
        }
    )
    sources = pd.DataFrame(
        {
            "source": np.zeros(1, dtype=np.int32),
            "run": "r",
            "host": "h",
            "role": "role",
            "rank_id": pd.array([0], dtype="Int64"),
            "collection": np.zeros(1, dtype=np.int32),
            "path": "p",
            "start_ns": pd.array([window[0]], dtype="Int64"),
            "end_ns": pd.array([window[1]], dtype="Int64"),
            "n_blocks": n,
            "n_skipped": 0,
            "n_repaired": 0,
            "n_open": sum(e is None for e in first_end),
            "status": "ok",
            "warnings": [()],
            "facts": [{}],
        }
    )
    extra = {"totals": totals} if record_totals else {}
    return MemoryProfile(sources=sources, blocks=table, stacks=stacks_frame([]), **extra)
