"""What a reader has to say about its input: counted, with a first example each, never lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OnBytes = Callable[[int], None]
"""Called by readers with the number of bytes just read."""


def ignore_bytes(n_bytes: int) -> None:
    """Do nothing: the progress of nobody."""


def sound_text(value: Any) -> Any:
    r"""Write what no text can hold (half characters, bytes of file names that are not UTF-8) as ``\udcff``.

    Applies to a text or a tuple of texts; anything else is returned as it is.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return tuple(map(sound_text, value)) if isinstance(value, tuple) else value


@dataclass
class Note:
    """One kind of remark: how often, and the first place."""

    text: str
    count: int = 0
    example: str = ""

    def __str__(self) -> str:
        times = (
            f" ({self.count}x, first: {self.example})"
            if self.example
            else f" ({self.count}x)"
            if self.count > 1
            else ""
        )
        return self.text + times


@dataclass
class ReadReport:
    """Remarks and counts of reading one source."""

    n_skipped: int = 0
    n_repaired: int = 0
    notes: dict[str, Note] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    partial: bool = False

    def note(self, text: str, count: int = 1, example: str = "") -> None:
        """Count a remark; the first example is kept."""
        note = self.notes.setdefault(text, Note(text, example=example))
        note.count += count

    def skip(self, text: str, count: int = 1, example: str = "") -> None:
        """Count rows that could not be used."""
        self.n_skipped += count
        self.note(text, count, example)

    def repair(self, text: str, count: int = 1, example: str = "") -> None:
        """Count values that were used after a repair."""
        self.n_repaired += count
        self.note(text, count, example)

    def count(self, fact: str, number: int) -> None:
        """Add to a counter among the facts."""
        before = self.facts.get(fact, 0)
        self.facts[fact] = (before if isinstance(before, int) else 0) + number

    def lose(self, text: str) -> None:
        """Note that a part is missing: the source becomes partial."""
        self.partial = True
        self.note(text)

    @property
    def warnings(self) -> tuple[str, ...]:
        """All remarks as text."""
        return tuple(str(note) for note in self.notes.values())
