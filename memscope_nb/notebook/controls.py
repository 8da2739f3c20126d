"""The selectors above an explorer's plots: run, rank, device, pool, segment, recording; and what is selected."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import ipywidgets
import pandas as pd
from ipywidgets.widgets.widget_description import DescriptionStyle

from ..analysis.timeline import Timeline
from ..units import format_bytes, format_duration
from .scene import Scene

Where: TypeAlias = Literal["line", "segment", "series", "source"]
Tree: TypeAlias = "dict[str, dict[str, dict[str, int]]]"
"""Run, rank, device to the position of a timeline."""

_SHOWN = 3


def timeline_tree(scene: Scene) -> Tree:
    """Sort timelines by run, rank and device; a source without a rank goes by its role."""
    sources = scene.profile.sources.set_index("source")
    tree: Tree = {}
    for number, line in enumerate(scene.lines):
        rank = f"rank {line.rank_id}" if line.rank_id is not None else _source_name(sources, line)
        devices = tree.setdefault(line.run, {}).setdefault(rank, {})
        device = line.device + (f" · part {line.part + 1}" if line.part else "")
        while device in devices:
            device += " ′"
        devices[device] = number
    return tree


def _source_name(sources: pd.DataFrame, line: Timeline) -> str:
    whose = sources.loc[line.sources[0]]
    return f"{whose['role']} #{whose['collection']}"


class Controls:
    """Selectors that follow a scene, and tell where people want to go.

    Parameters
    ----------
    scene : Scene
        What they show.
    go : callable
        Called when someone chooses, with the kind and the position of what is wanted.
    """

    def __init__(self, scene: Scene, go: Callable[[Where, int | None], None]) -> None:
        self._scene, self._go, self._following = scene, go, False
        self._tree = timeline_tree(scene)
        self._layout = ipywidgets.Layout(width="auto")
        self._style = DescriptionStyle(description_width="initial")
        self.run, self.rank, self.device, self.pool, self.segment, self.source = (
            self._select(name, action)
            for name, action in (
                ("Run", self._pick_run),
                ("Rank", self._pick_rank),
                ("Device", self._pick_device),
                ("Pool", lambda value: go("series", value)),
                ("Segment", lambda value: go("segment", value)),
                ("Recording", lambda value: go("source", value)),
            )
        )
        self.text = ipywidgets.HTML(layout=self._layout)
        self.box = ipywidgets.HBox(layout=ipywidgets.Layout(flex_flow="row wrap", align_items="center"))
        self.follow()

    def _select(self, name: str, action: Callable[[Any], None]) -> ipywidgets.Dropdown:
        dropdown = ipywidgets.Dropdown(description=name, layout=self._layout, style=self._style)

        def changed(change: dict[str, Any]) -> None:
            if not self._following:
                action(change["new"])

        dropdown.observe(changed, "value")
        return dropdown

    def _pick_run(self, run: str) -> None:
        self._go("line", next(iter(next(iter(self._tree[run].values())).values())))

    def _pick_rank(self, rank: str) -> None:
        devices = self._tree[self.run.value][rank]
        self._go("line", devices.get(self.device.value, next(iter(devices.values()))))

    def _pick_device(self, device: str) -> None:
        self._go("line", self._tree[self.run.value][self.rank.value][device])

    # -- following --------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Show where the scene stands."""
        scene = self._scene
        run, rank, device = next(
            (run, rank, device)
            for run, ranks in self._tree.items()
            for rank, devices in ranks.items()
            for device, number in devices.items()
            if number == scene.line
        )
        segments = [(f"{k + 1} of {len(scene.windows)}", k) for k in range(len(scene.windows))]
        pools = [(one["label"], k) for k, one in enumerate(scene.header["series"])]
        self._following = True
        try:
            for dropdown, options, value in (
                (self.run, [(name, name) for name in self._tree], run),
                (self.rank, [(name, name) for name in self._tree[run]], rank),
                (self.device, [(name, name) for name in self._tree[run][rank]], device),
                (self.pool, pools, scene.series),
                (self.segment, segments, scene.segment),
                (self.source, [("all", None), *self._sources()], self._source()),
            ):
                if tuple(options) != dropdown.options:
                    dropdown.options = tuple(options)
                dropdown.value = value
        finally:
            self._following = False
        self.text.value = self._chosen()
        every = (self.run, self.rank, self.device, self.pool, self.segment, self.source)
        least = {self.rank: 1, self.source: 3}
        self.box.children = (*(one for one in every if len(one.options) >= least.get(one, 2)), self.text)

    def _sources(self) -> list[tuple[str, int]]:
        return [(f"{one['label']}, {format_duration(one['end'] - one['start'])}", k) for k, one in self._windows()]

    def _windows(self) -> Sequence[tuple[int, dict[str, Any]]]:
        return list(enumerate(self._scene.header["sources"]))

    def _source(self) -> int | None:
        """Return the recording that is in view if it is the only one."""
        start, end = self._scene.offsets or self._scene.windows[self._scene.segment]
        seen = [k for k, one in self._windows() if one["start"] < end and one["end"] > start]
        return seen[0] if len(seen) == 1 else None

    def _chosen(self) -> str:
        """Write what is selected; names are data, so they are escaped."""
        chosen = self._scene.chosen
        if not len(chosen):
            return "Click a bar to select its block."
        blocks = self._scene.profile.blocks.iloc[self._scene.rows_of(chosen)]
        names = [
            f"{str(row.name)[:60]} #{row.block_id}"
            for row in blocks.head(_SHOWN)[["name", "block_id"]].itertuples(index=False)
        ]
        more = f" and {len(blocks) - _SHOWN:,} more" if len(blocks) > _SHOWN else ""
        total = format_bytes(int(blocks["size_bytes"].sum()))
        return html.escape(f"Selected: {', '.join(names)}{more} · {total}")

    def widgets(self) -> list[ipywidgets.Widget]:
        """Return every widget that was made here, to be closed."""
        inner = [self.run, self.rank, self.device, self.pool, self.segment, self.source, self.text, self.box]
        return [*inner, *(one.style for one in inner if hasattr(one, "style")), *(one.layout for one in inner)]
