"""Memory snapshots: lives, levels, state, every action, sets of files; against literal files and a tiny allocator."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.io.pytorch_lives import event_times
from memscope_nb.io.pytorch_snapshot import ORDER_SPACE_NS
from memscope_nb.model import BlockFlag

T0 = 1_700_000_000_000_000  # µs
MIB = 1 << 20


def frame(name: str, line: int = 1, file: str = "/app/train.py") -> dict:
    return {"filename": file, "name": name, "line": line}


STACK = [frame("inner", 3), frame("outer", 9)]


def entry(action: str, addr: int | None = 4096, size: int = 0, t: int | None = 0, **more: Any) -> dict:
    row = {"action": action, "size": size, "stream": 0, **more}
    if addr is not None:
        row["addr"] = addr
    if t is not None:
        row["time_us"] = T0 + t
    return row


def free(addr: int, size: int, t: int | None, late: int | None = None, **more: Any) -> list[dict]:
    late = t if late is None else late
    return [entry("free_requested", addr, size, t, **more), entry("free_completed", addr, size, late, **more)]


def block(addr: int, requested: int, *, state: str = "active_allocated", size: int | None = None, **more: Any) -> dict:
    rounded = -(-requested // 512) * 512 if size is None else size
    return {
        "address": addr, "size": rounded, "requested_size": requested, "state": state, "frames": more.pop("frames", []),
        **more,
    }  # fmt: skip


def segment(addr: int, blocks: Sequence[dict], total: int = 2 * MIB, **more: Any) -> dict:
    """A segment whose gaps are filled with inactive blocks."""
    at, filled = addr, []
    for one in blocks:
        if one["address"] > at:
            filled.append(block(at, 0, state="inactive", size=one["address"] - at))
        filled.append(one)
        at = one["address"] + one["size"]
    if at < addr + total:
        filled.append(block(at, 0, state="inactive", size=addr + total - at))
    active = [b for b in filled if b["state"].startswith("active")]
    sums = {
        "allocated_size": sum(b["size"] for b in active if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in active),
        "requested_size": sum(b["requested_size"] for b in active),
    }
    return {
        "device": 0, "address": addr, "total_size": total, **sums, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": filled, **more,
    }  # fmt: skip


def snapshot(traces: Sequence[Sequence[dict]], segments: Sequence[dict], **more: Any) -> dict:
    return {"segments": list(segments), "device_traces": [list(trace) for trace in traces], **more}


def write(path: Path, what: object, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(what, protocol))
    return path


def load(tmp_path: Path, what: object, name: str = "s.pickle", protocol: int = 4) -> ms.MemoryProfile:
    profile = ms.load(write(tmp_path / name, what, protocol))
    ms.validate(profile)
    return profile


def levels(profile: ms.MemoryProfile, **key: Any) -> list[tuple[int, int, int]]:
    """(allocated, active, reserved) at every distinct instant of the curve."""
    curve = ms.curve(profile, **key).groupby("t_ns").last()
    columns = ("allocated_bytes", "active_bytes", "reserved_bytes")
    return [tuple(int(row[c]) for c in columns) for _, row in curve.iterrows()]


def facts(profile: ms.MemoryProfile, source: int = 0) -> dict:
    return profile.sources["facts"][source]


def warnings(profile: ms.MemoryProfile, source: int = 0) -> str:
    return "\n".join(profile.sources["warnings"][source])


SIMPLE = snapshot(
    [
        [
            entry("segment_alloc", 4096, 2 * MIB, 0),
            entry("alloc", 4096, 1000, 1, frames=STACK),
            entry("alloc", 8192, 500, 1, frames=STACK[1:]),
            *free(8192, 500, 20, 25),
            entry("alloc", 8192, 700, 30, frames=STACK),
        ]
    ],
    [segment(4096, [block(4096, 1000, frames=STACK), block(8192, 700, frames=STACK)])],
)
SIMPLE_LEVELS = [
    (0, 0, 0), (0, 0, 2 * MIB), (1000, 1000, 2 * MIB), (1500, 1500, 2 * MIB), (1000, 1500, 2 * MIB),
    (1000, 1000, 2 * MIB), (1700, 1700, 2 * MIB),
]  # fmt: skip


# -- lives and levels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_whole_history(tmp_path: Path, protocol: int):
    profile = load(tmp_path, SIMPLE, protocol=protocol)
    blocks = profile.blocks
    assert blocks["size_bytes"].tolist() == [1000, 500, 700]
    assert (blocks["alloc_ns"] - T0 * 1000).tolist() == [1000, 1001, 30_000]  # one µs, kept apart
    assert (blocks["free_ns"] - T0 * 1000).tolist() == [pd.NA, 20_000, pd.NA]
    assert (blocks["active_free_ns"] - T0 * 1000).tolist() == [pd.NA, 25_000, pd.NA]
    assert blocks["rounded_bytes"].tolist() == [1024, pd.NA, 1024]
    assert blocks["event_id"].tolist() == [1, 2, 5]
    assert blocks["flags"].tolist() == [0, 0, 0]
    assert profile.frames(blocks["stack_id"][0]) == ("/app/train.py(3): inner", "/app/train.py(9): outer")
    assert profile.frames(blocks["stack_id"][1]) == ("/app/train.py(9): outer",)
    assert levels(profile) == SIMPLE_LEVELS
    assert profile.totals["origin"].tolist() == ["rows"] * 7 + ["recorded"]
    assert facts(profile)["end_difference_allocated_bytes"] == 0
    assert "unexplained" not in warnings(profile)
    assert profile.sources[["kind", "status", "n_blocks", "n_open"]].iloc[0].tolist() == [
        "pytorch_snapshot",
        "ok",
        3,
        2,
    ]
    summary = profile.summary().iloc[0]
    assert (summary["peak_bytes"], summary["end_bytes"], summary["n_unexplained"]) == (1700, 1700, 0)


def test_the_history_lost_its_head(tmp_path: Path):
    trace = [
        entry("free_completed", 100 * MIB, 300, 0),  # requested before the first entry
        *free(200 * MIB, 50, 1, frames=STACK),
        entry("alloc", 4096, 1000, 10),
        entry("snapshot", 0, 1400, 20),
    ]
    state = [segment(4096, [block(4096, 1000), block(8192, 400, frames=[frame("old")])])]
    profile = load(tmp_path, snapshot([trace], state))
    older = profile.blocks[profile.blocks["alloc_ns"].isna()]
    assert older["size_bytes"].tolist() == [300, 50, 400]
    assert older["flags"].tolist() == [1 | 4 | 16, 1 | 16, 1]
    assert older["stack_kind"].tolist() == ["none", "none", "own"]  # a release's stack proves nothing
    assert profile.frames(older["stack_id"].iloc[1]) == tuple(f"/app/train.py({f['line']}): {f['name']}" for f in STACK)
    allocated = [(450, 750), (450, 450), (400, 450), (400, 400), (1400, 1400), (1400, 1400)]
    assert levels(profile) == [(a, b, 2 * MIB) for a, b in allocated]
    assert facts(profile)["n_older"] == 3
    assert profile.sources["n_open"][0] == 2
    assert profile.summary()["n_unexplained"][0] == 0


def test_a_lost_release_ends_where_the_address_returns(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, 0), entry("alloc", 4096, 200, 5)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 200)])]))
    first = profile.blocks.iloc[0]
    assert (first["free_ns"], first["flags"]) == ((T0 + 5) * 1000, BlockFlag.SYNTHETIC_FREE)
    assert [a for a, _, _ in levels(profile)] == [0, 100, 200]


def test_what_is_gone_at_the_end_is_no_leak(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, 0), entry("alloc", 8192, 200, 5), entry("alloc", 4096 + MIB, 7, 9)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(8192, 200)])]))
    assert profile.sources["n_open"][0] == 1
    gone = profile.blocks[profile.blocks["flags"] == int(BlockFlag.SYNTHETIC_FREE)]
    assert gone["size_bytes"].tolist() == [100, 7]
    assert set(gone["free_ns"]) == {profile.sources["end_ns"][0]}
    assert facts(profile)["end_difference_allocated_bytes"] == 0
    assert "no leaks" in warnings(profile)


def test_requests_that_were_skipped(tmp_path: Path):
    trace = [
        entry("free_completed", 100 * MIB, 300, 0),
        entry("alloc", 4096, 100, 1),
        entry("free_completed", 4096, 100, 5),
    ]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [])]))
    assert [level[:2] for level in levels(profile)] == [(300, 300), (0, 0), (100, 100), (0, 0)]


def test_old_writers_have_one_free_action(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, None), entry("free", 4096, 100, None)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [])]))
    assert [level[:2] for level in levels(profile)] == [(0, 0), (100, 100), (0, 0)]
    assert facts(profile)["backend"] == "CUDA"


@pytest.mark.parametrize("state", ["active_pending_free", "active_awaiting_free"])
def test_blocks_that_wait_for_another_stream(tmp_path: Path, state: str):
    trace = [entry("alloc", 4096, 100, 0), entry("free_requested", 4096, 100, 5), entry("alloc", 8192, 10, 7)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 100, state=state), block(8192, 10)])]))
    waiting = profile.blocks.iloc[0]
    assert waiting["flags"] == BlockFlag.PENDING
    assert waiting["active_free_ns"] == profile.sources["end_ns"][0] + 1
    assert [level[:2] for level in levels(profile)] == [(0, 0), (100, 100), (0, 100), (10, 110)]
    assert profile.segments["pending_bytes"].tolist() == [512]
    assert "unexplained" not in warnings(profile)


def test_a_contradiction_is_shown_and_not_filled(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, 0), entry("alloc", 8192, 50, 3)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 130), block(8192, 50)])]))
    assert facts(profile)["end_difference_allocated_bytes"] == 30
    assert "unexplained: at the end the segments hold +30 B (+30 B) of allocated memory" in warnings(profile)
    assert profile.blocks["size_bytes"].tolist() == [100, 50]
    assert profile.summary()["n_unexplained"][0] == 1


def test_addresses_are_one_whether_signed_or_not(tmp_path: Path):
    high = (1 << 64) - 8192
    trace = [entry("alloc", high - (1 << 64), 100, 0), *free(high, 100, 5), entry("alloc", high, 60, 6)]
    profile = load(tmp_path, snapshot([trace], [segment(high - (1 << 64), [block(high - (1 << 64), 60)], 4096)]))
    assert profile.blocks["addr"].tolist() == [high, high]
    assert [level[0] for level in levels(profile)] == [0, 100, 0, 0, 60]
    assert profile.segments["addr"].tolist() == [high]


def test_expandable_segments(tmp_path: Path):
    trace = [
        entry("segment_map", 0x10000000, 20 * MIB, 0),
        entry("segment_map", 0x10000000 + 20 * MIB, 20 * MIB, 1),
        entry("alloc", 0x10000000, 100, 2),
        entry("segment_unmap", 0x10000000 + 10 * MIB, 20 * MIB, 3),
        entry("segment_alloc", 0x50000000, 2 * MIB, 4),
        entry("segment_free", 0x50000000, 2 * MIB, 5),
    ]
    state = [
        segment(0x10000000, [block(0x10000000, 100)], 10 * MIB, is_expandable=True),
        segment(0x10000000 + 30 * MIB, [], 10 * MIB, is_expandable=True),
    ]
    profile = load(tmp_path, snapshot([trace], state))
    assert [level[2] // MIB for level in levels(profile)] == [0, 20, 40, 40, 20, 22, 20]
    assert profile.segments["is_expandable"].all()
    marks = profile.marks[profile.marks["kind"] == "segment"]
    assert marks["name"].tolist() == ["segment_map"] * 2 + ["segment_unmap", "segment_alloc", "segment_free"]
    assert marks["attrs"].iloc[2]["addr"] == 0x10000000 + 10 * MIB


def test_reserved_memory_under_truncation(tmp_path: Path):
    trace = [entry("segment_free", 99 * MIB, 4 * MIB, 0), entry("segment_alloc", 4096, 2 * MIB, 1)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, []), segment(50 * MIB, [])]))
    assert [level[2] // MIB for level in levels(profile)] == [6, 2, 4]


# -- everything else in a file ----------------------------------------------------------------------------------


def test_several_devices_and_host(tmp_path: Path):
    one = [entry("alloc", 4096, 100, 0)]
    two = [entry("alloc", 4096, 7, 0), *free(4096, 7, 1)]
    state = [segment(4096, [block(4096, 100)]), segment(4096, [], device=2), segment(8 * MIB, [], device=5)]
    host = {"host_segments": [segment(64 * MIB, [block(64 * MIB, 9)])], "host_traces": [entry("alloc", 64 * MIB, 9, 2)]}
    profile = load(tmp_path, snapshot([one, [], two], state, **host))
    keys = profile.summary()[["device", "pool", "n_blocks", "peak_bytes"]].astype(object).to_numpy().tolist()
    assert sorted(keys) == [
        ["CPU", "HOST", 1, 9], ["CUDA:0", "CUDA", 1, 100], ["CUDA:2", "CUDA", 1, 7], ["CUDA:5", "CUDA", 0, 0],
    ]  # fmt: skip
    assert len(profile.sources) == 4
    assert profile.segments["device"].astype(str).tolist().count("CUDA:0") == 1


def test_private_pools(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, 0, pool_id=(0, 1)), entry("alloc", 8 * MIB, 50, 1)]
    state = [segment(4096, [block(4096, 100)], segment_pool_id=(0, 1)), segment(8 * MIB, [block(8 * MIB, 50)])]
    profile = load(tmp_path, snapshot([trace], state))
    assert profile.blocks["pool_id"].tolist() == ["0,1", "0,0"]  # written, and looked up
    assert profile.segments["pool_id"].tolist() == ["0,1", "0,0"]
    assert facts(profile)["private_pool_bytes"] == 2 * MIB
    assert "private pools" in warnings(profile)
    assert [level[0] for level in levels(profile)] == [0, 100, 150]


def test_annotations_and_steps(tmp_path: Path):
    edges = [("ProfilerStep#7", "START", 0), ("## forward ##", "START", 1), ("## forward ##", "START", 2),
             ("## forward ##", "END", 3), ("## forward ##", "END", 6), ("ProfilerStep#7", "END", 30),
             ("late", "START", 28), ("early", "END", 2)]  # fmt: skip
    annotations = [{"name": n, "stage": s, "device": 0, "time_us": T0 + t} for n, s, t in edges]
    annotations.append({"name": "other", "stage": "START", "device": 1, "time_us": T0})
    profile = load(tmp_path, SIMPLE | {"external_annotations": annotations})
    marks = profile.marks[profile.marks["kind"].isin(["step", "range"])]
    found = [
        (m.kind, m.name, int(m.start_ns - T0 * 1000) // 1000, int(m.end_ns - T0 * 1000) // 1000)
        for m in marks.itertuples()
    ]
    assert found == [
        ("step", "ProfilerStep#7", 0, 30), ("range", "## forward ##", 1, 6), ("range", "## forward ##", 2, 3),
        ("range", "late", 28, 30),
    ]  # fmt: skip
    assert marks["step"].dropna().tolist() == [7]
    assert marks["attrs"].iloc[3] == {"open": True}
    assert "whose start is not there" in warnings(profile)
    phases = ms.phases(profile, kinds=["step"])
    assert (phases["peak_bytes"][0], phases["end_bytes"][0]) == (1700, 1700)


def test_failed_allocations_labels_and_unknown_actions(tmp_path: Path):
    trace = [
        entry("alloc", 4096, 100, 0, user_metadata="weights", compile_context="N/A"),
        entry("alloc", 8192, 50, 1, forward_frames=["a.py(1): f\n", "b.py(2): g"]),
        entry("annotate", 8192, 0, 2, user_metadata="cache"),
        entry("oom", None, 10 * MIB, 3, device_free=5 * MIB, frames=STACK),
        entry("made_up", 1, 1, 4),
        entry("alloc", "odd", 1, 5),
        entry("snapshot", 0, 150, 6),
    ]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 100), block(8192, 50)])]))
    assert profile.blocks["owner"].tolist() == ["weights", "cache"]
    assert profile.blocks["stack_kind"].tolist() == ["none", "forward"]
    assert profile.frames(profile.blocks["stack_id"][1]) == ("a.py(1): f", "b.py(2): g")
    oom = profile.marks[profile.marks["kind"] == "oom"].iloc[0]
    assert oom["attrs"] == {"size_bytes": 10 * MIB, "event_id": 3, "device_free_bytes": 5 * MIB}
    assert profile.frames(oom["stack_id"])[0] == "/app/train.py(3): inner"
    assert (profile.marks["kind"] == "snapshot").sum() == 1
    assert profile.sources["n_skipped"][0] == 1
    assert "made_up" in warnings(profile)


def test_frames_of_the_recorder_are_left_out(tmp_path: Path):
    stack = [
        frame("torch::unwind::unwind()", 0, "??"), frame("_PyEval_EvalFrameDefault", 10, "ceval.c"),
        frame("at::native::empty_cuda", 0, "??"), frame("PyEval_me", 4), frame("main", 5),
    ]  # fmt: skip
    profile = load(tmp_path, snapshot([[entry("alloc", 4096, 1, 0, frames=stack)]], [segment(4096, [block(4096, 1)])]))
    assert profile.frames(0) == ("at::native::empty_cuda", "/app/train.py(4): PyEval_me", "/app/train.py(5): main")


def test_torch_npu_without_times_and_with_workspaces(tmp_path: Path):
    ws = 64 * MIB
    trace = [
        *(entry(a, ws, 3 * MIB, None) for a in ("workspace_snapshot", "segment_alloc", "alloc")),
        entry("alloc", 4096, 100, None, pool_id=(0, 0), frames=STACK),
        *free(4096, 100, None, pool_id=(0, 0)),
    ]
    state = [segment(4096, []), segment(ws, [block(ws, 3 * MIB)], 3 * MIB)]
    profile = load(tmp_path, snapshot([trace], state))
    assert facts(profile)["time_axis"] == "event order"
    assert "event order" in warnings(profile)
    start = ORDER_SPACE_NS
    assert profile.sources[["start_ns", "end_ns"]].iloc[0].tolist() == [start - 1, start + 2000]
    pools = profile.blocks[["device", "pool", "size_bytes"]].astype(object).to_numpy().tolist()
    assert sorted(pools) == [["NPU:0", "PTA", 100], ["NPU:0", "WORKSPACE", 3 * MIB]]
    assert levels(profile, pool="PTA") == [(0, 0, 2 * MIB), (100, 100, 2 * MIB), (0, 100, 2 * MIB), (0, 0, 2 * MIB)]
    assert [a for a, _, _ in levels(profile, pool="WORKSPACE")][-1] == 3 * MIB
    assert profile.segments.set_index("addr")["pool"].to_dict() == {4096: "PTA", ws: "WORKSPACE"}


def test_annotations_cannot_be_placed_without_times(tmp_path: Path):
    edges = [{"name": "x", "stage": "START", "device": 0, "time_us": T0}]
    trace = [entry("alloc", 4096, 100, None)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 100)])], external_annotations=edges))
    assert not len(profile.marks)
    assert "annotations left out" in warnings(profile)


def test_state_without_history(tmp_path: Path):
    profile = load(tmp_path, snapshot([[]], [segment(4096, [block(4096, 100, frames=STACK)])]))
    assert levels(profile) == [(100, 100, 2 * MIB)]
    assert "no history" in warnings(profile)
    assert profile.frames(profile.blocks["stack_id"][0])[0] == "/app/train.py(3): inner"


def test_the_old_list_of_segments(tmp_path: Path):
    old = segment(4096, [block(4096, 300), block(8192, 500)])
    del old["requested_size"], old["segment_pool_id"], old["is_expandable"], old["frames"]
    for one in old["blocks"]:
        del one["address"], one["requested_size"], one["frames"]
    old["blocks"][0]["history"] = [{"addr": 4096, "real_size": 300, "frames": STACK}]
    profile = load(tmp_path, [old], name="old.pkl")
    blocks = profile.blocks.sort_values("addr")
    assert blocks["addr"].tolist() == [4096, 8192]
    assert blocks["size_bytes"].tolist() == [300, 512]  # the second: rounded is all there is
    assert profile.frames(blocks["stack_id"].iloc[0])[0] == "/app/train.py(3): inner"


def test_history_without_segments(tmp_path: Path):
    profile = load(tmp_path, snapshot([[entry("alloc", 4096, 100, 0), entry("alloc", 8192, 5, 1)]], []))
    assert profile.sources["status"][0] == "partial"
    assert profile.sources["n_open"][0] == 2
    curve = ms.curve(profile)
    assert curve["t_ns"].tolist() == [T0 * 1000 - 1, T0 * 1000, T0 * 1000 + 1000]
    assert curve["allocated_bytes"].tolist() == [0, 100, 105]
    assert ms.curve(profile)["reserved_bytes"].isna().all()


def test_overflow_and_settings_are_told(tmp_path: Path):
    settings_ = {"trace_alloc_overflowed": True, "trace_alloc_max_entries": 5, "roundup_power2_divisions": {"1": 0}}
    profile = load(tmp_path, SIMPLE | {"allocator_settings": settings_})
    assert "ring buffer overflowed" in warnings(profile)
    assert facts(profile)["allocator_settings"]["trace_alloc_max_entries"] == 5


def test_sums_that_do_not_agree_are_counted(tmp_path: Path):
    wrong = segment(4096, [block(4096, 100)]) | {"allocated_size": 1}
    wrong["blocks"].pop()
    profile = load(tmp_path, snapshot([[]], [wrong, {"device": 0}]))
    assert "do not add up" in warnings(profile)
    assert "allocated_size is not the sum" in warnings(profile)
    assert profile.sources["n_skipped"][0] == 1


def test_json_and_gzip(tmp_path: Path):
    as_json = json.loads(json.dumps(SIMPLE))
    (tmp_path / "a.json").write_text(json.dumps(as_json))
    (tmp_path / "b.pickle.gz").write_bytes(gzip.compress(pickle.dumps(SIMPLE, 2)))
    for name in ("a.json", "b.pickle.gz"):
        assert levels(ms.load(tmp_path / name)) == SIMPLE_LEVELS


def test_converted_profiler_runs_bring_categories(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, 0, category="parameter", frames=[frame("f", 0, "none")])]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 100)])]))
    assert profile.blocks["owner"].tolist() == ["parameter"]
    assert profile.frames(0) == ("f",)


# -- clocks -----------------------------------------------------------------------------------------------------


def test_clocks_that_stop_or_step_back():
    times, axis, n_back = event_times(np.array([10, 10, 0, 12, 9, 13]), start_ns=5)
    assert (axis, n_back) == ("time", 1)
    assert times.tolist() == [10_000, 10_001, 10_002, 12_000, 12_001, 13_000]
    assert event_times(np.array([0, 0, 0]), start_ns=5)[:2] == (pytest.approx([5, 1005, 2005]), "event order")


# -- sets of files, trees ---------------------------------------------------------------------------------------


def grown(step: int, t: int | None) -> dict:
    trace = [entry("alloc", 4096, 100, t), *free(4096, 100, t)]
    return snapshot([trace], [segment(64 * MIB, [block(64 * MIB, 1000 * step)])])


@pytest.mark.parametrize("timed", [True, False])
def test_dumps_of_steps_and_ranks(tmp_path: Path, timed: bool):
    for step in (2, 10, 1):
        for rank in (0, 1):
            path = tmp_path / "run" / "actor" / f"step{step}" / f"torch_memory_rank{rank}_pid{70 + rank}.pickle"
            write(path, grown(step, 1_000_000 * step if timed else None))
    profile = ms.load(tmp_path / "run")
    ms.validate(profile)
    table = profile.sources[["role", "rank_id", "pid", "collection"]].to_numpy().tolist()
    assert table == [["actor", rank, 70 + rank, k] for rank in (0, 1) for k in range(3)]
    assert [f["step"] for f in profile.sources["facts"]] == [1, 2, 10] * 2
    assert profile.summary()["end_bytes"].tolist() == [1000, 2000, 10_000] * 2
    assert len(set(profile.summary()["peak_ns"])) == 3 if timed else 6
    assert ms.load(tmp_path / "run", ranks=1).summary()["rank_id"].unique().tolist() == [1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("oom_snapshot_123_20260101120000.pickle", (None, 123, None)),
        ("iteration_30/rank5_memory_snapshot.pickle", (5, None, 30)),
        ("global_step_4/rank-2.pickle", (2, None, 4)),
        ("memory_snapshot.pickle", (None, None, None)),
        ("timesteps3/frank7.pickle", (None, None, None)),
    ],
)
def test_names(tmp_path: Path, name: str, expected: tuple):
    write(tmp_path / "critic" / name, SIMPLE)
    source = ms.load(tmp_path).sources.iloc[0]
    told = (source["rank_id"], source["pid"], source["facts"].get("step"))
    assert tuple(None if pd.isna(v) else v for v in (*told[:2], told[2] if told[2] is not None else pd.NA)) == expected


def test_own_patterns_for_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from memscope_nb.io import pytorch_find

    write(tmp_path / "w3-of-8.pickle", SIMPLE)
    monkeypatch.setattr(pytorch_find, "NAMES", [r"(?P<role>w)(?P<rank>\d+)-of", *pytorch_find.NAMES])
    assert ms.load(tmp_path).sources[["role", "rank_id"]].iloc[0].tolist() == ["w", 3]


def test_a_tree_of_many_formats(tmp_path: Path):
    from tiny import record, row, write_collection

    folder = write_collection(
        tmp_path / "t", operators=[row("op", 1, 1, 2, 2, 1)], records=[record("PTA", 1, 1), record("PTA", 2, 0)]
    )
    write(folder / "inside.pickle", SIMPLE)  # belongs to the collection
    write(tmp_path / "t" / "dumps" / "rank1.pickle", SIMPLE)
    write(tmp_path / "t" / "data.pickle", {"something": [1, 2]})
    (tmp_path / "t" / "settings.json").write_text('{"a": 1}')
    (tmp_path / "t" / "cut.pickle").write_bytes(pickle.dumps(SIMPLE)[:-40])
    profile = ms.load(tmp_path / "t")
    ms.validate(profile)
    assert sorted(profile.sources["kind"]) == ["ascend_text", "pytorch_snapshot", "pytorch_snapshot"]
    failed = profile.sources[profile.sources["status"] == "failed"]
    assert failed["path"].str.endswith("cut.pickle").all()
    assert "ends in the middle" in failed["warnings"].iloc[0][0]
    assert len(ms.scan(tmp_path / "t").frame) == 3


def test_inputs_stay_and_pages_can_be_made(tmp_path: Path):
    path = write(tmp_path / "in" / "rank0.pickle", SIMPLE)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    profile = ms.load(path)
    ms.export_html(profile, tmp_path / "out")
    assert list((tmp_path / "out").rglob("*.html"))
    assert len(ms.memory_summary(profile)) == 3
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["rank0.pickle"]
    one = profile.select(rank=0)
    assert len(one.segments) == 1
    joined = ms.MemoryProfile.concat([profile, profile])
    assert joined.segments["source"].tolist() == [0, 1]


def test_nothing_in_it(tmp_path: Path):
    with pytest.raises(InputError, match="neither history nor segments"):
        ms.load(write(tmp_path / "a.pickle", snapshot([[]], [])))
    with pytest.raises(InputError, match="not a memory snapshot"):
        ms.load(write(tmp_path / "b.pickle", {"x": 1}))


# -- a tiny allocator -------------------------------------------------------------------------------------------


class Allocator:
    """One block a segment of 2 MiB, free segments are reused; keeps entries and the true levels after each."""

    def __init__(self) -> None:
        self.entries: list[dict] = []
        self.levels: list[tuple[int, int, int]] = []
        self.live: dict[int, tuple[int, str]] = {}
        self.cached: list[int] = []
        self.next = MIB
        self.t = 0

    def note(self, action: str, addr: int | None, size: int) -> None:
        self.entries.append(entry(action, addr, size, self.t))
        allocated = sum(size for size, state in self.live.values() if state == "active_allocated")
        active = sum(size for size, _ in self.live.values())
        self.levels.append((allocated, active, 2 * MIB * (len(self.live) + len(self.cached))))

    def step(self, what: int, choice: int, size: int) -> None:
        self.t += choice % 3
        held = [a for a, (_, s) in self.live.items() if s == "active_allocated"]
        waiting = [a for a, (_, s) in self.live.items() if s != "active_allocated"]
        if what <= 2 or not self.live:
            if not self.cached:
                self.cached.append(self.next)
                self.next += 2 * MIB
                self.note("segment_alloc", self.cached[-1], 2 * MIB)
            addr = self.cached.pop(choice % len(self.cached))
            self.live[addr] = (size, "active_allocated")
            self.note("alloc", addr, size)
        elif what <= 4 and held:
            addr = held[choice % len(held)]
            size = self.live[addr][0]
            self.live[addr] = (size, "active_pending_free")
            self.note("free_requested", addr, size)
            if what == 3:
                self.complete(addr)
        elif what == 5 and waiting:
            self.complete(waiting[choice % len(waiting)])
        elif what == 6 and self.cached:
            self.note("segment_free", addr := self.cached.pop(choice % len(self.cached)), 2 * MIB)
            assert addr
        else:
            self.note("oom", None, size)

    def complete(self, addr: int) -> None:
        size, _ = self.live.pop(addr)
        self.cached.append(addr)
        self.note("free_completed", addr, size)

    def segments(self) -> list[dict]:
        used = [segment(a, [block(a, size, state=state)]) for a, (size, state) in self.live.items()]
        return used + [segment(a, []) for a in self.cached]


@settings(max_examples=60)
@given(
    steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 50), st.integers(1, 5000)), min_size=1, max_size=40),
    lost=st.integers(0, 30),
    timed=st.booleans(),
    protocol=st.integers(2, 5),
)
def test_levels_equal_those_of_an_allocator(tmp_path_factory, steps, lost, timed, protocol):
    allocator = Allocator()
    for step in steps:
        allocator.step(*step)
    lost = min(lost, len(allocator.entries) - 1)
    kept = allocator.entries[lost:]
    if not timed:
        kept = [{k: v for k, v in one.items() if k != "time_us"} for one in kept]
    path = write(tmp_path_factory.mktemp("h") / "s.pickle", snapshot([kept], allocator.segments()), protocol)
    profile = ms.load(path)
    ms.validate(profile)
    times, _, _ = event_times(np.array([one.get("time_us", 0) for one in kept]), start_ns=ORDER_SPACE_NS)
    assert set(times) | {times[0] - 1} >= set(profile.totals["t_ns"])
    curve = ms.curve(profile)
    at = np.searchsorted(curve["t_ns"].to_numpy(), times, side="right") - 1
    columns = ["allocated_bytes", "active_bytes", "reserved_bytes"]
    assert list(map(tuple, curve[columns].iloc[at].to_numpy().tolist())) == allocator.levels[lost:]
    before = allocator.levels[lost - 1] if lost else (0, 0, 0)
    assert tuple(curve[columns].iloc[0].tolist()) == before
    assert (curve["older_bytes"] == 0).all()
    assert profile.summary()["n_unexplained"].tolist() == [0]
    assert "unexplained" not in warnings(profile)
