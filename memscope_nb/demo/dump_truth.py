"""What is in a dump, from the simulator's own books and never from a written file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .dump_access import Access, planted_waste
from .dump_rows import Row, steps
from .dump_simulate import ProcessLog
from .records import Process


@dataclass(frozen=True)
class ProcessTruth:
    """What a reader must find in the dump of one process, from the simulator's own books.

    Attributes
    ----------
    process : Process
        Whose dump it is.
    folder : str
        Its folder below the output folder.
    n_rows : mapping
        Rows by event and event type.
    n_blocks, n_open, open_bytes : mapping
        Blocks by pool (``PTA``, ``HAL``), those alive at the end and their bytes.
    peak_bytes, peak_ns, reserved_peak_bytes, end_bytes : int
        Levels of the framework's pool.
    driver_peak_bytes : int
        Highest ``used`` of the driver's memory, promoted blocks included.
    steps : tuple of (int, int)
        Start and end of each step; a mark with the text `mark` follows the work of each one.
    leak_bytes : tuple of int
        What each step leaked; all 0 without the leak.
    leak_ids : tuple of frozenset
        Allocation ids of the leaked blocks of each step.
    kept : mapping
        By pool, for each step but the last: allocation ids of the blocks that began in it and outlived the next one.
    waste : mapping
        Allocation ids of blocks that were made to be wasteful, by inefficiency label; others may have it, too.
    n_python_calls : int
        Rows of the Python trace.
    """

    process: Process
    folder: str
    n_rows: Mapping[tuple[str, str], int]
    n_blocks: Mapping[str, int]
    n_open: Mapping[str, int]
    open_bytes: Mapping[str, int]
    peak_bytes: int
    peak_ns: int
    reserved_peak_bytes: int
    end_bytes: int
    driver_peak_bytes: int
    steps: tuple[tuple[int, int], ...]
    leak_bytes: tuple[int, ...]
    leak_ids: tuple[frozenset[int], ...]
    kept: Mapping[str, tuple[frozenset[int], ...]]
    waste: Mapping[str, frozenset[int]]
    n_python_calls: int


def count_dump(log: ProcessLog, rows: Sequence[Row], accesses: Sequence[Access], *, folder: str) -> ProcessTruth:
    """Sum up one process from the changes of its memory; only the numbers of rows and blocks come from the rows."""
    waste = planted_waste(log, accesses)
    numbers = {row.life: int(row.attrs[0][1]) for row in rows if row.life}
    levels = [change.totals.allocated_bytes for change in log.pool]
    peak = max(levels)
    lives = _lives(log)
    spans = tuple(steps(log))
    leaks = [{c.block.block_id: c for c in log.pool if c.kind == "leak" and _inside(c.t_ns, span)} for span in spans]
    kept = [[c for c in leak.values() if lives["PTA"][c.block.block_id].end_ns is None] for leak in leaks]
    driver, driver_peak = 0, 0
    for change in (*log.early, *log.driver):
        driver += change.size if change.change == "malloc" else -change.size
        driver_peak = max(driver_peak, driver)
    is_open = {pool: [life for life in found.values() if life.end_ns is None] for pool, found in lives.items()}
    return ProcessTruth(
        process=log.process,
        folder=folder,
        n_rows=dict(Counter((row.event, row.type) for row in rows)),
        n_blocks={pool: len(found) for pool, found in lives.items()},
        n_open={pool: len(found) for pool, found in is_open.items()},
        open_bytes={pool: sum(life.size for life in found) for pool, found in is_open.items()},
        peak_bytes=peak,
        peak_ns=log.pool[levels.index(peak)].t_ns,
        reserved_peak_bytes=max(change.totals.reserved_bytes for change in log.pool),
        end_bytes=levels[-1],
        driver_peak_bytes=driver_peak,
        steps=spans,
        leak_bytes=tuple(sum(c.block.size for c in found) for found in kept),
        leak_ids=tuple(frozenset(numbers["PTA", c.block.block_id] for c in found) for found in kept),
        kept={
            pool: tuple(
                frozenset(numbers[pool, life] for life in _outlived(found, step, after))
                for step, after in pairwise(spans)
            )
            for pool, found in lives.items()
        },
        waste={label: frozenset(numbers["PTA", block_id] for block_id in ids) for label, ids in waste.items()},
        n_python_calls=sum(len(visit.calls) for visit in log.visits),
    )


@dataclass
class _Life:
    size: int
    start_ns: int
    end_ns: int | None = None


def _lives(log: ProcessLog) -> dict[str, dict[int, _Life]]:
    """All blocks by pool and number."""
    lives: dict[str, dict[int, _Life]] = {"PTA": {}, "HAL": {}}
    changes = [("PTA", c.block.block_id, c.block.size, c.change, c.t_ns) for c in log.pool]
    changes += [("HAL", c.life, c.size, c.change, c.t_ns) for c in (*log.early, *log.driver)]
    for pool, number, size, change, t_ns in changes:
        if change == "malloc":
            lives[pool][number] = _Life(size, t_ns)
        else:
            lives[pool][number].end_ns = t_ns
    return lives


def _inside(t_ns: int, span: tuple[int, int]) -> bool:
    return span[0] <= t_ns <= span[1]


def _outlived(lives: Mapping[int, _Life], step: tuple[int, int], after: tuple[int, int]) -> Iterator[int]:
    """Blocks that began in a step and were still there at the end of the next one."""
    for number, life in lives.items():
        if _inside(life.start_ns, step) and (life.end_ns is None or life.end_ns > after[1]):
            yield number
