"""The live widget without a browser: what it says, what it takes, and what it would send."""

from __future__ import annotations

import gc
import weakref
from datetime import datetime, timezone

import nbformat
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipywidgets.widgets.widget import _instances
from nbclient import NotebookClient
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.model import block_ends, block_starts
from memscope_nb.notebook.link import Link, kit, pack_ids, unpack_ids
from memscope_nb.notebook.query import find_ids, read_instant
from memscope_nb.notebook.scene import LEAST_NS, Scene, segment_of, widen
from memscope_nb.view.codec import decode_payload

T = 1_779_785_515_596_661_421  # odd: no float64 holds it


def steps(n=40):
    """Blocks of 1000 ns, one after the other, of two operators; the last one stays."""
    rows = [(T + 1000 * k, T + 1000 * (k + 1), 512 * (k + 1)) for k in range(n - 1)]
    rows.append((T + 1000 * (n - 1), None, 512 * n))
    return profile_of(rows, names=[f"aten::op{k % 2}" for k in range(n)])


@pytest.fixture
def explorer(demo_profile):
    made = ms.explore(demo_profile)
    yield made
    made.close()


@pytest.fixture
def small():
    made = ms.explore(steps())
    yield made
    made.close()


@pytest.fixture
def posted(monkeypatch):
    """Everything that explorers send, as (kind, content, buffers)."""
    sent = []
    monkeypatch.setattr(
        Link, "send", lambda self, content, buffers=None: sent.append((content["kind"], content, buffers or []))
    )
    return sent


def tell(explorer, kind, *buffers, **content):
    """Say something as a browser would that knows the present state."""
    place = {"scene": explorer._scene.number, "turn": explorer._turn, "from": "browser"}
    explorer._link._handle_custom_msg({"kind": kind, **place, **content}, list(buffers))


# -- looking ----------------------------------------------------------------------------------------------------


def test_readable_before_it_is_shown(explorer, demo_profile):
    assert repr(explorer) == "Explorer of rank 0 · NPU:0, PTA · NPU:0, 1,650 blocks in view, 0 selected"
    assert explorer.timeline.label == "rank 0 · NPU:0"
    assert explorer.range == (explorer.timeline.span[0], explorer.timeline.span[1] + 1)
    assert len(explorer.selection) == 0
    assert [*explorer.selection] == [*demo_profile.blocks, "site"]
    mine = demo_profile.select(rank=0, pool="PTA").blocks
    assert set(explorer.visible["block_id"]) == set(mine["block_id"])


def test_visible_is_what_lives_in_the_range(explorer, demo_profile):
    mine = demo_profile.select(rank=0, pool="PTA")
    start = int(mine.blocks["alloc_ns"].iloc[500])
    explorer.range = (start, start + 5_000_001)
    assert explorer.range == (start, start + 5_000_001)
    alive = (block_starts(mine) < start + 5_000_001) & (block_ends(mine) > start)
    assert 0 < alive.sum() < len(mine.blocks)
    assert set(explorer.visible["block_id"]) == set(mine.blocks["block_id"][alive])
    sites = mine.stacks["site"]
    for row in explorer.visible.head(20).itertuples():
        assert row.site == (sites[row.stack_id] if row.stack_id >= 0 else "")


def test_another_timeline(demo_profile):
    with pytest.raises(InputError, match="there is: rank 0 · NPU:0, rank 1 · NPU:1"):
        ms.explore(demo_profile, rank=5)
    with pytest.raises(InputError, match="bars_per_segment"):
        ms.explore(demo_profile, bars_per_segment=0)
    with pytest.raises(InputError, match="capacity"):
        ms.explore(demo_profile, capacity="huge")
    explorer = ms.explore(demo_profile, rank=1, capacity="61 GiB")
    assert explorer.timeline.rank_id == 1
    header, _ = decode_payload(explorer._scene.payload())
    assert header["capacity_bytes"] == 61 << 30
    explorer.close()


def test_bundle_has_the_view_and_the_text(explorer):
    bundle = explorer._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == repr(explorer)
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == explorer.widget.model_id
    explorer.close()
    assert explorer._repr_mimebundle_() == {"text/plain": repr(explorer)}
    assert repr(explorer).endswith("(closed)")
    assert len(explorer.visible) == 1650


# -- range ------------------------------------------------------------------------------------------------------


def test_range_is_exact_and_takes_timestamps(small):
    small.range = (T + 1, T + 20_003)
    assert small.range == (T + 1, T + 20_003)
    assert all(type(value) is int for value in small.range)
    start, end = (pd.Timestamp(T + k, unit="ns", tz="UTC") for k in (7, 9009))
    small.range = (start, end)
    assert small.range == (T + 7, T + 9009)
    small.range = (start.tz_convert("Asia/Shanghai"), np.int64(T + 9010))
    assert small.range == (T + 7, T + 9010)
    small.range = (start.tz_localize(None), np.datetime64(T + 9011, "ns"))
    assert small.range == (T + 7, T + 9011)
    small.range = (T - 10**12, T + 500)
    assert small.range == (T, T + 500)
    assert small.visible["block_id"].tolist() == [0]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "pair of instants"),
        ((1, 2, 3), "pair of instants"),
        ((float(T), T + 5), "integer of epoch ns"),
        (("2026-01-01", T + 5), "integer of epoch ns"),
        ((pd.NaT, T + 5), "integer of epoch ns"),
        ((True, T + 5), "integer of epoch ns"),
        ((T + 5, T + 5), "does not lie after"),
        ((T + 5, T), "does not lie after"),
        ((T - 10, T), "lies outside rank 0"),
        ((T + 10**9, T + 2 * 10**9), "lies outside rank 0"),
    ],
)
def test_range_refuses(small, value, problem):
    before = small.range
    with pytest.raises(InputError, match=problem):
        small.range = value
    assert small.range == before


def test_instants():
    assert read_instant(datetime(2026, 1, 1, tzinfo=timezone.utc)) == 1_767_225_600_000_000_000
    assert read_instant(pd.Timestamp("2026-01-01T00:00:00.000001")) == 1_767_225_600_000_001_000


@given(st.integers(0, 2000), st.integers(1, 500), st.integers(1000, 3000), st.integers(0, 500))
def test_a_range_keeps_the_least_width(start, width, w1, w0):
    left, right = widen(start, start + width, (w0, w1))
    assert right - left == max(width, LEAST_NS)
    if width >= LEAST_NS:
        assert (left, right) == (start, start + width)
    elif w0 <= start and start + width <= w1:
        assert w0 <= left <= start
        assert start + width <= right <= w1


# -- selecting --------------------------------------------------------------------------------------------------


def test_select_by_query_text_ids_and_table(explorer, demo_profile):
    mine = demo_profile.select(rank=0).blocks
    got = explorer.select("size_bytes > 2**30 and pool == 'PTA'")
    expected = mine.query("size_bytes > 2**30 and pool == 'PTA'")
    assert len(expected) > 2
    assert got["block_id"].tolist() == expected["block_id"].tolist()
    assert explorer.selection.equals(got)

    leaked = explorer.select("append_logits")
    assert len(leaked) == 8
    assert leaked["site"].str.contains("append_logits").all()
    assert explorer.select("site.str.contains('append_logits') and free_ns.isna()").equals(leaked)
    assert set(explorer.select("ATEN::MM")["name"]) >= {"aten::mm"}
    assert explorer.select("name == 'no such'").empty

    other = demo_profile.select(rank=1).blocks.head(2)
    assert explorer.select(other)["block_id"].tolist() == other["block_id"].tolist()
    one = int(mine["block_id"].iloc[7])
    for ids in (one, [one], np.array([one]), pd.Series([one]), pd.array([one], dtype="Int64"), {one}):
        explorer.select([])
        assert explorer.select(ids)["block_id"].tolist() == [one]


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("no such text anywhere", "contains 'no such text anywhere', and it is no query"),
        ("size_byte > 3", "size_byte"),
        ("size_bytes", "no yes or no"),
        ("  ", "empty"),
        ([1.5], "integers"),
        ([True], "integers"),
        ([10**9], "no block with block_id 1000000000"),
        (-1, "no block with block_id -1"),
        (pd.DataFrame({"id": [1]}), "needs a column block_id; there is: id"),
        (["aten::mm"], "integers"),
    ],
)
def test_select_refuses(small, what, problem):
    before = small.select([3])
    with pytest.raises(InputError, match=problem):
        small.select(what)
    assert small.selection.equals(before)


def test_query_text_is_no_way_out():
    table = pd.DataFrame({"block_id": [1], "name": ["x"], "site": [""]})
    for text in ("@pd.io", "__import__('os').system('true')", "@__builtins__"):
        with pytest.raises(InputError):
            find_ids(text, table)


def test_focus_goes_where_the_block_is(explorer, demo_profile):
    for rank, pool in ((1, "PTA"), (0, "PTA+GE"), (0, "PTA")):
        blocks = demo_profile.select(rank=rank).blocks
        blocks = blocks[blocks["pool"] == pool] if (blocks["pool"] == pool).any() else blocks
        block = blocks.iloc[len(blocks) // 2]
        explorer.focus(block["block_id"])
        assert explorer.timeline.rank_id == rank
        assert explorer.selection["block_id"].tolist() == [block["block_id"]]
        assert block["block_id"] in set(explorer.visible["block_id"])
        start, end = explorer.range
        life = int(block["free_ns"]) - int(block["alloc_ns"]) if not pd.isna(block["free_ns"]) else 0
        assert life == 0 or (end - start) <= max(200 * life, 1000)
    with pytest.raises(InputError, match="no block with block_id 999999"):
        explorer.focus(999_999)


def test_focus_crosses_segments():
    explorer = ms.explore(steps(), bars_per_segment=10)
    scene = explorer._scene
    assert len(scene.windows) == 4
    assert "segment 1 of 4" in repr(explorer)
    explorer.focus(25)
    assert scene.segment == 2
    assert explorer.range[0] <= T + 25_000
    assert explorer.range[1] >= T + 26_000
    explorer.focus(39)  # open: lives to the end of the window
    assert scene.segment == 3
    explorer.range = (T + 9_000, T + 12_000)  # most of it is in the second segment
    assert scene.segment == 1
    assert explorer.range == (T + 10_000, T + 12_000)
    header, columns = decode_payload(scene.payload())
    assert header["segment"] == 1
    assert len(header["segments"]) == 4
    assert columns["id"].tolist() == scene.payload_ids().tolist()
    assert [segment_of(one["href"]) for one in header["segments"]] == [0, 1, 2, 3]
    explorer.close()


@pytest.mark.parametrize("href", ["", "segment-", "segment-x", "segment--1", "segment-²", "javascript:1", "x-1", "1"])
def test_links_that_lead_nowhere(href):
    assert segment_of(href) is None


# -- callbacks --------------------------------------------------------------------------------------------------


def test_callbacks_hear_every_change_once_and_stop(explorer):
    selected, moved = [], []
    stop_select = explorer.on_select(lambda table: selected.append(table["block_id"].tolist()))
    stop_range = explorer.on_range(moved.append)
    explorer.select([3, 4])
    explorer.select([4, 3])
    explorer.range = (explorer.range[0], explorer.range[0] + 10**9)
    explorer.range = explorer.range
    assert selected == [[3, 4]]
    assert moved == [explorer.range]
    explorer.focus(5)
    assert selected == [[3, 4], [5]]
    stop_select()
    stop_select()
    stop_range()
    explorer.select([9])
    explorer.focus(700)
    assert len(selected) == 2
    with pytest.raises(InputError, match="on_select needs a function"):
        explorer.on_select("no")


def test_a_failing_callback_is_not_hidden(small, posted):
    small.on_select(lambda table: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small.select([1])
    assert small.selection["block_id"].tolist() == [1]
    assert [kind for kind, *_ in posted if kind == "problem"] == []


# -- messages ---------------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_someone_listens(small, posted):
    small.range = (T + 1, T + 2000)
    small.select([1])
    assert posted == []
    tell(small, "hello")
    ((kind, content, (payload, ids)),) = posted
    assert kind == "scene"
    assert content["to"] == "browser"
    assert content["range"] == [1, 2000]
    assert unpack_ids(ids).tolist() == [1]
    assert decode_payload(payload)[1]["id"].tolist() == list(range(40))
    json_safe = {key: value for key, value in content.items() if not isinstance(value, (bytes, np.ndarray))}
    assert json_safe == content


def test_kit_is_for_the_browser_that_asks(small, posted):
    tell(small, "kit")
    ((kind, content, buffers),) = posted
    assert (kind, content["to"]) == ("kit", "browser")
    assert tuple(buffers) == kit()[1]
    assert sum(map(len, buffers)) < 600_000
    assert small._link.kit == kit()[0]


def test_browser_tells_range_filters_and_selection(small, posted):
    tell(small, "hello")
    heard = []
    small.on_range(heard.append)
    seen = np.zeros(40, np.uint8)
    seen[[2, 5, 33]] = 1
    tell(small, "view", np.packbits(seen, bitorder="little").tobytes(), t0=3, t1=9003, series=0)
    assert small.range == (T + 3, T + 9003)
    assert small.visible["block_id"].tolist() == [2, 5, 33]
    assert heard == [(T + 3, T + 9003)]
    kinds = [(kind, content.get("to"), content.get("from")) for kind, content, _ in posted[1:]]
    assert kinds == [("ack", "browser", None), ("state", None, "browser")]
    small.range = (T + 4, T + 9003)  # what the browser said holds for its range only
    assert small.visible["block_id"].tolist() == list(range(10))
    chosen = []
    small.on_select(lambda table: chosen.append(table["block_id"].tolist()))
    tell(small, "select", pack_ids(np.array([7, 2])))
    assert chosen == [[2, 7]]
    tell(small, "select", pack_ids(np.array([], dtype=np.int64)))
    assert chosen == [[2, 7], []]


def test_what_an_old_state_says_moves_nothing(small, posted):
    tell(small, "hello")
    old = small._turn
    small.range = (T + 1000, T + 5000)
    tell(small, "view", t0=0, t1=40_000, series=0, turn=old)
    tell(small, "select", pack_ids(np.array([3])), turn=old)
    tell(small, "view", t0=0, t1=40_000, series=0, scene=small._scene.number - 1)
    assert small.range == (T + 1000, T + 5000)
    assert small.selection.empty
    assert [kind for kind, *_ in posted].count("ack") == 2


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "view", "t0": 5.5, "t1": 9, "series": 0},
        {"kind": "view", "t0": 5, "t1": None, "series": 0},
        {"kind": "view", "t0": 9, "t1": 5, "series": 0},
        {"kind": "view", "t0": 5, "t1": 900, "series": 7},
        {"kind": "view", "t0": 5, "t1": 900, "series": -1},
        {"kind": "segment", "href": "https://example.org"},
        {"kind": "segment", "href": "segment-99"},
        {"kind": "select"},
        {"kind": "nonsense"},
        {},
    ],
)
def test_nonsense_from_a_browser_changes_nothing(small, posted, content):
    before = small.range
    tell(small, content.pop("kind", None), **content)
    assert small.range == before
    assert small.selection.empty


def test_ids_that_are_not_there_are_a_problem_for_the_browser(small, posted, caplog):
    tell(small, "select", pack_ids(np.array([77])))
    assert "no block with block_id 77" in caplog.text  # ipywidgets logs what a handler raises
    assert small.selection.empty
    assert [(kind, content["to"]) for kind, content, _ in posted] == [("problem", "browser")]


def test_a_link_to_another_segment(posted):
    explorer = ms.explore(steps(), bars_per_segment=10)
    tell(explorer, "hello")
    tell(explorer, "segment", href="segment-1#x0=9000&x1=9500", t0=9000, t1=9500)
    assert explorer._scene.segment == 1
    assert explorer.range == (T + 10_000, T + 10_500)  # shifted to where the segment starts
    kind, content, (payload, _) = posted[-1]
    assert (kind, content["to"], content["range"]) == ("scene", None, [10_000, 10_500])
    assert decode_payload(payload)[0]["segment"] == 1
    tell(explorer, "segment", href="segment-2", t0=None, t1=None)
    assert explorer.range == (T + 20_000, T + 30_000)
    assert explorer.visible["block_id"].tolist() == list(range(20, 30))
    explorer.close()


def test_ids_and_times_survive_beyond_float32():
    ids = np.array([0, 2**24 + 1, 2**53 - 1])
    assert unpack_ids(pack_ids(ids)).tolist() == ids.tolist()


# -- selectors --------------------------------------------------------------------------------------------------


def test_selectors_lead_and_follow(explorer, demo_profile, posted):
    controls = explorer._controls
    assert [one.description for one in controls.box.children[:-1]] == ["Rank", "Pool", "Recording"]
    controls.rank.value = "rank 1"
    assert explorer.timeline.rank_id == 1
    label, other = controls.pool.options[1]
    controls.pool.value = other
    assert repr(explorer).startswith(f"Explorer of rank 1 · NPU:1, {label}")
    pools = set(explorer.visible["pool"])
    assert len(pools) == 1
    assert label.startswith(f"{pools.pop()} ·")
    text, number = next(option for option in controls.source.options[1:] if option[0].startswith("actor_update"))
    controls.source.value = number
    sources = demo_profile.sources.set_index("source").loc[list(explorer.timeline.sources)]
    window = next(row for row in sources.itertuples() if text.startswith(f"{row.role} #{row.collection}"))
    start, end = explorer.range
    assert 0 < window.start_ns - start < (end - start) * 0.05
    assert 0 < end - window.end_ns < (end - start) * 0.05
    controls.source.value = None
    assert explorer.range == (explorer.timeline.span[0], explorer.timeline.span[1] + 1)
    explorer.focus(int(demo_profile.select(rank=0).blocks["block_id"].iloc[3]))
    assert controls.rank.value == "rank 0"
    assert posted == []


def test_selection_text_is_escaped():
    explorer = ms.explore(profile_of([(T, T + 1000, 1 << 20)], names=["<img src=x onerror=alert(1)>$$x$$"]))
    explorer.select([0])
    text = explorer._controls.text.value
    assert "&lt;img src=x" in text
    assert "<" not in text
    assert text.endswith("1.00 MiB")
    explorer.close()


def test_a_single_open_block_can_be_explored():
    lonely = profile_of([(T, None, 1)])
    with pytest.raises(InputError, match="there is: rank 0"):
        ms.explore(lonely, device="NPU:7")
    explorer = ms.explore(lonely, device="NPU:0")
    explorer.focus(0)
    assert explorer.range == (T, T + LEAST_NS)
    assert explorer.visible["block_id"].tolist() == [0]
    explorer.close()


# -- closing and storing ----------------------------------------------------------------------------------------


def test_closing_leaves_nothing_behind():
    profile = steps()

    def open_and_close():
        explorer = ms.explore(profile)
        explorer.on_select(lambda table: explorer)
        explorer.select([1])
        explorer._repr_mimebundle_()
        explorer.close()
        explorer.close()
        return [weakref.ref(part) for part in (explorer, explorer._scene, explorer._link, explorer.widget)]

    gc.collect()
    before = set(_instances)
    references = [reference for _ in range(20) for reference in open_and_close()]
    gc.collect()
    assert set(_instances) == before
    assert [reference for reference in references if reference() is not None] == []


def test_an_executed_notebook_stays_small(tmp_path):
    """What nbclient stores of the widget, for 20,000 blocks that are all selected."""
    source = f"""
    import numpy as np, sys
    sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
    from tiny import profile_of
    import memscope_nb as ms
    start = {T} + 1000 * np.arange(20_000)
    names = [f"some_operator_{{k % 50}}" for k in range(20_000)]
    p = profile_of([(int(t), int(t) + 900, 512) for t in start], names=names)
    v = ms.explore(p)
    v.select("size_bytes > 1")
    v.range = (int(start[5]), int(start[9000]))
    v
    """
    source = "\n".join(line.strip() for line in source.strip().splitlines())
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    path = tmp_path / "n.ipynb"
    nbformat.write(notebook, path)
    text = path.read_text()
    assert "20,000 selected" in text
    assert "widget-view+json" in text
    assert "application/vnd.jupyter.widget-state+json" in text  # it did store the state
    assert "some_operator_49" not in text
    assert path.stat().st_size < 20_000


def test_scene_keeps_few_payloads(demo_profile):
    scene = Scene(demo_profile, bars_per_segment=100)
    for segment in range(len(scene.windows)):
        scene.go(segment=segment)
        scene.payload()
    assert len(scene._payloads) <= 3
