"""The blocks of one timeline as the plain arrays that a payload stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..analysis.lifetime import lifetimes
from ..analysis.series import Series
from ..model import Int64Array, MemoryProfile, block_ends, block_starts

STACK_KINDS = ("none", "own", "forward")


@dataclass(frozen=True)
class Blocks:
    """The blocks of one timeline as plain arrays, sorted by start; times are offsets."""

    block_id: Int64Array
    start: Int64Array
    end: Int64Array
    late: Int64Array
    """How much longer a block stays active, 0 for most."""
    size: Int64Array
    name: Int64Array
    stack: Int64Array
    kind: Int64Array
    lifetime: Int64Array
    series: Int64Array
    owner: Int64Array
    """Index + 1 into the owners, 0 for none; likewise the labels."""
    label: Int64Array

    def take(self, rows: Int64Array) -> Blocks:
        """Return some of the blocks."""
        return Blocks(**{key: values[rows] for key, values in vars(self).items()})


def timeline_blocks(profile: MemoryProfile, tracks: Sequence[Sequence[Series]], t0: int) -> Blocks:
    """Collect the blocks of all tracks; ``series`` is the number of the track, times are offsets from ``t0``."""
    table = profile.blocks
    series = [(k, one) for k, track in enumerate(tracks) for one in track]
    every = np.concatenate([one.rows for _, one in series])
    track = np.repeat([k for k, _ in series], [len(one.rows) for _, one in series])
    shift = np.repeat([one.release_shift_ns for _, one in series], [len(one.rows) for _, one in series])
    starts = block_starts(profile)[every]
    order = np.lexsort((every, starts))
    rows, track, shift, starts = every[order], track[order], shift[order], starts[order]
    ends = block_ends(profile)[rows] + shift
    late = np.maximum(block_ends(profile, ledger="active")[rows] - ends, 0)
    return Blocks(
        block_id=table["block_id"].to_numpy(np.int64)[rows],
        start=starts - t0,
        end=ends - t0,
        late=late,
        size=table["size_bytes"].to_numpy(np.int64)[rows],
        name=table["name"].cat.codes.to_numpy().astype(np.int64)[rows],
        stack=table["stack_id"].to_numpy(np.int64)[rows],
        kind=_codes(table["stack_kind"], STACK_KINDS)[rows],
        lifetime=lifetimes(profile).codes.astype(np.int64)[rows],
        series=track,
        owner=_numbered(table, "owner")[rows],
        label=_numbered(table, "inefficient_type")[rows],
    )


def column_texts(table: pd.DataFrame, column: str) -> list[str]:
    """Texts of a categorical column that not every source has."""
    return [str(text) for text in table[column].cat.categories] if column in table else []


def _numbered(table: pd.DataFrame, column: str) -> Int64Array:
    """Index + 1 of the text of each row, 0 for none."""
    if column not in table:
        return np.zeros(len(table), dtype=np.int64)
    empty = np.array([text == "" for text in column_texts(table, column)] + [True])
    codes = table[column].cat.codes.to_numpy().astype(np.int64)
    return np.where(empty[codes], 0, codes + 1)


def _codes(values: pd.Series, order: Sequence[str]) -> Int64Array:
    """Position of each value of a categorical column in ``order``."""
    mapping = np.array([order.index(str(category)) for category in values.cat.categories] + [0], dtype=np.int64)
    return mapping[values.cat.codes.to_numpy()]
