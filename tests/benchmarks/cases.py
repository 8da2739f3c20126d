"""One measured case in a process of its own: ``python cases.py CASE FOLDER`` prints one line of JSON.

CPU time (user + system, this process) and peak memory of the case itself; imports come before, digests of the result
after. A fresh process for each case, since memory once used shows in the peak for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ijson
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

sys.path.insert(0, str(Path(__file__).parent))
import peer

import memscope_nb as ms
from memscope_nb.io.report import ReadReport
from memscope_nb.io.trace_view import Trace, read_trace

VERSIONS = {
    "python": sys.version.split()[0],
    **{module.__name__: module.__version__ for module in (pd, np, pa, msgspec, ijson)},
    "ijson backend": ijson.backend,
}


def resident() -> int:
    """Bytes of memory in use now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident() -> int:
    """Most bytes in use so far. (``ru_maxrss`` would begin with the memory of the process that started this one.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status tells no VmHWM: measure on Linux")


def cpu() -> float:
    return sum(os.times()[:2])


def measure(case: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Run a case: CPU seconds, peak of the process, and how far the peak was above the start."""
    before, start = resident(), cpu()
    result = case()
    seconds = cpu() - start
    peak = peak_resident()
    return result, {"cpu_s": seconds, "peak_mib": peak / 2**20, "growth_mib": (peak - before) / 2**20}


# -- digests of the results, independent of how they are stored ------------------------------------------------------


def digest(rows: Iterable[Iterable[Any]]) -> str:
    sha = hashlib.sha256()
    for row in rows:
        sha.update(
            ("\x1f".join("" if value is None or value is pd.NA else str(value) for value in row) + "\n").encode()
        )
    return sha.hexdigest()[:16]


def normal(stack: str | None) -> str:
    return "\n".join(frame.strip() for frame in (stack or "").split(";\r\n"))


def columns(frame: pd.DataFrame, names: Iterable[str]) -> list[list[Any]]:
    return [frame[name].astype(object).tolist() for name in names]


def our_operators(trace: Trace) -> dict[str, Any]:
    stacks = ["\n".join(frames) for frames in trace.stacks["frames"]] + [""]
    values = columns(trace.ops, ("name", "start_ns", "end_ns", "tid", "sequence", "fwd_tid", "stack_id"))
    rows = sorted((*row[:-1], stacks[row[-1]]) for row in zip(*values, strict=True))
    size = sum(trace.ops.memory_usage(deep=True)) + sum(sys.getsizeof(f) for fs in trace.stacks["frames"] for f in fs)
    return {"n": len(rows), "digest": digest(rows), "result_mib": size / 2**20}


def peer_operators(operators: dict[str, list[tuple]]) -> dict[str, Any]:
    rows = sorted((name, *op[:5], normal(op[5])) for name, ops in operators.items() for op in ops)
    return {"n": len(rows), "digest": digest(rows)}


def our_profile(profile: ms.MemoryProfile) -> dict[str, Any]:
    stacks = ["\n".join(frames) for frames in profile.stacks["frames"]] + [""]
    blocks = columns(profile.blocks, [name for name in peer.BLOCK_COLUMNS if name != "stack"])
    blocks.insert(peer.BLOCK_COLUMNS.index("stack"), [stacks[i] for i in profile.blocks["stack_id"]])
    totals = profile.totals[profile.totals["scope"] != "module"]
    return _profile_facts(blocks, columns(totals, peer.TOTAL_COLUMNS))


def peer_profile(result: tuple[pd.DataFrame, pd.DataFrame]) -> dict[str, Any]:
    blocks = columns(result[0], peer.BLOCK_COLUMNS)
    at = peer.BLOCK_COLUMNS.index("stack")
    blocks[at] = [normal(stack) for stack in blocks[at]]
    return _profile_facts(blocks, columns(result[1], peer.TOTAL_COLUMNS))


def _profile_facts(blocks: list[list[Any]], totals: list[list[Any]]) -> dict[str, Any]:
    kinds = blocks[peer.BLOCK_COLUMNS.index("stack_kind")]
    return {
        "n": len(kinds),
        "n_totals": len(totals[0]),
        "n_own": kinds.count("own"),
        "n_forward": kinds.count("forward"),
        "digest": digest(zip(*blocks, strict=True)) + digest(sorted(zip(*map(_text, totals), strict=True))),
    }


def _text(values: list[Any]) -> list[str]:
    return ["" if value is pd.NA else str(value) for value in values]


# -- cases -------------------------------------------------------------------------------------------------------------


def trace(output: Path, reader: str) -> Trace:
    report = ReadReport()
    result = read_trace(output / "trace_view.json", report=report, reader=reader)
    assert not report.warnings, report.warnings
    return result


CASES: dict[str, tuple[Callable[[Path], Any], Callable[[Any], dict[str, Any]]]] = {
    "trace": (lambda output: trace(output, "auto"), our_operators),
    "trace, ijson": (lambda output: trace(output, "ijson"), our_operators),
    "trace, peer": (lambda output: peer.read_trace(output / "trace_view.json"), peer_operators),
    "load": (lambda output: ms.load(output.parent, progress=False), our_profile),
    "reload": (lambda output: ms.load(output.parent, progress=False), our_profile),  # MEMSCOPE_CACHE is set
    "load, peer": (peer.load, peer_profile),
}


def main() -> None:
    name, folder = sys.argv[1:]
    run, facts = CASES[name]
    output = next(Path(folder).rglob("ASCEND_PROFILER_OUTPUT"))
    result, measured = measure(lambda: run(output))
    print(json.dumps({**measured, **facts(result), "versions": VERSIONS}))


if __name__ == "__main__":
    main()
