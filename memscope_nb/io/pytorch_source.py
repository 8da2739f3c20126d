"""One file of PyTorch, whatever it is, to its sources."""

from __future__ import annotations

from dataclasses import dataclass

from .ascend_tables import SourceTables
from .kineto import read_kineto
from .pytorch_find import TorchCollection
from .pytorch_snapshot import read_snapshot
from .report import OnBytes, ReadReport, ignore_bytes


@dataclass(frozen=True)
class TorchRead:
    """One source: its tables, ``None`` if they could not be built, and what there is to say."""

    pid: int | None
    tables: SourceTables | None
    report: ReadReport


def read_torch(collection: TorchCollection, *, report: ReadReport, on_bytes: OnBytes = ignore_bytes) -> list[TorchRead]:
    """Read a snapshot (a source for each device) or a Kineto trace (one source).

    Raises
    ------
    InputError
        If nothing in the file can be used.
    """
    if collection.file_kind == "kineto":
        tables = read_kineto(collection.path, report=report, on_bytes=on_bytes)
        return [TorchRead(collection.pid if collection.pid is not None else tables.pid, tables, report)]
    reads = read_snapshot(collection, report=report, on_bytes=on_bytes)
    return [TorchRead(collection.pid, one.tables, one.report) for one in reads]
