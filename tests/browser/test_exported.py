"""Pages as `export_html` writes them: from files of a profiler to what a person sees, network cut."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser.pages import Opener
from browser.pixels import decode_png, near
from tiny import op, record, row, write_collection

import memscope_nb as ms
from memscope_nb.demo import write_demo_dump
from memscope_nb.model import MemoryProfile
from memscope_nb.units import format_bytes
from memscope_nb.view import theme

pytestmark = pytest.mark.browser

HOSTILE = "aten::mm</script><img src=x onerror=alert(1)>"
TEX = "$$x$$"


@pytest.fixture(scope="module")
def demo_pages(demo_profile: MemoryProfile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ms.export_html(demo_profile, tmp_path_factory.mktemp("export") / "out").parent


def test_demo_page_is_drawn_with_the_numbers_of_the_profile(
    demo_pages: Path, demo_profile: MemoryProfile, opener: Opener
) -> None:
    shown = opener(demo_pages / "run" / "rank0" / "memory_timeline_00.html")
    peak = demo_profile.select(rank=0).summary()["peak_bytes"].max()
    assert f"peak {format_bytes(int(peak))}" in shown.page.locator(".ms-peak-label").inner_text()
    assert np.nanmax(shown.drawn("allocated", "y")) == peak
    curve, gantt = shown.image("curve"), shown.image("gantt")
    assert near(curve, theme.light("ledgers")["allocated"]).sum() > 300
    assert near(curve, theme.light("peak")).sum() > 30
    assert near(gantt, theme.light("classes")["fwdbwd"]).sum() > 300
    assert near(gantt, theme.light("classes")["open"], tolerance=60).sum() > 300


def test_panning_one_chart_moves_the_other(demo_pages: Path, opener: Opener) -> None:
    shown = opener(demo_pages / "run" / "rank0" / "memory_timeline_00.html")
    shown.js("memscope.zoom(0.3)")
    shown.settle()
    for plot, other in (("gantt", "curve"), ("curve", "gantt")):
        before, picture = shown.plot_range(other), shown.image(other)
        x, y = shown.at(plot, sum(shown.state()["range"]) / 2, 60)
        shown.page.mouse.move(x, y)
        shown.page.mouse.down()
        shown.page.mouse.move(x - 160, y, steps=6)
        shown.page.mouse.up()
        shown.settle()
        after = shown.plot_range(other)
        assert after[0] > before[0]
        assert after == shown.plot_range(plot)
        assert (shown.image(other) != picture).any()


def test_a_click_on_the_leak_shows_its_line(demo_pages: Path, demo_profile: MemoryProfile, opener: Opener) -> None:
    sites = demo_profile.stacks["site"]
    leak = sites[sites.str.contains("append_logits")].index
    blocks = demo_profile.select(rank=0, role="actor_update", collection=1).blocks
    block = int(blocks.loc[blocks["stack_id"].isin(leak) & blocks["free_ns"].isna(), "block_id"].iloc[-1])
    shown = opener(demo_pages / "run" / "rank0" / "memory_timeline_00.html")
    box = shown.js("id => memscope.boxOf(id)", block)
    shown.page.mouse.click((box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
    shown.settle()
    panel = shown.page.locator(".ms-panel").inner_text()
    assert shown.state()["selected"] == block
    site = panel.index("metrics_buffer.py(88): append_logits")
    assert site < panel.index("framework frame")
    assert "open at the end" in panel
    assert f"{int(blocks.set_index('block_id').at[block, 'size_bytes']):,} B" in panel


def test_every_rank_and_segment_opens(demo_profile: MemoryProfile, tmp_path: Path, opener: Opener) -> None:
    out = ms.export_html(demo_profile, tmp_path / "out", bars_per_segment=700).parent
    pages = sorted(out.rglob("memory_timeline_*.html"))
    assert len(pages) == 6
    shown = opener(pages[0])
    shown.page.get_by_role("link", name=re.compile("Next")).first.click()
    shown.page.wait_for_selector("[data-ready=yes]")
    assert shown.page.url.split("#")[0].endswith("memory_timeline_01.html")
    assert shown.js("memscope.timeline.header.segment") == 1
    shown.page.get_by_role("link", name="All timelines").click()
    assert shown.page.locator("h1").inner_text() == "memscope-nb report"


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[MemoryProfile, Path]:
    rows = [row(f'"{HOSTILE}"', 4096, 10, 60, 59, 5.0), row(TEX, 4096, 20, None, None, 9.0)]
    records = [record("PTA", 10, 5.0), record("PTA", 20, 9.0), record("PTA", 59, 5.0), record("PTA", 80, 5.0)]
    stack = f"<b>torch/x.py(1): f;\r\n{HOSTILE}(2): g;\r\n{TEX}.py(3): h"
    for rank in (0, 1):
        name = f"<i>h_{rank}_20260101000000000_ascend_pt"
        write_collection(
            tmp_path / "run", rank=rank, name=name, metadata={"role": "../evil"},
            operators=rows, records=records, trace=[op(HOSTILE, 9, 5, stack=stack), op("ProfilerStep#1", 5, 60)],
        )  # fmt: skip
    profile = ms.load(tmp_path / "run")
    return profile, ms.export_html(profile, tmp_path / "out").parent


def test_hostile_names_are_shown_as_text_and_nothing_runs(
    hostile: tuple[MemoryProfile, Path], tmp_path: Path, opener: Opener
) -> None:
    _, out = hostile
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}
    shown = opener(out / "run" / "rank0" / "memory_timeline_00.html")
    names = shown.page.locator(".ms-row-name").all_inner_texts()
    assert set(names) == {HOSTILE, TEX}
    assert "../evil" in shown.page.locator("body").inner_text()
    for block in shown.state()["barIds"]:
        shown.js("id => memscope.selectId(id)", block)
        shown.settle()
    for place in (20, 55):
        shown.hover("gantt", sum(shown.plot_range("gantt")) / 2, place)
    shown.hover("curve", sum(shown.plot_range("curve")) / 2, 40)
    assert shown.page.locator("img, iframe, mjx-container, script[src*=mathjax]").count() == 0
    index = opener_text(opener, out)
    assert "../evil" in index


def opener_text(opener: Opener, out: Path) -> str:
    """Text of the index; it has no viewer to wait for, so it is read from the file."""
    text = (out / "index.html").read_text("utf-8")
    assert "<img" not in text
    assert "<script" not in text
    return html.unescape(text)


def test_alexnet_page_draws_the_recorded_curve(ascend_samples: Path, tmp_path: Path, opener: Opener) -> None:
    folder = ascend_samples / "msinsight_alexnet_text" / "level1" / "rank0_ascend_pt"
    profile = ms.load(folder)
    shown = opener(ms.export_html(profile, tmp_path / "out").parent / "memory_timeline_00.html")
    assert "peak 1.16 GiB" in shown.page.locator(".ms-peak-label").inner_text()
    curve = ms.curve(profile, pool="PTA")
    t0 = int(shown.js("memscope.timeline.header.t0_ns"))
    for at in np.linspace(0, len(curve) - 1, 60).astype(int):
        t, recorded = int(curve["t_ns"].iloc[at]) - t0, int(curve["allocated_bytes"].iloc[at])
        assert shown.js("t => memscope.valueAt('allocated', t)", t) == recorded
    assert shown.page.locator("select[aria-label], select").count() >= 2  # rows, and PTA or GE


def test_page_in_a_notebook_frame(demo_profile: MemoryProfile, tmp_path: Path, opener: Opener) -> None:
    markup = ms.show(demo_profile, rank=1)._repr_html_()
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', markup).group(1))  # type: ignore[union-attr]
    (tmp_path / "frame.html").write_text(page, encoding="utf-8")
    shown = opener(tmp_path / "frame.html")
    assert shown.state()["bars"] > 20


def test_saved_notebook_shows_its_plot_without_a_kernel(tmp_path: Path, chromium: Any) -> None:
    notebook = json.loads((Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb").read_text("utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    markup = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    (frame,) = [text for text in markup if "<iframe" in text]
    page_file = tmp_path / "saved.html"
    page_file.write_text(f"<!doctype html><meta charset=utf-8>{frame}", encoding="utf-8")
    context = chromium.new_context(offline=True, viewport={"width": 1300, "height": 1000})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    inside = page.frame_locator("iframe")
    inside.locator("[data-ready=yes]").wait_for(timeout=30_000)
    assert "peak 54.3 GiB" in inside.locator(".ms-peak-label").inner_text()
    assert near(decode_png(page.screenshot()), theme.light("ledgers")["allocated"]).sum() > 300
    assert all(url.startswith(("file:", "about:srcdoc")) for url in requests), requests
    context.close()


def test_layers_and_capacity_are_drawn(demo_profile: MemoryProfile, tmp_path: Path, opener: Opener) -> None:
    totals = demo_profile.totals.copy()  # the modules of the demo are thinner than a pixel
    totals.loc[totals["component"] == "HCCL", "reserved_bytes"] += 4 << 30
    totals.loc[totals["scope"] == "process", "reserved_bytes"] += 4 << 30
    profile = replace(demo_profile, totals=totals)
    out = ms.export_html(profile, tmp_path / "out", capacity="61 GiB").parent
    shown = opener(out / "run" / "rank0" / "memory_timeline_00.html")
    shown.js("s => memscope.setRange(s.start, s.end)", shown.js("memscope.timeline.header.sources[0]"))
    shown.settle()
    picture = shown.image("layers")
    for layer in ("allocated", "cached", "module1"):
        assert near(picture, theme.light("layers")[layer], tolerance=60).sum() > 100, layer
    assert near(picture, theme.light("capacity"), tolerance=60).sum() > 100
    assert near(shown.image("curve"), theme.light("capacity"), tolerance=60).sum() > 100
    shown.js("s => memscope.setRange(s.start, s.end)", shown.js("memscope.timeline.header.sources[6]"))
    shown.settle()
    actor = ms.layers(profile.select(rank=0, role="actor_update", collection=1)).frame
    sample = actor.iloc[len(actor) // 2]
    t = int(sample["t_ns"]) - int(shown.js("memscope.timeline.header.t0_ns"))
    tip = shown.hover("layers", t + 1_000_000, 60)
    assert f"on the device (process)\t{format_bytes(int(sample['resident_bytes']))}" in tip
    assert f"allocated by the pools\t{format_bytes(int(sample['allocated_bytes']))}" in tip
    assert f"HCCL\t{format_bytes(int(sample['module_HCCL_bytes']))}" in tip
    assert f"beyond residency (unbacked)\t{format_bytes(-int(sample['other_bytes']))}" in tip
    assert "capacity\t61.0 GiB" in tip
    before = shown.plot_range("curve")
    x, y = shown.at("layers", t, 60)
    shown.page.mouse.move(x, y)
    shown.page.mouse.wheel(0, -240)
    shown.settle()
    assert shown.plot_range("curve") != before


def test_without_process_samples_there_are_no_layers(tmp_path: Path, opener: Opener) -> None:
    rows = [row("aten::mm", 4096, 10, 60, 59, 5.0)]
    write_collection(tmp_path / "run", operators=rows, records=[record("PTA", 10, 5.0), record("PTA", 60, 1.0)])
    shown = opener(ms.export_html(ms.load(tmp_path / "run"), tmp_path / "out").parent / "memory_timeline_00.html")
    assert not shown.page.locator(".ms-layers").is_visible()
    assert shown.page.locator(".ms-gantt").is_visible()


def test_owner_and_marks_of_a_dump(tmp_path: Path, opener: Opener) -> None:
    write_demo_dump(tmp_path / "dump", leak=True)
    p = ms.load(tmp_path / "dump")
    owned = p.blocks[(p.blocks["pool"] == "PTA") & p.blocks["free_ns"].isna() & p.blocks["owner"].notna()]
    leaked = owned.sort_values("size_bytes").iloc[-1]
    (page,) = ms.export_html(p, tmp_path / "out").parent.rglob("memory_timeline_00.html")
    shown = opener(page)
    box = shown.js("id => memscope.boxOf(id)", int(leaked["block_id"]))
    shown.page.mouse.click((box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
    shown.settle()
    assert shown.state()["selected"] == int(leaked["block_id"])
    assert str(leaked["owner"]) in shown.page.locator(".ms-panel").inner_text()
    marks = shown.page.locator(".ms-cell-mark")
    assert marks.count() > 5
    before = shown.state()
    marks.last.click()  # the topmost where marks crowd
    shown.settle()
    after = shown.state()
    instants = [mark["start"] for mark in shown.js("memscope.timeline.header.marks")]
    assert (after["x0"], after["x1"]) != (before["x0"], before["x1"])
    assert any(after["range"][0] <= t <= after["range"][1] for t in instants)


def test_other_timelines_can_be_chosen(demo_pages: Path, opener: Opener) -> None:
    shown = opener(demo_pages / "run" / "rank0" / "memory_timeline_00.html", fragment="#view=map")
    choice = shown.select("Timeline")
    assert choice.locator("option").all_inner_texts() == ["run · rank 0 · NPU:0", "run · rank 1 · NPU:1"]
    assert choice.input_value() == "0"
    with shown.page.expect_navigation():
        choice.select_option("1")
    shown.page.wait_for_selector("[data-ready=yes]")
    assert "/rank1/memory_timeline_00.html#view=map" in shown.page.url
    assert shown.page.locator("h1").inner_text().startswith("rank 1")
    assert shown.select("Timeline").input_value() == "1"


def test_pages_do_without_the_list_of_timelines(demo_profile: MemoryProfile, tmp_path: Path, chromium: Any) -> None:
    out = ms.export_html(demo_profile.select(rank=0), tmp_path / "out").parent
    (out / "timelines.js").unlink()
    page = chromium.new_page()
    page.goto((out / "memory_timeline_00.html").as_uri())
    page.wait_for_selector("[data-ready=yes]")
    assert not page.get_by_role("combobox", name="Timeline", exact=True).is_visible()
    page.close()
