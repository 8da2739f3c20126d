"""A tiny caching allocator that keeps the books the way the profiler reports them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .clock import Clock
from .records import EventKind, PoolEvent, Stack, StackKind, Totals
from .segments import SegmentCache, Span

BLOCK_GRAIN_BYTES = 512
PADDING_BYTES = 32
# One record in so many gets lost on its way; the totals of the others stay right.
LOST_BLOCK_FREE_EVERY = 29
LOST_FREE_EVERY = 43


def block_bytes(request: int) -> int:
    """Size of the block that serves a request: padded, then rounded up to the grain."""
    return -(-(request + PADDING_BYTES) // BLOCK_GRAIN_BYTES) * BLOCK_GRAIN_BYTES


@dataclass(frozen=True)
class Label:
    """Who asked for a block."""

    name: str
    tid: int
    op_id: int | None = None
    stack: Stack = ()
    stack_kind: StackKind = "none"
    is_leak: bool = False


UNKNOWN = Label(name="", tid=0)


@dataclass(eq=False)
class Allocation:
    """One block of the process while it lives, recorded or not; ``window`` is the one it was born in."""

    block_id: int
    size: int
    span: Span
    stream: int
    window: int
    label: Label
    alloc_ns: int
    at_alloc: Totals
    free_ns: int | None = None
    block_free_ns: int | None = None
    at_release: Totals | None = None


@dataclass
class WindowLog:
    """What one window recorded, with the running account of memory older than it."""

    number: int
    older_bytes: int
    older_active_bytes: int
    older_start_bytes: int
    events: list[PoolEvent] = field(default_factory=list)
    rows: list[Allocation] = field(default_factory=list)
    older_falls: int = 0


class CachingAllocator:
    """Allocates blocks over a `SegmentCache`; records events only while a window is open.

    Attributes
    ----------
    residency : list of (int, int)
        Time and device memory behind the pool, one entry whenever it may have changed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cache = SegmentCache()
        self._allocated = 0
        self._active = 0
        self._next_id = 0
        self._n_frees = 0
        self._n_windows = 0
        self._log: WindowLog | None = None
        self.residency: list[tuple[int, int]] = [(clock.now, 0)]

    @property
    def totals(self) -> Totals:
        """The state right now."""
        return Totals(self._allocated, self._cache.reserved_bytes, self._active)

    def open_window(self) -> WindowLog:
        """Start to record."""
        self._n_windows += 1
        self._log = WindowLog(self._n_windows, self._allocated, self._active, self._allocated)
        return self._log

    def close_window(self) -> None:
        """Stop to record."""
        self._log = None

    def malloc(
        self,
        size: int,
        *,
        label: Label = UNKNOWN,
        pool: str = "default",
        stream: int = 2,
        delay_ns: int | None = None,
    ) -> Allocation:
        """Allocate a block of exactly ``size`` bytes, ``delay_ns`` from now."""
        if size <= 0 or size % BLOCK_GRAIN_BYTES:
            raise ValueError(f"a block of {size} B is not a positive multiple of {BLOCK_GRAIN_BYTES} B")
        span = self._cache.take(size, pool)
        now = self._clock.spend(400, 2_500) if delay_ns is None else self._clock.advance(delay_ns)
        self._allocated += size
        self._active += size
        self._next_id += 1
        window = self._log.number if self._log else 0
        block = Allocation(self._next_id, size, span, stream, window, label, now, self.totals)
        if self._log:
            self._log.rows.append(block)
        self._record("malloc", block)
        self._note_residency()
        return block

    def free(self, block: Allocation) -> None:
        """Free a block that no other stream uses: the block free is reported first, inside the free call."""
        self._clock.spend(300, 1_500)
        self._drop_allocated(block)
        self._drop_active(block)
        lost = self._next_lost(block)
        if lost != "block_free":
            self._report(block, "block_free")
        self._clock.spend(300, 6_000)
        if lost != "free":
            self._report(block, "free")

    def free_later(self, block: Allocation) -> None:
        """Free a block that another stream still uses; it stays active until `complete`."""
        self._clock.spend(300, 1_500)
        self._drop_allocated(block)
        self._report(block, "free")

    def complete(self, block: Allocation) -> None:
        """Report the block free of a block given to `free_later`."""
        self._clock.spend(300, 1_500)
        self._drop_active(block)
        self._report(block, "block_free")

    def empty_cache(self, pool: str = "default") -> None:
        """Return unused segments to the device; only the next record shows it."""
        self._clock.spend(200_000, 900_000)
        self._cache.empty(pool)
        self._note_residency()

    def sleep(self, pool: str) -> None:
        """Give the memory behind a pool back to the device; its blocks stay counted."""
        self._clock.spend(2_000_000, 9_000_000)
        self._cache.set_asleep(pool, asleep=True)
        self._note_residency()

    def wake(self, pool: str) -> None:
        """Put memory behind a pool again."""
        self._clock.spend(2_000_000, 9_000_000)
        self._cache.set_asleep(pool, asleep=False)
        self._note_residency()

    def _drop_allocated(self, block: Allocation) -> None:
        self._allocated -= block.size
        if self._log and block.window != self._log.number:
            self._log.older_bytes -= block.size
            self._log.older_falls += 1

    def _drop_active(self, block: Allocation) -> None:
        self._active -= block.size
        self._cache.give_back(block.span)
        if self._log and block.window != self._log.number:
            self._log.older_active_bytes -= block.size

    def _next_lost(self, block: Allocation) -> EventKind | None:
        if self._log is None or block.window != self._log.number:
            return None
        self._n_frees += 1
        if self._n_frees % LOST_BLOCK_FREE_EVERY == 0:
            return "block_free"
        return "free" if self._n_frees % LOST_FREE_EVERY == 0 else None

    def _report(self, block: Allocation, kind: EventKind) -> None:
        """Record the event and, for a block of this window, note it in the block's row."""
        self._record(kind, block)
        if self._log is None or block.window != self._log.number:
            return
        if kind == "free":
            block.free_ns, block.at_release = self._clock.now, self.totals
        else:
            block.block_free_ns = self._clock.now
            if block.at_release is None:  # replaced by the free, should it be seen
                block.at_release = self.totals

    def _record(self, kind: EventKind, block: Allocation) -> None:
        if self._log is None:
            return
        address, now = block.span.address, self._clock.now
        self._log.events.append(PoolEvent(now, kind, block.block_id, address, block.size, block.stream, self.totals))

    def _note_residency(self) -> None:
        self.residency.append((self._clock.now, self._cache.resident_bytes))
