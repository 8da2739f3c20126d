"""Every interaction once more on 200,000 blocks: what is drawn, listed and told still equals what numpy finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from browser.pages import Shown, write_page
from browser.synthetic import OPEN, RECORDED, SPAN, Synthetic, make

pytestmark = pytest.mark.browser

S = 1_000_000_000


@pytest.fixture(scope="module")
def made() -> Synthetic:
    found = make(200_000, giant=True)
    found.header["idle"] = [[RECORDED[0][1], RECORDED[1][0]]]
    return found


@pytest.fixture(scope="module")
def opened(made: Synthetic, chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    context = chromium.new_context(offline=True, viewport={"width": 1400, "height": 1250})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: request.url.startswith("file:") or problems.append(request.url))
    page.goto(write_page(tmp_path_factory.mktemp("large"), made).as_uri())
    page.wait_for_selector("[data-ready=yes]", timeout=60_000)
    yield Shown(page)
    context.close()
    assert problems == []


@pytest.fixture
def shown(opened: Shown) -> Shown:
    """Return the page in its first state, though not reloaded."""
    opened.js(
        """() => {
          memscope.setFilter('', 'name'); memscope.setFilters({ life: 'any', minSize: 0 }); memscope.setTime('folded');
          memscope.setGrouping({ key: 'operator' }); memscope.setColouring('class'); memscope.setFocus(null);
          memscope.setTop(30); memscope.select(-1); memscope.openView('blocks'); memscope.reset();
        }"""
    )
    opened.settle()
    return opened


def test_drawn_peak_is_the_exact_peak_at_every_zoom(shown: Shown, made: Synthetic) -> None:
    peak_t, peak = made.header["series"][0]["peak"]["allocated"]
    for mode in ("true", "folded", "steps"):
        shown.js("mode => memscope.setTime(mode)", mode)
        for width in (SPAN[1], 10 * S, S, 10_000_000, 100_000, 2_000):
            start = max(int(peak_t) - width // 3, 0)
            shown.set_range(start, min(start + width, SPAN[1]))
            drawn = shown.drawn("allocated", "y")
            assert np.nanmax(drawn) == peak, (mode, width)
    t = 20 * S  # a gibibyte for four microseconds in a minute
    shown.js("mode => memscope.setTime(mode)", "folded")
    shown.js("memscope.reset()")
    shown.settle()
    x, y = shown.drawn("allocated", "x"), shown.drawn("allocated", "y")
    at = np.abs(x - shown.js("t => memscope.shown(t)", t)) < SPAN[1] / shown.state()["width"]
    assert np.nanmax(y[at]) == made.highest(t, t + 4_000) >= 1 << 30


def test_pan_wheel_and_inputs(shown: Shown, made: Synthetic) -> None:
    shown.set_range(5 * S, 15 * S)
    x, y = shown.at("gantt", 10 * S, 40)
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    shown.page.mouse.move(x - 90, y, steps=5)
    shown.page.mouse.up()
    shown.settle()
    moved = shown.state()["range"]
    assert abs(moved[0] - 5 * S - 90 / shown.state()["width"] * 10 * S) < 0.05 * S
    assert abs((moved[1] - moved[0]) - 10 * S) < 2
    shown.page.mouse.move(x, y)
    shown.page.mouse.wheel(0, -240)
    shown.settle()
    narrow = shown.state()["range"]
    assert narrow[1] - narrow[0] < 0.95 * 10 * S
    shown.page.get_by_label("Left").fill("40000")
    shown.page.get_by_label("Right").fill("40500")
    shown.page.get_by_label("Right").press("Enter")
    shown.settle()
    state = shown.state()
    assert state["range"] == [40 * S, 40_500_000_000]
    inside = (made.series == 0) & (made.start <= 40_500_000_000) & (made.end > 40 * S)
    assert state["inView"] == inside.sum() > 1000


def test_hover_and_click(shown: Shown, made: Synthetic) -> None:
    shown.set_range(40 * S, 40_400_000_000)
    t = 40_200_000_000
    tip = shown.hover("curve", t, 60)
    now = shown.js("u => memscope.snapshot(memscope.trueAt(u))", shown.js("memscope.shown(40200000000)"))
    assert now["blocks"] == made.live(t).sum()
    assert "live blocks" in tip
    assert "rest: " in tip
    for block in shown.state()["barIds"]:
        box = shown.js("id => memscope.boxOf(id)", block)
        if box["right"] - box["left"] < 14 or box["bottom"] - box["top"] < 4:
            continue
        shown.page.mouse.click((box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
        shown.settle()
        break
    chosen = shown.state()["selected"]
    panel = shown.page.locator(".ms-panel").inner_text()
    assert f"{made.size[chosen]:,} B" in panel
    assert f"#{chosen}" in panel
    same = (made.series == 0) & (made.name == made.name[chosen]) & (made.end > made.start[chosen])
    overlaps = same & (made.start < max(made.end[chosen], made.start[chosen] + 1))
    assert f"{overlaps.sum() - 1:,} overlapping block" in panel


def test_filters_groups_and_focus(shown: Shown, made: Synthetic) -> None:
    mine = made.series == 0
    names = np.array(made.header["names"])[made.name]
    shown.page.get_by_role("searchbox").fill("/^aten::(mm|bmm)$/")
    shown.settle()
    wanted = mine & np.isin(names, ["aten::mm", "aten::bmm"])
    assert shown.state()["inView"] == wanted.sum()
    shown.select("Blocks").select_option("open")
    shown.settle()
    assert shown.state()["inView"] == (wanted & (made.columns["class"] == OPEN)).sum()
    shown.select("Blocks").select_option("any")
    shown.page.get_by_role("searchbox").fill("")
    shown.select("Rows by").select_option("site")
    x, y = shown.at("curve", 12 * S, 60)
    shown.page.mouse.click(x, y)
    shown.settle()
    state = shown.state()
    t = int(state["focus"]["true"])
    alive = made.live(t)
    sites = [
        made.header["frames"][made.header["stacks"][k - 1][made.header["sites"][k - 1]]] if k else "(no stack)"
        for k in made.columns["stack"]
    ]
    sums: dict[str, int] = {}
    for k in np.flatnonzero(alive):
        sums[sites[k]] = sums.get(sites[k], 0) + int(made.size[k])
    assert state["rows"][:10] == sorted(sums, key=lambda site: -sums[site])[:10]
    assert state["sum"]["difference"] == 0
    assert state["sum"]["allocated"] == made.value("allocated", t)


def test_box_selection(shown: Shown, made: Synthetic) -> None:
    shown.set_range(40 * S, 41 * S)
    shown.select("Drag").select_option("select")
    rows = shown.state()["rows"][:2]
    left, top = shown.at("gantt", 40_200_000_000, 1)
    right, bottom = shown.at("gantt", 40_600_000_000, shown.state()["rowPx"] * 2 - 2)
    shown.page.mouse.move(left, top)
    shown.page.mouse.down()
    shown.page.mouse.move(right, bottom, steps=4)
    shown.page.mouse.up()
    shown.settle()
    shown.select("Drag").select_option("pan")
    names = np.array(made.header["names"])[made.name]
    mine = (made.series == 0) & np.isin(names, rows) & (made.end > made.start)
    slack = int(2 * S / shown.state()["width"])

    def inside(room: int) -> set[int]:
        wanted = mine & (made.start <= 40_600_000_000 + room) & (made.end >= 40_200_000_000 - room)
        return set(np.flatnonzero(wanted).tolist())

    got = set(shown.state()["selection"])
    assert inside(-slack) <= got <= inside(slack)
    assert len(got) > 50
    assert f"{len(got):,} blocks selected" in shown.page.locator(".ms-panel").inner_text()


def test_visible_positions(shown: Shown, made: Synthetic) -> None:
    shown.set_range(40 * S, 40_500_000_000)
    got = np.array(shown.js("Array.from(memscope.visiblePositions())"))
    start, end = made.start, made.end
    there = (end > 40 * S) | ((start == end) & (start >= 40 * S))
    wanted = np.flatnonzero((made.series == 0) & there & (start <= 40_500_000_000))
    assert (made.columns["id"][got] == wanted).all()
