"""Lives of blocks from the trace of one device and the state of its segments (spec/pytorch 1.7).

Three things say that a block was there before the trace: a release without an allocation, a block that is alive in the
segments without one, and, for reserved memory, the segments themselves. What the trace lacks is never invented: an end
that nobody saw is marked as such, and a state that contradicts the trace is counted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..model import BlockFlag, Int64Array
from .pytorch_rows import ACTIONS

ALLOC, FREE_REQUESTED, FREE_COMPLETED, FREE = (
    ACTIONS.index(name) for name in ("alloc", "free_requested", "free_completed", "free")
)
ANNOTATE = ACTIONS.index("annotate")
SEGMENT_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}

_AT_A_TIME = 1 << 13

UNSEEN = -1
"""Not in the trace."""
BEFORE = -2
"""Before the first entry."""
AFTER = -3
"""Not over at the last entry, though requested."""
AT_END = -4
"""Somewhere between the allocation and the last entry: the latest moment stands for it."""


@dataclass(frozen=True)
class StateBlock:
    """An active block of a segment."""

    addr: int
    size: int
    """As requested; rounded where the file does not say."""
    rounded: int
    pending: bool
    stack: int
    stream: int
    segment: int


class Lives:
    """One row per life, as columns: positions in the trace, or one of the constants above.

    Attributes
    ----------
    alloc, request, done : array of int
        Position of the allocation, the request to free and its completion.
    stack_row : array of int
        Entry whose stack is the block's; ``UNSEEN`` if the state has it.
    state : array of int
        Position among the active blocks of the segments, -1 for a block that is not there.
    """

    def __init__(self) -> None:
        self.alloc, self.request, self.done = array("q"), array("q"), array("q")
        self.size, self.addr = array("q"), array("Q")
        self.flags, self.stack_row, self.state = array("H"), array("q"), array("q")
        self.labels: dict[int, int] = {}
        self.counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.alloc)

    def open(self, addr: int, size: int, *, alloc: int, row: int, flags: int = 0, state: int = -1) -> int:
        """Add a life that has no end yet; return its number."""
        for column, value in (
            (self.alloc, alloc), (self.request, UNSEEN), (self.done, UNSEEN), (self.size, size), (self.addr, addr),
            (self.flags, flags), (self.stack_row, row), (self.state, state),
        ):  # fmt: skip
            column.append(value)
        return len(self.alloc) - 1


def find_lives(
    action: npt.NDArray[np.int32],
    addr: npt.NDArray[np.uint64],
    size: Int64Array,
    label: npt.NDArray[np.int32],
    state: Sequence[StateBlock] | None,
) -> Lives:
    """Pair allocations with releases in file order, then with the state at the end.

    Parameters
    ----------
    action, addr, size, label : array
        Columns of the trace.
    state : sequence of StateBlock or None
        Active blocks at the end; ``None`` if the file has no segments.
    """
    lives, live = Lives(), dict[int, int]()
    for row, what, where, n_bytes in _entries(action, addr, size, label):
        if what == ALLOC:
            if n_bytes == 0:
                lives.counts["allocations of 0 bytes"] += 1
                continue
            if where in live:
                _lose_end(lives, live.pop(where), row)
            live[where] = lives.open(where, n_bytes, alloc=row, row=row)
        elif what == ANNOTATE:
            if where in live:
                lives.labels[live[where]] = int(label[row])
        elif n_bytes or where in live:
            _release(lives, live, (what, where, n_bytes), row)
    if not (action == FREE_REQUESTED).any():
        _without_requests(lives)
    if state is not None:
        _match_state(lives, live, state)
    return lives


def _entries(
    action: npt.NDArray[np.int32], addr: npt.NDArray[np.uint64], size: Int64Array, label: npt.NDArray[np.int32]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield position, action, address and size of what touches blocks; few at a time as Python numbers."""
    wanted = np.flatnonzero((action <= FREE) | ((action == ANNOTATE) & (label >= 0)))
    for first in range(0, len(wanted), _AT_A_TIME):
        rows = wanted[first : first + _AT_A_TIME]
        yield from zip(rows.tolist(), action[rows].tolist(), addr[rows].tolist(), size[rows].tolist(), strict=True)


def _lose_end(lives: Lives, number: int, row: int) -> None:
    """End a life whose address is handed out again: it was released at the latest now."""
    lives.counts["blocks whose release is missing: their address was allocated again"] += 1
    lives.flags[number] |= BlockFlag.SYNTHETIC_FREE
    lives.done[number] = row
    if lives.request[number] == UNSEEN:
        lives.request[number] = row


def _release(lives: Lives, live: dict[int, int], entry: tuple[int, int, int], row: int) -> None:
    what, addr, size = entry
    number = live.get(addr)
    if number is None:
        lives.counts["releases without an allocation: memory from before the history"] += 1
        flags = BlockFlag.OLDER | BlockFlag.RELEASE_STACK
        number = live[addr] = lives.open(addr, size, alloc=UNSEEN, row=row, flags=flags)
        if what == FREE_COMPLETED:
            lives.request[number] = BEFORE  # its request would be the entry before, and is not there
            lives.flags[number] |= BlockFlag.SYNTHETIC_FREE
    elif lives.size[number] != size and size:
        lives.counts["releases of another size than the allocation"] += 1
    if what == FREE_REQUESTED:
        if lives.request[number] == UNSEEN:
            lives.request[number] = row
        return
    if lives.request[number] == UNSEEN:
        lives.request[number] = row
    lives.done[number] = row
    del live[addr]


def _without_requests(lives: Lives) -> None:
    """Let completions end a block in every ledger where the recorder was told to skip requests.

    That is so if a block of this history was completed without one; else the one request is before the history.
    """
    if not any(a >= 0 and r == d and r >= 0 for a, r, d in zip(lives.alloc, lives.request, lives.done, strict=True)):
        return
    for number, request in enumerate(lives.request):
        if request == BEFORE:
            lives.request[number] = lives.done[number]
            lives.flags[number] &= ~BlockFlag.SYNTHETIC_FREE


def _match_state(lives: Lives, live: dict[int, int], state: Sequence[StateBlock]) -> None:
    """Add the blocks that only the segments know, and end the lives that they do not know."""
    left = dict(live)
    for position, block in enumerate(state):
        number = left.pop(block.addr, None)
        if number is None:
            flags = BlockFlag.OLDER
            number = lives.open(block.addr, block.size, alloc=UNSEEN, row=UNSEEN, flags=flags, state=position)
            lives.counts["blocks alive at the end and allocated before the history"] += 1
            if block.pending:
                lives.request[number] = BEFORE
                lives.flags[number] |= BlockFlag.SYNTHETIC_FREE
        else:
            lives.state[number] = position
            if lives.size[number] != block.size:
                lives.counts["blocks whose size at the end is not that of their allocation"] += 1
            if not block.pending and lives.request[number] != UNSEEN:
                lives.counts["blocks in use at the end although their release was requested"] += 1
                continue
            if block.pending and lives.request[number] == UNSEEN:
                lives.request[number] = AT_END
                lives.flags[number] |= BlockFlag.SYNTHETIC_FREE
        if block.pending:
            lives.done[number] = AFTER
            lives.flags[number] |= BlockFlag.PENDING
    for number in left.values():
        lives.counts["blocks that are not there at the end and whose release is missing: no leaks"] += 1
        lives.flags[number] |= BlockFlag.SYNTHETIC_FREE
        lives.done[number] = AT_END
        if lives.request[number] == UNSEEN:
            lives.request[number] = AT_END


@dataclass(frozen=True)
class Levels:
    """Bytes before the first entry, after each entry, and at the end."""

    before: dict[str, int]
    after: dict[str, Int64Array]
    end: dict[str, int]
    """What the lives leave at the end; to be compared with the segments."""


def find_levels(lives: Lives, action: npt.NDArray[np.int32], size: Int64Array, reserved_end: int | None) -> Levels:
    """Add up the lives; reserved memory is counted back from the segments (spec 1.7).

    Parameters
    ----------
    lives : Lives
        Of the device.
    action, size : array
        Columns of the trace.
    reserved_end : int or None
        Sum of the segments, ``None`` if they are unknown.
    """
    before, after, end = {}, {}, {}
    sizes, alloc = np.frombuffer(lives.size, np.int64), np.frombuffer(lives.alloc, np.int64)
    for ledger, ends in (("allocated", lives.request), ("active", lives.done)):
        last = np.frombuffer(ends, np.int64)
        change = np.zeros(len(action), dtype=np.int64)
        np.add.at(change, alloc[alloc >= 0], sizes[alloc >= 0])
        np.subtract.at(change, last[last >= 0], sizes[last >= 0])
        before[ledger] = int(sizes[(alloc < 0) & (last != BEFORE)].sum())
        after[ledger] = _summed(change, before[ledger])
        final = int(after[ledger][-1]) if len(change) else before[ledger]
        end[ledger] = final - int(sizes[last == AT_END].sum())
    if reserved_end is not None:
        signs = np.zeros(int(action.max(initial=-1)) + 1 + len(ACTIONS), dtype=np.int64)
        for name, sign in SEGMENT_SIGNS.items():
            signs[ACTIONS.index(name)] = sign
        change = signs[action] * size
        before["reserved"] = reserved_end - int(change.sum())
        after["reserved"], end["reserved"] = _summed(change, before["reserved"]), reserved_end
    return Levels(before, after, end)


def _summed(change: Int64Array, start: int) -> Int64Array:
    """Turn changes into levels in place: there is one for each entry."""
    np.cumsum(change, out=change)
    change += start
    return change


def event_times(time_us: Int64Array, *, start_ns: int) -> tuple[Int64Array, str, int]:
    """Give every entry a time of its own that keeps the file's order, which is the allocator's (spec 1.7).

    Entries of one microsecond are kept 1 ns apart. A clock that steps back is not followed.

    Returns
    -------
    times : int64 array
        In ns, strictly increasing.
    axis : str
        ``time`` or ``event order``: then one entry is 1 µs, from ``start_ns`` on.
    n_back : int
        Entries whose own time lies more than 1 µs before that of an earlier one.
    """
    n = len(time_us)
    order = np.arange(n, dtype=np.int64)
    known = time_us > 0
    if not known.any() or known.mean() < 0.5:
        return start_ns + order * 1000, "event order", 0
    ns = np.where(known, time_us, 0) * 1000
    first = ns[int(np.argmax(known))]
    ns = np.where(known, ns, first)
    highest = np.maximum.accumulate(ns)
    n_back = int((known & (highest - ns > 1000)).sum())
    return order + np.maximum.accumulate(ns - order), "time", n_back


def as_signed(values: npt.NDArray[Any]) -> Int64Array:
    """Return handles of 64 bit as int64, the same modulo 2**64."""
    return np.ascontiguousarray(values, dtype=np.uint64).view(np.int64)
