"""The one model that every reader fills and every analysis reads: a frozen bundle of pandas tables.

Times are int64 ns since the epoch, sizes int64 bytes; ``Int64`` (nullable) where a value may be unknown. A column that
no source can fill is absent. See design section 3 for the words (source, series, block, window, ledger, older).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from .errors import InputError
from .joining import STACK_COLUMNS as STACK_COLUMNS
from .joining import concat_tables as concat_tables
from .stacks import merge_stacks, stacks_frame

if TYPE_CHECKING:
    from .selection import Ints, Strs

Int64Array = npt.NDArray[np.int64]
Ledger = Literal["allocated", "active", "reserved"]

SOURCE_TABLES = ("sources", "blocks", "totals", "marks", "ops", "events", "accesses", "segments")
"""The tables whose rows belong to a source."""

NA_NS = np.iinfo(np.int64).min
"""Stands for an unknown value where a nullable column is turned into a plain array."""


class BlockFlag(IntFlag):
    """Bits of ``blocks.flags``."""

    NONE = 0
    OLDER = 1
    """Allocated before the window; known only from its release (old CANN rows with a negative size, lone FREE rows)."""
    PROMOTED = 2
    """Allocated before ``start()`` and written at it (a shadow MALLOC of msMemScope), which is ``alloc_ns``."""
    SYNTHETIC_FREE = 4
    """Released while nobody looked; ``free_ns`` is the latest moment it can have been (a pause, or a new MALLOC)."""
    CLEANED_UP = 8
    """Ended by a clean-up row at exit, which is no release: the block is open."""
    RELEASE_STACK = 16
    """The only stack is that of the release; whether it is the allocation's depends on how the recorder was set."""
    PENDING = 32
    """Requested to be freed, but in use by another stream at the end: ``active_free_ns`` is right behind the window."""
    REPEATED = 64
    """An earlier snapshot of the same process tells of this allocation, too (its ring buffer was dumped again)."""


def to_int64(values: pd.Series, *, na: int = NA_NS) -> Int64Array:
    """Return a nullable integer column as a plain int64 array, ``na`` where it is unknown."""
    return values.to_numpy(dtype=np.int64, na_value=na)


def from_int64(values: Int64Array, *, na: int = NA_NS) -> pd.arrays.IntegerArray:
    """Return a plain int64 array as a nullable column, unknown where it equals ``na``."""
    return pd.arrays.IntegerArray(np.ascontiguousarray(values, dtype=np.int64), np.asarray(values == na))


def distinct(values: Int64Array) -> Int64Array:
    """Sorted distinct values; for times in ns many times as quick as the hashing of ``numpy.unique``."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


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


def empty_events() -> pd.DataFrame:
    """Return an ``events`` table without rows: the raw rows of a msMemScope dump, in file order.

    Texts are as written unless said otherwise; a fact that the row lacks is NA (text: NA or empty).

    ===================== ==========================================================================================
    ``source``            number of the source (one per process)
    ``file``              position in the ``facts["files"]`` of the source
    ``row``               record in that file: the header is 1, a cell with line ends is one record; database: from 1
    ``event_id``          ID; unique within a process, the order of creation
    ``event``             ``MALLOC``, ``FREE``, ``ACCESS``, ``OP_LAUNCH``, ``KERNEL_LAUNCH``, ``MSTX``, ``SYSTEM``,
                          ``SNAPSHOT``, ``OOM_DETAIL``; upper case
    ``type``              event type in upper case, old spellings made one (``ACL_INIT``, ``KERNEL_EXECUTE_START``)
    ``name``              exactly as written, without the quotes around it; ``N/A`` where there is none
    ``t_ns``              time in ns, also where the file holds µs
    ``tid``               thread
    ``device``            device text: ``0``, ``cpu``, ``host``, ``N/A``; other tables say ``NPU:0``, ``CPU``, ``HOST``
    ``ptr_text``, ``addr`` address as written, and as a number
    ``size_bytes``        ``size`` with its sign (old FREE rows are negative)
    ``used_bytes``, ``total_bytes``, ``process_used_bytes``, ``device_used_bytes``  counters in the row
    ``allocation_id``     life of a block
    ``access_pool``       ``type`` of an ACCESS: ``PTA``, ``ATB``
    ``owner``, ``inefficient_type``  label path; labels of the online analysis
    ``shadow``, ``pinned``  bool
    ``attrs``             the whole Attr cell (CSV ``{k:v,...}``, database JSON): ``io.memscope_attrs.parse_attrs``
    ``stack_id``, ``c_stack_id``  Python and C stack, -1 for none
    ===================== ==========================================================================================
    """
    return _empty(
        source="int32", file="int16", row="int64", event_id="int64", event="category", type="category",
        name="category", t_ns="int64", tid="Int64", device="category", ptr_text="category", addr="UInt64",
        size_bytes="Int64", used_bytes="Int64", total_bytes="Int64", process_used_bytes="Int64",
        device_used_bytes="Int64", allocation_id="Int64", access_pool="category", owner="category",
        inefficient_type="category", shadow="bool", pinned="bool", attrs="string[pyarrow]", stack_id="int32",
        c_stack_id="int32",
    )  # fmt: skip


def empty_accesses() -> pd.DataFrame:
    """Return an ``accesses`` table without rows: reads and writes of blocks, by time.

    ``block_id`` is -1 for a block that the table ``blocks`` lacks; ``op_event_id`` is the innermost operator of the
    thread that was running (its START row); ``size_bytes`` what was accessed.
    """
    return _empty(
        source="int32", block_id="int64", t_ns="int64", event_id="int64", kind="category", name="category",
        tid="Int64", size_bytes="Int64", op_event_id="Int64",
    )  # fmt: skip


def empty_segments() -> pd.DataFrame:
    """Return a ``segments`` table without rows: ranges that the driver gave, as they were at the end (snapshots).

    ``allocated_bytes``, ``pending_bytes`` and ``free_bytes`` are sums of rounded blocks in use, waiting for another
    stream, and cached; ``largest_free_bytes`` is the largest cached one; ``requested_bytes`` what programs asked for;
    ``recorded_…`` what the recorder itself wrote. ``pool_id`` is ``0,0`` for the default pool, else private.
    """
    return _empty(
        source="int32", device="category", pool="category", addr="UInt64", size_bytes="int64", pool_id="category",
        stream="Int64", segment_type="category", is_expandable="bool", n_blocks="int64", allocated_bytes="int64",
        pending_bytes="int64", free_bytes="int64", largest_free_bytes="int64", requested_bytes="Int64",
        recorded_allocated_bytes="Int64", recorded_active_bytes="Int64", recorded_requested_bytes="Int64",
        stack_id="int32",
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class MemoryProfile:
    """Everything that was read, as tables; the argument of every analysis.

    Attributes
    ----------
    sources, blocks, totals, marks, ops, events, accesses, segments, stacks : pandas.DataFrame
        See design section 3. The tables are not copied: treat them as read-only.
    """

    sources: pd.DataFrame
    blocks: pd.DataFrame = field(default_factory=empty_blocks)
    totals: pd.DataFrame = field(default_factory=empty_totals)
    marks: pd.DataFrame = field(default_factory=empty_marks)
    ops: pd.DataFrame = field(default_factory=empty_ops)
    events: pd.DataFrame = field(default_factory=empty_events, kw_only=True)
    accesses: pd.DataFrame = field(default_factory=empty_accesses, kw_only=True)
    segments: pd.DataFrame = field(default_factory=empty_segments, kw_only=True)
    stacks: pd.DataFrame = field(default_factory=lambda: stacks_frame([]))
    complete: bool = True
    """Whether all blocks of every series are there; a selection of blocks is not."""

    @classmethod
    def concat(cls, profiles: Iterable[MemoryProfile]) -> MemoryProfile:
        """Join profiles: sources get new numbers in the order given, blocks new ids, stacks are shared.

        What an iterator yields and nobody else holds is let go column by column.

        Raises
        ------
        InputError
            If there is nothing to join.
        """
        tables: dict[str, list[pd.DataFrame]] = {name: [] for name in SOURCE_TABLES}
        all_stacks, n_sources, n_blocks, complete = list[pd.DataFrame](), 0, 0, True
        for profile in profiles:
            numbers = profile.sources["source"].to_numpy()
            renumbered = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.int32)
            renumbered[numbers] = np.arange(len(numbers)) + n_sources
            for name, parts in tables.items():
                table = getattr(profile, name)
                part = table.assign(source=renumbered[table["source"].to_numpy()])
                if name == "blocks":
                    part["block_id"] = np.arange(len(part), dtype=np.int64) + n_blocks
                if name == "accesses":
                    part["block_id"] = _renumbered(part["block_id"], profile.blocks["block_id"], n_blocks)
                parts.append(part)
            all_stacks.append(profile.stacks)
            n_sources, n_blocks = n_sources + len(profile.sources), n_blocks + len(profile.blocks)
            complete = complete and profile.complete
        if not all_stacks:
            raise InputError("no profile to join")
        del profile, table, part
        stacks, mappings = merge_stacks(all_stacks)
        for parts in tables.values():
            for part, mapping in zip(parts, mappings, strict=True):
                for column in (name for name in STACK_COLUMNS if name in part):
                    part[column] = mapping[part[column].to_numpy()]
        joined = {name: concat_tables(parts, use_up=True) for name, parts in tables.items()}
        return cls(stacks=stacks, complete=complete, **joined)

    @classmethod
    def from_summary(cls, frame: pd.DataFrame) -> MemoryProfile:
        """Build a profile from the 12 columns of :func:`memscope_nb.memory_summary` (duration 0.0 = open).

        The contract is lossy: times come from float64 milliseconds (about 0.25 µs), pools are told apart by the
        ``cann::`` prefix only, and what held a block for another stream is gone.
        """
        from .io.summary_frame import read_summary  # a reader like the others; imported late to keep the arrow

        return read_summary(frame)

    def select(
        self,
        *,
        role: Strs = None,
        rank: Ints = None,
        collection: Ints = None,
        step: Ints = None,
        pool: Strs = None,
        time_range: tuple[int, int] | None = None,
        name: str | None = None,
        site: str | None = None,
        min_bytes: int | str | None = None,
        query: str | None = None,
    ) -> MemoryProfile:
        """Keep some sources, time or blocks; what is kept is unchanged (true times, same ids).

        Parameters
        ----------
        role, rank, collection : value or values, optional
            Keep these sources, with everything that belongs to them.
        step : int or ints, optional
            Keep the time from the first to the last of these profiler steps in each source.
        pool : str or strs, optional
            Keep blocks and totals of these pools.
        time_range : (int, int), optional
            Keep ``[start_ns, end_ns)``: samples inside it, and blocks alive at some instant of it.
        name, site : str, optional
            Keep blocks whose operator name or site contains this text.
        min_bytes : int or str, optional
            Keep blocks at least this large, for instance ``"1 MiB"``.
        query : str, optional
            A pandas query over ``blocks``.

        Raises
        ------
        InputError
            If a role, rank, collection, step or pool matches nothing: the message lists what there is.

        Notes
        -----
        The last four keep a part of the blocks of a series. Its recorded totals then no longer balance with them, so
        that older memory is unknown (``complete`` is False) rather than wrong.
        """
        from .selection import Filter, apply_filter

        wanted = Filter(role, rank, collection, step, pool, time_range, name, site, min_bytes, query)
        return apply_filter(self, wanted)

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


def as_profile(what: Any) -> MemoryProfile:
    """Return a profile as it is, and what a path leads to, loaded: for analyses that take either."""
    if isinstance(what, MemoryProfile):
        return what
    from .io import load  # imported late to keep the arrow, as in from_summary

    return load(what)


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


def _renumbered(ids: pd.Series, old: pd.Series, first: int) -> Int64Array:
    """New numbers of blocks whose table is renumbered from ``first`` on; -1 for one that is not there."""
    known = pd.Index(old).get_indexer(ids)
    return np.where(known < 0, -1, known + first).astype(np.int64)
