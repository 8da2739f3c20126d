"""Every producer and defect of the Ascend format, each as a few literal rows."""

from __future__ import annotations

import pytest
from tiny import OPERATOR_HEADER, T0, ns, record, row, us, write_collection

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.io import source
from memscope_nb.io.ascend_files import CANN_FOLDER

MIB = 1 << 20


def workspace_row(name, kib, alloc, free, total):
    """A workspace row: its own allocator's totals, never an active release."""
    return row(name, kib, alloc, free, None, total)


# -- workspaces -------------------------------------------------------------------------------------------------


def test_a_phantom_workspace_row_is_recognised_and_not_summed(tmp_path):
    rows = [
        row("aten::mm", 1024, 5, 50, 49, 1.0),
        workspace_row("aclnnMatmul", 4096, 10, None, 4.0),  # growth of the segment
        workspace_row("aclnnMatmul", 4096, 10.5, 40, 4.0),  # the same memory, used
    ]
    records = [
        record("PTA", 5, 1.0),
        record("WORKSPACE", 10, 4.0, active=4.0),
        record("WORKSPACE", 10.5, 4.0, active=4.0),
    ]
    records += [record("WORKSPACE", 40, 0.0, active=0.0), record("PTA", 49, 0.0), record("PTA", 50, 0.0)]
    write_collection(tmp_path, operators=rows, records=records)
    p = ms.load(tmp_path)
    assert p.blocks["name"].tolist() == ["aten::mm", "aclnnMatmul"]
    assert p.blocks["pool"].tolist() == ["PTA", "WORKSPACE"]
    assert p.sources["facts"][0]["n_phantom"] == 1
    summary = p.summary().set_index("pool")
    assert summary.loc["WORKSPACE", ["peak_bytes", "n_open", "n_unexplained"]].tolist() == [4 * MIB, 0, 0]
    assert summary.loc["PTA", ["peak_bytes", "n_unexplained"]].tolist() == [MIB, 0]
    assert any("only repeat the next row" in w for w in p.sources["warnings"][0])


def test_phantoms_are_recognised_without_recorded_samples_too(tmp_path):
    rows = [workspace_row("w", 4096, 10, None, 4.0), workspace_row("w", 4096, 10.5, 40, 4.0)]
    write_collection(tmp_path, operators=rows, records=None)
    assert ms.load(tmp_path).blocks["alloc_ns"].tolist() == [ns(10.5)]


@pytest.mark.parametrize(
    "second",
    [
        row("a", 4096, 10.5, 40, 39, 8.0),  # the total grew: two blocks
        row("a", 4096, 10.5, 40, 39, 4.0),  # an ordinary block took the place of one freed in between
        row("a", 4096, 2000, 2040, None, 4.0),  # long after
        row("a", 512, 10.5, 40, None, 4.0),  # another size
    ],
)
def test_a_real_leak_before_a_block_of_its_size_is_no_phantom(tmp_path, second):
    write_collection(tmp_path, operators=[row("a", 4096, 10, None, None, 4.0), second], records=None)
    p = ms.load(tmp_path)
    assert len(p.blocks) == 2
    assert "n_phantom" not in p.sources["facts"][0]


# -- MindSpore --------------------------------------------------------------------------------------------------


def test_mindspore_writes_na_and_has_a_pool_of_its_own(tmp_path):
    cells = [
        "Default/Add",
        "512",
        us(10),
        "N/A",
        "N/A",
        "N/A",
        "N/A",
        "3.0",
        "64.0",
        "3.0",
        "N/A",
        "N/A",
        "N/A",
        "N/A",
        "NPU:0",
    ]
    records = [record("MindSpore", 10, 3.0, active=3.0), record("MindSpore+GE", 10, 3.0), record("GE", 11, 0.5)]
    name = "worker_20260101000000000_ascend_ms"
    write_collection(tmp_path, name=name, operators=[",".join(cells)], records=records)
    p = ms.load(tmp_path)
    assert p.blocks[["pool", "size_bytes"]].to_numpy().tolist() == [["MINDSPORE", 512 * 1024]]
    assert p.blocks["free_ns"].isna().all()
    assert set(p.summary()["pool"]) == {"MINDSPORE", "GE"}
    assert p.summary().set_index("pool").loc["MINDSPORE", "n_unexplained"] == 0
    assert p.sources["pid"].isna().all()


# -- CANN's own files -------------------------------------------------------------------------------------------

CANN_HEADER = (
    "Device_id,Name,Size(KB),Allocation Time(us),Duration(us),Allocation Total Allocated(KB),"
    "Allocation Total Reserved(KB),Release Total Allocated(KB),Release Total Reserved(KB),Device"
)


def cann_tree(root, files):
    folder = root / "host_1_20260101000000000_ascend_pt" / "PROF_000001_20260101000000000_ABC" / CANN_FOLDER
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_cann_level_files_in_slices_with_kilobytes_and_no_release_time(tmp_path):
    folder = cann_tree(
        tmp_path,
        {
            "operator_memory_slice_0_20260101.csv": f"{CANN_HEADER}\n0,Conv,64,{us(10)},30,128,1024,128,1024,NPU:0\n",
            "operator_memory_slice_1_20260101.csv": f"{CANN_HEADER}\n0,Open,32,{us(20)},0,160,1024,0,0,NPU:0\n",
            "memory_record_20260101.csv": "",
        },
    )
    for path in (tmp_path, folder.parent, folder):
        p = ms.load(path)
        assert p.blocks["name"].tolist() == ["cann::Conv", "cann::Open"]
        assert set(p.blocks["pool"]) == {"GE"}
        assert p.blocks["size_bytes"].tolist() == [65536, 32768]
        assert p.blocks["free_ns"].fillna(0).tolist() == [ns(40), 0]
        assert p.blocks["allocated_bytes"].tolist() == [131072, 163840]
        assert p.sources["status"].tolist() == ["partial"]
        assert "only CANN's own export" in p.sources["warnings"][0][-2] + p.sources["warnings"][0][0]


def test_files_of_zero_bytes_are_no_export(tmp_path):
    cann_tree(tmp_path, {"operator_memory_20260101.csv": "", "memory_record_20260101.csv": ""})
    with pytest.raises(InputError, match="not analysed yet"):
        ms.load(tmp_path)


def test_an_empty_operator_file_leaves_the_curve(tmp_path):
    write_collection(tmp_path, operators=b"", records=[record("PTA", 1, 2.0), record("PTA", 3, 4.0)])
    p = ms.load(tmp_path)
    assert p.sources["status"][0] == "partial"
    assert p.summary()["peak_bytes"].tolist() == [4 * MIB]


# -- devices, ranks, collections --------------------------------------------------------------------------------


def test_several_devices_in_one_file_are_several_timelines(tmp_path):
    rows = [row("a", 1024, 10, 20, 19, 1.0), row("b", 2048, 11, 21, 20, 2.0).replace("NPU:0", "NPU:5")]
    records = [record("PTA", 10, 1.0), record("PTA", 11, 2.0).replace("NPU:0", "NPU:5"), record("PTA", 19, 0.0)]
    write_collection(tmp_path / "in", operators=rows, records=records)
    p = ms.load(tmp_path / "in")
    assert p.summary().set_index("device")["peak_bytes"].to_dict() == {"NPU:0": MIB, "NPU:5": 2 * MIB}
    out = ms.export_html(p, tmp_path / "out").parent
    assert sorted(path.parent.name for path in out.rglob("memory_timeline_00.html")) == ["rank0_NPU_0", "rank0_NPU_5"]


def test_collections_of_a_rank_lie_end_to_end_and_are_never_mixed(tmp_path):
    for step, base in ((1, 0), (2, 1_000_000)):
        rows = [row("open", 1024, base + 10, None, None, 5.0), row("short", 512, base + 12, base + 20, base + 19, 5.5)]
        records = [record("PTA", base + t, mib) for t, mib in ((10, 5.0), (12, 5.5), (19, 5.0), (20, 5.0))]
        name = f"h_{90 - step}_20260101000000000_ascend_pt"
        write_collection(tmp_path / str(step), operators=rows, records=records, name=name)
    p = ms.load(tmp_path)
    assert p.sources["collection"].tolist() == [0, 1]
    assert p.summary()["n_open"].tolist() == [1, 1]
    assert p.summary()["n_unexplained"].tolist() == [0, 0]
    between = ms.live_at(p, ns(500_000))
    assert len(between) == 0  # the open block of the first collection does not run into the second
    assert ms.live_at(p, ns(1_000_015))["size_bytes"].tolist() == [MIB, MIB // 2]


def test_sixty_four_ranks_with_three_broken(tmp_path, capsys):
    from memscope_nb.cli import main

    records = [record("PTA", 10, 3.0), record("PTA", 19, 2.0), record("PTA", 20, 2.0)]
    for rank in range(64):
        name = f"h_{rank}_20260101000000000_ascend_pt"
        good = {"operators": [row("aten::mm", 1024, 10, 20, 19, 3.0)], "records": records}
        bad = {
            7: {"operators": None, "records": None},
            20: {
                "operators": [row("a", 1, 10, 20, 19, 3.0).replace(f"{T0 + 10}", "1.7E+15").replace(".000\t", "")],
                "records": None,
            },
            41: {"operators": b"\x00\x01\x02", "records": None},
        }
        write_collection(tmp_path / "in", rank=rank, name=name, **bad.get(rank, good))
    assert main(["report", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 0
    errors = capsys.readouterr().err
    assert [f"h_{rank}_" in errors for rank in (7, 20, 41)] == [True] * 3
    assert errors.count("failed: ") == 3
    assert "lost their resolution" in errors
    assert len(list((tmp_path / "out").rglob("memory_timeline_00.html"))) == 61
    assert "3 failed" in (tmp_path / "out" / "index.html").read_text()
    assert main(["report", str(tmp_path / "in"), "--out", str(tmp_path / "strict"), "--strict"]) == 2
    assert not (tmp_path / "strict").exists()


# -- one fault of the reader is one lost source -----------------------------------------------------------------


def test_a_fault_of_ours_costs_one_source(tmp_path, monkeypatch):
    for rank in (0, 1):
        rows = [row(f"op{rank}", 1, 10, 20, 19, 1.0)]
        write_collection(tmp_path, rank=rank, name=f"h_{rank}_20260101000000000_ascend_pt", operators=rows)
    real = source.read_text_export

    def faulty(output, **options):
        if "h_1_" in str(output):
            raise ZeroDivisionError("oops")
        return real(output, **options)

    monkeypatch.setattr(source, "read_text_export", faulty)
    p = ms.load(tmp_path)
    assert p.sources["status"].tolist() == ["partial", "failed"]
    assert "reader failed: ZeroDivisionError: oops" in p.sources["warnings"][1]


def test_crlf_bom_and_spreadsheet_quotes_together(tmp_path):
    quoted = row("aten::mm", 512, 10, 20, 19, 3.0).replace(us(10), f'"{us(10)}"').replace(us(20), f'"{us(20)}"')
    data = ("\ufeff" + OPERATOR_HEADER + "\r\n" + quoted + "\r\n").encode()
    write_collection(tmp_path, operators=data, records=None)
    assert ms.load(tmp_path).blocks["alloc_ns"].tolist() == [ns(10)]
