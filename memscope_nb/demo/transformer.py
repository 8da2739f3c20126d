"""Forward and backward pass of a small mixture-of-experts model, sharded with FSDP over eight devices.

Four wide layers stand for a model cut down for profiling; every size follows from a shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import frames
from .allocator import Allocation
from .recorder import COMM_STREAM, Recorder

WORLD_SIZE = 8
LAYERS = 4
HIDDEN = 4096
QKV = 6144
FFN = 14336
EXPERTS = 9  # eight routed, one shared
VOCAB = 151_936
BF16 = 2
FP32 = 4

QKV_BYTES = QKV * HIDDEN * BF16
OUT_BYTES = HIDDEN * HIDDEN * BF16
UP_BYTES = EXPERTS * 2 * FFN * HIDDEN * BF16
DOWN_BYTES = EXPERTS * FFN * HIDDEN * BF16
LAYER_BYTES = QKV_BYTES + OUT_BYTES + UP_BYTES + DOWN_BYTES
HEAD_BYTES = VOCAB * HIDDEN * BF16


@dataclass(frozen=True)
class Step:
    """One operator of a layer and how autograd undoes it."""

    name: str
    backward: str
    grad_op: str
    line: int
    in_width: int
    out_width: int
    weight_bytes: int = 0
    inner: str | None = None
    is_saved: bool = True
    is_direct: bool = False  # the backward node itself allocates, not an operator inside it


_NORM = ("npu::npu_rms_norm", "NpuRmsNormBackward0", "npu::npu_rms_norm_backward")
_LINEAR = ("aten::linear", "MmBackward0", "aten::mm")
_ATTENTION = ("npu::npu_fusion_attention", "NpuFusionAttentionBackward0", "npu::npu_fusion_attention_grad")
_EXPERTS = ("npu::npu_grouped_matmul", "NpuGroupedMatmulBackward0", "npu::npu_grouped_matmul")
_SWIGLU = ("npu::npu_swiglu", "NpuSwigluBackward0", "npu::npu_swiglu_backward")
_ADD = ("aten::add", "AddBackward0", "aten::add")

STEPS = (
    Step(*_NORM, 171, HIDDEN, HIDDEN),
    Step(*_LINEAR, 262, HIDDEN, QKV, QKV_BYTES, inner="aten::mm"),
    Step(*_ATTENTION, 301, QKV, HIDDEN, is_direct=True),
    Step(*_LINEAR, 318, HIDDEN, HIDDEN, OUT_BYTES, inner="aten::mm", is_saved=False),
    Step(*_EXPERTS, 92, HIDDEN, 2 * FFN, UP_BYTES),
    Step(*_SWIGLU, 93, 2 * FFN, FFN),
    Step(*_EXPERTS, 95, FFN, HIDDEN, DOWN_BYTES, is_saved=False),
    Step(*_ADD, 357, HIDDEN, HIDDEN, is_direct=True),
)


@dataclass
class Node:
    """One node of the autograd graph with what it keeps for the backward pass."""

    name: str
    grad_op: str
    sequence: int
    grad_bytes: int
    weight_bytes: int = 0
    is_direct: bool = False
    saved: list[Allocation] = field(default_factory=list)


@dataclass
class Unit:
    """Nodes whose weights are gathered and reduced together."""

    weight_bytes: int
    nodes: list[Node] = field(default_factory=list)


def dims(*shape: int) -> str:
    """Write one shape as the recorder does."""
    return ",".join(map(str, shape))


def gather(recorder: Recorder, weight_bytes: int) -> Allocation:
    """Gather the full weights of one unit from all ranks into a short-lived buffer."""
    at = frames.FSDP_GATHER
    with recorder.op("aten::empty", dims=("",), at=at, sequence=recorder.next_sequence):
        buffer = recorder.empty(weight_bytes, stream=COMM_STREAM)
    with recorder.op("c10d::_allgather_base_", dims=(dims(weight_bytes // BF16),), with_stack=False):
        recorder.scratch(1 << 20)
    return buffer


def forward(recorder: Recorder, *, tokens: int, train: bool) -> tuple[list[Unit], Allocation]:
    """Run the model over one micro-batch; gives the autograd units and the log-probabilities."""
    units: list[Unit] = []
    with recorder.call(frames.MICRO_BATCH):
        with recorder.call(*frames.MODEL_FORWARD):
            hidden = None
            for _ in range(LAYERS):
                unit, hidden = forward_layer(recorder, tokens=tokens, train=train, previous=hidden)
                units.append(unit)
        unit, log_probs = forward_head(recorder, tokens=tokens, train=train)
        units.append(unit)
        if hidden and not train:
            recorder.memory.free(hidden)
    return units, log_probs


def forward_layer(
    recorder: Recorder, *, tokens: int, train: bool, previous: Allocation | None
) -> tuple[Unit, Allocation]:
    """Run one layer; without training every result goes as soon as the next one is there."""
    unit = Unit(LAYER_BYTES)
    weights = gather(recorder, LAYER_BYTES)
    passing: list[Allocation] = [previous] if previous and not train else []
    with recorder.traced_call(f"{frames.MODEL}(340): forward"), recorder.call(*frames.MODULE_CALL):
        for step in STEPS:
            sequence, result = forward_step(recorder, step, tokens)
            recorder.free_all(passing)
            grad_bytes = tokens * step.in_width * BF16
            node = Node(step.backward, step.grad_op, sequence, grad_bytes, step.weight_bytes, step.is_direct)
            if train and step.is_saved:
                node.saved.append(result)
            else:
                passing.append(result)
            unit.nodes.append(node)
    recorder.memory.free_later(weights)
    recorder.clock.spend(60_000, 400_000)
    recorder.memory.complete(weights)
    return unit, result


def forward_step(recorder: Recorder, step: Step, tokens: int) -> tuple[int, Allocation]:
    """Run one operator of a layer."""
    shape = (dims(tokens, step.in_width),)
    result_bytes = tokens * step.out_width * BF16
    at = (f"{frames.MODEL}({step.line}): forward", *(frames.LINEAR if step.inner else ()))
    with recorder.node(step.name, dims=shape, at=at) as sequence:
        if step.inner is None:
            result = recorder.empty(result_bytes)
            if step.is_direct:
                recorder.scratch(512 * recorder.dice.between(1, 64))
        else:
            with recorder.op(step.inner, dims=shape, at=at, sequence=sequence):
                result = recorder.empty(result_bytes)
    return sequence, result


def forward_head(recorder: Recorder, *, tokens: int, train: bool) -> tuple[Unit, Allocation]:
    """Logits and log-probabilities: three blocks of tokens times vocabulary in a row."""
    unit = Unit(HEAD_BYTES)
    weights = gather(recorder, HEAD_BYTES)
    rows, logits_shape = (dims(tokens, HIDDEN),), (dims(tokens, VOCAB),)
    half, full = tokens * VOCAB * BF16, tokens * VOCAB * FP32
    at = (*frames.LM_HEAD, *frames.LINEAR)
    with recorder.node("aten::linear", dims=rows, at=at) as sequence:  # noqa: SIM117, the inner one needs the number
        with recorder.op("aten::mm", dims=rows, at=at, sequence=sequence):
            logits = recorder.empty(half)
    unit.nodes.append(Node("MmBackward0", "aten::mm", sequence, tokens * HIDDEN * BF16, HEAD_BYTES))
    recorder.memory.free_later(weights)
    with recorder.call(frames.LOG_PROBS):
        with recorder.node("aten::_to_copy", dims=logits_shape) as sequence:
            exact = recorder.empty(full)
        unit.nodes.append(Node("ToCopyBackward0", "aten::_to_copy", sequence, half))
        recorder.clock.spend(20_000, 200_000)
        recorder.memory.complete(weights)
        recorder.memory.free(logits)
        with recorder.node("aten::_log_softmax", dims=logits_shape) as sequence:
            distribution = recorder.empty(full)
        node = Node("LogSoftmaxBackward0", "aten::_log_softmax_backward_data", sequence, full)
        unit.nodes.append(node)
        recorder.memory.free(exact)
        with recorder.op("aten::gather", dims=(*logits_shape, dims(tokens, 1)), sequence=recorder.next_sequence):
            log_probs = recorder.empty(tokens * FP32)
    if train:
        node.saved.append(distribution)
    else:
        recorder.memory.free(distribution)
    return unit, log_probs


def backward(recorder: Recorder, units: list[Unit], shards: list[Allocation]) -> None:
    """Undo the forward pass on autograd's thread; the first micro-batch of a step makes the gradient shards."""
    first = not shards
    with recorder.backward_thread():
        incoming: list[Allocation] = []
        while units:
            unit = units.pop()
            with recorder.op("aten::empty", dims=("",)):
                weights = recorder.empty(unit.weight_bytes, stream=COMM_STREAM)
            gradients: list[Allocation] = []
            while unit.nodes:
                incoming = [backward_node(recorder, unit.nodes.pop(), incoming, gradients)]
            recorder.memory.free_later(weights)
            reduce_scatter(recorder, unit.weight_bytes, gradients, shards if first else None)
            recorder.memory.complete(weights)  # after the reduction, which takes its time
        recorder.free_all(incoming)


def backward_node(
    recorder: Recorder, node: Node, incoming: list[Allocation], gradients: list[Allocation]
) -> Allocation:
    """Run one autograd node: make its gradients, then drop what it had saved and what came in."""
    shape = (dims(node.grad_bytes // BF16),)
    with recorder.op(f"autograd::engine::evaluate_function: {node.name}"):
        with recorder.op(node.name, dims=shape, sequence=node.sequence, fwd_tid=1):
            if node.is_direct:
                result = recorder.empty(node.grad_bytes)
            else:
                with recorder.op(node.grad_op, dims=shape):
                    result = recorder.empty(node.grad_bytes)
            if node.weight_bytes:
                with recorder.op(node.grad_op, dims=shape):
                    gradients.append(recorder.empty(node.weight_bytes))
        recorder.free_all(node.saved)
        recorder.free_all(incoming)
    return result


def reduce_scatter(
    recorder: Recorder, weight_bytes: int, gradients: list[Allocation], keep: list[Allocation] | None
) -> None:
    """Sum the gradients of a unit over all ranks; each keeps its shard, or adds it to the one it has."""
    name = "torch::autograd::AccumulateGrad"
    shard_bytes = weight_bytes // BF16 * FP32 // WORLD_SIZE
    with recorder.op(f"autograd::engine::evaluate_function: {name}"), recorder.op(name, fwd_tid=1):
        with recorder.op("aten::empty", dims=("",)):
            shard = recorder.empty(shard_bytes)
        with recorder.op("c10d::_reduce_scatter_base_", dims=(dims(weight_bytes // BF16),)):
            recorder.clock.spend(200_000, 900_000)
        if keep is None:
            recorder.memory.free(shard)
        else:
            keep.append(shard)
        for gradient in reversed(gradients):
            recorder.memory.free_later(gradient)
    recorder.clock.spend(20_000, 200_000)
    for gradient in gradients:
        recorder.memory.complete(gradient)
