"""Runs the scenario on every rank and cuts it into collections."""

from __future__ import annotations

from memscope_nb.units import NS_PER_MS, NS_PER_S

from .allocator import Allocation
from .clock import Clock, Dice
from .recorder import Recorder
from .records import Block, Collection, DemoRun, Process
from .samples import module_samples, process_samples
from .scenario import GAP_MS, ROLES, Job
from .transformer import WORLD_SIZE
from .truth import count_truth

EPOCH_NS = 1_779_756_715_000_000_000  # 26 May 2026, 00:51:55 UTC
HOST = "rl_node-03.cluster.local"
FIRST_PID = 41_207
RECORDING_NS = 1_300_000_000  # about what the longest recording takes


def simulate_run(*, seed: int = 0, ranks: int = 2, iterations: int = 2) -> DemoRun:
    """Simulate a colocated reinforcement-learning run.

    Parameters
    ----------
    seed : int
        The same seed gives the same run.
    ranks : int
        How many of the job's eight ranks are recorded, 1 to 8.
    iterations : int
        Number of training iterations, each with four collections a rank.

    Returns
    -------
    DemoRun
        Everything that happened, with the truth about each collection.
    """
    if not 1 <= ranks <= WORLD_SIZE:
        raise ValueError(f"ranks is {ranks}; the simulated node has 1 to {WORLD_SIZE} ranks")
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}; at least 1 is needed")
    schedule = _schedule(seed, iterations)
    collections = [c for rank in range(ranks) for c in _simulate_rank(seed, rank, schedule)]
    return DemoRun(seed, ranks, iterations, WORLD_SIZE, tuple(collections))


def _schedule(seed: int, iterations: int) -> list[tuple[int, str, int]]:
    """Iteration, role and start of every collection; the ranks of a job move together."""
    dice = Dice(f"memscope demo {seed} schedule")
    now = EPOCH_NS + (seed % 86_400) * NS_PER_S + dice.between(0, NS_PER_S)
    schedule = []
    for iteration in range(1, iterations + 1):
        for role in ROLES:
            low, high = GAP_MS[role]
            now += dice.between(low * NS_PER_MS, high * NS_PER_MS)
            schedule.append((iteration, role, now))
            now += RECORDING_NS
    return schedule


def _simulate_rank(seed: int, rank: int, schedule: list[tuple[int, str, int]]) -> list[Collection]:
    dice = Dice(f"memscope demo {seed} rank {rank}")
    start_up_ns = schedule[0][2] - 60 * NS_PER_S
    recorder = Recorder(_process(rank), Clock(start_up_ns, dice), dice)
    job = Job(recorder)
    start_up_bytes = recorder.memory.totals.allocated_bytes
    collections: list[Collection] = []
    for iteration, role, start_ns in schedule:
        unrecorded = job.wait_for(role, start_ns)
        # The time before the first collection includes start-up, which explains the first baseline.
        unrecorded += 0 if collections else start_up_bytes
        collections.append(_collect(job, role, iteration, unrecorded))
    return collections


def _process(rank: int) -> Process:
    pid = FIRST_PID + 131 * rank
    return Process(rank, rank, HOST, pid, main_tid=pid, backward_tid=pid + 2_612, queue_tid=pid + 1_298)


def _collect(job: Job, role: str, iteration: int, unrecorded: int) -> Collection:
    """Record one role with the profiler on: samples begin before its first record and end after its last."""
    recorder, clock = job.recorder, job.recorder.clock
    recorder.clear()
    recorder.graph.clear()
    start_ns = clock.now
    clock.spend(70_000_000, 110_000_000)
    log = recorder.memory.open_window()
    job.run(role)
    recorder.memory.close_window()
    end_ns = clock.spend(55_000_000, 140_000_000)
    residency = recorder.memory.residency
    process = process_samples(residency, role, iteration, start_ns=start_ns, end_ns=end_ns)
    modules = module_samples(residency, role, iteration, start_ns=start_ns, end_ns=end_ns)
    return Collection(
        process=recorder.process,
        role=role,
        iteration=iteration,
        start_ns=start_ns,
        end_ns=end_ns,
        blocks=tuple(map(_freeze, log.rows)),
        events=tuple(log.events),
        graph_blocks=tuple(recorder.graph.blocks),
        graph_events=tuple(recorder.graph.events),
        process_samples=process,
        module_samples=modules,
        ops=recorder.ops,
        ranges=tuple(sorted(recorder.ranges, key=lambda r: r.start_ns)),
        python_calls=tuple(sorted(recorder.python_calls, key=lambda call: call.start_ns)),
        tasks=tuple(recorder.tasks),
        truth=count_truth(log, recorder.graph.blocks, process, unrecorded_before_bytes=unrecorded),
    )


def _freeze(block: Allocation) -> Block:
    label = block.label
    return Block(
        block_id=block.block_id,
        name=label.name,
        size_bytes=block.size,
        address=block.span.address,
        tid=label.tid,
        stream=block.stream,
        alloc_ns=block.alloc_ns,
        free_ns=block.free_ns,
        block_free_ns=block.block_free_ns,
        at_alloc=block.at_alloc,
        at_release=block.at_release,
        op_id=label.op_id,
        stack=label.stack,
        stack_kind=label.stack_kind,
        is_leak=label.is_leak,
    )
