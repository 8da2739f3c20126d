"""The tables of a collection as lines of text, cell by cell as the profiler prints them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from .records import Block, Collection, GraphBlock, GraphEvent, Op, PoolEvent, Totals

KB = 1 << 10
MB = 1 << 20

_SUMS = [
    f"{when} Total {what}(MB)" for when in ("Allocation", "Release") for what in ("Allocated", "Reserved", "Active")
]
OPERATOR_MEMORY = [
    "Name",
    "Size(KB)",
    "Allocation Time(us)",
    "Release Time(us)",
    "Active Release Time(us)",
    "Duration(us)",
    "Active Duration(us)",
    *_SUMS,
    "Stream Ptr",
    "Device Type",
]
MEMORY_RECORD = [
    "Component",
    "Timestamp(us)",
    "Total Allocated(MB)",
    "Total Reserved(MB)",
    "Total Active(MB)",
    "Stream Ptr",
    "Device Type",
]
NPU_MODULE_MEM = ["Device_id", "Component", "Timestamp(us)", "Total Reserved(MB)", "Device"]
STEP_TRACE_TIME = [
    "Device_id",
    "Step",
    "Computing",
    "Communication(Not Overlapped)",
    "Overlapped",
    "Communication",
    "Free",
    "Stage",
    "Bubble",
    "Communication(Not Overlapped and Exclude Receive)",
    "Preparing",
]


def micros(t_ns: int) -> str:
    """Nanoseconds as microseconds with three decimals, without a float on the way."""
    return f"{t_ns // 1000}.{t_ns % 1000:03d}"


def mega(n_bytes: int) -> str:
    """Bytes in units of 1024² B; exact, because sizes are multiples of 512 B."""
    return repr(n_bytes / MB)


def operator_memory(collection: Collection) -> Iterator[str]:
    """Framework rows in order of allocation, then those of the graph engine in their own order."""
    device = f"NPU:{collection.process.device}"
    yield ",".join(OPERATOR_MEMORY)
    for block in collection.blocks:
        yield _framework_row(block, device)
    for graph_block in collection.graph_blocks:
        yield _graph_row(graph_block, device)


def _tabbed(ns: int | None) -> str:
    """A time or duration of a framework row; the TAB keeps spreadsheets from rounding it."""
    return "" if ns is None else micros(ns) + "\t"


def _sums(totals: Totals | None) -> list[str]:
    if totals is None:
        return ["", "", ""]
    return [mega(totals.allocated_bytes), mega(totals.reserved_bytes), mega(totals.active_bytes)]


def _framework_row(block: Block, device: str) -> str:
    times = (block.alloc_ns, block.free_ns, block.block_free_ns)
    durations = (None if end is None else end - block.alloc_ns for end in times[1:])
    cells = [
        block.name,
        repr(block.size_bytes / KB),
        *map(_tabbed, times),
        *map(_tabbed, durations),
        *_sums(block.at_alloc),
        *_sums(block.at_release),
        str(block.stream),
        device,
    ]
    return ",".join(cells)


def _graph_row(block: GraphBlock, device: str) -> str:
    """An unreleased block looks as if it ended when it began, with nothing left."""
    end = block.alloc_ns if block.free_ns is None else block.free_ns
    reserved = mega(block.reserved_bytes)
    after = ["0.0", "0.0"] if block.allocated_at_free_bytes is None else [mega(block.allocated_at_free_bytes), reserved]
    cells = [
        f"cann::{block.name}",
        repr(round(block.size_bytes / KB, 3)),
        _tabbed(block.alloc_ns),
        _tabbed(end),
        "",
        repr((end - block.alloc_ns) / 1000),
        "",
        mega(block.allocated_at_alloc_bytes),
        reserved,
        "",
        *after,
        "",
        "",
        device,
    ]
    return ",".join(cells)


def memory_record(collection: Collection) -> Iterator[str]:
    """Process samples, then every event of both pools by time, each followed by the sum of the two."""
    device = f"NPU:{collection.process.device}"
    yield ",".join(MEMORY_RECORD)
    for sample in collection.process_samples:
        yield f"APP,{_tabbed(sample.t_ns)},,{mega(sample.resident_bytes)},,,{device}"
    pool, graph = Totals(0, 0, 0), GraphEvent(0, 0, 0)
    by_time: Iterator[PoolEvent | GraphEvent] = merge(
        collection.events, collection.graph_events, key=lambda event: event.t_ns
    )
    for event in by_time:
        if isinstance(event, PoolEvent):
            pool, stream = event.totals, str(event.stream)
            own = ",".join(_sums(pool))
            component = "PTA"
        else:
            graph, stream = event, ""
            own = f"{mega(graph.allocated_bytes)},{mega(graph.reserved_bytes)},"
            component = "GE"
        both = Totals(
            pool.allocated_bytes + graph.allocated_bytes,
            pool.reserved_bytes + graph.reserved_bytes,
            pool.active_bytes,
        )
        time = _tabbed(event.t_ns)
        yield f"{component},{time},{own},{stream},{device}"
        yield f"PTA+GE,{time},{','.join(_sums(both))},{stream},{device}"


def npu_module_mem(collection: Collection) -> Iterator[str]:
    """Samples of every module, sorted by module, then by time."""
    device = collection.process.device
    yield ",".join(NPU_MODULE_MEM)
    for sample in collection.module_samples:
        yield f"{device},{sample.component},{_tabbed(sample.t_ns)},{mega(sample.reserved_bytes)},NPU:{device}"


def step_trace_time(collection: Collection) -> Iterator[str]:
    """One line a profiler step, or a single one without number when there was no schedule."""
    yield ",".join(STEP_TRACE_TIME)
    steps = [op for op in collection.ops if op.name.startswith("ProfilerStep#")]
    for step in steps:
        yield _step_row(collection, step.name.split("#")[1], step.start_ns, step.end_ns)
    if not steps:
        yield _step_row(collection, "", collection.truth.window_start_ns, collection.truth.window_end_ns)


def _step_row(collection: Collection, number: str, start_ns: int, end_ns: int) -> str:
    def inside(op: Op) -> bool:
        return op.name.startswith("c10d::") and start_ns <= op.start_ns < end_ns

    computing = sum(t.kernel_end_ns - t.kernel_ns for t in collection.tasks if start_ns <= t.kernel_ns < end_ns)
    communication = sum(op.end_ns - op.start_ns for op in collection.ops if inside(op))
    stage = end_ns - start_ns
    spans = (computing, communication, 0, communication, stage - computing - communication, stage)
    texts = [repr(ns / 1000) for ns in (*spans, 0, communication, 0)]
    return ",".join([str(collection.process.device), number, *texts])
