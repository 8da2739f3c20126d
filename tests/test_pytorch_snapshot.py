"""Memory snapshots: lives and levels, against literal files and a tiny allocator."""

from __future__ import annotations

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


# -- clocks -----------------------------------------------------------------------------------------------------


def test_clocks_that_stop_or_step_back():
    times, axis, n_back = event_times(np.array([10, 10, 0, 12, 9, 13]), start_ns=5)
    assert (axis, n_back) == ("time", 1)
    assert times.tolist() == [10_000, 10_001, 10_002, 12_000, 12_001, 13_000]
    assert event_times(np.array([0, 0, 0]), start_ns=5)[:2] == (pytest.approx([5, 1005, 2005]), "event order")


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
