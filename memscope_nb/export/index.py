"""``index.html``: what was read and what it shows, as plain HTML without a script."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from .._version import __version__
from ..units import format_bytes
from .digest import SourceDigest, TimelineDigest
from .index_parts import STYLE, moment, offset, size, table
from .index_section import timeline_section
from .sparkline import spark_svg
from .text import html_name, html_text

CSP = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MAX_OPEN_SECTIONS = 3
MAX_OPEN_INPUTS = 20
_READING = (
    '<p class="soft">Sizes are in binary units (1 GiB = 1024 MiB), times offsets from the first allocator record of a '
    "rank. Allocated, active, reserved and resident are ledgers of their own: each has its own peak and confirms no "
    "other. Open: no release was seen before the recording ended, which alone is no leak. Older: allocated before the "
    "recording began.</p>"
)


def render_index(
    timelines: Sequence[TimelineDigest], sources: Sequence[SourceDigest], options: Mapping[str, object]
) -> str:
    """Return the index page.

    Parameters
    ----------
    timelines : sequence of TimelineDigest
        The timelines with pages.
    sources : sequence of SourceDigest
        Everything that was found, broken sources included.
    options : mapping
        How the pages were made, for the footer.
    """
    few = len(timelines) <= MAX_OPEN_SECTIONS
    body = [
        "<h1>memscope-nb report</h1>",
        _overview(timelines, sources),
        _problems(sources),
        _ranks(timelines),
        *(timeline_section(one, number, is_open=few) for number, one in enumerate(timelines)),
        _inputs(sources),
        _footer(sources, options),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">\n'
        '<meta name="viewport" content="width=device-width"><meta name="generator" content="memscope-nb">\n'
        f"<title>memscope-nb report</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body></html>\n"
    )


def _overview(timelines: Sequence[TimelineDigest], sources: Sequence[SourceDigest]) -> str:
    status = Counter(source.status for source in sources)
    parts = [f"{len(sources):,} source{'s' * (len(sources) != 1)}"]
    parts += [f"{status[key]:,} {key}" for key in ("partial", "failed") if status[key]]
    parts.append(f"{len(timelines):,} timeline{'s' * (len(timelines) != 1)}")
    parts.append(f"{sum(source.n_blocks for source in sources):,} blocks")
    clocked = [one for one in timelines if one.has_clock]
    if clocked:
        first, last = min(one.start_ns for one in clocked), max(one.end_ns for one in clocked)
        parts.append(f"{moment(first, has_clock=True)} to {moment(last, has_clock=True)} UTC")
    return f'<p class="soft">{" · ".join(parts)}.</p>{_READING}'


def _problems(sources: Sequence[SourceDigest]) -> str:
    """Sources that are not whole, before anything else."""
    bad = [source for source in sources if source.status != "ok"]
    if not bad:
        return ""
    rows = [
        [
            f'<span class="bad">{html_text(source.status)}</span>',
            f"{html_name(source.role)} #{source.collection}",
            html_text(source.rank),
            f'<span class="path">{html_name(source.path)}</span>',
            "<br>".join(html_name(warning) for warning in source.warnings),
        ]
        for source in bad
    ]
    head = ("status", "role", "rank", "path", "why")
    return f"<h2>{len(bad):,} of {len(sources):,} sources are not whole</h2>{table(head, rows, name='wide')}"


def _ranks(timelines: Sequence[TimelineDigest]) -> str:
    """One row a timeline, with its curve; all curves on one scale of bytes."""
    scale = max((max(one.spark.high, default=0) for one in timelines), default=0)
    several_runs, hosts = len({one.run for one in timelines}) > 1, {one.host for one in timelines if one.host}
    rows = []
    for number, one in enumerate(timelines):
        allocated = one.peak("allocated")
        reserved, resident = one.peak("reserved"), one.peak("resident")
        label = f"{html_text(one.label)}: {html_text(allocated.pool if allocated else '')} allocated"
        run = f"<br><span class=soft>{html_name(one.run)}</span>" if several_runs else ""
        host = f"<br><span class=soft>{html_name(one.host)}</span>" if len(hosts) > 1 and one.host else ""
        href = html_text(one.pages[0].href) if one.pages else ""
        rows.append(
            [
                f'<a href="{href}">{html_name(one.label)}</a>{run}{host}',
                html_name(allocated.pool if allocated else ""),
                spark_svg(one.spark, scale, label),
                size(allocated.peak_bytes) if allocated else "",
                offset(allocated.peak_ns, one.start_ns, has_clock=one.has_clock) if allocated else "",
                size(reserved.peak_bytes) if reserved else "",
                size(resident.peak_bytes) if resident else "",
                f"{one.n_blocks:,}",
                f"{sum(pool.open.n_blocks for pool in one.pools):,}",
                _verdict(one),
                f'<a href="#t{number}">details</a>',
            ]
        )
    head = (
        "rank · device", "pool", f"allocated, 0 to {format_bytes(scale)}", "peak allocated", "at", "peak reserved",
        "peak resident", "blocks", "open", "checks", "",
    )  # fmt: skip
    host_note = f" Host: {html_name(*hosts)}." if len(hosts) == 1 else ""
    note = (
        "Each curve shows the recordings of a rank side by side, pauses left out: the pale part reaches to the highest "
        "level within a column, the full one to the lowest, the dot is the peak. All curves have one scale, 0 to "
        f"{format_bytes(scale)}. Pools are never added: this is the largest one.{host_note}"
    )
    return f"<h2>Ranks</h2>{table(head, rows, numbers=(3, 4, 5, 6, 7, 8), name='ranks wide')}<p class=soft>{note}</p>"


def _verdict(one: TimelineDigest) -> str:
    found = Counter(one.verdicts)
    if found["look"]:
        return f'<span class="bad">look: {found["look"]} of {len(one.verdicts)}</span>'
    return f"undecided: {found['undecided']} of {len(one.verdicts)}" if found["undecided"] else "ok"


def _inputs(sources: Sequence[SourceDigest]) -> str:
    """Every file or folder that was read, below their common folder."""
    common = _common_folder([source.path for source in sources])
    rows = [
        [
            "ok" if source.status == "ok" else f"<span class=bad>{html_text(source.status)}</span>",
            html_text(source.rank),
            f"{html_name(source.role)} #{source.collection}",
            html_text(source.kind),
            format_bytes(source.n_bytes) if source.n_bytes is not None else "",
            f"{source.n_blocks:,}",
            f"<span class=path>{html_name(source.path[len(common) :])}</span>"
            + "".join(f"<br><span class=soft>{html_name(remark)}</span>" for remark in source.warnings),
        ]
        for source in sources
    ]
    head = ("status", "rank", "role", "kind", "size", "blocks", "path and remarks")
    where = f'<p>All below <span class="path">{html_name(common)}</span></p>' if common else ""
    summary = f"<summary>{len(sources):,} inputs</summary>"
    is_open = " open" if len(sources) <= MAX_OPEN_INPUTS else ""
    return f"<h2>Inputs</h2><details{is_open}>{summary}{where}{table(head, rows, numbers=(1, 4, 5))}</details>"


def _common_folder(paths: Sequence[str]) -> str:
    """Longest start that all paths share, up to a separator; empty for a single path."""
    if len(set(paths)) < 2:
        return ""
    first, last = min(paths), max(paths)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    start = first[:length]
    return start[: max(start.rfind("/"), start.rfind("\\")) + 1]


def _footer(sources: Sequence[SourceDigest], options: Mapping[str, object]) -> str:
    chosen = ", ".join(f"{key}={value}" for key, value in options.items())
    recorders = Counter(version for source in sources for version in source.versions)
    recorded = "; ".join(
        f"{html_name(f'{key} {value}')} ({count:,})" for (key, value), count in sorted(recorders.items())
    )
    read = f"memscope-nb {__version__}, pandas {pd.__version__}, Python {platform.python_version()}"
    rows = [["read with", html_text(read)], ["recorded with", recorded or "not told"], ["options", html_text(chosen)]]
    return f"<h2>Versions and options</h2>{table(('', ''), rows)}"
