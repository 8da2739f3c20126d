"""The simulated run, checked on its written files alone: csv, json and Decimal, none of the package's readers."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memscope_nb.demo import DemoRun, simulate_run, write_demo
from memscope_nb.demo.ascend_text import collection_folder
from memscope_nb.demo.records import Collection
from memscope_nb.errors import InputError

GIB = 1 << 30
ROLES = ["rollout", "compute_log_prob", "actor_update", "update_weights"]
LEAK = "/opt/train/recipe/metrics_buffer.py(88): append_logits"
ALLOC, FREE, BLOCK_FREE = "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)"
PARTS = ("Allocated", "Reserved", "Active")


def exact(text: str, unit: int) -> int | None:
    """A cell as an integer, None when empty; fails where it is not whole."""
    if not text.strip():
        return None
    value = Decimal(text.strip()) * unit
    assert value == int(value), text
    return int(value)


def ns(text: str) -> int | None:
    return exact(text, 1000)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass
class Written:
    """One collection as it lies on disk."""

    collection: Collection
    folder: Path

    def __post_init__(self) -> None:
        output = self.folder / "ASCEND_PROFILER_OUTPUT"
        rows = table(output / "operator_memory.csv")
        self.rows = [row for row in rows if not row["Name"].startswith("cann::")]
        self.graph_rows = [row for row in rows if row["Name"].startswith("cann::")]
        self.all_rows = rows
        self.records = table(output / "memory_record.csv")
        self.modules = table(output / "npu_module_mem.csv")
        self.trace: list[dict[str, Any]] = json.loads((output / "trace_view.json").read_bytes())
        self.label = f"{collection_folder(self.collection)}"

    @property
    def truth(self):
        return self.collection.truth

    def component(self, name: str) -> list[dict[str, str]]:
        return [row for row in self.records if row["Component"] == name]

    def ops(self) -> list[dict[str, Any]]:
        return [event for event in self.trace if event.get("cat") == "cpu_op"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "run"


@pytest.fixture(scope="module")
def run(out: Path) -> DemoRun:
    return write_demo(out)


@pytest.fixture(scope="module")
def written(run: DemoRun, out: Path) -> list[Written]:
    return [Written(c, out / collection_folder(c)) for c in run.collections]


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_same_seed_gives_same_bytes(run: DemoRun, out: Path, tmp_path: Path) -> None:
    again = write_demo(tmp_path / "again")
    assert again == run
    assert digest(tmp_path / "again") == digest(out)
    assert len(digest(out)) == 16 * 8
    other = simulate_run(seed=1)
    assert [c.truth.peak_bytes for c in other.collections] != [c.truth.peak_bytes for c in run.collections]


def test_tree_is_small_and_laid_out_by_iteration_and_role(out: Path, written: list[Written]) -> None:
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 6_500_000
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    assert sorted(path.name for path in (out / "1").iterdir()) == sorted(ROLES)
    assert len(list(out.glob("*/*/*_ascend_pt"))) == len(written) == 16
    for one in written:
        pattern = r"rl_node-03\.cluster\.local_(\d+)_(\d{17})_ascend_pt"
        match = re.fullmatch(pattern, one.folder.name)
        assert match
        assert int(match[1]) == one.collection.process.pid
        assert (one.folder / "ASCEND_PROFILER_OUTPUT" / "analyse.done").read_bytes() == b""


def test_refuses_a_folder_in_use_and_fills_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_demo(tmp_path / "empty", ranks=1, iterations=1)
    before = digest(tmp_path / "empty")
    assert len(before) == 4 * 8
    with pytest.raises(InputError, match="new or empty folder"):
        write_demo(tmp_path / "empty")
    assert digest(tmp_path / "empty") == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError):
        write_demo(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file"]


@pytest.mark.parametrize(("ranks", "iterations"), [(0, 1), (9, 1), (1, 0)])
def test_refuses_sizes_it_cannot_simulate(ranks: int, iterations: int) -> None:
    with pytest.raises(ValueError, match=r"ranks|iterations"):
        simulate_run(ranks=ranks, iterations=iterations)


def test_settings_files(written: list[Written]) -> None:
    named = set()
    for one in written:
        rank = one.collection.process.rank
        info = json.loads((one.folder / f"profiler_info_{rank}.json").read_text())
        assert info["rank_id"] == str(rank)
        assert info["config"]["common_config"]["with_stack"] is True
        assert info["end_info"]["collectionTimeEnd"] == one.collection.end_ns > one.truth.window_end_ns
        metadata = json.loads((one.folder / "profiler_metadata.json").read_text())
        assert metadata.get("role", one.collection.role) == one.collection.role == one.folder.parent.name
        named.add("role" in metadata)
    assert named == {True, False}


def test_collections_of_a_rank_follow_each_other_with_long_gaps(run: DemoRun) -> None:
    assert len({c.process.pid for c in run.collections}) == run.ranks
    for rank in range(run.ranks):
        own = [c for c in run.collections if c.process.rank == rank]
        assert [c.role for c in own] == ROLES * run.iterations
        assert len({c.process for c in own}) == 1
        for before, after in pairwise(own):
            assert after.start_ns - before.end_ns > 2_000_000_000 > before.end_ns - before.start_ns
            assert after.truth.baseline_bytes == before.truth.end_bytes + after.truth.unrecorded_before_bytes
        gaps = {c.truth.unrecorded_before_bytes for c in own[1:]}
        assert 0 in gaps
        assert len(gaps) > 1


def test_bytes_of_the_tables(written: list[Written]) -> None:
    for one in written:
        for name in ("operator_memory", "memory_record", "npu_module_mem", "step_trace_time"):
            raw = (one.folder / "ASCEND_PROFILER_OUTPUT" / f"{name}.csv").read_bytes()
            assert raw.count(b"\r\n") == raw.count(b"\n") > 1, name
        for row in one.all_rows:
            is_graph = row["Name"].startswith("cann::")
            for cell in (row[ALLOC], row[FREE], row[BLOCK_FREE]):
                assert not cell or re.fullmatch(r"\d{16}\.\d{2}0\t", cell)
            assert row["Duration(us)"].endswith("\t") == (not is_graph and bool(row[FREE]))
            if is_graph:
                assert row[BLOCK_FREE] == row["Active Duration(us)"] == row["Stream Ptr"] == ""
        assert all(row["Timestamp(us)"].endswith("\t") for row in one.records + one.modules)


def test_every_kind_of_empty_cell(written: list[Written]) -> None:
    for one in written:
        kinds = {(bool(row[FREE]), bool(row[BLOCK_FREE])) for row in one.rows}
        assert {(True, True), (True, False)} <= kinds, one.label
        n_open = sum(not row[FREE] and not row[BLOCK_FREE] for row in one.rows)
        assert n_open == one.truth.n_open
        for row in one.rows:
            released = bool(row[FREE] or row[BLOCK_FREE])
            assert all(bool(row[f"Release Total {part}(MB)"]) == released for part in PARTS)
            assert bool(row["Duration(us)"]) == bool(row[FREE])
            assert bool(row["Active Duration(us)"]) == bool(row[BLOCK_FREE])
        if one.collection.role == "actor_update":
            assert kinds == {(True, True), (True, False), (False, True), (False, False)}
    assert sum(one.truth.n_open == 0 for one in written) > 0
    assert sum(row["Name"] == "" for one in written for row in one.rows) >= 8


def test_sizes_and_clock(written: list[Written]) -> None:
    times: dict[int, list[int]] = defaultdict(list)
    for one in written:
        for row in one.rows:
            size = exact(row["Size(KB)"], 1024)
            assert size is not None
            assert size > 0
            assert size % 512 == 0
            assert exact(row["Allocation Total Allocated(MB)"], 1 << 20) >= size
        own = [ns(row["Timestamp(us)"]) for row in one.component("PTA") + one.component("GE")]
        times[one.collection.process.rank] += own
    for own in times.values():
        assert len(set(own)) == len(own) > 3000
        assert all(t % 10 == 0 for t in own)


def test_block_free_comes_first_or_clearly_later(written: list[Written]) -> None:
    ordinary = other_stream = short = 0
    for one in written:
        for row in one.rows:
            start, free, block_free = ns(row[ALLOC]), ns(row[FREE]), ns(row[BLOCK_FREE])
            if free is None or block_free is None:
                continue
            held = (exact(row[f"Release Total {part}(MB)"], 1 << 20) for part in ("Active", "Allocated"))
            if block_free < free:
                ordinary += 1
                assert 300 <= free - block_free <= 6_000
            else:
                other_stream += 1
                assert block_free - free > 10_000
                assert next(held) - next(held) >= exact(row["Size(KB)"], 1024)
            short += block_free - start < 10_000
    assert ordinary > 1500
    assert other_stream > 100
    assert short > 200


def test_totals_at_the_event(written: list[Written]) -> None:
    for one in written:
        state = {
            ns(r["Timestamp(us)"]): [exact(r[f"Total {part}(MB)"], 1 << 20) for part in PARTS]
            for r in one.component("PTA")
        }
        for row in one.rows:
            assert [exact(row[f"Allocation Total {p}(MB)"], 1 << 20) for p in PARTS] == state[ns(row[ALLOC])]
            release = ns(row[FREE]) or ns(row[BLOCK_FREE])
            if release:
                assert [exact(row[f"Release Total {p}(MB)"], 1 << 20) for p in PARTS] == state[release]
        for allocated, reserved, active in state.values():
            assert 0 < allocated <= active <= reserved <= 61 * GIB
            assert reserved % (2 << 20) == 0
        sizes = {ns(row[ALLOC]): exact(row["Size(KB)"], 1024) for row in one.rows}
        for (_, before), (t, after) in pairwise(state.items()):
            assert t not in sizes or after[0] - before[0] == sizes[t]


def older(one: Written, part: str) -> list[int]:
    """Recorded total minus the rows alive at each record, by the rule of 3.3a."""
    changes = []
    for row in one.rows:
        free, block_free = ns(row[FREE]), ns(row[BLOCK_FREE])
        ends = [t for t in (free, block_free) if t is not None]
        end = (min(ends) if part == "Allocated" else block_free or free) if ends else None
        size = exact(row["Size(KB)"], 1024)
        changes.append((ns(row[ALLOC]), size))
        if end is not None:
            changes.append((end, -size))
    changes.sort()
    times = [t for t, _ in changes]
    live = [0]
    for _, change in changes:
        live.append(live[-1] + change)
    return [
        exact(record[f"Total {part}(MB)"], 1 << 20) - live[bisect_right(times, ns(record["Timestamp(us)"]))]
        for record in one.component("PTA")
    ]


def test_older_memory_only_falls(written: list[Written]) -> None:
    total_falls = 0
    for one in written:
        allocated, active = older(one, "Allocated"), older(one, "Active")
        truth = one.truth
        for levels in (allocated, active):
            assert all(after <= before for before, after in pairwise(levels)), one.label
        falls = sum(after < before for before, after in pairwise(allocated))
        assert falls == truth.older_falls
        assert (allocated[0], allocated[-1]) == (truth.older_start_bytes, truth.older_end_bytes)
        assert active[-1] == truth.older_active_end_bytes
        total_falls += falls
    assert total_falls > 50


def test_levels_agree_with_the_truth(written: list[Written]) -> None:
    for one in written:
        truth, records = one.truth, one.component("PTA")
        levels = [exact(record["Total Allocated(MB)"], 1 << 20) for record in records]
        times = [ns(record["Timestamp(us)"]) for record in records]
        assert levels.count(truth.peak_bytes) == 1
        assert truth.peak_bytes == max(levels)
        assert truth.peak_ns == times[levels.index(truth.peak_bytes)]
        assert (truth.window_start_ns, truth.window_end_ns) == (times[0], times[-1])
        first = one.rows[0]
        assert ns(first[ALLOC]) == times[0]
        assert truth.baseline_bytes == levels[0] - exact(first["Size(KB)"], 1024)
        assert truth.end_bytes == levels[-1]
        assert truth.reserved_peak_bytes == max(exact(r["Total Reserved(MB)"], 1 << 20) for r in records)
        assert (truth.n_rows, truth.n_ge_rows) == (len(one.rows), len(one.graph_rows))


def samples(one: Written) -> list[tuple[int, int]]:
    return [(ns(r["Timestamp(us)"]), exact(r["Total Reserved(MB)"], 1 << 20)) for r in one.component("APP")]


def test_process_memory_and_the_sleeping_pool(written: list[Written]) -> None:
    shrinking = set()
    for one in written:
        truth, records = one.truth, one.component("PTA")
        times = [ns(record["Timestamp(us)"]) for record in records]
        reserved = [exact(record["Total Reserved(MB)"], 1 << 20) for record in records]
        app = samples(one)
        inside = [(t, level) for t, level in app if times[0] <= t <= times[-1]]
        assert all(abs(b - a - 20_000_000) < 500_000 for (a, _), (b, _) in pairwise(app))
        assert app[0][0] < times[0]
        assert app[-1][0] > times[-1]
        assert max(level for _, level in app) == truth.resident_peak_bytes <= 61 * GIB
        assert max(level for _, level in inside) == truth.resident_peak_bytes
        unbacked = max(reserved[bisect_right(times, t) - 1] - level for t, level in inside)
        assert unbacked == truth.unbacked_peak_bytes > 25 * GIB
        if one.collection.role == "rollout":  # asleep before, awake in between, asleep after
            assert truth.resident_peak_bytes - app[0][1] > 15 * GIB
            assert truth.resident_peak_bytes - app[-1][1] > 25 * GIB
            assert reserved[-1] - app[-1][1] > 25 * GIB
        if any(after < before for before, after in pairwise(reserved)):
            shrinking.add(one.collection.role)
        assert any(after > before for before, after in pairwise(reserved)) or one.collection.role == "update_weights"
    assert shrinking >= {"rollout", "compute_log_prob", "actor_update"}


def test_modules(written: list[Written]) -> None:
    for one in written:
        assert list(one.modules[0]) == ["Device_id", "Component", "Timestamp(us)", "Total Reserved(MB)", "Device"]
        levels: dict[str, list[int]] = defaultdict(list)
        for row in one.modules:
            assert row["Device"] == f"NPU:{row['Device_id']}" == f"NPU:{one.collection.process.device}"
            levels[row["Component"]].append(exact(row["Total Reserved(MB)"], 1 << 20))
        assert {name for name, own in levels.items() if any(own)} == {"SLOG", "HCCL", "RUNTIME", "APP"}
        assert "76" in levels
        assert 18 <= len(levels) <= 24
        keys = [row["Component"] for row in one.modules]
        assert keys == [name for name in levels for _ in levels[name]]
        # Each process sample holds the modules' memory and some more that no module claims.
        outside = max(levels["HCCL"]) + max(levels["RUNTIME"]) + max(levels["SLOG"])
        assert min(level for _, level in samples(one)) > outside


def test_graph_engine_rows(written: list[Written]) -> None:
    with_graph = [one for one in written if one.graph_rows]
    assert {one.collection.role for one in with_graph} == {"compute_log_prob", "actor_update"}
    for one in with_graph:
        assert one.all_rows == one.rows + one.graph_rows
        starts = [ns(row[ALLOC]) for row in one.graph_rows]
        assert starts != sorted(starts)
        unreleased = [row for row in one.graph_rows if row["Duration(us)"] == "0.0"]
        assert len(unreleased) == one.truth.n_ge_open > 0
        for row in one.graph_rows:
            assert ns(row[FREE]) - ns(row[ALLOC]) == ns(row["Duration(us)"])
            gone = [row[f"Release Total {part}(MB)"] for part in PARTS]
            assert (gone == ["0.0", "0.0", ""]) == (row in unreleased)


def test_order_and_sums_of_the_records(written: list[Written]) -> None:
    for one in written:
        names = [row["Component"] for row in one.records]
        n_app = names.count("APP")
        assert set(names[:n_app]) == {"APP"}
        assert set(names[n_app + 1 :: 2]) == {"PTA+GE"}
        last = {"PTA": [0, 0, 0], "GE": [0, 0, 0]}
        for own, both in zip(one.records[n_app::2], one.records[n_app + 1 :: 2], strict=True):
            assert own["Timestamp(us)"] == both["Timestamp(us)"]
            last[own["Component"]] = [exact(own[f"Total {part}(MB)"], 1 << 20) or 0 for part in PARTS]
            sums = [a + b for a, b in zip(last["PTA"], last["GE"], strict=True)]
            assert [exact(both[f"Total {part}(MB)"], 1 << 20) for part in PARTS] == sums
        merged = [ns(row["Timestamp(us)"]) for row in one.records[n_app::2]]
        assert merged == sorted(merged)


def span(event: dict[str, Any]) -> tuple[int, int]:
    start = ns(event["ts"])
    return start, start + exact(str(event["dur"]), 1000)


def test_trace_is_one_line_with_string_times(written: list[Written]) -> None:
    seen = set()
    for one in written:
        raw = (one.folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_bytes().decode("utf-8")
        assert raw == json.dumps(one.trace, ensure_ascii=False)
        for event in one.trace:
            seen.add((event["ph"], event.get("cat")))
            if event["ph"] == "M":
                assert "ts" not in event
            else:
                assert re.fullmatch(r"\d{16}\.\d{3}", event["ts"])
        arrows = [event["id"] for event in one.trace if event.get("cat") == "async_npu"]
        assert all(key > 2**60 for key in arrows)
    assert {("X", "cpu_op"), ("X", "enqueue"), ("X", "dequeue"), ("X", "python_function"), ("X", None)} <= seen
    assert {("s", "async_npu"), ("f", "async_npu"), ("C", None), ("M", None), ("s", "fwdbwd")} <= seen
    assert any("奖励" in json.dumps(one.trace, ensure_ascii=False) for one in written)


def test_operators_nest_on_each_thread(written: list[Written]) -> None:
    for one in written:
        threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event in one.ops():
            threads[event["tid"]].append(span(event))
        expected = {"main", "backward"} if one.collection.role == "actor_update" else {"main"}
        assert len(threads) == len(expected)
        for intervals in threads.values():
            running: list[int] = []
            for start, end in sorted(intervals, key=lambda pair: (pair[0], -pair[1])):
                while running and running[-1] <= start:
                    running.pop()
                assert not running or end < running[-1]
                running.append(end)


def test_steps_and_ranges(written: list[Written]) -> None:
    for one in written:
        process = one.collection.process
        is_update = one.collection.role == "actor_update"
        steps = [op["name"] for op in one.ops() if op["name"].startswith("ProfilerStep#")]
        assert steps == (["ProfilerStep#0", "ProfilerStep#1"] if is_update else [])
        marks = [e for e in one.trace if e["ph"] == "X" and "cat" not in e and e["pid"] == process.pid]
        names = [mark["name"] for mark in marks]
        assert names.count(one.collection.role) == 1
        n_batches = {"compute_log_prob": 2, "actor_update": 4}.get(one.collection.role, 0)
        assert sum(name.startswith("micro_batch") for name in names) == n_batches
        for mark in marks:
            start, end = span(mark)
            assert one.collection.start_ns < start < end < one.collection.end_ns


class Join:
    """The rows of one collection joined with the trace, in the plainest way."""

    def __init__(self, one: Written) -> None:
        self.ops = [(*span(op), op) for op in one.ops()]
        self.by_name = defaultdict(list)
        for entry in sorted(self.ops, key=lambda entry: entry[0]):
            self.by_name[entry[2]["name"]].append(entry)
        self.forward: dict[int, list[str]] = {}
        for _, _, op in sorted(self.ops, key=lambda entry: entry[0]):
            args = op["args"]
            if args["Sequence number"] >= 0 and args["Fwd thread id"] == 0 and args.get("Call stack"):
                self.forward[args["Sequence number"]] = args["Call stack"].split(";\r\n")
        self.stale = 0

    def find(self, name: str, t: int) -> dict[str, Any] | None:
        before = [entry for entry in self.by_name[name] if entry[0] <= t]
        running = [entry for entry in before if t <= entry[1]]
        self.stale += bool(running) and before[-1] is not running[-1]
        return running[-1][2] if running else None

    def stack(self, op: dict[str, Any] | None, t: int) -> tuple[str, tuple[str, ...]]:
        if op is None:
            return "none", ()
        if op["args"].get("Call stack"):
            return "own", tuple(op["args"]["Call stack"].split(";\r\n"))
        around = [
            (start, other["args"]["Sequence number"])
            for start, end, other in self.ops
            if other["tid"] == op["tid"] and start <= t <= end and other["args"]["Sequence number"] >= 0
        ]
        frames = self.forward.get(max(around)[1], []) if around else []
        return ("forward", tuple(frames)) if frames else ("none", ())


def test_rows_join_with_the_operators(written: list[Written]) -> None:
    stale = 0
    for one in written:
        join, truth = Join(one), one.truth
        found = [join.find(row["Name"], ns(row[ALLOC])) if row["Name"] else None for row in one.rows]
        assert sum(op is not None for op in found) == truth.rows_in_op
        assert sum(not row["Name"] for row in one.rows) == truth.rows_empty_name
        assert len(one.rows) == truth.rows_in_op + truth.rows_empty_name + truth.rows_near_miss
        kinds = []
        for row, op, block in zip(one.rows, found, one.collection.blocks, strict=True):
            answer = join.stack(op, ns(row[ALLOC]))
            assert answer == (block.stack_kind, block.stack), (one.label, row)
            kinds.append(answer[0])
        assert kinds.count("own") == truth.rows_own_stack > 0
        assert kinds.count("forward") == truth.rows_forward_stack
        assert kinds.count("none") == truth.rows_no_stack > 0
        assert (truth.rows_forward_stack > 100) == (one.collection.role == "actor_update")
        stale += join.stale
    assert stale >= 8
    assert sum(one.truth.rows_near_miss for one in written) >= 8


def test_backward_structure(written: list[Written]) -> None:
    for one in written:
        if one.collection.role != "actor_update":
            continue
        backward = [op for op in one.ops() if op["tid"] != one.collection.process.pid]
        prefix = "autograd::engine::evaluate_function: "
        engine = [op for op in backward if op["name"].startswith(prefix)]
        nodes = [op for op in backward if op["args"]["Fwd thread id"] == 1]
        assert len(engine) == len(nodes) > 100
        assert all("Call stack" not in op["args"] for op in backward)
        assert all(op["args"]["Sequence number"] == -1 for op in engine)
        for outer, inner in zip(engine, nodes, strict=True):
            assert outer["name"] == prefix + inner["name"]
            assert span(outer)[0] < span(inner)[0] < span(inner)[1] < span(outer)[1]
            is_accumulation = inner["name"] == "torch::autograd::AccumulateGrad"
            assert (inner["args"]["Sequence number"] == -1) == is_accumulation


def test_stacks_run_from_the_inside_out(written: list[Written]) -> None:
    plumbing = 0
    for one in written:
        for op in one.ops():
            text = op["args"].get("Call stack")
            if text:
                frames = text.split(";\r\n")
                assert frames[-1] == "<string>(1): <module>"
                assert all(re.fullmatch(r".+\(\d+\): .+", frame) for frame in frames)
                plumbing += "/torch/" in frames[0]
    assert plumbing > 100


def test_leak_grows_with_every_micro_batch(written: list[Written]) -> None:
    for one in written:
        join = Join(one)
        leaked = []
        for row in one.rows:
            if row["Name"] == "aten::clone" and not row[FREE] and not row[BLOCK_FREE]:
                op = join.find(row["Name"], ns(row[ALLOC]))
                assert op is not None
                assert op["args"]["Call stack"].split(";\r\n")[0] == LEAK
                leaked.append(exact(row["Size(KB)"], 1024))
        assert len(leaked) == (4 if one.collection.role == "actor_update" else 0)
        assert sum(leaked) == one.truth.leak_bytes


def test_ranks_differ_and_levels_are_believable(run: DemoRun) -> None:
    for a, b in zip(run.collections[:8], run.collections[8:], strict=True):
        assert (a.role, a.iteration) == (b.role, b.iteration)
        assert a.truth.peak_bytes != b.truth.peak_bytes
        assert {a.process.device, b.process.device} == {0, 1}
        assert abs(a.start_ns - b.start_ns) < 100_000_000  # the ranks of a job move together
    for c in run.collections:
        assert 20 * GIB < c.truth.baseline_bytes < c.truth.peak_bytes
        if c.role == "actor_update":
            assert c.truth.peak_bytes - c.truth.end_bytes > 8 * GIB
        if c.role == "rollout":
            open_blocks = [b for b in c.blocks if b.free_ns is None and b.block_free_ns is None]
            assert sum(b.size_bytes for b in open_blocks if b.size_bytes > GIB) > 16 * GIB


@pytest.mark.parametrize("seed", [7, 123_456_789])
def test_other_seeds_hold_the_limits(seed: int) -> None:
    run = simulate_run(seed=seed, ranks=8, iterations=2)
    assert len(run.collections) == 64
    for c in run.collections:
        assert max(c.truth.reserved_peak_bytes, c.truth.resident_peak_bytes) < 61 * GIB
        assert c.truth.unbacked_peak_bytes > 25 * GIB
