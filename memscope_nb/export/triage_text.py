"""The lines of a triage. Every name of a recording goes through ``code``, so that it is only text."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Sequence

import pandas as pd

from .._version import __version__
from ..analysis.at_peak import PEAK_BASIS
from ..units import NS_PER_MS, NS_PER_S, format_bytes, format_epoch
from .digest import EVENT_NS, LedgerPeak, PoolDigest, SourceDigest, TimelineDigest
from .text import code

MAX_LINES = 40
TOP = 8
MAX_LEDGERS = 5
MAX_MISSING = 2
MAX_NAMES = 6
SHORT = 60


def triage_lines(timelines: Sequence[TimelineDigest], sources: Sequence[SourceDigest]) -> list[str]:
    """Return the Markdown of a triage, line by line, at most :data:`MAX_LINES`."""
    one = max(timelines, key=_allocated)
    lines = [
        f"### Memory profile, memscope-nb {__version__}",
        _sources(timelines, sources),
        _versions(sources),
        *_broken(sources),
        "",
        _which(one, timelines),
        "",
        *_ledgers(one),
    ]
    lines += _peak(one)
    lines += ["", _open(one), _growth(one), _checks(timelines), *_missing(timelines)]
    return lines


def _allocated(one: TimelineDigest) -> int:
    peak = one.peak("allocated")
    return peak.peak_bytes if peak else -1


def _counted(values: Iterable[str]) -> str:
    """Write distinct values with their counts, the most frequent first, as code."""
    counts = Counter(values).most_common()
    shown = [f"{code(value, SHORT)} ({count:,})" for value, count in counts[:MAX_NAMES]]
    return ", ".join(shown) + (f" and {len(counts) - MAX_NAMES:,} more" if len(counts) > MAX_NAMES else "")


def _sources(timelines: Sequence[TimelineDigest], sources: Sequence[SourceDigest]) -> str:
    status = Counter(source.status for source in sources)
    whole = ", ".join(f"{status[key]:,} {key}" for key in ("ok", "partial", "failed") if status[key])
    n_blocks = sum(source.n_blocks for source in sources)
    ranks = {(one.run, one.rank_id) for one in timelines if one.rank_id is not None}
    many = f"{len(ranks):,} rank{'s' * (len(ranks) != 1)}, " if ranks else "no rank known, "
    kinds, roles = _counted(source.kind for source in sources), _counted(source.role for source in sources)
    return f"- sources: {len(sources):,} ({whole}), {kinds}; {many}{n_blocks:,} blocks; roles {roles}"


def _versions(sources: Sequence[SourceDigest]) -> str:
    recorded = Counter(version for source in sources for version in source.versions)
    told = ", ".join(code(f"{key} {value}", SHORT) for key, value in sorted(recorded)[:MAX_NAMES]) or "unknown"
    return f"- recorded with {told}; read with pandas {pd.__version__}, Python {platform.python_version()}"


def _broken(sources: Sequence[SourceDigest]) -> list[str]:
    bad = [source for source in sources if source.status != "ok"]
    if not bad:
        return []
    first = bad[0]
    why = code(first.warnings[0] if first.warnings else "no reason given")
    return [
        f"- not whole: {len(bad):,} of {len(sources):,}; the first is {first.status}, rank {first.rank or '?'}: {why}"
    ]


def _which(one: TimelineDigest, timelines: Sequence[TimelineDigest]) -> str:
    if len(timelines) == 1:
        return f"**Peaks of {code(one.label, SHORT)}**, {_span(one)}:"
    levels = sorted(_allocated(other) for other in timelines if _allocated(other) >= 0)
    around = f" ({format_bytes(levels[0])} to {format_bytes(levels[-1])})" if levels else ""
    return f"**Peaks of {code(one.label, SHORT)}**, the highest of {len(timelines):,} timelines{around}, {_span(one)}:"


def _span(one: TimelineDigest) -> str:
    return f"from {format_epoch(one.start_ns)[:19]} UTC on" if one.has_clock else "a recording without times"


def _at(t_ns: int, one: TimelineDigest) -> str:
    delta = t_ns - one.start_ns
    if not one.has_clock:
        return f"entry {delta // EVENT_NS:,}"
    return f"+{delta / NS_PER_S:,.3f} s" if abs(delta) >= NS_PER_S else f"+{delta / NS_PER_MS:,.3f} ms"


def _ledgers(one: TimelineDigest) -> list[str]:
    largest = one.ledgers[0].pool if one.ledgers else ""
    shown = [ledger for ledger in one.ledgers if ledger.scope != "pool" or ledger.pool == largest]
    others = [ledger for ledger in one.ledgers if ledger.ledger == "allocated" and ledger.pool != largest]
    rows = [
        f"| {_name(ledger)} | {format_bytes(ledger.peak_bytes)} | {_at(ledger.peak_ns, one)} "
        f"| {code(ledger.where, SHORT)} | {_basis(ledger)} |"
        for ledger in shown[:MAX_LEDGERS]
    ]
    small = ", ".join(f"{code(o.pool, SHORT)} {format_bytes(o.peak_bytes)}" for o in others[:MAX_NAMES])
    head = ["| ledger | peak | at | in | known from |", "|:--|--:|--:|:--|:--|"]
    return [*head, *rows, *([f"| other pools, allocated | {small} | | | |"] if small else []), ""]


def _name(ledger: LedgerPeak) -> str:
    who = code(ledger.pool, SHORT) if ledger.scope == "pool" else f"whole {ledger.scope}"
    return f"{who} {ledger.ledger}"


def _basis(ledger: LedgerPeak) -> str:
    if ledger.origin == "none":
        return "sum of the rows only"
    return f"{ledger.n_samples:,} {'totals of the rows' if ledger.origin == 'rows' else 'recorded samples'}"


def _peak(one: TimelineDigest) -> list[str]:
    """Sites at the peak; the lines above the last one add up to it."""
    pool: PoolDigest | None = next((pool for pool in one.pools if pool.peak), None)
    if pool is None or pool.peak is None:
        return ["No level of any pool is known."]
    parts = pool.peak
    sites, cut = parts.live.sites[:TOP], parts.live.sites[TOP:]
    whole = parts.live.size_bytes or 1

    def row(n_bytes: int, n_blocks: int | None, what: str, *, signed: bool = False) -> str:
        share = "" if n_blocks is None else f"{n_bytes / whole:.1%}"
        blocks = "" if n_blocks is None else f"{n_blocks:,}"
        return f"| {format_bytes(n_bytes, signed=signed)} | {share} | {blocks} | {what} |"

    rows = [row(s.size_bytes, s.n_blocks, code(s.site) + ("" if s.kind == "site" else f" ({s.kind})")) for s in sites]
    n_rest = len(cut) + parts.live.n_other_sites
    if n_rest:
        rest_blocks = sum(s.n_blocks for s in cut) + parts.live.n_other_blocks
        rest_bytes = sum(s.size_bytes for s in cut) + parts.live.other_bytes
        rows.append(row(rest_bytes, rest_blocks, f"{n_rest:,} other sites"))
    rows += [] if parts.older_bytes is None else [row(parts.older_bytes, None, parts.older_label)]
    rows += [row(n, None, f"**{why}**", signed=True) for why, n in parts.differences]
    total = PEAK_BASIS[parts.origin]
    when = f"{_at(parts.t_ns, one)}, {code(pool.peak_where, SHORT)}"
    return [
        f"**Alive at the peak of {code(pool.pool, SHORT)} allocated**, {when}:",
        "",
        "| bytes | of live | blocks | site |",
        "|--:|--:|--:|:--|",
        *rows,
        f"| **{format_bytes(parts.peak_bytes)}** | | {parts.live.n_blocks:,} | **{total} = {parts.peak_bytes:,} B** |",
    ]


def _open(one: TimelineDigest) -> str:
    found = []
    for pool in one.pools:
        if pool.open.n_blocks:
            largest = pool.open.sites[0]
            found.append(
                f"{code(pool.pool, SHORT)} {pool.open.n_blocks:,} blocks, {format_bytes(pool.open.size_bytes)}, of it "
                f"{format_bytes(largest.size_bytes)} by {code(largest.site)}"
            )
    return f"- open at the end of their recording: {'; '.join(found) or 'none'}"


def _growth(one: TimelineDigest) -> str:
    if not one.changes:
        return "- growth over recordings: a single recording tells nothing; record the same phases in several steps"
    change = one.changes[0]
    roles = [role for role in one.growth if role.pool == change.pool]
    first, last = format_bytes(change.first_bytes), format_bytes(change.last_bytes)
    told = (
        f"{code(change.pool, SHORT)} {first} before the first, {last} after the last: "
        f"{format_bytes(change.left_bytes, signed=True)} while recording, "
        f"{format_bytes(change.between_bytes, signed=True)} in between"
    )
    if change.difference_bytes:
        told += f", **{format_bytes(change.difference_bytes, signed=True)} unexplained**"
    if not roles or min(role.n_recordings for role in roles) < 3:
        return f"- growth over recordings: {told}; undecided whether it grows (fewer than 3 recordings of a role)"
    always = [role for role in roles if role.least_bytes is not None and role.least_bytes > 0]
    left = ", ".join(
        f"{code(role.role, SHORT)} left {format_bytes(role.least_bytes or 0)} or more in each of {role.n_recordings:,}"
        for role in always[:MAX_NAMES]
    )
    return f"- growth over recordings: {told}; {left or 'no role left memory behind every time'}"


def _checks(timelines: Sequence[TimelineDigest]) -> str:
    verdicts = Counter(verdict for one in timelines for verdict in one.verdicts)
    told = ", ".join(f"{verdicts[key]:,} {key}" for key in ("ok", "look", "undecided") if verdicts[key])
    checks = [one.checks for one in timelines]
    n_rises, checked = sum(c.n_unexplained for c in checks), sum(c.n_total_checked for c in checks)
    stacks = sum(c.stack_bytes for c in checks) / max(sum(c.block_bytes for c in checks), 1)
    rises = f" ({format_bytes(sum(c.unexplained_bytes for c in checks), signed=True)})" if n_rises else ""
    return (
        f"- checks: {told}; {n_rises:,} unexplained rises{rises}; {sum(c.n_total_mismatch for c in checks):,} of "
        f"{checked:,} totals differ; {sum(c.n_skipped for c in checks):,} rows skipped, "
        f"{sum(c.n_repaired for c in checks):,} values repaired; stacks for {stacks:.0%} of the bytes"
    )


def _missing(timelines: Sequence[TimelineDigest]) -> list[str]:
    """What was not recorded, over all timelines, and the setting that records it."""
    found: dict[tuple[str, str], int] = {}
    for one in timelines:
        for missing in one.missing:
            found[missing.fact, missing.how] = found.get((missing.fact, missing.how), 0) + missing.n_sources
    lines = [
        f"- missing: {fact} ({count:,} sources); to record it: {code(how, 300)}"
        for (fact, how), count in list(found.items())[:MAX_MISSING]
    ]
    if len(found) > MAX_MISSING:
        lines[-1] += f"; and {len(found) - MAX_MISSING} more: `memscope-nb info`"
    return lines or ["- missing: nothing that is looked for"]
