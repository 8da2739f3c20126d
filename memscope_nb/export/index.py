"""``index.html``: what was read and what it shows, as plain HTML without a script."""

from __future__ import annotations

import html
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from .._version import __version__
from ..analysis.summary import summarize
from ..analysis.timeline import Timeline
from ..model import MemoryProfile
from ..units import format_bytes, format_duration, format_epoch
from ..view.notes import timeline_notes

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5d6875; --line: #d8dee6; --card: #f6f8fa; --link: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ef; --soft: #9aa5b1; --line: #36404b; --card: #1d242c; --link: #56b4e9; }
  body { background: #14191f; } }
body { color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } a { color: var(--link); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; } td.n, th.n { text-align: right; white-space: nowrap; }
.keep { white-space: nowrap } .soft { color: var(--soft); } .bad { color: #d55e00; } code { overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 6px; margin: 1rem 0; padding: 0 1rem }
"""

CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class IndexEntry:
    """A timeline and links to its pages, relative to the index."""

    line: Timeline
    pages: tuple[str, ...]


def render_index(profile: MemoryProfile, entries: Sequence[IndexEntry], options: Mapping[str, object]) -> str:
    """Return the index page.

    Parameters
    ----------
    profile : MemoryProfile
        Everything that was read, broken sources included.
    entries : sequence of IndexEntry
        The timelines with pages.
    options : mapping
        How the pages were made, for the footer.
    """
    summary = summarize(profile)
    body = [
        "<h1>memscope-nb report</h1>",
        _overview(profile),
        _timeline_table(summary, entries),
        *(_timeline_section(profile, summary, entry) for entry in entries),
        _source_table(profile),
        _footer(options),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{CSP}">\n'
        '<meta name="viewport" content="width=device-width"><meta name="generator" content="memscope-nb">\n'
        f"<title>memscope-nb report</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _overview(profile: MemoryProfile) -> str:
    status = profile.sources["status"].value_counts()
    parts = [f"{len(profile.sources)} sources"]
    parts += [f"{status[key]} {key}" for key in ("partial", "failed") if key in status]
    parts.append(f"{len(profile.blocks):,} blocks")
    return f'<p class="soft">{" · ".join(parts)}. Sizes are in binary units (1 GiB = 1024 MiB).</p>'


def _timeline_table(summary: pd.DataFrame, entries: Sequence[IndexEntry]) -> str:
    head = (
        "run",
        "rank · device",
        "host",
        "pool",
        "peak allocated",
        "peak reserved",
        "peak resident",
        "blocks",
        "open",
    )
    rows = []
    for entry in entries:
        for pool, group in _pools(summary, entry.line):
            rows.append(
                [
                    _text(entry.line.run),
                    f'<a href="{html.escape(entry.pages[0])}">{_text(entry.line.label)}</a>',
                    _text(entry.line.host or ""),
                    _text(pool),
                    *(_size(group[f"{k}peak_bytes"].max()) for k in ("", "reserved_", "resident_")),
                    f"{group['n_blocks'].sum():,}",
                    f"{group['n_open'].sum():,}",
                ]
            )
    return _table(head, rows, numbers=range(4, 9))


def _timeline_section(profile: MemoryProfile, summary: pd.DataFrame, entry: IndexEntry) -> str:
    """Each source of a timeline with its levels, and what to know to trust them."""
    head = (
        "role",
        "start (UTC)",
        "length",
        "pool",
        "baseline",
        "peak",
        "at",
        "end",
        "older: start → end",
        "unexplained",
    )
    windows = profile.sources.set_index("source")[["start_ns", "end_ns"]]
    rows = []
    order = {source: i for i, source in enumerate(entry.line.sources)}
    in_time = _of_line(summary, entry.line).sort_values("source", key=lambda s: s.map(order), kind="stable")
    for row in in_time.itertuples():
        start, end = (int(value) for value in windows.loc[row.source])
        rows.append(
            [
                f"{_text(row.role)} #{row.collection}",
                f'<span class="keep">{format_epoch(start)[:23]}</span>',
                format_duration(end - start),
                _text(row.pool),
                _size(row.baseline_bytes),
                _size(row.peak_bytes),
                "" if pd.isna(row.peak_ns) else format_duration(int(row.peak_ns) - start),
                _size(row.end_bytes),
                f"{_size(row.older_start_bytes)} → {_size(row.older_end_bytes)}",
                "" if pd.isna(row.n_unexplained) else f"{row.n_unexplained} rises" if row.n_unexplained else "none",
            ]
        )
    links = " ".join(f'<a href="{html.escape(page)}">{i + 1}</a>' for i, page in enumerate(entry.pages))
    notes = "".join(f"<li>{_text(note)}</li>" for note in timeline_notes(profile, entry.line))
    return (
        f"<section><h2>{_text(entry.line.label)} <span class='soft'>{_text(entry.line.run)}</span></h2>"
        f"<p>Pages: {links}</p>{_table(head, rows, numbers=(2, *range(4, 9)))}<ul class='soft'>{notes}</ul></section>"
    )


def _source_table(profile: MemoryProfile) -> str:
    head = ("status", "role", "rank", "path", "remarks")
    rows = [
        [
            f'<span class="{"" if row.status == "ok" else "bad"}">{_text(row.status)}</span>',
            f"{_text(row.role)} #{row.collection}",
            "" if pd.isna(row.rank_id) else str(row.rank_id),
            f"<code>{_text(row.path)}</code>",
            "<br>".join(_text(warning) for warning in row.warnings),
        ]
        for row in profile.sources.itertuples()
    ]
    return "<h2>Sources</h2>" + _table(head, rows, numbers=())


def _footer(options: Mapping[str, object]) -> str:
    chosen = ", ".join(f"{key}={value}" for key, value in options.items())
    versions = f"memscope-nb {__version__}, pandas {pd.__version__}, Python {platform.python_version()}"
    return f'<p class="soft">{_text(versions)}; {_text(chosen)}.</p>'


def _pools(summary: pd.DataFrame, line: Timeline) -> list[tuple[str, pd.DataFrame]]:
    return [(str(pool), group) for pool, group in _of_line(summary, line).groupby("pool", sort=False)]


def _of_line(summary: pd.DataFrame, line: Timeline) -> pd.DataFrame:
    return summary[summary["source"].isin(line.sources) & (summary["device"] == line.device)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    right = set(numbers)

    def cells(tag: str, values: Sequence[str]) -> str:
        marks = [' class="n"' if i in right else "" for i in range(len(values))]
        return "".join(f"<{tag}{mark}>{value}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _size(value: object) -> str:
    return "" if pd.isna(value) else format_bytes(int(value))  # type: ignore[call-overload]
