"""The one model that every reader fills and every analysis reads: a frozen bundle of pandas tables.

Times are int64 ns since the epoch, sizes int64 bytes; ``Int64`` (nullable) where a value may be unknown. A column that
no source can fill is absent. See design section 3 for the words (source, series, block, window, ledger, older).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from .errors import InputError
from .stacks import merge_stacks, stacks_frame
from .units import parse_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

Int64Array = npt.NDArray[np.int64]
Ledger = Literal["allocated", "active", "reserved"]

NA_NS = np.iinfo(np.int64).min
"""Stands for an unknown value where a nullable column is turned into a plain array."""


class BlockFlag(IntFlag):
    """Bits of ``blocks.flags``."""

    NONE = 0
    OLDER = 1
    """Allocated before the window; known only from its release (old CANN rows with a negative size)."""


def to_int64(values: pd.Series, *, na: int = NA_NS) -> Int64Array:
    """Return a nullable integer column as a plain int64 array, ``na`` where it is unknown."""
    return values.to_numpy(dtype=np.int64, na_value=na)


def from_int64(values: Int64Array, *, na: int = NA_NS) -> pd.arrays.IntegerArray:
    """Return a plain int64 array as a nullable column, unknown where it equals ``na``."""
    return pd.arrays.IntegerArray(np.ascontiguousarray(values, dtype=np.int64), np.asarray(values == na))


def _empty(**dtypes: str) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in dtypes.items()})


def empty_blocks() -> pd.DataFrame:
    """Return a ``blocks`` table without rows."""
    return _empty(
        block_id="int64", source="int32", device="category", pool="category", name="category", stack_id="int32",
        stack_kind="category", size_bytes="int64", alloc_ns="Int64", free_ns="Int64", active_free_ns="Int64",
        flags="uint16",
    )  # fmt: skip


def empty_totals() -> pd.DataFrame:
    """Return a ``totals`` table without rows."""
    return _empty(
        source="int32", scope="category", component="category", device="category", t_ns="int64",
        allocated_bytes="Int64", reserved_bytes="Int64", active_bytes="Int64", origin="category",
    )  # fmt: skip


def empty_marks() -> pd.DataFrame:
    """Return a ``marks`` table without rows."""
    return _empty(
        source="int32", kind="category", name="object", step="Int64", tid="Int64", start_ns="int64", end_ns="int64"
    )


def empty_ops() -> pd.DataFrame:
    """Return an ``ops`` table without rows."""
    return _empty(
        source="int32", tid="int64", name="category", start_ns="int64", end_ns="int64", sequence="int64",
        fwd_tid="int64", stack_id="int32",
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class MemoryProfile:
    """Everything that was read, as tables; the argument of every analysis.

    Attributes
    ----------
    sources, blocks, totals, marks, ops, stacks : pandas.DataFrame
        See design section 3. The tables are not copied: treat them as read-only.
    """

    sources: pd.DataFrame
    blocks: pd.DataFrame = field(default_factory=empty_blocks)
    totals: pd.DataFrame = field(default_factory=empty_totals)
    marks: pd.DataFrame = field(default_factory=empty_marks)
    ops: pd.DataFrame = field(default_factory=empty_ops)
    stacks: pd.DataFrame = field(default_factory=lambda: stacks_frame([]))

    # -- building ---------------------------------------------------------------------------------------------

    @classmethod
    def concat(cls, profiles: Sequence[MemoryProfile]) -> MemoryProfile:
        """Join profiles: sources get new numbers in the order given, blocks new ids, stacks are shared.

        Raises
        ------
        InputError
            If there is nothing to join.
        """
        if not profiles:
            raise InputError("no profile to join")
        stacks, mappings = merge_stacks([profile.stacks for profile in profiles])
        first_source = np.cumsum([0, *(len(profile.sources) for profile in profiles)])
        first_block = np.cumsum([0, *(len(profile.blocks) for profile in profiles)])
        tables: dict[str, list[pd.DataFrame]] = {name: [] for name in ("sources", "blocks", "totals", "marks", "ops")}
        for i, profile in enumerate(profiles):
            numbers = profile.sources["source"].to_numpy()
            renumber = dict(zip(numbers, np.arange(len(numbers)) + first_source[i], strict=True))
            for name, parts in tables.items():
                table = getattr(profile, name)
                part = table.assign(source=table["source"].map(renumber).astype(np.int32))
                if "stack_id" in part:
                    part["stack_id"] = mappings[i][part["stack_id"].to_numpy()]
                if name == "blocks":
                    part["block_id"] = np.arange(len(part), dtype=np.int64) + first_block[i]
                parts.append(part)
        return cls(stacks=stacks, **{name: concat_tables(parts) for name, parts in tables.items()})

    @classmethod
    def from_summary(cls, frame: pd.DataFrame) -> MemoryProfile:
        """Build a profile from the 12 columns of :func:`memscope_nb.memory_summary` (duration 0.0 = open).

        The contract is lossy: times come from float64 milliseconds (about 0.25 µs), pools are told apart by the
        ``cann::`` prefix only, and what held a block for another stream is gone.
        """
        from .io.summary_frame import read_summary  # a reader like the others; imported late to keep the arrow

        return read_summary(frame)

    # -- looking ----------------------------------------------------------------------------------------------

    def select(
        self,
        *,
        role: str | None = None,
        rank: int | None = None,
        pool: str | None = None,
        time_range: tuple[int, int] | None = None,
        name: str | None = None,
        site: str | None = None,
        min_bytes: int | str | None = None,
        query: str | None = None,
    ) -> MemoryProfile:
        """Keep some sources or blocks; what is kept is unchanged (true times, same ids).

        Parameters
        ----------
        role, rank : optional
            Keep the sources with this role or rank, with everything that belongs to them.
        pool : str, optional
            Keep blocks and pool totals of one pool.
        time_range : (int, int), optional
            Keep blocks alive at some instant of ``[start_ns, end_ns)``.
        name, site : str, optional
            Keep blocks whose operator name or site contains this text.
        min_bytes : int or str, optional
            Keep blocks at least this large, for instance ``"1 MiB"``.
        query : str, optional
            A pandas query over ``blocks``.

        Raises
        ------
        InputError
            If no source has the role or rank: the message lists what there is.
        """
        out = self._select_sources(role, rank)
        blocks = out.blocks
        keep = np.ones(len(blocks), dtype=bool)
        if pool is not None:
            keep &= (blocks["pool"] == pool).to_numpy()
            other = (out.totals["scope"] == "pool") & (out.totals["component"] != pool)
            out = replace(out, totals=out.totals[~other])
        if time_range is not None:
            start, end = time_range
            keep &= (block_starts(out) < end) & (block_ends(out) > start)
        if name is not None:
            keep &= _codes_with(blocks["name"], name)
        if site is not None:
            sites = self.stacks["site"].astype(str).str.contains(site, regex=False).to_numpy(dtype=bool)
            keep &= np.append(sites, False)[blocks["stack_id"].to_numpy()]
        if min_bytes is not None:
            keep &= (blocks["size_bytes"] >= parse_bytes(min_bytes)).to_numpy()
        if query is not None:
            keep &= blocks.index.isin(blocks.query(query).index)
        return replace(out, blocks=blocks[keep])

    def _select_sources(self, role: str | None, rank: int | None) -> Self | MemoryProfile:
        sources = self.sources
        keep = np.ones(len(sources), dtype=bool)
        for column, value in (("role", role), ("rank_id", rank)):
            if value is not None:
                keep &= (sources[column] == value).fillna(False).to_numpy(dtype=bool)
                if not keep.any():
                    there = ", ".join(str(v) for v in sources[column].drop_duplicates())
                    raise InputError(f"no source with {column} {value!r}; there is: {there}")
        if keep.all():
            return self
        numbers = sources.loc[keep, "source"]
        parts = {name: getattr(self, name) for name in ("blocks", "totals", "marks", "ops")}
        return replace(self, sources=sources[keep], **{k: v[v["source"].isin(numbers)] for k, v in parts.items()})

    def frames(self, stack_id: int) -> tuple[str, ...]:
        """Return the frames of a stack, innermost first; empty for -1."""
        return () if stack_id < 0 else tuple(self.stacks["frames"].iloc[stack_id])

    def summary(self) -> pd.DataFrame:
        """Return one row per series with its levels and peaks; see :func:`memscope_nb.analysis.summary.summarize`."""
        from .analysis.summary import summarize

        return summarize(self)

    def __repr__(self) -> str:
        from .analysis.summary import describe

        return describe(self)

    def _repr_html_(self) -> str:
        from .notebook.display import profile_html

        return profile_html(self)


# -- lives of blocks --------------------------------------------------------------------------------------------


def _window_edge(profile: MemoryProfile, edge: Literal["start_ns", "end_ns"]) -> Int64Array:
    """Window start or end of the source of each block."""
    numbers = profile.sources["source"].to_numpy()
    table = np.full(int(numbers.max(initial=-1)) + 1, NA_NS, dtype=np.int64)
    table[numbers] = to_int64(profile.sources[edge])
    return table[profile.blocks["source"].to_numpy()]


def block_starts(profile: MemoryProfile) -> Int64Array:
    """Start of each block; the window's start for blocks from before it."""
    alloc = to_int64(profile.blocks["alloc_ns"])
    return np.where(alloc == NA_NS, _window_edge(profile, "start_ns"), alloc)


def block_ends(profile: MemoryProfile, *, ledger: Literal["allocated", "active"] = "allocated") -> Int64Array:
    """End of each block in terms of a ledger (spec/ascend_profiler 3.3a), exclusive.

    *Allocated* falls at the earlier of release and active release, *active* at the active release; where only one
    of them was seen, it serves for both. Lives are half-open, so an open block ends 1 ns after the window's last
    record: it is alive at that record.
    """
    free = to_int64(profile.blocks["free_ns"])
    late = to_int64(profile.blocks["active_free_ns"]) if "active_free_ns" in profile.blocks else free
    ends = np.where(
        free == NA_NS, late, np.where(late == NA_NS, free, np.minimum(free, late) if ledger == "allocated" else late)
    )
    return np.where(ends == NA_NS, _window_edge(profile, "end_ns") + 1, ends)


def is_open(blocks: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether no release of any kind was seen."""
    unseen = blocks["free_ns"].isna().to_numpy()
    return unseen & blocks["active_free_ns"].isna().to_numpy() if "active_free_ns" in blocks else unseen


# -- tables -----------------------------------------------------------------------------------------------------


def concat_tables(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Stack tables, joining categories instead of falling back to object columns; empty parts do not matter."""
    filled = [part for part in parts if len(part)] or list(parts[:1])
    if len(filled) == 1:
        return filled[0].reset_index(drop=True)
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(column for part in filled for column in part.columns):
        pieces = [part[name] if name in part else pd.Series(pd.NA, index=part.index, dtype="Int64") for part in filled]
        if all(isinstance(piece.dtype, pd.CategoricalDtype) for piece in pieces):
            columns[name] = union_categoricals(pieces)
        else:
            columns[name] = pd.concat(pieces, ignore_index=True)
    return pd.DataFrame(columns)


def _codes_with(values: pd.Series, text: str) -> npt.NDArray[np.bool_]:
    """Whether each value of a categorical column contains a text, decided once per category."""
    hits = np.array([text in str(category) for category in values.cat.categories], dtype=bool)
    return np.append(hits, False)[values.cat.codes.to_numpy()]
