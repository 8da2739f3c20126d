"""Memory snapshots: folders of steps and ranks, names, trees of many formats."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pandas as pd
import pytest
from test_pytorch_snapshot import (
    MIB,
    SIMPLE,
    block,
    entry,
    free,
    segment,
    snapshot,
    write,
)

import memscope_nb as ms
from memscope_nb.errors import InputError

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
