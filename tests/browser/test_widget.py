"""The live widget inside JupyterLab: what is done in the browser arrives in Python, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from browser.conftest import no_browser
from browser.lab import REGISTRY, Notebook, lab_server

pytestmark = pytest.mark.browser

SETUP = """
import memscope_nb as ms
import numpy as np
from IPython.display import display
from memscope_nb.demo import write_demo
from memscope_nb.model import MemoryProfile, block_ends, block_starts
from pathlib import Path

if not Path("run").exists():
    _ = write_demo("run")
p = ms.load("run", ranks=[0, 1])
v = None


def fresh(profile=p, **options):
    global v
    if v is not None:
        v.close()
    v = ms.explore(profile, **options)
    return v


def ids(table):
    return sorted(table["block_id"].tolist())


def alive(start, end, rank=0, pool="PTA"):
    mine = p.select(rank=rank, pool=pool)
    inside = (block_starts(mine) <= end) & (block_ends(mine) > start)
    return mine.blocks[inside]
"""
CYCLES = 20


class Watched:
    """A page of which everything that goes wrong is kept."""

    def __init__(self, browser: Any, address: str) -> None:
        self.context = browser.new_context(viewport={"width": 1500, "height": 1900})
        self.page = self.context.new_page()
        self.problems: list[str] = []
        inside = (address, address.replace("http", "ws", 1), "data:", "blob:")
        self.page.on("pageerror", self._failed)
        self.page.on("console", lambda line: line.type == "error" and self.problems.append(f"console: {line.text}"))
        self.page.on(
            "request", lambda one: one.url.startswith(inside) or self.problems.append(f"request: {one.url[:200]}")
        )

    def _failed(self, error: Any) -> None:
        text = f"page error: {error} {error.stack}"
        if "blob:" in text or "/static/lab/" not in text:  # what fails inside JupyterLab alone is its own
            self.problems.append(text)


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Watched, Notebook]]:
    if find_spec("jupyterlab") is None:
        no_browser("JupyterLab is not installed")
    folder = tmp_path_factory.mktemp("lab")
    with lab_server(folder) as address:
        watched = Watched(chromium, address)
        yield watched, Notebook.open(watched.page, address, folder, "explore.ipynb", SETUP)
        watched.context.close()


@pytest.fixture
def notebook(opened: tuple[Watched, Notebook]) -> Iterator[Notebook]:
    """The shared notebook; at the end: no error in the page, no request that left this machine."""
    watched, notebook = opened
    watched.problems.clear()
    yield notebook
    assert watched.problems == []


@pytest.fixture
def shown(notebook: Notebook) -> Notebook:
    """A fresh explorer of the demo, drawn."""
    notebook.show()
    return notebook


def test_click_selects_in_python(shown: Notebook) -> None:
    shown.run("heard = []; stop = v.on_select(lambda table: heard.append(ids(table)))")
    state = shown.viewer("viewer.state()")
    block = state["barIds"][-1]
    shown.page.mouse.click(*shown.bar(block))
    shown.wait_viewer("viewer.state().selected === argument", block)
    shown.expect("ids(v.selection)", [block])
    shown.expect("heard", [[block]])
    site = shown.read("v.selection['site'].iloc[0]")
    assert site in shown.viewer("viewer.refs.panel.textContent")
    text = shown.page.locator(".widget-html-content").first.inner_text()
    assert f"#{block}" in text
    shown.viewer("viewer.refs.main.focus()")
    shown.page.keyboard.press("Escape")
    shown.wait_viewer("viewer.selection.length === 0")
    shown.expect("[ids(v.selection), heard[-1]]", [[], []])


def test_box_selection_reaches_python(shown: Notebook) -> None:
    shown.viewer("viewer.refs.drag.value = 'select'")
    shown.viewer("viewer.refs.drag.dispatchEvent(new Event('change', { bubbles: true }))")
    shown.viewer("viewer.refs.gantt.scrollIntoView({ block: 'center' })")
    shown.page.wait_for_timeout(100)
    box = shown.viewer("(b => [b.left, b.top, b.right, b.bottom])(viewer.refs.gantt.getBoundingClientRect())")
    frame = shown.viewer("viewer.figures.frame('gantt')")
    left, top = box[0] + frame["left"], box[1] + frame["top"]
    shown.page.mouse.move(left + 5, top + 5)
    shown.page.mouse.down()
    shown.page.mouse.move(left + frame["width"] / 2, top + 60, steps=4)
    shown.page.mouse.move(left + frame["width"] - 5, top + 120, steps=4)
    shown.page.mouse.up()
    shown.wait_viewer("viewer.selection.length > 3")
    selected = shown.viewer("viewer.state().selection")
    shown.expect("ids(v.selection)", sorted(selected))


def test_range_from_python_is_exact_and_comes_back(shown: Notebook) -> None:
    shown.run("heard = []; stop = v.on_range(heard.append)")
    shown.run("t = alive(*v.range)['alloc_ns'].iloc[400] + 1; v.range = (t, t + 20_000_003)")
    t0, t = shown.read("[v.timeline.span[0], int(t)]")
    shown.wait_viewer("viewer.trueRange()[0] === argument", t - t0)
    assert shown.viewer("viewer.trueRange()") == [t - t0, t - t0 + 20_000_003]
    shown.settle()
    assert shown.read("v.range") == [t, t + 20_000_003]
    assert shown.read("ids(v.visible) == ids(alive(*v.range))") is True
    in_view = shown.viewer("viewer.state().inView")
    assert 0 < in_view == shown.read("len(v.visible)")

    shown.viewer("viewer.zoom(0.25)")
    shown.settle()
    start, end = shown.viewer("viewer.trueRange()")
    shown.expect("v.range", [t0 + start, t0 + end])
    assert shown.read("[list(one) for one in heard]") == [[t, t + 20_000_003], [t0 + start, t0 + end]]
    assert shown.read("ids(v.visible) == ids(alive(*v.range))") is True

    shown.run("import pandas as pd; v.range = (pd.Timestamp(t, unit='ns'), pd.Timestamp(t + 999, unit='ns'))")
    shown.wait_viewer("viewer.trueRange()[1] === argument", t - t0 + 999)
    assert shown.viewer("viewer.trueRange()[0]") == t - t0


def test_visible_passes_the_filters_of_the_browser(shown: Notebook) -> None:
    everything = shown.read("len(v.visible)")
    shown.page.locator(".memscope input[type=search]").first.fill("mm")
    shown.page.wait_for_timeout(100)
    shown.settle()
    names = shown.read("sorted(set(v.visible['name'].astype(str)))")
    assert all("mm" in name for name in names)
    assert 0 < shown.read("len(v.visible)") < everything
    assert shown.read("ids(v.visible) == ids(alive(*v.range).query('name.str.contains(\"mm\")'))") is True
    shown.viewer("viewer.setFilters({ minSize: 2 ** 24 })")
    shown.settle()
    assert shown.read("int(v.visible['size_bytes'].min())") >= 1 << 24
    shown.viewer("[viewer.setFilters({ minSize: 0 }), viewer.setFilter('')]")
    shown.settle()
    assert shown.read("len(v.visible)") == everything


def test_select_and_focus_from_python(shown: Notebook) -> None:
    count = shown.read("len(v.select('append_logits'))")
    assert count == 8
    shown.wait_viewer("viewer.selection.length === 8")
    assert shown.read("ids(v.selection)") == sorted(shown.viewer("viewer.state().selection"))
    shown.run("block = p.select(rank=1, pool='PTA').blocks.query('size_bytes > 2**25 and free_ns.notna()').iloc[5]")
    shown.run("v.focus(int(block['block_id']))")
    block, start, end = shown.read(
        "[int(block['block_id']), *(int(block[k]) - v.timeline.span[0] for k in ('alloc_ns', 'free_ns'))]"
    )
    shown.wait_viewer("viewer.state().selected === argument", block)
    assert "rank 1" in shown.viewer("viewer.refs.title.textContent")
    shown.settle()
    low, high = shown.viewer("viewer.trueRange()")
    assert low <= start
    assert end <= high
    assert end - start >= (high - low) / 1000
    box = shown.viewer("viewer.boxOf(argument)", block)
    assert box is not None
    assert box["right"] - box["left"] >= 2
    assert shown.read("[v.timeline.rank_id, ids(v.selection)]") == [1, [block]]
    assert shown.viewer("viewer.refs.main.getBoundingClientRect().width") > 300


def test_selectors_lead_to_other_series(shown: Notebook) -> None:
    box = shown.page.locator(".widget-dropdown")
    box.nth(0).locator("select").select_option(label="rank 1")
    shown.wait_viewer("viewer.refs.title.textContent.includes('rank 1')")
    options = shown.read("[label for label, _ in v._controls.pool.options]")
    assert len(options) == 2
    box.nth(1).locator("select").select_option(index=1)
    shown.wait_viewer("viewer.series.index === 1")
    shown.settle()
    assert shown.read("repr(v)").startswith(f"Explorer of rank 1 · NPU:1, {options[1]}")
    assert set(shown.read("sorted(set(v.visible['pool'].astype(str)))")) == {options[1].split(" ·")[0]}
    assert not shown.page.locator(".memscope .ms-field:has-text('Series')").first.is_visible()


def test_several_displays_stay_in_step(notebook: Notebook) -> None:
    notebook.show("display(fresh()); display(v)", views=2)
    block = notebook.viewer("viewer.state().barIds.at(-1)")
    notebook.page.mouse.click(*notebook.bar(block))
    notebook.wait_viewer("viewer.state().selected === argument", block, view=1)
    notebook.viewer("viewer.zoom(0.5)", view=1)
    there = notebook.viewer("viewer.trueRange()", view=1)
    notebook.wait_viewer("String(viewer.trueRange()) === argument", ",".join(map(str, there)))
    notebook.settle()
    t0 = notebook.read("v.timeline.span[0]")
    notebook.expect("v.range", [t0 + t for t in there])
    notebook.expect("ids(v.selection)", [block])
    notebook.run("v.select([])")
    for view in (0, 1):
        notebook.wait_viewer("viewer.selection.length === 0", view=view)


def test_segments_change_inside_the_notebook(notebook: Notebook) -> None:
    notebook.show("fresh(bars_per_segment=500)")
    address = notebook.page.url
    assert notebook.viewer("viewer.timeline.header.segment") == 0
    notebook.page.locator(".memscope input[type=search]").first.fill("mm")
    notebook.page.locator(".memscope .ms-header a[rel=next]").click()
    notebook.wait_viewer("viewer.timeline.header.segment === 1")
    assert notebook.page.url == address
    notebook.settle()
    w0, w1 = notebook.viewer("viewer.timeline.header.window")
    t0 = notebook.read("v.timeline.span[0]")
    start, end = notebook.read("v.range")
    assert w0 <= start - t0 < end - t0 <= w1
    assert notebook.viewer("viewer.filters.text") == "mm"
    assert all("mm" in name for name in notebook.read("v.visible['name'].astype(str).tolist()"))
    notebook.run("v.range = v.timeline.span")
    notebook.wait_viewer("viewer.timeline.header.segment !== 1")
    assert "segment" in notebook.read("repr(v)")


def test_keys_are_kept_from_jupyterlab(shown: Notebook) -> None:
    shown.viewer("viewer.setRange(1e9, 2e9)")
    shown.js("jupyterapp.commands.execute('notebook:enter-command-mode')")
    shown.viewer("viewer.refs.main.focus()")
    shown.page.wait_for_timeout(100)
    cell = shown.js("jupyterapp.shell.currentWidget.content.activeCellIndex")
    before = shown.viewer("viewer.trueRange()[0]")
    for key in ("ArrowRight", "ArrowDown", "b", "d", "d"):
        shown.page.keyboard.press(key)
    shown.wait_viewer("viewer.trueRange()[0] > argument", before)
    content = "jupyterapp.shell.currentWidget.content"
    assert shown.js(f"[{content}.activeCellIndex, {content}.widgets.length]") == [cell, 3]


def test_theme_follows_jupyterlab(shown: Notebook) -> None:
    ground = "getComputedStyle(viewer.refs.root).backgroundColor"
    light = shown.viewer(ground)
    shown.command("apputils:change-theme", theme="JupyterLab Dark")
    shown.wait_viewer("viewer.refs.root.dataset.theme === 'dark'")
    assert shown.viewer(ground) not in (light, "rgb(255, 255, 255)")
    shown.command("apputils:change-theme", theme="JupyterLab Light")
    shown.wait_viewer("viewer.refs.root.dataset.theme === 'light'")
    assert shown.viewer(ground) == light


def test_bokeh_is_loaded_once_and_disturbs_no_other(notebook: Notebook) -> None:
    notebook.js("window.Bokeh = { version: 'other' }")
    notebook.show()
    notebook.show()
    assert notebook.js("window.Bokeh") == {"version": "other"}
    notebook.js("delete window.Bokeh")
    assert notebook.js(f"{REGISTRY}.kits.size") == 1
    assert notebook.viewer("viewer.host.Bokeh.version.length > 3") is True


def test_hostile_names_are_inert(notebook: Notebook) -> None:
    notebook.run(
        """
from dataclasses import replace
evil = "$$x$$</style><img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
texts = {"name": {"aten::clone": evil}, "pool": {"PTA": evil}}
blocks = p.blocks.assign(**{k: p.blocks[k].cat.rename_categories(names) for k, names in texts.items()})
totals = p.totals.assign(component=p.totals["component"].cat.rename_categories({"PTA": evil}))
hostile = replace(p, blocks=blocks, totals=totals, sources=p.sources.assign(role=evil, run=evil))
"""
    )
    notebook.show("fresh(hostile)")
    assert notebook.read("len(v.select(evil))") > 3
    notebook.wait_viewer("viewer.selection.length > 3")
    text = notebook.page.locator(".widget-html-content").first
    notebook.wait("async () => document.querySelector('.widget-html-content').textContent.includes('onerror')")
    assert "$$x$$</style><img" in text.inner_text()
    options = " ".join(notebook.page.locator(".widget-dropdown option").all_inner_texts())
    assert "<script>window.hacked=1</script>" in options.replace("\u00a0", " ")
    assert notebook.js("window.hacked") is None
    inside = ".jp-OutputArea-output"
    assert notebook.js(f"document.querySelectorAll('{inside} img, {inside} script, mjx-container').length") == 0


def test_saved_notebook_holds_no_data(notebook: Notebook) -> None:
    notebook.run(
        """
start = 1_779_785_515_596_661_421 + 1000 * np.arange(20_000)
table = p.select(rank=0, pool="PTA").blocks.sample(20_000, replace=True, random_state=0).reset_index(drop=True)
table["block_id"] = np.arange(20_000)
table["alloc_ns"], table["free_ns"] = start, start + 900
table["active_free_ns"] = start + 900
table["source"] = p.sources["source"].iloc[0]
table["flags"] = 0
source = p.sources.iloc[[0]].assign(start_ns=start[0], end_ns=start[-1] + 900)
big = MemoryProfile(sources=source, blocks=table, stacks=p.stacks)
"""
    )
    notebook.show("fresh(big)")
    assert notebook.read("len(v.select('size_bytes > 0'))") == 20_000
    notebook.wait_viewer("viewer.selection.length === 20000")
    notebook.settle()
    assert notebook.save() < 20_000
    saved = json.loads(notebook.path.read_text())
    assert "widgets" not in saved["metadata"]
    (output,) = saved["cells"][1]["outputs"]
    assert set(output["data"]) == {"text/plain", "application/vnd.jupyter.widget-view+json"}


def test_page_reload_brings_the_view_back(shown: Notebook) -> None:
    shown.run("t = v.timeline.span[0]; v.range = (t + 10**8, t + 4 * 10**8); _ = v.select([3, 4])")
    shown.settle()
    shown.save()
    shown.page.reload()
    shown.wait_kernel()
    shown.wait_viewer("viewer.trueRange()[1] === 4e8 && String(viewer.state().selection) === '3,4'")


def _metrics(page: Any) -> dict[str, float]:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    for _ in range(3):
        session.send("HeapProfiler.collectGarbage")
        page.wait_for_timeout(50)
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return found


def test_opened_and_closed_leaves_nothing(notebook: Notebook) -> None:
    """Viewers are gone as a whole; what still grows is JupyterLab's: it keeps the selectors of every closed widget."""
    keep = "(globalThis.kept ??= []).push(...[viewer, viewer.refs.root, viewer.timeline].map(one => new WeakRef(one)))"

    def open_and_close() -> None:  # always in one cell: JupyterLab makes a new toolbar for every cell that is entered
        notebook.run("fresh(small)", cell=1)
        notebook.wait_viewer("viewer.draws > 0")
        notebook.viewer(keep)
        notebook.run("v.close()", cell=1)
        notebook.page.wait_for_function(f"{REGISTRY}.hubs.size === 0")

    notebook.run("v = v.close(); small = p.select(rank=0, role='rollout', collection=0)", cell=1)
    notebook.page.wait_for_function(f"{REGISTRY}.hubs.size === 0")
    open_and_close()
    before = _metrics(notebook.page)
    for _ in range(CYCLES):
        open_and_close()
    for _ in range(3):  # closed before it is drawn
        notebook.run("fresh(small)", cell=1)
        notebook.run("v.close()", cell=1)
    notebook.page.wait_for_function(f"{REGISTRY}.hubs.size === 0")
    notebook.page.wait_for_function("document.querySelectorAll('.memscope').length === 0")
    after = _metrics(notebook.page)
    assert notebook.js("[kept.length, kept.filter(one => one.deref()).length]") == [3 * (CYCLES + 1), 0]
    assert notebook.js("document.querySelectorAll('.bk-Notifications, .memscope').length") == 0
    kits = notebook.js(f"(async () => (await [...{REGISTRY}.kits.values()][0]).Bokeh.documents.length)()")
    assert kits == 0
    assert after["JSEventListeners"] - before["JSEventListeners"] < 30 * CYCLES  # a viewer has more than 100
    assert after["Nodes"] - before["Nodes"] < 200 * CYCLES  # and about 2,000 nodes
    assert after["JSHeapUsedSize"] - before["JSHeapUsedSize"] < 300_000 * CYCLES  # and more than 1 MB


def test_kernel_restart_leaves_the_page_working(shown: Notebook) -> None:
    shown.js("jupyterapp.shell.currentWidget.context.sessionContext.restartKernel()")
    shown.wait_kernel()
    block = shown.viewer("viewer.state().barIds.at(-1)")
    shown.page.mouse.click(*shown.bar(block))
    shown.wait_viewer("viewer.state().selected === argument", block)
    before = shown.viewer("viewer.trueRange()")
    shown.viewer("viewer.zoom(0.5)")
    shown.wait_viewer("String(viewer.trueRange()) !== argument", ",".join(map(str, before)))
    shown.page.wait_for_timeout(400)
    shown.run(SETUP, cell=0)
    shown.show()
    block = shown.viewer("viewer.state().barIds.at(-1)")
    shown.page.mouse.click(*shown.bar(block))
    shown.wait_viewer("viewer.state().selected === argument", block)
    shown.expect("ids(v.selection)", [block])
