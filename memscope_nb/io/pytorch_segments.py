"""The pools of a snapshot as they were at its end: segments and their active blocks (spec/pytorch 1.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import NA_NS, from_int64
from .pytorch_lives import StateBlock, as_signed
from .pytorch_rows import Rows, Stack, pool_text
from .report import ReadReport

_WORD = (1 << 64) - 1
_PENDING = ("active_pending_free", "active_awaiting_free")
_MAX = (1 << 62) - 1


@dataclass
class State:
    """Segments of one device, and their active blocks."""

    segments: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[StateBlock] = field(default_factory=list)
    n_inactive: int = 0

    @property
    def reserved(self) -> int:
        """Bytes that the driver gave."""
        return sum(segment["size_bytes"] for segment in self.segments)

    def ledger(self, name: str) -> int:
        """Bytes of a ledger: segments for *reserved*, else the requested bytes of active blocks."""
        if name == "reserved":
            return self.reserved
        return sum(block.size for block in self.blocks if name == "active" or not block.pending)

    def split(self, addresses: set[int]) -> tuple[State, State]:
        """Part the segments that begin at some addresses from the others."""
        parts = State(), State()
        number: dict[int, tuple[int, int]] = {}
        for position, segment in enumerate(self.segments):
            which = 1 if segment["addr"] in addresses else 0
            number[position] = which, len(parts[which].segments)
            parts[which].segments.append(segment)
        for block in self.blocks:
            which, position = number[block.segment]
            parts[which].blocks.append(StateBlock(**(vars(block) | {"segment": position})))
        return parts


def read_segments(found: Any, rows: Rows, report: ReadReport) -> dict[int, State]:
    """Read the list of segments into one state per device; what is no segment is counted and left out."""
    states: dict[int, State] = {}
    odd: Counter[str] = Counter()
    _refuse_shared(found)
    for segment in found if type(found) is list else ():
        if type(segment) is not dict or not _is_size(segment.get("total_size")) or not _is_int(segment.get("address")):
            report.skip("segments without an address or a size")
            continue
        device = segment.get("device", 0)
        _add(states.setdefault(device if _is_int(device) and device >= 0 else 0, State()), segment, odd)
    for text, count in odd.items():
        report.note(text, count)
    if odd:
        report.count("n_odd_segments", sum(odd.values()))
    return states


def _refuse_shared(found: Any) -> None:
    """Refuse segments that refer to the same things over and over: a small file that unfolds to a huge one."""
    segments = [segment for segment in found if type(segment) is dict] if type(found) is list else []
    lists = [blocks for segment in segments if type(blocks := segment.get("blocks")) is list and blocks]
    if len({*map(id, segments)}) < len(segments) or len({*map(id, lists)}) < len(lists):
        raise InputError("segments that refer to the same blocks over and over: no snapshot")


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX


def _add(state: State, segment: dict[str, Any], odd: Counter[str]) -> None:
    """Add a segment and check what its numbers say of each other."""
    sums = dict.fromkeys(("allocated", "pending", "free", "largest_free", "requested"), 0)
    number, n_blocks = len(state.segments), 0
    stream = segment["stream"] if _is_int(segment.get("stream")) else 0
    for addr, size, block in _blocks(segment, odd):
        n_blocks += 1
        kind = block.get("state")
        if kind != "active_allocated" and kind not in _PENDING:
            sums["free"] += size
            sums["largest_free"] = max(sums["largest_free"], size)
            continue
        requested, stack = _request(block)
        sums["pending" if kind in _PENDING else "allocated"] += size
        sums["requested"] += requested or size
        state.blocks.append(StateBlock(addr, requested or size, size, kind in _PENDING, stack, stream, number))
    total = segment["total_size"]
    if n_blocks and sums["allocated"] + sums["pending"] + sums["free"] != total:
        odd["segments whose blocks do not add up to their size"] += 1
    for key, value in (("allocated_size", sums["allocated"]), ("active_size", sums["allocated"] + sums["pending"])):
        if _is_int(segment.get(key)) and segment[key] != value:
            odd[f"segments whose {key} is not the sum of their blocks"] += 1
    own = segment.get("frames")
    state.segments.append(
        {
            "addr": segment["address"] & _WORD,
            "size_bytes": total,
            "pool_id": pool_text(segment.get("segment_pool_id", (0, 0))),
            "stream": stream & _WORD,
            "segment_type": segment["segment_type"] if type(segment.get("segment_type")) is str else "",
            "is_expandable": segment.get("is_expandable") is True,
            "n_blocks": n_blocks,
            **{f"{key}_bytes": value for key, value in sums.items()},
            **{f"recorded_{key}_bytes": _written(segment, f"{key}_size") for key in _RECORDED},
            "stack_id": int(own) if type(own) is Stack else -1,
        }
    )


def _written(segment: dict[str, Any], key: str) -> int | None:
    value = segment.get(key)
    return value if type(value) is int and 0 <= value <= _MAX else None


def _blocks(segment: dict[str, Any], odd: Counter[str]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield address, rounded size and the block itself; old files give no address, their blocks follow each other."""
    at = segment["address"]
    blocks = segment.get("blocks")
    for block in blocks if type(blocks) is list else ():
        if type(block) is not dict or not _is_size(block.get("size")):
            odd["blocks of segments without a size, left out"] += 1
            continue
        at = block["address"] if _is_int(block.get("address")) else at
        yield at & _WORD, block["size"], block
        at += block["size"]


def _request(block: dict[str, Any]) -> tuple[int, int]:
    """Requested bytes (0: unknown) and stack; old files keep both in ``history``."""
    stack, requested = block.get("frames"), block.get("requested_size")
    history = block.get("history")
    if type(history) is list and history and type(history[0]) is dict:
        requested = history[0].get("real_size") if requested is None else requested
        stack = history[0].get("frames") if type(stack) is not Stack else stack
    return int(requested or 0) if _is_size(requested) else 0, int(stack) if type(stack) is Stack else -1


def segments_frame(parts: dict[str, State], device: str) -> pd.DataFrame:
    """Return the ``segments`` table of one device, from its state by pool."""
    found = [segment | {"pool": pool} for pool, state in parts.items() for segment in state.segments]
    columns: dict[str, Any] = {key: [segment[key] for segment in found] for key in _COLUMNS}
    stream = as_signed(np.array(columns["stream"], dtype=np.uint64))
    return pd.DataFrame(
        {
            "source": np.zeros(len(found), dtype=np.int32),
            "device": pd.Categorical([device] * len(found), [device]),
            "pool": pd.Categorical(columns["pool"], list(parts)),
            "addr": pd.array(np.array(columns["addr"], dtype=np.uint64), dtype="UInt64"),
            "size_bytes": np.array(columns["size_bytes"], dtype=np.int64),
            "pool_id": pd.Categorical(columns["pool_id"]),
            "stream": from_int64(stream, na=NA_NS),
            "segment_type": pd.Categorical(columns["segment_type"]),
            "is_expandable": np.array(columns["is_expandable"], dtype=bool),
            **{key: np.array(columns[key], dtype=np.int64) for key in _COUNTS},
            "requested_bytes": pd.array(columns["requested_bytes"], dtype="Int64"),
            **{key: pd.array(columns[key], dtype="Int64") for key in _RECORDED_COLUMNS},
            "stack_id": np.array(columns["stack_id"], dtype=np.int32),
        }
    )


_COUNTS = ("n_blocks", "allocated_bytes", "pending_bytes", "free_bytes", "largest_free_bytes")
_RECORDED = ("allocated", "active", "requested")
_RECORDED_COLUMNS = tuple(f"recorded_{key}_bytes" for key in _RECORDED)
_COLUMNS = (
    "pool", "addr", "size_bytes", "pool_id", "stream", "segment_type", "is_expandable", "requested_bytes", "stack_id",
    *_COUNTS, *_RECORDED_COLUMNS,
)  # fmt: skip
