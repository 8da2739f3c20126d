"""Levels of the parts of one series: what its blocks are for, what is older, what nothing explains.

For a recorded pool, at every instant: reserved = blocks by place + older + remainder + reserved but not allocated.
*Older* is the part of ``recorded - live blocks`` that obeys spec/ascend_profiler 3.3a (it can only fall); what rises
again, or is negative, is the signed remainder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import NA_NS, Int64Array, MemoryProfile, block_ends, block_starts, distinct
from .decompose_owner import FREE, NO_LABEL, NOT_SELECTED, OLDER, OTHERS, REMAINDER, Path, owner_path, owners, root_of
from .lifetime import LIFETIMES, lifetimes
from .rules import Rule, match_rules
from .series import Lives, Series, iter_series

BY_LABEL, BY_ID, BY_LIFETIME, BY_NOTHING = "owner label", "CANN module id", "lifetime class", "no label"
SPECIAL = {
    OLDER: ("older", "recorded total - live blocks, as far as it only falls"),
    REMAINDER: ("remainder", "recorded total - live blocks - older"),
    NOT_SELECTED: ("remainder", "recorded total - the blocks that were selected"),
    FREE: ("free", "recorded reserved - allocated"),
}
"""Kind, and what places the bytes, of the parts that are no blocks."""


@dataclass(frozen=True)
class Part:
    """Blocks of one place that one rule put there."""

    path: Path
    """Below the root."""
    rule: str
    kind: str
    """``owner``, ``lifetime``, ``rule`` or ``none``."""


@dataclass(frozen=True)
class Placement:
    """Where every block of a profile belongs."""

    part_of_block: npt.NDArray[np.int64]
    parts: tuple[Part, ...]
    unlabelled: frozenset[tuple[int, str, str]]
    """Series without any label, whose blocks were placed by lifetime class."""


def place_blocks(profile: MemoryProfile, rules: Sequence[Rule]) -> Placement:
    """Place every block: by its owner label, in a series without any by lifetime class; then by the user's rules."""
    blocks = profile.blocks
    owner, by_id = owners(profile)
    has = owner.codes >= 0
    pool = pd.Categorical(blocks["pool"])
    group, names = _series_of_blocks(blocks)
    labelled = np.bincount(group[has], minlength=len(names))[group] > 0
    classes = lifetimes(profile) if not labelled.all() else None
    parts: list[Part] = []
    index: dict[Part, int] = {}

    def number(part: Part) -> int:
        if part not in index:
            index[part] = len(parts)
            parts.append(part)
        return index[part]

    place = np.full(len(blocks), number(Part((NO_LABEL,), BY_NOTHING, "none")), dtype=np.int64)
    n_owners = len(owner.categories) + 1
    pairs = (pool.codes.astype(np.int64) * n_owners + owner.codes) * 2 + by_id
    distinct, which = np.unique(pairs[has], return_inverse=True)
    numbers = np.empty(len(distinct), dtype=np.int64)
    for i, pair in enumerate(distinct):
        pool_code, owner_code = divmod(int(pair) // 2, n_owners)
        path = owner_path(str(owner.categories[owner_code]), root_of(str(pool.categories[pool_code])))
        numbers[i] = number(Part(path, BY_ID if pair % 2 else BY_LABEL, "owner"))
    place[has] = numbers[which]
    if classes is not None:
        for code, name in enumerate(LIFETIMES):
            chosen = ~labelled & (classes.codes == code)
            if chosen.any():
                place[chosen] = number(Part((name,), BY_LIFETIME, "lifetime"))
    if rules:
        matched = match_rules(profile, rules, owner, classes)
        for i, rule in enumerate(rules):
            if (matched == i).any():
                place[matched == i] = number(Part(rule.place, f"rule: {rule.name}", "rule"))
    return Placement(place, tuple(parts), frozenset(names[i] for i in np.unique(group[~labelled])))


def _series_of_blocks(blocks: pd.DataFrame) -> tuple[npt.NDArray[np.int64], list[tuple[int, str, str]]]:
    """Number the series; which one each block belongs to, and their keys."""
    keys = blocks.groupby(["source", "device", "pool"], observed=True, sort=False, dropna=False)
    names = [(int(s), str(d), str(p)) for s, d, p in keys.size().index]
    return keys.ngroup().to_numpy(np.int64), names


@dataclass(frozen=True)
class Tree:
    """One series with the part of each of its blocks; can be asked at any instant."""

    series: Series
    complete: bool
    parts: tuple[Part, ...]
    part_of_row: npt.NDArray[np.int64]
    starts: Int64Array
    ends: Int64Array
    sizes: Int64Array
    counted: bool
    """Whether the totals are those of a counter; of a dump without one they are running sums of its rows."""
    rest_t: Int64Array
    """Settled samples of *allocated*."""
    rest: Int64Array
    """Recorded bytes - live blocks at them."""

    @property
    def root(self) -> str:
        """First segment of every path."""
        return root_of(self.series.pool)

    @property
    def recorded(self) -> bool:
        """Whether a counter of *allocated* was recorded."""
        return bool(len(self.rest_t)) and self.counted

    @property
    def older(self) -> Int64Array:
        """Bytes at each settled sample that no block explains, as far as they only fall."""
        older: Int64Array = np.maximum(np.minimum.accumulate(self.rest), 0)
        return older

    @property
    def instants(self) -> Int64Array:
        """Every instant of the window at which something changes."""
        first, last = self.series.window
        return _within(np.concatenate([self.series.t, self.starts, self.ends]), first, last)

    def live(self, t: Int64Array) -> Int64Array:
        """Bytes of all blocks."""
        return self.series.lives["allocated"].bytes_at(t)

    def allocated(self, t: Int64Array) -> Int64Array:
        """Bytes by the counter; between its samples blocks tell the change, without a counter they are all there is."""
        if not len(self.rest_t):
            return self.live(t)
        if not self.complete:
            return held(self.rest_t, self.rest + self.live(self.rest_t), t)
        return held(self.rest_t, self.rest, t) + self.live(t)

    def reserved(self, t: Int64Array) -> Int64Array | None:
        """Bytes that the pool holds, ``None`` if that was not recorded."""
        values = self.series.recorded.get("reserved")
        if values is None:
            return None
        known = values != NA_NS
        return held(self.series.t[known], values[known], t)

    def total(self, t: Int64Array) -> Int64Array:
        """Bytes of the root: reserved where it was recorded, else allocated."""
        reserved = self.reserved(t)
        return self.allocated(t) if reserved is None else reserved

    def special(self, t: Int64Array) -> dict[str, Int64Array]:
        """Bytes of what is no block, by name; each from its own ledger, none as what is left of a sum."""
        found: dict[str, Int64Array] = {}
        if len(self.rest_t) and not self.complete:
            found[NOT_SELECTED] = self.allocated(t) - self.live(t)
        elif self.recorded:
            found[OLDER] = held(self.rest_t, self.older, t)
            found[REMAINDER] = held(self.rest_t, self.rest - self.older, t)
        elif len(self.rest_t):
            found[REMAINDER] = held(self.rest_t, self.rest, t)
        reserved = self.reserved(t)
        if reserved is not None:
            found[FREE] = reserved - self.allocated(t)
        return found

    def leaves(self, top: int) -> dict[str, tuple[Lives, Int64Array]]:
        """Lives of the blocks of each path, and the instants at which they change.

        The highest peaks come first; beyond ``top`` paths, all others are one.
        """
        texts: dict[str, int] = {}
        of_part = [texts.setdefault(path_text(self.root, part.path), len(texts)) for part in self.parts]
        path = np.array(of_part, dtype=np.int64)[self.part_of_row] if of_part else self.part_of_row
        names = list(texts)
        ranked = np.argsort(-self._peaks(path, len(names)), kind="stable")
        place = np.empty(len(names), dtype=np.int64)
        place[ranked] = np.minimum(np.arange(len(names)), max(top, 0))
        shown = [names[i] for i in ranked[: max(top, 0)]]
        shown += [path_text(self.root, (OTHERS,))] if len(names) > len(shown) else []
        order = np.argsort(place[path], kind="stable")
        bounds = np.searchsorted(place[path][order], np.arange(len(shown) + 1))
        chosen = [order[bounds[i] : bounds[i + 1]] for i in range(len(shown))]
        found = {}
        for name, rows in zip(shown, chosen, strict=True):
            lives = Lives.of(self.starts[rows], self.ends[rows], self.sizes[rows])
            found[name] = lives, _within(np.concatenate([self.starts[rows], self.ends[rows]]), *self.series.window)
        return found

    def _peaks(self, path: npt.NDArray[np.int64], n: int) -> Int64Array:
        """Highest level of each path."""
        t, change = np.concatenate([self.starts, self.ends]), np.concatenate([self.sizes, -self.sizes])
        both = np.concatenate([path, path])
        order = np.lexsort((change > 0, t, both))  # at one instant ends come first
        level = np.cumsum(change[order])  # every block ends, so that each path begins at zero
        first = np.searchsorted(both[order], np.arange(n))
        peaks: Int64Array = np.maximum.reduceat(level, first) if n else np.empty(0, dtype=np.int64)
        return peaks

    def at(self, t_ns: int) -> tuple[Int64Array, Int64Array]:
        """Bytes and number of live blocks of each part at an instant."""
        alive = (self.starts <= t_ns) & (self.ends > t_ns)
        n_bytes = np.zeros(len(self.parts), dtype=np.int64)
        np.add.at(n_bytes, self.part_of_row[alive], self.sizes[alive])
        count: Int64Array = np.bincount(self.part_of_row[alive], minlength=len(self.parts)).astype(np.int64)
        return n_bytes, count

    def peak_ns(self) -> int:
        """First instant at which *allocated* is highest."""
        t = self.instants
        return int(t[int(np.argmax(self.allocated(t)))])


def _within(instants: Int64Array, first: int, last: int) -> Int64Array:
    """Distinct instants of a window, with both of its edges."""
    inside = instants[(instants > first) & (instants < last)]
    return distinct(np.concatenate([np.array([first, last], dtype=np.int64), inside]))


def path_text(root: str, path: Path) -> str:
    """Return a path as the tool writes owners: segments joined by ``@``."""
    return "@".join((root, *path))


def held(sample_t: Int64Array, values: Int64Array, t: Int64Array) -> Int64Array:
    """Value of the last sample at or before ``t``; before the first sample, the first one."""
    at: Int64Array = values[np.maximum(np.searchsorted(sample_t, t, side="right") - 1, 0)]
    return at


def build_trees(profile: MemoryProfile, placement: Placement) -> Iterator[Tree]:
    """Yield the tree of every series."""
    starts, ends = block_starts(profile), block_ends(profile)
    sizes = profile.blocks["size_bytes"].to_numpy(np.int64)
    kinds = profile.sources.set_index("source")["kind"] if "kind" in profile.sources else pd.Series(dtype=object)
    for one in iter_series(profile):
        used, part_of_row = np.unique(placement.part_of_block[one.rows], return_inverse=True)
        rest_t, rest, _ = one.rest()
        yield Tree(
            series=one,
            complete=profile.complete,
            parts=tuple(placement.parts[i] for i in used),
            part_of_row=part_of_row.astype(np.int64),
            starts=starts[one.rows],
            ends=ends[one.rows] + one.release_shift_ns,
            sizes=sizes[one.rows],
            counted=one.origin == "recorded" or not str(kinds.get(one.source, "")).startswith("memscope"),
            rest_t=rest_t,
            rest=rest,
        )
