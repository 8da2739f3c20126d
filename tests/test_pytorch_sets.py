"""Memory snapshots: folders of steps and ranks, names, trees of many formats."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pytorch_snapshot import (
    MIB,
    SIMPLE,
    Allocator,
    block,
    entry,
    free,
    segment,
    snapshot,
    write,
)

import memscope_nb as ms
from memscope_nb.analysis.growth import role_growth
from memscope_nb.errors import InputError
from memscope_nb.model import BlockFlag

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
    assert profile.summary()["baseline_bytes"].tolist() == [1000, 2000, 10_000] * 2
    growth = ms.collection_growth(profile.select(rank=0))
    assert growth.frame["left_bytes"].tolist() == [0, 0, 0]
    assert growth.frame["between_bytes"].tolist()[:2] == [1000, 8000]
    assert len(set(profile.summary()["peak_ns"])) == 3 if timed else 6
    assert set(ms.scan(tmp_path / "run").frame["export"]) == {"pickle"}
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


def test_the_devices_of_a_file_are_one_recording(tmp_path: Path):
    def both(t: int) -> dict:
        traces = [[entry("alloc", 4096, 1, t)], [entry("alloc", 4096, 2, t + 5)]]
        return snapshot(traces, [segment(4096, [block(4096, 1)]), segment(4096, [block(4096, 2)], device=1)])

    for step, t in ((1, 0), (2, 3)):  # their windows interleave
        write(tmp_path / f"step{step}" / "rank0.pickle", both(t))
    profile = ms.load(tmp_path)
    table = profile.summary()[["device", "collection"]].astype(object).to_numpy().tolist()
    assert sorted(table) == [["CUDA:0", 0], ["CUDA:0", 1], ["CUDA:1", 0], ["CUDA:1", 1]]
    paths = profile.sources.groupby("collection")["path"].agg(set)
    assert all(len(path) == 1 for path in paths)
    assert ms.load(tmp_path, collections=1).sources["path"].nunique() == 1


def test_patterns_as_an_option(tmp_path: Path):
    write(tmp_path / "w3-of-8.pickle", SIMPLE)
    for names in (r"(?P<role>w)(?P<rank>\d+)-of", [r"^(?P<role>w)(?P<rank>\d+)"]):
        assert ms.load(tmp_path, torch_names=names).sources[["role", "rank_id"]].iloc[0].tolist() == ["w", 3]
        catalog = ms.scan(tmp_path, torch_names=names)
        assert catalog.frame["rank_id"].tolist() == [3]
        assert catalog.load().sources["rank_id"].tolist() == [3]
    assert pd.isna(ms.load(tmp_path).sources["rank_id"][0])
    for bad in ("(", "no group", "(?P<host>a)(?P<colour>b)"):
        with pytest.raises(InputError, match="torch_names"):
            ms.load(tmp_path, torch_names=bad)


# -- histories that overlap -------------------------------------------------------------------------------------


class Ticking(Allocator):
    """Never two steps in one microsecond: allocators are not that quick."""

    def step(self, what: int, choice: int, size: int) -> None:
        self.t += 1
        super().step(what, choice, size)


def dumps(folder: Path, steps: list[tuple[int, int, int]], cuts: tuple[int, int, int]) -> tuple[Allocator, list[int]]:
    """Dump a process twice: entries up to the second cut, and from the first one on. Return the levels there."""
    cut, end, last = cuts
    allocator = Ticking()
    for one in steps:
        allocator.step(*one)
        if len(allocator.entries) >= end:
            break
    end = len(allocator.entries)
    write(folder / "step1" / "rank0_pid7.pickle", snapshot([allocator.entries[:end]], allocator.segments()))
    for one in steps[::-1]:
        if len(allocator.entries) >= end + last:
            break
        allocator.step(*one)
    trace = allocator.entries[min(cut, end - 1) :]
    write(folder / "step2" / "rank0_pid7.pickle", snapshot([trace], allocator.segments()))
    return allocator, [min(cut, end - 1), end]


STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50), st.integers(1, MIB)), min_size=20, max_size=60)


@given(steps=STEPS, cuts=st.tuples(st.integers(0, 30), st.integers(5, 40), st.integers(0, 30)))
@settings(max_examples=60)
def test_a_ring_buffer_dumped_twice_counts_once(tmp_path_factory: pytest.TempPathFactory, steps: list, cuts: tuple):
    folder = tmp_path_factory.mktemp("ring")
    allocator, (cut, end) = dumps(folder, steps, cuts)
    profile = ms.load(folder)
    ms.validate(profile)
    again = [one for one in allocator.entries[cut:end] if one["action"] == "alloc"]
    flagged = profile.blocks[(profile.blocks["flags"] & int(BlockFlag.REPEATED)) != 0]
    assert len(profile.blocks[profile.blocks["source"] == 0].query("flags >= 64")) == 0
    assert sorted(zip(flagged["addr"], flagged["size_bytes"], strict=True)) == sorted(
        (one["addr"], one["size"]) for one in again
    )
    growth = ms.collection_growth(profile).frame
    if not again:
        assert "repeats_until_ns" not in profile.sources["facts"][1]
        return
    allocated = [level for level, _, _ in allocator.levels]
    assert growth["end_bytes"].tolist() == [allocated[end - 1], allocated[-1]]
    assert growth["baseline_bytes"].tolist() == [0, allocated[end - 1]]
    assert growth["between_bytes"].tolist()[0] == 0
    assert role_growth(profile)["left_bytes"].tolist() == [allocated[-1]]
    new = allocated[end - 1 :]
    assert growth["peak_bytes"][1] == max(new)
    assert any("counted once" in caveat for caveat in ms.collection_growth(profile).caveats)
    assert "repeat those of" in profile.sources["warnings"][1][-1]


def test_two_processes_at_one_time_repeat_nothing(tmp_path: Path):
    for name, addr in (("a", 4096), ("b", 8192)):
        trace = [entry("alloc", addr, 10, 1), entry("alloc", addr + 4096, 20, 2), entry("alloc", 64 * MIB, 5, 3)]
        write(tmp_path / f"{name}.pickle", snapshot([trace], [segment(0, [], 128 * MIB)]))
    profile = ms.load(tmp_path)
    assert not any("repeats_until_ns" in facts for facts in profile.sources["facts"])
    assert not (profile.blocks["flags"] & int(BlockFlag.REPEATED)).any()


def test_equal_histories_without_times_may_be_different_steps(tmp_path: Path):
    for step in (1, 2):
        trace = [entry("alloc", 4096, 10, None), *free(4096, 10, None)]
        write(tmp_path / f"step{step}" / "rank0.pickle", snapshot([trace], [segment(4096, [])]))
    profile = ms.load(tmp_path)
    assert not (profile.blocks["flags"] & int(BlockFlag.REPEATED)).any()
    assert any("cannot be told" in caveat for caveat in ms.collection_growth(profile).caveats)
