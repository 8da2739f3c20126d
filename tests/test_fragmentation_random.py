"""Terms of random pools against a reference that loops over the file, and going back against a live allocator."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pytorch_snapshot import MIB, entry, segment, snapshot, write

import memscope_nb as ms
from memscope_nb.demo.torch_allocator import OutOfDeviceMemoryError, TorchAllocator, round_request, snapshot_dict

GRAIN = 512
POOLS, STREAMS, KINDS = [(0, 0), (0, 1)], [0, 9, (1 << 63) + 5], ["large", "small"]
STATES = ["active_allocated", "active_pending_free", "inactive"]


# -- the state at the end ---------------------------------------------------------------------------------------


@st.composite
def segments(draw: st.DrawFn) -> list[dict]:
    """Segments back to back or apart, whose blocks fill them; two free ones never lie side by side."""
    found, at = [], 64 * MIB
    for _ in range(draw(st.integers(1, 5))):
        at += draw(st.sampled_from([0, MIB]))
        blocks, states = [], draw(st.lists(st.sampled_from(STATES), min_size=1, max_size=7))
        for state, _ in itertools.groupby(states) if draw(st.booleans()) else [(s, None) for s in _spread(states)]:
            size = GRAIN * draw(st.integers(1, 6))
            asked = 0 if state == "inactive" else draw(st.integers(size - GRAIN + 1, size))
            blocks.append(
                {
                    "address": at + sum(b["size"] for b in blocks), "size": size, "requested_size": asked,
                    "state": state, "frames": [],
                }
            )  # fmt: skip
        total = sum(b["size"] for b in blocks)
        one = segment(at, [b for b in blocks if b["state"] != "inactive"], total)
        one["blocks"] = blocks
        one["segment_pool_id"], one["stream"] = draw(st.sampled_from(POOLS)), draw(st.sampled_from(STREAMS))
        one["segment_type"] = draw(st.sampled_from(KINDS))
        found.append(one)
        at += total
    return found


def _spread(states: list[str]) -> list[str]:
    kept: list[str] = []
    for state in states:
        if state != "inactive" or kept[-1:] != ["inactive"]:
            kept.append(state)
    return kept


def reference(found: list[dict], asked: int, pool: tuple, stream: int, kind: str) -> dict[str, Any]:
    """The terms, straight from the file."""
    terms = dict.fromkeys(("usable", "too_small", "other_stream", "private_pool", "other_pool", "other_size_class"), 0)
    largest, cheapest = 0, None
    for one in found:
        mine = (one["segment_pool_id"], one["stream"], one["segment_type"]) == (pool, stream, kind)
        blocks = one["blocks"]
        for block in blocks:
            if block["state"] != "inactive":
                continue
            size = block["size"]
            if one["segment_pool_id"] != pool:
                reason = "private_pool" if one["segment_pool_id"] != (0, 0) else "other_pool"
            elif one["stream"] != stream:
                reason = "other_stream"
            elif one["segment_type"] != kind:
                reason = "other_size_class"
            else:
                reason = "usable" if size >= asked else "too_small"
                largest = max(largest, size)
            terms[reason] += size
        for i, j in itertools.combinations(range(len(blocks) + 1), 2) if mine else ():
            part = blocks[i:j]
            room, used = sum(b["size"] for b in part), sum(b["size"] for b in part if b["state"] != "inactive")
            # Whole stretches only: a free range at the edge of the part belongs to it.
            if room >= asked and used and 2 * used <= room:
                cheapest = used if cheapest is None else min(cheapest, used)
    return {"terms": terms, "largest": largest, "cheapest": cheapest}


@settings(max_examples=100)
@given(
    found=segments(), grains=st.integers(1, 14), pool=st.sampled_from(POOLS), stream=st.sampled_from(STREAMS),
    protocol=st.integers(2, 5),
)  # fmt: skip
def test_terms_add_up_and_equal_the_reference(tmp_path_factory, found, grains, pool, stream, protocol):
    asked = grains * GRAIN
    failed = entry("oom", None, asked, 0, device_free=0, stream=stream, pool_id=pool)
    what = snapshot([[failed]], found)
    path = write(tmp_path_factory.mktemp("f") / "s.pickle", what, protocol)
    at = ms.fragmentation(path).at("oom")
    row = at.frame.iloc[0]
    expected = reference(found, asked, pool, stream, "small")
    assert {reason: row[f"{reason}_bytes"] for reason in expected["terms"]} == expected["terms"]
    assert row["largest_bytes"] == expected["largest"]
    blocks = [b for one in found for b in one["blocks"]]
    for column, state in (("allocated", STATES[0]), ("pending", STATES[1]), ("idle", STATES[2])):
        assert row[f"{column}_bytes"] == sum(b["size"] for b in blocks if b["state"] == state)
    assert row["reserved_bytes"] == sum(one["total_size"] for one in found)
    assert row["reserved_bytes"] == row["allocated_bytes"] + row["pending_bytes"] + row["idle_bytes"]
    assert row["unsure_bytes"] == 0
    assert (at.checks["difference_bytes"] == 0).all()
    domains = at.domains
    for name in ("reserved", "allocated", "pending", "idle"):
        assert domains[f"{name}_bytes"].sum() == row[f"{name}_bytes"]
    merge = at.fits[at.fits["route"] == "merge"]
    if row["usable_bytes"]:
        assert len(at.fits) == 0
    elif len(merge):
        assert merge["size_bytes"].sum() == expected["cheapest"]
        assert merge["segment"].nunique() == 1
    else:
        assert expected["cheapest"] is None
    sides = at.ranges.melt(value_vars=["before", "after"], id_vars="size_bytes", value_name="block_id")
    sides = sides[sides["block_id"] >= 0].groupby("block_id")["size_bytes"].sum()
    assert at.pins.set_index("block_id")["idle_bytes"].sort_index().to_dict() == sides.to_dict()


# -- going back -------------------------------------------------------------------------------------------------


def truth_of(allocator: TorchAllocator) -> dict[tuple, list[tuple]]:
    """Blocks of every segment: address, size, state."""
    return {
        (addr, s.size, s.stream, s.pool): [(b.addr, b.size, b.state) for b in s.blocks()]
        for addr, s in allocator.segments.items()
    }


def drive(allocator: TorchAllocator, steps: list[tuple[int, int, int]]) -> list[tuple[int, dict]]:
    """Run random calls; return (entries written so far, state) after each."""
    live, late, states = [], [], []
    for what, choice, size in steps:
        if what <= 3:
            n_bytes = size if choice % 2 else size * 97 + 600_000
            pool = (0, 1) if choice % 7 == 0 else (0, 0)
            try:
                live.append(allocator.malloc(n_bytes, [], stream=(0, 5)[choice % 3 == 0], pool=pool))
            except OutOfDeviceMemoryError:
                continue
        elif what <= 6 and live:
            block = live.pop(choice % len(live))
            allocator.free(block, used_elsewhere=what == 6)
            late += [block] if what == 6 else []
        elif what == 7 and late:
            allocator.complete(late.pop(choice % len(late)))
        elif what == 8:
            allocator.empty_cache()
        states.append((allocator.n_entries, truth_of(allocator)))
    return states


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 60), st.integers(1, 400_000)), min_size=2, max_size=60
    ),
    lost=st.integers(0, 40),
    which=st.integers(0, 1000),
)  # fmt: skip
def test_going_back_finds_the_state_that_was(tmp_path_factory, steps, lost, which):
    clock = itertools.count(1_700_000_000_000_000, 7)
    allocator = TorchAllocator(device=0, device_bytes=400 * MIB, max_entries=10**6, clock=lambda: next(clock))
    allocator.malloc(700, [], pool=(0, 1))  # stays: without any segment a file does not tell its state
    states = drive(allocator, steps)
    entries = allocator.entries()
    lost = min(lost, max(len(entries) - 1, 0))
    whole = snapshot_dict([allocator], settings={"expandable_segments": False})
    whole["device_traces"][0] = entries[lost:]
    states = [(n, state) for n, state in states if n > lost]
    if not states:
        return
    n_then, then = states[which % len(states)]
    path = write(tmp_path_factory.mktemp("b") / "s.pickle", whole)
    profile = ms.load(path)
    at = ms.fragmentation(profile).at(entries[n_then - 1]["time_us"] * 1000)
    row = at.frame.iloc[0]
    end = {block: size for blocks in truth_of(allocator).values() for block, size, state in blocks}
    alive_at_end = {e["addr"] for e in _still_there(entries, n_then)}
    expected = {"allocated": 0, "pending": 0, "idle": 0}
    n_estimated = 0
    for blocks in then.values():
        for number, (addr, size, state) in enumerate(blocks):
            if state == "inactive":
                expected["idle"] += size
                continue
            hidden = 0
            if addr not in alive_at_end:  # its size is what was asked for: a rest in front of free memory stays unseen
                n_estimated += 1
                followed_by_free = number + 1 < len(blocks) and blocks[number + 1][2] == "inactive"
                hidden = size - round_request(_asked(entries, addr, n_then)) if followed_by_free else 0
                assert 0 <= hidden <= MIB
            expected["allocated" if state == "active_allocated" else "pending"] += size - hidden
            expected["idle"] += hidden
    assert {name: row[f"{name}_bytes"] for name in expected} == expected
    assert row["n_estimated"] == n_estimated
    assert row["reserved_bytes"] == sum(size for _, size, _, _ in then)
    per_stream = pd.Series({(str(k[3][0]) + "," + str(k[3][1]), k[2], k[0]): k[1] for k in then}, dtype="int64")
    domains = at.domains.groupby(["pool_id", "stream"])["reserved_bytes"].sum()
    if len(per_stream):
        assert domains.to_dict() == per_stream.groupby(level=[0, 1]).sum().to_dict()
    assert row["unsure_bytes"] == 0
    assert end is not None


def _still_there(entries: list[dict], after: int) -> list[dict]:
    """Allocations before a position whose block is never completed after it."""
    done = {e["addr"] for e in entries[after:] if e["action"] == "free_completed"}
    return [e for e in entries[:after] if e["action"] == "alloc" and e["addr"] not in done]


def _asked(entries: list[dict], addr: int, before: int) -> int:
    return next(e["size"] for e in reversed(entries[:before]) if e["action"] == "alloc" and e["addr"] == addr)


# -- growing segments -------------------------------------------------------------------------------------------

PAGE, N_PAGES = 2 * MIB, 12
SPACES = {0: 1 << 40, 5: 1 << 41}
"""Each stream reserves addresses of its own."""


def runs(pages: set[int]) -> list[tuple[int, int]]:
    """Stretches of pages, as (first, count)."""
    found: list[tuple[int, int]] = []
    for page in sorted(pages):
        if found and sum(found[-1]) == page:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((page, 1))
    return found


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(SPACES)), st.integers(0, N_PAGES - 1), st.integers(1, 5)),
        min_size=1,
        max_size=14,
    ),
    which=st.integers(0, 100),
)
def test_mapped_pages_are_found_going_back(tmp_path_factory, steps, which):
    pages: dict[int, set[int]] = {stream: set() for stream in SPACES}
    keep = (1 << 42, 20 * MIB)  # another segment, so that the file is never without any
    trace, states = [], []
    for number, (stream, first, count) in enumerate(steps):
        chosen = set(range(first, min(first + count, N_PAGES)))
        mapped = pages[stream] & chosen
        # The longest prefix that is all mapped goes, all unmapped comes.
        goes = first in mapped
        span = []
        for page in sorted(chosen):
            if (page in mapped) != goes:
                break
            span.append(page)
        action = "segment_unmap" if goes else "segment_map"
        where = SPACES[stream] + span[0] * PAGE
        trace.append(entry(action, where, len(span) * PAGE, 10 * number, stream=stream, pool_id=(0, 0)))
        pages[stream] = pages[stream] - set(span) if goes else pages[stream] | set(span)
        states.append({key: set(value) for key, value in pages.items()})
    found = [
        segment(SPACES[stream] + first * PAGE, [], count * PAGE, stream=stream, is_expandable=True)
        for stream, mapped in pages.items()
        for first, count in runs(mapped)
    ]
    what = snapshot([trace], [*found, segment(keep[0], [], keep[1], stream=5)])
    profile = ms.load(write(tmp_path_factory.mktemp("g") / "s.pickle", what))
    at = which % len(trace)
    state = ms.fragmentation(profile).at(trace[at]["time_us"] * 1000)
    got = {(int(r.stream), int(r.addr), int(r.size_bytes)) for r in state.ranges.itertuples() if int(r.addr) != keep[0]}
    expected = {
        (stream, SPACES[stream] + first * PAGE, count * PAGE)
        for stream, mapped in states[at].items()
        for first, count in runs(mapped)
    }
    assert got == expected
    gaps = ms.free_gaps(profile, trace[at]["time_us"] * 1000)
    assert {(int(r.stream), r.addr, r.size_bytes) for r in gaps.itertuples() if r.addr != keep[0]} == expected
    assert state.frame["unsure_bytes"].tolist() == [0]
    before = ms.fragmentation(profile).at(int(profile.sources["start_ns"][0]))
    assert before.frame["reserved_bytes"].tolist() == [keep[1]]
