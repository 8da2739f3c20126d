"""Failed allocations with memory free: the story, literal pools, verdicts, what is missing."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from test_pytorch_snapshot import MIB, STACK, block, entry, frame, free, load, segment, snapshot
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.analysis.pool_rounding import Rounding
from memscope_nb.demo.torch_allocator import write_snapshot
from memscope_nb.demo.torch_oom import OomTruth, build_oom

GIB = 1 << 30
REASONS = ("usable", "too_small", "other_stream", "private_pool", "other_pool", "other_size_class", "kept_whole")


def sums_hold(row: Any) -> bool:
    reserved = row["allocated_bytes"] + row["pending_bytes"] + row["idle_bytes"]
    reasons = sum(row[f"{reason}_bytes"] for reason in (*REASONS, "pool_unknown"))
    return bool(row["reserved_bytes"] == reserved and row["idle_bytes"] == reasons)


# -- the story --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[False, True], ids=["at the failure", "after the way out"])
def story(request, tmp_path_factory) -> tuple[Any, OomTruth, bool]:
    what, truth = build_oom(n_entries=400_000, late=request.param)
    path = write_snapshot(tmp_path_factory.mktemp("oom") / "oom_snapshot_41_20260101120000.pickle", what)
    assert len(what["device_traces"][0]) == 400_000
    return ms.fragmentation(path).at("oom"), truth, request.param


def test_the_story_to_the_byte(story):
    found, truth, late = story
    row = found.frame.iloc[0]
    assert row["verdict"] == "fragmented"
    assert (row["requested_bytes"], row["needed_bytes"]) == (4 * GIB, 4 * GIB)
    assert row["device_free_bytes"] == 3 * GIB // 2
    assert (row["reserved_bytes"], row["allocated_bytes"], row["idle_bytes"]) == (60 * GIB, 47 * GIB, 13 * GIB)
    assert row["other_stream_bytes"] == 8 * GIB
    assert row["private_pool_bytes"] == 1 * GIB
    assert row["too_small_bytes"] == 4 * GIB
    assert row["largest_bytes"] == 9 * GIB // 4
    assert sums_hold(row)
    # The books of the simulated allocator say the same.
    for name in ("reserved", "allocated", "pending", "idle", "device_free", "other_stream", "private_pool"):
        assert row[f"{name}_bytes"] == getattr(truth, f"{name}_bytes"), name
    mine = found.ranges[found.ranges["reason"] == "too small"]
    assert tuple(mine["size_bytes"]) == truth.ranges_bytes == (9 * GIB // 4, GIB, 3 * GIB // 4)
    assert row["n_estimated"] == (5 if late else 0)
    assert (found.checks["difference_bytes"] == 0).all()
    assert set(found.checks["kind"]) == ({"history"} if late else {"history", "segments"})


def test_exactly_the_two_blocks_with_their_stacks(story):
    found, truth, late = story
    assert bool(found.frame["fits_without"][0])
    fits = found.fits
    assert fits["route"].tolist() == ["merge", "merge"]
    assert [(a, s) for a, s in zip(fits["addr"], fits["size_bytes"], strict=True)] == [
        (pin.addr, pin.size_bytes) for pin in truth.pins
    ]
    sites = [f"{pin.stack[0][0]}({pin.stack[0][1]}): {pin.stack[0][2]}" for pin in truth.pins]
    assert "append_logits" in sites[0]
    assert fits["frames"].tolist()[1] == tuple(f"{file}({line}): {name}" for file, line, name in truth.pins[1].stack)
    # One that was released before the snapshot, and allocated before the history, has left no stack.
    assert fits["site"].tolist() == (["", sites[1]] if late else sites)
    pins = found.pins.set_index("addr")
    first, second = (pins.loc[pin.addr] for pin in truth.pins)
    assert (first["idle_before_bytes"], first["idle_after_bytes"]) == (9 * GIB // 4, GIB)
    assert (second["idle_before_bytes"], second["idle_after_bytes"]) == (GIB, 3 * GIB // 4)
    assert set(found.pins.loc[found.pins["reason"] == "other stream", "addr"]) == {p.addr for p in truth.side_pins}


def test_what_is_said(story):
    found, _, late = story
    text = repr(found)
    assert "the history is cut (the ring overflowed; 400,000 entries are there)" in text
    assert "8.00 GiB free for another stream only" in text
    assert "it would fit without 2 blocks of together 4.00 MiB" in text
    assert "gives whole idle segments back to the driver; none were left" in text
    assert ("rebuilt by going back" in text) == late
    (about,) = [line for line in found.advice if "expandable_segments" in line]
    assert "was off" in about
    assert "sleep modes" in about
    assert "measure" in about
    assert found.advice.index(about) == len(found.advice) - 1
    assert json.loads(json.dumps(found.to_dict()))["rows"][0]["idle_bytes"] == 13 * GIB
    assert "append_logits" in found._repr_html_() or late
    assert "<td>8.00 GiB</td>" in found._repr_html_()


def test_the_history_is_cut(story):
    found, _, _ = story
    row = found.frame.iloc[0]
    assert row["history"] == "cut"
    assert row["n_from_before"] == 27  # weights, buffers, side stream, graph: all from before the ring


# -- literal pools ----------------------------------------------------------------------------------------------


def oom(t: int, size: int, **more: Any) -> dict:
    return entry("oom", None, size, t, device_free=MIB, **more)


def pool(*blocks: dict, at: int = 64 * MIB, total: int = 20 * MIB, **more: Any) -> dict:
    return segment(at, blocks, total, **more)


def at_end(tmp_path: Path, segments: list[dict], trace: list[dict] | None = None, **more: Any) -> Any:
    what = snapshot([trace or [oom(5, 12 * MIB)]], segments, **more)
    return ms.fragmentation(load(tmp_path, what)).at("oom")


def test_each_reason_once(tmp_path: Path):
    used = 2 * MIB
    segments = [
        pool(block(64 * MIB, used), total=20 * MIB),  # 18 usable
        pool(block(128 * MIB, used), at=128 * MIB, total=10 * MIB),  # 8 too small
        pool(block(192 * MIB, used), at=192 * MIB, total=30 * MIB, stream=7),  # 28
        pool(block(256 * MIB, used), at=256 * MIB, total=40 * MIB, segment_pool_id=(0, 3)),  # 38
        pool(block(320 * MIB, MIB), at=320 * MIB, total=2 * MIB, segment_type="small"),  # 1
        pool(block(384 * MIB, used, state="active_pending_free"), at=384 * MIB, total=4 * MIB),  # 2 too small
    ]
    row = at_end(tmp_path, segments).frame.iloc[0]
    expected = {"usable": 18, "too_small": 10, "other_stream": 28, "private_pool": 38, "other_size_class": 1}
    assert {reason: row[f"{reason}_bytes"] // MIB for reason in expected} == expected
    assert (row["other_pool_bytes"], row["kept_whole_bytes"]) == (0, 0)
    assert row["pending_bytes"] == used
    assert sums_hold(row)
    assert row["verdict"] == "undecided"  # it should not have failed
    asked = {"stream": 7, "pool_id": (0, 0)}
    row = at_end(tmp_path, segments, [oom(5, 12 * MIB, **asked)]).frame.iloc[0]
    assert (row["usable_bytes"] // MIB, row["other_stream_bytes"] // MIB) == (28, 29)
    row = at_end(tmp_path, segments, [oom(5, 12 * MIB, pool_id=(0, 3))]).frame.iloc[0]
    assert (row["usable_bytes"] // MIB, row["other_pool_bytes"] // MIB) == (38, 57)
    row = at_end(tmp_path, segments, [oom(5, MIB)]).frame.iloc[0]
    assert (row["usable_bytes"], row["other_size_class_bytes"] // MIB) == (MIB, 28)


def test_ranges_never_join_across_segments(tmp_path: Path):
    """Two segments side by side: free ends that touch in address are not one range."""
    left = pool(block(64 * MIB, 14 * MIB), total=20 * MIB)
    right = pool(block(64 * MIB + 26 * MIB, 14 * MIB), at=84 * MIB, total=20 * MIB)
    found = at_end(tmp_path, [left, right])
    assert found.frame[["verdict", "largest_bytes", "fits_without"]].iloc[0].tolist() == ["fragmented", 6 * MIB, False]
    assert found.ranges["size_bytes"].tolist() == [6 * MIB, 6 * MIB]
    left = pool(block(64 * MIB, 2 * MIB), total=10 * MIB)
    right = pool(block(82 * MIB, 2 * MIB), at=74 * MIB, total=10 * MIB)
    assert "merge" not in set(at_end(tmp_path, [left, right]).fits["route"])  # 20 MiB only together, 10 each
    whole = pool(block(84 * MIB - MIB, 2 * MIB), total=40 * MIB)
    row = at_end(tmp_path, [whole]).frame.iloc[0]  # one mapping over the same addresses
    assert row["usable_bytes"] > 0


def test_the_cheapest_blocks_stand_in_the_way(tmp_path: Path):
    at = 64 * MIB
    blocks = [block(at + 6 * MIB, 3 * MIB), block(at + 11 * MIB, 2 * MIB), block(at + 23 * MIB, 4 * MIB)]
    found = at_end(tmp_path, [pool(*blocks, total=40 * MIB)], [oom(5, 14 * MIB)])
    # [6][3 used][2][2 used][10][4 used][13]: without the 2 MiB, 14 MiB are there.
    row = found.frame.iloc[0]
    assert (row["verdict"], row["largest_bytes"]) == ("fragmented", 13 * MIB)
    fits = found.fits.groupby("route")["addr"].agg(list)
    assert fits["merge"] == [at + 11 * MIB]
    assert fits["release"] == [b["address"] for b in blocks]  # the whole segment, 9 of 40 MiB in use
    sides = found.pins.set_index("addr")[["idle_before_bytes", "idle_after_bytes", "idle_bytes"]] // MIB
    assert sides.to_numpy().tolist() == [[10, 13, 23], [2, 10, 12], [6, 2, 8]]


def test_fewer_bytes_count_before_fewer_blocks(tmp_path: Path):
    at, small = 64 * MIB, MIB + 512
    blocks = [
        block(at + 6 * MIB, small), block(at + 8 * MIB, small), block(at + 16 * MIB, 9 * MIB),
        block(at + 30 * MIB, 8 * MIB),
    ]  # fmt: skip
    # [6][s][1-][s][7-][9 used][5][8 used][2]: 16 MiB without the two small ones, 21 without the one of 9.
    found = at_end(tmp_path, [pool(*blocks, total=40 * MIB)], [oom(5, 16 * MIB)])
    merge = found.fits[found.fits["route"] == "merge"]
    assert merge["addr"].tolist() == [at + 6 * MIB, at + 8 * MIB]


def test_a_longer_run_may_be_mostly_idle_where_the_shortest_is_not(tmp_path: Path):
    at = 64 * MIB
    blocks = [block(at + 4 * MIB, 8 * MIB), block(at + 14 * MIB, 2 * MIB)]
    # [4][8 used][2][2 used][4]: 14 MiB without the first, most of them in use; 20 without both, half of them.
    found = at_end(tmp_path, [pool(*blocks, total=20 * MIB)])
    merge = found.fits[found.fits["route"] == "merge"]
    assert merge["addr"].tolist() == [b["address"] for b in blocks]
    assert bool(found.frame["fits_without"][0])
    assert len(at_end(tmp_path, [pool(*blocks, total=20 * MIB - 512)]).fits) == 0  # and now not even these


def test_memory_that_is_simply_in_use_is_not_pinned(tmp_path: Path):
    segments = [pool(block(64 * MIB, 18 * MIB, frames=STACK), total=20 * MIB)]
    found = at_end(tmp_path, segments)
    assert found.frame["verdict"].tolist() == ["device full"]
    assert len(found.fits) == 0
    assert found.advice == ()


def test_out_of_reach(tmp_path: Path):
    segments = [pool(block(64 * MIB, 2 * MIB), total=40 * MIB, stream=9)]
    found = at_end(tmp_path, segments)
    assert found.frame["verdict"].tolist() == ["out of reach"]
    assert "38.0 MiB free for another stream only" in found.frame["reason"][0]
    assert found.fits["route"].tolist() == ["release"]
    assert not any("expandable" in line for line in found.advice)


def test_whole_idle_segments_should_have_gone_back(tmp_path: Path):
    found = at_end(tmp_path, [pool(total=40 * MIB, stream=9)])
    assert found.frame["verdict"].tolist() == ["undecided"]
    assert found.frame["releasable_bytes"].tolist() == [40 * MIB]
    assert any("yet 41,943,040 B of them are here" in line for line in found.caveats)
    private = at_end(tmp_path, [pool(total=40 * MIB, segment_pool_id=(0, 1))])
    assert private.frame[["verdict", "releasable_bytes"]].iloc[0].tolist() == ["out of reach", 0]


def test_not_capacity_and_what_growing_segments_could_map(tmp_path: Path):
    much = entry("oom", None, 12 * MIB, 5, device_free=100 * MIB)
    assert at_end(tmp_path, [pool(block(64 * MIB, 20 * MIB))], [much]).frame["verdict"].tolist() == ["not capacity"]
    some = entry("oom", None, 32 * MIB, 5, device_free=30 * MIB)
    segments = [pool(block(64 * MIB, 2 * MIB), block(74 * MIB, 2 * MIB), is_expandable=True, total=20 * MIB)]
    row = at_end(tmp_path, segments, [some]).frame.iloc[0]
    assert (row["largest_bytes"], row["mappable_bytes"]) == (8 * MIB, 28 * MIB)  # 8 at the end, one page of 20
    assert row["verdict"] == "device full"


def test_growing_segments_that_are_on_are_no_advice(tmp_path: Path):
    segments = [pool(block(70 * MIB, MIB + 512), total=15 * MIB)]
    for settings, text in (
        ({"expandable_segments": True}, "could grow already"),
        ({"max_split_size": -1}, "not recorded here"),
        (None, "not recorded here"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"}, "could grow already"),
        ({"expandable_segments": "odd"}, "not recorded here"),
    ):
        more = {} if settings is None else {"allocator_settings": settings}
        found = at_end(tmp_path, segments, **more)
        assert found.frame["verdict"].tolist() == ["fragmented"]
        (about,) = [line for line in found.advice if "segments could grow" in line]
        assert text in about
    off = at_end(tmp_path, segments, allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"})
    assert any("was off" in line and "sleep modes" in line for line in off.advice)


def test_segments_that_grow_prove_the_setting(tmp_path: Path):
    """torch_npu records no settings."""
    segments = [
        pool(block(70 * MIB, MIB + 512), total=15 * MIB),
        pool(block(256 * MIB, 4 * MIB), at=256 * MIB, total=4 * MIB, is_expandable=True),
    ]
    found = at_end(tmp_path, segments, [entry("oom", None, 12 * MIB, 5, device_free=0)])
    assert found.frame["verdict"].tolist() == ["fragmented"]
    (about,) = [line for line in found.advice if "grow" in line]
    assert "could grow already (1 in this pool)" in about


def test_max_split_size_keeps_ranges_whole(tmp_path: Path):
    segments = [pool(block(64 * MIB, 2 * MIB), total=60 * MIB)]
    row = at_end(tmp_path, segments, allocator_settings={"max_split_size": 32 * MIB}).frame.iloc[0]
    assert (row["usable_bytes"], row["kept_whole_bytes"]) == (0, 58 * MIB)
    row = at_end(tmp_path, segments, allocator_settings={"max_split_size": 64 * MIB}).frame.iloc[0]
    assert (row["usable_bytes"], row["kept_whole_bytes"]) == (58 * MIB, 0)


def test_what_is_assumed_is_said(tmp_path: Path):
    bare = {k: v for k, v in oom(5, 12 * MIB).items() if k != "stream"}
    found = at_end(tmp_path, [pool(block(64 * MIB, 18 * MIB))], [bare])
    assert "the default stream, 0, is assumed" in found.frame["assumed"][0]
    assert any("default pool is assumed" in line for line in found.caveats)
    told = at_end(tmp_path, [pool(block(64 * MIB, 18 * MIB))], [oom(5, 12 * MIB, pool_id=(0, 0))])
    assert told.frame["assumed"].tolist() == [""]
    untold = {k: v for k, v in oom(5, 12 * MIB).items() if k != "device_free"}
    assert at_end(tmp_path, [pool(block(64 * MIB, 18 * MIB))], [untold]).frame["verdict"].tolist() == ["undecided"]


def test_a_segment_that_contradicts_itself_is_undecided(tmp_path: Path):
    segments = [pool(block(70 * MIB, MIB + 512), total=15 * MIB)]
    segments[0]["allocated_size"] += 512
    found = at_end(tmp_path, segments)
    assert found.frame["verdict"].tolist() == ["undecided"]
    assert found.frame["unsure_bytes"].tolist() == [512]
    assert any("allocated_size of the segments" in line and "+512 B" in line for line in found.caveats)
    assert sums_hold(found.frame.iloc[0])


def test_idle_blocks_that_the_file_keeps_apart_are_told(tmp_path: Path):
    segments = [pool(block(70 * MIB, MIB + 512), total=15 * MIB)]
    last = segments[0]["blocks"].pop()
    half = last["size"] // 1024 * 512
    rest = {"address": last["address"] + half, "size": last["size"] - half}
    segments[0]["blocks"] += [last | {"size": half}, last | rest]
    found = at_end(tmp_path, segments)
    assert found.frame["verdict"].tolist() == ["undecided"]
    wrong = found.checks[found.checks["difference_bytes"] != 0]
    assert wrong["what"].tolist() == ["largest inactive block of each, added up"]


# -- going back -------------------------------------------------------------------------------------------------


def test_going_back_restores_blocks_and_segments(tmp_path: Path):
    a, b = 64 * MIB, 256 * MIB
    trace = [
        entry("segment_alloc", a, 20 * MIB, 0),
        entry("alloc", a, 2 * MIB - 100, 1, frames=STACK),
        entry("segment_alloc", b, 20 * MIB, 2, stream=3),
        entry("alloc", b + 4 * MIB, 3 * MIB, 3, stream=3),
        oom(10, 30 * MIB),
        *free(b + 4 * MIB, 3 * MIB, 20, stream=3),
        entry("segment_free", b, 20 * MIB, 30, stream=3),
        *free(a, 2 * MIB - 100, 40),
        entry("alloc", a + 8 * MIB, 5 * MIB, 50),
    ]
    found = ms.fragmentation(load(tmp_path, snapshot([trace], [pool(block(a + 8 * MIB, 5 * MIB))])))
    row = found.at("oom").frame.iloc[0]
    assert (row["reserved_bytes"], row["allocated_bytes"], row["n_estimated"]) == (40 * MIB, 5 * MIB, 2)
    assert (row["other_stream_bytes"], row["too_small_bytes"]) == (17 * MIB, 18 * MIB)
    assert row["rounding_bytes"] == 100
    end = found.at("end").frame.iloc[0]
    assert (end["reserved_bytes"], end["allocated_bytes"], end["verdict"]) == (20 * MIB, 5 * MIB, "no request")
    asked = found.at("end", request="12 MiB").frame.iloc[0]
    assert (asked["verdict"], asked["too_small_bytes"]) == ("undecided", 15 * MIB)  # nobody knows what is free there
    assert found.at("end", request="8 MiB").frame["verdict"].tolist() == ["fits"]
    early = found.at(int(found._profile.sources["start_ns"][0])).frame.iloc[0]
    assert (early["reserved_bytes"], early["allocated_bytes"]) == (0, 0)
    assert found.at("peak").frame["allocated_bytes"].tolist() == [5 * MIB]
    with pytest.raises(ms.InputError, match="outside"):
        found.at(10**18 * 9)
    with pytest.raises(ms.InputError, match="there are 1"):
        found.at(1)
    with pytest.raises(ms.InputError, match="GiB"):
        found.at("end", request="4 GB")


def test_pages_that_were_unmapped_join_their_neighbours(tmp_path: Path):
    a = 64 * MIB
    trace = [
        entry("segment_map", a, 60 * MIB, 0),
        entry("alloc", a, 2 * MIB, 1),
        entry("alloc", a + 50 * MIB, 2 * MIB, 2),
        oom(5, 50 * MIB),
        entry("segment_unmap", a + 20 * MIB, 20 * MIB, 6),
    ]
    state = [
        pool(block(a, 2 * MIB), is_expandable=True),
        pool(block(a + 50 * MIB, 2 * MIB), at=a + 40 * MIB, is_expandable=True),
    ]
    found = ms.fragmentation(load(tmp_path, snapshot([trace], state)))
    assert found.at("oom").frame["largest_bytes"].tolist() == [48 * MIB]
    assert sorted(found.at("end").ranges["size_bytes"] // MIB) == [8, 10, 18]
    assert found.at("oom").domains["n_segments"].tolist() == [1]


def test_what_grows_is_of_the_segment_that_it_touches(tmp_path: Path):
    """Not of the next one of its stream, which may serve the other half of the pool."""
    a, b = 64 * MIB, 256 * MIB
    state = [
        pool(block(a, 512), total=2 * MIB, segment_type="small", is_expandable=True),
        pool(block(b, 20 * MIB), at=b, is_expandable=True),
    ]
    trace = [oom(1, 30 * MIB), entry("segment_unmap", a + 2 * MIB, 4 * MIB, 5)]
    domains = ms.fragmentation(load(tmp_path, snapshot([trace], state))).at("oom").domains
    assert domains[["segment_type", "n_segments", "reserved_bytes"]].to_numpy().tolist() == [
        ["large", 1, 20 * MIB], ["small", 1, 6 * MIB],
    ]  # fmt: skip
    trace[1]["addr"] = b - 2 * MIB
    trace[1]["size"] = 2 * MIB  # touches the large one
    domains = ms.fragmentation(load(tmp_path, snapshot([trace], state))).at("oom").domains
    assert domains["reserved_bytes"].tolist() == [22 * MIB, 2 * MIB]


def test_growing_segments_that_the_file_lists_side_by_side_are_two(tmp_path: Path):
    a = 64 * MIB
    state = [pool(is_expandable=True), pool(block(a + 22 * MIB, 512), at=a + 20 * MIB, is_expandable=True)]
    trace = [oom(1, 30 * MIB), entry("segment_alloc", 256 * MIB, 20 * MIB, 5), oom(9, 30 * MIB)]
    found = ms.fragmentation(load(tmp_path, snapshot([trace], [*state, pool(at=256 * MIB)])))
    for number, more in ((0, []), (1, [20 * MIB])):
        there = found.at(number)
        assert sorted(there.ranges["size_bytes"]) == sorted([2 * MIB, 18 * MIB - 512, 20 * MIB, *more])
        assert there.frame["unsure_bytes"].tolist() == [0]


def test_a_segment_that_went_is_of_the_default_pool_only_if_there_is_no_other(tmp_path: Path):
    """Old recordings name no pools in their history."""
    trace = [oom(1, 12 * MIB), entry("segment_free", 256 * MIB, 20 * MIB, 5)]
    one = pool(block(64 * MIB, 20 * MIB))
    row = ms.fragmentation(load(tmp_path, snapshot([trace], [one]))).frame.iloc[0]
    assert (row["usable_bytes"], row["pool_unknown_bytes"]) == (20 * MIB, 0)
    private = pool(block(128 * MIB, 20 * MIB), at=128 * MIB, segment_pool_id=(0, 4))
    for state in ([one, private], [private]):
        row = ms.fragmentation(load(tmp_path, snapshot([trace], state))).frame.iloc[0]
        assert (row["usable_bytes"], row["pool_unknown_bytes"]) == (0, 20 * MIB)
    trace[1]["pool_id"] = (0, 4)
    row = ms.fragmentation(load(tmp_path, snapshot([trace], [one, private]))).frame.iloc[0]
    assert (row["private_pool_bytes"], row["pool_unknown_bytes"]) == (20 * MIB, 0)
    growing = pool(block(128 * MIB, 20 * MIB), at=128 * MIB, segment_pool_id=(0, 4), is_expandable=True)
    for addr, terms in ((148 * MIB, (20 * MIB, 0)), (168 * MIB, (0, 20 * MIB))):  # pages that touch, and that do not
        trace[1] = entry("segment_unmap", addr, 20 * MIB, 5)
        row = ms.fragmentation(load(tmp_path, snapshot([trace], [one, growing]))).frame.iloc[0]
        assert (row["private_pool_bytes"], row["pool_unknown_bytes"]) == terms


def test_contradictions_on_the_way_back_are_counted_in_bytes(tmp_path: Path):
    """Only those met on the way: what contradicts before the instant says nothing of it."""
    trace = [
        entry("segment_alloc", 512 * MIB, 3 * MIB, 0),  # nowhere at the end
        oom(3, 12 * MIB),
        entry("segment_free", 32 * MIB, 2 * MIB, 5),  # half of it is there at the end
        entry("segment_alloc", 256 * MIB, 5 * MIB, 7),
        oom(9, 12 * MIB),
    ]
    found = ms.fragmentation(load(tmp_path, snapshot([trace], [pool(at=33 * MIB, total=2 * MIB)])))
    for when, told in ((0, [("came and are nowhere at the end", 5), ("went and are still there", 1)]), (1, [])):
        checks = found.at(when).checks
        checks = checks[checks["kind"] == "contradiction"]
        assert list(zip(checks["what"], checks["recorded_bytes"] // MIB, strict=True)) == [
            (f"bytes of segments that {text}", n) for text, n in told
        ]
    first = found.at(0)
    assert first.frame[["verdict", "reserved_bytes"]].to_numpy().tolist() == [["undecided", 3 * MIB]]


def test_a_rest_that_the_allocator_does_not_split_off_belongs_to_the_block(tmp_path: Path):
    a = 64 * MIB
    trace = [entry("alloc", a, 19 * MIB + 5, 1), oom(5, 30 * MIB), *free(a, 19 * MIB + 5, 6)]
    row = ms.fragmentation(load(tmp_path, snapshot([trace], [pool()]))).at("oom").frame.iloc[0]
    assert (row["allocated_bytes"], row["idle_bytes"]) == (20 * MIB, 0)
    trace[0]["size"] = trace[2]["size"] = trace[3]["size"] = 19 * MIB - 512
    row = ms.fragmentation(load(tmp_path, snapshot([trace], [pool()]))).at("oom").frame.iloc[0]
    assert (row["allocated_bytes"], row["idle_bytes"]) == (19 * MIB - 512, MIB + 512)


def test_small_and_growing_segments_split_every_rest_off(tmp_path: Path):
    a, b = 64 * MIB, 256 * MIB
    trace = [
        entry("alloc", a, 600_000, 1), entry("alloc", b, 19 * MIB, 2), oom(5, 30 * MIB), *free(a, 600_000, 6),
        *free(b, 19 * MIB, 7),
    ]  # fmt: skip
    state = [pool(total=MIB, segment_type="small"), pool(at=b, is_expandable=True)]
    row = ms.fragmentation(load(tmp_path, snapshot([trace], state))).at("oom").frame.iloc[0]
    assert row["allocated_bytes"] == 600_064 + 19 * MIB
    assert row["n_estimated"] == 2


def test_a_segment_that_came_later_is_not_there_yet(tmp_path: Path):
    trace = [oom(1, 30 * MIB), entry("segment_alloc", 256 * MIB, 20 * MIB, 5)]
    found = ms.fragmentation(load(tmp_path, snapshot([trace], [pool(), pool(at=256 * MIB)]))).at("oom")
    assert found.frame["reserved_bytes"].tolist() == [20 * MIB]
    assert any("rebuilt by going back" in line for line in found.caveats)
    assert set(found.checks["kind"]) == {"history"}


def test_several_failures(tmp_path: Path):
    trace = [oom(1, 30 * MIB), entry("alloc", 64 * MIB, 2 * MIB, 2), oom(3, 40 * MIB)]
    found = ms.fragmentation(load(tmp_path, snapshot([trace, deepcopy(trace)], [pool(block(64 * MIB, 2 * MIB))])))
    assert found.frame["requested_bytes"].tolist() == [30 * MIB, 40 * MIB]  # device 1 has no segments
    assert any("2 entries of failures are left out" in line for line in found.caveats)
    assert found.frame["allocated_bytes"].tolist() == [0, 2 * MIB]
    assert found.at("oom").frame["requested_bytes"].tolist() == [40 * MIB]
    assert found.at(0).frame["requested_bytes"].tolist() == [30 * MIB]
    assert any("2 allocations failed on this device; this is number 1" in line for line in found.at("oom").caveats)


def test_dumps_that_repeat_a_failure_tell_of_it_once(tmp_path: Path):
    from test_pytorch_snapshot import write

    trace = [entry("alloc", 64 * MIB, 2 * MIB, 0), oom(3, 40 * MIB)]
    state = [pool(block(64 * MIB, 2 * MIB))]
    more = [entry("alloc", 66 * MIB, MIB, 9), oom(11, 50 * MIB)]
    write(tmp_path / "step1" / "rank0.pickle", snapshot([trace], state))
    later = [pool(block(64 * MIB, 2 * MIB), block(66 * MIB, MIB))]
    write(tmp_path / "step2" / "rank0.pickle", snapshot([deepcopy(trace) + more], later))
    found = ms.fragmentation(tmp_path)
    assert found.frame[["source", "requested_bytes"]].to_numpy().tolist() == [[0, 40 * MIB], [1, 50 * MIB]]


@pytest.mark.parametrize(("overflowed", "word"), [(True, "cut"), (False, "late"), (None, "late or cut")])
def test_words_for_the_history(tmp_path: Path, overflowed: bool | None, word: str):
    more = {} if overflowed is None else {"allocator_settings": {"trace_alloc_overflowed": overflowed}}
    found = at_end(tmp_path, [pool(block(64 * MIB, 2 * MIB))], **more)
    assert found.frame["history"].tolist() == [word]
    assert any(f"the history is {word} (" in line for line in found.caveats)
    trace = [entry("alloc", 64 * MIB, 2 * MIB, 0), oom(5, 30 * MIB)]
    found = at_end(tmp_path, [pool(block(64 * MIB, 2 * MIB))], trace)
    assert found.frame["history"].tolist() == ["whole"]
    assert not any("the history is" in line for line in found.caveats)


def test_workspaces_are_told_and_not_counted(tmp_path: Path):
    front = [entry(a, 512 * MIB, 3 * MIB, None) for a in ("workspace_snapshot", "segment_alloc", "alloc")]
    failed = {k: v for k, v in oom(5, 12 * MIB, pool_id=(0, 0)).items() if k != "time_us"}
    state = [pool(block(64 * MIB, 2 * MIB), total=10 * MIB), segment(512 * MIB, [block(512 * MIB, 3 * MIB)], 3 * MIB)]
    found = ms.fragmentation(load(tmp_path, snapshot([[*front, failed]], state))).at("oom")
    row = found.frame.iloc[0]
    assert (row["device"], row["pool"], row["reserved_bytes"]) == ("NPU:0", "PTA", 10 * MIB)
    assert row["needed_bytes"] == 12 * MIB + 512  # padded by 32 before it is rounded
    assert any("3.00 MiB at the end" in line and "none of the terms" in line for line in found.caveats)


def test_a_padded_request_that_may_be_rounded_already_is_undecided(tmp_path: Path):
    """The entry may hold the rounded size; then a range of just that size would do."""
    failed = {k: v for k, v in oom(5, 12 * MIB, pool_id=(0, 0)).items() if k != "time_us"}
    state = [pool(block(64 * MIB, 2 * MIB), total=14 * MIB)]
    found = ms.fragmentation(load(tmp_path, snapshot([[failed]], state))).at("oom")
    assert found.frame["verdict"].tolist() == ["undecided"]
    assert "if the request is padded" in found.frame["reason"][0]


# -- what is missing --------------------------------------------------------------------------------------------


def test_missing_facts_name_the_recorder(tmp_path: Path):
    with pytest.raises(ms.MissingFactError, match=r"_record_memory_history\(\).*_dump_snapshot"):
        ms.fragmentation(profile_of([(0, 1, 2)]))
    quiet = ms.fragmentation(load(tmp_path, snapshot([[entry("alloc", 64 * MIB, 5, 1)]], [pool(block(64 * MIB, 5))])))
    assert quiet.frame[["at", "verdict", "allocated_bytes"]].to_numpy().tolist() == [["end", "no request", 512]]
    with pytest.raises(ms.InputError, match="there are 0"):
        quiet.at(0)
    assert any("no failed allocation was recorded" in line for line in quiet.caveats)
    with pytest.raises(ms.MissingFactError, match="enabled='all'"):
        quiet.at("oom")
    profile = load(tmp_path, snapshot([[oom(1, 5)]], [pool(block(64 * MIB, 5))]))
    with pytest.raises(ms.InputError, match="selected"):
        ms.fragmentation(profile.select(min_bytes="1 MiB"))


def test_a_part_of_the_time_lacks_what_leads_back_from_the_end(tmp_path: Path):
    trace = [oom(1, 30 * MIB), entry("segment_alloc", 64 * MIB, 20 * MIB, 5), entry("alloc", 64 * MIB, 512, 9)]
    profile = load(tmp_path, snapshot([trace], [pool(block(64 * MIB, 512))]))
    start, end = profile.sources["start_ns"][0], profile.sources["end_ns"][0]
    assert ms.fragmentation(profile).at("oom").frame["reserved_bytes"].tolist() == [0]
    with pytest.raises(ms.InputError, match="whole profile"):
        ms.fragmentation(profile.select(time_range=(start, end - 2000)))
    assert len(ms.fragmentation(profile.select(time_range=(start, end + 1))).frame) == 1
    assert len(ms.fragmentation(profile.select(role=profile.sources["role"][0])).frame) == 1


def test_a_state_without_history(tmp_path: Path):
    found = ms.fragmentation(load(tmp_path, [pool(block(64 * MIB, 5 * MIB, frames=[frame("x")]))], name="old.pickle"))
    row = found.at("end", request=16 * MIB, stream=0).frame.iloc[0]
    assert (row["history"], row["verdict"], row["too_small_bytes"]) == ("none", "undecided", 15 * MIB)


def test_names_are_data(tmp_path: Path):
    evil = [frame("<script>alert(1)</script>")]
    found = at_end(tmp_path, [pool(block(70 * MIB, MIB + 512, frames=evil), total=15 * MIB)])
    assert found.frame["verdict"].tolist() == ["fragmented"]
    assert "<script>" not in found._repr_html_()
    assert "&lt;script&gt;" in found._repr_html_()
    evil = [frame("a\nfragmented: all is well\x1b[31m" + "x" * 500)]
    found = at_end(tmp_path, [pool(block(70 * MIB, MIB + 512, frames=evil), total=15 * MIB)])
    assert len(found.answer) == len([line for text in found.answer for line in text.splitlines()])
    assert "\x1b" not in repr(found)
    assert max(map(len, found.answer)) < 400


# -- rounding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounding", "request_bytes", "block_bytes"),
    [
        (Rounding(), 1, 512),
        (Rounding(), 512, 512),
        (Rounding(), 513, 1024),
        (Rounding(padding_bytes=32), 480, 512),
        (Rounding(padding_bytes=32), 481, 1024),
        (Rounding(divisions={1: 4}), 1100, 1536),  # not above 512 * 4: by grains
        (Rounding(divisions={1: 4}), 5 * MIB, 5 * MIB),
        (Rounding(divisions={1: 4}), 5 * MIB + 1, 6 * MIB),
        (Rounding(divisions={1: 4, 8: 1}), 9 * MIB + 1, 9 * MIB + 512),
        (Rounding(divisions={1: 0, 8: 2}), 9 * MIB, 12 * MIB),
        (Rounding(divisions={1: 0, 8: 2}), 8 * MIB, 8 * MIB),
    ],
)
def test_rounding(rounding: Rounding, request_bytes: int, block_bytes: int):
    assert rounding.round(request_bytes) == block_bytes


def test_rules_come_from_the_recording():
    settings = {"max_split_size": 100, "roundup_power2_divisions": {"1": 4, "2": 1}}
    assert Rounding.of({"allocator_settings": settings}) == Rounding(0, {1: 4, 2: 1}, 100)
    assert Rounding.of({"backend": "NPU"}) == Rounding(32, None, None)
    assert Rounding.of({"allocator_settings": {"max_split_size": (1 << 64) - 1}}) == Rounding()
