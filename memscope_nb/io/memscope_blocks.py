"""Blocks from the MALLOC and FREE rows of one process (spec/msmemscope 2.5, 14).

A block is one ``allocation_id``; files from before it have generations of an address instead: a FREE ends the latest
open MALLOC. Clean-up rows are told from releases, releases whose device is not written are resolved by their address.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, BlockFlag, Int64Array, from_int64, to_int64
from .memscope_events import NO_DEVICE
from .report import ReadReport

BoolArray = npt.NDArray[np.bool_]
WORKSPACE = "PTA_WORKSPACE"
NONE = -1


def device_name(text: str) -> str:
    """Name of a device in all tables but ``events``: ``NPU:0``, ``CPU``, ``HOST``."""
    return f"NPU:{text}" if text.isdecimal() else text.upper()


@dataclass(frozen=True)
class Pairing:
    """MALLOC and FREE rows of each block, as positions in the events; ``NONE`` for a row that is not there."""

    malloc: Int64Array
    free: Int64Array


@dataclass(frozen=True)
class DumpBlocks:
    """Blocks of one process, without ``source`` and ``block_id``, and which block each event belongs to."""

    frame: pd.DataFrame
    block_of_event: Int64Array
    """Position of the block for every MALLOC and FREE row, ``NONE`` elsewhere."""
    pool_of_event: pd.Categorical


def pair_by_nesting(keys: Int64Array, is_start: BoolArray) -> Pairing:
    """Pair starts and ends of equal keys, in the order given, like brackets: an end closes the latest open start.

    Ends without a start and starts without an end stay alone. Without a loop: at each depth of one key starts and ends
    alternate, so that neighbours at a depth belong together.
    """
    n = len(keys)
    if not n:
        return Pairing(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    by_key = np.argsort(keys, kind="stable")
    sorted_keys, start = keys[by_key], is_start[by_key]
    depth = np.cumsum(np.where(start, 1, -1))
    first = np.append(True, sorted_keys[1:] != sorted_keys[:-1])
    before = np.where(first, depth - np.where(start, 1, -1), 0)
    depth = depth - before[np.maximum.accumulate(np.where(first, np.arange(n), 0))]
    level = np.where(start, depth, depth + 1)
    order = np.lexsort((level, sorted_keys))  # stable: within a level in the order given
    key, lev, at, opens = sorted_keys[order], level[order], by_key[order], start[order]
    joined = np.append((key[1:] == key[:-1]) & (lev[1:] == lev[:-1]) & opens[:-1] & ~opens[1:], False)
    closed = np.append(False, joined[:-1])
    lone_start, lone_end = opens & ~joined, ~opens & ~closed
    ends = at[np.minimum(np.flatnonzero(joined) + 1, n - 1)]
    n_lone_start, n_lone_end = int(lone_start.sum()), int(lone_end.sum())
    malloc = np.concatenate([at[joined], at[lone_start], np.full(n_lone_end, NONE)])
    free = np.concatenate([ends, np.full(n_lone_start, NONE), at[lone_end]])
    return Pairing(malloc.astype(np.int64), free.astype(np.int64))


def build_blocks(events: pd.DataFrame, report: ReadReport) -> DumpBlocks:
    """Build the blocks of one process.

    Parameters
    ----------
    events : pandas.DataFrame
        Its events, in any order.
    report : ReadReport
        Receives what could not be used: blocks without a size, releases of unknown memory.
    """
    kind = events["event"].astype(object).to_numpy()
    rows = np.flatnonzero((kind == "MALLOC") | (kind == "FREE"))
    rows = rows[np.argsort(events["event_id"].to_numpy()[rows], kind="stable")]
    view = _View.of(events, rows)
    devices = _resolved_devices(view)
    pairing = pair_by_nesting(_keys(view, devices), view.is_malloc)
    ends = _read_ends(view, pairing, devices, events)
    return _assemble(events, view, devices, pairing, ends, report)


@dataclass(frozen=True)
class _View:
    """Columns of the MALLOC and FREE rows as arrays, in ID order."""

    rows: Int64Array
    is_malloc: BoolArray
    pool: npt.NDArray[np.int64]
    pools: list[str]
    device: npt.NDArray[np.int64]
    devices: list[str]
    ptr: npt.NDArray[np.int64]
    allocation: Int64Array
    event_id: Int64Array
    t: Int64Array
    shadow: BoolArray

    @classmethod
    def of(cls, events: pd.DataFrame, rows: Int64Array) -> _View:
        part = events.iloc[rows]
        pool = _pools(part)
        allocation = to_int64(part["allocation_id"])
        return cls(
            rows=rows,
            is_malloc=(part["event"] == "MALLOC").to_numpy(),
            pool=pool.codes.astype(np.int64),
            pools=list(pool.categories),
            device=part["device"].cat.codes.to_numpy().astype(np.int64),
            devices=[str(name) for name in part["device"].cat.categories],
            ptr=pd.factorize(part["addr"].array)[0].astype(np.int64),  # NONE for no address
            allocation=np.where(allocation > 0, allocation, NA_NS),
            event_id=part["event_id"].to_numpy(np.int64),
            t=part["t_ns"].to_numpy(np.int64),
            shadow=part["shadow"].to_numpy(),
        )


def _pools(part: pd.DataFrame) -> pd.Categorical:
    """Pool of each row: its type, with the two kinds of host memory told apart (spec 14)."""
    names = part["type"].astype(object).to_numpy().copy()
    host = names == "HOST"
    names[host & part["pinned"].to_numpy()] = "HOST_PINNED"
    names[host & ~part["pinned"].to_numpy() & part["total_bytes"].notna().to_numpy()] = "HOST_TENSOR"
    return pd.Categorical(names)


def _resolved_devices(view: _View) -> npt.NDArray[np.int64]:
    """Device of each row; a FREE that does not say it (old HAL rows) takes that of the latest open MALLOC there."""
    unknown = view.devices.index(NO_DEVICE) if NO_DEVICE in view.devices else NONE
    lost = (view.device == unknown) & ~view.is_malloc & (view.allocation == NA_NS)
    if not lost.any():
        return view.device
    places = view.pool * (view.ptr.max(initial=0) + 2) + view.ptr
    devices = view.device.copy()
    live: dict[int, list[int]] = {}
    for i in np.flatnonzero(np.isin(places, places[lost])):  # in ID order; only addresses with such a FREE
        stack = live.setdefault(int(places[i]), [])
        if view.is_malloc[i]:
            stack.append(int(view.device[i]))
        elif lost[i]:
            if stack:
                devices[i] = stack.pop()
        elif int(view.device[i]) in stack:
            stack.reverse()
            stack.remove(int(view.device[i]))
            stack.reverse()
    return devices


def _keys(view: _View, devices: npt.NDArray[np.int64]) -> Int64Array:
    """One number for each block life (with an allocation id) or each address of a pool and device."""
    known = view.allocation != NA_NS
    place = (view.pool * (len(view.devices) + 1) + devices + 1) * (view.ptr.max(initial=0) + 2) + view.ptr + 1
    life = pd.factorize(view.allocation)[0]
    keys = np.where(known, life, place + len(view.rows) + 1).astype(np.int64)
    # Rows without an address cannot be paired with anything.
    alone = ~known & (view.ptr == NONE)
    keys[alone] = -1 - np.flatnonzero(alone)
    return keys


@dataclass(frozen=True)
class _Ends:
    """How each block ended; ``NA_NS`` where it did not."""

    t: Int64Array
    event_id: Int64Array
    flags: npt.NDArray[np.uint16]


def _read_ends(view: _View, pairing: Pairing, devices: npt.NDArray[np.int64], events: pd.DataFrame) -> _Ends:
    """Releases as written, and what ``FREE`` with ``shadow:true`` means (spec 2.5)."""
    has = pairing.free != NONE
    t = np.where(has, view.t[pairing.free], NA_NS)
    ids = np.where(has, view.event_id[pairing.free], NA_NS)
    flags = np.zeros(len(t), dtype=np.uint16)
    shadow = has & view.shadow[pairing.free]
    if not shadow.any():
        return _Ends(t, ids, flags)
    starts = events.loc[events["type"] == "START_TRACE", ["t_ns", "event_id"]].sort_values("t_ns")
    start_t, start_id = starts["t_ns"].to_numpy(np.int64), starts["event_id"].to_numpy(np.int64)
    reused_t, reused_id = _next_use(view, pairing, devices)
    for i in np.flatnonzero(shadow):
        at = int(np.searchsorted(start_t, t[i]))
        if at < len(start_t) and start_t[at] == t[i]:  # freed while tracing was paused
            ids[i] = min(ids[i], start_id[at])
            flags[i] = BlockFlag.SYNTHETIC_FREE
        elif reused_t[i] != NA_NS:  # freed before its address was given out again
            t[i], ids[i] = min(t[i], reused_t[i]), min(ids[i], reused_id[i])
            flags[i] = BlockFlag.SYNTHETIC_FREE
        else:
            t[i] = ids[i] = NA_NS
            flags[i] = BlockFlag.CLEANED_UP
    return _Ends(t, ids, flags)


def _next_use(view: _View, pairing: Pairing, devices: npt.NDArray[np.int64]) -> tuple[Int64Array, Int64Array]:
    """Time and ID of the next MALLOC (by allocation id) at the address of each block."""
    t = np.full(len(pairing.malloc), NA_NS, dtype=np.int64)
    ids = t.copy()
    blocks = np.flatnonzero(pairing.malloc != NONE)
    row = pairing.malloc[blocks]
    order = np.lexsort((view.allocation[row], view.ptr[row], devices[row], view.pool[row]))
    blocks, row = blocks[order], row[order]
    later = np.append(row[1:], row[:1])
    same = (
        (view.pool[row] == view.pool[later])
        & (devices[row] == devices[later])
        & (view.ptr[row] == view.ptr[later])
        & (view.allocation[later] > view.allocation[row])
    )
    if len(same):
        same[-1] = False
    t[blocks[same]], ids[blocks[same]] = view.t[later[same]], view.event_id[later[same]]
    return t, ids


def _assemble(
    events: pd.DataFrame,
    view: _View,
    devices: npt.NDArray[np.int64],
    pairing: Pairing,
    ends: _Ends,
    report: ReadReport,
) -> DumpBlocks:
    has_malloc = pairing.malloc != NONE
    main = np.where(has_malloc, pairing.malloc, pairing.free)
    part = events.iloc[view.rows[main]]
    size = np.abs(to_int64(part["size_bytes"], na=0))
    alloc = np.where(has_malloc, view.t[main], NA_NS)
    flags = ends.flags.copy()
    flags[~has_malloc] |= np.uint16(BlockFlag.OLDER)
    flags[has_malloc & view.shadow[main]] |= np.uint16(BlockFlag.PROMOTED)
    backwards = has_malloc & (ends.t != NA_NS) & (ends.t < alloc)
    if backwards.any():
        report.repair("releases with a time before their allocation, taken at it", int(backwards.sum()))
    free = np.where(backwards, alloc, ends.t)
    pool = pd.Categorical.from_codes(view.pool[main], view.pools)
    owner = part["owner"].astype(object).to_numpy()
    workspace = np.array([isinstance(name, str) and name.startswith(WORKSPACE) for name in owner], dtype=bool)
    pool = _with_workspace(pool, workspace)
    no_device = np.array([name == NO_DEVICE for name in view.devices], dtype=bool)[devices[main]]
    keep = _usable(size, no_device, (alloc == NA_NS) & (free == NA_NS), has_malloc, report)
    device = pd.Categorical.from_codes(devices[main], view.devices).rename_categories(device_name)
    used, total = part["used_bytes"], part["total_bytes"]
    tensor = np.asarray(pool == "HOST_TENSOR")
    frame = pd.DataFrame(
        {
            "device": device,
            "pool": pool,
            "tid": part["tid"].array,
            "owner": part["owner"].array,
            "stack_id": np.where(has_malloc, part["stack_id"], NONE).astype(np.int32),
            "c_stack_id": np.where(has_malloc, part["c_stack_id"], NONE).astype(np.int32),
            "size_bytes": size,
            "alloc_ns": from_int64(alloc),
            "free_ns": from_int64(free),
            "allocated_bytes": from_int64(np.where(tensor, to_int64(total), to_int64(used))),
            "reserved_bytes": from_int64(np.where(tensor, NA_NS, to_int64(total))),
            "addr": part["addr"].array,
            "event_id": from_int64(np.where(has_malloc, view.event_id[main], NA_NS)),
            "free_event_id": from_int64(ends.event_id),
            "allocation_id": part["allocation_id"].array,
            "inefficient_type": part["inefficient_type"].array,
            "flags": flags,
        }
    )
    frame.loc[~has_malloc, ["allocated_bytes", "reserved_bytes"]] = pd.NA
    return _numbered(events, view, pairing, frame, keep, pool)


def _numbered(
    events: pd.DataFrame, view: _View, pairing: Pairing, frame: pd.DataFrame, keep: BoolArray, pool: pd.Categorical
) -> DumpBlocks:
    """Order the blocks by allocation and tell which one each row belongs to."""
    first = np.where(pairing.malloc != NONE, pairing.malloc, pairing.free)
    order = np.lexsort((view.event_id[first], view.t[first]))
    order = order[keep[order]]
    position = np.full(len(frame), NONE, dtype=np.int64)
    position[order] = np.arange(len(order))
    block_of = np.full(len(events), NONE, dtype=np.int64)
    codes = np.full(len(events), -1, dtype=np.int64)
    for side in (pairing.malloc, pairing.free):
        there = side != NONE
        block_of[view.rows[side[there]]] = position[there]
        codes[view.rows[side[there]]] = pool.codes[there]
    pools = pd.Categorical.from_codes(codes, pool.categories)
    blocks = frame.iloc[order].reset_index(drop=True)
    blocks["pool"] = blocks["pool"].cat.remove_unused_categories()
    blocks["device"] = blocks["device"].cat.remove_unused_categories()
    return DumpBlocks(blocks, block_of, pools)


def _with_workspace(pool: pd.Categorical, workspace: BoolArray) -> pd.Categorical:
    if not workspace.any():
        return pool
    wider = pool if WORKSPACE in pool.categories else pool.add_categories([WORKSPACE])
    codes = wider.codes.copy()
    codes[workspace & np.asarray(pool == "PTA")] = list(wider.categories).index(WORKSPACE)
    return pd.Categorical.from_codes(codes, wider.categories)


def _usable(
    size: Int64Array, no_device: BoolArray, never: BoolArray, has_malloc: BoolArray, report: ReadReport
) -> BoolArray:
    """Blocks with a size, a place and a time; the others are counted by reason."""
    keep = np.ones(len(size), dtype=bool)
    reasons = {
        "blocks without a size": size <= 0,
        "releases of memory from before the recording whose device is not written": no_device & ~has_malloc,
        "clean-up rows of memory that was allocated before the recording": never & ~has_malloc,
    }
    for reason, bad in reasons.items():
        if (bad & keep).any():
            report.skip(reason, int((bad & keep).sum()))
        keep &= ~bad
    return keep
