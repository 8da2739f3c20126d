"""The stand-in that benchmarks are measured against: the same tables, written plainly with the usual tools.

``ijson.items``, dictionaries, ``csv.DictReader``, ``bisect`` that steps back to an operator that still runs, and frames
with object strings: what a careful script does that is not about speed. It is exact (integer ns and bytes) and reads
the same files as :func:`memscope_nb.load` but for ``npu_module_mem.csv``. **Do not tune it**: ratios of different days
are comparable only while this file stays as it is.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

import ijson
import pandas as pd

BLOCK_COLUMNS = [
    "name", "device", "size_bytes", "alloc_ns", "free_ns", "active_free_ns", "allocated_bytes", "reserved_bytes",
    "active_bytes", "stream", "tid", "stack", "stack_kind",
]  # fmt: skip
TOTAL_COLUMNS = ["component", "device", "t_ns", "allocated_bytes", "reserved_bytes", "active_bytes"]


def text_ns(text: str) -> int | None:
    """Microseconds text to ns."""
    whole, _, decimals = text.strip().partition(".")
    return int(whole) * 1000 + int(decimals[:3].ljust(3, "0")) if whole else None


def text_bytes(text: str, unit: int) -> int | None:
    return round(float(text) * unit) if text.strip() else None


class Intervals:
    """Operators by start, each with the latest end so far: where to stop stepping back."""

    def __init__(self, operators: list[tuple]) -> None:
        self.operators = sorted(operators, key=lambda op: op[0])  # stable: at a tie the later in the file comes last
        self.starts = [op[0] for op in self.operators]
        self.latest_end = []
        latest = -1
        for op in self.operators:
            latest = max(latest, op[1])
            self.latest_end.append(latest)

    def running(self, t: int) -> tuple | None:
        i = bisect_right(self.starts, t) - 1
        while i >= 0 and self.latest_end[i] >= t:
            if self.operators[i][1] >= t:
                return self.operators[i]
            i -= 1
        return None


def read_trace(path: Path) -> dict[str, list[tuple]]:
    """Operators by name: start, end, thread, sequence number, forward thread, stack."""
    operators = defaultdict(list)
    with path.open("rb") as file:
        for event in ijson.items(file, "item"):
            if event.get("ph") == "X" and event.get("cat") == "cpu_op":
                args = event.get("args", {})
                start = text_ns(event["ts"])
                operators[event["name"]].append(
                    (
                        start,
                        start + int(event.get("dur", 0) * 1000),
                        int(event["tid"]),
                        int(args.get("Sequence number", -1)),
                        int(args.get("Fwd thread id", 0)),
                        args.get("Call stack") or None,
                    )
                )
    return operators


def read_rows(path: Path, operators: dict[str, list[tuple]]) -> pd.DataFrame:
    """Blocks with their stacks, by allocation time."""
    by_name = {name: Intervals(ops) for name, ops in operators.items() if name}
    numbered = defaultdict(list)
    forward: dict[int, tuple] = {}
    for ops in operators.values():
        for op in ops:
            if op[3] >= 0:
                numbered[op[2]].append(op)
                if op[4] == 0 and op[5] and (op[3] not in forward or forward[op[3]][0] <= op[0]):
                    forward[op[3]] = op
    by_thread = {tid: Intervals(ops) for tid, ops in numbered.items()}
    records = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            alloc = text_ns(row["Allocation Time(us)"])
            op = by_name[row["Name"]].running(alloc) if row["Name"] in by_name else None
            tid, stack, kind = None, None, "none"
            if op is not None:
                tid, stack = op[2], op[5]
                kind = "own" if stack else "none"
                if not stack:
                    number = op[3]
                    if number < 0 and tid in by_thread:
                        around = by_thread[tid].running(alloc)
                        number = around[3] if around else -1
                    if number >= 0 and number in forward:
                        stack, kind = forward[number][5], "forward"
            records.append(
                (
                    row["Name"],
                    row["Device Type"],
                    text_bytes(row["Size(KB)"], 1024),
                    alloc,
                    text_ns(row["Release Time(us)"]),
                    text_ns(row["Active Release Time(us)"]),
                    text_bytes(row["Allocation Total Allocated(MB)"], 1 << 20),
                    text_bytes(row["Allocation Total Reserved(MB)"], 1 << 20),
                    text_bytes(row["Allocation Total Active(MB)"], 1 << 20),
                    int(row["Stream Ptr"]) if row["Stream Ptr"] else None,
                    tid,
                    stack,
                    kind,
                )
            )
    return frame(records, BLOCK_COLUMNS, "alloc_ns")


def read_totals(path: Path) -> pd.DataFrame:
    """Samples of the counters by time, without the rows that repeat others (``PTA+GE``)."""
    records = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            if not row["Component"].endswith("+GE"):
                sizes = [text_bytes(row[f"Total {k}(MB)"], 1 << 20) for k in ("Allocated", "Reserved", "Active")]
                records.append((row["Component"], row["Device Type"], text_ns(row["Timestamp(us)"]), *sizes))
    return frame(records, TOTAL_COLUMNS, "t_ns")


def frame(records: list[tuple], names: list[str], by: str) -> pd.DataFrame:
    """Integers as nullable columns, strings as objects (as pandas 2 does; pandas 3 would copy every stack)."""
    columns = {}
    for name, values in zip(names, zip(*records, strict=True), strict=True):
        is_number = name.endswith(("_ns", "_bytes")) or name in ("stream", "tid")
        columns[name] = pd.array(values, dtype="Int64") if is_number else pd.Series(values, dtype=object)
    return pd.DataFrame(columns).sort_values(by, kind="stable", ignore_index=True)


def load(output: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Blocks and totals of one ``ASCEND_PROFILER_OUTPUT`` folder."""
    operators = read_trace(output / "trace_view.json")
    blocks = read_rows(output / "operator_memory.csv", operators)
    del operators
    return blocks, read_totals(output / "memory_record.csv")
