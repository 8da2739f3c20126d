"""Finding every source below the paths given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path

from ..errors import InputError
from .ascend import Collection, find_collections
from .memscope_find import find_dumps, kind_of
from .pytorch_find import find_torch_files, is_named_snapshot, name_patterns, torch_kind

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def discover(paths: Paths, *, torch_names: str | Iterable[str] = ()) -> list[Collection]:
    """Find the collections below the paths, in order; raise :class:`InputError` if there is none.

    ``torch_names`` are patterns for the paths of PyTorch's files, see :func:`memscope_nb.load`.
    """
    names = name_patterns(torch_names)
    roots = [Path(paths)] if isinstance(paths, (str, PathLike)) else [Path(path) for path in paths]
    found: dict[tuple[Path, Path | None], Collection] = {}
    labels: dict[str, int] = {}
    for root in roots:
        if not root.exists():
            raise InputError(f"{fspath(root)}: no such file or folder")
        name = root.resolve().name or "run"
        count = labels[name] = labels.get(name, 0) + 1
        for collection in _below(root, names, name if count == 1 else f"{name} ({count})"):
            found.setdefault((collection.path, collection.database), collection)
    if not found:
        where = ", ".join(fspath(root) for root in roots)
        raise InputError(
            f"{where}: no profile found. Expected folders such as host_pid_time_ascend_pt with "
            "ASCEND_PROFILER_OUTPUT inside, a folder with operator_memory.csv or ascend_pytorch_profiler_0.db, or "
            "dumps of msMemScope (memscope_dump_*.csv or .db), PyTorch memory snapshots (*.pickle) or Kineto traces "
            "(*.pt.trace.json, .json.gz)"
        )
    return list(found.values())


def _below(root: Path, names: Sequence[str], run: str) -> Iterator[Collection]:
    """Collections, dumps, snapshots and traces at or below a path."""
    if root.is_file() and (torch_kind(root) or is_named_snapshot(root)):
        yield from find_torch_files(root, run=run, names=names)
        return
    if not (root.is_file() and kind_of(root)):
        collections = list(find_collections(root, run=run))
        yield from collections
        if root.is_file():
            return
    else:
        collections = []
    skip = {collection.path for collection in collections}
    yield from find_dumps(root, run=run, skip=skip)
    yield from find_torch_files(root, run=run, skip=skip, names=names)
