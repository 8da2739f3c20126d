"""What a peak consists of adds up to the record, by another way of counting; ledgers keep their own peaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.analysis.at_peak import NOT_SELECTED, open_shares, peak_parts
from memscope_nb.analysis.ledgers import line_ledgers
from memscope_nb.analysis.timeline import timelines
from memscope_nb.stacks import stacks_frame

MIB = 1 << 20


def parts_of(profile, *, top=10):
    return peak_parts(profile, timelines(profile)[0], "PTA", top=top)


def total(parts):
    return parts.live.size_bytes + (parts.older_bytes or 0) + sum(size for _, size in parts.differences)


def with_totals(profile, levels):
    totals = profile.totals.copy()
    totals["allocated_bytes"] = pd.array(levels, dtype="Int64")
    return replace(profile, totals=totals)


def test_live_blocks_and_older_memory_make_the_peak():
    p = profile_of([(10, 40, 5), (20, 30, 7), (25, None, 11), (50, 60, 1)], older=100, names=["a", "b", "a", "c"])
    parts = parts_of(p)
    assert (parts.t_ns, parts.peak_bytes, parts.older_bytes) == (25, 123, 100)
    assert [(s.site, s.kind, s.n_blocks, s.size_bytes) for s in parts.live.sites] == [
        ("a", "operator", 2, 16),
        ("b", "operator", 1, 7),
    ]
    assert parts.differences == ()
    assert total(parts) == 123


def test_other_sites_are_summed_and_the_largest_named():
    p = profile_of([(i + 1, 100, 10 - i) for i in range(6)], names=list("abcdef"))
    live = parts_of(p, top=2).live
    assert [s.site for s in live.sites] == ["a", "b"]
    assert (live.n_other_sites, live.n_other_blocks, live.other_bytes) == (4, 4, 8 + 7 + 6 + 5)
    assert live.size_bytes == 45


def test_equal_sites_of_several_stacks_are_one_and_blocks_without_a_stack_go_by_operator():
    p = profile_of([(1, 9, 4), (2, 9, 8), (3, 9, 16)], names=["x", "y", "N/A"])
    stacks = stacks_frame([("/a/m.py(1): f", "/a/n.py(2): g"), ("/a/m.py(1): f", "/a/o.py(3): h")])
    blocks = p.blocks.assign(stack_id=np.array([0, 1, -1], dtype=np.int32))
    live = parts_of(replace(p, blocks=blocks, stacks=stacks)).live
    assert [(s.site, s.kind, s.size_bytes) for s in live.sites] == [
        ("no stack and no name", "operator", 16),
        ("/a/m.py(1): f", "site", 12),
    ]
    owned = blocks.assign(owner=pd.Categorical([None, None, "PTA@kv"]))
    live = parts_of(replace(p, blocks=owned, stacks=stacks)).live
    assert [(s.site, s.kind) for s in live.sites] == [("PTA@kv", "owner"), ("/a/m.py(1): f", "site")]


def test_a_rise_that_no_row_explains_is_named_and_not_called_older():
    p = profile_of([(10, None, 5), (20, None, 7)], older=100)
    parts = parts_of(with_totals(p, [105, 112 + 1000]))
    assert parts.older_bytes == 100
    assert parts.differences == (("rises that no row explains", 1000),)
    assert total(parts) == 1112


def test_older_memory_that_fell_before_the_peak_is_not_counted():
    p = profile_of([(10, None, 5), (20, None, 70)], older=100)
    parts = parts_of(with_totals(p, [105, 5 + 70 + 60]))
    assert (parts.older_bytes, parts.differences) == (60, ())


def test_rows_beyond_the_record_are_named():
    p = profile_of([(10, None, 50)])
    parts = parts_of(with_totals(p, [30]))
    assert (parts.live.size_bytes, parts.older_bytes) == (50, 0)
    assert parts.differences == (("rows that exceed the recorded total", -20),)
    assert total(parts) == 30


def test_a_peak_between_two_samples_of_one_instant_is_named():
    p = profile_of([(10, None, 5), (20, 20, 900)])
    extra = p.totals.iloc[[1, 1]].assign(allocated_bytes=pd.array([905, 5], dtype="Int64"))
    parts = parts_of(replace(p, totals=pd.concat([p.totals.iloc[:1], extra], ignore_index=True)))
    assert (parts.t_ns, parts.peak_bytes, parts.live.size_bytes) == (20, 905, 5)
    assert parts.differences == (("between samples of the same instant", 900),)


def test_rounded_totals_differ_by_their_rounding_only():
    p = profile_of([(10, None, 5 * MIB), (20, None, MIB)])
    totals = p.totals.assign(
        allocated_bytes=pd.array([5 * MIB - 400, 6 * MIB + 300], dtype="Int64"), tolerance_bytes=512
    )
    parts = parts_of(replace(p, totals=totals))
    assert parts.differences == (
        ("rounding of the recorded totals", 700),
        ("rows that exceed the recorded total", -400),
    )
    assert total(parts) == parts.peak_bytes


def test_without_totals_the_sum_of_the_rows_is_split_and_says_so():
    parts = parts_of(profile_of([(10, 30, 5), (20, 25, 7)], record_totals=False))
    assert (parts.t_ns, parts.peak_bytes, parts.older_bytes, parts.origin) == (20, 12, None, "none")
    assert total(parts) == 12


def test_a_selection_says_what_the_rest_holds():
    p = profile_of([(10, None, 5), (20, None, 7)], older=100).select(min_bytes=6)
    parts = parts_of(p)
    assert (parts.live.size_bytes, parts.older_bytes, parts.older_label) == (7, 105, NOT_SELECTED)
    assert total(parts) == 112


blocks = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 30) | st.none(), st.integers(1, 10**12)), min_size=1, max_size=12
)


@given(blocks, st.integers(0, 10**12), st.integers(1, 4), st.lists(st.integers(-5, 5), min_size=12, max_size=12))
def test_the_parts_always_add_up(rows, older, top, noise):
    lives = [(start, None if life is None else start + life, size) for start, life, size in rows]
    p = profile_of(lives, older=older, names=[f"op{i % 5}" for i in range(len(lives))])
    parts = parts_of(p, top=top)
    alive = [(a, b, s) for a, b, s in lives if a <= parts.t_ns and (b is None or b > parts.t_ns)]
    assert parts.live.size_bytes == sum(size for _, _, size in alive)
    assert parts.live.n_blocks == len(alive)
    assert sum(s.size_bytes for s in parts.live.sites) + parts.live.other_bytes == parts.live.size_bytes
    assert sum(s.n_blocks for s in parts.live.sites) + parts.live.n_other_blocks == parts.live.n_blocks
    assert (parts.older_bytes, parts.differences) == (older, ())
    assert total(parts) == parts.peak_bytes == p.totals["allocated_bytes"].max()
    levels = [int(v) + noise[i % 12] for i, v in enumerate(p.totals["allocated_bytes"])]
    noisy = parts_of(with_totals(p, levels), top=top)
    assert total(noisy) == noisy.peak_bytes == max(levels)
    assert "not accounted" not in str(noisy.differences)


def test_open_blocks_are_those_without_any_release():
    p = profile_of([(10, None, 5), (20, 30, 7), (21, None, 11)], names=["a", "b", "a"])
    found = open_shares(p, timelines(p)[0], "PTA")
    assert (found.n_blocks, found.size_bytes, found.sites[0].site) == (2, 16, "a")


def test_of_the_snapshots_of_one_process_only_the_last_one_counts():
    def snapshot(i, *, pid=1, role="actor"):
        kept = profile_of([(i * 100 + 10, None, 5 + i), (i * 100 + 20, i * 100 + 30, 11)])
        known = {"kind": "pytorch_snapshot", "pid": pd.array([pid], dtype="Int64"), "role": role}
        return replace(kept, sources=kept.sources.assign(**known, collection=np.int32(i)))

    p = ms.MemoryProfile.concat([snapshot(0), snapshot(1), snapshot(2)])
    found = open_shares(p, timelines(p)[0], "PTA")
    assert (found.n_blocks, found.size_bytes) == (1, 7)
    p = ms.MemoryProfile.concat([snapshot(0), snapshot(1, pid=2), snapshot(2)])
    assert open_shares(p, timelines(p)[0], "PTA").size_bytes == 6 + 7
    p = ms.MemoryProfile.concat([snapshot(0, role="other"), snapshot(1)])  # a process is known by its number
    assert open_shares(p, timelines(p)[0], "PTA").size_bytes == 6
    p = ms.MemoryProfile.concat([snapshot(0, pid=pd.NA, role="other"), snapshot(1, pid=pd.NA)])
    assert open_shares(p, timelines(p)[0], "PTA").size_bytes == 5 + 6
    p = ms.MemoryProfile.concat(
        [replace(one, sources=one.sources.assign(kind="ascend_text")) for one in (snapshot(0), snapshot(1))]
    )
    assert open_shares(p, timelines(p)[0], "PTA").size_bytes == 5 + 6


def test_every_ledger_has_its_own_peak(demo, demo_profile):
    for line in timelines(demo_profile):
        frame = line_ledgers(demo_profile, line).set_index(["scope", "pool", "ledger"])
        totals = demo_profile.totals[
            demo_profile.totals["source"].isin(line.sources) & (demo_profile.totals["device"] == line.device)
        ]
        for (scope, pool, ledger), row in frame.iterrows():
            mine = totals[(totals["scope"] == scope) & ((totals["component"] == pool) | (pool == ""))]
            column = "reserved_bytes" if ledger == "resident" else f"{ledger}_bytes"
            assert row["peak_bytes"] == mine[column].max()
            assert row["peak_ns"] == mine.loc[mine[column] == mine[column].max(), "t_ns"].min()
            assert row["n_samples"] == len(mine)
        assert frame.index[0] == ("pool", "PTA", "allocated")
        assert frame.at[("process", "", "resident"), "peak_bytes"] < frame.at[("pool", "PTA", "reserved"), "peak_bytes"]
        parts = peak_parts(demo_profile, line, "PTA")
        assert parts.peak_bytes == frame.at[("pool", "PTA", "allocated"), "peak_bytes"]
        live = ms.live_at(demo_profile, parts.t_ns)
        live = live[(live["source"] == parts.source) & (live["pool"] == "PTA")]
        assert parts.live.size_bytes == live["size_bytes"].sum()
        assert total(parts) == parts.peak_bytes


@pytest.mark.parametrize("name", ["msinsight_alexnet_text", "msinsight_alexnet_db", "msprof_db", "msinsight_st_level2"])
def test_samples_add_up_without_a_difference(ascend_samples, name):
    p = ms.load(ascend_samples / name)
    checked = 0
    for line in timelines(p):
        for pool in {one.pool for one in line.series}:
            parts = peak_parts(p, line, pool)
            assert total(parts) == parts.peak_bytes
            assert parts.differences == ()
            checked += 1
    assert checked
