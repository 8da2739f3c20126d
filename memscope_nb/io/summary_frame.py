"""Reads a frame in RL-Insight's 12 columns back into a profile."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, concat_tables, from_int64
from ..schema import validate
from ..stacks import StackPool
from ..units import KIB, MIB, NS_PER_MS
from .ascend_tables import GE, GE_PREFIX, PTA


def read_summary(frame: pd.DataFrame) -> MemoryProfile:
    """Build a profile from the contract; one source for each role and rank.

    Raises
    ------
    ValidationError
        If the frame breaks the contract.
    """
    frame = validate(frame).reset_index(drop=True)
    start, duration = _ns(frame["start_time_ms"]), _ns(frame["duration_ms"])
    stacks = StackPool()
    texts = frame["call_stack"] if "call_stack" in frame else pd.Series("", index=frame.index)
    names = frame["name"].astype(str)
    role = frame["role"].astype(str) if "role" in frame else pd.Series("unknown", index=frame.index)
    rank = (
        pd.to_numeric(frame["rank_id"]).astype("Int64")
        if "rank_id" in frame
        else pd.Series(pd.NA, index=frame.index, dtype="Int64")
    )
    device = frame["device_type"].astype(str) if "device_type" in frame else pd.Series("NPU:0", index=frame.index)
    keys = pd.DataFrame({"role": role, "rank_id": rank})
    source = keys.groupby(["role", "rank_id"], dropna=False, sort=True).ngroup().to_numpy().astype(np.int32)
    is_ge = names.str.startswith(GE_PREFIX).to_numpy()
    stack_id = np.array([stacks.intern(text) if isinstance(text, str) else -1 for text in texts], dtype=np.int32)
    blocks = pd.DataFrame(
        {
            "source": source,
            "block_id": np.arange(len(frame), dtype=np.int64),
            "device": pd.Categorical(device),
            "pool": pd.Categorical.from_codes(is_ge.astype(np.int8), [PTA, GE]),
            "name": pd.Categorical(names),
            "stack_id": stack_id,
            "stack_kind": pd.Categorical.from_codes((stack_id >= 0).astype(np.int8), ["none", "own", "forward"]),
            "size_bytes": np.rint(frame["size_kb"].to_numpy(float) * KIB).astype(np.int64),
            "alloc_ns": from_int64(start),
            "free_ns": from_int64(np.where(duration == 0, NA_NS, start + duration)),
            **{f"{k}_bytes": _bytes(frame, f"total_{k}_mb") for k in ("allocated", "reserved", "active")},
            "flags": np.zeros(len(frame), dtype=np.uint16),
        }
    )
    blocks = blocks[blocks["size_bytes"] > 0]
    return MemoryProfile(
        sources=_sources(blocks, keys),
        blocks=blocks.sort_values("alloc_ns", kind="stable", ignore_index=True),
        totals=_totals(blocks),
        stacks=stacks.to_frame(),
    )


def _ns(values: pd.Series) -> Int64Array:
    """Milliseconds as floats to ns: the one place where an epoch comes from a float, because the contract says so."""
    return np.rint(values.to_numpy(float) * NS_PER_MS).astype(np.int64)


def _bytes(frame: pd.DataFrame, column: str) -> pd.arrays.IntegerArray:
    """Totals; the contract writes 0 for unknown."""
    values = frame[column].to_numpy(float) if column in frame else np.zeros(len(frame))
    return from_int64(np.rint(values * MIB).astype(np.int64), na=0)


def _totals(blocks: pd.DataFrame) -> pd.DataFrame:
    known = blocks[blocks["allocated_bytes"].notna()].sort_values("alloc_ns", kind="stable")
    columns = {k: known[k] for k in ("allocated_bytes", "reserved_bytes", "active_bytes")}
    totals = pd.DataFrame({"source": known["source"], "component": known["pool"], "device": known["device"], **columns})
    totals["t_ns"] = known["alloc_ns"].to_numpy(np.int64)
    totals["scope"] = pd.Categorical(["pool"] * len(known), ["pool"])
    totals["origin"] = pd.Categorical(["rows"] * len(known), ["rows"])
    return totals.reset_index(drop=True)


def _sources(blocks: pd.DataFrame, keys: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for number, group in blocks.groupby("source", sort=True):
        whose = keys.loc[group.index[0]]
        rows.append(
            pd.DataFrame(
                {
                    "source": np.array([number], dtype=np.int32),
                    "run": "summary",
                    "host": None,
                    "pid": pd.array([pd.NA], dtype="Int64"),
                    "role": whose["role"],
                    "rank_id": pd.array([whose["rank_id"]], dtype="Int64"),
                    "collection": np.int32(0),
                    "path": "",
                    "kind": "summary",
                    "start_ns": pd.array([group["alloc_ns"].min()], dtype="Int64"),
                    "end_ns": pd.array([max(group["alloc_ns"].max(), group["free_ns"].fillna(0).max())], dtype="Int64"),
                    "n_blocks": len(group),
                    "n_open": int(group["free_ns"].isna().sum()),
                    "n_skipped": 0,
                    "n_repaired": 0,
                    "status": "ok",
                    "warnings": [("read from the 12-column summary: times on a grid of about 0.25 µs",)],
                    "facts": [{"lossy": True}],
                }
            )
        )
    return concat_tables(rows)
