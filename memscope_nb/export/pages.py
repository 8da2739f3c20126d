"""``export_html``: the interactive pages of every timeline and their index."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..analysis.quality import Quality
from ..analysis.timeline import Timeline, timelines
from ..errors import InputError
from ..model import MemoryProfile
from ..units import format_bytes
from ..view.notes import line_quality
from ..view.payload import TimelineView, read_capacity
from ..view.viewer import TIMELINES_FILE, data_script, library_files, render_page, timelines_script
from .digest import PageLink, SourceDigest, TimelineDigest, digest_timeline
from .files import OutputFolder, UniqueNames
from .index import render_index
from .redact import Redactor

MAX_BARS_PER_SEGMENT = 500_000


@dataclass(frozen=True)
class PageOptions:
    """How pages are cut and packed; see :func:`export_html`."""

    bars_per_segment: int = 100_000
    max_segments: int = 20
    capacity_bytes: int | None = None
    inline: bool = False
    redact: bool = False
    hide: tuple[str, ...] = ()
    """More words to replace when redacting."""

    @classmethod
    def of(
        cls,
        *,
        bars_per_segment: int,
        max_segments: int,
        capacity: str | int | None,
        inline: bool,
        redact: bool | Sequence[str] = False,
    ) -> PageOptions:
        """Check what a caller asked for; raise :class:`InputError` for what makes no sense."""
        if bars_per_segment < 1 or max_segments < 1:
            raise InputError("bars_per_segment and max_segments must be at least 1")
        bars, capacity_bytes = min(bars_per_segment, MAX_BARS_PER_SEGMENT), read_capacity(capacity)
        hide = () if isinstance(redact, bool) else (redact,) if isinstance(redact, str) else tuple(redact)
        return cls(bars, max_segments, capacity_bytes, inline, bool(redact), hide)

    def as_text(self) -> dict[str, object]:
        """Return the options for the footer of the index."""
        shown: dict[str, object] = {"bars_per_segment": self.bars_per_segment, "max_segments": self.max_segments}
        capacity = {} if self.capacity_bytes is None else {"capacity": format_bytes(self.capacity_bytes)}
        return shown | {"inline": self.inline, "redact": self.redact} | capacity


def export_html(
    profile: MemoryProfile,
    out_dir: str | os.PathLike[str],
    *,
    bars_per_segment: int = 100_000,
    max_segments: int = 20,
    capacity: str | int | None = None,
    inline: bool = False,
    redact: bool | Sequence[str] = False,
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
    redact : bool or sequence of str
        Replace user names, host names and absolute paths in everything that is written, data and names of files
        included, to show it to strangers; see :func:`memscope_nb.redact_profile`. A sequence gives more words to
        replace.
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
    options = PageOptions.of(
        bars_per_segment=bars_per_segment,
        max_segments=max_segments,
        capacity=capacity,
        inline=inline,
        redact=redact,
    )
    if not timelines(profile):
        raise InputError("nothing to show: no source has blocks or recorded totals")
    writer = PageWriter(OutputFolder(out_dir, force=force), options)
    writer.add(profile, alone=True)
    return writer.finish()


@dataclass
class PageWriter:
    """Writes the pages of one profile after the other and keeps only what the index shows of them."""

    out: OutputFolder
    options: PageOptions
    timelines: list[TimelineDigest] = field(default_factory=list)
    sources: list[SourceDigest] = field(default_factory=list)
    redactor: Redactor | None = None
    """Where pages are redacted: keeps tokens the same from profile to profile."""
    _links: list[dict[str, str]] = field(default_factory=list)
    _runs: UniqueNames = field(default_factory=UniqueNames)
    _run_folders: dict[str, str] = field(default_factory=dict)
    _names: dict[str, UniqueNames] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.options.redact and self.redactor is None:
            self.redactor = Redactor(also=self.options.hide, local=True)

    def add(self, profile: MemoryProfile, *, alone: bool = False) -> None:
        """Write the pages of a profile; with ``alone`` a single timeline lies in the output folder itself."""
        if self.redactor is not None:
            profile = self.redactor.profile(profile)
        self.sources += SourceDigest.of(profile)
        lines = timelines(profile)
        in_root = alone and len(lines) == 1
        per_rank = Counter((line.run, line.rank_id) for line in lines)
        for line in lines:
            folder = "" if in_root else self._folder(line, several=per_rank[line.run, line.rank_id] > 1)
            quality = line_quality(profile, line)
            pages = self._write_timeline(profile, line, folder, quality)
            self.timelines.append(digest_timeline(profile, line, pages, quality=quality))
            label = f"{line.run} · {line.label}" if line.run else line.label
            self._links.append({"label": label, "href": pages[0].href, "place": folder})

    def finish(self) -> Path:
        """Write what all pages share and the index; return the index."""
        if not self.options.inline:
            for name, content in library_files().items():
                self.out.write(name, content)
            self.out.write(TIMELINES_FILE, timelines_script(self._links))
        index = self.out.write("index.html", render_index(self.timelines, self.sources, self.options.as_text()))
        self.out.finish()
        return index

    def _folder(self, line: Timeline, *, several: bool) -> str:
        """Return ``<run>/rank<k>``, safe and unique."""
        if line.run not in self._run_folders:
            self._run_folders[line.run] = self._runs.take(line.run)
            self._names[line.run] = UniqueNames()
        name = "norank" if line.rank_id is None else f"rank{line.rank_id}"
        if several:
            name += f"_{line.device}" + (f"_part{line.part + 1}" if line.part else "")
        return f"{self._run_folders[line.run]}/{self._names[line.run].take(name)}"

    def _write_timeline(self, profile: MemoryProfile, line: Timeline, folder: str, quality: Quality) -> list[PageLink]:
        """Write all segments of a timeline; return the links to its pages."""
        view = TimelineView(profile, line, capacity_bytes=self.options.capacity_bytes, quality=quality)
        windows = view.windows(bars_per_segment=self.options.bars_per_segment, max_segments=self.options.max_segments)
        pages = [f"memory_timeline_{number:02d}.html" for number in range(len(windows))]
        up = "../" * len(folder.split("/")) if folder else ""
        for number, payload in enumerate(view.segments(windows, pages, index_href=f"{up}index.html", place=folder)):
            if self.options.inline:
                page = render_page(payload)
            else:
                data_name = f"detail_data_{number:02d}.js"
                self.out.write(_href(folder, data_name), data_script(payload))
                page = render_page(payload, data_href=data_name, library_href=up)
            self.out.write(_href(folder, pages[number]), page)
        return [PageLink(_href(folder, page), *window) for page, window in zip(pages, windows, strict=True)]


def _href(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
