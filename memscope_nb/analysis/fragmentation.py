"""Why an allocation failed with memory free: idle bytes of a pool by what kept them away (spec/pytorch 1.7, 1.11)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import MemoryProfile, as_profile
from ..units import parse_bytes
from .fragmentation_checks import check_state, is_recorded_state, tell_differences, unsure_bytes
from .fragmentation_instants import (
    HOW_TO_SEE_OOM,
    Instant,
    When,
    find_failures,
    find_instants,
    of_failure,
    request_at,
)
from .fragmentation_parts import (
    REASONS,
    Fit,
    Request,
    domains_frame,
    find_pins,
    fit_by_merging,
    fit_by_release,
    fit_frame,
    mappable_bytes,
    on_stream_segments,
    reasons_of,
    releasable_bytes,
)
from .fragmentation_result import PoolAt, told_html, told_text
from .fragmentation_words import advise, caveats_of, one_line, reason_column, sentences, verdict_of
from .pool_rounding import Rounding
from .pool_state import PoolState, check_facts, pool_state
from .result import Result
from .segment_ranges import WORKSPACE

MAX_FAILURES = 50
FRAME_COLUMNS = (
    "source", "role", "rank_id", "device", "pool", "at", "t_ns", "verdict", "reason", "requested_bytes",
    "needed_bytes", "from_driver_bytes", "stream", "pool_id", "segment_type", "assumed", "device_free_bytes",
    "device_total_bytes", "reserved_bytes", "allocated_bytes", "pending_bytes", "idle_bytes",
    *map(reason_column, REASONS), "largest_bytes", "mappable_bytes", "releasable_bytes", "rounding_bytes",
    "fits_without", "n_fit_blocks", "fit_bytes", "n_release_blocks", "release_bytes", "history", "n_from_before",
    "n_estimated", "n_inferred", "unsure_bytes",
)  # fmt: skip
_WORDS = (
    "role", "device", "pool", "at", "verdict", "reason", "pool_id", "segment_type", "assumed", "fits_without",
    "history",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Fragmentation(Result):
    """Failed allocations in ``frame``, in order of time (without any, ends of recordings); others by :meth:`at`."""

    answer: tuple[str, ...] = ()
    _profile: MemoryProfile | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the rows, their sentences and the caveats as JSON-ready values; more is in those of :meth:`at`."""
        return super().to_dict() | {"answer": list(self.answer)}

    def __repr__(self) -> str:
        return told_text(self.answer, (), self.caveats)

    def _repr_html_(self) -> str:
        return told_html(self.answer, (), (), self.caveats)

    @cached_property
    def failures(self) -> pd.DataFrame:
        """Failed allocations: ``source device t_ns requested_bytes device_free_bytes stream pool_id stack_id``."""
        return find_failures(_of(self._profile))

    def at(
        self, when: When = "oom", *, request: int | str | None = None, stream: int | None = None, pool_id: str = "0,0"
    ) -> PoolAt:
        """Take the pools apart at an instant.

        Parameters
        ----------
        when : {"oom", "end", "peak"} or int
            The last failed allocation of each device, the end of the recording, the peak of allocated memory; the
            number of a failure in ``frame``, or an instant in ns.
        request : int or str, optional
            Ask for this much, such as ``"4 GiB"``, at any instant; without it, what failed there.
        stream : int, optional
            Handle of the stream that asks; only with ``request``. The default stream is 0.
        pool_id : str
            Pool that is asked; only with ``request``.

        Raises
        ------
        MissingFactError
            If no allocation failed in the recording, for ``"oom"``.
        InputError
            For an instant outside every recording, or a failure that is not there.
        """
        profile = _of(self._profile)
        made_up = None if request is None else (_size(request), 0 if stream is None else stream, pool_id)
        if request is None and stream is not None:
            raise InputError("a stream without a request: .at(..., request='4 GiB', stream=...)")
        return _explain(profile, find_instants(profile, self.failures, when), made_up)


def fragmentation(p: MemoryProfile | str | os.PathLike[str]) -> Fragmentation:
    """Explain allocations that failed although memory was free: by stream, pool, and what lies between.

    Parameters
    ----------
    p : MemoryProfile or path
        A memory snapshot of PyTorch or torch_npu.

    Returns
    -------
    Fragmentation
        ``frame`` has a row for each failed allocation, without any for the end of each recording; ``.at("oom")`` has
        everything about the last one, ``.at("end", request="4 GiB")`` asks what would happen.

    Raises
    ------
    MissingFactError
        If the recording has no segments.
    InputError
        If the profile is a selection of blocks or of time.
    """
    profile = as_profile(p)
    check_facts(profile)
    failures = find_failures(profile)
    instants = [of_failure(row) for row in failures.head(MAX_FAILURES).itertuples()]
    instants = instants or find_instants(profile, failures, "end")
    found = _explain(profile, instants, None)
    caveats = list(found.caveats)
    if not len(failures):
        caveats.append(f"no failed allocation was recorded, these are the ends; {HOW_TO_SEE_OOM}")
    left_out = int((profile.marks["kind"] == "oom").sum()) - len(failures)
    if left_out:
        caveats.append(
            f"{left_out} entries of failures are left out: told by another file, or of a device without segments"
        )
    if len(failures) > MAX_FAILURES:
        caveats.append(f"{len(failures)} allocations failed; the first {MAX_FAILURES} are listed")
    return Fragmentation(found.frame, tuple(caveats), found.answer, profile)


def _of(profile: MemoryProfile | None) -> MemoryProfile:
    if profile is None:
        raise InputError("this result was built without a profile: use memscope_nb.fragmentation")
    return profile


def _size(request: int | str) -> int:
    try:
        size = parse_bytes(request)
    except ValueError as error:
        raise InputError(str(error)) from error
    if size <= 0:
        raise InputError(f"a request of {size} B is none")
    return size


# -- one instant ------------------------------------------------------------------------------------------------


def _explain(profile: MemoryProfile, instants: list[Instant], made_up: tuple[int, int, str] | None) -> PoolAt:
    rows: list[dict[str, Any]] = []
    tables: dict[str, list[pd.DataFrame]] = {k: [] for k in ("reasons", "ranges", "pins", "fits", "domains", "checks")}
    sources = profile.sources.set_index("source")
    answer: list[str] = []
    advice: list[str] = []
    caveats: list[str] = []
    for instant in instants:
        facts = sources["facts"].at[instant.source] or {}
        rounding = Rounding.of(facts)
        state = pool_state(profile, instant.source, instant.device, instant.pool, instant.t_ns, rounding=rounding)
        request = request_at(instant, made_up, rounding)
        checks = check_state(profile, state)
        recorded = is_recorded_state(profile, state)
        found = _tables(profile, state, request, rounding)
        key = {"source": instant.source, "device": instant.device, "at": instant.at}
        row = key | {name: sources[name].at[instant.source] for name in ("role", "rank_id")}
        unsure = unsure_bytes(checks, is_recorded=recorded)
        row |= _terms(state, request, found, unsure) | {"pool": instant.pool}
        row |= {"t_ns": instant.t_ns} | _history(profile, instant, state, facts)
        row["where"] = _where(row, sources["collection"].at[instant.source], is_alone=len(sources) == 1)
        row["workspace_bytes"] = _workspace_bytes(profile, instant)
        failed = instant.failure is not None and made_up is None
        row["verdict"], row["reason"] = verdict_of(row, unsure_bytes=unsure, is_failure=failed)
        rows.append(row)
        for name, table in (found | {"checks": checks}).items():
            tables[name].append(table if name == "checks" else table.assign(**key))
        answer += sentences(row, found["fits"])
        advice += advise(
            row,
            found["fits"],
            facts.get("allocator_settings"),
            n_growing=int(state.segments["is_expandable"].sum()),
        )
        caveats += [*tell_differences(checks), *caveats_of(row, recorded=recorded, failure=instant.failure)]
    frame = pd.DataFrame(rows, columns=list(FRAME_COLUMNS))
    numbers = [name for name in FRAME_COLUMNS if name not in _WORDS]
    joined = {k: pd.concat(v, ignore_index=True) if v else pd.DataFrame() for k, v in tables.items()}
    return PoolAt(
        frame=frame.astype(dict.fromkeys(numbers, "Int64")),
        caveats=tuple(dict.fromkeys(caveats)),
        advice=tuple(dict.fromkeys(advice)),
        answer=tuple(answer),
        **joined,
    )


def _tables(
    profile: MemoryProfile, state: PoolState, request: Request | None, rounding: Rounding
) -> dict[str, pd.DataFrame]:
    """Ranges with reasons and neighbours, pins, fits, domains of one pool."""
    sites = np.append(profile.stacks["site"].to_numpy(dtype=object), "")
    no_reasons = np.full(len(state.ranges), "", dtype=object)
    reasons = no_reasons if request is None else reasons_of(state, request, rounding)
    segments = state.segments.drop(columns=["size_bytes", "addr", "recorded"])
    block_ids = np.append(state.blocks["block_id"].to_numpy(), -1)
    ranges = state.ranges.assign(
        reason=reasons,
        before=block_ids[state.ranges["before"].to_numpy()],
        after=block_ids[state.ranges["after"].to_numpy()],
    ).merge(segments, on="segment", how="left")
    by_reason = ranges.groupby("reason", sort=False)["size_bytes"]
    table = by_reason.agg(n_ranges="size", idle_bytes="sum", largest_bytes="max").reset_index()
    pins = find_pins(state, reasons)
    fits = [] if request is None else [fit for fit in _fits(state, request, reasons) if fit is not None]
    blocks = pd.concat([fit_frame(state, fit) for fit in fits]) if fits else fit_frame(state, Fit("", _NONE, 0, False))
    frames = pd.Series([profile.frames(int(number)) for number in blocks["stack_id"]], blocks.index, dtype=object)
    return {
        "reasons": table.sort_values("idle_bytes", ascending=False, kind="stable"),
        "ranges": ranges,
        "pins": pins.assign(site=sites[pins["stack_id"].to_numpy()]),
        "fits": blocks.assign(site=sites[blocks["stack_id"].to_numpy()], frames=frames),
        "domains": domains_frame(state),
    }


_NONE = np.empty(0, dtype=np.int64)


def _fits(state: PoolState, request: Request, reasons: np.ndarray) -> Iterator[Fit | None]:
    if not (reasons == "usable").any():
        merge, release = fit_by_merging(state, request), fit_by_release(state, request)
        yield merge
        if release is not None and (merge is None or not np.array_equal(np.sort(merge.blocks), release.blocks)):
            yield release


def _terms(state: PoolState, request: Request | None, found: dict[str, pd.DataFrame], unsure: int) -> dict[str, Any]:
    blocks, ranges, fits = state.blocks, found["ranges"], found["fits"]
    size, pending = blocks["size_bytes"].to_numpy(), blocks["is_pending"].to_numpy()
    terms: dict[str, Any] = {
        "reserved_bytes": int(state.segments["size_bytes"].sum()),
        "allocated_bytes": int(size[~pending].sum()),
        "pending_bytes": int(size[pending].sum()),
        "idle_bytes": int(ranges["size_bytes"].sum()),
        "releasable_bytes": releasable_bytes(state),
        "rounding_bytes": int((size - blocks["requested_bytes"].to_numpy()).sum()),
        "n_estimated": state.n_estimated,
        "n_inferred": state.n_inferred,
        "unsure_bytes": unsure,
        "needed_bytes": None,
        "assumed": "",
    }
    if request is None:
        return terms
    mine = on_stream_segments(state, request)[ranges["segment"].to_numpy()]
    idle = ranges.groupby("reason")["size_bytes"].sum()
    merge, release = (fits[fits["route"] == route] for route in ("merge", "release"))
    return terms | {
        "requested_bytes": request.n_bytes,
        "needed_bytes": request.needed_bytes,
        "from_driver_bytes": request.from_driver_bytes,
        "stream": request.stream,
        "pool_id": request.pool_id,
        "segment_type": request.segment_type,
        "assumed": "; ".join(request.assumed),
        "device_free_bytes": request.device_free_bytes,
        **{reason_column(reason): int(idle.get(reason, 0)) for reason in REASONS},
        "largest_bytes": int(ranges.loc[mine, "size_bytes"].max()) if mine.any() else 0,
        "mappable_bytes": mappable_bytes(state, request),
        "fits_without": len(merge) > 0,
        "n_fit_blocks": len(merge),
        "fit_bytes": int(merge["size_bytes"].sum()),
        "n_release_blocks": len(release),
        "release_bytes": int(release["size_bytes"].sum()),
    }


def _where(row: Mapping[str, Any], collection: int, *, is_alone: bool) -> str:
    """Name a pool and an instant; among several recordings with whose it is."""
    text = f"{row['device']} ({row['at']})"
    if is_alone:
        return text
    rank = "?" if pd.isna(row["rank_id"]) else row["rank_id"]
    return f"{one_line(str(row['role']))} #{collection} rank {rank} {text}"


def _workspace_bytes(profile: MemoryProfile, instant: Instant) -> int:
    """Bytes of operator workspaces at the end: torch_npu lists them, but another allocator has them."""
    segments = profile.segments
    mine = (segments["source"] == instant.source) & (segments["device"] == instant.device)
    return int(segments.loc[mine & (segments["pool"] == WORKSPACE), "size_bytes"].sum())


def _history(profile: MemoryProfile, instant: Instant, state: PoolState, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Say how much of the history there is; the ring keeps the newest entries."""
    blocks = profile.blocks
    mine = (blocks["source"] == instant.source) & (blocks["device"] == instant.device)
    from_before = mine & (blocks["pool"] == instant.pool) & blocks["alloc_ns"].isna()
    here = np.isin(state.blocks["block_id"].to_numpy(), blocks.loc[from_before, "block_id"].to_numpy())
    settings = facts.get("allocator_settings") or {}
    text = "whole"
    if not facts.get("n_entries"):
        text = "none"
    elif settings.get("trace_alloc_overflowed"):
        text = "cut"
    elif from_before.any():
        text = "late" if settings.get("trace_alloc_overflowed") is False else "late or cut"
    return {"history": text, "n_from_before": int(here.sum()), "n_entries": facts.get("n_entries")}
