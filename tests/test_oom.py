"""Failed allocations: what was alive, why, and the layers around it."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import SAMPLES
from dump_rows import T0, Row, cells, free, malloc, write_csv, write_db
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import profile_of

import memscope_nb as ms

MIB = 1 << 20
NOW = T0 + 10_000


def snapshot(event_id: int, name: str = "OOM_Snapshot", *, free: int = 50, total: int = 1000, **more: object) -> Row:
    figures = {
        "reserved": 400,
        "max_reserved": 500,
        "allocated": 300,
        "max_allocated": 350,
        "total": total,
        "free": free,
    }
    return cells(event_id, "SNAPSHOT", "SNAPSHOT", name, **(figures | {"device_rate": "95.000000"} | more))  # type: ignore[arg-type]


def trigger(event_id: int, size: int = 200, **more: object) -> Row:
    return cells(
        event_id, "OOM_DETAIL", "OOM_TRIGGER", "OOM_Trigger", func="halMemAlloc", req_size=size, flag=0, **more
    )  # type: ignore[arg-type]


def listed(event_id: int, ptr: int | str, size: int, *, kind: str = "TOP", pool: str = "PTA") -> Row:
    name = "OOM_TopAlloc" if kind == "TOP" else "OOM_RecentAlloc"
    row = cells(event_id, "OOM_DETAIL", f"OOM_{kind}_ALLOC", name)
    where = f"0x{ptr:x}" if isinstance(ptr, int) else ptr
    return (*row[:9], f"{{pool:{pool},ptr:{where},size:{size},timestamp:{T0}}}", *row[10:])


ROWS = [
    malloc(1, 0x1000, 600, life=1, used=600, process_used=700, device_used=900),
    malloc(2, 0x1000, 100, pool="PTA", life=2, used=100, total=400, owner="PTA@weight", stack="a.py(1): f\n"),
    malloc(3, 0x1100, 150, pool="PTA", life=3, used=250, total=400, owner="PTA@ops", stack="b.py(1): g\n"),
    free(4, 0x1100, 150, pool="PTA", life=3, used=100, total=400),
    malloc(5, 0x1100, 200, pool="PTA", life=4, used=300, total=400, owner="PTA@weight", stack="a.py(1): f\n"),
    malloc(6, 0x9000, 32, life=5, device=1, used=32),
    snapshot(7, stack="c.py(9): h\n"),
    trigger(8),
    listed(9, 0x1100, 200, kind="RECENT"),
    listed(10, 0x9000, 32, pool="HAL"),
    free(11, 0x1000, 100, pool="PTA", life=2, used=200, total=400),
    malloc(12, 0x1400, 5, pool="PTA", life=6, used=205, total=400, owner="PTA@ops"),
]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "memscope_dump_1.csv", ROWS)


def test_what_failed(dump: Path):
    report = ms.explain_oom(dump)
    assert len(report.frame) == 1
    row = report.frame.iloc[0].to_dict()
    assert {key: row[key] for key in ("pid", "device", "t_ns", "event_id", "func", "requested_bytes", "verdict")} == {
        "pid": 100, "device": "NPU:0", "t_ns": T0 + 8000, "event_id": 8, "func": "halMemAlloc", "requested_bytes": 200,
        "verdict": "device full",
    }  # fmt: skip
    assert (row["device_free_bytes"], row["device_total_bytes"], row["reserved_bytes"]) == (50, 1000, 400)
    assert (row["n_listed"], row["n_listed_alive"]) == (2, 2)
    assert (row["n_alive"], row["alive_bytes"]) == (2, 300)


def test_exactly_what_was_alive(dump: Path):
    report = ms.explain_oom(dump)
    alive = report.alive(0)
    assert alive["allocation_id"].tolist() == [1, 4, 2]  # neither the freed one, nor later ones, nor those of device 1
    assert alive["place"].tolist() == ["CANN@open", "PTA@weight", "PTA@weight"]
    assert alive.loc[1:, "site"].tolist() == ["a.py(1): f"] * 2
    owners = report.grouped(by="owner").drop(columns="pool").to_numpy().tolist()
    assert owners == [["CANN@open", 1, 600, 600], ["PTA@weight", 2, 300, 200]]
    assert report.grouped(by="stack")["size_bytes"].tolist() == [600, 300]
    assert report.grouped(by="size")["each_bytes"].tolist() == [600, 200, 100]
    with pytest.raises(ms.InputError, match="there are 1"):
        report.alive(1)
    with pytest.raises(ValueError, match="owner"):
        report.grouped(by="name")  # type: ignore[arg-type]


def test_pools_balance_with_their_counters(dump: Path):
    pools = ms.explain_oom(dump).pools
    assert pools[["pool", "n_blocks", "alive_bytes", "recorded_bytes", "rest_bytes"]].to_numpy().tolist() == [
        ["PTA", 2, 300, 300, 0], ["HAL", 1, 600, 600, 0],
    ]  # fmt: skip


def test_memory_from_before_the_recording_is_told(tmp_path: Path):
    rows = [malloc(1, 0x10, 100, pool="PTA", life=1, used=150, total=400), trigger(2)]
    report = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert report.pools["rest_bytes"].tolist() == [50]
    assert any("from before the recording" in caveat for caveat in report.caveats)


def test_ids_tell_apart_what_one_instant_does_not(tmp_path: Path):
    rows = [
        malloc(1, 0x10, 100, pool="PTA", life=1, t=NOW), malloc(2, 0x20, 10, pool="PTA", life=2, t=NOW),
        free(3, 0x20, 10, pool="PTA", life=2, t=NOW), trigger(4, t=NOW), free(5, 0x10, 100, pool="PTA", life=1, t=NOW),
        malloc(6, 0x30, 1, pool="PTA", life=3, t=NOW),
    ]  # fmt: skip
    report = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert report.alive()["allocation_id"].tolist() == [1]


def test_clean_up_rows_are_no_releases(tmp_path: Path):
    rows = [malloc(1, 0x10, 100, life=1), trigger(2), free(9, 0x10, 100, life=1, shadow="true")]
    assert ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows)).alive()["allocation_id"].tolist() == [1]


@pytest.mark.parametrize(
    ("free_bytes", "figures", "verdict"),
    [
        (50, {}, "device full"),
        (200, {}, "not capacity"),
        (50, {"reserved": 500, "allocated": 300}, "fragmented"),
        (50, {"reserved": 499, "allocated": 300}, "device full"),
        (50, {"reserved": "x", "allocated": 300}, "device full"),
        (None, {}, "undecided"),
    ],
)
def test_verdicts(tmp_path: Path, free_bytes: int | None, figures: dict[str, object], verdict: str):
    shots = [] if free_bytes is None else [snapshot(2, **({"free": free_bytes} | figures))]
    rows = [malloc(1, 0x10, 300, pool="PTA", life=1), *shots, trigger(3)]
    frame = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows)).frame
    assert frame["verdict"].tolist() == [verdict]


def test_a_snapshot_alone_is_a_failure_without_details(tmp_path: Path):
    rows = [malloc(1, 0x10, 300, pool="PTA", life=1), snapshot(2), snapshot(3, "epoch Start")]
    report = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert report.frame[["verdict", "event_id", "n_alive"]].to_numpy().tolist() == [["undecided", 2, 1]]
    assert "analysis='oom'" in report.frame.loc[0, "reason"]
    assert report.snapshots["name"].tolist() == ["OOM_Snapshot", "epoch Start"]
    assert report.snapshots["difference_bytes"].tolist() == [0, 0]
    assert report.snapshots["device_total_bytes"].tolist() == [1000, 1000]


def test_a_retry_is_no_second_failure(tmp_path: Path):
    later = {"t": NOW + 5_000_000}
    rows = [
        malloc(1, 0x10, 300, pool="PTA", life=1), trigger(2, t=NOW), trigger(3, **later), trigger(4, 999, **later),
        trigger(5, device=1, **later), trigger(6, t=NOW + 60 * 10**9),
    ]  # fmt: skip
    frame = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows)).frame
    assert frame.set_index("event_id")["retry_of"].isna().to_dict() == {2: True, 3: False, 4: True, 5: True, 6: True}
    assert frame.set_index("event_id").loc[3, "retry_of"] == 0


def test_snapshots_belong_to_their_own_failure(tmp_path: Path):
    rows = [
        malloc(1, 0x10, 300, pool="PTA", life=1), snapshot(2, free=1), trigger(3), snapshot(4, free=2), trigger(5),
        snapshot(6, free=3, device=1), trigger(7, t=NOW + 60 * 10**9),
    ]  # fmt: skip
    frame = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows)).frame.set_index("event_id")
    assert frame["device_free_bytes"].dropna().to_dict() == {3: 1, 5: 2, 6: 3}


def test_listed_blocks_that_the_rows_lack(tmp_path: Path):
    rows = [malloc(1, 0x10, 300, pool="PTA", life=1), trigger(2), listed(3, 0x50, 64), listed(4, 0x10, 300)]
    report = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert report.frame[["n_listed", "n_listed_alive"]].to_numpy().tolist() == [[2, 1]]
    assert any("killed before it wrote them" in caveat for caveat in report.caveats)


def test_without_a_failure_nothing_is_claimed(tmp_path: Path):
    report = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", [malloc(1, 0x10, 300, life=1)]))
    assert not len(report.frame)
    assert any(caveat.startswith("undecided: no failed allocation") for caveat in report.caveats)
    json.dumps(report.to_dict())


def test_other_recordings_lack_the_fact():
    with pytest.raises(ms.MissingFactError, match="analysis='oom'"):
        ms.explain_oom(profile_of([(0, 1, 2)]))
    with pytest.raises(ms.MissingFactError, match="events='alloc,free'"):
        ms.device_layers(profile_of([(0, 1, 2)]))


def test_numbers_that_are_none(tmp_path: Path):
    rows = [
        malloc(1, 0x10, 300, pool="PTA", life=1),
        cells(2, "OOM_DETAIL", "OOM_TRIGGER", "OOM_Trigger", func="<b>", req_size="9" * 29, flag="x"),
        listed(3, "zz", 300),
    ]
    report = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert report.frame["verdict"].tolist() == ["undecided"]
    assert "<b>" not in report._repr_html_()


def test_too_many_failures_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("memscope_nb.analysis.oom.MAX_FAILURES", 3)
    rows = [malloc(1, 0x10, 300, pool="PTA", life=1), *(trigger(i) for i in range(2, 12))]
    report = ms.explain_oom(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert report.frame["event_id"].tolist() == [2, 3, 4]
    assert any("10 failures were written" in caveat for caveat in report.caveats)


def test_database_gives_the_same_and_inputs_stay(tmp_path: Path, dump: Path):
    path = write_db(tmp_path / "db" / "memscope_dump_1.db", ROWS)
    before = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (dump, path)]
    one, other = ms.explain_oom(dump).to_dict(), ms.explain_oom(path).to_dict()
    assert json.loads(json.dumps(one)) == json.loads(json.dumps(other))
    assert [hashlib.sha256(file.read_bytes()).hexdigest() for file in (dump, path)] == before


# -- layers -----------------------------------------------------------------------------------------------------

LAYERS = ["outside_process_bytes", "outside_hal_bytes", "outside_pools_bytes", "cached_bytes", "allocated_bytes"]


def test_layers_of_a_device(dump: Path):
    frame = ms.device_layers(dump).frame
    here = frame[frame["device"] == "NPU:0"].set_index("t_ns")
    assert here.loc[T0 + 3000, [*LAYERS, "remainder_bytes"]].tolist() == [200, 100, 200, 150, 250, 0]
    assert here["outermost"].unique().tolist() == ["device"]
    other = frame[frame["device"] == "NPU:1"].iloc[0]
    assert other["outermost"] == "HAL"
    assert other[["outside_process_bytes", "outside_hal_bytes"]].isna().all()
    assert other[["hal_bytes", "outside_pools_bytes", "allocated_bytes"]].tolist() == [32, 32, 0]


COUNTERS = st.tuples(*(st.integers(0, 1000) for _ in range(5)))


@settings(max_examples=60)
@given(st.lists(COUNTERS, min_size=1, max_size=6), st.sets(st.sampled_from(["process_used", "device_used"])))
def test_layers_add_up_to_the_outermost_counter(tmp_path_factory, counters, known):
    rows = []
    for i, (device, process, hal, reserved, allocated) in enumerate(counters):
        around = {"process_used": process, "device_used": device}
        around = {key: value for key, value in around.items() if key in known}
        rows.append(malloc(2 * i + 1, 16 * i + 16, 1, life=2 * i + 1, used=hal + 1, **around))
        rows.append(malloc(2 * i + 2, 16 * i + 16, 1, pool="PTA", life=2 * i + 2, used=allocated + 1, total=reserved))
    path = write_csv(tmp_path_factory.mktemp("d") / "memscope_dump_1.csv", rows)
    frame = ms.device_layers(path, points=None).frame
    assert len(frame) == 2 * len(counters)
    layers = frame[LAYERS].fillna(0).astype(np.int64)
    assert (layers >= 0).all().all()
    assert (frame["remainder_bytes"] <= 0).all()
    last = frame.set_index("t_ns")
    for i, (device, process, hal, reserved, allocated) in enumerate(counters):
        row = last.loc[T0 + (2 * i + 2) * 1000]
        chain = [device] * ("device_used" in known) + [process] * ("process_used" in known)
        chain += [hal + 1, reserved, allocated + 1]
        steps = [outer - inner for outer, inner in itertools.pairwise(chain)]
        assert row["remainder_bytes"] == sum(min(step, 0) for step in steps)
        assert row[LAYERS].dropna().tolist() == [*(max(step, 0) for step in steps), allocated + 1]
        assert row[LAYERS].dropna().sum() + row["remainder_bytes"] == chain[0]


def test_layers_are_thinned_with_their_extremes(tmp_path: Path):
    rows = [malloc(i, 16 * i, 1, life=i, used=100 + i * 37 % 101 + i) for i in range(1, 400)]
    path = write_csv(tmp_path / "memscope_dump_1.csv", rows)
    full, thin = ms.device_layers(path, points=None).frame, ms.device_layers(path, points=5).frame
    assert len(thin) < len(full) == 399
    column = "outside_pools_bytes"
    assert (thin[column].min(), thin[column].max()) == (full[column].min(), full[column].max())


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not laid beside the checkout")
def test_sample_without_a_failure():
    report = ms.explain_oom(SAMPLES / "msmemscope" / "leaks.csv")
    assert not len(report.frame)
    layers = report.layers
    assert len(layers)
    assert (layers[LAYERS].fillna(0).sum(axis=1) + layers["remainder_bytes"] == layers["hal_bytes"]).all()
