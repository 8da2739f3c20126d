"""Rows: grouping, filters, focus, selection of several blocks, colours. Every outcome is computed again in numpy."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from browser.pages import Show, Shown
from browser.pixels import near
from browser.synthetic import CLASSES, OPEN, RECORDED, SPAN, Synthetic, make

from memscope_nb.view import theme

pytestmark = pytest.mark.browser

S = 1_000_000_000
Mask = npt.NDArray[np.bool_]


def _site(made: Synthetic, stack: int) -> str:
    if not stack:
        return "(no stack)"
    return str(made.header["frames"][made.header["stacks"][stack - 1][made.header["sites"][stack - 1]]])


def _ranked(made: Synthetic, labels: list[str], t: int, mask: Mask) -> list[str]:
    """Labels by bytes alive at an instant, then by bytes x time."""
    alive: dict[str, int] = defaultdict(int)
    area: dict[str, float] = defaultdict(float)
    live = made.live(t)
    for k in np.flatnonzero(mask & (made.series == 0)):
        alive[labels[k]] += int(made.size[k]) if live[k] else 0
        area[labels[k]] += float(made.size[k]) * float(made.end[k] - made.start[k])
    return sorted(area, key=lambda label: (-alive[label], -area[label]))


def _names(made: Synthetic) -> list[str]:
    return [made.header["names"][op] for op in made.name]


def _peak(made: Synthetic) -> int:
    return int(made.header["series"][0]["peak"]["allocated"][0])


def _with_owners(made: Synthetic) -> Synthetic:
    made.header["owners"] = ["weights", "<b>optimizer</b>", "activations"]
    made.columns["owner"] = np.where(made.name % 5 == 4, 0, made.name % 3 + 1).astype(np.int64)
    return made


def test_rows_by_site(show: Show) -> None:
    made = make(2500)
    shown = show(made)
    shown.select("Rows by").select_option("site")
    shown.settle()
    sites = [_site(made, k) for k in made.columns["stack"]]
    wanted = _ranked(made, sites, _peak(made), np.ones(len(sites), bool))
    state = shown.state()
    assert state["rows"] == wanted[:30]
    assert state["sum"]["difference"] == 0
    assert shown.page.locator(".ms-rows-title").inner_text().startswith("site, bytes at the peak")
    label = shown.page.locator(".ms-row-name").nth(1)
    assert "/" not in label.inner_text()  # folders are left out …
    assert wanted[1] in label.locator("..").get_attribute("title")  # … but not forgotten
    label.click()  # shows that row only
    shown.settle()
    assert shown.page.get_by_role("searchbox").input_value() == wanted[1]
    assert shown.select("in").input_value() == "stack"
    assert wanted[1] in shown.state()["rows"]


def test_rows_by_module_path_follow_the_rule(show: Show) -> None:
    made = make(1500)
    shown = show(made)
    shown.select("Rows by").select_option("path")
    shown.settle()
    assert any(row.startswith("model/layer_") for row in shown.state()["rows"])
    rule = shown.page.get_by_label("Rule")
    rule.fill(r"layer_(\d)")
    rule.press("Enter")
    shown.settle()
    rows = set(shown.state()["rows"])
    assert rows <= {*"0123456789", "(no stack)", "(no frame matches the rule)"}
    assert len(rows & set("0123456789")) >= 4
    rule.fill("layer_(")
    rule.press("Enter")
    shown.settle()
    assert "Not a rule" in shown.page.locator(".ms-error").inner_text()
    assert set(shown.state()["rows"]) == rows


def test_rows_by_owner_and_their_toggles(show: Show) -> None:
    made = _with_owners(make(1500))
    shown = show(made)
    owners = ["(no owner)", *made.header["owners"]]
    labels = [owners[k] for k in made.columns["owner"]]
    every = np.ones(len(labels), bool)
    shown.select("Rows by").select_option("owner")
    shown.settle()
    assert shown.state()["rows"] == _ranked(made, labels, _peak(made), every)
    before = shown.state()["inView"]
    shown.page.get_by_label("<b>optimizer</b>").uncheck()
    shown.settle()
    left = np.array([label != "<b>optimizer</b>" for label in labels])
    assert shown.state()["rows"] == _ranked(made, labels, _peak(made), left)
    assert shown.state()["inView"] == before - int((~left & (made.series == 0)).sum())
    assert shown.state()["sum"]["hidden"] == made.size[made.live(_peak(made)) & ~left].sum()
    assert shown.state()["sum"]["difference"] == 0


def test_owner_toggles_need_enough_owned_bytes(show: Show) -> None:
    made = _with_owners(make(400))
    made.columns["owner"] = np.where(np.arange(len(made.size)) % 20 == 0, 1, 0).astype(np.int64)
    shown = show(made)
    assert shown.page.locator("[data-owner]").count() == 0


def test_rows_below_a_frame(show: Show) -> None:
    made = make(1500)
    shown = show(made)
    block = next(k for k in shown.state()["barIds"] if made.columns["stack"][k])
    shown.js("id => memscope.selectId(id)", block)
    shown.settle()
    outer = made.header["stacks"][made.columns["stack"][block] - 1][-2]
    text = made.header["frames"][outer]
    item = shown.page.locator(".ms-frame", has_text=text).last
    item.get_by_role("button", name="Group rows by what this frame calls").click()
    shown.settle()

    def label(stack: int) -> str:
        if not stack:
            return "(no stack)"
        frames = made.header["stacks"][stack - 1]
        if outer not in frames:
            return "(not below this frame)"
        at = len(frames) - 1 - frames[::-1].index(outer)
        inner = [f for f in frames[:at][::-1] if not made.header["plumbing"][f]]
        return str(made.header["frames"][inner[0]]) if inner else "(asked for there)"

    labels = [label(k) for k in made.columns["stack"]]
    assert shown.state()["rows"] == _ranked(made, labels, _peak(made), np.ones(len(labels), bool))[:30]
    assert shown.select("Rows by").input_value() == "frame"


def test_search_in_stacks_and_patterns(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    search, where = shown.page.get_by_role("searchbox"), shown.select("in")
    mine = made.series == 0

    def in_view() -> int:
        shown.settle()
        return int(shown.state()["inView"])

    often = np.bincount([f for k in made.columns["stack"] if k for f in set(made.header["stacks"][k - 1])])
    often[[0, 1, 2, 3, 4, 5, *range(len(often) - 2, len(often))]] = 0  # plumbing and main are in all of them
    layer = made.header["frames"][int(often.argmax())].split(".")[0].split("/")[1]
    frames = np.array([layer + "." in text for text in made.header["frames"]])
    by_stack = np.array([k > 0 and bool(frames[made.header["stacks"][k - 1]].any()) for k in made.columns["stack"]])
    by_name = np.array([layer in name for name in _names(made)])
    assert by_stack[mine].sum() > 10
    assert not by_name.any()
    search.fill(f"{layer}.")
    assert in_view() == 0
    where.select_option("stack")
    assert in_view() == by_stack[mine].sum()
    search.fill("/^aten::(mm|BMM)$/")
    where.select_option("name")
    wanted = np.isin(_names(made), ["aten::mm", "aten::bmm"])
    assert in_view() == wanted[mine].sum()
    assert sorted(shown.state()["rows"]) == ["aten::bmm", "aten::mm"]
    search.fill("/aten::(/")
    shown.settle()
    assert "Not a pattern" in shown.page.locator(".ms-error").inner_text()
    assert in_view() == wanted[mine].sum()  # what was shown stays
    search.fill("")
    assert in_view() == mine.sum()


@pytest.mark.parametrize("life", ["allocated", "released", "either", "open"])
def test_blocks_by_what_happens_in_view(show: Show, life: str) -> None:
    made = make(2000)
    shown = show(made)
    x0, x1 = 12 * S, 15 * S
    shown.set_range(x0, x1)
    shown.select("Blocks").select_option(life)
    shown.settle()
    mine = (made.series == 0) & (made.start <= x1) & (made.end > x0)
    is_open = made.columns["class"] == OPEN
    allocated = (made.start >= x0) & (made.start <= x1)
    released = ~is_open & (made.end >= x0) & (made.end <= x1)
    wanted = {"allocated": allocated, "released": released, "either": allocated | released, "open": is_open}[life]
    assert shown.state()["inView"] == (mine & wanted).sum() > 0
    visible = set(shown.js("Array.from(memscope.visiblePositions())"))
    zero = (made.series == 0) & (made.start == made.end) & (made.start >= x0) & (made.start <= x1)
    assert visible == set(np.flatnonzero((mine | zero) & wanted).tolist())


def test_a_click_on_the_curve_ranks_the_rows_there(show: Show) -> None:
    made = make(2500)
    shown = show(made)
    first = shown.state()["rows"]
    x, y = shown.at("curve", 45 * S, 60)
    shown.page.mouse.click(x, y)
    shown.settle()
    state = shown.state()
    t = int(state["focus"]["true"])
    assert abs(t - 45 * S) < 0.1 * S
    wanted = _ranked(made, _names(made), t, np.ones(len(made.size), bool))
    assert state["rows"] == wanted[:30] != first
    assert state["sum"]["allocated"] == made.value("allocated", t)
    assert state["sum"]["rows"] + state["sum"]["rest"] == made.size[made.live(t)].sum()
    assert state["sum"]["older"] == made.value("older", t)
    assert state["sum"]["difference"] == 0
    assert "= allocated" in shown.page.locator(".ms-sum").inner_text()
    lines = shown.page.locator(".ms-focus:visible")
    assert lines.count() == 2
    shown.js("memscope.openView('map')")
    shown.settle()
    assert lines.count() == 2  # one on the curve, one on what lies below it
    shown.js("memscope.openView('blocks')")
    shown.page.keyboard.press("Escape")
    shown.settle()
    assert shown.state()["rows"] == first
    assert not shown.page.locator(".ms-focus").first.is_visible()


def test_a_wrong_sum_is_told(show: Show) -> None:
    shown = show(make(400))
    shown.js("memscope.series.curves.allocated.v.forEach((v, i, all) => (all[i] = v + 4096))")
    shown.js("memscope.redrawRows()")
    shown.settle()
    assert "differs by 4.00 KiB" in shown.page.locator(".ms-sum").inner_text()


def _click_bar(shown: Shown, box: dict[str, float], **options: Any) -> None:
    shown.page.mouse.click((box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2, **options)
    shown.settle()


def test_several_blocks_by_shift_and_by_box(show: Show) -> None:
    made = make(1200)
    shown = show(made)
    shown.js("() => { memscope.host.onSelect = ids => { window.told = ids; }; }")
    wide = []
    for block in shown.state()["barIds"]:
        box = shown.js("id => memscope.boxOf(id)", block)
        if box["right"] - box["left"] >= 14 and box["bottom"] - box["top"] >= 4:
            wide.append((block, box))
    (_, box_one), (_, box_two) = wide[-1], wide[-2]
    _click_bar(shown, box_one)
    first = shown.state()["selection"]
    assert len(first) == 1
    shown.page.keyboard.down("Shift")
    _click_bar(shown, box_two)
    shown.page.keyboard.up("Shift")
    both = shown.state()["selection"]
    assert len(both) == 2
    assert set(shown.js("window.told")) == set(both) >= set(first)
    total = int(made.size[np.isin(made.columns["id"], both)].sum())
    panel = shown.page.locator(".ms-panel").inner_text()
    assert "2 blocks selected" in panel
    assert f"{total:,} B" in panel
    assert len(shown.drawn("selected", "left")) == 2
    shown.page.keyboard.press("Escape")
    shown.settle()
    assert shown.state()["selection"] == []
    shown.select("Drag").select_option("select")
    before = shown.state()["range"]
    left, top = shown.at("gantt", 8 * S, 0)
    right, bottom = shown.at("gantt", 20 * S, shown.state()["rowPx"] * 3 - 2)
    shown.page.mouse.move(left, top + 1)
    shown.page.mouse.down()
    shown.page.mouse.move((left + right) / 2, (top + bottom) / 2, steps=4)
    shown.settle()
    assert shown.page.locator(".ms-rubber").is_visible()
    shown.page.mouse.move(right, bottom, steps=4)
    shown.page.mouse.up()
    shown.settle()
    assert shown.state()["range"] == before
    assert not shown.page.locator(".ms-rubber").is_visible()
    got = set(shown.state()["selection"])
    rows = shown.state()["rows"][:3]
    slack = 60 * S / shown.state()["width"]
    mine = (made.series == 0) & np.isin(_names(made), rows) & (made.end > made.start)

    def inside(room: float) -> set[int]:
        return set(np.flatnonzero(mine & (made.start <= 20 * S + room) & (made.end >= 8 * S - room)).tolist())

    assert inside(-slack) <= got <= inside(slack)
    assert len(got) > 5


def test_selecting_ids_reaches_the_page(show: Show) -> None:
    made = make(600)
    shown = show(made)
    ids = [3, 5, 8]
    shown.js("ids => memscope.selectIds(ids, false)", ids)
    shown.settle()
    mine = [k for k in ids if made.series[k] == 0]
    assert shown.state()["selection"] == mine
    shown.js("memscope.selectIds([])")
    assert shown.state()["selection"] == []


def test_colours_by_operator_owner_and_size(show: Show) -> None:
    made = _with_owners(make(1500))
    shown = show(made)
    orange = theme.light("classes")["step"]
    key = shown.page.get_by_role("group", name="Colours", exact=True)
    assert not key.is_visible()
    chosen = shown.select("Colour by")
    chosen.select_option("operator")
    shown.settle()
    assert key.is_visible()
    mine = made.series == 0
    area = made.size[mine].astype(float) * (made.end - made.start)[mine]
    sums = np.bincount(made.name[mine], area, minlength=len(made.header["names"]))
    ranked = [made.header["names"][op] for op in np.argsort(-sums, kind="stable")]
    shown_key = key.locator(".ms-data").all_inner_texts()
    assert shown_key == ranked[:12]
    assert near(shown.image("gantt"), theme.HUES[0]).sum() > 50
    drawn = set(shown.js("memscope.figures.model('bars-data').data.color"))
    assert drawn <= {*theme.HUES, theme.light("rest")}
    assert len(drawn) > 6
    chosen.select_option("owner")
    shown.settle()
    assert set(key.locator(".ms-data").all_inner_texts()) == {"(no owner)", *made.header["owners"]}
    chosen.select_option("size")
    shown.settle()
    largest = int(np.argmax(np.where(mine & (made.end - made.start > S), made.size, 0)))
    colours = shown.js("memscope.figures.model('bars-data').data.color")
    bars = shown.js("Array.from(memscope.drawn.bars, i => memscope.series.size[i])")
    assert len({c for c, size in zip(colours, bars, strict=True) if size == made.size[largest]}) == 1
    by_size = sorted(zip(bars, colours, strict=True))
    changes = sum(a[1] != b[1] for a, b in itertools.pairwise(by_size))
    assert changes == len(set(colours)) - 1 > 2  # a larger block never has a colour of smaller ones
    chosen.select_option("class")
    shown.settle()
    assert not key.is_visible()
    assert near(shown.image("gantt"), orange).sum() > 100


def test_groupings_without_facts_are_not_offered(show: Show) -> None:
    made = make(300)
    made.header["stacks"], made.header["sites"] = [], []
    made.columns["stack"][:] = 0
    shown = show(made)
    assert shown.js("Array.from(memscope.refs.grouping.options, o => o.value)") == ["operator"]
    assert shown.js("Array.from(memscope.refs.colouring.options, o => o.value)") == ["class", "operator", "size"]
    assert not shown.select("in").is_visible()


def test_filters_and_focus_work_in_folded_time(show: Show) -> None:
    made = make(1500)
    made.header["idle"] = [[RECORDED[0][1], RECORDED[1][0]]]
    shown = show(made)
    shown.set_range(*SPAN)
    t = int(made.instants()[-800])
    shown.js("t => memscope.setFocus(memscope.shown(t))", t)
    shown.page.get_by_label(dict(CLASSES)["step"]).uncheck()
    shown.settle()
    left = made.columns["class"] != 2
    state = shown.state()
    assert state["focus"]["true"] == t
    assert state["rows"] == _ranked(made, _names(made), t, left)[:30]
    assert state["sum"]["hidden"] == made.size[made.live(t) & ~left].sum()
    assert state["sum"]["allocated"] == made.value("allocated", t)
    assert state["sum"]["difference"] == 0
