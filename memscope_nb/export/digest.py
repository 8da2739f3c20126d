"""What the index and the triage keep of a profile once its pages are written: a few kilobytes a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ..analysis.at_peak import PeakParts, SiteShares, open_shares, peak_parts
from ..analysis.growth import line_growth
from ..analysis.ledgers import line_ledgers, line_pools
from ..analysis.quality import Hint, Quality
from ..analysis.series import balance
from ..analysis.timeline import Timeline, tracks
from ..model import BlockFlag, MemoryProfile
from ..view.notes import check_notes, line_quality
from .sparkline import Spark, spark_of
from .text import clip, clip_front

MAX_NAME = 80
MAX_SITE = 200
MAX_NOTE = 400
MAX_NOTES = 12
MAX_RECORDINGS = 24
MAX_POOLS = 6
TOP_SITES = 10
TOP_SITES_OF_OTHERS = 3
TOP_OPEN = 3
EVENT_NS = 1000
"""Width of an entry on the axis of a recording without times."""


@dataclass(frozen=True)
class PageLink:
    """One page of a timeline: its link, relative to the index, and the offsets it shows."""

    href: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class LedgerPeak:
    """The peak of one ledger; see :func:`memscope_nb.analysis.ledgers.line_ledgers`."""

    scope: str
    pool: str
    ledger: str
    peak_bytes: int
    peak_ns: int
    where: str
    n_samples: int
    origin: str


@dataclass(frozen=True)
class Recording:
    """One pool in one recording: its levels and what the self-check of its totals gave."""

    role: str
    collection: int
    pool: str
    start_ns: int
    end_ns: int
    baseline_bytes: int | None
    peak_bytes: int | None
    end_bytes: int | None
    left_bytes: int | None
    between_bytes: int | None
    n_unexplained: int | None


@dataclass(frozen=True)
class RoleGrowth:
    """What the recordings of a role left behind in a pool; None where a level is unknown."""

    role: str
    pool: str
    n_recordings: int
    left_bytes: int | None
    least_bytes: int | None
    most_bytes: int | None


@dataclass(frozen=True)
class PoolChange:
    """Level of a pool before the first recording and after the last one: ``last = first + left + between``."""

    pool: str
    first_bytes: int
    last_bytes: int
    left_bytes: int
    between_bytes: int
    """What changed while nothing was recorded."""

    @property
    def difference_bytes(self) -> int:
        """What the parts do not explain: 0 unless recordings overlap or lack levels."""
        return self.last_bytes - self.first_bytes - self.left_bytes - self.between_bytes


@dataclass(frozen=True)
class PoolDigest:
    """What a pool held at its peak, and what was open at the end."""

    pool: str
    peak: PeakParts | None
    """None for a pool below 1 % of the largest."""
    peak_where: str
    open: SiteShares


@dataclass(frozen=True)
class Checks:
    """What the self-checks of a timeline counted; see :func:`memscope_nb.check_quality`."""

    n_unexplained: int
    unexplained_bytes: int
    n_total_checked: int
    n_total_mismatch: int
    n_skipped: int
    n_repaired: int
    stack_bytes: int
    """Of the allocated bytes, those of blocks with a stack (their own or of the forward operator)."""
    block_bytes: int


@dataclass(frozen=True)
class Missing:
    """A fact that sources lack, and the setting of the recorder that gives it."""

    fact: str
    n_sources: int
    how: str


@dataclass(frozen=True)
class TimelineDigest:
    """One timeline, small: any number of them fits in memory."""

    run: str
    label: str
    rank_id: int | None
    host: str
    start_ns: int
    end_ns: int
    has_clock: bool
    """False: the axis counts entries, its times mean nothing."""
    n_blocks: int
    ledgers: tuple[LedgerPeak, ...]
    pools: tuple[PoolDigest, ...]
    n_more_pools: int
    spark: Spark
    recordings: tuple[Recording, ...]
    n_recordings: int
    growth: tuple[RoleGrowth, ...]
    """Of pools of at least 1 % of the largest, like the recordings."""
    changes: tuple[PoolChange, ...]
    verdicts: tuple[str, ...]
    checks: Checks
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    pages: tuple[PageLink, ...] = ()

    def peak(self, ledger: str) -> LedgerPeak | None:
        """The first peak of a ledger: that of the largest pool, or of the process."""
        return next((one for one in self.ledgers if one.ledger == ledger), None)


@dataclass(frozen=True)
class SourceDigest:
    """One source, broken ones included."""

    run: str
    role: str
    collection: int
    rank: str
    host: str
    path: str
    kind: str
    status: str
    n_blocks: int
    n_bytes: int | None
    """Size of the files it was read from; several processes of one dump share them."""
    warnings: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, profile: MemoryProfile) -> list[SourceDigest]:
        """Return a line for each source of a profile."""
        return [_source(row) for row in profile.sources.itertuples()]


def _source(row: Any) -> SourceDigest:
    facts = row.facts if isinstance(row.facts, dict) else {}
    known = sorted((str(key), clip(value, MAX_NAME)) for key, value in facts.items() if str(key).endswith("version"))
    get = row._asdict()
    return SourceDigest(
        run=clip(get["run"], MAX_NAME),
        role=clip(get["role"], MAX_NAME),
        collection=int(get["collection"]),
        rank="" if pd.isna(get["rank_id"]) else str(get["rank_id"]),
        host=clip(get["host"], MAX_NAME) if isinstance(get["host"], str) else "",
        path=clip_front(get["path"], MAX_NOTE),
        kind=str(get.get("kind", "")),
        status=str(get["status"]),
        n_blocks=int(get["n_blocks"]),
        n_bytes=facts.get("input_bytes"),
        warnings=_bounded(get["warnings"]),
        versions=tuple(known),
    )


def _bounded(notes: Sequence[str]) -> tuple[str, ...]:
    kept = tuple(clip(note, MAX_NOTE) for note in notes[:MAX_NOTES])
    more = len(notes) - MAX_NOTES
    return (*kept, f"… and {more} more remarks") if more > 0 else kept


def digest_timeline(
    profile: MemoryProfile, line: Timeline, pages: Sequence[PageLink] = (), *, quality: Quality | None = None
) -> TimelineDigest:
    """Sum up a timeline; ``quality`` spares asking for it again."""
    sources = profile.sources.set_index("source")
    where = {
        number: f"{clip(sources.at[number, 'role'], MAX_NAME)} #{sources.at[number, 'collection']}"
        for number in line.sources
    }
    ledgers = tuple(
        LedgerPeak(
            row.scope, clip(row.pool, MAX_NAME), row.ledger, int(row.peak_bytes), int(row.peak_ns),
            where[int(row.source)], int(row.n_samples), row.origin,
        )
        for row in line_ledgers(profile, line).itertuples()
    )  # fmt: skip
    pools = line_pools(line)
    growth = line_growth(profile, line)
    followed = _followed(pools, ledgers)
    growth = growth[growth["pool"].isin(followed)]
    quality = quality or line_quality(profile, line)
    recordings = _recordings(line, growth)
    return TimelineDigest(
        run=clip(line.run, MAX_NAME),
        label=clip(line.label, MAX_NAME),
        rank_id=line.rank_id,
        host=clip(line.host or "", MAX_NAME),
        start_ns=line.span[0],
        end_ns=line.span[1],
        has_clock=not any(_counts_entries(sources.at[number, "facts"]) for number in line.sources),
        n_blocks=_n_blocks(profile, line),
        ledgers=ledgers,
        pools=tuple(_pool(profile, line, pool, where, followed) for pool in pools[:MAX_POOLS]),
        n_more_pools=max(len(pools) - MAX_POOLS, 0),
        spark=spark_of(tracks(line)[0], ledgers[0].peak_ns if ledgers else None),
        recordings=tuple(recordings[:MAX_RECORDINGS]),
        n_recordings=len(recordings),
        growth=_growth(growth),
        changes=_changes(growth),
        verdicts=tuple(str(verdict) for verdict in quality.frame["verdict"]),
        checks=_checks(profile, line, quality.frame),
        missing=tuple(_missing(hint) for hint in quality.hints),
        notes=_bounded(check_notes(profile, line, quality)),
        pages=tuple(pages),
    )


def _checks(profile: MemoryProfile, line: Timeline, frame: pd.DataFrame) -> Checks:
    sizes, stacks = profile.blocks["size_bytes"].to_numpy(), profile.blocks["stack_id"].to_numpy()
    return Checks(
        n_unexplained=int(frame["n_unexplained"].sum()),
        unexplained_bytes=int(frame["unexplained_bytes"].sum()),
        n_total_checked=int(frame["n_total_checked"].sum()),
        n_total_mismatch=int(frame["n_total_mismatch"].sum()),
        n_skipped=int(frame["n_skipped"].sum()),
        n_repaired=int(frame["n_repaired"].sum()),
        stack_bytes=sum(int(sizes[one.rows][stacks[one.rows] >= 0].sum()) for one in line.series),
        block_bytes=sum(int(sizes[one.rows].sum()) for one in line.series),
    )


def _missing(hint: Hint) -> Missing:
    ways = (("torch_npu", hint.torch_npu), ("PyTorch", hint.pytorch), ("verl", hint.verl))
    return Missing(hint.missing, len(hint.sources), "; ".join(f"{name}: {way}" for name, way in ways if way))


def _n_blocks(profile: MemoryProfile, line: Timeline) -> int:
    """Count the blocks; a life that a later snapshot tells again is one."""
    flags = profile.blocks["flags"].to_numpy()
    return sum(int(((flags[one.rows] & BlockFlag.REPEATED) == 0).sum()) for one in line.series)


def _counts_entries(facts: object) -> bool:
    return isinstance(facts, dict) and facts.get("time_axis", "time") != "time"


def _pool(
    profile: MemoryProfile, line: Timeline, pool: str, where: dict[int, str], followed: Sequence[str]
) -> PoolDigest:
    top = TOP_SITES if pool == followed[0] else TOP_SITES_OF_OTHERS
    parts = peak_parts(profile, line, pool, top=top) if pool in followed else None
    parts = parts and replace(parts, live=_clipped(parts.live))
    still_open = _clipped(open_shares(profile, line, pool, top=TOP_OPEN))
    return PoolDigest(clip(pool, MAX_NAME), parts, where[parts.source] if parts else "", still_open)


def _clipped(shares: SiteShares) -> SiteShares:
    return replace(shares, sites=tuple(replace(one, site=clip_front(one.site, MAX_SITE)) for one in shares.sites))


def _followed(pools: Sequence[str], ledgers: Sequence[LedgerPeak]) -> list[str]:
    """Pools whose recordings are followed: the largest one, and those that are not small beside it."""
    peaks = {one.pool: one.peak_bytes for one in ledgers if one.ledger == "allocated"}
    largest = max(peaks.values(), default=0)
    return [pool for i, pool in enumerate(pools) if i == 0 or peaks.get(clip(pool, MAX_NAME), 0) * 100 >= largest]


def _recordings(line: Timeline, growth: pd.DataFrame) -> list[Recording]:
    series = {(one.source, one.pool): one for one in line.series}
    found = []
    for row in growth.itertuples():
        one = series[row.source, row.pool]
        check = balance(one)
        found.append(
            Recording(
                role=clip(row.role, MAX_NAME),
                collection=int(row.collection),
                pool=clip(row.pool, MAX_NAME),
                start_ns=one.window[0],
                end_ns=one.window[1],
                baseline_bytes=_int(row.baseline_bytes),
                peak_bytes=_int(row.peak_bytes),
                end_bytes=_int(row.end_bytes),
                left_bytes=_int(row.left_bytes),
                between_bytes=_int(row.between_bytes),
                n_unexplained=check.n_rises if check else None,
            )
        )
    return sorted(found, key=lambda one: one.start_ns)


def _growth(frame: pd.DataFrame) -> tuple[RoleGrowth, ...]:
    """Sum up what the recordings of a role left behind, where a role has several."""
    found = []
    for (role, pool), part in frame.groupby(["role", "pool"], sort=False):
        left = part["left_bytes"]
        total, least, most = (left.sum(), left.min(), left.max()) if left.notna().all() else (None, None, None)
        if len(part) > 1:
            names = clip(role, MAX_NAME), clip(pool, MAX_NAME)
            found.append(RoleGrowth(*names, len(part), _int(total), _int(least), _int(most)))
    return tuple(found[:MAX_RECORDINGS])


def _changes(frame: pd.DataFrame) -> tuple[PoolChange, ...]:
    found = []
    for pool, part in frame.groupby("pool", sort=False):
        levels = part[["baseline_bytes", "end_bytes"]]
        if len(part) > 1 and levels.notna().all(axis=None):
            first, last = int(levels["baseline_bytes"].iloc[0]), int(levels["end_bytes"].iloc[-1])
            left, between = int(part["left_bytes"].sum()), int(part["between_bytes"].sum())
            found.append(PoolChange(clip(pool, MAX_NAME), first, last, left, between))
    return tuple(found[:MAX_POOLS])


def _int(value: Any) -> int | None:
    return None if value is None or pd.isna(value) else int(value)
