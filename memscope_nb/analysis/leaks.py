"""Blocks that three equal marks A, B, C show to be kept: allocated in A..B, not released by C (spec/msmemscope 5)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, BlockFlag, MemoryProfile, as_profile, to_int64
from ..units import MIB, format_bytes
from .facts import missing_fact
from .result import Result, records

BoolArray = npt.NDArray[np.bool_]
LEAK_COLUMNS = (
    "pid", "device", "pool", "event_id", "allocation_id", "addr", "size_bytes", "freed", "owner", "stack_id", "source",
    "name", "alloc_ns", "free_ns", "free_event_id", "marks_after", "flags",
)  # fmt: skip
CHECK_COLUMNS = (
    "source", "pid", "device", "pool", "verdict", "reason", "marks_from", "n_marks", "a_ns", "b_ns", "c_ns", "n_leaks",
    "leak_bytes", "n_late", "late_bytes",
)  # fmt: skip
_HOW_TO_MARK = "call torch_npu.npu.mstx.mark({!r}) after each of at least three equal steps"
_GUARDED = tuple("=+-@")
_POOLS_OF_A_CACHE = ("PTA", "ATB", "MINDSPORE")


@dataclass(frozen=True, repr=False)
class LeakCheck(Result):
    """Leaks between marks: one row per block in ``frame``, largest process first, by event.

    Attributes
    ----------
    checks : pandas.DataFrame
        One row per process, device and pool: ``verdict`` (``leak``: never released; ``late``: all released after C;
        ``none``; ``undecided`` with the ``reason`` and what to record), the marks taken, counts and bytes.
    stacks : pandas.DataFrame
        The leaks by call stack and owner, largest first.
    messages : tuple of str
        With ``compat``: the lines that the original tool prints.
    """

    checks: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(CHECK_COLUMNS)), repr=False)
    stacks: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    messages: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        more = {"checks": records(self.checks), "stacks": records(self.stacks), "messages": list(self.messages)}
        return super().to_dict() | more

    def _repr_html_(self) -> str:
        checks = self.checks.to_html(escape=True, border=0, na_rep="", index=False)
        return checks + self.stacks.to_html(escape=True, border=0, na_rep="", index=False) + super()._repr_html_()


def check_leaks(
    p_or_path: MemoryProfile | str | os.PathLike[str],
    *,
    mstx_info: str,
    start_index: int = 0,
    pools: tuple[str, ...] | Literal["all"] = ("HAL",),
    compat: Literal["msmemscope"] | None = None,
) -> LeakCheck:
    """Find blocks that were allocated between marks A and B and not released by mark C.

    Parameters
    ----------
    p_or_path : MemoryProfile or path
        A msMemScope dump.
    mstx_info : str
        Text of the mstx marks.
    start_index : int
        A, B and C are the marks number ``start_index``, +1 and +2 with that text.
    pools : tuple of str or "all"
        Pools to look into; ``HAL`` is what the process took from the driver, ``PTA`` what torch's pool gave out.
    compat : "msmemscope", optional
        Answer exactly as the original tool: HAL only, processes of a device mixed, addresses instead of lives.

    Returns
    -------
    LeakCheck
        ``freed`` tells a block released after C (``late``) from one that never was.

    Raises
    ------
    TypeError, ValueError
        For an ``mstx_info`` that is no text or blank, a ``start_index`` that is no natural number.
    MissingFactError
        If the recording has no event IDs: only msMemScope dumps have.
    """
    if not isinstance(mstx_info, str):
        raise TypeError("mstx_info must be a string")
    if not mstx_info.strip():
        raise ValueError("mstx_info must not be empty or blank")
    if not isinstance(start_index, int) or isinstance(start_index, bool) or start_index < 0:
        raise ValueError("start_index must be a non-negative integer")
    if compat not in (None, "msmemscope"):
        raise ValueError(f"compat must be None or 'msmemscope', not {compat!r}")
    if compat and not isinstance(p_or_path, MemoryProfile):
        _check_path(Path(p_or_path))
    profile = as_profile(p_or_path)
    if not len(profile.events):
        needs = "check_leaks needs the event IDs and marks of a msMemScope dump: record with "
        how = "msmemscope.config(events='alloc,free') and " + _HOW_TO_MARK.format(mstx_info)
        raise missing_fact(profile, "check_leaks", needs + how)
    if compat:
        return _reference(profile, mstx_info, start_index)
    return _check(profile, mstx_info, start_index, pools)


# -- the right answer -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Marks:
    """The marks that serve one process on one device."""

    event_id: npt.NDArray[np.int64]
    t_ns: npt.NDArray[np.int64]
    origin: Literal["device", "process", "other process"]


def _check(profile: MemoryProfile, text: str, start: int, pools: tuple[str, ...] | Literal["all"]) -> LeakCheck:
    marks, caveats = _named_marks(profile, text)
    sources = profile.sources.set_index("source")
    blocks = profile.blocks
    chosen = sorted(blocks["pool"].dropna().unique()) if pools == "all" else list(pools)
    groups = blocks[blocks["pool"].isin(chosen)].groupby(["source", "device", "pool"], observed=True, sort=True)
    leaks, checks = [], []
    for (source, device, pool), part in groups:
        used = _marks_for(marks, sources, source, device)
        row, found = _check_group(profile, part, used, text, start)
        key = {"source": source, "pid": sources.at[source, "pid"], "device": device, "pool": pool}
        checks.append(key | row)
        if len(found):
            leaks.append(found.assign(pid=sources.at[source, "pid"]))
    for pool in chosen:
        if not any(check["pool"] == pool for check in checks):
            caveats.append(f"no block of pool {pool}: was its allocation recorded (events=alloc,free)?")
    frame = pd.concat(leaks, ignore_index=True) if leaks else pd.DataFrame(columns=list(LEAK_COLUMNS))
    frame = frame[[name for name in LEAK_COLUMNS if name in frame]]
    caveats += _caveats(profile, frame, checks)
    table = pd.DataFrame(checks, columns=list(CHECK_COLUMNS))
    return LeakCheck(frame, tuple(caveats), table, _by_stack(profile, frame))


def _named_marks(profile: MemoryProfile, text: str) -> tuple[pd.DataFrame, list[str]]:
    """Marks with exactly this text; if there is none, those that differ by blanks at the ends."""
    marks = profile.marks[profile.marks["kind"] == "mark"]
    exact = marks[marks["name"] == text]
    if len(exact):
        return exact, []
    near = marks[marks["name"].astype(str).str.strip() == text.strip()]
    if len(near):
        return near, [f"no mark is exactly {text!r}; taken: {near['name'].iloc[0]!r}, which differs by blanks"]
    there = ", ".join(repr(name) for name in marks["name"].drop_duplicates().head(10)) or "none"
    caveats = [f"no mark has the text {text!r}; there is: {there}"]
    if text.startswith(_GUARDED):
        caveats.append("msMemScope writes texts that begin with = + - @ as empty: mark with another text")
    return exact, caveats


def _marks_for(marks: pd.DataFrame, sources: pd.DataFrame, source: int, device: str) -> _Marks:
    """Marks of the process on the device, else of the process, else of the only other process that marked the device.

    Event IDs count in each process by itself: marks of another process are compared by time.
    """
    own = marks[marks["source"] == source]
    here = own[own["device"] == device]
    if len(own):
        taken = here if len(here) else own
        taken = taken.sort_values("start_event_id")
        ids, t = to_int64(taken["start_event_id"]), taken["start_ns"].to_numpy(np.int64)
        return _Marks(ids, t, "device" if len(here) else "process")
    run = sources.at[source, "run"]
    same_run = sources.index[(sources["run"] == run) & (sources["path"] == sources.at[source, "path"])]
    others = marks[marks["source"].isin(same_run) & (marks["device"] == device)]
    if others["source"].nunique() == 1:
        t = np.sort(others["start_ns"].to_numpy(np.int64))
        return _Marks(np.full(len(t), NA_NS), t, "other process")
    return _Marks(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), "process")


def _check_group(
    profile: MemoryProfile, part: pd.DataFrame, marks: _Marks, text: str, start: int
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Leaks of one process, device and pool."""
    n_marks = len(marks.t_ns)
    row: dict[str, Any] = {"marks_from": marks.origin if n_marks else "", "n_marks": n_marks}
    row |= dict.fromkeys(("a_ns", "b_ns", "c_ns"), pd.NA)
    row |= dict.fromkeys(("n_leaks", "leak_bytes", "n_late", "late_bytes"), 0)
    if n_marks < 3 or start + 2 >= n_marks:
        wanted = f"{n_marks} marks {text!r}, needed are {start + 3}: "
        return row | {"verdict": "undecided", "reason": wanted + _HOW_TO_MARK.format(text)}, part.iloc[:0]
    by_id = marks.origin != "other process"
    clock = marks.event_id if by_id else marks.t_ns
    a, b, c = (int(value) for value in clock[start : start + 3])
    began = to_int64(part["event_id"] if by_id else part["alloc_ns"])
    ended = to_int64(part["free_event_id"] if by_id else part["free_ns"])
    kept = (began != NA_NS) & (began >= a) & (began <= b) & ((ended == NA_NS) | (ended > c))
    found = part[kept].assign(
        freed=pd.Categorical(np.where(ended[kept] == NA_NS, "never", "late"), ["never", "late"]),
        marks_after=_marks_after(clock, began[kept], ended[kept]),
    )
    order = np.argsort(began[kept], kind="stable")
    found = found.iloc[order]
    never = (found["freed"] == "never").to_numpy()
    size = found["size_bytes"].to_numpy(np.int64)
    t = (int(value) for value in marks.t_ns[start : start + 3])
    row |= dict(zip(("a_ns", "b_ns", "c_ns"), t, strict=True))
    row |= {"n_leaks": int(never.sum()), "leak_bytes": int(size[never].sum())}
    row |= {"n_late": int((~never).sum()), "late_bytes": int(size[~never].sum())}
    return row | _verdict(profile, part, row), found


def _marks_after(
    clock: npt.NDArray[np.int64], began: npt.NDArray[np.int64], ended: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Age in marks: how many passed between the allocation and the release, or the last one."""
    first = np.searchsorted(clock, began, side="right")
    last = np.where(ended == NA_NS, len(clock), np.searchsorted(clock, ended, side="left"))
    return np.maximum(last - first, 0).astype(np.int64)


def _verdict(profile: MemoryProfile, part: pd.DataFrame, row: dict[str, Any]) -> dict[str, str]:
    if row["n_leaks"]:
        never_freed = part["free_ns"].isna().all() and _frees_missing(profile, int(part["source"].iloc[0]))
        if never_freed:
            how = "no FREE row of any kind in the recording: record with msmemscope.config(events='alloc,free')"
            return {"verdict": "undecided", "reason": how}
        return {"verdict": "leak", "reason": f"{format_bytes(row['leak_bytes'])} never released"}
    if row["n_late"]:
        return {"verdict": "late", "reason": f"{format_bytes(row['late_bytes'])} released only after C"}
    if _cut_off(profile, part):
        how = "the recording has no end: a killed process loses its live blocks; call msmemscope.stop() before it ends"
        return {"verdict": "undecided", "reason": how}
    return {"verdict": "none", "reason": "everything allocated between A and B was released by C"}


def _frees_missing(profile: MemoryProfile, source: int) -> bool:
    """Whether no process of the dump has a FREE row: what is recorded is set for all of them."""
    sources = profile.sources.set_index("source")
    together = sources.index[
        (sources["path"] == sources.at[source, "path"]) & (sources["run"] == sources.at[source, "run"])
    ]
    events = profile.events
    return not (events["source"].isin(together) & (events["event"] == "FREE")).any()


def _cut_off(profile: MemoryProfile, part: pd.DataFrame) -> bool:
    """Whether live blocks may be missing: the tool writes them when they end or at the end of tracing (spec 2.5)."""
    source = int(part["source"].iloc[0])
    marks = profile.marks[(profile.marks["source"] == source) & (profile.marks["kind"] == "system")]
    closed = marks["name"].isin(("ACL_FINI", "STOP_TRACE")).any()
    return not closed and bool(part["free_ns"].notna().all()) and bool(part["allocation_id"].notna().any())


def _caveats(profile: MemoryProfile, frame: pd.DataFrame, checks: list[dict[str, Any]]) -> list[str]:
    notes = []
    if any(check["marks_from"] == "other process" for check in checks):
        notes.append("some processes have no marks of their own: those of the other process on the device, by time")
    if any(check["marks_from"] == "process" for check in checks):
        notes.append("some devices have no marks: those of the process on another device")
    if len(frame):
        behind = set(profile.blocks["pool"].unique()) & set(_POOLS_OF_A_CACHE)
        if (frame["pool"] == "HAL").any() and behind:
            pools = ", ".join(sorted(behind))
            notes.append(
                f"HAL blocks may be held by a caching pool ({pools}) whose tensors are gone: look at that pool, too"
            )
        if (frame["flags"].to_numpy(np.uint16) & np.uint16(BlockFlag.SYNTHETIC_FREE)).any():
            notes.append("some late ones were released while nobody looked: the latest possible moment is given")
        if (frame["freed"] == "never").any():
            notes.append("never means: not before the recording ended")
    return notes


def _by_stack(profile: MemoryProfile, frame: pd.DataFrame) -> pd.DataFrame:
    """Group leaks by where they come from."""
    columns = ["pid", "device", "pool", "freed", "stack_id", "owner", "site", "n_blocks", "size_bytes"]
    if not len(frame):
        return pd.DataFrame(columns=columns)
    sites = np.append(profile.stacks["site"].to_numpy(dtype=object), "")
    named = frame.assign(owner=frame["owner"].astype(object).fillna(""), site=sites[frame["stack_id"].to_numpy()])
    grouped = named.groupby(columns[:7], observed=True, sort=False, dropna=False)["size_bytes"]
    table = grouped.agg(n_blocks="size", size_bytes="sum").reset_index()
    return table.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)


# -- the original tool's answer (spec 5.1) ----------------------------------------------------------------------

_SIZE = re.compile(r'size"?:"?(\d+)')
_MAX_FILE_BYTES = 8 << 30


def _check_path(path: Path) -> None:
    size = os.stat(path).st_size
    if path.suffix != ".csv":
        raise ValueError(f"{path}: the original tool reads a single .csv file")
    if size > _MAX_FILE_BYTES:
        raise ValueError(f"{path}: the original tool reads at most 8 GiB")


def _reference(profile: MemoryProfile, text: str, start: int) -> LeakCheck:
    """Replay the original tool on each file, faults included, though not its quadratic search."""
    leaks: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    messages: list[str] = []
    for rows in _files(profile):
        for device in rows["device"].drop_duplicates():
            if device == "N/A":
                continue
            messages.append(f"INFO: Starting to analyze data for device {device}...")
            part = rows[rows["device"] == device].sort_values("event_id", kind="stable")
            is_mark = (part["event"] == "MSTX") & (part["type"] == "MARK") & (part["name"] == text)
            marks = part.loc[is_mark, "event_id"].to_numpy()
            check: dict[str, Any] = {"device": device, "pool": "HAL", "n_marks": len(marks), "verdict": "undecided"}
            checks.append(check)
            if len(marks) < 3:
                reason = f"ERROR: Device {device} has fewer than 3 data points. Please re-collect the data points."
            elif start + 2 >= len(marks):
                reason = (
                    f"INFO: Start index {start} is out of bounds. Device {device} has a total of {len(marks)} "
                    "MSTX events."
                )
            else:
                found = _replay(part, *(int(mark) for mark in marks[start : start + 3]))
                check |= {"verdict": "leak" if found else "none", "n_leaks": len(found)}
                check["leak_bytes"] = sum(leak["size_bytes"] for leak in found)
                messages += _printed(device, found)
                leaks += [leak | {"device": device} for leak in found]
                continue
            check["reason"] = reason
            messages.append(reason)
    pids = profile.sources.set_index("source")["pid"]
    frame = pd.DataFrame(leaks, columns=[*LEAK_COLUMNS, "ptr_text"])
    frame["pid"] = pids.reindex(frame["source"]).to_numpy() if len(frame) else frame["pid"]
    table = pd.DataFrame(checks, columns=list(CHECK_COLUMNS))
    caveats = ("the original tool's answer: it mixes processes, pairs by address and knows HAL only",)
    return LeakCheck(frame, caveats, table, _by_stack(profile, frame.assign(freed="")), tuple(messages))


def _files(profile: MemoryProfile) -> Iterator[pd.DataFrame]:
    """Rows of each dump file, in its order, all processes together."""
    names = {int(row.source): (row.run, tuple(row.facts["files"])) for row in profile.sources.itertuples()
             if "files" in row.facts}  # fmt: skip
    groups: dict[tuple[str, str], list[pd.DataFrame]] = {}
    for (source, file), rows in profile.events.groupby(["source", "file"], sort=False):
        run, files = names[int(source)]
        groups.setdefault((run, files[int(file)]), []).append(rows)
    for parts in groups.values():
        yield pd.concat(parts).sort_values("row", kind="stable") if len(parts) > 1 else parts[0]


def _replay(part: pd.DataFrame, a: int, b: int, c: int) -> list[dict[str, Any]]:
    """Entries by ID text, removed by equal address text; the last row of an ID counts, at the place of the first."""
    hal = part[(part["type"] == "HAL") & (part["event_id"] >= a) & (part["event_id"] <= c)]
    ids, events, pointers, attrs = (hal[name].tolist() for name in ("event_id", "event", "ptr_text", "attrs"))
    entries: dict[int, int] = {}
    at: dict[str, set[int]] = {}
    sizes: dict[int, int] = {}
    for i, (event_id, event, pointer) in enumerate(zip(ids, events, pointers, strict=True)):
        if event == "MALLOC" and event_id <= b:
            if not attrs[i]:
                raise TypeError(f"row with ID {event_id} has no Attr")
            match = _SIZE.search(attrs[i])
            if match is None:
                raise ValueError(f"row with ID {event_id} has no size in its Attr")
            if event_id in entries:
                at[pointers[entries[event_id]]].discard(event_id)
            entries[event_id], sizes[event_id] = i, int(match[1])
            at.setdefault(pointer, set()).add(event_id)
        elif event == "FREE":
            for freed in at.pop(pointer, ()):
                del entries[freed]
    rows = hal.iloc[list(entries.values())]
    found = rows.assign(pool="HAL", size_bytes=[sizes[event_id] for event_id in entries])
    wanted = ["pool", "event_id", "ptr_text", "size_bytes", "source", "addr", "stack_id"]
    leaks: list[dict[str, Any]] = found[wanted].to_dict("records")
    return leaks


def _printed(device: str, leaks: list[dict[str, Any]]) -> list[str]:
    if not leaks:
        return [f"No hal memory leaks detected on device {device}."]
    head = f"====== ERROR: Detected memory leaks on device {device} ======"
    lines = [
        f"Direct Hal memory leak of {leak['size_bytes'] / MIB} Mb(s) at {leak['ptr_text']} in Index {leak['event_id']}."
        for leak in leaks
    ]
    return [head, *lines]
