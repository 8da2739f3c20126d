"""``index.html``: what was read and what it shows, as plain HTML without a script."""

from __future__ import annotations

import html
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from .._version import __version__
from ..analysis.growth import collection_growth
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
    """What the index shows of a timeline: small, so that any number of them fits in memory."""

    run: str
    label: str
    host: str
    pages: tuple[str, ...]
    summary: pd.DataFrame
    """Rows of ``summary()`` in time order, with ``start_ns``, ``length_ns`` and what :func:`collection_growth` adds."""
    notes: tuple[str, ...]

    @classmethod
    def of(cls, profile: MemoryProfile, line: Timeline, pages: tuple[str, ...], levels: pd.DataFrame) -> IndexEntry:
        """Sum up a timeline; ``pages`` are links relative to the index, ``levels`` from :func:`series_levels`."""
        summary = levels[levels["source"].isin(line.sources) & (levels["device"] == line.device)]
        order = {source: i for i, source in enumerate(line.sources)}
        summary = summary.sort_values("source", key=lambda s: s.map(order), kind="stable", ignore_index=True)
        notes = tuple(timeline_notes(profile, line))
        return cls(line.run, line.label, line.host or "", pages, summary, notes)


def series_levels(profile: MemoryProfile) -> pd.DataFrame:
    """Return ``summary()`` with the windows of the sources and what each one left behind."""
    growth = collection_growth(profile).frame[["source", "device", "pool", "left_bytes", "between_bytes"]]
    windows = profile.sources[["source", "start_ns", "end_ns"]].astype({"source": "Int64"})
    joined = summarize(profile).merge(growth, on=["source", "device", "pool"], how="left")
    return joined.merge(windows, on="source")


@dataclass(frozen=True)
class SourceLine:
    """One source as the index lists it."""

    status: str
    role: str
    rank: str
    path: str
    n_blocks: int
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, profile: MemoryProfile) -> list[SourceLine]:
        """Return a line for each source of a profile, broken ones included."""
        return [
            cls(
                str(row.status),
                f"{row.role} #{row.collection}",
                "" if pd.isna(row.rank_id) else str(row.rank_id),
                str(row.path),
                int(row.n_blocks),
                tuple(row.warnings),
            )
            for row in profile.sources.itertuples()
        ]


def render_index(entries: Sequence[IndexEntry], sources: Sequence[SourceLine], options: Mapping[str, object]) -> str:
    """Return the index page.

    Parameters
    ----------
    entries : sequence of IndexEntry
        The timelines with pages.
    sources : sequence of SourceLine
        Everything that was found, broken sources included.
    options : mapping
        How the pages were made, for the footer.
    """
    body = [
        "<h1>memscope-nb report</h1>",
        _overview(sources),
        _timeline_table(entries),
        *(_timeline_section(entry) for entry in entries),
        _source_table(sources),
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


def _overview(sources: Sequence[SourceLine]) -> str:
    status = Counter(source.status for source in sources)
    parts = [f"{len(sources)} sources"]
    parts += [f"{status[key]} {key}" for key in ("partial", "failed") if status[key]]
    parts.append(f"{sum(source.n_blocks for source in sources):,} blocks")
    return f'<p class="soft">{" · ".join(parts)}. Sizes are in binary units (1 GiB = 1024 MiB).</p>'


def _timeline_table(entries: Sequence[IndexEntry]) -> str:
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
        for pool, group in entry.summary.groupby("pool", sort=False):
            rows.append(
                [
                    _text(entry.run),
                    f'<a href="{html.escape(entry.pages[0])}">{_text(entry.label)}</a>',
                    _text(entry.host),
                    _text(pool),
                    *(_size(group[f"{k}peak_bytes"].max()) for k in ("", "reserved_", "resident_")),
                    f"{group['n_blocks'].sum():,}",
                    f"{group['n_open'].sum():,}",
                ]
            )
    return _table(head, rows, numbers=range(4, 9))


SECTION_HEAD = (
    "role", "start (UTC)", "length", "pool", "baseline", "peak", "at", "end", "left behind", "then, unrecorded",
    "older: start → end", "unexplained",
)  # fmt: skip


def _timeline_section(entry: IndexEntry) -> str:
    """Each source of a timeline with its levels, and what to know to trust them."""
    rows = []
    for row in entry.summary.itertuples():
        start = int(row.start_ns)
        rows.append(
            [
                f"{_text(row.role)} #{row.collection}",
                f'<span class="keep">{format_epoch(start)[:23]}</span>',
                format_duration(int(row.end_ns) - start),
                _text(row.pool),
                _size(row.baseline_bytes),
                _size(row.peak_bytes),
                "" if pd.isna(row.peak_ns) else format_duration(int(row.peak_ns) - start),
                _size(row.end_bytes),
                _size(row.left_bytes, signed=True),
                _size(row.between_bytes, signed=True),
                f"{_size(row.older_start_bytes)} → {_size(row.older_end_bytes)}",
                "" if pd.isna(row.n_unexplained) else f"{row.n_unexplained} rises" if row.n_unexplained else "none",
            ]
        )
    links = " ".join(f'<a href="{html.escape(page)}">{i + 1}</a>' for i, page in enumerate(entry.pages))
    notes = "".join(f"<li>{_text(note)}</li>" for note in entry.notes)
    return (
        f"<section><h2>{_text(entry.label)} <span class='soft'>{_text(entry.run)}</span></h2>"
        f"<p>Pages: {links}</p>{_table(SECTION_HEAD, rows, numbers=(2, *range(4, 11)))}"
        f"<ul class='soft'>{notes}</ul></section>"
    )


def _source_table(sources: Sequence[SourceLine]) -> str:
    head = ("status", "role", "rank", "path", "remarks")
    rows = [
        [
            f'<span class="{"" if source.status == "ok" else "bad"}">{_text(source.status)}</span>',
            _text(source.role),
            _text(source.rank),
            f"<code>{_text(source.path)}</code>",
            "<br>".join(_text(warning) for warning in source.warnings),
        ]
        for source in sources
    ]
    return "<h2>Sources</h2>" + _table(head, rows, numbers=())


def _footer(options: Mapping[str, object]) -> str:
    chosen = ", ".join(f"{key}={value}" for key, value in options.items())
    versions = f"memscope-nb {__version__}, pandas {pd.__version__}, Python {platform.python_version()}"
    return f'<p class="soft">{_text(versions)}; {_text(chosen)}.</p>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    right = set(numbers)

    def cells(tag: str, values: Sequence[str]) -> str:
        marks = [' class="n"' if i in right else "" for i in range(len(values))]
        return "".join(f"<{tag}{mark}>{value}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _size(value: object, *, signed: bool = False) -> str:
    return "" if pd.isna(value) else format_bytes(int(value), signed=signed)  # type: ignore[call-overload]
