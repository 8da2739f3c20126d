"""The footer of a page: what was read, skipped, repaired or guessed, in plain lines."""

from __future__ import annotations

import pandas as pd

from ..analysis.quality import Quality, sources_quality
from ..analysis.series import Series, balance
from ..analysis.timeline import Timeline
from ..model import MemoryProfile
from ..units import format_bytes, format_duration


def timeline_notes(profile: MemoryProfile, line: Timeline, *, quality: Quality | None = None) -> list[str]:
    """Return what a reader of the page must know to trust its numbers; ``quality`` spares asking for it again."""
    sources = profile.sources[profile.sources["source"].isin(line.sources)]
    notes = ["Sizes are in binary units (1 GiB = 1024 MiB); times are offsets from the first allocator record."]
    notes += check_notes(profile, line, quality or line_quality(profile, line))
    for row in sources.itertuples():
        where = f"{row.role} #{row.collection}"
        if row.status != "ok":
            notes.append(f"{where} is {row.status}: {'; '.join(row.warnings)}")
        elif row.warnings:
            notes.append(f"{where}: {'; '.join(row.warnings)}")
    return notes


def check_notes(profile: MemoryProfile, line: Timeline, quality: Quality) -> list[str]:
    """Return what the numbers of a timeline say of each other, and how to record what they lack."""
    return [_balance_note(profile, line), *_quality_notes(profile, line, quality)]


def _balance_note(profile: MemoryProfile, line: Timeline) -> str:
    """The self-check of spec/ascend_profiler 3.3a in a sentence."""
    checks = [(one, check) for one in line.series if (check := balance(one)) is not None]
    bad = [(one, check) for one, check in checks if check.n_rises]
    n_samples = sum(len(one.t) for one, _ in checks)
    if not checks:
        return "No recorded totals to check the blocks against: curves are sums of the rows."
    if not bad:
        return (
            f"Checked at {n_samples:,} samples: recorded totals minus live blocks never rise, "
            "so there is no sign of missing or misread rows."
        )
    roles = profile.sources.set_index("source")["role"]
    worst = [f"{roles[one.source]} {one.pool}: {c.n_rises} rises, +{format_bytes(c.rise_bytes)}" for one, c in bad]
    return (
        "UNEXPLAINED memory: recorded totals rise where no row does (rows missing from the file, another process, an "
        "external allocator): " + "; ".join(worst)
    )


def line_quality(profile: MemoryProfile, line: Timeline) -> Quality:
    """Report on the sources of a timeline; see :func:`memscope_nb.check_quality`."""
    by_source: dict[int, list[Series]] = {}
    for one in line.series:
        by_source.setdefault(one.source, []).append(one)
    return sources_quality(profile, by_source, list(line.sources))


def _quality_notes(profile: MemoryProfile, line: Timeline, quality: Quality) -> list[str]:
    """What the quality report says of these sources, and how to record what they lack."""
    frame = quality.to_frame()
    checked, wrong = int(frame["n_total_checked"].sum()), int(frame["n_total_mismatch"].sum())
    notes = []
    if checked:
        verdict = "all agree" if wrong == 0 else f"{wrong:,} DIFFER"
        notes.append(f"Totals written in the rows against the recorded samples: {checked:,} compared, {verdict}.")
    coverage = _coverage_note(profile, line)
    notes += [coverage] if coverage else []
    grain = min(frame["clock_ns"], default=0)
    notes += [f"Times have a grain of {format_duration(int(grain))}."] if grain > 1 else []
    notes += [f"Check of {text}." for text in quality.check_lines()]
    return notes + [f"To record next time: {hint}" for hint in quality.hints]


def _coverage_note(profile: MemoryProfile, line: Timeline) -> str:
    blocks = profile.blocks[profile.blocks["source"].isin(line.sources) & (profile.blocks["device"] == line.device)]
    if not len(blocks):
        return ""
    share: pd.Series = blocks.groupby("stack_kind", observed=False)["size_bytes"].agg(["size", "sum"])
    total = max(int(blocks["size_bytes"].sum()), 1)
    parts = [
        f"{label} {int(share.at[key, 'size']):,} ({int(share.at[key, 'sum']) / total:.0%} of bytes)"
        for key, label in (("own", "own"), ("forward", "of the forward operator"), ("none", "none"))
        if key in share.index
    ]
    return "Stacks of blocks: " + ", ".join(parts) + "."
