"""The graph engine's memory pool, which shares nothing with the framework's pool but the clock."""

from __future__ import annotations

from .clock import Clock
from .records import GraphBlock, GraphEvent

RESERVED_BYTES = 76 << 20


class GraphPool:
    """Allocates in bursts, one a graph run, and records while asked to.

    Attributes
    ----------
    blocks : list of GraphBlock
        In order of release, hence not in order of allocation; those without release come last.
    events : list of GraphEvent
        In order of time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allocated = 0
        self.clear()

    def clear(self) -> None:
        """Forget the records, before a new collection; the level stays."""
        self.blocks: list[GraphBlock] = []
        self.events: list[GraphEvent] = []

    def run(self, names_and_sizes: list[tuple[str, int]], *, keep_last: bool) -> None:
        """Allocate all, then release in reverse order; with ``keep_last`` the last one stays."""
        live = []
        for name, size in names_and_sizes:
            self._clock.spend(9_000, 40_000)
            self._allocate(size)
            live.append((name, size, self._clock.now, self._allocated))
        kept = [live.pop()] if keep_last else []
        for name, size, start, level in reversed(live):
            self._clock.spend(5_000, 30_000)
            at_release = self._release(size)
            self.blocks.append(GraphBlock(name, size, start, self._clock.now, level, at_release, RESERVED_BYTES))
        self.blocks += [
            GraphBlock(name, size, start, None, level, None, RESERVED_BYTES) for name, size, start, level in kept
        ]

    def _allocate(self, n_bytes: int) -> None:
        self._allocated += n_bytes
        self.events.append(GraphEvent(self._clock.now, self._allocated, RESERVED_BYTES))

    def _release(self, n_bytes: int) -> int:
        """Record the level as real files do: at a release it still counts the released block."""
        level = self._allocated
        self.events.append(GraphEvent(self._clock.now, level, RESERVED_BYTES))
        self._allocated -= n_bytes
        return level
