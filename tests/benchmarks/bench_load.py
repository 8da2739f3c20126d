"""Reading one rank, against the plain stand-in of ``peer.py``.

Run ``.venv/bin/python -m pytest tests/benchmarks/bench_*.py``. ``MEMSCOPE_BENCH`` = ``small`` (30 MB, the default),
``300k`` (300 MB) or ``1M`` (1.2 GB) chooses the data, ``MEMSCOPE_BENCH_ROUNDS`` how often each case runs (3; the best
counts), ``MEMSCOPE_BENCH_DATA`` a folder that keeps the data. Both sides must give the same rows; times are only shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CASES_FILE = Path(__file__).with_name("cases.py")
ROUNDS = int(os.environ.get("MEMSCOPE_BENCH_ROUNDS", "3"))
TITLES = {"trace": "trace", "load": "end to end"}
Measured = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Best round of each case so far."""
    return {}


def run_case(name: str, folder: Path, best: Measured) -> None:
    """Run a case in a fresh process; the round with the least CPU time counts."""
    cache = {"MEMSCOPE_CACHE": f"{folder}-cache"} if name == "reload" else {}
    environment = {**os.environ, **cache}
    done = subprocess.run([sys.executable, CASES_FILE, name, folder], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    if name not in best or result["cpu_s"] < best[name]["cpu_s"]:
        best[name] = result


@pytest.mark.parametrize("case", ["trace, peer", "trace", "trace, ijson", "load, peer", "load", "reload"])
def test_case(benchmark, case, profile_folder, measured):
    first = 1 if case == "reload" else 0  # fills the cache
    benchmark.pedantic(run_case, args=(case, profile_folder, measured), rounds=ROUNDS, warmup_rounds=first)
    benchmark.extra_info.update(measured[case])


def test_both_sides_agree_and_table(profile_folder, measured, lines):
    if len(measured) < 6:
        pytest.skip("needs all cases in one run")
    for what in TITLES:
        ours, peer = measured[what], measured[f"{what}, peer"]
        assert {k: ours[k] for k in ours if k.startswith(("n", "digest"))} == {
            k: peer[k] for k in peer if k.startswith(("n", "digest"))
        }
    assert measured["trace"]["digest"] == measured["trace, ijson"]["digest"]
    assert measured["load"]["digest"] == measured["reload"]["digest"]
    manifest = json.loads((profile_folder / "manifest.json").read_text())["ranks"][0]
    load = measured["load"]
    assert (load["n"], load["n_own"], load["n_forward"]) == tuple(
        manifest[f"rows{k}"] for k in ("", "_own_stack", "_forward_stack")
    )
    lines += table(measured, manifest)


def table(measured: Measured, manifest: dict[str, Any]) -> list[str]:
    """Ratios: the stand-in's figure over ours."""
    trace, load = measured["trace"], measured["load"]
    rest = {side: measured[f"load{side}"]["cpu_s"] - measured[f"trace{side}"]["cpu_s"] for side in ("", ", peer")}
    found = [
        f"{manifest['rows']:,} rows, trace of {manifest['bytes'] / 1e6:,.0f} MB; best of {ROUNDS}; "
        + ", ".join(f"{name} {version}" for name, version in load["versions"].items()),
        f"{'':38}{'stand-in':>12}{'memscope_nb':>14}{'ratio':>9}",
    ]

    def line(title: str, peer: float, ours: float, unit: str) -> None:
        found.append(f"{title:38}{peer:>10.2f} {unit}{ours:>11.2f} {unit}{peer / ours:>8.1f}x")

    line("trace, CPU", measured["trace, peer"]["cpu_s"], trace["cpu_s"], "s")
    line("trace by ijson, CPU", measured["trace, peer"]["cpu_s"], measured["trace, ijson"]["cpu_s"], "s")
    line("CSV and join, CPU", rest[", peer"], rest[""], "s")
    line("end to end, CPU", measured["load, peer"]["cpu_s"], load["cpu_s"], "s")
    line("reload from cache, CPU (against load)", load["cpu_s"], measured["reload"]["cpu_s"], "s")
    line("trace, peak MiB", measured["trace, peer"]["peak_mib"], trace["peak_mib"], " ")
    line("end to end, peak MiB", measured["load, peer"]["peak_mib"], load["peak_mib"], " ")
    transient = trace["growth_mib"] - trace["result_mib"]
    found.append(
        f"transient memory of the trace beyond its result of {trace['result_mib']:.0f} MiB: {transient:.0f} MiB"
    )
    return found
