"""A progress bar over sources and bytes, silent on small loads and where nobody looks."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

SHOW_FROM_BYTES = 64 << 20


class Progress:
    """Bytes read so far, and which source is being read; a tqdm bar in a terminal or a notebook.

    Parameters
    ----------
    total_bytes : int
        What there is to read.
    n_sources : int
        Number of sources.
    show : bool or None
        ``None``: show from 64 MiB on, if standard error is a terminal or a notebook listens.
    """

    def __init__(self, total_bytes: int, n_sources: int, *, show: bool | None = None) -> None:
        self._n_sources = n_sources
        self._bar: Any = None
        if show is None:
            show = total_bytes >= SHOW_FROM_BYTES and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        if show:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total_bytes, unit="B", unit_scale=True, unit_divisor=1024, leave=False)

    def start(self, number: int, label: str) -> None:
        """Name the source that is read next."""
        if self._bar is not None:
            self._bar.set_description(f"{number + 1}/{self._n_sources} {label}", refresh=True)

    def advance(self, n_bytes: int) -> None:
        """Count bytes."""
        if self._bar is not None:
            self._bar.update(n_bytes)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
