"""Reading sources side by side: joblib decides where, so that dask or ray take over by its configuration alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

SERIAL_BELOW_BYTES = 150 << 20
"""Starting worker processes takes about a second of imports: as long as reading so much."""


def reads_in_workers(n_bytes: Sequence[int], *, n_jobs: int) -> bool:
    """Whether items of these sizes are worth worker processes, or the caller has configured some."""
    if n_jobs == 1:
        return False
    heavy = len(n_bytes) > 1 and sum(n_bytes) >= SERIAL_BELOW_BYTES
    configured = "joblib" in sys.modules and type(_active_backend()).__name__ != "LokyBackend"  # joblib's own default
    return heavy or configured


def read_each(read: Callable[[Item], Outcome], items: Sequence[Item], *, n_jobs: int) -> Iterator[Outcome]:
    """Apply ``read`` to each item; yield the outcomes in the order of the items.

    Parameters
    ----------
    read : callable
        Picklable, and so is what it returns: columnar data only.
    items : sequence
        What to read.
    n_jobs : int
        As in joblib; 1 stays in this process.
    """
    if n_jobs == 1:
        yield from map(read, items)
        return
    import joblib

    # A backend that cannot stream its results (dask) gives them as a list.
    mode = "generator" if getattr(_active_backend(), "supports_return_generator", False) else "list"
    outcomes: Any = joblib.Parallel(n_jobs=n_jobs, return_as=mode)(joblib.delayed(read)(item) for item in items)
    try:
        yield from outcomes
    finally:
        if hasattr(outcomes, "close"):
            outcomes.close()  # an interrupted loop leaves no worker busy


def _active_backend() -> Any:
    from joblib.parallel import get_active_backend

    return get_active_backend()[0]
