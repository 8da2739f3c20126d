"""An open page of the viewer, and how to write one: helpers of the browser tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from browser.pixels import decode_png
from browser.synthetic import Synthetic

from memscope_nb.view import viewer


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

    def select(self, name: str) -> Any:
        """Return the select element with this name."""
        return self.page.get_by_role("combobox", name=name, exact=True)

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
              return [box.left + frame.left + (memscope.shown(t) - x0) / (x1 - x0) * frame.width, box.top + frame.top];
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
Show = Callable[..., Shown]


def write_page(folder: Path, made: Synthetic, *, name: str = "memory_timeline_00", single: bool = False) -> Path:
    """Write a page the way an export does."""
    payload = made.payload()
    page = folder / f"{name}.html"
    if single:
        page.write_text(viewer.render_page(payload), encoding="utf-8")
        return page
    for file, content in viewer.library_files().items():
        (folder / file).write_bytes(content)
    (folder / viewer.TIMELINES_FILE).write_text(viewer.timelines_script([]), encoding="utf-8")
    (folder / f"{name}.js").write_text(viewer.data_script(payload), encoding="utf-8")
    page.write_text(viewer.render_page(payload, data_href=f"{name}.js", library_href=""), encoding="utf-8")
    return page
