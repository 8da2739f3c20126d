"""Thinning that never loses a peak: first, lowest, highest and last sample of every column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model import NA_NS, Int64Array


def thin_rows(t: Int64Array, levels: Sequence[Int64Array], columns: int) -> Int64Array:
    """Choose the rows that a plot of so many pixel columns needs.

    Parameters
    ----------
    t : int64 array of shape (n,)
        Times in ascending order.
    levels : sequence of int64 arrays of shape (n,)
        Each keeps its extremes in every column; unknown values (``NA_NS``) are no extremes.
    columns : int
        Number of equal parts of the span.

    Returns
    -------
    int64 array
        Ascending row positions; all rows when there are no more than four for each column.
    """
    if len(t) <= 4 * columns:
        return np.arange(len(t), dtype=np.int64)
    span = int(t[-1]) - int(t[0]) + 1
    offset = t - t[0]
    column = np.minimum((offset * (columns / span)).astype(np.int64), columns - 1)
    first = np.flatnonzero(np.append(True, column[1:] != column[:-1]))
    keep = [first, np.append(first[1:] - 1, len(t) - 1)]
    for values in levels:
        known = np.flatnonzero(values != NA_NS)
        if not len(known):
            continue
        column_known, values_known = column[known], values[known]
        for ranked in (values_known, -values_known):
            order = np.lexsort((known, ranked, column_known))
            best = np.append(True, column_known[order][1:] != column_known[order][:-1])
            keep.append(known[order[best]])
    return np.unique(np.concatenate(keep)).astype(np.int64)
