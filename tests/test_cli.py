"""The command as people type it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tiny import record, row, write_collection

from memscope_nb.cli import main

ROWS = [row("aten::mm", 1024, 10, 20, 19, 3.0)]
RECORDS = [record("PTA", 10, 3.0), record("PTA", 19, 2.0), record("PTA", 20, 2.0)]


@pytest.fixture
def tree(tmp_path):
    write_collection(tmp_path / "in", rank=0, name="a_ascend_pt", operators=ROWS, records=RECORDS)
    write_collection(tmp_path / "in", rank=1, name="b_ascend_pt", operators=None, records=None)
    return tmp_path / "in"


def test_demo_then_report(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report")]) == 0
    index = capsys.readouterr().out.splitlines()[-1].removeprefix("open ")
    assert index == str(tmp_path / "report" / "index.html")
    assert (tmp_path / "report" / "run" / "rank1" / "memory_timeline_00.html").is_file()


def test_demo_does_not_write_into_a_used_folder(tmp_path, capsys):
    (tmp_path / "x").write_text("x")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("memscope-nb: ")


def test_a_broken_rank_is_named_and_the_rest_reported(tree, tmp_path, capsys):
    assert main(["report", str(tree), "--out", str(tmp_path / "out")]) == 0
    streams = capsys.readouterr()
    assert "failed: " in streams.err
    assert "b_ascend_pt" in streams.err
    assert (tmp_path / "out" / "in" / "rank0" / "memory_timeline_00.html").is_file()


def test_strict_makes_it_an_error(tree, tmp_path, capsys):
    assert main(["report", str(tree), "--out", str(tmp_path / "out"), "--strict"]) == 2
    assert "1 of 2 sources cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_info_text_and_json(tree, capsys):
    assert main(["info", str(tree)]) == 0
    assert "peak 3.00 MiB" in capsys.readouterr().out
    assert main(["info", str(tree), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["status"] for s in found["sources"]] == ["partial", "failed"]
    assert found["series"][0]["peak_bytes"] == 3 << 20
    assert found["series"][0]["peak_ns"] == 1_700_000_000_000_010_000
    assert found["sources"][1]["start_ns"] is None


def test_validate(tree, capsys):
    assert main(["validate", str(tree), "--ranks", "0"]) == 0
    assert "valid: 1 sources, 1 blocks; 0 unexplained rises" in capsys.readouterr().out


def test_validate_lists_failures(tmp_path, capsys):
    bad = row("aten::mm", 1024, 10, 20, 5, 3.0)  # leaves the pool before it came
    write_collection(tmp_path, operators=[bad], records=None)
    assert main(["validate", str(tmp_path)]) == 1
    assert "blocks.active_free_ns row 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "/nowhere/at/all"], "no such file or folder"),
        (["info", "{tree}", "--ranks", "9"], "nothing matches; there is"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tree, capsys, arguments, message):
    assert main([a.replace("{tree}", str(tree)) for a in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_ranks_must_be_numbers(tree, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["info", str(tree), "--ranks", "a"])
    assert stop.value.code == 2
    assert "not a list of ranks" in capsys.readouterr().err


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "memscope_nb", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().count(".") == 2
