"""Training steps of an RL worker with a planted growth, as one snapshot a step: what verl leaves on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memscope_nb.units import GIB, MIB

from .clock import Dice
from .torch_allocator import (
    EventClock,
    Frames,
    TorchAllocator,
    TorchBlock,
    allocator_settings,
    snapshot_dict,
    stack_of,
)

MAX_ENTRIES = 100_000
US_PER_S = 1_000_000
N_LAYERS = 12
LAYER_BYTES = 220 * MIB
CACHE_BYTES = 6 * GIB
LEAKED_BYTES = 24 * MIB
MICRO_BATCHES = 3
FIRST_PID = 52_310

_WORKER = ("/app/verl/workers/fsdp_workers.py", 712, "update_actor")
LEAK_FRAME = ("/app/verl/utils/metrics.py", 88, "append_logits")
WEIGHTS = stack_of(("/app/verl/utils/fsdp.py", 204, "flatten_parameters"), _WORKER)
STATES = stack_of(
    ("/app/torch/optim/adam.py", 151, "_init_group"), ("/app/verl/actor.py", 340, "optimizer_step"), _WORKER
)
CACHE = stack_of(("/app/vllm/worker/cache_engine.py", 60, "allocate_kv_cache"), ("/app/verl/rollout.py", 95, "wake_up"))
LEAK = stack_of(LEAK_FRAME, ("/app/verl/actor.py", 310, "loss"), _WORKER)
GRADIENT = stack_of(
    ("/app/torch/autograd/graph.py", 768, "_engine_run_backward"), ("/app/verl/actor.py", 316, "backward")
)


@dataclass(frozen=True)
class StepTruth:
    """What is in the snapshot of one step of one rank; sizes are those asked for.

    Attributes
    ----------
    path : str
        Below the output folder.
    start_bytes, peak_bytes, end_bytes : int
        Allocated before the first entry, at most, and at the end.
    reserved_bytes : int
        Segments at the end.
    leaked : tuple of int
        Addresses of the blocks that this step left behind.
    leaked_bytes : int
        Their bytes.
    """

    path: str
    rank: int
    pid: int
    step: int
    n_entries: int
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    reserved_bytes: int
    leaked: tuple[int, ...]
    leaked_bytes: int


@dataclass
class RankRun:
    """One worker: its allocator, and what lives from step to step."""

    rank: int
    dice: Dice
    memory: TorchAllocator
    clock: EventClock
    kept: list[TorchBlock] = field(default_factory=list)
    ranges: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[Frames] = field(default_factory=list)

    @classmethod
    def start(cls, seed: int, rank: int) -> RankRun:
        """Load the weights, before anything is recorded."""
        dice = Dice(f"memscope torch run {seed} rank {rank}")
        clock = EventClock(dice)
        memory = TorchAllocator(device=rank, device_bytes=64 * GIB, max_entries=MAX_ENTRIES, clock=clock)
        run = cls(rank, dice, memory, clock)
        run.kept = [memory.malloc(LAYER_BYTES, WEIGHTS) for _ in range(N_LAYERS)]
        layers = [("/app/verl/model.py", 60 + 7 * i, f"layer_{i}") for i in range(N_LAYERS)]
        run.stacks = [stack_of(("/app/torch/nn/modules/linear.py", 125, "forward"), one, _WORKER) for one in layers]
        return run

    def step(self, number: int, *, leak: bool) -> StepTruth:
        """Record one step: a rollout with its cache, then micro-batches whose logits may stay."""
        memory = self.memory
        memory.clear_history()
        self.ranges.clear()
        start = memory.requested
        self.clock.now += 4 * US_PER_S
        self._edge("generate", "START")
        cache = memory.malloc(CACHE_BYTES, CACHE)
        for _ in range(40):
            memory.free(memory.malloc(self.dice.between(1 * MIB, 30 * MIB), CACHE))
        memory.free(cache)
        memory.empty_cache()
        self._edge("generate", "END")
        self.clock.now += US_PER_S
        self._edge("update_actor", "START")
        leaked = [self._micro_batch(leak=leak) for _ in range(MICRO_BATCHES)]
        if number == 1:  # the optimizer makes its states when it first needs them
            self.kept += [memory.malloc(2 * LAYER_BYTES, STATES) for _ in range(N_LAYERS)]
        self._edge("update_actor", "END")
        memory.note_snapshot()
        stayed = [block for block in leaked if block is not None]
        self.kept += stayed
        pid = FIRST_PID + 17 * self.rank
        return StepTruth(
            path=f"actor/step{number}/torch_memory_rank{self.rank}_pid{pid}.pickle",
            rank=self.rank,
            pid=pid,
            step=number,
            n_entries=memory.n_entries,
            start_bytes=start,
            peak_bytes=memory.peak_requested,
            end_bytes=memory.requested,
            reserved_bytes=memory.totals()["reserved"],
            leaked=tuple(block.addr for block in stayed),
            leaked_bytes=sum(block.requested for block in stayed),
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the snapshot as it is now."""
        settings = allocator_settings(max_entries=MAX_ENTRIES, overflowed=False)
        return snapshot_dict([self.memory], settings=settings, annotations=list(self.ranges))

    def _micro_batch(self, *, leak: bool) -> TorchBlock | None:
        memory, dice = self.memory, self.dice
        activations = [memory.malloc(dice.between(8 * MIB, 60 * MIB), frames) for frames in self.stacks]
        small = [memory.malloc(dice.between(1, MIB), frames) for frames in self.stacks]
        logits = memory.malloc(LEAKED_BYTES - dice.between(0, 4096), LEAK)
        for block in reversed(activations):
            gradient = memory.malloc(dice.between(8 * MIB, 40 * MIB), GRADIENT)
            memory.free(block)
            memory.free(gradient)
        for block in small:
            memory.free(block)
        if leak:
            return logits
        memory.free(logits)
        return None

    def _edge(self, name: str, stage: str) -> None:
        edge = {"name": name, "stage": stage, "device": self.rank, "time_us": self.clock()}
        self.ranges.append(edge)
