"""A simulated process as the rows that msMemScope writes, in its order and with its counters (spec/msmemscope 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge

from .ascend_db import OTHER_PROCESSES_BYTES
from .dump_access import Access, dispatched_name, owner_of
from .dump_simulate import DriverChange, PoolChange, ProcessLog, Visit
from .records import Op, Stack, Totals
from .samples import UNNAMED_BYTES

MIB = 1 << 20
DEVICE_BYTES = 64 << 30
NONE = "N/A"
MARK = "iteration end"
STEP = "step start"
STACK_DEPTH = 8
HAL_STACK = (
    "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so({call}+0x1c) [0xfffc2f1d0a9c]",
    "/usr/local/Ascend/ascend-toolkit/latest/lib64/libruntime.so(+0x8d1f40) [0xfffc31a51f40]",
    "/usr/local/Ascend/ascend-toolkit/latest/lib64/libascendcl.so({api}+0x90) [0xfffc33c0d810]",
)
# Marks lie between two ticks of the clock, in this order.
STEP_START_NS, SNAPSHOT_NS, MARK_NS, STEP_END_NS = 1, 2, 3, 4

Attrs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Row:
    """One event. ``order_ns`` is when it happened, which of promoted blocks is before the time that is written.

    ``life`` names the block that it belongs to; ``stack`` is ``None`` on a thread without Python.
    """

    t_ns: int
    event: str
    type: str
    tid: int
    name: str = NONE
    has_device: bool = True
    address: int | None = None
    attrs: Attrs = ()
    stack: Stack | None = ()
    c_stack: Stack = ()
    life: tuple[str, int] | None = None
    order_ns: int = 0
    event_id: int = 0


@dataclass
class _Counters:
    """What the recorder knows of memory when it writes a row."""

    driver: int = 0
    queried: int = 0  # driver, at the last query
    allocation: dict[tuple[str, int], int] = field(default_factory=dict)

    def usage(self) -> Attrs:
        """Figures of the driver as of the last query: of the process, and of the device in whole MiB."""
        process = self.queried + UNNAMED_BYTES
        device = (process + OTHER_PROCESSES_BYTES) // MIB * MIB
        return ("process_used", str(process)), ("device_used", str(device))

    def life(self, key: tuple[str, int]) -> tuple[str, str]:
        """Number of a block, in order of allocation over all pools."""
        return "allocation_id", str(self.allocation.setdefault(key, len(self.allocation) + 1))


def build_rows(log: ProcessLog, accesses: Sequence[Access]) -> list[Row]:
    """Return all rows of a process in the order in which the recorder writes them.

    Rows of a block come together when it ends, those without a device last.
    """
    counters = _Counters()
    memory = _memory_rows(log, accesses, counters)
    born = {row.life: row for row in memory if row.event == "MALLOC"}
    used = [_access_row(access, born["PTA", access.block_id], counters) for access in accesses]
    others = [*_system_rows(log), *_operator_rows(log), *_mark_rows(log), *_snapshot_rows(log), *_kernel_rows(log)]
    rows = _numbered([*memory, *used, *others])
    rows += _exit_rows(rows, log)
    ends: dict[tuple[str, int], int] = {}
    for row in rows:
        if row.life:
            ends[row.life] = row.event_id
    return sorted(
        rows, key=lambda row: (not row.has_device, ends[row.life] if row.life else row.event_id, row.event_id)
    )


def _numbered(rows: list[Row]) -> list[Row]:
    """Number the rows in order of their happening; labelling a block takes a number that no row shows."""
    numbered, event_id = [], 0
    for row in sorted(rows, key=lambda row: row.order_ns or row.t_ns):
        numbered.append(replace(row, event_id=event_id))
        event_id += 2 if row.event == "MALLOC" and row.type == "PTA" else 1
    return numbered


def _exit_rows(rows: Sequence[Row], log: ProcessLog) -> Iterator[Row]:
    """End of what lives when the process does: no release, only a note that the recorder let go of it."""
    live: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row.life and row.event == "MALLOC":
            live[row.life] = row
        elif row.life and row.event == "FREE":
            del live[row.life]
    event_id = rows[-1].event_id
    for row in live.values():
        event_id += 1
        attrs = (*row.attrs[:3], ("shadow", "true"))
        yield replace(
            row, t_ns=log.stop_ns + 1, event="FREE", attrs=attrs, stack=(), c_stack=(), event_id=event_id, order_ns=0
        )


# -- memory -------------------------------------------------------------------------------------------------------


def _memory_rows(log: ProcessLog, accesses: Sequence[Access], counters: _Counters) -> list[Row]:
    """MALLOC and FREE of both layers, each with the counters just after it."""
    accessed = {access.block_id for access in accesses}
    by_time: Iterator[PoolChange | DriverChange] = merge(log.pool, log.driver, key=lambda change: change.t_ns)
    rows = [_promoted_row(change, log, counters) for change in log.early]
    for change in by_time:
        if isinstance(change, DriverChange):
            rows.append(_driver_row(change, counters))
        else:
            role = log.visits[change.visit].role
            owner = owner_of(change, role, log.process.backward_tid, is_accessed=change.block.block_id in accessed)
            rows.append(_pool_row(change, owner, counters, log.process.main_tid))
    return rows


def hexadecimal(address: int) -> str:
    """Address as the recorder writes it."""
    return f"0x{address:016x}"


def _place(address: int, size: int) -> Attrs:
    return ("addr", hexadecimal(address)), ("size", str(size))


def _promoted_row(change: DriverChange, log: ProcessLog, counters: _Counters) -> Row:
    """Memory from before the recording: the time is that of its start, the number that of the event."""
    life = ("HAL", change.life)
    counters.driver += change.size
    counters.queried = counters.driver
    attrs = (counters.life(life), *_place(change.address, change.size), ("shadow", "true"))
    return Row(
        log.start_ns, "MALLOC", "HAL", change.tid, address=change.address, attrs=attrs, life=life, order_ns=change.t_ns
    )


def _driver_row(change: DriverChange, counters: _Counters) -> Row:
    is_malloc = change.change == "malloc"
    counters.driver += change.size if is_malloc else -change.size
    counters.queried = counters.driver
    life = ("HAL", change.life)
    attrs: Attrs = (
        counters.life(life),
        *_place(change.address, change.size),
        ("used", str(counters.driver)),
        *counters.usage(),
    )
    if is_malloc:
        kinds = ("huge", "create") if change.is_mapped else ("normal", "alloc")
        attrs += (("owner", f"CANN@{change.module}"), ("page_type", kinds[0]), ("alloc_type", kinds[1]))
    call = ("halMemCreate", "aclrtMallocPhysical") if change.is_mapped else ("halMemAlloc", "aclrtMallocAlign32")
    c_stack = tuple(line.format(call=call[0], api=call[1]) for line in HAL_STACK) if is_malloc else ()
    event = change.change.upper()
    return Row(
        change.t_ns, event, "HAL", change.tid, address=change.address, attrs=attrs, stack=_cut(change.stack),
        c_stack=c_stack, life=life,
    )  # fmt: skip


def _pool_row(change: PoolChange, owner: str, counters: _Counters, main_tid: int) -> Row:
    block, life = change.block, ("PTA", change.block.block_id)
    attrs: Attrs = (
        counters.life(life),
        *_place(block.span.address, block.size),
        ("used", str(change.totals.allocated_bytes)),
        ("total", str(change.totals.reserved_bytes)),
        *counters.usage(),
    )
    if change.change == "malloc":
        attrs += (("owner", owner),)
    event = change.change.upper()
    return Row(
        change.t_ns, event, "PTA", change.tid or main_tid, address=block.span.address, attrs=attrs,
        stack=_cut(change.stack), life=life,
    )  # fmt: skip


def _cut(stack: Stack | None) -> Stack | None:
    return stack and stack[:STACK_DEPTH]


def _access_row(access: Access, born: Row, counters: _Counters) -> Row:
    """Two-byte numbers in rows of 256: what is accessed is the whole block."""
    size = int(dict(born.attrs)["size"])
    attrs = (
        counters.life(("PTA", access.block_id)),
        *born.attrs[1:3],
        ("type", "PTA"),
        ("dtype", "torch.bfloat16"),
        ("shape", f"torch.Size([{size // 512}, 256])"),
    )
    name = dispatched_name(access.op) or NONE
    return Row(
        access.t_ns, "ACCESS", access.kind, access.op.tid, name, address=born.address, attrs=attrs, life=born.life
    )


# -- everything else ----------------------------------------------------------------------------------------------


def _system_rows(log: ProcessLog) -> list[Row]:
    main = log.process.main_tid
    known = (("free", str(DEVICE_BYTES - OTHER_PROCESSES_BYTES)), ("total", str(DEVICE_BYTES)))
    return [
        Row(log.start_ns - 50_000_000, "SYSTEM", "ACL_INIT", main, has_device=False),
        Row(log.start_ns, "SYSTEM", "START_TRACE", main, has_device=False, attrs=known),
        Row(log.stop_ns, "SYSTEM", "STOP_TRACE", main, has_device=False),
        Row(log.stop_ns + 400_000, "SYSTEM", "ACL_FINI", main, has_device=False),
    ]


def _operator_rows(log: ProcessLog) -> Iterator[Row]:
    for op, name in _dispatched(log):
        yield Row(op.start_ns, "OP_LAUNCH", "ATEN_START", op.tid, name)
        yield Row(op.end_ns, "OP_LAUNCH", "ATEN_END", op.tid, name)


def _dispatched(log: ProcessLog) -> Iterator[tuple[Op, str]]:
    for visit in log.visits:
        for op in visit.ops:
            if name := dispatched_name(op):
                yield op, name


def _kernel_rows(log: ProcessLog) -> Iterator[Row]:
    for visit in log.visits:
        for task in visit.tasks:
            attrs = (("streamId", str(task.stream)), ("taskId", str(task.correlation_id)))
            yield Row(
                task.dequeue_ns, "KERNEL_LAUNCH", "KERNEL_LAUNCH", log.process.queue_tid, task.kernel, attrs=attrs
            )


def steps(log: ProcessLog) -> list[tuple[int, int]]:
    """Start and end of each iteration, which is a step of the training."""
    first = [visit.start_ns for visit in log.visits if visit.role == log.visits[0].role]
    last = [visit.end_ns for visit in log.visits if visit.role == log.visits[-1].role]
    return [(start + STEP_START_NS, end + STEP_END_NS) for start, end in zip(first, last, strict=True)]


def _mark_rows(log: ProcessLog) -> Iterator[Row]:
    """Ranges of steps, roles and micro-batches, whose ends only tell their number, and a mark after each step."""
    main = log.process.main_tid
    spans = [(start, end, STEP) for start, end in steps(log)]
    spans += [(r.start_ns, r.end_ns, r.name) for visit in log.visits for r in visit.ranges]
    for number, (start, end, name) in enumerate(sorted(spans), 1):
        yield Row(start, "MSTX", "Range_start", main, name)
        yield Row(end, "MSTX", "Range_end", main, f"Range end from id {number}")
    for _, end in steps(log):
        yield Row(end - STEP_END_NS + MARK_NS, "MSTX", "Mark", main, MARK)


def _snapshot_rows(log: ProcessLog) -> Iterator[Row]:
    """Figures of torch at the start and end of every role."""
    for visit in log.visits:
        for t_ns, totals, when in ((visit.start_ns, visit.before, "Start"), (visit.end_ns, visit.after, "End")):
            yield _snapshot_row(log, visit, t_ns + SNAPSHOT_NS, totals, when)


def _snapshot_row(log: ProcessLog, visit: Visit, t_ns: int, totals: Totals, when: str) -> Row:
    levels = [change.totals for change in log.pool if change.t_ns <= t_ns]
    driver = sum(c.size if c.change == "malloc" else -c.size for c in (*log.early, *log.driver) if c.t_ns <= t_ns)
    taken = driver + UNNAMED_BYTES + OTHER_PROCESSES_BYTES
    attrs = {
        "reserved": totals.reserved_bytes,
        "max_reserved": max(level.reserved_bytes for level in levels),
        "allocated": totals.allocated_bytes,
        "max_allocated": max(level.allocated_bytes for level in levels),
        "total": DEVICE_BYTES,
        "free": DEVICE_BYTES - taken,
        "device_rate": _percent(taken, DEVICE_BYTES),
        "reserved_rate": _percent(totals.allocated_bytes, totals.reserved_bytes),
    }
    texts = tuple((key, str(value)) for key, value in attrs.items())
    return Row(t_ns, "SNAPSHOT", "SNAPSHOT", log.process.main_tid, f"{visit.role} {when}", attrs=texts)


def _percent(part: int, whole: int) -> str:
    """Percentage with six digits, cut off."""
    millionths = part * 100_000_000 // whole
    return f"{millionths // 1_000_000}.{millionths % 1_000_000:06d}"
