"""Style and small pieces of the index: tables, sizes, times. All text of a recording comes through ``html_name``."""

from __future__ import annotations

from collections.abc import Sequence

from ..units import NS_PER_MS, NS_PER_S, format_bytes, format_epoch
from .digest import EVENT_NS
from .text import html_name, html_text

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c2733; --soft: #5c6875; --line: #d9dfe6; --card: #f6f8fa;
  --link: #0062a3; --bad: #b3400a; --hi: #a9d3ee; --lo: #2f86bd; --bar: #d3e7f5; --rest: #e3e6ea }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e3e8ed; --soft: #9aa6b2; --line: #333c46;
  --card: #1c2229; --link: #6cbcf0; --bad: #ff8a3d; --hi: #2f5f80; --lo: #56b4e9; --bar: #23445b; --rest: #2e363f } }
body { background: var(--ground); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto 4rem;
  max-width: 84rem; padding: 0 1.2rem }
h1 { font-size: 1.5rem; margin: 0 0 .2rem } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
h3 { font-size: .95rem; margin: 1.3rem 0 .3rem } p { margin: .3rem 0 .6rem } a { color: var(--link) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } table.wide { width: 100% }
th, td { border-bottom: 1px solid var(--line); padding: .22rem .9rem .22rem 0; text-align: left; vertical-align: top }
th { color: var(--soft); font-weight: 600 } .k { white-space: nowrap }
tr.sum td { border-bottom: 0; border-top: 2px solid var(--soft); font-weight: 600 } .scroll { overflow-x: auto }
.soft { color: var(--soft) } .bad { color: var(--bad); font-weight: 600 } b { font-weight: 600 }
.path { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere } ul { margin: .3rem 0; padding-left: 1.2rem }
td.bar { background: linear-gradient(var(--bar), var(--bar)) no-repeat 0 .3rem / var(--w) 1.2em; min-width: 5.5rem }
tr.part td.bar { background-image: linear-gradient(var(--rest), var(--rest)) }
details { background: var(--card); border: 1px solid var(--line); border-radius: 6px; margin: .8rem 0; padding: 0 1rem }
details[open] { padding-bottom: .8rem } summary { cursor: pointer; font-size: 1.05rem; padding: .55rem 0 }
details details { background: none; border: 0; margin: .6rem 0 0; padding: 0 }
details details summary { font-size: 14px; padding: .2rem 0 } .spark { display: block; height: 30px; width: 141px }
.hi { fill: var(--hi) } .lo { fill: var(--lo) } circle { fill: var(--bad) }
.ranks td { vertical-align: middle; padding-bottom: .1rem; padding-top: .1rem }
.ranks td:first-child { white-space: nowrap }
"""
STYLE += "".join(f".n{i} :nth-child({i}):is(td,th){',' if i < 11 else ''}" for i in range(1, 12))
STYLE += "{ text-align: right; white-space: nowrap }\n"


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    classes: Sequence[str] = (),
    name: str = "",
) -> str:
    """Return a table of cells that are HTML already; ``numbers`` are the columns to align right."""
    of = " ".join(filter(None, [name, *(f"n{i + 1}" for i in numbers)]))
    marks = [f' class="{mark}"' if mark else "" for mark in classes] or [""] * len(rows)
    lines = [f"<tr>{''.join(f'<th>{text}</th>' for text in head)}</tr>"]
    lines += [f"<tr{mark}>{''.join(map(_cell, row))}</tr>" for mark, row in zip(marks, rows, strict=True)]
    body = "\n".join(lines)
    return f'<div class=scroll><table class="{of}">{body}</table></div>'


def _cell(content: str) -> str:
    return content if content.startswith("<td") else f"<td>{content}</td>"


def size(n_bytes: int | None, *, signed: bool = False) -> str:
    """Return a size; the exact number of bytes is its value."""
    if n_bytes is None:
        return '<span class="soft">unknown</span>'
    return f"<data value={n_bytes}>{format_bytes(n_bytes, signed=signed)}</data>"


def offset(t_ns: int, start_ns: int, *, has_clock: bool) -> str:
    """Return an instant as an offset from the start of its timeline."""
    delta = t_ns - start_ns
    if not has_clock:
        return f"entry {delta // EVENT_NS:,}"
    return f"+{delta / NS_PER_S:,.3f} s" if abs(delta) >= NS_PER_S else f"+{delta / NS_PER_MS:,.3f} ms"


def moment(t_ns: int, *, has_clock: bool) -> str:
    """Return an absolute time; nothing where the recording has no clock."""
    return f"<span class=k>{format_epoch(t_ns)[:23]}</span>" if has_clock else ""


def site_text(site: str, kind: str) -> str:
    """Return a site with its folder in the background: of a frame, file, line and function say most."""
    if kind != "site":
        return f"<span class=path>{html_name(site)}</span> <span class=soft>({kind}, no stack)</span>"
    cut = max(site.rfind("/", 0, max(site.rfind("("), 0)), site.rfind("\\", 0, max(site.rfind("("), 0))) + 1
    folder = f"<span class=soft>{html_text(site[:cut])}</span>" if cut else ""
    shown = f"{folder}{html_text(site[cut:])}"
    return f"<span class=path>{shown if shown.isascii() else f'<bdi>{shown}</bdi>'}</span>"
