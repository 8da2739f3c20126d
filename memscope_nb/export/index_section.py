"""One timeline in the index: ledgers, what its peaks consist of, what stayed, how far the numbers can be trusted."""

from __future__ import annotations

from ..analysis.at_peak import PEAK_BASIS, PeakParts, SiteShares
from ..units import format_bytes, format_duration
from .digest import LedgerPeak, PoolDigest, TimelineDigest
from .index_parts import moment, offset, site_text, size, table
from .text import html_name, html_text

_MORE = "<code>collection_growth(profile)</code>"


def timeline_section(one: TimelineDigest, number: int, *, is_open: bool) -> str:
    """Return the section of a timeline, which folds."""
    head = f"<b>{html_name(one.label)}</b> <span class=soft>{html_name(one.run)}"
    head += f" · {html_name(one.host)}</span>" if one.host else "</span>"
    body = [_pages(one), _ledgers(one)]
    body += [_peak(one, pool, pool.peak) for pool in one.pools if pool.peak]
    body += [_open(one), _growth(one), _recordings(one), _notes(one)]
    return (
        f"<details id=t{number}{' open' if is_open else ''}><summary>{head}</summary>\n"
        + "\n".join(body)
        + "</details>"
    )


def _pages(one: TimelineDigest) -> str:
    if len(one.pages) == 1:
        return f'<p><a href="{html_text(one.pages[0].href)}">Open the interactive page</a></p>'
    links = [
        f'<a href="{html_text(page.href)}">{i + 1}</a> <span class=soft>{_span(page.start_ns, page.end_ns, one)}</span>'
        for i, page in enumerate(one.pages)
    ]
    return f"<p>Interactive pages, by segment: {' · '.join(links)}</p>" if links else ""


def _span(start: int, end: int, one: TimelineDigest) -> str:
    return f"{offset(start, 0, has_clock=one.has_clock)} to {offset(end, 0, has_clock=one.has_clock)}"


def _ledgers(one: TimelineDigest) -> str:
    rows = [
        [
            _ledger_name(ledger),
            size(ledger.peak_bytes),
            offset(ledger.peak_ns, one.start_ns, has_clock=one.has_clock),
            moment(ledger.peak_ns, has_clock=one.has_clock),
            html_name(ledger.where),
            _basis(ledger),
        ]
        for ledger in one.ledgers
    ]
    head = ("ledger", "peak", "at", "time (UTC)", "in", "known from")
    return f"<h3>Ledgers</h3>{table(head, rows, numbers=(1, 2))}{_unbacked(one)}"


def _unbacked(one: TimelineDigest) -> str:
    """Say it where a pool counts more than the process ever held on the device."""
    resident = one.peak("resident")
    found = [
        f"<p>{html_name(ledger.pool)} reserved {format_bytes(ledger.peak_bytes - resident.peak_bytes)} more than the "
        "process was ever seen to hold: memory that an engine gave back below the pool, or peaks between samples.</p>"
        for ledger in one.ledgers
        if resident and ledger.ledger == "reserved" and ledger.peak_bytes > resident.peak_bytes
    ]
    return "".join(found)


def _ledger_name(ledger: LedgerPeak) -> str:
    who = html_name(ledger.pool) if ledger.scope == "pool" else f"whole {ledger.scope}"
    return f"{who} {ledger.ledger}"


def _basis(ledger: LedgerPeak) -> str:
    if ledger.origin == "none":
        return "sum of the rows only: no totals were recorded"
    what = "totals of the rows" if ledger.origin == "rows" else "recorded samples"
    return f"{ledger.n_samples:,} {what}"


def _peak(one: TimelineDigest, pool: PoolDigest, parts: PeakParts) -> str:
    """What was alive at the peak of a pool: sites, the rest, older memory, differences; the last row is their sum."""
    rows, marks = [], []
    for site in parts.live.sites:
        rows.append([*_amount(site.size_bytes, site.n_blocks, parts), site_text(site.site, site.kind)])
        marks.append("")
    other = parts.live
    if other.n_other_sites:
        rows.append([*_amount(other.other_bytes, other.n_other_blocks, parts), f"{other.n_other_sites:,} other sites"])
        marks.append("part")
    if parts.older_bytes is None:
        rows.append([size(None), "", "", "older than the window: no totals were recorded to tell"])
    else:
        rows.append([size(parts.older_bytes), "", "", html_text(parts.older_label)])
    rows += [[size(n, signed=True), "", "", f"<span class=bad>{html_text(why)}</span>"] for why, n in parts.differences]
    marks += ["part"] * (1 + len(parts.differences))
    total = f"{PEAK_BASIS[parts.origin]} = {parts.peak_bytes:,} B"
    rows.append([size(parts.peak_bytes), "", f"{parts.live.n_blocks:,}", total])
    marks.append("sum")
    at = offset(parts.t_ns, one.start_ns, has_clock=one.has_clock)
    head = f"<h3>Alive at the peak of {html_name(pool.pool)} allocated, {at}, {html_name(pool.peak_where)}</h3>"
    columns = ("bytes", "of the live bytes", "blocks", "site")
    forward = (
        f"<p class=soft>Of the live bytes, {size(parts.forward_bytes)} are under the site of a forward operator.</p>"
        if parts.forward_bytes
        else ""
    )
    return head + table(columns, rows, numbers=(0, 2), classes=marks) + forward


def _amount(n_bytes: int, n_blocks: int, parts: PeakParts) -> list[str]:
    share = n_bytes / parts.live.size_bytes if parts.live.size_bytes else 0.0
    return [size(n_bytes), f'<td class=bar style="--w:{share:.1%}">{share:.1%}</td>', f"{n_blocks:,}"]


def _open(one: TimelineDigest) -> str:
    rows = [
        [
            html_name(pool.pool),
            f"{pool.open.n_blocks:,}",
            size(pool.open.size_bytes),
            "<br>".join(_site_line(pool.open, i) for i in range(len(pool.open.sites))),
        ]
        for pool in one.pools
    ]
    head = ("pool", "blocks", "bytes", "most of it")
    more = f"<p class=soft>and {one.n_more_pools} smaller pools</p>" if one.n_more_pools else ""
    return f"<h3>Open blocks</h3>{table(head, rows, numbers=(1, 2))}{more}"


def _site_line(shares: SiteShares, i: int) -> str:
    site = shares.sites[i]
    return f"{size(site.size_bytes)} {site_text(site.site, site.kind)}"


def _growth(one: TimelineDigest) -> str:
    """What several recordings of a role left behind; all of it and the pauses give the change of the level."""
    if not one.growth:
        return ""
    rows = [
        [
            html_name(role.role),
            html_name(role.pool),
            f"{role.n_recordings:,}",
            *(_plain(n, signed=True) for n in (role.left_bytes, role.least_bytes, role.most_bytes)),
        ]
        for role in one.growth
    ]
    head = ("role", "pool", "recordings", "left behind in all", "least", "most")
    few = min(role.n_recordings for role in one.growth) < 3
    verdict = "<p>Undecided whether it grows: fewer than three recordings of a role.</p>" * few
    changes = [
        f"{html_name(change.pool)}: {size(change.first_bytes)} before the first recording, "
        f"{size(change.last_bytes)} after the last one: {size(change.left_bytes, signed=True)} while recording, "
        f"{size(change.between_bytes, signed=True)} in between"
        + (
            f", <span class=bad>unexplained {size(change.difference_bytes, signed=True)}</span>"
            * bool(change.difference_bytes)
        )
        for change in one.changes
    ]
    told = "".join(f"<li>{change}</li>" for change in changes)
    shown = table(head, rows, numbers=(2, 3, 4, 5))
    return f"<h3>Growth over recordings</h3>{shown}{verdict}<ul>{told}</ul>"


def _recordings(one: TimelineDigest) -> str:
    rows = [
        [
            f"{html_name(r.role)} #{r.collection}",
            offset(r.start_ns, one.start_ns, has_clock=one.has_clock),
            format_duration(r.end_ns - r.start_ns) if one.has_clock else "",
            html_name(r.pool),
            *(_plain(n) for n in (r.baseline_bytes, r.peak_bytes, r.end_bytes)),
            *(_plain(n, signed=True) for n in (r.left_bytes, r.between_bytes)),
            "" if r.n_unexplained is None else f"{r.n_unexplained:,}",
        ]
        for r in one.recordings
    ]
    head = (
        "recording", "start", "length", "pool", "before", "peak", "end", "left behind", "then, unrecorded",
        "unexplained rises",
    )  # fmt: skip
    hidden = one.n_recordings - len(one.recordings)
    more = f"<p class=soft>and {hidden:,} rows more: {_MORE}</p>" if hidden else ""
    shown = table(head, rows, numbers=(1, 2, *range(4, 10)))
    return f"<details><summary>Recordings, level by level</summary>{shown}{more}</details>"


def _plain(n_bytes: int | None, *, signed: bool = False) -> str:
    return "" if n_bytes is None else format_bytes(n_bytes, signed=signed)


def _notes(one: TimelineDigest) -> str:
    notes = "".join(f"<li>{html_name(note)}</li>" for note in one.notes)
    return f"<h3>How far to trust it</h3><ul class=soft>{notes}</ul>"
