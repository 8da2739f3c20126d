"""How long a page takes: writing it, opening it, one frame of a pan."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.analysis.timeline import timelines
from memscope_nb.model import MemoryProfile
from memscope_nb.view.payload import TimelineView
from memscope_nb.view.viewer import render_page

N_BLOCKS = 100_000
T = 1_779_785_515_596_661_420
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def _profile(n: int) -> MemoryProfile:
    """One series of lives between half a microsecond and two seconds, in 66 operators."""
    rng = np.random.default_rng(0)
    start = T + np.sort(rng.integers(0, 6_000_000_000, n)) * 10
    life = (np.exp(rng.uniform(np.log(50), np.log(2e8), n)).astype(np.int64)) * 10
    size = 512 * rng.integers(1, 4096, n)
    rows = [(int(a), int(a + b), int(s)) for a, b, s in zip(start, life, size, strict=True)]
    return profile_of(rows, names=[f"aten::op{i}" for i in rng.integers(0, 66, n)])


@pytest.fixture(scope="module")
def profile() -> MemoryProfile:
    return _profile(N_BLOCKS)


@pytest.fixture(scope="module")
def pages(profile: MemoryProfile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ms.export_html(profile, tmp_path_factory.mktemp("pages") / "out").parent


def test_export_100k(benchmark: Any, profile: MemoryProfile, tmp_path: Path) -> None:
    out = benchmark.pedantic(ms.export_html, args=(profile, tmp_path / "out"), rounds=3)
    size = sum(path.stat().st_size for path in out.parent.glob("[dm]e*_00.*"))
    benchmark.extra_info["bytes_per_block"] = round(size / N_BLOCKS, 2)
    assert size <= 15 * N_BLOCKS + 80_000


def test_open_100k(benchmark: Any, pages: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or pytest.skip("no Chromium on PATH")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=ARGS)
        context = browser.new_context(offline=True, viewport={"width": 1400, "height": 1250})

        def open_page() -> Any:
            page = context.new_page()
            page.goto((pages / "memory_timeline_00.html").as_uri())
            page.wait_for_selector("[data-ready=yes]")
            return page

        page = benchmark.pedantic(open_page, rounds=3)
        frames = []
        for step in range(8):
            page.evaluate("s => memscope.setRange(s * 1e9, 3e10 + s * 1e9)", step)
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            frames.append(page.evaluate("memscope.state().lastDrawMs"))
        benchmark.extra_info["draw_ms_of_a_pan"] = round(float(np.median(frames)), 1)
        assert page.evaluate("memscope.state().inView") > 1000
        browser.close()


@pytest.fixture(scope="module", params=[200_000, 1_000_000])
def big_page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Open a page that holds all blocks in one segment, more than an export would put there."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or pytest.skip("no Chromium on PATH")
    profile = _profile(request.param)
    (line,) = timelines(profile)
    view = TimelineView(profile, line)
    (payload,) = view.segments(view.windows(bars_per_segment=1 << 30, max_segments=1), ["page.html"])
    path = tmp_path_factory.mktemp("big") / "page.html"
    path.write_text(render_page(payload), encoding="utf-8")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=ARGS)
        page = browser.new_context(offline=True, viewport={"width": 1400, "height": 1250}).new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("[data-ready=yes]", timeout=120_000)
        yield page
        browser.close()


@pytest.mark.parametrize("share", [1, 0.5, 0.02], ids=["whole", "half", "2-percent"])
@pytest.mark.parametrize("key", ["blocks", "map", "stacked", "alive", "table"])
def test_pan_frame_of_a_view(benchmark: Any, big_page: Any, key: str, share: float) -> None:
    """Time of a frame from the change of the window until it is painted; in ``draw_ms`` only the runtime's part."""
    big_page.evaluate("key => memscope.openView(key)", key)
    steps = itertools.count()
    drawn = []

    def pan() -> None:
        big_page.evaluate(
            """([share, step]) => {
              const [w0, w1] = memscope.timeline.limits;
              const width = share * (w1 - w0) - 1e6;
              const from = w0 + (step % 7) / 7 * (w1 - w0 - width);
              memscope.setShown(from, from + width);
              return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
            }""",
            [share, next(steps)],
        )
        drawn.append(big_page.evaluate("memscope.lastDrawMs"))

    benchmark.pedantic(pan, rounds=7, warmup_rounds=2)
    benchmark.extra_info["draw_ms"] = round(float(np.median(drawn)), 1)
    benchmark.extra_info["draw_ms_most"] = round(max(drawn[2:]), 1)
    assert big_page.evaluate("memscope.state().tab") == key
