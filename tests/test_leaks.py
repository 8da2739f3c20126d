"""Leaks between marks and over steps: the original tool's answers, and why ours differ."""

from __future__ import annotations

import json
import time as clock
from pathlib import Path

import pandas as pd
import pytest
from conftest import SAMPLES
from dump_rows import T0, Row, cells, free, malloc, mark, write_csv, write_db
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memscope_nb as ms

DUMPS = SAMPLES / "msmemscope"
needs_samples = pytest.mark.skipif(not DUMPS.is_dir(), reason="the public samples are not laid beside the checkout")


def oracle() -> list[dict]:
    path = DUMPS / "expected.json"
    return json.loads(path.read_text())["leaks"] if path.is_file() else []


def name_of(case: dict) -> str:
    return f"{Path(case['file']).stem}-{case['params']['mstx_info']}-{case['params']['start_index']}"


# -- parity -----------------------------------------------------------------------------------------------------


@needs_samples
@pytest.mark.parametrize("case", oracle(), ids=name_of)
def test_every_answer_of_the_original_tool(case: dict):
    path = DUMPS / case["file"]
    if "raises" in case:
        kind = {"TypeError": TypeError, "ValueError": ValueError}[case["raises"]["type"]]
        with pytest.raises(kind) as error:
            ms.check_leaks(path, **case["params"], compat="msmemscope")
        assert str(error.value) == case["raises"]["message"]
        return
    for what in (path, ms.load(path)):
        result = ms.check_leaks(what, **case["params"], compat="msmemscope")
        judged = result.checks.loc[result.checks["verdict"] != "undecided", "device"]
        found: dict[str, list] = {device: [] for device in judged}
        for row in result.frame.itertuples():
            entry = {"event_id": row.event_id, "addr": row.ptr_text, "size_bytes": row.size_bytes}
            found[row.device].append(entry | {"size_mib": row.size_bytes / (1 << 20)})
        assert found == case["leaks_by_device"]
        told = [text for text in result.messages if text.startswith(("INFO", "ERROR"))]
        assert told == case["other_messages"]
        assert [text for text in result.messages if text not in told] == case["result_lines"]


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"mstx_info": 7}, TypeError),
        ({"mstx_info": "  "}, ValueError),
        ({"mstx_info": "x", "start_index": -1}, ValueError),
        ({"mstx_info": "x", "start_index": 1.0}, ValueError),
        ({"mstx_info": "x", "start_index": True}, ValueError),
        ({"mstx_info": "x", "compat": "other"}, ValueError),
    ],
)
def test_parameters_are_checked_before_anything_is_read(params: dict, kind: type[Exception]):
    with pytest.raises(kind):
        ms.check_leaks("/does/not/exist", **params)


def test_the_original_tool_reads_one_csv_file(tmp_path: Path):
    path = write_db(tmp_path / "a.db", [malloc(1, 16, 8)])
    with pytest.raises(ValueError, match=r"\.csv"):
        ms.check_leaks(path, mstx_info="x", compat="msmemscope")
    with pytest.raises(FileNotFoundError):
        ms.check_leaks(tmp_path / "absent.csv", mstx_info="x", compat="msmemscope")
    with pytest.raises(ms.InputError):
        ms.check_leaks(tmp_path / "absent.csv", mstx_info="x")
    assert ms.check_leaks(path, mstx_info="x").checks["verdict"].tolist() == ["undecided"]


def test_rows_that_stop_the_original_tool(tmp_path: Path):
    marks = [mark(i, "m") for i in (1, 5, 9)]
    path = write_csv(tmp_path / "a.csv", [*marks, cells(2, "MALLOC", "HAL", ptr=16)])
    with pytest.raises(TypeError, match="no Attr"):
        ms.check_leaks(path, mstx_info="m", compat="msmemscope")
    path = write_csv(tmp_path / "b.csv", [*marks, cells(2, "MALLOC", "HAL", ptr=16, addr=16)])
    with pytest.raises(ValueError, match="no size"):
        ms.check_leaks(path, mstx_info="m", compat="msmemscope")


# -- where the default is right ---------------------------------------------------------------------------------


def check(path: Path, rows: list[Row], **params: object) -> tuple[ms.MemoryProfile, pd.DataFrame]:
    write_csv(path, rows)
    result = ms.check_leaks(path, **params)  # type: ignore[arg-type]
    return result, result.frame


def found(path: Path, **params: object) -> dict[tuple[int, str, int], tuple[int, str]]:
    """(pid, device, event) of each leak to its size and whether it was freed."""
    frame = ms.check_leaks(path, **params).to_frame()  # type: ignore[arg-type]
    return {(r.pid, r.device, r.event_id): (r.size_bytes, r.freed) for r in frame.itertuples()}


@needs_samples
def test_late_is_told_from_never():
    """The tool lists ID 12 like ID 13, although it is freed right after C."""
    got = found(DUMPS / "synthetic/syn01_hal_leak_basic.csv", mstx_info="leak_test")
    assert got == {(100, "NPU:0", 12): (2097152, "late"), (100, "NPU:0", 13): (3145728, "never")}


@needs_samples
def test_one_release_does_not_clear_two_generations():
    """Addresses are used again: the tool drops ID 14 with the release of ID 15, whose allocation id is another."""
    got = found(DUMPS / "synthetic/syn02_hal_addr_reuse.csv", mstx_info="rng")
    assert {event for _, _, event in got} == {13, 14, 19}
    assert [got[100, "NPU:0", event][1] for event in (13, 14, 19)] == ["never", "never", "late"]


@needs_samples
def test_processes_of_a_device_are_kept_apart():
    """The tool reports one of three leaks on device 0: PID 300 uses the addresses and IDs of PID 100.

    On device 1 it reports ID 14, whose release names no device; PID 300 has no marks and is judged by PID 100's.
    """
    path = DUMPS / "synthetic/syn03_devices_pids.csv"
    assert found(path, mstx_info="m") == {
        (100, "NPU:0", 11): (1000, "never"),
        (100, "NPU:0", 13): (2000, "never"),
        (300, "NPU:0", 13): (3000, "never"),
        (200, "NPU:1", 11): (5000, "never"),
    }
    checks = ms.check_leaks(path, mstx_info="m").checks.set_index("pid")
    assert checks["verdict"].to_dict() == {100: "leak", 200: "leak", 300: "leak", 400: "undecided"}
    assert checks["marks_from"][300] == "other process"


def test_decimal_and_hexadecimal_addresses(tmp_path: Path):
    rows = [mark(1, "m"), malloc(2, 4096, 8), mark(3, "m"), cells(4, "FREE", "HAL", ptr="4096", size=8), mark(5, "m")]
    write_csv(tmp_path / "a.csv", rows)
    assert len(ms.check_leaks(tmp_path / "a.csv", mstx_info="m", compat="msmemscope").frame) == 1
    assert found(tmp_path / "a.csv", mstx_info="m") == {}


def test_clean_up_rows_clear_nothing(tmp_path: Path):
    """A shadow FREE before C that is no release: the tool takes it for one."""
    rows = [mark(1, "m"), malloc(2, 16, 8, life=1), mark(3, "m"), free(4, 16, 8, life=1, shadow="true"), mark(5, "m")]
    write_csv(tmp_path / "a.csv", rows)
    assert len(ms.check_leaks(tmp_path / "a.csv", mstx_info="m", compat="msmemscope").frame) == 0
    assert found(tmp_path / "a.csv", mstx_info="m") == {(100, "NPU:0", 2): (8, "never")}


def test_a_residual_clean_up_frees_its_own_block(tmp_path: Path):
    """Its row comes after the MALLOC at the same address; the tool drops the new block with it."""
    rows = [
        malloc(1, 16, 8, life=1),
        mark(2, "m"),
        malloc(3, 16, 9, life=2),
        free(4, 16, 8, life=1, shadow="true"),
        mark(5, "m"),
        mark(6, "m"),
    ]
    write_csv(tmp_path / "a.csv", rows)
    assert len(ms.check_leaks(tmp_path / "a.csv", mstx_info="m", compat="msmemscope").frame) == 0
    assert found(tmp_path / "a.csv", mstx_info="m") == {(100, "NPU:0", 3): (9, "never")}


def test_any_pool_grouped_by_stack(tmp_path: Path):
    rows = [mark(1, "m"), mark(20, "m"), mark(30, "m"), free(31, 48, 5, pool="PTA", life=3)]
    for i, (size, stack) in enumerate([(8, "a.py(1): f\n"), (9, "a.py(1): f\n"), (5, "b.py(1): <script>\n")], 1):
        rows.append(malloc(i + 1, 16 * i, size, pool="PTA", life=i, stack=stack, owner="PTA@x"))
    result, frame = check(tmp_path / "a.csv", rows, mstx_info="m", pools=("PTA",))
    assert frame["event_id"].tolist() == [2, 3, 4]
    assert frame["marks_after"].tolist() == [2, 2, 2]
    assert result.stacks[["site", "freed", "n_blocks", "size_bytes"]].values.tolist() == [
        ["a.py(1): f", "never", 2, 17], ["b.py(1): <script>", "late", 1, 5],
    ]  # fmt: skip
    assert json.loads(json.dumps(result.to_dict()))["checks"][0]["leak_bytes"] == 17
    assert "<script>" not in result._repr_html_()
    assert ms.check_leaks(tmp_path / "a.csv", mstx_info="m", pools="all").frame["event_id"].tolist() == [2, 3, 4]


# -- undecided --------------------------------------------------------------------------------------------------


def test_without_enough_evidence_the_verdict_is_open(tmp_path: Path):
    def verdict(rows: list[Row], **params: object) -> tuple[str, str]:
        row = check(tmp_path / "a.csv", rows, mstx_info="m", **params)[0].checks.iloc[0]
        return row["verdict"], row["reason"]

    marks = [mark(i, "m") for i in (10, 20, 30)]
    few = verdict([*marks[:2], malloc(11, 16, 8)])
    assert few[0] == "undecided"
    assert "torch_npu.npu.mstx.mark" in few[1]
    assert verdict([*marks, malloc(11, 16, 8)], start_index=1)[0] == "undecided"
    no_free = verdict([*marks, malloc(11, 16, 8)])
    assert no_free[0] == "undecided"
    assert "events='alloc,free'" in no_free[1]
    pair = [malloc(11, 16, 8, life=1), free(12, 16, 8, life=1)]
    killed = verdict([*marks, *pair])
    assert killed[0] == "undecided"
    assert "stop()" in killed[1]
    assert verdict([*marks, *pair, cells(40, "SYSTEM", "STOP_TRACE", device="N/A")])[0] == "none"
    late = [malloc(11, 16, 8, life=1), free(35, 16, 8, life=1)]
    assert verdict([*marks, *late])[0] == "late"


def test_marks_are_chosen_by_device_then_by_process(tmp_path: Path):
    rows = [mark(i, "m", device=0) for i in (10, 20, 30)] + [mark(i, "m", device=1) for i in (1, 2, 3)]
    rows += [malloc(11, 16, 8, device=1), malloc(12, 16, 9, device=2), free(50, 99, 8, device=2)]
    result, frame = check(tmp_path / "a.csv", rows, mstx_info="m")
    assert result.checks.set_index("device")["marks_from"].to_dict() == {"NPU:1": "device", "NPU:2": "process"}
    assert frame["event_id"].tolist() == []  # the marks of devices 0 and 1 together are A = 1, B = 2, C = 3
    assert any("on another device" in text for text in result.caveats)


def test_marks_that_differ_by_blanks_are_taken_with_a_caveat(tmp_path: Path):
    rows = [mark(i, "m ") for i in (10, 20, 30)] + [malloc(11, 16, 8), free(12, 99, 8)]
    result, frame = check(tmp_path / "a.csv", rows, mstx_info="m")
    assert frame["event_id"].tolist() == [11]
    assert any("differs by blanks" in text for text in result.caveats)
    guarded = ms.check_leaks(tmp_path / "a.csv", mstx_info="----A----")
    assert any("as empty" in text for text in guarded.caveats)


def test_a_profile_of_another_tool_lacks_the_facts():
    from tiny import profile_of

    with pytest.raises(ms.MissingFactError, match="msmemscope"):
        ms.check_leaks(profile_of([(T0, None, 8)]), mstx_info="m")
    with pytest.raises(ms.MissingFactError, match="step"):
        ms.step_leaks(profile_of([(T0, None, 8)]))


# -- invariants -------------------------------------------------------------------------------------------------

BLOCKS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 40)), st.integers(1, 2)),
    min_size=1,
    max_size=12,
)


@given(BLOCKS, st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_leaks_by_definition_in_any_order(tmp_path: Path, blocks: list, random, in_database: bool):
    """Allocated in A..B, not released by C, in its own process, whatever the order of the rows."""
    marks = {pid: [mark(100 * i, "m", pid=pid) for i in (1, 2, 3)] for pid in (1, 2)}
    rows = [*marks[1], *marks[2]]
    expected = {}
    for i, (slot, start, end, pid) in enumerate(blocks):
        begin, address = 100 + 3 * start + 120 * (i % 2), 4096 + 16 * slot
        event = begin * 100 + i  # unique and in the order of begin
        rows.append(malloc(event, address, i + 1, life=i + 1, pid=pid))
        finish = None if end is None else event + end * 500 + 1
        if finish is not None:
            rows.append(free(finish, address, i + 1, life=i + 1, pid=pid))
        if 10000 <= event <= 20000 and (finish is None or finish > 30000):
            expected[pid, event] = "never" if finish is None else "late"
    rows = [r if r[1] != "MSTX" else mark(int(r[0]) * 100, "m", pid=int(r[5])) for r in rows]
    random.shuffle(rows)
    path = write_db(tmp_path / "a.db", rows) if in_database else write_csv(tmp_path / "a.csv", rows)
    before = path.read_bytes()
    frame = ms.check_leaks(path, mstx_info="m").frame
    assert {(r.pid, r.event_id): r.freed for r in frame.itertuples()} == expected
    assert path.read_bytes() == before
    (tmp_path / path.name).unlink()


def quadratic(rows: list[Row], a: int, b: int, c: int) -> list[int]:
    """The original tool's search: each FREE looks at every live entry."""
    live: dict[int, str] = {}
    for row in rows:
        event_id, event, pointer = int(row[0]), row[1], row[8]
        if event == "MALLOC" and a <= event_id <= b:
            live[event_id] = pointer
        elif event == "FREE" and a <= event_id <= c:
            for key in list(live):
                if live[key] == pointer:
                    del live[key]
    return list(live)


@pytest.mark.parametrize("compat", [None, "msmemscope"])
def test_no_quadratic_search(tmp_path: Path, compat, record_property):
    """8,000 pairs: the same answer as a quadratic loop, more than 50 times sooner (reported, not asserted)."""
    n = 8000
    rows = [mark(1, "m"), mark(n + 100, "m"), mark(3 * n, "m"), cells(4 * n, "SYSTEM", "STOP_TRACE", device="N/A")]
    rows += [malloc(i + 10, 4096 * (i + 1), 512, life=i + 1) for i in range(n)]
    rows += [free(n + 200 + i, 4096 * (n - i), 512, life=n - i) for i in range(n - 7)]
    rows.sort(key=lambda row: int(row[0]))
    profile = ms.load(write_csv(tmp_path / "a.csv", rows))
    began = clock.perf_counter()
    result = ms.check_leaks(profile, mstx_info="m", compat=compat)
    ours = clock.perf_counter() - began
    began = clock.perf_counter()
    slow = quadratic(rows, 1, n + 100, 3 * n)
    theirs = clock.perf_counter() - began
    assert result.frame["event_id"].tolist() == slow == list(range(10, 17))
    record_property("ratio", theirs / ours)
    print(f"quadratic {theirs:.2f} s, ours {ours * 1000:.1f} ms: {theirs / ours:.0f} times")


# -- steps ------------------------------------------------------------------------------------------------------


class Recording:
    """Writes the rows of a process with one PTA pool."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.event = self.life = self.used = self.ranges = 0

    def add(self, make, *args, **more) -> int:
        self.event += 1
        self.rows.append(make(self.event, *args, **more))
        return self.event

    def malloc(self, size: int, **more) -> tuple[int, int]:
        self.life += 1
        self.used += size
        life = self.life
        self.add(malloc, 4096 * life, size, pool="PTA", life=life, used=self.used, total=1 << 20, **more)
        return life, size

    def free(self, block: tuple[int, int]) -> None:
        life, size = block
        self.used -= size
        self.add(free, 4096 * life, size, pool="PTA", life=life, used=self.used, total=1 << 20)

    def begin(self, text: str) -> int:
        self.ranges += 1
        self.add(mark, text, kind="Range_start")
        return self.ranges

    def end(self, number: int) -> None:
        self.add(mark, f"Range end from id {number}", kind="Range_end")


def steps_with_leaks(n_steps: int) -> tuple[Recording, list[tuple[int, int]]]:
    r = Recording()
    r.malloc(10_000)
    kept = []
    for _ in range(n_steps):
        step = r.begin("step start")
        work = r.malloc(4096)
        r.add(cells, "KERNEL_LAUNCH", "KERNEL_LAUNCH", "k")
        kept.append(r.malloc(512))
        r.free(work)
        r.end(step)
    return r, kept


def test_blocks_that_outlive_the_next_step(tmp_path: Path):
    r, kept = steps_with_leaks(6)
    r.free(kept[1])
    result = ms.step_leaks(write_csv(tmp_path / "a.csv", r.rows))
    f = result.frame
    # Steps 2 to 5: not the first, not the last, and a later release does not take one off the list.
    assert f[["step", "size_bytes", "kernel_index", "freed"]].values.tolist() == [
        [2, 512, 2, "late"], [3, 512, 3, "never"], [4, 512, 4, "never"], [5, 512, 5, "never"],
    ]  # fmt: skip
    assert f["allocation_id"].tolist() == [kept[i][0] for i in (1, 2, 3, 4)]
    (g,) = result.growth.itertuples()
    assert (g.n_steps, g.floor_drift_bytes, g.peak_drift_bytes, g.end_drift_bytes, g.verdict) == (
        5,
        2048,
        2048,
        2048,
        "growing",
    )
    assert result.steps["floor_bytes"].tolist() == [10_000 + 512 * i for i in range(6)]
    assert result.steps["peak_bytes"].tolist() == [14_096 + 512 * (i + 1) for i in range(6)]
    json.dumps(result.to_dict())
    assert "growing" in result._repr_html_()


def test_fluctuation_within_a_step(tmp_path: Path):
    r, _ = steps_with_leaks(3)
    moved = ms.step_leaks(write_csv(tmp_path / "a.csv", r.rows)).fluctuation
    # Step 2: 14,608, 15,120, 11,024; step 3: 15,120, 15,632, 11,536. Its start does not count, step 1 neither.
    assert moved[["kind", "step", "min_bytes", "max_bytes"]].values.tolist() == [
        ["MinGap", 2, 11_024, 15_120], ["MaxGap", 3, 11_536, 15_632],
    ]  # fmt: skip
    assert moved["ratio"].tolist() == [11_024 / 15_120, 11_536 / 15_632]


def test_lines_of_the_original_tool(tmp_path: Path):
    r, _ = steps_with_leaks(3)
    result = ms.step_leaks(write_csv(tmp_path / "a.csv", r.rows), compat="msmemscope")
    assert result.messages[:3] == (
        "====== ERROR: Detected memory leaks on device 0 ======",
        "Direct Pytorch Caching memory pool leak of 0.000488 Mb(s) at 0x5000 in kernel_2 at step 2.",
        "====== SUMMARY: 0.000488281 Mb(s) leaked in 1 allocation(s) ======",
    )
    assert result.messages[3] == "======= Pytorch Caching memory pool Gap Analysis of Device 0 ======="
    assert len(result.messages) == 7


def test_nested_ranges_end_a_step_only_for_the_original_tool(tmp_path: Path):
    """Its ranges have no numbers: the end of an inner range checks the step and starts its minimum anew."""
    r = Recording()
    for _ in range(3):
        step = r.begin("step start")
        keep = r.malloc(1000)
        inner = r.begin("inner")
        r.end(inner)
        more = r.malloc(3000)
        r.free(keep)
        r.end(step)
        r.free(more)
    path = write_csv(tmp_path / "a.csv", r.rows)
    right, theirs = ms.step_leaks(path), ms.step_leaks(path, compat="msmemscope")
    assert len(right.frame) == len(theirs.frame) == 0  # `more` ends in the pause after its step, before another end
    # Step 2: 1000, 4000, 3000; step 3 with the pause before it: 0, 1000, 4000, 3000.
    assert right.fluctuation[["ratio", "step"]].values.tolist() == [[0.0, 3], [0.25, 2]]
    # Cut at the inner ends: 1000 | 4000, 3000 | 0, 1000 | 4000, 3000; and a ratio of 0 is forgotten at the next one.
    assert theirs.fluctuation[["ratio", "step"]].values.tolist() == [[0.75, 3], [1.0, 2]]


def test_few_steps_decide_nothing(tmp_path: Path):
    r, _ = steps_with_leaks(4)
    result = ms.step_leaks(write_csv(tmp_path / "a.csv", r.rows))
    (g,) = result.growth.itertuples()
    assert (g.n_steps, g.verdict) == (3, "undecided")
    assert "at least five steps" in g.reason
    assert any("no proof" in text for text in result.caveats)


def test_steady_and_wavering_floors(tmp_path: Path):
    def verdict(levels: list[int]) -> str:
        r = Recording()
        base = r.malloc(1000)
        for level in levels:
            r.free(base)
            base = r.malloc(level)
            step = r.begin("step start")
            r.free(r.malloc(64))
            r.end(step)
        return ms.step_leaks(write_csv(tmp_path / "a.csv", r.rows)).growth["verdict"].iloc[0]

    assert verdict([9, 50, 60, 40, 50]) == "steady"
    assert verdict([9, 50, 60, 40, 70]) == "undecided"
    assert verdict([9, 50, 60, 70, 80]) == "growing"


def test_steps_from_python_calls(tmp_path: Path):
    r = Recording()
    for number in range(1, 6):
        r.malloc(512)
        r.add(cells, "SYSTEM", "STEP", str(number), device="N/A")
    f = ms.step_leaks(write_csv(tmp_path / "a.csv", r.rows)).frame
    # Step 1 is what no call began; the block of step 5 has no later end.
    assert f["step"].tolist() == [2, 3, 4]
    with pytest.raises(ValueError, match="compat"):
        ms.step_leaks(tmp_path / "a.csv", compat="other")  # type: ignore[arg-type]
