"""Quality of PyTorch recordings: what the files prove of themselves, and what every analysis says to them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import test_kineto as kineto
from conftest import SAMPLES
from test_pytorch_snapshot import MIB, SIMPLE, STACK, block, entry, free, load, segment, snapshot

import memscope_nb as ms
from memscope_nb.analysis.timeline import timelines
from memscope_nb.cli import main
from memscope_nb.errors import MissingFactError
from memscope_nb.view.payload import TimelineView


def checks(profile: ms.MemoryProfile, source: int = 0) -> dict[str, tuple[str, str]]:
    """Verdict and detail of each check."""
    found = ms.check_quality(profile).checks
    rows = found[found["source"] == source].itertuples()
    return {row.check: (row.verdict, row.detail) for row in rows}


def verdict(profile: ms.MemoryProfile) -> str:
    return ms.check_quality(profile).frame["verdict"][0]


def hints(profile: ms.MemoryProfile) -> dict[str, ms.analysis.quality.Hint]:
    return {hint.missing.split(":")[0].split(",")[0]: hint for hint in ms.check_quality(profile).hints}


# -- snapshots --------------------------------------------------------------------------------------------------


def test_a_whole_snapshot_is_ok(tmp_path: Path):
    profile = load(tmp_path, SIMPLE | {"allocator_settings": {"expandable_segments": False, "max_split_size": -1}})
    found = checks(profile)
    assert {check: v for check, (v, _) in found.items()} == dict.fromkeys(
        ["history", "start", "times", "stacks", "releases", "end", "segments", "settings"], "ok"
    )
    assert "expandable_segments=False, max_split_size=-1" in found["settings"][1]
    assert "whole" in found["start"][1]
    assert verdict(profile) == "ok"
    assert set(hints(profile)) == {"no steps or ranges"}
    json.dumps(ms.check_quality(profile).to_dict())


LATE = snapshot(
    [[*free(200 * MIB, 50, 1), entry("alloc", 4096, 1000, 10)]],
    [segment(4096, [block(4096, 1000), block(8192, 400)])],
)


@pytest.mark.parametrize(
    ("settings", "expected", "text"),
    [
        ({"trace_alloc_overflowed": True, "trace_alloc_max_entries": 3}, "look", "cut: the ring buffer of 3 entries"),
        ({"trace_alloc_overflowed": False}, "ok", "late: recording began"),
        ({}, "undecided", "cut or late"),
    ],
)
def test_a_history_without_its_head(tmp_path: Path, settings: dict, expected: str, text: str):
    profile = load(tmp_path, LATE | ({"allocator_settings": settings} if settings else {}))
    found = checks(profile)["start"]
    assert found[0] == expected
    assert text in found[1]
    assert "2 blocks (450 B) are older" in found[1]
    assert ("the head of the history is lost" in hints(profile)) == (expected != "ok")
    if expected != "ok":
        assert "max_entries" in hints(profile)["the head of the history is lost"].pytorch


def test_releases_that_nobody_saw(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, 0), entry("alloc", 4096, 200, 5)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 200)])]))
    assert checks(profile)["releases"] == (
        "look", "the release of 1 blocks (100 B) is missing; the latest possible moment stands for it",
    )  # fmt: skip
    assert verdict(profile) == "look"


def test_segments_that_contradict(tmp_path: Path):
    trace = [entry("alloc", 4096, 100, 0), entry("alloc", 8192, 50, 3)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 130), block(8192, 50)])]))
    assert checks(profile)["end"] == (
        "look", "the segments hold another amount than the history leaves: allocated +30 B, active +30 B",
    )  # fmt: skip
    wrong = segment(4096, [block(4096, 100)])
    wrong["blocks"].pop()
    assert checks(load(tmp_path, snapshot([[]], [wrong])))["segments"][0] == "look"
    told = segment(4096, [block(4096, 100)]) | {"active_size": 7}  # the blocks agree with each other, not with this
    assert checks(load(tmp_path, snapshot([[]], [told])))["segments"][0] == "look"


def test_people_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    profile = load(tmp_path, LATE)
    lines = ms.check_quality(profile).check_lines()
    assert lines[0].startswith("start (undecided): cut or late")
    assert "end (ok): allocated and active at the end equal" in "\n".join(lines)
    assert not any(line.startswith("releases") for line in lines)
    assert main(["info", str(tmp_path)]) == 0
    assert "check of start (undecided): cut or late" in capsys.readouterr().out
    view = TimelineView(profile, timelines(profile)[0])
    assert any("Check of start (undecided)" in note for note in view.header()["notes"])


@pytest.mark.parametrize(("size", "expected"), [(1024, "ok"), (1000, "look")])
def test_what_the_allocator_counted(tmp_path: Path, size: int, expected: str):
    trace = [entry("alloc", 4096, 1000, 0), entry("snapshot", 0, size, 5)]
    profile = load(tmp_path, snapshot([trace], [segment(4096, [block(4096, 1000)])]))
    assert checks(profile)["counter"][0] == expected
    later = [*trace, *free(4096, 1000, 9)]
    assert "counter" not in checks(load(tmp_path, snapshot([later], [segment(4096, [])])))


def test_the_state_alone_proves_nothing(tmp_path: Path):
    profile = load(tmp_path, snapshot([[]], [segment(4096, [block(4096, 100)])]))
    found = checks(profile)
    assert found["history"][0] == "undecided"
    assert found["stacks"][0] == "undecided"
    assert {"no history", "no call stacks", "no steps or ranges"} == set(hints(profile))
    assert "enabled='all'" in hints(profile)["no history"].pytorch


def test_event_order_pending_and_failures(tmp_path: Path):
    trace = [
        entry("alloc", 4096, 100, None, frames=STACK), entry("alloc", 8192, 300, None),
        entry("free_requested", 4096, 100, None), entry("oom", None, 9 * MIB, None, device_free=5),
        entry("oom", None, 9 * MIB, None),
    ]  # fmt: skip
    state = [segment(4096, [block(4096, 100, state="active_pending_free"), block(8192, 300)], is_expandable=True)]
    found = checks(load(tmp_path, snapshot([trace], state)))
    assert found["times"][0] == "undecided"
    assert found["pending"] == ("ok", "1 blocks (100 B) were released but waited for another stream")
    assert found["oom"] == ("undecided", "2 failed allocations, 1 with what the device had free")
    assert "1 of them parts of expandable ones" in found["segments"][1]
    assert found["stacks"] == ("ok", "25% of bytes and 1 of 2 blocks have the stack of their allocation")


def test_without_segments_nothing_is_checked(tmp_path: Path):
    profile = load(tmp_path, snapshot([[entry("alloc", 4096, 100, 0), entry("oom", None, 5, 1)]], []))
    found = checks(profile)
    assert found["end"][0] == "undecided"
    assert found["oom"][0] == "undecided"
    assert verdict(profile) == "look"  # a part of the file is missing
    assert "no segments" in hints(profile)


# -- traces -----------------------------------------------------------------------------------------------------


def test_a_trace_that_balances(tmp_path: Path):
    profile = kineto.load(tmp_path, kineto.EVENTS)
    found = checks(profile)
    assert found["totals"] == ("ok", "CUDA:0: the sum of events equals Total Allocated at all 4 events")
    assert found["start"] == ("ok", "late: 1 blocks (200 B) from before it were released in it")
    assert found["operators"] == ("ok", "1 of 3 blocks were asked for inside an operator")
    assert verdict(profile) == "ok"
    assert set(hints(profile)) == {"no segments"}
    assert "with_stack" not in str(hints(profile))


def test_a_counter_that_disagrees(tmp_path: Path):
    events = [kineto.memory(10, 1, 100, 100), kineto.memory(20, 2, 50, 160), kineto.memory(21, 9, 7, 7, kind=0)]
    profile = kineto.load(tmp_path, events)
    found = ms.check_quality(profile).checks
    totals = found[found["check"] == "totals"]
    assert totals["verdict"].tolist() == ["look", "ok"]
    assert "differ by up to 10 B" in totals["detail"].iloc[0]
    assert verdict(profile) == "look"
    assert "with_stack=True" in hints(profile)["no call stacks"].pytorch
    nothing = [kineto.memory(10, 1, 100, 100, args={"Total Allocated": None})]
    assert verdict(kineto.load(tmp_path, nothing)) == "undecided"


@pytest.mark.skipif(not (SAMPLES / "pytorch").is_dir(), reason="the public samples are not laid beside the checkout")
def test_the_real_recording():
    profile = ms.load(SAMPLES / "pytorch")
    found = checks(profile)
    assert found["totals"][1] == "CPU: the sum of events equals Total Allocated at all 1,806 events"
    assert found["operators"][1] == "634 of 904 blocks were asked for inside an operator"
    assert verdict(profile) == "ok"
    assert not ms.check_quality(profile).hints  # a host has no segments


# -- every analysis ---------------------------------------------------------------------------------------------

NOT_ANALYSES = {"explore", "export_html", "load", "load_watch", "locate_corruption", "scan", "show"}
"""Readers and views; ``locate_corruption`` takes what ``load_watch`` returns, no profile."""
ARGUMENTS = {"check_leaks": {"mstx_info": "step"}, "live_at": {}, "align_ops": {}, "compare": {}}
ANALYSES = sorted(
    name
    for name in ms.__all__
    if inspect.isfunction(value := getattr(ms, name)) and value.__name__ == name and name not in NOT_ANALYSES
)


@pytest.fixture(params=["snapshot", "state", "kineto"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> ms.MemoryProfile:
    if request.param == "kineto":
        return kineto.load(tmp_path, kineto.EVENTS)
    return load(tmp_path, SIMPLE if request.param == "snapshot" else snapshot([[]], SIMPLE["segments"]))


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_answers_or_says_what_to_record(recording: ms.MemoryProfile, name: str):
    analysis, kind = getattr(ms, name), recording.sources["kind"][0]
    needed = [p.name for p in inspect.signature(analysis).parameters.values() if p.default is inspect.Parameter.empty]
    first = [recording] * (2 if needed[:2] in (["a", "b"], ["base", "compare"]) else 1)
    if "t_ns" in needed:
        first.append(int(recording.sources["end_ns"][0]))
    try:
        found = analysis(*first, **ARGUMENTS.get(name, {}))
    except MissingFactError as error:
        text = str(error)
        assert "record" in text
        assert {"kineto": "a Kineto trace", "pytorch_snapshot": "a PyTorch snapshot"}[kind] in text
        assert "PyTorch" in text.replace("a PyTorch snapshot", "")
        return
    assert found is not None
    if name == "memory_summary" and not recording.blocks["alloc_ns"].notna().any():
        return  # it has no row for a block whose allocation nobody saw, and says so
    tables = (getattr(found, name) for name in ("frame", "blocks", "timelines") if hasattr(found, name))
    assert len(next(tables, found))
