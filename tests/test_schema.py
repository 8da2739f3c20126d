"""Validation lists every failure; the contract is exchanged without surprises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.errors import ValidationError

T = 1_779_785_515_596_661_420


def failures(what) -> list[tuple]:
    with pytest.raises(ValidationError) as caught:
        ms.validate(what)
    frame = caught.value.failures
    assert list(frame.columns) == ["table", "column", "check", "row", "value"]
    return [tuple(None if v is None or v is pd.NA else v for v in r) for r in frame.itertuples(index=False)]


@pytest.fixture
def profile():
    return profile_of([(T, T + 10, 512), (T + 1, T + 20, 1024), (T + 2, None, 2048)], names=["a", "", "c"])


@pytest.fixture
def contract(profile):
    return ms.memory_summary(profile)


def test_a_good_profile_is_returned_as_it_is(profile, contract):
    assert ms.validate(profile) is profile
    assert ms.validate(contract) is contract  # an empty name is legal


def test_every_failure_is_listed_with_row_and_value(profile):
    blocks = profile.blocks.copy()
    blocks.loc[0, "size_bytes"] = -4
    blocks.loc[2, "size_bytes"] = 0
    blocks.loc[1, "free_ns"] = T
    blocks.loc[1, "stack_id"] = 99
    assert set(failures(replace(profile, blocks=blocks))) == {
        ("blocks", "size_bytes", "greater_than(0)", 0, -4),
        ("blocks", "size_bytes", "greater_than(0)", 2, 0),
        ("blocks", "free_ns", "free_ns >= alloc_ns", 1, T),
        ("blocks", "stack_id", "stack_id is in stacks", 1, 99),
    }


def test_failures_in_other_tables_are_found_too(profile):
    totals = profile.totals.assign(t_ns=np.int64(0))
    sources = profile.sources.assign(status="great")
    found = failures(replace(profile, totals=totals, sources=sources))
    assert {(f[0], f[1]) for f in found} == {("totals", "t_ns"), ("sources", "status")}
    assert len([f for f in found if f[0] == "totals"]) == len(totals)


def test_duplicate_block_ids(profile):
    blocks = profile.blocks.assign(block_id=np.int64(7))
    assert {f[1] for f in failures(replace(profile, blocks=blocks))} == {"block_id"}


@pytest.mark.parametrize("column", ["name", "size_kb", "start_time_ms", "duration_ms", "total_allocated_mb"])
def test_contract_requires_its_columns(contract, column):
    assert failures(contract.drop(columns=column)) == [("contract", column, "required column is missing", None, None)]


def test_contract_wants_numbers_and_names_every_other_value(contract):
    sizes = contract["size_kb"].astype(object)
    sizes[1] = "12"
    assert failures(contract.assign(size_kb=sizes)) == [("contract", "size_kb", "is a number", 1, "12")]
    times = contract["start_time_ms"].where(contract.index != 2)
    assert [f[1:4] for f in failures(contract.assign(start_time_ms=times))] == [("start_time_ms", "not_nullable", 2)]


def test_contract_wants_names_and_a_positive_size(contract):
    names = contract["name"].where(contract.index != 1, None)
    assert [(f[1], f[3]) for f in failures(contract.assign(name=names))] == [("name", 1)]
    assert {f[2] for f in failures(contract.assign(size_kb=0.0))} == {"has a positive size"}


def test_message_shows_twenty_and_counts_the_rest(contract):
    many = pd.concat([contract] * 20, ignore_index=True).assign(size_kb="x")
    with pytest.raises(ValidationError, match=r"… and \d+ more") as caught:
        ms.validate(many)
    assert str(caught.value).count("is a number") == 20
    assert len(caught.value.failures) == 61


def test_contract_columns_and_values(profile, contract):
    assert list(contract.columns) == [
        "name", "role", "rank_id", "call_stack", "call_stack_top", "size_kb", "start_time_ms", "duration_ms",
        "total_allocated_mb", "total_reserved_mb", "total_active_mb", "device_type",
    ]  # fmt: skip
    assert contract["size_kb"].tolist() == [0.5, 1.0, 2.0]
    assert contract["duration_ms"].tolist() == [10 / 1e6, 19 / 1e6, 0.0]
    assert contract["start_time_ms"].is_monotonic_increasing
    assert contract["name"].tolist() == ["a", "", "c"]


def test_round_trip_of_the_contract():
    p = profile_of([(T, T + 10_000_000, 512), (T + 5_000_000, None, 1 << 30)], names=["a", "cann::b"])
    back = ms.MemoryProfile.from_summary(ms.memory_summary(p))
    assert back.blocks["size_bytes"].tolist() == [512, 1 << 30]
    assert back.blocks["free_ns"].isna().tolist() == [False, True]
    assert back.blocks["pool"].tolist() == ["PTA", "GE"]
    assert (back.blocks["alloc_ns"] - p.blocks["alloc_ns"]).abs().max() < 250
    assert back.sources[["role", "rank_id"]].iloc[0].tolist() == ["role", 0]
    assert ms.validate(back) is back


def test_a_bad_contract_is_refused_on_reading(contract):
    with pytest.raises(ValidationError):
        ms.MemoryProfile.from_summary(contract.drop(columns="duration_ms"))


def test_contract_of_the_demo_has_stacks_and_ranks(demo_profile):
    contract = ms.memory_summary(demo_profile)
    assert len(contract) == len(demo_profile.blocks)
    assert set(contract["rank_id"]) == {0, 1}
    with_stack = contract[contract["call_stack"] != ""]
    assert len(with_stack) > 1000
    assert (with_stack["call_stack_top"] == with_stack["call_stack"].str.split(";\r\n").str[0]).all()
    back = ms.MemoryProfile.from_summary(contract)
    assert len(back.blocks) == len(contract)
    assert (back.blocks["stack_id"] >= 0).sum() == len(with_stack)
