"""What a pool consists of at its highest instant, by site, so that the parts add up to the recorded total.

The parts are measured apart: live blocks from the rows, *older* memory as the lowest recorded total minus live rows up
to the peak (it can only fall, spec/ascend_profiler 3.3a). What then differs from the record is named and never hidden
in a remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import Int64Array, MemoryProfile, block_ends, block_starts, is_open
from .ledgers import live_peak
from .series import Series
from .timeline import Timeline

NO_NAME = ("", "N/A", "None", "nan")

OLDER = "older than the window"
NOT_SELECTED = "blocks outside the selection, and older"


@dataclass(frozen=True)
class SiteBytes:
    """The blocks of one site: a stack frame, or where there is no stack the operator or owner."""

    site: str
    kind: str
    """``site``, ``operator`` or ``owner``: what ``site`` holds."""
    n_blocks: int
    size_bytes: int


@dataclass(frozen=True)
class SiteShares:
    """Blocks by site: the largest sites, and all others together."""

    n_blocks: int
    size_bytes: int
    sites: tuple[SiteBytes, ...]
    """Largest first."""
    n_other_sites: int = 0
    n_other_blocks: int = 0
    other_bytes: int = 0


PEAK_BASIS = {
    "recorded": "recorded peak",
    "rows": "peak by the totals of the rows",
    "none": "peak of the sum of the rows",
}
"""What a peak is, by the origin of its totals."""


@dataclass(frozen=True)
class PeakParts:
    """The highest *allocated* of one pool of a timeline: ``peak = live + older + differences``, to the byte."""

    source: int
    device: str
    pool: str
    t_ns: int
    peak_bytes: int
    origin: str
    """``recorded``; ``rows``: totals made of the rows; ``none``: no totals, the sum of the rows."""
    live: SiteShares
    forward_bytes: int
    """Of the live blocks, those whose site is that of the forward operator."""
    older_bytes: int | None
    """None: unknown without recorded totals."""
    older_label: str = OLDER
    differences: tuple[tuple[str, int], ...] = field(default=())
    """What neither live blocks nor older memory explain: reason and signed bytes."""


def peak_parts(profile: MemoryProfile, line: Timeline, pool: str, *, top: int = 10) -> PeakParts | None:
    """Split the highest *allocated* of a pool of a timeline by site; ``None`` if the pool has no level at all.

    Parameters
    ----------
    profile : MemoryProfile
        The profile.
    line : Timeline
        One of its timelines.
    pool : str
        Which pool; series are never added, so that the peak is that of one recording.
    top : int
        Sites to name.
    """
    series = [one for one in line.series if one.pool == pool]
    found = [(*at, one) for one in series if (at := one.peak("allocated"))]
    found = found or [(*at, one) for one in series if (at := live_peak(one))]
    if not found:
        return None
    t, peak, one = max(found, key=lambda entry: (entry[1], -entry[0]))
    rows = one.rows[_alive(profile, one, t)]
    live = site_shares(profile, rows, top=top)
    older, label, named = _older_and_differences(one, t, peak)
    missing = peak - live.size_bytes - (older or 0) - sum(size for _, size in named)
    if missing:
        named = (*named, ("not accounted for: an error in memscope-nb", missing))
    kinds = profile.blocks["stack_kind"].iloc[rows]
    forward = int(profile.blocks["size_bytes"].iloc[rows[(kinds == "forward").to_numpy()]].sum())
    origin = one.origin if one.recorded else "none"
    return PeakParts(one.source, one.device, pool, t, peak, origin, live, forward, older, label, named)


def _alive(profile: MemoryProfile, one: Series, t: int) -> npt.NDArray[np.bool_]:
    """Which rows of a series are alive at an instant, as :class:`Lives` counts them."""
    starts, ends = block_starts(profile)[one.rows], block_ends(profile)[one.rows]
    alive: npt.NDArray[np.bool_] = (starts <= t) & (ends + one.release_shift_ns > t)
    return alive


def _older_and_differences(one: Series, t: int, peak: int) -> tuple[int | None, str, tuple[tuple[str, int], ...]]:
    live = int(one.lives["allocated"].bytes_at(np.array([t]))[0])
    times, rest, tolerance = one.rest("allocated")
    if not len(times):
        reasons = {"no totals were recorded": peak - live}
        return None, OLDER, tuple((why, size) for why, size in reasons.items() if size)
    at = max(int(np.searchsorted(times, t, side="right")) - 1, 0)
    settled = live + int(rest[at])
    if not one.complete:
        older, label, reasons = int(rest[at]), NOT_SELECTED, {}
    else:
        lowest = int(rest[: at + 1].min())
        older, label = max(lowest, 0), OLDER
        rise = int(rest[at]) - lowest
        rounding = rise <= int(tolerance[at]) + int(tolerance[: at + 1].max())
        reasons = {
            "rounding of the recorded totals" if rounding else "rises that no row explains": rise,
            "rows that exceed the recorded total": min(lowest, 0),
        }
    reasons["between samples of the same instant"] = peak - settled
    return older, label, tuple((why, size) for why, size in reasons.items() if size)


def open_shares(profile: MemoryProfile, line: Timeline, pool: str, *, top: int = 5) -> SiteShares:
    """Blocks of a pool that were open at the end of their recording, by site.

    A PyTorch snapshot tells of all blocks that were alive, so of several of one process only the last one counts.
    """
    series = [one for one in line.series if one.pool == pool]
    sources = profile.sources.set_index("source")
    process = {
        number: str(sources.at[number, "role"] if pd.isna(sources.at[number, "pid"]) else sources.at[number, "pid"])
        for number in line.sources
        if "kind" in sources and sources.at[number, "kind"] == "pytorch_snapshot"
    }
    last = {process[one.source]: one.source for one in series if one.source in process}
    parts = [one.rows for one in series if one.source not in process or last[process[one.source]] == one.source]
    rows = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    return site_shares(profile, rows[is_open(profile.blocks.iloc[rows])], top=top)


def site_shares(profile: MemoryProfile, rows: Int64Array, *, top: int) -> SiteShares:
    """Group blocks, given by their positions, by site; ties keep the order of the first block."""
    blocks = profile.blocks.iloc[rows]
    if not len(blocks):
        return SiteShares(0, 0, ())
    keys, labels = _site_keys(profile, blocks)
    grouped = blocks["size_bytes"].groupby(keys, sort=False).agg(["size", "sum"])
    grouped = grouped.sort_values("sum", ascending=False, kind="stable")
    n_blocks, sizes = grouped["size"].to_numpy(np.int64), grouped["sum"].to_numpy(np.int64)
    first = zip(grouped.index[:top], n_blocks[:top], sizes[:top], strict=True)
    sites = [SiteBytes(*labels[int(key)], int(n), int(size)) for key, n, size in first]
    return SiteShares(
        len(blocks), int(sizes.sum()), tuple(sites), max(len(grouped) - top, 0), int(n_blocks[top:].sum()),
        int(sizes[top:].sum()),
    )  # fmt: skip


def _site_keys(profile: MemoryProfile, blocks: pd.DataFrame) -> tuple[Int64Array, dict[int, tuple[str, str]]]:
    """Return a number for each block, and what each number stands for: equal sites of several stacks are one."""
    number: dict[tuple[str, str], int] = {}
    of_stack = _numbers([(str(site), "site") for site in profile.stacks["site"]], number)
    names = [str(name) for name in blocks["name"].cat.categories]
    of_name = _numbers([("" if name in NO_NAME else name, "operator") for name in names], number)
    stack = blocks["stack_id"].to_numpy(np.int64)
    key = of_stack[stack]  # -1 takes the last entry, which is "none"
    key = np.where(key < 0, of_name[blocks["name"].cat.codes.to_numpy().astype(np.int64)], key)
    if "owner" in blocks:
        owners = [(str(owner), "owner") for owner in blocks["owner"].cat.categories]
        of_owner = _numbers(owners, number)[blocks["owner"].cat.codes.to_numpy().astype(np.int64)]
        key = np.where(key < 0, of_owner, key)
    labels = {value: label for label, value in number.items()} | {-1: ("no stack and no name", "operator")}
    return key, labels


def _numbers(labels: Sequence[tuple[str, str]], number: dict[tuple[str, str], int]) -> Int64Array:
    """Number labels, the same ones alike; -1 for an empty one, and at the end for "none"."""
    codes = [number.setdefault(label, len(number)) if label[0] else -1 for label in labels]
    return np.array([*codes, -1], dtype=np.int64)
