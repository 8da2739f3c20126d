"""What was alive when an allocation failed, and what lay on the device around it (spec/msmemscope 11, 14)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..errors import InputError, MissingFactError
from ..model import NA_NS, Int64Array, MemoryProfile, as_profile, block_ends, block_starts, to_int64
from ..units import NS_PER_S, format_bytes
from .decompose_layers import device_layers
from .decompose_owner import root_of
from .decompose_tree import Placement, path_text, place_blocks
from .facts import missing_fact
from .result import Result, records
from .series import Series, iter_series

HOW_TO_RECORD = (
    "a failed allocation is recorded while msMemScope traces (msmemscope.start()), with its details by "
    "msmemscope.config(analysis='oom')"
)
OOM_SNAPSHOT = "OOM_Snapshot"
RETRY_NS = 2 * NS_PER_S
"""Details are written at most this often; the framework's second try then gives a trigger only (spec 11.1)."""
NEAR_NS = NS_PER_S
"""A snapshot belongs to a trigger that is this close."""
MAX_FAILURES = 200
OOM_COLUMNS = (
    "source", "pid", "device", "t_ns", "event_id", "func", "requested_bytes", "verdict", "reason", "retry_of",
    "device_total_bytes", "device_free_bytes", "reserved_bytes", "allocated_bytes", "n_alive", "alive_bytes",
    "n_listed", "n_listed_alive", "stack_id",
)  # fmt: skip
SNAPSHOT_COLUMNS = (
    "source", "device", "t_ns", "name", "allocated_bytes", "max_allocated_bytes", "reserved_bytes",
    "max_reserved_bytes", "device_total_bytes", "device_free_bytes", "pta_alive_bytes", "difference_bytes", "stack_id",
)  # fmt: skip
POOL_COLUMNS = ("failure", "pool", "n_blocks", "alive_bytes", "recorded_bytes", "rest_bytes")
_FIGURES = {
    "allocated": "allocated_bytes", "max_allocated": "max_allocated_bytes", "reserved": "reserved_bytes",
    "max_reserved": "max_reserved_bytes", "total": "device_total_bytes", "free": "device_free_bytes",
}  # fmt: skip
_GROUPS: dict[str, list[str]] = {"owner": ["place"], "stack": ["stack_id", "site"], "size": ["each_bytes"]}


@dataclass(frozen=True)
class _Failure:
    """One failed allocation as it was written."""

    source: int
    device: str | None
    t_ns: int
    event_id: int
    stack_id: int
    attrs: dict[str, Any]
    snapshot: dict[str, Any]


@dataclass(frozen=True, repr=False)
class OomReport(Result):
    """Failed allocations: one row for each in ``frame``, in order of time.

    Attributes
    ----------
    frame : pandas.DataFrame
        ``verdict``: ``device full`` (less was free than asked for), ``fragmented`` (so, while the pool held as much
        that was reserved and free), ``not capacity`` (the device had as much free), ``undecided``. ``retry_of``: the
        row that this one repeats. ``n_alive``, ``alive_bytes``: blocks alive then in the pools of the framework if
        there are any, else in HAL; all of them by :meth:`alive`. ``n_listed_alive`` of the ``n_listed`` blocks that
        the tool listed are among those.
    pools : pandas.DataFrame
        For each failure (a row of ``frame``) and pool: blocks alive, what the counter said, and the signed
        ``rest_bytes`` = recorded - alive (memory from before the recording, or missing rows).
    snapshots : pandas.DataFrame
        Every snapshot, and ``difference_bytes`` between what it says is allocated and the live blocks of PTA.
    layers : pandas.DataFrame
        What lay on each device over time, see :func:`memscope_nb.device_layers`; empty if no counter was recorded.
    """

    pools: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(POOL_COLUMNS)), repr=False)
    snapshots: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(SNAPSHOT_COLUMNS)), repr=False)
    layers: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    _live: _Live | None = field(default=None, repr=False)
    _failures: tuple[_Failure, ...] = field(default=(), repr=False)

    def alive(self, index: int = 0) -> pd.DataFrame:
        """Return the blocks that were alive at a failure, largest first: all of them, not the K rows of the tool.

        ``place`` is where a decomposition puts a block, ``site`` the line that asked for it.
        """
        if self._live is None or not 0 <= index < len(self._failures):
            raise InputError(f"there is no failure number {index}; there are {len(self._failures)}")
        return self._live.at(self._failures[index])

    def grouped(self, index: int = 0, *, by: Literal["owner", "stack", "size"] = "owner") -> pd.DataFrame:
        """Return what was alive at a failure by pool and owner, call stack or size; most bytes first."""
        if by not in _GROUPS:
            raise ValueError(f"by must be 'owner', 'stack' or 'size', not {by!r}")
        return _grouped(self.alive(index), by)

    def to_dict(self, *, top: int = 20) -> dict[str, Any]:
        """Return everything as JSON-ready values; of each failure the ``top`` groups."""
        every = [self.alive(index) for index in range(len(self._failures))]
        alive = [{by: records(_grouped(one, by).head(top)) for by in _GROUPS} for one in every]
        more = {"pools": records(self.pools), "snapshots": records(self.snapshots), "alive": alive}
        return super().to_dict() | more | {"layers": records(self.layers)}


def _grouped(alive: pd.DataFrame, by: str) -> pd.DataFrame:
    table = alive.assign(each_bytes=alive["size_bytes"])
    groups = table.groupby(["pool", *_GROUPS[by]], observed=True, sort=False, dropna=False)["size_bytes"]
    summed = groups.agg(n_blocks="size", size_bytes="sum", largest_bytes="max").reset_index()
    return summed.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)


def explain_oom(p: MemoryProfile | str | os.PathLike[str]) -> OomReport:
    """Explain every failed allocation of a recording: what was asked for, what was alive, what the device held.

    Parameters
    ----------
    p : MemoryProfile or path
        A msMemScope dump.

    Returns
    -------
    OomReport
        The live set is rebuilt from MALLOC and FREE rows by their IDs (spec/msmemscope 11.1, 14), so that it is
        complete where the rows of the tool list the newest and the largest. Without a failure ``frame`` is empty, and
        a caveat says what that proves.

    Raises
    ------
    MissingFactError
        If this is no recording that could hold a failed allocation.
    """
    profile = as_profile(p)
    if not len(profile.events):
        raise missing_fact(profile, "explain_oom", f"explain_oom needs the rows of a msMemScope dump: {HOW_TO_RECORD}")
    live = _Live.of(profile)
    failures = _failures(profile)
    rows: list[dict[str, Any]] = []
    pools: list[dict[str, Any]] = []
    for number, failure in enumerate(failures):
        alive = live.at(failure)
        balance = [{"failure": number} | one for one in live.balance(failure, alive)]
        pools += balance
        rows.append(_row(live, failure, alive, _retry_of(failures, number)))
    frame = pd.DataFrame(rows, columns=list(OOM_COLUMNS))
    numbers = [c for c in OOM_COLUMNS if c.endswith("_bytes") or c in ("pid", "event_id", "retry_of")]
    frame = frame.astype(dict.fromkeys(numbers, "Int64"))
    table = pd.DataFrame(pools, columns=list(POOL_COLUMNS))
    table = table.astype({"recorded_bytes": "Int64", "rest_bytes": "Int64"})
    caveats = list(_caveats(profile, frame, table))
    try:
        around = device_layers(profile)
        layers, more = around.frame, around.caveats
    except MissingFactError as error:
        layers, more = pd.DataFrame(), (str(error),)
    caveats = list(dict.fromkeys([*caveats, *more]))
    return OomReport(frame, tuple(caveats), table, _snapshots(profile, live), layers, live, failures)


# -- what was written -------------------------------------------------------------------------------------------


def _failures(profile: MemoryProfile) -> tuple[_Failure, ...]:
    """Triggers with the snapshot that was taken at them, and snapshots of failures without details (spec 11.1)."""
    triggers, shots = _oom_marks(profile)
    triggers, taken = list(triggers.head(MAX_FAILURES).itertuples()), list(shots.head(2 * MAX_FAILURES).itertuples())
    found = []
    for trigger in triggers:
        near = [shot for shot in taken if _belongs(shot, trigger)]
        shot = min(near, key=lambda s: abs(s.start_event_id - trigger.start_event_id), default=None)
        if shot is not None:
            taken.remove(shot)
        found.append(_failure(trigger, trigger.attrs, shot.attrs if shot is not None else {}))
    found += [_failure(shot, {}, shot.attrs) for shot in taken]
    return tuple(sorted(found, key=lambda f: (f.t_ns, f.source, f.event_id))[:MAX_FAILURES])


def _oom_marks(profile: MemoryProfile) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Triggers and the snapshots taken at failures, by time."""
    marks = profile.marks.sort_values("start_ns", kind="stable")
    is_shot = (marks["kind"] == "snapshot") & (marks["name"] == OOM_SNAPSHOT)
    return marks[marks["kind"] == "oom"], marks[is_shot]


def _belongs(shot: Any, trigger: Any) -> bool:
    apart = abs(int(shot.start_ns) - int(trigger.start_ns)) <= NEAR_NS
    devices = {str(one.device) for one in (shot, trigger) if isinstance(one.device, str)}
    return bool(shot.source == trigger.source) and apart and len(devices) < 2


def _failure(mark: Any, attrs: dict[str, Any], snapshot: dict[str, Any]) -> _Failure:
    device = mark.device if isinstance(mark.device, str) else None
    stack = int(getattr(mark, "stack_id", -1))
    return _Failure(
        int(mark.source), device, int(mark.start_ns), int(mark.start_event_id), stack, attrs or {}, snapshot or {}
    )


def _retry_of(failures: tuple[_Failure, ...], number: int) -> int | None:
    """Row of the failure that this one repeats: the same request of the process on the device shortly before."""
    this = failures[number]
    for earlier in range(number - 1, -1, -1):
        other = failures[earlier]
        if this.t_ns - other.t_ns > RETRY_NS:
            return None
        if (other.source, other.device) == (this.source, this.device) and _asked(other) == _asked(this) is not None:
            return earlier
    return None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


def _asked(failure: _Failure) -> int | None:
    return _whole(failure.attrs.get("req_size"))


def _figures(attrs: dict[str, Any]) -> dict[str, Any]:
    return {column: _whole(attrs.get(key)) for key, column in _FIGURES.items()}


# -- what was alive ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Live:
    """Finds live blocks of a process at an event."""

    profile: MemoryProfile
    placement: Placement
    starts: Int64Array
    ends: Int64Array
    series: tuple[Series, ...]

    @classmethod
    def of(cls, profile: MemoryProfile) -> _Live:
        placement, series = place_blocks(profile, ()), tuple(iter_series(profile))
        return cls(profile, placement, block_starts(profile), block_ends(profile), series)

    def at(self, failure: _Failure) -> pd.DataFrame:
        """Blocks alive at a failure on its device (on all if it names none), largest first."""
        blocks = self.profile.blocks
        mine = (blocks["source"] == failure.source).to_numpy()
        if failure.device is not None:
            mine = mine & (blocks["device"] == failure.device).to_numpy()
        rows = np.flatnonzero(mine)
        rows = rows[self._is_alive(rows, failure)]
        found = blocks.iloc[rows]
        parts = [self.placement.parts[i].path for i in self.placement.part_of_block[rows]]
        places = [path_text(root_of(str(pool)), path) for pool, path in zip(found["pool"], parts, strict=True)]
        found = found.assign(place=pd.Categorical(places))
        sites = np.append(self.profile.stacks["site"].to_numpy(dtype=object), "")
        found = found.assign(site=sites[found["stack_id"].to_numpy()])
        return found.sort_values("size_bytes", ascending=False, kind="stable", ignore_index=True)

    def places_anywhere(self, failure: _Failure) -> set[tuple[Any, Any]]:
        """Address and size of the blocks alive in the process: the tool lists HAL blocks of any device (spec 11.1)."""
        rows = np.flatnonzero((self.profile.blocks["source"] == failure.source).to_numpy())
        found = self.profile.blocks.iloc[rows[self._is_alive(rows, failure)]]
        return set(zip(found["addr"].astype(object), found["size_bytes"].astype(object), strict=True))

    def _is_alive(self, rows: Int64Array, failure: _Failure) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """By ID, the order of creation, where the rows have one: it tells apart what one instant does not."""
        blocks = self.profile.blocks.iloc[rows]
        began, ended = to_int64(blocks["event_id"]), to_int64(blocks["free_event_id"])
        has_end = blocks["free_ns"].notna().to_numpy()
        begun = np.where(began == NA_NS, self.starts[rows] <= failure.t_ns, began < failure.event_id)
        over = np.where(ended == NA_NS, self.ends[rows] <= failure.t_ns, ended < failure.event_id) & has_end
        alive: np.ndarray[Any, np.dtype[np.bool_]] = begun & ~over
        return alive

    def balance(self, failure: _Failure, alive: pd.DataFrame) -> Iterable[dict[str, Any]]:
        """Blocks and counter of each pool of the failing device."""
        sums = alive.groupby(["device", "pool"], observed=True)["size_bytes"].agg(["size", "sum"])
        for one in self.series:
            if one.source != failure.source or failure.device not in (None, one.device):
                continue
            key = (one.device, one.pool)
            n_blocks, n_bytes = (int(v) for v in sums.loc[key]) if key in sums.index else (0, 0)
            level = _counter(one, failure.t_ns)
            rest = None if level is None else level - n_bytes
            columns = {"pool": one.pool, "n_blocks": n_blocks, "alive_bytes": n_bytes, "recorded_bytes": level}
            yield columns | {"rest_bytes": rest}


def _counter(one: Series, t_ns: int) -> int | None:
    """Last recorded *allocated* at or before an instant; running sums of rows are no counter."""
    values = one.recorded.get("allocated")
    if values is None or one.origin != "recorded":
        return None
    at = np.flatnonzero((one.t <= t_ns) & (values != NA_NS))
    return int(values[at[-1]]) if len(at) else None


def _row(live: _Live, failure: _Failure, alive: pd.DataFrame, retry_of: int | None) -> dict[str, Any]:
    figures = _figures(failure.snapshot)
    inner = alive[alive["pool"] != "HAL"]
    shown = inner if len(inner) else alive
    listed = {(one.get("ptr"), one.get("size")) for kind in ("recent", "top") for one in failure.attrs.get(kind, ())}
    there = live.places_anywhere(failure) if listed else set()
    verdict, reason = _verdict(_asked(failure), figures)
    pid = live.profile.sources.set_index("source")["pid"].at[failure.source]
    columns = {
        "source": failure.source,
        "pid": pid,
        "device": failure.device,
        "t_ns": failure.t_ns,
        "event_id": failure.event_id,
        "func": str(failure.attrs.get("func", "")),
        "requested_bytes": _asked(failure),
        "verdict": verdict,
        "reason": reason,
        "retry_of": retry_of,
        "n_alive": len(shown),
        "alive_bytes": int(shown["size_bytes"].sum()),
        "n_listed": len(listed),
        "n_listed_alive": len(listed & there),
        "stack_id": failure.stack_id,
    }
    return figures | columns


def _verdict(asked: int | None, figures: dict[str, Any]) -> tuple[str, str]:
    free, reserved, allocated = (figures[k] for k in ("device_free_bytes", "reserved_bytes", "allocated_bytes"))
    if asked is None:
        return "undecided", "the size asked for was not recorded: msmemscope.config(analysis='oom')"
    if free is None:
        return "undecided", "no snapshot tells how much was free: is torch_npu imported in the process?"
    told = f"asked for {format_bytes(asked)}, {format_bytes(free)} free on the device"
    if free >= asked:
        return "not capacity", f"{told}: look for a limit of the driver or for fragmentation"
    cached = None if reserved is None or allocated is None else reserved - allocated
    if cached is not None and cached >= asked:
        return "fragmented", f"{told}, and {format_bytes(cached)} reserved by the pool but not allocated"
    return "device full", told


def _snapshots(profile: MemoryProfile, live: _Live) -> pd.DataFrame:
    marks = profile.marks
    rows = []
    pta = {(one.source, one.device): one for one in live.series if one.pool == "PTA"}
    for mark in marks[marks["kind"] == "snapshot"].itertuples():
        device = mark.device if isinstance(mark.device, str) else None
        row = {"source": int(mark.source), "device": device, "t_ns": int(mark.start_ns), "name": mark.name}
        row |= _figures(mark.attrs or {}) | {"stack_id": int(getattr(mark, "stack_id", -1))}
        one = pta.get((row["source"], device or ""))
        if one is not None:
            t = np.array([min(row["t_ns"], one.window[1])])  # after the last record nothing changes
            row["pta_alive_bytes"] = int(one.lives["allocated"].bytes_at(t)[0])
            if row["allocated_bytes"] is not None:
                row["difference_bytes"] = row["allocated_bytes"] - row["pta_alive_bytes"]
        rows.append(row)
    frame = pd.DataFrame(rows, columns=list(SNAPSHOT_COLUMNS))
    return frame.astype({name: "Int64" for name in SNAPSHOT_COLUMNS if name.endswith("_bytes")})


def _caveats(
    profile: MemoryProfile,
    frame: pd.DataFrame,
    pools: pd.DataFrame,
) -> Iterable[str]:
    if not len(frame):
        yield f"undecided: no failed allocation was recorded; {HOW_TO_RECORD}"
        return
    n_written = max(len(marks) for marks in _oom_marks(profile))
    if n_written > len(frame):
        yield f"{n_written} failures were written, of which the first {len(frame)} are explained"
    if not profile.complete:
        yield "some blocks were not selected: they are not among those alive"
    if frame["device"].isna().any():
        yield "a failure without a device: blocks of all devices of the process are counted"
    if (pools["rest_bytes"].fillna(0) != 0).any():
        yield "counters and live blocks differ (see pools): memory from before the recording, or rows that are missing"
    if (frame["n_listed_alive"] < frame["n_listed"]).any():
        yield "the tool listed blocks that are not alive by the rows: was the process killed before it wrote them?"
    if (profile.blocks["pool"] == "HAL").any() and (profile.blocks["pool"] != "HAL").any():
        yield "pools lie inside HAL: their blocks are never added to those of HAL"
