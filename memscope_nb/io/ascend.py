"""Ascend PyTorch Profiler collections: finding them and telling whose they are (spec/ascend_profiler 1).

A folder is a collection by what it contains, whatever its name. Broken settings cost only the facts they would give.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .ascend_db import Identity, read_identity
from .ascend_files import CANN_FOLDER, cann_files

OUTPUT = "ASCEND_PROFILER_OUTPUT"
TEXT_FILES = ("operator_memory.csv", "memory_record.csv")
SIDE_FILES = ("npu_module_mem.csv", "trace_view.json", "trace_view.json.gz")
_SUFFIX = re.compile(r"_ascend_(pt|ms)$")
_STAMP = re.compile(r"\d{14}|\d{17}")
_INFO = re.compile(r"profiler_info(?:_(\d+))?\.json")
_DATABASE = re.compile(r"ascend_pytorch_profiler(?:_(\d+))?\.db")
_CANN_DATABASE = re.compile(r"msprof_\w+\.db")


@dataclass(frozen=True)
class Collection:
    """One ``*_ascend_pt`` folder: where it is and whose it is, from names and settings only."""

    path: Path
    run: str
    role: str
    rank_id: int | None
    host: str | None
    pid: int | None
    stamp: str | None
    output: Path | None
    """Folder with the analysed files, ``None`` before analysis."""
    info: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    chosen: Path | None = None
    """The file that was asked for by name, if one was: its export is read, whatever else there is."""

    @property
    def text_files(self) -> tuple[Path, ...]:
        """Files of the text export; without one about memory there is none."""
        if self.output is None or not _has_text(self.output) or (self.chosen and self.chosen.suffix == ".db"):
            return ()
        files = (self.output / name for name in (*TEXT_FILES, *SIDE_FILES))
        return tuple(file for file in files if file.is_file())

    @property
    def database(self) -> Path | None:
        """The database to read: of the framework, with a rank in its name if there are several, else of CANN alone."""
        if self.chosen is not None and (self.chosen.suffix == ".db" or self.chosen.name in TEXT_FILES):
            return self.chosen if self.chosen.suffix == ".db" else None
        return next(iter((*_databases(self.output), *_databases(self.path), *self._cann_databases)), None)

    @property
    def is_cann_only(self) -> bool:
        """Whether the database is one that CANN wrote without the framework."""
        return self.database is not None and _CANN_DATABASE.fullmatch(self.database.name) is not None

    @property
    def cann_files(self) -> tuple[Path, ...]:
        """Text that CANN exported itself; the fallback where the framework's export is missing."""
        folders = [self.path, self.path / CANN_FOLDER]
        folders += [child / CANN_FOLDER for child in sorted(_children(self.path)) if child.name.startswith("PROF_")]
        return next(filter(None, map(cann_files, folders)), ())

    @property
    def input_files(self) -> tuple[Path, ...]:
        """Every file with data that a load may read."""
        return (*self.text_files, *([self.database] if self.database else [])) or self.cann_files

    @property
    def input_sizes(self) -> dict[str, int]:
        """Size of every file that a load may read, by name."""
        return {file.name: file.stat().st_size for file in self.input_files}

    @property
    def n_bytes(self) -> int:
        """Size of the files of one export; of the database where both are there."""
        sizes = self.input_sizes
        return sizes[self.database.name] if self.database else sum(sizes.values())

    @property
    def problem(self) -> str:
        """What stops a load of this collection, as far as names and settings tell; empty if nothing does."""
        return "" if self.input_files else self.problem_of_export

    @property
    def problem_of_export(self) -> str:
        """Why there may be no memory of the framework."""
        if self.output is None:
            return f"not analysed yet (no {OUTPUT}); run torch_npu.profiler.profiler.analyse(path) where CANN is"
        off = self.facts.get("profile_memory") is False
        return f"neither {' nor '.join(TEXT_FILES)} nor a database: " + (
            "recorded with profile_memory=False" if off else "was it recorded with profile_memory=True?"
        )

    @property
    def _cann_databases(self) -> list[Path]:
        """Databases of CANN alone, the newest by name first."""
        folders = [self.path, *sorted(path for path in _children(self.path) if path.name.startswith("PROF_"))]
        found = [f for folder in folders for f in _children(folder) if _CANN_DATABASE.fullmatch(f.name) and f.is_file()]
        return sorted(found, reverse=True)

    @property
    def facts(self) -> dict[str, Any]:
        """Settings of the recorder that explain what is there and what is not (spec 1.4)."""
        config = self.info.get("config")
        common = _dict(_dict(config).get("common_config"))
        experimental = _dict(_dict(config).get("experimental_config"))
        facts = {
            "with_stack": common.get("with_stack"),
            "profile_memory": common.get("profile_memory"),
            "level": experimental.get("_profiler_level"),
            "torch_npu_version": self.info.get("torch_npu_version"),
            "cann_version": self.info.get("cann_version"),
            "collection_end_ns": _dict(self.info.get("end_info")).get("collectionTimeEnd"),
        }
        return {key: value for key, value in facts.items() if value is not None}


def is_collection(path: Path) -> bool:
    """Whether a folder is one collection, by its content."""
    if path.name.endswith("_op_arg") or path.name == OUTPUT:
        return False
    names = [child.name for child in _children(path)]
    if any(n in TEXT_FILES or _DATABASE.fullmatch(n) or _CANN_DATABASE.fullmatch(n) for n in names):
        return True
    if cann_files(path) or cann_files(path / CANN_FOLDER):
        return True
    if path.name.startswith("PROF_"):
        return False
    if any(n in (OUTPUT, "FRAMEWORK") or _INFO.fullmatch(n) for n in names):
        return True
    # Raw device data without the framework's files: not analysed yet, or, when CANN has exported a database of each
    # device, a folder of collections.
    raw = [path / n for n in names if n.startswith("PROF_")]
    return bool(raw) and not any(is_collection(folder) for folder in raw)


def find_collections(root: Path, *, run: str) -> Iterator[Collection]:
    """Yield the collections at or below a folder (or of a file inside one), in order of their paths.

    Parameters
    ----------
    root : Path
        A tree, a role's folder, one collection whatever its name, its output folder, or a file in there: then only the
        export that this file belongs to is read.
    run : str
        Label of this path among the paths given to ``load``.
    """
    given = root.resolve()
    root = given.parent if given.is_file() else given
    root = root.parent if root.name == OUTPUT else root
    if given.is_file() and (given.suffix == ".db" or given.name in TEXT_FILES):
        yield describe_collection(root, run=run, chosen=given)
        return
    if is_collection(root):
        yield from _described(root, run)
        return
    for folder, subfolders, _ in os.walk(root):
        subfolders.sort()
        for name in list(subfolders):
            path = Path(folder, name)
            if is_collection(path):
                yield from _described(path, run)
            elif not name.endswith("_op_arg"):
                continue
            subfolders.remove(name)


def _described(path: Path, run: str) -> Iterator[Collection]:
    """Yield the collection of a folder, or one for each rank where somebody gathered the databases of several."""
    files = (*_databases(path / OUTPUT), *_databases(path))
    gathered = [file for file in files if _database_rank(file) is not None]
    if len(gathered) < 2:
        yield describe_collection(path, run=run)
    else:
        for file in gathered:
            yield describe_collection(path, run=run, chosen=file)


def describe_collection(path: Path, *, run: str, chosen: Path | None = None) -> Collection:
    """Read names and settings of a collection; nothing here can fail for want of a file."""
    notes: list[str] = []
    info_path, info_rank = _find_info(path)
    info = _read_json(info_path, notes) if info_path else {}
    if info_path is None:
        notes.append("no profiler_info*.json: settings unknown")
    metadata_path = path / "profiler_metadata.json"
    metadata = _read_json(metadata_path, notes) if metadata_path.is_file() else {}
    output = next((p for p in (path / OUTPUT, path) if p.is_dir() and (p.name == OUTPUT or _has_text(p))), None)
    host, pid, stamp = parse_folder_name("" if path.name.startswith("PROF_") else path.name)
    found = Collection(path, run, "", None, host, pid, stamp, output, info, tuple(notes), chosen)
    gathered = _database_rank(chosen) if chosen is not None else None
    rank = gathered if gathered is not None else _rank(info_rank, info, found.database)
    # The database is asked only for what names and settings do not tell: opening it costs.
    told = rank is not None and metadata_path.is_file()
    inside = Identity() if told or found.database is None else read_identity(found.database)
    role = metadata.get("role") or inside.role
    return replace(
        found,
        role=role if isinstance(role, str) and role else path.parent.name,
        rank_id=rank if rank is not None else inside.rank_id,
    )


def parse_folder_name(name: str) -> tuple[str | None, int | None, str | None]:
    """Split ``<host>_<pid>_<time>_ascend_pt`` from the right: host names hold underscores (spec 1.1)."""
    tokens = _SUFFIX.sub("", name).split("_")
    at = next((i for i in range(len(tokens) - 1, -1, -1) if _STAMP.fullmatch(tokens[i])), None)
    if at is None:
        return None, None, None
    has_pid = at > 0 and tokens[at - 1].isdecimal()
    host = "_".join(tokens[: at - 1 if has_pid else at])
    return host or None, int(tokens[at - 1]) if has_pid else None, tokens[at]


def _find_info(path: Path) -> tuple[Path | None, int | None]:
    """The settings file and the rank in its name; one with a rank is preferred."""
    found = sorted(
        ((match[1] is None, name, match[1]) for name in os.listdir(path) if (match := _INFO.fullmatch(name))),
    )
    if not found:
        return None, None
    _, name, rank = found[0]
    return path / name, None if rank is None else int(rank)


def _rank(from_name: int | None, info: dict[str, Any], database: Path | None) -> int | None:
    """Rank by the order of spec 1.6: file name, key (an int or a string), database name."""
    if from_name is not None:
        return from_name
    key = info.get("rank_id")
    if isinstance(key, int) or (isinstance(key, str) and key.isdecimal()):
        return int(key)
    return _database_rank(database) if database else None


def _database_rank(path: Path) -> int | None:
    match = _DATABASE.fullmatch(path.name)
    return int(match[1]) if match and match[1] else None


def _databases(folder: Path | None) -> list[Path]:
    """Databases of the framework in a folder, those with a rank in their name first."""
    found = [f for f in _children(folder) if _DATABASE.fullmatch(f.name) and f.is_file()] if folder else []
    return sorted(found, key=lambda file: (_database_rank(file) is None, _database_rank(file) or 0))


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry) for entry in os.scandir(folder))
    except OSError:
        return []


def _has_text(path: Path) -> bool:
    return any((path / name).is_file() for name in TEXT_FILES)


def _read_json(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return _dict(json.loads(path.read_text(encoding="utf-8-sig", errors="replace")))
    except (OSError, ValueError) as error:
        notes.append(f"{path.name}: unreadable, its settings are unknown ({error})")
        return {}


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
