"""A folder for the output of a demo, which appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta, timezone
from pathlib import Path

from memscope_nb.errors import InputError

LOCAL_TIME = timezone(timedelta(hours=8))


@contextmanager
def new_folder(out_dir: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a folder to build in; what is in it at the end appears in ``out_dir``.

    Parameters
    ----------
    out_dir : path
        A folder that does not exist yet or is empty.

    Raises
    ------
    InputError
        When ``out_dir`` is a file or a folder with something in it.
    """
    target = Path(out_dir).absolute()
    exists = target.exists()
    if exists and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"{target}: expected a new or empty folder; choose another one or empty it first")
    # An empty folder may be a mount point: it stays, and what it gets is built inside it.
    partial = (target if exists else target.parent) / f".{target.name}.{os.getpid()}.partial"
    partial.mkdir(parents=True)
    try:
        yield partial
        if exists:
            for child in list(partial.iterdir()):
                child.rename(target / child.name)
        else:
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
