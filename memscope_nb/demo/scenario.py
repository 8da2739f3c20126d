"""What the four roles of one reinforcement-learning iteration do to the memory of a rank."""

from __future__ import annotations

from . import frames
from .allocator import Allocation, block_bytes
from .recorder import Recorder
from .transformer import (
    BF16,
    DOWN_BYTES,
    FFN,
    FP32,
    HEAD_BYTES,
    HIDDEN,
    LAYER_BYTES,
    LAYERS,
    OUT_BYTES,
    QKV_BYTES,
    UP_BYTES,
    VOCAB,
    WORLD_SIZE,
    Node,
    backward,
    dims,
    forward,
)

ROLES = ("rollout", "compute_log_prob", "actor_update", "update_weights")
PROFILER_STEPS = 2
MICRO_BATCHES = 2
DECODE_STEPS = 8
SEQUENCES = 192
KV_BLOCK_TOKENS = 128
KV_TOKEN_BYTES = 2 * 8 * 128 * BF16  # keys and values of eight heads in one layer
BUCKET_BYTES = 1 << 30
LEAK_WIDTH = 1024
SHARD_BYTES = [LAYER_BYTES // BF16 * FP32 // WORLD_SIZE] * LAYERS + [HEAD_BYTES // BF16 * FP32 // WORLD_SIZE] * 2
# Idle time before a role in ms: waiting for prompts, for rewards computed elsewhere, for other ranks.
GAP_MS = {
    "rollout": (6_000, 9_000),
    "compute_log_prob": (14_000, 21_000),
    "actor_update": (4_000, 7_000),
    "update_weights": (3_000, 5_000),
}
GRAPH_NAMES = ("TransData_1", "MatMulV2_4", "SoftmaxV2_2", "ReduceSumD_7", "TransData_12", "Cast_3")


class Job:
    """The training job as one rank sees it, with the memory that outlives a role.

    Parameters
    ----------
    recorder : Recorder
        Where the job runs; on return the standing memory is allocated.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.memory = recorder.memory
        self.dice = recorder.dice
        self.optimizer: list[Allocation] = []
        self.kv_cache: list[Allocation] = []
        self.outputs: list[Allocation] = []
        self.rewards: list[Allocation] = []
        self.handles: list[Allocation] = []
        self.n_rollouts = 0
        self.n_batches = 0
        for request in (HEAD_BYTES, *[QKV_BYTES, OUT_BYTES, UP_BYTES, DOWN_BYTES] * LAYERS, HEAD_BYTES):
            self.memory.malloc(block_bytes(request), pool="weights")
        for request in SHARD_BYTES:
            self.memory.malloc(block_bytes(request))
        for request in SHARD_BYTES * 2:
            self.optimizer.append(self.memory.malloc(block_bytes(request)))
        self.memory.sleep("weights")

    def wait_for(self, role: str, start_ns: int) -> int:
        """Let the unrecorded time before a role pass; gives the change of allocated memory in it."""
        self.recorder.clock.wait_until(start_ns + self.dice.between(0, 30_000_000))
        before = self.memory.totals.allocated_bytes
        if role == "compute_log_prob":
            for width in (1, 2, 1):
                self.rewards.append(self.memory.malloc(block_bytes(width * SEQUENCES * 2048 * FP32)))
        return self.memory.totals.allocated_bytes - before

    def run(self, role: str) -> None:
        """Play one role; its first record is a malloc, so the level before it is a plain fact."""
        play = {
            "rollout": self.rollout,
            "compute_log_prob": self.compute_log_prob,
            "actor_update": self.actor_update,
            "update_weights": self.update_weights,
        }[role]
        recorder = self.recorder
        with (
            recorder.call(*frames.ENTRY),
            recorder.traced_call(frames.ROLE[role]),
            recorder.range("role", role),
        ):
            with recorder.op("aten::empty", dims=("",)):
                meta = recorder.empty(SEQUENCES * 64)
            play()
            recorder.idle(45, 70)  # at least one sample of the process falls into it
            self.memory.free(meta)

    def rollout(self) -> None:
        """Wake the engine, make room, generate, then put the engine to sleep with its memory still counted."""
        recorder = self.recorder
        self.memory.wake("weights")
        recorder.free_all(self.kv_cache)
        self.memory.empty_cache("kv_cache")
        self._make_kv_cache()
        workspace = recorder.empty(48 << 20)  # by the engine's C++ code, outside any operator
        recorder.idle(40, 80)
        recorder.free_all(self.optimizer)  # late: for a moment the optimizer and the engine are both there
        self._empty_cache()
        recorder.idle(20, 50)
        self._prefill()
        for _ in range(DECODE_STEPS):
            self._decode()
            recorder.idle(25, 60)
        with recorder.call(frames.OUTPUTS):
            for width in (FP32 * 2, FP32, FP32):
                with recorder.op("aten::full", dims=(dims(SEQUENCES, 1536),)):
                    self.outputs.append(recorder.empty(SEQUENCES * 1536 * width))
        self.memory.free(workspace)
        self._empty_cache()
        self.memory.sleep("kv_cache")
        self.memory.sleep("weights")

    def compute_log_prob(self) -> None:
        """Two forward passes without gradients; the log-probabilities stay for the update."""
        recorder = self.recorder
        for index in range(MICRO_BATCHES):
            tokens = self._tokens()
            with recorder.range("micro_batch", f"micro_batch {index}"):
                data = self._load_batch(tokens)
                data.append(recorder.empty_outside("aten::_to_copy", tokens * FP32))
                data.append(recorder.empty(tokens * 16))  # by an extension, outside any operator
                _, log_probs = forward(recorder, tokens=tokens, train=False)
                self._run_graph(keep_last=index == 0)
                self.outputs.append(log_probs)
                recorder.free_all(data)
            recorder.idle(30, 70)
        self._empty_cache()

    def actor_update(self) -> None:
        """Bring the optimizer back, then two steps of two micro-batches each."""
        recorder = self.recorder
        with recorder.call(frames.OPTIMIZER_LOAD):
            for request in SHARD_BYTES * 2:
                with recorder.op("aten::_to_copy", dims=(dims(request // FP32),)):
                    self.optimizer.append(recorder.empty(request))
                recorder.clock.spend(1_000_000, 3_000_000)
        recorder.free_all(self.rewards)
        staging = recorder.empty_outside("aten::zero_", 3 << 20)
        with recorder.op("aten::zero_", dims=(dims(3 << 18),), delay_ns=50):
            pass
        self._run_graph(keep_last=True)
        recorder.idle(30, 60)
        self.memory.free(staging)
        for number in range(PROFILER_STEPS):
            with recorder.profiler_step(number), recorder.gradients():
                self._train_step()
            self._empty_cache()
            recorder.idle(60, 120)

    def update_weights(self) -> None:
        """Send the new weights to the engine in buckets, which the communication stream holds on to."""
        recorder = self.recorder
        self.memory.wake("weights")
        self._sync(HEAD_BYTES)
        for _ in range(LAYERS):
            self._sync(LAYER_BYTES)
        self._sync(HEAD_BYTES)
        recorder.free_all(self.handles)
        recorder.free_all(self.outputs)
        recorder.idle(25, 60)
        self._empty_cache()
        self.memory.sleep("weights")

    def _empty_cache(self) -> None:
        """Return unused segments; the barrier after it brings the first record that shows it."""
        self.memory.empty_cache()
        with self.recorder.op("c10d::barrier", with_stack=False):
            self.recorder.scratch(FP32)

    def _make_kv_cache(self) -> None:
        self.n_rollouts += 1
        n_blocks = 8_800 + 150 * min(self.n_rollouts, 2) + self.dice.between(0, 100)
        n_blocks -= 230 * (self.recorder.process.rank % 2)
        shape = dims(2, n_blocks, KV_BLOCK_TOKENS, 8, 128)
        for _ in range(LAYERS):
            with self.recorder.op("aten::zeros", dims=(shape,), at=frames.KV_CACHE):
                request = n_blocks * KV_BLOCK_TOKENS * KV_TOKEN_BYTES
                self.kv_cache.append(self.recorder.empty(request, pool="kv_cache"))

    def _prefill(self) -> None:
        tokens = self._tokens() * 2
        with self.recorder.call(*frames.ENGINE_STEP):
            attended = [self._engine_layer(tokens) for _ in range(LAYERS)]
            self.recorder.free_all(attended)

    def _decode(self) -> None:
        recorder = self.recorder
        with recorder.call(*frames.ENGINE_STEP):
            with recorder.op("aten::cat", dims=(dims(SEQUENCES), dims(SEQUENCES)), at=(frames.INPUTS,)):
                ids = recorder.empty(SEQUENCES * 8)
            for _ in range(LAYERS // 2):  # the others reuse what the graph capture left
                self.memory.free(self._engine_layer(SEQUENCES))
            shape = (dims(SEQUENCES, VOCAB),)
            with recorder.call(*frames.SAMPLER):
                with recorder.op("aten::_to_copy", dims=shape):
                    logits = recorder.empty(SEQUENCES * VOCAB * FP32)
                with recorder.op("aten::softmax", dims=shape), recorder.op("aten::_softmax", dims=shape):
                    recorder.scratch(SEQUENCES * VOCAB * FP32, low_ns=80_000, high_ns=300_000)
                with recorder.op("aten::argmax", dims=shape):
                    recorder.scratch(SEQUENCES * 8)
            recorder.free_all([ids, logits])

    def _engine_layer(self, tokens: int) -> Allocation:
        recorder, width = self.recorder, 2 * FFN
        model = f"{frames.PACKAGES}/vllm/model_executor/models/mixtral.py"
        with recorder.call(*frames.MODULE_CALL, f"{model}(231): forward"):
            with recorder.op("npu::npu_fusion_attention", dims=(dims(tokens, HIDDEN),)):
                attended = recorder.empty(tokens * HIDDEN * BF16)
            with recorder.op("npu::npu_grouped_matmul", dims=(dims(tokens, HIDDEN),)):
                grown = recorder.empty(tokens * width * BF16)
                recorder.scratch(512)
        self.memory.free(grown)
        return attended

    def _train_step(self) -> None:
        shards: list[Allocation] = []
        for index in range(MICRO_BATCHES):
            with self.recorder.range("micro_batch", f"micro_batch {index}"):
                self._train_micro_batch(shards)
            self.recorder.idle(60, 140)
        self._optimizer_step(shards)

    def _train_micro_batch(self, shards: list[Allocation]) -> None:
        recorder = self.recorder
        tokens = self._tokens()
        data = self._load_batch(tokens)
        data.append(recorder.empty(tokens * 8))  # in no operator but the profiler's step
        units, log_probs = forward(recorder, tokens=tokens, train=True)
        with recorder.node("aten::mean", dims=(dims(tokens),), at=(frames.POLICY_LOSS,)) as sequence:
            loss = recorder.empty(FP32)
        units[-1].nodes.append(Node("MeanBackward0", "aten::div", sequence, tokens * FP32))
        self._leak(tokens)
        backward(recorder, units, shards)
        recorder.free_all([log_probs, loss])
        recorder.free_all(data)

    def _leak(self, tokens: int) -> None:
        """Keep some logits for a plot that nobody draws; an operator of the same name inside has already ended."""
        recorder, shape = self.recorder, (dims(tokens, LEAK_WIDTH),)
        with recorder.call(frames.LEAK), recorder.op("aten::clone", dims=shape):
            with recorder.op("aten::clone", dims=shape, at=frames.DISPATCH):
                recorder.scratch(512)
            recorder.empty(tokens * LEAK_WIDTH * FP32, leak=True)

    def _optimizer_step(self, shards: list[Allocation]) -> None:
        recorder = self.recorder
        with recorder.op("aten::linalg_vector_norm", at=(frames.GRAD_NORM,)):
            recorder.scratch(512)
        with recorder.call(*frames.OPTIMIZER_STEP):
            for request in SHARD_BYTES[:-1]:
                shape = (dims(request // FP32),)
                with recorder.op("aten::_foreach_sqrt", dims=shape):
                    root = recorder.empty(request)
                with recorder.op("npu::npu_apply_adam_w", dims=shape):
                    recorder.scratch(1024)
                self.memory.free(root)
        recorder.free_all(shards)

    def _sync(self, n_bytes: int) -> None:
        """Gather one unit in buckets; a bucket becomes free when the next one has been sent."""
        recorder = self.recorder
        held: Allocation | None = None
        while n_bytes > 0:
            request = min(n_bytes, BUCKET_BYTES)
            n_bytes -= request
            with recorder.op("aten::empty", dims=("",), at=(frames.SYNC_BUCKET,)):
                bucket = recorder.empty(request)
            with recorder.op("c10d::_allgather_base_", dims=(dims(request // BF16),), with_stack=False):
                recorder.scratch(2 << 20)
            with recorder.op("aten::copy_", dims=(dims(request // BF16),), at=(frames.SYNC_BUCKET,)):
                self.handles.append(recorder.empty(4_096))  # of the inter-process copy; they pile up to the end
                recorder.clock.spend(300_000, 2_000_000)
            self.memory.free_later(bucket)
            if held:
                self.memory.complete(held)
            held = bucket
            recorder.idle(4, 9)
        if held:
            self.memory.complete(held)

    def _load_batch(self, tokens: int) -> list[Allocation]:
        data = []
        for width in (8, 8, 4, 4):
            shape = (dims(tokens),)
            recorder = self.recorder
            outer = recorder.op("aten::to", dims=shape)
            with recorder.call(frames.LOAD_BATCH), outer, recorder.op("aten::_to_copy", dims=shape):
                data.append(recorder.empty(tokens * width))
        return data

    def _run_graph(self, *, keep_last: bool) -> None:
        sizes = [(name, 512 * self.dice.between(200, 9_000)) for name in GRAPH_NAMES]
        if keep_last:
            sizes.append(("Constant_9", 256 << 10))
        self.recorder.graph.run(sizes, keep_last=keep_last)

    def _tokens(self) -> int:
        """Length of a micro-batch; odd ranks draw shorter answers. Neighbours differ, so that no two peaks tie."""
        self.n_batches += 1
        rank = self.recorder.process.rank
        return 8 * (self.dice.between(440, 500) - 38 * (rank % 2) - rank // 2) + self.n_batches % 8
