"""How much memory the reading of a snapshot takes beside the tables that it returns."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import memscope_nb as ms

N_ENTRIES = 60_000
MOST_BYTES_PER_ENTRY = 52
"""50 MiB for a million entries (design: transient memory of a reader)."""
MOST_BYTES = 1 << 20
"""What any file costs: the pieces that it is read in."""
TABLES = ("blocks", "totals", "marks", "stacks", "segments")


def _history(n_entries: int, first: int) -> list[dict[str, Any]]:
    """Blocks that live one at a time: three entries each."""
    frames = [[{"filename": "model.py", "line": k, "name": f"forward_{k}"}] for k in range(50)]
    entries: list[dict[str, Any]] = []
    for k in range(n_entries // 3):
        entry = {"addr": first + k % 7 * 4096, "size": 512 + k % 1000, "stream": 0, "frames": frames[k % 50]}
        for step, action in enumerate(("alloc", "free_requested", "free_completed")):
            entries.append({"action": action, **entry, "time_us": 1_700_000_000_000_000 + 3 * k + step})
    return entries


def _written(folder: Path, n_entries: int, n_devices: int) -> Path:
    path = folder / f"{n_entries}.pickle"
    traces = [_history(n_entries // n_devices, (device + 1) << 40) for device in range(n_devices)]
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": traces}, protocol=4))
    return path


@pytest.mark.parametrize("n_devices", [1, 2])
def test_a_load_takes_little_beside_its_tables(tmp_path: Path, n_devices: int) -> None:
    ms.load(_written(tmp_path, 300, n_devices))  # what is imported and kept once is not counted
    path = _written(tmp_path, N_ENTRIES, n_devices)
    tracemalloc.start()
    try:
        profile = ms.load(path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tables = sum(int(getattr(profile, name).memory_usage().sum()) for name in TABLES)
    assert len(profile.blocks) == N_ENTRIES // 3
    assert profile.sources["facts"].map(lambda facts: facts["n_entries"]).sum() == N_ENTRIES
    assert kept < 1.1 * tables
    assert peak - tables <= MOST_BYTES + MOST_BYTES_PER_ENTRY * N_ENTRIES
