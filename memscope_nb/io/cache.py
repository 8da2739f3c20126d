"""What was read once need not be parsed again: a folder of Arrow files for each source.

Arrow with LZ4, not Parquet: twice the disk, half the CPU to read, and categories survive in tables without rows.

The key covers the path, the size and time of every input file, and :data:`READER_VERSION`: a changed file or reader
makes a new entry. Entries appear by one rename, so that two processes never see half of one; a damaged entry is
read again from the source; a cache that cannot be written is not used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import feather

from ..stacks import stacks_frame

READER_VERSION = 2
"""To be raised whenever a reader gives other tables for the same files."""

CACHE_VARIABLE = "MEMSCOPE_CACHE"
_META = "meta.json"
_SUFFIX = ".arrow"


def cache_folder(cache: bool | str | os.PathLike[str] | None) -> Path | None:
    """Turn the option of ``load`` into a folder: a path, ``True`` (the user's cache), ``None`` (``MEMSCOPE_CACHE``)."""
    if cache is None:
        cache = os.environ.get(CACHE_VARIABLE) or False
    if cache is False:
        return None
    if cache is True:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "memscope-nb"
    return Path(cache)


def source_key(path: Path, files: Sequence[Path], *, reader: str) -> str:
    """Return the name of the entry of a source."""
    stats = [(str(file), (s := file.stat()).st_size, s.st_mtime_ns) for file in sorted(files)]
    text = json.dumps([READER_VERSION, pd.__version__, reader, str(path), stats])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def read_entry(folder: Path, key: str) -> tuple[dict[str, pd.DataFrame], dict[str, Any]] | None:
    """Return the tables and notes of an entry, or ``None`` if there is none that can be read."""
    entry = folder / key
    try:
        meta = json.loads((entry / _META).read_text(encoding="utf-8"))
        return {name: _read(entry / f"{name}{_SUFFIX}") for name in meta["tables"]}, meta["notes"]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None


def write_entry(folder: Path, key: str, tables: dict[str, pd.DataFrame], notes: dict[str, Any]) -> bool:
    """Store an entry; return whether it is there now."""
    temporary: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        for name, table in tables.items():
            arrow = pa.Table.from_pandas(table, preserve_index=False)
            feather.write_feather(arrow, temporary / f"{name}{_SUFFIX}", compression="lz4")
        (temporary / _META).write_text(json.dumps({"tables": list(tables), "notes": notes}), encoding="utf-8")
        if (folder / key).exists() and read_entry(folder, key) is None:
            shutil.rmtree(folder / key, ignore_errors=True)
        os.rename(temporary, folder / key)
    except OSError:
        return (folder / key / _META).exists()  # another process was first, or the folder cannot be written
    else:
        return True
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _read(path: Path) -> pd.DataFrame:
    # A mapped file could vanish below a table that lives on; threads cost more CPU here than they save time.
    table = feather.read_table(path, memory_map=False, use_threads=False).to_pandas(use_threads=False)
    if "frames" in table:
        return stacks_frame(tuple(frames) for frames in table["frames"])
    for name in table.columns[[isinstance(dtype, pd.StringDtype) for dtype in table.dtypes]]:
        table[name] = table[name].astype(object)
    return table
