"""Memory that nobody uses: the original tool's labels, why ours differ, what it costs, labelled copies."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from conftest import SAMPLES
from dump_rows import T0, Row, cells, free, malloc, mark, write_csv, write_db
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import memscope_nb as ms
from memscope_nb.export.labelled_copy import labelled_copy

DUMPS = SAMPLES / "msmemscope"
needs_samples = pytest.mark.skipif(not DUMPS.is_dir(), reason="the public samples are not laid beside the checkout")
EARLY, LATE, IDLE = "early_allocation", "late_deallocation", "temporary_idleness"


def oracle() -> list[dict]:
    path = DUMPS / "expected.json"
    return json.loads(path.read_text())["inefficient"] if path.is_file() else []


def name_of(case: dict) -> str:
    return f"{Path(case['file']).name}-{'-'.join(map(str, case['params'].values()))}"


def found(what: object, **params: object) -> dict[tuple[int, int], list[str]]:
    frame = ms.find_inefficient(what, **params).frame  # type: ignore[arg-type]
    return {(row.pid, row.event_id): row.labels for row in frame.itertuples()}


# -- parity -----------------------------------------------------------------------------------------------------


@needs_samples
@pytest.mark.parametrize("kind", ["path", "profile", "database"])
@pytest.mark.parametrize("case", oracle(), ids=name_of)
def test_every_answer_of_the_original_tool(case: dict, kind: str, tmp_path: Path):
    path = DUMPS / case["file"]
    before = path.read_bytes()
    what: object = path
    if kind == "profile":
        what = ms.load(path)
    elif kind == "database" and path.suffix == ".csv":
        with path.open(newline="") as file:
            what = write_db(tmp_path / "a.db", [tuple(row) for row in csv.reader(file)][1:])
    if "raises" in case:
        start = re.escape(case["raises"]["message"].partition("[")[0])  # the list after it is in any order
        for compat in ("msmemscope", None):
            with pytest.raises(ValueError, match=f"^{start}"):
                ms.find_inefficient(what, **case["params"], compat=compat)
        return
    result = ms.find_inefficient(what, **case["params"], compat="msmemscope")
    rows = [
        {
            "pid": r.pid,
            "event_id": r.event_id,
            "file_row": r.row + (what != path and kind == "database"),
            "labels": r.labels,
        }
        for r in result.frame.itertuples()
    ]
    assert rows == case["inefficient"]
    copy = tmp_path / f"memscope_dump_1{path.suffix}"
    labelled_copy(what, copy, found=result)
    events = ms.load(copy).events.merge(ms.load(copy).sources[["source", "pid"]], on="source")
    attrs = {(r.pid, r.event_id): r.attrs for r in events[events["event"] == "MALLOC"].itertuples()}
    for entry in case["attr_after_write_back"]:
        assert attrs[entry["pid"], entry["event_id"]] == entry["attr"]
    assert path.read_bytes() == before
    json.dumps(result.to_dict())


@needs_samples
def test_only_labelled_rows_of_a_copy_change(tmp_path: Path):
    """The tool writes into its input and turns every line end into CRLF; the copy has the bytes of the dump."""
    path = DUMPS / "synthetic/syn09_ineff_all_labels.csv"
    (written,) = labelled_copy(path, tmp_path / "copy.csv")
    old, new = path.read_bytes().splitlines(keepends=True), written.read_bytes().splitlines(keepends=True)
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][0].startswith(b"6,MALLOC")
    assert changed[0][1] == changed[0][0].replace(b"}", f",inefficient_type:{EARLY},{LATE}}}".encode(), 1)


def literal(rows: list[Row], threshold: int) -> dict[tuple[int, int], list[str]]:
    """The rules as spec 9.1 and 9.2 word them, one row after the other."""
    states: dict[tuple[str, str], dict] = {}
    labels: dict[tuple[int, int], list[str]] = {}
    for row in sorted(rows, key=lambda r: int(r[0])):
        event_id, event, kind, pid, attr = int(row[0]), row[1], row[2], row[5], row[9]
        values = dict(part.split(":") for part in attr.strip("{}").split(",")) if attr else {}
        if event == "OP_LAUNCH":
            family = "PTA" if kind.startswith("ATEN") else "ATB"
        elif event == "ACCESS":
            family = "PTA" if values.get("type") == "PTA" else "ATB"
        elif kind in ("PTA", "ATB"):
            family = kind
        else:
            continue
        state = states.setdefault(
            (family, pid), {"api": 0, "in_op": False, "malloc": None, "free": None, "pending": [], "blocks": {}}
        )

        def close(state: dict = state) -> None:
            for name, key in (("MALLOC", "malloc"), ("FREE", "free")):
                if name in state["pending"]:
                    state[key] = state["api"]
            state["pending"] = []

        if event == "OP_LAUNCH":
            state["in_op"] = kind.endswith("START")
            state["api"] += kind.endswith("START")
            if not state["in_op"]:
                close()
            continue
        state["api"] += not state["in_op"]
        block = state["blocks"].setdefault(values.get("allocation_id", "-1"), {"list": [], "labels": []})
        block["list"].append((event, state["api"], event_id))
        state["pending"].append(event)
        if not state["in_op"]:
            close()
        check(block, state, threshold)
        if block["labels"]:
            labels[int(pid), block["list"][0][2]] = block["labels"]
    return labels


def check(block: dict, state: dict, threshold: int) -> None:
    events = block["list"]
    event, api, _ = events[-1]
    born = events[0][1]
    if events[0][0] != "MALLOC":
        return
    hits = []
    if event == "ACCESS":
        if len(events) > 1 and events[-2][0] == "ACCESS" and api - events[-2][1] > threshold:
            hits.append(IDLE)
        first = next((a for e, a, _ in events if e == "ACCESS" and a != born), None)
        if state["free"] is not None and first is not None and born < state["free"] < first:
            hits.append(EARLY)
    if event == "FREE" and state["malloc"] is not None and events[-2][0] == "ACCESS":
        last = events[-2][1]
        if last != api and last < state["malloc"] < api:
            hits.append(LATE)
    block["labels"] += [name for name in hits if name not in block["labels"]]


def access(event_id: int, ptr: int, life: int | None, *, pool: str | None = "PTA", **more: object) -> Row:
    own = ({} if life is None else {"allocation_id": life}) | ({} if pool is None else {"type": pool})
    return cells(event_id, "ACCESS", "READ", "x", ptr=ptr, **own, size=8, **more)  # type: ignore[arg-type]


ANY_ROW = st.tuples(
    st.sampled_from(["start", "end", "malloc", "malloc", "free", "access", "access", "access"]),
    st.sampled_from(["PTA", "PTA", "ATB", "HAL"]),
    st.one_of(st.integers(1, 4), st.integers(1, 4), st.none()),
    st.sampled_from([100, 100, 200]),
)


@given(st.lists(ANY_ROW, max_size=50), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_rules_row_by_row(tmp_path: Path, what: list, threshold: int, random):
    """Any rows at all, nested and broken operators included, in any order of the file."""
    rows = []
    for i, (kind, pool, life, pid) in enumerate([*what, ("malloc", "HAL", 9, 100)], 1):
        address = 4096 * (life or 7)
        if kind in ("start", "end"):
            rows.append(cells(i, "OP_LAUNCH", f"{'ATB' if pool == 'ATB' else 'ATEN'}_{kind.upper()}", "x", pid=pid))
        elif kind == "access":
            rows.append(access(i, address, life, pool=None if pool == "HAL" else pool, pid=pid))
        else:
            make = malloc if kind == "malloc" else free
            rows.append(make(i, address, 8, pool=pool, life=life, pid=pid))
    random.shuffle(rows)
    path = write_csv(tmp_path / "a.csv", rows)
    before = path.read_bytes()
    assert found(path, idle_threshold=threshold, compat="msmemscope") == literal(rows, threshold)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "params",
    [
        {"mem_size": True}, {"mem_size": 1.5}, {"idle_threshold": False}, {"idle_threshold": -3}, {"unit": "s"},
        {"inefficient_type": ["x"]}, {"inefficient_type": 7}, {"compat": "x"}, {"wall_ns": -1}, {"wall_percent": 0},
        {"wall_percent": 100}, {"wall_ns": {"x": 1}}, {"compat": "msmemscope", "wall_ns": 1},
        {"compat": "msmemscope", "unit": "ns"},
    ],
)  # fmt: skip
def test_parameters_are_checked_before_anything_is_read(params: dict):
    with pytest.raises(ValueError, match=r"must|no label|Invalid|compat"):
        ms.find_inefficient("/does/not/exist", **params)


# -- where the default is right ---------------------------------------------------------------------------------


class Recording:
    """Writes rows one after the other; blocks by name."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.lives: dict[str, int] = {}

    @property
    def next(self) -> int:
        return len(self.rows) + 1

    def start(self, name: str, **more: object) -> None:
        self.rows.append(cells(self.next, "OP_LAUNCH", "ATEN_START", name, **more))

    def end(self, name: str, **more: object) -> None:
        self.rows.append(cells(self.next, "OP_LAUNCH", "ATEN_END", name, **more))

    def op(self, name: str, *steps: str, **more: object) -> None:
        """One operator; a step is ``+a`` (allocate), ``-a`` (release) or ``a`` (use), with an optional size."""
        self.start(name, **more)
        self.do(*steps, **more)
        self.end(name, **more)

    def do(self, *steps: str, **more: object) -> None:
        for text in steps:
            block, _, size = text.lstrip("+-").partition(":")
            if text[0] == "+":
                self.lives[block] = self.next
            address, life = 4096 * self.lives[block], self.lives[block]
            pool = {"pool": "PTA", "life": life, **more}
            if text[0] == "+":
                self.rows.append(malloc(self.next, address, int(size or 8), **pool))  # type: ignore[arg-type]
            elif text[0] == "-":
                self.rows.append(free(self.next, address, int(size or 8), **pool))  # type: ignore[arg-type]
            else:
                self.rows.append(access(self.next, address, life, **more))

    def labels(self, folder: Path, **params: object) -> dict[str, list[str]]:
        got = found(write_csv(folder / "r.csv", self.rows), **params)
        return {name: got[100, life] for name, life in self.lives.items() if (100, life) in got}


@needs_samples
@pytest.mark.parametrize(
    ("file", "threshold"),
    [("syn04_ineff_early", 3000), ("syn05_ineff_late", 3000), ("syn06_ineff_idle", 2), ("syn06_ineff_idle", 6),
     ("syn07_ineff_atb_pta", 3000), ("syn08_ineff_two_pids", 3000), ("syn09_ineff_all_labels", 3)],
)  # fmt: skip
def test_with_one_thread_and_device_the_labels_are_the_same(file: str, threshold: int):
    path = DUMPS / f"synthetic/{file}.csv"
    assert found(path, idle_threshold=threshold) == found(path, idle_threshold=threshold, compat="msmemscope")


def test_a_release_on_another_device_frees_nothing_here(tmp_path: Path):
    r = Recording()
    r.op("init", "+z", "z", device=1)
    r.op("make", "+a")
    r.op("drop", "-z", device=1)
    r.op("use", "a")
    assert r.labels(tmp_path, compat="msmemscope") == {"a": [EARLY], "z": [LATE]}
    assert r.labels(tmp_path) == {}


def test_threads_do_not_cut_each_others_operators(tmp_path: Path):
    """The end of another thread's operator closes this one for the tool: its own release then lies in between."""
    r = Recording()
    r.op("init", "+z")
    r.start("big", tid=1)
    r.do("+a", tid=1)
    r.op("other", tid=2)
    r.do("-z", "a", tid=1)  # still inside of big: nothing was allocated too early
    r.end("big", tid=1)
    assert r.labels(tmp_path, compat="msmemscope") == {"a": [EARLY]}
    assert r.labels(tmp_path) == {}


def test_nested_operators_are_one_call(tmp_path: Path):
    """An idle time of one operator with ten inner ones is no long one."""
    r = Recording()
    r.op("make", "+a", "a")
    r.start("big")
    for _ in range(10):
        r.op("inner")
    r.end("big")
    r.op("use", "a")
    assert r.labels(tmp_path, idle_threshold=5, compat="msmemscope") == {"a": [IDLE]}
    assert r.labels(tmp_path, idle_threshold=5) == {}
    assert r.labels(tmp_path, idle_threshold=1) == {"a": [IDLE]}


def test_a_clean_up_row_is_no_release(tmp_path: Path):
    r = Recording()
    r.op("make", "+a", "a")
    r.op("grow", "+b")
    r.rows.append(free(r.next, 4096 * r.lives["a"], 8, pool="PTA", life=r.lives["a"], shadow="true"))
    assert r.labels(tmp_path, compat="msmemscope") == {"a": [LATE]}
    assert r.labels(tmp_path) == {}


def test_files_without_allocation_ids(tmp_path: Path):
    """The tool lumps all their blocks together; a block is what lives at an address."""
    rows = [
        malloc(1, 16, 8, pool="PTA"), access(2, 16, None), malloc(3, 32, 8, pool="PTA"), free(4, 16, 8, pool="PTA"),
        access(5, 32, None), free(6, 32, 8, pool="PTA"),
    ]  # fmt: skip
    path = write_csv(tmp_path / "a.csv", rows)
    assert found(path) == {(100, 1): [LATE], (100, 3): [EARLY]}
    assert found(path, compat="msmemscope") != found(path)


def test_thresholds_in_nanoseconds(tmp_path: Path):
    r = Recording()
    r.op("make", "+a", "a")  # ends at 4 µs
    for _ in range(3):
        r.op("other")
    r.op("use", "a")  # begins at 11 µs
    assert r.labels(tmp_path, idle_threshold=6999, unit="ns") == {"a": [IDLE]}
    assert r.labels(tmp_path, idle_threshold=7000, unit="ns") == {}
    assert r.labels(tmp_path, idle_threshold=1, mem_size=9) == {}
    assert r.labels(tmp_path, idle_threshold=1, inefficient_type=EARLY) == {}


def test_insights_filter_by_time(tmp_path: Path):
    """The longest pause lies between accesses that follow each other; Insight takes last minus first."""
    rows = [
        malloc(1, 16, 8, pool="PTA", life=1),
        *(access(i, 16, 1) for i in (11, 41, 71)),
        free(91, 16, 8, pool="PTA", life=1),
    ]
    other = [
        malloc(2, 16, 8, pool="PTA", life=1, pid=200),
        access(5, 16, 1, pid=200),
        cells(101, "SYSTEM", "STOP_TRACE", pid=200),
    ]
    path = write_csv(tmp_path / "a.csv", [*rows, *other])
    assert found(path, wall_ns=29_999, inefficient_type=IDLE) == {(100, 1): [IDLE]}
    assert found(path, wall_ns=30_000, inefficient_type=IDLE) == {}
    one = {"wall_ns": {EARLY: 9_999, LATE: 19_999}}
    assert found(path, **one) == {(100, 1): [EARLY, LATE], (200, 2): [LATE]}  # the second to the end of the data
    # Life 90 µs: 10, 20 and 30 µs are 11.1, 22.2 and 33.3 percent of it.
    for percent, wanted in ((11, [EARLY, IDLE, LATE]), (12, [IDLE, LATE]), (23, [IDLE]), (34, None)):
        assert found(path, wall_percent=percent).get((100, 1)) == wanted


def test_missing_facts_are_named(tmp_path: Path):
    path = write_csv(tmp_path / "a.csv", [malloc(1, 16, 8, pool="PTA")])
    with pytest.raises(ms.MissingFactError, match="access"):
        ms.find_inefficient(path)
    assert found(path, compat="msmemscope") == {}
    from tiny import profile_of

    with pytest.raises(ms.MissingFactError, match="access"):
        ms.find_inefficient(profile_of([(T0, None, 8)]))


# -- costs ------------------------------------------------------------------------------------------------------

CALL = st.tuples(
    st.lists(st.tuples(st.sampled_from("+-.."), st.integers(0, 5)), max_size=4), st.sampled_from([100, 200])
)


@given(st.lists(CALL, min_size=1, max_size=14), st.randoms(use_true_random=False), st.booleans())
@settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_costs_by_definition_in_any_order(tmp_path: Path, calls: list, random, in_database: bool):
    """Bytes times seconds and the fall of the peak, for each instant; processes apart; rows in any order."""
    rows, live, blocks, i = [], {}, {}, 0
    for steps, pid in calls:
        rows.append(cells(i := i + 1, "OP_LAUNCH", "ATEN_START", "x", pid=pid))
        for kind, slot in steps:
            key = (pid, slot)
            i += 1
            if kind == "+" and key not in live:
                live[key] = i
                blocks[pid, i] = [64 * (1 + slot), i, None]
                rows.append(malloc(i, 4096 * (slot + 1), 64 * (1 + slot), pool="PTA", life=i, pid=pid))
            elif kind == "-" and key in live:
                blocks[pid, live[key]][2] = i
                rows.append(free(i, 4096 * (slot + 1), 64, pool="PTA", life=live.pop(key), pid=pid))
            elif kind == "." and key in live:
                rows.append(access(i, 4096 * (slot + 1), live[key], pid=pid))
        rows.append(cells(i := i + 1, "OP_LAUNCH", "ATEN_END", "x", pid=pid))
    last = {pid: max((int(row[0]) for row in rows if row[5] == str(pid)), default=0) for pid in (100, 200)}
    last[100] = i + 2
    rows += [malloc(i + 1, 9, 1, life=i + 1), access(i + 2, 9, i + 1, pool="ATB")]
    random.shuffle(rows)
    path = (write_db if in_database else write_csv)(tmp_path / f"a.{'db' if in_database else 'csv'}", rows)
    before = path.read_bytes()
    profile = ms.load(path)
    result = ms.find_inefficient(profile, idle_threshold=1)
    assert path.read_bytes() == before
    path.unlink()
    again = ms.find_inefficient(
        ms.load(write_csv(tmp_path / "b.csv", sorted(rows, key=lambda r: int(r[0])))), idle_threshold=1
    )
    assert found_in(result) == found_in(again)
    assert {key[:2]: key[2] for key in found_in(result)} == literal(rows, 1)  # one thread, device and pool: the same
    assert result.frame["peak_gain_bytes"].is_monotonic_decreasing
    for row in result.frame.itertuples():
        size = blocks[row.pid, row.event_id][0]
        own = {key: block for key, block in blocks.items() if key[0] == row.pid}
        end = last[row.pid]
        level = np.zeros(end + 1, dtype=np.int64)
        for n_bytes, born, gone in own.values():
            level[born : gone or end + 1] += n_bytes
        idle = row.early_ns + row.late_ns + row.idle_ns
        assert row.wasted_byte_s == pytest.approx(size * idle / 1e9)
        assert 0 <= row.peak_gain_bytes <= size
        if row.labels == [EARLY]:
            low, high = row.event_id, row.event_id + row.early_ns // 1000
            without = level.copy()
            without[low:high] -= size
            assert row.peak_gain_bytes == level.max() - without.max()
    for row in result.peaks.itertuples():
        alone = result.frame.loc[result.frame["pid"] == row.pid, "peak_gain_bytes"]
        assert row.peak_gain_bytes >= alone.max()
        assert row.peak_without_idle_bytes >= 0


def found_in(result) -> list:
    return sorted((r.pid, r.event_id, r.labels, r.wasted_byte_s, r.peak_gain_bytes) for r in result.frame.itertuples())


def test_ranking(tmp_path: Path):
    r = Recording()
    r.op("init", "+z:100", "+y:100")
    r.op("make", "+long:8", "+peak:1000")
    r.op("drop", "-z:100", "-y:100")
    r.op("use", "peak")
    for _ in range(500):
        r.op("other")
    r.op("use", "long")
    result = ms.find_inefficient(write_csv(tmp_path / "a.csv", r.rows))
    assert result.frame["event_id"].tolist() == [r.lives["peak"], r.lives["long"]]
    assert result.frame["peak_gain_bytes"].tolist() == [200, 8]
    assert result.frame["rank_by_waste"].tolist() == [2, 1]
    (row,) = result.peaks.itertuples()
    assert (row.peak_bytes, row.peak_without_idle_bytes) == (1208, 1008)
    assert result.by_stack["n_blocks"].sum() == 2
    json.dumps(result.to_dict())
    assert "early_allocation" in result._repr_html_()
    assert any("no recorded access" in text for text in result.caveats)


# -- labelled copies --------------------------------------------------------------------------------------------


def two_processes() -> list[Row]:
    rows = []
    for pid in (100, 200):
        r = Recording()
        r.op("init", "+z")
        r.op("make", "+a")
        r.op("drop", "-z")
        r.op("use", "a")
        rows += [(*row[:5], str(pid), str(pid), *row[7:]) for row in r.rows]
    return rows


@pytest.mark.parametrize("source", ["csv", "db"])
@pytest.mark.parametrize("target", ["csv", "db"])
def test_copies_in_either_format(tmp_path: Path, source: str, target: str):
    stack = 'train.py(1): f\n7,MALLOC,PTA,N/A,1780000000000007000,100,100,0,0x1,"{size:8}",,\nmain.py(2): <module>\n'
    rows = [*two_processes(), mark(90, "some, mark"), malloc(91, 64, 8, stack=stack, owner="a,b:c")]
    path = (write_db if source == "db" else write_csv)(tmp_path / f"in.{source}", rows)
    before = path.read_bytes()
    profile = ms.load(path)
    wanted = found(profile)
    assert sorted(wanted) == [(100, 5), (200, 5)]
    (written,) = labelled_copy(profile, tmp_path / f"memscope_dump_7.{target}")
    assert path.read_bytes() == before
    again = ms.load(written)
    assert found(again) == wanted
    columns = ["event_id", "event", "type", "name", "t_ns", "tid", "device", "addr", "size_bytes", "owner"]
    for one, two in zip(profile.events[columns].values.tolist(), again.events[columns].values.tolist(), strict=True):
        assert str(one) == str(two)
    labelled = again.events[again.events["inefficient_type"].notna()]
    assert labelled["event_id"].tolist() == [5, 5]
    assert set(labelled["inefficient_type"]) == {EARLY}
    stacks = [[again.frames(i) for i in again.events["stack_id"] if i >= 0]]
    stacks += [[profile.frames(i) for i in profile.events["stack_id"] if i >= 0]]
    # In CSV a line of a stack that looks like a row gets a blank: the tool's own files cannot tell them apart.
    assert str(stacks[0]).replace(", MALLOC", ",MALLOC") == str(stacks[1])


def test_tables_of_insight(tmp_path: Path):
    (written,) = labelled_copy(write_csv(tmp_path / "a.csv", two_processes()), tmp_path / "memscope_dump_7.db")
    with closing(sqlite3.connect(written)) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(memory_block)")]
        blocks = connection.execute("SELECT * FROM memory_block ORDER BY processId, startTimestamp").fetchall()
        totals = connection.execute("SELECT * FROM memory_allocation").fetchall()
    assert names == [
        "id", "deviceId", "addr", "size", "startTimestamp", "endTimestamp", "eventType", "owner", "attr", "processId",
        "threadId", "firstAccessTimestamp", "lastAccessTimestamp", "maxAccessInterval",
    ]  # fmt: skip
    z, a = blocks[:2]
    assert z[1:8] == ("0", f"0x{4096 * 2:016x}", 8, T0 + 2000, T0 + 8000, "PTA", "")
    assert z[9:] == (100, 100, None, None, None)
    assert a[1:8] == ("0", f"0x{4096 * 5:016x}", 8, T0 + 5000, T0 + 12000, "PTA", "")
    assert "early_allocation" in a[8]
    assert a[9:] == (100, 100, T0 + 11000, T0 + 11000, None)
    assert [row[1] for row in totals][-1] == 16  # both processes hold one block
    assert {row[2:] for row in totals} == {(0, "0", "PTA")}


def test_labels_are_added_to_those_that_are_there(tmp_path: Path):
    """The tool truncates values with commas and leaves old labels on others."""
    rows = two_processes()
    for i, row in enumerate(rows):
        if row[1] == "MALLOC" and row[0] == "5":
            text = f",owner:a,b:c,inefficient_type:{IDLE},{LATE},page_type:x}}"
            rows[i] = (*row[:9], row[9].replace("}", text), *row[10:])
    path = write_csv(tmp_path / "a.csv", rows)
    (written,) = labelled_copy(path, tmp_path / "b.csv")
    text = written.read_text()
    assert text.count(f"owner:a,b:c,inefficient_type:{IDLE},{LATE},{EARLY},page_type:x}}") == 2
    assert len(text) == len(path.read_text()) + 2 * len(f",{EARLY}")
    assert labelled_copy(written, tmp_path / "c.csv")[0].read_bytes() == written.read_bytes()


def test_the_dump_is_never_a_target(tmp_path: Path):
    path = write_csv(tmp_path / "a.csv", two_processes())
    before = path.read_bytes()
    (tmp_path / "link.csv").symlink_to(path)
    (tmp_path / "other.csv").write_text("mine")
    for target in (path, tmp_path / "link.csv", tmp_path):
        with pytest.raises(ms.InputError, match="never changed"):
            labelled_copy(path, target, force=True)
    with pytest.raises(ms.InputError, match="force"):
        labelled_copy(path, tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_text() == "mine"
    labelled_copy(path, tmp_path / "other.csv", force=True)
    assert EARLY in (tmp_path / "other.csv").read_text()
    (folder_copy,) = labelled_copy(path, tmp_path / "copies")
    assert folder_copy == tmp_path / "copies/a.csv"
    profile = ms.load(path)
    path.rename(tmp_path / "moved.csv")
    with pytest.raises(ms.InputError, match="not there any more"):
        labelled_copy(profile, tmp_path / "d.csv")
    assert (tmp_path / "moved.csv").read_bytes() == before
    from tiny import profile_of

    with pytest.raises(ms.InputError, match="msMemScope"):
        labelled_copy(profile_of([(T0, None, 8)]), tmp_path / "d.csv", found=ms.find_inefficient(profile))
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
