"""What a simulated run consists of: plain frozen records, free of any file format.

Times are integer nanoseconds since the epoch, sizes integer bytes. Writers only read these records, so every
format tells the same story.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StackKind = Literal["own", "forward", "none"]
EventKind = Literal["malloc", "free", "block_free"]
Stack = tuple[str, ...]


@dataclass(frozen=True)
class Totals:
    """State of the caching allocator just after an event, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    active_bytes: int


@dataclass(frozen=True)
class Block:
    """One life of framework memory that began inside the window of its collection.

    Attributes
    ----------
    free_ns, block_free_ns : int or None
        What the profiler saw; ``None`` where no such record exists.
    at_release : Totals or None
        State at the free, or at the block free where the free was not seen.
    op_id : int or None
        The operator that runs at the allocation and gave its name; ``None`` for empty names and near misses.
    stack, stack_kind : tuple of str, str
        The right answer of the join with the trace, innermost frame first.
    is_leak : bool
        Part of the planted leak.
    """

    block_id: int
    name: str
    size_bytes: int
    address: int
    tid: int
    stream: int
    alloc_ns: int
    free_ns: int | None
    block_free_ns: int | None
    at_alloc: Totals
    at_release: Totals | None
    op_id: int | None
    stack: Stack
    stack_kind: StackKind
    is_leak: bool


@dataclass(frozen=True)
class PoolEvent:
    """One record of the caching allocator; blocks from before the window have events but no `Block`."""

    t_ns: int
    kind: EventKind
    block_id: int
    address: int
    size_bytes: int
    stream: int
    totals: Totals


@dataclass(frozen=True)
class GraphBlock:
    """A block of the graph engine's own pool; ``free_ns`` is ``None`` where no release was seen."""

    name: str
    size_bytes: int
    alloc_ns: int
    free_ns: int | None
    allocated_at_alloc_bytes: int
    allocated_at_free_bytes: int | None
    reserved_bytes: int


@dataclass(frozen=True)
class GraphEvent:
    """One record of the graph engine's pool."""

    t_ns: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class ProcessSample:
    """Device memory of the whole process, as the driver sees it."""

    t_ns: int
    resident_bytes: int


@dataclass(frozen=True)
class ModuleSample:
    """Device memory that one software module asked the driver for."""

    component: str
    t_ns: int
    reserved_bytes: int


@dataclass(frozen=True)
class Op:
    """One operator interval on a host thread.

    ``sequence`` is -1 where autograd gave none. ``stack`` is ``None`` where the recorder wrote no stack at all and
    empty where it wrote an empty one.
    """

    op_id: int
    name: str
    tid: int
    start_ns: int
    end_ns: int
    sequence: int
    fwd_tid: int
    dims: tuple[str, ...]
    stack: Stack | None


@dataclass(frozen=True)
class Range:
    """A named range that the training code marked (mstx)."""

    kind: Literal["role", "micro_batch"]
    name: str
    tid: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class PythonCall:
    """One Python function seen by the tracer."""

    call_id: int
    parent_id: int
    name: str
    tid: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Task:
    """The way of one operator through the task queue to its kernel."""

    correlation_id: int
    op_id: int
    kernel: str
    enqueue_ns: int
    enqueue_end_ns: int
    dequeue_ns: int
    dequeue_end_ns: int
    kernel_ns: int
    kernel_end_ns: int
    stream: int


@dataclass(frozen=True)
class Truth:
    """What a reader must find in one collection, from the simulator's own books.

    Attributes
    ----------
    n_rows, n_ge_rows : int
        Blocks of the framework's pool and of the graph engine.
    n_open, n_ge_open : int
        Those without any release.
    window_start_ns, window_end_ns : int
        First and last record of the framework's pool.
    baseline_bytes, end_bytes : int
        Allocated before the first and after the last record.
    peak_bytes, peak_ns : int
        Highest allocated total and the only record that shows it.
    reserved_peak_bytes, resident_peak_bytes : int
        Highest reserved total and highest process sample.
    unbacked_peak_bytes : int
        Most by which reserved exceeded the process sample inside the window, 0 if never.
    older_start_bytes, older_end_bytes, older_falls : int
        Memory from before the window at its first and last record, and how often it fell.
    older_active_end_bytes : int
        The same at the last record by the active total.
    unrecorded_before_bytes : int
        Change of allocated between the previous collection (or start-up) and this one, which nobody recorded.
    rows_in_op : int
        Named rows inside a running operator of that name; the rest is ``rows_empty_name + rows_near_miss``.
    rows_own_stack, rows_forward_stack, rows_no_stack : int
        Framework rows by where their stack comes from; they add up to ``n_rows``.
    leak_bytes : int
        Size of the leaked blocks of this window.
    """

    n_rows: int
    n_ge_rows: int
    n_open: int
    n_ge_open: int
    window_start_ns: int
    window_end_ns: int
    baseline_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_ns: int
    reserved_peak_bytes: int
    resident_peak_bytes: int
    unbacked_peak_bytes: int
    older_start_bytes: int
    older_end_bytes: int
    older_falls: int
    older_active_end_bytes: int
    unrecorded_before_bytes: int
    rows_in_op: int
    rows_empty_name: int
    rows_near_miss: int
    rows_own_stack: int
    rows_forward_stack: int
    rows_no_stack: int
    leak_bytes: int


@dataclass(frozen=True)
class Process:
    """Where a rank runs; the same in all of its collections."""

    rank: int
    device: int
    host: str
    pid: int
    main_tid: int
    backward_tid: int
    queue_tid: int


@dataclass(frozen=True)
class Collection:
    """One recording: one process, one call of one role.

    ``start_ns`` and ``end_ns`` bound the collection; its window (see `Truth`) lies inside. ``iteration`` counts
    from 1.
    """

    process: Process
    role: str
    iteration: int
    start_ns: int
    end_ns: int
    blocks: tuple[Block, ...]
    events: tuple[PoolEvent, ...]
    graph_blocks: tuple[GraphBlock, ...]
    graph_events: tuple[GraphEvent, ...]
    process_samples: tuple[ProcessSample, ...]
    module_samples: tuple[ModuleSample, ...]
    ops: tuple[Op, ...]
    ranges: tuple[Range, ...]
    python_calls: tuple[PythonCall, ...]
    tasks: tuple[Task, ...]
    truth: Truth


@dataclass(frozen=True)
class DemoRun:
    """A whole simulated run; collections in time order, rank by rank."""

    seed: int
    ranks: int
    iterations: int
    world_size: int
    collections: tuple[Collection, ...]
