"""Stacking tables of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from pandas.api.types import union_categoricals

STACK_COLUMNS = ("stack_id", "c_stack_id")
LARGE = 10_000
"""Rows from which on the memory of a table counts more than the time of taking it apart."""


def concat_tables(parts: Sequence[pd.DataFrame], *, use_up: bool = False) -> pd.DataFrame:
    """Stack tables, joining categories instead of falling back to object columns; empty parts do not matter.

    ``use_up`` takes the columns out of large parts one by one, so that such a table is never there twice.
    """
    filled = [part for part in parts if len(part)] or list(parts[:1])
    if len(filled) == 1:
        return filled[0].reset_index(drop=True)
    columns: dict[str, Any] = {}
    for name in list(dict.fromkeys(column for part in filled for column in part.columns)):
        like = next(part[name].dtype for part in filled if name in part)
        pieces = [
            _absent(name, like, part.index) if name not in part
            else part.pop(name) if use_up and len(part) >= LARGE else part[name]
            for part in filled
        ]  # fmt: skip
        if all(isinstance(piece.dtype, pd.CategoricalDtype) for piece in pieces):
            columns[name] = union_categoricals(_with_equal_categories(pieces))
        else:
            columns[name] = pd.concat(pieces, ignore_index=True)
    return pd.DataFrame(columns, copy=False)


def _with_equal_categories(pieces: Sequence[pd.Series]) -> Sequence[pd.Series]:
    """Give all pieces categories of one dtype: those of an empty column have another one than text."""
    if len({piece.cat.categories.dtype for piece in pieces}) == 1:
        return pieces
    return [piece.cat.rename_categories(piece.cat.categories.astype(object)) for piece in pieces]


def _absent(name: str, dtype: Any, index: pd.Index) -> pd.Series:
    """Values of a column that a table lacks while another one has it."""
    if name in STACK_COLUMNS:
        return pd.Series(-1, index=index, dtype="int32")
    if isinstance(dtype, pd.CategoricalDtype):
        return pd.Series(pd.Categorical([None] * len(index), dtype.categories[:0]), index=index)
    return pd.Series(pd.NA, index=index, dtype=dtype if str(dtype).startswith("UInt") else "Int64")
