"""Operators of two runs side by side: the original tool's numbers, and why ours differ."""

from __future__ import annotations

import csv
import json
import time as clock
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import SAMPLES
from dump_rows import Row, cells, free, malloc, write_csv, write_db
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memscope_nb as ms
from memscope_nb.analysis.align_nesting import Nesting, range_max
from memscope_nb.analysis.align_script import ABSENT, edit_script
from memscope_nb.export.compare_csv import compare_csv, write_compare_csv

DUMPS = (SAMPLES / "msmemscope").resolve()  # messages name the real path
needs_samples = pytest.mark.skipif(not DUMPS.is_dir(), reason="the public samples are not laid beside the checkout")


def oracle() -> list[dict]:
    path = DUMPS / "expected.json"
    return json.loads(path.read_text())["compare"] if path.is_file() else []


def name_of(case: dict) -> str:
    return f"{Path(case['base']).stem}-{Path(case['compare']).stem}-{case['level']}"


def as_database(path: Path, folder: Path) -> Path:
    with path.open(newline="") as file:
        rows = [tuple(row) for row in csv.reader(file)][1:]
    return write_db(folder / f"{path.stem}.db", rows)


# -- parity -----------------------------------------------------------------------------------------------------


@needs_samples
@pytest.mark.parametrize("kind", ["path", "profile", "database"])
@pytest.mark.parametrize("case", oracle(), ids=name_of)
def test_every_comparison_of_the_original_tool(case: dict, kind: str, tmp_path: Path):
    paths = [DUMPS / case[side] for side in ("base", "compare")]
    before = [path.read_bytes() for path in paths]
    if kind == "database" and "syn09" in case["base"]:
        pytest.skip("only its CSV reader stumbles over stacks")
    make = {"path": Path, "profile": ms.load, "database": lambda path: as_database(path, tmp_path)}[kind]
    result = ms.align_ops(*map(make, paths), level=case["level"], compat="msmemscope")
    messages = [text.replace(f"{DUMPS}/", "") for text in result.messages]
    assert messages == case.get("messages", [])
    written = write_compare_csv(result, tmp_path / "compare", stamp="20260101000000")
    if case.get("no_output_file"):
        assert written is None
        assert not (tmp_path / "compare").exists()
    else:
        text = "".join(line + "\n" for line in (*case["header_lines"], *case["rows"]))
        assert written.name == "memory_compare_20260101000000.csv"
        assert written.read_bytes() == text.encode()
        by_device: dict[str, list[str]] = {}
        for line in text.splitlines()[2:]:
            by_device.setdefault(line.split(",")[2], []).append(line)
        assert by_device == case["rows_by_device"]
        assert set(result.frame["device"]) == set(by_device)
    assert [path.read_bytes() for path in paths] == before


def op(start: int, end: int, name: str, *inside: Row, tid: int = 1, **more: object) -> list[Row]:
    return [
        cells(start, "OP_LAUNCH", "ATEN_START", name, tid=tid, **more),
        *inside,
        cells(end, "OP_LAUNCH", "ATEN_END", name, tid=tid, **more),
    ]


def pta(event_id: int, size: int, life: int, *, tid: int = 1, **more: object) -> Row:
    return malloc(event_id, 4096 * life, size, pool="PTA", life=life, tid=tid, **more)


def release(event_id: int, size: int, life: int, *, tid: int = 1, **more: object) -> Row:
    return free(event_id, 4096 * life, size, pool="PTA", life=life, tid=tid, **more)


def theirs(*paths: Path, **more: object) -> list[tuple]:
    frame = ms.align_ops(*paths, compat="msmemscope", **more).frame
    return [tuple(None if v is pd.NA else v for v in row) for row in frame.itertuples(index=False)]


def test_quirks_of_the_original_tool(tmp_path: Path):
    rows = [*op(1, 3, "a", pta(2, 512, 1)), *op(4, 5, ""), release(6, -512, 1), *op(7, 8, "b", device="N/A")]
    one = write_csv(tmp_path / "a.csv", rows)
    # The size after the operator, with the sign of old files; an empty name is nothing; no device, no row.
    assert theirs(one, one) == [("0", "OP_LAUNCH", "a", -512, -512, 0), ("0", "", "", None, None, 0)]
    two = write_csv(tmp_path / "b.csv", [*op(1, 2, "a"), *op(3, 4, "=b")])
    assert theirs(one, two)[0] == ("0", "OP_LAUNCH", "a", -512, None, 512)  # a guarded name empties its side
    atb = write_csv(tmp_path / "c.csv", [cells(1, "OP_LAUNCH", "ATB_END", "x"), malloc(2, 16, 8, pool="ATB")])
    assert theirs(atb, atb) == [("0", "OP_LAUNCH", "x", 0, 0, 0)]
    assert theirs(atb, write_csv(tmp_path / "d.csv", [malloc(2, 16, 8, device=3)])) == [
        ("0", "OP_LAUNCH", "x", 0, None, 0)
    ]
    mind = write_csv(tmp_path / "e.csv", [*op(1, 2, "a"), malloc(3, 16, 8, pool="MINDSPORE")])
    for other in (one, mind):
        result = ms.align_ops(other, mind, compat="msmemscope")
        assert not len(result.frame)
        assert "MINDSPORE" in result.messages[0]
    with pytest.raises(ValueError, match="level"):
        ms.align_ops(one, one, level="line")
    with pytest.raises(ValueError, match="compat"):
        ms.align_ops(one, one, compat="x")


# -- where the default is right ---------------------------------------------------------------------------------


def ours(a: Path, b: Path, *columns: str, **more: object) -> list[list]:
    frame = ms.align_ops(a, b, **more).frame
    picked = frame[list(columns) or ["name", "base_bytes", "compare_bytes", "diff_bytes"]]
    return [[None if v is pd.NA else v for v in row] for row in picked.values.tolist()]


@needs_samples
def test_an_operator_is_shown_with_its_own_bytes():
    """The tool shows a with 1024, which b allocates; and with 7777 and a growth of 6753, which an inserted one does."""
    paths = [DUMPS / "synthetic" / name for name in ("syn10_compare_base.csv", "syn11_compare_new.csv")]
    expected = [["a", 512, 512, 0], ["new", None, 7777, 7777], ["b", 1024, 1024, 0], ["c", 2048, 2048, 0]]
    missing = [["a", 512, 512, 0], ["b", 1024, 1024, 0], ["c", 2048, None, -2048]]
    got = ours(*paths, "device", "name", "base_bytes", "compare_bytes", "diff_bytes")
    assert got == [[f"NPU:{d}", f"aten.{r[0]}", *r[1:]] for d, rows in ((0, expected), (1, missing)) for r in rows]
    kernels = ours(*paths, level="kernel")
    assert kernels == [[f"K_{r[0]}", *r[1:]] for r in (*expected, *missing)]
    both = ms.align_ops(*paths, level="op,kernel").frame
    assert both["event"].value_counts().to_dict() == {"OP_LAUNCH": 7, "KERNEL_LAUNCH": 7}


@needs_samples
def test_the_real_pair_names_the_operator_that_grows():
    """The tool blames _foreach_add_ and two others; _to_copy keeps 4,000,256 bytes in each of two steps."""
    result = ms.align_ops(DUMPS / "baseline.csv", DUMPS / "leaks.csv")
    changed = result.frame[result.frame["diff_bytes"] != 0]
    assert changed["name"].tolist() == ["torch._ops.aten._to_copy.default"] * 2
    assert changed["diff_bytes"].tolist() == [4_000_256] * 2
    assert result.by_op.iloc[0][["name", "n_base", "n_compare", "diff_bytes"]].tolist() == [
        "torch._ops.aten._to_copy.default", 0, 2, 8_000_512,
    ]  # fmt: skip
    json.dumps(result.to_dict())
    assert "_to_copy" in result._repr_html_()
    assert repr(result).startswith(f"OpComparison: {len(result.frame):,} rows\n")
    assert str(result.frame["name"].iloc[0]) in repr(result)


def test_net_gross_and_peak_with_nesting_and_threads(tmp_path: Path):
    inner = op(3, 5, "empty", pta(4, 100, 1))
    other = op(6, 8, "backward", pta(7, 5000, 2, tid=2), tid=2)  # another thread, inside in time
    rows = [
        *op(1, 20, "outer", pta(2, 10, 3), *inner, *other, release(9, 100, 1), pta(10, 30, 4), release(11, 30, 4)),
        release(30, 10, 3),
    ]
    path = write_csv(tmp_path / "a.csv", rows)
    measures = ("bytes", "gross_bytes", "peak_bytes", "own_bytes", "own_gross_bytes", "depth")
    got = ours(path, path, "name", *(f"base_{name}" for name in measures))
    assert got == [
        ["outer", 10, 140, 110, -90, 40, 1], ["empty", 100, 100, 100, 100, 100, 2],
        ["backward", 5000, 5000, 5000, 5000, 5000, 1],
    ]  # fmt: skip
    result = ms.align_ops(path, path)
    assert result.by_op["base_gross_bytes"].sum() == 10 + 100 + 5000 + 30  # every byte once
    assert result.by_stack["base_gross_bytes"].sum() == 10 + 100 + 5000 + 30


def test_rows_for_what_nobody_saw_belong_to_no_operator(tmp_path: Path):
    rows = [
        cells(1, "SYSTEM", "START_TRACE", device="N/A"),
        *op(2, 9, "a", pta(3, 10, 1), pta(4, 20, 2, shadow="true"), release(8, 10, 1, shadow="true")),
    ]
    path = write_csv(tmp_path / "a.csv", rows)
    assert ours(path, path) == [["a", 10, 10, 0]]


def test_threads_are_paired_by_what_they_run(tmp_path: Path):
    """Which thread starts first is chance; the tool aligns one sequence of all threads and sees six differences."""
    main = [(1, "f1"), (2, "f2"), (3, "f3")]
    back = [(11, "b1"), (12, "b2"), (13, "b3")]

    def dump(name: str, first: list, second: list) -> Path:
        rows = []
        for i, (kind, text) in enumerate([*first, *second]):
            tid = 100 + (kind > 10) + (50 if name == "b.csv" else 0)
            rows += op(10 * i + 1, 10 * i + 3, text, pta(10 * i + 2, 64 * kind, i + 1, tid=tid), tid=tid)
        return write_csv(tmp_path / name, rows)

    a, b = dump("a.csv", main, back), dump("b.csv", back, main)
    assert {tuple(row) for row in ours(a, b)} == {(t, 64 * k, 64 * k, 0) for k, t in (*main, *back)}
    assert len(theirs(a, b)) == 9


def step(event_id: int) -> Row:
    return cells(event_id, "MSTX", "Range_start", "step start")


def test_steps_are_aligned(tmp_path: Path):
    """A run with a step more: step for step, not shifted where names repeat."""

    def dump(name: str, sizes: list[list[int]]) -> Path:
        rows, i = [], 0
        for number in sizes:
            rows.append(step(i := i + 1))
            for size in number:
                rows += op(i + 1, i + 3, "mm", pta(i + 2, size, i))
                i += 3
        return write_csv(tmp_path / name, rows)

    a, b = dump("a.csv", [[1], [2, 3]]), dump("b.csv", [[1, 9], [2, 3], [4]])
    got = ours(a, b, "compare_step", "base_bytes", "compare_bytes")
    assert got == [[1, 1, 1], [1, None, 9], [2, 2, 2], [2, 3, 3], [3, None, 4]]


def test_works_with_stacks_and_matches_by_caller(tmp_path: Path):
    """The tool stops at a stack. Lines and folders move; the function that calls tells equal names apart."""

    def dump(name: str, calls: list[tuple[str, int]], line: int, folder: str) -> Path:
        rows = []
        for i, (function, size) in enumerate(calls):
            stack = f"{folder}/train.py({line + i}): {function}\nmain.py(1): <module>\n"
            rows += op(10 * i + 1, 10 * i + 3, "mm", pta(10 * i + 2, size, i + 1, stack=stack), stack=stack)
        return write_csv(tmp_path / name, rows)

    a = dump("a.csv", [("forward", 10), ("loss", 20)], 5, "/home/a")
    b = dump("b.csv", [("loss", 20), ("extra", 70)], 9, "/home/b")
    assert ms.align_ops(a, b, compat="msmemscope").messages[-1].endswith("Memory comparison failed!")
    assert ours(a, b) == [["mm", 10, None, -10], ["mm", 20, 20, 0], ["mm", None, 70, 70]]
    stacks = ms.align_ops(a, b).by_stack
    assert stacks["diff_gross_bytes"].abs().is_monotonic_decreasing
    assert stacks.iloc[0][["name", "n_base", "n_compare", "diff_gross_bytes"]].tolist() == ["mm", 0, 1, 70]
    assert stacks.iloc[0]["stack"] == "/home/b/train.py(10): extra\nmain.py(1): <module>"


def test_missing_facts_are_named(tmp_path: Path):
    path = write_csv(tmp_path / "a.csv", [malloc(1, 16, 8, pool="PTA")])
    for level in ("op", "kernel"):
        with pytest.raises(ms.MissingFactError, match="launch"):
            ms.align_ops(path, path, level=level)
    from tiny import profile_of

    with pytest.raises(ms.MissingFactError, match="launch"):
        ms.align_ops(profile_of([(1, 2, 3)]), path)


def test_names_are_data(tmp_path: Path):
    rows = [*op(1, 3, "=1+1", pta(2, 8, 1)), *op(4, 5, "<b>"), *op(6, 7, "@x")]
    path = write_db(tmp_path / "a.db", [*rows, *op(8, 9, 'a,"b"')])
    result = ms.align_ops(path, path)
    lines = list(csv.reader(compare_csv(result).splitlines()))
    assert lines[2:] == [
        ["OP_LAUNCH", "'=1+1", "0", "8", "8", "0"], ["OP_LAUNCH", "<b>", "0", "0", "0", "0"],
        ["OP_LAUNCH", "'@x", "0", "0", "0", "0"], ["OP_LAUNCH", 'a,"b"', "0", "0", "0", "0"],
    ]  # fmt: skip
    assert "<b>" not in result._repr_html_().replace("<body", "")
    written = write_compare_csv(result, tmp_path / "out")
    assert written.name.startswith("memory_compare_")
    assert [f.name for f in (tmp_path / "out").iterdir()] == [written.name]
    for stamp in ("../x", written.stem.rpartition("_")[2]):
        with pytest.raises(ms.InputError):
            write_compare_csv(result, tmp_path / "out", stamp=stamp)


# -- the alignment itself ---------------------------------------------------------------------------------------


def literal_script(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Myers' search as the specification words it, one diagonal at a time."""
    furthest, chosen = {}, {}
    for d in range(len(a) + len(b) + 1):
        for k in range(-d, d + 1, 2):
            insert = k == -d or (k != d and furthest[k - 1] < furthest[k + 1])
            i = 0 if d == 0 else furthest[k + 1] if insert else furthest[k - 1] + 1
            while i < len(a) and 0 <= i - k < len(b) and a[i] == b[i - k]:
                i += 1
            furthest[k], chosen[d, k] = i, insert
            if i >= len(a) and i - k >= len(b):
                return walked(a, b, chosen, d, k)
    raise AssertionError


def walked(a: list[int], b: list[int], chosen: dict, d: int, k: int) -> list[tuple[int, int]]:
    moves = []
    for depth in range(d, 0, -1):
        moves.append(chosen[depth, k])
        k += 1 if moves[-1] else -1
    rows, i, j = [], 0, 0
    for move in [None, *reversed(moves)]:
        if move is not None:
            rows.append((ABSENT, j) if move else (i, ABSENT))
            i, j = i + (not move), j + move
        while i < len(a) and j < len(b) and a[i] == b[j]:
            rows.append((i, j))
            i, j = i + 1, j + 1
    return rows


SEQUENCES = st.lists(st.integers(0, 3), max_size=16)


@given(SEQUENCES, SEQUENCES)
@settings(max_examples=300)
def test_the_tie_rule(a: list[int], b: list[int]):
    script = edit_script(np.array(a, np.int32), np.array(b, np.int32))
    assert list(zip(script.base.tolist(), script.compare.tolist(), strict=True)) == literal_script(a, b)
    assert script.is_shortest


@given(SEQUENCES, SEQUENCES, st.integers(1, 20))
@settings(max_examples=200)
def test_a_search_cut_short_is_still_an_alignment(a: list[int], b: list[int], cells: int):
    script = edit_script(np.array(a, np.int32), np.array(b, np.int32), max_cells=cells)
    both = (script.base != ABSENT) & (script.compare != ABSENT)
    assert script.base[script.base != ABSENT].tolist() == list(range(len(a)))
    assert script.compare[script.compare != ABSENT].tolist() == list(range(len(b)))
    assert [a[i] for i in script.base[both]] == [b[j] for j in script.compare[both]]
    if not script.is_shortest:
        assert len(script.base) >= len(literal_script(a, b))


def test_fifty_thousand_elements(record_property):
    rng = np.random.default_rng(1)
    a = rng.integers(0, 300, 50_000).astype(np.int32)
    b = np.insert(np.delete(a, rng.integers(0, len(a), 500)), rng.integers(0, 49_000, 500), 7).astype(np.int32)
    began = clock.perf_counter()
    script = edit_script(a, b)
    record_property("seconds", clock.perf_counter() - began)
    n_differences = int(((script.base == ABSENT) | (script.compare == ABSENT)).sum())
    assert script.is_shortest
    assert n_differences <= 1000
    assert clock.perf_counter() - began < 20  # about 0.1 s alone


TREES = st.recursive(st.just(()), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)


@given(st.lists(TREES, max_size=4), st.lists(st.tuples(st.integers(0, 60), st.integers(-9, 9)), max_size=12))
@settings(max_examples=150)
def test_nesting_by_definition(trees: list, events: list[tuple[int, int]]):
    spans: list[tuple[int, int]] = []
    at = 0

    def number(tree: tuple) -> None:
        nonlocal at
        start = at = at + 2
        mine = len(spans)
        spans.append((start, 0))
        for child in tree:
            number(child)
        at += 2
        spans[mine] = (start, at)

    for tree in trees:
        number(tree)
    start, end = (np.array([s[i] for s in spans], np.int64) for i in (0, 1))
    where = np.array([2 * e[0] + 1 for e in events], np.int64)
    value = np.array([e[1] for e in events], np.int64)
    zeros = np.zeros(len(spans), np.int64)
    nest = Nesting(zeros, start, end, np.zeros(len(events), np.int64), where)

    def around(x: int, y: int) -> list[int]:
        return [i for i, (s, e) in enumerate(spans) if s < x and y < e]

    assert nest.depth.tolist() == [1 + len(around(s, e)) for s, e in spans]
    assert nest.parent.tolist() == [max(around(s, e), default=-1) for s, e in spans]
    assert nest.outer().tolist() == [min(around(s, e), default=i) for i, (s, e) in enumerate(spans)]
    assert nest.inner.tolist() == [max(around(w, w), default=-1) for w in where.tolist()]
    order = np.argsort(where, kind="stable")
    inside = [[int(value[i]) for i in order if s < where[i] < e] for s, e in spans]
    assert nest.sums(value).tolist() == [sum(own) for own in inside]
    assert nest.peaks(value).tolist() == [max([0, *np.cumsum(own).tolist()]) for own in inside]


@given(st.lists(st.integers(-50, 50), max_size=40), st.randoms(use_true_random=False))
def test_range_max(values: list[int], random):
    pairs = [sorted((random.randint(0, len(values)), random.randint(0, len(values)))) for _ in range(10)]
    first, end = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    got = range_max(np.array(values, np.int64), first, end, empty=-99)
    assert got.tolist() == [max(values[a:b], default=-99) for a, b in pairs]


# -- invariants -------------------------------------------------------------------------------------------------

RUN = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(1, 9), st.booleans(), st.sampled_from([1, 2]), st.sampled_from([7, 8])
    ),
    min_size=1,
    max_size=10,
)


def run_rows(calls: list[tuple]) -> list[Row]:
    """One operator with an allocation, and maybe its release, for each call; IDs count in each process."""
    rows, next_id = [], {7: 1, 8: 1}
    for name, size, keep, tid, pid in calls:
        i = next_id[pid]
        next_id[pid] += 4
        more = {"tid": tid, "pid": pid}
        inside = [pta(i + 1, size, i, **more), *([] if keep else [release(i + 2, size, i, **more)])]
        rows += op(i, i + 3, name, *inside, **more)
    return rows


@given(RUN, RUN, st.randoms(use_true_random=False), st.sampled_from([None, "msmemscope"]))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_rows_and_processes_apart(tmp_path: Path, one: list, two: list, random, compat):
    paths, shuffled = [], []
    for i, calls in enumerate((one, two)):
        calls = [call for call in calls if call[4] == 7] if compat else calls
        rows = run_rows(calls or [("a", 1, True, 1, 7)])
        paths.append(write_csv(tmp_path / f"{i}.csv", rows))
        mixed = list(rows)
        random.shuffle(mixed)
        shuffled.append(write_csv(tmp_path / f"{i}s.csv", mixed))
    before = [path.read_bytes() for path in (*paths, *shuffled)]
    result, again = ms.align_ops(*paths, compat=compat), ms.align_ops(*shuffled, compat=compat)
    assert [path.read_bytes() for path in (*paths, *shuffled)] == before
    pd.testing.assert_frame_equal(result.frame, again.frame)
    if compat:
        return
    for side, calls in (("base", one), ("compare", two)):
        there = result.frame[result.frame[f"{side}_bytes"].notna()]
        wanted = sorted((pid, tid, name, size if keep else 0, size) for name, size, keep, tid, pid in calls)
        got = there[[f"{side}_pid", f"{side}_tid", "name", f"{side}_bytes", f"{side}_gross_bytes"]].values.tolist()
        assert sorted(map(tuple, got)) == wanted
        assert result.by_op[f"{side}_gross_bytes"].sum() == sum(call[1] for call in calls)
