"""Shortest edit script of two sequences: Myers' greedy search with the tie rule of spec/msmemscope 7.4.

All diagonals of one depth are advanced together by array operations. Only one bit a diagonal and depth is kept (was the
step an insertion?): from the end the bits lead back to the moves, and walking the moves forward gives the script. Where
a diagonal has left the rectangle, it and those beyond can no longer matter; they are given up, which changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
ABSENT = -1
_SEEN_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class EditScript:
    """Rows of an alignment in sequence order: positions in both sequences, ``ABSENT`` where one has nothing.

    ``is_shortest`` is False where the search was cut short: still an alignment, with more differences than needed.
    """

    base: Int64Array
    compare: Int64Array
    is_shortest: bool = True


def edit_script(base: Codes, compare: Codes, *, max_cells: int = 800_000_000) -> EditScript:
    """Align two sequences of codes (not negative).

    Parameters
    ----------
    base, compare : int32 arrays
        Equal numbers stand for equal elements.
    max_cells : int
        Points (depth times diagonals) after which the best way so far is taken and the search starts anew behind it.
        A bit each is kept: 100 MB, reached after about 40,000 differences.
    """
    i = j = 0
    parts: list[tuple[Int64Array, Int64Array]] = []
    is_shortest = True
    while i < len(base) or j < len(compare):
        search = _Search(base[i:], compare[j:])
        reached = search.run(max_cells)
        is_shortest &= reached
        rows = _walk(search, search.moves())
        parts.append((_moved(rows[0], i), _moved(rows[1], j)))
        i, j = i + search.end[0], j + search.end[1]
    if not parts:
        return EditScript(np.empty(0, np.int64), np.empty(0, np.int64))
    return EditScript(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), is_shortest)


def _moved(positions: Int64Array, by: int) -> Int64Array:
    return np.where(positions == ABSENT, ABSENT, positions + by)


class _Search:
    """Furthest points by diagonal k = i - j, depth by depth."""

    def __init__(self, base: Codes, compare: Codes) -> None:
        self.n, self.m = len(base), len(compare)
        # Two different ends that equal nothing: no test for the edges is needed.
        self.base = np.concatenate([base, np.full(2, -1, base.dtype)])
        self.compare = np.concatenate([compare, np.full(2, -2, compare.dtype)])
        self.bits: list[npt.NDArray[np.uint8]] = []
        self.first: list[int] = []
        self.end = (0, 0)

    def run(self, max_cells: int) -> bool:
        """Search until both ends are reached or there are ``max_cells``; tells whether the ends were reached."""
        goal, zero = self.n - self.m, self.m + 2
        furthest = np.full(self.n + self.m + 5, -1, dtype=np.int64)
        low, high = -self.m - 2, self.n + 2  # diagonals that have left the rectangle on either side
        n_cells = depth = 0
        while n_cells < max_cells or depth < 2:  # at least one move
            k0 = max(-depth, low + 1)
            k0 += (k0 + depth) % 2
            k1 = min(depth, high - 1)
            k1 -= (k1 + depth) % 2
            left = furthest[k0 - 1 + zero : k1 + zero : 2]
            right = furthest[k0 + 1 + zero : k1 + 2 + zero : 2]
            inserts = left < right
            i = np.where(inserts, right, left + 1)
            k = np.arange(k0, k1 + 1, 2, dtype=np.int64)
            self._follow(i, k)
            furthest[k0 + zero : k1 + 1 + zero : 2] = i
            self.bits.append(np.packbits(inserts))
            self.first.append(k0)
            n_cells += len(k)
            j = i - k
            if k0 <= goal <= k1 and (goal - k0) % 2 == 0 and i[(goal - k0) // 2] >= self.n:
                self.end = (self.n, self.m)
                return True
            gone = np.flatnonzero((j >= self.m) & (k < goal))
            low = max(low, int(k[gone[-1]])) if gone.size else low
            gone = np.flatnonzero((i >= self.n) & (k > goal))
            high = min(high, int(k[gone[0]])) if gone.size else high
            depth += 1
        inside = (i <= self.n) & (j <= self.m)
        best = int(np.argmax(np.where(inside, i + j, -1)))
        self.end = (int(i[best]), int(j[best]))
        return False

    def _follow(self, i: Int64Array, k: Int64Array) -> None:
        """Move every point along its diagonal while the elements are equal."""
        active = np.flatnonzero(self.base[i] == self.compare[i - k])
        i[active] += 1
        width = 4
        while active.size:
            width = max(min(width, _SEEN_AT_ONCE // active.size), 1)
            at = i[active][:, None] + np.arange(width)
            there = np.minimum(at, self.n + 1)
            other = np.minimum(at - k[active][:, None], self.m + 1)
            equal = self.base[there] == self.compare[other]
            run = np.where(equal.all(axis=1), width, np.argmin(equal, axis=1))
            i[active] += run
            active = active[run == width]
            width *= 4

    def moves(self) -> npt.NDArray[np.bool_]:
        """The way to the end: for each depth from 1 on, whether it was an insertion."""
        k = self.end[0] - self.end[1]
        found = np.zeros(len(self.bits) - 1, dtype=bool)
        for depth in range(len(self.bits) - 1, 0, -1):
            at = (k - self.first[depth]) >> 1
            inserts = bool(self.bits[depth][at >> 3] >> (7 - (at & 7)) & 1)
            found[depth - 1] = inserts
            k += 1 if inserts else -1
        return found


def _walk(search: _Search, moves: npt.NDArray[np.bool_]) -> tuple[Int64Array, Int64Array]:
    """Rows of the script: after each move the way follows equal elements as far as they go, as the search did."""
    i = j = 0
    starts: list[tuple[int, int, int]] = []
    for move in [None, *moves.tolist()]:
        if move is not None:
            starts.append((ABSENT, j, 1) if move else (i, ABSENT, 1))
            i, j = (i, j + 1) if move else (i + 1, j)
        run = _common(search.base, search.compare, i, j)
        if run:
            starts.append((i, j, run))
            i, j = i + run, j + run
    first = np.array(starts, dtype=np.int64).reshape(-1, 3)
    length = first[:, 2]
    within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    base, compare = (np.repeat(first[:, side], length) for side in (0, 1))
    return np.where(base == ABSENT, ABSENT, base + within), np.where(compare == ABSENT, ABSENT, compare + within)


def _common(base: Codes, compare: Codes, i: int, j: int) -> int:
    """How many elements from here on are equal; the ends of both equal nothing."""
    run, width = 0, 4
    while True:
        width = min(width, len(base) - i - run, len(compare) - j - run)
        if width <= 0:
            return run
        differs = base[i + run : i + run + width] != compare[j + run : j + run + width]
        at = int(differs.argmax())
        if differs[at]:
            return run + at
        run += width
        width *= 8
