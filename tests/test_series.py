"""Curves and balances: invariants over arbitrary lives, and how a fault would show."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.analysis.series import balance, iter_series
from memscope_nb.analysis.thin import thin_rows
from memscope_nb.model import NA_NS, block_ends, block_starts, to_int64

T = 1_779_785_515_596_661_420


@st.composite
def lives(draw, *, min_size=1, max_size=25):
    """Blocks ``(alloc, free or None, size)`` at real epochs, with collisions of times, and when they leave the pool."""
    rows, late = [], []
    for _ in range(draw(st.integers(min_size, max_size))):
        start = draw(st.integers(0, 40))
        end = draw(st.none() | st.integers(start, 60))
        rows.append((T + start, None if end is None else T + end, 512 * draw(st.integers(1, 9))))
        late.append(None if end is None else T + draw(st.integers(start, 70)))
    return rows, late


@given(lives(), st.integers(0, 5))
def test_curve_is_older_memory_plus_live_blocks_at_every_event(data, older):
    rows, late = data
    p = profile_of(rows, late=late, older=older * 512)
    curve = ms.curve(p)
    ends = [
        min((e for e in pair if e is not None), default=T + 1000)
        for pair in zip([r[1] for r in rows], late, strict=True)
    ]
    for t, allocated, n_live in zip(curve["t_ns"], curve["allocated_bytes"], curve["n_live"], strict=True):
        alive = [size for (start, _, size), end in zip(rows, ends, strict=True) if start <= t < end]
        assert allocated == older * 512 + sum(alive)
        assert n_live == len(alive)
        assert sorted(ms.live_at(p, t)["size_bytes"]) == sorted(alive)
    assert (curve["older_bytes"] == older * 512).all()
    active_ends = [T + 1000 if e is None else e for e in late]
    for t, active in zip(curve["t_ns"], curve["active_bytes"], strict=True):
        assert active == older * 512 + sum(r[2] for r, e in zip(rows, active_ends, strict=True) if r[0] <= t < e)


@given(lives())
def test_a_right_recording_has_no_rise_and_no_fall(data):
    rows, late = data
    for ledger in ("allocated", "active"):
        check = balance(next(iter_series(profile_of(rows, late=late, older=4096))), ledger)
        assert (check.n_rises, check.n_falls, check.start_bytes, check.end_bytes) == (0, 0, 4096, 4096)


@given(lives(min_size=2), st.data())
def test_a_missing_row_shows_as_an_unexplained_rise(data, draw):
    rows, late = data
    p = profile_of(rows, late=late)
    starts, ends = block_starts(p), block_ends(p)
    window_start = int(to_int64(p.sources["start_ns"])[0])
    seen = np.flatnonzero((ends > starts) & (starts > window_start))
    if not len(seen):
        return
    gone = draw.draw(st.sampled_from(seen.tolist()))
    same = (starts == starts[gone]) | (ends == starts[gone])  # others at that instant could hide the difference
    if same.sum() > 1:
        return
    broken = replace(p, blocks=p.blocks.drop(index=gone))
    check = balance(next(iter_series(broken)))
    assert check.n_rises >= 1
    assert check.rise_bytes >= rows[gone][2]
    assert broken.summary()["n_unexplained"].iloc[0] >= 1


@given(lives(), st.randoms())
def test_order_of_blocks_does_not_matter(data, random):
    rows, late = data
    order = list(range(len(rows)))
    random.shuffle(order)
    shuffled = profile_of([rows[i] for i in order], late=[late[i] for i in order])
    assert ms.curve(profile_of(rows, late=late)).equals(ms.curve(shuffled))


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(-5, 5) | st.just(NA_NS)), min_size=1, max_size=300),
    st.integers(1, 20),
)
def test_thinning_keeps_ends_and_extremes(points, columns):
    points.sort(key=lambda p: p[0])
    t, level = (np.array([p[i] for p in points], dtype=np.int64) for i in range(2))
    rows = thin_rows(t, [level], columns)
    kept, known = level[rows], level[level != NA_NS]
    assert (np.diff(rows) > 0).all()
    assert {0, len(t) - 1} <= set(rows.tolist())
    if len(known):
        assert kept[kept != NA_NS].max() == known.max()
        assert kept[kept != NA_NS].min() == known.min()
    assert len(rows) <= max(4 * columns, 1)


def test_thinned_curve_has_the_exact_peak_of_a_microsecond():
    rows = [(T + 1000 * i, T + 1000 * i + 500, 512) for i in range(20_000)]
    rows.append((T + 7_000_100, T + 7_000_104, 1 << 30))
    exact, thin = ms.curve(profile_of(rows)), ms.curve(profile_of(rows), points=100)
    assert len(thin) < 500 < len(exact)
    assert thin["allocated_bytes"].max() == exact["allocated_bytes"].max() == (1 << 30) + 512


def test_half_open_lives_end_before_others_start_at_the_same_instant():
    p = profile_of([(T, T + 10, 512), (T + 10, T + 20, 1024)])
    assert ms.curve(p)["allocated_bytes"].tolist() == [512, 1024, 0]
    assert ms.live_at(p, T + 10)["size_bytes"].tolist() == [1024]


def test_an_open_block_is_alive_at_the_last_record():
    p = profile_of([(T, None, 512), (T + 5, T + 10, 1024)])
    assert ms.curve(p)["allocated_bytes"].tolist() == [512, 1536, 512]
    assert p.summary()[["n_open", "end_bytes", "n_unexplained"]].iloc[0].tolist() == [1, 512, 0]


def test_of_equal_peaks_the_first_counts():
    p = profile_of([(T, T + 1, 512), (T + 2, T + 3, 512)])
    assert p.summary()["peak_ns"].tolist() == [T]


def test_a_fall_of_older_memory_is_counted():
    p = profile_of([(T, T + 20, 512), (T + 10, T + 30, 512)], older=4096)
    totals = p.totals.copy()
    totals.loc[totals["t_ns"] >= T + 10, ["allocated_bytes", "active_bytes"]] -= 1024
    summary = replace(p, totals=totals).summary().iloc[0]
    assert summary[["older_start_bytes", "older_end_bytes", "n_older_falls", "n_unexplained"]].tolist() == [
        4096,
        3072,
        1,
        0,
    ]


def test_rounded_totals_are_tolerated_within_half_a_digit_only():
    p = profile_of([(T, T + 20, 512), (T + 10, T + 30, 512)])
    for error, rises, tolerated in ((5, 0, 2), (13, 1, 0)):
        totals = p.totals.assign(tolerance_bytes=0)
        at = totals["t_ns"] == T + 10
        totals.loc[at, "tolerance_bytes"] = 6
        totals.loc[at, "allocated_bytes"] += error
        check = balance(next(iter_series(replace(p, totals=totals))))
        assert (check.n_rises, check.n_tolerated) == (rises, tolerated)


def test_without_recorded_totals_the_curve_is_the_sum_of_the_rows():
    p = profile_of([(T, T + 10, 512), (T + 5, None, 1024)], window=(T, T + 10), record_totals=False)
    curve = ms.curve(p)
    assert curve["allocated_bytes"].tolist() == [512, 1536, 1024]
    assert curve["older_bytes"].isna().all()
    assert p.summary()["peak_bytes"].isna().all()


@pytest.mark.parametrize("pool", ["PTA", "GE"])
def test_a_pool_may_count_the_released_block_at_its_release_only_if_it_is_the_graph_engine(pool):
    p = profile_of([(T, T + 10, 512), (T + 5, T + 20, 1024)])
    totals = p.totals.copy()
    totals["allocated_bytes"] = [512, 1536, 1536, 1024]
    totals["component"] = totals["component"].cat.rename_categories({"PTA": pool})
    blocks = p.blocks.assign(pool=p.blocks["pool"].cat.rename_categories({"PTA": pool}))
    check = balance(next(iter_series(replace(p, totals=totals, blocks=blocks))))
    assert (check.n_rises > 0) == (pool == "PTA")


def test_series_are_made_once_and_die_with_their_profile():
    profile = profile_of([(T, T + 10, 512), (T + 5, T + 20, 1024)])
    first, again = list(iter_series(profile)), list(iter_series(profile))
    assert all(a is b for a, b in zip(first, again, strict=True))
    part = profile.select(min_bytes=1000)
    (other,) = iter_series(part)
    assert len(other.rows) == 1
    assert len(first[0].rows) == 2
    watched = weakref.ref(profile)
    del profile
    gc.collect()
    assert watched() is None
