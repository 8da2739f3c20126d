"""The comparison as ``memory_compare_*.csv``, the file that the original tool writes (spec/msmemscope 7.5)."""

from __future__ import annotations

import csv
import io
import os
import re
from datetime import datetime
from pathlib import Path

import pandas as pd

from ..analysis.align import OpComparison
from ..errors import InputError
from .files import OutputFolder

HEADER = (
    ",,,Base,Compare\n"
    "Event,Name,Device Id,Allocated Memory(byte),Allocated Memory(byte),Diff Memory(byte)\n"
)  # fmt: skip
_FORMULA = tuple("=+-@\t\r")
_STAMP = re.compile("[0-9]{14}")


def compare_csv(result: OpComparison) -> str:
    """Return a comparison as the text of a ``memory_compare_*.csv``.

    With ``compat="msmemscope"`` byte by byte what the original tool writes: nothing is quoted, so that a comma in a
    name breaks its row. Otherwise names are quoted where needed,
    and one that a spreadsheet would run as a formula gets an apostrophe before it.
    """
    frame = result.frame
    texts = {name: _numbers(frame[name]) for name in ("base_bytes", "compare_bytes", "diff_bytes")}
    devices = frame["device"].astype(str).str.removeprefix("NPU:")
    rows = zip(frame["event"].astype(str), frame["name"].astype(str), devices, *texts.values(), strict=True)
    if result.compat:
        return HEADER + "".join(",".join(row) + "\n" for row in rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([event, _harmless(name), _harmless(device), *sizes] for event, name, device, *sizes in rows)
    return HEADER + out.getvalue()


def write_compare_csv(result: OpComparison, folder: str | os.PathLike[str], *, stamp: str | None = None) -> Path | None:
    """Write ``memory_compare_{stamp}.csv`` into a folder, which is made where needed; no other file is touched.

    Parameters
    ----------
    result : OpComparison
        What to write.
    folder : path
        Where to.
    stamp : str, optional
        14 digits; the local time now if not given.

    Returns
    -------
    Path or None
        The file. None, and no file, where the original tool writes none: nothing could be compared.

    Raises
    ------
    InputError
        If the stamp is not 14 digits or the file is there already.
    """
    if result.compat and not len(result.frame):
        return None
    stamp = datetime.now().strftime("%Y%m%d%H%M%S") if stamp is None else stamp
    if not _STAMP.fullmatch(stamp):
        raise InputError(f"the stamp {stamp!r} is not 14 digits, such as 20251203101500")
    name = f"memory_compare_{stamp}.csv"
    if (Path(folder) / name).exists():
        raise InputError(f"{Path(folder) / name} is there already; choose another folder or stamp")
    return OutputFolder(folder, force=True).write(name, compare_csv(result))


def _numbers(values: pd.Series) -> list[str]:
    return ["N/A" if value is pd.NA else str(value) for value in values]


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
