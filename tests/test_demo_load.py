"""The reader against the simulator's own books."""

from __future__ import annotations

import pandas as pd
import pytest

import memscope_nb as ms
from memscope_nb.analysis.lifetime import lifetimes
from memscope_nb.analysis.series import balance, iter_series
from memscope_nb.demo.ascend_text import collection_folder


@pytest.fixture(scope="module")
def pairs(demo, demo_profile):
    """Each collection of the simulator with its source and its summary lines by pool."""
    folder, run = demo
    summary = demo_profile.summary()
    by_path = demo_profile.sources.set_index("path")
    found = []
    for collection in run.collections:
        source = by_path.loc[str((folder / collection_folder(collection)).resolve())]
        lines = summary[summary["source"] == source["source"]].set_index("pool")
        found.append((collection, source, lines))
    assert len(found) == len(demo_profile.sources) == 16
    return found


def test_every_source_is_whole(demo_profile):
    assert set(demo_profile.sources["status"]) == {"ok"}
    assert demo_profile.sources["n_skipped"].sum() == 0
    assert ms.validate(demo_profile) is demo_profile


def test_levels_agree_with_the_books(pairs):
    for collection, source, lines in pairs:
        truth, pta = collection.truth, lines.loc["PTA"]
        for name in (
            "baseline_bytes",
            "peak_bytes",
            "peak_ns",
            "reserved_peak_bytes",
            "resident_peak_bytes",
            "end_bytes",
        ):
            assert pta[name] == getattr(truth, name), (collection.role, name)
        assert (pta["older_start_bytes"], pta["older_end_bytes"]) == (truth.older_start_bytes, truth.older_end_bytes)
        assert (pta["n_older_falls"], pta["n_unexplained"]) == (truth.older_falls, 0)
        assert (pta["n_blocks"], pta["n_open"]) == (truth.n_rows, truth.n_open)
        assert (source["role"], source["rank_id"], source["pid"]) == (
            collection.role, collection.process.rank, collection.process.pid)  # fmt: skip


def test_graph_engine_agrees_with_the_books(pairs):
    with_graph = [(c, lines.loc["GE"]) for c, _, lines in pairs if c.truth.n_ge_rows]
    assert len(with_graph) == 8
    for collection, engine in with_graph:
        assert (engine["n_blocks"], engine["n_open"]) == (collection.truth.n_ge_rows, collection.truth.n_ge_open)
        assert (engine["n_unexplained"], engine["n_older_falls"]) == (0, 0)


def test_active_ledger_obeys_the_rule_too(demo_profile):
    series = [one for one in iter_series(demo_profile) if one.pool == "PTA"]
    assert len(series) == 16
    for one in series:
        assert balance(one, "active").n_rises == 0
    assert any((one.recorded["active"] > one.recorded["allocated"]).any() for one in series)


def test_stacks_agree_with_the_books(pairs):
    for collection, source, _ in pairs:
        truth, facts = collection.truth, source["facts"]
        assert facts["n_in_operator"] == truth.rows_in_op
        assert facts["n_own_stack"] == truth.rows_own_stack
        assert facts["n_forward_stack"] == truth.rows_forward_stack


def test_every_stack_is_that_of_the_book_block_by_block(pairs, demo_profile):
    for collection, source, _ in pairs:
        mine = demo_profile.blocks[demo_profile.blocks["source"] == source["source"]]
        got = {(b.alloc_ns, b.size_bytes): (b.stack_kind, demo_profile.frames(b.stack_id)) for b in mine.itertuples()}
        for block in collection.blocks:
            kind, frames = got[block.alloc_ns, block.size_bytes]
            assert (kind, frames) == (block.stack_kind, tuple(block.stack or ())), block.name


def test_the_leak_is_open_and_its_line_is_the_site(pairs, demo_profile):
    sites = demo_profile.stacks["site"]
    for collection, source, _ in pairs:
        if collection.role != "actor_update":
            continue
        mine = demo_profile.select(query=f"source == {source['source']}").blocks
        leak = mine[(mine["stack_id"] >= 0) & mine["stack_id"].map(lambda i: "append_logits" in sites.get(i, ""))]
        never = leak[leak["free_ns"].isna()]
        assert never["size_bytes"].sum() == collection.truth.leak_bytes > 0
    assert (pd.Series(lifetimes(demo_profile)).value_counts() > 0)[["transient", "fwdbwd", "open", "step"]].all()


def test_memory_outside_the_pool_is_there(demo_profile):
    totals = demo_profile.totals
    modules = set(totals.loc[totals["scope"] == "module", "component"])
    assert {"HCCL", "RUNTIME"} <= modules
    rollout = demo_profile.select(role="rollout").totals
    resident = rollout.loc[rollout["scope"] == "process", "reserved_bytes"].min()
    reserved = rollout.loc[rollout["component"] == "PTA", "reserved_bytes"].min()
    assert resident < reserved  # the sleeping pool: counted, not resident


def test_marks(demo_profile):
    actor = demo_profile.select(role="actor_update", rank=0)
    steps = actor.marks[actor.marks["kind"] == "step"]
    assert set(steps["name"]) == {"ProfilerStep#0", "ProfilerStep#1"}
    assert any("micro_batch" in name for name in actor.marks["name"])


def test_same_seed_same_profile(demo, demo_profile, tmp_path):
    from memscope_nb.demo import write_demo

    write_demo(tmp_path / "again")
    again = ms.load(tmp_path / "again")
    assert again.blocks.equals(demo_profile.blocks)
    assert again.totals.equals(demo_profile.totals)
