"""Views follow what the rest of the page says: time axis, selection, filters, colours, theme, series."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from browser.pages import Show, Shown
from browser.pixels import decode_png, near
from browser.synthetic import RECORDED, Synthetic, make
from browser.test_views import column_tops, open_view

from memscope_nb.view import theme

pytestmark = pytest.mark.browser

S = 1_000_000_000
GAP = (RECORDED[0][1], RECORDED[1][0])


def _owned(shown: Shown, block: int) -> list[tuple[int, int]]:
    """Column and row of every pixel of the block map that belongs to a block."""
    return [
        tuple(at)
        for at in shown.js(
            """id => {
              const { owner, width } = memscope.views.kept.map.raster;
              const mine = memscope.series.id.indexOf(id);
              return Array.from(owner).flatMap((k, at) => k === mine ? [[at % width, Math.floor(at / width)]] : []);
            }""",
            block,
        )
    ]


@pytest.mark.parametrize("mode", ["folded", "steps"])
def test_numbers_stay_true_on_a_folded_axis(show: Show, tmp_path: Path, mode: str) -> None:
    made = make(1200, second=False)
    made.header["idle"] = [list(GAP)]
    shown = show(made)
    shown.js("mode => memscope.setTime(mode)", mode)
    shown.settle()
    for key in ("map", "stacked"):
        open_view(shown, key)
        plan = shown.js(
            """key => (({ t, total, wrong }) => ({ t: Array.from(t, memscope.trueAt), total: Array.from(total), wrong })
            )(memscope.views.kept[key].plan)""",
            key,
        )
        assert plan["wrong"] == 0
        total = np.array(plan["total"], dtype=float)
        assert np.nanmax(total) == made.header["series"][0]["peak"]["allocated"][1]
        for t, value in list(zip(plan["t"], total, strict=True))[::23]:
            if made.recorded(t):
                assert value == made.value("allocated", t)
        # In folded time a place right of the fold is far from the same place of the true axis.
        tip = shown.hover("stack", 40 * S, 420)
        assert "at 39," in tip or "at 40," in tip or "at 40 " in tip
    open_view(shown, "alive")
    shown.js("memscope.setFocus(memscope.shown(4e10))")
    shown.settle()
    assert "Alive at 40,000.000 ms" in shown.page.get_by_role("tab", selected=True).inner_text()
    assert shown.js("memscope.views.kept.alive.tree.root.bytes") == made.value("allocated", 40 * S)
    open_view(shown, "table")
    with shown.page.expect_download() as found:
        shown.page.get_by_role("button", name="as CSV").click()
    found.value.save_as(tmp_path / "saved.csv")
    rows = list(csv.DictReader((tmp_path / "saved.csv").read_text("utf-8").splitlines()))
    assert len(rows) == 1200
    t0 = int(made.header["t0_ns"])
    for row in rows:
        i = int(row["block_id"])
        assert (int(row["start_ns"]) - t0, int(row["duration_ns"])) == (made.start[i], made.end[i] - made.start[i])
    shown.page.locator(".ms-table th button").filter(has_text="duration").click()
    shown.settle()
    by = np.lexsort((np.arange(1200), made.start - made.end))[:500]
    assert shown.js("memscope.views.kept.table.rows.map(i => memscope.series.id[i])") == by.tolist()


def test_selected_blocks_are_outlined_and_shift_adds_one(show: Show) -> None:
    made = make(800, second=False)
    shown = show(made)
    open_view(shown, "map")
    weight = made.size * (made.end - made.start)
    first, second = (int(i) for i in np.argsort(-weight)[:2])
    x0, x1 = shown.state()["x0"], shown.state()["x1"]
    width = shown.js("memscope.views.kept.map.raster.width")
    for block, keys in ((first, []), (second, ["Shift"])):
        pixels = _owned(shown, block)
        column, row = pixels[len(pixels) // 2]
        x, y = shown.at("stack", x0 + (column + 0.5) / width * (x1 - x0), row + 0.5)
        for key in keys:
            shown.page.keyboard.down(key)
        shown.page.mouse.click(x, y)
        for key in keys:
            shown.page.keyboard.up(key)
        shown.settle()
    assert shown.state()["selection"] == [first, second]
    image = shown.image("stack")
    orange = near(image, theme.SELECTION, 40)
    for block in (first, second):
        columns = np.array([column for column, _ in _owned(shown, block)])
        rows = np.array([row for _, row in _owned(shown, block)])
        edge = orange[max(rows.min() - 1, 0) : rows.max() + 2, columns.min() : columns.max() + 1]
        assert edge.sum() > 20, block


def test_selected_block_is_stacked_whatever_its_size(show: Show) -> None:
    made = make(20_000, second=False)
    shown = show(made)
    open_view(shown, "map")
    shown.page.get_by_label("Largest").select_option("300")
    shown.settle()
    chosen = set(shown.js("Array.from(memscope.views.kept.map.picked.chosen, i => memscope.series.id[i])"))
    assert len(chosen) == 300
    small = next(i for i in range(20_000) if i not in chosen and made.end[i] - made.start[i] > 100_000)
    shown.js("id => memscope.selectId(id)", small)
    shown.settle()
    again = shown.js("Array.from(memscope.views.kept.map.picked.chosen, i => memscope.series.id[i])")
    assert small in again
    seen = "too small to be seen here" not in shown.state()["status"]
    assert seen == bool(_owned(shown, small))
    assert shown.js("memscope.views.kept.map.plan.wrong") == 0


def test_colours_and_theme_reach_the_block_map(show: Show) -> None:
    made = make(800, second=False)
    shown = show(made)
    open_view(shown, "map")
    assert near(shown.image("stack"), theme.light("classes")["step"], 6).sum() > 500
    shown.js("memscope.setColouring('operator')")
    shown.settle()
    image = shown.image("stack")
    assert near(image, theme.light("classes")["step"], 6).sum() < 0.5 * image.shape[0] * image.shape[1]
    assert sum(near(image, hue, 6).sum() > 40 for hue in theme.light("hues")) > 4
    shown.js("memscope.setColouring('class')")
    shown.page.emulate_media(color_scheme="dark")
    shown.settle()
    dark = theme.theme_json()["dark"]
    image = shown.image("stack")
    assert near(image, dark["classes"]["phase"], 6).sum() > 100
    assert near(image, theme.light("classes")["phase"], 6).sum() == 0
    open_view(shown, "stacked")
    assert near(shown.image("stack"), dark["classes"]["phase"], 6).sum() > 100


def test_filters_of_the_window_reach_table_and_map(show: Show) -> None:
    made = make(1500, second=False)
    shown = show(made)
    shown.js("memscope.setFilters({ life: 'allocated' })")
    shown.set_range(3 * S, 9 * S)
    started = np.flatnonzero((made.start >= 3 * S) & (made.start <= 9 * S))
    open_view(shown, "table")
    assert shown.js("Array.from(memscope.views.kept.table.blocks)") == started.tolist()
    open_view(shown, "map")
    chosen = shown.js("Array.from(memscope.views.kept.map.picked.chosen)")
    assert chosen == [i for i in started.tolist() if made.end[i] > made.start[i] and made.start[i] < 9 * S]
    assert shown.js("memscope.views.kept.map.plan.wrong") == 0
    total = np.array(shown.js("Array.from(memscope.views.kept.map.plan.total)"), dtype=float)
    np.testing.assert_array_equal(total, column_tops(made, 3 * S, 9 * S, len(total)))


def test_another_series(show: Show) -> None:
    made = make(1500)
    shown = show(made)
    peak = made.header["series"][1]["peak"]["allocated"]
    for key in ("map", "stacked"):
        open_view(shown, key)
        shown.js("memscope.setSeries(1)")
        shown.settle()
        plan = shown.js("key => (p => [Array.from(p.total), p.wrong])(memscope.views.kept[key].plan)", key)
        assert (np.nanmax(np.array(plan[0], dtype=float)), plan[1]) == (peak[1], 0)
        shown.js("memscope.setSeries(0)")
    shown.js("memscope.setSeries(1)")
    open_view(shown, "table")
    mine = np.flatnonzero(made.series == 1)
    assert sorted(shown.js("memscope.views.kept.table.rows.map(i => memscope.series.id[i])")) == mine.tolist()
    open_view(shown, "alive")
    assert shown.js("memscope.views.kept.alive.tree.root.bytes") == peak[1]


def _tick_marks(shown: Shown) -> list[int]:
    """Rows (px from the frame's top) at which a tick mark stands left of the axis."""
    clip = shown.js(
        """(() => {
          const box = memscope.refs.stack.getBoundingClientRect();
          const frame = memscope.figures.frame('stack');
          return { x: box.left + frame.left - 5, y: box.top + frame.top, width: 3, height: frame.height };
        })()"""
    )
    column = decode_png(shown.page.screenshot(clip=clip))[:, 1].astype(int).sum(axis=1)
    return np.flatnonzero(column < 700).tolist()


def _wanted_marks(shown: Shown) -> list[int]:
    """Where the ticks belong."""
    low, high, height, ticks = shown.js(
        """(f => [f.model('stack').y_range.start, f.model('stack').y_range.end, f.frame('stack').height,
             f.model('stack-ticks').ticks])(memscope.figures)"""
    )
    return [round(height - (tick - low) / (high - low) * height - 0.5) for tick in ticks if tick >= low]


def _exceeding() -> Synthetic:
    """Rows hold 64 MiB more than the recorded total: *older* is negative."""
    made = make(800, second=False)
    base = -(64 << 20)
    made.header["series"][0]["older_base"] = base
    stored = made.columns["older_v_0"]
    made.columns["older_v_0"] = np.where(stored > 0, 1 + stored // 8, 0)
    return made


def test_negative_older_is_drawn_below_zero(show: Show) -> None:
    shown = show(_exceeding())
    older = shown.js("Array.from(memscope.series.curves.older.v).filter(v => !Number.isNaN(v))")
    assert min(older) < 0
    for key in ("map", "stacked"):
        open_view(shown, key)
        assert shown.js("key => memscope.views.kept[key].plan.wrong", key) == 0
        assert shown.js("memscope.figures.model('stack').y_range.start") == min(older)
    open_view(shown, "alive")
    tree = shown.js(
        "(k => [k.tree.root.bytes, k.tree.total, k.tree.older, k.tree.alive.bytes])(memscope.views.kept.alive)"
    )
    assert tree[1] == tree[2] + tree[3]
    assert "rows exceed the recorded total" in shown.state()["status"]
    assert "do not add up" not in shown.state()["status"]


def test_axis_cut_at_the_older_memory(show: Show) -> None:
    made = make(800, second=False)
    shown = show(made)
    open_view(shown, "map")
    shown.set_range(1 * S, 4 * S)
    low = min(made.value("older", t) for t in [S, *made.columns["older_t_0"].tolist(), 4 * S] if S <= t <= 4 * S)
    shown.page.get_by_label("cut off older memory").check()
    shown.settle()
    assert shown.js("memscope.figures.model('stack').y_range.start") == low
    marks, wanted = _tick_marks(shown), sorted(_wanted_marks(shown))
    assert len(marks) == len(wanted)
    assert np.abs(np.array(marks) - wanted).max() <= 1
    owner = np.array(shown.js("Array.from(memscope.views.kept.map.raster.owner)"))
    height, width = shown.js("(r => [r.height, r.width])(memscope.views.kept.map.raster)")
    top = shown.js("memscope.figures.model('stack').y_range.end")
    heights = (owner.reshape(height, width) != -1).sum(axis=0)
    wanted = (column_tops(made, S, 4 * S, width) - low) * height / (top - low)
    assert np.abs(heights - wanted).max() <= 0.5 + 1e-6


def test_two_viewers_do_not_share_their_tabs(show: Show) -> None:
    shown = show(make(300), single=True)
    shown.js(
        """async () => {
          const text = document.querySelector('[data-part=payload]').textContent;
          const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
          const packed = document.querySelector('[data-part=figures]').textContent;
          const stream = new Blob([Uint8Array.from(atob(packed), c => c.charCodeAt(0))]).stream();
          const parts = await new Response(stream.pipeThrough(new DecompressionStream('gzip'))).json();
          const root = document.createElement('div');
          root.className = 'memscope';
          document.body.append(root);
          window.second = await window.memscopeRuntime.mount(root, bytes, parts, { host: {} });
          second.openView('table');
        }"""
    )
    shown.settle()
    assert (shown.state()["tab"], shown.js("second.state().tab")) == ("blocks", "table")
    ids = shown.js("Array.from(document.querySelectorAll('[role=tab], [role=tabpanel]'), node => node.id)")
    assert len(ids) == len(set(ids)) > 8
    shown.js("second.destroy()")
    open_view(shown, "map")
    assert shown.js("memscope.views.kept.map.plan.wrong") == 0
