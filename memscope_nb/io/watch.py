"""Copies and checksums of watched device memory: CSV of checksums, ``.bin`` files of contents (spec/msmemscope 10)."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError

U64Array = npt.NDArray[np.uint64]

CSV_HEADER = "Tensor info,Check data sum"
CSV_NAME = "watch_dump_data_check_sum_*.csv"
MAX_LINE_BYTES = 1 << 16
MAX_BIN_BYTES = 64 << 30
"""Larger contents are not read: no device holds such a tensor."""
MAX_RECORDS = 20_000_000
PIECE_BYTES = 16 << 20
RECORD_COLUMNS = (
    "recording", "row", "name", "device", "tid", "op", "n", "watched", "idx", "when", "checksum", "path", "size_bytes",
)  # fmt: skip

_POLYNOMIAL = 0x42F0E1EBA9EA3693
_ONES = (1 << 64) - 1
_LANES = 1 << 15
_NAME = re.compile(
    r"(?P<device>-?\d{1,18})_(?P<tid>-?\d{1,18})[/.](?P<op>.+?)_(?P<n>\d{1,18})-(?P<watched>.*)_(?P<idx>\d{1,18})"
    r"_(?P<when>before|after)(?:\.bin)?",
    re.DOTALL,
)
_INTEGERS = ("device", "tid", "n", "idx")
_SPLIT = re.compile(r"_\d+-")
_SUM = re.compile(r"[0-9a-fA-F]{16}")


@dataclass(frozen=True)
class Watch:
    """What was written of watched blocks, in the order in which it was written.

    Attributes
    ----------
    records : pandas.DataFrame
        One row per dump: ``recording`` (which file or folder), ``row`` (in it), ``name`` as written, ``device``,
        ``tid`` (ATB: the process), ``op``, ``n`` (how many times this op had run), ``watched`` and ``idx`` (what),
        ``when`` (``before``, ``after`` the op), ``checksum`` (16 hexadecimal digits), ``path`` and ``size_bytes`` of
        the content (empty, -1 where there is none).
    recordings : tuple of str
        Names of the recordings.
    caveats : tuple of str
        What could not be used or is a guess.
    """

    records: pd.DataFrame = field(repr=False)
    recordings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the records."""
        return self.records

    def pieces(self, row: int, *, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield the content of a record (its position in ``records``) in pieces; nothing if it has none.

        Raises
        ------
        InputError
            If the file is gone, no regular file, or not as long as it was.
        """
        path = str(self.records["path"].iloc[row])
        if path:
            yield from _pieces(Path(path), int(self.records["size_bytes"].iloc[row]), size)


def load_watch(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Watch:
    """Read checksum files and contents of watched memory.

    Parameters
    ----------
    path : path or paths
        A ``watch_dump_data_check_sum_*.csv``, a ``.bin``, or folders that hold such, at any depth.

    Returns
    -------
    Watch
        Records of a CSV in its order. Contents without a line in a CSV of their folder are ordered by the time of
        their file and get the checksum that the tool would have written.

    Raises
    ------
    InputError
        If a path does not exist or nothing of this kind is found.
    """
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    tables, contents = _find([Path(one) for one in given])
    notes: Counter[str] = Counter()
    parts: list[pd.DataFrame] = []
    names: list[str] = []
    for table in tables:
        try:
            part = _read_table(table, contents.get(table.parent, {}), notes)
        except InputError as error:
            if table in map(Path, given):
                raise
            notes[str(error)] += 1  # others in the folder are still of use
            continue
        parts.append(part.assign(recording=len(names)))
        names.append(str(table))
    for folder, files in contents.items():
        if files:
            parts.append(_read_contents(files, notes).assign(recording=len(names)))
            names.append(str(folder))
    parts = [part for part in parts if len(part)]
    if not parts:
        raise InputError(
            f"{', '.join(map(str, given[:5]))}: no watch records ({CSV_NAME} or .bin files of watch_dump); record with "
            "msmemscope.config(watch='START_OP,END_OP') or msmemscope.watcher.watch(tensor, name=...)"
            + "".join(f"; {note}" for note in notes)
        )
    records = pd.concat(parts, ignore_index=True)[list(RECORD_COLUMNS)]
    caveats = [f"{text}: {count}" for text, count in notes.items()]
    return Watch(records.astype({"recording": np.int32}), tuple(names), tuple(caveats))


# -- finding ----------------------------------------------------------------------------------------------------

Contents = dict[Path, dict[str, Path]]


def _find(given: list[Path]) -> tuple[list[Path], Contents]:
    """Tables, and contents by folder and common name."""
    tables: list[Path] = []
    contents: Contents = {}
    for path in given:
        if not path.exists():
            raise InputError(f"{path}: does not exist")
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            if not stat.S_ISREG(file.stat().st_mode if file.exists() else 0):
                continue
            if file.suffix == ".bin" and (_NAME.fullmatch(file.name) or file == path):
                contents.setdefault(file.parent, {})[_common(file.name)] = file
            elif file == path or file.match(CSV_NAME):
                tables.append(file)
    return list(dict.fromkeys(tables)), contents


def _common(name: str) -> str:
    """One name for a CSV line and its file: every slash is a dot in file names."""
    return name.replace("/", ".")


# -- reading ----------------------------------------------------------------------------------------------------


def _read_table(path: Path, contents: dict[str, Path], notes: Counter[str]) -> pd.DataFrame:
    """Lines of a CSV; contents of the same name are taken out of ``contents``."""
    frame = _named(_table_rows(path, notes), notes, path.name)
    taken = frame["name"].map(_common)
    repeated = taken.duplicated(keep=False)
    found = [None if twice else contents.get(name) for name, twice in zip(taken, repeated, strict=True)]
    for name in taken:
        contents.pop(name, None)
    return frame.assign(path=["" if p is None else str(p) for p in found], size_bytes=[_size(p) for p in found])


def _table_rows(path: Path, notes: Counter[str]) -> list[tuple[int, str, str]]:
    """Line number, name and checksum of each line; names are not quoted and may hold commas."""
    rows: list[tuple[int, str, str]] = []
    try:
        with path.open("rb") as file:
            head = _line(file)
            if head is None or head.removeprefix("\ufeff").strip() != CSV_HEADER:
                raise InputError(f"{path}: line 1: expected {CSV_HEADER!r}, found {(head or '')[:80]!r}")
            number = 1
            while (text := _line(file)) is not None:
                number += 1
                name, _, checksum = text.strip().rpartition(",")
                if text.strip() in ("", CSV_HEADER):  # a second open of the file writes its header again
                    continue
                if not _SUM.fullmatch(checksum):
                    notes[f"{path.name}: lines without a checksum of 16 digits, skipped"] += 1
                elif len(rows) == MAX_RECORDS:
                    raise InputError(f"{path}: more than {MAX_RECORDS:,} records")
                else:
                    rows.append((number, name, checksum.lower()))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return rows


def _line(file: BinaryIO) -> str | None:
    data = file.readline(MAX_LINE_BYTES)
    if len(data) == MAX_LINE_BYTES and not data.endswith(b"\n"):
        while (more := file.readline(MAX_LINE_BYTES)) and not more.endswith(b"\n"):
            pass
    return data.decode("utf-8", "replace") if data else None


def _size(path: Path | None) -> int:
    return -1 if path is None else path.stat().st_size


def _read_contents(files: dict[str, Path], notes: Counter[str]) -> pd.DataFrame:
    """Contents without a table, in the order of their files' times."""
    times = {name: (path.stat().st_mtime_ns, path.stat().st_size) for name, path in files.items()}
    frame = _named([(0, name, "") for name in files], notes, "contents")
    frame["t_ns"] = [times[name][0] for name in frame["name"]]
    frame["size_bytes"] = [times[name][1] for name in frame["name"]]
    frame["path"] = [str(files[name]) for name in frame["name"]]
    large = frame["size_bytes"] > MAX_BIN_BYTES
    if large.any():
        notes[f"contents larger than {MAX_BIN_BYTES} bytes, skipped"] += int(large.sum())
    frame["later"] = frame["when"] == "after"
    frame = frame[~large].sort_values(["t_ns", "n", "later"], kind="stable", ignore_index=True)
    frame["row"] = np.arange(1, len(frame) + 1)
    frame["checksum"] = [f"{file_checksum(Path(path)):016x}" for path in frame["path"]]
    if len(frame):
        notes["contents without a table: their order is that of the file times, which copying can lose"] += len(frame)
    if frame["t_ns"].duplicated().any():
        notes["contents with equal file times: ordered by the count of their op"] += int(
            frame["t_ns"].duplicated().sum()
        )
    return frame.drop(columns=["t_ns", "later"])


def _named(rows: list[tuple[int, str, str]], notes: Counter[str], file: str) -> pd.DataFrame:
    """Split names into their parts; a name of another form is skipped."""
    names = pa.array([name for _, name, _ in rows], pa.string())
    parts = pc.extract_regex(names, pattern=rf"(?s)\A{_NAME.pattern}\z")  # RE2: linear in the name, whatever it is
    known = pc.is_valid(parts)
    n_other = len(names) - (pc.sum(known).as_py() or 0)
    if n_other:
        notes[f"{file}: names of another form than device_tid/op_n-watched_idx_when, skipped"] += n_other
    n_several = pc.sum(pc.greater(pc.count_substring_regex(names.filter(known), pattern=_SPLIT.pattern), 1)).as_py()
    if n_several:
        notes["names that can be split in several ways: the first one was taken"] += n_several
    mask = np.asarray(known.to_numpy(zero_copy_only=False), dtype=bool)
    columns: dict[str, object] = {
        "row": np.array([number for number, _, _ in rows], dtype=np.int64)[mask],
        "name": np.array([name for _, name, _ in rows], dtype=object)[mask],
        "checksum": np.array([checksum for _, _, checksum in rows], dtype=object)[mask],
    }
    for key in ("device", "tid", "n", "idx", "op", "watched", "when"):
        cells = pc.struct_field(parts, key).filter(known)
        columns[key] = cells.cast(pa.int64()).to_numpy(zero_copy_only=False) if key in _INTEGERS else cells.to_pylist()
    return pd.DataFrame(columns).astype(dict.fromkeys(_INTEGERS, np.int64))


def _pieces(path: Path, expected: int, size: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size != expected:
                raise InputError(f"{path}: is not the file that it was when it was found")
            left = expected
            while left:
                data = file.read(min(size, left))
                if not data:
                    raise InputError(f"{path}: became shorter while it was read")
                left -= len(data)
                yield data
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


# -- the checksum -----------------------------------------------------------------------------------------------


def file_checksum(path: Path) -> int:
    """Return the checksum of a file, read in pieces."""
    value = 0
    for piece in _pieces(path, path.stat().st_size, PIECE_BYTES):
        value = checksum64(piece, value)
    return value


def checksum64(data: bytes | memoryview, before: int = 0) -> int:
    """Return the checksum that msMemScope writes for watched memory (spec/msmemscope 10).

    A right-shifting table CRC of 64 bits whose table is built from 0x42F0E1EBA9EA3693 used as it is, with initial
    value and final XOR of all ones: neither CRC-64/XZ nor ECMA.

    Parameters
    ----------
    data : bytes
        The content.
    before : int
        Checksum of what came before it, to continue with.
    """
    register = before ^ _ONES
    view = np.frombuffer(data, dtype=np.uint8)
    lane = len(view) // _LANES
    if lane:  # equal stretches side by side, then joined: the CRC is linear over GF(2)
        stretches = view[: lane * _LANES].reshape(_LANES, lane)
        register = _advance(register, lane) ^ _joined(_lanes(np.ascontiguousarray(stretches.T)), lane)
        view = view[lane * _LANES :]
    table = _table_list()
    for byte in view.tobytes():
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    return register ^ _ONES


@cache
def _table_list() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


def _lanes(columns: npt.NDArray[np.uint8]) -> U64Array:
    """Register of each lane from zero, all lanes together; one row of bytes at a time."""
    table = np.array(_table_list(), dtype=np.uint64)
    register = np.zeros(columns.shape[1], dtype=np.uint64)
    low, eight = np.uint64(0xFF), np.uint64(8)
    for row in columns:
        register = (register >> eight) ^ table[(register & low).astype(np.intp) ^ row]
    return register


def _joined(registers: U64Array, lane: int) -> int:
    """Registers of all lanes as the one of the whole: neighbours are joined in pairs."""
    length = lane
    while len(registers) > 1:
        registers = _apply(_zeros(length), registers[0::2]) ^ registers[1::2]
        length *= 2
    return int(registers[0])


def _advance(register: int, lane: int) -> int:
    """Register after as many zero bytes as all lanes hold."""
    return int(_apply(_zeros(lane * _LANES), np.array([register], dtype=np.uint64))[0])


def _apply(matrix: U64Array, values: U64Array) -> U64Array:
    """Product of a 64 x 64 matrix of bits, by columns, with vectors of bits."""
    result = np.zeros_like(values)
    one = np.uint64(1)
    for bit in range(64):
        result ^= matrix[bit] * ((values >> np.uint64(bit)) & one)
    return result


@cache
def _zeros(length: int) -> U64Array:
    """What a number of zero bytes does to the register: powers of the step of one byte by squaring."""
    bits = np.uint64(1) << np.arange(64, dtype=np.uint64)
    table = np.array(_table_list(), dtype=np.uint64)
    power = (bits >> np.uint64(8)) ^ table[(bits & np.uint64(0xFF)).astype(np.intp)]
    result = bits
    while length:
        if length & 1:
            result = _apply(power, result)
        power = _apply(power, power)
        length >>= 1
    return result
