"""A browser without network, pages on disk, and helpers that speak to a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from browser.pixels import decode_png
from browser.synthetic import Synthetic

from memscope_nb.view import viewer

_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _no_browser(reason: str) -> None:
    if os.environ.get("MEMSCOPE_REQUIRE_BROWSER") == "1":
        pytest.fail(f"MEMSCOPE_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _no_browser("playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        _no_browser("no Chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGS)
        yield browser
        browser.close()


class Shown:
    """An open page of the viewer."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def js(self, text: str, argument: Any = None) -> Any:
        return self.page.evaluate(text, argument)

    def state(self) -> dict[str, Any]:
        return dict(self.js("memscope.state()"))

    def settle(self) -> None:
        """Wait until everything that was asked for is painted."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def set_range(self, start: float, end: float) -> None:
        self.js("([a, b]) => memscope.setRange(a, b)", [start, end])
        self.settle()

    def at(self, plot: str, t: float, y: float) -> tuple[float, float]:
        """Place in the window of an instant and a height (px from the frame's top) of a plot."""
        x, top = self.js(
            """([plot, t]) => {
              const box = memscope.refs[plot].getBoundingClientRect();
              const frame = memscope.figures.frame(plot);
              const { x0, x1 } = memscope.state();
              return [box.left + frame.left + (t - x0) / (x1 - x0) * frame.width, box.top + frame.top];
            }""",
            [plot, t],
        )
        return x, top + y

    def drawn(self, source: str, column: str) -> npt.NDArray[np.float64]:
        """Read what a Bokeh data source of the page holds."""
        text = f"Array.from(memscope.figures.model('{source}-data').data['{column}'])"
        return np.array(self.js(f"{text}.map(v => Number.isNaN(v) ? null : v)"), dtype=float)

    def plot_range(self, plot: str) -> list[float]:
        return list(self.js(f"(r => [r.start, r.end])(memscope.figures.model('{plot}').x_range)"))

    def image(self, plot: str) -> npt.NDArray[np.uint8]:
        """Screenshot of a plot's frame."""
        clip = self.js(
            """plot => {
              const box = memscope.refs[plot].getBoundingClientRect();
              const frame = memscope.figures.frame(plot);
              return { x: box.left + frame.left, y: box.top + frame.top, width: frame.width, height: frame.height };
            }""",
            plot,
        )
        return decode_png(self.page.screenshot(clip=clip, animations="disabled"))

    def tip(self) -> str:
        locator = self.page.locator(".ms-tip")
        return str(locator.inner_text()) if locator.is_visible() else ""

    def hover(self, plot: str, t: float, y: float) -> str:
        x, top = self.at(plot, t, y)
        self.page.mouse.move(x - 3, top)
        self.settle()
        self.page.mouse.move(x, top)
        self.settle()
        return self.tip()


Opener = Callable[..., Shown]


@pytest.fixture
def opener(chromium: Any) -> Iterator[Opener]:
    """Open a file; at the end: no error, nothing on the console, no request but for files."""
    contexts: list[Any] = []
    problems: list[str] = []

    def open_file(path: Path, *, fragment: str = "", dark: bool = False, size: tuple[int, int] = (1400, 1250)) -> Shown:
        context = chromium.new_context(
            offline=True,
            color_scheme="dark" if dark else "light",
            viewport={"width": size[0], "height": size[1]},
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
        page.on("console", lambda line: line.type in ("error", "warning") and problems.append(f"console: {line.text}"))
        page.on("dialog", lambda dialog: (problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: request.url.startswith("file:") or problems.append(f"request: {request.url[:200]}"),
        )
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector("[data-ready=yes]", timeout=30_000)
        return Shown(page)

    yield open_file
    for context in contexts:
        context.close()
    assert problems == []


def write_page(folder: Path, made: Synthetic, *, name: str = "memory_timeline_00", single: bool = False) -> Path:
    """Write a page the way an export does."""
    payload = made.payload()
    page = folder / f"{name}.html"
    if single:
        page.write_text(viewer.render_page(payload), encoding="utf-8")
        return page
    bokeh, source = viewer.bokeh_source()
    (folder / bokeh).write_bytes(source)
    (folder / f"{name}.js").write_text(viewer.data_script(payload), encoding="utf-8")
    page.write_text(viewer.render_page(payload, data_href=f"{name}.js", bokeh_href=bokeh), encoding="utf-8")
    return page


@pytest.fixture
def show(opener: Opener, tmp_path: Path) -> Callable[..., Shown]:
    """Write a synthetic payload as a page and open it."""

    def run(made: Synthetic, *, single: bool = False, **options: Any) -> Shown:
        return opener(write_page(tmp_path, made, single=single), **options)

    return run
