"""What the driver samples every 20 ms: memory of the whole process and of its software modules."""

from __future__ import annotations

from bisect import bisect_right

from .records import ModuleSample, ProcessSample

MIB = 1 << 20
PERIOD_NS = 20_000_000
JITTER_NS = 40_000
# About a quarter of the real list; the last one is an id that the exporter had no name for.
MODULES = (
    *("SLOG", "IDEDD", "HCCL", "FMK", "DVPP", "RUNTIME", "CCE", "HDC", "DRV", "DEVMM", "KERNEL"),
    *("HCCP", "ROCE", "PROFILING", "APP", "TS", "AICPU", "FE", "GE", "TBE", "MBUFF", "76"),
)
SLOG_BYTES = 158 * MIB + 668 * 1024
RUNTIME_BYTES = 92 * MIB + 192 * 1024
UNNAMED_BYTES = 165 * MIB + 512 * 1024  # contexts, page tables, the graph engine's pool: in no module
# Collectives get their buffers at first use.
HCCL_BYTES = {
    "rollout": 404 * MIB,
    "compute_log_prob": 628 * MIB,
    "actor_update": 628 * MIB,
    "update_weights": 852 * MIB,
}


def process_samples(
    residency: list[tuple[int, int]], role: str, iteration: int, *, start_ns: int, end_ns: int
) -> tuple[ProcessSample, ...]:
    """Sample the device memory of the process: the backed part of the pool and all that lies outside it."""
    outside = sum(_outside(role, iteration).values()) + UNNAMED_BYTES
    times = _times(start_ns + 1_200_000, end_ns)
    return tuple(ProcessSample(t, _level(residency, t) + outside) for t in times)


def module_samples(
    residency: list[tuple[int, int]], role: str, iteration: int, *, start_ns: int, end_ns: int
) -> tuple[ModuleSample, ...]:
    """Sample every module, one module after the other; ``APP`` is what the framework's pool asked for."""
    outside = _outside(role, iteration)
    times = _times(start_ns + 38_700_000, end_ns)
    return tuple(
        ModuleSample(name, t, _level(residency, t) if name == "APP" else outside.get(name, 0))
        for name in MODULES
        for t in times
    )


def _outside(role: str, iteration: int) -> dict[str, int]:
    hccl = HCCL_BYTES[role] if iteration == 1 else max(HCCL_BYTES.values())
    return {"HCCL": hccl + 64 * 1024, "RUNTIME": RUNTIME_BYTES + 12 * 1024 * iteration, "SLOG": SLOG_BYTES}


def _level(residency: list[tuple[int, int]], t_ns: int) -> int:
    return residency[bisect_right(residency, t_ns, key=lambda change: change[0]) - 1][1]


def _times(first_ns: int, end_ns: int) -> list[int]:
    """Every 20 ms, with the small wobble of a real timer."""
    times = range(first_ns, end_ns, PERIOD_NS)
    return [t - t % 10 + (index * 7 % 5 - 2) * (JITTER_NS // 5) for index, t in enumerate(times)]
