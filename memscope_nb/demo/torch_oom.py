"""A failed allocation with 13 GiB idle, as a snapshot with planted truth.

One device of 61.5 GiB. Weights fill most of it. A side stream and a graph pool hold idle memory that others cannot
have. On the default stream 4 GiB are idle in three ranges of one segment, because two small buffers that were
allocated in the middle of a step stay there; then 4 GiB are asked for in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memscope_nb.units import GIB, MIB

from .clock import Dice
from .torch_allocator import (
    DEFAULT_POOL,
    EventClock,
    Frames,
    OutOfDeviceMemoryError,
    TorchAllocator,
    TorchBlock,
    allocator_settings,
    snapshot_dict,
    stack_of,
)

GRAPH_POOL = (0, 1)
SIDE_STREAM = 0x5581_2A40_0C90
DEVICE_BYTES = 61 * GIB + 512 * MIB
REQUEST_BYTES = 4 * GIB
RANGES = (2304 * MIB, 1024 * MIB, 768 * MIB)
PIN_BYTES = 2 * MIB
SIDE_IDLE = (5 * GIB, 3 * GIB)
SIDE_LIVE = 512 * MIB
GRAPH_LIVE, GRAPH_IDLE = 2 * GIB, GIB
LAYER_BYTES = 2 * GIB
UNALIGNED_BYTES = 100
"""Less than a whole number of grains is asked for, so that rounding shows."""

_TRAIN = ("/app/verl/workers/fsdp_workers.py", 712, "update_actor")
WEIGHTS = stack_of(("/app/verl/utils/fsdp.py", 204, "flatten_parameters"), _TRAIN)
PINS = (
    stack_of(("/app/verl/utils/metrics.py", 88, "append_logits"), ("/app/verl/actor.py", 310, "loss"), _TRAIN),
    stack_of(("/app/verl/utils/cache.py", 41, "keep_mask"), ("/app/verl/actor.py", 298, "forward"), _TRAIN),
)
FAILED = stack_of(("/app/verl/actor.py", 322, "gather_logits"), _TRAIN)
SIDE = stack_of(("/app/verl/sharding.py", 77, "prefetch"), _TRAIN)
GRAPH = stack_of(("/app/engine/cuda_graph.py", 150, "capture"), ("/app/engine/runner.py", 33, "warm_up"))


@dataclass(frozen=True)
class PinTruth:
    """A block that keeps free ranges apart: address, size, stack (file, line, function), innermost first."""

    addr: int
    size_bytes: int
    stack: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class OomTruth:
    """What is true at the failure, from the allocator's own books.

    Attributes
    ----------
    ranges_bytes : tuple of int
        Free ranges on the stream asked for, by address.
    pins : tuple of PinTruth
        The blocks between them, by address.
    side_pins : tuple of PinTruth
        Blocks in the segment of the other stream.
    n_entries, n_lost : int
        Entries in the file, and those that the ring overwrote.
    """

    requested_bytes: int
    device_free_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    idle_bytes: int
    other_stream_bytes: int
    private_pool_bytes: int
    ranges_bytes: tuple[int, ...]
    pins: tuple[PinTruth, ...]
    side_pins: tuple[PinTruth, ...]
    n_entries: int
    n_lost: int


@dataclass
class _Program:
    """The training process of the story."""

    memory: TorchAllocator
    dice: Dice
    weights: list[TorchBlock] = field(default_factory=list)
    pins: list[TorchBlock] = field(default_factory=list)
    side: list[TorchBlock] = field(default_factory=list)
    stacks: list[Frames] = field(default_factory=list)

    def start(self) -> None:
        """Load weights, capture a graph, prefetch on a side stream, and plant the two buffers."""
        memory, split = self.memory, sum(RANGES) + len(PINS) * PIN_BYTES
        graph = memory.malloc(GRAPH_LIVE + GRAPH_IDLE, GRAPH, pool=GRAPH_POOL)
        memory.free(graph)
        memory.malloc(GRAPH_LIVE, GRAPH, pool=GRAPH_POOL)
        memory.free(memory.malloc(sum(SIDE_IDLE) + len(SIDE_IDLE) * SIDE_LIVE, SIDE, stream=SIDE_STREAM))
        parts = [memory.malloc(n, SIDE, stream=SIDE_STREAM) for idle in SIDE_IDLE for n in (SIDE_LIVE, idle)]
        self.side = parts[::2]
        for part in parts[1::2]:
            memory.free(part)
        rest = 60 * GIB - split - memory.totals()["reserved"]
        while rest > 0:
            size = min(LAYER_BYTES, rest)
            self.weights.append(memory.malloc(size - UNALIGNED_BYTES, WEIGHTS))
            rest -= size
        memory.free(memory.malloc(split, FAILED))
        activations = []
        for size, pin in zip(RANGES, (*PINS, None), strict=True):
            activations.append(memory.malloc(size, FAILED))
            if pin is not None:
                self.pins.append(memory.malloc(PIN_BYTES, pin))
        for block in activations:
            memory.free(block)
        layers = [("/app/verl/model.py", 60 + 7 * i, f"layer_{i}") for i in range(24)]
        self.stacks = [stack_of(("/app/torch/nn/modules/linear.py", 125, "forward"), layer, _TRAIN) for layer in layers]

    def step(self) -> None:
        """Forward and backward of one micro-batch: everything is freed, some of it while another stream uses it."""
        memory, dice = self.memory, self.dice
        live, late = [], []
        for frames in self.stacks:
            size = dice.between(2 * MIB, 40 * MIB)
            live.append(memory.malloc(size, frames))
            live += [memory.malloc(dice.between(1, 300_000), frames) for _ in range(6)]
            if dice.between(0, 3) == 0:
                block = memory.malloc(dice.between(2 * MIB, 64 * MIB), SIDE, stream=SIDE_STREAM)
                memory.free(block, used_elsewhere=True)
                late.append(block)
        for block in reversed(live):
            memory.free(block)
        for block in late:
            memory.complete(block)

    def unwind(self) -> None:
        """Let go of what the error's way out frees, before somebody takes the snapshot."""
        for block in (*self.weights[-3:], self.pins[0], self.side[1]):
            self.memory.free(block)
        self.memory.empty_cache()
        self.memory.malloc(30 * MIB, FAILED)


def build_oom(*, n_entries: int = 400_000, seed: int = 0, late: bool = False) -> tuple[dict[str, Any], OomTruth]:
    """Simulate the story and return the snapshot as plain containers, with the truth.

    Parameters
    ----------
    n_entries : int
        Length of the ring; a quarter more is written, so that the history lost its head.
    seed : int
        Of the sizes in the steps; nothing at the failure depends on it.
    late : bool
        Whether the snapshot is taken after the error has freed much, so that the failure must be found by going back.
    """
    dice = Dice(f"memscope torch oom {seed}")
    memory = TorchAllocator(device=0, device_bytes=DEVICE_BYTES, max_entries=n_entries, clock=EventClock(dice))
    program = _Program(memory, dice)
    program.start()
    while memory.n_entries < n_entries * 5 // 4:
        program.step()
    try:
        memory.malloc(REQUEST_BYTES, FAILED)
    except OutOfDeviceMemoryError:
        truth = _truth(memory, program)
    else:
        raise AssertionError("the request was meant to fail")
    if late:
        program.unwind()
    memory.note_snapshot()
    entries = memory.entries()
    truth |= {"n_entries": len(entries), "n_lost": memory.n_entries - len(entries)}
    settings = allocator_settings(max_entries=n_entries, overflowed=True)
    return snapshot_dict([memory], settings=settings), OomTruth(**truth)


def _truth(memory: TorchAllocator, program: _Program) -> dict[str, Any]:
    totals = memory.totals()
    idle = {"default": 0, "side": 0, "graph": 0}
    ranges = []
    for addr in sorted(memory.segments):
        segment = memory.segments[addr]
        free = [block.size for block in segment.blocks() if block.state == "inactive"]
        if segment.pool != DEFAULT_POOL:
            idle["graph"] += sum(free)
        elif segment.stream:
            idle["side"] += sum(free)
        else:
            ranges += free
    return {
        "requested_bytes": REQUEST_BYTES,
        "device_free_bytes": memory.device_free,
        **{f"{name}_bytes": totals[name] for name in ("reserved", "allocated", "pending", "idle")},
        "other_stream_bytes": idle["side"],
        "private_pool_bytes": idle["graph"],
        "ranges_bytes": tuple(ranges),
        "pins": tuple(map(_pin, program.pins)),
        "side_pins": tuple(map(_pin, program.side)),
    }


def _pin(block: TorchBlock) -> PinTruth:
    stack = tuple((frame["filename"], frame["line"], frame["name"]) for frame in block.frames)
    return PinTruth(block.addr, block.size, stack)
