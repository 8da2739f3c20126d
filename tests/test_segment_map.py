"""Segment maps and free gaps: literal files, and a splitting allocator that knows the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kineto import EVENTS
from test_kineto import load as load_kineto
from test_pytorch_snapshot import MIB, STACK, T0, block, entry, free, load, segment, snapshot
from torch_splits import Splitter

import memscope_nb as ms
from memscope_nb.analysis.pool_rounding import Rounding
from memscope_nb.analysis.pool_state import pool_state
from memscope_nb.analysis.segment_map import free_gaps, pool_map, segment_map
from memscope_nb.analysis.segment_ranges import compact_axis, places_on
from memscope_nb.errors import InputError, MissingFactError


def rows(frame: pd.DataFrame, *columns: str) -> list[tuple]:
    return list(frame[list(columns)].astype(object).itertuples(index=False, name=None))


def at(t: int) -> int:
    return (T0 + t) * 1000


# -- literal ----------------------------------------------------------------------------------------------------


def test_ranges_blocks_and_gaps_of_a_small_file(tmp_path: Path):
    trace = [
        entry("segment_alloc", 8 * MIB, 2 * MIB, 0, stream=7),
        entry("alloc", 8 * MIB, 1000, 10, frames=STACK, stream=7),
        entry("alloc", 8 * MIB + 4096, 512, 20, stream=7),
        *free(8 * MIB, 1000, 30, 35, stream=7),
        entry("segment_alloc", 32 * MIB, 20 * MIB, 40),
        entry("segment_free", 32 * MIB, 20 * MIB, 50),
    ]
    state = [segment(8 * MIB, [block(8 * MIB + 4096, 512)], stream=7, segment_type="small")]
    profile = load(tmp_path, snapshot([trace], state))
    found = segment_map(profile)
    assert rows(found.frame, "addr", "size_bytes", "start_ns", "end_ns", "stream", "segment_type", "is_expandable") == [
        (8 * MIB, 2 * MIB, at(0), at(50) + 1, 7, "small", False),
        (32 * MIB, 20 * MIB, at(40), at(50), 0, "large", False),
    ]
    assert rows(found.blocks, "addr", "size_bytes", "requested_bytes", "start_ns", "request_ns", "end_ns") == [
        (8 * MIB, 1024, 1000, at(10), at(30), at(35)),
        (8 * MIB + 4096, 512, 512, at(20), at(50) + 1, at(50) + 1),
    ]
    assert found.blocks["is_estimated"].tolist() == [True, False]
    assert "estimates" in found.caveats[0]
    columns = ("addr", "size_bytes", "segment_addr", "segment_bytes", "offset_bytes", "left_block_id", "right_block_id")
    a, b = profile.blocks["block_id"]
    assert rows(free_gaps(profile, at(25)), *columns, "left_bytes", "right_bytes", "left_site", "right_site") == [
        (8 * MIB + 4608, 2 * MIB - 4608, 8 * MIB, 2 * MIB, 4608, b, -1, 512, 0, "", ""),
        (8 * MIB + 1024, 3072, 8 * MIB, 2 * MIB, 1024, a, b, 1024, 512, "/app/train.py(9): outer", ""),
    ]
    assert rows(free_gaps(profile, at(36)), "addr", "size_bytes", "left_block_id", "right_block_id") == [
        (8 * MIB + 4608, 2 * MIB - 4608, b, -1),
        (8 * MIB, 4096, -1, b),
    ]
    assert rows(free_gaps(profile, at(40)), "addr", "size_bytes", "stream")[0] == (32 * MIB, 20 * MIB, 0)
    levels = found.levels_at(at(30))
    assert rows(levels, "mapped_bytes", "active_bytes", "pending_bytes", "idle_bytes") == [
        (2 * MIB, 512, 1024, 2 * MIB - 1536)
    ]
    assert not len(free_gaps(profile, at(0) - 1))  # nothing was mapped yet


def test_what_cannot_be_mapped_says_so(tmp_path: Path):
    with pytest.raises(MissingFactError, match=r"_record_memory_history.*a Kineto trace"):
        segment_map(load_kineto(tmp_path, EVENTS))
    profile = load(tmp_path, snapshot([[entry("alloc", 4096, 10, 0)]], [segment(4096, [block(4096, 10)])]))
    with pytest.raises(InputError, match="nothing was recorded at 5; windows are"):
        free_gaps(profile, 5)
    with pytest.raises(InputError, match="there is: source 0 CUDA:0 CUDA"):
        segment_map(profile, device="CUDA:9")
    with pytest.raises(InputError, match="pass the whole profile"):
        segment_map(profile.select(min_bytes=11))


def test_contradictions_are_counted_and_never_overlap(tmp_path: Path):
    trace = [
        entry("alloc", 4096, 5000, 0),  # its release is lost: others lie there later
        entry("alloc", 8192, 1000, 10),
        entry("alloc", 64 * MIB, 100, 20),  # in no segment
        entry("segment_free", 32 * MIB, 2 * MIB, 40),
        entry("segment_alloc", 4096, 2 * MIB, 50),  # already there
    ]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(8192, 1000)]), segment(33 * MIB, [])]))
    found = segment_map(profile)
    assert not len(found.blocks)  # by the last entry their segment came after them
    assert found.counts == {
        "bytes of segments that went and are still there": MIB,
        "blocks outside every mapped range, left out": 3,
    }
    assert any("1.00 MiB" in caveat for caveat in found.caveats)
    profile = load(tmp_path, snapshot([trace[:3]], [segment(4096, [block(8192, 1000)])]))
    found = segment_map(profile)
    assert rows(found.blocks, "addr", "size_bytes", "start_ns", "end_ns") == [
        (4096, 5120, at(0), at(10)),
        (8192, 1024, at(10), at(20) + 1),
    ]
    assert found.counts == {
        "blocks that end early because something else was allocated at their addresses": 1,
    }


def test_a_time_range_keeps_the_changes_after_it(tmp_path: Path):
    """What came later is undone from the end, so that it must not be dropped with its marks."""
    trace = [
        entry("segment_alloc", 4096, 2 * MIB, 0),
        entry("alloc", 4096, 512, 5),
        entry("segment_alloc", 8 * MIB, 2 * MIB, 90),
    ]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 512)]), segment(8 * MIB, [])]))
    part = profile.select(time_range=(at(3), at(50)))
    assert free_gaps(part, at(5))["size_bytes"].tolist() == [2 * MIB - 512]
    assert segment_map(part).frame["addr"].tolist() == [4096]


# -- a splitting allocator --------------------------------------------------------------------------------------


def never_overlap(found: ms.analysis.segment_map.SegmentMap) -> None:
    """No two ranges, and no two blocks, share an address at one time."""
    for table, end in ((found.frame, "end_ns"), (found.blocks, "end_ns")):
        a = [(int(r.addr), int(r.addr) + int(r.size_bytes), r.start_ns, getattr(r, end)) for r in table.itertuples()]
        for i, (low, high, start, stop) in enumerate(a):
            for low2, high2, start2, stop2 in a[:i]:
                assert not (low < high2 and low2 < high and start < stop2 and start2 < stop)


STEPS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 99), st.one_of(st.integers(1, 4000), st.integers(1, 30 * MIB))),
    min_size=1,
    max_size=40,
)


@given(steps=STEPS, growing=st.booleans(), lost=st.integers(0, 20), high=st.booleans())
@settings(max_examples=50)
def test_every_instant_equals_the_allocator(
    tmp_path_factory: pytest.TempPathFactory, steps: list, growing: bool, lost: int, high: bool
):
    truth = Splitter(growing=growing, base=(1 << 63) if high else (1 << 40))
    for one in steps:
        truth.step(*one)
    lost = min(lost, len(truth.entries) - 1)
    profile = load(tmp_path_factory.mktemp("m"), truth.dump(len(truth.entries) - lost))
    found = segment_map(profile)
    never_overlap(found)
    assert not any("bytes" in text for text in found.counts)
    curve = ms.curve(profile)
    times, columns = curve["t_ns"].to_numpy(), ["allocated_bytes", "active_bytes", "reserved_bytes"]
    for number in range(lost, len(truth.entries)):
        t, now = truth.entries[number]["time_us"] * 1000, truth.truth[number]
        blocks = found.blocks[(found.blocks["start_ns"] <= t) & (found.blocks["end_ns"] > t)]
        states = np.where(blocks["request_ns"] <= t, "active_pending_free", "active_allocated")
        assert dict(zip(blocks["addr"], zip(blocks["size_bytes"], states, strict=True), strict=True)) == now["blocks"]
        levels = found.levels_at(t)
        assert levels["mapped_bytes"].sum() == now["mapped"]
        assert (levels["idle_bytes"] >= 0).all()
        assert levels["active_bytes"].sum() == sum(s for s, state in now["blocks"].values() if "alloc" in state)
        gaps = free_gaps(profile, t)
        assert sorted(rows(gaps, "addr", "size_bytes", "segment_addr", "segment_bytes", "stream")) == now["gaps"]
        assert levels["idle_bytes"].sum() == gaps["size_bytes"].sum()
        row = curve[columns].iloc[np.searchsorted(times, t, side="right") - 1]
        held = blocks["requested_bytes"].to_numpy()
        assert row.tolist() == [held[states == "active_allocated"].sum(), held.sum(), now["mapped"]]
        if number % 5 == 0:  # what fragmentation() goes by
            state = pool_state(profile, 0, "CUDA:0", "CUDA", t, rounding=Rounding())
            assert rows(state.ranges, "addr", "size_bytes") == [gap[:2] for gap in now["gaps"]]
            there = rows(state.segments, "addr", "size_bytes", "stream", "segment_type")
            # The tiny allocator's large pages are of 2 MiB, too: there the size does not tell the type.
            assert [one[: 3 if growing else 4] for one in there] == [
                one[: 3 if growing else 4] for one in now["segments"]
            ]
            assert not state.problems
        by_addr = blocks.set_index("addr")
        for gap in gaps.itertuples():
            if gap.right_block_id >= 0:
                assert by_addr.at[gap.addr + gap.size_bytes, "block_id"] == gap.right_block_id
            else:
                assert gap.offset_bytes + gap.size_bytes == gap.segment_bytes
            left = blocks[blocks["block_id"] == gap.left_block_id]
            assert (gap.left_block_id < 0) == (gap.offset_bytes == 0)
            assert all(int(b.addr) + b.size_bytes == gap.addr for b in left.itertuples())


@given(steps=STEPS, growing=st.booleans(), drop=st.sets(st.integers(0, 60)))
@settings(max_examples=40)
def test_missing_entries_never_make_blocks_overlap(
    tmp_path_factory: pytest.TempPathFactory, steps: list, growing: bool, drop: set
):
    truth = Splitter(growing=growing)
    for one in steps:
        truth.step(*one)
    dumped = truth.dump()
    kept = [e for i, e in enumerate(dumped["device_traces"][0]) if i not in drop]
    profile = load(tmp_path_factory.mktemp("m"), dumped | {"device_traces": [kept]})
    found = segment_map(profile)
    never_overlap(found)
    for t in sorted(set(found.frame["start_ns"]) | set(found.blocks["start_ns"])):
        levels = found.levels_at(int(t))
        assert (levels["idle_bytes"] >= 0).all()
        assert levels["idle_bytes"].sum() == free_gaps(profile, int(t))["size_bytes"].sum()
        there = found.blocks[(found.blocks["start_ns"] <= t) & (found.blocks["end_ns"] > t)]
        assert there["size_bytes"].sum() == levels[["active_bytes", "pending_bytes"]].to_numpy().sum()


def test_the_axis_folds_what_was_never_mapped(tmp_path: Path):
    base = (1 << 64) - 64 * MIB
    trace = [entry("segment_alloc", base, 2 * MIB, 0), entry("segment_free", base, 2 * MIB, 9)]
    state = [segment(base + 2 * MIB, []), segment(base + 40 * MIB, []), segment(4096, [])]
    profile = load(tmp_path, snapshot([trace], state))
    ranges = pool_map(profile, (0, "CUDA:0", "CUDA")).ranges
    axis = compact_axis(ranges)
    assert axis == [
        (4096, 4096 + 2 * MIB, 0), (base, base + 4 * MIB, 2 * MIB), (base + 40 * MIB, base + 42 * MIB, 6 * MIB),
    ]  # fmt: skip
    places = places_on(axis, np.array([4097, base, base + 2 * MIB, base + 41 * MIB], dtype=np.uint64))
    assert places.tolist() == [1, 2 * MIB, 4 * MIB, 7 * MIB]
