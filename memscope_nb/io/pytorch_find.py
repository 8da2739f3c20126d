r"""Finding PyTorch snapshots and Kineto traces by content, and naming them from their paths (spec/pytorch).

The files do not say whose they are. :data:`NAMES` lists patterns that are searched in every part of the path, from the
file outwards, with groups called ``rank``, ``step``, ``pid``, ``host``, ``stamp`` or ``role``. What comes first wins;
own patterns stand in front: ``load(path, torch_names=[r"worker(?P<rank>\d+)"])``.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Collection as AnyCollection
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import InputError
from .ascend import Collection

FileKind = Literal["pytorch_snapshot", "kineto"]

NAMES: list[str] = [
    r"oom_snapshot_(?P<pid>\d+)_(?P<stamp>\d{14})",
    r"^(?P<host>.+)_(?P<pid>\d+)\.(?P<stamp>\d{10,19})\.pt\.trace\.json",
    r"(?<![A-Za-z])(?:global_)?(?:step|iteration|iter)[_-]?(?P<step>\d+)(?!\d)",
    r"(?<![A-Za-z])rank[_-]?(?P<rank>\d+)(?!\d)",
    r"(?<![A-Za-z])pid[_-]?(?P<pid>\d+)(?!\d)",
]
"""verl's ``step3/torch_memory_rank0_pid123.pickle``, torchtitan's ``iteration_10/rank0_memory_snapshot.pickle``,
torch_npu's ``oom_snapshot_123_20260101120000.pickle``, tensorboard's ``host_123.1700000000000000000.pt.trace.json``."""

GROUPS = ("rank", "step", "pid", "host", "stamp", "role")
SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".json", ".json.gz")
HEAD_BYTES = 1 << 16

_NOT_OURS = ("trace_view.json", "trace_view.json.gz")
_NUMBER = re.compile(r"(\d+)")
_SEGMENT_KEYS = (b"device_traces", b"segments")
_OLD_KEYS = (b"total_size", b"segment_type", b"blocks")
_TRACE_KEYS = (b'"traceEvents"', b'"deviceProperties"', b'"baseTimeNanoseconds"')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\b')
_TIMELINE = re.compile(r"memory_timeline|memory-timeline", re.IGNORECASE)


@dataclass(frozen=True)
class TorchCollection(Collection):
    """One snapshot file (a source for each device in it) or one Kineto trace."""

    file_kind: FileKind = "pytorch_snapshot"
    step: int | None = None
    ordinal: int = 0
    """Position among the files of the same role and rank, by step and name."""

    @property
    def kind(self) -> str:
        """Kind of the sources in it."""
        return self.file_kind

    @property
    def text_files(self) -> tuple[Path, ...]:
        """None: this is no Ascend profiler export."""
        return ()

    @property
    def database(self) -> Path | None:
        """None: this is no Ascend profiler export."""
        return None

    @property
    def input_files(self) -> tuple[Path, ...]:
        """The file."""
        return (self.path,)

    @property
    def input_sizes(self) -> dict[str, int]:
        """Size of the file."""
        return {str(self.path): self.path.stat().st_size}

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    @property
    def problem(self) -> str:
        """Nothing is known before reading."""
        return ""

    @property
    def facts(self) -> dict[str, Any]:
        """What the path tells."""
        return {} if self.step is None else {"step": self.step}


def _head(path: Path) -> bytes:
    """First bytes of a file, decompressed; none if it cannot be read."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""


def _told_inside(path: Path) -> dict[str, str]:
    """Rank of a Kineto trace that says it (spec 2.1)."""
    match = _RANK.search(_head(path))
    return {"rank": match[1].decode()} if match else {}


def torch_kind(path: Path) -> FileKind | None:
    """Tell a snapshot or a Kineto trace by its first bytes; ``None`` for any other file."""
    if not path.name.lower().endswith(SUFFIXES) or path.name in _NOT_OURS:
        return None
    return _kind_of_head(_head(path), is_pickle=".json" not in path.name.lower())


def _kind_of_head(head: bytes, *, is_pickle: bool) -> FileKind | None:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] == b"\x80" or is_pickle:
        ours = any(key in head for key in _SEGMENT_KEYS) or all(key in head for key in _OLD_KEYS)
        return "pytorch_snapshot" if ours else None
    if text[:1] == b"{" and any(b'"' + key + b'"' in head for key in _SEGMENT_KEYS):
        return "pytorch_snapshot"
    if text[:1] == b"[" and all(key in head for key in _OLD_KEYS):
        return "pytorch_snapshot"
    if text[:1] == b"{" and any(key in head for key in _TRACE_KEYS):
        return "kineto"
    bare = text[:1] == b"[" and b'"ph"' in head and (b'"[memory]"' in head or b'"python_function"' in head)
    return "kineto" if bare else None


def name_patterns(own: str | Iterable[str]) -> list[str]:
    """Return own patterns before the known ones.

    Raises
    ------
    InputError
        If one is no regular expression, or has no group that means something.
    """
    patterns = [own] if isinstance(own, str) else list(own)
    for pattern in patterns:
        try:
            groups = set(re.compile(pattern).groupindex)
        except (re.error, TypeError) as error:
            raise InputError(f"torch_names: {pattern!r} is no regular expression: {error}") from None
        if not groups or groups - set(GROUPS):
            expected = ", ".join(f"(?P<{group}>…)" for group in GROUPS)
            raise InputError(f"torch_names: {pattern!r} must have named groups, of these: {expected}")
    return [*patterns, *NAMES]


def find_torch_files(
    root: Path, *, run: str, skip: AnyCollection[Path] = (), names: Sequence[str] | None = None
) -> Iterator[TorchCollection]:
    """Yield the snapshots and Kineto traces at or below a path, by role, rank, step and name.

    Parameters
    ----------
    root : Path
        A file or a folder. A file that is given by name and ends like a pickle is taken for a snapshot whatever is in
        it, so that the reader says what it is.
    run : str
        Label of this path among the paths given to ``load``.
    skip : collection of Path
        Folders that belong to something else and are not looked into.
    names : sequence of str, optional
        Patterns for the path instead of :data:`NAMES`.
    """
    root = root.resolve()
    found: list[tuple[Path, FileKind]] = []
    if root.is_file():
        kind = torch_kind(root) or ("pytorch_snapshot" if is_named_snapshot(root) else None)
        found += [(root, kind)] if kind else []
    for folder, subfolders, files in os.walk(root) if root.is_dir() else ():
        subfolders[:] = sorted(name for name in subfolders if Path(folder, name) not in skip)
        for name in files:
            path = Path(folder, name)
            if not _TIMELINE.search(name) and path.is_file() and (kind := torch_kind(path)):
                found.append((path, kind))
    described = [describe_file(path, kind, run=run, root=root, names=names or NAMES) for path, kind in found]
    counts: dict[tuple[str, int | None], int] = {}
    for one in sorted(described, key=_place):
        key = (one.role, one.rank_id)
        counts[key] = counts.get(key, -1) + 1
        yield TorchCollection(**(vars(one) | {"ordinal": counts[key]}))


def is_named_snapshot(path: Path) -> bool:
    """Whether a file is called like a pickle."""
    return path.name.lower().endswith(SUFFIXES[:4])


def _place(one: TorchCollection) -> tuple[Any, ...]:
    step = -1 if one.step is None else one.step
    numbers = [int(part) if part.isdecimal() else part for part in _NUMBER.split(one.path.name)]
    rank = -1 if one.rank_id is None else one.rank_id
    return one.role, rank, step, one.stamp or "", [str(type(n)) + str(n).zfill(20) for n in numbers], str(one.path)


def describe_file(path: Path, kind: FileKind, *, run: str, root: Path, names: Sequence[str]) -> TorchCollection:
    """Name a file from its path below (and including) the folder that was given."""
    inner = [path.name, *(p.name for p in path.parents if root == p or root in p.parents)]
    told: dict[str, str] = {}
    inside = _told_inside(path) if kind == "kineto" else {}
    for part in inner:
        for pattern in names:
            for key, value in _groups(pattern, part).items():
                told.setdefault(key, value)
    told |= inside  # what the writer says of itself beats a name
    return TorchCollection(
        path=path,
        run=run,
        role=told.get("role") or _role(path, root, inner, names),
        rank_id=int(told["rank"]) if told.get("rank", "").isdecimal() else None,
        host=told.get("host"),
        pid=int(told["pid"]) if told.get("pid", "").isdecimal() else None,
        stamp=told.get("stamp"),
        output=None,
        file_kind=kind,
        step=int(told["step"]) if told.get("step", "").isdecimal() else None,
    )


def _groups(pattern: str, part: str) -> dict[str, str]:
    match = re.search(pattern, part, re.IGNORECASE)
    return {key: value for key, value in match.groupdict().items() if value} if match else {}


def _role(path: Path, root: Path, inner: Sequence[str], names: Sequence[str]) -> str:
    """Nearest folder whose name says more than a step, a rank or a process; the folder given at the outermost."""
    for part in inner[1:]:
        if not any(_groups(pattern, part) for pattern in names):
            return part
    outside = root.parent if root.is_file() else root
    return outside.name or path.stem
