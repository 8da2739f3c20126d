"""Records what one process does: operators, ranges, queue tasks, and who asks for memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from . import frames
from .allocator import Allocation, CachingAllocator, Label, block_bytes
from .clock import Clock, Dice
from .graph_pool import GraphPool
from .records import Op, Process, PythonCall, Range, Stack, Task

COMPUTE_STREAM = 2
COMM_STREAM = 9
TASK_EVERY = 9  # one operator in so many shows its way through the task queue


@dataclass(eq=False)
class RunningOp:
    """An operator that has begun; its id is its place in order of start."""

    op_id: int
    name: str
    tid: int
    start_ns: int
    sequence: int
    fwd_tid: int
    dims: tuple[str, ...]
    stack: Stack | None


class Recorder:
    """The hands of the simulated training code, which allocates and calls operators through it.

    Parameters
    ----------
    process : Process
        Identity of the rank.
    clock, dice
        Its time and chance.

    Attributes
    ----------
    memory : CachingAllocator
        The framework's pool.
    graph : GraphPool
        The graph engine's pool.
    """

    def __init__(self, process: Process, clock: Clock, dice: Dice) -> None:
        self.process = process
        self.clock = clock
        self.dice = dice
        self.memory = CachingAllocator(clock)
        self.graph = GraphPool(clock)
        self._frames: list[str] = []
        self._sequence = 700
        self._grad_enabled = False
        self._correlation = 8_000
        self._tid = process.main_tid
        self.clear()

    def clear(self) -> None:
        """Forget what was recorded so far, before a new collection."""
        self._running: dict[int, list[RunningOp]] = {}
        self._ops: dict[int, Op] = {}
        self._n_ops = 0
        self._forward_stacks: dict[int, Stack] = {}
        self._open_calls: list[int] = []
        self._n_calls = 0
        self._queue_free_ns = 0
        self._device_free_ns = 0
        self.ranges: list[Range] = []
        self.python_calls: list[PythonCall] = []
        self.tasks: list[Task] = []

    @property
    def ops(self) -> tuple[Op, ...]:
        """All finished operators in order of start."""
        return tuple(self._ops[op_id] for op_id in sorted(self._ops))

    @contextmanager
    def call(self, *outer_first: str) -> Iterator[None]:
        """Run the body inside Python functions, outermost first."""
        depth = len(self._frames)
        self._frames.extend(outer_first)
        yield
        del self._frames[depth:]

    @contextmanager
    def traced_call(self, frame: str) -> Iterator[None]:
        """Run the body inside one Python function that the tracer sees too."""
        self._n_calls += 1
        call_id, parent = self._n_calls, self._open_calls[-1] if self._open_calls else 0
        self._open_calls.append(call_id)
        start = self.clock.spend(1_000, 4_000)
        with self.call(frame):
            yield
        end = self.clock.spend(1_000, 4_000)
        self._open_calls.pop()
        self.python_calls.append(PythonCall(call_id, parent, frame, self.process.main_tid, start, end))

    @contextmanager
    def range(self, kind: Literal["role", "micro_batch"], name: str) -> Iterator[None]:
        """Run the body inside a named range."""
        start = self.clock.spend(2_000, 6_000)
        yield
        end = self.clock.spend(2_000, 6_000)
        self.ranges.append(Range(kind, name, self.process.main_tid, start, end))

    @contextmanager
    def backward_thread(self) -> Iterator[None]:
        """Run the body on autograd's own thread, while the main thread waits."""
        self.clock.spend(30_000, 90_000)
        self._tid = self.process.backward_tid
        yield
        self._tid = self.process.main_tid
        self.clock.spend(30_000, 90_000)

    @contextmanager
    def op(
        self,
        name: str,
        *,
        dims: tuple[str, ...] = (),
        at: tuple[str, ...] = (),
        sequence: int = -1,
        fwd_tid: int = 0,
        with_stack: bool = True,
        delay_ns: int | None = None,
    ) -> Iterator[None]:
        """Run the body inside an operator; ``at`` are the innermost Python frames, outermost first."""
        on_main = self._tid == self.process.main_tid
        stack = tuple(reversed((*self._frames, *at))) if on_main and with_stack else None
        if on_main and not with_stack and self._n_ops % 2:
            stack = ()  # the recorder writes either no stack or an empty one
        running = self._running.setdefault(self._tid, [])
        start = self.clock.spend(1_500, 9_000) if delay_ns is None else self.clock.advance(delay_ns)
        op = RunningOp(self._n_ops, name, self._tid, start, sequence, fwd_tid, dims, stack)
        self._n_ops += 1
        running.append(op)
        if sequence >= 0 and fwd_tid == 0 and stack:
            self._forward_stacks[sequence] = stack
        yield
        self._finish(op)
        running.pop()

    @contextmanager
    def node(self, name: str, *, dims: tuple[str, ...] = (), at: tuple[str, ...] = ()) -> Iterator[int]:
        """Run the body inside an operator that autograd would differentiate; gives its sequence number."""
        sequence = self.next_sequence
        with self.op(name, dims=dims, at=at, sequence=sequence):
            yield sequence
        self._sequence += self._grad_enabled

    @property
    def next_sequence(self) -> int:
        """The number of the next differentiable operator, -1 without gradients; operators before it carry it too."""
        return self._sequence if self._grad_enabled else -1

    @contextmanager
    def gradients(self) -> Iterator[None]:
        """Run the body with autograd on."""
        self._grad_enabled = True
        yield
        self._grad_enabled = False

    def empty(
        self, request: int, *, stream: int = COMPUTE_STREAM, pool: str = "default", leak: bool = False
    ) -> Allocation:
        """Allocate memory in the innermost running operator, as the profiler would label it."""
        label = self._label(is_leak=leak)
        return self.memory.malloc(block_bytes(request), label=label, stream=stream, pool=pool)

    def empty_outside(self, name: str, request: int) -> Allocation:
        """Allocate in the name of an operator that ended a moment ago or is about to begin: the join must miss."""
        label = Label(name=name, tid=self._tid)
        return self.memory.malloc(block_bytes(request), label=label, delay_ns=self.dice.between(10, 200))

    def scratch(self, request: int, *, low_ns: int = 400, high_ns: int = 3_000) -> None:
        """Allocate memory and free it at once."""
        block = self.empty(request)
        self.clock.spend(low_ns, high_ns)
        self.memory.free(block)

    def free_all(self, blocks: list[Allocation]) -> None:
        """Free blocks, the youngest first, and empty the list."""
        while blocks:
            self.memory.free(blocks.pop())

    def idle(self, low_ms: int, high_ms: int) -> None:
        """Do nothing for a while."""
        self.clock.spend(low_ms * 1_000_000, high_ms * 1_000_000)

    def _label(self, *, is_leak: bool) -> Label:
        running = self._running.get(self._tid, [])
        if not running:
            return Label(name="", tid=self._tid, is_leak=is_leak)
        op = running[-1]
        if op.stack:
            return Label(op.name, self._tid, op.op_id, op.stack, "own", is_leak)
        numbered = next((outer for outer in reversed(running) if outer.sequence >= 0), None)
        stack = self._forward_stacks.get(numbered.sequence) if numbered else None
        if stack:
            return Label(op.name, self._tid, op.op_id, stack, "forward", is_leak)
        return Label(op.name, self._tid, op.op_id, is_leak=is_leak)

    def _finish(self, op: RunningOp) -> None:
        self.clock.spend(1_500, 14_000)
        if op.op_id % TASK_EVERY == 4 and op.name.startswith(("aten::", "npu::")):
            self._launch(op)
        end = self.clock.spend(500, 2_000)
        self._ops[op.op_id] = Op(
            op.op_id, op.name, op.tid, op.start_ns, end, op.sequence, op.fwd_tid, op.dims, op.stack
        )

    def _launch(self, op: RunningOp) -> None:
        """Send the operator through the task queue; queue and device work in order."""
        self._correlation += 1
        enqueue = self.clock.spend(300, 900)
        enqueue_end = self.clock.spend(3_000, 9_000)
        dequeue = max(enqueue_end + self.dice.between(200, 900) * 10, self._queue_free_ns)
        dequeue_end = dequeue + self.dice.between(900, 4_000) * 10
        kernel_ns = max(dequeue_end + self.dice.between(2_000, 30_000), self._device_free_ns)
        kernel_end = kernel_ns + self.dice.between(3_000, 240_000)
        self._queue_free_ns, self._device_free_ns = dequeue_end + 500, kernel_end + 500
        kernel = op.name.split("::")[-1].strip("_").title().replace("_", "")
        self.tasks.append(
            Task(
                self._correlation,
                op.op_id,
                kernel,
                enqueue,
                enqueue_end,
                dequeue,
                dequeue_end,
                kernel_ns,
                kernel_end,
                COMPUTE_STREAM,
            )
        )

    @contextmanager
    def profiler_step(self, number: int) -> Iterator[None]:
        """Run the body inside one step of the profiler's schedule."""
        with self.op(f"ProfilerStep#{number}", at=frames.PROFILER_STEP):
            yield
