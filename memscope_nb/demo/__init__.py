"""A simulated reinforcement-learning run with known answers, for demonstrations, tests and benchmarks."""

from .ascend_text import write_demo
from .dump_truth import ProcessTruth
from .memscope_dump import DumpTruth, write_demo_dump
from .records import DemoRun
from .simulate import simulate_run
from .torch_files import TorchTruth, write_demo_pytorch

__all__ = [
    "DemoRun",
    "DumpTruth",
    "ProcessTruth",
    "TorchTruth",
    "simulate_run",
    "write_demo",
    "write_demo_dump",
    "write_demo_pytorch",
]
