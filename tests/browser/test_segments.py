"""The segment map in a page: addresses over time, linked with the range; free gaps and their neighbours."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from browser.pages import Opener, Shown
from browser.pixels import near
from test_pytorch_snapshot import MIB, T0, block, entry, free, load, segment, snapshot
from torch_splits import Splitter

import memscope_nb as ms
from memscope_nb.view import theme

pytestmark = pytest.mark.browser

HIGH = (1 << 64) - 512 * MIB
SITE = {"filename": "/app/<b>model</b>.py", "name": "keep_cache", "line": 77}


def story(tmp_path: Path, name: str = "s.pickle") -> ms.MemoryProfile:
    """Two segments far apart: 24 held, 8 free, 2 pin, 30 free (MiB); 64 MiB of another stream come and go."""
    trace = [
        entry("segment_alloc", HIGH, 64 * MIB, 0),
        entry("alloc", HIGH, 24 * MIB, 10_000, frames=[SITE]),
        entry("alloc", HIGH + 24 * MIB, 8 * MIB, 12_000),
        entry(
            "alloc", HIGH + 32 * MIB, 2 * MIB, 14_000, frames=[{"filename": "/app/pin.py", "name": "pin", "line": 5}]
        ),
        *free(HIGH + 24 * MIB, 8 * MIB, 40_000, 60_000),
        entry("segment_alloc", 1 << 40, 64 * MIB, 70_000, stream=9),
        entry("segment_free", 1 << 40, 64 * MIB, 90_000, stream=9),
        entry("snapshot", 0, 26 * MIB, 100_000),
    ]
    held = [block(HIGH, 24 * MIB, frames=[SITE]), block(HIGH + 32 * MIB, 2 * MIB)]
    return load(tmp_path, snapshot([trace], [segment(HIGH, held, 64 * MIB)]), name=name)


def page(opener: Opener, profile: ms.MemoryProfile, out: Path) -> Shown:
    index = ms.export_html(profile, out)
    found = sorted(index.parent.rglob("memory_timeline_00.html"))
    return opener(found[0])


def open_map(shown: Shown) -> None:
    shown.page.locator("[data-view=segments]").click()
    shown.js("memscope.setTime('true')")
    shown.settle()
    shown.settle()


def place(shown: Shown, t_us: float, mib: float) -> tuple[float, float]:
    """Place in the window of an instant (µs from the first record) and a place on the address axis."""
    x, top = shown.at("stack", t_us * 1000 + 1, 0)
    low, high, height = shown.js(
        "(k => [k.low, k.high, memscope.figures.frame('stack').height])(memscope.views.kept.segments)"
    )
    return x, top + (high - mib * MIB) / (high - low) * height


def share(shown: Shown, colour: str, t: tuple[float, float], mib: tuple[float, float]) -> float:
    """Share of the pixels of a rectangle that have a colour; a margin is left out."""
    image = shown.image("stack")
    x0, x1 = (place(shown, at, 0)[0] - shown.at("stack", shown.state()["x0"], 0)[0] for at in t)
    top = shown.at("stack", 0, 0)[1]
    y1, y0 = (place(shown, 0, at)[1] - top for at in mib)
    part = image[round(y0) + 3 : round(y1) - 3, round(x0) + 4 : round(x1) - 4]
    assert part.shape[0] > 8
    assert part.shape[1] > 8
    return float(near(part, colour, 16).mean())


def test_states_are_where_and_when_they_were(tmp_path: Path, opener: Opener) -> None:
    shown = page(opener, story(tmp_path), tmp_path / "out")
    open_map(shown)
    active, pending = theme.light("ledgers")["allocated"], theme.light("ledgers")["active"]
    idle, nothing = theme.light("layers")["cached"], "#ffffff"
    # The lower segment of the axis is the one at the lower address: it was mapped for 20 ms only.
    assert share(shown, nothing, (1000, 69_000), (0, 64)) > 0.9
    assert share(shown, idle, (70_500, 89_500), (0, 64)) > 0.95
    assert share(shown, idle, (500, 9_500), (64, 128)) > 0.95
    assert share(shown, active, (11_000, 99_000), (64, 88)) > 0.95
    assert share(shown, active, (13_000, 39_500), (88, 96)) > 0.95
    assert share(shown, pending, (40_500, 59_500), (88, 96)) > 0.95
    assert share(shown, idle, (60_500, 99_000), (88, 96)) > 0.95
    owners = shown.js("(k => [Array.from(k.raster.owner), k.raster.width])(memscope.views.kept.segments)")
    column = np.array(owners[0]).reshape(-1, owners[1])[:, owners[1] // 2]
    assert len(set(column[column >= 0])) == 3  # the pin of 2 MiB is seen, too
    assert share(shown, idle, (15_000, 99_000), (98, 128)) > 0.95
    before = shown.image("stack")
    shown.set_range(38_000_000, 62_000_000)  # linked with the range
    shown.settle()
    assert share(shown, pending, (40_500, 59_500), (88, 96)) > 0.95
    assert (before != shown.image("stack")).any()
    assert shown.plot_range("stack") == [38_000_000, 62_000_000]
    shown.page.locator(".ms-view-bar select").select_option("lifetime")
    shown.settle()
    assert share(shown, theme.light("classes")["open"], (38_500, 61_500), (64, 88)) > 0.95


def test_a_click_lists_the_gaps_with_their_neighbours(tmp_path: Path, opener: Opener) -> None:
    shown = page(opener, story(tmp_path), tmp_path / "out")
    open_map(shown)
    panel = shown.page.locator(".ms-panel")
    assert "Free gaps at" in panel.inner_text()
    shown.page.mouse.click(*place(shown, 80_000, 92))
    shown.settle()
    text = panel.inner_text()
    assert re.search(r"Free gaps at (79\.9|80\b)", text)
    assert "The gap you clicked" in text
    first = panel.locator(".ms-freegap").nth(0)
    assert "8.00 MiB" in first.inner_text()
    assert f"{HIGH + 24 * MIB:#x}" in first.inner_text()
    assert "/app/<b>model</b>.py(77): keep_cache" in first.inner_text()
    assert "/app/pin.py(5): pin" in first.inner_text()
    assert "ms-freegap-picked" in first.get_attribute("class")
    others = panel.locator(".ms-freegap").all_inner_texts()[1:]
    assert len(others) == 2
    assert "64.0 MiB" in others[0]
    assert "stream 1" in others[0]
    assert others[0].count("edge of the segment") == 2
    assert "30.0 MiB" in others[1]
    facts = panel.locator(".ms-facts").first.inner_text()
    for expected in ("128.0 MiB", "26.0 MiB", "102.0 MiB", "3 gaps"):
        assert expected in facts
    first.get_by_role("button", name="show").click()
    shown.settle()
    low, high = shown.js("(k => [k.low, k.high])(memscope.views.kept.segments)")
    assert (low, high) == ((88 - 24) * MIB, (96 + 24) * MIB)
    assert share(shown, theme.light("layers")["cached"], (60_500, 79_000), (88, 96)) > 0.95
    shown.page.mouse.move(*place(shown, 85_000, 91))
    shown.settle()
    assert "free, at" in shown.tip()
    panel.locator(".ms-freegap").nth(0).get_by_role("button", name="#").first.click()
    shown.settle()
    assert len(shown.state()["selection"]) == 1
    assert "keep_cache" in panel.inner_text()
    assert "Free gaps" not in panel.inner_text()
    shown.page.locator("[data-view=blocks]").click()
    shown.settle()
    assert "keep_cache" in panel.inner_text()


def test_a_block_is_picked_from_the_map(tmp_path: Path, opener: Opener) -> None:
    profile = story(tmp_path)
    shown = page(opener, profile, tmp_path / "out")
    open_map(shown)
    x, y = place(shown, 30_000, 76)
    shown.page.mouse.move(x - 2, y)
    shown.settle()
    shown.page.mouse.move(x, y)
    shown.settle()
    assert "24.0 MiB" in shown.tip()
    shown.page.mouse.click(x, y)
    shown.settle()
    assert shown.state()["selection"] == [int(profile.blocks["block_id"][profile.blocks["size_bytes"].idxmax()])]


def test_gaps_of_the_page_are_those_of_python(tmp_path: Path, opener: Opener) -> None:
    rng = random.Random(3)
    for growing in (False, True):
        truth = Splitter(growing=growing)
        for _ in range(120):
            size = rng.choice((rng.randrange(1, 5000), rng.randrange(1, 25 * MIB)))
            truth.step(rng.randrange(10), rng.randrange(100), size)
        profile = load(tmp_path, truth.dump(), name=f"{growing}.pickle")
        shown = page(opener, profile, tmp_path / f"out-{growing}")
        open_map(shown)
        start = int(profile.sources["start_ns"][0])
        for number in range(0, len(truth.entries), 7):
            t = (T0 + number) * 1000
            wanted = ms.free_gaps(profile, t)
            got = shown.js(
                """t => {
                  const k = memscope.views.kept.segments.listed;
                  const found = memscope.segments.gapsAt(k.map, memscope.shown(t));
                  const gaps = found.gaps.map(g => [memscope.segments.addressAt(k.map, g.pos), g.size,
                    g.left < 0 ? -1 : k.map.blocks.id[g.left], g.right < 0 ? -1 : k.map.blocks.id[g.right],
                    g.segment.size]);
                  return { gaps, sum: found.active + found.pending + found.idle - found.mapped };
                }""",
                t - start,
            )
            if number % 2:
                shown.js("memscope.setTime(memscope.time.mode === 'true' ? 'folded' : 'true')")
                shown.settle()
            columns = ["addr", "size_bytes", "left_block_id", "right_block_id", "segment_bytes"]
            listed = [[hex(row[0]), *row[1:]] for row in wanted[columns].astype(object).to_numpy().tolist()]
            assert sorted(got["gaps"]) == sorted(listed)
            assert got["sum"] == 0
            assert sum(gap[1] for gap in got["gaps"]) == sum(gap[1] for gap in truth.truth[number]["gaps"])


def test_pages_without_segments_have_no_such_tab(
    demo_profile: ms.MemoryProfile, tmp_path: Path, opener: Opener
) -> None:
    shown = page(opener, demo_profile.select(rank=0, collection=0), tmp_path / "out")
    assert not shown.page.locator("[data-view=segments]").is_visible()
    some = story(tmp_path).select(min_bytes="4 MiB")
    shown = page(opener, some, tmp_path / "some")
    assert not shown.page.locator("[data-view=segments]").is_visible()


def test_every_page_of_a_long_recording_has_its_part(tmp_path: Path, opener: Opener) -> None:
    truth = Splitter()
    for number in range(400):
        truth.step((0, 5, 0, 4, 7, 5)[number % 6], number, 5000 + 7000 * (number % 11))
    profile = load(tmp_path, truth.dump())
    index = ms.export_html(profile, tmp_path / "out", bars_per_segment=60)
    pages = sorted(index.parent.rglob("memory_timeline_*.html"))
    assert len(pages) > 2
    start = int(profile.sources["start_ns"][0])
    shown = opener(pages[1])
    open_map(shown)
    x0, x1 = shown.state()["range"]
    for number, one in enumerate(truth.truth):
        t = (T0 + number) * 1000 - start
        if not x0 <= t < x1:
            continue
        found = shown.js(
            "t => (f => [f.mapped, f.idle, f.active + f.pending])"
            "(memscope.segments.gapsAt(memscope.views.kept.segments.listed.map, memscope.shown(t)))",
            t,
        )
        idle = sum(gap[1] for gap in one["gaps"])
        assert found == [one["mapped"], idle, sum(size for size, _ in one["blocks"].values())]
