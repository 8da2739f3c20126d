"""Quality, layers and growth over collections: sums that must add up, and what breaks them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tiny import op, profile_of, record, row, us, write_collection

import memscope_nb as ms
from memscope_nb.analysis.growth import role_growth
from memscope_nb.errors import InputError, MissingFactError
from memscope_nb.model import MemoryProfile

MIB = 1 << 20
T = 1_779_785_515_596_661_420


# -- quality ----------------------------------------------------------------------------------------------------


def test_a_good_recording_is_ok(demo_profile):
    quality = ms.check_quality(demo_profile)
    frame = quality.to_frame()
    assert set(frame["verdict"]) == {"ok"}
    assert (frame["n_total_checked"] > 100).all()
    assert frame[["n_total_mismatch", "n_unexplained", "n_skipped"]].to_numpy().sum() == 0
    assert np.allclose(frame[["own_share", "forward_share", "none_share"]].sum(axis=1), 1, atol=2e-4)
    assert set(frame["clock_ns"]) == {10}
    assert not quality.hints
    json.dumps(quality.to_dict())


def test_rows_that_contradict_the_record_are_found(tmp_path):
    rows = [row("a", 1024, 10, 20, 19, 3.0), row("b", 1024, 30, 40, 39, 3.5)]
    records = [record("PTA", 10, 3), record("PTA", 19, 2), record("PTA", 30, 3), record("PTA", 39, 2)]
    write_collection(tmp_path, operators=rows, records=records, trace=[op("a", 9, 5)])
    line = ms.check_quality(ms.load(tmp_path)).frame.iloc[0]
    assert (line["n_total_checked"], line["n_total_mismatch"]) == (6, 2)  # allocated and active of the second row
    assert line["n_unexplained"] == 0  # the two ledgers are checked apart
    assert line["verdict"] == "look"


def test_nothing_to_check_against_is_undecided():
    p = profile_of([(T, T + 10, 512)], record_totals=False)
    assert ms.check_quality(p).frame["verdict"].tolist() == ["undecided"]


def test_hints_name_the_settings(tmp_path):
    write_collection(tmp_path, operators=[row("a", 1, 10, 20, 19, 1.0)], records=None)
    hints = {hint.missing.split(":")[0]: hint for hint in ms.check_quality(ms.load(tmp_path)).hints}
    assert set(hints) == {
        "no call stacks", "no recorded totals", "no samples of the process", "no steps or ranges"
    }  # fmt: skip
    assert "with_stack=True" in hints["no call stacks"].torch_npu
    assert "profiler.tool_config.npu.contents=[" in hints["no call stacks"].verl


def test_a_selection_of_blocks_does_not_pretend_to_balance(demo_profile):
    some = demo_profile.select(min_bytes="1 MiB")
    assert some.summary()["n_unexplained"].isna().all()
    assert ms.curve(some)["older_bytes"].isna().all()
    whole = demo_profile.summary()
    assert some.summary()["peak_bytes"].equals(whole["peak_bytes"])  # recorded, whatever is selected
    assert some.summary()["end_bytes"].equals(whole["end_bytes"])


# -- selecting time, steps, pools -------------------------------------------------------------------------------


def test_a_time_range_keeps_levels_and_balance(demo_profile):
    actor = demo_profile.select(rank=0, role="actor_update", collection=0)
    start, end = (int(actor.sources[k].iloc[0]) for k in ("start_ns", "end_ns"))
    middle = (start + (end - start) // 3, start + 2 * (end - start) // 3)
    part = actor.select(time_range=middle)
    assert 0 < len(part.blocks) < len(actor.blocks)
    assert part.summary()["n_unexplained"].sum() == 0
    whole, cut = (ms.curve(p, pool="PTA").set_index("t_ns") for p in (actor, part))
    assert len(cut) > 50
    assert cut.index.min() >= middle[0]
    assert cut.index.max() < middle[1]
    assert whole.loc[cut.index, ["allocated_bytes", "older_bytes", "n_live"]].equals(
        cut[["allocated_bytes", "older_bytes", "n_live"]]
    )


def test_steps(demo_profile):
    part = demo_profile.select(step=1)
    assert set(part.sources["role"]) == {"actor_update"}
    assert set(part.marks.loc[part.marks["kind"] == "step", "step"]) == {1}
    assert part.summary()["n_unexplained"].sum() == 0
    with pytest.raises(InputError, match="no source with step 77; there is: 0, 1"):
        demo_profile.select(step=77)


def test_pools_and_collections(demo_profile):
    assert set(demo_profile.select(pool="GE").summary()["pool"]) == {"GE"}
    assert set(demo_profile.select(collection=[1]).sources["collection"]) == {1}
    assert set(demo_profile.select(rank=[0], role=["rollout", "actor_update"]).sources["role"]) == {
        "rollout",
        "actor_update",
    }
    with pytest.raises(InputError, match="no source with pool 'ATB'; there is: GE, PTA"):
        demo_profile.select(pool="ATB")


# -- layers -----------------------------------------------------------------------------------------------------


def test_layers_add_up_at_every_sample(demo_profile):
    result = ms.layers(demo_profile)
    frame = result.to_frame()
    modules = frame[[f"module_{name}_bytes" for name in result.modules]].sum(axis=1)
    assert {"HCCL", "RUNTIME"} <= set(result.modules)
    assert "APP" not in result.modules
    assert (frame["reserved_bytes"] + modules + frame["other_bytes"] == frame["resident_bytes"]).all()
    assert (frame["allocated_bytes"] + frame["cached_bytes"] == frame["reserved_bytes"]).all()
    process = demo_profile.totals[demo_profile.totals["scope"] == "process"]
    assert len(frame) == len(process)
    assert sorted(frame["resident_bytes"]) == sorted(process["reserved_bytes"])
    assert result.interval_ns == pytest.approx(20_000_000, rel=0.01)
    assert any("20.0" in caveat for caveat in result.caveats)


def test_a_sleeping_pool_is_unbacked(demo_profile):
    found = ms.layers(demo_profile).frame.groupby("source")["unbacked_bytes"].max()
    asleep = demo_profile.sources.set_index("source")["role"] != "rollout"
    assert (found[asleep] > 10 << 30).all()
    assert any("not on the device" in c for c in ms.layers(demo_profile).caveats)


def test_layers_of_literal_numbers(tmp_path):
    records = [
        record("PTA", 10, 3, 8.0),
        record("PTA", 30, 4, 16.0),
        record("APP", 20, "", 20.0),
        record("APP", 40, "", 12.0),
    ]
    folder = write_collection(tmp_path, operators=None, records=records)
    head = "Component,Timestamp(us),Total Reserved(MB),Device"
    modules = [f"{c},{us(t)},{mb},NPU:0" for c, t, mb in (("HCCL", 5, 7.0), ("HCCL", 35, 2.0), ("APP", 5, 8.0))]
    (folder / "ASCEND_PROFILER_OUTPUT" / "npu_module_mem.csv").write_text("\n".join([head, *modules]))
    frame = ms.layers(ms.load(tmp_path)).frame
    columns = [
        "allocated_bytes",
        "cached_bytes",
        "reserved_bytes",
        "module_HCCL_bytes",
        "other_bytes",
        "unbacked_bytes",
    ]
    assert (frame[columns] / MIB).to_numpy().tolist() == [[3, 5, 8, 7, 5, 0], [4, 12, 16, 2, -6, 4]]


def test_layers_need_process_samples():
    with pytest.raises(MissingFactError, match="level"):
        ms.layers(profile_of([(T, T + 10, 512)]))


# -- growth over collections ------------------------------------------------------------------------------------


def later(profile, by, *, up):
    """The same recording later, with more memory from before it."""
    totals = profile.totals.assign(t_ns=profile.totals["t_ns"] + by)
    for ledger in ("allocated_bytes", "active_bytes"):
        totals[ledger] += up
    blocks = profile.blocks.assign(**{k: profile.blocks[k] + by for k in ("alloc_ns", "free_ns", "active_free_ns")})
    sources = profile.sources.assign(**{k: profile.sources[k] + by for k in ("start_ns", "end_ns")})
    return replace(profile, totals=totals, blocks=blocks, sources=sources)


def test_what_a_phase_left_behind_and_what_happened_in_between():
    a = profile_of([(T, T + 10, 512), (T + 5, None, 2048)], older=4096)
    joined = MemoryProfile.concat([a, later(a, 1000, up=1024), later(a, 2000, up=9216)])
    frame = ms.collection_growth(joined).frame
    assert frame["baseline_bytes"].tolist() == [4096, 5120, 13312]
    assert frame["end_bytes"].tolist() == [6144, 7168, 15360]
    assert frame["left_bytes"].tolist() == [2048, 2048, 2048]
    assert frame["between_bytes"].fillna(-1).tolist() == [-1024, 6144, -1]
    assert frame["gap_ns"].fillna(-1).tolist() == [990, 990, -1]
    change = frame["end_bytes"].iloc[-1] - frame["baseline_bytes"].iloc[0]
    assert frame["left_bytes"].sum() + frame["between_bytes"].sum() == change


def test_growth_of_the_demo_is_that_of_the_books(demo, demo_profile):
    _, run = demo
    frame = ms.collection_growth(demo_profile).frame
    pta = frame[frame["pool"] == "PTA"].reset_index(drop=True)
    truth = [collection.truth for collection in run.collections]
    assert pta["baseline_bytes"].tolist() == [t.baseline_bytes for t in truth]
    assert pta["end_bytes"].tolist() == [t.end_bytes for t in truth]
    unrecorded = [t.unrecorded_before_bytes for t in truth]
    assert pta["between_bytes"].dropna().tolist() == [*unrecorded[1:8], *unrecorded[9:]]
    assert any("undecided" in caveat for caveat in ms.collection_growth(demo_profile).caveats)


def test_growth_by_role_sums_the_collections(demo_profile):
    frame = ms.collection_growth(demo_profile).frame
    roles = role_growth(demo_profile)
    assert roles["left_bytes"].sum() == frame["left_bytes"].sum()
    assert set(roles["n_collections"]) == {2}


def test_growth_without_totals_is_unknown_not_zero():
    frame = ms.collection_growth(profile_of([(T, T + 10, 512)], record_totals=False)).frame
    assert frame["left_bytes"].isna().all()
    assert "single recording" in ms.collection_growth(profile_of([(T, T + 10, 512)])).caveats[0]
    assert isinstance(frame, pd.DataFrame)


def test_the_drivers_pool_is_not_added_to_the_pools_inside_it(tmp_path):
    records = [record("PTA", 10, 3, 8.0), record("HAL", 10, 9, 9.0), record("APP", 20, "", 20.0)]
    write_collection(tmp_path, operators=None, records=records)
    result = ms.layers(ms.load(tmp_path))
    assert result.pools == ("PTA",)
    columns = ["allocated_bytes", "reserved_bytes", "other_bytes"]
    assert (result.frame[columns] / MIB).to_numpy().tolist() == [[3, 8, 12]]
