"""The curve: its values against numpy, and that no zoom level loses the peak."""

from __future__ import annotations

import math

import numpy as np
import pytest
from browser.pages import Show, Shown
from browser.pixels import near
from browser.synthetic import RECORDED, SPAN, Synthetic, make

from memscope_nb.view import theme

pytestmark = pytest.mark.browser

S = 1_000_000_000
LEDGERS = ("allocated", "active", "reserved", "older", "resident")


def _instants(made: Synthetic, n: int = 400) -> list[int]:
    rng = np.random.default_rng(5)
    changes = made.instants()
    some = rng.choice(changes, n)
    return [*some.tolist(), *(some - 1).tolist(), *rng.integers(*SPAN, n).tolist(), RECORDED[0][1] + 5, 100]


def test_values_equal_numpy(show: Show) -> None:
    made = make(3000)
    shown = show(made)
    instants = [t for t in _instants(made) if t >= 0]
    got = shown.js(
        """([ledgers, ts]) => ts.map(t => ledgers.map(key => {
             const v = memscope.valueAt(key, t); return Number.isNaN(v) ? null : v; }))""",
        [list(LEDGERS), instants],
    )
    wanted = [[made.value(ledger, t) for ledger in LEDGERS] for t in instants]
    assert got == wanted
    flat = [value for line in wanted for value in line]
    assert None in flat  # the gap was asked for too
    assert any(line[0] != line[1] for line in wanted)  # late blocks make active differ


def test_negative_bases_are_added(show: Show) -> None:
    """Totals that fall below the live blocks: steps are stored from a negative base."""
    made = make(800)
    instants = [t for t in _instants(made, 60) if t >= 0]
    wanted = [[made.value(ledger, t) for ledger in ("allocated", "active", "older")] for t in instants]
    for ledger, base in (("older", -(7 << 20)), ("active", -(9 << 20))):
        made.header["series"][0][f"{ledger}_base"] = base
        stored = made.columns[f"{ledger}_v_0"]
        made.columns[f"{ledger}_v_0"] = np.where(stored > 0, stored - base, 0)
    got = show(made).js(
        """ts => ts.map(t => ['allocated', 'active', 'older'].map(key => {
             const v = memscope.valueAt(key, t); return Number.isNaN(v) ? null : v; }))""",
        instants,
    )
    assert got == wanted


def test_snapshot_equals_brute_force(show: Show) -> None:
    made = make(3000)
    shown = show(made)
    for t in (5_000_000_000, int(made.start[1500]), int(made.end[700])):
        snap = shown.js("t => memscope.snapshot(t)", t)
        alive = made.live(t)
        bytes_by_name = np.bincount(made.name[alive], made.size[alive], minlength=len(made.header["names"]))
        top = sorted(range(len(bytes_by_name)), key=lambda op: (-bytes_by_name[op], op))[:10]
        assert snap["blocks"] == alive.sum() > 0
        assert snap["live"] == made.size[alive].sum()
        assert [item["group"] for item in snap["top"]] == [op for op in top if bytes_by_name[op]]
        assert snap["rest"] == made.size[alive].sum() - sum(item["bytes"] for item in snap["top"])


@pytest.mark.parametrize("n", [300, 30_000])
def test_peak_survives_every_zoom(show: Show, n: int) -> None:
    made = make(n, giant=True)
    shown = show(made)
    peak_t, peak = made.header["series"][0]["peak"]["allocated"]
    assert shown.drawn("allocated", "y")[~np.isnan(shown.drawn("allocated", "y"))].max() == peak
    for half in (9_000_000_000, 1_000_000_000, 30_000_000, 20_000):
        start, end = max(peak_t - half, 0), peak_t + half // 2
        shown.set_range(start, end)
        y = shown.drawn("allocated", "y")
        assert np.nanmax(y) == made.highest(start, end) == peak
        assert shown.drawn("peak", "y").tolist() == [peak]
    shown.set_range(2_000_000_000, 9_000_000_000)
    assert np.nanmax(shown.drawn("allocated", "y")) == made.highest(2_000_000_000, 9_000_000_000) < peak
    assert shown.drawn("peak", "y").size == 0
    label = shown.page.locator(".ms-peak-label")
    assert label.inner_text().endswith("at 20,000 ms →")  # it lies to the right
    shown.page.get_by_role("button", name="allocated 1.").click()  # the peaks above the plot lead there
    shown.settle()
    assert shown.drawn("peak", "y").tolist() == [peak]
    assert label.inner_text().endswith("at 20,000 ms")
    for ledger in ("resident (APP)", "reserved"):
        shown.page.get_by_role("button", name=ledger, exact=True).click()
    shown.set_range(2_000_000_000, 9_000_000_000)
    assert not label.is_visible()  # now higher than anything in view


def test_thinning_bounds_the_points(show: Show) -> None:
    shown = show(make(30_000))
    width = shown.state()["width"]
    assert shown.drawn("allocated", "x").size <= 2 * (5 * width + 2)
    shown.set_range(10_000_000_000, 10_050_000_000)
    exact = shown.drawn("allocated", "x")
    assert exact.size > 10


def test_gap_is_a_gap(show: Show) -> None:
    shown = show(make(2000))
    gap = (RECORDED[0][1], RECORDED[1][0])
    assert list(gap) in shown.state()["gaps"]
    x, y = shown.drawn("allocated", "x"), shown.drawn("allocated", "y")
    inside = (x > gap[0]) & (x < gap[1])
    assert np.isnan(y[inside]).all()
    assert shown.page.get_by_text("no recording").is_visible()
    image = shown.image("curve")
    width = shown.state()["width"]
    left, right = (int(t / SPAN[1] * width) for t in gap)
    blue = near(image, theme.light("ledgers")["allocated"], 60)
    assert not blue[:, left + 3 : right - 3].any()
    assert blue[:, :left].any(axis=0).mean() > 0.9


def test_y_range_fits_the_view(show: Show) -> None:
    made = make(2000, giant=True)
    shown = show(made)
    top = "memscope.figures.model('curve').y_range.end"
    full = shown.js(top)
    shown.set_range(2_000_000_000, 9_000_000_000)
    shown.page.get_by_role("button", name="resident (APP)").click()
    shown.page.get_by_role("button", name="reserved", exact=True).click()
    shown.settle()
    assert shown.js(top) < full / 2
    assert shown.js(top) > made.highest(2_000_000_000, 9_000_000_000)
    assert shown.drawn("resident", "y").size == 0


def test_hover_tells_the_instant(show: Show) -> None:
    made = make(3000)
    shown = show(made)
    t = 6_000_000_000
    shown.set_range(t - 1_000_000_000, t + 1_000_000_000)
    text = shown.hover("curve", t, 60)
    x, _ = shown.at("curve", 0, 0)
    assert "allocated" in text
    assert "older than the window" in text
    exact = shown.js(
        "x => { const s = memscope.snapshot(memscope.timeAt(x)); return [s.blocks, s.t]; }", _offset(shown, t)
    )
    assert f"live blocks\t{exact[0]:,}" in text
    alive = made.live(math.floor(exact[1]))
    assert exact[0] == alive.sum()
    assert math.isfinite(x)
    assert shown.hover("curve", RECORDED[0][1] + 2_000_000_000, 60) == ""  # outside the view: no tooltip
    shown.set_range(*SPAN)
    assert "no recording here" in shown.hover("curve", 30_000_000_000, 60)


def _offset(shown: Shown, t: int) -> float:
    """Return px from the frame's left edge, as the pointer event has it."""
    x, _ = shown.at("curve", t, 0)
    left, _ = shown.at("curve", shown.state()["x0"], 0)
    return x - left


def test_ticks_have_units(show: Show) -> None:
    shown = show(make(500))
    ticks = "([name, values]) => memscope.figures.model(name).doFormat(values, {loc: 0})"
    assert shown.js(ticks, ["curve-bytes", [0, 1 << 20, 256 << 20, 3 << 29]]) == ["0 B", "1 MiB", "256 MiB", "1.5 GiB"]
    assert shown.js(ticks, ["curve-time", [0, 10e9, 20e9]]) == ["0 s", "10 s", "20 s"]
    assert shown.js(ticks, ["curve-time", [12e9, 12.5e9]]) == ["12.0 s", "12.5 s"]
    assert shown.js(ticks, ["curve-time", [12_345_678_000, 12_345_678_500]]) == ["12,345.6780 ms", "12,345.6785 ms"]


def test_legend_lists_ledgers_of_the_series(show: Show) -> None:
    shown = show(make(800))
    legend = shown.page.locator(".ms-key")
    assert legend.all_inner_texts() == ["older than the window", "allocated", "active", "reserved", "resident (APP)"]
    shown.page.get_by_label("Series").select_option("1")
    shown.settle()
    assert legend.all_inner_texts() == ["older than the window", "allocated", "reserved", "resident (APP)"]


def test_bytes_axis_fits_what_is_allocated(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    shown.set_range(34 * S, 50 * S)
    button = shown.page.get_by_role("button", name="fit bytes")
    axis = "(r => [r.start, r.end])(memscope.figures.model('curve').y_range)"
    assert shown.js(axis)[0] == 0
    button.click()
    shown.settle()
    _, v = made.allocated(34 * S, 50 * S)
    low, high = shown.js(axis)
    assert 0 < low < v.min()
    assert v.max() < high < v.max() + 0.3 * (v.max() - v.min())
    texts = shown.js(
        f"(([a, b]) => memscope.figures.model('curve-bytes').doFormat([a, b].map(Math.round)))({axis})",
    )
    assert all(text.endswith("iB") for text in texts)
    box = shown.page.locator(".ms-peak-label").bounding_box()
    peak_t, peak = made.header["series"][0]["peak"]["allocated"]
    frame = shown.state()["frames"]["curve"]
    _, top = shown.at("curve", peak_t, frame["height"] * (high - peak) / (high - low))
    assert abs(box["y"] + 19 - top) < 3
    button.click()
    shown.settle()
    assert shown.js(axis)[0] == 0
