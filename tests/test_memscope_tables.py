"""Blocks, counters, marks and accesses from the rows of a dump (spec/msmemscope 2.5, 6.1, 11)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dump_rows import T0, Row, cells, free, malloc, mark, write_csv
from hypothesis import given
from hypothesis import strategies as st

import memscope_nb as ms
from memscope_nb.io.memscope_blocks import NONE, pair_by_nesting
from memscope_nb.model import BlockFlag, MemoryProfile


@pytest.fixture
def read(tmp_path: Path):
    def load(*rows: Row) -> MemoryProfile:
        return ms.validate(ms.load(write_csv(tmp_path / "a.csv", rows)))

    return load


def lives(p: MemoryProfile) -> list[tuple[object, ...]]:
    """(allocation event, release event or None, flags) of each block, in order."""
    b = p.blocks.astype({"event_id": object, "free_event_id": object})
    return [
        (None if pd.isna(e) else e, None if pd.isna(f) else f, int(flags))
        for e, f, flags in zip(b["event_id"], b["free_event_id"], b["flags"], strict=True)
    ]


def time(event_id: int) -> int:
    return T0 + event_id * 1000


# -- pairing ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30))
def test_pairing_is_what_a_stack_does(steps: list[tuple[int, bool]]):
    stacks: dict[int, list[int]] = {}
    expected = set()
    for i, (key, is_start) in enumerate(steps):
        if is_start:
            stacks.setdefault(key, []).append(i)
        else:
            expected.add((stacks[key].pop() if stacks.get(key) else NONE, i))
    expected |= {(i, NONE) for stack in stacks.values() for i in stack}
    keys, starts = np.array([s[0] for s in steps], dtype=np.int64), np.array([s[1] for s in steps], dtype=bool)
    pairing = pair_by_nesting(keys, starts)
    assert set(zip(pairing.malloc.tolist(), pairing.free.tolist(), strict=True)) == expected


def test_allocation_ids_pair_across_reused_addresses(read):
    p = read(malloc(1, 16, 8, life=1), malloc(2, 16, 9, life=2), free(3, 16, 9, life=2))
    assert lives(p) == [(1, None, 0), (2, 3, 0)]


def test_without_ids_a_release_ends_the_latest_generation(read):
    p = read(malloc(1, 16, 8), free(2, 16, 8), malloc(3, 16, 9), malloc(4, 16, 10), free(5, 16, 10), free(6, 16, 9))
    assert lives(p) == [(1, 2, 0), (3, 6, 0), (4, 5, 0)]


def test_decimal_and_hexadecimal_addresses_are_the_same(read):
    p = read(malloc(1, 4096, 8), cells(2, "FREE", "HAL", ptr="4096", addr=4096, size=-8))
    assert lives(p) == [(1, 2, 0)]


def test_pools_devices_and_processes_do_not_mix(tmp_path: Path):
    rows = [
        malloc(1, 16, 8),
        malloc(2, 16, 9, pool="PTA"),
        malloc(3, 16, 10, device=1),
        malloc(4, 16, 11, pid=200),
        free(5, 16, 9, pool="PTA"),
        free(6, 16, 11, pid=200),
    ]
    p = ms.load(write_csv(tmp_path / "a.csv", rows))
    pids = p.sources.set_index("source")["pid"]
    keys = zip(p.blocks["source"].map(pids), p.blocks["device"], p.blocks["pool"], strict=True)
    got = dict(zip(keys, p.blocks["free_ns"].isna(), strict=True))
    assert got == {
        (100, "NPU:0", "HAL"): True,
        (100, "NPU:0", "PTA"): False,
        (100, "NPU:1", "HAL"): True,
        (200, "NPU:0", "HAL"): False,
    }


def test_a_release_without_a_device_takes_that_of_its_address(read):
    p = read(
        malloc(1, 16, 8, device=0),
        malloc(2, 16, 9, device="host"),
        free(3, 16, 9, device="N/A"),
        malloc(4, 32, 9, device=1),
        free(5, 32, 9, device="N/A"),
        free(6, 48, 9, device="N/A"),
    )
    assert lives(p) == [(1, None, 0), (2, 3, 0), (4, 5, 0)]
    assert p.blocks["device"].tolist() == ["NPU:0", "HOST", "NPU:1"]
    assert "whose device is not written" in " ".join(p.sources["warnings"][0])


def test_a_lone_release_is_memory_from_before(read):
    p = read(malloc(1, 16, 8), free(2, 32, 512, used=8))
    assert lives(p) == [(1, None, 0), (None, 2, BlockFlag.OLDER)]
    assert p.blocks["alloc_ns"].isna().tolist() == [False, True]
    assert ms.live_at(p, time(1))["size_bytes"].tolist() == [512, 8]


def test_blocks_without_a_size_are_counted(read):
    p = read(malloc(1, 16, 0), cells(2, "MALLOC", "HAL", ptr=32), malloc(3, 48, 8))
    assert lives(p) == [(3, None, 0)]
    assert p.sources["n_skipped"].tolist() == [2]


def test_names_owners_and_stacks_of_a_block(read):
    p = read(
        cells(1, "OP_LAUNCH", "ATEN_START", "outer"),
        cells(2, "OP_LAUNCH", "ATEN_START", "inner"),
        malloc(
            3, 16, 8, pool="PTA", stack="m.py(3): f\ntorch/x.py(1): g\n", c_stack="lib.so(+1)[0x1]\n", owner="PTA@ops"
        ),
        cells(4, "OP_LAUNCH", "ATEN_END", "inner"),
        malloc(5, 32, 8, pool="PTA", tid=7),
        malloc(6, 48, 8, pool="PTA"),
        cells(7, "OP_LAUNCH", "ATEN_END", "outer"),
        malloc(8, 64, 8, pool="PTA", stack="NA"),
    )
    assert p.blocks["name"].tolist() == ["inner", "", "outer", ""]
    assert p.blocks["owner"].astype(object).fillna("").tolist() == ["PTA@ops", "", "", ""]
    assert p.frames(p.blocks["stack_id"][0]) == ("m.py(3): f", "torch/x.py(1): g")
    assert p.frames(p.blocks["c_stack_id"][0]) == ("lib.so(+1)[0x1]",)
    assert p.blocks["stack_id"].tolist()[1:] == [-1, -1, -1]


# -- clean-up rows (spec 2.5) -----------------------------------------------------------------------------------

START, STOP = "START_TRACE", "STOP_TRACE"


def system(event_id: int, name: str) -> Row:
    return cells(event_id, "SYSTEM", name, device="N/A")


def test_a_free_at_exit_is_no_release(read):
    p = read(system(1, START), malloc(2, 16, 8, life=1), system(3, STOP), free(9, 16, 8, life=1, shadow="true"))
    assert lives(p) == [(2, None, BlockFlag.CLEANED_UP)]


def test_a_residual_block_ended_before_its_address_was_used_again(read):
    p = read(
        malloc(1, 16, 8, life=1),
        malloc(5, 16, 9, life=2),
        free(6, 16, 8, life=1, shadow="true"),
        free(7, 16, 9, life=2),
    )
    assert lives(p) == [(1, 5, BlockFlag.SYNTHETIC_FREE), (5, 7, 0)]
    assert p.blocks["free_ns"].tolist() == [time(5), time(7)]


def test_a_block_freed_while_paused(read):
    p = read(
        system(1, START),
        malloc(2, 16, 8, life=1),
        system(3, STOP),
        system(9, START),
        free(10, 16, 8, life=1, shadow="true", t=time(9)),
        system(12, STOP),
    )
    assert lives(p) == [(2, 9, BlockFlag.SYNTHETIC_FREE)]
    assert p.blocks["free_ns"].tolist() == [time(9)]


def test_a_promoted_block_keeps_its_id_and_the_time_of_start(read):
    p = read(system(10, START), malloc(3, 16, 8, life=1, shadow="true", t=time(10)), free(12, 16, 8, life=1))
    assert lives(p) == [(3, 12, BlockFlag.PROMOTED)]
    assert p.blocks["alloc_ns"].tolist() == [time(10)]


# -- counters ---------------------------------------------------------------------------------------------------


def test_counters_are_ledgers_of_their_own(read):
    p = read(
        malloc(1, 16, 100, used=100, process_used=1000, device_used=5000),
        malloc(2, 32, 8, pool="PTA", used=8, total=100, process_used=1000, device_used=5000),
        free(3, 32, 8, pool="PTA", used=0, total=100, process_used=900, device_used=5000),
        malloc(4, 64, 30, pool="HOST", device="cpu", pinned="true", used=30, process_used=7000),
        malloc(5, 96, 40, pool="HOST", device="cpu", total=40),
    )
    t = p.totals.astype({"reserved_bytes": object, "allocated_bytes": object})
    got = {
        (scope, component, device): [(None if pd.isna(a) else a, None if pd.isna(r) else r) for a, r in values]
        for (scope, component, device), values in t.groupby(["scope", "component", "device"], observed=True)[
            ["allocated_bytes", "reserved_bytes"]
        ]
        .apply(lambda part: part.values.tolist())
        .items()
    }
    assert got == {
        ("pool", "HAL", "NPU:0"): [(100, None)],
        ("pool", "PTA", "NPU:0"): [(8, 100), (0, 100)],
        ("pool", "HOST_PINNED", "CPU"): [(30, None)],
        ("pool", "HOST_TENSOR", "CPU"): [(40, None)],
        ("process", "APP", "NPU:0"): [(None, 1000), (None, 900)],
        ("process", "APP", "CPU"): [(None, 7000)],
        ("device", "device", "NPU:0"): [(None, 5000), (None, 5000)],
    }
    assert (p.totals["origin"] == "recorded").all()
    s = p.summary().set_index("pool")
    assert s.loc["PTA", ["peak_bytes", "reserved_peak_bytes", "resident_peak_bytes", "end_bytes"]].tolist() == [
        8,
        100,
        1000,
        0,
    ]


def test_workspace_blocks_are_a_pool_of_their_own(read):
    p = read(
        malloc(1, 16, 100, pool="PTA", life=1, used=100, total=200, owner="PTA_WORKSPACE"),
        malloc(2, 32, 8, pool="PTA", life=2, used=8, total=64),
        free(3, 16, 100, pool="PTA", life=1, used=0, total=200),
    )
    assert p.blocks["pool"].tolist() == ["PTA_WORKSPACE", "PTA"]
    by_pool = p.totals.groupby("component", observed=True)["allocated_bytes"].agg(list).to_dict()
    assert by_pool == {"PTA_WORKSPACE": [100, 0], "PTA": [8]}


def test_without_a_counter_a_curve_is_the_sum_of_the_blocks(read):
    p = read(malloc(1, 16, 100, used=0), malloc(2, 32, 8, used=0), free(3, 16, 100, used=0), free(4, 99, 5))
    assert set(p.totals["origin"]) == {"rows"}
    assert p.totals["allocated_bytes"].tolist() == [105, 113, 13, 8]
    assert p.summary()[["peak_bytes", "end_bytes", "n_unexplained"]].values.tolist() == [[113, 8, 0]]
    assert "not used" in " ".join(p.sources["warnings"][0])


# -- marks ------------------------------------------------------------------------------------------------------


def test_ranges_end_by_their_number_and_steps_count(read):
    p = read(
        mark(1, "step start", kind="Range_start"),
        mark(2, "inner", kind="Range_start"),
        mark(3, "Range end from id 2", kind="Range_end"),
        mark(4, "Range end from id 1", kind="Range_end"),
        mark(5, "step start", kind="Range_start"),
        malloc(6, 16, 8),
        mark(7, "Range end from id 99", kind="Range_end"),
    )
    m = p.marks.sort_values("start_event_id")
    assert m[["kind", "name", "start_event_id"]].values.tolist() == [
        ["step", "step 1", 1], ["range", "inner", 2], ["step", "step 2", 5],
    ]  # fmt: skip
    assert m["end_event_id"].tolist()[:2] == [4, 3]
    assert pd.isna(m["end_event_id"].iloc[2])
    assert m["attrs"].iloc[2]["open"]
    assert m["step"].dropna().tolist() == [1, 2]
    assert "start is not there" in " ".join(p.sources["warnings"][0])


def test_steps_of_python_begin_with_the_second(read):
    p = read(
        malloc(1, 16, 8),
        cells(2, "SYSTEM", "STEP", "1", device="N/A"),
        cells(4, "SYSTEM", "STEP", "2", device="N/A"),
        malloc(6, 32, 8),
    )
    steps = p.marks[p.marks["kind"] == "step"]
    assert steps[["step", "start_ns", "end_ns"]].values.tolist() == [[2, time(2), time(4)], [3, time(4), time(6)]]


def test_snapshots_and_ooms(read):
    def detail(event_id: int, kind: str, attrs: str) -> Row:
        row = cells(event_id, "OOM_DETAIL", kind)
        return (*row[:9], attrs, *row[10:])

    p = read(
        cells(1, "SNAPSHOT", "SNAPSHOT", "OOM_Snapshot", reserved=10, free_mem=3, device_rate="97.500000"),
        cells(2, "OOM_DETAIL", "OOM_TRIGGER", "OOM_Trigger", func="halMemAlloc", req_size=99, flag=1),
        detail(3, "OOM_RECENT_ALLOC", "{pool:PTA,ptr:0x10,size:8,timestamp:5}"),
        detail(4, "OOM_TOP_ALLOC", "{pool:HAL,ptr:32,size:64,timestamp:4}"),
        cells(5, "OOM_DETAIL", "OOM_TRIGGER", "OOM_Trigger", func="halMemCreate", req_size=98, flag=1),
        malloc(6, 16, 8),
    )
    m = p.marks
    assert m["kind"].tolist() == ["snapshot", "oom", "oom"]
    assert m["attrs"][0] == {"reserved": 10, "free": 3, "device_rate": 97.5}
    assert m["attrs"][1]["req_size"] == 99
    assert [(r["pool"], r["ptr"], r["size"]) for r in m["attrs"][1]["recent"] + m["attrs"][1]["top"]] == [
        ("PTA", 16, 8), ("HAL", 32, 64),
    ]  # fmt: skip
    assert m["attrs"][2]["recent"] == []


# -- operators and accesses -------------------------------------------------------------------------------------


def test_operators_nest_by_thread(read):
    p = read(
        cells(1, "OP_LAUNCH", "ATEN_START", "a"),
        cells(2, "OP_LAUNCH", "ATEN_START", "b", tid=7),
        cells(3, "OP_LAUNCH", "ATEN_START", "a"),
        cells(4, "OP_LAUNCH", "ATEN_END", "a"),
        cells(5, "OP_LAUNCH", "ATEN_END", "b", tid=7),
        cells(6, "OP_LAUNCH", "ATEN_END", "a"),
        cells(7, "KERNEL_LAUNCH", "KERNEL_LAUNCH", "k"),
        cells(8, "OP_LAUNCH", "ATEN_END", "never started"),
        malloc(9, 16, 8),
    )
    got = p.ops[["name", "kind", "tid", "start_event_id", "end_event_id"]].values.tolist()
    assert got == [
        ["a", "aten", 100, 1, 6], ["b", "aten", 7, 2, 5], ["a", "aten", 100, 3, 4], ["k", "launch", 100, 7, 7],
    ]  # fmt: skip
    assert "start or end is not there" in " ".join(p.sources["warnings"][0])


def test_accesses_know_their_block_and_operator(read):
    def access(event_id: int, ptr: int, **more: object) -> Row:
        return cells(event_id, "ACCESS", "READ", "op", ptr=ptr, size=4, type="PTA", **more)  # type: ignore[arg-type]

    p = read(
        malloc(1, 16, 64, pool="PTA", life=5),
        cells(2, "OP_LAUNCH", "ATEN_START", "op"),
        access(3, 20, allocation_id=5),
        cells(4, "OP_LAUNCH", "ATEN_END", "op"),
        access(5, 16, allocation_id=6),
        malloc(6, 128, 64, pool="PTA"),
        access(7, 128),
        free(8, 128, 64, pool="PTA"),
        access(9, 128),
    )
    a = p.accesses
    assert a["block_id"].tolist() == [0, -1, 1, -1]
    assert a["op_event_id"].astype(object).where(a["op_event_id"].notna(), None).tolist() == [2, None, None, None]
    both = MemoryProfile.concat([p, p])
    assert both.accesses["block_id"].tolist() == [0, -1, 1, -1, 2, -1, 3, -1]
    assert both.events["source"].value_counts().to_dict() == {0: 9, 1: 9}


def test_selections_of_a_dump(read):
    p = read(
        malloc(1, 16, 64, pool="PTA", used=64, total=64),
        malloc(2, 16, 8),
        free(3, 16, 64, pool="PTA", used=0, total=64),
    )
    assert len(ms.validate(p.select(pool="PTA")).blocks) == 1
    assert len(p.select(time_range=(time(1), time(2))).blocks) == 1
    assert len(ms.memory_summary(p)) == 2


def test_a_python_trace_without_operators(tmp_path: Path):
    rows = [malloc(1, 16, 8, pool="PTA", life=1), cells(2, "ACCESS", "READ", "op", ptr="16", allocation_id=1, size=4)]
    write_csv(tmp_path / "a.csv", rows)
    trace = f"FuncInfo,StartTime(ns),EndTime(ns),Thread Id,Process Id\nf(1): g,{time(0)},{time(5)},100,100\n"
    (tmp_path / "python_trace_1.csv").write_text(trace)
    p = ms.validate(ms.load(tmp_path))
    assert p.sources["status"].tolist() == ["ok"]
    assert p.accesses["block_id"].tolist() == [0]
    assert p.ops["name"].tolist() == ["f(1): g"]
    assert p.marks.columns.tolist()[1:] == [
        "kind", "name", "step", "tid", "device", "start_ns", "end_ns", "start_event_id", "end_event_id", "stack_id",
        "attrs",
    ]  # fmt: skip


def test_lives_of_no_length_do_not_make_a_sum_negative(read):
    """A release timed before its allocation is taken at it; at one instant releases count first."""
    p = read(malloc(1, 16, 8, life=1), free(2, 16, 8, life=1, t=time(0)), malloc(3, 16, 8, life=2))
    assert p.totals["allocated_bytes"].tolist() == [0, 8]
    assert "before their allocation" in " ".join(p.sources["warnings"][0])
