"""Exported folders of profiles whose every name wants to be more: opened with the network cut, nothing acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser.pages import Opener
from hostile import NAMES, hostile_profile

import memscope_nb as ms
from memscope_nb.export.text import clip, visible

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("key", ["script", "attribute", "tex", "rtl", "nul", "lines", "long", "empty"])
def test_pages_show_the_name_and_nothing_else_happens(key: str, tmp_path: Path, opener: Opener) -> None:
    """The opener fails on any page error, console message, dialog or request that is not for a file."""
    name = NAMES[key]
    out = ms.export_html(hostile_profile(name), tmp_path / "out").parent
    (page, *_) = sorted(out.rglob("memory_timeline_00.html"))
    shown = opener(page)
    shown.js("memscope.setRange(memscope.timeline.header.span[0], memscope.timeline.header.span[1])")
    shown.settle()
    for block in shown.state()["barIds"]:
        shown.js("id => memscope.selectId(id)", block)
        shown.settle()
    middle = sum(shown.plot_range("gantt")) / 2
    for plot, height in (("gantt", 20), ("gantt", 60), ("curve", 40)):
        shown.hover(plot, middle, height)
    for tag in ("img", "iframe", "object", "svg script", "mjx-container", "[onerror]", "[onfocus]", "[onmouseover]"):
        assert shown.page.locator(tag).count() == 0, tag
    assert shown.js('document.querySelectorAll(\'a[href^="javascript"], a[href^="http"]\').length') == 0
    words = name.split()
    if words and key not in ("long", "nul", "lines", "rtl"):
        assert words[0] in shown.page.locator("body").inner_text()


@pytest.mark.parametrize("key", NAMES)
def test_the_index_shows_names_as_text(key: str, tmp_path: Path, chromium: Any) -> None:
    name, dark = NAMES[key], list(NAMES).index(key) % 2 == 1
    index = ms.export_html(hostile_profile(name), tmp_path / "out")
    context = chromium.new_context(offline=True, color_scheme="dark" if dark else "light")
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text))
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: request.url.startswith("file:") or problems.append(request.url))
    page.goto(index.as_uri())
    assert problems == []
    assert page.locator("script, img, iframe, object, form, input").count() == 0
    assert page.locator("h1").inner_text() == "memscope-nb report"
    assert page.locator("svg.spark").count() == 2
    text = page.evaluate("document.body.textContent")
    assert visible(clip(name, 80)) in text
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0  # wide tables scroll in themselves
    page.locator("table.ranks a").first.click()
    page.wait_for_selector("[data-ready=yes]")
    context.close()
