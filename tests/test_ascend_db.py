"""The database reader against plain sqlite3 queries, and against everything a file can be."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tiny import T0, op, record, row, write_collection

import memscope_nb as ms
from memscope_nb.analysis.series import balance, iter_series
from memscope_nb.demo.ascend_db import SCHEMA
from memscope_nb.io.ascend_db import read_database_export
from memscope_nb.io.report import ReadReport
from memscope_nb.io.sqlite_file import open_database
from memscope_nb.model import BlockFlag, is_open

NS = T0 * 1000
MIB = 1 << 20
TORCH = 1 << 28
WHO = 77 << 32
OUTPUT = "ASCEND_PROFILER_OUTPUT"
NAMES = {
    TORCH: "aten::mm",
    TORCH + 1: "PTA",
    TORCH + 2: "PTA+GE",
    TORCH + 3: "GE",
    TORCH + 4: "/train/model.py(7): forward",
    TORCH + 5: "/train/main.py(1): <module>",
    TORCH + 6: "aten::mm",  # once more, under another number
    TORCH + 7: "ProfilerStep#3",
    0: "allocate",
    1: "release",
    2: "Conv2D",
    3: "app",
    4: "device",
    5: "role of verl",
}
# name size alloc free late, durations, totals at the allocation and at the release, stream device
BLOCKS = [
    (TORCH, 1024, 100, 300, 250, 200, 150, 5 * MIB, 8 * MIB, 5 * MIB, 5 * MIB - 1024, 8 * MIB, 5 * MIB - 1024, 2, 0),
    (TORCH + 6, 512, 120, None, None, None, None, 5 * MIB + 512, 8 * MIB, 5 * MIB + 512, None, None, None, 2, 0),
    (4294967295, 512, 130, 131, None, 1, None, 5 * MIB + 1024, 8 * MIB, 5 * MIB + 1024, 0, 0, 0, 2, 0),
    (2, 4096, 140, 150, None, 10, None, 4096, 9000, None, 4096, 9000, None, None, 0),
    (2, 4096, 160, None, None, None, None, 8192, 9000, None, None, None, None, None, 0),
]
RECORDS = [
    (TORCH + 1, 100, 5 * MIB, 8 * MIB, 5 * MIB, 2, 0),
    (TORCH + 2, 100, 9 * MIB, 9 * MIB, 5 * MIB, 2, 0),
    (TORCH + 1, 120, 5 * MIB + 512, 8 * MIB, 5 * MIB + 512, 2, 0),
    (TORCH + 3, 140, 4096, 9000, 0, None, 0),
]


def at(*times: int | None) -> list[int | None]:
    return [None if t is None else NS + t for t in times]


def fill(connection: sqlite3.Connection, table: str, rows) -> None:
    for values in rows:
        connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(values))})", values)


def write_database(path: Path, *, skip: tuple[str, ...] = ()) -> Path:
    """A small database with every table, whose content the tests know by heart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    api = [  # the second operator encloses the first in time but starts with a shorter text
        ("1" + str(NS + 90)[1:], str(NS + 110), WHO | 5, None, TORCH, 4, 0, None, None, 1, 50001, 0),
        (str(NS + 115), str(NS + 125), WHO | 5, None, TORCH + 6, None, None, None, None, 2, 50001, 0),
        (str(NS + 10), str(NS + 400), WHO | 5, None, TORCH + 7, -1, 0, None, None, None, 50001, 0),
        (str(NS + 20), str(NS + 30), WHO | 5, 9, TORCH, None, None, None, None, None, 50002, 0),
    ]
    tables = {
        "STRING_IDS": NAMES.items(),
        "ENUM_MODULE": [(1, "HCCL"), (2, "RUNTIME")],
        "HOST_INFO": [("1", "a-node")],
        "META_DATA": [("SCHEMA_VERSION", "1.0.0"), ("role", '"actor"')],
        "RANK_DEVICE_MAP": [(6, 0)],
        "SESSION_TIME_INFO": [(NS, NS + 500)],
        "STEP_TIME": [(3, NS + 10, NS + 400)],
        "OP_MEMORY": [(*b[:2], *at(*b[2:5]), *b[5:]) for b in BLOCKS],
        "MEMORY_RECORD": [(r[0], NS + r[1], *r[2:]) for r in RECORDS],
        "NPU_MEM": [(3, 1000, 2000, NS + 50, 0), (4, 0, 9000, NS + 50, 0), (3, 0, 7000, NS + 450, 0)],
        "NPU_MODULE_MEM": [(1, NS + 60, 700, 0), (2, NS + 60, 0, 0), (76, NS + 60, 5, -1)],
        "NPU_OP_MEM": [
            (2, 64, 1, 100, NS + 101, WHO | 5, 5000, 9000, 3, 0),  # from before the window
            (2, 64, 0, 4096, NS + 140, WHO | 5, 4096, 9000, 3, 0),
            (2, 64, 1, 4096, NS + 150, WHO | 5, 4096, 9000, 3, 0),
            (2, 64, 0, 4096, NS + 160, WHO | 5, 8192, 9000, 3, 0),
            (2, 64, 1, 1, NS + 165, WHO | 5, 8192, 9000, 3, 1),  # the same address on another device
        ],
        "PYTORCH_API": api,
        "PYTORCH_CALLCHAINS": [(1, TORCH + 5, 1), (1, TORCH + 4, 0), (2, TORCH + 4, 0), (2, TORCH + 5, 1)],
        "MSTX_EVENTS": [
            (NS + 12, NS + 14, 1, 4294967295, 4294967295, 5, WHO | 5, WHO | 5, 0, 0),
            (NS + 13, NS + 13, 0, 4294967295, 4294967295, 5, WHO | 6, WHO | 6, 0, 0),
            (NS + 11, NS + 19, 2, 0, 4294967295, 4294967295, WHO | 5, WHO | 5, 0, 0),
        ],
    }
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
        for table, rows in tables.items():
            fill(connection, table, rows)
        for table in skip:
            connection.execute(f"DROP TABLE {table}")
        connection.commit()
    return path


@pytest.fixture
def small(tmp_path):
    return write_database(tmp_path / "ascend_pytorch_profiler_6.db")


def digests(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def read(path: Path):
    report = ReadReport()
    return read_database_export(path, report=report), report


# -- one small file ------------------------------------------------------------------------------------------------


def test_blocks(small):
    tables, report = read(small)
    blocks = tables.blocks
    assert not report.partial
    assert blocks["pool"].tolist() == ["PTA", "PTA", "PTA", "GE", "GE"]
    assert blocks["name"].tolist() == ["aten::mm", "aten::mm", "", "cann::Conv2D", "cann::Conv2D"]
    assert (blocks["alloc_ns"] - NS).tolist() == [100, 120, 130, 140, 160]
    assert blocks["free_ns"].sub(NS).fillna(-1).tolist() == [300, -1, 131, 150, -1]
    assert blocks["active_free_ns"].sub(NS).fillna(-1).tolist() == [250, -1, -1, -1, -1]
    assert is_open(blocks).tolist() == [False, True, False, False, True]
    assert blocks["stream"].fillna(-1).tolist() == [2, 2, 2, -1, -1]
    assert blocks["active_bytes"].isna().tolist() == [False] * 3 + [True] * 2
    assert set(blocks["device"]) == {"NPU:0"}


def test_totals(small):
    totals = read(small)[0].totals
    rows = {(t.scope, t.component, t.device, t.t_ns - NS): t for t in totals.itertuples()}
    assert sorted(rows) == [
        ("device", "device", "NPU:0", 50),
        ("module", "76", "NPU:?", 60),
        ("module", "HCCL", "NPU:0", 60),
        ("pool", "GE", "NPU:0", 140),
        ("pool", "PTA", "NPU:0", 100),
        ("pool", "PTA", "NPU:0", 120),
        ("process", "APP", "NPU:0", 50),
        ("process", "APP", "NPU:0", 450),
    ]
    assert rows["process", "APP", "NPU:0", 50].reserved_bytes == 3000  # hbm + ddr
    assert rows["pool", "PTA", "NPU:0", 120].allocated_bytes == 5 * MIB + 512
    assert totals.loc[totals["component"] == "GE", "active_bytes"].isna().all()  # 0 stands for nothing there
    assert totals.dtypes.astype(str)[["t_ns", "allocated_bytes", "reserved_bytes"]].tolist() == [
        "int64", "Int64", "Int64"]  # fmt: skip


def test_operators_stacks_and_marks(small):
    tables, report = read(small)
    assert tables.ops["name"].tolist() == ["aten::mm", "aten::mm", "ProfilerStep#3"]
    assert (tables.ops["tid"].tolist(), tables.pid, tables.host) == ([5, 5, 5], 77, "a-node")
    assert (tables.ops["sequence"].tolist(), tables.ops["fwd_tid"].tolist()) == ([4, -1, -1], [0, 0, 0])
    # Two chains, one stack: innermost frame first whatever the order of the rows.
    assert tables.stacks["frames"].tolist() == [("/train/model.py(7): forward", "/train/main.py(1): <module>")]
    assert tables.ops["stack_id"].tolist() == [0, 0, -1]
    assert tables.blocks["stack_kind"].tolist() == ["own", "own", "none", "none", "none"]
    assert report.facts["n_in_operator"] == 2
    marks = tables.marks
    assert marks["kind"].tolist() == ["step", "range", "range", "mark"]
    assert marks["name"].tolist() == ["ProfilerStep#3", "", "role of verl", "role of verl"]
    assert (marks["start_ns"] - NS).tolist() == [10, 11, 12, 13]
    assert marks["step"].fillna(-1).tolist() == [3, -1, -1, -1]
    assert marks["tid"].tolist() == [5, 5, 5, 6]
    assert report.facts["collection_window_ns"] == [NS, NS + 500]
    assert report.facts["schema_version"] == "1.0.0"


def test_times_of_operators_are_compared_as_numbers(tmp_path):
    """As text, '999…' (18 digits) comes after '1000…' (19 digits): the join would find nothing or the wrong one."""
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db")
    short = 999_999_999_999_999_990
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM PYTORCH_API")
        connection.execute("DELETE FROM OP_MEMORY")
        values = (str(short), str(short + 30), WHO | 5, None, TORCH, 4, 0, None, None, 1, 50001, 0)
        fill(connection, "PYTORCH_API", [values])
        b = BLOCKS[0]
        fill(connection, "OP_MEMORY", [(*b[:2], short + 20, short + 90, short + 90, 70, 70, *b[7:])])
        (as_text,) = connection.execute("SELECT count(*) FROM PYTORCH_API WHERE startNs <= ?", (short + 20,)).fetchone()
        connection.commit()
    assert as_text == 0  # the trap itself: text is greater than any number
    tables = read(path)[0]
    assert tables.blocks.loc[tables.blocks["pool"] == "PTA", "stack_kind"].tolist() == ["own"]
    assert tables.ops["end_ns"].tolist() == [short + 30]


def test_columns_are_chosen_by_name_and_may_be_missing(small):
    with closing(sqlite3.connect(small)) as connection:
        connection.execute("ALTER TABLE PYTORCH_API ADD COLUMN startns_2 TEXT")
        connection.execute("ALTER TABLE OP_MEMORY DROP COLUMN activeReleaseTime")
        connection.execute("ALTER TABLE MEMORY_RECORD DROP COLUMN totalActive")
        connection.execute("CREATE INDEX viewer ON OP_MEMORY (size, allocationTime, name)")
        connection.commit()
    tables, report = read(small)
    assert not report.partial
    assert tables.blocks["active_free_ns"].isna().all()
    assert len(tables.blocks) == 5
    with closing(sqlite3.connect(small)) as connection:
        connection.execute("ALTER TABLE MEMORY_RECORD DROP COLUMN timestamp")
        connection.commit()
    tables, report = read(small)
    assert report.partial
    assert "MEMORY_RECORD has no column timestamp" in report.warnings[0]
    assert set(tables.totals.loc[tables.totals["component"] == "PTA", "origin"]) == {"rows"}


def test_cells_of_every_type(small):
    exact = (1 << 53) + 1
    with closing(sqlite3.connect(small)) as connection:
        connection.execute("UPDATE NPU_MEM SET hbm = 10.6, ddr = 'N/A' WHERE timestampNs = ?", (NS + 50,))
        connection.execute("UPDATE NPU_MODULE_MEM SET totalReserved = ? WHERE moduleId = 1", (exact,))
        connection.execute("UPDATE OP_MEMORY SET size = x'00ff' WHERE streamPtr IS NULL")
        connection.execute("INSERT INTO STRING_IDS VALUES (99, x'c3ff')")
        connection.execute("INSERT INTO STRING_IDS VALUES (100, CAST(x'41ff42' AS TEXT))")
        connection.execute("UPDATE OP_MEMORY SET name = 100 WHERE name = ?", (TORCH,))
        connection.execute("UPDATE OP_MEMORY SET name = 99 WHERE name = ?", (TORCH + 6,))
        connection.commit()
    tables, report = read(small)
    totals = tables.totals.set_index("component")["reserved_bytes"]
    assert totals["APP"].tolist() == [11, 7000]
    assert totals["HCCL"] == exact  # beyond a double
    assert report.n_skipped == 2
    assert "OP_MEMORY: rows with no size (2x, first: row 4)" in report.warnings
    assert tables.blocks["name"].tolist() == ["A�B", "", ""]
    assert "OP_MEMORY: names that STRING_IDS does not have" in report.warnings


def test_graph_engine_from_its_raw_events(tmp_path):
    skip = ("OP_MEMORY", "MEMORY_RECORD", "PYTORCH_API", "PYTORCH_CALLCHAINS", "NPU_MEM")
    tables, report = read(write_database(tmp_path / "msprof_20260101.db", skip=skip))
    assert not report.partial
    assert "CANN alone" in report.warnings[0]
    blocks = tables.blocks
    alloc, free = (blocks[name].sub(NS).fillna(-1) for name in ("alloc_ns", "free_ns"))
    assert sorted(zip(blocks["device"], blocks["size_bytes"], alloc, free, blocks["flags"], strict=True)) == [
        ("NPU:0", 100, -1, 101, BlockFlag.OLDER),
        ("NPU:0", 4096, 140, 150, 0),
        ("NPU:0", 4096, 160, -1, 0),
        ("NPU:1", 1, -1, 165, BlockFlag.OLDER),
    ]
    assert set(blocks["pool"]) == {"GE"}
    assert len(tables.totals[tables.totals["component"] == "GE"]) == 5
    assert (tables.pid, tables.marks["kind"].tolist()) == (77, ["step", "range", "range", "mark"])  # by STEP_TIME


def test_graph_engine_events_of_older_files_refer_to_another_table(tmp_path):
    path = write_database(tmp_path / "msprof_1.db", skip=("OP_MEMORY", "MEMORY_RECORD", "NPU_MEM"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE ENUM_MEMORY (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO ENUM_MEMORY VALUES (0, 'app'), (5, 'allocate'), (6, 'release')")
        connection.execute("UPDATE NPU_OP_MEM SET type = type + 5")
        connection.execute("UPDATE STRING_IDS SET value = 'x' WHERE id IN (5, 6)")
        connection.commit()
    assert len(read(path)[0].blocks) == 4


# -- tables that are missing -----------------------------------------------------------------------------------------

COSTS = {
    "OP_MEMORY": ("blocks", True),
    "MEMORY_RECORD": ("origin", True),
    "PYTORCH_API": ("ops", True),
    "STRING_IDS": ("names", True),
    "PYTORCH_CALLCHAINS": ("stacks", False),
    "NPU_MEM": ("process", False),
    "NPU_MODULE_MEM": ("module", False),
    "MSTX_EVENTS": ("range", False),
    "ENUM_MODULE": ("module names", False),
    "NPU_OP_MEM": ("", False),
    "STEP_TIME": ("", False),
    "META_DATA": ("schema", False),
    "SESSION_TIME_INFO": ("window", False),
    "HOST_INFO": ("host", False),
    "RANK_DEVICE_MAP": ("", False),
    "ENUM_API_TYPE": ("", False),
    "NPU_INFO": ("", False),
    "ENUM_MSTX_EVENT_TYPE": ("", False),
}


@pytest.mark.parametrize("table", COSTS)
def test_a_missing_table_costs_only_what_it_would_give(tmp_path, table):
    tables, report = read(write_database(tmp_path / "ascend_pytorch_profiler_0.db", skip=(table,)))
    lost, partial = COSTS[table]
    totals, facts = tables.totals, report.facts
    there = {
        "blocks": len(tables.blocks[tables.blocks["pool"] == "PTA"]) == 3,
        "origin": set(totals.loc[totals["component"] == "PTA", "origin"]) == {"recorded"},
        "ops": len(tables.ops) == 3,
        "names": "aten::mm" in set(tables.blocks["name"]),
        "stacks": len(tables.stacks) == 1 and (tables.blocks["stack_id"] >= 0).any(),
        "process": "process" in set(totals["scope"]),
        "module": "module" in set(totals["scope"]),
        "module names": "HCCL" in set(totals["component"]),
        "range": "range" in set(tables.marks["kind"]),
        "schema": "schema_version" in facts,
        "window": "collection_window_ns" in facts,
        "host": tables.host is not None,
    }
    follows = {
        "blocks": {"names", "stacks"},
        "ops": {"stacks"},
        "names": {"origin", "stacks", "process"},
        "module": {"module names"},
    }.get(lost, set())
    assert {name for name, is_there in there.items() if not is_there} == ({lost} | follows) - {""}
    assert report.partial is partial
    assert (any(table in warning for warning in report.warnings)) == (
        partial or lost in ("stacks", "process", "module")
    )
    assert "step" in set(tables.marks["kind"]) or table == "STRING_IDS"
    assert tables.window is not None


def test_nothing_about_memory_is_an_error(tmp_path):
    skip = ("OP_MEMORY", "MEMORY_RECORD", "NPU_MEM", "NPU_OP_MEM")
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db", skip=skip)
    with pytest.raises(ms.InputError, match="no table about memory"):
        read(path)
    with pytest.raises(ms.InputError, match="no table about memory"):
        ms.load(tmp_path)


def test_views_and_virtual_tables_are_not_read(small):
    with closing(sqlite3.connect(small)) as connection:
        connection.execute("DROP TABLE OP_MEMORY")
        connection.execute(
            "CREATE VIEW OP_MEMORY AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) "
            "SELECT i AS name, i AS size, i AS allocationTime FROM n"
        )
        connection.commit()
    tables, report = read(small)  # would never end
    assert report.partial
    assert set(tables.blocks["pool"]) == {"GE"}


def test_names_are_data(tmp_path):
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db")
    evil = "'); DROP TABLE OP_MEMORY; -- \" ? \x00 ../"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE STRING_IDS SET value = ? WHERE id = ?", (evil, TORCH))
        connection.execute('CREATE TABLE "a""b; DROP" ("x""y" INTEGER)')
        connection.commit()
    assert evil in set(read(path)[0].blocks["name"])


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_log_beside_the_file_is_read_and_left_alone(tmp_path):
    source = write_database(tmp_path / "work" / "ascend_pytorch_profiler_6.db")
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("UPDATE OP_MEMORY SET size = 777 WHERE name = ?", (TORCH,))
        connection.commit()
        folder = tmp_path / "in"
        folder.mkdir()
        for name in (source.name, source.name + "-wal"):
            shutil.copyfile(source.with_name(name), folder / name)
    before = digests(folder)
    assert len(before) == 2
    tables, report = read(folder / source.name)
    assert tables.blocks["size_bytes"].iloc[0] == 777
    assert "-wal" in report.warnings[0]
    assert ms.load(folder).blocks["size_bytes"].iloc[0] == 777
    assert digests(folder) == before


def test_an_unfinished_transaction_is_undone_in_a_copy(tmp_path):
    source = write_database(tmp_path / "work" / "ascend_pytorch_profiler_6.db")
    folder = tmp_path / "in"
    folder.mkdir()
    script = (
        "import os, sqlite3, shutil, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA cache_size=1'); c.execute('BEGIN')\n"
        "c.execute('UPDATE OP_MEMORY SET size = 777')\n"
        "c.executemany('INSERT INTO NPU_MEM VALUES (3,0,?,1,0)', [(i,) for i in range(20000)])\n"
        "[shutil.copyfile(sys.argv[1] + e, sys.argv[2] + e) for e in ('', '-journal')]\n"
        "os._exit(0)\n"
    )
    target = folder / source.name
    subprocess.run([sys.executable, "-c", script, str(source), str(target)], check=True)
    assert target.with_name(target.name + "-journal").stat().st_size > 0
    before = digests(folder)
    assert read(target)[0].blocks["size_bytes"].tolist() == [1024, 512, 512, 4096, 4096]
    assert digests(folder) == before


def test_a_folder_that_cannot_be_written(tmp_path):
    path = write_database(tmp_path / "in" / "ascend_pytorch_profiler_6.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    assert path.read_bytes()[18:20] == b"\x02\x02"  # as in real files: opened plainly, a -shm would be made
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert len(ms.load(path.parent).blocks) == 5
    finally:
        path.parent.chmod(0o755)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["with space", "per%41cent", "quest?ion", "ha#sh", "ü"])
def test_odd_folder_names(tmp_path, name):
    path = write_database(tmp_path / name / "ascend_pytorch_profiler_6.db")
    assert len(ms.load(path).blocks) == 5


@pytest.mark.parametrize("damage", ["text", "empty", "head", "cut"])
def test_a_damaged_database_fails_alone_and_says_why(tmp_path, damage):
    write_collection(tmp_path, name="good_ascend_pt", rank=1, operators=[row("aten::mm", 512, 10, 20, 19, 3.0)])
    path = tmp_path / "bad_ascend_pt" / OUTPUT / "ascend_pytorch_profiler_0.db"
    data = write_database(path).read_bytes()
    spoilt = {"text": b"not a database " * 99, "empty": b"", "head": data[:40], "cut": data[:8192]}[damage]
    path.write_bytes(spoilt)
    p = ms.load(tmp_path)
    assert p.sources["rank_id"].tolist() == [0, 1]
    assert p.sources["status"].tolist() == ["failed", "partial"]  # the good one has no trace
    assert "ascend_pytorch_profiler_0.db" in p.sources["warnings"][0][0]
    assert p.sources["kind"].tolist() == ["ascend_db", "ascend_text"]
    assert len(p.blocks) == 1


def test_a_table_damaged_in_the_middle_gives_what_comes_before(tmp_path):
    path = write_database(tmp_path / "ascend_pytorch_profiler_0.db")
    with closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        rows = [(3, 0, i, NS + i, 0) for i in range(5000)]
        connection.executemany("INSERT INTO NPU_MEM VALUES (?,?,?,?,?)", rows)
        connection.commit()
    data = bytearray(path.read_bytes())
    data[-20 * size : -19 * size] = b"\xff" * size
    path.write_bytes(data)
    tables, report = read(path)
    assert report.partial
    assert any("is damaged after" in warning for warning in report.warnings)
    assert len(tables.blocks) == 5


def test_progress_adds_up_to_the_size_of_the_file(small):
    seen: list[int] = []
    read_database_export(small, report=ReadReport(), on_bytes=seen.append)
    assert sum(seen) == small.stat().st_size


def test_a_file_that_changes_meanwhile_is_told(small):
    report = ReadReport()
    with open_database(small, report=report), small.open("ab") as file:
        file.write(b"\0" * 4096)
    assert "changed while it was read" in report.warnings[0]


# -- finding, and both exports -------------------------------------------------------------------------------------


def test_a_database_is_found_wherever_it_lies(tmp_path):
    nested = tmp_path / "save" / "1" / "actor" / "h_7_20260101000000000_ascend_pt"
    path = write_database(nested / OUTPUT / "ascend_pytorch_profiler_6.db")
    for given in (tmp_path, nested, nested / OUTPUT, path):
        p = ms.load(given)
        assert (len(p.blocks), p.sources["path"][0]) == (5, str(nested))
        assert p.sources[["kind", "host", "pid", "rank_id"]].iloc[0].tolist() == ["ascend_db", "h", 7, 6]
    assert p.sources["role"].tolist() == ["actor"]  # META_DATA, since there is no profiler_metadata.json


def test_rank_host_and_role_inside_are_the_last_resort(tmp_path):
    path = write_database(tmp_path / "folder" / "ascend_pytorch_profiler.db")
    p = ms.load(path)
    assert p.sources[["rank_id", "host", "pid", "role"]].iloc[0].tolist() == [6, "a-node", 77, "actor"]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE RANK_DEVICE_MAP SET rankId = -1")
        connection.execute("DELETE FROM META_DATA")
        connection.commit()
    p = ms.load(path)
    assert p.sources["rank_id"].isna().all()
    assert p.sources["role"].tolist() == [tmp_path.name]


def test_databases_of_several_ranks_in_one_folder(tmp_path):
    for rank in (0, 1, 10):
        write_database(tmp_path / f"ascend_pytorch_profiler_{rank}.db")
    assert ms.load(tmp_path).sources["rank_id"].tolist() == [0, 1, 10]
    assert ms.load(tmp_path / "ascend_pytorch_profiler_10.db").sources["rank_id"].tolist() == [10]


@pytest.mark.parametrize("place", [".", "PROF_000001_20260101000000000_ABC"])
def test_databases_of_cann_alone(tmp_path, place):
    skip = ("OP_MEMORY", "MEMORY_RECORD", "PYTORCH_API")
    path = write_database(tmp_path / "x_ascend_pt" / place / "msprof_20260101000000.db", skip=skip)
    for given in (tmp_path, path.parent, path):
        p = ms.load(given)
        assert (set(p.blocks["pool"]), len(p.blocks)) == ({"GE"}, 4)
        assert p.sources["status"].tolist() == ["ok"]


def test_each_device_folder_of_cann_is_a_source(tmp_path):
    for n in (1, 2):
        write_database(tmp_path / "run" / f"PROF_00000{n}_2026_A" / f"msprof_{n}.db", skip=("OP_MEMORY", "PYTORCH_API"))
    assert len(ms.load(tmp_path).sources) == 2


def test_a_collection_that_was_not_analysed_gives_what_cann_exported(tmp_path):
    folder = write_collection(tmp_path, operators=None, records=None)
    (folder / OUTPUT).rmdir()
    with pytest.raises(ms.InputError, match="not analysed yet"):
        ms.load(tmp_path)
    write_database(folder / "PROF_000001_2026_A" / "msprof_1.db", skip=("OP_MEMORY", "MEMORY_RECORD", "PYTORCH_API"))
    p = ms.load(tmp_path)
    assert p.sources["status"].tolist() == ["partial"]
    assert any("not analysed yet" in warning for warning in p.sources["warnings"][0])


TEXT = {
    "operators": [row("aten::add", 512, 10, 20, 19, 3.0)],
    "records": [record("PTA", 10, 3.0), record("PTA", 19, 2.5), record("PTA", 20, 2.5)],
    "trace": [op("aten::add", 5, 20)],
}


def both(tmp_path: Path, **database) -> tuple[Path, Path]:
    folder = write_collection(tmp_path, **TEXT)
    return folder, write_database(folder / OUTPUT / "ascend_pytorch_profiler_0.db", **database)


def test_of_both_exports_the_database_is_read(tmp_path):
    folder, path = both(tmp_path)
    p = ms.load(folder)
    assert (len(p.blocks), len(p.sources)) == (5, 1)
    assert p.sources["kind"].tolist() == ["ascend_db"]
    assert p.sources["facts"][0]["export"] == "database"
    assert p.sources["status"].tolist() == ["ok"]
    assert any("both exports" in w and path.name in w for w in p.sources["warnings"][0])
    # A file given by name decides.
    assert ms.load(folder / OUTPUT / "operator_memory.csv").sources["kind"].tolist() == ["ascend_text"]
    assert ms.load(path).sources["kind"].tolist() == ["ascend_db"]


@pytest.mark.parametrize("table", ["OP_MEMORY", "MEMORY_RECORD", "PYTORCH_API"])
def test_text_is_read_where_it_has_more(tmp_path, table):
    p = ms.load(both(tmp_path, skip=(table,))[0])
    assert p.blocks["name"].tolist() == ["aten::add"]
    assert p.sources["facts"][0]["export"] == "text"
    assert p.sources["status"].tolist() == ["ok"]
    assert any("both exports" in w and table in w for w in p.sources["warnings"][0])


@pytest.mark.parametrize("damage", ["all", "a page"])
def test_text_is_the_way_out_of_a_damaged_database(tmp_path, damage):
    folder, path = both(tmp_path)
    data = path.read_bytes()
    if damage == "all":
        path.write_bytes(data[:100] + b"\0" * 5000)
    else:
        with closing(sqlite3.connect(path)) as connection:
            size = connection.execute("PRAGMA page_size").fetchone()[0]
            root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'OP_MEMORY'").fetchone()[0]
        path.write_bytes(data[: (root - 1) * size] + b"\xff" * size + data[root * size :])
    p = ms.load(folder)
    assert p.blocks["name"].tolist() == ["aten::add"]
    assert p.sources["status"].tolist() == ["partial"]
    assert any("because of the other" in w and path.name in w for w in p.sources["warnings"][0])


# -- public samples ------------------------------------------------------------------------------------------------

ALEXNET = {
    "level0/rank0_ascend_pt": ("ascend_pytorch_profiler_0.db", 3055835, 2212081664, 13, 1736407067933660740),
    "level1/rank0_ascend_pt": ("ascend_pytorch_profiler_0.db", 3136493, 2216402944, 14, 1736410576386409710),
    "level1/rank1_ascend_pt": ("ascend_pytorch_profiler_1.db", 3136495, 2216407040, 13, 1736410576389878870),
}


def plain_stacks(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Rows in an operator, with an own and with a forward stack: by the letter of spec 6.3, row by row."""
    ops = connection.execute(
        "SELECT CAST(a.startNs AS INTEGER), CAST(a.endNs AS INTEGER), s.value, a.globalTid, a.sequenceNumber, "
        "a.fwdThreadId, a.callchainId FROM PYTORCH_API a JOIN STRING_IDS s ON s.id = a.name WHERE a.type = 50001"
    ).fetchall()
    rows = connection.execute(
        "SELECT s.value, m.allocationTime FROM OP_MEMORY m JOIN STRING_IDS s ON s.id = m.name "
        "WHERE m.allocationTotalActive IS NOT NULL"
    ).fetchall()
    inside = own = forward = 0
    for name, t in rows:
        running = [o for o in ops if o[2] == name and o[0] <= t <= o[1]]
        if not running:
            continue
        inside += 1
        best = max(running)
        if best[6] is not None:
            own += 1
            continue
        around = [o for o in ops if o[3] == best[3] and o[0] <= t <= o[1] and o[4] >= 0]
        number = best[4] if best[4] >= 0 else max(around)[4] if around else None
        forward += any(o[4] == number and o[5] == 0 and o[6] is not None for o in ops if number is not None)
    return inside, own, forward


@pytest.mark.parametrize("folder", ALEXNET)
def test_alexnet(ascend_samples, folder):
    name, pid, resident, n_app, step_ns = ALEXNET[folder]
    path = ascend_samples / "msinsight_alexnet_db" / folder / OUTPUT / name
    p = ms.load(path)
    ms.validate(p)
    assert p.sources["status"].tolist() == ["ok"]
    assert p.sources[["pid", "host", "role"]].iloc[0].tolist() == [pid, "ubuntu", folder.split("/")[0]]
    lines = p.summary().set_index("pool")
    expected = {
        "PTA": (127, 24, 981462016, 1245688832, 1522532352, 1000412672, 981462016, 735492608, 23, 0),
        "GE": (57, 0, 65536, 76611584, 78381056, 65536, 65536, 65536, 0, 0),
    }
    columns = ["n_blocks", "n_open", "baseline_bytes", "peak_bytes", "reserved_peak_bytes", "end_bytes"]
    columns += ["older_start_bytes", "older_end_bytes", "n_older_falls", "n_unexplained"]
    for pool, values in expected.items():
        assert tuple(lines.loc[pool, columns]) == values
        assert lines.loc[pool, "resident_peak_bytes"] == resident
    assert all(balance(series, "active").n_rises == 0 for series in iter_series(p) if series.pool == "PTA")
    counts = p.totals.groupby(["scope", "component"], observed=True).size()
    assert (counts["pool", "PTA"], counts["pool", "GE"], counts["process", "APP"]) == (381, 114, n_app)
    assert set(counts["module"].index) == {"APP", "GE", "HCCL", "RUNTIME"}
    assert p.marks[["name", "start_ns"]].to_numpy().tolist() == [["ProfilerStep#50", step_ns]]
    assert len(p.ops) == 860
    kinds = p.blocks["stack_kind"].value_counts()
    assert (kinds["own"], kinds["forward"]) == (69, 52)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        assert plain_stacks(connection) == (127, 69, 52)
        for block in p.blocks[p.blocks["pool"] == "PTA"].sample(20, random_state=1).itertuples():
            assert plain_row(connection, block.alloc_ns, block.size_bytes) == (block.name, block.allocated_bytes)


def plain_row(connection: sqlite3.Connection, t: int, size: int) -> tuple[str, int]:
    sql = (
        "SELECT s.value, m.allocationTotalAllocated FROM OP_MEMORY m JOIN STRING_IDS s ON s.id = m.name "
        "WHERE m.allocationTime = ? AND m.size = ?"
    )
    (found,) = connection.execute(sql, (int(t), int(size))).fetchall()
    return found


def test_alexnet_frames_are_those_of_the_chain(ascend_samples):
    path = (
        ascend_samples / "msinsight_alexnet_db" / "level1" / "rank0_ascend_pt" / OUTPUT / "ascend_pytorch_profiler_0.db"
    )
    p = ms.load(path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        chains: dict[int, list[str]] = {}
        for chain, text in connection.execute(
            "SELECT c.id, s.value FROM PYTORCH_CALLCHAINS c JOIN STRING_IDS s ON s.id = c.stack "
            "ORDER BY c.id, c.stackDepth"
        ):
            chains.setdefault(chain, []).append(text)
        ops = connection.execute("SELECT callchainId FROM PYTORCH_API WHERE type = 50001").fetchall()
    assert len(chains) == 316
    assert len(p.stacks) == len({tuple(frames) for frames in chains.values()})
    for (chain,), stack in zip(ops, p.ops["stack_id"], strict=True):
        assert p.frames(stack) == tuple(chains.get(chain, ()))
    assert all(p.frames(s)[-1] == "<string>(1): <module>" for s in p.ops["stack_id"] if s >= 0)


def test_alexnet_raw_events_give_the_same_graph_engine(ascend_samples, tmp_path):
    """Pairing NPU_OP_MEM by address must find what the exporter wrote into OP_MEMORY."""
    source = next((ascend_samples / "msinsight_alexnet_db").rglob("ascend_pytorch_profiler_1.db"))
    whole = read(source)[0]
    copy = tmp_path / source.name
    shutil.copyfile(source, copy)
    copy.chmod(0o644)
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("DELETE FROM OP_MEMORY")
        connection.execute("DELETE FROM MEMORY_RECORD")
        connection.commit()
    paired = read(copy)[0]
    engine = whole.blocks[whole.blocks["pool"] == "GE"].reset_index(drop=True)
    assert len(engine) == 57
    for column in ("name", "size_bytes", "alloc_ns", "free_ns", "allocated_bytes", "reserved_bytes", "device"):
        assert paired.blocks[column].astype(object).tolist() == engine[column].astype(object).tolist(), column
    columns = ["t_ns", "allocated_bytes", "reserved_bytes"]
    recorded = whole.totals[whole.totals["component"].eq("GE") & whole.totals["scope"].eq("pool")]
    raw = paired.totals[paired.totals["component"].eq("GE") & paired.totals["scope"].eq("pool")]
    assert raw[columns].to_numpy().tolist() == recorded[columns].to_numpy().tolist()


def test_database_of_cann_alone(ascend_samples):
    p = ms.load(ascend_samples / "msprof_db")
    ms.validate(p)
    assert p.sources[["kind", "status", "pid"]].iloc[0].tolist() == ["ascend_db", "ok", 193417]
    assert p.sources["n_skipped"].tolist() == [2]  # two rows of component PTA+GE repeat one of the others
    line = p.summary().iloc[0]
    assert (line["pool"], line["n_blocks"], line["n_open"]) == ("GE", 246, 0)
    assert (line["baseline_bytes"], line["end_bytes"], line["n_unexplained"]) == (65536, 65536, 0)
    assert line["peak_bytes"] == 604110848
    path = ascend_samples / "msprof_db" / "msprof_0.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        highest, reserved = connection.execute(
            "SELECT max(totalAllocate), max(totalReserve) FROM NPU_OP_MEM"
        ).fetchone()
        starts = connection.execute("SELECT startNs FROM MSTX_EVENTS ORDER BY startNs, endNs DESC").fetchall()
    assert (line["peak_bytes"], line["reserved_peak_bytes"]) == (highest, reserved)
    assert p.marks["start_ns"].tolist() == [t for (t,) in starts]
    assert set(p.marks["kind"]) == {"range"}


def test_samples_stay_as_they_are(ascend_samples):
    folders = [ascend_samples / name for name in ("msinsight_alexnet_db", "msprof_db")]
    before = [digests(folder) for folder in folders]
    assert ms.load(folders).sources["n_blocks"].tolist() == [184, 184, 184, 246]
    assert [digests(folder) for folder in folders] == before
