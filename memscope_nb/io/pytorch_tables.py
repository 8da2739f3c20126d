"""Blocks and totals of one pool of a snapshot, from the lives of its blocks (spec/pytorch 1.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, BlockFlag, Int64Array, from_int64
from ..units import format_bytes
from .heap import give_back
from .pytorch_lives import AFTER, AT_END, BEFORE, Levels, Lives, as_signed, find_levels, find_lives
from .pytorch_rows import Rows
from .pytorch_segments import State
from .report import ReadReport

LEDGERS = ("allocated", "reserved", "active")
NO_SEGMENTS = (
    "no segments: what was alive at the end, and memory that was never released in the history, cannot be told"
)


@dataclass(frozen=True)
class DeviceHistory:
    """The trace of one device: columns of its entries, and the window.

    A column goes when nothing needs it any more: a million entries and their tables are not there at the same time.
    """

    rows: Rows
    columns: dict[str, npt.NDArray[Any]]
    """Those of :class:`.pytorch_rows.Rows`, with ``t_ns`` for the time."""
    window: tuple[int, int]
    """From right before the first entry: the state there is known, too."""

    @classmethod
    def without_entries(cls, rows: Rows, window: tuple[int, int]) -> DeviceHistory:
        """Return an empty history."""
        return cls(rows, Rows().take_arrays() | {"t_ns": np.empty(0, dtype=np.int64)}, window)


def pool_tables(
    history: DeviceHistory, state: State | None, device: str, pool: str, report: ReadReport
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Build blocks and totals of a pool, and check the one against the other.

    Parameters
    ----------
    history : DeviceHistory
        The trace; its columns are used up.
    state : State, optional
        The segments at the end; ``None`` if the file has none at all.
    device, pool : str
        Names.
    report : ReadReport
        Receives what was inferred, and how far the history and the segments contradict each other.
    """
    columns, active = history.columns, None if state is None else state.blocks
    lives = find_lives(columns["action"], columns.pop("addr"), columns["size"], columns["label"], active)
    reserved = None if state is None else state.reserved
    levels = find_levels(lives, columns.pop("action"), columns.pop("size"), reserved)
    for text, count in sorted(lives.counts.items()):
        report.note(text, count)
    report.facts |= {"n_older": int((np.frombuffer(lives.alloc, np.int64) < 0).sum())} if pool != "WORKSPACE" else {}
    if state is None:
        report.lose(NO_SEGMENTS)
    else:
        _check_end(levels, state, pool, report)
    blocks = _blocks(history, lives, levels, state, device, pool)
    del lives
    give_back()
    return blocks, _totals(history, levels, state, device, pool)


def _check_end(levels: Levels, state: State, pool: str, report: ReadReport) -> None:
    """Compare what the history leaves with what the segments hold: the strong self-test of the format (spec 1.7)."""
    for ledger in ("allocated", "active"):
        difference = state.ledger(ledger) - levels.end[ledger]
        report.facts[f"end_difference_{ledger}_bytes" + ("" if pool != "WORKSPACE" else "_workspace")] = difference
        if difference:
            report.note(
                f"unexplained: at the end the segments hold {format_bytes(difference, signed=True)} "
                f"({difference:+} B) of {ledger} memory against the history"
            )
    if levels.before.get("reserved", 0) < 0:
        report.note(f"unexplained: reserved memory would start at {levels.before['reserved']} B: segments are missing")


# -- blocks -----------------------------------------------------------------------------------------------------


def _blocks(
    history: DeviceHistory, lives: Lives, levels: Levels, state: State | None, device: str, pool: str
) -> pd.DataFrame:
    alloc, request, done, size, stack_row, in_state = (
        np.frombuffer(values, np.int64)
        for values in (lives.alloc, lives.request, lives.done, lives.size, lives.stack_row, lives.state)
    )
    stack, kind = _stacks(history, lives, stack_row, in_state, state)
    frame = pd.DataFrame(
        {
            "device": pd.Categorical.from_codes(np.zeros(len(lives), np.int8), [device]),
            "pool": pd.Categorical.from_codes(np.zeros(len(lives), np.int8), [pool]),
            "name": pd.Categorical.from_codes(np.zeros(len(lives), np.int8), [""]),
            "stack_id": stack,
            "stack_kind": pd.Categorical.from_codes(kind, ["none", "own", "forward"]),
            "size_bytes": size.copy(),
            "alloc_ns": from_int64(_at(history, alloc)),
            "free_ns": from_int64(_at(history, request)),
            "active_free_ns": from_int64(_at(history, done)),
            **{f"{key}_bytes": from_int64(_level(levels, key, alloc)) for key in LEDGERS if key in levels.after},
            **_places(history, lives, stack_row, in_state, state),
            "event_id": from_int64(np.where(alloc >= 0, alloc, NA_NS)),
            "free_event_id": from_int64(np.where(request >= 0, request, np.where(done >= 0, done, NA_NS))),
            "flags": np.frombuffer(lives.flags, np.uint16).copy(),
        },
        copy=False,
    )
    owner = _owners(history, lives, alloc)
    if owner is not None:
        frame["owner"] = owner
    return _sorted(frame, np.where(alloc < 0, -1, alloc))  # blocks from before the window first


def _sorted(frame: pd.DataFrame, key: Int64Array) -> pd.DataFrame:
    """Sort the rows of a frame; column by column, so that it is never there twice."""
    if not (key[1:] < key[:-1]).any():
        return frame
    order = np.argsort(key, kind="stable")
    return pd.DataFrame({name: frame.pop(name).array.take(order) for name in list(frame)}, copy=False)


def _at(history: DeviceHistory, positions: Int64Array) -> Int64Array:
    """Time of entries; see the constants of :mod:`.pytorch_lives` for the others."""
    start, end = history.window
    entries = history.columns["t_ns"]
    known = entries[np.maximum(positions, 0)] if len(entries) else np.zeros(len(positions), np.int64)
    times: Int64Array = np.select(
        [positions >= 0, positions == BEFORE, positions == AT_END, positions == AFTER],
        [known, np.int64(start), np.int64(end), np.int64(end + 1)],
        np.int64(NA_NS),
    )
    return times


def _level(levels: Levels, ledger: str, alloc: Int64Array) -> Int64Array:
    after = levels.after[ledger]
    if not len(after):
        return np.full(len(alloc), NA_NS, dtype=np.int64)
    found = after[np.maximum(alloc, 0)]
    return np.where((alloc >= 0) & (found >= 0), found, NA_NS)


def _stacks(
    history: DeviceHistory, lives: Lives, stack_row: Int64Array, in_state: Int64Array, state: State | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
    """Stack of each block: its entry's, else the state's, else that of the forward pass; and which of them it is."""
    own = _of_rows(history.columns.pop("stack"), stack_row)
    of_state = np.array([block.stack for block in state.blocks] if state else [], dtype=np.int32)
    own = np.where(own < 0, _of_rows(of_state, in_state), own)
    forward = _of_rows(history.columns.pop("forward"), stack_row)
    kind = np.where(own >= 0, 1, np.where(forward >= 0, 2, 0)).astype(np.int8)
    of_release = (np.frombuffer(lives.flags, np.uint16) & BlockFlag.RELEASE_STACK) != 0
    kind[of_release] = 0
    return np.where(own >= 0, own, forward).astype(np.int32), kind


def _of_rows(values: npt.NDArray[Any], rows: Int64Array) -> npt.NDArray[Any]:
    """Values of some rows, -1 for a negative one; the whole column is not copied."""
    return np.where(rows >= 0, values[np.maximum(rows, 0)], -1) if len(values) else np.full(len(rows), -1, values.dtype)


def _places(
    history: DeviceHistory, lives: Lives, stack_row: Int64Array, in_state: Int64Array, state: State | None
) -> dict[str, Any]:
    """Address, stream, pool and rounded size of each block, from its entry or from the segments."""
    columns, addr = history.columns, np.frombuffer(lives.addr, np.uint64)
    blocks, segments = (state.blocks, state.segments) if state else ([], [])
    stream = np.array([block.stream & 0xFFFF_FFFF_FFFF_FFFF for block in blocks] + [0], dtype=np.uint64)[in_state]
    of_entries = columns.pop("stream")
    if len(of_entries):
        stream = np.where(stack_row >= 0, of_entries[np.maximum(stack_row, 0)], stream)
    del of_entries
    rounded = np.array([block.rounded for block in blocks] + [NA_NS], dtype=np.int64)[in_state]
    written = _of_rows(columns.pop("pool"), stack_row)
    # Old writers name the pool on the segment only: there it is that of whoever lies at the address now.
    names = [*history.rows.pools, *(str(segment["pool_id"]) for segment in segments)]
    codes = np.where(written >= 0, written, _segment_at(addr, segments, len(history.rows.pools)))
    known, to_known = _distinct(names)
    return {
        "stream": from_int64(as_signed(stream)),
        "addr": pd.array(addr.copy(), dtype="UInt64"),
        "pool_id": pd.Categorical.from_codes(to_known[codes], known),
        "rounded_bytes": from_int64(rounded),
    }


def _distinct(names: list[str]) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return names without repeats, and the new number of each old one; the last entry maps -1."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return list(numbers), np.array([*(numbers[name] for name in names), -1], dtype=np.int32)


def _segment_at(addr: npt.NDArray[np.uint64], segments: list[dict[str, Any]], first: int) -> npt.NDArray[np.int64]:
    """Number of the segment that holds an address, counted from ``first``; -1 for none."""
    if not segments:
        return np.full(len(addr), -1, dtype=np.int64)
    starts = np.array([segment["addr"] for segment in segments], dtype=np.uint64)
    sizes = np.array([segment["size_bytes"] for segment in segments], dtype=np.uint64)
    order = np.argsort(starts)
    at = np.searchsorted(starts[order], addr, side="right") - 1
    number = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (addr - starts[number] < sizes[number]), number + first, -1)


def _owners(history: DeviceHistory, lives: Lives, alloc: Int64Array) -> pd.Categorical | None:
    """What the program says of a block (``user_metadata``, ``annotate``), else the category of a converted run."""
    rows = history.rows
    if not rows.labels and not rows.categories:
        return None
    codes = _of_rows(history.columns.pop("label"), alloc).astype(np.int64)
    for number, label in lives.labels.items():
        codes[number] = label
    category = _of_rows(history.columns.pop("category"), alloc).astype(np.int64)
    codes = np.where((codes < 0) & (category >= 0), category + len(rows.labels), codes)
    names = [*rows.labels, *rows.categories]
    known, to_known = _distinct(names)
    return pd.Categorical.from_codes(to_known[codes], known)


# -- totals -----------------------------------------------------------------------------------------------------


def _totals(history: DeviceHistory, levels: Levels, state: State | None, device: str, pool: str) -> pd.DataFrame:
    """Levels before the first entry and after each one that changed them, from rows; the end as the segments have it.

    The two meet at the last entry. Whatever they differ by stays visible there.
    """
    ledgers = [key for key in LEDGERS if key in levels.after]
    start, end = history.window
    times = history.columns.pop("t_ns")
    changed = np.zeros(len(times), dtype=bool)
    for key in ledgers:
        changed |= np.diff(levels.after[key], prepend=levels.before[key]) != 0
    has_start = len(times) > 0
    t = np.concatenate([_ints(start, has_start), times[changed], _ints(end, state is not None)])
    del times
    n = len(t)
    values: dict[str, Any] = {}
    for key in LEDGERS:
        if key in levels.after:
            before = _ints(levels.before[key], has_start)
            final = _ints(0 if state is None else state.ledger(key), state is not None)
            level = np.concatenate([before, levels.after.pop(key)[changed], final])  # used up: there are three
        else:
            level = np.full(n, NA_NS, dtype=np.int64)
        values[f"{key}_bytes"] = from_int64(level, na=NA_NS) if (level >= 0).all() else _natural(level)
    origin = np.ones(n, dtype=np.int8)
    origin[n - 1 if state is not None else n :] = 0
    zeros = np.zeros(n, dtype=np.int8)
    return pd.DataFrame(
        {
            "scope": pd.Categorical.from_codes(zeros, ["pool"]),
            "component": pd.Categorical.from_codes(zeros, [pool]),
            "device": pd.Categorical.from_codes(zeros, [device]),
            "t_ns": t,
            **values,
            "origin": pd.Categorical.from_codes(origin, ["recorded", "rows"]),
        },
        copy=False,
    )


def _natural(level: Int64Array) -> pd.arrays.IntegerArray:
    return from_int64(np.where(level < 0, NA_NS, level))


def _ints(value: int, there: bool) -> Int64Array:
    """Return one number or none; an empty list would turn times into floats."""
    return np.array([value] if there else [], dtype=np.int64)
