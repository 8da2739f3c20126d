"""A browser without network, pages on disk, and helpers that speak to a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.pages import Opener, Show, Shown, write_page
from browser.synthetic import Synthetic

_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def no_browser(reason: str) -> None:
    """Skip, or fail where a browser is required."""
    if os.environ.get("MEMSCOPE_REQUIRE_BROWSER") == "1":
        pytest.fail(f"MEMSCOPE_REQUIRE_BROWSER=1, but {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        no_browser("playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        no_browser("no Chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGS)
        yield browser
        browser.close()


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


@pytest.fixture
def show(opener: Opener, tmp_path: Path) -> Show:
    """Write a synthetic payload as a page and open it."""

    def run(made: Synthetic, *, single: bool = False, **options: Any) -> Shown:
        return opener(write_page(tmp_path, made, single=single), **options)

    return run
