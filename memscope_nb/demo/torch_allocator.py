"""A caching allocator as PyTorch has it, small enough to read, that writes down what a memory snapshot holds.

Requests are rounded to 512 bytes and served from the small (up to 1 MiB) or the large half of a pool, from the
smallest free range of the same stream that is large enough; else the driver is asked for a new segment. Free ranges
join inside their segment. A block that another stream uses is freed in two parts. When the driver has nothing left,
whole idle segments go back to it; then the request fails.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .clock import Dice

MIB = 1 << 20
GRAIN_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
GUARD_BYTES = 2 * MIB
DEFAULT_POOL = (0, 0)
ACTIVE, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"

PoolId = tuple[int, int]
Frames = list[dict[str, Any]]
EPOCH_US = 1_780_000_000_000_000


@dataclass
class EventClock:
    """Microseconds since the epoch, a few later at each look; several entries may share one."""

    dice: Dice
    now: int = EPOCH_US

    def __call__(self) -> int:
        """Return the time of the next event."""
        self.now += self.dice.between(0, 40)
        return self.now


class OutOfDeviceMemoryError(Exception):
    """The allocator gave up."""


@dataclass(eq=False)
class TorchBlock:
    """A piece of a segment; pieces of one segment are linked in address order."""

    segment: TorchSegment
    addr: int
    size: int
    requested: int = 0
    state: str = FREE
    frames: Frames = field(default_factory=list)
    before: TorchBlock | None = None
    after: TorchBlock | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Order of free blocks: the smallest first, then by address."""
        return self.size, self.addr


@dataclass(eq=False)
class TorchSegment:
    """A range that the driver gave."""

    addr: int
    size: int
    stream: int
    pool: PoolId
    small: bool
    frames: Frames
    first: TorchBlock | None = None

    def blocks(self) -> list[TorchBlock]:
        """All pieces by address."""
        found, block = [], self.first
        while block is not None:
            found.append(block)
            block = block.after
        return found


class TorchAllocator:
    """One device.

    Parameters
    ----------
    device : int
        Number.
    device_bytes : int
        What the driver can give.
    max_entries : int
        Length of the ring of entries.
    clock : callable
        Returns µs since the epoch, later at each call.

    Attributes
    ----------
    n_entries : int
        Entries written since the history was last cleared, overwritten ones included.
    requested, peak_requested : int
        Bytes as asked for that are in use now, and the most since the history was last cleared.
    """

    def __init__(self, *, device: int, device_bytes: int, max_entries: int, clock: Callable[[], int]) -> None:
        self.device = device
        self.segments: dict[int, TorchSegment] = {}
        self.device_free = device_bytes
        self.n_entries = 0
        self.requested = self.peak_requested = 0
        self._clock = clock
        self._ring: deque[dict[str, Any]] = deque(maxlen=max_entries)
        self._free: dict[tuple[PoolId, int, bool], list[tuple[tuple[int, int], TorchBlock]]] = {}
        self._next = 0x7F00_0000_0000

    # -- what programs call ---------------------------------------------------------------------------------------

    def malloc(self, size: int, frames: Frames, *, stream: int = 0, pool: PoolId = DEFAULT_POOL) -> TorchBlock:
        """Allocate.

        Raises
        ------
        OutOfDeviceMemoryError
            If the driver has too little even after all idle segments were given back.
        """
        rounded = round_request(size)
        block = self._take(rounded, stream, pool)
        if block is None:
            length = segment_size(rounded)
            if length > self.device_free:
                self.empty_cache()
            if length > self.device_free:
                self._note("oom", None, rounded, stream, frames, pool, device_free=self.device_free)
                raise OutOfDeviceMemoryError(f"{size} B")
            block = self._grow(length, stream, pool, frames, small=rounded <= SMALL_BYTES)
        self._split(block, rounded)
        block.state, block.requested, block.frames = ACTIVE, size, frames
        self.requested += size
        self.peak_requested = max(self.peak_requested, self.requested)
        self._note("alloc", block.addr, size, stream, frames, pool)
        return block

    def free(self, block: TorchBlock, *, used_elsewhere: bool = False) -> None:
        """Free; ``used_elsewhere`` leaves the block to be completed later."""
        segment = block.segment
        self.requested -= block.requested
        self._note("free_requested", block.addr, block.requested, segment.stream, None, segment.pool)
        block.state = PENDING
        if not used_elsewhere:
            self.complete(block)

    def complete(self, block: TorchBlock) -> None:
        """Let a block go that was freed while another stream used it."""
        segment = block.segment
        self._note("free_completed", block.addr, block.requested, segment.stream, None, segment.pool)
        block.state, block.requested, block.frames = FREE, 0, []
        for near in (block.before, block.after):
            if near is not None and near.state == FREE:
                self._drop_free(near)
                block = _join(block, near)
        insort(self._list(segment), (block.key, block))

    def empty_cache(self) -> int:
        """Give whole idle segments back to the driver, private pools left out; return their bytes."""
        gone = [s for s in self.segments.values() if s.pool == DEFAULT_POOL and self._is_idle(s)]
        for segment in gone:
            assert segment.first is not None
            self._drop_free(segment.first)
            del self.segments[segment.addr]
            self.device_free += segment.size
            self._note("segment_free", segment.addr, segment.size, segment.stream, None, segment.pool)
        return sum(segment.size for segment in gone)

    # -- what a snapshot holds ------------------------------------------------------------------------------------

    def clear_history(self) -> None:
        """Start the history anew, as recording again does."""
        self._ring.clear()
        self.n_entries, self.peak_requested = 0, self.requested

    def entries(self) -> list[dict[str, Any]]:
        """Entries that are left, oldest first."""
        return list(self._ring)

    def note_snapshot(self) -> None:
        """Write the entry that a snapshot leaves."""
        active = sum(b.size for s in self.segments.values() for b in s.blocks() if b.state != FREE)
        self._note("snapshot", 0, active, 0, None, DEFAULT_POOL)

    def segment_dicts(self) -> list[dict[str, Any]]:
        """Return the state as a snapshot has it."""
        return [_segment_dict(self.device, self.segments[addr]) for addr in sorted(self.segments)]

    def totals(self) -> dict[str, int]:
        """Return reserved, allocated and pending bytes (rounded), and idle ones."""
        sums = dict.fromkeys((ACTIVE, PENDING, FREE), 0)
        for segment in self.segments.values():
            for block in segment.blocks():
                sums[block.state] += block.size
        reserved = sum(segment.size for segment in self.segments.values())
        return {"reserved": reserved, "allocated": sums[ACTIVE], "pending": sums[PENDING], "idle": sums[FREE]}

    # -- inside ---------------------------------------------------------------------------------------------------

    def _list(self, segment: TorchSegment) -> list[tuple[tuple[int, int], TorchBlock]]:
        return self._free.setdefault((segment.pool, segment.stream, segment.small), [])

    def _drop_free(self, block: TorchBlock) -> None:
        free = self._list(block.segment)
        del free[bisect_left(free, block.key, key=lambda item: item[0])]

    def _is_idle(self, segment: TorchSegment) -> bool:
        first = segment.first
        return first is not None and first.state == FREE and first.after is None

    def _take(self, rounded: int, stream: int, pool: PoolId) -> TorchBlock | None:
        free = self._free.get((pool, stream, rounded <= SMALL_BYTES), [])
        at = bisect_left(free, (rounded, 0), key=lambda item: item[0])
        return free.pop(at)[1] if at < len(free) else None

    def _grow(self, length: int, stream: int, pool: PoolId, frames: Frames, *, small: bool) -> TorchBlock:
        segment = TorchSegment(self._next, length, stream, pool, small, frames)
        self._next += length + GUARD_BYTES
        self.segments[segment.addr] = segment
        self.device_free -= length
        self._note("segment_alloc", segment.addr, length, stream, frames, pool)
        segment.first = TorchBlock(segment, segment.addr, length)
        return segment.first

    def _split(self, block: TorchBlock, rounded: int) -> None:
        """Cut off what is not needed: in small segments any rest, in large ones more than 1 MiB."""
        rest = block.size - rounded
        if rest < GRAIN_BYTES or (not block.segment.small and rest <= SMALL_BYTES):
            return
        after = TorchBlock(block.segment, block.addr + rounded, rest, before=block, after=block.after)
        if block.after is not None:
            block.after.before = after
        block.size, block.after = rounded, after
        insort(self._list(block.segment), (after.key, after))

    def _note(
        self,
        action: str,
        addr: int | None,
        size: int,
        stream: int,
        frames: Frames | None,
        pool: PoolId,
        **more: int,
    ) -> None:
        entry: dict[str, Any] = {"action": action, "size": size, "stream": stream, "time_us": self._clock(), **more}
        if addr is not None:
            entry["addr"] = addr
        if frames:
            entry["frames"] = frames
        if action != "snapshot":
            entry["pool_id"] = pool
        self._ring.append(entry)
        self.n_entries += 1


def _join(block: TorchBlock, near: TorchBlock) -> TorchBlock:
    """Make one free block of two neighbours; the one with the lower address stays."""
    low, high = (near, block) if near.addr < block.addr else (block, near)
    low.size += high.size
    low.after = high.after
    if high.after is not None:
        high.after.before = low
    low.state, low.requested, low.frames = FREE, 0, []
    return low


def _segment_dict(device: int, segment: TorchSegment) -> dict[str, Any]:
    blocks = segment.blocks()
    active = [block for block in blocks if block.state != FREE]
    return {
        "device": device,
        "address": segment.addr,
        "total_size": segment.size,
        "allocated_size": sum(block.size for block in active if block.state == ACTIVE),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": segment.pool,
        "is_expandable": False,
        "frames": segment.frames,
        "blocks": [
            {
                "address": block.addr,
                "size": block.size,
                "requested_size": block.requested,
                "state": block.state,
                "frames": block.frames,
            }
            for block in blocks
        ],
    }


def round_request(size: int) -> int:
    """Size of the block that serves a request."""
    return max(-(-size // GRAIN_BYTES), 1) * GRAIN_BYTES


def segment_size(rounded: int) -> int:
    """Size of a new segment for a rounded request."""
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if rounded < OWN_SEGMENT_BYTES else -(-rounded // SMALL_SEGMENT_BYTES) * (2 * MIB)


def stack_of(*frames: tuple[str, int, str]) -> Frames:
    """Return frames as a snapshot has them, from (file, line, function), innermost first."""
    return [{"filename": file, "line": line, "name": name} for file, line, name in frames]


def snapshot_dict(
    allocators: Sequence[TorchAllocator],
    *,
    settings: dict[str, Any] | None,
    annotations: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return the whole snapshot of the devices; ``settings=None`` writes none, as torch_npu and old files."""
    n_devices = max((one.device for one in allocators), default=-1) + 1
    traces: list[list[dict[str, Any]]] = [[] for _ in range(n_devices)]
    for one in allocators:
        traces[one.device] = one.entries()
    found: dict[str, Any] = {
        "segments": [segment for one in allocators for segment in one.segment_dicts()],
        "device_traces": traces,
    }
    if settings is not None:
        found |= {"allocator_settings": settings, "external_annotations": list(annotations)}
    return found


def allocator_settings(*, max_entries: int, overflowed: bool) -> dict[str, Any]:
    """Return the settings as a new PyTorch writes them, all at their defaults."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
        "trace_alloc_max_entries": max_entries,
        "trace_alloc_overflowed": overflowed,
    }


def write_snapshot(path: Path, snapshot: dict[str, Any], *, protocol: int = 4) -> Path:
    """Write a snapshot as PyTorch does: a pickle of plain containers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
    return path
