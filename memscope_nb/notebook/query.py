"""What people write to name blocks and instants: queries, parts of names, tables, ids; times of several kinds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import Int64Array

Wanted: TypeAlias = "str | int | Iterable[int] | pd.DataFrame"
Instant: TypeAlias = "int | pd.Timestamp | datetime | np.datetime64"


def find_ids(what: Wanted, table: pd.DataFrame) -> Int64Array:
    """Return the ids of the blocks that something names.

    Parameters
    ----------
    what : str, int, ints or DataFrame
        A pandas query over ``table``, or else a text that the name or site of a block contains (upper and lower case
        are the same); block ids; a table with a column ``block_id``.
    table : pandas.DataFrame
        Blocks with their ``site``, for texts.

    Raises
    ------
    InputError
        If a text is no query and no block's name or site contains it, or if the ids are no integers.
    """
    if isinstance(what, str):
        return _ids_of_text(what, table)
    if isinstance(what, pd.DataFrame):
        if "block_id" not in what:
            raise InputError(f"a table of blocks needs a column block_id; there is: {', '.join(map(str, what))}")
        what = what["block_id"]
    one = isinstance(what, (int, np.integer)) and not isinstance(what, bool)
    values = np.atleast_1d(np.asarray([what] if one else list(what)))  # type: ignore[arg-type]
    if not len(values):
        return np.empty(0, dtype=np.int64)
    if values.dtype.kind not in "iu":
        raise InputError(f"block ids are integers, not {values.dtype} such as {values[0]!r}")
    return values.astype(np.int64)


def _ids_of_text(text: str, table: pd.DataFrame) -> Int64Array:
    if not text.strip():
        raise InputError("nothing to select by: the text is empty")
    ids = table["block_id"].to_numpy(np.int64)
    problem = ""
    try:
        kept = table.eval(text)
    except Exception as error:  # whatever pandas and its parser raise on a text that is no query
        problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    else:
        if isinstance(kept, pd.Series) and pd.api.types.is_bool_dtype(kept.dtype):
            return ids[kept.fillna(False).to_numpy(dtype=bool)]
        problem = "it gives no yes or no for each block"
    found = _contains(table["name"].astype("category"), text) | _contains(table["site"].astype("category"), text)
    if not found.any():
        raise InputError(f"no block's name or site contains {text!r}, and it is no query either ({problem})")
    return ids[found]


def _contains(values: pd.Series, text: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each value contains a text, decided once per category."""
    hits = [text.casefold() in str(category).casefold() for category in values.cat.categories]
    return np.array([*hits, False], dtype=bool)[values.cat.codes.to_numpy()]


def read_instant(value: Instant) -> int:
    """Return an instant as epoch ns; never through a float.

    Raises
    ------
    InputError
        For a float, a text, a missing time, or anything else that is no instant.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, (datetime, np.datetime64)) and not pd.isna(value):
        return int(pd.Timestamp(value).as_unit("ns").value)  # without a time zone: UTC
    raise InputError(f"an instant is an integer of epoch ns or a pandas Timestamp, not {value!r}")
