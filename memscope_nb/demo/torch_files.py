"""Writes what PyTorch leaves on disk of made-up runs: snapshots of steps and ranks, one of a failure, a trace."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .dump_folder import new_folder
from .torch_allocator import write_snapshot
from .torch_oom import OomTruth, build_oom
from .torch_run import LEAK_FRAME, RankRun, StepTruth
from .torch_trace import HOST_NAME, TraceTruth, build_trace
from .transformer import WORLD_SIZE

OOM_PATH = "oom/oom_snapshot_41207_20260528203321.pickle"
OOM_ENTRIES = 20_000
TRACE_PATH = f"trainer/{HOST_NAME}_61007.1779997800123456789.pt.trace.json.gz"


@dataclass(frozen=True)
class TorchTruth:
    """What was written.

    Attributes
    ----------
    snapshots : tuple of StepTruth
        By rank, then step.
    leak_site : str
        Frame of the growth from step to step, as this package writes it.
    oom : OomTruth
        The failure, in the file `oom_path`.
    trace : TraceTruth
        The Kineto trace.
    """

    seed: int
    ranks: int
    steps: int
    leak: bool
    snapshots: tuple[StepTruth, ...]
    oom: OomTruth
    trace: TraceTruth
    oom_path: str = OOM_PATH
    leak_site: str = f"{LEAK_FRAME[0]}({LEAK_FRAME[1]}): {LEAK_FRAME[2]}"


def write_demo_pytorch(
    out_dir: str | os.PathLike[str],
    *,
    seed: int = 0,
    ranks: int = 2,
    steps: int = 4,
    leak: bool = True,
    protocol: int = 4,
    oom_entries: int = OOM_ENTRIES,
) -> TorchTruth:
    """Write ``actor/step<n>/torch_memory_rank<r>_pid<p>.pickle``, a snapshot of a failure and a Kineto trace.

    Parameters
    ----------
    out_dir : path
        A folder that does not exist yet or is empty. The files appear in it when all is written.
    seed, ranks, steps : int
        The same arguments write the same bytes.
    leak : bool
        ``False`` writes the repaired program, whose logits are released.
    protocol : int
        Of the pickles: 2 to 5.
    oom_entries : int
        Length of the history of the failure.

    Returns
    -------
    TorchTruth
        What is in the files, from the simulators' own books.

    Raises
    ------
    InputError
        When ``out_dir`` is a file or a folder with something in it.
    ValueError
        For numbers that make no run.
    """
    if not 1 <= ranks <= WORLD_SIZE:
        raise ValueError(f"ranks is {ranks}; the simulated node has 1 to {WORLD_SIZE} ranks")
    if steps < 1:
        raise ValueError(f"steps is {steps}; at least 1 is needed")
    with new_folder(out_dir) as root:
        snapshots = tuple(_write_steps(root, seed, ranks, steps, leak, protocol))
        what, oom = build_oom(n_entries=oom_entries, seed=seed)
        write_snapshot(root / OOM_PATH, what, protocol=protocol)
        trace, truth = build_trace(seed=seed, path=TRACE_PATH)
        path = root / TRACE_PATH
        path.parent.mkdir(parents=True)
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), mtime=0))
    return TorchTruth(seed, ranks, steps, leak, snapshots, oom, truth)


def _write_steps(root: Path, seed: int, ranks: int, steps: int, leak: bool, protocol: int) -> Iterator[StepTruth]:
    for rank in range(ranks):
        run = RankRun.start(seed, rank)
        for number in range(1, steps + 1):
            truth = run.step(number, leak=leak)
            write_snapshot(root / truth.path, run.snapshot(), protocol=protocol)
            yield truth
