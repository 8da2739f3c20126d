"""``load``: every source below the paths given, each read on its own, into one profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import MemoryProfile, is_open
from .ascend import Collection, find_collections
from .ascend_text import SourceTables, read_text_export
from .progress import Progress
from .report import OnBytes, ReadReport

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def load(
    paths: Paths,
    *,
    ranks: Literal["all"] | int | Iterable[int] = "all",
    roles: Literal["all"] | str | Iterable[str] = "all",
    progress: bool | None = None,
    strict: bool = False,
) -> MemoryProfile:
    """Read every profile below one or more paths.

    Parameters
    ----------
    paths : path or list of paths
        A tree, the folder of a role, one collection whatever its name, or a list of such. Each one is a *run*.
    ranks, roles : optional
        Read only these.
    progress : bool, optional
        Show a progress bar; by default only for large loads in a terminal or notebook.
    strict : bool
        Raise instead of returning a profile in which a source failed.

    Returns
    -------
    MemoryProfile
        A source that is broken, incomplete or not analysed yet is listed in ``sources`` with ``status`` ``failed`` or
        ``partial`` and its reasons in ``warnings``; it never stops the others.

    Raises
    ------
    InputError
        If a path does not exist, nothing is found, a filter matches nothing, or no source at all can be read.
    """
    collections = _filtered(discover(paths), ranks, roles)
    reads: list[_Read] = []
    with Progress(sum(c.n_bytes for c in collections), len(collections), show=progress) as bar:
        for number, collection in enumerate(collections):
            bar.start(number, f"{collection.role} rank {_rank_text(collection.rank_id)}")
            reads.append(read_collection(collection, on_bytes=bar.advance))
    failed = [read for read in reads if read.status == "failed"]
    if failed and (strict or len(failed) == len(reads)):
        lines = [f"  {read.collection.path}: {'; '.join(read.report.warnings)}" for read in failed[:20]]
        raise InputError(f"{len(failed)} of {len(reads)} sources cannot be read:\n" + "\n".join(lines))
    return assemble(reads)


def discover(paths: Paths) -> list[Collection]:
    """Find the collections below the paths, in order; raise :class:`InputError` if there is none."""
    roots = [Path(paths)] if isinstance(paths, (str, PathLike)) else [Path(path) for path in paths]
    found: dict[Path, Collection] = {}
    labels: dict[str, int] = {}
    for root in roots:
        if not root.exists():
            raise InputError(f"{fspath(root)}: no such file or folder")
        name = root.resolve().name or "run"
        count = labels[name] = labels.get(name, 0) + 1
        for collection in find_collections(root, run=name if count == 1 else f"{name} ({count})"):
            found.setdefault(collection.path, collection)
    if not found:
        where = ", ".join(fspath(root) for root in roots)
        raise InputError(
            f"{where}: no profile found. Expected folders such as host_pid_time_ascend_pt with "
            "ASCEND_PROFILER_OUTPUT inside, or a folder with operator_memory.csv"
        )
    return list(found.values())


@dataclass
class _Read:
    """One source after reading."""

    collection: Collection
    report: ReadReport
    tables: SourceTables | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return "failed" if self.tables is None else "partial" if self.report.partial else "ok"


def read_collection(collection: Collection, *, on_bytes: OnBytes) -> _Read:
    """Read one collection; whatever is wrong with it ends up in its report."""
    report = ReadReport()
    for note in collection.notes:
        report.note(note)
    read = _Read(collection, report)
    try:
        read.tables = _read_tables(collection, report, on_bytes)
    except InputError as error:
        report.notes.clear()
        report.note(str(error))
    except Exception as error:  # a fault of ours or of the file: this source is lost, the others are not
        report.note(f"reader failed: {type(error).__name__}: {error}")
    read.facts = collection.facts | report.facts
    return read


def _read_tables(collection: Collection, report: ReadReport, on_bytes: OnBytes) -> SourceTables:
    output = collection.output
    if output is None:
        raise InputError(
            "not analysed yet (no ASCEND_PROFILER_OUTPUT); run "
            "torch_npu.profiler.profiler.analyse(path, export_type='text') on the machine with CANN"
        )
    if not any((output / name).is_file() for name in ("operator_memory.csv", "memory_record.csv")):
        if collection.databases:
            raise InputError(
                f"only the database export is there ({collection.databases[0].name}); this version reads text: run "
                "torch_npu.profiler.profiler.analyse(path, export_type='text')"
            )
        off = collection.facts.get("profile_memory") is False
        raise InputError(
            "neither operator_memory.csv nor memory_record.csv: "
            + ("recorded with profile_memory=False" if off else "was it recorded with profile_memory=True?")
        )
    return read_text_export(output, report=report, on_bytes=on_bytes)


def _filtered(
    collections: list[Collection],
    ranks: Literal["all"] | int | Iterable[int],
    roles: Literal["all"] | str | Iterable[str],
) -> list[Collection]:
    kept = collections
    if ranks != "all":
        wanted_ranks = {ranks} if isinstance(ranks, int) else {int(rank) for rank in ranks}
        kept = [c for c in kept if c.rank_id in wanted_ranks]
    if roles != "all":
        wanted_roles = {roles} if isinstance(roles, str) else set(roles)
        kept = [c for c in kept if c.role in wanted_roles]
    if not kept:
        there = sorted({(c.role, _rank_text(c.rank_id)) for c in collections})
        raise InputError("nothing matches; there is: " + ", ".join(f"{role} rank {rank}" for role, rank in there))
    return kept


def _rank_text(rank: int | None) -> str:
    return "unknown" if rank is None else str(rank)


# -- one profile from many reads --------------------------------------------------------------------------------


def assemble(reads: Sequence[_Read]) -> MemoryProfile:
    """Join all tables; sources are numbered by run, rank and time, the collections of a role in time."""
    runs = list(dict.fromkeys(read.collection.run for read in reads))
    joined = MemoryProfile.concat([_profile(read) for read in sorted(reads, key=lambda r: _place(r, runs))])
    ordinal = joined.sources.groupby(["run", "role", "rank_id"], dropna=False, sort=False).cumcount()
    joined.sources["collection"] = ordinal.astype(np.int32)
    return joined


def _place(read: _Read, runs: Sequence[str]) -> tuple[int, float, float, str]:
    """Sort key; unknown ranks and failed sources come last."""
    rank, window = read.collection.rank_id, read.tables.window if read.tables else None
    start = window[0] if window else math.inf  # a Python int: comparing it with inf loses no digit
    return runs.index(read.collection.run), math.inf if rank is None else rank, start, str(read.collection.path)


def _profile(read: _Read) -> MemoryProfile:
    tables, collection, report = read.tables, read.collection, read.report
    window = tables.window if tables else None
    row = {
        "source": np.int32(0),
        "run": collection.run,
        "host": collection.host,
        "pid": collection.pid if collection.pid is not None else (tables.pid if tables else None),
        "role": collection.role,
        "rank_id": collection.rank_id,
        "collection": np.int32(0),
        "path": str(collection.path),
        "kind": "ascend_text",
        "start_ns": window[0] if window else None,
        "end_ns": window[1] if window else None,
        "n_blocks": len(tables.blocks) if tables else 0,
        "n_open": int(is_open(tables.blocks).sum()) if tables else 0,
        "n_skipped": report.n_skipped,
        "n_repaired": report.n_repaired,
        "status": read.status,
        "warnings": report.warnings,
        "facts": read.facts,
    }
    nullable = ("pid", "rank_id", "start_ns", "end_ns")
    sources = pd.DataFrame(
        {k: pd.array([v], dtype="Int64") if k in nullable else pd.Series([v]) for k, v in row.items()}
    )
    if tables is None:
        return MemoryProfile(sources)
    with_source = [t.assign(source=np.int32(0)) for t in (tables.blocks, tables.totals, tables.marks, tables.ops)]
    blocks, totals, marks, ops = with_source
    blocks = blocks.assign(block_id=np.arange(len(blocks), dtype=np.int64))
    return MemoryProfile(sources, blocks, _in_order(totals), _in_order(marks), _in_order(ops), tables.stacks)


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    return table[["source", *(name for name in table.columns if name != "source")]]
