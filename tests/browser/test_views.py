"""The strip of views: tabs, keys, the address; and the block map, whose top edge is the allocated curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from browser.pages import Show, Shown
from browser.pixels import near
from browser.synthetic import RECORDED, Synthetic, make

from memscope_nb.view import theme

pytestmark = pytest.mark.browser

S = 1_000_000_000


def open_view(shown: Shown, key: str) -> None:
    shown.page.locator(f"[data-view={key}]").click()
    shown.settle()
    shown.settle()


def column_tops(made: Synthetic, x0: float, x1: float, columns: int) -> npt.NDArray[np.float64]:
    """Highest allocated bytes in each pixel column, by definition; NaN where nothing is recorded."""
    t = np.append(made.instants(), x1)
    _, level = made.allocated(0, int(t[-1]))
    t, level = np.unique(np.concatenate([[0], t[t <= x1]])), level
    edges = x0 + (x1 - x0) / columns * np.arange(columns + 1)
    out = np.full(columns, np.nan)
    for c in range(columns):
        first = np.searchsorted(t, edges[c], "right") - 1
        last = np.searchsorted(t, edges[c + 1], "left" if c < columns - 1 else "right")
        high = level[max(first, 0) : last].max()
        out[c] = np.nan if high < 0 else high
    return out


def test_tabs_by_mouse_and_keys(show: Show) -> None:
    shown = show(make(300))
    tabs = shown.page.get_by_role("tab")
    assert tabs.all_inner_texts()[:2] == ["Blocks over time", "Block map"]
    assert shown.page.locator(".ms-gantt").is_visible()
    assert not shown.page.locator(".ms-stack").is_visible()
    open_view(shown, "map")
    assert not shown.page.locator(".ms-gantt").is_visible()
    assert shown.page.locator(".ms-stack").is_visible()
    assert shown.page.get_by_role("tab", selected=True).all_inner_texts() == ["Block map"]
    panel = shown.page.get_by_role("tabpanel")
    assert panel.get_attribute("aria-labelledby") == tabs.nth(1).get_attribute("id")
    assert tabs.nth(1).get_attribute("aria-controls") == panel.get_attribute("id")
    before = shown.state()
    tabs.nth(1).focus()
    for key, wanted in (("ArrowLeft", 0), ("ArrowLeft", tabs.count() - 1), ("Home", 0), ("End", tabs.count() - 1)):
        shown.page.keyboard.press(key)
        shown.settle()
        chosen = [tab.get_attribute("aria-selected") == "true" for tab in tabs.all()]
        assert chosen.index(True) == wanted, key
        assert sum(chosen) == 1
        assert shown.js("document.activeElement.getAttribute('aria-selected')") == "true"
        assert [tab.get_attribute("tabindex") == "0" for tab in tabs.all()] == chosen
    after = shown.state()
    assert (after["x0"], after["x1"]) == (before["x0"], before["x1"])  # the same keys pan the plots


def test_view_is_kept_in_the_address(show: Show, opener: Any, tmp_path: Any) -> None:
    made = make(300, segments=2, segment=0)
    shown = show(made)
    open_view(shown, "map")
    shown.set_range(2 * S, 9 * S)
    shown.page.wait_for_timeout(400)
    assert shown.js("location.hash") == "#x0=2000000000&x1=9000000000&view=map"
    assert shown.page.locator("nav a[rel=next]").get_attribute("href").endswith("#x0=2000000000&x1=9000000000&view=map")
    again = opener(tmp_path / "memory_timeline_00.html", fragment="#x0=2000000000&x1=9000000000&view=map")
    state = again.state()
    assert (state["tab"], state["x0"], state["x1"]) == ("map", 2 * S, 9 * S)
    assert again.page.locator(".ms-stack").is_visible()
    assert again.js("memscope.views.kept.map.plan.t.length") > 400  # drawn at its full width
    for fragment in ("#view=nothing", "#view=__proto__", "#view=" + "x" * 9000):
        other = opener(tmp_path / "memory_timeline_00.html", fragment=fragment)
        assert other.state()["tab"] == "blocks"


@pytest.mark.parametrize(("n", "low", "high"), [(400, 0, 60), (200_000, 0, 60), (200_000, 12, 12.4)])
def test_top_edge_of_the_block_map_is_the_curve(show: Show, n: int, low: float, high: float) -> None:
    made = make(n, second=False, giant=True)
    shown = show(made)
    open_view(shown, "map")
    shown.set_range(low * S, high * S)
    plan = shown.js(
        """(k => ({ total: Array.from(k.plan.total), wrong: k.plan.wrong, width: k.raster.width,
             height: k.raster.height, rest: Array.from(k.plan.rest), owner: Array.from(k.raster.owner),
             range: [memscope.figures.model('stack').y_range.start, memscope.figures.model('stack').y_range.end],
             chosen: k.picked.chosen.length, inView: k.picked.inView }))(memscope.views.kept.map)"""
    )
    wanted = column_tops(made, low * S, high * S, plan["width"])
    np.testing.assert_array_equal(np.array(plan["total"], dtype=float), wanted)
    assert plan["wrong"] == 0
    assert plan["chosen"] == min(plan["inView"], 3000)
    owner = np.array(plan["owner"]).reshape(plan["height"], plan["width"])
    heights = (owner != -1).sum(axis=0)
    bottom, top = plan["range"]
    exact = np.nan_to_num((wanted - bottom) * plan["height"] / (top - bottom))
    assert np.abs(heights - exact).max() <= 0.5 + 1e-6
    for column in np.flatnonzero(heights)[::37]:
        assert (owner[-heights[column] :, column] != -1).all()  # no hole below the top
    image = shown.image("stack")
    assert image.shape[:2] == owner.shape
    painted = ~near(image, "#ffffff", 3)
    busy = np.flatnonzero(heights > 40)
    assert painted[plan["height"] - 20, busy].mean() > 0.99


def test_block_map_adds_up_at_every_event(show: Show) -> None:
    """Older, the blocks one by one and the rest are the recorded total, at every instant and for any choice."""
    made = make(400, second=False)
    shown = show(made)
    open_view(shown, "map")
    t = [int(at) for at in made.instants() if made.recorded(int(at))]
    got = shown.js(
        """t => [7, 3000].map(most => {
          const s = memscope.series;
          const { chosen } = memscope.stacking.chooseLargest(s, { x0: 0, x1: 6e10 }, most);
          const out = [];
          memscope.stacking.sweepBlocks(s, chosen, Float64Array.from(t), (k, stack) => out.push(
            { older: stack.older, rest: stack.rest, ids: Array.from(stack.blocks.slice(0, stack.n), i => s.id[i]) }));
          return { out, chosen: Array.from(chosen, i => s.id[i]) };
        })""",
        t,
    )
    weight = made.size * (made.end - made.start)
    for most, found in zip((7, 3000), got, strict=True):
        largest = sorted(np.argsort(-weight, kind="stable")[:most].tolist())
        assert [i for i in found["chosen"] if weight[i]] == [i for i in largest if weight[i]]
        for at, stack in zip(t, found["out"], strict=True):
            alive = np.flatnonzero(made.live(at))
            assert stack["ids"] == [i for i in alive.tolist() if i in set(found["chosen"])]
            others = [i for i in alive.tolist() if i not in set(found["chosen"])]
            assert stack["rest"] == made.size[others].sum()
            total = stack["older"] + made.size[stack["ids"]].sum() + stack["rest"]
            assert total == made.value("allocated", at)


def test_block_map_hover_and_click(show: Show) -> None:
    made = make(800, second=False)
    shown = show(made)
    open_view(shown, "map")
    place = shown.js(
        """(k => { // the largest part of the picture that one block owns in one column
          const { owner, width, height } = k.raster;
          let best = { rows: 0 };
          for (let c = 0; c < width; c += 1) {
            for (let y = 0; y < height; ) {
              const mine = owner[y * width + c];
              let to = y;
              while (to < height && owner[to * width + c] === mine) to += 1;
              const sides = [c - 2, c + 2].map(x => x >= 0 && x < width && owner[y * width + x]);
              const wide = sides[0] === mine && sides[1] === mine;
              if (mine >= 0 && wide && to - y > best.rows) {
                best = { rows: to - y, x: c / width, y: (y + to) / 2, block: memscope.series.id[mine] };
              }
              y = to;
            }
          }
          return best;
        })(memscope.views.kept.map)"""
    )
    x0, x1 = shown.state()["x0"], shown.state()["x1"]
    text = shown.hover("stack", x0 + place["x"] * (x1 - x0), place["y"])
    block = place["block"]
    assert f"#{block}" in text
    assert f"{made.size[block]:,} B" in text
    x, y = shown.at("stack", x0 + place["x"] * (x1 - x0), place["y"])
    shown.page.mouse.click(x, y)
    shown.settle()
    assert shown.state()["selected"] == block
    assert f"#{block}" in shown.page.locator(".ms-panel").inner_text()
    assert near(shown.image("stack"), theme.SELECTION, 40).sum() > 20
    gap = shown.hover("stack", (RECORDED[0][1] + RECORDED[1][0]) / 2, 200)
    assert gap == "no recording here"
    shown.page.get_by_label("Largest").select_option("300")
    shown.settle()
    assert shown.js("memscope.views.kept.map.picked.chosen.length") == 300
    tip = shown.hover("stack", 3.7 * S, shown.js("memscope.figures.frame('stack').height") - 4)
    column = shown.js(
        """(({ plan, picked }) => {
          const c = Math.floor(3.7 / 60 * plan.t.length);
          return { t: plan.t[c], rest: plan.rest[c], blocks: plan.restBlocks[c],
                   chosen: Array.from(picked.chosen, i => memscope.series.id[i]) };
        })(memscope.views.kept.map)"""
    )
    others = [i for i in np.flatnonzero(made.live(column["t"])).tolist() if i not in set(column["chosen"])]
    assert (column["rest"], column["blocks"]) == (made.size[others].sum(), len(others))
    assert f"rest · {len(others)} blocks" in tip
    assert f"older than the window\t{made.value('older', column['t']) / 2**20:.1f} MiB" in tip
    assert f"allocated\t{made.value('allocated', column['t']) / 2**20:.1f} MiB" in tip


def test_a_filtered_block_stays_in_the_total(show: Show) -> None:
    made = make(800, second=False)
    shown = show(made)
    open_view(shown, "map")
    total = shown.js("Array.from(memscope.views.kept.map.plan.total)")
    shown.js("memscope.setFilters({ minSize: 65537 })")
    shown.settle()
    kept = shown.js(
        """(({ plan, picked }) => ({
          total: Array.from(plan.total), wrong: plan.wrong, masked: picked.masked,
          small: Array.from(picked.chosen, i => memscope.series.size[i]).filter(size => size <= 65536).length,
        }))(memscope.views.kept.map)"""
    )
    assert kept["total"] == total
    assert (kept["wrong"], kept["small"]) == (0, 0)
    assert kept["masked"] == int(((made.size <= 65536) & (made.end > made.start)).sum())
    assert f"{kept['masked']:,} hidden by filters" in shown.state()["status"]
