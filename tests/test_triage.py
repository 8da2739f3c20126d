"""A triage says what other ways of counting say, in few lines, and nothing about who made it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tiny import profile_of, record, row, write_collection

import memscope_nb as ms
from memscope_nb.analysis.at_peak import SiteBytes, SiteShares
from memscope_nb.cli import main
from memscope_nb.export.digest import Missing
from memscope_nb.export.summary import Triage
from memscope_nb.export.triage_text import MAX_LINES
from memscope_nb.units import format_bytes

MIB = 1 << 20


def cells(text: str, head: str) -> list[list[str]]:
    """Rows of the table that follows a head."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.fixture(scope="module")
def plain(demo_profile):
    return ms.triage(demo_profile, redact=False)


def test_numbers_are_those_of_other_ways(plain, demo_profile):
    text = plain.to_markdown()
    summary = demo_profile.summary().query("pool == 'PTA'")
    row = summary.loc[summary["peak_bytes"].idxmax()]
    assert f"recorded peak = {row['peak_bytes']:,} B" in text
    assert f"`rank {row['rank_id']} · {row['device']}`, the highest of 2" in text.replace("**", "")
    by_rank = summary.groupby("rank_id")["peak_bytes"].max()
    assert f"({format_bytes(int(by_rank.min()))} to {format_bytes(int(by_rank.max()))})" in text
    live = ms.live_at(demo_profile, int(row["peak_ns"]))
    live = live[(live["source"] == row["source"]) & (live["pool"] == "PTA")]
    sites = demo_profile.stacks["site"].reindex(live["stack_id"]).to_numpy()
    sizes = live["size_bytes"].groupby(np.where(pd.isna(sites), live["name"].astype(str), sites))
    expected = sizes.sum().nlargest(8)
    rows = cells(text, "bytes")
    assert [cells[0] for cells in rows[:8]] == [format_bytes(int(n)) for n in expected]
    assert [cells[2] for cells in rows[:8]] == [str(n) for n in sizes.size()[expected.index]]
    assert [re.search("`(.*)`", cells[3])[1] for cells in rows[:8]] == list(expected.index)
    assert rows[8][0] == format_bytes(int(live["size_bytes"].sum() - expected.sum()))
    assert rows[9] == [format_bytes(int(row["peak_bytes"] - live["size_bytes"].sum())), "", "", "older than the window"]
    for line in text.splitlines():
        if line.startswith("- sources"):
            assert "16 (16 ok)" in line
            assert f"2 ranks, {len(demo_profile.blocks):,} blocks" in line
    assert f"| whole process resident | {format_bytes(int(summary['resident_peak_bytes'].max()))} |" in text
    left = ms.collection_growth(demo_profile).frame.query("rank_id == 0 and pool == 'PTA'")["left_bytes"].sum()
    assert f"{format_bytes(int(left), signed=True)} while recording" in text
    blocks = demo_profile.select(rank=0, pool="PTA").blocks
    still_open = blocks[blocks["free_ns"].isna() & blocks["active_free_ns"].isna()]
    assert f"`PTA` {len(still_open)} blocks, {format_bytes(int(still_open['size_bytes'].sum()))}" in text


def test_sites_add_up_exactly(plain, demo_profile):
    parts = plain.to_dict()["timelines"][0]["pools"][0]["peak"]
    live = parts["live"]
    listed = sum(site["size_bytes"] for site in live["sites"]) + live["other_bytes"]
    assert listed == live["size_bytes"]
    total = live["size_bytes"] + parts["older_bytes"] + sum(size for _, size in parts["differences"])
    assert total == parts["peak_bytes"] == demo_profile.totals.query("component == 'PTA'")["allocated_bytes"].max()


def test_it_is_redacted_by_default_wherever_it_comes_from(demo, demo_profile, capsys):
    assert main(["triage", str(demo[0])]) == 0
    printed = capsys.readouterr().out
    assert main(["triage", str(demo[0]), "--json", "--hide", "metrics_buffer"]) == 0
    as_json = capsys.readouterr().out
    for text in (printed, as_json, str(ms.triage(demo_profile)), json.dumps(ms.triage(demo[0]).to_dict())):
        assert "rl_node-03" not in text
        assert str(demo[0].parent) not in text
        assert "/opt/" not in text
    assert "metrics_buffer" not in as_json
    assert "site-packages/vllm" in printed
    assert "rl_node-03" in json.dumps(ms.triage(demo_profile, redact=False).to_dict())
    assert len(json.loads(as_json)["timelines"]) == 2


def test_about_thirty_lines(plain):
    lines = plain.to_markdown().splitlines()
    assert 25 <= len(lines) <= MAX_LINES
    assert plain._repr_markdown_() == plain.to_markdown()


def test_the_fullest_triage_stays_within_its_lines(plain):
    one = plain.timelines[0]
    sites = tuple(SiteBytes(f"s{i}", "site", 1, 10) for i in range(10))
    pool = one.pools[0]
    parts = replace(
        pool.peak,
        live=SiteShares(12, 120, sites, 2, 2, 20),
        differences=(("a", 1), ("b", -2), ("c", 3)),
    )
    ledgers = (*one.ledgers, *[replace(one.ledgers[-1], scope="device")] * 3)
    many = replace(
        one,
        pools=(replace(pool, peak=parts),) * 6,
        ledgers=ledgers,
        missing=tuple(Missing(f"fact {i}", 1, "how") for i in range(9)),
    )
    bad = replace(plain.sources[0], status="failed", warnings=("x",) * 50)
    text = Triage((many,) * 64, (*plain.sources, bad) * 40).to_markdown()
    assert len(text.splitlines()) <= MAX_LINES
    assert "64 timelines" in text
    assert "and 7 more: `memscope-nb info`" in text
    assert "4 other sites" in text


def test_what_is_missing_is_named_with_the_setting(tmp_path):
    write_collection(tmp_path, operators=[row("aten::mm", 1024, 10, 20, 19, 3.0)], records=[record("PTA", 10, 3.0)])
    text = ms.triage(tmp_path).to_markdown()
    assert "missing: no call stacks" in text
    assert "with_stack=True" in text
    assert "missing: no samples of the process" in text
    assert "; and 1 more: `memscope-nb info`" in text


def test_differences_and_broken_sources_are_told(tmp_path):
    p = profile_of([(10, None, 5 * MIB), (20, None, 7 * MIB)], older=100 * MIB)
    totals = p.totals.assign(allocated_bytes=pd.array([105 * MIB, 912 * MIB], dtype="Int64"))
    sources = p.sources.assign(status="partial", warnings=[("half of it is gone",)])
    text = ms.triage(replace(p, totals=totals, sources=sources)).to_markdown()
    assert "| +800.0 MiB |  |  | **rises that no row explains** |" in text
    assert "1 look; 1 unexplained rises" in text
    assert "not whole: 1 of 1; the first is partial, rank 0: `half of it is gone`" in text


def test_growth_is_told_once_three_recordings_agree():
    parts = []
    for i in range(3):
        p = profile_of([(i * 100 + 10, None, 5 * MIB)], older=i * 5 * MIB)
        parts.append(replace(p, sources=p.sources.assign(collection=np.int32(i))))
    text = ms.triage(ms.MemoryProfile.concat(parts)).to_markdown()
    assert "0 B before the first, 15.0 MiB after the last: +15.0 MiB while recording, 0 B in between" in text
    assert "`role` left 5.00 MiB or more in each of 3" in text
    two = ms.triage(ms.MemoryProfile.concat(parts[:2])).to_markdown()
    assert "undecided whether it grows" in two
    assert "a single recording tells nothing" in ms.triage(parts[0]).to_markdown()


def test_bad_input_is_one_line_with_the_true_path(tmp_path, capsys):
    assert main(["triage", str(tmp_path / "nowhere")]) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    bad = write_collection(tmp_path, operators=None, records=None)
    assert main(["triage", str(tmp_path)]) == 2
    assert str(bad) in capsys.readouterr().err


def test_a_broken_rank_stops_nothing(tmp_path, capsys):
    write_collection(tmp_path, rank=0, name="a_ascend_pt", operators=[row("m", 1024, 10, 20, 19, 3.0)], records=None)
    write_collection(tmp_path, rank=1, name="b_ascend_pt", operators=None, records=None)
    assert main(["triage", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "2 (1 partial, 1 failed)" in text
    assert "peak by the totals of the rows = 3,145,728 B" in text
    assert main(["triage", str(tmp_path), "--strict"]) == 2
