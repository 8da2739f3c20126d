"""The table of the blocks in view and its CSV."""

from __future__ import annotations

import csv
import html
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser.pages import Opener, Show, Shown, write_page
from browser.synthetic import OPEN, Synthetic, make
from browser.test_views import open_view

from memscope_nb.view import viewer

pytestmark = pytest.mark.browser

S = 1_000_000_000


def _in_view(made: Synthetic, x0: float, x1: float) -> np.ndarray:
    return (made.series == 0) & (made.start < x1) & ((made.end > x0) | (made.start >= x0))


def _listed(shown: Shown) -> list[int]:
    return list(shown.js("memscope.views.kept.table.rows.map(i => memscope.series.id[i])"))


def _download(shown: Shown, tmp_path: Path) -> list[dict[str, str]]:
    with shown.page.expect_download() as found:
        shown.page.get_by_role("button", name="as CSV").click()
    assert found.value.suggested_filename == "memscope_blocks.csv"
    path = tmp_path / "saved.csv"
    found.value.save_as(path)
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _values(made: Synthetic) -> dict[str, Any]:
    header, columns = made.header, made.columns
    of_stack = [header["frames"][f[s]] for f, s in zip(header["stacks"], header["sites"], strict=True)]
    names, classes = header["names"], header["classes"]
    is_open = columns["class"] == OPEN
    return {
        "id": columns["id"],
        "operator": np.array([names[k] for k in columns["name"]], dtype=object),
        "size": columns["size"],
        "start": columns["start"],
        "end": np.where(is_open, 1 << 62, columns["start"] + columns["life"]),
        "duration": columns["life"],
        "lifetime": np.array([classes[k]["label"] for k in columns["class"]], dtype=object),
        "site": np.array([of_stack[s - 1] if s else "" for s in columns["stack"]], dtype=object),
    }


@pytest.mark.parametrize("column", ["id", "operator", "size", "start", "end", "duration", "lifetime", "site"])
def test_sorts_by_every_column(show: Show, column: str) -> None:
    made = make(1800, second=False)
    shown = show(made)
    open_view(shown, "table")
    shown.set_range(3 * S, 20 * S)
    seen = np.flatnonzero(_in_view(made, 3 * S, 20 * S))
    key = _values(made)[column]
    button = shown.page.locator(".ms-table th button").filter(has_text=column)
    for _ in range(2):
        button.click()
        shown.settle()
        order = button.locator("xpath=..").get_attribute("aria-sort")
        by = sorted(seen.tolist())
        by.sort(key=lambda i: key[i], reverse=order == "descending")
        if order == "descending":  # ties stay in time order
            by = sorted(seen.tolist(), key=lambda i: i)
            values = sorted({key[i] for i in by}, reverse=True)
            place = {value: k for k, value in enumerate(values)}
            by.sort(key=lambda i: place[key[i]])
        assert _listed(shown) == by[:500], order
        first = shown.page.locator(".ms-tr").first.inner_text().split("\t")
        assert first[0].strip() == f"#{by[0]}"
    assert len(seen) > 500
    assert f"{len(seen):,} blocks in view" in shown.state()["status"]
    assert f"{len(seen) - 500:,} more are in the CSV" in shown.state()["status"]


def test_rows_scroll_and_select(show: Show) -> None:
    made = make(1800, second=False)
    shown = show(made)
    open_view(shown, "table")
    listed = _listed(shown)
    assert shown.page.locator(".ms-tr").count() < 60
    shown.js("memscope.views.kept.table.scroller.scrollTop = 1e6")
    shown.settle()
    last = shown.page.locator(".ms-tr").last
    assert last.locator("button").inner_text() == f"#{listed[-1]}"
    box, frame = last.bounding_box(), shown.page.locator(".ms-table-scroll").bounding_box()
    assert box["y"] + box["height"] <= frame["y"] + frame["height"] + 1
    last.click(position={"x": 300, "y": 10})
    shown.settle()
    assert shown.state()["selected"] == listed[-1]
    assert f"#{listed[-1]}" in shown.page.locator(".ms-panel").inner_text()
    assert shown.page.locator(".ms-tr-selected button").all_inner_texts() == [f"#{listed[-1]}"]
    shown.js("memscope.views.kept.table.scroller.scrollTop = 0")
    shown.settle()
    link = shown.page.locator(".ms-tr button").nth(2)
    link.focus()
    shown.page.keyboard.press("Enter")
    shown.settle()
    assert shown.state()["selected"] == listed[2]
    assert shown.js("document.activeElement.textContent") == f"#{listed[2]}"  # the row was drawn anew


def test_csv_holds_every_block_in_view_exactly(show: Show, tmp_path: Path) -> None:
    made = make(3000, second=False)
    shown = show(made)
    open_view(shown, "table")
    shown.set_range(3 * S, 20 * S)
    rows = _download(shown, tmp_path)
    seen = np.flatnonzero(_in_view(made, 3 * S, 20 * S))
    values = _values(made)
    assert [int(row["block_id"]) for row in rows] == seen.tolist()
    t0 = int(made.header["t0_ns"])
    for row, i in zip(rows, seen.tolist(), strict=True):
        is_open = made.columns["class"][i] == OPEN
        assert row["start_ns"] == str(t0 + int(made.start[i]))
        assert row["end_ns"] == ("" if is_open else str(t0 + int(made.end[i])))
        assert row["open"] == str(int(is_open))
        assert (row["size_bytes"], row["duration_ns"]) == (str(made.size[i]), str(made.columns["life"][i]))
        assert (row["operator"], row["site"]) == (values["operator"][i], values["site"][i])
        assert (row["lifetime"], row["pool"], row["device"]) == (values["lifetime"][i], "PTA", "NPU:0")


def test_csv_of_hostile_names_is_harmless(show: Show, tmp_path: Path) -> None:
    made = make(600, hostile=True, second=False)
    bad = ["=1+1", "+2", "-3", "@x", "\tt", "\rr", 'quo"te, "and" comma', "two\nlines", "'kept", " =spaced"]
    made.header["names"][: len(bad)] = bad
    made.header["owners"] = ["=HYPERLINK(1)", ""]
    made.columns["owner"] = made.columns["id"] % 3
    shown = show(made)
    open_view(shown, "table")
    assert shown.page.locator("img, svg[onload]").count() == 0
    rows = _download(shown, tmp_path)
    assert len(rows) == 600
    names = made.header["names"]
    for row in rows:
        i = int(row["block_id"])
        name = names[made.name[i]]
        assert row["operator"] == ("'" + name if name[:1] in tuple("=+-@\t\r") and name else name)
        assert row["owner"] == ("", "'=HYPERLINK(1)", "")[i % 3]
    assert {names[k] for k in made.name} >= set(bad[:4])


def test_only_what_passes_the_filters(show: Show, tmp_path: Path) -> None:
    made = make(1500, second=False)
    shown = show(made)
    open_view(shown, "table")
    shown.js("memscope.setFilters({ minSize: 65537 })")
    shown.settle()
    rows = _download(shown, tmp_path)
    assert [int(row["block_id"]) for row in rows] == np.flatnonzero(made.size > 65536).tolist()
    assert len(_listed(shown)) == 500
    assert (made.size[_listed(shown)] > 65536).all()


def test_large_table_and_empty_one(show: Show, tmp_path: Path) -> None:
    made = make(200_000, second=False)
    shown = show(made)
    open_view(shown, "table")
    rows = _download(shown, tmp_path)
    assert len(rows) == 200_000
    assert sum(int(row["size_bytes"]) for row in rows) == made.size.sum()
    by = np.lexsort((np.arange(len(made.size)), -made.size))[:500]
    assert _listed(shown) == by.tolist()
    shown.set_range(30 * S, 31 * S)
    assert shown.state()["status"] == "No block in view."
    assert shown.page.get_by_role("button", name="as CSV").is_disabled()


def test_download_from_the_frame_of_a_notebook(opener: Opener, tmp_path: Path) -> None:
    write_page(tmp_path, make(50), name="plain")
    frame = html.escape(viewer.render_page(make(300, second=False).payload()), quote=True)
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<!DOCTYPE html><body data-ready="yes"><iframe srcdoc="{frame}" sandbox="allow-scripts allow-downloads" '
        'style="width:1300px;height:1200px"></iframe></body>',
        encoding="utf-8",
    )
    shown = opener(outer)
    inside = shown.page.frame_locator("iframe")
    inside.locator("[data-ready=yes]").wait_for(timeout=15_000)
    inside.locator("[data-view=table]").click()
    with shown.page.expect_download() as found:
        inside.get_by_role("button", name="as CSV").click()
    found.value.save_as(tmp_path / "frame.csv")
    assert len((tmp_path / "frame.csv").read_text("utf-8").splitlines()) == 301
