"""Two runs of the same program, operator by operator: what each one changes in memory (spec/msmemscope 7)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from ..model import MemoryProfile, as_profile
from .align_bytes import POOLS
from .align_compat import replay
from .align_pairs import compared
from .facts import missing_fact
from .result import Result, records

Level = Literal["op", "kernel", "op,kernel"]
KEY_COLUMNS = ("device", "event", "name", "base_bytes", "compare_bytes", "diff_bytes")
_LEVELS: dict[str, tuple[str, ...]] = {"op": ("op",), "kernel": ("kernel",), "op,kernel": ("op", "kernel")}
_LEVELS |= {"0": ("op",), "1": ("kernel",), "kernel,op": ("op", "kernel")}


@dataclass(frozen=True, repr=False)
class OpComparison(Result):
    """Operators or kernels of two runs side by side, in the order in which they ran.

    Attributes
    ----------
    frame : pandas.DataFrame
        ``device event name base_bytes compare_bytes diff_bytes`` and more; NA where a run has no such element.
    by_op : pandas.DataFrame
        Sums by device and name: how often, net and allocated bytes on each side. Nested operators count once.
    by_stack : pandas.DataFrame
        Allocations by operator and call stack on each side, largest growth first.
    compat : "msmemscope" or None
        Whether the numbers are the original tool's.
    messages : tuple of str
        With ``compat``: what the original tool prints.
    """

    by_op: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    by_stack: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)
    compat: Literal["msmemscope"] | None = None
    messages: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        more = {"by_op": records(self.by_op), "by_stack": records(self.by_stack), "messages": list(self.messages)}
        return super().to_dict() | more

    def _repr_html_(self) -> str:
        head = self.by_op.head(20).to_html(escape=True, border=0, na_rep="", index=False)
        rest = "" if len(self.frame) <= 1000 else f"<p>The first 1,000 of {len(self.frame):,} rows.</p>"
        return head + rest + Result(self.frame.head(1000), self.caveats)._repr_html_()


def align_ops(
    a: MemoryProfile | str | os.PathLike[str],
    b: MemoryProfile | str | os.PathLike[str],
    *,
    level: Level = "op",
    pools: tuple[str, ...] = POOLS,
    compat: Literal["msmemscope"] | None = None,
) -> OpComparison:
    """Align the operators or kernels of two runs and compare what each changes in memory.

    Parameters
    ----------
    a, b : MemoryProfile or path
        Dumps of msMemScope: the base and what is compared with it.
    level : "op", "kernel" or "op,kernel"
        ``op``: what an operator changes between its start and its end, in its thread, nested ones included.
        ``kernel``: what the process changed since the launch before, up to the launch of this kernel.
    pools : tuple of str
        Whose bytes count; pools lie inside ``HAL``, so that both together would count twice.
    compat : "msmemscope", optional
        The numbers of the original tool: each element is shown with the size in the *next* row of the pool,
        allocations and releases alike, and threads and processes of a device are one sequence.

    Returns
    -------
    OpComparison
        ``base_bytes`` is the net change; ``base_gross_bytes`` what was allocated, ``base_peak_bytes`` how far the level
        rose above the start, ``base_own_bytes`` the net change without nested operators; the same for ``compare``.

    Raises
    ------
    MissingFactError
        If a recording has no operator or kernel rows.

    Notes
    -----
    Operators are matched by name and by the operator around them (by the calling function, too, where both runs have
    stacks), step by step and thread by thread: by number of the step, and by the threads that have most in common.
    """
    if level not in _LEVELS:
        raise ValueError(f"level must be 'op', 'kernel' or 'op,kernel', not {level!r}")
    if compat not in (None, "msmemscope"):
        raise ValueError(f"compat must be None or 'msmemscope', not {compat!r}")
    base, compare = as_profile(a), as_profile(b)
    for profile in (base, compare):
        if not len(profile.events):
            raise missing_fact(
                profile,
                "align_ops",
                "align_ops needs the operator rows of a msMemScope dump: record with "
                "msmemscope.config(events='alloc,free,launch', level='op,kernel')",
            )
    levels = _LEVELS[level]
    if compat:
        return _reference(base, compare, levels)
    frame, by_op, by_stack, caveats = compared(base, compare, levels, pools)
    return OpComparison(frame, caveats, by_op, by_stack)


def _reference(base: MemoryProfile, compare: MemoryProfile, levels: tuple[str, ...]) -> OpComparison:
    rows, messages, is_shortest = replay(base, compare, levels)
    frame = pd.DataFrame(rows, columns=list(KEY_COLUMNS[:5]))
    for name in ("base_bytes", "compare_bytes"):
        frame[name] = frame[name].astype("Int64")
    frame["diff_bytes"] = frame["compare_bytes"].fillna(0) - frame["base_bytes"].fillna(0)
    caveats = ["the original tool's numbers: each is the size in the next row of the pool, be it allocated or released"]
    if not is_shortest:
        caveats.append("too many differences: the original tool gives up after a minute; this alignment is not minimal")
    sums = frame.assign(n_base=frame["base_bytes"].notna(), n_compare=frame["compare_bytes"].notna())
    columns = ["n_base", "n_compare", "base_bytes", "compare_bytes", "diff_bytes"]
    by_op = sums.groupby(["device", "event", "name"], sort=False)[columns].sum().reset_index()
    return OpComparison(frame, tuple(caveats), by_op, pd.DataFrame(), "msmemscope", tuple(messages))
