"""The answer about pools at an instant: tables, sentences, and how they read at a prompt and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ..units import format_bytes
from .result import Result, records

MAX_LINES = 60


@dataclass(frozen=True, repr=False)
class PoolAt(Result):
    """Pools at an instant, one row a device in ``frame``.

    Attributes
    ----------
    frame : pandas.DataFrame
        Terms that add up: ``reserved_bytes`` = ``allocated_bytes`` + ``pending_bytes`` + ``idle_bytes``, and
        ``idle_bytes`` = the sum of the columns named after ``reasons``. Sizes of blocks are rounded, as the allocator
        counts them. ``verdict``: ``fragmented`` (the stream asked for has enough idle, in pieces), ``out of reach``
        (there is enough idle, for others), ``device full``, ``not capacity`` (the driver had enough), ``fits`` (of a
        request that was made up), ``undecided``, ``no request``. ``fits_without``: whether a few blocks stood in the
        way. ``history``: ``whole``, ``cut`` (the ring overflowed), ``late``, ``late or cut`` (not recorded which),
        ``none``. ``device_total_bytes`` is not in snapshots.
    reasons : pandas.DataFrame
        Idle bytes, ranges and the longest one for each device and reason.
    ranges : pandas.DataFrame
        Every free range, with the reason, and the ``block_id`` on either side (-1: the segment ends).
    pins : pandas.DataFrame
        Blocks beside free ranges, with what is idle before and after each, and who allocated them.
    fits : pandas.DataFrame
        Blocks without which the request would fit: by ``route`` ``merge`` in one segment (the fewest bytes), by
        ``release`` of whole segments to the driver (a good choice, not proven the best); ``frames`` innermost first.
    domains : pandas.DataFrame
        Figures for each pool, stream and size class.
    checks : pandas.DataFrame
        The terms against independent records.
    advice : tuple of str
        What the evidence suggests.
    answer : tuple of str
        The terms in sentences.
    """

    reasons: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    ranges: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    pins: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    fits: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    domains: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    checks: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    advice: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()

    def to_dict(self, *, top: int = 50) -> dict[str, Any]:
        """Return everything as JSON-ready values; of ranges and pins the ``top`` largest of each device."""
        tables = {key: getattr(self, key) for key in ("reasons", "fits", "domains", "checks")}
        for key, by in (("ranges", "size_bytes"), ("pins", "idle_bytes")):
            table = getattr(self, key)
            ordered = table.sort_values(by, ascending=False, kind="stable") if len(table) else table
            tables[key] = ordered.groupby("source", sort=False).head(top) if len(table) else table
        more = {key: records(table) for key, table in tables.items()}
        return super().to_dict() | more | {"answer": list(self.answer), "advice": list(self.advice)}

    def __repr__(self) -> str:
        return told_text(self.answer, self.advice, self.caveats)

    def _repr_html_(self) -> str:
        return told_html(self.answer, (self.reasons, self.fits.drop(columns="frames")), self.advice, self.caveats)


def told_text(answer: Sequence[str], advice: Sequence[str], caveats: Sequence[str]) -> str:
    """Return sentences, advice and caveats as lines."""
    lines = [*_cut(answer), *(f"advice: {text}" for text in advice), *(f"note: {text}" for text in _cut(caveats))]
    return "\n".join(lines)


def told_html(
    answer: Sequence[str], tables: Sequence[pd.DataFrame], advice: Sequence[str], caveats: Sequence[str]
) -> str:
    """Return the same as HTML, with tables whose sizes have units; every text is escaped."""
    shown = [
        _with_units(table).to_html(escape=True, border=0, na_rep="", index=False) for table in tables if len(table)
    ]
    return _list(_cut(answer)) + "".join(shown) + _list(advice) + _list(_cut(caveats))


def _list(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>" if texts else ""


def _cut(texts: Sequence[str]) -> Sequence[str]:
    more = len(texts) - MAX_LINES
    return texts if more <= 0 else [*texts[:MAX_LINES], f"… and {more:,} more lines (frame, to_dict())"]


def _with_units(table: pd.DataFrame) -> pd.DataFrame:
    sizes = [name for name in table if str(name).endswith("_bytes")]
    return table.assign(**{name: table[name].map(lambda n: format_bytes(int(n))) for name in sizes})
