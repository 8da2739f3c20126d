"""Files on disk: where they lie, what they are called, what an index says."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import op, profile_of, record, row, write_collection

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.export.files import MANIFEST, OutputFolder, UniqueNames, safe_name

T = 1_779_785_515_596_661_420


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@given(st.text(max_size=200))
def test_names_are_harmless(text):
    name = safe_name(text)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,60}", name), name
    assert name not in (".", "..")


@given(st.lists(st.text(max_size=5), max_size=30))
def test_names_are_unique_whatever_the_case(texts):
    names = UniqueNames()
    taken = [names.take(text).lower() for text in texts]
    assert len(set(taken)) == len(texts)


def test_one_timeline_lies_in_the_folder_itself(tmp_path):
    index = ms.export_html(profile_of([(T, T + 10, 512)]), tmp_path / "out")
    assert index == tmp_path / "out" / "index.html"
    found = files(tmp_path / "out")
    bokeh = next(name for name in found if name.startswith("bokeh-"))
    viewer = next(name for name in found if name.startswith("memscope-") and name.endswith(".js"))
    shared = {MANIFEST, bokeh, viewer, "timelines.js", "index.html"}
    assert set(found) == {*shared, "detail_data_00.js", "memory_timeline_00.html"}
    assert (tmp_path / "out" / bokeh).stat().st_size > 500_000
    assert (tmp_path / "out" / viewer).stat().st_size < 300_000
    assert (tmp_path / "out" / "memory_timeline_00.html").stat().st_size < 8_000


def test_ranks_have_folders_and_segments_have_numbers(demo_profile, tmp_path):
    ms.export_html(demo_profile, tmp_path / "out", bars_per_segment=500)
    found = files(tmp_path / "out")
    pages = [name for name in found if name.endswith(".html") and name != "index.html"]
    assert pages == [f"run/rank{r}/memory_timeline_{i:02d}.html" for r in (0, 1) for i in range(4)]
    assert sum(name.endswith("detail_data_03.js") for name in found) == 2
    for name in pages:
        page = (tmp_path / "out" / name).read_text()
        for link in re.findall(r'src="([^"]+)"', page):
            assert (tmp_path / "out" / name).parent.joinpath(link).is_file(), link


def test_inline_pages_need_nothing_else(tmp_path):
    ms.export_html(profile_of([(T, T + 10, 512)]), tmp_path / "out", inline=True)
    assert set(files(tmp_path / "out")) == {MANIFEST, "index.html", "memory_timeline_00.html"}
    assert "src=" not in re.sub(r"'[^']*'", "", (tmp_path / "out" / "memory_timeline_00.html").read_text()[:3000])


def test_an_earlier_export_is_replaced_and_its_stale_files_go(demo_profile, tmp_path):
    out = tmp_path / "out"
    ms.export_html(demo_profile, out, bars_per_segment=500)
    (out / "mine.txt").write_text("keep")
    ms.export_html(demo_profile.select(rank=0), out)
    assert not (out / "run").exists()
    assert "memory_timeline_00.html" in files(out)
    assert (out / "mine.txt").read_text() == "keep"


def test_a_folder_of_others_is_not_written_to_unless_forced(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    p = profile_of([(T, T + 10, 512)])
    with pytest.raises(InputError, match="not empty"):
        ms.export_html(p, tmp_path)
    assert files(tmp_path) == ["thesis.tex"]
    ms.export_html(p, tmp_path, force=True)
    assert {"thesis.tex", "index.html"} <= set(files(tmp_path))


def test_a_hostile_manifest_deletes_nothing_outside(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("x")
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text(json.dumps({"files": ["../victim.txt", str(victim), 7]}))
    ms.export_html(profile_of([(T, T + 10, 512)]), out)
    assert victim.exists()


def test_nothing_is_written_outside_the_folder(tmp_path):
    out = OutputFolder(tmp_path / "out")
    with pytest.raises(InputError, match="outside"):
        out.write("../evil.html", "x")
    assert files(tmp_path) == []


def test_a_failed_write_leaves_no_half_file(tmp_path, monkeypatch):
    out = OutputFolder(tmp_path / "out")
    out.write("a.txt", "old")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        out.write("a.txt", "new")
    assert (tmp_path / "out" / "a.txt").read_text() == "old"
    assert files(tmp_path / "out") == ["a.txt"]


@pytest.mark.parametrize("option", [{"bars_per_segment": 0}, {"max_segments": 0}])
def test_senseless_options(tmp_path, option):
    with pytest.raises(InputError):
        ms.export_html(profile_of([(T, T + 10, 512)]), tmp_path / "out", **option)
    assert not (tmp_path / "out").exists()


class Text(HTMLParser):
    """Collects the text of a page and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.links = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key == "href"]

    def handle_data(self, data):
        self.text.append(data)


HOSTILE = "aten::mm</script><img src=x onerror=alert(1)>"


@pytest.fixture
def hostile_export(tmp_path):
    for rank in (0, 1):
        write_collection(
            tmp_path / "run",
            role="r",
            rank=rank,
            name=f"h_{rank}_20260101000000000_ascend_pt",
            metadata={"role": "../evil"},
            operators=[row(f'"{HOSTILE}"', 1024, 10, 20, 19, 1.0), row("$$x$$", 1024, 12, None, None, 2.0)],
            records=[record("PTA", 10, 1.0), record("PTA", 12, 2.0), record("PTA", 19, 1.0)],
            trace=[op(HOSTILE, 9, 5, stack="<b>.py(1): f;\r\n</script>.py(2): g")],
        )
    profile = ms.load(tmp_path / "run")
    return profile, ms.export_html(profile, tmp_path / "out").parent


def test_hostile_names_reach_the_browser_only_as_data(hostile_export):
    profile, out = hostile_export
    assert profile.blocks["name"].tolist()[0] == HOSTILE
    for path in out.rglob("*"):
        if path.suffix in (".html", ".js") and not path.name.startswith("bokeh-"):
            text = path.read_text()
            assert "onerror=alert(1)" not in text.replace("&gt;", ">").replace("&lt;", "<") or path.name == "index.html"
            assert HOSTILE not in text
            assert "$$x$$" not in text or path.name == "index.html"  # there is nothing in it that typesets


def test_a_role_that_looks_like_a_path_stays_inside_and_is_shown(hostile_export, tmp_path):
    profile, out = hostile_export
    assert set(profile.sources["role"]) == {"../evil"}
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}
    index = Text((out / "index.html").read_text())
    assert any("../evil" in text for text in index.text)


def test_index_is_readable_without_a_script(demo_profile, tmp_path):
    ms.export_html(demo_profile, tmp_path / "out")
    index = Text((tmp_path / "out" / "index.html").read_text())
    assert "script" not in index.tags
    text = " ".join(index.text)
    for expected in ("rank 0 · NPU:0", "rank 1 · NPU:1", "54.3 GiB", "never rise", "update_weights", "memscope-nb 0"):
        assert expected in text, expected
    pages = [link for link in index.links if link and not link.startswith("#")]
    assert pages
    assert all((tmp_path / "out" / link).is_file() for link in pages)


def test_broken_sources_are_named_in_the_index(tmp_path):
    write_collection(
        tmp_path / "in", rank=0, name="a_ascend_pt", operators=[row("a", 1, 10, 20, 19, 1.0)], records=None
    )
    bad = write_collection(tmp_path / "in", rank=1, name="b_ascend_pt", operators=None, records=None)
    index = Text(ms.export_html(ms.load(tmp_path / "in"), tmp_path / "out").read_text())
    text = " ".join(index.text)
    assert "failed" in text
    assert str(bad) in text
    assert "memory_record.csv is missing" in text
