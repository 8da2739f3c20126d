"""What all results of analyses share: a frame, a JSON-ready form, caveats."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

REPR_ROWS = 10


@dataclass(frozen=True, repr=False)
class Result:
    """A table with what to know about it.

    Attributes
    ----------
    frame : pandas.DataFrame
        The answer, one row per finding.
    caveats : tuple of str
        What limits the answer: missing facts, sampling, guesses.
    """

    frame: pd.DataFrame = field(repr=False)
    caveats: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.frame

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {"rows": records(self.frame), "caveats": list(self.caveats)}

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}: {len(self.frame):,} rows"]
        if len(self.frame):
            lines += [self.frame.head(REPR_ROWS).to_string(max_colwidth=50)]
        return "\n".join([*lines, *(f"note: {caveat}" for caveat in self.caveats)])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{html.escape(caveat)}</li>" for caveat in self.caveats)
        return self.frame.to_html(escape=True, border=0, na_rep="") + (f"<ul>{items}</ul>" if items else "")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON-ready values: integers stay integers, unknown becomes null."""
    return [{str(key): plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def plain(value: Any) -> Any:
    """Turn a value of a table into one that JSON knows."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if value is None or value is pd.NA or value != value:
        return None
    return value.item() if hasattr(value, "item") else value
