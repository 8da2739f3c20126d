"""Where an explorer stands: timeline, segment, pool, range, chosen blocks. Plain data, no widget, no browser."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.timeline import Timeline, timelines
from ..errors import InputError
from ..model import Int64Array, MemoryProfile
from ..view.payload import TimelineView

LEAST_NS = 100
"""Shortest range that a view can show; ``LEAST_NS`` in ``view/runtime/timeline.js``."""
MAX_SEGMENTS = 20
_FOCUS_SHARE = 200
"""A focused block takes at least a 200th of the range: some pixels, enough to see and to hit."""
_FOCUS_LEAST_NS = 1000
_SOURCE_ROOM = 50
"""Of a recording that is chosen, a fiftieth more is shown on both sides."""
_KEPT = 3


@dataclass(frozen=True)
class Seen:
    """What a browser said is in view, and where it stood when it said so."""

    where: tuple[object, ...]
    block_ids: Int64Array


def pick_timeline(lines: list[Timeline], *, rank: int | None, device: str | None) -> int:
    """Return the position of the first timeline of a rank and a device; None stands for any.

    Raises
    ------
    InputError
        If there is none: the message lists what there is.
    """
    for number, line in enumerate(lines):
        if rank in (None, line.rank_id) and device in (None, line.device):
            return number
    there = ", ".join(line.label for line in lines) or "nothing"
    raise InputError(f"no timeline of rank {rank}, device {device}; there is: {there}")


class _View(TimelineView):
    """A timeline whose header is made once for all its segments."""

    @cached_property
    def _shared(self) -> dict[str, Any]:
        return super().header()

    def header(self) -> dict[str, Any]:
        return self._shared


class Scene:
    """One place in a profile. Times are epoch ns at the methods, offsets from the timeline's start inside.

    Parameters
    ----------
    profile : MemoryProfile
        What is explored.
    rank, device : optional
        Timeline to start with.
    bars_per_segment : int
        Most blocks that a browser gets at once.
    capacity_bytes : int or None
        Memory of a device.
    """

    def __init__(
        self,
        profile: MemoryProfile,
        *,
        rank: int | None = None,
        device: str | None = None,
        bars_per_segment: int = 100_000,
        capacity_bytes: int | None = None,
    ) -> None:
        if isinstance(bars_per_segment, bool) or not isinstance(bars_per_segment, int) or bars_per_segment < 1:
            raise InputError(f"bars_per_segment: {bars_per_segment!r} is not a number of blocks")
        self.profile = profile
        self.capacity_bytes, self.bars_per_segment = capacity_bytes, bars_per_segment
        self.lines = timelines(profile)
        self._views: OrderedDict[int, TimelineView] = OrderedDict()
        self._payloads: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._index = pd.Index(profile.blocks["block_id"].to_numpy(np.int64))
        self._line_of_row = self._find_lines()
        self.number = 0
        """Counts the changes of what a browser has to load anew."""
        self.chosen: Int64Array = np.empty(0, dtype=np.int64)
        """Ids of the selected blocks, in the order of the profile."""
        self._enter(pick_timeline(self.lines, rank=rank, device=device))

    def _find_lines(self) -> Int64Array:
        found = np.full(len(self.profile.blocks), -1, dtype=np.int64)
        for number, line in enumerate(self.lines):
            for one in line.series:
                found[one.rows] = number
        return found

    def _enter(self, line: int) -> None:
        self.line, self.segment, self.series = line, 0, 0
        self.offsets: tuple[int, int] | None = None
        """Range as offsets; None until someone moved: the browser then starts where it thinks best."""
        self.windows = self.view.windows(bars_per_segment=self.bars_per_segment, max_segments=MAX_SEGMENTS)
        self._seen: Seen | None = None
        self.number += 1

    # -- what is shown ----------------------------------------------------------------------------------------

    @property
    def view(self) -> TimelineView:
        """The timeline shown, prepared for drawing; the last few are kept."""
        if self.line not in self._views:
            self._views[self.line] = _View(self.profile, self.lines[self.line], capacity_bytes=self.capacity_bytes)
            if len(self._views) > _KEPT:
                self._views.popitem(last=False)
        self._views.move_to_end(self.line)
        return self._views[self.line]

    @property
    def header(self) -> dict[str, Any]:
        """Header of the timeline shown (see :mod:`memscope_nb.view.payload`)."""
        return self.view.header()

    @property
    def timeline(self) -> Timeline:
        """The timeline shown."""
        return self.lines[self.line]

    def payload(self) -> bytes:
        """Return what the browser loads; links between segments are names for :func:`segment_of`."""
        key = (self.line, self.segment)
        if key not in self._payloads:
            hrefs = [f"segment-{number}" for number in range(len(self.windows))]
            self._payloads[key] = next(self.view.segments(self.windows, hrefs, only=self.segment))
            if len(self._payloads) > _KEPT:
                self._payloads.popitem(last=False)
        return self._payloads[key]

    def payload_ids(self) -> Int64Array:
        """Ids of the blocks in the payload, in its order."""
        view = self.view
        return view.blocks.block_id[view.rows_in(self.windows[self.segment])]

    @property
    def range_ns(self) -> tuple[int, int]:
        """The range, as epoch ns."""
        window = self.windows[self.segment]
        start, end = self.offsets or widen(*window, window)
        return self.view.t0 + start, self.view.t0 + end

    # -- moving -----------------------------------------------------------------------------------------------

    def go(self, *, line: int | None = None, segment: int | None = None, series: int | None = None) -> bool:
        """Show another timeline, segment or pool; return whether anything changed."""
        before = (self.line, self.segment, self.series)
        if line is not None and line != self.line:
            self._enter(line)
        if segment is not None and segment != self.segment:
            self.segment, self.offsets = segment, None
            self.number += 1
        if series is not None:
            self.series = series
        return before != (self.line, self.segment, self.series)

    def set_range(self, start_ns: int, end_ns: int) -> bool:
        """Show ``[start_ns, end_ns)``, in the segment that holds most of it; return whether anything changed.

        Raises
        ------
        InputError
            If the range is empty or outside the timeline.
        """
        t0, span = self.view.t0, self.view.span
        if end_ns <= start_ns:
            raise InputError(f"range: its end {end_ns} does not lie after its start {start_ns}")
        start, end = start_ns - t0, end_ns - t0
        if end <= span[0] or start >= span[1]:
            raise InputError(
                f"range: {start_ns} .. {end_ns} lies outside {self.timeline.label}, "
                f"which is recorded from {t0 + span[0]} to {t0 + span[1]} (epoch ns)"
            )
        shares = [min(end, w1) - max(start, w0) for w0, w1 in self.windows]
        segment = shares.index(max(shares))
        window = self.windows[segment]
        before = (self.segment, self.offsets)
        self.go(segment=segment)
        self.offsets = widen(max(start, window[0]), min(end, window[1]), window)
        return before != (self.segment, self.offsets)

    def show_source(self, source: int | None) -> bool:
        """Show one recording of the timeline with a little room, or the whole segment."""
        if source is None:
            start, end = self.windows[self.segment]
        else:
            one = self.header["sources"][source]
            room = max((one["end"] - one["start"]) // _SOURCE_ROOM, 1)
            start, end = one["start"] - room, one["end"] + room
        return self.set_range(self.view.t0 + start, self.view.t0 + end)

    def shift(self, offsets: tuple[int, int]) -> bool:
        """Show a range that may lie outside the segment: shifted into it, cut only where it is too long."""
        w0, w1 = self.windows[self.segment]
        if offsets[0] >= offsets[1]:
            return False
        before, width = self.offsets, min(offsets[1] - offsets[0], w1 - w0)
        start = min(max(offsets[0], w0), w1 - width)
        self.offsets = widen(start, start + width, (w0, w1))
        return before != self.offsets

    def follow(self, offsets: tuple[int, int], series: int, bits: bytes | None) -> bool:
        """Take over where a browser stands; return whether range or pool changed.

        ``bits`` has one bit for each block of the payload, lowest first: 1 = in view and passing the filters.
        """
        window = self.windows[self.segment]
        start, end = max(offsets[0], window[0]), min(offsets[1], max(window[1], window[0] + LEAST_NS))
        if start >= end or not 0 <= series < len(self.view.tracks):
            return False
        before = (self.offsets, self.series)
        self.offsets, self.series = (start, end), series
        ids = self.payload_ids()
        if bits is not None and len(bits) * 8 >= len(ids):
            flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(ids), bitorder="little")
            self._seen = Seen(self._where(), ids[flags.astype(bool)])
        return before != (self.offsets, self.series)

    def focus(self, block_id: int) -> None:
        """Show a block: its timeline, segment and pool, at a scale at which it is some pixels wide.

        Raises
        ------
        InputError
            If there is no such block.
        """
        (row,) = self.rows_of([block_id])
        self.go(line=int(self._line_of_row[row]))
        blocks = self.view.blocks
        (at,) = np.flatnonzero(blocks.block_id == block_id)
        start, end = int(blocks.start[at]), int(blocks.end[at])
        begin = min(max(start, 0), self.view.span[1] - 1)
        segment = next(k for k, (w0, w1) in enumerate(self.windows) if w0 <= begin < w1)
        self.go(segment=segment, series=int(blocks.series[at]))
        window = self.windows[segment]
        x0, x1 = self.offsets or window
        life = end - start
        width = min(max(x1 - x0, life * 6 // 5), max(life * _FOCUS_SHARE, _FOCUS_LEAST_NS), window[1] - window[0])
        if width != x1 - x0 or start < x0 or end > x1:
            left = min(max((start + end - width) // 2, window[0]), window[1] - width)
            self.offsets = widen(left, left + width, window)

    # -- blocks -----------------------------------------------------------------------------------------------

    def rows_of(self, block_ids: Any) -> Int64Array:
        """Return the positions of blocks in the profile's table.

        Raises
        ------
        InputError
            If some id is no block of the profile.
        """
        wanted = np.asarray(block_ids, dtype=np.int64)
        rows = self._index.get_indexer(wanted).astype(np.int64)
        if (rows < 0).any():
            missing = ", ".join(map(str, wanted[rows < 0][:5]))
            raise InputError(f"no block with block_id {missing} in this profile of {len(self._index):,} blocks")
        return rows

    def choose(self, block_ids: Any) -> bool:
        """Select blocks; return whether that changed anything."""
        rows = np.unique(self.rows_of(block_ids))
        chosen = self._index.to_numpy()[rows]
        if np.array_equal(chosen, self.chosen):
            return False
        self.chosen = chosen
        return True

    def table(self, rows: Int64Array) -> pd.DataFrame:
        """Return blocks as a table of their own, with the text of their site."""
        found = self.profile.blocks.iloc[rows]
        sites = np.append(self.profile.stacks["site"].to_numpy(dtype=object), "")
        return found.assign(site=sites[found["stack_id"].to_numpy(np.int64)])

    def line_rows(self) -> Int64Array:
        """Return the positions of the blocks of the timeline shown, in the profile's table."""
        return np.flatnonzero(self._line_of_row == self.line)

    def visible_ids(self) -> Int64Array:
        """Ids of the blocks in view: what the browser said, or, where it has not yet, all of the pool in the range.

        As in the browser, a block that begins with the range's end is in view, and so is one without length.
        """
        if self._seen is not None and self._seen.where == self._where():
            return self._seen.block_ids
        start, end = self.offsets or self.windows[self.segment]
        blocks = self.view.blocks.take(self.view.rows_in(self.windows[self.segment]))
        alive = (blocks.end > start) | ((blocks.end == blocks.start) & (blocks.start >= start))
        return blocks.block_id[(blocks.series == self.series) & (blocks.start <= end) & alive]

    def _where(self) -> tuple[object, ...]:
        return self.number, self.series, self.offsets


def widen(start: int, end: int, window: tuple[int, int]) -> tuple[int, int]:
    """Make a range at least :data:`LEAST_NS` long, inside its window where that is longer."""
    if end - start >= LEAST_NS:
        return start, end
    left = (start + end - LEAST_NS) // 2
    left = max(min(left, window[1] - LEAST_NS), window[0])
    return left, left + LEAST_NS


def segment_of(href: str) -> int | None:
    """Return the segment that a link of a payload leads to."""
    number = href.partition("#")[0].removeprefix("segment-")
    return int(number) if href.startswith("segment-") and number.isascii() and number.isdigit() else None
