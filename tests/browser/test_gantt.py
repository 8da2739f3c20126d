"""The Gantt: rows, lanes, bars, live-bytes areas, hover and click."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from browser.pages import Show, Shown
from browser.pixels import near
from browser.synthetic import CLASSES, OPEN, SPAN, Synthetic, make

from memscope_nb.view import theme

pytestmark = pytest.mark.browser


def _rank(made: Synthetic) -> list[str]:
    """Operators by bytes alive at the peak, then by bytes x time, in numpy."""
    peak_t = made.header["series"][0]["peak"]["allocated"][0]
    names = made.header["names"]
    mine = made.series == 0
    alive = np.bincount(made.name, made.size * made.live(peak_t), minlength=len(names))
    area = np.bincount(made.name, made.size * (made.end - made.start).astype(float) * mine, minlength=len(names))
    present = sorted(set(made.name[mine].tolist()), key=lambda op: (-alive[op], -area[op], op))
    return [names[op] for op in present]


def _wide_bar(shown: Shown, where: Callable[[dict[str, Any]], bool] = lambda box: True) -> tuple[int, dict[str, float]]:
    """Find a bar that nothing else covers at its middle."""
    for block in shown.state()["barIds"]:
        box = shown.js("id => memscope.boxOf(id)", block)
        if box["right"] - box["left"] >= 14 and where(box):
            return block, box
    raise AssertionError("no wide bar")


def _click(shown: Shown, box: dict[str, float]) -> None:
    shown.page.mouse.click((box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
    shown.settle()


def test_rows_are_ranked_by_bytes_at_the_peak(show: Show) -> None:
    made = make(4000)
    shown = show(made)
    state = shown.state()
    wanted = _rank(made)
    assert state["rows"] == wanted[:30]
    assert state["rest"] == len(wanted) - 30 > 0
    label = shown.page.locator(".ms-row").first
    peak_t = made.header["series"][0]["peak"]["allocated"][0]
    op = made.header["names"].index(wanted[0])
    mine = (made.name == op) & (made.series == 0)
    alive = int(made.size[made.live(peak_t) & mine].sum())
    assert f"{alive / 1024**2:.1f}"[:4] in label.inner_text() or f"{alive / 1024:.1f}"[:4] in label.inner_text()
    assert f"{mine.sum():,}" in label.inner_text()
    assert "rest: " in shown.page.locator(".ms-row").last.inner_text()


def test_top_n_and_filter(show: Show) -> None:
    made = make(4000)
    shown = show(made)
    wanted = _rank(made)
    shown.page.get_by_label("Top").select_option("10")
    shown.settle()
    assert shown.state()["rows"] == wanted[:10]
    shown.page.get_by_label("Top").select_option("60")
    shown.settle()
    assert shown.state()["rows"] == wanted
    assert shown.state()["rest"] == 0
    before = shown.state()["inView"]
    shown.page.get_by_role("searchbox").fill("SOFTmax")
    shown.settle()
    state = shown.state()
    assert sorted(state["rows"]) == ["aten::softmax", "aten::softmax_backward"]
    count = int(
        np.isin(made.name, [made.header["names"].index(name) for name in state["rows"]])[made.series == 0].sum()
    )
    assert 0 < state["inView"] <= count < before
    shown.page.get_by_role("searchbox").fill("nothing like it")
    shown.settle()
    assert shown.state()["rows"] == []
    assert shown.page.get_by_text("No operator matches the filter.").is_visible()
    shown.page.get_by_role("searchbox").fill("")
    shown.settle()
    assert shown.state()["inView"] == before


def test_class_toggle_and_minimum_size(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    orange = theme.light("classes")["step"]
    assert near(shown.image("gantt"), orange).sum() > 100
    before = shown.state()["inView"]
    shown.page.get_by_label("crosses a step").uncheck()
    shown.settle()
    assert near(shown.image("gantt"), orange).sum() == 0
    assert shown.state()["inView"] == before - int(((made.columns["class"] == 2) & (made.series == 0)).sum())
    shown.page.get_by_label("crosses a step").check()
    shown.page.get_by_label("Min size").fill("10")
    shown.settle()
    least = 2**18
    assert shown.state()["inView"] == int(((made.size >= least) & (made.series == 0)).sum())
    assert shown.page.locator(".ms-min").inner_text() == "from 256.0 KiB"


def test_lanes_never_collide(show: Show) -> None:
    shown = show(make(3000))
    lanes = shown.js(
        "(s => [s.start, s.end, s.name, s.lane].map(a => Array.from(a)))(memscope.series)",
    )
    start, end, name, lane = (np.array(column) for column in lanes)
    clashes = 0
    for op in np.unique(name):
        for k in np.unique(lane[name == op]):
            mine = (name == op) & (lane == k) & (end > start)
            order = np.argsort(start[mine], kind="stable")
            clashes += int((start[mine][order][1:] < end[mine][order][:-1]).sum())
        alive = max(int(((start <= t) & (t < end) & (name == op)).sum()) for t in start[name == op])
        assert lane[name == op].max() + 1 == max(alive, 1)  # no lane more than needed
    assert clashes == 0
    for i in np.flatnonzero(end > start)[::7]:
        busy = set(lane[(name == name[i]) & (start <= start[i]) & (start[i] < end)].tolist())
        assert set(range(lane[i])) <= busy  # the lowest free one
    touching = sum(bool(((name == name[i]) & (end == start[i])).any()) for i in range(len(start)))
    assert touching > 20


def test_bars_are_drawn_where_they_belong(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    shown.set_range(6_000_000_000, 12_000_000_000)
    block, box = _wide_bar(shown, lambda b: b["bottom"] - b["top"] > 3)
    cls = CLASSES[int(made.columns["class"][made.columns["id"] == block][0])][0]
    left, top = shown.at("gantt", shown.state()["x0"], 0)
    image = shown.image("gantt")
    middle = image[int((box["top"] + box["bottom"]) / 2 - top), int((box["left"] + box["right"]) / 2 - left)]
    if cls != "open":
        assert near(middle.reshape(1, 1, 3), theme.light("classes")[cls], 40).all()
    else:
        assert (middle < 250).any()


def test_click_shows_facts_and_stack(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    shown.set_range(6_000_000_000, 12_000_000_000)
    has_stack = {int(i) for i in made.columns["id"][made.columns["stack"] > 0]}
    for block in shown.state()["barIds"]:
        box = shown.js("id => memscope.boxOf(id)", block)
        if block in has_stack and box["right"] - box["left"] >= 14:
            _click(shown, box)
            if shown.state()["selected"] == block:
                break
    else:
        raise AssertionError("no bar could be clicked")
    panel = shown.page.locator(".ms-panel")
    row = int(np.flatnonzero(made.columns["id"] == block)[0])
    text = panel.inner_text()
    assert made.header["names"][made.columns["name"][row]] in text
    assert f"{made.columns['size'][row]:,} B" in text
    assert f"{made.columns['life'][row]:,} ns" in text
    start_ns = int(made.header["t0_ns"]) + int(made.columns["start"][row])
    assert f".{start_ns % 10**9:09d} UTC" in text
    stack = int(made.columns["stack"][row]) - 1
    frames = [made.header["frames"][f] for f in made.header["stacks"][stack]]
    site = frames[made.header["sites"][stack]]
    assert panel.locator(".ms-site").inner_text() == f"site {site}"
    assert panel.locator(".ms-frame-site").all_inner_texts() == [site]
    folds = panel.locator("details")
    assert folds.count() == 2
    assert "framework frame" in folds.first.inner_text()
    assert not panel.locator(".ms-fold li").first.is_visible()
    assert panel.locator(".ms-frame").all_text_contents() == frames
    kind = ["no stack", "own stack", "forward operator"][int(made.columns["kind"][row])]
    assert kind in panel.locator(".ms-kind").nth(1).inner_text()
    assert shown.drawn("selected", "left").size == 1
    assert near(shown.image("gantt"), theme.SELECTION, 40).any()
    shown.page.keyboard.press("Escape")
    shown.settle()
    assert shown.state()["selected"] is None
    assert "Click a bar" in panel.inner_text()


def test_overlap_list_jumps(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    mine = made.series == 0
    counts = [
        int((mine & (made.name == made.name[i]) & (made.start < made.end[i]) & (made.end > made.start[i])).sum()) - 1
        for i in range(len(made.start))
    ]
    block = int(np.argmax(np.where(mine & (made.end > made.start), counts, -1)))
    shown.js("id => memscope.selectId(id)", block)
    shown.settle()
    panel = shown.page.locator(".ms-panel")
    assert f"{counts[block]:,} overlapping block" in panel.inner_text()
    links = panel.locator(".ms-overlaps button")
    assert links.count() == min(counts[block], 20)
    target = int(links.nth(0).inner_text().removeprefix("#"))
    links.nth(0).click()
    shown.settle()
    state = shown.state()
    assert state["selected"] == target
    assert state["x0"] <= made.end[target]
    assert state["x1"] >= made.start[target]


def test_click_on_empty_place_clears(show: Show) -> None:
    shown = show(make(300))
    shown.js("memscope.select(5)")
    assert shown.state()["selected"] is not None
    x, y = shown.at("gantt", 30_500_000_000, 5)  # inside the gap no block lives
    shown.page.mouse.click(x, y)
    shown.settle()
    assert shown.state()["selected"] is None


def test_hover_on_a_bar(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    shown.set_range(6_000_000_000, 12_000_000_000)
    for block in shown.state()["barIds"]:
        box = shown.js("id => memscope.boxOf(id)", block)
        if box["right"] - box["left"] < 14:
            continue
        shown.page.mouse.move((box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
        shown.settle()
        text = shown.tip()
        if f"#{block}" in text:
            break
    else:
        raise AssertionError("no bar answered")
    row = int(np.flatnonzero(made.columns["id"] == block)[0])
    start, name = made.columns["start"][row], made.columns["name"][row]
    assert made.header["names"][name] in text
    alive = int((made.live(int(start)) & (made.name == name)).sum())
    assert f"{alive:,} of this operator" in text
    assert CLASSES[made.columns["class"][row]][1] in text
    assert ("open (not released)" in text) == (made.columns["class"][row] == OPEN)


def test_short_huge_block_is_seen_and_told(show: Show) -> None:
    made = make(5000, giant=True)
    shown = show(made)
    t = 20_000_000_000
    row = shown.state()["rows"].index("aten::tanh")
    row_px = shown.state()["rowPx"]
    image = shown.image("gantt")
    x = int(t / SPAN[1] * shown.state()["width"])
    column = image[row * row_px + 3 : (row + 1) * row_px - 3, x - 2 : x + 3]
    full = near(column, theme.light("classes")["transient"], 12).any(axis=1)  # its colour without any paleness
    assert full.mean() > 0.9  # the full height of the row
    x_px, y_px = shown.at("gantt", t, row * row_px + row_px / 2)
    for dx in (0, 1, -1, 2, -2):
        shown.page.mouse.move(x_px + dx, y_px)
        shown.settle()
        text = shown.tip()
        if "1.00 GiB" in text:
            break
    assert "highest in this column\t1.00 GiB" in text
    assert "20,000 ms" in text
    assert "1.00 GiB for 4.000 µs" in text
    shown.page.mouse.click(x_px + dx, y_px)
    shown.settle()
    assert made.size[shown.state()["selected"]] == 1 << 30


def test_area_equals_highest_live_bytes(show: Show) -> None:
    """Every pixel column of a row says the highest live bytes of the blocks not drawn, as numpy finds them."""
    made = make(1500)
    shown = show(made)
    shown.set_range(3_000_000_000, 21_000_000_000)
    areas = shown.js(
        """(() => { const d = memscope.drawn, s = memscope.series, r = memscope.rows;
             return { max: Array.from(d.areas.max), columns: d.areas.columns, step: d.areas.step,
                      inArea: Array.from(d.inArea),
                      row: Array.from(s.name, n => r.rowOf[n]), start: Array.from(s.start), end: Array.from(s.end),
                      size: Array.from(s.size), rows: r.nRows, x0: memscope.view.x0, x1: memscope.view.x1 }; })()"""
    )
    start, end, size, row = (np.array(areas[key]) for key in ("start", "end", "size", "row"))
    chosen = np.array(areas["inArea"]) == 1
    assert chosen.any()
    got = np.array(areas["max"]).reshape(areas["rows"], areas["columns"])
    width = areas["step"]
    rng = np.random.default_rng(0)
    busy = np.argwhere(got > 0)
    picks = [*busy[rng.choice(len(busy), 150)].tolist(), *np.argwhere(got == 0)[:50].tolist()]
    for r, c in picks:
        low, high = areas["x0"] + c * width, min(areas["x0"] + (c + 1) * width, areas["x1"])
        mine = chosen & (row == r) & (start < high) & (end > low)
        instants = [low, *start[mine & (start >= low)]]
        wanted = max(int(size[mine & (start <= t) & (end > t)].sum()) for t in instants)
        assert abs(got[r, c] - wanted) < 1, (r, c)


def test_budget_and_status(show: Show) -> None:
    made = make(60_000, second=False)
    shown = show(made)
    shown.page.get_by_role("searchbox").fill("linear")
    shown.settle()
    shown.set_range(1_000_000_000, 9_000_000_000)
    state = shown.state()
    assert 0 < state["bars"] <= 6000
    assert f"{state['inView']:,} blocks in view" in state["status"]
    assert f"{state['bars']:,} drawn one by one" in state["status"]
    op = [k for k, name in enumerate(made.header["names"]) if "linear" in name]
    inside = np.isin(made.name, op) & (made.start < state["x1"]) & (made.end > state["x0"])
    assert state["inView"] == inside.sum()
    assert f"{int((inside & (made.end == made.start)).sum())} without length" in state["status"]
    lives = shown.js("Array.from(memscope.drawn.bars, i => memscope.series.end[i] - memscope.series.start[i])")
    assert lives == sorted(lives, reverse=True)


def test_row_label_filters(show: Show) -> None:
    shown = show(make(2000))
    name = shown.state()["rows"][1]
    shown.page.locator(".ms-row").nth(1).click()
    shown.settle()
    assert name in shown.state()["rows"]
    assert all(name in row for row in shown.state()["rows"])
    assert shown.page.get_by_role("searchbox").input_value() == name
