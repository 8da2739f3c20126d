"""What a PyTorch snapshot or Kineto trace says of its own completeness (spec/pytorch 1.1, 1.7, 2.3, 4).

None of the recorder's options is written into the files. Each check says what can be concluded all the same, and what
to record next time; a check that nothing speaks for is undecided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..model import BlockFlag, MemoryProfile
from ..units import format_bytes

TORCH_KINDS = ("pytorch_snapshot", "kineto")
CHECK_COLUMNS = ("source", "check", "verdict", "detail", "record_next")
Verdict = Literal["ok", "look", "undecided"]

RECORD = "torch.cuda.memory._record_memory_history(enabled='all', context='all', stacks='all', max_entries=1_000_000)"
TRACE = "torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True)"
STEPS = "wrap the loop in torch.profiler.record_function('step'), or call profiler.step() while torch.profiler runs"
VERL = "global_profiler.tool=torch_memory with global_profiler.global_tool_config.torch_memory."

WAYS: dict[str, tuple[str, str, str]] = {
    "history": (
        "no history, only the state at the end",
        f"{RECORD} before the part of interest (torch.npu.memory, torch.xpu.memory alike)",
        f"{VERL}context=all",
    ),
    "cut": (
        "the head of the history is lost, or recording began late",
        "call _record_memory_history before the first allocation, with a larger max_entries",
        f"{VERL}trace_alloc_max_entries=1000000",
    ),
    "stacks": (
        "no call stacks: blocks cannot be traced to a line of Python",
        f"snapshot: {RECORD}; trace: {TRACE}",
        f"{VERL}context=all, {VERL}stacks=all",
    ),
    "steps": (
        "no steps or ranges: growth over steps cannot be told from phases inside one",
        STEPS,
        "global_profiler.steps=[1,2,3,4], a dump for each step",
    ),
    "times": (
        "no times (torch_npu and old PyTorch write none): the axis is the order of events",
        f"a trace of the same steps with {TRACE}",
        "global_profiler.tool=torch with contents including memory",
    ),
    "segments": (
        "no segments: streams, free ranges and fragmentation are unknown",
        f"a snapshot: {RECORD}, then _dump_snapshot(file)",
        f"{VERL}context=all",
    ),
}
"""What is missing, how PyTorch records it, and how verl does; the keys of :func:`lacking`."""


@dataclass(frozen=True)
class _Source:
    """One source and what belongs to it."""

    number: int
    kind: str
    facts: dict[str, Any]
    blocks: pd.DataFrame
    totals: pd.DataFrame
    marks: pd.DataFrame
    segments: pd.DataFrame

    def flagged(self, flag: BlockFlag) -> pd.DataFrame:
        return self.blocks[(self.blocks["flags"].to_numpy() & int(flag)) != 0]

    @property
    def from_before(self) -> pd.DataFrame:
        return self.blocks[self.blocks["alloc_ns"].isna() & (self.blocks["pool"] != "WORKSPACE")]


_Found = tuple[str, Verdict, str, str]


def torch_checks(profile: MemoryProfile, numbers: list[int]) -> pd.DataFrame:
    """Return the checks of the PyTorch sources among some sources.

    Returns
    -------
    pandas.DataFrame
        ``source check verdict detail record_next``: ``verdict`` is ``ok``, ``look`` (something contradicts or was lost)
        or ``undecided``; ``record_next`` names the setting that would tell more, empty if none does.
    """
    rows: list[tuple[Any, ...]] = []
    for row in profile.sources.itertuples():
        if row.source in numbers and is_torch(row) and row.status != "failed":
            one = _source(profile, row)
            found = _snapshot(one) if row.kind == TORCH_KINDS[0] else _kineto(one)
            rows += [(int(row.source), *check) for check in found]
    return pd.DataFrame(rows, columns=list(CHECK_COLUMNS))


def is_torch(row: Any) -> bool:
    """Whether a row of ``sources`` is of a PyTorch recorder."""
    return getattr(row, "kind", "") in TORCH_KINDS


def torch_verdict(checks: pd.DataFrame) -> Verdict:
    """Return the verdict of a source: ``ok`` only if two independent records of it agree."""
    if (checks["verdict"] == "look").any():
        return "look"
    proof = checks[checks["check"].isin(["end", "totals"])]
    return "ok" if len(proof) and (proof["verdict"] == "ok").all() else "undecided"


def lacking(profile: MemoryProfile, checks: pd.DataFrame, numbers: list[int]) -> dict[str, list[int]]:
    """Return, for each key of :data:`WAYS`, the PyTorch sources that lack the fact."""
    mine = [int(n) for n in numbers if n in set(checks["source"])]
    bad = checks[checks["verdict"] != "ok"].groupby("check")["source"].agg(set)
    without = {key: bad.get(key, set()) for key in ("history", "start", "stacks", "times")}
    kind = dict(zip(profile.sources["source"], profile.sources["kind"], strict=True)) if mine else {}
    marked = set(profile.marks.loc[profile.marks["kind"].isin(["step", "range"]), "source"])
    with_segments = set(profile.segments["source"])
    on_accelerator = set(profile.totals.loc[(profile.totals["device"] != "CPU").to_numpy(), "source"])
    found = {
        "history": [n for n in mine if n in without["history"]],
        "cut": [n for n in mine if n in without["start"] and n not in without["history"]],
        "stacks": [n for n in mine if n in without["stacks"]],
        "steps": [n for n in mine if n not in marked],
        "times": [n for n in mine if n in without["times"] and n not in without["history"]],
        "segments": [n for n in mine if n not in with_segments and (kind[n] != "kineto" or n in on_accelerator)],
    }
    return {key: sources for key, sources in found.items() if sources}


def _source(profile: MemoryProfile, row: Any) -> _Source:
    tables = {
        name: table[(table["source"] == row.source).to_numpy()]
        for name in ("blocks", "totals", "marks", "segments")
        for table in [getattr(profile, name)]
    }
    return _Source(int(row.source), str(row.kind), row.facts if isinstance(row.facts, dict) else {}, **tables)


# -- snapshots --------------------------------------------------------------------------------------------------


def _snapshot(one: _Source) -> Iterator[_Found]:
    n_entries = int(one.facts.get("n_entries", 0))
    if n_entries <= 1:
        yield "history", "undecided", f"{n_entries} entries: only the state at the end", WAYS["history"][1]
    else:
        yield "history", "ok", f"{n_entries:,} entries", ""
        yield _start(one, n_entries)
        yield _times(one)
    yield _stacks(one, RECORD)
    yield _releases(one)
    yield _end(one)
    yield from _counted(one)
    yield from _pools(one)
    yield _settings(one)
    yield from _failures(one)


def _start(one: _Source, n_entries: int) -> _Found:
    """Whether the history is whole, began late, or lost its head to the ring buffer (spec 1.1, 1.6)."""
    settings = one.facts.get("allocator_settings", {})
    before = one.from_before
    n_releases = int(before["free_event_id"].notna().sum()) if "free_event_id" in before else 0
    held = f"{len(before):,} blocks ({format_bytes(int(before['size_bytes'].sum()))}) are older than the history"
    if settings.get("trace_alloc_overflowed"):
        limit = settings.get("trace_alloc_max_entries", "unknown")
        return "start", "look", f"cut: the ring buffer of {limit} entries overflowed; {held}", WAYS["cut"][1]
    if not len(before):
        return "start", "ok", "whole: no block is older than the history", ""
    if settings.get("trace_alloc_overflowed") is False:
        return "start", "ok", f"late: recording began when memory was already held; {held}", ""
    detail = f"cut or late, which the file does not tell; {held}"
    if n_releases:
        detail += f", {n_releases:,} of them known from their release only"
    return "start", "undecided", detail, WAYS["cut"][1]


def _times(one: _Source) -> _Found:
    if one.facts.get("time_axis") == "time":
        return "times", "ok", "entries have times in µs", ""
    return (
        "times",
        "undecided",
        "event order: durations and the order against other files mean nothing",
        WAYS["times"][1],
    )


def _end(one: _Source) -> _Found:
    """The strong self-test of the format: what the history leaves against what the segments hold (spec 1.7)."""
    keys = [key for key in one.facts if key.startswith("end_difference_")]
    if not keys:
        return "end", "undecided", "no segments to check the history against", WAYS["segments"][1]
    apart = {key: int(one.facts[key]) for key in keys if one.facts[key]}
    if not apart:
        return "end", "ok", "allocated and active at the end equal the sums of the segments, to the byte", ""
    named = ", ".join(
        f"{key.removeprefix('end_difference_').removesuffix('_bytes')} {v:+} B" for key, v in apart.items()
    )
    return "end", "look", f"the segments hold another amount than the history leaves: {named}", ""


def _counted(one: _Source) -> Iterator[_Found]:
    """The allocator counts its active bytes when a snapshot is taken, apart from the segments (spec 1.4)."""
    taken = one.marks[(one.marks["kind"] == "snapshot").to_numpy()]
    if not len(taken) or not len(one.segments) or int(taken["end_ns"].iloc[-1]) != _last_ns(one):
        return  # it was taken earlier: the segments are of another moment
    counted = int(taken["attrs"].iloc[-1]["size_bytes"])
    mine = one.segments[(one.segments["pool"] != "WORKSPACE").to_numpy()]
    held = int(mine[["allocated_bytes", "pending_bytes"]].to_numpy(np.int64).sum())
    if counted == held:
        yield "counter", "ok", f"the allocator counted {format_bytes(counted)} active, as the segments hold", ""
    else:
        apart = format_bytes(held - counted, signed=True)
        yield "counter", "look", f"the segments hold {apart} against the {format_bytes(counted)} that it counted", ""


def _last_ns(one: _Source) -> int:
    return int(one.totals["t_ns"].max()) if len(one.totals) else -1


def _pools(one: _Source) -> Iterator[_Found]:
    segments = one.segments
    if not len(segments):
        return
    parts = segments[["allocated_bytes", "pending_bytes", "free_bytes"]].sum(axis=1)
    n_odd = int(((parts != segments["size_bytes"]) & (segments["n_blocks"] > 0)).sum())
    n_odd += int(one.facts.get("n_odd_segments", 0)) if not n_odd else 0
    shared = f"{len(segments):,} segments, {format_bytes(int(segments['size_bytes'].sum()))}"
    expandable = int(segments["is_expandable"].sum())
    shared += f", {expandable:,} of them parts of expandable ones" if expandable else ""
    if n_odd:
        yield "segments", "look", f"{shared}; in {n_odd:,} the blocks do not add up to what the segment says", ""
    else:
        yield "segments", "ok", f"{shared}; blocks add up in each", ""
    pending = one.flagged(BlockFlag.PENDING)
    if len(pending):
        size = format_bytes(int(pending["size_bytes"].sum()))
        yield "pending", "ok", f"{len(pending):,} blocks ({size}) were released but waited for another stream", ""


def _settings(one: _Source) -> _Found:
    settings = one.facts.get("allocator_settings")
    if not settings:
        detail = "not in the file (torch_npu and PyTorch before about 2.3 write none)"
        return "settings", "undecided", detail, "note PYTORCH_CUDA_ALLOC_CONF or PYTORCH_NPU_ALLOC_CONF beside the dump"
    kept = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments", "max_split_size", "garbage_collection_threshold")
    named = ", ".join(f"{key}={settings[key]}" for key in kept if key in settings)
    return "settings", "ok", named or "written, and nothing of interest in them", ""


# -- traces -----------------------------------------------------------------------------------------------------


def _kineto(one: _Source) -> Iterator[_Found]:
    yield "history", "ok", f"{len(one.totals):,} memory events", ""
    yield from _totals(one)
    before = one.from_before
    if len(before):
        size = format_bytes(int(before["size_bytes"].sum()))
        yield "start", "ok", f"late: {len(before):,} blocks ({size}) from before it were released in it", ""
    else:
        yield "start", "ok", "no block from before the recording was released in it", ""
    yield _stacks(one, TRACE)
    yield _releases(one)
    n_inside = int(one.facts.get("n_in_operator", 0))
    # Normal in part (spec 2.5): frees and the backward pass lie in no operator.
    if n_inside:
        yield "operators", "ok", f"{n_inside:,} of {len(one.blocks):,} blocks were asked for inside an operator", ""
    else:
        yield "operators", "undecided", "no block lies in an operator", "activities=[ProfilerActivity.CPU, ...]"
    yield "segments", "undecided", "a Kineto trace has no segments, streams or pending frees", WAYS["segments"][1]
    yield from _failures(one)


def _totals(one: _Source) -> Iterator[_Found]:
    """Recorded counters against the sum of the events, each device on its own (spec 2.3)."""
    devices = list(dict.fromkeys(one.totals["device"].astype(str)))
    for device in devices:
        worst = one.facts.get(f"worst_total_difference_bytes {device}")
        rows = one.totals[(one.totals["device"] == device).to_numpy()]
        if worst is None or not rows["allocated_bytes"].notna().any():
            yield "totals", "undecided", f"{device}: no Total Allocated to check against", "a newer PyTorch"
        elif worst:
            detail = f"{device}: Total Allocated and the sum of events differ by up to {format_bytes(int(worst))}"
            yield "totals", "look", detail, ""
        else:
            yield "totals", "ok", f"{device}: the sum of events equals Total Allocated at all {len(rows):,} events", ""


# -- both -------------------------------------------------------------------------------------------------------


def _stacks(one: _Source, how: str) -> _Found:
    if not len(one.blocks):
        return "stacks", "undecided", "no blocks", how
    size = one.blocks["size_bytes"].to_numpy(np.int64)
    of = one.blocks["stack_kind"].to_numpy(dtype=object) != "none"
    share = int(size[of].sum()) / max(int(size.sum()), 1)
    n_release = len(one.flagged(BlockFlag.RELEASE_STACK))
    detail = f"{share:.0%} of bytes and {of.sum():,} of {len(of):,} blocks have the stack of their allocation"
    detail += f"; {n_release:,} have that of their release" if n_release else ""
    return "stacks", "ok" if of.any() else "undecided", detail, "" if of.all() else how


def _releases(one: _Source) -> _Found:
    """Releases that nobody saw; a request from before the history is a matter of the start."""
    guessed = one.flagged(BlockFlag.SYNTHETIC_FREE)
    guessed = guessed[guessed["alloc_ns"].notna()]
    if not len(guessed):
        return "releases", "ok", "no release is missing", ""
    size = format_bytes(int(guessed["size_bytes"].sum()))
    detail = f"the release of {len(guessed):,} blocks ({size}) is missing; the latest possible moment stands for it"
    return "releases", "look", detail, "_record_memory_history without skip_actions"


def _failures(one: _Source) -> Iterator[_Found]:
    failed = one.marks[(one.marks["kind"] == "oom").to_numpy()]
    if not len(failed):
        return
    if one.kind == "kineto" or not len(one.segments):
        yield (
            "oom",
            "undecided",
            f"{len(failed):,} failed allocations, and no segments to explain them",
            WAYS["segments"][1],
        )
        return
    known = sum(isinstance(a, dict) and a.get("device_free_bytes") is not None for a in failed["attrs"])
    detail = f"{len(failed):,} failed allocations, {known:,} with what the device had free"
    yield "oom", "ok" if known == len(failed) else "undecided", detail, "" if known else "a newer PyTorch"
