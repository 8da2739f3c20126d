"""Python frames of the simulated training code, written as the profiler writes them: ``path(line): function``.

Tuples run from the outermost to the innermost frame; recorded stacks run the other way.
"""

from __future__ import annotations

PACKAGES = "/opt/conda/lib/python3.11/site-packages"
RECIPE = "/opt/train/recipe"
NN = f"{PACKAGES}/torch/nn/modules"

ENTRY = (
    "<string>(1): <module>",
    f"{PACKAGES}/ray/_private/workers/default_worker.py(289): <module>",
    f"{PACKAGES}/ray/_private/worker.py(946): main_loop",
)
MODULE_CALL = (f"{NN}/module.py(1739): _wrapped_call_impl", f"{NN}/module.py(1750): _call_impl")
LINEAR = (*MODULE_CALL, f"{NN}/linear.py(125): forward")
FSDP_GATHER = (
    f"{PACKAGES}/torch/distributed/fsdp/_runtime_utils.py(302): _unshard",
    f"{PACKAGES}/torch/distributed/fsdp/_flat_param.py(1411): _alloc_padded_unsharded_flat_param",
)
PROFILER_STEP = (
    f"{PACKAGES}/torch/autograd/profiler.py(713): __enter__",
    f"{PACKAGES}/torch/_ops.py(1116): __call__",
)

ROLE = {
    "rollout": f"{RECIPE}/workers/rollout_worker.py(241): generate_sequences",
    "compute_log_prob": f"{RECIPE}/workers/actor_worker.py(188): compute_log_prob",
    "actor_update": f"{RECIPE}/workers/actor_worker.py(263): update_actor",
    "update_weights": f"{RECIPE}/workers/weight_sync.py(97): update_weights",
}

ENGINE = f"{PACKAGES}/vllm/v1/worker"
ENGINE_STEP = (
    f"{PACKAGES}/vllm/v1/engine/llm_engine.py(274): step",
    f"{ENGINE}/gpu_model_runner.py(2102): execute_model",
)
KV_CACHE = (
    f"{ENGINE}/gpu_worker.py(331): initialize_from_config",
    f"{ENGINE}/gpu_model_runner.py(3611): _allocate_kv_cache_tensors",
)
SAMPLER = (*MODULE_CALL, f"{PACKAGES}/vllm/v1/sample/sampler.py(85): forward")
INPUTS = f"{ENGINE}/gpu_model_runner.py(1298): _prepare_inputs"
OUTPUTS = f"{RECIPE}/workers/rollout_worker.py(287): pad_responses"

MODEL = f"{PACKAGES}/transformers/models/mixtral/modeling_mixtral.py"
MODEL_FORWARD = (*MODULE_CALL, f"{MODEL}(642): forward")
LM_HEAD = (*MODULE_CALL, f"{MODEL}(671): forward")

MICRO_BATCH = f"{RECIPE}/actor/dp_actor.py(412): forward_micro_batch"
LOAD_BATCH = f"{RECIPE}/actor/dp_actor.py(371): to_device"
LOG_PROBS = f"{RECIPE}/actor/logprobs.py(58): logprobs_from_logits"
# Outside ASCII on purpose: paths and comments of real teams are.
POLICY_LOSS = f"{RECIPE}/奖励/policy_loss.py(31): masked_mean"
LEAK = f"{RECIPE}/metrics_buffer.py(88): append_logits"
DISPATCH = (
    f"{PACKAGES}/torch/utils/_python_dispatch.py(100): __torch_dispatch__",
    f"{RECIPE}/offload/dispatch.py(46): pin_or_copy",
)
OPTIMIZER_LOAD = f"{RECIPE}/offload/optimizer.py(71): load_optimizer_state"
OPTIMIZER_STEP = (
    f"{PACKAGES}/torch/optim/optimizer.py(493): wrapper",
    f"{PACKAGES}/torch/optim/adamw.py(243): step",
)
GRAD_NORM = f"{PACKAGES}/torch/distributed/fsdp/fully_sharded_data_parallel.py(1112): clip_grad_norm_"
GRAPH_CALL = (f"{PACKAGES}/torchair/core/backend.py(142): run",)
SYNC_BUCKET = f"{RECIPE}/workers/weight_sync.py(143): gather_bucket"
