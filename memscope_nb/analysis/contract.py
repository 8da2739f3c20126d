"""The RL-Insight table: 12 columns of floats that other tools exchange. Lossy; kept at the edge on purpose."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model import NA_NS, MemoryProfile, to_int64
from ..units import KIB, MIB, NS_PER_MS

CONTRACT_COLUMNS = (
    "name", "role", "rank_id", "call_stack", "call_stack_top", "size_kb", "start_time_ms", "duration_ms",
    "total_allocated_mb", "total_reserved_mb", "total_active_mb", "device_type",
)  # fmt: skip
STACK_SEPARATOR = ";\r\n"


def memory_summary(profile: MemoryProfile) -> pd.DataFrame:
    """Return the blocks in RL-Insight's form, sorted by ``start_time_ms``.

    Float64 milliseconds since the epoch (a grid of about 0.25 µs), KiB and MiB; open blocks have ``duration_ms`` 0.0,
    blocks without a stack an empty text, unknown totals 0. Rows of all pools are in one table and empty names are kept.
    ``call_stack_top`` is the innermost frame, as there, not the site. Blocks known only from their release are
    left out.
    """
    blocks = profile.blocks[profile.blocks["alloc_ns"].notna()].reset_index(drop=True)
    sources = profile.sources.set_index("source")
    number = blocks["source"].to_numpy()
    alloc, free = to_int64(blocks["alloc_ns"]), to_int64(blocks["free_ns"])
    stacks = np.array([STACK_SEPARATOR.join(f) for f in profile.stacks["frames"]] + [""], dtype=object)
    tops = np.array([f[0] if f else "" for f in profile.stacks["frames"]] + [""], dtype=object)
    stack_id = blocks["stack_id"].to_numpy()
    frame = pd.DataFrame(
        {
            "name": blocks["name"].astype(object),
            "role": sources["role"].reindex(number).to_numpy(dtype=object),
            "rank_id": sources["rank_id"].reindex(number).array,
            "call_stack": pd.Series(stacks[stack_id], dtype=object),
            "call_stack_top": pd.Series(tops[stack_id], dtype=object),
            "size_kb": blocks["size_bytes"].to_numpy() / KIB,
            "start_time_ms": alloc / NS_PER_MS,
            "duration_ms": np.where(free != NA_NS, (free - alloc) / NS_PER_MS, 0.0),
            **{f"total_{k}_mb": _megabytes(blocks, f"{k}_bytes") for k in ("allocated", "reserved", "active")},
            "device_type": blocks["device"].astype(object),
        }
    )
    return frame.sort_values("start_time_ms", kind="stable", ignore_index=True)


def _megabytes(blocks: pd.DataFrame, column: str) -> pd.Series:
    if column not in blocks:
        return pd.Series(0.0, index=blocks.index)
    return pd.Series(to_int64(blocks[column], na=0) / MIB, index=blocks.index)
