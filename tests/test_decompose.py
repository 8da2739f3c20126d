"""Decomposition: owner grammars, trees that add up, rules, what cannot be known."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import SAMPLES
from dump_rows import T0, free, malloc, write_csv, write_db
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import profile_of

import memscope_nb as ms
from memscope_nb.analysis.decompose_owner import (
    CANN_MODULES,
    FREE,
    MAX_LEVELS,
    NO_LABEL,
    NOT_SELECTED,
    OLDER,
    OTHERS,
    REMAINDER,
    category_of,
    module_name,
    owner_path,
)
from memscope_nb.analysis.rules import load_rules


def t(event_id: int) -> int:
    """Time of a row of the literal dumps."""
    return T0 + event_id * 1000


ROWS = [
    malloc(1, 0x9000, 8192, life=1, used=8192, owner="CANN@APP"),
    malloc(2, 0x7000, 300, life=2, used=8492, owner="CANN@HCCL"),
    malloc(3, 0x9000, 1000, pool="PTA", life=3, used=1100, total=4096, owner="PTA@weight"),
    malloc(4, 0x9400, 200, pool="PTA", life=4, used=1300, total=4096, owner="PTA@weight@ops"),
    malloc(5, 0x9600, 50, pool="PTA", life=5, used=1350, total=4096, owner="PTA@fsdp2@activation@ops"),
    malloc(6, 0x9800, 7, pool="PTA", life=6, used=1357, total=4096),
    free(7, 0x9600, 50, pool="PTA", life=5, used=1307, total=4096),
    free(8, 0x9400, 200, pool="PTA", life=4, used=1107, total=4096),
    free(9, 0x7000, 300, life=2, used=8192),
]
"""100 bytes of PTA are older than the recording."""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "memscope_dump_1.csv", ROWS)


def own(frame: pd.DataFrame, pool: str = "PTA") -> dict[str, int]:
    """Path to own bytes, of nodes that have any."""
    part = frame[(frame["pool"] == pool) & (frame["own_bytes"] != 0)]
    return dict(zip(part["path"], part["own_bytes"], strict=True))


def check_tree(frame: pd.DataFrame) -> None:
    """Every node is its own bytes and those of its children, the root included, whose bytes are recorded."""
    assert len(frame)
    for _, tree in frame.groupby(["source", "device", "pool"], observed=True):
        rows = tree.to_dict("records")
        assert [row["level"] for row in rows].count(0) == 1
        for i, row in enumerate(rows):
            below = []
            for later in rows[i + 1 :]:
                if later["level"] <= row["level"]:
                    break
                if later["level"] == row["level"] + 1:
                    below.append(later)
            assert row["bytes"] == row["own_bytes"] + sum(child["bytes"] for child in below), row["path"]


# -- grammar ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "pool", "path"),
    [
        ("PTA", "PTA", ()),
        ("PTA@ops", "PTA", ("ops",)),
        ("PTA@ops@aten", "PTA", ("ops",)),
        ("PTA@ops@aten@mine", "PTA", ("ops", "mine")),
        ("PTA@model@weight", "PTA", ("weight",)),
        ("PTA@model@optimizer_state@mine", "PTA", ("optimizer_state", "mine")),
        ("PTA@model@mine", "PTA", ("model", "mine")),
        ("PTA@vllm@kv_cache@attn", "PTA", ("vllm", "kv_cache", "attn")),
        ("PTA_WORKSPACE@x", "PTA_WORKSPACE", ("x",)),
        ("CANN@HCCL", "CANN", ("HCCL",)),
        ("mylabel", "HOST_PINNED", ("mylabel",)),
        ("PTA@(older)", "PTA", ("'(older)'",)),
    ],
)
def test_both_grammars_give_one_path(owner: str, pool: str, path: tuple[str, ...]):
    assert owner_path(owner, pool) == path


@pytest.mark.parametrize(
    ("path", "category"),
    [
        (("weight", "ops"), "weight"),
        (("ops",), "ops"),
        (("fsdp2", "activation", "gradient"), "gradient"),
        (("fsdp2", "backward", "ops"), "activation"),
        (("vllm", "serve", "kv_cache"), "activation"),
        (("fsdp1", "all_gather"), "all_gather"),
        (("mylabel",), "other"),
        ((), "other"),
    ],
)
def test_the_first_category_of_the_list_counts(path: tuple[str, ...], category: str):
    assert category_of(path, "PTA") == category


def test_module_ids():
    assert len(CANN_MODULES) == 76
    assert [module_name(i) for i in (0, 3, 7, 33, 45, 48, 63, 75)] == [
        "SLOG", "HCCL", "RUNTIME", "APP", "GE", "ASCENDCL", "OP", "INVLID_MOUDLE_ID",
    ]  # fmt: skip
    assert {module_name(i) for i in (-1, 76, 255)} == {"UNKNOWN"}


# -- a literal dump ---------------------------------------------------------------------------------------------


def test_tree_at_the_peak(dump: Path):
    d = ms.decompose(dump)
    pta = d.frame[d.frame["pool"] == "PTA"]
    assert set(pta["t_ns"]) == {t(6)}  # used is highest there
    shown = list(zip(pta["path"], pta["level"], pta["kind"], pta["bytes"], pta["n_blocks"], strict=True))
    assert shown == [
        ("PTA", 0, "root", 4096, 4),
        ("PTA@weight", 1, "owner", 1200, 2),
        ("PTA@weight@ops", 2, "owner", 200, 1),
        ("PTA@fsdp2", 1, "owner", 50, 1),
        ("PTA@fsdp2@activation", 2, "owner", 50, 1),
        ("PTA@fsdp2@activation@ops", 3, "owner", 50, 1),
        (f"PTA@{NO_LABEL}", 1, "none", 7, 1),
        (f"PTA@{FREE}", 1, "free", 4096 - 1357, 0),
        (f"PTA@{OLDER}", 1, "older", 100, 0),
        (f"PTA@{REMAINDER}", 1, "remainder", 0, 0),
    ]
    check_tree(d.frame)
    of = d.parts[d.parts["pool"] == "PTA"].set_index("path")
    assert of.loc["PTA@weight", "bytes"] == 1000
    assert of.loc["PTA@weight@ops", "category"] == "weight"
    assert of.loc["PTA@fsdp2@activation@ops", "category"] == "activation"


def test_driver_memory_is_a_tree_of_its_own(dump: Path):
    d = ms.decompose(dump)
    assert own(d.frame, "HAL") == {"CANN@APP": 8192, "CANN@HCCL": 300}
    assert d.frame.loc[d.frame["level"] == 0, "bytes"].tolist() == [4096, 8492]
    assert any("never add them up" in caveat for caveat in d.caveats)


def test_tree_at_an_instant(dump: Path):
    assert own(ms.decompose(dump, at=t(8)).frame) == {
        "PTA@weight": 1000, f"PTA@{NO_LABEL}": 7, f"PTA@{OLDER}": 100, f"PTA@{FREE}": 4096 - 1107,
    }  # fmt: skip
    between = ms.decompose(dump, at=t(7) + 1)
    assert own(between.frame) == own(ms.decompose(dump, at=t(7)).frame)
    check_tree(between.frame)


def test_a_missing_row_is_a_remainder_and_no_older_memory(tmp_path: Path):
    rows = [row for row in ROWS if not (row[2] == "PTA" and "allocation_id:5" in row[9])]
    d = ms.decompose(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    wide = d.over_time(pool="PTA", points=None)
    assert wide[f"PTA@{OLDER}"].unique().tolist() == [100]
    # Of the lost block nothing is seen before the next sample: 6 .. 8, where the counter fell by more than one block.
    assert wide.loc[wide[f"PTA@{REMAINDER}"] != 0, f"PTA@{REMAINDER}"].to_dict() == {t(6): 50}
    assert any("disagree by 0 B to +50 B" in caveat for caveat in d.caveats)


def test_a_counter_below_the_blocks_is_a_negative_remainder(tmp_path: Path):
    rows = [
        malloc(1, 0x10, 100, pool="PTA", life=1, used=100, total=512),
        malloc(2, 0x20, 100, pool="PTA", life=2, used=130, total=512),
    ]
    d = ms.decompose(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert d.frame.loc[d.frame["kind"] == "remainder", "bytes"].tolist() == [-70]
    assert d.frame.loc[d.frame["kind"] == "older", "bytes"].tolist() == [0]
    check_tree(d.frame)


def test_workspace_and_processes_are_trees_of_their_own(tmp_path: Path):
    rows = [
        malloc(1, 0x10, 64, pool="PTA", life=1, used=64, total=100, owner="PTA@ops"),
        malloc(2, 0x20, 30, pool="PTA", life=2, used=30, total=40, owner="PTA_WORKSPACE"),
        malloc(1, 0x10, 5, pool="PTA", life=1, used=5, total=9, owner="PTA@x", pid=200, t=t(1)),
    ]
    write_csv(tmp_path / "memscope_dump_1.csv", rows)
    roots = ms.decompose(tmp_path / "memscope_dump_1.csv").frame
    roots = roots[roots["level"] == 0]
    assert sorted(zip(roots["source"], roots["path"], roots["bytes"], roots["own_bytes"], strict=True)) == [
        (0, "PTA", 100, 0), (0, "PTA_WORKSPACE", 40, 30), (1, "PTA", 9, 0),
    ]  # fmt: skip


def test_module_ids_of_early_files(tmp_path: Path):
    rows = [malloc(1, 0x10, 64, owner="", MID=3), malloc(2, 0x20, 32, owner="", MID=200), malloc(3, 0x30, 8)]
    expected = {"CANN@HCCL": 64, "CANN@UNKNOWN": 32, f"CANN@{NO_LABEL}": 8}
    d = ms.decompose(write_csv(tmp_path / "memscope_dump_1.csv", rows), at=t(3))
    assert own(d.frame, "HAL") == expected
    assert set(d.parts.loc[d.parts["kind"] == "owner", "rule"]) == {"CANN module id"}
    assert own(ms.decompose(write_db(tmp_path / "db" / "memscope_dump_1.db", rows), at=t(3)).frame, "HAL") == expected


def test_without_a_counter_older_memory_is_undecided(tmp_path: Path):
    d = ms.decompose(write_csv(tmp_path / "memscope_dump_1.csv", [malloc(1, 0x10, 64, life=1, owner="CANN@APP")]))
    assert "older" not in set(d.frame["kind"])
    assert any("undecided" in caveat for caveat in d.caveats)


def test_without_labels_lifetimes_stand_in(tmp_path: Path):
    rows = [malloc(1, 0x10, 64, pool="PTA", life=1), free(2, 0x10, 64, pool="PTA", life=1), malloc(3, 0x10, 8, life=2)]
    d = ms.decompose(write_csv(tmp_path / "memscope_dump_1.csv", rows))
    assert own(d.frame) == {"PTA@transient": 64}
    assert own(d.frame, "HAL") == {"CANN@open": 8}
    assert any("analysis='decompose'" in caveat for caveat in d.caveats)


def test_inputs_stay_as_they_are(dump: Path):
    before = hashlib.sha256(dump.read_bytes()).hexdigest()
    p = ms.load(dump)
    tables = {name: getattr(p, name).copy(deep=True) for name in ("sources", "blocks", "totals", "marks", "events")}
    d = ms.decompose(p)
    d.over_time(pool="PTA")
    d.to_dict()
    assert hashlib.sha256(dump.read_bytes()).hexdigest() == before
    for name, table in tables.items():
        pd.testing.assert_frame_equal(getattr(p, name), table)


def test_result_is_json(dump: Path):
    data = json.loads(json.dumps(ms.decompose(dump).to_dict()))
    assert sum(row["own_bytes"] for row in data["rows"] if row["pool"] == "PTA") == 4096


def test_hostile_labels(tmp_path: Path):
    deep = "PTA@" + "@".join(f"l{i}" for i in range(500))
    labels = ["PTA@(older)", "PTA@<script>alert(1)</script>", deep, "@@@", "PTA@=cmd()"]
    rows = [
        malloc(i, i * 16, 2**i, pool="PTA", life=i, owner=label, used=2 ** (i + 1) - 2)
        for i, label in enumerate(labels, 1)
    ]
    d = ms.decompose(write_csv(tmp_path / "memscope_dump_1.csv", rows), at=t(5))
    check_tree(d.frame)
    assert own(d.frame)["PTA@'(older)'"] == 2
    assert d.frame.loc[d.frame["kind"] == "older", "bytes"].tolist() == [0]
    assert d.frame["level"].max() < MAX_LEVELS + 1
    assert "<script>" not in d._repr_html_()
    wide = d.over_time(points=None)
    assert (wide.drop(columns="total_bytes").sum(axis=1) == wide["total_bytes"]).all()


# -- parameters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [True, 1.5, "now"])
def test_at_must_be_a_time(dump: Path, at: object):
    with pytest.raises(TypeError, match="ns since the epoch"):
        ms.decompose(dump, at=at)


@pytest.mark.parametrize("at", [T0 - 1, t(10), 0, -5])
def test_an_instant_outside_every_window(dump: Path, at: int):
    with pytest.raises(ms.InputError, match="nothing was recorded at"):
        ms.decompose(dump, at=at)


def test_over_time_asks_which_tree(dump: Path):
    d = ms.decompose(dump)
    with pytest.raises(ms.InputError, match=r"2 trees fit.*pool='HAL'"):
        d.over_time()
    with pytest.raises(ms.InputError, match="0 trees fit"):
        d.over_time(pool="ATB")


def test_no_blocks(tmp_path: Path):
    p = profile_of([(1, 2, 3)])
    with pytest.raises(ms.MissingFactError, match="events='alloc,free'"):
        ms.decompose(replace(p, blocks=p.blocks.iloc[:0]))


# -- adding up --------------------------------------------------------------------------------------------------

LIFE = st.tuples(st.integers(0, 30), st.integers(1, 30) | st.none(), st.integers(1, 1000), st.sampled_from("abc-"))


def labelled(lives: list[tuple[int, int | None, int, str]], older: int) -> ms.MemoryProfile:
    p = profile_of([(a, None if n is None else a + n, size) for a, n, size, _ in lives], older=older)
    owner = [None if label == "-" else f"PTA@{label}@ops" for *_, label in lives]
    return replace(p, blocks=p.blocks.assign(owner=pd.Categorical(owner)))


@settings(max_examples=40)
@given(st.lists(LIFE, min_size=1, max_size=25), st.integers(0, 10_000))
def test_adds_up_at_every_instant(lives: list[tuple[int, int | None, int, str]], older: int):
    d = ms.decompose(labelled(lives, older))
    wide = d.over_time(points=None)
    any_label = any(label != "-" for *_, label in lives)
    for instant, row in wide.iterrows():
        parts = row.drop("total_bytes")
        alive = [(size, label) for a, n, size, label in lives if a <= instant and (n is None or instant < a + n)]
        assert parts[f"PTA@{REMAINDER}"] == 0
        assert parts[f"PTA@{OLDER}"] == older
        assert parts[f"PTA@{FREE}"] == (1 << 40) - older - sum(size for size, _ in alive)
        assert parts.sum() == row["total_bytes"] == 1 << 40
        for label in "abc":
            assert parts.get(f"PTA@{label}@ops", 0) == sum(size for size, other in alive if other == label)
        bare = sum(parts.get(f"PTA@{name}", 0) for name in (NO_LABEL, "open", "transient"))
        assert bare == sum(size for size, other in alive if other == "-")
        assert any_label or f"PTA@{NO_LABEL}" not in wide
    check_tree(d.frame)
    for instant in wide.index[:: max(len(wide) // 3, 1)]:
        check_tree(ms.decompose(labelled(lives, older), at=int(instant)).frame)


@settings(max_examples=40)
@given(st.lists(LIFE, min_size=2, max_size=15), st.integers(0, 10_000), st.integers(0, 14))
def test_a_lost_block_is_not_plugged(lives: list[tuple[int, int | None, int, str]], older: int, lost: int):
    p = labelled(lives, older)
    kept = p.blocks.drop(index=lost % len(lives))
    a, n, size, _ = lives[lost % len(lives)]
    wide = ms.decompose(replace(p, blocks=kept)).over_time(points=None)
    # Memory of the lost block counts as older only if it was there at the first sample.
    first = min(start for start, *_ in lives)
    there = {i: size * (a <= i and (n is None or i < a + n)) for i in wide.index}
    unexplained = {i: 0 if a == first else value for i, value in there.items()}
    assert wide[f"PTA@{REMAINDER}"].to_dict() == unexplained
    assert wide[f"PTA@{OLDER}"].to_dict() == {i: older + there[i] - unexplained[i] for i in wide.index}


@settings(max_examples=40)
@given(st.lists(LIFE, min_size=1, max_size=40), st.integers(1, 3), st.integers(0, 3))
def test_thinning_keeps_extremes(lives: list[tuple[int, int | None, int, str]], points: int, top: int):
    d = ms.decompose(labelled(lives, 5))
    full, thin = d.over_time(points=None, top=top), d.over_time(points=points, top=top)
    assert list(full) == list(thin)
    assert len(thin) <= len(full)
    pd.testing.assert_frame_equal(full.loc[thin.index], thin)
    for column in full:
        assert (thin[column].min(), thin[column].max()) == (full[column].min(), full[column].max()), column


def test_leaves_beyond_the_top_are_one_column():
    n = 200
    p = profile_of([(i, i + 50, 10 + i % 7) for i in range(n)])
    owner = pd.Categorical([f"PTA@x{i % 20}" for i in range(n)])
    d = ms.decompose(replace(p, blocks=p.blocks.assign(owner=owner)))
    every, few = d.over_time(points=None, top=20), d.over_time(points=None, top=3)
    shown = [name for name in few if "@x" in name]
    peaks = every[[name for name in every if "@x" in name]].max().sort_values(ascending=False)
    assert len(shown) == 3
    assert sorted(few[shown].max()) == sorted(peaks.iloc[:3])
    hidden = every[[name for name in peaks.index if name not in shown]].sum(axis=1)
    assert (few[f"PTA@{OTHERS}"] == hidden).all()


def test_the_top_is_by_peak_where_ends_come_before_starts():
    p = profile_of([(0, 5, 10), (5, 9, 10), (0, 9, 15)])
    d = ms.decompose(replace(p, blocks=p.blocks.assign(owner=pd.Categorical(["PTA@a", "PTA@a", "PTA@b"]))))
    assert [name for name in d.over_time(top=1) if "(" not in name] == ["PTA@b", "total_bytes"]


def test_a_selection_says_what_it_left_out():
    p = labelled([(0, 10, 100, "a"), (1, 9, 7, "b"), (2, None, 30, "a")], 50).select(min_bytes=20)
    d = ms.decompose(p)
    wide = d.over_time(points=None)
    assert (wide.drop(columns="total_bytes").sum(axis=1) == wide["total_bytes"]).all()
    assert wide[f"PTA@{NOT_SELECTED}"].loc[2] == 57
    assert f"PTA@{OLDER}" not in wide
    assert any("not selected" in caveat for caveat in d.caveats)


def test_each_block_has_its_place():
    d = ms.decompose(labelled([(0, 10, 100, "a"), (1, 9, 7, "-")], 50))
    assert d.blocks["path"].tolist() == ["PTA@a@ops", f"PTA@{NO_LABEL}"]
    assert d.blocks["rule"].tolist() == ["owner label", "no label"]


# -- profiles without labels ------------------------------------------------------------------------------------


def test_ascend_profile_by_lifetime():
    p = profile_of([(0, 10, 100), (1, None, 30)], older=500)
    d = ms.decompose(p)
    assert own(d.frame) == {
        "PTA@transient": 100, "PTA@open": 30, f"PTA@{OLDER}": 500, f"PTA@{FREE}": (1 << 40) - 630,
    }  # fmt: skip
    assert d.frame.loc[d.frame["kind"] == "remainder", "bytes"].tolist() == [0]
    assert any("lifetime classes" in caveat and "msmemscope" not in caveat for caveat in d.caveats)


def test_demo_adds_up(demo_profile):
    d = ms.decompose(demo_profile)
    check_tree(d.frame)
    assert len(d.trees) > 2
    for tree in d.trees:
        one = tree.series
        wide = d.over_time(source=one.source, device=one.device, pool=one.pool, points=200)
        assert (wide.drop(columns="total_bytes").sum(axis=1) == wide["total_bytes"]).all()
        recorded = ms.live_at(demo_profile, one.window[1])
        mine = recorded[(recorded["source"] == one.source) & (recorded["pool"] == one.pool)]
        special = [name for name in wide if name.rpartition("@")[2] in (OLDER, REMAINDER, FREE)]
        blocks = wide.iloc[-1].drop([*special, "total_bytes"]).sum()
        assert one.release_shift_ns or blocks == mine["size_bytes"].sum()


# -- rules ------------------------------------------------------------------------------------------------------


def rules_file(folder: Path, text: str) -> Path:
    path = folder / "rules.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ('owner = "weight$"', {"PTA@weight": 0, "PTA@mine": 1000}),
        ('owner = "weight"', {"PTA@mine": 1200}),
        ("min_bytes = 200", {"PTA@mine": 1200}),
        ('min_bytes = "201 B"', {"PTA@mine": 1000}),
        ("max_bytes = 50", {"PTA@mine": 57}),
        ('lifetime = "open"', {"PTA@mine": 1007}),
        ('lifetime = ["open", "transient"]', {"PTA@mine": 1257}),
        ('pool = ["HAL"]', {}),
        ('pool = "PTA"\nmax_bytes = 50', {"PTA@mine": 57}),
        ('stack = "model.py"', {"PTA@mine": 50}),
    ],
)
def test_conditions(tmp_path: Path, condition: str, taken: dict[str, int]):
    rows = [
        malloc(5, 0x9600, 50, pool="PTA", life=5, used=1350, total=4096, stack="inner.py(1): f\nmodel.py(2): g\n")
        if row[0] == "5" else row for row in ROWS
    ]  # fmt: skip
    path = write_csv(tmp_path / "memscope_dump_1.csv", rows)
    rules = rules_file(tmp_path, f'[[rule]]\nname = "r"\nplace = "mine"\n{condition}\n')
    d = ms.decompose(path, rules=rules)
    found = own(d.frame)
    assert {path: found.get(path, 0) for path in taken} == taken
    assert ("PTA@mine" in found) == ("PTA@mine" in taken)
    assert set(d.parts.loc[d.parts["path"] == "PTA@mine", "rule"]) <= {"rule: r"}
    check_tree(d.frame)


def test_the_first_rule_that_fits_takes_the_block(dump: Path, tmp_path: Path):
    text = '[[rule]]\nplace = "big"\nmin_bytes = 1000\npool = "PTA"\n[[rule]]\nplace = "weight@all"\nowner = "weight"\n'
    d = ms.decompose(dump, rules=rules_file(tmp_path, text))
    found = own(d.frame)
    assert (found["PTA@big"], found["PTA@weight@all"]) == (1000, 200)
    assert d.blocks.set_index("path").loc["PTA@big", "rule"] == "rule: big"


def test_bytes_keep_the_rule_that_placed_them(dump: Path, tmp_path: Path):
    d = ms.decompose(dump, rules=rules_file(tmp_path, '[[rule]]\nname = "x"\nplace = "weight"\nmax_bytes = 7\n'))
    weight = d.parts[d.parts["path"] == "PTA@weight"].set_index("rule")["bytes"].to_dict()
    assert weight == {"owner label": 1000, "rule: x": 7}
    assert d.frame.set_index("path").loc["PTA@weight", "own_bytes"] == 1007


def test_operator_rule():
    p = profile_of([(0, 10, 100), (1, 9, 30)], names=["aten::mm", "aten::add"])
    rule = load_rules_text('[[rule]]\nplace = "matmul"\noperator = "::mm$"\n')
    assert own(ms.decompose(p, rules=rule).frame)["PTA@matmul"] == 100


def load_rules_text(text: str):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return load_rules(rules_file(Path(folder), text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[rule]", "no TOML"),
        ("rule = 5", r"\[\[rule\]\]"),
        ("[rule]\nplace = 'x'", "two pairs"),
        ("[[rules]]\nplace = 'x'", "unknown keys"),
        ("[[rule]]\nowner = 'x'", "rule 1: needs 'place'"),
        ("[[rule]]\nplace = '@'\nowner = 'x'", "needs 'place'"),
        ("[[rule]]\nplace = 'x'", "no condition"),
        ("[[rule]]\nplace = 'x'\nowner = '('", "no regular expression"),
        ("[[rule]]\nplace = 'x'\nowner = 5", "must be text"),
        ("[[rule]]\nplace = 'x'\nmin_bytes = '5 GB'", "not a size"),
        ("[[rule]]\nplace = 'x'\nmin_bytes = true", "not a size"),
        ("[[rule]]\nplace = 'x'\nlifetime = 'forever'", "does not exist"),
        ("[[rule]]\nplace = 'x'\npool = []", "empty list"),
        ("[[rule]]\nplace = 'x'\npool = [1]", "list of texts"),
        ("[[rule]]\nplace = 'x'\nsite = 'x'", r"unknown keys \['site'\]"),
        ("a = 1\x00", "no TOML"),
        ("#" * (1 << 20) + "\n", "larger than"),
    ],
)
def test_broken_rules_name_the_file_and_the_reason(tmp_path: Path, text: str, reason: str):
    path = rules_file(tmp_path, text)
    with pytest.raises(ms.InputError, match=reason) as error:
        load_rules(path)
    assert str(path) in str(error.value)


def test_rules_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ms.InputError, match="cannot be read"):
        load_rules(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ms.InputError, match="no TOML"):
        load_rules(tmp_path / "bad.toml")


@pytest.mark.parametrize(("key", "setting"), [("owner", "analysis='decompose'"), ("stack", "with_stack=True")])
def test_a_rule_for_a_fact_that_was_not_recorded(tmp_path: Path, key: str, setting: str):
    rules = rules_file(tmp_path, f'[[rule]]\nplace = "x"\n{key} = "x"\n')
    with pytest.raises(ms.MissingFactError, match=setting):
        ms.decompose(profile_of([(0, 1, 2)]), rules=rules)


# -- public samples ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not laid beside the checkout")
@pytest.mark.parametrize("name", ["leaks.csv", "baseline.csv", "memscope_dump_20250428113810.csv"])
def test_samples_add_up(name: str):
    p = ms.load(SAMPLES / "msmemscope" / name)
    d = ms.decompose(p)
    check_tree(d.frame)
    for tree in d.trees:
        one = tree.series
        wide = d.over_time(source=one.source, device=one.device, pool=one.pool, points=None)
        assert (wide.drop(columns="total_bytes").sum(axis=1) == wide["total_bytes"]).all()
        mine = p.totals[(p.totals["source"] == one.source) & (p.totals["component"] == one.pool)]
        mine = mine[(mine["device"] == one.device) & (mine["scope"] == "pool")].drop_duplicates("t_ns", keep="last")
        free_bytes = wide.get(f"{tree.root}@{FREE}", pd.Series(0, index=wide.index))
        allocated = (wide["total_bytes"] - free_bytes).loc[mine["t_ns"].to_numpy()]
        assert allocated.tolist() == mine["allocated_bytes"].tolist()


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not laid beside the checkout")
def test_sample_modules():
    d = ms.decompose(SAMPLES / "msmemscope" / "memscope_dump_20250428113810.csv")
    hal = d.parts[(d.parts["pool"] == "HAL") & (d.parts["kind"] == "owner")]
    assert {"CANN@APP", "CANN@HCCL", "CANN@RUNTIME"} <= set(hal["path"])
    assert np.issubdtype(hal["bytes"].dtype, np.integer)
