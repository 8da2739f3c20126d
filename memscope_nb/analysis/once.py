"""Answers that many analyses start from are worked out once for a profile and kept as long as it lives."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from ..model import MemoryProfile

Answer = TypeVar("Answer")


def once_a_profile(ask: Callable[[MemoryProfile], Answer]) -> Callable[[MemoryProfile], Answer]:
    """Decorate a function of a profile alone. Its tables are read-only, so that the first answer stays true."""
    known: WeakKeyDictionary[MemoryProfile, Answer] = WeakKeyDictionary()

    @wraps(ask)
    def answer(profile: MemoryProfile) -> Answer:
        if profile not in known:
            known[profile] = ask(profile)
        return known[profile]

    return answer
