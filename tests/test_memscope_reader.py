"""Rows of msMemScope dumps: every trap of the format, both containers, trees, isolation of failures."""

from __future__ import annotations

import csv
import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import SAMPLES
from dump_rows import HEADER, T0, cells, free, line, malloc, mark, write_csv, write_db
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import memscope_nb as ms
from memscope_nb.io import memscope_rows
from memscope_nb.io.memscope_attrs import parse_attrs
from memscope_nb.io.memscope_events import parse_address, split_frames
from memscope_nb.io.memscope_rows import COLUMNS, read_rows, sniff_header
from memscope_nb.io.report import ReadReport

DUMPS = SAMPLES / "msmemscope"
needs_samples = pytest.mark.skipif(not DUMPS.is_dir(), reason="the public samples are not laid beside the checkout")


def rows_of(path: Path, report: ReadReport | None = None) -> list[list[str]]:
    batches = read_rows(path, report=report if report is not None else ReadReport())
    return [[row[name] for name in COLUMNS] for batch in batches for row in batch.to_pylist()]


def snapshot(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


# -- rows -------------------------------------------------------------------------------------------------------


@needs_samples
@pytest.mark.parametrize("path", sorted(DUMPS.rglob("*.csv")), ids=lambda p: p.name)
def test_sample_rows_are_what_the_csv_module_reads(path: Path):
    with path.open(newline="") as file:
        expected = list(csv.reader(file))[1:]
    report = ReadReport()
    assert rows_of(path, report) == expected
    assert (report.n_skipped, report.n_repaired) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        'say "hi" there',
        '5" tall',
        'a,b "c", d',
        'a","b',
        ",1,2,3,",
        "",
        "----",
        "é漢",
        'ends with "',
        '"starts',
    ],
)
def test_mark_texts_survive_without_doubled_quotes(tmp_path: Path, text: str):
    rows = [malloc(1, 16, 8), mark(2, text), free(3, 16, 8)]
    report = ReadReport()
    assert rows_of(write_csv(tmp_path / "a.csv", rows), report) == [list(row) for row in rows]
    assert report.n_skipped == 0


@pytest.mark.parametrize("chunk", [64, 700, 8 << 20])
def test_rows_are_found_by_how_they_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(memscope_rows, "CHUNK_BYTES", chunk)
    stack = "a.py(1): f\n/root/b.py(2): <module>\n"
    good = [
        malloc(1, 16, 512, pool="PTA", stack=stack, c_stack="libx.so(+0x1)[0x2]\n"),
        cells(2, "KERNEL_LAUNCH", "KERNEL_LAUNCH", "gemm<half, float>", streamId=2, taskId=9),
        mark(3, 'quote " here'),
        cells(4, "ACCESS", "READ", "op", ptr=16, size=4, type="PTA", shape="torch.Size([2, 3])"),
    ]
    text = HEADER + "\n" + line(good[0]) + line(good[1]) + HEADER + "\n\n" + "".join(map(line, good[2:]))
    (tmp_path / "a.csv").write_text(text + "5,MALLOC,HAL,N/A,17800", newline="")
    report = ReadReport()
    assert rows_of(tmp_path / "a.csv", report) == [list(row) for row in good]
    assert report.n_skipped == 1
    assert "record 7" in report.warnings[-1]


def test_rewritten_with_crlf_and_doubled_quotes(tmp_path: Path):
    rows = [malloc(1, 16, 8, pool="PTA", stack="a.py(1): f\nb.py(2): g\n"), mark(2, 'a "b", c'), free(3, 16, 8)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER.split(","), *rows])
    report = ReadReport()
    assert rows_of(tmp_path / "a.csv", report) == [list(row) for row in rows]
    assert report.n_repaired == 0


def test_headers_in_any_case_order_and_without_stacks(tmp_path: Path):
    shuffled = [
        "Process ID",
        "Event",
        "id",
        "EVENT TYPE",
        "name",
        "timestamp(ns)",
        "Thread ID",
        "Device ID",
        "ptr",
        "attr",
    ]
    values = ["100", "MALLOC", "1", "PTA", "N/A", str(T0), "100", "0", "0x10", '"{addr:0x10,size:8}"']
    (tmp_path / "a.csv").write_text(",".join(shuffled) + "\n" + ",".join(values) + "\n")
    ((*found,),) = rows_of(tmp_path / "a.csv")
    assert found == ["1", "MALLOC", "PTA", "N/A", str(T0), "100", "100", "0", "0x10", "{addr:0x10,size:8}", "", ""]


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=20), max_size=6)
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mark_text_leaves_the_other_rows_alone(tmp_path: Path, texts: list[str]):
    rows = []
    for i, text in enumerate(texts):
        rows += [mark(2 * i, text), malloc(2 * i + 1, 16 * i + 16, 512, pool="PTA", life=i + 1)]
    p = ms.load(write_csv(tmp_path / "a.csv", [*rows, malloc(999, 8, 8)]))
    assert p.blocks["event_id"].tolist() == [2 * i + 1 for i in range(len(texts))] + [999]
    ms.validate(p)


def test_bytes_that_are_not_text_are_replaced_and_counted(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes((HEADER + "\n" + line(mark(1, "x")) + line(malloc(2, 16, 8))).encode().replace(b'"x"', b'"\xff"'))
    p = ms.load(path)
    assert p.marks["name"].tolist() == ["\ufffd"]
    assert p.sources["n_repaired"].tolist() == [1]


def test_other_csv_files_are_no_dumps(tmp_path: Path):
    assert sniff_header(b"Tensor info,Check data sum\n") is None
    assert sniff_header(b",,,Base,Compare\nEvent,Name,Device Id\n") is None
    assert sniff_header(b"\xff\xfe\x00") is None
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ms.InputError, match="no profile found"):
        ms.load(tmp_path)


# -- cells ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ("", {}),
        ("{addr:0x10,size:512,owner:,MID:7}", {"addr": "0x10", "size": "512", "owner": "", "MID": "7"}),
        ("{size:8,shape:torch.Size([2, 3])}", {"size": "8", "shape": "torch.Size([2, 3])"}),
        ("{shape:[2,3,],size:8}", {"shape": "[2,3,]", "size": "8"}),
        ("{owner:a,b:c,inefficient:early_allocation,late_deallocation}",
         {"owner": "a,b:c", "inefficient_type": "early_allocation,late_deallocation"}),
        ("{path:0_1/x:y,workspace ptr:0x1}", {"path": "0_1/x:y", "workspace_ptr": "0x1"}),
        ("{path:0_1/abc,size:4", {"path": "0_1/abc", "size": "4"}),
        ('{"size":"8","shape":"[1,2]"}', {"size": "8", "shape": "[1,2]"}),
        ('{"size":"8","owner":"a","b:c"}', {"size": "8", "owner": "a,b:c"}),
        ("{peak_reserved:5,total_mem:7}", {"max_reserved": "5", "total": "7"}),
    ],
)  # fmt: skip
def test_attr_cells(text: str, expected: dict[str, str]):
    assert parse_attrs(text) == expected


@given(st.text(max_size=60))
def test_attr_cells_never_fail(text: str):
    assert isinstance(parse_attrs(text), dict)


def test_addresses_and_stacks():
    assert parse_address("0x000012c040000000") == parse_address(str(0x12C040000000)) == 0x12C040000000
    assert [parse_address(t) for t in ("N/A", "", "0x", "-1", "9" * 30, str(1 << 63))] == [None] * 5 + [1 << 63]
    assert split_frames('""a.py(1): f\nb.py(2): g\n""') == ("a.py(1): f", "b.py(2): g")
    assert split_frames("NA") == split_frames("") == ()


def test_microseconds_under_a_header_of_nanoseconds(tmp_path: Path):
    rows = [malloc(1, 16, 8, t=T0 // 1000), free(2, 16, 8, t=T0 // 1000 + 5)]
    p = ms.load(write_csv(tmp_path / "a.csv", rows))
    assert p.events["t_ns"].tolist() == [T0, T0 + 5000]
    assert p.sources["facts"][0]["n_times_in_us"] == 2


def test_header_of_february_2025(tmp_path: Path):
    header = (
        "Record Index,Timestamp(us),Event,Event Type,Process Id,Thread Id,Device Id,Kernel Index,Flag,Addr,Size(byte),"
        "Total Allocated(byte),Total Reserved(byte)"
    )
    rows = [
        f"1,{T0 // 1000},malloc,PTA,7,8,0,0,0,4096,512,512,2048",
        f"2,{T0 // 1000 + 1},free,PTA,7,8,0,0,0,4096,-512,0,2048",
    ]
    (tmp_path / "leaks_dump_1.csv").write_text("\n".join([header, *rows]) + "\n")
    p = ms.validate(ms.load(tmp_path))
    assert p.blocks[["size_bytes", "alloc_ns", "free_ns"]].values.tolist() == [[512, T0, T0 + 1000]]
    assert p.totals[["allocated_bytes", "reserved_bytes"]].values.tolist() == [[512, 2048], [0, 2048]]
    assert p.events["size_bytes"].tolist() == [512, -512]


def test_rows_without_usable_numbers_are_counted(tmp_path: Path):
    rows = [malloc(1, 16, 8), cells("x", "FREE", "HAL", t=T0), malloc(3, 32, 8, t="soon")]
    p = ms.load(write_csv(tmp_path / "a.csv", rows))
    assert p.events["event_id"].tolist() == [1]
    assert p.sources["n_skipped"].tolist() == [2]


def test_events_keep_every_row_as_it_is(tmp_path: Path):
    rows = [
        free(7, 16, -8, pool="PTA", life=1, used=0, total=64),
        malloc(3, 16, 8, pool="PTA", life=1, used=8, total=64, process_used=1, device_used=2, owner="PTA@x,y:z@ops"),
        cells(5, "ACCESS", "WRITE", "op", ptr="24", size=4, type="PTA", allocation_id=1),
        cells(2, "SYSTEM", "acl init", device="N/A", pid="N/A"),
        cells(9, "KERNEL_LAUNCH", "KERNEL_EXCUTE_START", "k"),
    ]
    e = ms.load(write_csv(tmp_path / "a.csv", rows)).events
    assert e["event_id"].tolist() == [7, 3, 5, 2, 9]
    assert e["row"].tolist() == [2, 3, 4, 5, 6]
    assert e["size_bytes"].tolist()[:3] == [-8, 8, 4]
    assert e["owner"][1] == "PTA@x,y:z@ops"
    assert e["access_pool"][2] == "PTA"
    assert e["attrs"].tolist() == [row[9] for row in rows]
    assert e["type"].tolist() == ["PTA", "PTA", "WRITE", "ACL_INIT", "KERNEL_EXECUTE_START"]
    assert e["addr"].tolist()[:3] == [16, 16, 24]
    assert (e["used_bytes"][1], e["total_bytes"][1], e["process_used_bytes"][1], e["device_used_bytes"][1]) == (
        8,
        64,
        1,
        2,
    )


# -- databases --------------------------------------------------------------------------------------------------

BOTH = [
    cells(1, "OP_LAUNCH", "ATEN_START", "aten.mm"),
    malloc(2, 16, 512, pool="PTA", life=1, used=512, total=1024, owner="PTA@a,b@ops", stack="m.py(1): f\nn.py(2): g\n"),
    cells(3, "ACCESS", "WRITE", "aten.mm", ptr=20, allocation_id=1, size=4, type="PTA", shape="torch.Size([1, 2])"),
    cells(4, "OP_LAUNCH", "ATEN_END", "aten.mm"),
    free(5, 16, 512, pool="PTA", life=1, used=0, total=1024),
    mark(6, "step start", kind="Range_start"),
    mark(7, "Range end from id 1", kind="Range_end"),
    mark(8, "plain mark"),
]


@pytest.mark.parametrize("table", ["memscope_dump", "leaks_dump"])
def test_a_database_reads_as_the_csv_does(tmp_path: Path, table: str):
    a = ms.load(write_csv(tmp_path / "a.csv", BOTH))
    b = ms.load(write_db(tmp_path / "b.db", BOTH, table=table))
    assert b.sources["kind"].tolist() == ["memscope_db"]
    for name in ("blocks", "totals", "marks", "ops", "accesses"):
        pd.testing.assert_frame_equal(getattr(a, name), getattr(b, name))
    same = a.events.columns.drop(["row", "attrs"])
    pd.testing.assert_frame_equal(a.events[same], b.events[same])
    assert b.events["row"].tolist() == list(range(1, 9))


def test_marks_that_gained_quotes_in_each_file_of_a_database(tmp_path: Path):
    path = write_db(tmp_path / "a.db", [mark(1, "x"), malloc(2, 16, 8)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("""UPDATE memscope_dump SET Name = '\"\"x\"\"' WHERE ID = 1""")
        connection.commit()
    assert ms.load(path).marks["name"].tolist() == ["x"]


def test_a_live_journal_is_read_and_the_folder_left_alone(tmp_path: Path):
    source = tmp_path / "live" / "a.db"
    write_db(source, [malloc(1, 16, 8)])
    writer = sqlite3.connect(source)
    try:
        writer.execute("PRAGMA journal_mode=WAL")
        stored = [
            1 if i == 0 else value for i, value in enumerate(writer.execute("SELECT * FROM memscope_dump").fetchone())
        ]
        stored[0], stored[8] = 2, "0x20"
        writer.execute("INSERT INTO memscope_dump VALUES (" + ",".join("?" * 12) + ")", stored)
        writer.commit()
        copy = tmp_path / "copy"
        shutil.copytree(source.parent, copy)
        (copy / "a.db-shm").unlink()
        before = snapshot(copy)
        assert ms.load(copy / "a.db").events["event_id"].tolist() == [1, 2]
        assert snapshot(copy) == before
    finally:
        writer.close()


def test_python_trace_becomes_operators(tmp_path: Path):
    traces = [
        ("train.py(12): step", str(T0 + 1), str(T0 + 9000), 100, 100),
        ("main.py(1): <module>", "N/A", str(T0 + 9000), 100, 100),
        ("still running", str(T0), "N/A", 100, 100),
    ]
    p = ms.load(write_db(tmp_path / "a.db", BOTH, traces=traces))
    python = p.ops[p.ops["kind"] == "python"]
    assert python[["name", "start_ns", "end_ns"]].values.tolist() == [["train.py(12): step", T0 + 1, T0 + 9000]]
    assert any("Python calls" in text for text in p.sources["warnings"][0])
    write_csv(tmp_path / "c" / "a.csv", BOTH)
    lines = [f"f(1, 2): g,{T0 + 1},{T0 + 2},100,100", f"other,{T0 + 1},{T0 + 2},7,7", f"bad,{T0 + 2},{T0 + 1},100,100"]
    (tmp_path / "c" / "python_trace_1.csv").write_text(
        "\n".join(["FuncInfo,StartTime(ns),EndTime(ns),Thread Id,Process Id", *lines])
    )
    p = ms.load(tmp_path / "c")
    assert p.ops.loc[p.ops["kind"] == "python", "name"].tolist() == ["f(1, 2): g"]
    assert p.sources["n_skipped"].tolist() == [1]


# -- trees ------------------------------------------------------------------------------------------------------


def tree(root: Path) -> Path:
    """Two processes of the new layout, the first on two devices, and one file of the old layout with two processes."""
    system = [cells(1, "SYSTEM", "START_TRACE", device="N/A"), cells(90, "SYSTEM", "STOP_TRACE", device="N/A")]
    first = root / "actor" / "memscopeDumpResults" / "msmemscope_100_20260801000000_ascend"
    for device in (0, 1):
        rows = [malloc(10 + device, 16, 512, pool="PTA", life=device + 1, device=device), *system]
        write_csv(first / f"device_{device}" / "dump" / "memscope_dump_20260801000000.csv", rows)
    (first / "config.json").write_text('{"dumpEventType": 3, "levelType": 1, "analysisType": 1}')
    second = root / "actor" / "memscopeDumpResults" / "msmemscope_200_20260801000000_ascend"
    write_db(second / "device_0" / "dump" / "memscope_dump_20260801000000.db", [malloc(1, 16, 64, pid=200)])
    old = [malloc(1, 16, 8, pid=300), malloc(1, 16, 16, pid=400), free(2, 16, 16, pid=400)]
    write_csv(root / "old" / "leaksDumpResults" / "dump" / "leaks_dump_20250501000000.csv", old)
    return root


def test_a_tree_has_one_source_for_each_process(tmp_path: Path):
    p = ms.validate(ms.load(tree(tmp_path / "run")))
    s = p.sources
    assert sorted(zip(s["role"], s["pid"], s["kind"], strict=True)) == [
        ("actor", 100, "memscope_csv"),
        ("actor", 200, "memscope_db"),
        ("old", 300, "memscope_csv"),
        ("old", 400, "memscope_csv"),
    ]
    assert s["rank_id"].isna().all()
    first = s[s["pid"] == 100].iloc[0]
    assert first["facts"]["events"] == ["alloc", "free"]
    assert len(first["facts"]["files"]) == 2
    mine = p.events[p.events["source"] == first["source"]]
    assert sorted(mine["event_id"]) == [1, 10, 11, 90]  # rows without a device are in both files
    sizes = p.blocks.groupby("source")["size_bytes"].agg(list)
    assert {pid: sizes[i] for pid, i in zip(s["pid"], s["source"], strict=True)} == {
        100: [512, 512], 200: [64], 300: [8], 400: [16],
    }  # fmt: skip
    assert p.select(role="old").events["source"].isin(s.loc[s["role"] == "old", "source"]).all()


def test_dumps_beside_an_ascend_collection(tmp_path: Path):
    from tiny import row, write_collection

    write_collection(tmp_path, operators=[row("op", 1, 0, 5, 5, 1)])
    tree(tmp_path / "dumps")
    p = ms.validate(ms.load(tmp_path))
    assert p.sources["kind"].value_counts().to_dict() == {"memscope_csv": 3, "memscope_db": 1, "ascend_text": 1}
    assert isinstance(p.blocks["pool"].dtype, pd.CategoricalDtype)
    assert isinstance(p.blocks["owner"].dtype, pd.CategoricalDtype)


def test_a_broken_file_loses_nothing_else(tmp_path: Path):
    root = tree(tmp_path / "run")
    bad = root / "actor" / "memscopeDumpResults" / "msmemscope_200_20260801000000_ascend"
    write_csv(bad / "device_1" / "dump" / "memscope_dump_1.csv", [])
    database = next(bad.rglob("*.db"))
    data = bytearray(database.read_bytes())
    data[4096:] = b"\xee" * (len(data) - 4096)
    database.write_bytes(data)
    p = ms.load(root)
    assert p.sources.set_index("pid")["status"].to_dict() == {100: "ok", 200: "failed", 300: "ok", 400: "ok"}
    assert p.sources.set_index("pid")["kind"][200] == "memscope_db"
    assert "damaged" in " ".join(p.sources.set_index("pid")["warnings"][200])
    with pytest.raises(ms.InputError, match="damaged"):
        ms.load(root, strict=True)


def test_inputs_stay_as_they_are(tmp_path: Path):
    root = tree(tmp_path / "run")
    before = snapshot(root)
    p = ms.load(root)
    ms.export_html(p, tmp_path / "out")
    ms.check_leaks(p, mstx_info="x")
    ms.check_leaks(next(root.rglob("leaks_dump*")), mstx_info="x", compat="msmemscope")
    assert snapshot(root) == before


@needs_samples
def test_samples_load_validate_and_export(tmp_path: Path):
    p = ms.validate(ms.load(DUMPS))
    assert len(p.sources) == 22
    assert (p.sources["status"] == "ok").all()
    assert p.sources["n_skipped"].sum() == 6  # 3 + 3 releases whose device nobody wrote, in the early pair
    assert len(ms.curve(p)) > 300
    assert len(ms.phases(p)) > 20
    one = ms.load(DUMPS / "baseline.csv")
    assert one.blocks["pool"].value_counts().to_dict() == {"PTA": 18, "HAL": 5}
    ms.export_html(one, tmp_path)
    assert (tmp_path / "index.html").is_file()


@needs_samples
def test_sample_counters_equal_the_sum_of_the_blocks():
    """Spec 14.7: per process, device and pool the running sum is ``used``."""
    p = ms.load(DUMPS / "baseline.csv").select(pool="PTA")
    (row,) = p.summary().itertuples()
    assert (row.older_start_bytes, row.older_end_bytes, row.n_unexplained) == (0, 0, 0)


@given(st.permutations(range(12)))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_order_of_rows_does_not_matter(tmp_path: Path, order: list[int]):
    rows = [
        *BOTH,
        malloc(20, 16, 99, pool="HAL"),
        malloc(21, 16, 98, pool="HAL"),
        free(22, 16, 98, pool="HAL", device="N/A"),
        malloc(23, 16, 97, pool="HAL"),
    ]
    a = ms.load(write_csv(tmp_path / "a.csv", rows))
    b = ms.load(write_csv(tmp_path / "b.csv", [rows[i] for i in order]))
    for name in ("blocks", "totals", "marks", "ops", "accesses"):
        left, right = getattr(a, name), getattr(b, name)
        for column in left.columns:
            if isinstance(left[column].dtype, pd.CategoricalDtype):
                assert left[column].astype(object).equals(right[column].astype(object)), (name, column)
            elif column not in ("stack_id", "c_stack_id"):
                assert left[column].equals(right[column]), (name, column)
    assert np.array_equal(np.sort(a.events["event_id"]), np.sort(b.events["event_id"]))


@given(st.lists(st.tuples(st.integers(0, 900), st.binary(max_size=12), st.integers(0, 30)), min_size=1, max_size=8))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_give_valid_profiles(tmp_path: Path, changes: list[tuple[int, bytes, int]]):
    """Bytes put in and taken out anywhere after the header: rows are lost and counted, the profile stays valid."""
    data = bytearray("".join(line(row) for row in BOTH).encode())
    for at, new, n_gone in changes:
        data[at : at + n_gone] = new
    (tmp_path / "a.csv").write_bytes(HEADER.encode() + b"\n" + data)
    try:
        p = ms.load(tmp_path / "a.csv")
    except ms.InputError as error:
        if "the dump has no rows" not in str(error):
            raise
        return
    assert (p.sources["status"] == "ok").all(), p.sources["warnings"].tolist()
    ms.validate(p)
    assert p.summary()["n_blocks"].sum() == len(p.blocks)
