"""Reading and analysing one dump of msMemScope: the demo's process over many iterations.

``MEMSCOPE_BENCH`` = ``small`` (the default), ``300k`` or ``1M`` rows chooses the data, ``MEMSCOPE_BENCH_DATA`` a folder
that keeps it. Times are only shown; each case must find what the demo knows it put in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memscope_nb as ms
from memscope_nb.model import MemoryProfile

ITERATIONS = {"small": 10, "300k": 54, "1M": 180}
WRITE = "import sys; from memscope_nb.demo import write_demo_dump as w; w(sys.argv[1], iterations=int(sys.argv[2]))"
LOAD = """
import sys, memscope_nb as ms
from pathlib import Path
p = ms.load(sys.argv[1], progress=False)
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(int(peak.split()[1]) // 1024)
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo dump; written by another process, so that its memory is not counted here."""
    size = os.environ.get("MEMSCOPE_BENCH", "small")
    kept = os.environ.get("MEMSCOPE_BENCH_DATA")
    folder = (Path(kept) if kept else tmp_path_factory.mktemp("bench")) / f"dump-{size}"
    if not folder.is_dir():
        subprocess.run([sys.executable, "-c", WRITE, folder, str(ITERATIONS[size])], check=True)
    return folder


@pytest.fixture(scope="module")
def profile(dump: Path) -> MemoryProfile:
    return ms.load(dump)


def test_load(benchmark: Any, dump: Path, lines: list[str]) -> None:
    p = benchmark.pedantic(ms.load, args=(dump,), rounds=2)
    assert p.summary()["n_unexplained"].sum() == 0
    done = subprocess.run([sys.executable, "-c", LOAD, dump], check=True, capture_output=True, text=True)
    n_bytes = ms.scan(dump).n_bytes
    data = f"dump of {n_bytes / 1e6:,.0f} MB, {len(p.events):,} rows, {len(p.blocks):,} blocks"
    lines.append(f"{data}: peak memory of a process that loads it {int(done.stdout):,} MiB")


ANALYSES: dict[str, tuple[Callable[[MemoryProfile], Any], Callable[[Any], bool]]] = {
    "check_leaks": (
        lambda p: ms.check_leaks(p, mstx_info="iteration end", start_index=1, pools=("PTA",)),
        lambda r: r.checks["n_leaks"].tolist() == [4],
    ),
    "step_leaks": (ms.step_leaks, lambda r: r.growth["verdict"].tolist() == ["growing"]),
    "align_ops": (lambda p: ms.align_ops(p, p), lambda r: len(r.frame) > 0 and not r.frame["diff_bytes"].any()),
    "decompose": (ms.decompose, lambda r: not r.frame.loc[r.frame["kind"] == "remainder", "bytes"].any()),
    "find_inefficient": (ms.find_inefficient, lambda r: len(r.frame) > 0),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_analysis(benchmark: Any, profile: MemoryProfile, name: str) -> None:
    run, holds = ANALYSES[name]
    assert holds(benchmark.pedantic(run, args=(profile,), rounds=2))
