"""``scan``: what is below a path, from names, settings and sizes only; seconds for a tree of terabytes."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pandas as pd

from ..model import MemoryProfile
from ..units import format_bytes
from .ascend import Collection
from .discover import Paths, discover
from .loader import load
from .pytorch_find import TorchCollection
from .report import sound_text

RAM_PER_BYTE = {
    "operator_memory.csv": 0.6,
    "memory_record.csv": 0.33,
    "npu_module_mem.csv": 0.3,
    "trace_view.json": 0.05,
    "trace_view.json.gz": 0.6,
    ".csv": 1.2,
    ".db": 0.6,
    ".json": 0.15,
    ".pickle": 1.0,
    ".pkl": 1.0,
    ".gz": 2.0,
}
"""Bytes of loaded tables per byte of a file, by its name or its ending: an estimate.

The named files are calibrated on a generated rank of 300 MB (93 MB more resident after the load); the endings are those
of dumps and recordings: demo dumps gave 0.94 (CSV) and 0.90 (database), databases of Ascend 0.33, pickles 0.3 to 1.1.
"""
OTHER_RAM_PER_BYTE = 1.0


@dataclass(frozen=True)
class Catalog:
    """What there is: one row per source in ``frame``, nothing read but settings.

    Attributes
    ----------
    frame : pandas.DataFrame
        ``run role rank_id host pid path export n_bytes ram_bytes problem``; ``export``: text, db, both or none;
        of a recording of PyTorch the ending of its file.
    """

    frame: pd.DataFrame
    paths: Paths
    torch_names: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Bytes that a load would read."""
        return int(self.frame["n_bytes"].sum())

    @property
    def ram_bytes(self) -> int:
        """Estimate of the memory that the result of a load takes."""
        return int(self.frame["ram_bytes"].sum())

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.frame

    def load(self, **options: Any) -> MemoryProfile:
        """Read what was scanned; see :func:`memscope_nb.load` for the options."""
        return load(self.paths, **{"torch_names": self.torch_names, **options})

    def __repr__(self) -> str:
        frame = self.frame
        ranks = frame["rank_id"].nunique(dropna=True)
        problems = frame[frame["problem"] != ""]
        lines = [
            f"Catalog: {len(frame)} sources, {ranks} ranks, {format_bytes(self.n_bytes)} to read, "
            f"about {format_bytes(self.ram_bytes)} of RAM when loaded (estimate)"
        ]
        for (run, role), part in frame.groupby(["run", "role"], sort=False):
            known = part["rank_id"].dropna().astype(int)
            which = f"ranks {_ranges(sorted(set(known)))}" if len(known) else "no rank"
            lines.append(f"  {run} · {role}: {len(part)} sources, {which}, {format_bytes(int(part['n_bytes'].sum()))}")
        lines += [f"  problem: {row.path}: {row.problem}" for row in problems.head(12).itertuples()]
        return "\n".join(lines + ([f"  … and {len(problems) - 12} more problems"] if len(problems) > 12 else []))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def scan(paths: Paths, *, torch_names: str | Iterable[str] = ()) -> Catalog:
    """Describe what is below one or more paths without reading any data.

    Parameters
    ----------
    paths : path or list of paths
        As for :func:`memscope_nb.load`.
    torch_names : str or strs, optional
        Patterns for the paths of PyTorch's files, as for :func:`memscope_nb.load`.

    Raises
    ------
    InputError
        If a path does not exist or holds no profile.
    """
    names = (torch_names,) if isinstance(torch_names, str) else tuple(torch_names)
    rows = [_row(collection) for collection in discover(paths, torch_names=names)]
    rows = [{key: sound_text(value) for key, value in row.items()} for row in rows]
    frame = pd.DataFrame(rows).astype({"rank_id": "Int64", "pid": "Int64"})
    return Catalog(frame, paths, names)


def _row(collection: Collection) -> dict[str, object]:
    sizes = collection.input_sizes
    ram = sum(size * _ram_per_byte(name) for name, size in sizes.items())
    text = any(name.endswith(".csv") for name in sizes)
    database = any(name.endswith(".db") for name in sizes)
    other = collection.path.suffix.lower().lstrip(".") if isinstance(collection, TorchCollection) else "none"
    return {
        "run": collection.run,
        "role": collection.role,
        "rank_id": collection.rank_id,
        "host": collection.host,
        "pid": collection.pid,
        "path": str(collection.path),
        "export": {(True, True): "both", (True, False): "text", (False, True): "db"}.get((text, database), other),
        "n_bytes": sum(sizes.values()),
        "ram_bytes": int(ram),
        "problem": collection.problem,
    }


def _ram_per_byte(name: str) -> float:
    ending = RAM_PER_BYTE.get(PurePath(name).suffix.lower(), OTHER_RAM_PER_BYTE)
    return RAM_PER_BYTE.get(name, ending)


def _ranges(numbers: list[int]) -> str:
    """Write ``[0, 1, 2, 5]`` as ``0-2, 5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
