"""Whatever a name holds, it is only a name: in the index, the pages, the triage, as JSON and as a file."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import mistune
import pytest
from exported import headers
from hostile import NAMES, hostile_profile
from hypothesis import given
from hypothesis import strategies as st
from tiny import record, row, write_collection

import memscope_nb as ms
from memscope_nb.export.text import clip, clip_front, code, html_name, visible

ALLOWED = {
    "html": {"lang"}, "head": set(), "meta": {"charset", "http-equiv", "content", "name"}, "title": set(),
    "style": set(), "body": set(), "h1": set(), "h2": set(), "h3": set(), "p": {"class"}, "div": {"class"},
    "table": {"class"}, "tr": {"class"}, "th": set(), "td": {"class", "style"}, "data": {"value"}, "a": {"href"},
    "span": {"class"}, "bdi": set(), "br": set(), "ul": {"class"}, "li": set(), "b": set(), "code": set(),
    "details": {"id", "open"}, "summary": set(), "svg": {"class", "viewbox", "role"}, "path": {"class", "d"},
    "circle": {"cx", "cy", "r"},
}  # fmt: skip


class Structure(HTMLParser):
    """Tags with their attributes, and the text; a browser's view of what is markup."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.values, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {name for name, _ in attrs}))
        self.values += [(name, value) for name, value in attrs if name in ("href", "style", "content")]

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data!r}")


@pytest.fixture(scope="module", params=NAMES)
def exported(request, tmp_path_factory):
    name = NAMES[request.param]
    folder = tmp_path_factory.mktemp("hostile")
    index = ms.export_html(hostile_profile(name), folder / "out")
    return name, folder, index


def test_the_index_has_only_its_own_markup(exported):
    name, _, path = exported
    text = path.read_text("utf-8")
    page = Structure(text)
    for tag, attributes in page.tags:
        assert tag in ALLOWED, tag
        assert attributes <= ALLOWED[tag], (tag, attributes)
    for key, value in page.values:
        if key == "href":
            assert re.fullmatch(r"#t\d+|[A-Za-z0-9_./-]+\.html", value), value
            assert value.startswith("#") or (path.parent / value).is_file()
        if key == "style":
            assert re.fullmatch(r"--w:[\d.]+%", value), value
    assert not re.search("[\0-\x08\x0b-\x1f\ud800-\udfff\u202a-\u202e\u2066-\u2069]", text)
    shown = visible(clip(name, 80)).strip()
    assert shown in page.text
    assert len(text) < 40_000


def test_pages_differ_from_harmless_ones_in_their_data_only(exported, tmp_path):
    name, _, path = exported
    harmless = ms.export_html(hostile_profile("name"), tmp_path / "out")
    pages = sorted(path.parent.rglob("memory_timeline_*.html"))
    expected = sorted(harmless.parent.rglob("memory_timeline_*.html"))
    assert len(pages) == len(expected) == 2
    for page, like in zip(pages, expected, strict=True):
        assert page.read_text("utf-8") == like.read_text("utf-8")  # even the title names rank and device only
    for script in path.parent.rglob("detail_data_*.js"):
        assert re.fullmatch(r'window\.memscopePayload="[A-Za-z0-9+/=]*";\n', script.read_text("utf-8"))
    (first, second) = headers(path.parent)
    for header in (first, second):  # as it was: the runtime shows it as text
        assert name in header["names"]
        assert header["owners"] == [name] or not name
        assert f"torch/{name}(2): {name}" in header["frames"]
        assert {phase["name"] for phase in header["phases"]} == {name}


def test_nothing_lies_outside_the_folder_or_has_a_dangerous_name(exported):
    _, folder, path = exported
    assert [entry.name for entry in folder.iterdir()] == ["out"]
    for entry in path.parent.rglob("*"):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", entry.name), entry.name


def test_a_device_in_the_title_is_only_text(tmp_path):
    for number, name in enumerate(NAMES.values()):
        profile = hostile_profile("x").select(rank=0)
        device = profile.blocks["device"].cat.rename_categories([name])
        totals = profile.totals.assign(device=profile.totals["device"].cat.rename_categories([name]))
        blocks = profile.blocks.assign(device=device)
        path = ms.export_html(
            ms.MemoryProfile(profile.sources, blocks, totals, stacks=profile.stacks), tmp_path / str(number)
        )
        page = (path.parent / "memory_timeline_00.html").read_text("utf-8")
        head = page[: page.index("<body")]
        assert head.count("<title>") == head.count("</title>") == 1
        title = re.search(r"<title>([^<]*)</title>", head)[1]
        assert html.unescape(title).startswith("rank 0 · ")
        assert "\0" not in page


# -- Markdown -----------------------------------------------------------------------------------------------------


def tokens(text):
    """All tokens of a Markdown text, with tables, autolinks and the like, as GitHub reads it."""
    parse = mistune.create_markdown(renderer=None, plugins=["table", "url", "strikethrough", "footnotes", "task_lists"])
    found = []

    def walk(nodes):
        for node in nodes:
            found.append(node)
            walk(node.get("children", []))

    walk(parse(text))
    return found


@pytest.mark.parametrize("key", NAMES)
def test_triage_shows_names_as_code_and_nothing_acts(key):
    text = ms.triage(hostile_profile(NAMES[key]), redact=False).to_markdown()
    plain = ms.triage(hostile_profile("name"), redact=False).to_markdown()
    assert len(text.splitlines()) == len(plain.splitlines()) <= 40
    assert all(len(line) < 1200 for line in text.splitlines())
    assert not re.search("[\0-\x08\x0b-\x1f\ud800-\udfff\u202a-\u202e\u2066-\u2069]", text)
    found = tokens(text)
    kinds = {token["type"] for token in found}
    assert kinds <= {
        "heading", "text", "list", "list_item", "block_text", "codespan", "blank_line", "paragraph", "strong",
        "softbreak", "table", "table_head", "table_body", "table_row", "table_cell",
    }, kinds  # fmt: skip
    assert [t["type"] for t in found if "table" in t["type"]] == [
        t["type"] for t in tokens(plain) if "table" in t["type"]
    ]
    words = " ".join(token["raw"] for token in found if token["type"] == "text")
    for dangerous in ("alert", "evil.example", "octocat", "onerror", "calc", "passwd", "<"):
        assert dangerous not in words


def codes(name):
    text = ms.triage(hostile_profile(name), redact=False).to_markdown()
    return {token["raw"] for token in tokens(text) if token["type"] == "codespan"}


def test_triage_keeps_the_words_of_a_name():
    assert f"{NAMES['emoji']}.py(1): f" in codes(NAMES["emoji"])
    assert r"a\x00b\x07\x1b[31mred.py(1): f" in codes(NAMES["nul"])


@given(st.text(max_size=300))
def test_code_is_one_inert_line_for_any_text(text):
    shown = code(text)
    assert shown[0] == shown[-1] == "`"
    assert not re.search(r"[`|\n\r\0]", shown[1:-1])
    (paragraph,) = [token for token in tokens(f"x {shown} y") if token["type"] == "paragraph"]
    assert [child["type"] for child in paragraph["children"]] == ["text", "codespan", "text"]


@given(st.text(alphabet=st.characters(codec=None), max_size=300), st.integers(30, 200))
def test_text_for_html_is_bounded_and_can_be_written(text, length):
    for cut in (clip(text, length), clip_front(text, length)):
        assert len(cut) <= length
    shown = html_name(text)
    shown.encode("utf-8")
    assert "<" not in shown.replace("<bdi>", "").replace("</bdi>", "")
    assert not re.search("[\0-\x1f\u202a-\u202e]", shown)


# -- JSON and the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", NAMES)
def test_json_gives_the_numbers_back_and_the_names_bounded(key):
    found = ms.triage(hostile_profile(NAMES[key]), redact=False).to_dict()
    again = json.loads(json.dumps(found, ensure_ascii=False))
    assert again == json.loads(json.dumps(found))
    assert again["timelines"][0]["pools"][0]["peak"]["peak_bytes"] == (1 << 20) + 4096 + 8192 + 512
    assert len(json.dumps(found)) < 40_000


def test_folders_whose_names_are_no_text(tmp_path):
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    write_collection(
        root, role=os.fsdecode(b"r\xfe"), name="h_7_20260526085204519_ascend_pt", metadata=None,
        operators=[row("a", 1, 10, 20, 19, 1.0)], records=[record("PTA", 10, 1.0)],
    )  # fmt: skip
    profile = ms.load(root)
    assert profile.sources[["run", "role"]].iloc[0].tolist() == ["run\\udcff", "r\\udcfe"]
    for command in (
        ["info"],
        ["info", "--json"],
        ["scan", "--json"],
        ["triage"],
        ["triage", "--json"],
        ["report", "--out", str(tmp_path / "out")],
    ):
        done = subprocess.run([sys.executable, "-m", "memscope_nb", *command, root], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        if "--json" in command:
            json.loads(done.stdout)
    assert (tmp_path / "out" / "index.html").is_file()


def test_a_role_that_is_half_a_character(tmp_path):
    write_collection(
        tmp_path / "in",
        metadata={"role": "\ud800x"},
        operators=[row("a", 1, 10, 20, 19, 1.0)],
        records=[record("PTA", 10, 1.0)],
    )
    profile = ms.load(tmp_path / "in")
    assert profile.sources["role"].tolist() == ["\\ud800x"]
    assert "ud800x" in ms.export_html(profile, tmp_path / "out").read_text("utf-8")
