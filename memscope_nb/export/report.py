"""The main job: from paths to pages, rank by rank, so that any number of ranks fits in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from ..errors import InputError
from ..io.ascend import Collection
from ..io.discover import Paths, discover
from ..io.loader import assemble, filter_collections, iter_reads, refuse_failures
from ..io.source import SourceRead
from ..io.trace_view import TraceReader
from ..model import MemoryProfile
from .digest import SourceDigest
from .files import OutputFolder
from .pages import PageOptions, PageWriter
from .redact import Redactor

BATCH_BYTES = 4 << 30
"""Input bytes that are read before their pages are written; at least one rank."""


@dataclass(frozen=True)
class Report:
    """What was written."""

    index: Path
    sources: tuple[SourceDigest, ...]
    """Every source as it is, also where the pages are redacted."""


def write_report(
    paths: Paths,
    out_dir: str | os.PathLike[str],
    *,
    ranks: Literal["all"] | int | Iterable[int] = "all",
    roles: Literal["all"] | str | Iterable[str] = "all",
    options: PageOptions | None = None,
    n_jobs: int = -1,
    reader: TraceReader = "auto",
    cache: bool | str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    strict: bool = False,
    force: bool = False,
    torch_names: str | Iterable[str] = (),
) -> Report:
    """Read profiles and write their pages, a few ranks at a time; only summaries are kept.

    Parameters
    ----------
    paths : path or list of paths
        As for :func:`memscope_nb.load`, like the options of the same names.
    out_dir : path
        Folder for the pages.
    options : PageOptions, optional
        How pages are cut and packed.
    strict : bool
        Fail, before anything is written, if a source is known to be unreadable, and after it if one turns out to be.
    force : bool
        Write into a folder that holds other files.

    Raises
    ------
    InputError
        As :func:`memscope_nb.load`; with ``strict`` also if one source cannot be read.
    """
    found = filter_collections(discover(paths, torch_names=torch_names), ranks, roles)
    writer: PageWriter | None = None
    lines: list[SourceDigest] = []
    alone = len({_rank_key(collection) for collection in found}) == 1
    reading = Reading(n_jobs=n_jobs, reader=reader, cache=cache, progress=progress, strict=strict)
    for profile in profiles_by_rank(found, reading):
        if writer is None:  # not before something was read
            writer = PageWriter(OutputFolder(out_dir, force=force), options or PageOptions())
            learn_sources(writer.redactor, found)
        lines += SourceDigest.of(profile)
        writer.add(profile, alone=alone)
        del profile  # what is written is let go
    if writer is None or not writer.timelines:
        refuse_failed(lines)
        raise InputError("nothing to show: no source has blocks or recorded totals")
    return Report(writer.finish(), tuple(lines))


@dataclass(frozen=True)
class Reading:
    """How to read; see :func:`memscope_nb.load`."""

    n_jobs: int = -1
    reader: TraceReader = "auto"
    cache: bool | str | os.PathLike[str] | None = None
    progress: bool | None = None
    strict: bool = False


def profiles_by_rank(found: Sequence[Collection], how: Reading) -> Iterator[MemoryProfile]:
    """Yield the profile of one rank after the other, keeping none; as many as are worth it are read at once.

    Raises
    ------
    InputError
        With ``strict``, if a source cannot be read.
    """
    groups = [list(group) for _, group in groupby(sorted(found, key=_rank_key), key=_rank_key)]
    for batch in _batches(groups):
        flat = [collection for group in batch for collection in group]
        read = iter_reads(flat, n_jobs=how.n_jobs, reader=how.reader, cache=how.cache, progress=how.progress)
        reads = list(read)
        if how.strict:
            refuse_failures(reads, strict=True)
        while reads:
            yield assemble(_next_rank(reads))


def learn_sources(redactor: Redactor | None, found: Sequence[Collection]) -> None:
    """Let the redactor know the hosts and paths of all ranks before the first one is redacted."""
    if redactor is not None:
        for collection in found:
            redactor.learn_source(str(collection.path), collection.host)


def refuse_failed(sources: Sequence[SourceDigest]) -> None:
    """Raise if sources failed, and say why: for callers that found nothing in the others."""
    failed = [source for source in sources if source.status == "failed"]
    if failed:
        lines = [f"  {source.path}: {'; '.join(source.warnings)}" for source in failed[:20]]
        raise InputError(f"{len(failed)} of {len(sources)} sources cannot be read:\n" + "\n".join(lines))


def _next_rank(reads: list[SourceRead]) -> list[SourceRead]:
    """Take the first reads that are of one rank out of the list."""
    key = _rank_key(reads[0].collection)
    count = next((i for i, read in enumerate(reads) if _rank_key(read.collection) != key), len(reads))
    taken = reads[:count]
    del reads[:count]
    return taken


def _rank_key(collection: Collection) -> tuple[str, bool, int]:
    return collection.run, collection.rank_id is None, collection.rank_id or 0


def _batches(groups: Sequence[list[Collection]]) -> Iterator[list[list[Collection]]]:
    """Put ranks together until they are worth reading at once."""
    batch: list[list[Collection]] = []
    n_bytes = 0
    for group in groups:
        size = sum(collection.n_bytes for collection in group)
        if batch and n_bytes + size > BATCH_BYTES:
            yield batch
            batch, n_bytes = [], 0
        batch.append(group)
        n_bytes += size
    if batch:
        yield batch
