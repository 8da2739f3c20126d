"""``export_html``: the interactive pages of every timeline and their index."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..analysis.timeline import Timeline, timelines
from ..errors import InputError
from ..model import MemoryProfile
from ..units import format_bytes
from ..view.payload import TimelineView, read_capacity
from ..view.viewer import bokeh_source, data_script, render_page
from .files import OutputFolder, UniqueNames
from .index import IndexEntry, render_index

MAX_BARS_PER_SEGMENT = 500_000


@dataclass(frozen=True)
class _Target:
    """Where the pages of one timeline go: a folder below the output folder, empty for the folder itself."""

    line: Timeline
    folder: str

    def href(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    @property
    def up(self) -> str:
        return "../" * len(self.folder.split("/")) if self.folder else ""


def export_html(
    profile: MemoryProfile,
    out_dir: str | os.PathLike[str],
    *,
    bars_per_segment: int = 100_000,
    max_segments: int = 20,
    capacity: str | int | None = None,
    inline: bool = False,
    force: bool = False,
) -> Path:
    """Write interactive pages that open from disk, without a server, a kernel or a network.

    Parameters
    ----------
    profile : MemoryProfile
        What to show: one set of pages for each timeline (rank and device).
    out_dir : path
        Folder to write to; created when needed. An earlier export in it is replaced.
    bars_per_segment : int
        Blocks a page; a longer timeline is cut into segments with links to each other.
    max_segments : int
        At most so many pages a timeline; beyond, pages hold more blocks.
    capacity : str or int, optional
        Memory of a device, for instance ``"61 GiB"``, drawn as a line.
    inline : bool
        Put data and BokehJS (0.5 MB) into each page, so that one file can be sent alone.
    force : bool
        Write into a folder that holds other files.

    Returns
    -------
    Path
        ``index.html``: a summary of all timelines with links to their pages.

    Raises
    ------
    InputError
        If there is nothing to show, an option makes no sense, or the folder is not empty.
    """
    if bars_per_segment < 1 or max_segments < 1:
        raise InputError("bars_per_segment and max_segments must be at least 1")
    capacity_bytes = read_capacity(capacity)
    lines = timelines(profile)
    if not lines:
        raise InputError("nothing to show: no source has blocks or recorded totals")
    out = OutputFolder(out_dir, force=force)
    bokeh_name, bokeh = bokeh_source()
    entries = []
    for target in _targets(lines):
        pages = _write_timeline(
            profile,
            target,
            out,
            bars_per_segment=min(bars_per_segment, MAX_BARS_PER_SEGMENT),
            max_segments=max_segments,
            capacity_bytes=capacity_bytes,
            bokeh_name=None if inline else bokeh_name,
        )
        entries.append(IndexEntry(target.line, tuple(target.href(page) for page in pages)))
    if not inline:
        out.write(bokeh_name, bokeh)
    options: dict[str, object] = {"bars_per_segment": bars_per_segment, "max_segments": max_segments, "inline": inline}
    if capacity_bytes is not None:
        options["capacity"] = format_bytes(capacity_bytes)
    index = out.write("index.html", render_index(profile, entries, options))
    out.finish()
    return index


def _targets(lines: list[Timeline]) -> list[_Target]:
    """Folders ``<run>/rank<k>``, safe and unique; a single timeline lies in the output folder itself."""
    if len(lines) == 1:
        return [_Target(lines[0], "")]
    runs = UniqueNames()
    run_folder = {run: runs.take(run) for run in dict.fromkeys(line.run for line in lines)}
    per_rank = Counter((line.run, line.rank_id) for line in lines)
    names = {run: UniqueNames() for run in run_folder}
    targets = []
    for line in lines:
        name = "norank" if line.rank_id is None else f"rank{line.rank_id}"
        if per_rank[line.run, line.rank_id] > 1:
            name += f"_{line.device}" + (f"_part{line.part + 1}" if line.part else "")
        targets.append(_Target(line, f"{run_folder[line.run]}/{names[line.run].take(name)}"))
    return targets


def _write_timeline(
    profile: MemoryProfile,
    target: _Target,
    out: OutputFolder,
    *,
    bars_per_segment: int,
    max_segments: int,
    capacity_bytes: int | None,
    bokeh_name: str | None,
) -> list[str]:
    """Write all segments of a timeline; return the names of its pages."""
    view = TimelineView(profile, target.line, capacity_bytes=capacity_bytes)
    windows = view.windows(bars_per_segment=bars_per_segment, max_segments=max_segments)
    pages = [f"memory_timeline_{number:02d}.html" for number in range(len(windows))]
    for number, payload in enumerate(view.segments(windows, pages, index_href=f"{target.up}index.html")):
        if bokeh_name is None:
            page = render_page(payload)
        else:
            data_name = f"detail_data_{number:02d}.js"
            out.write(target.href(data_name), data_script(payload))
            page = render_page(payload, data_href=data_name, bokeh_href=f"{target.up}{bokeh_name}")
        out.write(target.href(pages[number]), page)
    return pages
