"""Watched memory: the checksum, reading, the first change of a block, byte ranges."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import SAMPLES
from hypothesis import given
from hypothesis import strategies as st

import memscope_nb as ms
from memscope_nb.analysis import watch as analysis
from memscope_nb.io import watch as reader

MM, ADD, COPY = "torch._ops.aten.mm.default", "torch._ops.aten.add.Tensor", "torch._ops.aten.copy_.default"


def name(op: str, n: int, when: str, *, watched: str = MM, idx: int = 0, tid: int = 77, device: int = 0) -> str:
    return f"{device}_{tid}/{op}_{n}-{watched}_{idx}_{when}.bin"


def digits(value: int) -> str:
    return f"{value:016x}"


def write_table(folder: Path, lines: Iterable[tuple[str, int]], *, stamp: str = "20260101000000") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"watch_dump_data_check_sum_{stamp}.csv"
    path.write_text(reader.CSV_HEADER + "\n" + "".join(f"{one},{digits(value)}\n" for one, value in lines))
    return path


def write_content(folder: Path, record: str, data: bytes, *, age: int | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / record.replace("/", ".")
    path.write_bytes(data)
    if age is not None:
        os.utime(path, ns=(age, age))
    return path


def located(tmp_path: Path, *lines: tuple[str, int], **more: object) -> analysis.Corruption:
    return ms.locate_corruption(ms.load_watch(write_table(tmp_path, lines)), **more)  # type: ignore[arg-type]


# -- checksum ---------------------------------------------------------------------------------------------------


def slow_checksum(data: bytes) -> int:
    """Bit by bit, straight from the words of the spec."""
    value = (1 << 64) - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x42F0E1EBA9EA3693 if value & 1 else 0)
    return value ^ ((1 << 64) - 1)


def test_vectors_of_the_spec():
    assert digits(reader.checksum64(b"")) == "0" * 16
    assert digits(reader.checksum64(b"123456789")) == "b86883e6fa710a9f"
    assert digits(reader.checksum64(bytes(16))) == "f1a9d99093e793c0"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not laid beside the checkout")
def test_vectors_of_the_reference():
    vectors = json.loads((SAMPLES / "msmemscope" / "expected.json").read_text())["watch_checksum64_vectors"]
    assert len(vectors) > 5
    for vector in vectors:
        data = bytes.fromhex(vector["bytes_hex"]) * vector["repeat"]
        assert digits(reader.checksum64(data)) == vector["checksum"]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksum_of_pieces(a: bytes, b: bytes):
    assert reader.checksum64(b, reader.checksum64(a)) == reader.checksum64(a + b) == slow_checksum(a + b)


@pytest.mark.parametrize("size", [reader._LANES - 1, reader._LANES, reader._LANES + 1, 3 * reader._LANES + 5])
def test_checksum_of_large_content(size: int):
    data = random.Random(size).randbytes(size)
    assert reader.checksum64(data) == slow_checksum(data)
    assert reader.checksum64(data, 12345) != reader.checksum64(data)
    half = size // 3
    assert reader.checksum64(data[half:], reader.checksum64(data[:half])) == slow_checksum(data)


# -- reading ----------------------------------------------------------------------------------------------------


def test_names_are_split(tmp_path: Path):
    lines = [
        (name(MM, 1, "after"), 1),
        ("1_8/atb/Linear,Op/x_12-my tensor, 1_3_before.bin", 2),
        ("-1_9/UNKNWON_2-w_0_before.bin", 3),
    ]
    watch = ms.load_watch(write_table(tmp_path, lines))
    columns = ["row", "device", "tid", "op", "n", "watched", "idx", "when", "checksum", "path", "size_bytes"]
    assert watch.records[columns].to_numpy().tolist() == [
        [2, 0, 77, MM, 1, MM, 0, "after", digits(1), "", -1],
        [3, 1, 8, "atb/Linear,Op/x", 12, "my tensor, 1", 3, "before", digits(2), "", -1],
        [4, -1, 9, "UNKNWON", 2, "w", 0, "before", digits(3), "", -1],
    ]
    assert watch.caveats == ()


def test_headers_in_between_and_broken_lines(tmp_path: Path):
    path = write_table(tmp_path, [(name(MM, 1, "after"), 1), (name(ADD, 1, "before"), 1)])
    long = "x" * (reader.MAX_LINE_BYTES + 10)
    slow = "0_0/" + "_1-" * 2000
    bad = [reader.CSV_HEADER, "", "no sum", f"{name(ADD, 2, 'before')},12", f"odd,{digits(1)}", f"{long},{digits(1)}"]
    with path.open("a") as file:
        file.write("\n".join([*bad, f"{slow},{digits(1)}", f"{name(ADD, 1, 'after')},{digits(5).upper()}"]) + "\n")
    watch = ms.load_watch(path)
    assert watch.records["row"].tolist() == [2, 3, 11]
    assert watch.records["checksum"].tolist() == [digits(1), digits(1), digits(5)]
    told = " ".join(watch.caveats)
    assert "without a checksum of 16 digits, skipped: 3" in told
    assert "names of another form than device_tid/op_n-watched_idx_when, skipped: 2" in told


def test_a_name_with_two_readings_is_told(tmp_path: Path):
    watch = ms.load_watch(write_table(tmp_path, [("0_1/op_1-a_2-b_0_after.bin", 1)]))
    assert watch.records[["op", "n", "watched"]].to_numpy().tolist() == [["op", 1, "a_2-b"]]
    assert any("several ways" in caveat for caveat in watch.caveats)


@pytest.mark.parametrize("text", ["", "a,b\n", "Tensor info;Check data sum\n", "\x00" * 100])
def test_another_file(tmp_path: Path, text: str):
    path = tmp_path / "watch_dump_data_check_sum_1.csv"
    path.write_text(text)
    with pytest.raises(ms.InputError, match="line 1: expected"):
        ms.load_watch(path)
    with pytest.raises(ms.InputError, match="no watch records"):
        ms.load_watch(tmp_path)


def test_nothing_there(tmp_path: Path):
    with pytest.raises(ms.InputError, match="does not exist"):
        ms.load_watch(tmp_path / "none")
    with pytest.raises(ms.InputError, match=r"watcher\.watch"):
        ms.load_watch(tmp_path)
    (tmp_path / "other.bin").write_bytes(b"x")
    with pytest.raises(ms.InputError, match="no watch records"):
        ms.load_watch(tmp_path)


def test_a_broken_table_does_not_lose_the_others(tmp_path: Path):
    write_table(tmp_path / "device_0" / "watch_dump", [(name(MM, 1, "after"), 1)])
    (tmp_path / "watch_dump_data_check_sum_2.csv").write_text("x")
    watch = ms.load_watch(tmp_path)
    assert len(watch.records) == 1
    assert any("line 1: expected" in caveat for caveat in watch.caveats)


def test_contents_without_a_table_are_ordered_by_time(tmp_path: Path):
    write_content(tmp_path, name(ADD, 1, "before"), b"same", age=2_000)
    write_content(tmp_path, name(MM, 1, "after"), b"same", age=1_000)
    write_content(tmp_path, name(ADD, 1, "after"), b"diff", age=2_000)
    watch = ms.load_watch(tmp_path)
    assert list(zip(watch.records["op"], watch.records["when"], strict=True)) == [
        (MM, "after"), (ADD, "before"), (ADD, "after"),
    ]  # fmt: skip
    assert watch.records["checksum"].tolist() == [digits(slow_checksum(data)) for data in (b"same", b"same", b"diff")]
    told = " ".join(watch.caveats)
    assert "which copying can lose: 3" in told
    assert "equal file times: ordered by the count of their op: 1" in told
    found = ms.locate_corruption(watch)
    assert found.frame.loc[0, ["verdict", "suspect", "n_bytes_changed"]].tolist() == ["op", ADD, 4]


def test_special_files_are_left_alone(tmp_path: Path):
    write_table(tmp_path, [(name(MM, 1, "after"), 1)])
    os.mkfifo(tmp_path / name(MM, 2, "after").replace("/", "."))
    (tmp_path / name(MM, 3, "after").replace("/", ".")).symlink_to("/dev/zero")
    assert len(ms.load_watch(tmp_path).records) == 1


def test_huge_contents_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reader, "MAX_BIN_BYTES", 4)
    write_content(tmp_path, name(MM, 1, "after"), b"12345")
    write_content(tmp_path, name(MM, 2, "after"), b"1234")
    watch = ms.load_watch(tmp_path)
    assert watch.records["n"].tolist() == [2]
    assert any("larger than 4 bytes, skipped: 1" in caveat for caveat in watch.caveats)


# -- first change -----------------------------------------------------------------------------------------------


def test_an_operator_changed_it(tmp_path: Path):
    found = located(
        tmp_path,
        (name(MM, 1, "after"), 1), (name(ADD, 1, "before"), 1), (name(ADD, 1, "after"), 1),
        (name(ADD, 2, "before"), 1), (name(ADD, 2, "after"), 9), (name(COPY, 1, "before"), 9),
        (name(COPY, 1, "after"), 4),
    )  # fmt: skip
    row = found.frame.iloc[0]
    assert len(found.frame) == 1
    assert row[["verdict", "suspect", "suspect_n", "n_changes", "n_records"]].tolist() == ["op", ADD, 2, 2, 7]
    assert row[["from_row", "to_row", "from_checksum", "to_checksum"]].tolist() == [5, 6, digits(1), digits(9)]
    assert not row["writes_by_name"]
    assert found.changes["suspect"].tolist() == [ADD, COPY]
    json.dumps(found.to_dict())


def test_something_between_two_operators_changed_it(tmp_path: Path):
    found = located(
        tmp_path,
        (name(MM, 1, "after"), 1), (name(ADD, 1, "before"), 1), (name(ADD, 1, "after"), 1),
        (name(COPY, 1, "before"), 2), (name(COPY, 1, "after"), 2),
    )  # fmt: skip
    row = found.frame.iloc[0]
    assert row[["verdict", "suspect", "between"]].tolist() == ["gap", "", f"after {ADD} #1 .. before {COPY} #1"]
    assert "another stream" in row["reason"]


def test_writers_are_expected(tmp_path: Path):
    lines = (
        (name(COPY, 1, "before", watched="w"), 1), (name(COPY, 1, "after", watched="w"), 2),
        (name(ADD, 1, "before", watched="w"), 2), (name(ADD, 1, "after", watched="w"), 3),
    )  # fmt: skip
    first = located(tmp_path, *lines)
    assert first.frame.loc[0, ["suspect", "writes_by_name"]].tolist() == [COPY, True]
    assert any("may_write" in caveat for caveat in first.caveats)
    second = located(tmp_path, *lines, may_write=r"copy_\.")
    assert second.frame.loc[0, ["verdict", "suspect", "n_expected"]].tolist() == ["op", ADD, 1]
    third = located(tmp_path, *lines, may_write=["copy_", "add"])
    assert third.frame.loc[0, ["verdict", "n_changes", "n_expected"]].tolist() == ["expected", 2, 2]
    with pytest.raises(ms.InputError, match="no regular expression"):
        located(tmp_path, *lines, may_write="(")


def test_operators_in_operators(tmp_path: Path):
    inner = located(
        tmp_path,
        (name("outer", 1, "before"), 1), (name("inner", 1, "before"), 1), (name("inner", 1, "after"), 2),
        (name("outer", 1, "after"), 2),
    )  # fmt: skip
    assert inner.frame.loc[0, "suspect"] == "inner"
    outer = located(
        tmp_path,
        (name("outer", 1, "before"), 1), (name("inner", 1, "before"), 1), (name("inner", 1, "after"), 1),
        (name("outer", 1, "after"), 2),
    )  # fmt: skip
    assert outer.frame.loc[0, ["verdict", "suspect", "between"]].tolist() == [
        "op", "outer", "after inner #1 .. after outer #1",
    ]  # fmt: skip


def test_operators_of_two_threads_leave_it_undecided(tmp_path: Path):
    found = located(
        tmp_path,
        (name("a", 1, "before"), 1), (name("b", 1, "before", tid=78), 1), (name("a", 1, "after"), 2),
    )  # fmt: skip
    assert found.frame.loc[0, ["verdict", "suspect"]].tolist() == ["undecided", "a | b"]
    assert "several threads" in found.frame.loc[0, "reason"]


def test_a_missing_copy_leaves_it_undecided(tmp_path: Path):
    found = located(tmp_path, (name("a", 1, "before"), 1), (name("a", 1, "after"), 1), (name("b", 1, "after"), 2))
    assert found.frame.loc[0, ["verdict", "suspect"]].tolist() == ["undecided", "b"]
    assert "is missing" in found.frame.loc[0, "reason"]


def test_every_start_is_a_new_block(tmp_path: Path):
    found = located(
        tmp_path,
        (name(MM, 1, "after"), 1), (name(ADD, 1, "before"), 1), (name(ADD, 1, "after"), 1),
        (name(MM, 2, "after"), 8), (name(ADD, 2, "before"), 8), (name(ADD, 2, "after"), 9),
    )  # fmt: skip
    assert found.frame[["window", "verdict", "n_records"]].to_numpy().tolist() == [[1, "unchanged", 3], [2, "op", 3]]


def test_a_start_operator_inside_its_window_is_an_operator(tmp_path: Path):
    found = located(tmp_path, (name(MM, 1, "after"), 1), (name(MM, 2, "before"), 1), (name(MM, 2, "after"), 2))
    assert found.frame[["window", "verdict", "suspect"]].to_numpy().tolist() == [[1, "op", MM]]


def test_blocks_and_devices_do_not_mix(tmp_path: Path):
    lines = [(name(ADD, n, when, idx=idx, device=device), 10 * idx + device)
             for n in (1, 2) for when in ("before", "after") for idx in (0, 1) for device in (0, 1)]  # fmt: skip
    found = located(tmp_path, *lines)
    assert found.frame["verdict"].tolist() == ["unchanged"] * 4
    assert not len(found.changes)


def test_two_recordings_do_not_mix(tmp_path: Path):
    write_table(tmp_path, [(name(ADD, 1, "before"), 1), (name(ADD, 1, "after"), 1)], stamp="1")
    write_table(tmp_path, [(name(ADD, 1, "before"), 2), (name(ADD, 1, "after"), 2)], stamp="2")
    assert ms.locate_corruption(ms.load_watch(tmp_path)).frame["verdict"].tolist() == ["unchanged"] * 2


def test_a_single_copy_is_undecided(tmp_path: Path):
    assert located(tmp_path, (name(MM, 1, "after"), 1)).frame.loc[0, "verdict"] == "undecided"


def test_needs_a_watch():
    with pytest.raises(TypeError, match="load_watch"):
        ms.locate_corruption("path")  # type: ignore[arg-type]


# -- contents ---------------------------------------------------------------------------------------------------


def test_byte_ranges_where_contents_exist(tmp_path: Path):
    before, after = bytearray(1000), bytearray(1000)
    after[100:104] = b"abcd"
    after[999] = 1
    records = [(name(ADD, 1, "before"), bytes(before)), (name(ADD, 1, "after"), bytes(after))]
    table = write_table(tmp_path, [(one, slow_checksum(data)) for one, data in records])
    files = [table, *(write_content(tmp_path, one, data) for one, data in records)]
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    watch = ms.load_watch(tmp_path)
    assert len(watch.recordings) == 1
    found = ms.locate_corruption(watch)
    assert found.ranges[["offset", "length"]].to_numpy().tolist() == [[100, 4], [999, 1]]
    row = found.frame.iloc[0]
    assert row[["n_bytes_changed", "first_offset", "extent_bytes", "n_ranges"]].tolist() == [5, 100, 900, 2]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in files] == hashes


def test_contents_that_disappeared(tmp_path: Path):
    records = [name(ADD, 1, "before"), name(ADD, 1, "after")]
    paths = [
        write_content(tmp_path, record, data, age=i)
        for i, (record, data) in enumerate(zip(records, (b"a", b"b"), strict=True))
    ]
    watch = ms.load_watch(tmp_path)
    paths[1].write_bytes(b"longer")
    found = ms.locate_corruption(watch)
    assert found.frame.loc[0, "verdict"] == "op"
    assert found.frame["n_bytes_changed"].isna().all()
    assert any("not the file that it was" in caveat for caveat in found.caveats)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(1, 20))
def test_ranges_are_those_of_a_plain_comparison(a: bytes, b: bytes, size: int):
    found = analysis.compare_contents(pieces(a, size), pieces(b, size))
    n = max(len(a), len(b))
    differs = [i >= min(len(a), len(b)) or a[i] != b[i] for i in range(n)]
    assert found.n_bytes == sum(differs)
    marked = [False] * n
    for offset, length in found.ranges:
        assert not any(marked[max(offset - 1, 0) : offset + length + 1]), "ranges touch"
        marked[offset : offset + length] = [True] * length
    assert marked == differs
    assert found.n_ranges == len(found.ranges)
    assert not found.ranges or found.last == found.ranges[-1]


def test_ranges_are_counted_beyond_the_list(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(analysis, "MAX_RANGES", 3)
    a, b = bytes(40), bytes([0, 1] * 20)
    found = analysis.compare_contents(pieces(a, 7), pieces(b, 7))
    assert (found.n_ranges, found.n_bytes) == (20, 20)
    assert found.ranges == ((1, 1), (3, 1), (5, 1))
    assert found.last == (39, 1)
