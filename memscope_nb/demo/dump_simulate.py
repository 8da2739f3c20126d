"""The simulated run as a recorder sees it that stays on all the time: every change of the pool and of the driver.

The Ascend demo only keeps what falls into its collections. Here the same job runs with the same dice, and an allocator
that watches writes everything down, from the first block of the process to the end of its recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from memscope_nb.units import NS_PER_S

from . import frames
from .allocator import UNKNOWN, Allocation, CachingAllocator, Label
from .clock import Clock, Dice
from .recorder import Recorder
from .records import Op, Process, PythonCall, Range, Stack, Task, Totals
from .samples import HCCL_BYTES, RUNTIME_BYTES, SLOG_BYTES
from .scenario import Job
from .segments import Segment, SegmentCache
from .simulate import _process, _schedule

Change = Literal["malloc", "free"]
BlockKind = Literal["weight", "param", "optimizer", "kv_cache", "batch", "leak", "other"]

INSTANT_NS = 5
"""Half a tick of the clock: puts a change strictly between two others."""
DRIVER_BASE = 0x1240_0000_0000  # far below the pool's segments
PER_SEGMENT_NS = 1_000


@dataclass(frozen=True)
class PoolChange:
    """A block begins or ends in the framework's pool; ``stack`` is ``None`` on a thread without Python."""

    t_ns: int
    change: Change
    block: Allocation
    kind: BlockKind
    totals: Totals
    tid: int
    stack: Stack | None
    visit: int


@dataclass(frozen=True)
class DriverChange:
    """Memory is taken from the driver or given back; ``life`` tells lives at one address apart."""

    t_ns: int
    change: Change
    life: int
    address: int
    size: int
    module: str
    is_mapped: bool
    tid: int
    stack: Stack | None


@dataclass(frozen=True)
class Visit:
    """One call of a role."""

    role: str
    iteration: int
    start_ns: int
    end_ns: int
    before: Totals
    after: Totals
    ops: tuple[Op, ...]
    ranges: tuple[Range, ...]
    calls: tuple[PythonCall, ...]
    tasks: tuple[Task, ...]


@dataclass
class ProcessLog:
    """Everything that one process did. ``early`` is driver memory from before the recording."""

    process: Process
    start_ns: int
    stop_ns: int = 0
    early: list[DriverChange] = field(default_factory=list)
    pool: list[PoolChange] = field(default_factory=list)
    driver: list[DriverChange] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)


class WatchedCache(SegmentCache):
    """Segments whose comings and goings are told to the allocator."""

    def __init__(self, owner: WatchedAllocator) -> None:
        super().__init__()
        self._owner = owner

    def empty(self, pool: str) -> None:
        """Return unused segments; one that sleeps has no memory any more."""
        gone = [s for s in self._segments if s.pool == pool and s.is_unused and not s.asleep]
        super().empty(pool)
        self._owner.note_segments("free", gone)

    def set_asleep(self, pool: str, *, asleep: bool) -> None:
        """Unmap or map the memory behind a pool."""
        changed = [s for s in self._segments if s.pool == pool and s.asleep != asleep]
        super().set_asleep(pool, asleep=asleep)
        self._owner.note_segments("free" if asleep else "malloc", changed)

    def _reserve(self, size: int, pool: str, *, small: bool) -> Segment:
        segment = super()._reserve(size, pool, small=small)
        self._owner.note_segment("malloc", segment, self._owner.now + INSTANT_NS)
        return segment


class WatchedAllocator(CachingAllocator):
    """The allocator of the demo, with everything it does written down."""

    def __init__(self, recorder: WatchedRecorder, *, leak: bool) -> None:
        super().__init__(recorder.clock)
        self._recorder = recorder
        self._is_repaired = not leak
        self._cache = WatchedCache(self)
        self._lives: dict[int, int] = {}
        self._n_lives = 0
        self._kinds: dict[int, BlockKind] = {}
        self._late_ns = 0

    @property
    def now(self) -> int:
        """Time of the process."""
        return self._clock.now

    def malloc(
        self,
        size: int,
        *,
        label: Label = UNKNOWN,
        pool: str = "default",
        stream: int = 2,
        delay_ns: int | None = None,
    ) -> Allocation:
        """Allocate a block and note it with the stack that asked for it."""
        block = super().malloc(size, label=label, pool=pool, stream=stream, delay_ns=delay_ns)
        self._kinds[block.block_id] = self._kind(block)
        self._note("malloc", block)
        if label.is_leak and self._is_repaired:
            self._drop(block)
        return block

    def mark_kind(self, blocks: Sequence[Allocation], kind: BlockKind) -> None:
        """Tell what blocks of the start-up are, which no stack shows."""
        for block in blocks:
            self._kinds[block.block_id] = kind

    def note_segments(self, change: Change, segments: Sequence[Segment]) -> None:
        """Note a number of segments one after the other, the last one right now."""
        for left, segment in zip(range(len(segments), 0, -1), segments, strict=True):
            self.note_segment(change, segment, self.now - left * PER_SEGMENT_NS + INSTANT_NS)

    def note_segment(self, change: Change, segment: Segment, t_ns: int) -> None:
        """Note that a segment got memory or lost it."""
        self.note_driver(change, t_ns, segment.address, segment.size, "APP", is_mapped=segment.pool != "default")

    def note_driver(
        self, change: Change, t_ns: int, address: int, size: int, module: str, *, is_mapped: bool = False
    ) -> None:
        """Note a call of the driver."""
        if change == "malloc":
            self._n_lives += 1
            self._lives[address] = self._n_lives
        tid, stack = self._recorder.where()
        log = self._recorder.log
        into = log.early if t_ns < log.start_ns else log.driver
        into.append(DriverChange(t_ns, change, self._lives[address], address, size, module, is_mapped, tid, stack))

    def kind_of(self, change: PoolChange) -> BlockKind:
        """What a block is, also where that was only told later."""
        return self._kinds[change.block.block_id]

    def _drop(self, block: Allocation) -> None:
        """Free a block without touching time or dice: all that follows happens as if it had been kept."""
        self._late_ns = INSTANT_NS
        self._drop_allocated(block)
        self._drop_active(block)
        self._late_ns = 0

    def _drop_allocated(self, block: Allocation) -> None:
        super()._drop_allocated(block)
        self._note("free", block)

    def _kind(self, block: Allocation) -> BlockKind:
        if block.label.is_leak:
            return "leak"
        by_frame: dict[str, BlockKind] = {frames.OPTIMIZER_LOAD: "optimizer", frames.LOAD_BATCH: "batch"}
        for frame in block.label.stack:
            if frame in by_frame:
                return by_frame[frame]
        by_pool: dict[str, BlockKind] = {"weights": "weight", "kv_cache": "kv_cache"}
        return by_pool.get(block.span.segment.pool, "other")

    def _note(self, change: Change, block: Allocation) -> None:
        tid, stack = self._recorder.where()
        log, kind = self._recorder.log, self._kinds[block.block_id]
        t_ns = self.now + self._late_ns
        log.pool.append(PoolChange(t_ns, change, block, kind, self.totals, tid, stack, len(log.visits)))


class WatchedRecorder(Recorder):
    """The recorder of the demo, whose memory is watched."""

    memory: WatchedAllocator

    def __init__(self, process: Process, clock: Clock, dice: Dice, *, leak: bool) -> None:
        super().__init__(process, clock, dice)
        self.log = ProcessLog(process, clock.now - NS_PER_S)
        self.memory = WatchedAllocator(self, leak=leak)

    def where(self) -> tuple[int, Stack | None]:
        """Running thread and its Python frames, innermost first; autograd's own thread has none."""
        if self._tid != self.process.main_tid:
            return self._tid, None
        running = self._running.get(self._tid, [])
        return self._tid, (running[-1].stack if running else None) or tuple(reversed(self._frames))


class WatchedJob(Job):
    """The training job, which tells what its standing memory is."""

    def __init__(self, recorder: WatchedRecorder) -> None:
        super().__init__(recorder)
        standing = [change.block for change in recorder.log.pool if change.kind == "other"]
        recorder.memory.mark_kind(standing, "param")
        recorder.memory.mark_kind(self.optimizer, "optimizer")


def simulate_process(seed: int, rank: int, iterations: int, *, leak: bool) -> ProcessLog:
    """Run the job of one rank as `simulate_run` does, with the same times, sizes and addresses.

    Parameters
    ----------
    seed, rank, iterations : int
        See `simulate_run`.
    leak : bool
        ``False`` runs the repaired program: the same operators at the same times, but the one that leaked keeps
        nothing. Addresses and the driver's part differ from there on, as they would.
    """
    dice = Dice(f"memscope demo {seed} rank {rank}")
    schedule = _schedule(seed, iterations)
    recorder = WatchedRecorder(_process(rank), Clock(schedule[0][2] - 60 * NS_PER_S, dice), dice, leak=leak)
    log, memory, address = recorder.log, recorder.memory, DRIVER_BASE
    for module, size in (("SLOG", SLOG_BYTES), ("RUNTIME", RUNTIME_BYTES)):
        memory.note_driver("malloc", log.start_ns - 10_000_000 + address % 999, address, size, module)
        address += 1 << 32
    job = WatchedJob(recorder)
    collective = 0
    for iteration, role, start_ns in schedule:
        job.wait_for(role, start_ns)
        if HCCL_BYTES[role] > collective:  # at first use
            more = HCCL_BYTES[role] - collective
            memory.note_driver("malloc", memory.now + INSTANT_NS, address, more, "HCCL")
            collective += more
            address += 1 << 32
        log.visits.append(_visit(job, recorder, role, iteration))
    log.stop_ns = recorder.clock.now + 20_000
    log.pool = [replace(change, kind=memory.kind_of(change)) for change in log.pool]
    return log


def _visit(job: Job, recorder: WatchedRecorder, role: str, iteration: int) -> Visit:
    """Play a role; the spans around it are those in which the profiler of the Ascend demo starts and stops."""
    recorder.clear()
    recorder.graph.clear()
    start_ns, before = recorder.clock.now, recorder.memory.totals
    recorder.clock.spend(70_000_000, 110_000_000)
    job.run(role)
    end_ns = recorder.clock.spend(55_000_000, 140_000_000)
    return Visit(
        role=role,
        iteration=iteration,
        start_ns=start_ns,
        end_ns=end_ns,
        before=before,
        after=recorder.memory.totals,
        ops=recorder.ops,
        ranges=tuple(recorder.ranges),
        calls=tuple(recorder.python_calls),
        tasks=tuple(recorder.tasks),
    )
