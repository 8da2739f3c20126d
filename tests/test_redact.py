"""Nothing of a redacted export tells who, on which host, in which folder; the numbers and the stacks stay useful."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from exported import everything, headers
from hypothesis import given
from hypothesis import strategies as st
from tiny import op, profile_of, record, row, write_collection

import memscope_nb as ms
from memscope_nb.cli import main
from memscope_nb.demo import write_demo_dump
from memscope_nb.export.redact import Redactor
from memscope_nb.model import SOURCE_TABLES
from memscope_nb.stacks import is_plumbing

SECRETS = (
    "alice",
    "w01-gpu.corp",
    "w01-gpu",
    "w02-gpu",
    "bobross",
    "carol",
    "skunkworks",
    "fileserver",
    "zoepetrov",
    "10.7.8.9",
)
"""Users, hosts and folders that the tree below gives away in many places."""

FRAMES = (
    "/home/alice/skunkworks/train/loss.py(12): alice_loss",
    "/opt/skunkworks/env/lib/python3.11/site-packages/vllm/v1/runner.py(7): run",
    "/home/alice/skunkworks/src/torch/nn/modules/module.py(1750): _call_impl",
    r"C:\Users\Carol\skunkworks\app.py(3): main",
    "file:///home/bobross/skunkworks/nb.py(4): cell",
    r"\\fileserver\skunkworks\tool.py(5): go",
    "/mnt/my skunkworks/with blanks/y.py(9): z",
    "<string>(1): <module>",
)


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "home" / "alice" / "skunkworks" / "run 7"
    for rank in (0, 1):
        host = f"w0{rank + 1}-gpu.corp"
        rows = [
            row("aten::mm", 1024, 10, 20, 19, 3.0),
            row("alice_op", 512, 11, None, None, 3.5),
            row('"load /home/bobross/skunkworks/w.bin from w01-gpu"', 256, 12, None, None, 3.75),
        ]
        rows += [row(r'"mail zoepetrov@corp.com, 10.7.8.9, C:\Users\Carol\skunkworks\k.cu"', 128, 13, 15, 15, 3.875)]
        samples = [record("PTA", 10, 3.0), record("PTA", 11, 3.5), record("PTA", 12, 3.75), record("PTA", 19, 2.75)]
        write_collection(
            root,
            name=f"{host}_4120{rank}_20260526085204519_ascend_pt",
            role="actor of alice",
            rank=rank,
            operators=[*rows, "torn /home/alice/skunkworks,1"],
            records=samples,
            trace=[op("aten::mm", 9, 5, stack=";\r\n".join(FRAMES))],
        )
    write_collection(root, name="w02-gpu_9_20260526085204519_ascend_pt", rank=5, operators=None, records=None)
    return root


def leaks(text: str) -> list[str]:
    return [secret for secret in SECRETS if re.search(re.escape(secret), text, re.IGNORECASE)]


@pytest.mark.parametrize("inline", [False, True])
def test_nothing_in_an_export_gives_a_name_away(tree, tmp_path, inline):
    profile = ms.load(tree)
    plain = everything(ms.export_html(profile, tmp_path / "plain", inline=inline).parent)
    assert set(leaks(plain)) >= set(SECRETS)  # the search can find them
    written = ms.export_html(profile, tmp_path / "out", inline=inline, redact=["skunkworks"]).parent
    assert leaks(everything(written)) == []
    assert str(tmp_path) not in everything(written)


def test_report_redacts_rank_by_rank_and_names_broken_sources_on_the_screen_only(tree, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["report", str(tree), "--out", str(out), "--redact", "--hide", "skunkworks"]) == 0
    assert leaks(everything(out)) == []
    assert str(tree) in capsys.readouterr().err  # the one who runs it must know which
    frames = [set(header["frames"]) for header in headers(out)]
    assert len(frames) == 2
    assert frames[0] == frames[1]  # the same folder has the same token in all ranks


def test_errors_and_exit_codes_do_not_change(tmp_path, capsys):
    assert main(["report", "/home/nobody/at all", "--out", str(tmp_path / "o"), "--redact"]) == 2
    assert "/home/nobody/at all: no such file or folder" in capsys.readouterr().err


def test_texts_of_every_table_are_redacted(tmp_path):
    write_demo_dump(tmp_path / "home" / "alice" / "dump")
    profile = ms.load(tmp_path / "home" / "alice" / "dump")
    tables = {}
    for name in SOURCE_TABLES:
        table = getattr(profile, name)
        texts = {
            column: _spoiled(table[column])
            for column in table
            if not pd.api.types.is_numeric_dtype(table[column])
            and column not in ("scope", "status", "stack_kind", "origin", "facts", "warnings")
        }
        tables[name] = table.assign(**texts)
    facts = [{"cfg": {"user_name": "bobross", "files": ["/x/alice/y"], "HOSTNAME": "w02-gpu"}}]
    tables["sources"] = tables["sources"].assign(warnings=[("at /home/alice/z: bad",)], facts=facts)
    spoiled = replace(profile, **tables)
    redacted = ms.redact_profile(spoiled)
    found = 0
    for name in (*SOURCE_TABLES, "stacks"):
        assert leaks(getattr(spoiled, name).astype(str).to_csv()) or not len(getattr(spoiled, name)) or name == "stacks"
        table = getattr(redacted, name)
        assert leaks(table.astype(str).to_csv()) == [], name
        found += len(table.columns)
        for column in table:  # categories that no row uses count as well
            if isinstance(table[column].dtype, pd.CategoricalDtype):
                assert leaks(" ".join(map(str, table[column].cat.categories))) == []
    assert found > 60


def _spoiled(column: pd.Series) -> pd.Series:
    dirty = column.astype(object).map(lambda text: f"{text} bobross w02-gpu /home/alice/m.py", na_action="ignore")
    return dirty.astype(column.dtype if not isinstance(column.dtype, pd.CategoricalDtype) else "category")


def test_numbers_do_not_change_and_the_profile_is_not_touched(demo_profile):
    before = {name: getattr(demo_profile, name).copy(deep=True) for name in (*SOURCE_TABLES, "stacks")}
    redacted = ms.redact_profile(demo_profile)
    for name, table in before.items():
        pd.testing.assert_frame_equal(getattr(demo_profile, name), table)
        numbers = table.select_dtypes("number")
        pd.testing.assert_frame_equal(getattr(redacted, name)[numbers.columns], numbers)
        assert len(getattr(redacted, name)) == len(table)
    texts = ["run", "role", "device", "pool"]
    pd.testing.assert_frame_equal(redacted.summary().drop(columns=texts), demo_profile.summary().drop(columns=texts))
    assert set(redacted.sources["host"]) == {"host1"}
    assert [str(kind) for kind in redacted.sources["kind"].unique()] == ["ascend_text"]


def test_stacks_stay_useful(tree):
    redacted = ms.redact_profile(ms.load(tree))
    (frames,) = [stack for stack in redacted.stacks["frames"] if len(stack) == len(FRAMES)]
    assert [frame.split("/", 1)[1] for frame in frames[:3]] == [
        "loss.py(12): user1_loss",
        "site-packages/vllm/v1/runner.py(7): run",
        "torch/nn/modules/module.py(1750): _call_impl",
    ]
    assert [is_plumbing(frame) for frame in frames] == [is_plumbing(frame) for frame in FRAMES]
    assert frames[-1] == "<string>(1): <module>"
    assert frames[3].endswith("/app.py(3): main")
    site = redacted.stacks.set_index("stack_id")["site"][0]
    assert site == frames[0]


def test_the_same_path_has_the_same_token_and_another_one_another():
    redactor = Redactor()
    first = redactor.frame("/a/b/x.py(1): f")
    assert first == redactor.frame("/a/b/x.py(1): f") == "dir1/x.py(1): f"
    assert redactor.frame("/a/b/y.py(1): f") == "dir1/y.py(1): f"
    assert redactor.frame("/a/c/x.py(1): f") == "dir2/x.py(1): f"
    assert redactor.text("no such file: '/a/b/x.py'") == "no such file: 'dir1/x.py'"


def test_installed_framework_keeps_its_package_also_outside_site_packages():
    frame = "/home/bobross/src/torch/nn/functional.py(3): linear"
    assert is_plumbing(frame)
    assert Redactor().frame(frame).endswith("/torch/nn/functional.py(3): linear")


@pytest.mark.parametrize(
    "text",
    [
        "aten::add_", "autograd::engine::evaluate_function: MulBackward0", "N/A", "1/2 of it", "PTA@fsdp2@activation",
        "PTA@model.layers", "Memcpy D2H (a/b)", "ProfilerStep#3", "std::vector<at::Tensor>", "<string>(1): <module>",
        "torch/nn/modules/module.py(3): forward", "2.7.1.post2", "8.3.RC1", "", "a / b / c", "rows and/or columns",
        "n: 5 of 7 (100%)", "dur; ts, pid: 3",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text):
    redactor = Redactor()
    redactor.learn_source("/home/root/torch/forward_9_20260526085204519_ascend_pt", "localhost")
    assert redactor.text(text) == text
    assert redactor.frame(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("see '/data/no such/secret dir/x.bin'", "secret"),
        ("/data/secret/a,/data/secret/b;/data/secret/c", "secret"),
        ("PATH=/usr/bin:/data/secret/bin", "secret"),
        ("运行/data/secret/x.py", "secret"),
        ("a:/data/secret/x", "secret"),
        ("//data/secret/x", "secret"),
        ("~secret/x", "secret"),
        (r"C:\\data\\secret\\x (3)", "secret"),
        (r"\\secret\share\x", "secret"),
        ("http://secret:8265", "secret"),
        ("http://secret:8265/a?token=secret", "secret"),
        ("file:///data/secret/x", "secret"),
        ("10.7.8.9:29500", "10.7.8.9"),
        ("from secret@corp.example.com", "secret"),
        ("/data/x[old]/secret/y.py", "secret"),
        (r'{"file": "\/data\/secret\/y.py"}', "secret"),
        ("x=/data/secret/y.py;z=/data/secret/w", "secret"),
        ("cannot read /mnt/a b/secret/f.py: gone", "secret"),
        ("cannot read /mnt/my big dir/secret/f.py", "secret"),
        ("/a/'secret'/x/f.py and /a/<secret>/x", "secret"),
        (r"\\?\C:\secret\f.py", "secret"),
        ("$HOME/secret/f.py ${WORK}/secret/g.py", "secret"),
        (r"%USERPROFILE%\secret\f.py", "secret"),
        (r"~secret\f.py", "secret"),
    ],
)
def test_what_is_hidden(text, secret):
    hidden = Redactor().text(text)
    assert secret not in hidden
    assert hidden != ""


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "/",
        "\\",
        "/a",
        "~",
        ",",
        ",/",
        "'/",
        "@",
        "a@a.",
        "1.",
        "(1)",
        "a:",
        "/home/",
        "é",
        ";C:\\",
        "%a",
        "$a/",
        "/ ",
        '"/',
        "<",
        ",~",
    ],
)
def test_a_text_of_100_kb_of_anything_is_read_in_one_go(piece):
    text = piece * (100_000 // len(piece))
    redactor = Redactor(also=["secret"])
    redactor.learn_source(f"/data/my {text[:200]}/x", None)
    assert isinstance(redactor.text(text), str)
    assert isinstance(redactor.frame(f"/{text}(1): {text}"), str)


def test_folders_with_blanks_are_known_from_the_sources():
    redactor = Redactor()
    redactor.learn_source("/data/my secret/run 7/h_9_20260526085204519_ascend_pt", None)
    assert "secret" not in redactor.text("/data/my secret/run 7/h_9_20260526085204519_ascend_pt/x.csv: cut")
    assert "secret" not in redactor.text("cannot open /data/my secret/run 7: denied")


def test_the_user_and_host_of_this_machine_go_too(monkeypatch, tmp_path):
    monkeypatch.setattr("getpass.getuser", lambda: "quentin")
    monkeypatch.setattr("socket.gethostname", lambda: "login-4.corp")
    out = ms.export_html(profile_of([(1, 9, 512)], names=["quentin_op on login-4"]), tmp_path / "o", redact=True).parent
    assert headers(out)[0]["names"] == ["user1_op on host1"]
    assert headers(out)[0]["subtitle"].endswith("host host2")  # too short a name to be replaced within text


def test_names_that_fall_together_do_not_break_a_column():
    names = ["see /a/x", "see /a/x/", "see /b/x"]
    profile = profile_of([(1, 9, 512), (2, 9, 512), (3, 9, 512)], names=names)
    assert ms.redact_profile(profile).blocks["name"].tolist() == ["see dir1/x", "see dir1/x", "see dir2/x"]


@given(st.text(max_size=60))
def test_any_text_is_redacted_without_an_error_and_twice_is_once(text):
    redactor = Redactor(also=["secret"])
    once = redactor.text(text)
    assert redactor.text(text) == once
    redactor.frame(text)


@given(
    st.lists(st.sampled_from(["ab", "x y", "torch", "ray", "site-packages", "a.b", "ü", "functools.py"]), min_size=1),
    st.sampled_from(["f", "_call_impl", "forward", "wrapper"]),
)
def test_plumbing_stays_plumbing(parts, function):
    frame = f"/{'/'.join(parts)}/m.py(3): {function}"
    assert is_plumbing(Redactor().frame(frame)) == is_plumbing(frame)


def test_a_version_of_four_numbers_is_no_address():
    redactor = Redactor()
    assert redactor.value({"cann_version": "8.3.1.0", "torch_npu_version": "2.7.1.post2"}) == {
        "cann_version": "8.3.1.0",
        "torch_npu_version": "2.7.1.post2",
    }
    assert redactor.value({"version": "/data/secret/x", "master": "8.3.1.0"}) == {
        "version": "dir1/x",
        "master": "address1",
    }


def test_a_profile_without_a_source_path(tmp_path):
    frame = ms.memory_summary(profile_of([(1_000_000, 9_000_000, 512)]))
    redacted = ms.redact_profile(ms.MemoryProfile.from_summary(frame))
    assert len(redacted.blocks) == 1
    assert np.array_equal(redacted.blocks["size_bytes"], [512])
