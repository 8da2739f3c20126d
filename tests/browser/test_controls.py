"""Ranges and inputs: both axes move together, and everything that sets the window does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser.pages import Opener, Show, Shown, write_page
from browser.pixels import near
from browser.synthetic import RECORDED, SPAN, make

from memscope_nb.view import theme

pytestmark = pytest.mark.browser
S = 1_000_000_000


def _drag(shown: Shown, plot: str, by: int, y: float = 100) -> None:
    x, top = shown.at(plot, sum(shown.plot_range(plot)) / 2, y)
    shown.page.mouse.move(x, top)
    shown.page.mouse.down()
    shown.page.mouse.move(x + by / 2, top, steps=3)
    shown.page.mouse.move(x + by, top, steps=3)
    shown.page.mouse.up()
    shown.settle()


@pytest.mark.parametrize("plot", ["curve", "gantt"])
def test_drag_pans_both(show: Show, plot: str) -> None:
    shown = show(make(1500))
    shown.set_range(10 * S, 20 * S)
    before = shown.image("curve"), shown.image("gantt")
    _drag(shown, plot, -120)
    after = shown.state()
    moved = 120 / after["width"] * 10 * S
    assert abs(after["x0"] - (10 * S + moved)) < 0.06 * S
    assert abs((after["x1"] - after["x0"]) - 10 * S) < 2
    for other in ("curve", "gantt"):
        assert shown.plot_range(other) == [after["x0"], after["x1"]]
    assert shown.drawn("allocated", "x").min() == after["x0"]
    assert shown.drawn("allocated", "x").max() == after["x1"]
    assert (before[0] != shown.image("curve")).any()
    assert (before[1] != shown.image("gantt")).any()


def test_pan_stops_at_the_segment(show: Show) -> None:
    shown = show(make(400))
    shown.set_range(1 * S, 11 * S)
    _drag(shown, "gantt", 400)
    assert shown.state()["x0"] >= SPAN[0]
    assert shown.state()["x0"] < 1 * S


@pytest.mark.parametrize("plot", ["curve", "gantt"])
def test_wheel_zooms_about_the_pointer(show: Show, plot: str) -> None:
    shown = show(make(400))
    shown.set_range(10 * S, 30 * S)
    x, y = shown.at(plot, 15 * S, 80)
    shown.page.mouse.move(x, y)
    shown.page.mouse.wheel(0, -300)
    shown.page.wait_for_timeout(200)
    state = shown.state()
    assert 0 < state["x1"] - state["x0"] < 19 * S
    kept = (15 * S - state["x0"]) / (state["x1"] - state["x0"])
    assert abs(kept - 0.25) < 0.02
    assert shown.plot_range("curve") == shown.plot_range("gantt")


def test_zoom_by_dragging(show: Show) -> None:
    shown = show(make(400))
    shown.set_range(10 * S, 20 * S)
    shown.page.get_by_label("Drag").select_option("zoom")
    _drag(shown, "curve", 200, 60)
    state = shown.state()
    wanted = 200 / state["width"] * 10 * S
    assert abs((state["x1"] - state["x0"]) - wanted) < 0.1 * S
    assert state["x0"] >= 14.9 * S


def test_overview_window(show: Show) -> None:
    shown = show(make(1500))
    shown.set_range(10 * S, 20 * S)
    strip = shown.page.locator(".ms-strip").bounding_box()
    window = shown.page.locator(".ms-window").bounding_box()
    assert abs((window["x"] - strip["x"]) / strip["width"] - 10 / 60) < 0.01
    x, y = window["x"] + window["width"] / 2, window["y"] + window["height"] / 2
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    shown.page.mouse.move(x + strip["width"] / 3, y, steps=5)
    shown.page.mouse.up()
    shown.settle()
    state = shown.state()
    assert abs(state["x0"] - 30 * S) < 0.3 * S
    assert abs(state["x1"] - 40 * S) < 0.3 * S
    box = shown.page.locator(".ms-window").bounding_box()
    shown.page.mouse.move(box["x"] + box["width"], y)  # the right edge
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + box["width"] + strip["width"] / 6, y, steps=5)
    shown.page.mouse.up()
    shown.settle()
    stretched = shown.state()
    assert abs(stretched["x0"] - state["x0"]) < 2
    assert abs(stretched["x1"] - 50 * S) < 0.5 * S
    shown.page.mouse.click(strip["x"] + strip["width"] * 0.1, y)
    shown.settle()
    clicked = shown.state()
    assert clicked["x0"] == 0
    assert abs((clicked["x1"] - clicked["x0"]) - (stretched["x1"] - stretched["x0"])) < 2


def test_left_and_right(show: Show) -> None:
    shown = show(make(400))
    left, right = shown.page.get_by_label("Left"), shown.page.get_by_label("Right", exact=True)
    left.fill("12,000.000123")
    right.fill("13000.5")
    right.press("Enter")
    shown.settle()
    state = shown.state()
    assert (state["x0"], state["x1"]) == (12_000_000_123, 13_000_500_000)
    assert left.input_value() == "12000.000123"
    assert right.input_value() == "13000.5"
    left.fill("14000")
    left.press("Enter")
    assert "Left must be less than Right" in shown.page.locator(".ms-error").inner_text()
    assert left.get_attribute("aria-invalid") == "true"
    left.fill("soon")
    left.press("Enter")
    assert "numbers of milliseconds" in shown.page.locator(".ms-error").inner_text()
    assert shown.state()["x0"] == 12_000_000_123
    left.press("Escape")
    assert left.input_value() == "12000.000123"
    shown.page.get_by_role("button", name="Reset").click()
    shown.settle()
    assert (shown.state()["x0"], shown.state()["x1"]) == SPAN


def test_keys(show: Show) -> None:
    shown = show(make(400))
    shown.set_range(20 * S, 30 * S)
    shown.page.keyboard.press("ArrowRight")
    shown.settle()
    assert shown.state()["x0"] == 22 * S
    shown.page.keyboard.press("ArrowLeft")
    shown.page.keyboard.press("ArrowLeft")
    shown.settle()
    assert shown.state()["x0"] in (18 * S, 20 * S)
    shown.set_range(20 * S, 30 * S)
    shown.page.keyboard.press("+")
    shown.settle()
    assert (shown.state()["x0"], shown.state()["x1"]) == (22.5 * S, 27.5 * S)
    shown.page.keyboard.press("-")
    shown.settle()
    assert (shown.state()["x0"], shown.state()["x1"]) == (20 * S, 30 * S)
    shown.page.keyboard.press("Home")
    shown.settle()
    assert (shown.state()["x0"], shown.state()["x1"]) == SPAN
    shown.page.get_by_role("searchbox").focus()
    shown.page.keyboard.press("-")  # typed, not a command
    shown.settle()
    assert shown.page.get_by_role("searchbox").input_value() == "-"


def test_series_are_switched_not_added(show: Show) -> None:
    made = make(3000)
    shown = show(made)
    for k in (1, 0):
        shown.page.get_by_label("Series").select_option(str(k))
        shown.settle()
        peak = made.header["series"][k]["peak"]["allocated"][1]
        assert np.nanmax(shown.drawn("allocated", "y")) == peak
        assert shown.state()["inView"] == int((made.series == k).sum())
    one = show(make(300, second=False))
    assert not one.page.get_by_label("Series").is_visible()


def test_phase_ribbon_follows_and_zooms(show: Show) -> None:
    made = make(400)
    shown = show(made)
    cell = shown.page.locator(".ms-cell-role").nth(1)
    assert cell.inner_text().split("\n") == ["actor_update", "peak 1.46 GiB · floor 220.0 MiB"]
    assert "actor_update\npeak 1.46 GiB" in cell.get_attribute("title")
    left, _ = shown.at("curve", 14 * S, 0)
    assert abs(cell.bounding_box()["x"] - left) < 2
    cell.click()
    shown.settle()
    assert (shown.state()["x0"], shown.state()["x1"]) == (14 * S, 28.3 * S)
    assert shown.page.locator(".ms-cell-role").count() == 1
    assert shown.page.locator(".ms-cell-step").count() == 7


def test_segments_and_their_links(opener: Opener, tmp_path: Path) -> None:
    for k in range(3):
        write_page(tmp_path, make(1500, segments=3, segment=k), name=f"memory_timeline_{k:02d}")
    shown = opener(tmp_path / "memory_timeline_00.html")
    page = shown.page
    assert page.locator(".ms-segment").inner_text() == "Seg 1 of 3"
    assert page.locator(".ms-prev, a[rel=prev]").get_attribute("href") is None
    assert (shown.state()["x0"], shown.state()["x1"]) == (0, 20 * S)
    assert page.locator(".ms-shade").count() == 1
    shown.set_range(5 * S, 10 * S)
    assert not page.locator(".ms-go-next").is_visible()
    shown.set_range(18 * S, 20 * S)
    go = page.locator(".ms-go-next")
    assert go.inner_text() == "Seg 2 →"
    go.click()
    page.wait_for_selector("[data-ready=yes]")
    assert page.locator(".ms-segment").inner_text() == "Seg 2 of 3"
    assert (shown.state()["x0"], shown.state()["x1"]) == (20 * S, 22 * S)
    assert page.locator(".ms-go-prev").inner_text() == "← Seg 1"
    page.get_by_role("link", name="← Prev").click()
    page.wait_for_selector("[data-ready=yes]")
    assert page.locator(".ms-segment").inner_text() == "Seg 1 of 3"
    assert (shown.state()["x0"], shown.state()["x1"]) == (18 * S, 20 * S)
    strip = page.locator(".ms-strip").bounding_box()
    page.mouse.click(strip["x"] + strip["width"] * 0.75, strip["y"] + 20)  # in the last segment
    page.wait_for_url("**/memory_timeline_02.html*")
    page.wait_for_selector("[data-ready=yes]")
    assert abs(shown.state()["x0"] - 44 * S) < 0.2 * S


def test_segment_shows_blocks_from_before(show: Show) -> None:
    """The curve of a later segment is right although most of its blocks began earlier."""
    made = make(1500, segments=3, segment=1)
    shown = show(made)
    for t in (20 * S, 20 * S + 12345, 27 * S, 39 * S):
        assert shown.js("t => memscope.valueAt('allocated', t)", t) == made.value("allocated", t)


def test_window_in_the_address(show: Show) -> None:
    shown = show(make(400), fragment="#x0=1000000007&x1=2000000009")
    state = shown.state()
    assert (state["x0"], state["x1"]) == (1_000_000_007, 2_000_000_009)
    shown.set_range(3 * S, 4 * S)
    shown.page.wait_for_timeout(500)
    assert shown.page.url.endswith("#x0=3000000000&x1=4000000000")


@pytest.mark.parametrize("dark", [False, True])
def test_themes(show: Show, dark: bool) -> None:
    shown = show(make(1500), dark=dark)
    colours = theme.theme_json()["dark" if dark else "light"]
    image = shown.image("curve")
    assert near(image, colours["ledgers"]["allocated"], 30).sum() > 200
    assert near(image, colours["css"]["ground"], 6).sum() > 1000
    assert near(shown.image("gantt"), colours["classes"]["step"]).sum() > 100


def test_resize_lays_out_again(show: Show) -> None:
    shown = show(make(1500), size=(1150, 900))
    small = shown.state()["width"]
    shown.page.set_viewport_size({"width": 1500, "height": 900})
    shown.page.wait_for_timeout(400)
    state = shown.state()
    assert state["width"] == small + 350
    for plot in ("overview", "curve", "gantt"):
        assert state["frames"][plot]["left"] == state["frames"]["gantt"]["left"]
        assert state["frames"][plot]["width"] == state["width"]
    row = shown.page.locator(".ms-row").nth(3).bounding_box()
    _, top = shown.at("gantt", state["x0"], 3 * state["rowPx"])
    assert abs(row["y"] - top) < 1.5


def test_recordings_can_be_chosen(show: Show) -> None:
    shown = show(make(400))
    select = shown.page.get_by_label("Recording")
    assert select.input_value() == ""
    select.select_option("1")
    shown.settle()
    state = shown.state()
    start, end = RECORDED[1]
    assert 0 < start - state["x0"] < (end - start) / 20
    assert state["x1"] >= end
    assert select.input_value() == "1"
    select.select_option("")
    shown.settle()
    assert (shown.state()["x0"], shown.state()["x1"]) == SPAN


def test_mostly_empty_timeline_starts_at_the_peak(show: Show) -> None:
    """Short recordings far apart would be slivers: the page opens on the one that holds the peak."""
    made = make(400, second=False)
    far = 400 * S
    made.header["window"] = made.header["span"] = [0, far]
    made.header["segments"][0]["end"] = far
    shown = show(made)
    peak_t = made.header["series"][0]["peak"]["allocated"][0]
    holder = next(window for window in RECORDED if window[0] <= peak_t < window[1])
    state = shown.state()
    assert holder[0] - S < state["x0"] <= holder[0]
    assert holder[1] <= state["x1"] < holder[1] + S
    shown.page.get_by_role("button", name="Reset").click()
    shown.settle()
    assert (shown.state()["x0"], shown.state()["x1"]) == (0, far)
