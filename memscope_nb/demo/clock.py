"""Time and chance of a simulated process, both reproducible."""

from __future__ import annotations

import random

TICK_NS = 10  # grain of the host counter that stamps allocator events (100 MHz)


class Dice:
    """Random choices from the one generator call that Python keeps stable between versions."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + int(self._random.random() * (high - low + 1))


class Clock:
    """Host time of one process in integer nanoseconds; every step moves it by at least one tick."""

    def __init__(self, start_ns: int, dice: Dice) -> None:
        self.now = start_ns - start_ns % TICK_NS
        self._dice = dice

    def advance(self, n_ns: int) -> int:
        """Move on by about ``n_ns`` and return the new time."""
        self.now += max(TICK_NS, n_ns - n_ns % TICK_NS)
        return self.now

    def spend(self, low_ns: int, high_ns: int) -> int:
        """Move on by a random span and return the new time."""
        return self.advance(self._dice.between(low_ns, high_ns))

    def wait_until(self, t_ns: int) -> int:
        """Move on to ``t_ns``, or hardly at all when it has passed, and return the new time."""
        return self.advance(t_ns - self.now)
