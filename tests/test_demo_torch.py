"""What the demo writes for PyTorch, against plain parsing, the simulators' books and our own reader."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
from itertools import pairwise
from pathlib import Path

import pytest

import memscope_nb as ms
from memscope_nb.cli import main
from memscope_nb.demo import TorchTruth, write_demo_pytorch
from memscope_nb.demo.torch_allocator import (
    OutOfDeviceMemoryError,
    TorchAllocator,
    round_request,
    segment_size,
    snapshot_dict,
    stack_of,
)
from memscope_nb.demo.torch_oom import build_oom

MIB = 1 << 20
FRAMES = stack_of(("a.py", 1, "f"))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, TorchTruth]:
    folder = tmp_path_factory.mktemp("torch") / "run"
    return folder, write_demo_pytorch(folder)


@pytest.fixture(scope="module")
def profile(written) -> ms.MemoryProfile:
    profile = ms.load(written[0])
    ms.validate(profile)
    return profile


def digest(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# -- the allocator ----------------------------------------------------------------------------------------------


def allocator(n_bytes: int = 100 * MIB, max_entries: int = 1000) -> TorchAllocator:
    ticks = iter(range(10**6))
    return TorchAllocator(device=0, device_bytes=n_bytes, max_entries=max_entries, clock=lambda: next(ticks))


@pytest.mark.parametrize(
    ("asked", "block", "segment"),
    [
        (1, 512, 2 * MIB), (513, 1024, 2 * MIB), (MIB, MIB, 2 * MIB), (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
    ],
)  # fmt: skip
def test_sizes(asked: int, block: int, segment: int):
    assert (round_request(asked), segment_size(round_request(asked))) == (block, segment)


def test_splitting_joining_and_reuse():
    one = allocator()
    a, b, c = (one.malloc(size, FRAMES) for size in (4 * MIB, 5 * MIB, 6 * MIB))
    (segment,) = one.segments.values()
    assert [block.size // MIB for block in segment.blocks()] == [4, 5, 6, 5]
    one.free(a)
    one.free(c)
    assert [block.size // MIB for block in segment.blocks()] == [4, 5, 11]
    small = one.malloc(3 * MIB + 512, FRAMES)  # the smallest range that fits; a rest below 1 MiB stays with it
    assert (small.addr, small.size) == (a.addr, 4 * MIB)
    one.free(b)
    assert [(block.size // MIB, block.state) for block in segment.blocks()] == [
        (4, "active_allocated"), (16, "inactive"),
    ]  # fmt: skip
    other = one.malloc(2 * MIB, FRAMES, stream=7)
    private = one.malloc(2 * MIB, FRAMES, pool=(0, 1))
    assert len(one.segments) == 3
    assert len({small.segment.addr, other.segment.addr, private.segment.addr}) == 3


def test_idle_segments_go_back_before_it_fails():
    one = allocator(40 * MIB)
    one.free(one.malloc(20 * MIB, FRAMES, stream=3))
    one.free(one.malloc(10 * MIB, FRAMES, pool=(0, 1)))  # a private pool keeps its own
    one.malloc(30 * MIB, FRAMES)
    assert one.device_free == 0
    with pytest.raises(OutOfDeviceMemoryError):
        one.malloc(MIB + 1, FRAMES)
    actions = [entry["action"] for entry in one.entries()]
    assert actions[-4:] == ["segment_free", "segment_alloc", "alloc", "oom"]
    assert one.entries()[-1] | {"time_us": 0, "frames": []} == {
        "action": "oom", "size": MIB + 512, "stream": 0, "time_us": 0, "device_free": 0, "pool_id": (0, 0),
        "frames": [],
    }  # fmt: skip


def test_a_ring_keeps_the_newest():
    one = allocator(max_entries=4)
    for _ in range(3):
        one.free(one.malloc(MIB, FRAMES), used_elsewhere=False)
    assert (len(one.entries()), one.n_entries) == (4, 10)
    assert [e["action"] for e in one.entries()] == ["free_completed", "alloc", "free_requested", "free_completed"]


# -- files ------------------------------------------------------------------------------------------------------


def test_files_hold_plain_containers_and_the_identities_of_the_format(written):
    folder, truth = written
    for step in truth.snapshots:
        what = pickle.loads((folder / step.path).read_bytes())  # our own file
        assert set(what) == {"segments", "device_traces", "allocator_settings", "external_annotations"}
        assert len(what["device_traces"][step.rank]) == step.n_entries
        for segment in what["segments"]:
            blocks = segment["blocks"]
            assert sum(b["size"] for b in blocks) == segment["total_size"]
            at = segment["address"]
            for one in blocks:
                assert one["address"] == at
                at += one["size"]
            for key, states in (
                ("allocated_size", ["active_allocated"]), ("active_size", ["active_allocated", "active_pending_free"]),
            ):  # fmt: skip
                assert segment[key] == sum(b["size"] for b in blocks if b["state"] in states)
            states = [b["state"] for b in blocks]
            assert not any(a == b == "inactive" for a, b in pairwise(states))
        assert sum(segment["total_size"] for segment in what["segments"]) == step.reserved_bytes


def test_the_same_arguments_write_the_same_bytes(written, tmp_path: Path):
    folder, _ = written
    write_demo_pytorch(tmp_path / "again")
    assert digest(tmp_path / "again") == digest(folder)
    write_demo_pytorch(tmp_path / "other", seed=1, ranks=1, steps=1, oom_entries=1000)
    common = digest(tmp_path / "other").items() & digest(folder).items()
    assert not common
    with pytest.raises(ms.InputError):
        write_demo_pytorch(tmp_path / "again")
    for wrong in ({"ranks": 0}, {"ranks": 99}, {"steps": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            write_demo_pytorch(tmp_path / "wrong", **wrong)
    assert not (tmp_path / "wrong").exists()


# -- our reader -------------------------------------------------------------------------------------------------


def test_steps_are_read_as_they_were(profile, written):
    _, truth = written
    sources = profile.sources[profile.sources["role"] == "actor"]
    assert (profile.sources["status"] == "ok").all()
    summary = profile.summary().set_index("source")
    assert len(sources) == len(truth.snapshots) == 8
    for source, step in zip(sources.itertuples(), truth.snapshots, strict=True):
        assert source.path.endswith(step.path)
        assert (source.rank_id, source.pid, source.facts["step"]) == (step.rank, step.pid, step.step)
        row = summary.loc[source.source]
        assert row["device"] == f"CUDA:{step.rank}"
        levels = ("baseline_bytes", "peak_bytes", "end_bytes")
        assert tuple(row[list(levels)]) == (step.start_bytes, step.peak_bytes, step.end_bytes)
        assert row["n_unexplained"] == 0
        mine = profile.blocks[(profile.blocks["source"] == source.source) & profile.blocks["free_ns"].isna()]
        born = mine[mine["alloc_ns"].notna()]
        sites = profile.stacks["site"].to_numpy()[born["stack_id"].to_numpy()]
        assert set(born.loc[sites == truth.leak_site, "addr"]) == set(step.leaked)
    phases = ms.phases(profile.select(role="actor"), kinds=["range"])
    assert set(phases["name"]) == {"generate", "update_actor"}


def test_the_growth_is_what_was_planted(profile, written):
    _, truth = written
    for rank in range(truth.ranks):
        steps = [step for step in truth.snapshots if step.rank == rank]
        growth = ms.collection_growth(profile.select(role="actor", rank=rank)).frame
        assert growth["left_bytes"].tolist() == [step.end_bytes - step.start_bytes for step in steps]
        assert growth["left_bytes"].tolist()[1:] == [step.leaked_bytes for step in steps[1:]]  # the first makes states
        assert growth["between_bytes"].tolist()[:-1] == [0] * (truth.steps - 1)
        assert min(step.leaked_bytes for step in steps) > 71 * MIB


def test_the_repaired_program_does_not_grow(tmp_path: Path):
    truth = write_demo_pytorch(tmp_path / "run", leak=False, ranks=1, steps=3, oom_entries=1000, protocol=2)
    growth = ms.collection_growth(ms.load(tmp_path / "run" / "actor")).frame
    assert growth["left_bytes"].tolist()[1:] == [0, 0]
    assert all(step.leaked == () for step in truth.snapshots)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_says_the_same(tmp_path: Path, protocol: int):
    truth = write_demo_pytorch(tmp_path / "run", ranks=1, steps=1, oom_entries=1000, protocol=protocol)
    row = ms.fragmentation(tmp_path / "run" / truth.oom_path).at("oom").frame.iloc[0]
    assert (row["idle_bytes"], row["other_stream_bytes"]) == (truth.oom.idle_bytes, truth.oom.other_stream_bytes)


def test_the_failure_among_other_files(profile, written):
    _, truth = written
    found = ms.fragmentation(profile)
    assert found.frame[["role", "verdict"]].to_numpy().tolist() == [["oom", "fragmented"]]
    assert found.at("oom").fits["addr"].tolist() == [pin.addr for pin in truth.oom.pins]
    assert found.answer[0].startswith("oom #0 rank ? CUDA:0 (oom 0): fragmented")
    assert found.at("end").answer[2].startswith("actor #1 rank 0 CUDA:0 (end)")
    ends = found.at("end").frame
    assert len(ends) == 9  # of the trace nothing is known
    assert ends["reserved_bytes"].tolist()[:8] == [step.reserved_bytes for step in truth.snapshots]
    assert (ends["unsure_bytes"] == 0).all()


def test_going_back_agrees_with_the_segment_map(profile):
    """Two ways to the same gaps: blocks alive at an instant, and the sweep over all lives."""
    found = ms.fragmentation(profile)
    for source in profile.sources[profile.sources["kind"] == "pytorch_snapshot"].itertuples():
        times = profile.marks.loc[profile.marks["source"] == source.source, "start_ns"]
        for t in {int(source.end_ns), *(int(t) for t in times.iloc[[0, len(times) // 2]])}:
            if not source.start_ns <= t <= source.end_ns:
                continue
            gaps = ms.free_gaps(profile, t, source=source.source)
            ranges = found.at(t).ranges
            ranges = ranges[ranges["source"] == source.source]
            assert sorted(zip(gaps["addr"], gaps["size_bytes"], strict=True)) == sorted(
                zip(ranges["addr"], ranges["size_bytes"], strict=True)
            )
            mapped = _mapped_at(profile, source.source, t)
            assert {(a, s) for a, s in zip(gaps["segment_addr"], gaps["segment_bytes"], strict=True)} <= mapped
            domains = found.at(t).domains
            domains = domains[domains["source"] == source.source]
            assert (domains["n_segments"].sum(), domains["reserved_bytes"].sum()) == (
                len(mapped), sum(size for _, size in mapped),
            )  # fmt: skip


def _mapped_at(profile: ms.MemoryProfile, source: int, t: int) -> set[tuple[int, int]]:
    """Segments (address, size) at an instant; they come and go as a whole here."""
    table, marks = profile.segments, profile.marks
    mapped = set(table.loc[table["source"] == source, ["addr", "size_bytes"]].itertuples(index=False, name=None))
    later = marks[(marks["source"] == source) & (marks["kind"] == "segment") & (marks["start_ns"] > t)]
    for mark in later.sort_values("start_ns", kind="stable", ascending=True)[::-1].itertuples():
        one = (mark.attrs["addr"], mark.attrs["size_bytes"])
        if mark.name == "segment_alloc":
            mapped.remove(one)
        else:
            assert mark.name == "segment_free"
            assert one not in mapped
            mapped.add(one)
    return mapped


def test_the_trace_is_read_as_it_was(profile, written):
    folder, truth = written
    trace = truth.trace
    events = json.loads(gzip.decompress((folder / trace.path).read_bytes()))["traceEvents"]
    memory = [event["args"] for event in events if event["name"] == "[memory]"]
    assert (trace.n_allocs, trace.n_frees) == (
        sum(one["Bytes"] > 0 for one in memory), sum(one["Bytes"] < 0 for one in memory),
    )  # fmt: skip
    (source,) = profile.sources[profile.sources["kind"] == "kineto"].itertuples()
    blocks = profile.blocks[profile.blocks["source"] == source.source]
    assert len(blocks) == trace.n_allocs
    stays = blocks[blocks["free_ns"].isna()]
    assert tuple(stays["addr"]) == trace.leaked
    assert {profile.frames(number)[0] for number in stays["stack_id"]} == {trace.leak_frame}
    assert set(stays["name"]) == {"aten::clone"}
    row = profile.summary().set_index("source").loc[source.source]
    assert (row["baseline_bytes"], row["peak_bytes"], row["end_bytes"]) == (
        trace.before_bytes, trace.peak_bytes, trace.end_bytes,
    )  # fmt: skip
    assert row["n_unexplained"] == 0
    steps = ms.phases(profile.select(role="trainer"), kinds=["step"])
    assert len(steps) == len(trace.step_bytes)
    assert trace.end_bytes - trace.before_bytes == sum(trace.step_bytes)


def test_late_and_at_the_failure_tell_one_story():
    for late in (False, True):
        what, truth = build_oom(n_entries=900, late=late)
        assert len(what["device_traces"][0]) == truth.n_entries == 900
        assert truth.n_lost > 200
        assert what["allocator_settings"]["trace_alloc_overflowed"] is True
    assert snapshot_dict([], settings=None) == {"segments": [], "device_traces": []}


# -- the command ------------------------------------------------------------------------------------------------


def test_demo_as_people_type_it(tmp_path: Path, capsys):
    assert main(["demo", "--out", str(tmp_path / "run"), "--export", "pytorch"]) == 0
    out = capsys.readouterr().out
    command = next(line for line in out.splitlines() if "memscope-nb oom" in line).split("memscope-nb ")[1]
    assert main(command.split(" ", 1)) == 0
    assert "fragmented" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "index.html").is_file()
