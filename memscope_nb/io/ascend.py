"""Ascend PyTorch Profiler collections: finding them and telling whose they are (spec/ascend_profiler 1).

A folder is a collection by what it contains, whatever its name. Broken settings cost only the facts they would give.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUTPUT = "ASCEND_PROFILER_OUTPUT"
TEXT_FILES = ("operator_memory.csv", "memory_record.csv")
_SUFFIX = re.compile(r"_ascend_(pt|ms)$")
_STAMP = re.compile(r"\d{14}|\d{17}")
_INFO = re.compile(r"profiler_info(?:_(\d+))?\.json")
_DATABASE = re.compile(r"ascend_pytorch_profiler(?:_(\d+))?\.db")


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

    @property
    def n_bytes(self) -> int:
        """Size of the text files that a load reads."""
        names = (*TEXT_FILES, "npu_module_mem.csv", "trace_view.json", "trace_view.json.gz")
        files = [self.output / name for name in names] if self.output else []
        return sum(file.stat().st_size for file in files if file.is_file())

    @property
    def databases(self) -> tuple[Path, ...]:
        """Database exports beside the text files."""
        there = sorted(self.output.iterdir()) if self.output else []
        return tuple(file for file in there if _DATABASE.fullmatch(file.name))

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
    if path.name.endswith("_op_arg") or path.name.startswith("PROF_") or path.name == OUTPUT:
        return False
    if any((path / name).is_file() for name in TEXT_FILES):
        return True
    try:
        names = [entry.name for entry in os.scandir(path)]
    except OSError:
        return False
    return any(n in (OUTPUT, "FRAMEWORK") or n.startswith("PROF_") or _INFO.fullmatch(n) for n in names)


def find_collections(root: Path, *, run: str) -> Iterator[Collection]:
    """Yield the collections at or below a folder (or of a file inside one), in order of their paths.

    Parameters
    ----------
    root : Path
        A tree, a role's folder, one collection whatever its name, its output folder, or a file in there.
    run : str
        Label of this path among the paths given to ``load``.
    """
    root = root.resolve()
    if root.is_file():
        root = root.parent
    if root.name == OUTPUT:
        root = root.parent
    if is_collection(root):
        yield describe_collection(root, run=run)
        return
    for folder, subfolders, _ in os.walk(root):
        subfolders.sort()
        for name in list(subfolders):
            path = Path(folder, name)
            if is_collection(path):
                yield describe_collection(path, run=run)
            elif not name.endswith("_op_arg"):
                continue
            subfolders.remove(name)


def describe_collection(path: Path, *, run: str) -> Collection:
    """Read names and settings of a collection; nothing here can fail for want of a file."""
    notes: list[str] = []
    info_path, info_rank = _find_info(path)
    info = _read_json(info_path, notes) if info_path else {}
    if info_path is None:
        notes.append("no profiler_info*.json: settings unknown")
    metadata_path = path / "profiler_metadata.json"
    metadata = _read_json(metadata_path, notes) if metadata_path.is_file() else {}
    output = next((p for p in (path / OUTPUT, path) if p.is_dir() and (p.name == OUTPUT or _has_text(p))), None)
    host, pid, stamp = parse_folder_name(path.name)
    role = metadata.get("role")
    return Collection(
        path=path,
        run=run,
        role=role if isinstance(role, str) and role else path.parent.name,
        rank_id=_rank(info_rank, info, output),
        host=host,
        pid=pid,
        stamp=stamp,
        output=output,
        info=info,
        notes=tuple(notes),
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


def _rank(from_name: int | None, info: dict[str, Any], output: Path | None) -> int | None:
    """Rank by the order of spec 1.6: file name, key (an int or a string), database name."""
    if from_name is not None:
        return from_name
    key = info.get("rank_id")
    if isinstance(key, int) or (isinstance(key, str) and key.isdecimal()):
        return int(key)
    names = sorted(os.listdir(output)) if output else []
    return next((int(m[1]) for n in names if (m := _DATABASE.fullmatch(n)) and m[1]), None)


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
