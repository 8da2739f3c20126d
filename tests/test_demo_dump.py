"""The dump that the demo writes, against plain parsing, the simulator's books and our own reader."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

import memscope_nb as ms
from memscope_nb.analysis.quality import check_quality
from memscope_nb.demo import simulate_run, write_demo, write_demo_dump
from memscope_nb.demo.memscope_dump import HEADER
from memscope_nb.errors import InputError

NAMED = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
ATTR = re.compile(r"([a-z_A-Z]+):((?:torch\.Size\([^)]*\)|[^,}])*)")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Folder and truth by (leak, format)."""
    root = tmp_path_factory.mktemp("demo_dump")
    kinds = [(True, "csv"), (False, "csv"), (True, "db")]
    return {
        (leak, kind): (folder := root / f"{kind}_{leak}", write_demo_dump(folder, leak=leak, format=kind))
        for leak, kind in kinds
    }


@pytest.fixture(scope="module")
def profiles(dumps):
    return {key: ms.load(folder) for key, (folder, _) in dumps.items()}


def dump_file(folder: Path, suffix: str = "csv") -> Path:
    (path,) = folder.glob(f"*/device_*/dump/memscope_dump_*.{suffix}")
    return path


def read_plain(folder: Path) -> list[dict[str, object]]:
    """Rows by the csv module alone, attributes split by hand, in the order of their numbers."""
    with dump_file(folder).open(newline="", encoding="utf-8") as file:
        rows: list[dict[str, object]] = list(csv.DictReader(file))
    for row in rows:
        row["attrs"] = dict(ATTR.findall(str(row["Attr"])))
        row["id"], row["t"] = int(str(row["ID"])), int(str(row["Timestamp(ns)"]))
    return sorted(rows, key=lambda row: row["id"])


@pytest.fixture(scope="module")
def plain(dumps):
    return {leak: read_plain(dumps[leak, "csv"][0]) for leak in (True, False)}


def digests(folder: Path) -> list[tuple[str, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(p.relative_to(folder)), hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]


def tables(profile) -> dict[str, pd.DataFrame]:
    """Tables without what the format decides: order of categories, Attr cell, record numbers, file names."""
    found = {}
    for name in ("blocks", "totals", "marks", "ops", "accesses", "stacks", "events"):
        table = getattr(profile, name).drop(columns=["attrs", "row"] if name == "events" else [])
        found[name] = table.assign(**{c: table[c].astype(object) for c in table.select_dtypes("category")})
    return found


# -- files --------------------------------------------------------------------------------------------------------


def test_tree_and_header(dumps):
    folder, truth = dumps[True, "csv"]
    names = [name for name, _ in digests(folder)]
    own = truth.processes[0].folder
    assert re.fullmatch(r"msmemscope_41207_\d{14}_ascend", own)
    assert [re.sub(r"\d{14}", "TS", name.removeprefix(own)) for name in names] == [
        "/config.json",
        "/device_0/dump/memscope_dump_TS.csv",
        "/device_0/dump/python_trace_TS.csv",
    ]
    raw = dump_file(folder).read_bytes()
    assert raw.startswith(f"{NAMED}\n".encode())
    assert ",".join(HEADER) == NAMED
    assert b"\r" not in raw
    assert raw.endswith(b"\n")
    config = json.loads((folder / own / "config.json").read_text())
    assert (config["dumpEventType"], config["levelType"], config["dataFormat"]) == (15, 3, 0)


def test_same_seed_same_bytes(dumps, tmp_path):
    folder, truth = dumps[True, "csv"]
    assert write_demo_dump(tmp_path / "again") == truth
    assert digests(tmp_path / "again") == digests(folder)
    other = write_demo_dump(tmp_path / "other", seed=1, iterations=1)
    assert other.processes[0].peak_bytes != truth.processes[0].peak_bytes


def test_database_holds_the_same_rows(dumps, plain):
    folder, truth = dumps[True, "db"]
    path = dump_file(folder, "db")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        cursor = connection.execute("SELECT * FROM memscope_dump")
        assert tuple(column[0] for column in cursor.description) == HEADER
        rows = sorted(cursor, key=lambda row: row[0])
        calls = connection.execute("SELECT * FROM python_trace_41207").fetchall()
    assert len(rows) == len(plain[True])
    for row, text in zip(rows, plain[True], strict=True):
        name = text["Name"] if text["Event"] != "MSTX" else f'"{text["Name"]}"'
        stacks = [f'"{text[key]}"' if text[key] else "" for key in HEADER[10:]]
        cells = [text["ID"], text["Event"], text["Event Type"], name, *(text[key] for key in HEADER[4:9])]
        assert [str(cell) for cell in row[:9]] == cells
        assert json.loads(row[9]) == text["attrs"]
        assert list(row[10:]) == stacks
    assert len(calls) == truth.processes[0].n_python_calls
    assert {type(cell) for row in calls for cell in row[:3]} == {str}


def test_reached_through_write_demo(dumps, tmp_path):
    run = write_demo(tmp_path / "run", ranks=1, export="dump")
    assert run.iterations == 5
    assert digests(tmp_path / "run") == digests(dumps[True, "csv"][0])
    with pytest.raises(InputError, match="empty folder"):
        write_demo_dump(tmp_path / "run")
    with pytest.raises(ValueError, match="format"):
        write_demo_dump(tmp_path / "x", format="xml")
    with pytest.raises(ValueError, match="ranks"):
        write_demo_dump(tmp_path / "x", ranks=9)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


# -- rows, without our reader ---------------------------------------------------------------------------------------


def test_rows_are_those_of_the_simulator(dumps, plain):
    truth = dumps[True, "csv"][1].processes[0]
    rows = plain[True]
    assert Counter((row["Event"], row["Event Type"]) for row in rows) == truth.n_rows
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    assert ids[-1] > len(ids)  # numbers that no row shows
    assert {row["Process Id"] for row in rows} == {"41207"}
    assert {len(row["Timestamp(ns)"]) for row in rows} == {19}
    assert {row["Device Id"] for row in rows if row["Event"] == "SYSTEM"} == {"N/A"}
    assert {row["Device Id"] for row in rows if row["Event"] != "SYSTEM"} == {"0"}
    assert all(re.fullmatch("0x[0-9a-f]{16}", row["Ptr"]) for row in rows if row["attrs"].get("allocation_id"))


def test_keys_of_every_kind_of_row(plain):
    keys = defaultdict(set)
    for row in plain[True]:
        shadow = "shadow" in row["attrs"]
        keys[row["Event"], row["Event Type"] if row["Event"] != "ACCESS" else "", shadow].add(tuple(row["attrs"]))
    place, usage = ("allocation_id", "addr", "size"), ("process_used", "device_used")
    shadow = {(*place, "shadow")}
    assert keys["MALLOC", "HAL", False] == {(*place, "used", *usage, "owner", "page_type", "alloc_type")}
    assert keys["FREE", "HAL", False] == {(*place, "used", *usage)}
    assert keys["MALLOC", "PTA", False] == {(*place, "used", "total", *usage, "owner")}
    assert keys["FREE", "PTA", False] == {(*place, "used", "total", *usage)}
    assert keys["ACCESS", "", False] == {(*place, "type", "dtype", "shape")}
    assert keys["MALLOC", "HAL", True] == keys["FREE", "HAL", True] == keys["FREE", "PTA", True] == shadow
    assert keys["KERNEL_LAUNCH", "KERNEL_LAUNCH", False] == {("streamId", "taskId")}


def test_blocks_are_written_when_they_end(dumps):
    with dump_file(dumps[True, "csv"][0]).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    lives = [dict(ATTR.findall(row["Attr"])).get("allocation_id") for row in rows]
    runs = [life for life, before in zip(lives, [None, *lives], strict=False) if life and life != before]
    assert len(runs) == len(set(runs))  # all rows of a block in one piece
    assert [row["Event Type"] for row in rows[-4:]] == ["ACL_INIT", "START_TRACE", "STOP_TRACE", "ACL_FINI"]
    assert [int(row["ID"]) for row in rows] != sorted(int(row["ID"]) for row in rows)


def test_counters_are_the_sums_of_the_blocks(plain):
    for rows in plain.values():
        level = Counter()
        for row in rows:
            if row["Event"] not in ("MALLOC", "FREE"):
                continue
            attrs, pool = row["attrs"], row["Event Type"]
            if row["Event"] == "MALLOC" or "shadow" not in attrs:
                level[pool] += int(attrs["size"]) * (1 if row["Event"] == "MALLOC" else -1)
            if "shadow" not in attrs:
                assert int(attrs["used"]) == level[pool]
                assert int(attrs["process_used"]) <= int(attrs["device_used"])


def test_ranges_nest_and_end(plain):
    rows = [row for row in plain[True] if row["Event"] == "MSTX"]
    starts = [row["Name"] for row in rows if row["Event Type"] == "Range_start"]
    ends = [row["Name"] for row in rows if row["Event Type"] == "Range_end"]
    assert sorted(ends) == sorted(f"Range end from id {n}" for n in range(1, len(starts) + 1))
    assert starts.count("step start") == 5
    open_ops = defaultdict(list)
    for row in plain[True]:
        if row["Event Type"] == "ATEN_START":
            open_ops[row["Thread Id"]].append(row["Name"])
        elif row["Event Type"] == "ATEN_END":
            assert open_ops[row["Thread Id"]].pop() == row["Name"]
    assert len(open_ops) == 2
    assert not any(open_ops.values())


def test_stacks(dumps, plain):
    truth = dumps[True, "csv"][1]
    ids = {str(one) for found in truth.processes[0].leak_ids for one in found}
    leaks = [r for r in plain[True] if r["attrs"].get("allocation_id") in ids and r["Event"] == "MALLOC"]
    assert len(leaks) == 20
    assert {row["Call Stack(Python)"].split("\n")[0] for row in leaks} == {truth.leak_site}
    assert {row["Call Stack(Python)"][-1] for row in leaks} == {"\n"}
    backward = {row["Call Stack(Python)"] for row in plain[True] if row["Thread Id"] == "43819"} - {""}
    assert backward == {"NA"}


def test_the_run_is_that_of_the_profiler_demo(plain):
    """Same seed: every block of every collection is in the dump, at the same time and address."""
    there = {(row["t"], int(row["attrs"]["size"]), int(row["Ptr"], 16)) for row in plain[True]
             if (row["Event"], row["Event Type"]) == ("MALLOC", "PTA")}  # fmt: skip
    run = simulate_run(seed=0, ranks=1, iterations=5)
    blocks = {(b.alloc_ns, b.size_bytes, b.address) for c in run.collections for b in c.blocks}
    assert len(blocks) > 4_000
    assert blocks <= there


def test_repaired_program_differs_by_the_leak_alone(dumps, plain):
    """Same operators and blocks at the same times; all the rest of the PTA counter is the bytes that leaked."""
    truth = dumps[True, "csv"][1].processes[0]
    operators = [[(r["t"], r["Event Type"], r["Name"], r["Thread Id"]) for r in plain[leak]
                  if r["Event"] in ("OP_LAUNCH", "KERNEL_LAUNCH", "MSTX")] for leak in (True, False)]  # fmt: skip
    assert operators[0] == operators[1]
    changes = [{(r["t"], r["Event"]): r for r in plain[leak] if r["Event Type"] == "PTA"
                and "shadow" not in r["attrs"]} for leak in (True, False)]  # fmt: skip
    assert set(changes[0]) < set(changes[1])
    more = [row for key, row in changes[1].items() if key not in changes[0]]
    assert {row["Event"] for row in more} == {"FREE"}
    assert sum(int(row["attrs"]["size"]) for row in more) == sum(truth.leak_bytes)
    leaked = 0
    sizes = {row["t"]: int(row["attrs"]["size"]) for row in more}
    for key in sorted(changes[1]):
        if key in changes[0]:
            used = [int(one[key]["attrs"]["used"]) for one in changes]
            assert used[0] - used[1] == leaked
        else:
            leaked += sizes[key[0]]
    assert leaked == sum(truth.leak_bytes) > 0


def test_waste_has_its_labels(dumps, plain):
    """The rules of spec/msmemscope 9.1 and 9.2, written down once more, on the planted blocks."""
    found = labels(plain[True])
    truth = dumps[True, "csv"][1].processes[0]
    assert {label: len(ids) for label, ids in truth.waste.items()} == {
        "early_allocation": 50,
        "late_deallocation": 80,
        "temporary_idleness": 1,
    }
    for label, ids in truth.waste.items():
        assert ids <= found[label], label
    assert found["temporary_idleness"] == truth.waste["temporary_idleness"]
    assert not set().union(*truth.leak_ids) & found["late_deallocation"]


def labels(rows, threshold: int = 3_000) -> dict[str, set[int]]:
    """Labels by allocation id; the FREE rows of the clean-up at exit, which the original tool takes for real, aside."""
    found: dict[str, set[int]] = defaultdict(set)
    blocks: dict[int, list[tuple[str, int]]] = defaultdict(list)
    last: dict[str, int] = {}
    api, in_op = 0, False
    pending: set[str] = set()

    def close() -> None:
        last.update({event: api for event in pending if event != "ACCESS"})
        pending.clear()

    for row in rows:
        event, kind = row["Event"], row["Event Type"]
        if event == "OP_LAUNCH":
            in_op = kind == "ATEN_START"
            if in_op:
                api += 1
            else:
                close()
            continue
        if "shadow" in row["attrs"] or (event != "ACCESS" and (event not in ("MALLOC", "FREE") or kind != "PTA")):
            continue
        api += not in_op
        pending.add(event)
        number = int(row["attrs"]["allocation_id"])
        life = blocks[number]
        life.append((event, api))
        if not in_op:
            close()
        if life[0][0] != "MALLOC":
            continue
        born = life[0][1]
        if event == "ACCESS":
            if life[-2][0] == "ACCESS" and api - life[-2][1] > threshold:
                found["temporary_idleness"].add(number)
            first = next((at for what, at in life if what == "ACCESS" and at != born), None)
            if first is not None and "FREE" in last and born < last["FREE"] < first:
                found["early_allocation"].add(number)
        elif event == "FREE" and life[-2][0] == "ACCESS":
            at = life[-2][1]
            if "MALLOC" in last and at != api and at < last["MALLOC"] < api:
                found["late_deallocation"].add(number)
    return found


# -- our reader ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [(True, "csv"), (False, "csv"), (True, "db")])
def test_reader_finds_the_truth(dumps, profiles, key):
    truth, profile = dumps[key][1].processes[0], profiles[key]
    ms.validate(profile)
    (source,) = profile.sources.itertuples()
    assert (source.status, source.n_skipped, source.n_repaired) == ("ok", 0, 0)
    assert source.warnings == ()
    assert (source.pid, source.kind) == (truth.process.pid, f"memscope_{key[1]}")
    assert source.facts["events"] == ["alloc", "free", "launch", "access"]
    blocks = profile.blocks
    assert blocks["pool"].value_counts().to_dict() == truth.n_blocks
    is_open = blocks[blocks["free_ns"].isna()].groupby("pool", observed=True)["size_bytes"]
    assert is_open.size().to_dict() == truth.n_open
    assert is_open.sum().to_dict() == truth.open_bytes
    pools = profile.summary().set_index("pool")
    assert not pools["n_unexplained"].any()
    pta = ["peak_bytes", "peak_ns", "reserved_peak_bytes", "end_bytes"]
    assert pools.loc["PTA", pta].tolist() == [getattr(truth, name) for name in pta]
    assert pools.loc["HAL", "peak_bytes"] == truth.driver_peak_bytes
    steps = profile.marks[profile.marks["kind"] == "step"]
    assert list(zip(steps["start_ns"], steps["end_ns"], strict=True)) == list(truth.steps)
    assert (profile.ops["kind"] == "python").sum() == truth.n_python_calls
    assert (profile.accesses["block_id"] >= 0).all()
    quality = check_quality(profile).frame.iloc[0]
    assert quality["n_unexplained"] == quality["n_total_mismatch"] == 0
    assert quality["n_total_checked"] > 4_000
    assert quality["own_share"] > 0.3


def test_csv_and_database_give_the_same_tables(profiles):
    text, database = tables(profiles[True, "csv"]), tables(profiles[True, "db"])
    for name, table in text.items():
        assert len(table) > 40, name
        pd.testing.assert_frame_equal(table, database[name])


@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("leak", [True, False])
def test_leaks_between_marks(dumps, profiles, leak, start):
    truth = dumps[leak, "csv"][1]
    found = ms.check_leaks(profiles[leak, "csv"], mstx_info=truth.mark, start_index=start, pools="all")
    process = truth.processes[0]
    step = start + 1  # the marks follow the steps
    for pool in ("PTA", "HAL"):
        part = found.frame[found.frame["pool"] == pool] if len(found.frame) else found.frame
        assert set(part["allocation_id"]) == process.kept[pool][step]
    if not leak:
        assert not len(found.frame)
        return
    pta = found.frame[found.frame["pool"] == "PTA"]
    assert process.kept["PTA"][step] == process.leak_ids[step]
    assert pta["size_bytes"].sum() == process.leak_bytes[step]
    assert set(pta["freed"]) == {"never"}
    stacks = found.stacks[found.stacks["pool"] == "PTA"]
    assert stacks["site"].tolist() == [truth.leak_site]


@pytest.mark.parametrize("leak", [True, False])
def test_leaks_over_steps(dumps, profiles, leak):
    truth = dumps[leak, "csv"][1].processes[0]
    found = ms.step_leaks(profiles[leak, "csv"])
    growth = found.growth.set_index("pool").loc["PTA"]
    if not leak:
        assert truth.leak_bytes == (0,) * 5
        assert not len(found.frame)
        assert (growth["verdict"], growth["floor_drift_bytes"]) == ("steady", 0)
        return
    listed = truth.leak_ids[1:4]  # not of the first step, and the last one has no step after it
    assert set(found.frame["allocation_id"]) == set().union(*listed)
    assert found.frame.groupby("step")["size_bytes"].sum().tolist() == list(truth.leak_bytes[1:4])
    assert set(found.frame["freed"]) == {"never"}
    floors = found.steps.loc[found.steps["pool"] == "PTA", "floor_bytes"].diff().tolist()
    assert floors[2:] == list(truth.leak_bytes[1:4])
    assert (growth["verdict"], growth["floor_drift_bytes"]) == ("growing", sum(truth.leak_bytes[1:4]))


def test_several_ranks_and_seeds(tmp_path):
    for seed in (3, 4):
        folder = tmp_path / str(seed)
        truth = write_demo_dump(folder, seed=seed, ranks=2, iterations=2)
        profile = ms.load(folder)
        assert sorted(profile.sources["pid"]) == [one.process.pid for one in truth.processes]
        assert sorted(profile.blocks["device"].unique()) == ["NPU:0", "NPU:1"]
        assert set(profile.sources["status"]) == {"ok"}
        assert not profile.summary()["n_unexplained"].any()
        assert not any(one.waste["temporary_idleness"] for one in truth.processes)


def test_owners_name_what_the_memory_is_for(profiles):
    blocks = profiles[True, "csv"].blocks
    size = blocks.groupby(blocks["owner"].astype(object))["size_bytes"].sum()
    wanted = ["PTA@vllm@weights@ops", "PTA@vllm@kv_cache@attn", "PTA@fsdp2@weight@ops", "PTA@optimizer_state@ops",
              "PTA@fsdp2@activation@ops", "PTA@fsdp2@backward@gradient@ops", "PTA@ops@batch", "CANN@HCCL"]  # fmt: skip
    assert (size[wanted] > 0).all()
    assert blocks["owner"].isna().sum() == 2  # from before the recording
