"""What reaches the browser: the columns decode to the same blocks and give the recorded curves back exactly."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.analysis.timeline import timelines
from memscope_nb.demo import write_demo_dump
from memscope_nb.model import MemoryProfile, block_ends, to_int64
from memscope_nb.view.codec import decode_payload, encode_payload
from memscope_nb.view.level_steps import idle_stretches
from memscope_nb.view.payload import TimelineView

T = 1_779_785_515_596_661_420


@given(
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 2**53 - 1), max_size=30)),
    st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
)
def test_codec_round_trip(columns, extra):
    header = {"user": extra}
    arrays = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    rising = {name: np.sort(values) for name, values in arrays.items()}
    for packed, delta in ((arrays, ()), (rising, tuple(rising))):
        got_header, got = decode_payload(encode_payload(header, packed, delta=delta))
        assert got_header == header
        assert {name: values.tolist() for name, values in got.items()} == {k: v.tolist() for k, v in packed.items()}


@pytest.mark.parametrize(("values", "delta"), [([-1], ()), ([2**53], ()), ([3, 2], ("x",))])
def test_codec_refuses_what_a_browser_could_not_hold(values, delta):
    with pytest.raises(ValueError, match="payload column 'x'"):
        encode_payload({}, {"x": np.array(values)}, delta=delta)


def decoded(profile, *, n=100_000, most=20):
    """Headers and columns of the only timeline."""
    (line,) = timelines(profile)
    view = TimelineView(profile, line)
    windows = view.windows(bars_per_segment=n, max_segments=most)
    hrefs = [f"p{i}.html" for i in range(len(windows))]
    return [decode_payload(blob) for blob in view.segments(windows, hrefs)]


def held(columns, key, t):
    """Level of a step column at an instant; None where there is no data."""
    at = np.searchsorted(columns[f"{key.split('_')[0]}_t_{key.split('_')[1]}"], t, side="right") - 1
    value = int(columns[f"{key.split('_')[0]}_v_{key.split('_')[1]}"][at]) if at >= 0 else 0
    return None if value == 0 else value - 1


def live(columns, series, t, *, late=False):
    ends = columns["start"] + columns["life"]
    if late:
        ends = ends.copy()
        ends[columns["late_block"]] += columns["late"]
    alive = (columns["series"] == series) & (columns["start"] <= t) & (ends > t)
    return int(columns["size"][alive].sum())


def test_columns_are_the_blocks(demo_profile):
    rank0 = demo_profile.select(rank=0)
    ((header, columns),) = decoded(rank0)
    blocks = rank0.blocks.set_index("block_id").loc[columns["id"]]
    t0 = int(header["t0_ns"])
    assert len(columns["id"]) == len(rank0.blocks)
    assert (np.diff(columns["start"]) >= 0).all()
    assert (blocks["alloc_ns"].to_numpy(np.int64) - t0 == columns["start"]).all()
    assert (blocks["size_bytes"].to_numpy() == columns["size"]).all()
    assert [header["names"][i] for i in columns["name"]] == blocks["name"].astype(str).tolist()
    closed = (
        blocks["pool"].eq("PTA").to_numpy() & (blocks["free_ns"].notna() | blocks["active_free_ns"].notna()).to_numpy()
    )
    ends = block_ends(replace(rank0, blocks=blocks))
    assert (ends[closed] - t0 == (columns["start"] + columns["life"])[closed]).all()
    for stack, own in zip(columns["stack"][:200], blocks["stack_id"], strict=False):
        frames = tuple(header["frames"][f] for f in header["stacks"][stack - 1]) if stack else ()
        assert frames == rank0.frames(own)
    assert {header["classes"][c]["key"] for c in columns["class"]} == {"open", "step", "fwdbwd", "transient"}
    sites = {header["frames"][header["stacks"][k][header["sites"][k]]] for k in range(len(header["stacks"]))}
    assert any("append_logits" in site for site in sites)


def test_curves_recomputed_from_the_columns_are_the_recorded_ones(demo_profile):
    rank0 = demo_profile.select(rank=0)
    ((header, columns),) = decoded(rank0)
    t0 = int(header["t0_ns"])
    checked = 0
    for k, series in enumerate(header["series"]):
        samples = rank0.totals[(rank0.totals["scope"] == "pool") & (rank0.totals["component"] == series["pool"])]
        for row in samples.iloc[:: max(len(samples) // 1000, 1)].itertuples():
            t = row.t_ns - t0
            assert held(columns, f"older_{k}", t) + live(columns, k, t) == row.allocated_bytes
            assert held(columns, f"reserved_{k}", t) == row.reserved_bytes
            if series["has_active"]:
                assert held(columns, f"active_{k}", t) + live(columns, k, t, late=True) == row.active_bytes
            checked += 1
    assert checked > 1000
    summary = rank0.summary()
    assert header["series"][0]["peak"]["allocated"][1] == summary["peak_bytes"].max()
    assert header["resident"]["peak"][1] == summary["resident_peak_bytes"].max()


def test_between_recordings_there_is_no_data(demo_profile):
    ((header, columns),) = decoded(demo_profile.select(rank=0))
    for before, after in zip(header["sources"][:-1], header["sources"][1:], strict=True):
        middle = (before["end"] + after["start"]) // 2
        assert held(columns, "older_0", middle) is None
        assert held(columns, "reserved_0", middle) is None
        assert live(columns, 0, middle) == 0  # open blocks end with their source


def test_segments_cover_everything_and_repeat_only_what_is_alive_at_an_edge(demo_profile):
    rank0 = demo_profile.select(rank=0)
    ((_, whole),) = decoded(rank0)
    parts = decoded(rank0, n=200)
    assert len(parts) == 9  # 1690 blocks
    windows = [header["window"] for header, _ in parts]
    assert [w[0] for w in windows[1:]] == [w[1] for w in windows[:-1]]
    assert (windows[0][0], windows[-1][1]) == tuple(parts[0][0]["span"])
    by_id = dict(zip(whole["id"], zip(whole["start"], whole["life"], strict=True), strict=True))
    seen = []
    for (start, end), (header, columns) in zip(windows, parts, strict=True):
        assert [s["href"] for s in header["segments"]] == [f"p{i}.html" for i in range(9)]
        assert ((columns["start"] < end) & (columns["start"] + columns["life"] > start)).all()
        for block, s, n in zip(columns["id"], columns["start"], columns["life"], strict=True):
            assert by_id[block] == (s, n)
        seen += columns["id"].tolist()
        for t in (start, (start + end) // 2, end - 1):
            assert live(columns, 0, t) == live(whole, 0, t)
            assert held(columns, "older_0", t) == held(whole, "older_0", t)
    assert set(seen) == set(whole["id"])


def test_never_more_segments_than_asked_for(demo_profile):
    assert len(decoded(demo_profile.select(rank=0), n=1, most=7)) == 7


def test_held_blocks_stay_active_longer():
    p = profile_of([(T, T + 10, 512), (T + 1, T + 20, 1024)], late=[T + 30, T + 20])
    ((header, columns),) = decoded(p)
    assert (columns["late_block"].tolist(), columns["late"].tolist()) == ([0], [20])
    assert header["series"][0]["has_active"]
    assert live(columns, 0, 25, late=True) == 512
    assert live(columns, 0, 25) == 0


def test_rows_that_contradict_the_totals_give_a_negative_base_not_a_clamped_curve():
    p = profile_of([(T, T + 10, 4096), (T + 2, T + 20, 512)])
    totals = p.totals.assign(allocated_bytes=p.totals["allocated_bytes"] // 2)
    ((header, columns),) = decoded(replace(p, totals=totals))
    base = header["series"][0]["older_base"]
    assert base == -2304  # 4096 + 512 live, half of it recorded
    for t, recorded in zip(totals["t_ns"] - T, totals["allocated_bytes"], strict=True):
        assert held(columns, "older_0", t) + base + live(columns, 0, t) == recorded
    assert any("UNEXPLAINED" in note for note in header["notes"])


def test_an_empty_series_of_blocks_still_has_its_curve():
    p = profile_of([(T, T + 10, 512), (T + 5, None, 512)])
    ((header, columns),) = decoded(replace(p, blocks=p.blocks.iloc[:0]))
    assert len(columns["id"]) == 0
    assert held(columns, "older_0", 5) == 1024
    assert header["span"] == [0, 11]


def test_real_epochs_and_open_ends(demo_profile):
    ((header, columns),) = decoded(demo_profile.select(rank=1))
    line = timelines(demo_profile.select(rank=1))[0]
    assert int(header["t0_ns"]) == line.span[0]
    opened = columns["class"] == 0
    ends = {s["end"] for s in header["sources"]}
    assert set((columns["start"] + columns["life"])[opened & (columns["series"] == 0)]) <= ends


def test_bytes_a_block():
    rng = np.random.default_rng(0)
    n = 100_000
    start = T + np.sort(rng.integers(0, 6_000_000_000, n)) * 10
    life = (np.exp(rng.uniform(np.log(50), np.log(2e8), n)).astype(np.int64)) * 10
    rows = [(int(a), int(a + b), int(s)) for a, b, s in zip(start, life, 512 * rng.integers(1, 4096, n), strict=True)]
    p = profile_of(rows, names=[f"aten::op{i}" for i in rng.integers(0, 66, n)])
    (line,) = timelines(p)
    (blob,) = TimelineView(p, line).segments([(0, line.span[1] + 1 - T)], ["a.html"])
    assert len(blob) * 4 / 3 <= 15 * n + 80_000
    assert len(decode_payload(blob)[1]["id"]) == n


def test_two_series_of_one_pool_stay_apart():
    a = profile_of([(T, T + 100, 512)])
    overlapping = MemoryProfile.concat([a, a])
    ((header, columns),) = decoded(overlapping)
    assert len(header["series"]) == 2
    assert live(columns, 0, 50) == live(columns, 1, 50) == 512
    assert to_int64(ms.curve(overlapping)["allocated_bytes"]).max() == 512


def test_layers_on_the_device_add_up(demo_profile):
    rank0 = demo_profile.select(rank=0)
    ((header, columns),) = decoded(rank0)
    frame = ms.layers(rank0).frame
    labels = [layer["label"] for layer in header["layers"]]
    assert labels == ["allocated by the pools", "reserved, free", "HCCL", "SLOG", "RUNTIME", "other"]
    checked = 0
    for k, source in enumerate(header["sources"]):
        rows = frame[
            (frame["source"] == k) & (frame["t_ns"] - int(header["t0_ns"])).between(source["start"], source["end"])
        ]
        for row in rows.itertuples():
            at = np.searchsorted(columns["layer_t"], row.t_ns - int(header["t0_ns"]), side="right") - 1
            levels = [int(columns[f"layer_v_{i}"][at]) - 1 for i in range(len(labels))]
            assert levels[0] + levels[1] == row.reserved_bytes
            assert sum(levels) == max(row.resident_bytes, row.resident_bytes - row.other_bytes)
            checked += 1
    assert checked > 100
    ends = np.searchsorted(columns["layer_t"], [s["end"] for s in header["sources"]], side="right") - 1
    assert (columns["layer_v_0"][ends] == 0).all()  # no data between recordings
    assert header["capacity_bytes"] is None


def test_no_layers_without_process_samples():
    ((header, columns),) = decoded(profile_of([(T, T + 10, 512)]))
    assert header["layers"] == []
    assert len(columns["layer_t"]) == 0


def test_owners_labels_and_marks_of_a_dump(tmp_path):
    write_demo_dump(tmp_path / "dump", leak=True)
    p = ms.load(tmp_path / "dump").select(pool="PTA")
    labels = pd.Categorical(np.resize(["", "early_allocation", None], len(p.blocks)))
    p = replace(p, blocks=p.blocks.assign(inefficient_type=labels))
    ((header, columns),) = decoded(p)
    blocks = p.blocks.set_index("block_id").loc[columns["id"]]
    for key, texts, column in (("owner", "owners", "owner"), ("label", "labels", "inefficient_type")):
        shown = [header[texts][k - 1] if k else "" for k in columns[key]]
        assert shown == blocks[column].astype("string").fillna("").tolist()
        assert set(shown) - {""}
    assert header["resident"]["label"] == "process on device, sampled at events of the driver"
    marks = p.marks[~p.marks["kind"].isin(["range", "step"])]
    t0 = int(header["t0_ns"])
    assert {mark["kind"] for mark in header["marks"]} == {"mark", "snapshot", "system"}
    got = [(mark["name"], mark["start"] + t0) for mark in header["marks"]]
    assert sorted(got) == sorted(zip(marks["name"].astype(str), to_int64(marks["start_ns"]).tolist(), strict=True))


def test_no_owners_without_a_source_of_them(demo_profile):
    ((header, columns),) = decoded(demo_profile.select(rank=0))
    assert (header["owners"], header["labels"]) == ([], [])
    assert not {"owner", "label"} & set(columns)
    assert header["resident"]["label"] == "process on device, sampled every 20.016 ms"


@given(st.lists(st.integers(0, 10_000), max_size=60))
def test_idle_stretches_hold_no_change(times: list[int]) -> None:
    span = (0, 10_000)
    idle = idle_stretches([np.array(times, np.int64)], span)
    for start, end in idle:
        assert end - start > 200
        assert not any(start < t < end for t in times)
    covered = [(start, end) for start, end in idle]
    edges = sorted({*times, *span})
    longer = [(a, b) for a, b in itertools.pairwise(edges) if b - a > 200]
    assert covered == longer
