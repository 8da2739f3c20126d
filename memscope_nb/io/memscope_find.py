"""Finding msMemScope dumps by content: single files, folders of one process, whole trees (spec/msmemscope 1)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection as AnyCollection
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from .ascend import Collection
from .memscope_db import dump_table
from .memscope_rows import MAX_HEADER_BYTES, sniff_header

PROCESS_FOLDER = re.compile(r"(?:memscope|msmemscope|msleaks)_(\d+)_(\d{14})_ascend")
_DUMP_FILE = re.compile(r"(?:memscope|leaks)_dump_\d+")
_PLAIN_FOLDERS = re.compile(r"dump|device_\w+|(memscope|leaks)DumpResults|(?:ms)?(?:memscope|leaks)_\d+_\d+_ascend")
TRACE_HEADER = "funcinfo,starttime(ns),endtime(ns)"


@dataclass(frozen=True)
class DumpCollection(Collection):
    """The dump files of one process folder, or one file that stands alone (which may hold several processes)."""

    files: tuple[Path, ...] = ()

    @cached_property
    def trace_files(self) -> tuple[Path, ...]:
        """Python traces (CSV) of the same process folder, or beside the file."""
        folders = [self.path, *self.path.rglob("dump")] if self.path.is_dir() else [self.path.parent]
        found = {f for folder in folders for f in folder.glob("python_trace_*.csv") if _starts(f, TRACE_HEADER)}
        return tuple(sorted(found))

    @property
    def text_files(self) -> tuple[Path, ...]:
        """None: this is no Ascend profiler export."""
        return ()

    @property
    def database(self) -> Path | None:
        """None: this is no Ascend profiler export."""
        return None

    @property
    def input_sizes(self) -> dict[str, int]:
        """Size of every file that a load reads; by path, since names repeat from device to device."""
        return {str(file): file.stat().st_size for file in (*self.files, *self.trace_files)}

    @property
    def n_bytes(self) -> int:
        """Size of all files."""
        return sum(self.input_sizes.values())

    @property
    def kind(self) -> str:
        """Kind of the sources in it."""
        return f"memscope_{'db' if self.files[0].suffix.lower() == '.db' else 'csv'}"

    @property
    def problem(self) -> str:
        """Nothing is known before reading."""
        return ""

    @property
    def facts(self) -> dict[str, Any]:
        """Settings of the recorder, and the files that the ``file`` column of ``events`` counts."""
        return {"config": self.info, "files": [str(file) for file in self.files]} | recorder_facts(self.info)


def recorder_facts(config: dict[str, Any]) -> dict[str, Any]:
    """Turn the bit fields of ``config.json`` into words (spec 3.3): what the dump can hold at all."""
    facts: dict[str, Any] = {}
    bits = {
        "events": (
            "dumpEventType" if "dumpEventType" in config else "eventType",
            ("alloc", "free", "launch", "access"),
        ),
        "level": ("levelType", ("op", "kernel")),
        "analysis": ("analysisType", ("leaks", "decompose", "inefficient", "oom")),
    }
    for fact, (key, names) in bits.items():
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            facts[fact] = [name for bit, name in enumerate(names) if value >> bit & 1]
    return facts


def kind_of(path: Path) -> Literal["csv", "db"] | None:
    """Tell a dump by its content; ``None`` for any other file."""
    suffix = path.suffix.lower()
    if suffix == ".db":
        return "db" if dump_table(path) else None
    if suffix == ".csv":
        try:
            with path.open("rb") as file:
                return "csv" if sniff_header(file.read(MAX_HEADER_BYTES)) else None
        except OSError:
            return None
    return None


def _starts(path: Path, header: str) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(header) + 3).decode("utf-8-sig", "replace").lower().startswith(header)
    except OSError:
        return False


def find_dumps(root: Path, *, run: str, skip: AnyCollection[Path] = ()) -> Iterator[DumpCollection]:
    """Yield the dumps at or below a path, in order of their paths.

    Parameters
    ----------
    root : Path
        A dump file, a process folder or anything above it.
    run : str
        Label of this path among the paths given to ``load``.
    skip : collection of Path
        Folders that belong to something else and are not looked into.
    """
    root = root.resolve()
    if root.is_file():
        if kind_of(root):
            yield describe_dump(root, (root,), run=run, root=root)
        return
    groups: dict[Path, list[Path]] = {}
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if Path(folder, name) not in skip)
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix.lower() in (".csv", ".db") and path.is_file() and kind_of(path):
                owner = next((p for p in path.parents if PROCESS_FOLDER.fullmatch(p.name)), path)
                groups.setdefault(owner, []).append(path)
    for owner, files in sorted(groups.items()):
        yield describe_dump(owner, tuple(files), run=run, root=root)


def describe_dump(owner: Path, files: tuple[Path, ...], *, run: str, root: Path) -> DumpCollection:
    """Name a dump from its folders; nothing here can fail for want of a file."""
    notes: list[str] = []
    match = next((m for p in (owner, *owner.parents) if (m := PROCESS_FOLDER.fullmatch(p.name))), None)
    return DumpCollection(
        path=owner,
        run=run,
        role=_role(owner),
        rank_id=None,
        host=None,
        pid=int(match[1]) if match else None,
        stamp=match[2] if match else None,
        output=None,
        info=_config(files[0], notes),
        notes=tuple(notes),
        files=files,
    )


def _role(owner: Path) -> str:
    """Best name there is: of the file if people chose it, else of the nearest folder that the tool did not name."""
    if owner.suffix and not _DUMP_FILE.fullmatch(owner.stem):
        return owner.stem
    return next((p.name for p in owner.parents if p.name and not _PLAIN_FOLDERS.fullmatch(p.name)), owner.stem)


def _config(file: Path, notes: list[str]) -> dict[str, Any]:
    """Read the ``config.json`` of the nearest folder above a dump, at most three up (that of its process folder)."""
    for folder in list(file.parents)[:3]:
        path = folder / "config.json"
        if path.is_file() and path.stat().st_size < 1 << 20:
            try:
                config = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
            except (OSError, ValueError, RecursionError) as error:
                notes.append(f"{path.name}: unreadable, the settings are unknown ({error})")
                return {}
            # Other tools write files of this name, too.
            return config if isinstance(config, dict) and {"eventType", "dumpEventType"} & set(config) else {}
    return {}
