"""Kineto traces: pairing, stacks, totals, steps, devices; literal events, and the known answers of a real recording."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import SAMPLES
from hypothesis import given, settings
from hypothesis import strategies as st

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.io import trace_pieces
from memscope_nb.io.kineto_stacks import python_parents
from memscope_nb.io.report import ReadReport
from memscope_nb.model import BlockFlag

FOLDER = SAMPLES / "pytorch"
TRACE = FOLDER / "tiny_transformer.pt.trace.json.gz"
TIMELINE = FOLDER / "tiny_transformer.memory_timeline.raw.json.gz"
needs_sample = pytest.mark.skipif(not TRACE.is_file(), reason="the public samples are not laid beside the checkout")
BASE = 1_790_857_026_000_000_000
CPU, CUDA, NPU = 0, 1, 20


def memory(t: float, addr: int, n_bytes: int, total: int, *, kind: int = CUDA, number: int = 0, **more: Any) -> dict:
    args = {
        "Total Reserved": 0 if kind == CPU else 1 << 20, "Total Allocated": total, "Bytes": n_bytes,
        "Device Id": -1 if kind == CPU else number, "Device Type": kind, "Addr": addr, "finished": False, "Ev Idx": 1,
    }  # fmt: skip
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 1, "ts": t}
    return event | {"args": args | more.pop("args", {})} | more


def span(cat: str, name: str, t: float, dur: float, tid: int = 1, **args: Any) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": t, "dur": dur, "args": args}


def python(name: str, t: float, dur: float, number: int, parent: int | None, tid: int = 1) -> dict:
    return span("python_function", name, t, dur, tid, **{"Python id": number, "Python parent id": parent})


def op(name: str, t: float, dur: float, tid: int = 1, *, seq: int | None = None, fwd: int = 0) -> dict:
    numbered = {} if seq is None else {"Sequence number": seq, "Fwd thread id": fwd}
    return span("cpu_op", name, t, dur, tid, **numbered)


def write(path: Path, events: Sequence[dict], *, bare: bool = False, **envelope: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "profile_memory": 1} | envelope
    head = {key: value for key, value in head.items() if value is not None}
    text = json.dumps(list(events) if bare else {**head, "traceEvents": list(events), "traceName": "x"})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def load(tmp_path: Path, events: Sequence[dict], name: str = "h_7.pt.trace.json", **more: Any) -> ms.MemoryProfile:
    profile = ms.load(write(tmp_path / name, events, **more))
    ms.validate(profile)
    return profile


EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 7, "tid": "x", "ts": 1.5, "args": {"name": "python"}},
    python("train.py(9): step", 10, 90, 1, None),
    python("<built-in method mul_ of Tensor object at 0x7f00>", 20, 30, 2, 1),
    op("aten::outer", 21, 20, seq=5),
    op("aten::empty", 25, 5),
    span("user_annotation", "ProfilerStep#3", 5, 100),
    span("user_annotation", "## forward ##", 15, 50),
    span("kernel", "gemm", 22, 4, 99),
    memory(26.125, 4096, 1000, 6000),
    memory(45, 8192, 500, 6500),
    memory(60.5, 4096, -1000, 5500),
    memory(70, 100, -200, 5300),
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.pt.trace.json", "a.pt.trace.json.gz"])
def test_a_small_trace(tmp_path: Path, name: str):
    profile = load(tmp_path, EVENTS, name)
    blocks = profile.blocks
    assert blocks["size_bytes"].tolist() == [200, 1000, 500]
    assert blocks["alloc_ns"].tolist() == [pd.NA, BASE + 26_125, BASE + 45_000]
    assert blocks["free_ns"].tolist() == [BASE + 70_000, BASE + 60_500, pd.NA]
    assert blocks["flags"].tolist() == [BlockFlag.OLDER | BlockFlag.RELEASE_STACK, 0, 0]
    assert blocks["name"].astype(str).tolist() == ["", "aten::empty", ""]
    frames = [profile.frames(number) for number in blocks["stack_id"]]
    mul = "<built-in method mul_ of Tensor object>"
    assert frames == [("train.py(9): step",), (mul, "train.py(9): step"), (mul, "train.py(9): step")]
    assert blocks["stack_kind"].tolist() == ["none", "own", "own"]
    assert profile.totals["allocated_bytes"].tolist() == [6000, 6500, 5500, 5300]
    assert profile.totals["reserved_bytes"].tolist() == [1 << 20] * 4
    assert set(profile.totals["origin"]) == {"recorded"}
    marks = profile.marks[["kind", "name", "start_ns", "end_ns"]].astype(object).to_numpy().tolist()
    assert marks == [
        ["step", "ProfilerStep#3", BASE + 5000, BASE + 105_000],
        ["range", "## forward ##", BASE + 15_000, BASE + 65_000],
    ]
    assert profile.ops[["name", "sequence"]].astype(object).to_numpy().tolist() == [
        ["aten::outer", 5],
        ["aten::empty", -1],
    ]
    summary = profile.summary().iloc[0]
    assert summary[["device", "pool", "peak_bytes", "older_start_bytes", "n_unexplained"]].tolist() == [
        "CUDA:0", "CUDA", 6500, 4800, 0,
    ]  # fmt: skip
    source = profile.sources.iloc[0]
    assert (source["kind"], source["status"], source["pid"]) == ("kineto", "ok", 7)
    assert source["facts"]["before_window_bytes CUDA:0"] == 5000
    assert ms.phases(profile, kinds=["step"])["peak_bytes"].tolist() == [6500]
    ms.export_html(profile, tmp_path / "out")
    assert list((tmp_path / "out").rglob("*.html"))


@pytest.mark.parametrize("bare", [True, False])
def test_times(tmp_path: Path, bare: bool):
    t = 1_700_000_000_000_000
    events = [memory(t, 1, 10, 10), memory(t + 1, 2, 10, 20), op("x", t, 1)]
    profile = load(tmp_path, events, bare=bare, baseTimeNanoseconds=None)
    assert profile.blocks["alloc_ns"].tolist() == [t * 1000, t * 1000 + 1000]
    texts = [memory(t, 1, 10, 10) | {"ts": f"{t}.123"}, memory(t, 2, 10, 20) | {"ts": f"{t}.124"}]
    assert load(tmp_path, texts, baseTimeNanoseconds=None).blocks["alloc_ns"].tolist() == [
        t * 1000 + 123,
        t * 1000 + 124,
    ]
    odd = [memory(5e3, 1, 10, 10), memory(6.0, 2, 10, 20) | {"ts": None}]
    profile = load(tmp_path, odd)
    assert profile.blocks["alloc_ns"].tolist() == [BASE + 5_000_000]
    assert profile.sources["n_skipped"][0] == 1


def test_several_devices_and_threads(tmp_path: Path):
    events = [
        memory(10, 4096, 5, 5, kind=CPU), memory(11, 4096, 7, 7, kind=NPU), memory(12, 4096, 9, 9, kind=NPU, number=1),
        memory(20, 4096, -9, 0, kind=NPU, number=1), memory(30, 4096, -7, 0, kind=NPU, tid=2),
    ]  # fmt: skip
    profile = load(tmp_path, events[::-1])  # written out of order
    summary = profile.summary()[["device", "pool", "peak_bytes", "n_open"]].astype(object).to_numpy().tolist()
    assert summary == [["CPU", "CPU", 5, 1], ["NPU:0", "PTA", 7, 0], ["NPU:1", "PTA", 9, 0]]
    cpu = profile.totals[profile.totals["device"] == "CPU"]
    assert cpu["reserved_bytes"].isna().all()  # there is no pool
    assert len(profile.sources) == 1


def test_lost_releases_and_counters_that_disagree(tmp_path: Path):
    profile = load(tmp_path, [memory(10, 1, 100, 100), memory(20, 1, 50, 160), memory(30, 1, -50, 110)])
    assert profile.blocks["flags"].tolist() == [BlockFlag.SYNTHETIC_FREE, 0]
    assert profile.blocks["free_ns"].tolist() == [BASE + 20_000, BASE + 30_000]
    assert profile.sources["facts"][0]["worst_total_difference_bytes CUDA:0"] == 10
    assert "differ by up to 10 B" in profile.sources["warnings"][0][-1]
    assert profile.summary()["n_unexplained"][0] == 1


def test_memory_of_the_backward_pass_gets_the_forward_stack(tmp_path: Path):
    events = [
        python("train.py(9): step", 0, 200, 1, None), python("model.py(5): early", 5, 2, 2, 1),
        python("model.py(7): forward", 10, 30, 3, 1), op("aten::early", 6, 1, seq=4), op("aten::mm", 12, 10, seq=4),
        op("MmBackward0", 100, 20, 2, seq=4, fwd=1), op("aten::empty", 105, 2, 2), op("Other", 130, 5, 2, seq=9, fwd=1),
        memory(106, 1, 10, 10, tid=2), memory(132, 2, 10, 20, tid=2), memory(150, 3, 10, 30, tid=2),
    ]  # fmt: skip
    profile = load(tmp_path, events)
    assert profile.blocks["stack_kind"].tolist() == ["forward", "none", "none"]
    assert profile.frames(profile.blocks["stack_id"][0]) == ("model.py(7): forward", "train.py(9): step")
    assert profile.blocks["name"].astype(str).tolist() == ["aten::empty", "Other", ""]


def test_verbose_stacks_where_there_are_no_calls(tmp_path: Path):
    stack = {"Call stack": "a.py(1): f;b.py(2): g;"}
    profile = load(tmp_path, [memory(1, 1, 10, 10, args=stack), memory(2, 2, 10, 20, args=stack)])
    assert profile.blocks["stack_id"].tolist() == [0, 0]
    assert profile.frames(0) == ("a.py(1): f", "b.py(2): g")


def test_failed_allocations(tmp_path: Path):
    failed = memory(15, 0, 1 << 30, 10) | {"name": "[OutOfMemory]"}
    del failed["args"]["Addr"]
    profile = load(tmp_path, [memory(10, 1, 10, 10), failed])
    mark = profile.marks[profile.marks["kind"] == "oom"].iloc[0]
    assert (mark["start_ns"], mark["name"]) == (BASE + 15_000, "out of memory: 1.00 GiB asked for")
    assert len(profile.blocks) == 1


def test_old_writers_make_a_step_an_operator(tmp_path: Path):
    profile = load(tmp_path, [op("ProfilerStep#2", 0, 50), memory(10, 1, 10, 10)])
    assert profile.marks[["kind", "step"]].astype(object).to_numpy().tolist() == [["step", 2]]


def test_no_memory_events(tmp_path: Path):
    path = write(tmp_path / "a.json", [op("aten::mm", 1, 1)])
    with pytest.raises(InputError, match="profile_all_threads"):
        ms.load(path)
    write(tmp_path / "b.json", EVENTS)
    profile = ms.load(tmp_path)  # the other one is still read
    assert profile.sources["status"].tolist() == ["ok", "failed"]


def test_names_ranks_and_capacity(tmp_path: Path):
    envelope = {
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}, "host_name": "node",
        "deviceProperties": [{"id": 0, "name": "X", "totalGlobalMem": 1 << 36}],
    }  # fmt: skip
    write(tmp_path / "tb" / "host_a_77.1700000000000000000.pt.trace.json", EVENTS, **envelope)
    write(tmp_path / "tb" / "rank9_step4.json", EVENTS)
    sources = ms.load(tmp_path).sources
    assert sources[["rank_id", "pid", "host"]].astype(object).to_numpy().tolist() == [[3, 77, "host_a"], [9, 7, None]]
    assert sources["facts"][0]["capacity_bytes"] == {"0": 1 << 36}
    assert sources["facts"][1]["step"] == 4
    assert set(sources["role"]) == {"tb"}


@pytest.mark.parametrize("cut", [200, 900, -2, -20])
def test_broken_off_traces(tmp_path: Path, cut: int):
    path = write(tmp_path / "a.json", [memory(t, t, 10, 10 * t) for t in range(1, 9)])
    path.write_bytes(path.read_bytes()[:cut])
    if cut == 200:
        with pytest.raises(InputError, match="no \\[memory\\]"):
            ms.load(path)
    else:
        profile = ms.load(path)
        assert 0 < len(profile.blocks) <= 8
        assert profile.sources["warnings"][0]


# -- parents ----------------------------------------------------------------------------------------------------


def columns(rows: Sequence[tuple[int, int, int, int, int]]) -> dict[str, np.ndarray]:
    names = ("start", "end", "tid", "python_id", "python_parent")
    return dict(zip(names, np.array(rows, dtype=np.int64).reshape(-1, 5).T, strict=True))


def test_containment_is_the_net():
    rows = [
        (0, 100, 1, 1, -1), (10, 50, 1, 2, 1),
        (20, 30, 1, 3, 77),  # the parent is not there
        (60, 70, 1, 4, 2),  # the parent does not enclose it
        (5, 9, 2, -1, -1), (6, 8, 2, -1, -1),  # no ids
    ]  # fmt: skip
    report = ReadReport()
    assert python_parents(columns(rows), report).tolist() == [-1, 0, 1, 0, -1, 4]
    assert "containment" in report.warnings[0]
    assert report.notes[report.warnings[0].split(" (")[0]].count == 4
    assert not len(python_parents(columns([]), ReadReport()))


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_ids_and_containment_agree_on_nested_calls(steps):
    """Random call trees on one thread: both ways find the same callers."""
    rows, open_calls, t = [], [], 0
    for count, is_call in steps:
        t += 1
        if is_call:
            rows.append([t, -1, 1, len(rows) + 1, open_calls[-1] + 1 if open_calls else -1])
            open_calls.append(len(rows) - 1)
        for _ in range(min(count, len(open_calls))):
            t += 1
            rows[open_calls.pop()][1] = t
    for call in reversed(open_calls):
        t += 1
        rows[call][1] = t
    by_id = python_parents(columns(rows), ReadReport()).tolist()
    without = [[a, b, c, -1, -1] for a, b, c, _, _ in rows]
    assert python_parents(columns(without), ReadReport()).tolist() == by_id


def test_cycles_of_parents_end(tmp_path: Path):
    profile = load(tmp_path, [python("a", 0, 50, 1, 2), python("b", 0, 50, 2, 1), memory(10, 1, 10, 10)])
    assert len(profile.blocks) == 1


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 999), st.integers(0, 3)), min_size=1, max_size=40),
    st.integers(0, 5000),
)
def test_levels_equal_the_running_sum(tmp_path_factory, steps, before):
    """Random allocations and releases: every recorded total is the level of the curve, and nothing is unexplained."""
    events, live, total, t = [], {}, before, 10
    for addr, size, dt in steps:
        t += dt
        n_bytes = -live.pop(addr) if addr in live else size
        if n_bytes > 0:
            live[addr] = size
        total += n_bytes
        events.append(memory(t, addr * 512, n_bytes, total))
    profile = load(tmp_path_factory.mktemp("k"), events)
    expected = (
        pd.DataFrame([(BASE + e["ts"] * 1000, e["args"]["Total Allocated"]) for e in events]).groupby(0)[1].last()
    )
    curve = ms.curve(profile).groupby("t_ns").last()
    assert curve["allocated_bytes"].loc[expected.index].tolist() == expected.tolist()
    assert profile.summary()["n_unexplained"][0] == 0
    assert profile.sources["n_open"][0] == len(live)


# -- a real recording -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> ms.MemoryProfile:
    profile = ms.load(TRACE)
    ms.validate(profile)
    return profile


@needs_sample
def test_known_answers(real: ms.MemoryProfile):
    blocks = real.blocks
    facts = real.sources["facts"][0]
    assert facts["n_events"] == 8662
    assert (len(real.ops), len(blocks), len(real.totals)) == (3930, 904, 1806)
    assert int(blocks["free_ns"].notna().sum()) == 902
    assert int(blocks["size_bytes"].sum()) == 12_254_912
    assert blocks["addr"].nunique() == 714
    assert blocks["addr"].value_counts().max() == 16
    assert not (blocks["flags"] != 0).any()
    assert facts["worst_total_difference_bytes CPU"] == facts["before_window_bytes CPU"] == 0
    assert facts["n_in_operator"] == 904 - 270
    assert facts["n_no_stack"] == 0
    assert real.sources["warnings"][0] == ()
    summary = real.summary().iloc[0]
    assert summary[["peak_bytes", "n_unexplained", "n_open"]].tolist() == [1_745_928, 0, 2]
    assert real.blocks["tid"].nunique() == 1


@needs_sample
def test_known_leak(real: ms.MemoryProfile):
    left = real.blocks[real.blocks["free_ns"].isna()]
    assert left["size_bytes"].tolist() == [131_072] * 2
    assert left["name"].astype(str).tolist() == ["aten::addmm"] * 2
    for number in left["stack_id"]:
        frames = real.frames(number)
        assert "nn.Module: Linear_4" in frames
        assert frames[frames.index("nn.Module: Linear_4") + 1] == "record_trace.py(48): forward"
        assert real.stacks["site"][number] == "record_trace.py(48): forward"


@needs_sample
def test_sites_are_lines_of_the_script(real: ms.MemoryProfile):
    sites = real.stacks["site"][real.blocks["stack_id"]]
    assert all(site.startswith("record_trace.py(") for site in sites)
    inside = real.stacks["frames"].map(lambda frames: "nn.Module: Linear_4" in frames)[real.blocks["stack_id"]]
    assert set(sites[inside]) == {"record_trace.py(48): forward"}
    assert inside.sum() == 8


@needs_sample
def test_known_steps(real: ms.MemoryProfile):
    steps = ms.phases(real, kinds=["step"])
    assert steps["name"].tolist() == ["ProfilerStep#1", "ProfilerStep#2"]
    assert steps["peak_bytes"].tolist() == [1_614_856, 1_745_928]
    assert steps["end_bytes"].diff().tolist()[1] == 131_072
    for step in steps.itertuples():
        inside = real.totals["t_ns"].between(step.start_ns, step.end_ns)
        assert int(inside.sum()) == 903
    assert (real.marks["kind"] != "step").sum() + len(steps) == 12


@needs_sample
def test_times_are_those_of_the_other_export(real: ms.MemoryProfile):
    rows = json.loads(gzip.decompress(TIMELINE.read_bytes()))
    created = {t for t, action, *_ in rows if action == 2}
    destroyed = {t for t, action, *_ in rows if action == 4}
    assert real.blocks["alloc_ns"].isin(created).all()
    assert real.blocks["free_ns"].dropna().isin(destroyed).all()


@needs_sample
def test_both_ways_to_read_agree(real: ms.MemoryProfile, monkeypatch: pytest.MonkeyPatch):
    """Small pieces, and no pieces at all (everything by ijson), give the same tables."""
    monkeypatch.setattr(trace_pieces.PieceReader, "_cuts", lambda self: iter(()))
    slow = ms.load(TRACE)
    for name in ("blocks", "totals", "marks", "ops", "stacks"):
        pd.testing.assert_frame_equal(getattr(slow, name), getattr(real, name))


@needs_sample
def test_containment_finds_the_same_parents_in_the_recording():
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    calls = [e for e in events if e.get("cat") == "python_function"]
    rows = [
        (round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000), e["tid"], e["args"]["Python id"],
         e["args"]["Python parent id"] or -1)
        for e in calls
    ]  # fmt: skip
    report = ReadReport()
    by_id = python_parents(columns(rows), report)
    assert not report.notes
    assert int((by_id < 0).sum()) == 1
    without = [(a, b, c, -1, -1) for a, b, c, _, _ in rows]
    same = python_parents(columns(without), ReadReport()) == by_id
    assert same.mean() > 0.99
