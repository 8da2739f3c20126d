from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memscope_nb.io.intervals import IntervalIndex

intervals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6)), max_size=40)
queries = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20)), max_size=20)


def index(rows):
    group, start, length = (np.array([r[i] for r in rows], dtype=np.int64) for i in range(3))
    return IntervalIndex(group, start, start + length)


@given(intervals, queries)
def test_finds_the_latest_start_that_still_runs(rows, asked):
    found = index(rows).last_running(*(np.array([q[i] for q in asked], dtype=np.int64) for i in range(2)))
    for (group, t), got in zip(asked, found, strict=True):
        running = [(s, i) for i, (g, s, n) in enumerate(rows) if g == group and s <= t <= s + n]
        assert got == (max(running)[1] if running else -1)


def test_skips_many_ended_neighbours_to_an_enclosing_one():
    rows = [(0, 0, 1000), *((0, 2 * i, 1) for i in range(1, 400))]
    assert index(rows).last_running(np.array([0]), np.array([900])).tolist() == [0]


def test_works_on_real_epochs():
    t = 1_779_785_515_596_661_420
    found = IntervalIndex(np.array([5]), np.array([t]), np.array([t + 10])).last_running(
        np.array([5, 5, 5, 4]), np.array([t, t + 10, t + 11, t])
    )
    assert found.tolist() == [0, 0, -1, -1]
