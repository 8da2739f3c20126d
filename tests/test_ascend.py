"""Finding collections and telling whose they are."""

from __future__ import annotations

import pytest
from tiny import record, row, write_collection

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.io.ascend import find_collections, parse_folder_name

ROWS = [row("aten::mm", 512, 10, 20, 19, 3.0)]
RECORDS = [record("PTA", 10, 3.0), record("PTA", 19, 2.5), record("PTA", 20, 2.5)]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("node_7.example_42_20260526085155000_ascend_pt", ("node_7.example", 42, "20260526085155000")),
        ("localhost.localdomain_139247_20240131123456_ascend_pt", ("localhost.localdomain", 139247, "20240131123456")),
        ("my_worker_20260526085155000_ascend_ms", ("my_worker", None, "20260526085155000")),
        ("20260526_085155_ascend_pt", (None, None, None)),
        ("rank0_ascend_pt", (None, None, None)),
        ("test_rank_0", (None, None, None)),
    ],
)
def test_names_are_read_from_the_right(name, parts):
    assert parse_folder_name(name) == parts


def found(path, run="r"):
    return list(find_collections(path, run=run))


def test_a_tree_a_role_a_collection_its_output_and_a_file_all_work(tmp_path):
    folder = write_collection(tmp_path / "save" / "1", role="actor_update", operators=ROWS, records=RECORDS)
    output = folder / "ASCEND_PROFILER_OUTPUT"
    for path in (tmp_path, folder.parent, folder, output, output / "operator_memory.csv"):
        assert [c.path for c in found(path)] == [folder]
        assert len(ms.load(path).blocks) == 1


def test_a_collection_is_recognised_by_content_whatever_its_name(tmp_path):
    folder = write_collection(tmp_path, name="renamed", operators=ROWS)
    assert [c.path for c in found(tmp_path)] == [folder]


def test_operator_dumps_beside_a_collection_are_no_collections(tmp_path):
    folder = write_collection(tmp_path)
    (folder.parent / f"{folder.name}_op_arg" / "FRAMEWORK").mkdir(parents=True)
    assert [c.path for c in found(tmp_path)] == [folder]


def test_role_is_that_of_the_metadata_or_the_parent_folder(tmp_path):
    write_collection(tmp_path, role="folder_a", name="a_ascend_pt", metadata={"role": "from_metadata"})
    write_collection(tmp_path, role="folder_b", name="b_ascend_pt", metadata={"role": ""})
    write_collection(tmp_path, role="folder_c", name="c_ascend_pt")
    assert sorted(c.role for c in found(tmp_path)) == ["folder_b", "folder_c", "from_metadata"]


def test_rank_from_the_file_name_then_the_key_then_the_database_then_unknown(tmp_path):
    write_collection(tmp_path, name="a_ascend_pt", rank=3, info={"rank_id": "9"})
    write_collection(tmp_path, name="b_ascend_pt", rank=None, info={"rank_id": "4"})
    c = write_collection(tmp_path, name="c_ascend_pt", rank=None, info={"other": 1})
    (c / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_5.db").touch()
    write_collection(tmp_path, name="d_ascend_pt", rank=None, info={"other": 1})
    assert [c.rank_id for c in found(tmp_path)] == [3, 4, 5, None]


def test_broken_settings_cost_only_the_settings(tmp_path):
    folder = write_collection(tmp_path, rank=2, operators=ROWS, records=RECORDS)
    (folder / "profiler_info_2.json").write_text("{broken")
    profile = ms.load(tmp_path)
    assert profile.sources["rank_id"].tolist() == [2]
    assert len(profile.blocks) == 1
    assert "unreadable" in profile.sources["warnings"][0][0]


def test_a_single_process_collection_has_no_rank(tmp_path):
    write_collection(tmp_path, rank=None, info={"config": {}}, operators=ROWS, records=RECORDS)
    profile = ms.load(tmp_path)
    assert profile.sources["rank_id"].isna().all()
    assert profile.summary()["peak_bytes"].tolist() == [3 << 20]


def test_collections_of_a_role_are_numbered_in_time_not_by_name(tmp_path):
    write_collection(tmp_path, name="h_9_20260101000000000_ascend_pt", operators=[row("late", 512, 500, 600, 599, 1.0)])
    write_collection(tmp_path, name="h_10_20260101000000000_ascend_pt", operators=[row("early", 512, 1, 2, 1.5, 1.0)])
    profile = ms.load(tmp_path)
    by_first = dict(zip(profile.sources["path"].str.contains("h_10"), profile.sources["collection"], strict=True))
    assert by_first == {True: 0, False: 1}


def test_several_paths_are_several_runs(tmp_path):
    for name in ("before", "after"):
        write_collection(tmp_path / name, operators=ROWS)
    profile = ms.load([tmp_path / "before", tmp_path / "after"])
    assert profile.sources["run"].tolist() == ["before", "after"]
    assert len(profile.summary()) == 2


def test_filters_and_what_there_is_when_nothing_matches(tmp_path):
    for rank in (0, 1):
        write_collection(tmp_path, rank=rank, name=f"h_{rank}_20260101000000000_ascend_pt", operators=ROWS)
    assert ms.load(tmp_path, ranks=1).sources["rank_id"].tolist() == [1]
    assert ms.load(tmp_path, ranks=[0, 1], roles="actor").sources["rank_id"].tolist() == [0, 1]
    with pytest.raises(InputError, match="there is: actor rank 0, actor rank 1"):
        ms.load(tmp_path, ranks=[7])


def test_nothing_found_says_what_was_expected(tmp_path):
    with pytest.raises(InputError, match="no profile found"):
        ms.load(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        ms.load(tmp_path / "absent")
