"""The unpickler that runs nothing: equal to pickle on plain objects, InputError on everything else."""

from __future__ import annotations

import gzip
import io
import math
import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pytorch_snapshot import SIMPLE, SIMPLE_LEVELS, levels, snapshot, write

import memscope_nb as ms
from memscope_nb.errors import InputError
from memscope_nb.io import pytorch_open, pytorch_pickle
from memscope_nb.io.pytorch_find import torch_kind
from memscope_nb.io.pytorch_pickle import PlainUnpickler
from memscope_nb.io.pytorch_rows import Row, RowRange, Rows, row_numbers


class Keep:
    """Changes nothing."""

    def reduce(self, found: dict) -> Any:
        return found

    def stack_of(self, frames: list) -> Any:
        return frames

    def known(self, items: list) -> None:
        return None

    def pack(self, items: list) -> list:
        return items


def loads(data: bytes, reducer: Any = None) -> Any:
    return PlainUnpickler(io.BytesIO(data), reducer or Keep(), "s.pickle").load()


pairs = st.tuples(st.integers(), st.integers())
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | pairs
plain = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=30
)


@settings(max_examples=100)
@given(what=plain, protocol=st.integers(2, 5), chunk=st.sampled_from([1, 17, 1 << 20]))
def test_plain_objects_are_what_pickle_reads(what, protocol, chunk):
    before, pytorch_pickle.CHUNK_BYTES = pytorch_pickle.CHUNK_BYTES, chunk
    try:
        data = pickle.dumps([what, what], protocol)
        found = loads(data)
        assert repr(found) == repr(pickle.loads(data))
        assert found[0] is found[1] or not isinstance(what, (list, dict))
    finally:
        pytorch_pickle.CHUNK_BYTES = before


def test_long_texts_and_numbers():
    what = {"a": "x" * 3_000_000, "b": 1 << 2000, "c": -(1 << 70), "d": math.inf, "e": ["é" * 200] * 3}
    for protocol in range(2, 6):
        assert loads(pickle.dumps(what, protocol)) == what


def test_entries_and_frames_leave_no_objects():
    frames = [{"filename": "a.py", "name": f"f{i}", "line": i} for i in range(5)]
    trace = [{"action": "alloc", "addr": i, "size": 1, "frames": list(map(dict, frames))} for i in range(2500)]
    for protocol in (2, 4):
        rows = Rows()
        found = loads(pickle.dumps({"device_traces": [trace, trace[:3]]}, protocol), rows)
        assert all(type(item) is RowRange for item in found["device_traces"][0])
        assert row_numbers(found["device_traces"][0], 2500).tolist() == list(range(2500))
        assert row_numbers(found["device_traces"][1], 3).tolist() == [0, 1, 2]  # the same ones, by reference
        assert (rows.n_rows, len(rows.stacks), len(rows.frames)) == (2500, 1, 5)
        assert rows.stack_frames(0)[1] == "a.py(1): f1"
    assert row_numbers([Row(4), Row(9), [Row(1)]], 3).tolist() == [4, 9, 1]


# -- refusals ---------------------------------------------------------------------------------------------------


class Call:
    def __reduce__(self):
        return os.system, ("false",)


class State:
    def __init__(self):
        self.x = 1


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("what", "name"),
    [
        (Call(), r"(posix|nt)\.system"),
        (State(), r"\.State|copy_?reg\._reconstructor"),
        (OrderedDict(a=1), "OrderedDict"),
    ],
    ids=["call", "object", "ordered"],
)
def test_globals_are_refused_by_name(tmp_path: Path, protocol: int, what: object, name: str):
    hidden = snapshot([[]], [{"device": 0, "extra": what}])
    for data in (pickle.dumps(what, protocol), pickle.dumps(hidden, protocol)):
        path = tmp_path / "evil.pickle"
        path.write_bytes(data)
        with pytest.raises(InputError) as error:
            ms.load(path)
        if protocol >= 2 or data[:1] == b"c":
            assert error.match(rf"evil\.pickle: byte \d+: refused the global '.*({name})'.*Nothing was run")


PROTO = b"\x80\x04"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (PROTO + b"cos\nsystem\n(\x8c\x02lstR.", "global 'os.system'"),
        (PROTO + b"(\x8c\x02lsios\nsystem\n.", "global 'os.system'"),
        (PROTO + b"\x8c\x02os\x8c\x06system\x93.", "global 'os.system'"),
        (PROTO + b"K\x01K\x02\x93.", "refused the global"),
        (PROTO + b"K\x01)R.", "REDUCE"),
        (PROTO + b"K\x01}b.", "BUILD"),
        (PROTO + b"(K\x01o.", "OBJ"),
        (PROTO + b"K\x01)\x81.", "NEWOBJ"),
        (PROTO + b"K\x01)}\x92.", "NEWOBJ_EX"),
        (PROTO + b"P1\n.", "PERSID"),
        (PROTO + b"K\x01Q.", "BINPERSID"),
        (PROTO + b"\x82\x01.", "EXT1"),
        (PROTO + b"\x83\x01\x00.", "EXT2"),
        (PROTO + b"\x84\x01\x00\x00\x00.", "EXT4"),
        (PROTO + b"\x97.", "NEXT_BUFFER"),
        (PROTO + b"\x98.", "READONLY_BUFFER"),
        (PROTO + b"C\x01a.", "SHORT_BINBYTES"),
        (PROTO + b"\x8f.", "a set"),
        (PROTO + b"(\x91.", "a set"),
        (PROTO + b"I1\n.", "opcode 0x49"),
        (b"\x80\x06N.", "protocol 6"),
        (b"\x80\x01N.", "protocol 1"),
        (b"", "not a pickle"),
        (b"hello world", "not a pickle"),
        (b"PK\x03\x04", "not a pickle"),
        (PROTO + b"(N.", "unfinished"),
        (PROTO + b"NN.", "unfinished"),
        (PROTO + b"]" * 500_000 + b"a" * 499_999 + b".", "nested too deep"),
        (PROTO + b"(" * 101, "nested deeper"),
        (PROTO + b"}" + b")" + b"\x85" * 500_000 + b"Ns.", "a tuple of something other"),
        (PROTO + b"})Ns.", "a key of type tuple"),
        (PROTO + b"}NNs.", "a key of type NoneType"),
        (PROTO + b"N(Na" + b"u.", "no (list|dict)"),
        (PROTO + b"N(NNu.", "no dict"),
        (PROTO + b"N(Ne.", "no list"),
        (PROTO + b"\x8d" + struct.pack("<Q", 1 << 60) + b"abc", "a text of 1152921504606846976 bytes"),
        (PROTO + b"X\xff\xff\xff\xffabc", "a text of 4294967295 bytes"),
        (PROTO + b"X\xff\xff\xff\x01abc", "in the middle"),
        (PROTO + b"\x8b\xff\xff\xff\x7fabc", "opcode 0x8b|in the middle"),
        (PROTO + b"\x8a\xffabc", "in the middle"),
        (PROTO + b"Nr\xff\xff\xff\x7f.", "memo number 2147483647"),
        (PROTO + b"h\x07.", "damaged"),
        (PROTO + b"u", "damaged"),
    ],
)  # fmt: skip
def test_hostile_and_broken_pickles(tmp_path: Path, data: bytes, text: str):
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    with pytest.raises(InputError, match=text):
        loads(data)
    with pytest.raises(InputError, match=text):
        ms.load(path)


def test_any_cut_is_told(tmp_path: Path):
    data = pickle.dumps(SIMPLE, 4)
    for end in range(len(data)):
        with pytest.raises(InputError):
            loads(data[:end], Rows())


@settings(max_examples=200)
@given(at=st.integers(0, 10**6), value=st.integers(0, 255), protocol=st.integers(2, 5))
def test_damage_gives_an_answer_or_a_reason(tmp_path_factory, at, value, protocol):
    data = bytearray(pickle.dumps(SIMPLE, protocol))
    data[at % len(data)] = value
    path = tmp_path_factory.mktemp("d") / "s.pickle"
    path.write_bytes(data)
    try:
        profile = ms.load(path)
    except InputError as error:
        reason = str(error)
    else:
        reason = "" if len(profile.sources) else "nothing"
    assert "reader failed" not in reason
    assert reason != "nothing"


def test_references_that_unfold(tmp_path: Path):
    entry = {"action": "alloc", "addr": 1, "size": 1}
    with pytest.raises(InputError, match="over and over"):
        ms.load(write(tmp_path / "s.pickle", snapshot([[entry] * 100], [])))
    with pytest.raises(InputError, match="over and over"):
        ms.load(write(tmp_path / "t.pickle", {"device_traces": [[entry]] * 50, "segments": []}))
    one = {"device": 0, "address": 0, "total_size": 512, "blocks": [{"size": 1, "state": "inactive"}] * 1000}
    with pytest.raises(InputError, match="over and over"):
        ms.load(write(tmp_path / "u.pickle", snapshot([[]], [one] * 1000)))


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "s.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(SIMPLE)))
    monkeypatch.setenv(pytorch_open.LIMIT_VARIABLE, "500")
    with pytest.raises(InputError, match="raise the limit with MEMSCOPE_MAX_SNAPSHOT_BYTES"):
        ms.load(path)
    monkeypatch.delenv(pytorch_open.LIMIT_VARIABLE)
    assert levels(ms.load(path)) == SIMPLE_LEVELS
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"middle|cannot be read"):
        ms.load(path)
    monkeypatch.setattr(pytorch_pickle, "MAX_KEPT", 3)
    with pytest.raises(InputError, match="no snapshot has so many"):
        ms.load(write(tmp_path / "s.pickle", SIMPLE))


def test_broken_json(tmp_path: Path):
    for text, reason in (('{"segments": [}', "not JSON"), ('{"segments":' + "[" * 100_000, "depth|not JSON")):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(InputError, match=reason):
            ms.load(tmp_path / "s.json")


def test_a_link_in_the_tree_that_leads_nowhere(tmp_path: Path):
    write(tmp_path / "a.pickle", SIMPLE)
    (tmp_path / "b.pickle").symlink_to(tmp_path / "gone.pickle")
    assert len(ms.load(tmp_path).sources) == 1
    assert torch_kind(tmp_path / "b.pickle") is None


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("shared", [True, False])
def test_stacks_of_many_frames(monkeypatch: pytest.MonkeyPatch, chunk: int, shared: bool):
    """Runs of references are read at once, equal frames once: whatever the buffer cuts, the stacks are the same."""
    monkeypatch.setattr(pytorch_pickle, "CHUNK_BYTES", chunk)
    frames = [{"line": i, "filename": f"f{i % 7}.py", "name": f"g{i}"} for i in range(400)]
    wanted = [[(7 * i + k * k) % 400 for k in range(40)] for i in range(30)]
    made = [[frames[k] if shared else dict(frames[k]) for k in one] for one in wanted]
    entries = [{"action": "alloc", "addr": i, "size": 1, "frames": stack} for i, stack in enumerate(made)]
    rows = Rows()
    loads(pickle.dumps({"first": frames, "device_traces": [entries]}, 4), rows)
    found = [rows.stack_frames(int(number)) for number in rows.arrays()["stack"]]
    assert found == [tuple(f"f{k % 7}.py({k}): g{k}" for k in one) for one in wanted]
    assert len(rows.frames) == 400


def test_numbers_are_never_taken_for_frames():
    frames = [{"line": 1, "filename": "a.py", "name": "f"}, {"line": None, "filename": "a.py", "name": "f"}]
    entries = [
        {"action": "alloc", "frames": stack}
        for stack in ([0, 1], frames[:1], [0], frames[1:], [frames[0], 0], [[frames[0]]], [{}], [])
    ]
    rows = Rows()
    loads(pickle.dumps({"device_traces": [entries]}, 4), rows)
    numbers = rows.arrays()["stack"].tolist()
    assert [rows.stack_frames(n) if n >= 0 else () for n in numbers] == [
        (), ("a.py(1): f",), (), ("a.py(0): f",), ("a.py(1): f",), (), (), (),
    ]  # fmt: skip
