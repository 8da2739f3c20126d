"""What one page shows, as plain data: the contract between Python and the browser runtime.

One payload holds one time segment of one *timeline* (one rank of one run, one device). Times are offsets in ns from
``header["t0_ns"]``, sizes are bytes. Curves are not stored: the runtime adds up the blocks and the *older* steps, which
by definition give the recorded totals back exactly (spec/ascend_profiler 3.3a).

Header
------
======================  ========================================================================================
``format``              1
``title, subtitle``     text
``t0_ns``               epoch of offset 0, as text (a JavaScript number cannot hold it)
``span``                ``[start, end]`` of the whole timeline
``window``              ``[start, end]`` of this segment
``segment``             index of this segment
``segments``            ``[{"href", "start", "end"}]``, all of them, in order
``index_href``          link to the index page, or null
``place``               what tells this timeline from the others of an export
``names``               operator names; ``name`` column is an index
``frames``              distinct stack frames, text
``plumbing``            one 0/1 per frame: framework internals, to be folded
``stacks``              lists of frame indices, innermost first; ``stack`` column is index + 1, 0 = no stack
``sites``               one per stack: position of the site frame in its list, or -1
``classes``             ``[{"key", "label"}]`` lifetime classes; ``class`` column is an index. Keys: ``older``,
                        ``phase``, ``step``, ``fwdbwd``, ``transient``, ``open``
``series``              ``[{"label", "pool", "device", "peak": {"allocated": [t, bytes], "active":…, "reserved":…},
                        "has_active", "has_reserved", "caveat", "older_base", "active_base"}]``; a ledger without
                        samples is absent from ``peak``. Bases are 0 except where recorded totals fall below the live
                        blocks (rows that contradict the totals): then negative, to be added to the step values.
                        The first one is shown first. Series are never added to each other
``resident``            ``{"label", "interval_ns", "peak": [t, bytes]}`` of the process samples, or null
``layers``              ``[{"key", "label"}]`` from the bottom: what lies on the device at samples of the process, or
                        empty. Keys: ``allocated``, ``cached``, ``module``, ``other``
``capacity_bytes``      of the device, if given, else null
``sources``             ``[{"label", "start", "end", "status", "series"}]`` recorded windows, in time order
``phases``              ``[{"name", "kind", "start", "end", "peak_bytes", "floor_bytes"}]``, kind ``role`` or ``range``
``axis_note``           what to say beside the time axis where it shows no time (recordings without times), else null
``steps``               ``[{"name", "start", "end"}]``
``idle``                ``[[start, end]]`` of the whole timeline: stretches in which nothing changes, worth folding
``marks``               ``[{"name", "kind", "start"}]``: instants such as marks of the program, snapshots, failures
``owners, labels``      texts that msMemScope wrote to blocks; empty without such a source
``address_map``         segments of snapshots, one entry a series, with columns of their own: see :mod:`.segments`
``notes``               lines of text for the footer: what was skipped, repaired, guessed
======================  ========================================================================================

Columns of blocks (one value a block that overlaps the window, sorted by ``start``, then by ``id``)
------------------------------------------------------------------------------------
``id`` (global, same in every segment) · ``start`` · ``life`` (until its end in terms of *allocated*; an open block
lasts until its source's window ends) · ``size`` · ``name`` · ``stack`` · ``kind`` (0 none, 1 own, 2 forward) ·
``class`` · ``series`` (-> ``header.series``) · ``owner`` and ``label`` (index + 1, 0 = none; absent where the header
has no such texts). Start and end may lie outside the window: they are the true ones.
``late_block`` (position in these columns) and ``late`` (ns): blocks that stay *active* that much longer.

Step columns (value holds until the next ``_t``; value 0 = no data, else bytes + 1)
-----------------------------------------------------------------------------------
for series k: ``older_t_k older_v_k`` (allocated − live blocks), ``active_t_k active_v_k`` (active − blocks still
active), ``reserved_t_k reserved_v_k``; once: ``resident_t resident_v``;
``layer_t`` with ``layer_v_<i>`` for layer i of the header; ``overview_t overview_v`` (allocated of the
first series over the whole span, thinned by first/min/max/last per column).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.layers import how_sampled
from ..analysis.lifetime import LIFETIME_LABELS, LIFETIMES
from ..analysis.quality import Quality
from ..analysis.series import Series, series_curve
from ..analysis.timeline import Timeline, line_phases, tracks
from ..errors import InputError
from ..model import NA_NS, Int64Array, MemoryProfile, to_int64
from ..stacks import is_plumbing, site_index
from ..units import parse_bytes
from .blocks import Blocks, column_texts, timeline_blocks
from .codec import encode_payload
from .layers import device_layers
from .level_steps import Steps, base_of, clip_steps, idle_stretches, join_steps, overview_steps, window_steps
from .notes import timeline_notes
from .segments import SORTED, segment_columns

MAX_MARKS = 5000
FALLING_NEVER = ("start",)
"""Block columns stored as differences; so are all times of step columns."""


def read_capacity(capacity: str | int | None) -> int | None:
    """Read the size of a device; raise :class:`InputError` for what is no size."""
    try:
        return None if capacity is None else parse_bytes(capacity)
    except ValueError as error:
        raise InputError(f"capacity: {error}") from None


class TimelineView:
    """Everything that the pages of one timeline share; :meth:`segments` cuts it into payloads."""

    def __init__(
        self,
        profile: MemoryProfile,
        line: Timeline,
        *,
        capacity_bytes: int | None = None,
        quality: Quality | None = None,
    ) -> None:
        self.profile, self.line, self.capacity_bytes = profile, line, capacity_bytes
        self.quality = quality
        self.t0 = line.span[0]
        self.tracks = tracks(line)
        self.span = (0, line.span[1] + 1 - self.t0)
        self.names = [str(name) for name in profile.blocks["name"].cat.categories]
        self.owners, self.labels = (column_texts(profile.blocks, key) for key in ("owner", "inefficient_type"))
        self.blocks = timeline_blocks(profile, self.tracks, self.t0)
        self.steps = self._level_steps()
        self.layers = device_layers(profile, line, self.t0)
        self.addresses = segment_columns(profile, self.tracks, self.t0)

    # -- columns ----------------------------------------------------------------------------------------------

    def _level_steps(self) -> dict[str, Steps]:
        steps: dict[str, Steps] = {}
        for k, track in enumerate(self.tracks):
            for key, ledger in (("older", "allocated"), ("active", "active"), ("reserved", "reserved")):
                steps[f"{key}_{k}"] = join_steps([window_steps(one, ledger, self.t0) for one in track])
        steps["resident"] = join_steps([part for one in self._sampled() if (part := self._resident(one)) is not None])
        curves = [series_curve(one) for one in self.tracks[0]]
        steps["overview"] = join_steps(
            [overview_steps(c, o.window, self.t0) for c, o in zip(curves, self.tracks[0], strict=True)]
        )
        return steps

    def _changes(self) -> list[Int64Array]:
        """Return when anything changes; process samples come by the clock, not by a change."""
        levels = [steps.t for key, steps in self.steps.items() if key not in ("overview", "resident")]
        return [self.blocks.start, self.blocks.end, self.blocks.end + self.blocks.late, *levels]

    def _sampled(self) -> list[Series]:
        """One series for each source, in time order: their windows bound the process samples."""
        return list({one.source: one for one in self.line.series}.values())

    def _process(self, source: int) -> pd.DataFrame:
        totals = self.profile.totals
        mine = (totals["scope"] == "process") & (totals["source"] == source) & (totals["device"] == self.line.device)
        return totals[mine & totals["reserved_bytes"].notna()].sort_values("t_ns", kind="stable")

    def _resident(self, one: Series) -> Steps | None:
        samples = self._process(one.source)
        if not len(samples):
            return None
        t, level = samples["t_ns"].to_numpy(np.int64), to_int64(samples["reserved_bytes"])
        return clip_steps(t, level, one.window, self.t0)

    # -- header -----------------------------------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """Return the part of the header that all segments share."""
        phases = line_phases(self.profile, self.line)
        phases = phases.drop_duplicates(
            ["source", "kind", "name", "start_ns", "end_ns"]
        )  # the largest pool comes first
        return {
            "format": 1,
            "title": self.line.label,
            "subtitle": self._subtitle(),
            "t0_ns": str(self.t0),
            "axis_note": self._axis_note(),
            "span": list(self.span),
            "names": self.names,
            "owners": self.owners,
            "labels": self.labels,
            "classes": [{"key": key, "label": LIFETIME_LABELS[key]} for key in LIFETIMES],
            "series": [self._series_header(k, track) for k, track in enumerate(self.tracks)],
            "resident": self._resident_header(),
            "layers": [{"key": key, "label": label} for key, label in self.layers.names],
            "capacity_bytes": self.capacity_bytes,
            "sources": self._source_headers(),
            "phases": [self._phase(row) for row in phases[phases["kind"] != "step"].itertuples()],
            "steps": [self._phase(row) for row in phases[phases["kind"] == "step"].itertuples()],
            "idle": idle_stretches(self._changes(), self.span),
            "marks": self._marks(),
            "address_map": self.addresses.header,
            "notes": timeline_notes(self.profile, self.line, quality=self.quality),
        }

    def _axis_note(self) -> str | None:
        facts = self.profile.sources.set_index("source")["facts"]
        axes = [(facts.at[source] or {}).get("time_axis") for source in self.line.sources]
        if "event order" not in axes:
            return None
        some = "" if all(axis == "event order" for axis in axes) else ", for some of the recordings"
        return f"order of events, no time: one entry is drawn as 1 µs{some}"

    def _subtitle(self) -> str:
        sources = self.profile.sources[self.profile.sources["source"].isin(self.line.sources)]
        roles = list(dict.fromkeys(sources["role"].astype(str)))
        host = f" · host {self.line.host}" if self.line.host else ""
        return f"{self.line.run} · {', '.join(roles[:6])}{' …' if len(roles) > 6 else ''}{host}"

    def _series_header(self, k: int, track: Sequence[Series]) -> dict[str, Any]:
        peaks = {ledger: _highest(track, ledger) for ledger in ("allocated", "active", "reserved")}
        several = sum(other[0].pool == track[0].pool for other in self.tracks) > 1
        role = str(self.profile.sources.set_index("source").at[track[0].source, "role"])
        origins = {one.origin for one in track}
        caveat = {"rows": "from the totals written in the rows", "none": "no recorded totals: sum of the rows only"}
        some = "" if self.profile.complete else "a selection of blocks: the band below them also holds all others"
        return {
            "label": f"{track[0].pool} · {self.line.device}" + (f" · {role}" if several else ""),
            "pool": track[0].pool,
            "device": self.line.device,
            "peak": {key: [at[0] - self.t0, at[1]] for key, at in peaks.items() if at},
            "has_active": peaks["active"] is not None,
            "has_reserved": peaks["reserved"] is not None,
            "caveat": "; ".join(filter(None, [some, *(caveat[o] for o in sorted(origins & set(caveat)))])),
            "older_base": base_of(self.steps[f"older_{k}"]),
            "active_base": base_of(self.steps[f"active_{k}"]),
        }

    def _resident_header(self) -> dict[str, Any] | None:
        parts = [samples for one in self._sampled() if len(samples := self._process(one.source))]
        if not parts:
            return None
        gaps = np.concatenate([np.diff(part["t_ns"].to_numpy(np.int64)) for part in parts])
        interval = int(np.median(gaps)) if len(gaps) else 0
        kinds = self.profile.sources.set_index("source").loc[list(self.line.sources), "kind"]
        every = pd.concat(parts)
        at = int(np.argmax(to_int64(every["reserved_bytes"])))
        return {
            "label": f"process on device, {how_sampled(kinds, interval)}",
            "interval_ns": interval,
            "peak": [int(every["t_ns"].iloc[at]) - self.t0, int(every["reserved_bytes"].iloc[at])],
        }

    def _source_headers(self) -> list[dict[str, Any]]:
        sources = self.profile.sources.set_index("source")
        track_of = {one.source: k for k in reversed(range(len(self.tracks))) for one in self.tracks[k]}
        return [
            {
                "label": f"{sources.at[one.source, 'role']} #{sources.at[one.source, 'collection']}",
                "start": one.window[0] - self.t0,
                "end": one.window[1] + 1 - self.t0,
                "status": str(sources.at[one.source, "status"]),
                "series": track_of[one.source],
            }
            for one in self._sampled()
        ]

    def _phase(self, row: Any) -> dict[str, Any]:
        return {
            "name": str(row.name),
            "kind": str(row.kind),
            "start": int(row.start_ns) - self.t0,
            "end": int(row.end_ns) - self.t0,
            "peak_bytes": None if pd.isna(row.peak_bytes) else int(row.peak_bytes),
            "floor_bytes": None if pd.isna(row.floor_bytes) else int(row.floor_bytes),
        }

    def _marks(self) -> list[dict[str, Any]]:
        """Instants with a name: marks of the program, snapshots, failures."""
        marks = self.profile.marks
        mine = marks["source"].isin(self.line.sources) & ~marks["kind"].isin(["range", "step", "segment"])
        rows = marks[mine].sort_values("start_ns", kind="stable").head(MAX_MARKS)
        return [
            {"name": str(row.name), "kind": str(row.kind), "start": int(row.start_ns) - self.t0}
            for row in rows[["name", "kind", "start_ns"]].itertuples(index=False)
        ]

    # -- segments ---------------------------------------------------------------------------------------------

    def windows(self, *, bars_per_segment: int, max_segments: int) -> list[tuple[int, int]]:
        """Cut the span so that each part starts about as many blocks; at most ``max_segments`` parts."""
        n_parts = min(max(math.ceil(len(self.blocks.start) / bars_per_segment), 1), max_segments)
        inner = self.blocks.start[[len(self.blocks.start) * i // n_parts for i in range(1, n_parts)]]
        edges = [self.span[0], *sorted({int(t) for t in inner if self.span[0] < t < self.span[1]}), self.span[1]]
        return list(itertools.pairwise(edges))

    def segments(
        self,
        windows: Sequence[tuple[int, int]],
        hrefs: Sequence[str],
        *,
        index_href: str | None = None,
        place: str = "",
        only: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the encoded payload of each window, or of only one.

        Blocks alive at an edge are in both windows, with their true times.
        """
        shared = self.header()
        links = [{"href": h, "start": w[0], "end": w[1]} for h, w in zip(hrefs, windows, strict=True)]
        for number in range(len(windows)) if only is None else [only]:
            window = windows[number]
            own = {
                "window": list(window),
                "segment": number,
                "segments": links,
                "index_href": index_href,
                "place": place,
            }
            yield self._encode(shared | own, self.blocks.take(self.rows_in(window)), window)

    def rows_in(self, window: tuple[int, int]) -> Int64Array:
        """Return the positions in ``blocks`` of what the payload of a window holds, in its order."""
        return np.flatnonzero((self.blocks.start < window[1]) & (self.blocks.end > window[0]))

    def _encode(self, header: dict[str, Any], blocks: Blocks, window: tuple[int, int]) -> bytes:
        used, stack = np.unique(blocks.stack[blocks.stack >= 0], return_inverse=True)
        stacks = np.zeros(len(blocks.stack), dtype=np.int64)
        stacks[blocks.stack >= 0] = stack + 1
        late = np.flatnonzero(blocks.late)
        columns = {
            "id": blocks.block_id,
            "start": blocks.start,
            "life": blocks.end - blocks.start,
            "size": blocks.size,
            "name": blocks.name,
            "stack": stacks,
            "kind": blocks.kind,
            "class": blocks.lifetime,
            "series": blocks.series,
            **({"owner": blocks.owner} if self.owners else {}),
            **({"label": blocks.label} if self.labels else {}),
            "late_block": late,
            "late": blocks.late[late],
        }
        times = []
        for key, steps in self.steps.items():
            part = steps if key == "overview" else steps.within(*window)
            stem, _, number = key.partition("_")
            suffix = f"_{number}" if number else ""
            base = base_of(steps)
            columns[f"{stem}_t{suffix}"] = part.t
            columns[f"{stem}_v{suffix}"] = np.where(part.level == NA_NS, 0, part.level - base + 1)
            times.append(f"{stem}_t{suffix}")
        columns["layer_t"], levels = self.layers.within(*window)
        columns |= {f"layer_v_{i}": values + 1 for i, values in enumerate(levels)}
        columns |= (addresses := self.addresses.within(*window))
        times += ["layer_t", *(name for name in SORTED if name in addresses)]
        return encode_payload(header | self._stack_header(used), columns, delta=[*FALLING_NEVER, "late_block", *times])

    def _stack_header(self, used: Int64Array) -> dict[str, Any]:
        frame_of: dict[str, int] = {}
        stacks, sites = [], []
        for stack_id in used:
            frames = self.profile.frames(int(stack_id))
            stacks.append([frame_of.setdefault(frame, len(frame_of)) for frame in frames])
            sites.append(site_index(frames))
        return {
            "frames": list(frame_of),
            "plumbing": [int(is_plumbing(frame)) for frame in frame_of],
            "stacks": stacks,
            "sites": sites,
        }


def _highest(track: Sequence[Series], ledger: str) -> tuple[int, int] | None:
    found = [at for one in track if (at := one.peak(ledger))]
    return max(found, key=lambda at: at[1]) if found else None  # max keeps the first of equals
