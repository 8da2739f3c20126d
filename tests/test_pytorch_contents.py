"""Memory snapshots: every action, devices, pools, annotations, old and other writers."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from test_pytorch_snapshot import (
    MIB,
    SIMPLE,
    SIMPLE_LEVELS,
    STACK,
    T0,
    block,
    entry,
    facts,
    frame,
    free,
    levels,
    load,
    segment,
    snapshot,
    warnings,
)

import memscope_nb as ms
from memscope_nb.io import pytorch_pickle
from memscope_nb.io.pytorch_snapshot import ORDER_SPACE_NS

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
    assert oom["attrs"] == {"size_bytes": 10 * MIB, "event_id": 3, "device_free_bytes": 5 * MIB, "stream": 0}
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
    assert profile.stacks["site"].tolist() == ["/app/train.py(4): PyEval_me"]


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


@pytest.mark.parametrize(
    ("file", "times", "device", "pool"),
    [
        ("/site-packages/torch_npu/npu/memory.py", True, "NPU:0", "PTA"),
        ("/site-packages/torch/xpu/memory.py", True, "XPU:0", "XPU"),
        ("/site-packages/torch/cuda/memory.py", False, "CUDA:0", "CUDA"),
    ],
)
def test_kinds_of_devices(tmp_path: Path, file: str, times: bool, device: str, pool: str):
    trace = [entry("alloc", 4096, 1, 0 if times else None, frames=[frame("f", 1, file), frame("g")])]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 1)])]))
    assert profile.summary()[["device", "pool"]].iloc[0].tolist() == [device, pool]


def torchscript(what: Any, memo: dict[str, int]) -> bytes:
    """Pickle as the C++ writer does: texts by number, one long APPENDS, signed integers, no memo for containers."""
    if type(what) is dict:
        inner = b"".join(torchscript(part, memo) for item in what.items() for part in item)
        return b"}(" + inner + b"u"
    if type(what) is list:
        return b"](" + b"".join(torchscript(item, memo) for item in what) + b"e" if what else b"]"
    if type(what) is tuple:
        return b"".join(torchscript(item, memo) for item in what) + b"\x86"
    if type(what) is bool:
        return b"\x88" if what else b"\x89"
    if type(what) is int:
        signed = (what + (1 << 63)) % (1 << 64) - (1 << 63)
        return b"K" + bytes([what]) if 0 <= what < 256 else b"\x8a\x08" + signed.to_bytes(8, "little", signed=True)
    if what in memo:
        return b"j" + memo[what].to_bytes(4, "little")
    memo[what] = len(memo)
    text = what.encode()
    return b"X" + len(text).to_bytes(4, "little") + text + b"r" + memo[what].to_bytes(4, "little")


def test_the_writer_in_c_plus_plus(tmp_path: Path):
    moved = json.loads(json.dumps(SIMPLE))
    shift = (1 << 64) - (1 << 30)
    for one in moved["device_traces"][0]:
        one["addr"] += shift
    for one in moved["segments"]:
        one["address"] += shift
        one["segment_pool_id"] = (0, 0)
        for inner in one["blocks"]:
            inner["address"] += shift
    (tmp_path / "s.pickle").write_bytes(b"\x80\x02" + torchscript(moved, {}) + b".")
    profile = ms.load(tmp_path / "s.pickle")
    assert levels(profile) == SIMPLE_LEVELS
    assert profile.blocks["addr"].tolist() == [4096 + shift, 8192 + shift, 8192 + shift]
    assert profile.frames(0) == ("/app/train.py(3): inner", "/app/train.py(9): outer")


def test_a_history_that_is_appended_at_once_is_joined_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trace = [one for k in range(300) for one in (entry("alloc", 4096, 8 + k, 9 * k), *free(4096, 8 + k, 9 * k + 1))]
    what = snapshot([trace, [entry("alloc", 4096, 1, 0)]], [segment(4096, []), segment(4096, [], device=1)])
    monkeypatch.setattr(pytorch_pickle, "_MANY", 50)
    (tmp_path / "s.pickle").write_bytes(b"\x80\x02" + torchscript(what, {}) + b".")
    joined = ms.load(tmp_path / "s.pickle")
    assert [f["n_entries"] for f in joined.sources["facts"]] == [900, 1]
    assert joined.blocks["size_bytes"].tolist() == [*range(8, 308), 1]
    assert not joined.sources["n_skipped"].any()
