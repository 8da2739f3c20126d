"""``load``: every source below the paths given, each read on its own, into one profile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from os import PathLike
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from ..errors import InputError
from ..model import MemoryProfile, is_open
from .ascend import Collection
from .cache import cache_folder
from .discover import Paths, discover
from .heap import give_back
from .parallel import read_each, reads_in_workers
from .progress import Progress
from .pytorch_repeats import mark_repeats
from .report import sound_text
from .source import SourceRead, read_sources
from .trace_view import TraceReader

All: TypeAlias = Literal["all"]


def load(
    paths: Paths,
    *,
    ranks: All | int | Iterable[int] = "all",
    roles: All | str | Iterable[str] = "all",
    steps: All | int | Iterable[int] = "all",
    collections: All | int | Iterable[int] = "all",
    pools: All | str | Iterable[str] = "all",
    time_range: tuple[int, int] | None = None,
    n_jobs: int = -1,
    reader: TraceReader = "auto",
    cache: bool | str | PathLike[str] | None = None,
    progress: bool | None = None,
    strict: bool = False,
    torch_names: str | Iterable[str] = (),
) -> MemoryProfile:
    """Read every profile below one or more paths.

    Parameters
    ----------
    paths : path or list of paths
        A tree, the folder of a role, one collection whatever its name, a msMemScope dump (a folder or a file, CSV or
        database), or a list of such. Each one is a *run*; each process of a dump is a source.
    ranks, roles : optional
        Read only these.
    steps, collections, pools, time_range : optional
        Keep only these, see :meth:`MemoryProfile.select`; blocks that overlap keep their true times.
    n_jobs : int
        Processes to read with, as in joblib: -1 for one a core (small loads stay in this process anyway). Under
        ``joblib.parallel_config("dask")`` or ``"ray"`` the sources are read there.
    reader : {"auto", "ijson"}
        ``ijson`` reads traces the slow and simple way: the reference that the fast one is tested against.
    cache : bool or path, optional
        Keep what was parsed in a folder of Arrow files, and reuse it while the files do not change: ``True`` for the
        user's cache folder, a path, or by default the variable ``MEMSCOPE_CACHE``.
    progress : bool, optional
        Show a progress bar; by default only for large loads in a terminal or notebook.
    strict : bool
        Raise instead of returning a profile in which a source failed.
    torch_names : str or strs, optional
        Regular expressions that tell from the path whose a snapshot or Kineto trace is, by groups called ``rank``,
        ``step``, ``pid``, ``host``, ``stamp`` or ``role``: ``"worker(?P<rank>[0-9]+)"``. They are searched before the
        known ones (verl, torchtitan, torch_npu, tensorboard).

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
    found = filter_collections(discover(paths, torch_names=torch_names), ranks, roles)
    reads = list(iter_reads(found, n_jobs=n_jobs, reader=reader, cache=cache, progress=progress))
    refuse_failures(reads, strict=strict)
    return assemble(reads).select(
        collection=None if collections == "all" else collections,
        step=None if steps == "all" else steps,
        pool=None if pools == "all" else pools,
        time_range=time_range,
    )


def iter_reads(
    found: Sequence[Collection],
    *,
    n_jobs: int = -1,
    reader: TraceReader = "auto",
    cache: bool | str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Iterator[SourceRead]:
    """Read collections one after the other, or side by side; yield their sources in the order of the collections."""
    sizes = [collection.n_bytes for collection in found]
    with Progress(sum(sizes), len(found), show=progress) as bar:
        in_workers = reads_in_workers(sizes, n_jobs=n_jobs)
        task = partial(read_sources, reader=reader, cache=cache_folder(cache))
        if not in_workers:  # a worker's progress is told when it is done
            task = partial(task, on_bytes=bar.advance)
        done = read_each(task, found, n_jobs=n_jobs if in_workers else 1)
        for number, (collection, size) in enumerate(zip(found, sizes, strict=True)):
            bar.start(number, f"{collection.role} rank {_rank_text(collection.rank_id)}")
            yield from next(done)
            if in_workers:
                bar.advance(size)


def refuse_failures(reads: Sequence[SourceRead], *, strict: bool) -> None:
    """Raise if no source could be read, or with ``strict`` if one could not."""
    failed = [read for read in reads if read.status == "failed"]
    if failed and (strict or len(failed) == len(reads)):
        lines = [f"  {read.collection.path}: {'; '.join(read.report.warnings)}" for read in failed[:20]]
        raise InputError(f"{len(failed)} of {len(reads)} sources cannot be read:\n" + "\n".join(lines))


def filter_collections(
    collections: list[Collection],
    ranks: All | int | Iterable[int],
    roles: All | str | Iterable[str],
) -> list[Collection]:
    """Keep the collections of some ranks and roles; raise :class:`InputError` if that leaves none."""
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


def assemble(reads: list[SourceRead]) -> MemoryProfile:
    """Join all tables; sources are numbered by run, rank and time, the collections of a role in time.

    The list is empty afterwards: tables are let go as they are joined.
    """
    runs = list(dict.fromkeys(read.collection.run for read in reads))
    left = sorted(reads, key=lambda r: _place(r, runs))[::-1]
    reads.clear()
    joined = MemoryProfile.concat(_profile(left.pop()) for _ in range(len(left)))
    give_back()
    joined.sources["collection"] = _collection_ordinals(joined.sources)
    return mark_repeats(joined)


def _collection_ordinals(sources: pd.DataFrame) -> pd.Series:
    """Count the recordings of a role and rank in time; the devices of one snapshot file are one recording."""
    keys = ["run", "role", "rank_id"]
    is_device = sources["kind"] == "pytorch_snapshot"
    again = sources.duplicated([*keys, "path"]) & is_device
    new = (~again).groupby([sources[key] for key in keys], dropna=False, sort=False).cumsum() - 1
    first = new.groupby([sources[key] for key in [*keys, "path"]], dropna=False, sort=False).transform("first")
    return new.where(~again, first).astype(np.int32)


def _place(read: SourceRead, runs: Sequence[str]) -> tuple[int, float, float, str]:
    """Sort key; unknown ranks and failed sources come last."""
    rank, window = read.collection.rank_id, read.tables.window if read.tables else None
    start = window[0] if window else math.inf  # a Python int: comparing it with inf loses no digit
    return runs.index(read.collection.run), math.inf if rank is None else rank, start, str(read.collection.path)


def _profile(read: SourceRead) -> MemoryProfile:
    tables, collection, report = read.tables, read.collection, read.report
    window = tables.window if tables else None
    unread = "ascend_db" if report.facts.get("export") == "database" else "ascend_text"
    row = {
        "source": np.int32(0),
        "run": collection.run,
        "host": collection.host or (tables.host if tables else None),
        "pid": collection.pid if collection.pid is not None else (tables.pid if tables else None),
        "role": collection.role,
        "rank_id": collection.rank_id,
        "collection": np.int32(0),
        "path": str(collection.path),
        "kind": tables.kind if tables else getattr(collection, "kind", unread),
        "start_ns": window[0] if window else None,
        "end_ns": window[1] if window else None,
        "n_blocks": len(tables.blocks) if tables else 0,
        "n_open": int(is_open(tables.blocks).sum()) if tables else 0,
        "n_skipped": report.n_skipped,
        "n_repaired": report.n_repaired,
        "status": read.status,
        "warnings": report.warnings,
        "facts": read.facts | _input_size(collection),
    }
    nullable = ("pid", "rank_id", "start_ns", "end_ns")
    sources = pd.DataFrame(
        {
            k: pd.array([v], dtype="Int64") if k in nullable else pd.Series([v if k == "facts" else sound_text(v)])
            for k, v in row.items()
        }
    )
    if tables is None:
        return MemoryProfile(sources)
    with_source = [t.assign(source=np.int32(0)) for t in (tables.blocks, tables.totals, tables.marks, tables.ops)]
    blocks, totals, marks, ops = with_source
    blocks = blocks.assign(block_id=np.arange(len(blocks), dtype=np.int64))
    return MemoryProfile(
        sources, blocks, _in_order(totals), _in_order(marks), _in_order(ops), stacks=tables.stacks, **tables.more
    )


def _input_size(collection: Collection) -> dict[str, int]:
    """Size of the files of a source, as a fact; none if they are gone by now."""
    try:
        return {"input_bytes": collection.n_bytes}
    except OSError:
        return {}


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    return table[["source", *(name for name in table.columns if name != "source")]]
