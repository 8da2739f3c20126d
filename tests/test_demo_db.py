"""Text and database of one simulated run must give the same tables."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

import memscope_nb as ms
from memscope_nb.demo import write_demo
from memscope_nb.demo.ascend_text import collection_folder


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo_db") / "run"
    return folder, write_demo(folder, export="db")


@pytest.fixture(scope="module")
def from_database(database):
    return ms.load(database[0])


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Categories as texts: their order is no content."""
    return table.assign(**{c: table[c].astype(object) for c in table.select_dtypes("category")})


def test_every_source_is_whole(from_database):
    assert set(from_database.sources["status"]) == {"ok"}
    assert set(from_database.sources["kind"]) == {"ascend_db"}
    assert not any(from_database.sources["warnings"])
    assert ms.validate(from_database) is from_database


@pytest.mark.parametrize("name", ["blocks", "marks", "ops", "stacks"])
def test_tables_are_the_same_to_the_row(demo_profile, from_database, name):
    text, database = getattr(demo_profile, name), getattr(from_database, name)
    assert len(text) > 40
    assert list(text.columns) == list(database.columns)
    assert text.dtypes.astype(str).tolist() == database.dtypes.astype(str).tolist()
    pd.testing.assert_frame_equal(plain(text), plain(database))


def test_totals_are_the_same_but_for_the_whole_device(demo_profile, from_database):
    """NPU_MEM tells about the device, too; no file of the text export does."""
    device = from_database.totals["scope"] == "device"
    assert device.sum() == (demo_profile.totals["scope"] == "process").sum() > 100
    rest = from_database.totals[~device].reset_index(drop=True)
    assert set(rest["scope"]) == {"pool", "process", "module"}
    pd.testing.assert_frame_equal(plain(demo_profile.totals), plain(rest))


def test_sources_are_the_same(demo_profile, from_database):
    columns = ["role", "rank_id", "host", "pid", "collection", "start_ns", "end_ns", "n_blocks", "n_open", "n_skipped"]
    pd.testing.assert_frame_equal(demo_profile.sources[columns], from_database.sources[columns])
    keys = ["n_in_operator", "n_own_stack", "n_forward_stack", "n_no_stack", "n_duration_checked"]
    for text, database in zip(demo_profile.sources["facts"], from_database.sources["facts"], strict=True):
        assert [text[key] for key in keys] == [database[key] for key in keys]
    assert demo_profile.summary().drop(columns="run").equals(from_database.summary().drop(columns="run"))


def test_the_traps_of_the_schema_are_in_the_demo(database):
    folder, run = database
    collection = next(c for c in run.collections if c.graph_blocks and c.truth.rows_empty_name)
    (path,) = (folder / collection_folder(collection)).rglob("*.db")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:

        def one(sql: str) -> object:
            return connection.execute(sql).fetchone()[0]

        assert one("SELECT DISTINCT typeof(startNs) FROM PYTORCH_API") == "text"
        assert one("SELECT count(*) - count(DISTINCT value) FROM STRING_IDS") > 0
        assert one("SELECT count(*) FROM OP_MEMORY WHERE name = 4294967295") == collection.truth.rows_empty_name
        assert one("SELECT count(*) FROM STRING_IDS WHERE id = 4294967295 OR value LIKE 'cann::%'") == 0
        ge = "allocationTotalActive IS NULL AND streamPtr IS NULL"
        assert one(f"SELECT count(*) FROM OP_MEMORY WHERE {ge}") == len(collection.graph_blocks) > 0
        assert one(f"SELECT count(*) FROM OP_MEMORY WHERE {ge} AND releaseTime IS NULL") == collection.truth.n_ge_open
        app = "SELECT count(*) FROM MEMORY_RECORD m JOIN STRING_IDS s ON s.id = m.component WHERE s.value = 'APP'"
        assert one(app) == 0
        assert one("SELECT count(DISTINCT id) FROM PYTORCH_CALLCHAINS") > 100
        assert one("PRAGMA integrity_check") == "ok"
    assert sorted(p.name for p in path.parent.iterdir()) == ["analyse.done", path.name]


def test_same_seed_same_rows(database, tmp_path):
    folder, _ = database
    write_demo(tmp_path / "again", export="db")
    dumps = []
    for root in (folder, tmp_path / "again"):
        path = sorted(root.rglob("*.db"))[3]
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            dumps.append("\n".join(connection.iterdump()))
    assert dumps[0] == dumps[1]


def test_both_exports_of_one_run(tmp_path):
    write_demo(tmp_path / "both", ranks=1, iterations=1, export="both")
    write_demo(tmp_path / "text", ranks=1, iterations=1)
    p = ms.load(tmp_path / "both")
    assert set(p.sources["kind"]) == {"ascend_db"}
    assert set(p.sources["status"]) == {"ok"}
    assert all("both exports are there; read the database" in warnings[0] for warnings in p.sources["warnings"])
    assert {facts["export"] for facts in p.sources["facts"]} == {"database"}
    pd.testing.assert_frame_equal(plain(p.blocks), plain(ms.load(tmp_path / "text").blocks))
    for path in (tmp_path / "both").rglob("*.db"):
        path.unlink()
    for mine, other in zip(files(tmp_path / "both"), files(tmp_path / "text"), strict=True):
        assert mine == other or mine[0].startswith("profiler_info")


def files(folder: Path) -> list[tuple[str, str]]:
    return [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in sorted(folder.rglob("*")) if p.is_file()]
