"""Give freed memory back to the system, where the C library keeps it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library than glibc: it has its own ways
        return None


def give_back() -> None:
    """Return free pages of the heap to the system.

    Columns of some megabytes come from the heap of glibc, which keeps the holes between living ones: after reading a
    million rows as much again as the result. Costs a few milliseconds.
    """
    if (trim := _trim()) is not None:
        trim(0)
