"""The index as a person reads it, and as somebody who checks its sums: without a script, in few bytes."""

from __future__ import annotations

import gc
import html
import itertools
import json
import pickle
import re
import weakref
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import profile_of, record, row, write_collection

import memscope_nb as ms
from memscope_nb.analysis.timeline import timelines, tracks
from memscope_nb.export.digest import digest_timeline
from memscope_nb.export.pages import OutputFolder, PageOptions, PageWriter
from memscope_nb.export.report import write_report
from memscope_nb.export.sparkline import COLUMNS, HEIGHT, Spark, spark_of, spark_svg
from memscope_nb.units import format_bytes

MAX_BYTES_A_TIMELINE = 12 << 10
MAX_BYTES_OF_THE_REST = 8 << 10


class Page(HTMLParser):
    """Tables of a page as lists of cells (texts and exact bytes), its tags, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables, self.tags, self.links, self.ids, self.text, self._in_cell = [], [], [], [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.links += [given["href"]] if "href" in given else []
        self.ids += [given["id"]] if "id" in given else []
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True
        elif tag == "data" and self._in_cell:
            self.tables[-1][-1][-1] += f"<{int(given['value'])}>"

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._in_cell = False
        if tag in ("p", "li"):
            self.text += "\n"

    def handle_data(self, data):
        self.text += data
        if self._in_cell:
            self.tables[-1][-1][-1] += data

    def named(self, head: str) -> list[list[list[str]]]:
        """Rows of the tables whose first head is this."""
        return [table[1:] for table in self.tables if table[0][0] == head]


def exact(cell: str) -> int:
    return int(re.search(r"<(-?\d+)>", cell)[1])


@pytest.fixture(scope="module")
def demo_index(demo_profile, tmp_path_factory):
    path = ms.export_html(demo_profile, tmp_path_factory.mktemp("index") / "out")
    return path, Page(path.read_text("utf-8"))


def test_there_is_no_script_and_no_request(demo_index):
    path, page = demo_index
    text = path.read_text("utf-8")
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(|\son\w+=", text)
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (path.parent / link).is_file()


def test_sites_at_the_peak_add_up_to_the_recorded_total(demo_index, demo_profile):
    tables = demo_index[1].named("bytes")
    peaks = demo_profile.summary().query("pool == 'PTA'").groupby("rank_id")["peak_bytes"].max().tolist()
    assert len(tables) == len(peaks) == 2
    for rows, peak in zip(tables, peaks, strict=True):
        *parts, total = rows
        assert sum(exact(cells[0]) for cells in parts) == exact(total[0]) == peak
        assert f"{peak:,} B" in total[3]
        assert len(parts) == 10 + 2  # sites, the rest, older
        named = [int(cells[2].replace(",", "")) for cells in parts if cells[2]]
        assert sum(named) == int(total[2].replace(",", ""))
        shares = [float(cells[1].rstrip("%")) for cells in parts if cells[1]]
        assert sum(shares) == pytest.approx(100, abs=0.6)


def test_top_sites_are_those_of_the_live_blocks(demo_index, demo_profile):
    summary = demo_profile.summary().query("pool == 'PTA' and rank_id == 0")
    at = int(summary.loc[summary["peak_bytes"].idxmax(), "peak_ns"])
    live = ms.live_at(demo_profile, at)
    live = live[(live["pool"] == "PTA") & (live["device"] == "NPU:0")]
    sites = demo_profile.stacks["site"].reindex(live["stack_id"]).to_numpy()
    label = np.where(pd.isna(sites), live["name"].astype(str), sites)
    expected = live["size_bytes"].groupby(label).sum().nlargest(3)
    rows = demo_index[1].named("bytes")[0]
    assert [exact(cells[0]) for cells in rows[:3]] == expected.tolist()
    for cells, site in zip(rows, expected.index, strict=False):
        assert cells[3].startswith(site)


def test_ledgers_say_when_in_both_ways(demo_index, demo_profile):
    rows = demo_index[1].named("ledger")[0]
    assert [cells[0] for cells in rows] == [
        "PTA allocated", "PTA active", "PTA reserved", "GE allocated", "GE reserved", "whole process resident",
    ]  # fmt: skip
    first = demo_profile.select(rank=0).sources["start_ns"].min()
    summary = demo_profile.select(rank=0).summary().query("pool == 'PTA'")
    row = summary.loc[summary["peak_bytes"].idxmax()]
    assert exact(rows[0][1]) == row["peak_bytes"]
    assert rows[0][2] == f"+{(row['peak_ns'] - first) / 1e9:,.3f} s"
    assert rows[0][3] == str(pd.Timestamp(row["peak_ns"]))[:23]
    assert rows[0][4] == f"{row['role']} #{row['collection']}"
    resident = demo_profile.totals.query("scope == 'process' and device == 'NPU:0'")["reserved_bytes"].max()
    assert exact(rows[5][1]) == resident
    assert (
        f"{format_bytes(int(summary['reserved_peak_bytes'].max()) - resident)} more than the process"
        in demo_index[1].text
    )


def test_open_blocks_growth_inputs_versions_and_options_are_told(demo_index, demo_profile):
    page = demo_index[1]
    still_open = demo_profile.select(rank=1, pool="PTA").blocks.query("free_ns.isna() and active_free_ns.isna()")
    cells = page.named("pool")[1][0]
    assert cells[:2] == ["PTA", str(len(still_open))]
    assert exact(cells[2]) == still_open["size_bytes"].sum()
    growth = ms.collection_growth(demo_profile).frame.query("rank_id == 1 and pool == 'PTA'")
    change = re.findall(r"PTA: (\S+ \S+) before the first recording, (\S+ \S+) after", page.text)[1]
    levels = [int(growth["baseline_bytes"].iloc[0]), int(growth["end_bytes"].iloc[-1])]
    assert list(change) == [format_bytes(level) for level in levels]
    assert "fewer than three recordings" in page.text
    inputs = page.named("status")[-1]
    assert len(inputs) == len(demo_profile.sources)
    assert {cells[3] for cells in inputs} == {"ascend_text"}
    assert all(cells[4].endswith("iB") for cells in inputs)
    common = re.search(r"All below (\S+)", page.text)[1]
    assert [common + cells[6] for cells in inputs] == demo_profile.sources["path"].tolist()
    for expected in ("memscope-nb 0", "pandas", "torch_npu_version 2.7.1.post2 (16)", "cann_version 8.3.RC1 (16)"):
        assert expected in page.text
    assert "bars_per_segment=100000" in page.text


def test_a_difference_is_shown_by_its_name(tmp_path):
    p = profile_of([(10, None, 5 << 20), (20, None, 7 << 20)], older=100 << 20)
    totals = p.totals.assign(allocated_bytes=pd.array([105 << 20, 912 << 20], dtype="Int64"))
    page = Page(ms.export_html(replace(p, totals=totals), tmp_path / "out").read_text("utf-8"))
    (rows,) = page.named("bytes")
    assert [cells[3] for cells in rows][1:] == [
        "older than the window", "rises that no row explains", f"recorded peak = {912 << 20:,} B",
    ]  # fmt: skip
    assert exact(rows[2][0]) == 800 << 20
    assert "look: 1 of 1" in page.text


def test_without_totals_the_sum_of_the_rows_is_labelled(tmp_path):
    p = profile_of([(10, 30, 5 << 20), (20, None, 7 << 20)], record_totals=False)
    page = Page(ms.export_html(p, tmp_path / "out").read_text("utf-8"))
    (rows,) = page.named("bytes")
    assert rows[1][0] == "unknown"
    assert rows[-1][3] == f"peak of the sum of the rows = {12 << 20:,} B"
    assert page.named("ledger")[0][0][5] == "sum of the rows only: no totals were recorded"
    assert "undecided: 1 of 1" in page.text


def test_segments_are_linked_with_their_times(demo_profile, tmp_path):
    path = ms.export_html(demo_profile.select(rank=0), tmp_path / "out", bars_per_segment=500)
    page = Page(path.read_text("utf-8"))
    spans = re.findall(r"(\d) (\+[\d.,]+ m?s) to (\+[\d.,]+ m?s)", page.text)
    assert [number for number, _, _ in spans] == list("1234")
    assert all(before[2] == after[1] for before, after in itertools.pairwise(spans))
    assert spans[0][1] == "+0.000 ms"
    assert sum(link.startswith("memory_timeline_") for link in page.links) == 5  # the first one twice


def test_a_recording_without_times_counts_entries(tmp_path):
    p = profile_of([(1000, 9000, 512), (5000, None, 1024)])
    p = replace(p, sources=p.sources.assign(facts=[{"time_axis": "order"}]))
    page = Page(ms.export_html(p, tmp_path / "out").read_text("utf-8"))
    (ledgers,) = page.named("ledger")
    assert ledgers[0][2:4] == ["entry 4", ""]
    assert "UTC." not in page.text
    assert "entry 4" in ms.triage(p).to_markdown()
    assert "a recording without times" in ms.triage(p).to_markdown()


def test_runs_and_hosts_are_told_apart_only_where_there_are_several(demo_profile, tmp_path):
    one = demo_profile.select(rank=0)
    other = replace(one, sources=one.sources.assign(run="second", host="elsewhere"))
    both = ms.MemoryProfile.concat([one, other])
    path = ms.export_html(both, tmp_path / "out")
    rows = Page(path.read_text("utf-8")).named("rank · device")[0]
    assert [cells[0] for cells in rows] == [
        "rank 0 · NPU:0runrl_node-03.cluster.local",
        "rank 0 · NPU:0secondelsewhere",
    ]
    assert Page(path.read_text("utf-8")).text.count("Host: ") == 0
    assert (path.parent / "second" / "rank0" / "memory_timeline_00.html").is_file()


def many_ranks(profile, n):
    one = profile.select(rank=0)
    ranks = []
    for rank in range(n):
        sources = one.sources.assign(rank_id=pd.array([rank] * len(one.sources), dtype="Int64"))
        ranks.append(replace(one, sources=sources))
    return ranks


def test_64_ranks_are_small_and_each_has_its_row(demo_profile, tmp_path):
    writer = PageWriter(OutputFolder(tmp_path / "out"), PageOptions())
    (one, *_) = many_ranks(demo_profile, 1)
    writer.add(one)
    digest, lines = writer.timelines[0], writer.sources
    for rank in range(1, 64):
        writer.timelines.append(replace(digest, label=f"rank {rank} · NPU:0"))
        writer.sources += [replace(line, rank=str(rank)) for line in lines[:8]]
    text = writer.finish().read_text("utf-8")
    assert len(text.encode()) <= 64 * MAX_BYTES_A_TIMELINE + MAX_BYTES_OF_THE_REST
    page = Page(text)
    (ranks,) = page.named("rank · device")
    assert len(ranks) == 64
    assert page.tags.count("svg") == 64
    assert text.count("<details id=t") == 64
    assert "<details id=t0 open" not in text  # folded: the table comes first
    assert {link for link in page.links if link.startswith("#")} == {f"#t{i}" for i in range(64)}


def test_only_summaries_are_kept(demo_profile, tmp_path):
    writer = PageWriter(OutputFolder(tmp_path / "out"), PageOptions(redact=True))
    kept = []
    for profile in many_ranks(demo_profile, 3):
        kept += [weakref.ref(profile.blocks), weakref.ref(profile.sources)]
        writer.add(profile)
    del profile
    gc.collect()
    assert [ref() is None for ref in kept[1::2]] == [True] * 3
    sizes = [len(pickle.dumps(one)) for one in writer.timelines]
    assert max(sizes) < 12_000
    assert len(pickle.dumps(writer.sources)) < 1500 * len(writer.sources)


def test_a_digest_is_small_whatever_the_names(tmp_path):
    long = "x" * 100_000
    p = profile_of([(i + 1, None, 512 + i) for i in range(300)], names=[f"{long}{i}" for i in range(300)])
    sources = p.sources.assign(role=long, host=long, run=long, path="/" + long, warnings=[tuple([long] * 500)])
    p = replace(p, sources=sources)
    assert len(pickle.dumps(digest_timeline(p, timelines(p)[0]))) < 15_000
    page = ms.export_html(p, tmp_path / "out").read_text("utf-8")
    assert len(page) < 30_000
    assert "488 more remarks" in page


def test_report_keeps_no_rank_while_it_writes_the_next(tmp_path, monkeypatch):
    for rank in range(3):
        write_collection(tmp_path / "in", rank=rank, name=f"h_{rank}_20260101000000000_ascend_pt",
                         operators=[row("a", 1, 10, 20, 19, 1.0)], records=[record("PTA", 10, 1.0)])  # fmt: skip
    alive, seen = [], []
    add = PageWriter.add

    def watched(self, profile, **options):
        gc.collect()
        seen.append(sum(ref() is not None for ref in alive))
        alive.append(weakref.ref(profile))
        add(self, profile, **options)

    monkeypatch.setattr(PageWriter, "add", watched)
    write_report(tmp_path / "in", tmp_path / "out")
    assert seen == [0, 0, 0]


# -- sparklines ---------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**6) | st.none(), st.integers(1, 2**40)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 60),
)
def test_thinning_keeps_the_highest_and_the_lowest_level(rows, columns):
    p = profile_of([(a, None if b is None else a + b, size) for a, b, size in rows], older=7)
    line = timelines(p)[0]
    spark = spark_of(tracks(line)[0], None, columns=columns)
    levels = p.totals["allocated_bytes"]
    assert max(spark.high) == levels.max()
    assert min(spark.low) == levels.min()
    assert all(low <= high for low, high in zip(spark.low, spark.high, strict=True))
    assert spark.width <= columns
    assert list(spark.x) == sorted(set(spark.x))


def test_without_totals_the_curve_is_the_sum_of_the_rows():
    p = profile_of([(10, 30, 5), (20, 25, 7), (40, None, 1)], record_totals=False)
    spark = spark_of(tracks(timelines(p)[0])[0], 20)
    assert (max(spark.high), min(spark.low)) == (12, 0)
    assert spark.high[spark.peak_x] == 12


def test_recordings_lie_side_by_side_and_pauses_are_left_out(demo_profile):
    for line in timelines(demo_profile):
        track = tracks(line)[0]
        series = [one.source for one in track]
        summary = demo_profile.summary().query("pool == 'PTA'").set_index("source")["peak_bytes"]
        spark = spark_of(track, int(demo_profile.summary().set_index("source")["peak_ns"].iloc[0]))
        breaks = [i for i in range(1, len(spark.x)) if spark.x[i] != spark.x[i - 1] + 1]
        parts = np.split(np.array(spark.high), breaks)
        assert [part.max() for part in parts] == summary[series].tolist()
        assert spark.width <= COLUMNS + len(track)


def test_many_recordings_share_columns():
    parts = []
    for i in range(400):
        p = profile_of([(i * 1000 + 1, i * 1000 + 9, 100 + i)], older=5)
        parts.append(replace(p, sources=p.sources.assign(collection=np.int32(i))))
    line = timelines(ms.MemoryProfile.concat(parts))[0]
    spark = spark_of(tracks(line)[0], 399_001)
    assert spark.width <= COLUMNS + 2
    assert (max(spark.high), min(spark.low)) == (504, 5)
    assert spark.peak_x == spark.x[-1]


def test_a_drawn_curve_reaches_as_high_as_its_bytes():
    svg = spark_svg(Spark((0, 1, 2, 5), (0, 50, 50, 100), (100, 75, 75, 100), 0), 100, "rank 0")
    hi, lo = re.findall(r' d="([^"]*)"', svg)
    assert hi == f"M0 {HEIGHT}V0h1V7.5h2V{HEIGHT}M5 {HEIGHT}V0h1V{HEIGHT}"
    assert lo == f"M0 {HEIGHT}V30h1V15h2V{HEIGHT}M5 {HEIGHT}V0h1V{HEIGHT}"
    assert '<circle cx="0.5" cy="0"' in svg
    half = spark_svg(Spark((0,), (50,), (50,), 0), 100, "x")
    assert f"V{HEIGHT / 2:g}h1" in half


def test_all_curves_have_one_scale(demo_index, demo_profile):
    text = demo_index[0].read_text("utf-8")
    peak = int(demo_profile.summary()["peak_bytes"].max())
    assert f"allocated, 0 to {format_bytes(peak)}" in html.unescape(text)
    tops = [min(float(v) for v in re.findall(r"V([\d.]+)", d)) for d in re.findall(r'class="hi" d="([^"]*)"', text)]
    ranks = demo_profile.summary().query("pool == 'PTA'").groupby("rank_id")["peak_bytes"].max()
    expected = [round(HEIGHT * (1 - value / peak), 1) for value in ranks]
    assert tops == expected
    assert tops[0] == 0 < tops[1]


def test_index_and_manifest_are_the_only_words_of_the_folder(demo_index):
    manifest = json.loads((demo_index[0].parent / "memscope-export.json").read_text("utf-8"))
    assert "index.html" in manifest["files"]
