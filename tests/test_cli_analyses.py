"""The analyses of dumps as people type them, on the demo's leaking and repaired run."""

from __future__ import annotations

import hashlib
import json

import pytest

from memscope_nb.cli import main
from memscope_nb.demo import write_demo_dump
from memscope_nb.demo.torch_allocator import write_snapshot
from memscope_nb.demo.torch_oom import build_oom

LEAK = "metrics_buffer.py(88): append_logits"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dumps")
    truth = write_demo_dump(folder / "leak", leak=True)
    write_demo_dump(folder / "fixed", leak=False)
    return folder, truth


def digest(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def run(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    streams = capsys.readouterr()
    return status, streams.out, streams.err


def test_leaks_between_marks(dumps, capsys):
    folder, truth = dumps
    status, out, _ = run(capsys, "leaks", folder / "leak", "--mstx", truth.mark, "--pools", "PTA", "--start", 1)
    assert status == 0
    assert "leak" in out
    assert LEAK in out
    status, out, _ = run(capsys, "leaks", folder / "fixed", "--mstx", truth.mark, "--pools", "PTA", "--start", 1)
    assert status == 0
    assert LEAK not in out


def test_leaks_over_steps_as_json(dumps, capsys):
    folder, _ = dumps
    found = json.loads(run(capsys, "leaks", folder / "leak", "--json")[1])
    (growth,) = [row for row in found["growth"] if row["pool"] == "PTA"]
    assert growth["verdict"] == "growing"
    fixed = json.loads(run(capsys, "leaks", folder / "fixed", "--json")[1])
    assert [row["verdict"] for row in fixed["growth"] if row["pool"] == "PTA"] == ["steady"]


def test_compare_shows_exactly_the_leaked_bytes(dumps, capsys, tmp_path):
    folder, truth = dumps
    found = json.loads(run(capsys, "compare", folder / "leak", folder / "fixed", "--json")[1])
    changed = [row for row in found["rows"] if row["diff_bytes"]]
    (process,) = truth.processes
    assert -sum(row["diff_bytes"] for row in changed) == sum(process.leak_bytes)
    assert {row["name"] for row in changed} == {"torch._ops.aten.clone.default"}
    status, _, err = run(
        capsys, "compare", folder / "leak", folder / "fixed", "--compat", "msmemscope", "--csv", tmp_path / "out"
    )
    assert status == 0
    assert "on line 2 is invalid!" in err  # the original reads by lines and gives up at the first stack
    assert "nothing to write" in err


def test_inefficient_and_its_labelled_copy(dumps, capsys, tmp_path):
    folder, _ = dumps
    before = digest(folder / "leak")
    copy = tmp_path / "labelled.csv"
    status, out, err = run(capsys, "inefficient", folder / "leak", "--mem-size", 1 << 30, "--copy", copy, "--rows", 5)
    assert status == 0
    assert "early_allocation" in out
    assert "more (--rows, --json)" in out
    assert "wrote" in err
    assert "early_allocation" in copy.read_text()
    assert digest(folder / "leak") == before


def test_decompose_at_the_peak(dumps, capsys):
    folder, _ = dumps
    found = json.loads(run(capsys, "decompose", folder / "leak", "--json")[1])
    paths = {row["path"] for row in found["rows"]}
    assert "PTA@vllm@kv_cache@attn" in paths
    status, out, _ = run(capsys, "decompose", folder / "leak")
    assert status == 0
    assert "GiB" in out
    assert "never add them up" in out


def test_oom_of_a_snapshot(capsys, tmp_path):
    what, truth = build_oom(n_entries=2000)
    path = write_snapshot(tmp_path / "oom_snapshot_7_20260101120000.pickle", what)
    status, out, err = run(capsys, "oom", path)
    assert (status, err) == (0, "")
    assert "fragmented: 4.00 GiB needed" in out
    assert "it would fit without: 2" in out
    assert "metrics.py(88): append_logits" in out
    assert "13.0 GiB idle" in out
    (row,) = json.loads(run(capsys, "oom", path, "--json")[1])["rows"]
    assert row["other_stream_bytes"] == truth.other_stream_bytes
    assert row["rank_id"] is None
    (row,) = json.loads(run(capsys, "oom", path, "--at", "end", "--request", "2 GiB", "--json")[1])["rows"]
    assert (row["verdict"], row["usable_bytes"]) == ("fits", truth.ranges_bytes[0])
    for arguments, message in (
        (["--at", "soon"], "expected oom, end"),
        (["--at", "5"], "there are 1"),
        (["--request", "4 GB"], "not a size"),
        (["--stream", "3"], "without a request"),
    ):
        status, _, err = run(capsys, "oom", path, *arguments)
        assert status == 2
        assert message in err
        assert len(err.splitlines()) == 1


def test_oom_of_a_dump(dumps, capsys):
    folder, _ = dumps
    status, out, _ = run(capsys, "oom", folder / "leak")
    assert status == 0
    assert "no failed allocation was recorded" in out
    assert run(capsys, "oom", folder / "leak", "--at", "end")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["oom", "{run}"], "_record_memory_history"),
        (["leaks", "{run}"], "msMemScope dump"),
        (["inefficient", "{run}"], "msmemscope.config("),
        (["compare", "{run}", "{run}"], "msMemScope dump"),
        (["watch", "{run}"], ""),
    ],
)
def test_a_recording_without_the_facts_says_how_to_record_them(demo, capsys, arguments, message):
    status, _, err = run(capsys, *(argument.replace("{run}", str(demo[0])) for argument in arguments))
    assert status == 2
    assert err.startswith("memscope-nb: ")
    assert message in err
