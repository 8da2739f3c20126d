"""The icicle: what is alive at an instant by call stack, with sums that are the recorded total."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from browser.pages import Show, Shown
from browser.synthetic import HOSTILE, Synthetic, make

pytestmark = pytest.mark.browser

TREE = """
  const plain = (node, key) => ({ key, kind: node.kind, text: node.text, bytes: node.bytes, blocks: node.blocks,
    folded: node.folded, children: Array.from(node.children, ([k, child]) => plain(child, k)) });
"""


def open_alive(shown: Shown) -> None:
    shown.page.locator("[data-view=alive]").click()
    shown.settle()


def set_focus(shown: Shown, t: int) -> None:
    shown.js("t => memscope.setFocus(memscope.shown(t))", t)
    shown.settle()


def tree(shown: Shown) -> dict[str, Any]:
    return dict(shown.js(f"(() => {{ {TREE} return plain(memscope.views.kept.alive.tree.root, ''); }})()"))


def stacked(stacks: list[list[str]], sizes: list[int], plumbing: tuple[str, ...] = ()) -> Synthetic:
    """Make a payload of blocks that all live in the same second, one for each stack (outermost frame first)."""
    made = make(len(sizes), second=False)
    frames = list(dict.fromkeys(itertools.chain(*stacks)))
    n = len(sizes)
    header, columns = made.header, made.columns
    header.update(
        frames=frames,
        plumbing=[int(frame in plumbing) for frame in frames],
        stacks=[[frames.index(frame) for frame in reversed(stack)] for stack in stacks if stack],
        sites=[0 for stack in stacks if stack],
    )
    number = itertools.count(1)
    columns["stack"] = np.array([next(number) if stack else 0 for stack in stacks])
    columns["id"] = np.arange(n)
    columns["start"], columns["life"] = np.full(n, 2_000_000_000) + np.arange(n), np.full(n, 1_000_000_000)
    columns["size"] = np.array(sizes)
    columns["name"] = np.arange(n) % 3
    for key in ("kind", "class", "series"):
        columns[key] = np.full(n, 4 if key == "class" else 0)
    columns["late_block"] = columns["late"] = np.zeros(0, np.int64)
    header["series"][0]["peak"] = {"allocated": [2_500_000_000, 1]}
    made.start, made.end, made.size = columns["start"], columns["start"] + columns["life"], columns["size"]
    made.series, made.late, made.name = np.zeros(n, np.int64), np.zeros(n, np.int64), columns["name"]
    return made


def test_sums_are_the_total_at_every_instant(show: Show) -> None:
    made = make(900, second=False)
    shown = show(made)
    open_alive(shown)
    t = [int(at) for at in made.instants() if made.recorded(int(at))][::17]
    for at in t:
        set_focus(shown, at)
        root = tree(shown)
        assert root["bytes"] == made.value("allocated", at), at
        assert root["blocks"] == made.live(at).sum()

        def check(node: dict[str, Any]) -> None:
            if node["children"]:
                assert sum(child["bytes"] for child in node["children"]) == node["bytes"]
                for child in node["children"]:
                    check(child)

        check(root)
        boxes = shown.js("memscope.views.kept.alive.layout.boxes.map(b => [b.depth, b.x, b.width, b.node.bytes])")
        width = max(box[2] for box in boxes)
        for _, x, wide, size in boxes:
            assert wide == pytest.approx(size / root["bytes"] * width)
            assert 0 <= x <= width - wide + 1e-6
        for depth in {box[0] for box in boxes}:
            row = sorted((x, wide) for d, x, wide, _ in boxes if d == depth)
            assert all(x + wide <= after + 1e-6 for (x, wide), (after, _) in itertools.pairwise(row))
        assert "do not add up" not in shown.state()["status"]


def test_common_frames_go_and_numbered_siblings_fold(show: Show) -> None:
    top = ["train.py:48 main", "train.py:212 step"]
    stacks = [[*top, f"model.layers.{k}", "attn.py:5 forward"] for k in range(12)]
    stacks += [[*top, f"model.layers.{k}", "mlp.py:9 forward"] for k in range(12)]
    stacks += [[*top, "conv2d"], [*top, "conv3d"], [*top, "loss.py:82 f"], [*top, "loss.py:83 f"], []]
    sizes = [(k + 1) << 20 for k in range(len(stacks))]
    made = stacked(stacks, sizes)
    shown = show(made)
    open_alive(shown)
    set_focus(shown, 2_500_000_000)
    root = tree(shown)
    found = {child["text"]: child for child in root["children"]}
    assert set(found) == {
        *("model.layers.*", "conv2d", "conv3d", "loss.py:82 f", "loss.py:83 f", "no stack", "older than the window")
    }
    layers = found["model.layers.*"]
    assert len(layers["folded"]) == 12
    assert layers["bytes"] == sum(sizes[:24])
    below = {child["text"]: child["bytes"] for child in layers["children"]}
    assert below == {"attn.py:5 forward": sum(sizes[:12]), "mlp.py:9 forward": sum(sizes[12:24])}
    assert found["no stack"]["bytes"] == sizes[-1]
    assert found["older than the window"]["bytes"] == made.value("older", 2_500_000_000)
    assert "2 common frames hidden" in shown.state()["status"]
    text = shown.page.locator(".ms-ice").inner_text()
    assert "model.layers.* ×12" in text
    assert f"{sum(sizes[:24]) / 2**20:.1f} MiB" in text
    assert "train.py:48 main" not in text
    total = made.value("allocated", 2_500_000_000)
    assert f"{total / 2**20:.1f} MiB allocated at 2,500 ms" in text
    assert shown.page.get_by_role("tab", selected=True).inner_text() == "Alive at 2,500.000 ms"


def test_zoom_and_way_back(show: Show) -> None:
    stacks = [["a.py:1 main", f"b.py:{k} f", f"c.py:{j} g"] for k in range(3) for j in range(4)]
    made = stacked(stacks, [(k + 1) << 20 for k in range(12)])
    shown = show(made)
    open_alive(shown)
    set_focus(shown, 2_500_000_000)
    page = shown.page
    page.get_by_role("button", name="b.py:2 f, ").click()
    shown.settle()
    boxes = shown.js("memscope.views.kept.alive.layout.boxes.map(b => [b.node.text, b.width])")
    assert boxes[0][0] == "b.py:2 f"
    assert sum(width for text, width in boxes if text.startswith("c.py")) == pytest.approx(boxes[0][1])
    assert page.locator(".ms-crumbs").inner_text().replace("\n", " ").startswith("everything alive › b.py:2 f")
    page.get_by_role("button", name="everything alive").click()
    shown.settle()
    assert shown.js("memscope.views.kept.alive.layout.boxes.length") == 1 + 1 + 3 + 12 + 12
    assert not page.locator(".ms-crumbs").is_visible()


def test_innermost_first_and_framework_frames(show: Show) -> None:
    stacks = [
        ["a.py:1 main", "torch/module.py:5 call", "b.py:2 f"],
        ["a.py:1 main", "torch/module.py:5 call", "c.py:3 g"],
    ]
    made = stacked(stacks, [1 << 20, 3 << 20], plumbing=("torch/module.py:5 call",))
    shown = show(made)
    open_alive(shown)
    set_focus(shown, 2_500_000_000)
    page = shown.page
    assert "torch/module.py" not in str(tree(shown))
    page.get_by_label("framework frames").check()
    shown.settle()
    assert "2 common frames hidden" in shown.state()["status"]
    page.locator(".ms-view-bar select").select_option("inner")
    shown.settle()
    root = tree(shown)
    first = next(child for child in root["children"] if child["bytes"] == 3 << 20)
    path = []
    while True:
        path.append(first["text"])
        if not first["children"]:
            break
        first = first["children"][0]
    assert path == [made.header["names"][1], "c.py:3 g", "torch/module.py:5 call", "a.py:1 main"]
    page.get_by_label("older memory").uncheck()
    shown.settle()
    assert tree(shown)["bytes"] == 4 << 20
    total = made.value("allocated", 2_500_000_000)
    assert f"4.00 MiB shown of {total / 2**20:.1f} MiB allocated" in page.locator(".ms-ice").inner_text()


def test_small_boxes_are_summed(show: Show) -> None:
    stacks = [["a.py:1 main", f"big{'abcdef'[k]}"] for k in range(3)]
    stacks += [["a.py:1 main", f"small{k}x"] for k in range(2000)]
    made = stacked(stacks, [64 << 20] * 3 + [40 << 10] * 2000)
    shown = show(made)
    open_alive(shown)
    set_focus(shown, 2_500_000_000)
    boxes = shown.js("memscope.views.kept.alive.layout.boxes.map(b => [b.node.text, b.width, b.node.bytes, b.small])")
    small = [box for box in boxes if box[3]]
    assert [box[0] for box in small] == ["+2000 small"]
    assert small[0][2] == 2000 * (40 << 10)
    assert all(box[1] >= 1 for box in boxes)


def test_nothing_recorded_and_hostile_names(show: Show) -> None:
    made = make(2500, hostile=True)
    shown = show(made)
    open_alive(shown)
    texts = str(tree(shown))
    assert any(name and name[:60] in texts for name in HOSTILE[:3])
    told = 0
    for button in shown.page.locator(".ms-ice button").all():
        box = button.bounding_box()
        if box["width"] >= 6 and told < 12:
            shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 8)
            shown.settle()
            assert button.get_attribute("aria-label").rpartition(", ")[0][:40].strip() in shown.tip()
            told += 1
    assert told > 5
    assert shown.page.locator("img, svg, iframe").count() == 0
    set_focus(shown, 30_500_000_000)
    assert shown.page.locator(".ms-ice").inner_text() == "No recording at this instant."


def test_filtered_bytes_have_a_box(show: Show) -> None:
    made = make(900, second=False)
    shown = show(made)
    open_alive(shown)
    t = made.header["series"][0]["peak"]["allocated"][0]
    shown.js("memscope.setFilters({ minSize: 65537 })")
    shown.settle()
    hidden = int(made.size[made.live(t) & (made.size <= 65536)].sum())
    root = tree(shown)
    box = [child["bytes"] for child in root["children"] if child["kind"] == "hidden"]
    assert box == ([hidden] if hidden else [])
    assert root["bytes"] == made.value("allocated", t)


def test_very_deep_stacks_are_cut_and_zoom_goes_down(show: Show) -> None:
    deep = [["a.py:1 main", f"leaf{k}", *(f"f{'abc'[i % 3]}{i}.x" for i in range(20_000))] for k in range(2)]
    made = stacked(deep, [5 << 20, 6 << 20])
    shown = show(made)
    open_alive(shown)
    set_focus(shown, 2_500_000_000)
    state = shown.state()
    assert "deeper rows show when you zoom in" in state["status"]
    rows = {box["depth"] for box in shown.js("memscope.views.kept.alive.layout.boxes.map(b => ({ depth: b.depth }))")}
    assert max(rows) == 59
    shown.page.locator(".ms-ice button").nth(20).focus()
    shown.page.keyboard.press("Enter")
    shown.settle()
    assert shown.js("memscope.views.kept.alive.path.length") > 5
    assert shown.js("document.activeElement.closest('.ms-ice') !== null")  # the keyboard stays where it was
    texts = shown.js(
        """(() => {
          let node = memscope.views.kept.alive.tree.root;
          const texts = [];
          while (node.children.size) { node = node.children.values().next().value; texts.push(node.text); }
          return texts;
        })()"""
    )
    assert "… 19502 more frames" in texts
    assert len(texts) == 501  # main is common, 499 frames, the words, the operator
