"""How a caching allocator of PyTorch turns a request into a block (spec/pytorch 1.3, 1.6, 1.7, 1.8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model import Int64Array
from ..units import MIB

GRAIN_BYTES = 512
SMALL_BYTES = MIB
"""Requests up to here are served by small segments."""
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB
"""From here on a new segment is as large as the request, in steps of 2 MiB."""
NPU_PADDING_BYTES = 32
_OFF = 1 << 60


@dataclass(frozen=True)
class Rounding:
    """Rules of one recording.

    Attributes
    ----------
    padding_bytes : int
        What torch_npu adds before it rounds.
    divisions : mapping
        Size in MiB (a power of two) to the number of steps up to the next power of two.
    max_split_bytes : int, optional
        Blocks from this size on are not split; ``None`` if the setting is off or not recorded.
    """

    padding_bytes: int = 0
    divisions: Mapping[int, int] | None = None
    max_split_bytes: int | None = None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Rounding:
        """Take the rules from what the reader found out about a source."""
        settings = facts.get("allocator_settings") or {}
        found = settings.get("roundup_power2_divisions") or {}
        divisions = {int(key): int(value) for key, value in found.items() if str(key).isdecimal() and int(key) > 0}
        split = settings.get("max_split_size")
        limit = split if isinstance(split, int) and 0 < split < _OFF else None
        padding = NPU_PADDING_BYTES if facts.get("backend") == "NPU" else 0
        return cls(padding, divisions if any(value > 1 for value in divisions.values()) else None, limit)

    def round(self, n_bytes: int) -> int:
        """Return the size of the block that serves a request."""
        size = n_bytes + self.padding_bytes
        if size < GRAIN_BYTES:
            return GRAIN_BYTES
        steps = self._steps(size)
        if steps > 1 and size > GRAIN_BYTES * steps:
            return _next_step(size, steps)
        return -(-size // GRAIN_BYTES) * GRAIN_BYTES

    def round_all(self, sizes: Int64Array) -> Int64Array:
        """Round many requests."""
        different, where = np.unique(sizes, return_inverse=True)
        return np.array([self.round(int(size)) for size in different], dtype=np.int64)[where.reshape(-1)]

    def _steps(self, size: int) -> int:
        """Steps for a size: keys are powers of two in MiB, below 1 MiB the first one counts, the last one upwards."""
        if not self.divisions:
            return 1
        key = 1 << max(size.bit_length() - 1 - 20, 0)
        at_most = [known for known in self.divisions if known <= key]
        return self.divisions[max(at_most)] if at_most else 1


def _next_step(size: int, steps: int) -> int:
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor >> (steps.bit_length() - 1)
    return floor << 1 if step == 0 else -(-size // step) * step


def size_class(block_bytes: int) -> str:
    """Name the half of a pool that serves a rounded request."""
    return "small" if block_bytes <= SMALL_BYTES else "large"


def segment_bytes(block_bytes: int) -> int:
    """Return the size of the segment that the driver is asked for to serve a rounded request."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-block_bytes // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
