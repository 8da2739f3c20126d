"""Counts what a reader must find, from the simulator's own books and never from a written file."""

from __future__ import annotations

from .allocator import WindowLog
from .records import GraphBlock, ProcessSample, Truth


def count_truth(
    log: WindowLog,
    graph_blocks: list[GraphBlock],
    samples: tuple[ProcessSample, ...],
    *,
    unrecorded_before_bytes: int,
) -> Truth:
    """Sum up one window.

    Raises
    ------
    AssertionError
        When the peak is not unique: the scenario then has no single right answer.
    """
    events, rows = log.events, log.rows
    levels = [event.totals.allocated_bytes for event in events]
    peak = max(levels)
    assert levels.count(peak) == 1, "two records share the peak"
    labels = [row.label for row in rows]
    kinds = [label.stack_kind for label in labels]
    return Truth(
        n_rows=len(rows),
        n_ge_rows=len(graph_blocks),
        n_open=sum(row.free_ns is None and row.block_free_ns is None for row in rows),
        n_ge_open=sum(block.free_ns is None for block in graph_blocks),
        window_start_ns=events[0].t_ns,
        window_end_ns=events[-1].t_ns,
        baseline_bytes=log.older_start_bytes,
        end_bytes=levels[-1],
        peak_bytes=peak,
        peak_ns=events[levels.index(peak)].t_ns,
        reserved_peak_bytes=max(event.totals.reserved_bytes for event in events),
        resident_peak_bytes=max(sample.resident_bytes for sample in samples),
        unbacked_peak_bytes=_most_unbacked(log, samples),
        older_start_bytes=log.older_start_bytes,
        older_end_bytes=log.older_bytes,
        older_falls=log.older_falls,
        older_active_end_bytes=log.older_active_bytes,
        unrecorded_before_bytes=unrecorded_before_bytes,
        rows_in_op=sum(label.op_id is not None for label in labels),
        rows_empty_name=sum(not label.name for label in labels),
        rows_near_miss=sum(bool(label.name) and label.op_id is None for label in labels),
        rows_own_stack=kinds.count("own"),
        rows_forward_stack=kinds.count("forward"),
        rows_no_stack=kinds.count("none"),
        leak_bytes=sum(row.size for row in rows if row.label.is_leak),
    )


def _most_unbacked(log: WindowLog, samples: tuple[ProcessSample, ...]) -> int:
    """Largest excess of reserved, as last recorded, over a process sample inside the window."""
    most, at, reserved = 0, 0, 0
    for sample in samples:
        while at < len(log.events) and log.events[at].t_ns <= sample.t_ns:
            reserved = log.events[at].totals.reserved_bytes
            at += 1
        if at and sample.t_ns <= log.events[-1].t_ns:
            most = max(most, reserved - sample.resident_bytes)
    return most
