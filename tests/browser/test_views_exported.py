"""Views of pages that an export wrote: their numbers are those of the profile."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from browser.pages import Opener
from browser.test_views import open_view

import memscope_nb as ms
from memscope_nb.model import MemoryProfile, block_ends, block_starts

pytestmark = pytest.mark.browser


def test_views_agree_with_the_profile(demo_profile: MemoryProfile, tmp_path: Path, opener: Opener) -> None:
    profile = demo_profile.select(rank=0)
    page = next(ms.export_html(profile, tmp_path / "out").parent.rglob("memory_timeline_00.html"))
    shown = opener(page)
    peak_bytes, peak_t = shown.js("(p => [p[1], p[0]])(memscope.series.info.peak.allocated)")
    assert peak_bytes == profile.summary()["peak_bytes"].max()
    for key in ("map", "stacked"):
        open_view(shown, key)
        total, wrong = shown.js("key => (p => [Array.from(p.total), p.wrong])(memscope.views.kept[key].plan)", key)
        assert (np.nanmax(np.array(total, dtype=float)), wrong) == (peak_bytes, 0)
    for key in ("operator", "site"):
        shown.page.locator(".ms-view-bar select").select_option(key)
        shown.settle()
        assert shown.js("memscope.views.kept.stacked.plan.wrong") == 0
    open_view(shown, "alive")
    assert shown.js("memscope.views.kept.alive.tree.root.bytes") == peak_bytes
    t0 = int(shown.js("memscope.timeline.header.t0_ns"))
    alive = ms.live_at(profile, t0 + peak_t)
    alive = alive[alive["pool"] == shown.js("memscope.series.info.pool")]
    assert shown.js("memscope.views.kept.alive.tree.alive.blocks") == len(alive)
    assert shown.js("memscope.views.kept.alive.tree.alive.bytes") == alive["size_bytes"].sum()


def test_csv_of_an_export_is_the_table_of_blocks(demo_profile: MemoryProfile, tmp_path: Path, opener: Opener) -> None:
    profile = demo_profile.select(rank=0)
    shown = opener(next(ms.export_html(profile, tmp_path / "out").parent.rglob("memory_timeline_00.html")))
    open_view(shown, "table")
    with shown.page.expect_download() as found:
        shown.page.get_by_role("button", name="as CSV").click()
    found.value.save_as(tmp_path / "saved.csv")
    rows = list(csv.DictReader((tmp_path / "saved.csv").read_text("utf-8").splitlines()))
    blocks = profile.blocks.assign(start=block_starts(profile), end=block_ends(profile)).set_index("block_id")
    sites = profile.stacks["site"]
    assert len(rows) > 1000
    for row in rows:
        block = blocks.loc[int(row["block_id"])]
        assert int(row["start_ns"]) == block["start"]
        assert (row["operator"], int(row["size_bytes"])) == (block["name"], block["size_bytes"])
        assert row["end_ns"] in ("", str(block["end"]))
        assert int(row["duration_ns"]) == block["end"] - block["start"]
        assert row["site"] == ("" if block["stack_id"] < 0 else (sites[block["stack_id"]] or ""))
