"""``explore``: the viewer, live in a notebook, with its selection and range in Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import ipywidgets
import pandas as pd

from ..analysis.timeline import Timeline
from ..errors import InputError
from ..model import MemoryProfile
from ..view.payload import read_capacity
from .controls import Controls, Where
from .link import Link, pack_ids, unpack_ids
from .query import Instant, Wanted, find_ids, read_instant
from .scene import Scene, segment_of

Unsubscribe: TypeAlias = Callable[[], None]
Event: TypeAlias = Literal["select", "range"]


class Explorer:
    """A live view of a profile: what people choose in the browser is here, and what is set here shows there.

    It can be read and set before it is displayed, and without any browser. Shown several times, all copies stay in
    step. Nothing of it is stored in the notebook: without a kernel it is empty (:func:`memscope_nb.show` is not).

    Attributes
    ----------
    widget : ipywidgets.VBox
        Everything that is displayed, to be put into other layouts.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._lock = threading.RLock()  # newer kernels read a browser's messages beside the running cell
        self._turn = 0
        self._connected = False
        self._closed = False
        self._callbacks: dict[Event, list[Callable[[Any], object]]] = {"select": [], "range": []}
        layout = ipywidgets.Layout(width="100%")
        self._link = Link(self._receive, layout=layout)
        self._controls = Controls(scene, self._go)
        self.widget = ipywidgets.VBox([self._controls.box, self._link], layout=layout)

    # -- what is chosen and seen ------------------------------------------------------------------------------

    @property
    def selection(self) -> pd.DataFrame:
        """The selected blocks: rows of ``profile.blocks`` with the text of their ``site``."""
        with self._lock:
            return self._scene.table(self._scene.rows_of(self._scene.chosen))

    @property
    def visible(self) -> pd.DataFrame:
        """The blocks of the pool that are in view and pass the filters of the browser, as :attr:`selection`.

        The browser says so a moment after every move. Until then, and without a browser, these are all blocks of the
        pool that are alive in the range.
        """
        with self._lock:
            return self._scene.table(self._scene.rows_of(self._scene.visible_ids()))

    @property
    def range(self) -> tuple[int, int]:
        """What is shown, ``(start, end)`` in epoch ns. Set it to integers or pandas Timestamps (no time zone: UTC).

        A range that spans several segments is cut to the one that holds most of it.

        Raises
        ------
        InputError
            On setting what is no pair of instants, an empty range, or one outside the timeline.
        """
        with self._lock:
            return self._scene.range_ns

    @range.setter
    def range(self, value: tuple[Instant, Instant]) -> None:
        try:
            start, end = value
        except (TypeError, ValueError):
            raise InputError(f"range is a pair of instants, start and end, not {value!r}") from None
        with self._lock:
            number = self._scene.number
            changed = self._scene.set_range(read_instant(start), read_instant(end))
            if changed:
                self._push(number)
        if changed:
            self._announce("range")

    @property
    def timeline(self) -> Timeline:
        """The timeline shown: one rank on one device."""
        return self._scene.timeline

    # -- acting -----------------------------------------------------------------------------------------------

    def select(self, what: Wanted) -> pd.DataFrame:
        """Select blocks, in the browser too, and return them.

        Parameters
        ----------
        what : str, int, ints or DataFrame
            A pandas query over the blocks of the timeline shown and their ``site`` (``"size_bytes > 2**20"``), or else
            a text that their name or site contains; ids of any blocks; a table with a column ``block_id``. An empty
            list selects nothing.

        Raises
        ------
        InputError
            If a text is neither a query nor part of any name or site, or if there is no block of some id.
        """
        scene = self._scene
        with self._lock:
            table = scene.table(scene.line_rows()) if isinstance(what, str) else pd.DataFrame()
            changed = scene.choose(find_ids(what, table))
            if changed:
                self._push(scene.number)
            found = self.selection
        if changed:
            self._announce("select")
        return found

    def focus(self, block_id: int) -> None:
        """Show one block and select it: its timeline, segment and pool, zoomed in until it is seen.

        Raises
        ------
        InputError
            If there is no such block.
        """
        scene = self._scene
        (wanted,) = find_ids(block_id, pd.DataFrame())
        with self._lock:
            number, before = scene.number, scene.range_ns
            scene.focus(int(wanted))
            selected = scene.choose([wanted])
            self._push(number)
            moved = scene.range_ns != before
        self._announce(*_events(selected, moved))

    def on_select(self, call: Callable[[pd.DataFrame], object]) -> Unsubscribe:
        """Call a function with :attr:`selection` whenever it changes; return a function that ends this."""
        return self._subscribe("select", call)

    def on_range(self, call: Callable[[tuple[int, int]], object]) -> Unsubscribe:
        """Call a function with :attr:`range` whenever it changes; return a function that ends this."""
        return self._subscribe("range", call)

    def close(self) -> None:
        """Remove every copy from the notebook and free what it holds in the browser."""
        if self._closed:
            return
        self._closed = True
        for calls in self._callbacks.values():
            calls.clear()
        self._link.leave()
        for part in (*self._controls.widgets(), self.widget.layout, self.widget, self._link.layout, self._link):
            part.unobserve_all()
            part.close()

    # -- showing ----------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        scene = self._scene
        pool = scene.header["series"][scene.series]["label"]
        parts = [f"Explorer of {scene.timeline.label}, {pool}", f"{len(scene.visible_ids()):,} blocks in view"]
        if len(scene.windows) > 1:
            parts.insert(1, f"segment {scene.segment + 1} of {len(scene.windows)}")
        parts.append(f"{len(scene.chosen):,} selected")
        return ", ".join(parts) + (" (closed)" if self._closed else "")

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        text = {"text/plain": repr(self)}
        if self._closed:
            return text
        return {**self.widget._repr_mimebundle_(**options), **text}

    # -- inside -----------------------------------------------------------------------------------------------

    def _subscribe(self, event: Event, call: Callable[[Any], object]) -> Unsubscribe:
        if not callable(call):
            raise InputError(f"on_{event} needs a function, not {call!r}")
        calls = self._callbacks[event]

        def called(value: Any) -> object:  # its own object: the same function may come twice
            return call(value)

        calls.append(called)
        return lambda: calls.remove(called) if called in calls else None

    def _announce(self, *events: Event) -> None:
        for event in events:
            for call in list(self._callbacks[event]):
                call(self.selection if event == "select" else self.range)

    def _go(self, kind: Where, value: int | None) -> None:
        """Go where a selector says; recording None is the whole segment."""
        scene = self._scene
        with self._lock:
            number, before = scene.number, scene.range_ns
            if kind == "source":
                scene.show_source(value)
            else:
                scene.go(**{kind: value})
            self._push(number)
            moved = scene.range_ns != before
        self._announce(*_events(False, moved))

    def _push(self, number: int, *, origin: str | None = None) -> None:
        """Tell the browsers where the scene stands; all anew if its number is another one than before."""
        if origin is None:
            self._turn += 1
        self._controls.follow()
        if not self._connected or self._closed:
            return
        if self._scene.number != number:
            self._post_scene()
        else:
            self._link.post("state", self._ids(), **self._place(), **{"from": origin})

    def _post_scene(self, to: str | None = None) -> None:
        self._link.post("scene", self._scene.payload(), self._ids(), **self._place(), to=to)

    def _place(self) -> dict[str, Any]:
        scene = self._scene
        offsets = None if scene.offsets is None else list(scene.offsets)
        return {"key": scene.number, "turn": self._turn, "range": offsets, "series": scene.series}

    def _ids(self) -> bytes:
        return pack_ids(self._scene.chosen)

    # -- messages ---------------------------------------------------------------------------------------------

    def _receive(self, content: dict[str, Any], buffers: Sequence[memoryview]) -> None:
        """Answer a browser."""
        origin = str(content.get("from"))
        with self._lock:
            chosen, before = self._scene.chosen, self._scene.range_ns
            try:
                self._answer(content, buffers, origin)
            except Exception as error:
                self._link.post("problem", text=f"{type(error).__name__}: {error}", to=origin)
                raise
            events = _events(chosen is not self._scene.chosen, before != self._scene.range_ns)
        self._announce(*events)

    def _answer(self, content: dict[str, Any], buffers: Sequence[memoryview], origin: str) -> None:
        """Take over what a browser tells, if it knew the present state."""
        kind = content.get("kind")
        number = self._scene.number
        known = (content.get("scene"), content.get("turn")) == (number, self._turn)
        if kind == "kit":
            self._link.post_kit(origin)
        elif kind == "hello":
            self._connected = True
            self._post_scene(origin)
        elif kind == "view":
            self._link.post("ack", to=origin)
            if known and self._read_view(content, buffers):
                self._push(number, origin=origin)
        elif kind == "select" and known:
            if self._scene.choose(unpack_ids(buffers[0] if buffers else b"")):  # no ids, no buffer
                self._push(number, origin=origin)
        elif kind == "segment" and self._read_segment(content):
            self._push(number)

    def _read_view(self, content: dict[str, Any], buffers: Sequence[memoryview]) -> bool:
        t0, t1, series = (content.get(key) for key in ("t0", "t1", "series"))
        if type(t0) is not int or type(t1) is not int or type(series) is not int:
            return False
        return self._scene.follow((t0, t1), series, bytes(buffers[0]) if buffers else None)

    def _read_segment(self, content: dict[str, Any]) -> bool:
        segment = segment_of(str(content.get("href")))
        if segment is None or not 0 <= segment < len(self._scene.windows):
            return False
        t0, t1 = content.get("t0"), content.get("t1")
        changed = self._scene.go(segment=segment)
        return (type(t0) is int and type(t1) is int and self._scene.shift((t0, t1))) or changed


def _events(selected: bool, moved: bool) -> list[Event]:
    events: list[Event] = []
    if selected:
        events.append("select")
    if moved:
        events.append("range")
    return events


def explore(
    profile: MemoryProfile,
    *,
    rank: int | None = None,
    device: str | None = None,
    bars_per_segment: int = 100_000,
    capacity: str | int | None = None,
) -> Explorer:
    """Explore a profile in the notebook: the interactive view, with its selection and range in Python.

    Needs a running kernel; for a view that a saved notebook keeps, see :func:`memscope_nb.show`.

    Parameters
    ----------
    profile : MemoryProfile
        What to show.
    rank, device : optional
        Which timeline to start with; the first one by default. Selectors above the plots lead to the others.
    bars_per_segment : int
        Most blocks that the browser gets at once; longer timelines are cut into segments.
    capacity : str or int, optional
        Memory of a device, for instance ``"61 GiB"``, drawn as a line.

    Raises
    ------
    InputError
        If there is no such timeline.
    """
    return Explorer(
        Scene(
            profile,
            rank=rank,
            device=device,
            bars_per_segment=bars_per_segment,
            capacity_bytes=read_capacity(capacity),
        )
    )
