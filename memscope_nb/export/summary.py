"""``triage``: what a profile shows, in about thirty lines of Markdown for an issue report, or as JSON.

Nothing in it tells who, where or on which host; every name is shown as code, in which nothing acts.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd

from .._version import __version__
from ..analysis.timeline import timelines
from ..errors import InputError
from ..io.discover import Paths, discover
from ..io.loader import filter_collections
from ..model import MemoryProfile
from .digest import SourceDigest, TimelineDigest, digest_timeline
from .redact import Redactor
from .report import Reading, learn_sources, profiles_by_rank, refuse_failed
from .triage_text import triage_lines


@dataclass(frozen=True)
class Triage:
    """A profile in a few lines: every timeline and every source, summed up.

    Attributes
    ----------
    timelines : tuple of TimelineDigest
        Ledgers, sites at the peak, open blocks, growth, checks.
    sources : tuple of SourceDigest
        What was read, broken sources included.
    """

    timelines: tuple[TimelineDigest, ...]
    sources: tuple[SourceDigest, ...]

    def to_markdown(self) -> str:
        """Return at most 40 lines of Markdown; the timeline with the highest *allocated* stands for all."""
        return "\n".join(triage_lines(self.timelines, self.sources)) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        lines = [asdict(one) for one in self.timelines]
        for line in lines:
            del line["spark"], line["pages"]
        return {"versions": versions(), "sources": [asdict(one) for one in self.sources], "timelines": lines}

    def __str__(self) -> str:
        return self.to_markdown()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


def versions() -> dict[str, str]:
    """Return what this runs on."""
    return {"memscope_nb": __version__, "pandas": pd.__version__, "python": platform.python_version()}


def triage(
    what: MemoryProfile | Paths,
    *,
    redact: bool = True,
    hide: Iterable[str] = (),
    ranks: Literal["all"] | int | Iterable[int] = "all",
    roles: Literal["all"] | str | Iterable[str] = "all",
    n_jobs: int = -1,
    cache: bool | str | os.PathLike[str] | None = None,
    strict: bool = False,
    torch_names: str | Iterable[str] = (),
) -> Triage:
    """Sum up a profile for an issue report: ``print(ms.triage(p))``.

    Parameters
    ----------
    what : MemoryProfile, path or list of paths
        What to sum up. Paths are read rank by rank, and only the summaries are kept.
    redact : bool
        Replace user names, host names and absolute paths, see :func:`memscope_nb.redact_profile`.
    hide : iterable of str
        More words to replace.
    ranks, roles, n_jobs, cache, strict, torch_names : optional
        As for :func:`memscope_nb.load`; only for paths.

    Raises
    ------
    InputError
        As :func:`memscope_nb.load`.
    """
    redactor = Redactor(also=hide, local=True) if redact else None
    lines: list[TimelineDigest] = []
    sources: list[SourceDigest] = []
    if isinstance(what, MemoryProfile):
        _add(what, redactor, lines, sources)
    else:
        found = filter_collections(discover(what, torch_names=torch_names), ranks, roles)
        learn_sources(redactor, found)
        plain: list[SourceDigest] = []
        for profile in profiles_by_rank(found, Reading(n_jobs=n_jobs, cache=cache, strict=strict)):
            plain += SourceDigest.of(profile)
            _add(profile, redactor, lines, sources)
            del profile  # what is summed up is let go
        if not lines:
            refuse_failed(plain)  # the one who asks is told the true paths
    if not lines:
        raise InputError("nothing to show: no source has blocks or recorded totals")
    return Triage(tuple(lines), tuple(sources))


def _add(
    profile: MemoryProfile, redactor: Redactor | None, lines: list[TimelineDigest], sources: list[SourceDigest]
) -> None:
    shown = profile if redactor is None else redactor.profile(profile)
    sources += SourceDigest.of(shown)
    lines += [digest_timeline(shown, line) for line in timelines(shown)]
