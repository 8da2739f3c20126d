"""The time axis: true, with idle stretches folded, with steps aligned. Whatever is drawn, numbers stay true."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from browser.pages import Opener, Show, Shown
from browser.synthetic import RECORDED, SPAN, Synthetic, make
from test_pytorch_snapshot import MIB, block, entry, free, load, segment, snapshot

import memscope_nb as ms

pytestmark = pytest.mark.browser

S = 1_000_000_000
GAP = (RECORDED[0][1], RECORDED[1][0])


def _folded(n: int = 2000) -> Synthetic:
    made = make(n)
    made.header["idle"] = [list(GAP)]
    return made


def _choose(shown: Shown, mode: str) -> None:
    shown.select("Time").select_option(mode)
    shown.settle()
    assert shown.state()["time"] == mode


def test_idle_time_is_folded_at_first(show: Show) -> None:
    shown = show(_folded())
    state = shown.state()
    assert state["time"] == "folded"
    (fold,) = state["folds"]
    assert (fold["start"], fold["end"]) == GAP
    width = state["x1"] - state["x0"]
    assert 0.005 < (fold["x1"] - fold["x0"]) / width < 0.04
    assert state["range"] == list(SPAN)
    assert width < SPAN[1] - 3.5 * S  # most of 4.8 s is gone
    mark = shown.page.locator(".ms-fold-mark")
    assert mark.count() == 1
    assert mark.inner_text() == "4.800 s"
    box = mark.bounding_box()
    assert abs(box["x"] - shown.at("curve", GAP[0], 0)[0]) < 1.5
    assert abs(box["x"] + box["width"] - shown.at("curve", GAP[1], 0)[0]) < 1.5


def test_page_without_idle_time_offers_no_folding(show: Show) -> None:
    shown = show(make(500))
    assert shown.state()["time"] == "true"
    assert shown.js("Array.from(memscope.refs.time.options, o => o.value)") == ["true", "steps"]


@pytest.mark.parametrize("mode", ["true", "folded", "steps"])
def test_numbers_do_not_depend_on_the_axis(show: Show, mode: str) -> None:
    made = _folded(1500)
    shown = show(made)
    _choose(shown, mode)
    state = shown.state()
    assert state["range"] == list(SPAN)
    for t in np.random.default_rng(5).choice(made.instants(), 60).tolist():
        if not made.recorded(t):
            continue
        assert shown.js("t => memscope.trueAt(memscope.shown(t))", t) == t
        assert shown.js("t => memscope.valueAt('allocated', t)", t) == made.value("allocated", t)
        snap = shown.js("t => memscope.snapshot(t)", t)
        assert snap["blocks"] == made.live(t).sum()
    peak_t, peak = made.header["series"][0]["peak"]["allocated"]
    assert shown.drawn("allocated", "y")[~np.isnan(shown.drawn("allocated", "y"))].max() == peak
    assert abs(float(shown.drawn("peak", "x")[0]) - shown.js("t => memscope.shown(t)", peak_t)) < 1
    # a click on a bar tells true times
    block = shown.state()["barIds"][0]
    shown.js("id => memscope.selectId(id)", block)
    shown.settle()
    text = shown.page.locator(".ms-panel").inner_text()
    start = int(made.start[made.columns["id"] == block][0])
    assert f"{start / 1e6:,.6f}".rstrip("0").rstrip(".") + " ms" in text


def test_switching_keeps_window_and_rows(show: Show) -> None:
    shown = show(_folded())
    shown.set_range(20 * S, 40 * S)
    rows = shown.state()["rows"]
    pixels = {}
    for mode in ("true", "steps", "folded"):
        _choose(shown, mode)
        state = shown.state()
        assert np.allclose(state["range"], [20 * S, 40 * S], atol=2)
        assert state["rows"] == rows
        pixels[mode] = state["x1"] - state["x0"]
        assert shown.page.get_by_label("Left").input_value() == "20000"
        assert shown.page.get_by_label("Right").input_value() == "40000"
        assert shown.js(
            "window.memscope.writeHash(), new Promise(done => setTimeout(() => done(location.hash), 400))"
        ) in ("#x0=20000000000&x1=40000000000")
    assert pixels["folded"] < pixels["true"] - 3.5 * S


def test_folded_ticks_are_round_true_times(show: Show) -> None:
    shown = show(_folded())
    for start, end in ((0, 60 * S), (26 * S, 36 * S), (27.9 * S, 33.6 * S)):
        shown.set_range(start, end)
        ticks = shown.js(
            """() => {
              const ticker = memscope.figures.model('curve-ticker');
              const { start, end } = memscope.range;
              const major = ticker.get_ticks(start, end).major;
              const texts = memscope.figures.model('curve-time').doFormat(major);
              return major.map((u, i) => [u, memscope.trueAt(u), texts[i]]);
            }"""
        )
        assert 2 <= len(ticks) <= 14
        (fold,) = shown.state()["folds"]
        for u, t, text in ticks:
            assert not fold["x0"] < u < fold["x1"]
            shown_value = float(text.split()[0].replace(",", "")) * (1e9 if text.endswith(" s") else 1e6)
            assert abs(shown_value - t) < 1, text  # the text is the whole truth, not a rounding of it
        assert all(a[0] < b[0] for a, b in itertools.pairwise(ticks))


def test_steps_have_equal_widths(show: Show) -> None:
    made = _folded()
    for k, step in enumerate(made.header["steps"]):  # steps of different lengths
        step["end"] -= (k % 5) * 150_000_000
    shown = show(made)
    _choose(shown, "steps")
    widths = [shown.js("s => memscope.shown(s.end) - memscope.shown(s.start)", step) for step in made.header["steps"]]
    assert np.ptp(widths) < 1e-3 * widths[0]
    cells = shown.page.locator(".ms-cell-step")
    boxes = [cells.nth(k).bounding_box()["width"] for k in range(3)]
    assert max(boxes) - min(boxes) < 1.5


def test_folds_are_told_by_the_hover(show: Show) -> None:
    shown = show(_folded())
    tip = shown.hover("curve", (GAP[0] + GAP[1]) // 2, 100)
    assert "folded: nothing changes from 28,300 ms to 33,100 ms (4.800 s)" in tip


def test_overview_window_in_folded_time(show: Show) -> None:
    shown = show(_folded())
    shown.set_range(40 * S, 50 * S)
    strip = shown.page.locator(".ms-strip").bounding_box()
    box = shown.page.locator(".ms-window").bounding_box()
    limits = shown.js("memscope.timeline.span")
    left = shown.js("memscope.shown(40e9)")
    assert abs((box["x"] - strip["x"]) / strip["width"] - left / limits[1]) < 0.01
    shown.page.mouse.click(strip["x"] + strip["width"] * 0.25, strip["y"] + 10)
    shown.settle()
    start, end = shown.state()["range"]
    assert abs((start + end) / 2 - shown.js("memscope.trueAt(memscope.timeline.span[1] * 0.25)")) < 0.1 * S


def test_absolute_times_can_be_typed(show: Show) -> None:
    made = make(500)  # its origin is 2025-11-29 15:08:51.123456789 UTC
    shown = show(made)
    left, right = shown.page.get_by_label("Left"), shown.page.get_by_label("Right")
    left.fill("15:09:01.123456789")
    right.fill("2025-11-29 15:09:11.5")
    right.press("Enter")
    shown.settle()
    assert shown.state()["range"] == [10 * S, 20_376_543_211]
    assert left.input_value() == "10000"
    left.fill("25:99:00")
    left.press("Enter")
    assert "UTC times" in shown.page.locator(".ms-error").inner_text()


def test_order_of_events_is_not_shown_as_time(tmp_path: Path, opener: Opener) -> None:
    trace = [
        entry("segment_alloc", 1 << 30, 2 * MIB, None),
        entry("alloc", 1 << 30, 1 * MIB, None),
        entry("alloc", (1 << 30) + MIB, 4096, None),
        *free((1 << 30) + MIB, 4096, None),
    ]
    profile = load(tmp_path, snapshot([trace], [segment(1 << 30, [block(1 << 30, MIB)])]))
    shown = opener(ms.export_html(profile, tmp_path / "out").parent / "memory_timeline_00.html")
    for plot in ("curve", "gantt"):
        label = shown.js("name => memscope.figures.model(name).below[0].axis_label", plot)
        assert label == "order of events, no time: one entry is drawn as 1 µs"
    shown.js("memscope.selectId(memscope.series.id[0])")
    shown.settle()
    text = shown.page.locator(".ms-panel").inner_text()
    assert "start\n" in text
    assert "UTC" not in text  # no date is known


def test_times_need_no_words(show: Show) -> None:
    shown = show(make(200))
    assert shown.js("memscope.figures.model('curve').below[0].axis_label") is None
    shown.js("memscope.selectId(memscope.series.id[0])")
    shown.settle()
    assert "UTC" in shown.page.locator(".ms-panel").inner_text()
