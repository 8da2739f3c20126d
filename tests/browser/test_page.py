"""The page as a file: what it loads, what it may do, how big it is, and names that mean harm."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from browser.pages import Opener, Show, write_page
from browser.pixels import near
from browser.synthetic import HOSTILE, Synthetic, make

from memscope_nb.view import theme, viewer

browser = pytest.mark.browser


def _policy(page: str) -> dict[str, list[str]]:
    text = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert text
    return {part.split()[0]: part.split()[1:] for part in text.group(1).split("; ")}


@browser
@pytest.mark.parametrize("single", [True, False])
def test_opens_offline_and_draws(show: Show, single: bool) -> None:
    shown = show(make(1500), single=single)
    colours = theme.theme_json()["light"]
    curve, gantt = shown.image("curve"), shown.image("gantt")
    assert near(curve, colours["ledgers"]["allocated"], 30).sum() > 300
    assert near(gantt, colours["classes"]["step"], 30).sum() > 300
    shown.set_range(0, 1_000_000_000)  # keep the window's tint off the strip
    assert near(shown.image("overview"), "#78c3ed", 30).sum() > 300  # the fill at 80 % on white
    assert shown.js("document.querySelectorAll('script[src]').length") == (0 if single else 4)


@browser
def test_policy_is_in_force(chromium: Any, tmp_path: Path) -> None:
    """No eval, no inline script without a hash, no request, not even to a neighbouring file."""
    context = chromium.new_context(offline=True)
    page = context.new_page()
    refused: list[str] = []
    page.on("console", lambda line: refused.append(line.text))
    page.goto(write_page(tmp_path, make(50)).as_uri())
    page.wait_for_selector("[data-ready=yes]")
    assert [line for line in refused if "Security" in line] == []
    allowed = page.evaluate(
        """async () => {
          const allowed = [];
          const script = document.createElement('script');
          script.textContent = 'window.broken = 1';
          document.body.append(script);
          if (window.broken) allowed.push('inline');
          await new Promise(done => setTimeout(() => {
            try { if (eval('1 + 1') === 2) allowed.push('eval'); } catch { /* refused */ }
            done();
          }, 0));
          if (await fetch('data:text/plain,x').then(() => true, () => false)) allowed.push('fetch');
          const frame = document.createElement('iframe');
          frame.src = 'data:text/html,x';
          document.body.append(frame);
          return allowed;
        }"""
    )
    page.wait_for_timeout(100)
    context.close()
    assert allowed == []
    text = " ".join(refused)
    assert "inline script" in text
    assert "connect-src" in text
    assert "fram" in text


def test_policy_text() -> None:
    payload = make(30).payload()
    single = viewer.render_page(payload)
    beside = viewer.render_page(payload, data_href="d.js", library_href="../")
    for page in (single, beside):
        policy = _policy(page)
        assert policy["default-src"] == ["'none'"]
        assert policy["connect-src"] == ["'none'"]
        assert not {"'unsafe-inline'", "'unsafe-eval'", "*", "https:", "http:", "data:", "blob:"} & set(
            policy["script-src"]
        )
    boot = re.findall(r"<script>(.*?)</script>", single, re.DOTALL)
    assert len(boot) == 1
    digest = base64.b64encode(hashlib.sha256(boot[0].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in _policy(single)["script-src"]
    assert all(item.startswith("'sha256-") for item in _policy(single)["script-src"])
    assert single == viewer.render_page(payload)


def test_data_never_stands_in_the_page_raw() -> None:
    page = viewer.render_page(make(60, hostile=True).payload())
    for text in ("onerror=", "alert(1)", "$$"):
        head, _, body = page.partition("</head>")
        assert text not in body
        assert "<img" not in head
    assert "&lt;/script&gt;&lt;img" in page.partition("</title>")[0]


@browser
@pytest.mark.parametrize("single", [True, False])
def test_hostile_names_are_inert_and_literal(show: Show, single: bool) -> None:
    made = make(3000, hostile=True)
    shown = show(made, single=single)
    page = shown.page
    assert page.locator("img, iframe, object, embed, mjx-container").count() == 0
    assert shown.js("typeof window.MathJax") == "undefined"
    names = shown.js("Array.from(document.querySelectorAll('.ms-row-name'), node => node.textContent)")
    for text in HOSTILE[:5]:
        assert text in names
    assert any(name.startswith("longlong") and name.endswith("…") for name in names)
    assert "(no name)" in names
    assert HOSTILE[0] in page.locator("h1").inner_text()
    rows = list(shown.js("memscope.rows.groups"))
    for op in rows[:12]:
        block = shown.js("op => memscope.series.name.indexOf(op)", op)
        shown.js("block => memscope.select(block, true)", block)
        shown.settle()
        title = page.locator(".ms-panel h2").text_content()
        assert title == (
            made.header["names"][op][:20000] + "…" * (len(made.header["names"][op]) > 20000) or "(no name)"
        )
        box = shown.js("id => memscope.boxOf(id)", shown.state()["selected"])
        if box:
            page.mouse.move((box["left"] + box["right"]) / 2, (box["top"] + box["bottom"]) / 2)
            shown.settle()
    shown.set_range(0, 60_000_000_000)
    assert HOSTILE[0] in shown.hover("curve", 10_000_000_000, 100) + shown.hover("curve", 40_000_000_000, 100)
    for node in ("img", "svg[onload]"):
        assert page.locator(node).count() == 0
    panel_width = page.locator(".ms-panel").bounding_box()["width"]
    assert panel_width == 300
    assert shown.js("document.documentElement.scrollWidth <= window.innerWidth")


@browser
def test_links_lead_to_neighbours_only(show: Show) -> None:
    made = make(60)
    made.header["index_href"] = "javascript:alert(1)"
    shown = show(made)
    assert not shown.page.get_by_role("link", name="All timelines").is_visible()


@browser
def test_hundred_thousand_blocks(opener: Opener, tmp_path: Path) -> None:
    n = 100_000
    path = write_page(tmp_path, make(n, second=False))
    total = path.stat().st_size + path.with_suffix(".js").stat().st_size
    assert total <= 15 * n + 80_000
    assert path.stat().st_size <= 8_000  # what all pages share lies beside them, once
    shared = sum(len(content) for name, content in viewer.library_files().items() if name.startswith("memscope-"))
    assert shared <= 300_000
    shown = opener(path)
    assert f"{n:,} blocks in view" in shown.state()["status"]
    for k in range(5):
        shown.set_range(k * 5_000_000_000, k * 5_000_000_000 + 4_000_000_000)
    state = shown.state()
    assert state["x0"] == 20_000_000_000
    assert 0 < state["inView"] < n


@browser
def test_missing_side_file_is_told(chromium: Any, tmp_path: Path) -> None:
    path = write_page(tmp_path, make(30))
    path.with_suffix(".js").unlink()
    page = chromium.new_page()
    page.goto(path.as_uri())
    page.get_by_text("the data file that belongs beside this page is missing").wait_for(timeout=10_000)
    page.close()


@browser
def test_in_a_sandboxed_frame(opener: Opener, tmp_path: Path) -> None:
    """The notebook's way: the single-file page as srcdoc of a sandboxed frame, where history is refused."""
    import html

    frame = html.escape(viewer.render_page(make(300).payload()), quote=True)
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<!DOCTYPE html><body data-ready="yes"><iframe srcdoc="{frame}" sandbox="allow-scripts allow-downloads" '
        'style="width:1300px;height:900px"></iframe></body>',
        encoding="utf-8",
    )
    shown = opener(outer)
    inner = shown.page.frames[1]
    inner.wait_for_selector("[data-ready=yes]", timeout=15_000)
    inner.evaluate("memscope.setRange(1e9, 2e9)")
    shown.page.wait_for_timeout(400)
    assert inner.evaluate("memscope.state().x0") == 1e9


@browser
def test_two_viewers_and_destroy(show: Show) -> None:
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
          window.second = await window.memscopeRuntime.mount(root, bytes, parts, { host: { theme: 'dark' } });
        }"""
    )
    shown.js("second.setRange(5e9, 6e9)")
    shown.settle()
    assert shown.js("second.state().x0") == 5e9
    assert shown.state()["x0"] == 0
    assert shown.js("second.refs.root.dataset.theme") == "dark"
    shown.js("second.destroy()")
    shown.set_range(7e9, 8e9)
    assert shown.js("second.refs.root.childElementCount") == 0
    assert shown.state()["x0"] == 7e9


def _bare(n: int) -> Synthetic:
    """Return a payload with as little as the contract allows."""
    made = make(max(n, 20), second=False)
    header = made.header
    header.update(resident=None, phases=[], steps=[], sources=[], notes=[], index_href=None, stacks=[], sites=[])
    header["series"][0].update(has_active=False, has_reserved=False, peak={}, caveat="counters were not recorded")
    made.columns["stack"][:] = 0
    made.columns["kind"][:] = 0
    for name in list(made.columns):
        if name.startswith(("active", "reserved", "resident")):
            del made.columns[name]
        elif n == 0:
            made.columns[name] = made.columns[name][:0]
    return made


@browser
def test_little_is_recorded(show: Show) -> None:
    shown = show(_bare(200))
    assert shown.page.locator(".ms-key").all_inner_texts() == ["older than the window", "allocated"]
    assert not shown.page.locator(".ms-ribbon").is_visible()
    assert "counters were not recorded" in shown.page.locator(".ms-footer").inner_text()
    shown.js("memscope.select(3)")
    assert "no stack: the recording holds none" in shown.page.locator(".ms-panel").inner_text()
    assert "allocated" in shown.hover("curve", 10_000_000_000, 50)


@browser
@pytest.mark.parametrize("instant", [False, True])
def test_nothing_is_recorded(show: Show, instant: bool) -> None:
    made = _bare(0)
    if instant:  # a window without length
        made.header.update(window=[7, 7], span=[7, 7], segments=[{"href": "x.html", "start": 7, "end": 7}])
    shown = show(made)
    assert shown.state()["status"] == "No block in view."
    assert shown.state()["gaps"] == ([[7, 107]] if instant else [[0, 60_000_000_000]])
    draws = shown.state()["draws"]
    shown.page.wait_for_timeout(300)
    assert shown.state()["draws"] == draws  # at rest
    assert "no recording here" in shown.hover("curve", 50 if instant else 30_000_000_000, 50)


@browser
def test_other_formats_are_refused_in_words(chromium: Any, tmp_path: Path) -> None:
    made = make(30)
    made.header["format"] = 2
    page = chromium.new_page()
    page.goto(write_page(tmp_path, made).as_uri())
    page.get_by_text("cannot show payload format 2").wait_for(timeout=10_000)
    page.close()
