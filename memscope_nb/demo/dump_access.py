"""Which operator reads and writes which block, and what the recorder's labels say of a block (spec/msmemscope 8, 9).

The simulator knows who allocates, not who uses. The rules here make a plain data flow of it: an operator writes its
result, the next one reads it, and what is freed was read by the last operator before. Memory that stands for longer is
used where training code would use it, which leaves waste of every kind to be found:

* optimizer state, loaded before the forward pass and first used by the optimizer: allocated early;
* the batch, used by the forward pass and kept through the backward pass: released late;
* the shard of the tied head, read in the first iteration and the last: idle in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count
from typing import Literal

from . import frames
from .dump_simulate import BlockKind, PoolChange, ProcessLog, Visit
from .recorder import COMM_STREAM
from .records import Op
from .scenario import SHARD_BYTES

READ_DELAY_NS = 2  # just after the operator begins
WRITE_LEAD_NS = 5  # just before it ends
NO_INPUT = ("aten::empty", "aten::full", "aten::zeros", "c10d::barrier")
DISPATCHED = ("aten::", "npu::", "c10d::")
N_STEPPED = len(SHARD_BYTES) - 1  # the tied head has no step of its own
LABELS: tuple[str, ...] = ("early_allocation", "late_deallocation", "temporary_idleness")

IDLE_VISITS = 16
"""From so many on the planted pause exceeds the 3,000 operators of the original tool's default."""

Use = tuple[Literal["READ", "WRITE"], int]


@dataclass(frozen=True)
class Access:
    """An operator reads or writes a block."""

    t_ns: int
    kind: Literal["READ", "WRITE"]
    block_id: int
    op: Op


def dispatched_name(op: Op) -> str | None:
    """Name of an operator as torch dispatches it; ``None`` for what is no operator to torch, such as autograd nodes."""
    if not op.name.startswith(DISPATCHED):
        return None
    return f"torch._ops.{op.name.replace('::', '.')}.default"


def build_accesses(log: ProcessLog) -> list[Access]:
    """Return all accesses of a process by time."""
    model = _Flow(log)
    changes = iter(log.pool)
    pending = next(changes, None)
    for visit in log.visits:
        ops = [op for op in visit.ops if dispatched_name(op)]
        model.enter(visit)
        mine = []
        while pending and pending.t_ns <= visit.end_ns:
            mine.append(pending)
            pending = next(changes, None)
        order = count()
        by_time: Iterator[tuple[int, int, Op | PoolChange]] = merge(
            ((op.start_ns, next(order), op) for op in ops), ((c.t_ns, next(order), c) for c in mine)
        )
        for _, _, what in by_time:
            if isinstance(what, Op):
                model.begin(what)
            elif what.change == "malloc":
                model.allocate(what)
            else:
                model.release(what)
    return sorted(model.accesses, key=lambda access: access.t_ns)


class _Flow:
    """What is alive, what was made last, who ran last."""

    def __init__(self, log: ProcessLog) -> None:
        self.accesses: list[Access] = []
        self._freed = {c.block.block_id: c.t_ns for c in log.pool if c.change == "free"}
        self._live: dict[int, PoolChange] = {}
        self._result: int | None = None
        self._last: Op | None = None
        self._at_last: set[int] = set()
        self._n_iterations = log.visits[-1].iteration

    def enter(self, visit: Visit) -> None:
        """Begin a call of a role."""
        self._visit, self._ops = visit, {op.op_id: op for op in visit.ops}
        self._n_run: Counter[str] = Counter()

    def begin(self, op: Op) -> None:
        """Read what the operator before has made (collectives fill it), and use what stands."""
        if op.name in NO_INPUT:
            return
        self._last, self._at_last = op, set()
        uses = list(self._standing(op))
        if self._result in self._live:
            uses.append(("WRITE" if op.name.startswith("c10d::") else "READ", self._result))
        for kind, block_id in uses:
            self._use(kind, block_id, op)
        self._n_run[op.name] += 1

    def allocate(self, change: PoolChange) -> None:
        """Write the result of an operator; what goes before the operator ends is its workspace."""
        block = change.block
        self._live[block.block_id] = change
        op = None if block.label.op_id is None else self._ops.get(block.label.op_id)
        if op is None or not dispatched_name(op) or self._freed.get(block.block_id, op.end_ns) < op.end_ns:
            return
        self.accesses.append(Access(op.end_ns - WRITE_LEAD_NS, "WRITE", block.block_id, op))
        if change.kind != "optimizer":  # nobody uses it for now
            self._result = block.block_id

    def release(self, change: PoolChange) -> None:
        """Let the last operator before read what is freed now, unless that is kept for nothing."""
        block_id = change.block.block_id
        born = self._live.pop(block_id)
        if change.kind == "other" and self._last and self._last.start_ns > born.t_ns:
            self._use("READ", block_id, self._last)

    def _use(self, kind: Literal["READ", "WRITE"], block_id: int, op: Op) -> None:
        if block_id not in self._at_last:
            self._at_last.add(block_id)
            self.accesses.append(Access(op.start_ns + READ_DELAY_NS, kind, block_id, op))

    def _blocks(self, kind: BlockKind) -> list[int]:
        return [block_id for block_id, change in self._live.items() if change.kind == kind]

    def _standing(self, op: Op) -> Iterator[Use]:
        """Memory that outlives the role, used in turn by equal operators; and the batch by the forward pass."""
        role, n = self._visit.role, self._n_run[op.name]
        if (role, op.name) == ("rollout", "npu::npu_grouped_matmul"):
            yield "READ", _nth(self._blocks("weight"), n)
        elif (role, op.name) == ("rollout", "npu::npu_fusion_attention"):
            yield "WRITE", _nth(self._blocks("kv_cache"), n)
        elif (role, op.name) == ("update_weights", "aten::copy_"):
            yield "WRITE", _nth(self._blocks("weight"), n)
        elif (role, op.name) == ("actor_update", "npu::npu_apply_adam_w"):
            state, shard = self._blocks("optimizer"), n % N_STEPPED
            yield from (("WRITE", block_id) for block_id in (state[shard], state[shard + N_STEPPED + 1]))
            yield "WRITE", self._blocks("param")[shard]
        elif op.name == "c10d::_allgather_base_":
            yield "READ", _nth(self._blocks("param")[:-1], n)
            if role == "compute_log_prob" and n == 0 and self._visit.iteration in (1, self._n_iterations):
                yield "READ", self._blocks("param")[-1]
        elif op.name == "npu::npu_rms_norm":
            yield from (("READ", block_id) for block_id in self._blocks("batch"))


def _nth(blocks: list[int], n: int) -> int:
    return blocks[n % len(blocks)]


# -- labels -------------------------------------------------------------------------------------------------------


def owner_of(change: PoolChange, role: str, backward_tid: int, *, is_accessed: bool) -> str:
    """Label path of a block in the grammar of August 2026: allocator, component, process, details, user's label."""
    kind, label = change.kind, change.block.label
    ops = ("ops",) if is_accessed else ()
    fixed: dict[BlockKind, tuple[str, ...]] = {
        "weight": ("vllm", "weights", *ops),
        "kv_cache": ("vllm", "kv_cache", "attn"),
        "param": ("fsdp2", "weight", *ops),  # the hook of the optimizer replaces sharded_weight
        "optimizer": ("optimizer_state", *ops),
        "batch": (*ops, "batch"),  # by describer(owner="batch")
        "leak": ops,
    }
    if kind in fixed:
        path = fixed[kind]
    elif role == "rollout":
        path = ("vllm", "serve", *ops)
    elif label.tid == backward_tid:
        path = ("fsdp2", "backward", *_detail(change, "gradient" if label.name == "aten::empty" else None), *ops)
    elif any(frame in frames.MODEL_FORWARD for frame in label.stack):
        path = ("fsdp2", "activation", *_detail(change, None), *ops)
    else:
        path = ops
    return "@".join(("PTA", *path))


def _detail(change: PoolChange, otherwise: str | None) -> tuple[str, ...]:
    if change.block.stream == COMM_STREAM:
        return ("all_gather_output",)
    return (otherwise,) if otherwise else ()


def planted_waste(log: ProcessLog, accesses: Sequence[Access]) -> dict[str, frozenset[int]]:
    """Blocks that were made to be wasteful, by label: each has it, though others have it, too."""
    used = Counter(access.block_id for access in accesses)
    born = [change for change in log.pool if change.change == "malloc"]
    tied = [c.block.block_id for c in born if c.kind == "param"][-1:] if len(log.visits) >= IDLE_VISITS else []
    early = [c for c in born if c.kind == "optimizer" and c.block.label.name and used[c.block.block_id] > 1]
    ended = {c.block.block_id for c in log.pool if c.change == "free"}
    roles = [visit.role for visit in log.visits]
    late = [c for c in born if c.kind == "batch" and roles[c.visit] == "actor_update" and c.block.block_id in ended]
    found = ([c.block.block_id for c in early], [c.block.block_id for c in late], tied)
    return {label: frozenset(ids) for label, ids in zip(LABELS, found, strict=True)}
