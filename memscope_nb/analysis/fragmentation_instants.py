"""Instants of a recording that pools are looked at: failed allocations, ends, peaks, and what is asked for there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError, MissingFactError
from ..model import MemoryProfile
from .fragmentation_parts import Request
from .pool_rounding import Rounding
from .pool_state import pools_of
from .segment_ranges import DEFAULT_POOL, as_signed_word

When = Literal["oom", "end", "peak"] | int

LARGEST_INDEX = 10**9
"""Whole numbers below this are the number of a failure, larger ones an instant in ns."""
FAILURE_COLUMNS = (
    "source", "device", "pool", "t_ns", "requested_bytes", "device_free_bytes", "stream", "pool_id", "stack_id",
)  # fmt: skip
HOW_TO_SEE_OOM = (
    "history must be on before it happens: torch.cuda.memory._record_memory_history(enabled='all'), and the snapshot "
    "must be taken in the handler of the error. .at('end', request='4 GiB') asks of the state at the end instead"
)


@dataclass(frozen=True)
class Instant:
    """A pool to look at, and the failure there, if any."""

    source: int
    device: str
    pool: str
    t_ns: int
    at: str
    failure: Mapping[str, Any] | None = None


def find_failures(profile: MemoryProfile) -> pd.DataFrame:
    """Failed allocations of devices with segments, by time; of files that tell of one again, the first has it."""
    pools = {(source, device): pool for source, device, pool in pools_of(profile)}
    marks = profile.marks[profile.marks["kind"] == "oom"].sort_values(["start_ns", "source"], kind="stable")
    rows = []
    for mark in marks.itertuples():
        key, attrs = (int(mark.source), str(mark.device)), mark.attrs or {}
        size = attrs.get("size_bytes")
        if key not in pools or not isinstance(size, int):
            continue
        columns = {"source": key[0], "device": key[1], "pool": pools[key], "t_ns": int(mark.start_ns)}
        told = {name: attrs.get(name) for name in ("device_free_bytes", "stream", "pool_id")}
        rows.append(columns | {"requested_bytes": size} | told | {"stack_id": int(getattr(mark, "stack_id", -1))})
    frame = pd.DataFrame(rows, columns=list(FAILURE_COLUMNS), dtype=object).infer_objects()
    frame = frame[~_is_repeated(frame, profile.sources)].reset_index(drop=True)
    of = frame.groupby(["source", "device"], sort=False)["t_ns"].transform("size")
    return frame.assign(number=np.arange(len(frame)), of=of.astype("int64"))


def _is_repeated(frame: pd.DataFrame, sources: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Say which failures another file of the same process tells of, too: the ring was dumped again."""
    facts = sources.set_index("source")["facts"]
    again = frame["source"].map(lambda source: "repeats_until_ns" in (facts.at[source] or {})).to_numpy(dtype=bool)
    whose = sources.set_index("source")[["run", "rank_id", "pid"]].reindex(frame["source"].to_numpy())
    keys = whose.reset_index(drop=True).astype(object)
    keys = keys.assign(device=frame["device"], size=frame["requested_bytes"], us=frame["t_ns"] // 1000)
    return again & keys.duplicated().to_numpy()


def of_failure(row: Any) -> Instant:
    """Return the instant of a row of :func:`find_failures`."""
    return Instant(row.source, row.device, row.pool, row.t_ns, f"oom {row.number}", row._asdict())


def find_instants(profile: MemoryProfile, failures: pd.DataFrame, when: When) -> list[Instant]:
    """Return the pools and times that ``when`` means; see :meth:`.fragmentation.Fragmentation.at`."""
    if when == "oom":
        if not len(failures):
            raise MissingFactError(f"no failed allocation was recorded: {HOW_TO_SEE_OOM}")
        last = failures.drop_duplicates(["source", "device"], keep="last")
        return [of_failure(row) for row in last.itertuples()]
    if isinstance(when, int) and abs(when) < LARGEST_INDEX:
        if not 0 <= when < len(failures):
            raise InputError(f"there is no failure number {when}; there are {len(failures)}")
        return [of_failure(row) for row in failures.iloc[when : when + 1].itertuples()]
    if not isinstance(when, int) and when not in ("end", "peak"):
        raise ValueError(f"when must be 'oom', 'end', 'peak', a number of a failure or ns, not {when!r}")
    windows = profile.sources.set_index("source")
    peaks = _peaks(profile) if when == "peak" else {}
    found = []
    for source, device, pool in pools_of(profile):
        start, end = (int(windows[edge].at[source]) for edge in ("start_ns", "end_ns"))
        t = end if when == "end" else peaks.get((source, device, pool), end) if when == "peak" else int(when)
        if start <= t <= end:
            at = when if isinstance(when, str) else f"{t} ns"
            found.append(Instant(source, device, pool, t, at))
    if not found:
        raise InputError(f"{when} ns lies outside every recording; windows are in p.sources")
    return found


def _peaks(profile: MemoryProfile) -> dict[tuple[int, str, str], int]:
    summary = profile.summary()
    summary = summary[summary["peak_ns"].notna()]
    keys = zip(summary["source"], summary["device"], summary["pool"], strict=True)
    return {(int(s), str(d), str(p)): int(t) for (s, d, p), t in zip(keys, summary["peak_ns"], strict=True)}


def request_at(instant: Instant, made_up: tuple[int, int, str] | None, rounding: Rounding) -> Request | None:
    """Return what is asked for; what the recording does not say of it is assumed, and told."""
    if made_up is not None:
        size, stream, pool_id = made_up
        free = (instant.failure or {}).get("device_free_bytes")
        return Request(size, rounding.round(size), stream, pool_id, device_free_bytes=_whole(free))
    if instant.failure is None:
        return None
    size = int(instant.failure["requested_bytes"])
    told, pool = _whole(instant.failure["stream"]), instant.failure["pool_id"]
    assumed = []
    if told is None:
        assumed.append("the default stream, 0, is assumed: the entry names none")
    if not isinstance(pool, str):
        assumed.append("the default pool is assumed: the entry names none")
    return Request(
        n_bytes=size,
        needed_bytes=rounding.round(size),
        stream=0 if told is None else as_signed_word(told),
        pool_id=pool if isinstance(pool, str) else DEFAULT_POOL,
        assumed=tuple(assumed),
        device_free_bytes=_whole(instant.failure["device_free_bytes"]),
    )


def _whole(value: Any) -> int | None:
    return None if value is None or value is pd.NA or value != value else int(value)
