"""Choosing sources, time and blocks of a profile; what is kept is unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from .errors import InputError
from .units import parse_bytes

if TYPE_CHECKING:
    from .model import MemoryProfile

Ints: TypeAlias = "int | Iterable[int] | None"
Strs: TypeAlias = "str | Iterable[str] | None"


@dataclass(frozen=True)
class Filter:
    """What to keep; ``None`` keeps all. See :meth:`memscope_nb.MemoryProfile.select`."""

    role: Strs = None
    rank: Ints = None
    collection: Ints = None
    step: Ints = None
    pool: Strs = None
    time_range: tuple[int, int] | None = None
    name: str | None = None
    site: str | None = None
    min_bytes: int | str | None = None
    query: str | None = None


def apply_filter(profile: MemoryProfile, wanted: Filter) -> MemoryProfile:
    """Return the profile restricted to what a filter keeps.

    Raises
    ------
    InputError
        If a role, rank, collection, step or pool matches nothing: the message lists what there is.
    """
    for column, choice in (("role", wanted.role), ("rank_id", wanted.rank), ("collection", wanted.collection)):
        profile = _keep_sources(profile, column, choice)
    if wanted.step is not None:
        profile = _keep_steps(profile, _values(wanted.step))
    if wanted.time_range is not None:
        start, end = wanted.time_range
        profile = _keep_time(profile, {int(s): (start, end) for s in profile.sources["source"]})
    if wanted.pool is not None:
        profile = _keep_pools(profile, _values(wanted.pool))
    return _keep_blocks(profile, wanted)


def _values(choice: Any) -> list[Any]:
    return [choice] if isinstance(choice, (int, str, np.integer)) else list(choice)


def _nothing(what: str, choice: list[Any], there: Iterable[object]) -> InputError:
    listed = ", ".join(str(value) for value in there) or "none"
    return InputError(f"no source with {what} {', '.join(map(repr, choice))}; there is: {listed}")


def _keep_sources(profile: MemoryProfile, column: str, choice: Any) -> MemoryProfile:
    if choice is None:
        return profile
    values = profile.sources[column]
    keep = values.isin(_values(choice)).fillna(False).to_numpy(dtype=bool)
    if not keep.any():
        raise _nothing(column.removesuffix("_id"), _values(choice), values.drop_duplicates().sort_values())
    return profile if keep.all() else _of_sources(profile, keep)


def _of_sources(profile: MemoryProfile, keep: npt.NDArray[np.bool_]) -> MemoryProfile:
    """Keep some sources with everything that belongs to them."""
    sources = profile.sources[keep]
    tables = {
        k: v for k, v in vars(profile).items() if isinstance(v, pd.DataFrame) and "source" in v and k != "sources"
    }
    kept = {k: v[v["source"].isin(sources["source"])] for k, v in tables.items()}
    return replace(profile, sources=sources, **kept)


def _keep_steps(profile: MemoryProfile, numbers: list[int]) -> MemoryProfile:
    """Restrict each source to the time from the first to the last of the chosen steps; drop sources without any."""
    steps = profile.marks[profile.marks["kind"] == "step"]
    chosen = steps[steps["step"].isin(numbers)]
    if not len(chosen):
        raise _nothing("step", numbers, steps["step"].drop_duplicates().sort_values())
    spans = chosen.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    kept = _of_sources(profile, profile.sources["source"].isin(spans.index).to_numpy())
    return _keep_time(kept, {int(s): (int(row.start), int(row.end)) for s, row in spans.iterrows()})


def _keep_time(profile: MemoryProfile, spans: dict[int, tuple[int, int]]) -> MemoryProfile:
    """Clip windows and samples to a span per source; blocks that overlap it keep their true times."""
    from .model import block_ends, block_starts, from_int64, to_int64

    def edges(table: pd.DataFrame) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        number = table["source"].map({s: i for i, s in enumerate(spans)}).to_numpy()
        both = np.array(list(spans.values()), dtype=np.int64)
        return both[number, 0], both[number, 1]

    start, end = edges(profile.blocks)
    blocks = profile.blocks[(block_starts(profile) < end) & (block_ends(profile) > start)]
    low, high = edges(profile.totals)
    t = profile.totals["t_ns"].to_numpy(np.int64)
    totals = profile.totals[(t >= low) & (t < high)]
    low, high = edges(profile.marks)
    inside = (profile.marks["start_ns"] < high) & (profile.marks["end_ns"] >= low)
    # The segments are those of the end: to go back from there takes every change.
    marks = profile.marks[inside | (profile.marks["kind"] == "segment")]
    low, high = edges(profile.sources)
    window = to_int64(profile.sources["start_ns"]), to_int64(profile.sources["end_ns"])
    # The window's end is its last record, inclusive; that of a range is exclusive.
    clipped = np.maximum(window[0], low), np.minimum(window[1], high - 1)
    keep = (clipped[0] <= clipped[1]) & profile.sources["start_ns"].notna().to_numpy()
    sources = profile.sources.assign(start_ns=from_int64(clipped[0]), end_ns=from_int64(clipped[1]))
    return _of_sources(replace(profile, sources=sources, blocks=blocks, totals=totals, marks=marks), keep)


def _keep_pools(profile: MemoryProfile, pools: list[str]) -> MemoryProfile:
    in_pool = profile.totals["scope"] == "pool"
    there = {*profile.blocks["pool"].unique(), *profile.totals.loc[in_pool, "component"].unique()}
    if not there & set(pools):
        raise _nothing("pool", pools, sorted(there))
    totals = profile.totals[~in_pool | profile.totals["component"].isin(pools)]
    return replace(profile, blocks=profile.blocks[profile.blocks["pool"].isin(pools)], totals=totals)


def _keep_blocks(profile: MemoryProfile, wanted: Filter) -> MemoryProfile:
    """Keep some blocks of a series only: its totals then no longer describe them, which ``complete`` tells."""
    blocks = profile.blocks
    keep = np.ones(len(blocks), dtype=bool)
    if wanted.name is not None:
        keep &= _codes_with(blocks["name"], wanted.name)
    if wanted.site is not None:
        sites = profile.stacks["site"].astype(str).str.contains(wanted.site, regex=False).to_numpy(dtype=bool)
        keep &= np.append(sites, False)[blocks["stack_id"].to_numpy()]
    if wanted.min_bytes is not None:
        keep &= (blocks["size_bytes"] >= parse_bytes(wanted.min_bytes)).to_numpy()
    if wanted.query is not None:
        keep &= blocks.index.isin(blocks.query(wanted.query).index)
    if keep.all():
        return profile
    return replace(profile, blocks=blocks[keep], complete=False)


def _codes_with(values: pd.Series, text: str) -> npt.NDArray[np.bool_]:
    """Whether each value of a categorical column contains a text, decided once per category."""
    hits = np.array([text in str(category) for category in values.cat.categories], dtype=bool)
    return np.append(hits, False)[values.cat.codes.to_numpy()]
