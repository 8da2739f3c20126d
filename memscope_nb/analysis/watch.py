"""Which operator, or what between two operators, changed a watched block first (spec/msmemscope 10)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import Int64Array
from .result import Result, records

MAX_RANGES = 1000
"""Most byte ranges that are listed for a block; all are counted."""
BLOCK_COLUMNS = (
    "recording", "device", "watched", "idx", "window", "n_records", "n_changes", "n_expected", "verdict", "suspect",
    "suspect_n", "between", "writes_by_name", "from_row", "to_row", "from_checksum", "to_checksum", "n_bytes_changed",
    "first_offset", "extent_bytes", "n_ranges", "reason",
)  # fmt: skip
CHANGE_COLUMNS = (
    "recording", "device", "watched", "idx", "window", "kind", "suspect", "suspect_n", "between", "expected",
    "concurrent", "from_record", "to_record",
)  # fmt: skip
RANGE_COLUMNS = ("recording", "device", "watched", "idx", "window", "offset", "length")
_KEY = ["recording", "device", "watched", "idx"]
_IN_PLACE = re.compile(r"\w_(\.\w+)?$|[._]out$")
_NEXT_OP = "if it may not write the block it is the suspect: rerun with level='kernel' around it, or full-content"
_NEXT_GAP = (
    "another stream, thread or an unwatched kernel wrote here: rerun with ASCEND_LAUNCH_BLOCKING=1 and level='kernel' "
    "between the two"
)
_OVERLAP = "operators of several threads were running: watch with ASCEND_LAUNCH_BLOCKING=1 and one thread"


class WatchRecords(Protocol):
    """What :func:`memscope_nb.load_watch` returns, as far as it is needed here."""

    @property
    def records(self) -> pd.DataFrame:
        """Records in the order in which they were written."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """What could not be used."""

    def pieces(self, row: int) -> Iterator[bytes]:
        """Content of a record in pieces."""


@dataclass(frozen=True, repr=False)
class Corruption(Result):
    """First change of each watched block: one row for each block and window in ``frame``.

    Attributes
    ----------
    frame : pandas.DataFrame
        ``verdict``: ``op`` (the block changed while only ``suspect`` ran), ``gap`` (between two operators, see
        ``between``), ``expected`` (only operators of ``may_write`` changed it), ``unchanged``, ``undecided`` (nothing
        to compare, or operators of several threads overlap). ``writes_by_name``: the suspect's name says that it
        writes into an argument. Byte counts where both contents exist.
    changes : pandas.DataFrame
        Every change, in order; ``from_record`` and ``to_record`` are positions in the records.
    ranges : pandas.DataFrame
        Byte ranges of the first change that was not expected, where both contents exist.
    """

    changes: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(CHANGE_COLUMNS)), repr=False)
    ranges: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(RANGE_COLUMNS)), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return super().to_dict() | {"changes": records(self.changes), "ranges": records(self.ranges)}


def locate_corruption(watch: WatchRecords, *, may_write: str | Iterable[str] | None = None) -> Corruption:
    """Find the first change of every watched block.

    Parameters
    ----------
    watch : Watch
        From :func:`memscope_nb.load_watch`.
    may_write : str or strs, optional
        Regular expressions of operators that are meant to write the block, found anywhere in the name.

    Returns
    -------
    Corruption
        Records of one block are compared one with the next (spec/msmemscope 10): before and after an operator differ:
        it changed the block; otherwise something in between did. Each time the start operator ran its output is a new
        block, a new ``window``.

    Raises
    ------
    TypeError
        If this is no watch.
    InputError
        If ``may_write`` is no regular expression.
    """
    if not isinstance(getattr(watch, "records", None), pd.DataFrame):
        raise TypeError(f"locate_corruption needs what load_watch returns, not {type(watch).__name__}")
    writers = _compiled(may_write)
    blocks: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    ranges: list[dict[str, Any]] = []
    caveats = list(watch.caveats)
    for key, life in _lives(watch.records):
        found = _changes(life, writers)
        changes += [key | change for change in found]
        row, parts = _verdict(watch, life, found, caveats)
        blocks.append(key | row)
        ranges += [key | part for part in parts]
    caveats.append("a block can change unseen between two copies: the tool needs ASCEND_LAUNCH_BLOCKING=1")
    if any(block["verdict"] in ("op", "gap") for block in blocks) and not writers:
        caveats.append("operators that are meant to write the block are not known: name them with may_write")
    frame = pd.DataFrame(blocks, columns=list(BLOCK_COLUMNS))
    numbers = ["suspect_n", "from_row", "to_row", "n_bytes_changed", "first_offset", "extent_bytes", "n_ranges"]
    return Corruption(
        frame.astype(dict.fromkeys(numbers, "Int64")),
        tuple(dict.fromkeys(caveats)),
        pd.DataFrame(changes, columns=list(CHANGE_COLUMNS)),
        pd.DataFrame(ranges, columns=list(RANGE_COLUMNS)),
    )


def _compiled(may_write: str | Iterable[str] | None) -> tuple[re.Pattern[str], ...]:
    texts = () if may_write is None else (may_write,) if isinstance(may_write, str) else tuple(may_write)
    try:
        return tuple(re.compile(text) for text in texts)
    except re.error as error:
        raise InputError(f"may_write: {error.pattern!r} is no regular expression: {error}") from None


# -- the life of one block --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Record:
    position: int
    row: int
    tid: int
    op: str
    n: int
    watched: str
    is_after: bool
    checksum: str
    has_content: bool

    @property
    def run(self) -> tuple[int, str, int]:
        """One run of an operator."""
        return self.tid, self.op, self.n

    def __str__(self) -> str:
        return f"{'after' if self.is_after else 'before'} {self.op} #{self.n}"


def _lives(table: pd.DataFrame) -> Iterator[tuple[dict[str, Any], list[_Record]]]:
    """Records of each block in order; a start operator begins a new block."""
    for key, positions in table.groupby(_KEY, sort=False).indices.items():
        part = table.iloc[np.sort(positions)]
        columns = ("row", "tid", "op", "n", "watched", "when", "checksum", "path")
        values = zip(np.sort(positions).tolist(), *(part[name].tolist() for name in columns), strict=True)
        rows = [_Record(p, r, t, o, n, w, when == "after", c, bool(path)) for p, r, t, o, n, w, when, c, path in values]
        starts = [i for i, record in enumerate(rows) if i and _opens(rows, i, record)]
        for window, (first, last) in enumerate(zip_longest([0, *starts], starts), 1):
            yield dict(zip(_KEY, key, strict=True)) | {"window": window}, rows[first:last]


def _opens(rows: list[_Record], i: int, record: _Record) -> bool:
    """Whether this is the first copy after the start operator: it has no copy from before that run."""
    before = rows[i - 1]
    return record.is_after and record.op == record.watched and (before.is_after or before.run != record.run)


def _changes(life: list[_Record], writers: tuple[re.Pattern[str], ...]) -> list[dict[str, Any]]:
    running: list[tuple[int, str, int]] = []
    found = []
    for i, record in enumerate(life):
        if i and record.checksum != life[i - 1].checksum:
            found.append(_change(life[i - 1], record, running, writers))
        if not record.is_after:
            running.append(record.run)
        elif record.run in running:
            running.reverse()
            running.remove(record.run)
            running.reverse()
    return found


def _change(
    before: _Record, after: _Record, running: list[tuple[int, str, int]], writers: tuple[re.Pattern[str], ...]
) -> dict[str, Any]:
    """What happened between two records that follow each other, and which operators were running."""
    unseen = after.is_after and after.run not in running  # its own copy from before is missing
    involved = [*running, after.run] if unseen else running
    threads = {run[0] for run in involved}
    kind = "gap" if not involved else "undecided" if unseen or len(threads) > 1 else "op"
    suspect = running[-1] if kind == "op" else None
    names = [suspect[1]] if suspect else [run[1] for run in involved]
    return {
        "kind": kind,
        "suspect": " | ".join(dict.fromkeys(names)),
        "suspect_n": suspect[2] if suspect else None,
        "between": f"{before} .. {after}",
        "expected": bool(names) and all(any(writer.search(name) for writer in writers) for name in names),
        "concurrent": len(threads) > 1,
        "from_record": before.position,
        "to_record": after.position,
    }


def _verdict(
    watch: WatchRecords, life: list[_Record], changes: list[dict[str, Any]], caveats: list[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    first = next((change for change in changes if not change["expected"]), None)
    row: dict[str, Any] = {"n_records": len(life), "n_changes": len(changes)}
    row["n_expected"] = sum(change["expected"] for change in changes)
    if first is None:
        if len(life) < 2:
            return row | {"verdict": "undecided", "reason": "a single copy: nothing to compare it with"}, []
        verdict = "expected" if changes else "unchanged"
        return row | {"verdict": verdict, "reason": ""}, []
    at = {record.position: record for record in life}
    before, after = at[first["from_record"]], at[first["to_record"]]
    row |= {key: first[key] for key in ("suspect", "suspect_n", "between")} | {"verdict": first["kind"]}
    row |= {"from_row": before.row, "to_row": after.row}
    row |= {"from_checksum": before.checksum, "to_checksum": after.checksum}
    row["writes_by_name"] = first["kind"] == "op" and _IN_PLACE.search(first["suspect"]) is not None
    unclear = _OVERLAP if first["concurrent"] else f"the copy from before {after.op} is missing"
    row["reason"] = {"op": _NEXT_OP, "gap": _NEXT_GAP, "undecided": unclear}[first["kind"]]
    if not (before.has_content and after.has_content):
        return row, []
    try:
        difference = compare_contents(watch.pieces(before.position), watch.pieces(after.position))
    except InputError as error:
        caveats.append(str(error))
        return row, []
    if difference.n_bytes == 0:
        caveats.append(f"{first['between']}: the checksums differ and the contents do not: files of another run?")
    row |= {"n_bytes_changed": difference.n_bytes, "n_ranges": difference.n_ranges}
    if difference.ranges:
        (start, _), (last, length) = difference.ranges[0], difference.last
        row |= {"first_offset": start, "extent_bytes": last + length - start}
    return row, [{"offset": offset, "length": length} for offset, length in difference.ranges]


# -- contents ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """Bytes that differ: how many, and where (the first :data:`MAX_RANGES` ranges, and the last one)."""

    n_bytes: int
    n_ranges: int
    ranges: tuple[tuple[int, int], ...]
    """Offset and length."""
    last: tuple[int, int]


def compare_contents(before: Iterable[bytes], after: Iterable[bytes]) -> Difference:
    """Compare two contents in pieces of equal size; bytes that only one of them has count as different."""
    n_bytes = n_ranges = offset = 0
    ranges: list[tuple[int, int]] = []
    last = (0, 0)
    for old, new in zip_longest(before, after, fillvalue=b""):
        starts, ends = _differing(old, new)
        n_bytes += int((ends - starts).sum())
        if len(starts):
            continues = n_ranges > 0 and last[0] + last[1] == offset + int(starts[0])
            n_ranges += len(starts) - continues
            if continues:
                last = (last[0], last[1] + int(ends[0] - starts[0]))
                if n_ranges + 1 - len(starts) <= MAX_RANGES:
                    ranges[-1] = last
                starts, ends = starts[1:], ends[1:]
            free = MAX_RANGES - len(ranges)
            ranges += [(offset + int(a), int(b - a)) for a, b in zip(starts[:free], ends[:free], strict=True)]
            if len(starts):
                last = (offset + int(starts[-1]), int(ends[-1] - starts[-1]))
        offset += max(len(old), len(new))
    return Difference(n_bytes, n_ranges, tuple(ranges), last)


def _differing(old: bytes, new: bytes) -> tuple[Int64Array, Int64Array]:
    """Starts and ends of the stretches that differ."""
    shared = min(len(old), len(new))
    a, b = (np.frombuffer(data, dtype=np.uint8, count=shared) for data in (old, new))
    differs = np.ones(max(len(old), len(new)) + 2, dtype=bool)
    differs[0] = differs[-1] = False
    differs[1 : shared + 1] = a != b
    edges = np.flatnonzero(differs[1:] != differs[:-1])
    return edges[0::2].astype(np.int64), edges[1::2].astype(np.int64)
