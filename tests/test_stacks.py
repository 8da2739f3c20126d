from __future__ import annotations

import pytest

from memscope_nb.stacks import StackPool, is_plumbing, merge_stacks, site_index, split_stack, stacks_frame

PACKAGES = "/opt/conda/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    "frame",
    [
        f"{PACKAGES}/torch/nn/modules/module.py(1775): _call_impl",
        f"{PACKAGES}/torch_npu/profiler/profiler.py(244): step",
        "torch/nn/functional.py(12): linear",
        "/usr/lib/python3.11/contextlib.py(81): inner",
        "/usr/lib/python3.11/multiprocessing/process.py(315): _bootstrap",
        "<string>(1): <module>",
        r"C:\env\Lib\site-packages\torch\_ops.py(692): __call__",
        "nn.Module: Linear_4",
        "<built-in method mul_ of Tensor object>",
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(signed char, unsigned long)",
        "at::(anonymous namespace)::wrapper_CUDA__empty_memory_format",
        "/pytorch/aten/src/ATen/native/TensorFactories.cpp(12): empty",
        "/usr/lib/libc10_cuda.so.1(0): malloc",
        "THPVariable_empty",
    ],
)
def test_framework_frames_are_plumbing(frame):
    assert is_plumbing(frame)


@pytest.mark.parametrize(
    "frame",
    [
        f"{PACKAGES}/vllm/worker/model_runner.py(55): load_model",
        f"{PACKAGES}/megatron/core/tensor_parallel/layers.py(900): forward",
        "/home/me/torchlight/train.py(3): main",
        "train.py(42): train_step",
        "my::odd folder/train.py(42): train_step",
        "nn.Modules.py(3): forward",
        "forward",
    ],
)
def test_installed_models_and_user_code_are_sites(frame):
    assert not is_plumbing(frame)


def test_site_is_the_first_frame_that_is_not_plumbing():
    frames = split_stack("torch/_ops.py(692): __call__;\r\nmodel/mlp.py(75): forward;\r\ntrain.py(42): step")
    assert frames == ("torch/_ops.py(692): __call__", "model/mlp.py(75): forward", "train.py(42): step")
    assert site_index(frames) == 1
    assert site_index(("torch/a.py(1): f", "torch/b.py(2): g")) == 0
    assert site_index(()) == -1


def test_the_call_of_a_module_is_a_label_and_no_site():
    inside = ("<built-in function linear>", "torch/nn/modules/linear.py(130): forward", "nn.Module: Linear_4")
    assert site_index((*inside, "model.py(48): forward", "nn.Module: Model_0", "train.py(58): step")) == 3
    assert site_index(("nn.Module: Linear_4", "torch/a.py(1): f")) == 1
    assert site_index(("nn.Module: Linear_4",)) == 0


def test_a_trailing_separator_gives_no_empty_frame():
    assert split_stack("a.py(1): f;\r\nb.py(2): g;\r\n") == ("a.py(1): f", "b.py(2): g")
    assert split_stack("") == ()


def test_stacks_are_interned_once():
    pool = StackPool()
    assert [pool.intern(text) for text in ("a.py(1): f", "b.py(1): g", "a.py(1): f", "")] == [0, 1, 0, -1]
    assert pool.to_frame()["site"].tolist() == ["a.py(1): f", "b.py(1): g"]


def test_merging_renumbers_and_keeps_minus_one():
    merged, (left, right) = merge_stacks([stacks_frame([("a",), ("b",)]), stacks_frame([("b",), ("c",)])])
    assert merged["frames"].tolist() == [("a",), ("b",), ("c",)]
    assert right[0] == left[1] == 1
    assert right[-1] == -1
