"""Large PyTorch snapshots, written as a stream: ``python torch_file.py FILE MEGABYTES lists|frames``.

``lists``: frames are shared, every entry has a list of its own (what PyTorch writes mostly); ``frames``: nothing is
shared. A process keeps blocks of 3 KiB to 2 MiB in 2048 segments; a third of the blocks is there at the end.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

MIB = 1 << 20
N_SEGMENTS = 2048
T0 = 1_700_000_000_000_000
KEYS = ("action", "addr", "size", "stream", "time_us", "frames")
TEXTS = (
    *KEYS, "line", "filename", "name", "alloc", "free_requested", "free_completed", "segment_alloc", "address",
    "requested_size", "state", "active_allocated", "inactive", "device", "total_size", "allocated_size", "active_size",
    "segment_type", "large", "segment_pool_id", "is_expandable", "blocks", "segments",
)  # fmt: skip
"""Written first, below a key that no reader knows, so that parts may be made in any order."""


class Writer:
    """Writes opcodes of protocol 4; texts and frames are written once and referred to."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.n_bytes, self.n_memo = file, 0, 0
        self.memo: dict[Any, int] = {}
        self.raw(b"\x80\x04")

    def raw(self, data: bytes) -> None:
        self.file.write(data)
        self.n_bytes += len(data)

    def remember(self, what: Any) -> bytes:
        """Number the object on top."""
        number = self.memo[what] = self.n_memo
        self.n_memo += 1
        return b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)

    def get(self, number: int) -> bytes:
        return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def text(self, text: str) -> bytes:
        if text in self.memo:
            return self.get(self.memo[text])
        data = text.encode()
        return b"\x8c" + bytes([len(data)]) + data + self.remember(text)

    def number(self, value: int) -> bytes:
        if 0 <= value < 256:
            return b"K" + bytes([value])
        if value < 1 << 31:
            return b"J" + struct.pack("<i", value)
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data

    def dict_of(self, items: list[tuple[str, bytes]]) -> bytes:
        return b"}(" + b"".join(self.text(key) + value for key, value in items) + b"u"

    def frame(self, frame: tuple[str, str, int], *, shared: bool) -> bytes:
        if shared and frame in self.memo:
            return self.get(self.memo[frame])
        file, name, line = frame
        inner = self.text("line") + self.number(line) + self.text("filename") + self.text(file)
        inner += self.text("name") + self.text(name)
        if not shared:
            return b"}(" + inner + b"u"
        return b"}" + self.remember(frame) + b"(" + inner + b"u"


def write_snapshot(path: Path, megabytes: float, kind: str) -> dict[str, Any]:
    """Write the file; return what is true of it."""
    rng = random.Random(1)
    shared = kind == "lists"
    frames = [(f"/app/model/layer_{i % 40}.py", f"forward_{i}", 10 + i) for i in range(600)]
    frames += [(f"/usr/lib/torch/nn/modules/{i}.py", "_call_impl", 1000 + i) for i in range(60)]
    stacks = [[frames[rng.randrange(len(frames))] for _ in range(rng.randrange(18, 34))] for _ in range(400)]
    with path.open("wb", buffering=1 << 20) as file:
        out = Writer(file)
        live, truth = _history(out, rng, stacks, shared, int(megabytes * 1e6))
        _segments(out, live, stacks, shared)
        out.raw(b"u.")
    return truth | {"n_bytes": path.stat().st_size}


def _entry(out: Writer, action: str, addr: int, size: int, t: int, stack: list[Any], shared: bool) -> None:
    listed = b"](" + b"".join(out.frame(frame, shared=shared) for frame in stack) + b"e" if stack else b"]"
    values = [out.text(action), *(out.number(v) for v in (addr, size, 0, T0 + t)), listed]
    out.raw(out.dict_of(list(zip(KEYS, values, strict=True))))


def _history(
    out: Writer, rng: random.Random, stacks: list[Any], shared: bool, n_bytes: int
) -> tuple[dict[int, tuple[int, int]], dict[str, Any]]:
    out.raw(b"}(" + out.text("vocabulary") + b"](" + b"".join(out.text(text) for text in TEXTS) + b"e")
    out.raw(out.text("device_traces") + b"](](")
    base, t, n = 1 << 40, 0, 0
    free = [base + i * 2 * MIB for i in range(N_SEGMENTS)]
    for addr in free:
        _entry(out, "segment_alloc", addr, 2 * MIB, t, [], shared)
        t += 1
    rng.shuffle(free)
    live: dict[int, tuple[int, int]] = {}
    order: list[int] = []
    n_blocks = 0
    while out.n_bytes < n_bytes - 400_000:
        if len(order) < N_SEGMENTS // 3 or (free and rng.random() < 0.5):
            addr, size, stack = free.pop(), rng.randrange(3 << 10, 2 * MIB), rng.randrange(len(stacks))
            live[addr] = size, stack
            order.append(addr)
            n_blocks += 1
            _entry(out, "alloc", addr, size, t, stacks[stack], shared)
        else:
            at = rng.randrange(len(order))
            order[at], order[-1] = order[-1], order[at]
            addr = order.pop()
            size, stack = live.pop(addr)
            free.append(addr)
            _entry(out, "free_requested", addr, size, t, stacks[(stack + 7) % 400], shared)
            _entry(out, "free_completed", addr, size, t + 1, stacks[(stack + 7) % 400], shared)
            n += 1
        t += 3
        n += 1
    out.raw(b"ee")
    end = sum(size for size, _ in live.values())
    return live, {"n_entries": n + N_SEGMENTS, "n_blocks": n_blocks, "n_open": len(live), "end_bytes": end}


def _segments(out: Writer, live: dict[int, tuple[int, int]], stacks: list[Any], shared: bool) -> None:
    out.raw(out.text("segments") + b"](")
    for i in range(N_SEGMENTS):
        addr = (1 << 40) + i * 2 * MIB
        requested, stack = live.get(addr, (0, 0))
        size = -(-requested // 512) * 512 if requested else 0
        parts = [("active_allocated", size, requested)] if size else []
        parts += [("inactive", 2 * MIB - size, 0)] if size < 2 * MIB else []
        blocks, at = b"", addr
        for state, n_bytes, wanted in parts:
            listed = b"](" + b"".join(out.frame(f, shared=shared) for f in stacks[stack]) + b"e" if wanted else b"]"
            items = [("address", out.number(at)), ("size", out.number(n_bytes)), ("requested_size", out.number(wanted))]
            blocks += out.dict_of([*items, ("state", out.text(state)), ("frames", listed)])
            at += n_bytes
        numbers = {"device": 0, "address": addr, "total_size": 2 * MIB, "stream": 0}
        numbers |= {"allocated_size": size, "active_size": size, "requested_size": requested}
        items = [(key, out.number(value)) for key, value in numbers.items()]
        items += [("segment_type", out.text("large")), ("segment_pool_id", b"K\x00K\x00\x86")]
        items += [("is_expandable", b"\x89"), ("frames", b"]"), ("blocks", b"](" + blocks + b"e")]
        out.raw(out.dict_of(items))
    out.raw(b"e")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    print(json.dumps(write_snapshot(target, float(sys.argv[2]), sys.argv[3])))
