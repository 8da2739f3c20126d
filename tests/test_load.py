"""Scanning, filters, cache and workers: the same profile by every road."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import pandas as pd
import pytest
from tiny import record, row, write_collection

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.io import cache as cache_module
from memscope_nb.io import loader as load_module
from memscope_nb.io import parallel, source

TABLES = ("blocks", "totals", "marks", "ops", "stacks")


def assert_same(a, b):
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(a, name), getattr(b, name))
    pd.testing.assert_frame_equal(a.sources, b.sources)


# -- scan -------------------------------------------------------------------------------------------------------


def test_scan_describes_without_reading(demo, monkeypatch):
    folder, _ = demo
    monkeypatch.setattr(source, "read_collection", None)  # whoever reads data fails
    catalog = ms.scan(folder)
    frame = catalog.to_frame()
    assert len(frame) == 16
    assert set(frame["rank_id"]) == {0, 1}
    assert set(frame["export"]) == {"text"}
    size = sum(path.stat().st_size for path in folder.rglob("*.csv") if path.name != "step_trace_time.csv")
    size += sum(path.stat().st_size for path in folder.rglob("trace_view.json"))
    assert catalog.n_bytes == size
    text = repr(catalog)
    assert "16 sources, 2 ranks" in text
    assert "actor_update: 4 sources, ranks 0-1" in text
    assert "RAM" in text


def test_scan_names_problems_and_loads(tmp_path):
    write_collection(tmp_path, rank=0, name="a_ascend_pt", operators=[row("a", 1, 10, 20, 19, 1.0)])
    raw = write_collection(tmp_path, rank=1, name="b_ascend_pt", operators=None, records=None)
    (raw / "ASCEND_PROFILER_OUTPUT").rmdir()
    (raw / "FRAMEWORK").mkdir()
    catalog = ms.scan(tmp_path)
    assert catalog.frame["problem"].str.contains("not analysed yet").tolist() == [False, True]
    assert f"problem: {raw}" in repr(catalog)
    assert len(catalog.load(ranks=0).blocks) == 1


def test_estimate_of_ram_is_of_the_right_size(demo, demo_profile):
    tables = [getattr(demo_profile, name) for name in TABLES]
    real = sum(int(table.memory_usage(deep=True).sum()) for table in tables)
    assert 0.3 < ms.scan(demo[0]).ram_bytes / real < 3


# -- filters ----------------------------------------------------------------------------------------------------


def test_filters_of_load_are_those_of_select(demo, demo_profile):
    folder, _ = demo
    assert_same(ms.load(folder, steps=1, pools="PTA"), demo_profile.select(step=1, pool="PTA"))
    assert_same(ms.load(folder, collections=[0]), demo_profile.select(collection=0))
    start, end = (int(demo_profile.sources[k].iloc[2]) for k in ("start_ns", "end_ns"))
    assert_same(ms.load(folder, time_range=(start, end)), demo_profile.select(time_range=(start, end)))
    with pytest.raises(InputError, match="no source with pool 'X'; there is: GE, PTA"):
        ms.load(folder, pools="X")


# -- cache ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    rows = [row("aten::mm", 1024, 10, 20, 19, 3.0), row("", 512, 12, None, None, 3.5)]
    records = [record("PTA", 10, 3.0), record("PTA", 12, 3.5), record("PTA", 19, 2.5)]
    return write_collection(tmp_path / "in", operators=rows, records=records)


def forbid_reading(monkeypatch):
    def fail(*_args, **_kwargs):
        raise AssertionError("parsed again")

    monkeypatch.setattr(source, "read_collection", fail)


def test_cache_gives_the_same_profile_without_parsing(demo, demo_profile, tmp_path, monkeypatch):
    first = ms.load(demo[0], cache=tmp_path / "cache")
    forbid_reading(monkeypatch)
    second = ms.load(demo[0], cache=tmp_path / "cache")
    assert_same(first, demo_profile)
    assert_same(second, demo_profile)
    assert ms.validate(second) is second


def test_remarks_come_back_from_the_cache(tree, tmp_path, monkeypatch):
    first = ms.load(tree, cache=tmp_path / "cache")
    assert first.sources["status"][0] == "partial"
    forbid_reading(monkeypatch)
    assert_same(first, ms.load(tree, cache=tmp_path / "cache"))


def test_a_changed_file_is_read_again(tree, tmp_path):
    ms.load(tree, cache=tmp_path / "cache")
    path = tree / "ASCEND_PROFILER_OUTPUT" / "operator_memory.csv"
    path.write_bytes(path.read_bytes() + row("late", 512, 30, 40, 39, 3.0).encode() + b"\r\n")
    assert len(ms.load(tree, cache=tmp_path / "cache").blocks) == 3


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_entry_is_read_again_and_replaced(tree, tmp_path, monkeypatch, cut):
    folder = tmp_path / "cache"
    first = ms.load(tree, cache=folder)
    (path,) = folder.rglob("blocks.arrow")
    path.write_bytes(path.read_bytes()[:-40] if cut else b"ARROW1 nonsense")
    assert_same(ms.load(tree, cache=folder), first)
    forbid_reading(monkeypatch)
    assert_same(ms.load(tree, cache=folder), first)


def test_a_cache_that_cannot_be_written_is_ignored(tree, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    assert len(ms.load(tree, cache=tmp_path / "file").blocks) == 2
    assert len(ms.load(tree, cache=tmp_path / "file" / "below").blocks) == 2


def test_the_variable_names_the_cache_and_false_switches_it_off(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMSCOPE_CACHE", str(tmp_path / "by-variable"))
    ms.load(tree, cache=False)
    assert not (tmp_path / "by-variable").exists()
    ms.load(tree)
    assert list((tmp_path / "by-variable").iterdir())


def test_another_reader_version_has_other_entries(tree, tmp_path, monkeypatch):
    ms.load(tree, cache=tmp_path / "cache")
    monkeypatch.setattr(cache_module, "READER_VERSION", 10**6)
    ms.load(tree, cache=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_two_processes_share_a_cache(demo, tmp_path):
    code = (
        "import sys, memscope_nb as ms\n"
        "p = ms.load(sys.argv[1], cache=sys.argv[2])\n"
        "print(len(p.blocks), int(p.summary()['peak_bytes'].max()))"
    )
    command = [sys.executable, "-c", code, str(demo[0]), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {process.communicate(timeout=120)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(outputs) == 1
    assert len([path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]) == 16
    assert not list((tmp_path / "cache").glob(".new-*"))


# -- workers ----------------------------------------------------------------------------------------------------


def test_small_loads_stay_in_this_process():
    assert not parallel.reads_in_workers([10 << 20] * 3, n_jobs=-1)
    assert not parallel.reads_in_workers([10 << 30], n_jobs=-1)
    assert not parallel.reads_in_workers([10 << 30] * 3, n_jobs=1)
    assert parallel.reads_in_workers([10 << 30] * 3, n_jobs=-1)


def test_workers_give_the_same_profile(demo, demo_profile, monkeypatch):
    monkeypatch.setattr(parallel, "SERIAL_BELOW_BYTES", 0)
    assert_same(ms.load(demo[0], n_jobs=2), demo_profile)


def test_a_configured_backend_is_used(demo, demo_profile):
    with joblib.parallel_config("threading", n_jobs=2):
        assert parallel.reads_in_workers([1], n_jobs=-1)
        assert_same(ms.load(demo[0]), demo_profile)


@pytest.mark.filterwarnings("default")  # dask and tornado leave sockets to the collector
def test_dask_gives_the_same_profile(demo, demo_profile):
    distributed = pytest.importorskip("distributed", reason="the extra 'distributed' is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        assert_same(ms.load(demo[0]), demo_profile)


def test_progress_counts_every_byte_once(demo, monkeypatch):
    seen: dict[str, int] = {"bytes": 0, "sources": 0}

    class Counted(load_module.Progress):
        def start(self, number, label):
            seen["sources"] += 1

        def advance(self, n_bytes):
            seen["bytes"] += n_bytes

    monkeypatch.setattr(load_module, "Progress", Counted)
    ms.load(demo[0])
    assert seen["sources"] == 16
    assert seen["bytes"] == pytest.approx(ms.scan(demo[0]).n_bytes, rel=0.05)
    seen.update(bytes=0, sources=0)
    monkeypatch.setattr(parallel, "SERIAL_BELOW_BYTES", 0)
    ms.load(demo[0], n_jobs=2)
    assert seen == {"bytes": ms.scan(demo[0]).n_bytes, "sources": 16}


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_ends_everything(demo, tmp_path):
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell ignores it in background jobs
        "from memscope_nb import cli\n"
        "from memscope_nb.io import parallel, source\n"
        "parallel.SERIAL_BELOW_BYTES = 0\n"
        "import memscope_nb.io.loader as loader\n"
        "def slow(collection, **_): open(collection.path.name, 'w').close(); time.sleep(60)\n"
        "loader.read_sources = slow\n"
        "print('ready', flush=True)\n"
        "sys.exit(cli.main(['report', sys.argv[1], '--out', sys.argv[2]]))\n"
    )
    command = [sys.executable, "-c", code, str(demo[0]), str(tmp_path / "out")]
    working = tmp_path / "working"
    working.mkdir()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=working
    )
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while not any(working.iterdir()) and time.monotonic() < deadline:  # until a worker is in the middle of a file
        time.sleep(0.1)
    assert any(working.iterdir())
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "memscope-nb: interrupted" in errors
    assert not (tmp_path / "out").exists()
    time.sleep(2)
    left = [path for path in Path("/proc").glob("[0-9]*/stat") if f" {process.pid} " in _read(path)]
    assert left == []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
