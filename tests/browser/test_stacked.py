"""Stacked areas: bands that add up to allocated, and series side by side that are never added."""

from __future__ import annotations

import numpy as np
import pytest
from browser.pages import Show, Shown
from browser.pixels import near
from browser.synthetic import HOSTILE, Synthetic, make
from browser.test_views import column_tops, open_view

from memscope_nb.view import theme

pytestmark = pytest.mark.browser

S = 1_000_000_000
PLAN = """(k => ({ t: Array.from(k.plan.t), total: Array.from(k.plan.total), sums: Array.from(k.plan.sums),
  older: Array.from(k.plan.older), wrong: k.plan.wrong, bands: k.bands.map(b => b.label)
}))(memscope.views.kept.stacked)"""


def _site(made: Synthetic) -> np.ndarray:
    """Site frame of every block; -1 without a stack."""
    header = made.header
    of_stack = [frames[site] for frames, site in zip(header["stacks"], header["sites"], strict=True)]
    return np.array([of_stack[s - 1] if s else -1 for s in made.columns["stack"]])


@pytest.mark.parametrize(("n", "key"), [(500, "class"), (3000, "operator"), (3000, "site"), (200_000, "class")])
def test_bands_add_up_to_the_curve(show: Show, n: int, key: str) -> None:
    made = make(n, second=False)
    shown = show(made)
    open_view(shown, "stacked")
    shown.page.locator(".ms-view-bar select").select_option(key)
    shown.settle()
    plan = shown.js(PLAN)
    columns, n_bands = len(plan["t"]), len(plan["bands"])
    np.testing.assert_array_equal(np.array(plan["total"], dtype=float), column_tops(made, 0, 60 * S, columns))
    sums = np.array(plan["sums"]).reshape(columns, n_bands)
    assert plan["wrong"] == 0
    recorded = ~np.isnan(np.array(plan["total"], dtype=float))
    older = np.array(plan["older"], dtype=float)
    np.testing.assert_array_equal((sums.sum(axis=1) + older)[recorded], np.array(plan["total"], float)[recorded])
    group = {"class": lambda: made.columns["class"], "operator": lambda: made.name, "site": lambda: _site(made)}[key]()
    weight = {g: (made.size * (made.end - made.start).astype(float))[group == g].sum() for g in np.unique(group)}
    ranked = sorted((g for g in weight if weight[g]), key=lambda g: (-weight[g], g))
    wanted = sorted(ranked) if key == "class" else ranked[:10]
    for c in np.flatnonzero(recorded)[:: max(columns // 25, 1)]:
        alive = made.live(plan["t"][c])
        parts = [made.size[alive & (group == g)].sum() for g in wanted]
        if key != "class":
            parts.append(made.size[alive & ~np.isin(group, wanted)].sum())
        assert sums[c].tolist() == parts
    if key != "class":
        assert plan["bands"][-1] == f"rest: {len(ranked) - 10} more"
    assert shown.page.locator(".ms-view-legend .ms-layer-key").count() == n_bands + 1


def test_hover_lists_terms_that_add_up(show: Show) -> None:
    made = make(2000, second=False)
    shown = show(made)
    open_view(shown, "stacked")
    plan = shown.js(PLAN)
    column = int(np.nanargmax(np.array(plan["total"], dtype=float)))
    at = (column + 0.5) / len(plan["t"]) * 60 * S
    tip = shown.hover("stack", at, 380)
    lines = dict(line.split("\t") for line in tip.splitlines() if "\t" in line)
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    sizes = {key: float(text.split()[0]) * units[text.split()[1]] for key, text in lines.items()}
    total = sizes.pop("allocated")
    assert total == pytest.approx(made.header["series"][0]["peak"]["allocated"][1], rel=1e-2)
    assert sum(sizes.values()) == pytest.approx(total, rel=1e-2)
    assert f"at {round(plan['t'][column]) / 1e6:,.6f}".rstrip("0") in tip


def test_colours_are_painted_in_order(show: Show) -> None:
    made = make(2000, second=False)
    shown = show(made)
    open_view(shown, "stacked")
    image = shown.image("stack")
    for name in ("step", "phase"):
        assert near(image, theme.light("classes")[name], 10).sum() > 200
    column = image[:, int(image.shape[1] * 0.15)]
    grey = np.flatnonzero(near(column[None], theme.light("older"), 10)[0])
    assert grey.size > 50
    assert grey.max() >= image.shape[0] - 3  # the older band lies on the axis


def test_series_are_side_by_side(show: Show) -> None:
    made = make(2000)
    shown = show(made)
    open_view(shown, "stacked")
    shown.page.locator(".ms-view-bar select").select_option("pool")
    shown.settle()
    tops = [made.header["series"][k]["peak"]["allocated"][1] for k in range(2)]
    assert shown.js("memscope.views.kept.stacked.plan.highest") == tops
    assert shown.page.locator(".ms-strip-label").all_inner_texts() == ["PTA", "GE"]
    owner = np.array(shown.js("Array.from(memscope.views.kept.stacked.raster.owner)"))
    height, width = shown.js("(r => [r.height, r.width])(memscope.views.kept.stacked.raster)")
    owner = owner.reshape(height, width)
    strip = shown.js("memscope.views.kept.stacked.plan.strip")
    for k in range(2):  # one scale for both, each on its own base line
        rows = owner[k * height // 2 : (k + 1) * height // 2]
        filled = (rows != -1).sum(axis=0).max()
        assert filled == pytest.approx(tops[k] / strip * height / 2, abs=1)
    tip = shown.hover("stack", 3_000_000_000, 100)
    for k in range(2):
        value = made.value("allocated", 3_000_000_000, k)
        assert f"{value / 2**20:.1f} MiB"[:5] in tip
    assert "not added to each other" in shown.state()["status"]


def test_owners_where_there_are_some_and_hostile_ones_as_text(show: Show) -> None:
    made = make(1500, second=False)
    assert_no_owner = show(made)
    open_view(assert_no_owner, "stacked")
    assert assert_no_owner.page.locator(".ms-view-bar option").all_inner_texts() == ["lifetime", "operator", "site"]
    made.header["owners"] = [HOSTILE[0], "model@weight"]
    made.columns["owner"] = made.columns["id"] % 3
    shown = show(made)
    open_view(shown, "stacked")
    shown.page.locator(".ms-view-bar select").select_option("owner")
    shown.settle()
    legend = " ".join(shown.page.locator(".ms-view-legend bdi").all_inner_texts())
    assert HOSTILE[0][:20] in legend
    assert "model@weight" in legend
    assert "no owner" in legend
    assert shown.page.locator("img").count() == 0


def test_choice_and_filter_survive_a_change_of_view(show: Show) -> None:
    made = make(1500, second=False)
    shown: Shown = show(made)
    open_view(shown, "stacked")
    shown.page.locator(".ms-view-bar select").select_option("operator")
    open_view(shown, "blocks")
    open_view(shown, "stacked")
    assert shown.page.locator(".ms-view-bar select").input_value() == "operator"
    assert shown.page.locator(".ms-view-legend .ms-layer-key").count() == 12
    shown.js("memscope.setFilters({ minSize: 65537 })")
    shown.settle()
    plan = shown.js(PLAN)
    sums = np.array(plan["sums"]).reshape(len(plan["t"]), len(plan["bands"]))
    assert plan["bands"][-1] == "hidden by filters"
    c = int(np.nanargmax(np.array(plan["total"], dtype=float)))
    assert sums[c, -1] == made.size[made.live(plan["t"][c]) & (made.size <= 65536)].sum()
    assert plan["wrong"] == 0
