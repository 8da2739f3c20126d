"""Known answers of public profiles (see the samples' README)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import memscope_nb as ms
from memscope_nb.analysis.series import Lives, balance, iter_series
from memscope_nb.io.ascend_text import OPERATOR_COLUMNS
from memscope_nb.io.csv_table import read_table
from memscope_nb.io.report import ReadReport
from memscope_nb.model import to_int64
from memscope_nb.stacks import site_index

MIB = 1 << 20


@pytest.fixture(scope="module")
def alexnet(ascend_samples):
    return ms.load(ascend_samples / "msinsight_alexnet_text" / "level1" / "rank0_ascend_pt")


def test_alexnet_rows_and_levels(alexnet):
    assert alexnet.blocks["pool"].value_counts().to_dict() == {"PTA": 127, "GE": 57}
    assert alexnet.sources["status"].tolist() == ["ok"]
    pta = alexnet.summary().set_index("pool").loc["PTA"]
    assert pta["n_open"] == 24
    assert ms.curve(alexnet, pool="PTA")["allocated_bytes"].iloc[0] == 935.9951171875 * MIB
    first = alexnet.blocks[alexnet.blocks["pool"] == "PTA"].iloc[0]
    assert first["allocated_bytes"] / MIB == 954.3701171875
    assert pta["peak_bytes"] == 1187.9814453125 * MIB
    assert pta["reserved_peak_bytes"] == 1452 * MIB
    assert pta["resident_peak_bytes"] == 2113.73046875 * MIB


def test_alexnet_older_memory(alexnet):
    pta = alexnet.summary().set_index("pool").loc["PTA"]
    assert pta["older_start_bytes"] == 935.9951171875 * MIB
    assert pta["older_end_bytes"] == 701.42041015625 * MIB
    assert (pta["n_older_falls"], pta["n_unexplained"]) == (23, 0)
    series = next(iter_series(alexnet))
    active = balance(series, "active")
    assert (active.n_falls, active.n_rises) == (23, 0)
    # The graph engine's own ledger obeys the rule too: a constant 64 KiB from before the window.
    engine = alexnet.summary().set_index("pool").loc["GE"]
    assert (engine["older_start_bytes"], engine["older_end_bytes"], engine["n_unexplained"]) == (65536, 65536, 0)


def test_the_rule_is_really_tested_by_the_data(alexnet):
    series = next(iter_series(alexnet))
    rows = alexnet.blocks.iloc[series.rows]
    ends = to_int64(rows["free_ns"].fillna(rows["active_free_ns"]), na=np.iinfo(np.int64).max)
    by_release = Lives.of(to_int64(rows["alloc_ns"]), ends, rows["size_bytes"].to_numpy())
    assert balance(replace(series, lives={"allocated": by_release})).n_rises >= 50
    for gone in (0, 60, 126):
        kept = replace(alexnet, blocks=alexnet.blocks.drop(index=rows.index[gone]))
        assert kept.summary().set_index("pool").at["PTA", "n_unexplained"] >= 1


def test_alexnet_stacks(alexnet):
    facts = alexnet.sources["facts"][0]
    assert (facts["n_in_operator"], facts["n_own_stack"], facts["n_forward_stack"]) == (127, 69, 52)
    assert facts["n_ambiguous_stack"] == 4  # of the 52, operators with the same number have other stacks
    assert alexnet.blocks["stack_kind"].value_counts().to_dict() == {"own": 69, "forward": 52, "none": 63}
    packages = "/home/user00001/.local/lib/python3.9/site-packages"
    first_frames = {
        1736408883730547180: f"{packages}/torch/nn/functional.py(3053): cross_entropy",
        1736408883730867180: f"{packages}/torch/nn/modules/linear.py(114): forward",
        1736408883733117530: f"{packages}/torch/nn/functional.py(1228): adaptive_avg_pool2d",
        1736408883736870210: f"{packages}/torch/nn/modules/conv.py(456): _conv_forward",
    }
    forward = alexnet.blocks[alexnet.blocks["stack_kind"] == "forward"].set_index("alloc_ns")
    for alloc_ns, frame in first_frames.items():
        assert alexnet.frames(forward.at[alloc_ns, "stack_id"])[0] == frame
    assert (forward["tid"] != 3096504).all()  # none of them on the main thread


def test_alexnet_sites_are_lines_of_the_model_or_the_script(alexnet):
    sites = set(alexnet.stacks["site"])
    assert sites
    assert all("torchvision/models/alexnet.py" in site or "imagenet_script/main.py" in site for site in sites), sites
    deep = [frames for frames in alexnet.stacks["frames"] if site_index(frames) > 0]
    assert len(deep) > 5


def test_alexnet_steps(alexnet):
    assert alexnet.marks["name"].tolist() == ["ProfilerStep#50"]
    assert alexnet.marks["step"].tolist() == [50]


@pytest.mark.parametrize(
    ("rank", "rows", "n_open", "first", "peak", "reserved", "app", "older", "falls"),
    [
        (0, 3103, 1, 4304.95751953125, 10282.7490234375, 10372, 11925.015625, (4304.95703125, 4304.95654296875), 1),
        (2, 3226, 5, 4320.97265625, 10818.06298828125, 10868, 12675.37109375, (4320.97216796875, 4304.9697265625), 5),
    ],
)
def test_level2_training(ascend_samples, rank, rows, n_open, first, peak, reserved, app, older, falls):
    p = ms.load(ascend_samples / "msinsight_st_level2", ranks=rank)
    line = p.summary().iloc[0]
    assert (line["n_blocks"], line["n_open"], line["rank_id"]) == (rows, n_open, rank)
    assert ms.curve(p)["allocated_bytes"].iloc[0] == first * MIB
    assert [line[f"{k}peak_bytes"] for k in ("", "reserved_", "resident_")] == [peak * MIB, reserved * MIB, app * MIB]
    assert (line["older_start_bytes"], line["older_end_bytes"]) == (older[0] * MIB, older[1] * MIB)
    assert (line["n_older_falls"], line["n_unexplained"]) == (falls, 0)
    active = balance(next(iter_series(p)), "active")
    assert (active.n_falls, active.n_rises) == (falls, 0)


def test_rl_insight_sample_exactly(ascend_samples):
    folder = ascend_samples / "rl_insight_memory_data"
    p = ms.load(folder)
    assert len(p.blocks) == 49
    assert p.sources["n_open"][0] == 1
    assert p.sources["rank_id"].tolist() == [0]
    first = p.blocks.iloc[0]
    assert (first["name"], first["size_bytes"]) == ("aten::zeros", 512)
    assert (first["alloc_ns"], first["free_ns"]) == (1779785515596661420, 1779785667087971730)
    assert first["free_ns"] - first["alloc_ns"] == 151491310310
    assert p.sources["facts"][0]["n_duration_checked"] == 48
    assert not any("durations" in w for w in p.sources["warnings"][0])


def test_rl_insight_shortened_totals_are_tolerated_and_counted(ascend_samples):
    path = next((ascend_samples / "rl_insight_memory_data").rglob("operator_memory.csv"))
    table = read_table(path, OPERATOR_COLUMNS, required=("name",), report=ReadReport())
    assert (table.rounding["allocation total allocated"] > 0).sum() == 3
    assert set(table.rounding["allocation total allocated"]) == {0, 6}  # half of 0.00001 MB is 5.24 B
    p = ms.load(path)
    assert any("shortened by a re-save" in w for w in p.sources["warnings"][0])
    check = balance(next(iter_series(p)))
    assert check.n_tolerated > 0
    strict = replace(next(iter_series(p)), tolerance=np.zeros(len(p.totals), dtype=np.int64))
    assert balance(strict).n_rises > check.n_rises  # without the tolerance they would count as rises


def test_rl_insight_contract_round_trip(ascend_samples):
    summary = ms.memory_summary(ms.load(ascend_samples / "rl_insight_memory_data"))
    assert ms.validate(summary) is summary
    assert len(summary) == 49
    assert (summary["duration_ms"] == 0.0).sum() == 1
    assert summary["size_kb"].iloc[0] == 0.5
    back = ms.MemoryProfile.from_summary(summary)
    assert back.sources["n_open"].sum() == 1
    # The contract has no totals at releases, so its peak is that of the allocations.
    assert back.summary()["peak_bytes"].tolist() == [summary["total_allocated_mb"].max() * MIB]


def test_old_layouts(ascend_samples):
    p = ms.load(ascend_samples / "msinsight_unit")
    assert p.sources["n_blocks"].tolist() == [28, 21]
    assert p.sources["n_open"].tolist() == [0, 2]
    assert p.blocks["pool"].tolist().count("GE") == 28
    assert any("lost their resolution" in w for w in p.sources["warnings"][1])


def test_spreadsheet_damaged_file_is_refused(ascend_samples):
    with pytest.raises(ms.InputError, match=r"1\.69512E\+15 have lost their resolution"):
        ms.load(ascend_samples / "msinsight_unit_old_revision")


def test_no_profile_of_the_samples_has_an_unexplained_rise_but_the_cut_ones(ascend_samples):
    summary = ms.load(ascend_samples).summary()
    whole = summary[~summary["role"].isin(["msinsight_unit", "rl_insight_memory_data"])]
    assert len(whole) == 19  # 12 from text, 7 from databases
    assert (whole["n_unexplained"] == 0).all()
