"""A Kineto trace with memory events and Python stacks, and what is planted in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memscope_nb.units import GIB, MIB

from .clock import Dice

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE_NS = 1_779_580_800_000_000_000
OFFSET_NS = 417_000_123_456_789
CUDA = 1
HOST_NAME = "rl_node-03"
BEFORE_BYTES = 3 * GIB
"""Weights from before the recording: the counters include them, no event does."""
LOGITS_BYTES = 128 * MIB
N_LAYERS = 4
GRAIN_BYTES = 512
LEAK_FRAME = "verl/utils/metrics.py(88): append_logits"


@dataclass(frozen=True)
class TraceTruth:
    """What is in a trace.

    Attributes
    ----------
    path : str
        Below the output folder.
    n_allocs, n_frees : int
        Memory events.
    before_bytes, peak_bytes, end_bytes : int
        Total allocated before the first event, at most, and after the last one.
    step_bytes : tuple of int
        Net growth of each step.
    leaked : tuple of int
        Addresses that stay, one a step.
    leak_frame : str
        Innermost Python frame of what stays.
    """

    path: str
    n_allocs: int
    n_frees: int
    before_bytes: int
    peak_bytes: int
    end_bytes: int
    step_bytes: tuple[int, ...]
    leaked: tuple[int, ...]
    leak_frame: str = LEAK_FRAME


@dataclass
class TraceProgram:
    """Writes down what a training loop does: calls, operators, memory."""

    dice: Dice
    pid: int
    now: int = OFFSET_NS
    events: list[dict[str, Any]] = field(default_factory=list)
    allocated: int = BEFORE_BYTES
    peak: int = BEFORE_BYTES
    n_allocs: int = 0
    n_frees: int = 0
    live: dict[int, int] = field(default_factory=dict)
    _python: list[int] = field(default_factory=list)
    _next_python: int = 1
    _next_addr: int = 0x7E00_0000_0000

    def _tick(self) -> int:
        self.now += self.dice.between(120, 9_000)
        return self.now

    def _span(self, category: str, name: str, start: int, args: dict[str, Any]) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": self.pid}
        self.events.append(event | {"ts": start / 1000, "dur": (self._tick() - start) / 1000, "args": args})

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Run inside a Python function."""
        start, number = self._tick(), self._next_python
        parent = self._python[-1] if self._python else None
        self._next_python += 1
        self._python.append(number)
        yield
        self._python.pop()
        self._span("python_function", name, start, {"Python id": number, "Python parent id": parent})

    @contextmanager
    def op(self, name: str, *, sequence: int | None = None, backward: bool = False) -> Iterator[None]:
        """Run inside an operator."""
        start = self._tick()
        yield
        fwd = self.pid if backward else 0
        args = {} if sequence is None else {"Sequence number": sequence, "Fwd thread id": fwd}
        self._span("cpu_op", name, start, args)

    @contextmanager
    def annotate(self, name: str) -> Iterator[None]:
        """Run inside an annotated range."""
        start = self._tick()
        yield
        self._span("user_annotation", name, start, {})

    def malloc(self, size: int) -> int:
        """Allocate; return the address."""
        size = -(-size // GRAIN_BYTES) * GRAIN_BYTES
        addr = self._next_addr
        self._next_addr += size
        self.live[addr] = size
        self.n_allocs += 1
        self._memory(addr, size)
        return addr

    def free(self, addr: int) -> None:
        """Free."""
        self.n_frees += 1
        self._memory(addr, -self.live.pop(addr))

    def _memory(self, addr: int, n_bytes: int) -> None:
        self.allocated += n_bytes
        self.peak = max(self.peak, self.allocated)
        args = {
            "Total Reserved": -(-self.peak // (20 * MIB)) * 20 * MIB,
            "Total Allocated": self.allocated,
            "Bytes": n_bytes,
            "Device Id": 0,
            "Device Type": CUDA,
            "Addr": addr,
            "Ev Idx": len(self.events),
            "finished": False,
        }
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": self.pid, "tid": self.pid}
        self.events.append(event | {"ts": self._tick() / 1000, "args": args})


def build_trace(*, seed: int = 0, steps: int = 3, path: str = "") -> tuple[dict[str, Any], TraceTruth]:
    """Simulate a few training steps and return the trace, with the truth; ``path`` is only noted in it."""
    program = TraceProgram(Dice(f"memscope torch trace {seed}"), pid=61_007)
    grown: list[int] = []
    leaked: list[int] = []
    with program.call("train.py(12): main"):
        for number in range(1, steps + 1):
            before = program.allocated
            with program.annotate(f"ProfilerStep#{number}"), program.call("train.py(31): train_step"):
                leaked.append(_step(program, number))
            grown.append(program.allocated - before)
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Simulated GPU", "totalGlobalMem": 64 * GIB}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
        "with_stack": 1,
        "profile_memory": 1,
        "host_name": HOST_NAME,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    truth = TraceTruth(
        path=path,
        n_allocs=program.n_allocs,
        n_frees=program.n_frees,
        before_bytes=BEFORE_BYTES,
        peak_bytes=program.peak,
        end_bytes=program.allocated,
        step_bytes=tuple(grown),
        leaked=tuple(leaked),
    )
    ordered: Sequence[dict[str, Any]] = sorted(program.events, key=lambda event: float(event["ts"]))
    return head | {"traceEvents": list(ordered), "traceName": "trace.json"}, truth


def _step(program: TraceProgram, number: int) -> int:
    """Forward, loss, backward; the logits stay. Returns their address."""
    saved = []
    with program.call("verl/actor.py(250): forward"):
        for layer in range(N_LAYERS):
            sequence = number * 100 + layer
            with program.call(f"nn.Module: Block_{layer}"), program.call(f"verl/model.py({60 + layer}): forward"):
                with program.op("aten::linear", sequence=sequence), program.op("aten::addmm"):
                    saved.append(program.malloc(program.dice.between(8 * MIB, 90 * MIB)))
                with program.op("aten::empty"):
                    program.free(program.malloc(program.dice.between(1, MIB)))
    with program.call(LEAK_FRAME), program.op("aten::clone"):
        logits = program.malloc(LOGITS_BYTES)
    with program.call("torch/autograd/graph.py(768): _engine_run_backward"):
        for layer in reversed(range(N_LAYERS)):
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            with program.op(name, sequence=number * 100 + layer, backward=True):
                gradient = program.malloc(program.dice.between(8 * MIB, 60 * MIB))
            program.free(saved[layer])  # freed when the graph drops it, in no operator
            program.free(gradient)
    return logits
