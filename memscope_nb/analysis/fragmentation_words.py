"""Verdict, sentences and advice about a failed allocation. Advice needs evidence and tells what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ..units import format_bytes
from .fragmentation_parts import ON_STREAM, REASONS

WHAT_REASONS_MEAN = {
    "usable": "free and large enough",
    "too small": "on the stream asked for, but every range is too small",
    "other stream": "free for another stream only",
    "private pool": "in a private pool (CUDA graph, MemPool), which serves nobody else",
    "other pool": "in the default pool, while a private one asked",
    "other size class": "in segments of the other size class (requests up to 1 MiB, or above)",
    "kept whole": "kept whole by max_split_size",
    "pool unknown": "in segments whose pool is not recorded",
}
COSTS_OF_EXPANDABLE = (
    "It is no free switch: sleep modes of inference engines (pools that are unmapped and mapped again) refuse it or "
    "break with it, and mapping costs speed in places"
)


MAX_SITES, MAX_NAME = 4, 200
_EXPANDABLE = re.compile(r"expandable_segments\s*:\s*(true|false)", re.IGNORECASE)


def reason_column(reason: str) -> str:
    """Column of a reason."""
    return reason.replace(" ", "_") + "_bytes"


def verdict_of(row: Mapping[str, Any], *, unsure_bytes: int, is_failure: bool) -> tuple[str, str]:
    """Decide why a request failed, or ``undecided`` with what is missing.

    Parameters
    ----------
    row : mapping
        The terms, see ``FRAME_COLUMNS``.
    unsure_bytes : int
        Differences between the terms and independent records.
    is_failure : bool
        Whether the request failed in the recording, rather than being made up.
    """
    needed = row["needed_bytes"]
    if needed is None:
        return "no request", "no failed allocation here; give one: .at(..., request='4 GiB')"
    told = f"{format_bytes(needed)} needed in one range on stream {row['stream']}"
    if unsure_bytes:
        return "undecided", f"{told}; the recording contradicts itself by {format_bytes(unsure_bytes)}, see checks"
    on_stream = sum(row[reason_column(reason)] for reason in ON_STREAM)
    largest = row["largest_bytes"]
    if row["usable_bytes"]:
        if not is_failure:
            return "fits", f"{told}; a free range of {format_bytes(largest)} is there"
        assumed = f" ({row['assumed']})" if row["assumed"] else ""
        return "undecided", f"{told}; a free range of {format_bytes(largest)} seems to be there{assumed}"
    if largest >= row["requested_bytes"]:
        return "undecided", f"{told}, if the request is padded: the longest range there is {format_bytes(largest)}"
    free = row["device_free_bytes"]
    if free is None:
        return "undecided", f"{told}; what the device had free is written at a failed allocation only"
    told += f", {format_bytes(free)} free on the device"
    if free >= row["from_driver_bytes"] or (row["mappable_bytes"] or 0) >= needed:
        return "not capacity", f"{told}: look for a limit of the process's share or of the driver"
    if row["releasable_bytes"] and is_failure and free + row["releasable_bytes"] >= row["from_driver_bytes"]:
        text = f"{told}; whole idle segments of {format_bytes(row['releasable_bytes'])} should have been given back"
        return "undecided", f"{text} before: is this the moment of the failure?"
    if on_stream >= needed:
        return (
            "fragmented",
            f"{told}; {format_bytes(on_stream)} idle there, at most {format_bytes(largest)} in one piece",
        )
    if row["idle_bytes"] >= needed:
        where = max((r for r in REASONS if r not in ON_STREAM), key=lambda r: int(row[reason_column(r)]))
        text = f"{format_bytes(row['idle_bytes'])} idle, of which {format_bytes(row[reason_column(where)])}"
        return "out of reach", f"{told}; {text} {WHAT_REASONS_MEAN[where]}"
    return "device full", f"{told}; only {format_bytes(row['idle_bytes'])} idle in the pool"


def sentences(row: Mapping[str, Any], fits: pd.DataFrame) -> Iterator[str]:
    """Tell the terms of one device in order: what was asked for, what there was, what kept it away."""
    where = row["where"]
    if row["needed_bytes"] is None:
        yield f"{where}: no request"
    else:
        yield f"{where}: {row['verdict']}: {row['reason']}"
    yield (
        f"reserved {format_bytes(row['reserved_bytes'])} = {format_bytes(row['allocated_bytes'])} allocated + "
        f"{format_bytes(row['pending_bytes'])} waiting for another stream + {format_bytes(row['idle_bytes'])} idle"
    )
    if row["needed_bytes"] is None:
        return
    parts = [(reason, int(row[reason_column(reason)])) for reason in REASONS]
    for reason, n_bytes in parts:
        if n_bytes:
            yield f"idle: {format_bytes(n_bytes)} {WHAT_REASONS_MEAN[reason]}"
    yield f"longest free range on that stream: {format_bytes(row['largest_bytes'])}"
    if row["fits_without"]:
        yield f"it would fit without {_blocks_text(fits[fits['route'] == 'merge'])}"
    elif row["verdict"] in ("fragmented", "out of reach"):
        yield "no few blocks stand in the way: it would not fit in any one segment without them"
    if row["n_release_blocks"]:
        text = _blocks_text(fits[fits["route"] == "release"])
        yield f"whole segments could go back to the driver, which would then have enough, without {text}"


def _blocks_text(blocks: pd.DataFrame) -> str:
    """Count blocks, add them up and say who allocated them."""
    n, size = len(blocks), format_bytes(int(blocks["size_bytes"].sum()))
    sizes = blocks.assign(site=blocks["site"].replace("", "no stack recorded")).groupby("site", sort=False)[
        "size_bytes"
    ]
    by_site = [f"{one_line(site)} ({format_bytes(int(total))})" for site, total in sizes.sum().items()]
    more = f" and {len(by_site) - MAX_SITES} more sites" if len(by_site) > MAX_SITES else ""
    return f"{n} block{'s' * (n != 1)} of together {size}: {'; '.join(by_site[:MAX_SITES])}{more}"


def one_line(text: str) -> str:
    """Return a name as one line without control characters: it is data of a stranger."""
    shown = "".join(c if c.isprintable() else " " for c in text[: MAX_NAME + 1])
    return shown if len(shown) <= MAX_NAME else shown[:MAX_NAME] + "…"


def advise(
    row: Mapping[str, Any], fits: pd.DataFrame, settings: Mapping[str, Any] | None, *, n_growing: int
) -> Iterator[str]:
    """Say what the evidence suggests to look at, first the program, last the allocator's settings.

    ``n_growing`` counts the segments of the pool that can grow: they prove the setting where it is not recorded.
    """
    if row["verdict"] not in ("fragmented", "out of reach"):
        return
    if len(merge := fits[fits["route"] == "merge"]):
        sites = [one_line(site) for site in dict.fromkeys(merge["site"]) if site]
        by = f" (allocated by {'; '.join(sites[:3])})" if sites else ""
        yield (
            f"{len(merge)} blocks of together {format_bytes(int(merge['size_bytes'].sum()))}{by} split a segment: "
            "allocate them before the large short-lived blocks, or let them go before this request"
        )
    if row["other_stream_bytes"] >= row["needed_bytes"]:
        yield (
            f"{format_bytes(row['other_stream_bytes'])} idle belong to other streams: memory freed there serves only "
            "those streams; empty_cache() gives back whole segments only, and the blocks in `pins` hold theirs"
        )
    if row["private_pool_bytes"]:
        yield (
            f"{format_bytes(row['private_pool_bytes'])} idle lie in private pools: they return when the graphs or "
            "pools that own them are deleted"
        )
    yield from _on_expandable(row, settings, n_growing)


def grows(settings: Mapping[str, Any] | None) -> bool | None:
    """Whether segments may grow, by the recorded settings; ``None`` if they do not say."""
    told = (settings or {}).get("expandable_segments")
    if isinstance(told, bool):
        return told
    match = _EXPANDABLE.search(str((settings or {}).get("PYTORCH_CUDA_ALLOC_CONF", "")))
    return None if match is None else match[1].lower() == "true"


def _on_expandable(row: Mapping[str, Any], settings: Mapping[str, Any] | None, n_growing: int) -> Iterator[str]:
    """Mention growing segments only where ranges on the stream would have sufficed, and never without the costs."""
    if row["verdict"] != "fragmented":
        return
    on = True if n_growing else grows(settings)
    if on is None:
        yield "whether segments could grow is not recorded here (no allocator settings): no advice on that setting"
    elif on:
        proof = f"{n_growing} in this pool" if n_growing else "expandable_segments was on"
        yield f"segments could grow already ({proof}): the setting is not what was missing"
    else:
        yield (
            f"expandable_segments was off. It addresses this case ({format_bytes(row['too_small_bytes'])} idle on the "
            f"stream in pieces), but not the blocks that cause it. {COSTS_OF_EXPANDABLE}: measure before you keep it"
        )


_HISTORY = {
    "cut": "the ring overflowed",
    "late": "recording began when memory was held",
    "late or cut": "the ring overflowed, or recording began late",
}


def caveats_of(row: Mapping[str, Any], *, recorded: bool, failure: Mapping[str, Any] | None) -> Iterator[str]:
    """Say what limits the terms of a device."""
    where = row["where"]
    if row["history"] in _HISTORY:
        since = "" if recorded else ", and the entries since"
        yield (
            f"{where}: the history is {row['history']} ({_HISTORY[row['history']]}; {row['n_entries']:,} entries are "
            f"there): {row['n_from_before']:,} of the blocks here have no allocation in it. The terms hold: they come "
            f"from the segments, which are complete{since}"
        )
    if row["history"] == "none":
        yield f"{where}: no history: only the state at the end is known"
    if not recorded:
        yield (
            f"{where}: rebuilt by going back from the end; {row['n_estimated']:,} blocks are gone by then, whose size "
            "is the request, rounded as the allocator does (one of more than 1 MiB may be up to 1 MiB larger)"
        )
    if row["n_inferred"]:
        yield f"{where}: {row['n_inferred']:,} blocks count as in use because their release is missing"
    if row["assumed"]:
        yield f"{where}: {row['assumed']}"
    if row["workspace_bytes"]:
        yield (
            f"{where}: operator workspaces ({format_bytes(row['workspace_bytes'])} at the end) belong to another "
            "allocator and are in none of the terms"
        )
    if failure is not None:
        yield from _caveats_of_failure(row, where, failure)


def _caveats_of_failure(row: Mapping[str, Any], where: str, failure: Mapping[str, Any]) -> Iterator[str]:
    if failure["of"] > 1:
        number = failure["number"]
        yield f"{where}: {failure['of']} allocations failed on this device; this is number {number}, see .at(number)"
    whole = row["releasable_bytes"]
    yield (
        f"{where}: before it gives up, the allocator waits for pending frees and gives whole idle segments back to the "
        f"driver; {f'yet {whole:,} B of them are here' if whole else 'none were left'}"
    )
    yield f"{where}: the size of the device is not in a snapshot: what others hold on it is unknown"
