"""Writing into a folder that was asked for, and nowhere else: safe names, atomic files, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from ..errors import InputError

MANIFEST = "memscope-export.json"
MAX_NAME = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def safe_name(text: str) -> str:
    """Turn any text into one harmless path component."""
    name = _UNSAFE.sub("_", text).lstrip(".-").rstrip(".")[:MAX_NAME]
    return f"_{name}" if not name or _RESERVED.fullmatch(name) else name


class UniqueNames:
    """Hands out safe names, each only once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, text: str) -> str:
        """Return a safe name for ``text`` that was not handed out before (letter case does not distinguish)."""
        base = safe_name(text)
        name, count = base, 1
        while name.lower() in self._taken:
            count += 1
            name = f"{base}-{count}"
        self._taken.add(name.lower())
        return name


class OutputFolder:
    """A folder of generated files: each appears whole or not at all, files of an earlier export that are stale go.

    Parameters
    ----------
    path : path
        Created when needed.
    force : bool
        Write even into a folder that holds files of others; those are never touched, except where names coincide.

    Raises
    ------
    InputError
        If the folder holds something that is not an earlier export, and ``force`` is not set.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        self.path = Path(path)
        self._before = self._read_manifest()
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; give a folder")
        if not force and self._before is None and self.path.is_dir() and any(self.path.iterdir()):
            raise InputError(f"{self.path} is not empty and no earlier export; choose another folder or pass force")
        self.path.mkdir(parents=True, exist_ok=True)
        self._written: list[str] = []

    def write(self, name: str, data: str | bytes) -> Path:
        """Write one file; ``name`` is relative, made of safe components."""
        target = self.path / name
        if not target.resolve().is_relative_to(self.path.resolve()):
            raise InputError(f"{name!r} would lie outside {self.path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        handle, temporary = tempfile.mkstemp(prefix=".memscope-", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(raw)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._written.append(name)
        return target

    def finish(self) -> None:
        """Remove what an earlier export left and this one did not write again, and note what is there now."""
        for name in set(self._before or ()) - set(self._written):
            stale = self.path / name
            if stale.resolve().is_relative_to(self.path.resolve()) and stale.is_file():
                stale.unlink()
                self._prune(stale.parent)
        files = sorted(set(self._written))
        self.write(MANIFEST, json.dumps({"generator": "memscope-nb", "files": files}, indent=1))

    def _prune(self, folder: Path) -> None:
        while folder != self.path and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def _read_manifest(self) -> list[str] | None:
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        files = manifest.get("files") if isinstance(manifest, dict) else None
        return [name for name in files if isinstance(name, str)] if isinstance(files, list) else None


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
