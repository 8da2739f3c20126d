"""A simulated reinforcement-learning run with known answers, for demonstrations, tests and benchmarks."""

from .ascend_text import write_demo
from .records import DemoRun
from .simulate import simulate_run

__all__ = ["DemoRun", "simulate_run", "write_demo"]
