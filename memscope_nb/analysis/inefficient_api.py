"""The original tool's labels, counted in APIs per process and family, faults included (spec/msmemscope 9.1, 9.2).

What the tool keeps in variables while it walks the rows (the API counter, whether an operator is open, the API of the
latest release) is here a running sum or the latest value so far, so that no loop runs over rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import MemoryProfile, to_int64

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
EARLY, LATE, IDLE = "early_allocation", "late_deallocation", "temporary_idleness"
LABELS = (EARLY, LATE, IDLE)
_UNSET = -1
_COLUMNS = ["source", "file", "row", "event_id", "event", "type", "access_pool", "size_bytes", "allocation_id"]


def replay(profile: MemoryProfile, mem_size: int, wanted: tuple[str, ...], threshold: int) -> pd.DataFrame:
    """Return one row per labelled block: ``source file row event_id size_bytes labels``, of its MALLOC."""
    found = [pd.DataFrame(columns=["source", "file", "row", "event_id", "size_bytes", "labels"])]
    events = profile.events
    rows = events.loc[events["event"].isin(("MALLOC", "FREE", "ACCESS", "OP_LAUNCH")), _COLUMNS]
    for _, part in rows.groupby(["source", "file"], sort=True):
        ordered = part.sort_values(["event_id", "row"], kind="stable")
        for family in _families(ordered):
            hits = _labelled(family, mem_size, wanted, threshold)
            if len(hits):
                found.append(hits)
    return pd.concat(found, ignore_index=True) if len(found) > 1 else found[0]


def _families(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Rows of PTA, then of ATB; an access belongs to ATB unless it says PTA."""
    kind, event = rows["type"], rows["event"]
    access, launch = (event == "ACCESS").to_numpy(), (event == "OP_LAUNCH").to_numpy()
    is_pta = (rows["access_pool"] == "PTA").to_numpy()
    for pool, starts, mine in (("PTA", "ATEN", is_pta), ("ATB", "ATB", ~is_pta)):
        edges = launch & kind.isin((f"{starts}_START", f"{starts}_END")).to_numpy()
        memory = event.isin(("MALLOC", "FREE")).to_numpy() & (kind == pool).to_numpy()
        yield rows[edges | memory | (access & mine)]


@dataclass(frozen=True)
class _Counted:
    """Memory rows of a family with the API of each and the APIs of the latest allocation and release, when checked."""

    rows: pd.DataFrame
    api: Int64Array
    last_malloc: Int64Array
    last_free: Int64Array


def _count(rows: pd.DataFrame) -> _Counted:
    kind, event = rows["type"], rows["event"]
    launch = (event == "OP_LAUNCH").to_numpy()
    start = launch & kind.isin(("ATEN_START", "ATB_START")).to_numpy()
    latest = np.maximum.accumulate(np.where(launch, np.arange(len(rows)), _UNSET))
    in_op = (latest != _UNSET) & start[latest]
    alone = ~launch & ~in_op
    api = np.cumsum(start | alone)
    closes = (launch & ~start) | alone
    last = {name: _latest_closed((event == name).to_numpy() & ~launch, closes, api) for name in ("MALLOC", "FREE")}
    memory = ~launch
    return _Counted(rows[memory], api[memory], last["MALLOC"][memory], last["FREE"][memory])


def _latest_closed(happens: BoolArray, closes: BoolArray, api: Int64Array) -> Int64Array:
    """API of the latest closed API in which something happened, at each row; what is pending is never cleared."""
    at = np.flatnonzero(closes)
    total = np.cumsum(happens)[at]
    holds = np.diff(total, prepend=0) > 0
    where = np.full(len(api), _UNSET, dtype=np.int64)
    where[at[holds]] = at[holds]
    last = np.maximum.accumulate(where) if len(where) else where
    return np.where(last == _UNSET, _UNSET, api[last])


def _labelled(rows: pd.DataFrame, mem_size: int, wanted: tuple[str, ...], threshold: int) -> pd.DataFrame:
    counted = _count(rows)
    block = to_int64(counted.rows["allocation_id"], na=_UNSET)
    order = np.argsort(block, kind="stable")
    table, block = counted.rows.iloc[order], block[order]
    api, last_malloc, last_free = (x[order] for x in (counted.api, counted.last_malloc, counted.last_free))
    n = len(table)
    if not n:
        return pd.DataFrame()
    event = table["event"].astype(str).to_numpy()
    access = event == "ACCESS"
    first = np.append(True, block[1:] != block[:-1])
    head = np.maximum.accumulate(np.where(first, np.arange(n), 0))
    checked = (event == "MALLOC")[head]
    born = api[head]
    follows = ~first & np.append(False, access[:-1])  # the row before is an access to the same block
    gap = api - np.append(0, api[:-1])
    hits = {IDLE: access & follows & (gap > threshold)}
    use = _first_other_use(access & (api != born), head, api)
    hits[EARLY] = access & (last_free != _UNSET) & (use != _UNSET) & (born < last_free) & (last_free < use)
    before = np.append(0, api[:-1])
    hits[LATE] = (event == "FREE") & follows & (last_malloc != _UNSET) & (before < last_malloc) & (last_malloc < api)
    size = to_int64(table["size_bytes"], na=0)[head]
    good = checked & (size >= mem_size)
    return _collected(table, {name: good & hits[name] for name in (IDLE, EARLY, LATE) if name in wanted}, head)


def _first_other_use(other: BoolArray, head: Int64Array, api: Int64Array) -> Int64Array:
    """API of the first access to the block in another API than its allocation, if it came by now."""
    at = np.flatnonzero(other)
    heads, first = np.unique(head[at], return_index=True)
    place = np.full(len(head), len(head), dtype=np.int64)
    place[heads] = at[first]
    mine = place[head]
    seen = mine <= np.arange(len(head))
    return np.where(seen, np.append(api, 0)[mine], _UNSET)


def _collected(table: pd.DataFrame, hits: dict[str, BoolArray], head: Int64Array) -> pd.DataFrame:
    """Labels of each block in the order of their detection; at one access idleness comes first."""
    blocks, places, names = [], [], []
    for name, hit in hits.items():
        at = np.flatnonzero(hit)
        heads, first = np.unique(head[at], return_index=True)
        blocks.append(heads)
        places.append(at[first])
        names += [name] * len(heads)
    if not names:
        return pd.DataFrame()
    block, place = np.concatenate(blocks), np.concatenate(places)
    order = np.lexsort((np.arange(len(block)), place))  # stable: idleness before early
    labels: dict[int, list[str]] = {}
    for i in order:
        labels.setdefault(int(block[i]), []).append(names[i])
    at = np.fromiter(labels, dtype=np.int64)
    columns = ["source", "file", "row", "event_id", "size_bytes"]
    return table[columns].iloc[at].assign(labels=pd.Series(list(labels.values()), index=table.index[at], dtype=object))
