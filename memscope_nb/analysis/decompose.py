"""What the memory of each pool is for: a tree of owners, lifetime classes or a user's own rules, that adds up.

A pool and the driver memory that it is carved out of are trees of their own and never summed (spec/msmemscope 8.4).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import MemoryProfile, as_profile, distinct
from ..units import format_bytes
from .decompose_owner import Path, category_of
from .decompose_tree import SPECIAL, Tree, build_trees, path_text, place_blocks
from .facts import missing_fact
from .result import Result, records
from .rules import RuleSource, as_rules
from .thin import thin_rows

FRAME_COLUMNS = (
    "source", "device", "pool", "t_ns", "path", "level", "name", "kind", "bytes", "own_bytes", "n_blocks", "category",
    "rule",
)  # fmt: skip
PART_COLUMNS = ("source", "device", "pool", "t_ns", "path", "kind", "category", "rule", "bytes", "n_blocks")
BLOCK_COLUMNS = ("block_id", "path", "category", "rule")
HOW_TO_LABEL = "record with msmemscope.config(analysis='decompose')"


@dataclass(frozen=True, repr=False)
class Decomposition(Result):
    """Trees of memory, one for each source, device and pool, at one instant; over time by :meth:`over_time`.

    Attributes
    ----------
    frame : pandas.DataFrame
        Rows of each tree, depth first, largest first. ``bytes`` of a row are its ``own_bytes`` and the ``bytes`` of
        the rows one ``level`` below it; ``bytes`` of level 0 are the recorded reserved bytes of the pool, or allocated
        ones where reserved was not recorded. ``kind``: ``root``, ``owner``, ``lifetime``, ``rule``, ``none`` (no
        label), ``older`` (no row of it), ``remainder`` (signed: what the counter says and nothing explains), ``free``
        (reserved, not allocated). ``category`` is common to both grammars of labels; ``rule`` is what placed the bytes
        (several: see ``parts``).
    parts : pandas.DataFrame
        The leaves: one row for each place and each rule that put bytes there.
    blocks : pandas.DataFrame
        ``block_id path category rule`` of every block, alive then or not.
    trees : tuple of Tree
        The series behind the rows.
    """

    parts: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(PART_COLUMNS)), repr=False)
    blocks: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(BLOCK_COLUMNS)), repr=False)
    trees: tuple[Tree, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the trees and leaves as JSON-ready values."""
        return super().to_dict() | {"parts": records(self.parts)}

    def over_time(
        self,
        *,
        source: int | None = None,
        device: str | None = None,
        pool: str | None = None,
        points: int | None = 1000,
        top: int = 40,
    ) -> pd.DataFrame:
        """Return the leaves of one tree at many instants.

        Parameters
        ----------
        source, device, pool : optional
            Which tree; may be left out where there is only one.
        points : int, optional
            Thin to about this many columns of a plot: lowest and highest value of every leaf and of the total in each
            column stay, so that they are exact. ``None`` keeps every instant.
        top : int
            Keep this many leaves, those with the highest peaks; the others become one column.

        Returns
        -------
        pandas.DataFrame
            Index ``t_ns``; a column for each leaf, by its path, and ``total_bytes``, which is recorded, not summed up.

        Raises
        ------
        InputError
            If no tree or several fit.
        """
        tree = self._tree(source, device, pool)
        return tree_over_time(tree, points=points, top=top)

    def _tree(self, source: int | None, device: str | None, pool: str | None) -> Tree:
        def key(tree: Tree) -> tuple[int, str, str]:
            return tree.series.source, tree.series.device, tree.series.pool

        wanted = (source, device, pool)
        fit = [t for t in self.trees if all(w in (None, k) for w, k in zip(wanted, key(t), strict=True))]
        if len(fit) != 1:
            there = ", ".join(f"(source={s}, device={d!r}, pool={p!r})" for s, d, p in map(key, self.trees[:20]))
            raise InputError(f"{len(fit)} trees fit; choose one of {there}")
        return fit[0]


def decompose(
    p: MemoryProfile | str | os.PathLike[str],
    *,
    at: int | Literal["peak"] | None = None,
    rules: RuleSource | None = None,
) -> Decomposition:
    """Tell what the memory of each pool is for, at its peak or at an instant.

    Parameters
    ----------
    p : MemoryProfile or path
        A msMemScope dump (owner labels, spec/msmemscope 8), or any other profile: blocks of a pool without labels are
        placed by lifetime class.
    at : int or "peak", optional
        Instant in ns since the epoch; by default each pool at its own first peak of *allocated*.
    rules : path or sequence of Rule, optional
        A user's own rules, applied afterwards; see :mod:`memscope_nb.analysis.rules`.

    Returns
    -------
    Decomposition
        A tree for each source, device and pool that was recorded at that instant. Trees are never added up: the pools
        of a framework lie inside the memory that CANN's modules took from the driver.

    Raises
    ------
    MissingFactError
        If there are no blocks, or a rule asks for a fact that the recording lacks.
    InputError
        If nothing was recorded at the instant, or the rules cannot be read.
    """
    if at is not None and at != "peak" and (isinstance(at, bool) or not isinstance(at, (int, np.integer))):
        raise TypeError(f"at must be a time in ns since the epoch or 'peak', not {at!r}")
    read = as_rules(rules)
    profile = as_profile(p)
    if not len(profile.blocks):
        raise missing_fact(
            profile,
            "decompose",
            "decompose needs blocks, and none were recorded: msmemscope.config(events='alloc,free'), or "
            "profile_memory=True for the Ascend profiler",
        )
    placement = place_blocks(profile, read)
    every = tuple(build_trees(profile, placement))
    t_ns = None if at in (None, "peak") else int(at)
    chosen = [tree for tree in every if t_ns is None or tree.series.window[0] <= t_ns <= tree.series.window[1]]
    if not chosen:
        spans = ", ".join(f"{a}..{b}" for a, b in sorted({tree.series.window for tree in every})[:10])
        raise InputError(f"nothing was recorded at {t_ns}; windows are {spans}")
    shots = [_Shot.of(tree, tree.peak_ns() if t_ns is None else t_ns) for tree in chosen]
    frame = pd.DataFrame([row for shot in shots for row in shot.tree_rows()], columns=list(FRAME_COLUMNS))
    parts = pd.DataFrame([row for shot in shots for row in shot.part_rows()], columns=list(PART_COLUMNS))
    caveats = tuple(_caveats(profile, every, shots, placement.unlabelled))
    return Decomposition(frame, caveats, parts, _placed(profile, every), every)


# -- one tree at one instant ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Leaf:
    path: Path
    kind: str
    rule: str
    bytes: int
    n_blocks: int


@dataclass(frozen=True)
class _Shot:
    """The leaves of a tree at an instant."""

    tree: Tree
    t_ns: int
    total: int
    leaves: tuple[_Leaf, ...]

    @classmethod
    def of(cls, tree: Tree, t_ns: int) -> _Shot:
        n_bytes, count = tree.at(t_ns)
        t = np.array([t_ns], dtype=np.int64)
        leaves = [
            _Leaf(part.path, part.kind, part.rule, int(size), int(n))
            for part, size, n in zip(tree.parts, n_bytes, count, strict=True)
            if n
        ]
        leaves += [_Leaf((name,), *SPECIAL[name], int(values[0]), 0) for name, values in tree.special(t).items()]
        return cls(tree, t_ns, int(tree.total(t)[0]), tuple(leaves))

    @property
    def key(self) -> dict[str, Any]:
        one = self.tree.series
        return {"source": one.source, "device": one.device, "pool": one.pool, "t_ns": self.t_ns}

    def part_rows(self) -> Iterable[dict[str, Any]]:
        """Leaves, in the order of the tree."""
        for leaf in self.leaves:
            yield self.key | {
                "path": path_text(self.tree.root, leaf.path),
                "kind": leaf.kind,
                "category": _category(self.tree, leaf),
                "rule": leaf.rule,
                "bytes": leaf.bytes,
                "n_blocks": leaf.n_blocks,
            }

    def tree_rows(self) -> Iterable[dict[str, Any]]:
        """Nodes, depth first; those that hold most come first, what is no block last."""
        nodes: dict[Path, list[_Leaf]] = {(): []}
        own: dict[Path, list[_Leaf]] = {}
        for leaf in self.leaves:
            own.setdefault(leaf.path, []).append(leaf)
            for depth in range(len(leaf.path) + 1):
                nodes.setdefault(leaf.path[:depth], []).append(leaf)
        weight = {path: sum(leaf.bytes for leaf in leaves) for path, leaves in nodes.items()}
        late = {path: all(leaf.kind in _SPECIAL_KINDS for leaf in leaves) for path, leaves in nodes.items()}

        def place(path: Path) -> list[tuple[bool, int, str]]:
            prefixes = (path[:depth] for depth in range(1, len(path) + 1))
            return [(late[prefix], -weight[prefix], prefix[-1]) for prefix in prefixes]

        for path in sorted(nodes, key=place):
            here = own.get(path, [])
            kinds = dict.fromkeys(leaf.kind for leaf in here or nodes[path])
            yield self.key | {
                "path": path_text(self.tree.root, path),
                "level": len(path),
                "name": path[-1] if path else self.tree.root,
                "kind": " ".join(kinds) if path else "root",
                "bytes": weight[path] if path else self.total,
                "own_bytes": sum(leaf.bytes for leaf in here),
                "n_blocks": sum(leaf.n_blocks for leaf in nodes[path]),
                "category": _category(self.tree, here[0]) if here else "",
                "rule": "; ".join(dict.fromkeys(leaf.rule for leaf in here)),
            }


_SPECIAL_KINDS = frozenset(kind for kind, _ in SPECIAL.values())


def _category(tree: Tree, leaf: _Leaf) -> str:
    return category_of(leaf.path, tree.root) if leaf.kind in ("owner", "rule") else leaf.kind


def _placed(profile: MemoryProfile, trees: Sequence[Tree]) -> pd.DataFrame:
    """Place, category and rule of every block."""
    texts: dict[tuple[str, str, str], int] = {}
    code = np.full(len(profile.blocks), -1, dtype=np.int64)
    for tree in trees:
        keys = [
            (path_text(tree.root, part.path), category_of(part.path, tree.root), part.rule)
            if part.kind in ("owner", "rule")
            else (path_text(tree.root, part.path), part.kind, part.rule)
            for part in tree.parts
        ]
        numbers = np.array([texts.setdefault(key, len(texts)) for key in keys], dtype=np.int64)
        if len(keys):
            code[tree.series.rows] = numbers[tree.part_of_row]
    columns: dict[str, Any] = {"block_id": profile.blocks["block_id"].to_numpy()}
    for i, name in enumerate(BLOCK_COLUMNS[1:]):
        values = [key[i] for key in texts]
        words = {word: i for i, word in enumerate(dict.fromkeys(values))}
        table = np.array([words[value] for value in values] + [-1], dtype=np.int64)
        columns[name] = pd.Categorical.from_codes(table[code], list(words))
    return pd.DataFrame(columns)


# -- over time --------------------------------------------------------------------------------------------------


def tree_over_time(tree: Tree, *, points: int | None, top: int) -> pd.DataFrame:
    """Return the leaves of a tree at the instants that a plot of so many columns needs; see ``over_time``."""
    instants = tree.instants
    leaves = tree.leaves(top)
    if points is not None:
        rows = thin_rows(instants, [tree.total(instants), *tree.special(instants).values()], points)
        kept = [t[thin_rows(t, [lives.bytes_at(t)], points)] for lives, t in leaves.values()]
        instants = distinct(np.concatenate([instants[rows], *kept]))
    columns = {text: lives.bytes_at(instants) for text, (lives, _) in leaves.items()}
    columns |= {path_text(tree.root, (name,)): values for name, values in tree.special(instants).items()}
    columns["total_bytes"] = tree.total(instants)
    return pd.DataFrame(columns, index=pd.Index(instants, name="t_ns"))


# -- what to know -----------------------------------------------------------------------------------------------


def _caveats(
    profile: MemoryProfile, trees: Sequence[Tree], shots: Sequence[_Shot], bare: frozenset[tuple[int, str, str]]
) -> Iterable[str]:
    pools = {tree.series.pool for tree in trees}
    if "HAL" in pools and len(pools) > 1:
        yield "CANN (HAL) is what the process took from the driver; the other pools lie inside it: never add them up"
    if bare:
        names = ", ".join(sorted({pool for _, _, pool in bare}))
        how = f": {HOW_TO_LABEL}" if _is_dump(profile) else ""
        yield f"no block of {names} has an owner label: lifetime classes and your rules stand in for them{how}"
    if not profile.complete:
        yield "some blocks were not selected: older memory cannot be told from them"
    summed = sorted({tree.series.pool for tree in trees if not tree.recorded})
    if summed:
        yield (
            f"no counter was recorded for {', '.join(summed)}: the total is the sum of the blocks, so that older "
            "memory and a remainder are undecided"
        )
    short = sorted(
        {shot.tree.series.pool for shot in shots if any(x.kind == "free" and x.bytes < 0 for x in shot.leaves)}
    )
    if short:
        yield f"{', '.join(short)}: the counter of allocated exceeds that of reserved; one of them is not what it says"
    yield from _remainders(trees)
    late = [shot for shot in shots if (peak := shot.tree.series.peak("allocated")) and peak[1] > _highest(shot.tree)]
    if late:
        yield "a counter was higher for less than its instant (several samples at one time): that peak has no blocks"


def _is_dump(profile: MemoryProfile) -> bool:
    return "kind" in profile.sources and bool(profile.sources["kind"].astype(str).str.startswith("memscope").any())


def _highest(tree: Tree) -> int:
    return int(tree.allocated(tree.instants).max())


def _remainders(trees: Sequence[Tree]) -> Iterable[str]:
    for tree in trees:
        if not (tree.recorded and tree.complete):
            continue
        rest = tree.rest - tree.older
        lowest, highest = int(rest.min()), int(rest.max())
        rounding = 2 * int(tree.series.tolerance.max(initial=0))
        if max(-lowest, highest) > rounding:
            one = tree.series
            yield (
                f"{one.pool} on {one.device} (source {one.source}): counter and blocks disagree by "
                f"{format_bytes(lowest, signed=True)} to {format_bytes(highest, signed=True)} over the recording; rows "
                "are missing or another allocator uses the pool"
            )
