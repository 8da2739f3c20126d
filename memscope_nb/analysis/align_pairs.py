"""Which element of one run is which of the other: processes, steps and threads first, then names in order."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import MemoryProfile
from ..stacks import merge_stacks
from .align_bytes import MEASURES, Side, measured
from .align_nesting import NONE
from .align_script import ABSENT, Codes, Int64Array, edit_script

_MAX_CELLS = 30_000_000
_MAX_THREADS = 64
_LINE = re.compile(r"\(\d+\)")
_SHOWN = ("device", "event", "name")
_EACH = (*MEASURES, "source", "pid", "tid", "step", "depth", "event_id", "stack_id")
Compared = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, tuple[str, ...]]


def compared(a: MemoryProfile, b: MemoryProfile, levels: tuple[str, ...], pools: tuple[str, ...]) -> Compared:
    """Align two recordings: the rows, sums by operator, sums by stack, caveats."""
    sides = (measured(a, levels, pools), measured(b, levels, pools))
    for profile, side in zip((a, b), sides, strict=True):
        pids = profile.sources.set_index("source")["pid"]
        side.elements["pid"] = pids.reindex(side.elements["source"]).to_numpy()
    caveats: list[str] = []
    _number_keys(sides, (a, b))
    base, compare = _aligned(sides, caveats)
    frame = _rows(sides, base, compare)
    caveats += _unseen(sides)
    return frame, _by_op(sides), _by_stack(sides, a, b), tuple(dict.fromkeys(caveats))


# -- matching ---------------------------------------------------------------------------------------------------


def _number_keys(sides: tuple[Side, Side], profiles: tuple[MemoryProfile, MemoryProfile]) -> None:
    """Give elements that may be matched one number: ``key``; with equal name, operator around it and caller."""
    parts = [side.elements[["event", "name", "parent"]] for side in sides]
    callers = [_callers(side.elements, profile) for side, profile in zip(sides, profiles, strict=True)]
    if any((texts != "").any() for texts in callers[:1]) and (callers[1] != "").any():
        parts = [part.assign(caller=texts) for part, texts in zip(parts, callers, strict=True)]
    both = pd.concat(parts, ignore_index=True)
    numbers = both.groupby(list(both.columns), sort=False).ngroup().to_numpy(np.int32)
    n = len(sides[0].elements)
    sides[0].elements["key"], sides[1].elements["key"] = numbers[:n], numbers[n:]


def _callers(elements: pd.DataFrame, profile: MemoryProfile) -> npt.NDArray[np.object_]:
    """File and function of the site of each stack: without folder and line, which change from run to run."""
    sites = [_LINE.sub("", str(site).replace("\\", "/").rpartition("/")[2]) for site in profile.stacks["site"]]
    return np.array([*sites, ""], dtype=object)[elements["stack_id"].to_numpy(np.int64)]


def _aligned(sides: tuple[Side, Side], caveats: list[str]) -> tuple[Int64Array, Int64Array]:
    """Positions in both element tables, row by row."""
    found: list[tuple[Int64Array, Int64Array]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    keys = tuple(side.elements["key"].to_numpy(np.int32) for side in sides)
    for one, two in _sequences(sides, caveats):
        base, compare, is_shortest = _match(keys[0][one], keys[1][two])
        if not is_shortest:
            caveats.append("very many differences: the alignment is not the shortest one")
        found.append((_at(one, base), _at(two, compare)))
    return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])


def _at(rows: Int64Array, positions: Int64Array) -> Int64Array:
    return np.append(rows, ABSENT)[positions]


def _match(one: Codes, two: Codes) -> tuple[Int64Array, Int64Array, bool]:
    """Align codes; those that the other side lacks are set aside first, since they only cost time."""
    kept_one, kept_two = (np.flatnonzero(np.isin(codes, other)) for codes, other in ((one, two), (two, one)))
    script = edit_script(one[kept_one], two[kept_two], max_cells=_MAX_CELLS)
    both = (script.base != ABSENT) & (script.compare != ABSENT)
    i, j = kept_one[script.base[both]], kept_two[script.compare[both]]
    lone_i, lone_j = np.setdiff1d(np.arange(len(one)), i), np.setdiff1d(np.arange(len(two)), j)
    gap = np.concatenate([np.searchsorted(i, lone_i), np.searchsorted(j, lone_j), np.arange(len(i))])
    kind = np.repeat([0, 1, 2], [len(lone_i), len(lone_j), len(i)])
    order = np.lexsort((kind, gap))  # stable: within a gap in their own order
    base = np.concatenate([lone_i, np.full(len(lone_j), ABSENT), i])[order]
    compare = np.concatenate([np.full(len(lone_i), ABSENT), lone_j, j])[order]
    return base, compare, script.is_shortest


def _sequences(sides: tuple[Side, Side], caveats: list[str]) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Rows of both sides that belong together, in order: device, level, process, step, thread."""
    tables = [side.elements[["device", "event", "source", "step", "tid", "event_id", "key"]] for side in sides]
    groups = [table.groupby(["device", "event"], sort=True).indices for table in tables]
    for key in sorted({*groups[0], *groups[1]}):
        parts = [table.iloc[group.get(key, [])].assign(at=group.get(key, []))
                 for table, group in zip(tables, groups, strict=True)]  # fmt: skip
        processes = [part["source"].unique() for part in parts]
        if max(len(p) for p in processes) > 1:
            caveats.append("several processes on a device: compared in the order of their recordings")
        for number in range(max(len(p) for p in processes)):
            own = [part[part["source"] == p[number]] if number < len(p) else part.iloc[:0]
                   for part, p in zip(parts, processes, strict=True)]  # fmt: skip
            yield from _by_step(own[0], own[1], by_thread=key[1] == "OP_LAUNCH", caveats=caveats)


def _by_step(
    one: pd.DataFrame, two: pd.DataFrame, *, by_thread: bool, caveats: list[str]
) -> Iterator[tuple[Int64Array, Int64Array]]:
    steps = [np.unique(part["step"].to_numpy()) for part in (one, two)]
    real = [s[s > 0] for s in steps]
    if len(real[0]) and len(real[1]) and not len(np.intersect1d(real[0], real[1])):
        caveats.append("the runs have no step number in common: steps are compared in their order")
        n = min(len(real[0]), len(real[1]))
        renumber = dict(zip(real[1][:n].tolist(), real[0][:n].tolist(), strict=True))
        two = two.assign(step=[renumber.get(s, s) for s in two["step"].tolist()])
    one, two = (_with_thread(part, other) if by_thread else part.assign(thread=0)
                for part, other in ((one, None), (two, one)))  # fmt: skip
    parts = [part.sort_values("event_id", kind="stable") for part in (one, two)]
    rows = [part["at"].to_numpy(np.int64) for part in parts]
    groups = [part.groupby(["step", "thread"], sort=True).indices for part in parts]
    nothing = np.empty(0, dtype=np.int64)
    for key in sorted({*groups[0], *groups[1]}):
        yield rows[0][groups[0].get(key, nothing)], rows[1][groups[1].get(key, nothing)]


def _with_thread(part: pd.DataFrame, other: pd.DataFrame | None) -> pd.DataFrame:
    """Number threads; those of the second run get the number of the one that they have most elements in common with."""
    mine = part.sort_values("event_id")["tid"].unique().tolist()
    numbers = {tid: i for i, tid in enumerate(mine)}
    if other is not None:
        theirs = other.sort_values("event_id")["tid"].unique().tolist()
        pairs = _most_in_common(part, other) if max(len(mine), len(theirs)) <= _MAX_THREADS else []
        numbers, taken = {}, set()
        for tid, partner in [*pairs, *zip(mine, theirs, strict=False)]:
            if tid not in numbers and partner not in taken:
                numbers[tid] = theirs.index(partner)
                taken.add(partner)
        free = iter(range(len(theirs), len(theirs) + len(mine)))
        numbers |= {tid: next(free) for tid in mine if tid not in numbers}
    return part.assign(thread=part["tid"].map(numbers).astype(np.int64))


def _most_in_common(part: pd.DataFrame, other: pd.DataFrame) -> list[tuple[int, int]]:
    """Pairs of threads by how many elements they share, most first."""
    if not len(part) or not len(other):
        return []
    counts = [p.groupby(["tid", "key"]).size().unstack(fill_value=0) for p in (part, other)]
    shared = counts[0].columns.intersection(counts[1].columns)
    ours, theirs = (c[shared].to_numpy() for c in counts)
    scores = [(-int(np.minimum(ours[i], theirs[j]).sum()), i, j) for i in range(len(ours)) for j in range(len(theirs))]
    return [(counts[0].index[i], counts[1].index[j]) for score, i, j in sorted(scores) if score]


# -- results ----------------------------------------------------------------------------------------------------


def _rows(sides: tuple[Side, Side], base: Int64Array, compare: Int64Array) -> pd.DataFrame:
    one, two = (side.elements for side in sides)
    columns: dict[str, object] = {}
    for name in _SHOWN:
        there = np.append(two[name].to_numpy(dtype=object), "")[compare]
        columns[name] = np.where(compare == ABSENT, np.append(one[name].to_numpy(dtype=object), "")[base], there)
    values = {}
    for name in _EACH:
        for side, table, at in (("base", one, base), ("compare", two, compare)):
            column = table[name].astype("Int64")
            values[f"{side}_{name}"] = column.take(np.maximum(at, 0)).mask(at == ABSENT).array if len(column) else (
                pd.array([pd.NA] * len(at), dtype="Int64"))  # fmt: skip
    columns |= {"base_bytes": values.pop("base_bytes"), "compare_bytes": values.pop("compare_bytes")}
    frame = pd.DataFrame(columns)
    frame["diff_bytes"] = frame["compare_bytes"].fillna(0) - frame["base_bytes"].fillna(0)
    return pd.concat([frame, pd.DataFrame(values)], axis=1)


def _by_op(sides: tuple[Side, Side]) -> pd.DataFrame:
    """Sums of what elements change themselves: every byte once."""
    keys = list(_SHOWN)
    parts = []
    for prefix, side in zip(("base", "compare"), sides, strict=True):
        grouped = side.elements.groupby(keys, sort=False)
        sums = grouped[["own_bytes", "own_gross_bytes"]].sum()
        sums.columns = [f"{prefix}_bytes", f"{prefix}_gross_bytes"]
        parts.append(pd.concat([grouped.size().rename(f"n_{prefix}"), sums], axis=1))
    return _joined(parts, keys, ("bytes", "gross_bytes"))


def _by_stack(sides: tuple[Side, Side], a: MemoryProfile, b: MemoryProfile) -> pd.DataFrame:
    """Allocations by what surrounds them and by call stack."""
    stacks, mappings = merge_stacks([a.stacks, b.stacks])
    keys = [*_SHOWN, "stack"]
    parts = []
    for prefix, side, mapping in zip(("base", "compare"), sides, mappings, strict=True):
        table = side.allocations.assign(stack=mapping[side.allocations["stack_id"].to_numpy(np.int64)])
        grouped = table.groupby(keys, sort=False)["size_bytes"]
        parts.append(grouped.agg(**{f"n_{prefix}": "size", f"{prefix}_gross_bytes": "sum"}))
    frame = _joined(parts, keys, ("gross_bytes",))
    number = frame.pop("stack").to_numpy(np.int64)
    frame.insert(3, "site", np.append(stacks["site"].to_numpy(dtype=object), "")[number])
    frames = [*stacks["frames"], ()]
    frame["stack"] = ["\n".join(frames[i]) for i in number]
    return frame


def _joined(parts: list[pd.DataFrame], keys: list[str], measures: tuple[str, ...]) -> pd.DataFrame:
    one, two = (part.astype("Int64") for part in parts)  # nullable: exact where one side has nothing
    frame = one.join(two, how="outer").fillna(0).astype(np.int64).reset_index()
    for name in measures:
        frame[f"diff_{name}"] = frame[f"compare_{name}"] - frame[f"base_{name}"]
    order = np.lexsort([frame[key].to_numpy() for key in reversed(keys)] + [-frame[f"diff_{measures[-1]}"].abs()])
    return frame.iloc[order].reset_index(drop=True)


def _unseen(sides: tuple[Side, Side]) -> list[str]:
    notes = []
    for prefix, side in zip(("base", "compare"), sides, strict=True):
        outside = side.allocations.loc[side.allocations["name"] == "", "size_bytes"]
        if len(outside):
            notes.append(f"{prefix}: {len(outside)} allocations lie outside of all elements (by_stack, empty name)")
    if NONE in sides[0].elements["tid"].to_numpy() or NONE in sides[1].elements["tid"].to_numpy():
        notes.append("some rows name no thread: these are taken as one")
    return notes
