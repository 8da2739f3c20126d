"""How far a profile can be trusted: what was read, skipped, repaired, guessed; what the numbers say of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, to_int64
from .quality_torch import CHECK_COLUMNS, WAYS, is_torch, lacking, torch_checks, torch_verdict
from .result import Result, records
from .series import Series, balance, iter_series


@dataclass(frozen=True)
class Hint:
    """A fact that a recording lacks, and the lines that record it next time."""

    missing: str
    sources: tuple[int, ...]
    torch_npu: str
    """For the Ascend profiler; empty if the sources are PyTorch's own."""
    verl: str
    pytorch: str = ""
    """For snapshots and Kineto traces; empty if the sources are of the Ascend profiler."""

    def __str__(self) -> str:
        ways = (("torch_npu", self.torch_npu), ("PyTorch", self.pytorch), ("verl", self.verl))
        told = ". ".join(f"{name}: {way}" for name, way in ways if way)
        return f"{self.missing} ({len(self.sources)} sources). {told}"


@dataclass(frozen=True, repr=False)
class Quality(Result):
    """The quality report: one row per source in ``frame``, hints for the next recording.

    Attributes
    ----------
    hints : tuple of Hint
        What the recordings lack, and the settings that give it.
    checks : pandas.DataFrame
        What PyTorch snapshots and Kineto traces say of their own completeness, one row per source and check: ``source
        check verdict detail record_next``. Empty for other sources.
    """

    hints: tuple[Hint, ...] = ()
    checks: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(CHECK_COLUMNS)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        hints = [vars(hint) | {"sources": list(hint.sources)} for hint in self.hints]
        return super().to_dict() | {"hints": hints, "checks": records(self.checks)}

    def check_lines(self) -> list[str]:
        """Return what speaks for a PyTorch recording or against it: the self-tests, and every check that is not ok."""
        told = self.checks[(self.checks["verdict"] != "ok") | self.checks["check"].isin(["end", "totals", "counter"])]
        lines = (f"{row.check} ({row.verdict}): {row.detail}" for row in told.itertuples())
        return list(dict.fromkeys(lines))

    def _repr_html_(self) -> str:
        table = self.checks.to_html(escape=True, border=0, na_rep="", index=False) if len(self.checks) else ""
        return super()._repr_html_() + table


VERL_CONTENTS = "actor_rollout_ref.actor.profiler.tool_config.npu.contents=[npu,cpu,memory,shapes,stack]"
_WAYS = {
    "stacks": (
        "no call stacks: blocks cannot be traced to a line of Python",
        "torch_npu.profiler.profile(with_stack=True, profile_memory=True, ...)",
        VERL_CONTENTS,
    ),
    "totals": (
        "no recorded totals: curves rest on the totals of the rows, or on the rows alone",
        "torch_npu.profiler.profile(profile_memory=True, ...) and keep memory_record.csv or the database",
        VERL_CONTENTS,
    ),
    "residency": (
        "no samples of the process: what is on the device outside the pool is unknown",
        "activities=[ProfilerActivity.CPU, ProfilerActivity.NPU] and "
        "experimental_config=torch_npu.profiler._ExperimentalConfig(profiler_level=ProfilerLevel.Level0)",
        "actor_rollout_ref.actor.profiler.tool_config.npu.level=level0 (not level_none), contents with npu",
    ),
    "steps": (
        "no steps or ranges: growth over steps cannot be told from phases inside one",
        "schedule=torch_npu.profiler.schedule(wait=0, warmup=0, active=4, repeat=1) with prof.step(), or "
        "_ExperimentalConfig(mstx=True) and torch_npu.npu.mstx.range_start/range_end",
        "global_profiler.steps=[1,2,3,4] with actor_rollout_ref.actor.profiler.tool_config.npu.discrete=True",
    ),
    "memory": (
        "no memory data at all",
        "torch_npu.profiler.profile(profile_memory=True, ...)",
        VERL_CONTENTS,
    ),
}


def check_quality(profile: MemoryProfile) -> Quality:
    """Report on every source how well it was read and whether its numbers agree with each other.

    Returns
    -------
    Quality
        ``frame`` has one row per source: ``source role rank_id collection status``, the counts ``n_blocks n_open
        n_skipped n_repaired``; ``n_samples`` recorded totals; ``n_unexplained`` and ``unexplained_bytes``, rises of
        older memory (3.3a) over allocated and active of all pools; ``n_total_mismatch`` of ``n_total_checked``, rows
        whose written total is not that of the recorded sample at the same instant; stack coverage as shares of bytes
        ``own_share forward_share none_share``; ``n_in_operator``; ``n_ambiguous_stack``, forward stacks where
        operators of one sequence number disagree and the last started one counts; ``clock_ns``, the grain of all
        times; ``verdict``: ``ok``, ``look`` (something contradicts or was lost) or ``undecided`` (nothing to check
        against). ``hints`` name the recorder settings that would have given more; ``caveats`` are the remarks of the
        readers. ``checks`` tells of PyTorch sources whether the history is whole, has stacks and times, and agrees with
        the segments or the recorded totals; their verdict is ``ok`` only where two independent records agree.
    """
    by_source: dict[int, list[Series]] = {}
    for one in iter_series(profile):
        by_source.setdefault(one.source, []).append(one)
    return sources_quality(profile, by_source, [int(source) for source in profile.sources["source"]])


def sources_quality(profile: MemoryProfile, by_source: dict[int, list[Series]], wanted: list[int]) -> Quality:
    """Report on some sources, given their series; see :func:`check_quality`."""
    chosen = profile.sources[profile.sources["source"].isin(wanted)]
    checks = torch_checks(profile, wanted)
    rows = [_source_row(profile, row, by_source.get(row.source, []), checks) for row in chosen.itertuples()]
    caveats = tuple(
        f"{row.role} #{row.collection} rank {row.rank_id}: {warning}"
        for row in chosen.itertuples()
        for warning in row.warnings
    )
    return Quality(pd.DataFrame(rows), caveats, _hints(profile, by_source, chosen, checks), checks)


def _source_row(profile: MemoryProfile, row: Any, series: list[Series], torch: pd.DataFrame) -> dict[str, object]:
    checks = [check for one in series for k in ("allocated", "active") if (check := balance(one, k)) is not None]
    n_checked, n_mismatch = _compare_totals(profile, series)
    n_rises = sum(check.n_rises for check in checks)
    shares = _stack_shares(profile, series)
    facts = row.facts if isinstance(row.facts, dict) else {}
    recorded = [one for one in series if one.origin == "recorded"]
    trouble = row.status != "ok" or n_rises or n_mismatch or row.n_skipped
    verdict = torch_verdict(torch[torch["source"] == row.source]) if is_torch(row) else "undecided"
    verdict = "ok" if recorded and not is_torch(row) else verdict
    return {
        "source": row.source,
        "role": row.role,
        "rank_id": row.rank_id,
        "collection": row.collection,
        "status": row.status,
        "n_blocks": row.n_blocks,
        "n_open": row.n_open,
        "n_skipped": row.n_skipped,
        "n_repaired": row.n_repaired,
        "n_samples": sum(len(one.t) for one in recorded),
        "n_unexplained": n_rises,
        "unexplained_bytes": sum(check.rise_bytes for check in checks),
        "n_total_checked": n_checked,
        "n_total_mismatch": n_mismatch,
        **{f"{kind}_share": share for kind, share in shares.items()},
        "n_in_operator": facts.get("n_in_operator", 0),
        "n_ambiguous_stack": facts.get("n_ambiguous_stack", 0),
        "clock_ns": _clock_grain(series),
        "verdict": "look" if trouble else verdict,
    }


def _compare_totals(profile: MemoryProfile, series: list[Series]) -> tuple[int, int]:
    """Rows and samples are written by different code: where both speak of one instant, they must agree to the byte."""
    checked = wrong = 0
    if "allocated_bytes" not in profile.blocks:
        return 0, 0
    for one in series:
        if one.origin != "recorded" or not len(one.rows):
            continue
        rows = profile.blocks.iloc[one.rows]
        for ledger in ("allocated", "reserved", "active"):
            if ledger not in one.recorded or f"{ledger}_bytes" not in rows:
                continue
            t, written = to_int64(rows["alloc_ns"]), to_int64(rows[f"{ledger}_bytes"])
            lo, hi = np.searchsorted(one.t, t, side="left"), np.searchsorted(one.t, t, side="right")
            single = (hi - lo == 1) & (
                written != NA_NS
            )  # several samples of one instant: which one is meant is unknown
            sample = one.recorded[ledger][np.where(single, lo, 0)]
            known = single & (sample != NA_NS)
            checked += int(known.sum())
            wrong += int((known & (np.abs(sample - written) > _allowed(one, lo, single))).sum())
    return checked, wrong


def _allowed(one: Series, at: Int64Array, single: np.ndarray[Any, np.dtype[np.bool_]]) -> Int64Array:
    return one.tolerance[np.where(single, at, 0)]


def _stack_shares(profile: MemoryProfile, series: list[Series]) -> dict[str, float]:
    rows = np.concatenate([one.rows for one in series]) if series else np.empty(0, dtype=np.int64)
    blocks = profile.blocks.iloc[rows]
    total = int(blocks["size_bytes"].sum())
    by_kind = blocks.groupby("stack_kind", observed=True)["size_bytes"].sum()
    return {kind: round(int(by_kind.get(kind, 0)) / total, 4) if total else 0.0 for kind in ("own", "forward", "none")}


def _clock_grain(series: list[Series]) -> int:
    """Greatest common divisor of all differences of times: 10 ns on hosts that count ticks (spec 2)."""
    times = np.concatenate([one.t for one in series] or [np.empty(0, dtype=np.int64)])
    return int(np.gcd.reduce(times - times.min())) if len(times) > 1 else 0


def _hints(
    profile: MemoryProfile, by_source: dict[int, list[Series]], chosen: pd.DataFrame, checks: pd.DataFrame
) -> tuple[Hint, ...]:
    torch = [int(row.source) for row in chosen.itertuples() if is_torch(row)]
    sources = [int(source) for source in chosen["source"] if source not in torch]
    read = [int(row.source) for row in chosen.itertuples() if row.status != "failed" and row.source in sources]
    with_stack = set(profile.blocks.loc[profile.blocks["stack_id"] >= 0, "source"])
    process = set(profile.totals.loc[profile.totals["scope"].isin(["process", "device"]), "source"])
    marked = set(profile.marks["source"])
    absent = {
        "memory": [s for s in sources if s not in read],
        "stacks": [s for s in read if s not in with_stack],
        "totals": [s for s in read if not any(one.origin == "recorded" for one in by_source.get(s, []))],
        "residency": [s for s in read if s not in process],
        "steps": [s for s in read if s not in marked],
    }
    hints = [Hint(_WAYS[k][0], tuple(sorted(v)), *_WAYS[k][1:]) for k, v in absent.items() if v]
    for key, numbers in lacking(profile, checks, torch).items():
        missing, pytorch, verl = WAYS[key]
        hints.append(Hint(missing, tuple(sorted(numbers)), "", verl, pytorch))
    return tuple(hints)
