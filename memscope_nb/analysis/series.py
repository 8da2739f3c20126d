"""Curves and balances of one series: (source, device, pool).

The recorded totals are the truth of a curve, the rows are its composition. Their difference is memory from before the
window, *older*: by spec/ascend_profiler 3.3a it can only fall, so every rise is counted as unexplained. Series are
never added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, block_ends, block_starts, distinct, from_int64, to_int64
from .once import once_a_profile
from .thin import thin_rows

LEDGERS = ("allocated", "active", "reserved")

MAY_COUNT_RELEASED = ("GE",)
"""Pools whose sample at a release may still count the released block. So it is in every public sample of the graph
engine (with it, its totals obey 3.3a too; without it, 31 of 64 changes would be unexplained rises), though not for the
caching allocator. For such a pool the convention with fewer rises is taken, this one if both fit."""


@dataclass(frozen=True)
class Lives:
    """Live bytes and blocks at any instant, from half-open lives; ends come before starts at one instant."""

    _starts: Int64Array
    _ends: Int64Array
    _started: Int64Array
    _ended: Int64Array

    @classmethod
    def of(cls, starts: Int64Array, ends: Int64Array, sizes: Int64Array) -> Lives:
        """Sort the events of blocks ``[start, end)`` of ``sizes`` bytes."""
        by_start, by_end = np.argsort(starts, kind="stable"), np.argsort(ends, kind="stable")
        zero = np.zeros(1, dtype=np.int64)
        return cls(
            starts[by_start],
            ends[by_end],
            np.concatenate([zero, np.cumsum(sizes[by_start])]),
            np.concatenate([zero, np.cumsum(sizes[by_end])]),
        )

    def bytes_at(self, t: Int64Array) -> Int64Array:
        """Bytes of the blocks with start <= t < end."""
        started = self._started[np.searchsorted(self._starts, t, side="right")]
        live: Int64Array = started - self._ended[np.searchsorted(self._ends, t, side="right")]
        return live

    def count_at(self, t: Int64Array) -> Int64Array:
        """Return the number of blocks with start <= t < end."""
        count: Int64Array = np.searchsorted(self._starts, t, "right") - np.searchsorted(self._ends, t, "right")
        return count

    @property
    def instants(self) -> Int64Array:
        """Every instant at which something starts or ends."""
        return distinct(np.concatenate([self._starts, self._ends]))


@dataclass(frozen=True)
class Series:
    """One series, ready to be asked; times in ns, sizes in bytes, arrays in time order."""

    source: int
    device: str
    pool: str
    window: tuple[int, int]
    rows: Int64Array
    """Positions of its blocks in ``profile.blocks``."""
    t: Int64Array
    """Times of the recorded samples (stable order; several may share an instant)."""
    recorded: dict[str, Int64Array]
    """Ledger to recorded bytes, ``NA_NS`` where a sample lacks it; a ledger without any sample is absent."""
    tolerance: Int64Array
    lives: dict[str, Lives]
    """``allocated`` and ``active``: they end differently."""
    origin: str
    complete: bool = True
    """Whether all its blocks are there; without some of them, recorded - live is not *older* memory."""
    known_older_bytes: int = 0
    """Bytes of its blocks from before the window: part of the level before the first event."""
    release_shift_ns: int = 0
    """1 where a sample at a release still counts the released block: it then ends right after that instant."""
    _rests: dict[str, tuple[Int64Array, Int64Array, Int64Array]] = field(default_factory=dict, init=False, repr=False)

    @property
    def settled(self) -> npt.NDArray[np.bool_]:
        """The last sample of each instant: only there do totals and lives describe the same state."""
        return np.append(self.t[1:] != self.t[:-1], True) if len(self.t) else np.empty(0, dtype=bool)

    def older(self, ledger: str = "allocated") -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return times, older bytes and tolerance in bytes at each settled sample; nothing if blocks are missing."""
        return self.rest(ledger) if self.complete else (np.empty(0, dtype=np.int64),) * 3

    def rest(self, ledger: str = "allocated") -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return times, recorded - live bytes, and tolerance in bytes, at each settled sample that has the ledger."""
        if ledger not in self.recorded:
            return (np.empty(0, dtype=np.int64),) * 3
        if ledger not in self._rests:
            keep = self.settled & (self.recorded[ledger] != NA_NS)
            t = self.t[keep]
            rest = self.recorded[ledger][keep] - self.lives[ledger].bytes_at(t)
            self._rests[ledger] = (t, rest, self.tolerance[keep])
        return self._rests[ledger]

    def peak(self, ledger: str) -> tuple[int, int] | None:
        """First instant and bytes of the highest sample of a ledger."""
        values = self.recorded.get(ledger)
        if values is None:
            return None
        at = int(np.argmax(values))
        return int(self.t[at]), int(values[at])

    def edge_levels(self) -> tuple[int, int] | None:
        """Return allocated bytes before the first event and after the last one, if totals were recorded."""
        _, older, _ = self.rest()
        if not len(older):
            return None
        after = np.array([self.window[1] + self.release_shift_ns])
        return int(older[0]) + self.known_older_bytes, int(older[-1] + self.lives["allocated"].bytes_at(after)[0])


@dataclass(frozen=True)
class Balance:
    """Older memory of a ledger over a series: what it was, how it fell, and what nothing explains."""

    start_bytes: int
    end_bytes: int
    n_falls: int
    n_rises: int
    rise_bytes: int
    first_rise_ns: int | None
    n_tolerated: int
    """Differences within the rounding of the text, neither fall nor rise."""


def iter_series(profile: MemoryProfile) -> Iterator[Series]:
    """Yield every series that has blocks or pool totals, by source, then device, then size of the pool."""
    return iter(_series_of(profile))


@once_a_profile
def _series_of(profile: MemoryProfile) -> tuple[Series, ...]:
    return tuple(_make_series(profile))


def _make_series(profile: MemoryProfile) -> Iterator[Series]:
    starts = block_starts(profile)
    ends = {"allocated": block_ends(profile), "active": block_ends(profile, ledger="active")}
    blocks, totals = profile.blocks, profile.totals[profile.totals["scope"] == "pool"]
    in_blocks = blocks.groupby(["source", "device", "pool"], observed=True, sort=False).indices
    in_totals = totals.groupby(["source", "device", "component"], observed=True, sort=False).indices
    windows = profile.sources.set_index("source")[["start_ns", "end_ns"]]
    sizes = blocks["size_bytes"].to_numpy()
    from_before = blocks["alloc_ns"].isna().to_numpy() & (ends["allocated"] > starts)
    none = np.empty(0, dtype=np.int64)
    for key in sorted({*in_blocks, *in_totals}, key=lambda k: (k[0], k[1], k[2] != "PTA", k[2])):
        rows, samples = in_blocks.get(key, none), totals.iloc[in_totals.get(key, none)]
        lives = {k: Lives.of(starts[rows], end[rows], sizes[rows]) for k, end in ends.items()}
        window = windows.loc[key[0]]
        one = _series(key, (int(window["start_ns"]), int(window["end_ns"])), samples, lives, rows)
        known_older = int(sizes[rows][from_before[rows]].sum())
        one = replace(one, complete=profile.complete, known_older_bytes=known_older)
        if key[2] in MAY_COUNT_RELEASED:
            shifted = {k: Lives.of(starts[rows], end[rows] + 1, sizes[rows]) for k, end in ends.items()}
            other = replace(one, lives=shifted, release_shift_ns=1)
            one = other if _n_rises(other) <= _n_rises(one) else one
        yield one


def _series(
    key: tuple[int, str, str],
    window: tuple[int, int],
    samples: pd.DataFrame,
    lives: dict[str, Lives],
    rows: Int64Array,
) -> Series:
    samples = samples.sort_values("t_ns", kind="stable")
    recorded = {k: to_int64(samples[f"{k}_bytes"]) for k in LEDGERS if f"{k}_bytes" in samples}
    rounding = samples["tolerance_bytes"].astype("Int64") if "tolerance_bytes" in samples else None
    return Series(
        source=int(key[0]),
        device=str(key[1]),
        pool=str(key[2]),
        window=window,
        rows=rows,
        t=samples["t_ns"].to_numpy(np.int64),
        recorded={k: v for k, v in recorded.items() if (v != NA_NS).any()},
        tolerance=np.zeros(len(samples), dtype=np.int64) if rounding is None else to_int64(rounding, na=0),
        lives=lives,
        origin=str(samples["origin"].iloc[0]) if len(samples) else "none",
    )


def _n_rises(series: Series) -> int:
    check = balance(series)
    return check.n_rises if check else 0


def balance(series: Series, ledger: str = "allocated") -> Balance | None:
    """Check the rule of spec 3.3a on a series; ``None`` when nothing was recorded to check against."""
    t, older, tolerance = series.older(ledger)
    if not len(t):
        return None
    change = np.diff(older)
    allowed = tolerance[1:] + tolerance[:-1]
    rises = np.flatnonzero(change > allowed)
    return Balance(
        start_bytes=int(older[0]),
        end_bytes=int(older[-1]),
        n_falls=int((change < -allowed).sum()),
        n_rises=len(rises),
        rise_bytes=int(change[rises].sum()),
        first_rise_ns=int(t[1:][rises[0]]) if len(rises) else None,
        n_tolerated=int(((change != 0) & (np.abs(change) <= allowed)).sum()),
    )


def curve(
    profile: MemoryProfile,
    *,
    source: int | None = None,
    device: str | None = None,
    pool: str | None = None,
    points: int | None = None,
) -> pd.DataFrame:
    """Return the levels of each series at every instant at which something changed.

    Parameters
    ----------
    profile : MemoryProfile
        The profile.
    source, device, pool : optional
        Only the series with this key.
    points : int, optional
        Thin each series to about this many columns; the first, lowest, highest and last value of every column and
        ledger stay, so that peaks are exact.

    Returns
    -------
    pandas.DataFrame
        ``source device pool t_ns allocated_bytes reserved_bytes active_bytes older_bytes n_live``, one series after
        the other. Where a sample was recorded the levels are the recorded ones; between samples they are the last
        older level plus the live blocks. A ledger that was not recorded is unknown.
    """
    parts = [
        series_curve(one)
        for one in iter_series(profile)
        if source in (None, one.source) and device in (None, one.device) and pool in (None, one.pool)
    ]
    if points is not None:
        levels = ["allocated_bytes", "reserved_bytes", "active_bytes"]
        parts = [p.iloc[thin_rows(p["t_ns"].to_numpy(), [to_int64(p[k]) for k in levels], points)] for p in parts]
    columns = [
        "source",
        "device",
        "pool",
        "t_ns",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "older_bytes",
        "n_live",
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def series_curve(series: Series) -> pd.DataFrame:
    """Levels of one series; see :func:`curve`."""
    events = distinct(np.concatenate([series.lives[k].instants for k in ("allocated", "active")]))
    events = events[(events >= series.window[0]) & (events <= series.window[1])]
    at = np.minimum(np.searchsorted(series.t, events), max(len(series.t) - 1, 0))
    between = events[series.t[at] != events] if len(series.t) else events
    t = np.concatenate([series.t, between])
    order = np.argsort(t, kind="stable")
    t = t[order]
    frame = {
        "source": np.full(len(t), series.source, dtype=np.int32),
        "device": series.device,
        "pool": series.pool,
        "t_ns": t,
    }
    sampled = order < len(series.t)
    levels = {}
    for ledger in LEDGERS:
        known = np.full(len(t), NA_NS, dtype=np.int64)
        known[sampled] = series.recorded.get(ledger, np.full(len(series.t), NA_NS, dtype=np.int64))
        levels[ledger] = _between_samples(series, ledger, t, known)
    older = _held(*series.older()[:2], t)
    if not len(series.t):  # nothing recorded: what is known is the sum of the rows
        levels["allocated"], levels["active"] = (series.lives[k].bytes_at(t) for k in ("allocated", "active"))
    return pd.DataFrame(
        {
            **frame,
            "allocated_bytes": from_int64(levels["allocated"]),
            "reserved_bytes": from_int64(levels["reserved"]),
            "active_bytes": from_int64(levels["active"]),
            "older_bytes": from_int64(older),
            "n_live": series.lives["allocated"].count_at(t),
        }
    )


def _between_samples(series: Series, ledger: str, t: Int64Array, known: Int64Array) -> Int64Array:
    """Fill the instants without a sample: the last older level plus live blocks; reserved holds its last value."""
    if ledger not in series.recorded:
        return known
    if ledger == "reserved" or not series.complete:
        has = series.recorded[ledger] != NA_NS
        held = _held(series.t[has], series.recorded[ledger][has], t)
    else:
        held = _held(*series.older(ledger)[:2], t) + series.lives[ledger].bytes_at(t)
    return np.where(known == NA_NS, held, known)


def _held(sample_t: Int64Array, values: Int64Array, t: Int64Array) -> Int64Array:
    """Value of the last sample at or before ``t``; before the first sample, the first one."""
    if not len(sample_t):
        return np.full(len(t), NA_NS, dtype=np.int64)
    held: Int64Array = values[np.maximum(np.searchsorted(sample_t, t, side="right") - 1, 0)]
    return held


def live_at(profile: MemoryProfile, t_ns: int) -> pd.DataFrame:
    """Return the rows of ``blocks`` that are alive at an instant (in terms of *allocated*), largest first."""
    alive = (block_starts(profile) <= t_ns) & (block_ends(profile) > t_ns)
    return profile.blocks[alive].sort_values("size_bytes", ascending=False, kind="stable")
