"""A tiny caching allocator that splits and joins blocks, with the truth after each of its entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from test_pytorch_snapshot import MIB, T0, block

PAGE = 2 * MIB


@dataclass
class Piece:
    """A part of a segment: free, in use or pending."""

    addr: int
    size: int
    state: str = "inactive"
    requested: int = 0

    @property
    def end(self) -> int:
        return self.addr + self.size


@dataclass
class Segment:
    addr: int
    size: int
    stream: int
    kind: str
    grows: bool
    pieces: list[Piece] = field(default_factory=list)


class Splitter:
    """Small and large segments of two streams, or one growing range a stream; best fit."""

    def __init__(self, *, growing: bool = False, base: int = 1 << 63) -> None:
        self.growing = growing
        self.next = base
        self.segments: list[Segment] = []
        self.entries: list[dict[str, Any]] = []
        self.truth: list[dict[str, Any]] = []

    # -- what a program does --------------------------------------------------------------------------------------

    def step(self, what: int, choice: int, size: int) -> None:
        used = [(s, p) for s in self.segments for p in s.pieces if p.state == "active_allocated"]
        waiting = [(s, p) for s in self.segments for p in s.pieces if p.state == "active_pending_free"]
        if what <= 3 or not used:
            self.allocate(size, choice % 2)
        elif what <= 6:
            segment, piece = used[choice % len(used)]
            piece.state = "active_pending_free"
            self.note("free_requested", piece.addr, piece.requested, segment.stream)
            if what > 4:
                self.complete(segment, piece)
        elif what == 7 and waiting:
            self.complete(*waiting[choice % len(waiting)])
        else:
            self.release()

    def allocate(self, requested: int, stream: int) -> None:
        size = -(-requested // 512) * 512
        kind = "small" if size <= MIB else "large"
        fits = [
            (p.size, p.addr, s, p)
            for s in self.segments
            for p in s.pieces
            if p.state == "inactive" and p.size >= size and (s.stream, s.kind) == (stream, kind)
        ]
        if not fits:
            segment = self.grow(size, stream, kind)
            piece = segment.pieces[-1]
        else:
            _, _, segment, piece = min(fits, key=lambda fit: fit[:2])
        rest = piece.size - size
        if rest >= 512 if segment.kind == "small" or segment.grows else rest > MIB:
            at = segment.pieces.index(piece)
            segment.pieces.insert(at + 1, Piece(piece.addr + size, rest))
            piece.size = size
        piece.state, piece.requested = "active_allocated", requested
        self.note("alloc", piece.addr, requested, stream)

    def grow(self, size: int, stream: int, kind: str) -> Segment:
        total = PAGE if kind == "small" else max(20 * MIB, -(-size // PAGE) * PAGE)
        if not self.growing:
            segment = Segment(self.next, total, stream, kind, False, [Piece(self.next, total)])
            self.next += total + (PAGE if stream else 0)  # some segments touch each other
            self.segments.append(segment)
            self.note("segment_alloc", segment.addr, total, stream)
            return segment
        mine = [s for s in self.segments if (s.stream, s.kind) == (stream, kind)]
        last = max(mine, key=lambda s: s.addr) if mine else None
        if last is None:
            addr = self.next
            self.next += 1 << 36
            last = Segment(addr, 0, stream, kind, True)
            self.segments.append(last)
        tail = last.pieces[-1] if last.pieces and last.pieces[-1].state == "inactive" else None
        more = -(-(size - (tail.size if tail else 0)) // PAGE) * PAGE
        self.note("segment_map", last.addr + last.size, more, stream, later=lambda: self.widen(last, tail, more))
        return last

    def widen(self, segment: Segment, tail: Piece | None, more: int) -> None:
        if tail:
            tail.size += more
        else:
            segment.pieces.append(Piece(segment.addr + segment.size, more))
        segment.size += more

    def complete(self, segment: Segment, piece: Piece) -> None:
        requested = piece.requested
        piece.state, piece.requested = "inactive", 0
        joined: list[Piece] = []
        for one in segment.pieces:
            if joined and one.state == joined[-1].state == "inactive":
                joined[-1].size += one.size
            else:
                joined.append(one)
        segment.pieces = joined
        self.note("free_completed", piece.addr, requested, segment.stream)

    def release(self) -> None:
        """Give whole free segments back, or whole free pages of growing ones."""
        for segment in list(self.segments):
            for piece in list(segment.pieces):
                if piece.state != "inactive":
                    continue
                if not segment.grows:
                    if piece.size == segment.size:
                        self.segments.remove(segment)
                        self.note("segment_free", segment.addr, segment.size, segment.stream)
                    continue
                low, high = -(-piece.addr // PAGE) * PAGE, piece.end // PAGE * PAGE
                if low < high:
                    self.cut(segment, piece, low, high)
                    return

    def cut(self, segment: Segment, piece: Piece, low: int, high: int) -> None:
        at = segment.pieces.index(piece)
        before, after = segment.pieces[:at], segment.pieces[at + 1 :]
        if piece.addr < low:
            before.append(Piece(piece.addr, low - piece.addr))
        if high < piece.end:
            after.insert(0, Piece(high, piece.end - high))
        self.segments.remove(segment)
        for pieces in (before, after):
            if pieces:
                size = pieces[-1].end - pieces[0].addr
                self.segments.append(Segment(pieces[0].addr, size, segment.stream, segment.kind, True, pieces))
        self.note("segment_unmap", low, high - low, segment.stream)

    # -- what is written ------------------------------------------------------------------------------------------

    def note(self, action: str, addr: int, size: int, stream: int, later: Any = None) -> None:
        if later:
            later()
        time_us = T0 + len(self.entries)
        self.entries.append({"action": action, "addr": addr, "size": size, "stream": stream, "time_us": time_us})
        self.truth.append(self.layout())

    def layout(self) -> dict[str, Any]:
        """Blocks, segments, free ranges with their segment, and sums, now."""
        used = {p.addr: (p.size, p.state) for s in self.segments for p in s.pieces if p.state != "inactive"}
        gaps = [
            (p.addr, p.size, s.addr, s.size, s.stream) for s in self.segments for p in s.pieces if p.state == "inactive"
        ]
        segments = sorted((s.addr, s.size, s.stream, s.kind) for s in self.segments)
        mapped = sum(s.size for s in self.segments)
        return {"blocks": used, "segments": segments, "gaps": sorted(gaps), "mapped": mapped}

    def dump(self, kept: int | None = None) -> dict[str, Any]:
        segments = [
            {
                "device": 0, "address": s.addr, "total_size": s.size, "stream": s.stream, "segment_type": s.kind,
                "segment_pool_id": (0, 0), "is_expandable": s.grows, "frames": [],
                "blocks": [block(p.addr, p.requested, state=p.state, size=p.size) for p in s.pieces],
            }
            for s in self.segments
        ]  # fmt: skip
        entries = self.entries if kept is None else self.entries[-kept:]
        return {"segments": segments, "device_traces": [entries]}
