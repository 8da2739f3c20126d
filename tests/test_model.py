from __future__ import annotations

import pandas as pd
import pytest
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.model import MemoryProfile

T = 1_779_785_515_596_661_420


def test_joining_renumbers_sources_blocks_and_keeps_the_rest():
    a = profile_of([(T, T + 10, 512)], names=["x"])
    b = profile_of([(T, T + 20, 1024), (T + 1, None, 512)], names=["y", "x"])
    joined = MemoryProfile.concat([a, b, a])
    assert joined.sources["source"].tolist() == [0, 1, 2]
    assert joined.blocks["source"].tolist() == [0, 1, 1, 2]
    assert joined.blocks["block_id"].tolist() == [0, 1, 2, 3]
    assert joined.blocks["name"].tolist() == ["x", "y", "x", "x"]
    assert joined.blocks["name"].dtype == "category"
    assert joined.blocks["alloc_ns"].dtype == "Int64"
    assert joined.summary()["peak_bytes"].tolist() == [512, 1536, 512]
    assert ms.validate(joined) is joined


def test_joining_nothing_is_an_error():
    with pytest.raises(InputError):
        MemoryProfile.concat([])


def test_select_keeps_ids_and_true_times():
    p = profile_of([(T, T + 10, 512), (T + 5, T + 50, 4096), (T + 40, None, 2048)], names=["a", "b", "ab"])
    cases = {
        (1, 2): p.select(time_range=(T + 10, T + 60)),
        (0, 1): p.select(time_range=(T, T + 6)),
        (1,): p.select(min_bytes="4 KiB"),
        (0, 2): p.select(name="a"),
        (2,): p.select(query="free_ns.isna()"),
        (): p.select(site="nowhere"),
        (0, 1, 2): p.select(role="role", rank=0, pool="PTA"),
    }
    for expected, selected in cases.items():
        assert selected.blocks["block_id"].tolist() == list(expected)
        kept = p.blocks[p.blocks["block_id"].isin(expected)]
        assert selected.blocks["free_ns"].astype(object).equals(kept["free_ns"].astype(object))


def test_a_role_that_is_not_there_lists_what_is():
    with pytest.raises(InputError, match="there is: role"):
        profile_of([(T, T + 1, 512)]).select(role="absent")


def test_repr_says_what_matters_and_html_is_escaped():
    p = profile_of([(T, T + 1, 1 << 30)])
    assert "1 sources, 1 ranks, 1 blocks" in repr(p)
    assert "peak 1.00 GiB" in repr(p)
    p.sources["role"] = "<img src=x onerror=alert(1)>"
    p.sources["status"] = "partial"
    p.sources["warnings"] = [("<script>",)]
    markup = p._repr_html_()
    assert "<img" not in markup
    assert "<script" not in markup
    assert "&lt;img src=x onerror=alert(1)&gt;" in markup
    assert "1.00 GiB" in markup


def test_frames_of_no_stack_are_empty():
    assert profile_of([(T, T + 1, 512)]).frames(-1) == ()


def test_tables_are_not_changed_by_analyses():
    p = profile_of([(T, T + 10, 512), (T + 5, None, 1024)])
    before = {name: getattr(p, name).copy(deep=True) for name in ("sources", "blocks", "totals", "marks", "ops")}
    for analysis in (ms.curve, ms.phases, ms.memory_summary, ms.validate, repr, MemoryProfile.summary):
        analysis(p)
    ms.live_at(p, T + 5)
    for name, table in before.items():
        pd.testing.assert_frame_equal(getattr(p, name), table)


def test_joining_large_tables_takes_nothing_from_the_profiles(monkeypatch: pytest.MonkeyPatch):
    parts = [profile_of([(T + k, T + 20, 512 + k)], names=["x"]) for k in range(3)]
    names = [list(part.blocks.columns) for part in parts]
    small = MemoryProfile.concat(parts)
    monkeypatch.setattr("memscope_nb.joining.LARGE", 0)
    large = MemoryProfile.concat(part for part in [*parts])
    assert [list(part.blocks.columns) for part in parts] == names
    for name in ("sources", "blocks", "totals", "stacks"):
        pd.testing.assert_frame_equal(getattr(large, name), getattr(small, name))
    assert large.blocks["size_bytes"].tolist() == [512, 513, 514]
