"""A dump database with the tables that MindStudio Insight adds to it (spec/msmemscope 3.1, 13)."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.align_nesting import event_places
from ..analysis.inefficient_api import LABELS
from ..io.memscope_db import dump_table, python_trace_rows
from ..model import MemoryProfile, block_ends, block_starts, to_int64

_INTEGERS = (0, 4, 5, 6)
_SCHEMA = """
CREATE TABLE memscope_dump ("ID" INTEGER, "Event" TEXT, "Event Type" TEXT, "Name" TEXT, "Timestamp(ns)" INTEGER,
    "Process Id" INTEGER, "Thread Id" INTEGER, "Device Id" TEXT, "Ptr" TEXT, "Attr" TEXT, "Call Stack(Python)" TEXT,
    "Call Stack(C)" TEXT);
CREATE TABLE memory_block (id INTEGER PRIMARY KEY, deviceId TEXT, addr TEXT, size INTEGER, startTimestamp INTEGER,
    endTimestamp INTEGER, eventType TEXT, owner TEXT, attr TEXT, processId INTEGER, threadId INTEGER,
    firstAccessTimestamp INTEGER, lastAccessTimestamp INTEGER, maxAccessInterval INTEGER);
CREATE TABLE memory_allocation (timestamp INTEGER, totalSize INTEGER, optimized INTEGER DEFAULT 0, deviceId TEXT,
    eventType TEXT);
"""
_BATCH = 20_000
_LABEL = "|".join(LABELS)
_OLD = re.compile(rf"(?<=[{{,])\s*inefficient(?:_type)?:(?P<labels>(?:{_LABEL})(?:,(?:{_LABEL}))*)(?=[,}}]|$)")
Labels = dict[tuple[str, int], list[str]]
"""By process, as text, and event ID."""
_NO_DEVICE = ("N/A", "", "HOST")


def write_labelled_db(
    path: Path,
    rows: Iterable[tuple[str, ...]],
    profile: MemoryProfile,
    inputs: list[Path],
    labels: Labels,
) -> None:
    """Write rows and what Insight computes from them: blocks by their lives, processes apart, and running totals."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=MEMORY")
        connection.executescript(_SCHEMA)
        _insert(connection, "memscope_dump", (_stored(row) for row in rows), 12)
        _copy_traces(connection, inputs)
        blocks = _blocks_of(profile, inputs)
        _insert(connection, "memory_block", _block_rows(profile, blocks, labels), 14)
        _insert(connection, "memory_allocation", _totals(profile, blocks), 5)
        connection.commit()


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]], width: int) -> None:
    marks = ", ".join("?" * width)
    waiting = iter(rows)
    while part := list(islice(waiting, _BATCH)):
        connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', part)


def _stored(row: tuple[str, ...]) -> tuple[object, ...]:
    cells: list[object] = list(row)
    for i in _INTEGERS:
        text = row[i].strip()
        cells[i] = int(text) if text.lstrip("-").isdecimal() and len(text) < 20 and abs(int(text)) < 1 << 63 else -1
    return tuple(cells)


def _copy_traces(connection: sqlite3.Connection, inputs: list[Path]) -> None:
    for file in inputs:
        if dump_table(file) is None:
            continue
        for function, start, end, tid, pid in python_trace_rows(file, None):
            if not pid.isdecimal():
                continue
            table = f"python_trace_{int(pid)}"
            connection.execute(
                f'CREATE TABLE IF NOT EXISTS "{table}" ("FuncInfo" TEXT, "StartTime(ns)" TEXT, "EndTime(ns)" TEXT, '
                '"Thread Id" INTEGER, "Process Id" INTEGER)'
            )
            numbers = (int(text) if text.isdecimal() and len(text) < 19 else -1 for text in (tid, pid))
            connection.execute(f'INSERT INTO "{table}" VALUES (?, ?, ?, ?, ?)', (function, start, end, *numbers))


def _blocks_of(profile: MemoryProfile, inputs: list[Path]) -> pd.DataFrame:
    """Blocks whose MALLOC is in one of the files, on a device; with the Attr of that row."""
    blocks = profile.blocks
    wanted = {str(file) for file in inputs}
    events = profile.events.loc[profile.events["event"] == "MALLOC", ["source", "file", "event_id", "attrs"]]
    source = blocks["source"].to_numpy(np.int64)
    born = to_int64(blocks["event_id"])
    place = event_places(events["source"].to_numpy(np.int64), events["event_id"].to_numpy(np.int64), source, born)
    names = {int(s): [str(n) in wanted for n in f.get("files", ())] for s, f in
             zip(profile.sources["source"], profile.sources["facts"], strict=True)}  # fmt: skip
    file = np.append(events["file"].to_numpy(np.int64), -1)[place]
    here = [at >= 0 and names[int(s)][f] for at, s, f in zip(place.tolist(), source, file.tolist(), strict=True)]
    device = blocks["device"].astype(str).to_numpy()
    keep = np.array(here, dtype=bool) & ~np.isin(device, _NO_DEVICE)
    at = np.flatnonzero(keep)
    attrs = events["attrs"].astype(object).to_numpy()
    return blocks.iloc[at].assign(
        attrs=attrs[place[at]], start=block_starts(profile)[at], end=block_ends(profile)[at], shown=_short(device[at])
    )


def _short(devices: np.ndarray) -> list[str]:
    return [name.removeprefix("NPU:").lower() for name in devices.tolist()]


def _block_rows(profile: MemoryProfile, blocks: pd.DataFrame, labels: Labels) -> Iterator[tuple[object, ...]]:
    access = profile.accesses
    t = access.sort_values(["block_id", "event_id"])[["block_id", "t_ns"]]
    t = t.astype({"t_ns": "Int64"})  # exact also where a block has no access
    t = t.assign(gap=t["t_ns"].diff().where(t["block_id"].diff() == 0))
    uses = t.groupby("block_id").agg(first=("t_ns", "first"), last=("t_ns", "last"), longest=("gap", "max"))
    uses = uses.reindex(blocks["block_id"])
    pids = profile.sources.set_index("source")["pid"].reindex(blocks["source"])
    last = int(profile.events["t_ns"].max())
    owners = blocks["owner"] if "owner" in blocks else pd.Series(None, index=blocks.index)
    columns = zip(
        blocks["shown"], _ints(blocks["addr"]), blocks["size_bytes"].tolist(), blocks["start"].tolist(),
        _ints(blocks["free_ns"]), blocks["pool"].astype(str), owners.astype(object), blocks["attrs"], _ints(pids),
        _ints(blocks["tid"]), *(_ints(uses[name]) for name in uses), _ints(blocks["event_id"]), strict=True,
    )  # fmt: skip
    for number, (device, addr, size, start, end, pool, owner, attr, pid, tid, *used, event_id) in enumerate(columns, 1):
        names = labels.get(("" if pid is None else str(pid), event_id or -1))
        text = "" if attr is None or attr is pd.NA else str(attr)
        text = with_labels(text, names) if names else text
        place = None if addr is None else f"0x{addr:016x}"
        label = owner if isinstance(owner, str) else ""
        row = (number, device, place, size, start, last if end is None else end, pool, label, text, pid, tid)
        yield (*row, *used)


def _ints(values: pd.Series) -> list[int | None]:
    return [None if value is pd.NA or value is None or value != value else int(value) for value in values.tolist()]


def _totals(profile: MemoryProfile, blocks: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Bytes in live blocks of each device and pool after each allocation and release."""
    freed = blocks["free_ns"].notna().to_numpy()
    size = blocks["size_bytes"].to_numpy(np.int64)
    table = pd.DataFrame(
        {
            "t": np.concatenate([blocks["start"], to_int64(blocks["free_ns"])[freed]]),
            "change": np.concatenate([size, -size[freed]]),
            "device": [*blocks["shown"], *blocks["shown"][freed]],
            "pool": np.concatenate([blocks["pool"].astype(str), blocks["pool"].astype(str)[freed]]),
        }
    ).sort_values(["t", "change"], kind="stable")
    total = table.groupby(["device", "pool"], sort=False)["change"].cumsum()
    for t, level, device, pool in zip(table["t"], total, table["device"], table["pool"], strict=True):
        yield int(t), int(level), 0, str(device), str(pool)


# -- one Attr cell ----------------------------------------------------------------------------------------------


def with_labels(attr: str, labels: list[str]) -> str:
    """Return an Attr cell with labels added to those that it has, in its own syntax."""
    if attr.startswith('{"') or attr == "{}":
        try:
            pairs: Any = json.loads(attr)
        except (ValueError, RecursionError):
            return attr.rstrip().removesuffix("}") + f',"inefficient_type":"{",".join(labels)}"}}'
        old = str(pairs.pop("inefficient", pairs.get("inefficient_type", "")))
        pairs["inefficient_type"] = ",".join(_joined(old, labels))
        return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))
    match = _OLD.search(attr)
    if match:
        names = ",".join(_joined(match["labels"], labels))
        return f"{attr[: match.start()]}inefficient_type:{names}{attr[match.end() :]}"
    inner = attr.strip().removeprefix("{").removesuffix("}")
    return "{" + inner + ("," if inner else "") + "inefficient_type:" + ",".join(labels) + "}"


def _joined(old: str, new: list[str]) -> list[str]:
    return list(dict.fromkeys([*(name for name in old.split(",") if name), *new]))
