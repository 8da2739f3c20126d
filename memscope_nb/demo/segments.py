"""Device segments: what the pool reserved from the driver, where the free ranges are, and what is backed by memory."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import NamedTuple

MIB = 1 << 20
SMALL_BYTES = 1 * MIB  # blocks up to here share small segments
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB  # larger blocks get a segment of their own size
GRAIN_BYTES = 2 * MIB


class Span(NamedTuple):
    """A piece of one segment."""

    segment: Segment
    address: int
    size: int


@dataclass(eq=False)
class Segment:
    """One reservation; ``free`` holds (address, size) in address order."""

    pool: str
    small: bool
    address: int
    size: int
    asleep: bool = False
    free: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_unused(self) -> bool:
        """Whether no block lies in it."""
        return self.free == [(self.address, self.size)]

    def carve(self, address: int, size: int) -> None:
        """Take ``size`` bytes from the front of the free range at ``address``."""
        at = next(i for i, (start, _) in enumerate(self.free) if start == address)
        start, length = self.free.pop(at)
        if length > size:
            self.free.insert(at, (start + size, length - size))

    def give_back(self, address: int, size: int) -> None:
        """Return a range and join it with its free neighbours."""
        insort(self.free, (address, size))
        merged: list[tuple[int, int]] = []
        for start, length in self.free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self.free = merged


class SegmentCache:
    """Best-fit cache of segments, in named pools that can be put to sleep.

    A sleeping pool keeps its addresses and its share of ``reserved_bytes``, but gives its memory back to the device.
    """

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._next_address = 0x12C0_4000_0000

    @property
    def reserved_bytes(self) -> int:
        """Size of all segments, asleep or not."""
        return sum(segment.size for segment in self._segments)

    @property
    def resident_bytes(self) -> int:
        """Size of the segments that are backed by device memory."""
        return sum(segment.size for segment in self._segments if not segment.asleep)

    def take(self, size: int, pool: str) -> Span:
        """Find room for a block, or reserve a new segment."""
        small = size <= SMALL_BYTES
        fits = [
            (length, address, segment)
            for segment in self._segments
            if segment.pool == pool and segment.small == small and not segment.asleep
            for address, length in segment.free
            if length >= size
        ]
        if fits:
            _, address, segment = min(fits, key=lambda fit: fit[:2])
        else:
            segment = self._reserve(size, pool, small=small)
            address = segment.address
        segment.carve(address, size)
        return Span(segment, address, size)

    def give_back(self, span: Span) -> None:
        """Return the room of a block to its segment, which stays reserved."""
        span.segment.give_back(span.address, span.size)

    def empty(self, pool: str) -> None:
        """Return the unused segments of a pool to the device."""
        self._segments = [s for s in self._segments if s.pool != pool or not s.is_unused]

    def set_asleep(self, pool: str, *, asleep: bool) -> None:
        """Unmap the memory behind a pool, or map it again."""
        for segment in self._segments:
            if segment.pool == pool:
                segment.asleep = asleep

    def _reserve(self, size: int, pool: str, *, small: bool) -> Segment:
        if small:
            length = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_BYTES:
            length = LARGE_SEGMENT_BYTES
        else:
            length = -(-size // GRAIN_BYTES) * GRAIN_BYTES
        segment = Segment(pool, small, self._next_address, length)
        segment.free.append((segment.address, length))
        self._next_address += length + GRAIN_BYTES  # a guard gap: ranges of two segments never touch
        self._segments.append(segment)
        return segment
