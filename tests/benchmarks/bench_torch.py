"""Loading and showing one large PyTorch snapshot, in processes of their own.

``MEMSCOPE_BENCH`` = ``small`` (the default, 20 MB), ``300k`` (120 MB), ``1M`` (300 MB) or ``500MB`` chooses the size,
``MEMSCOPE_BENCH_DATA`` a folder that keeps the files. Times and memory are shown; what is asserted is that the numbers
are those of the generator, and that memory stays in proportion to the file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SIZES = {"small": 20, "300k": 120, "1M": 300, "500MB": 500}
WRITER = Path(__file__).with_name("torch_file.py")
MOST_MIB = {"base": 300, "per_mb": 2.5}
"""Peak of a process that loads and exports a file: at most base + per_mb × its megabytes."""
RUN = """
import json, resource, sys, time
import memscope_nb as ms
from memscope_nb.notebook.display import show
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
path, out, what = sys.argv[1:]
began, cpu, start = time.perf_counter(), time.process_time(), peak()
p = ms.load(path, progress=False)
found = {"load_s": time.perf_counter() - began, "load_cpu_s": time.process_time() - cpu, "load_mib": peak()}
found["imports_mib"] = start
status = dict(l.split(":", 1) for l in open("/proc/self/status").read().splitlines())
found["result_mib"] = int(status["VmRSS"].split()[0]) / 1024
found |= {"n_blocks": len(p.blocks), "n_open": int(p.sources["n_open"][0]), "facts": {k: v for k, v in
          p.sources["facts"][0].items() if isinstance(v, (int, str))}}
found["end_bytes"] = int(p.summary()["end_bytes"][0])
found["verdict"] = ms.check_quality(p).frame["verdict"][0]
began, cpu = time.perf_counter(), time.process_time()
if what == "export": found["pages"] = len(list(ms.export_html(p, out).parent.rglob("*.html")))
else: found["pages"] = len(show(p)._repr_html_()) > 0
found |= {"show_s": time.perf_counter() - began, "show_cpu_s": time.process_time() - cpu, "show_mib": peak()}
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["lists", "frames"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A file and what is true of it; written by another process."""
    size = os.environ.get("MEMSCOPE_BENCH", "small")
    kept = os.environ.get("MEMSCOPE_BENCH_DATA")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("bench")
    path = folder / f"torch-{size}-{request.param}.pickle"
    notes = path.with_suffix(".json")
    if not notes.is_file():
        done = subprocess.run(
            [sys.executable, WRITER, path, str(SIZES[size]), request.param], check=True, capture_output=True, text=True
        )
        notes.write_text(done.stdout)
    return path, json.loads(notes.read_text())


@pytest.mark.parametrize("what", ["export", "show"])
def test_a_large_snapshot(
    benchmark: Any, file: tuple[Path, dict[str, Any]], what: str, tmp_path: Path, lines: list[str]
) -> None:
    path, truth = file
    found: dict[str, Any] = {}

    def run() -> None:
        done = subprocess.run([sys.executable, "-c", RUN, path, tmp_path / "out", what], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.update(json.loads(done.stdout))

    benchmark.pedantic(run, rounds=1)
    for key in ("n_blocks", "n_open", "end_bytes"):
        assert found[key] == truth[key]
    assert found["facts"]["n_entries"] == truth["n_entries"]
    assert found["facts"]["end_difference_allocated_bytes"] == 0
    assert found["verdict"] == "ok"
    megabytes = truth["n_bytes"] / 1e6
    assert found["show_mib"] <= MOST_MIB["base"] + MOST_MIB["per_mb"] * megabytes
    title = f"{path.name}: {megabytes:,.0f} MB, {truth['n_entries']:,} entries, {truth['n_blocks']:,} blocks"
    lines.append(f"{title} (a process with the package: {found['imports_mib']:,.0f} MiB)")
    for key, name in (("load", "load"), ("show", what)):
        wall, cpu, most = (found[f"{key}_{unit}"] for unit in ("s", "cpu_s", "mib"))
        lines.append(f"    {name}: {wall:.1f} s, {cpu:.1f} s of CPU, peak {most:,.0f} MiB")
    lines.append(f"    after the load: {found['result_mib']:,.0f} MiB")
