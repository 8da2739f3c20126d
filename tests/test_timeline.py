"""Timelines, phases and lifetime classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tiny import op, profile_of, record, row, write_collection

import memscope_nb as ms
from memscope_nb.analysis.lifetime import backward_starts, lifetimes, outer_edges
from memscope_nb.analysis.timeline import MAX_SPAN_NS, timelines, tracks
from memscope_nb.model import MemoryProfile

T = 1_779_785_515_596_661_420


def marks(*rows):
    """Marks ``(kind, name, start, end)`` of source 0."""
    kind, name, start, end = zip(*rows, strict=True)
    return pd.DataFrame(
        {
            "source": np.zeros(len(rows), dtype=np.int32),
            "kind": pd.Categorical(kind, ["step", "range"]),
            "name": list(name),
            "step": pd.array([pd.NA] * len(rows), dtype="Int64"),
            "tid": pd.array([1] * len(rows), dtype="Int64"),
            "start_ns": np.array(start, dtype=np.int64),
            "end_ns": np.array(end, dtype=np.int64),
        }
    )


def shifted(profile, by):
    """The same recording later."""
    move = {"alloc_ns", "free_ns", "active_free_ns", "t_ns", "start_ns", "end_ns"}
    tables = {}
    for name in ("sources", "blocks", "totals", "marks"):
        table = getattr(profile, name)
        tables[name] = table.assign(**{c: table[c] + by for c in move & set(table.columns)})
    return replace(profile, **tables)


def test_phases_have_the_levels_inside_them():
    p = profile_of([(T, T + 100, 512), (T + 10, T + 20, 4096), (T + 50, T + 60, 1024)], older=512)
    p = replace(
        p, marks=marks(("range", "a", T + 5, T + 30), ("step", "s", T + 55, T + 59), ("range", "off", T + 900, T + 999))
    )
    found = ms.phases(p).set_index("name")
    assert found.loc["a", ["peak_bytes", "floor_bytes", "end_bytes"]].tolist() == [5120, 1024, 1024]
    assert found.loc["s", ["peak_bytes", "floor_bytes", "end_bytes"]].tolist() == [2048, 2048, 2048]
    assert found.loc["role", ["peak_bytes", "floor_bytes", "end_bytes"]].tolist() == [5120, 512, 512]
    assert found.loc["off", ["peak_bytes", "floor_bytes", "end_bytes"]].isna().all()
    assert ms.phases(p, kinds=["step"])["name"].tolist() == ["s"]


def test_sources_of_a_rank_follow_each_other_on_one_timeline():
    a = profile_of([(T, T + 10, 512)])
    joined = MemoryProfile.concat([shifted(a, 1000), a])
    (line,) = timelines(joined)
    assert line.sources == (1, 0)
    assert line.span == (T, T + 1010)
    assert line.label == "rank 0 · NPU:0"
    assert [len(track) for track in tracks(line)] == [2]


def test_sources_that_overlap_are_drawn_apart_never_added():
    a = profile_of([(T, T + 10, 512)])
    (line,) = timelines(MemoryProfile.concat([a, shifted(a, 5)]))
    assert [len(track) for track in tracks(line)] == [1, 1]


def test_recordings_months_apart_do_not_share_an_axis():
    a = profile_of([(T, T + 10, 512)])
    first, second = timelines(MemoryProfile.concat([a, shifted(a, MAX_SPAN_NS)]))
    assert (first.part, second.part) == (0, 1)
    assert second.label.endswith("part 2")


def test_ranks_on_the_same_device_name_are_never_merged(tmp_path):
    for rank in (0, 1):
        rows = [row("a", 1024, 10, 20, 19, 1.0)]
        write_collection(
            tmp_path, rank=rank, name=f"h_{rank}_20260101000000000_ascend_pt", operators=rows, records=None
        )
    assert [line.label for line in timelines(ms.load(tmp_path))] == ["rank 0 · NPU:0", "rank 1 · NPU:0"]


def test_sources_without_a_rank_stand_alone(tmp_path):
    for name in ("a_ascend_pt", "b_ascend_pt"):
        write_collection(tmp_path, rank=None, name=name, info={"x": 1}, operators=[row("a", 1, 10, 20, 19, 1.0)])
    assert [line.label for line in timelines(ms.load(tmp_path))] == ["NPU:0"] * 2


@pytest.mark.parametrize(
    ("alloc", "free", "expected"),
    [
        (1, None, "open"),
        (1, 4, "transient"),
        (1, 12, "step"),
        (10, 12, "transient"),  # allocated at the very start of the step
        (5, 10, "transient"),  # gone at the very start of the step
        (31, 34, "fwdbwd"),
        (31, 42, "phase"),
    ],
)
def test_lifetime_classes(alloc, free, expected):
    p = profile_of([(T + alloc, None if free is None else T + free, 512)], window=(T, T + 100))
    ops = pd.DataFrame(
        {
            "source": np.zeros(2, dtype=np.int32),
            "tid": np.array([1, 2]),
            "name": pd.Categorical(["aten::linear", "LinearBackward0"]),
            "start_ns": np.array([T + 30, T + 33]),
            "end_ns": np.array([T + 31, T + 35]),
            "sequence": np.array([4, 4]),
            "fwd_tid": np.array([0, 1]),
            "stack_id": np.array([-1, -1], dtype=np.int32),
        }
    )
    p = replace(p, ops=ops, marks=marks(("step", "ProfilerStep#1", T + 10, T + 90), ("range", "r", T + 40, T + 80)))
    assert lifetimes(p).tolist() == [expected]


def test_a_backward_pass_begins_at_the_first_backward_operator_after_a_forward_one():
    rows = [(1, 4, 0), (5, 4, 0), (10, 4, 1), (12, 3, 1), (20, 9, 0), (25, 9, 1), (26, -1, 0)]
    ops = pd.DataFrame(
        {
            "name": pd.Categorical(["op"] * 6 + ["autograd::engine::evaluate_function: X"]),
            "start_ns": [r[0] for r in rows],
            "sequence": [r[1] for r in rows],
            "fwd_tid": [r[2] for r in rows],
        }
    )
    assert backward_starts(ops).tolist() == [10, 25]


def test_only_outermost_ranges_are_phase_edges():
    ranges = marks(("range", "outer", 0, 100), ("range", "inner", 10, 20), ("range", "next", 150, 160))
    assert outer_edges(ranges).tolist() == [0, 100, 150, 160]


def test_lifetimes_of_a_recording(tmp_path):
    trace = [
        op("ProfilerStep#1", 0, 100),
        op("ProfilerStep#2", 100, 100),
        op("aten::linear", 10, 5, seq=1, stack="m.py(1): f"),
        op("LinearBackward0", 50, 5, seq=1, fwd=1, tid=2),
    ]
    rows = [
        row("activation", 1, 11, 52, 51, 1.0),
        row("temporary", 1, 20, 30, 29, 1.0),
        row("state", 1, 60, 150, 149, 1.0),
        row("leak", 1, 160, None, None, 1.0),
    ]
    write_collection(tmp_path, operators=rows, records=[record("PTA", 11, 1.0), record("PTA", 200, 1.0)], trace=trace)
    p = ms.load(tmp_path)
    found = dict(zip(p.blocks["name"].astype(str), lifetimes(p), strict=True))
    assert found == {"activation": "fwdbwd", "temporary": "transient", "state": "step", "leak": "open"}
