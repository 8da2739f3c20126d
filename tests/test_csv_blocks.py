"""Blocks, dropped rows and the fast ways of the CSV reader: the same as the slow ones, to the cell and the remark."""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memscope_nb.io import csv_columns, csv_table
from memscope_nb.io.report import ReadReport
from memscope_nb.model import NA_NS

KINDS = {"name": "text", "size": "bytes", "time": "time", "number": "int"}
HEADER = "Name,Size(KB),Time(us),Number\r\n"


def read(tmp_path, text: str, *, block: int | None = None, drop=None):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    report = ReadReport()
    with pytest.MonkeyPatch.context() as patch:
        if block is not None:
            patch.setattr(csv_table, "BLOCK_BYTES", block)
        table = csv_table.read_table(path, KINDS, required=(), report=report, drop=drop)
    return table, report


def content(table):
    numbers = [table.ints(name).tolist() for name in ("size", "time", "number")]
    return [table.text("name").tolist(), *numbers, table.rounding["size"].tolist()]


def hard_rows(rng: random.Random, n: int) -> list[str]:
    sizes = ["0.5", "1024", "19071.57617", "", "N/A", "oops", "-2.0", "1e3", "inf", "1e300", ".5", "5.", "nan"]
    times = [f"{10**15 + rng.randrange(10**9)}.{i:03d}\t" for i in range(20)]
    times += ["", "5\t", "5.1239", "5.1230", "-3.5", "12.25", ".5", "7.", "word", "N/A", "\t", " 8 "]
    numbers = ["94509039890976", "-1", "", "x", "1" * 19, "0x1F", "007"]
    names = ["aten::mm", '"a,b"', "", " padded ", "nan", "路径", "PTA+GE"]
    rows = [",".join(rng.choice(cells) for cells in (names, sizes, times, numbers)) for _ in range(n)]
    return [*rows, "too,few", "", "one,too,many,cells,here"]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("drop", [None, ("name", "+GE")])
def test_any_block_size_gives_the_same_cells_and_remarks(tmp_path, seed, drop):
    rng = random.Random(seed)
    rows = hard_rows(rng, 60)
    rng.shuffle(rows)
    text = HEADER + "".join(row + "\r\n" for row in rows)
    whole, told = read(tmp_path, text, drop=drop)
    for block in (16, rng.randrange(17, 300), 5000):
        table, report = read(tmp_path, text, block=block, drop=drop)
        assert content(table) == content(whole)
        assert (report.n_repaired, report.n_skipped) == (told.n_repaired, told.n_skipped)
        assert {(note.text, note.count) for note in report.notes.values()} == {
            (note.text, note.count) for note in told.notes.values()
        }


def test_dropped_rows_keep_the_line_numbers_of_the_others(tmp_path):
    rows = ["PTA,1,5.000,1", "PTA+GE,1,bad,1", "PTA,2,bad,1", "PTA+GE,1,5.000,1", "APP,3,6.000,1"]
    table, report = read(tmp_path, HEADER + "\r\n".join(rows), drop=("name", "+GE"), block=20)
    assert table.text("name").tolist() == ["PTA", "PTA", "APP"]
    assert table.ints("size").tolist() == [1024, 2048, 3072]
    assert report.n_repaired == 1  # only the cell that is used
    assert "line 4: 'bad'" in report.warnings[0]
    assert [table.where(i) for i in range(3)] == ["line 2", "line 4", "line 6"]


@pytest.mark.parametrize("text", ["inf", "-inf", "Infinity", "1e300", "1e-300", "NaN", "0x10", "1_0"])
def test_what_only_a_float_parser_takes_for_a_size_is_unreadable(tmp_path, text):
    table, report = read(tmp_path, HEADER + f"a,1,5,1\r\nb,{text},5,1\r\n")
    assert table.ints("size").tolist() == [1024, NA_NS]
    assert f"line 3: {text!r}" in report.warnings[0]


@pytest.mark.parametrize(
    ("text", "size"), [("1e3", 1024000), ("1.5E+1", 15360), (".5", 512), ("5.", 5120), ("-2", -2048)]
)
def test_sizes_in_other_spellings(tmp_path, text, size):
    table, report = read(tmp_path, HEADER + f"a,{text},5,1\r\n")
    assert table.ints("size").tolist() == [size]
    assert report.warnings == ()


def test_what_a_way_that_gave_up_has_reported_does_not_count_twice(tmp_path):
    rows = ["too,few", "a,oops,5,1", '"open,1,5,1', "b,1,5,1"]
    table, report = read(tmp_path, HEADER + "".join(row + "\r\n" for row in rows))
    assert table.text("name").tolist() == ["a", "b"]
    counts = {note.text.partition(": ")[2].split(" (")[0]: note.count for note in report.notes.values()}
    assert counts["unreadable cells in size taken as unknown"] == 1
    assert counts["rows with another number of cells than the header"] == 2


def test_a_line_longer_than_a_block(tmp_path):
    table, _ = read(tmp_path, HEADER + "a" * 5000 + ",1,5,1\r\nb,2,6,2\r\n", block=64)
    assert [len(name) for name in table.text("name")] == [5000, 1]
    assert table.ints("time").tolist() == [5000, 6000]


def test_progress_adds_up_to_the_file(tmp_path):
    path = tmp_path / "t.csv"
    for row in ("a,1,5,1\r\n", '"a,1,5,1\r\n'):  # the second is read in another way
        path.write_text(HEADER + row * 1000)
        seen: list[int] = []
        csv_table.read_table(path, KINDS, required=(), report=ReadReport(), on_bytes=seen.append)
        assert sum(seen) == path.stat().st_size


plain = (
    st.from_regex(r"\A[0-9]{1,15}(\.[0-9]{1,3})?\t?\Z") | st.from_regex(r"\A1[0-9]{15}\.[0-9]{3}\t?\Z") | st.just("")
)
odd = st.text("0123456789.-\tN/A ", max_size=7)


@settings(max_examples=200)
@given(st.lists(plain | odd, max_size=8))
def test_the_fast_way_for_times_gives_what_the_slow_one_gives(cells):
    column = pa.array(cells, pa.string())
    report = ReadReport()
    slow = csv_columns._odd_times(column, "t", "f", str, report)
    fast = csv_columns._plain_times(column)
    if fast is not None:
        assert fast.tolist() == slow.tolist()
    assert csv_columns.times(column.slice(1), "t", "f", str, ReadReport()).tolist() == slow.tolist()[1:]


@given(st.lists(plain, min_size=1, max_size=8))
def test_plain_times_never_need_the_slow_way(cells):
    fast = csv_columns._plain_times(pa.array(cells, pa.string()))
    assert fast is not None
    assert fast.dtype == np.int64
    assert fast.tolist() == [int(Decimal(cell.strip()) * 1000) if cell else NA_NS for cell in cells]
