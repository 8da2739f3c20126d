"""``show`` and the representations of a profile: HTML that survives in a saved notebook without a kernel."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

import pandas as pd

from ..analysis.summary import describe, summarize
from ..analysis.timeline import timelines
from ..model import MemoryProfile
from ..units import format_bytes
from ..view.payload import TimelineView, read_capacity
from ..view.viewer import render_page
from .scene import pick_timeline

MAX_ROWS = 40
SIZE_COLUMNS = {
    "baseline_bytes": "baseline",
    "peak_bytes": "peak allocated",
    "reserved_peak_bytes": "peak reserved",
    "resident_peak_bytes": "peak resident",
    "end_bytes": "end",
    "older_end_bytes": "older at end",
}


@dataclass(frozen=True)
class PageView:
    """A page inside a sandboxed frame: it runs its own script and reaches neither the notebook nor the network."""

    title: str
    page: str = field(repr=False)
    height: int = 960
    hint: str = ""

    def _repr_html_(self) -> str:
        hint = f"<p>{html.escape(self.hint)}</p>" if self.hint else ""
        title, page = (html.escape(text, quote=True) for text in (self.title, self.page))
        return (
            f'{hint}<iframe title="{title}" srcdoc="{page}" '
            f'sandbox="allow-scripts allow-downloads" style="width:100%;height:{int(self.height)}px;border:0"></iframe>'
        )


def show(
    profile: MemoryProfile,
    *,
    rank: int | None = None,
    device: str | None = None,
    bars_per_segment: int = 100_000,
    capacity: str | int | None = None,
    height: int = 960,
) -> PageView:
    """Show the interactive page of one timeline in the notebook.

    The output holds everything (BokehJS, data: from 0.5 MB on), so it works in a saved notebook without a kernel, if
    the notebook is trusted. Of a longer timeline the first segment is shown; :func:`memscope_nb.export_html` writes
    all.

    Parameters
    ----------
    profile : MemoryProfile
        What to show.
    rank, device : optional
        Which timeline; the first one by default.
    bars_per_segment : int
        Most blocks in the page.
    capacity : str or int, optional
        Memory of a device, for instance ``"61 GiB"``, drawn as a line.
    height : int
        Height in pixels.

    Raises
    ------
    InputError
        If there is no such timeline.
    """
    lines = timelines(profile)
    line = lines[pick_timeline(lines, rank=rank, device=device)]
    view = TimelineView(profile, line, capacity_bytes=read_capacity(capacity))
    windows = view.windows(bars_per_segment=bars_per_segment, max_segments=20)
    pages = [""] * len(windows)
    payload = next(iter(view.segments(windows[:1], pages[:1])))
    others = ", ".join(other.label for other in lines if other is not line)
    hints = [f"Also there: {others}; choose with show(profile, rank=…)." if others else ""]
    hints += [f"First of {len(windows)} segments; export_html writes all." if len(windows) > 1 else ""]
    return PageView(f"memory of {line.label}", render_page(payload), height, " ".join(filter(None, hints)))


def profile_html(profile: MemoryProfile) -> str:
    """Return a small table of the series and a line for every source that is not whole."""
    summary = summarize(profile)
    head, *_ = describe(profile).splitlines()
    sizes = summary[list(SIZE_COLUMNS)].map(_size).rename(columns=SIZE_COLUMNS)
    table = pd.concat(
        [summary[["role", "collection", "rank_id", "device", "pool", "n_blocks", "n_open"]], sizes], axis=1
    )
    more = f"<p>… and {len(table) - MAX_ROWS} more series: profile.summary()</p>" if len(table) > MAX_ROWS else ""
    broken = profile.sources[profile.sources["status"] != "ok"]
    items = [
        f"<li><b>{html.escape(row.status)}</b> {html.escape(row.path)}: {html.escape('; '.join(row.warnings))}</li>"
        for row in broken.head(MAX_ROWS).itertuples()
    ]
    problems = f"<ul>{''.join(items)}</ul>" if items else ""
    body = table.head(MAX_ROWS).to_html(index=False, border=0, escape=True, na_rep="")
    return f"<div><p>{html.escape(head)}</p>{body}{more}{problems}</div>"


def _size(value: object) -> str:
    return "" if pd.isna(value) else format_bytes(int(value))  # type: ignore[call-overload]
