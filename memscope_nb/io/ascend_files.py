"""Names of CANN's own export files."""

from __future__ import annotations

import re
from pathlib import Path

CANN_FOLDER = "mindstudio_profiler_output"
_CANN_FILE = re.compile(r"(operator_memory|memory_record|npu_module_mem)(_slice_\d+)?_\d+\.csv")


def cann_files(folder: Path) -> tuple[Path, ...]:
    """Return the CANN-level files of a folder, slices in order of their numbers; files without a byte are no files."""
    try:
        found = [path for path in folder.iterdir() if _CANN_FILE.fullmatch(path.name) and path.stat().st_size]
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]))
