from __future__ import annotations

import pytest

from memscope_nb.errors import InputError
from memscope_nb.io.csv_table import read_table
from memscope_nb.io.report import ReadReport
from memscope_nb.model import NA_NS

KINDS = {"name": "text", "size": "bytes", "allocation time": "time", "stream ptr": "int"}
HEADER = "Name,Size(KB),Allocation Time(us),Stream Ptr\r\n"


def read(tmp_path, data: bytes | str, required=("name", "size", "allocation time")):
    path = tmp_path / "t.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    report = ReadReport()
    return read_table(path, KINDS, required=required, report=report), report


def test_typed_columns(tmp_path):
    table, report = read(tmp_path, HEADER + "a,0.5,1779785515596661.421\t,94509039890976\r\nb,1,5\t,-1\r\n,2,,\r\n")
    assert table.text("name").tolist() == ["a", "b", ""]
    assert table.ints("size").tolist() == [512, 1024, 2048]
    assert table.ints("allocation time").tolist() == [1779785515596661421, 5000, NA_NS]
    assert table.ints("stream ptr").tolist() == [94509039890976, -1, NA_NS]
    assert report.warnings == ()


def test_columns_are_found_by_name_in_any_order_and_unknown_ones_ignored(tmp_path):
    table, _ = read(tmp_path, "Extra,Allocation Time(us),Size(MB),Name\nx,5,2,a\n")
    assert table.ints("size").tolist() == [2 << 20]
    assert "stream ptr" not in table
    assert table.ints("stream ptr").tolist() == [NA_NS]


def test_missing_required_column_is_named(tmp_path):
    with pytest.raises(InputError, match="no column size; the header is Name, Time"):
        read(tmp_path, "Name,Time\na,1\n", required=("name", "size"))


@pytest.mark.parametrize("text", ["", "N/A", "nan", "None"])
def test_empty_is_unknown_never_zero(tmp_path, text):
    table, report = read(tmp_path, HEADER + f"a,{text},{text},1\r\n")
    assert table.ints("size").tolist() == table.ints("allocation time").tolist() == [NA_NS]
    assert report.warnings == ()


def test_bom_quoted_tabs_commas_and_line_feeds(tmp_path):
    data = "\ufeffName,Size(KB),Allocation Time(us),Stream Ptr\n" + '"a,b",0.5,"1779785515596661.420\t",1\n'
    table, _ = read(tmp_path, data)
    assert table.text("name").tolist() == ["a,b"]
    assert table.ints("allocation time").tolist() == [1779785515596661420]


def test_gbk_names(tmp_path):
    table, report = read(tmp_path, (HEADER + "算子,1,5,1\r\n").encode("gbk"))
    assert table.text("name").tolist() == ["算子"]
    assert report.n_repaired == 1


def test_spreadsheet_times_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"1\.69512E\+15 have lost their resolution"):
        read(tmp_path, HEADER + "a,1,5.000,1\r\nb,1,1.69512E+15,1\r\n")


def test_a_cut_last_row_is_counted_and_the_others_kept(tmp_path):
    table, report = read(tmp_path, HEADER + "a,1,5,1\r\nb,1,6")
    assert table.text("name").tolist() == ["a"]
    assert report.n_skipped == 1
    assert "another number of cells" in report.warnings[0]


def test_an_open_quote_costs_its_own_line_only(tmp_path):
    rows = "".join(f"op{i},1,{i}.000,1\r\n" for i in range(30_000))
    table, report = read(tmp_path, HEADER + 'a,1,5,1\r\n"b,1,6,1\r\n' + rows)
    assert table.text("name").tolist() == ["a", *(f"op{i}" for i in range(30_000))]
    assert report.n_skipped == 1
    assert any("line 3" in warning for warning in report.warnings)


def test_bad_cells_name_their_line_and_value(tmp_path):
    table, report = read(tmp_path, HEADER + "a,1,5,1\r\nb,1,oops,1\r\n")
    assert table.ints("allocation time").tolist() == [5000, NA_NS]
    assert "line 3: 'oops'" in report.warnings[0]
    assert report.n_repaired == 1


def test_more_than_three_decimals_are_cut_and_counted(tmp_path):
    table, report = read(tmp_path, HEADER + "a,1,5.1239,1\r\n")
    assert table.ints("allocation time").tolist() == [5123]
    assert report.n_repaired == 1


def test_shortened_sizes_go_to_the_nearest_byte_with_their_tolerance(tmp_path):
    table, _ = read(tmp_path, "Name,Size(MB),Allocation Time(us)\na,19071.57617,5\nb,19071.576171875,6\n")
    assert table.ints("size").tolist() == [19997997054, 19997997056]
    assert table.rounding["size"].tolist() == [6, 0]


@pytest.mark.parametrize("data", [HEADER, HEADER.strip()])
def test_only_a_header(tmp_path, data):
    table, _ = read(tmp_path, data)
    assert table.n_rows == 0
    assert table.ints("size").tolist() == []


def test_an_empty_file_names_what_is_missing(tmp_path):
    with pytest.raises(InputError, match="the header is empty"):
        read(tmp_path, b"")


def test_codes_agree_over_many_blocks(tmp_path):
    names = [f"op{i % 7}" for i in range(60_000)]
    table, _ = read(tmp_path, HEADER + "".join(f"{n},1,{i}.000,1\r\n" for i, n in enumerate(names)))
    assert table.text("name").tolist() == names
    assert table.ints("allocation time")[-1] == 59_999_000
