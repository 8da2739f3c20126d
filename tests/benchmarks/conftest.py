"""Data for benchmarks, and the table at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = Path(__file__).resolve().parents[3] / "shared" / "tools" / "make_profile.py"
SIZES = {
    "small": ["--events", "30000", "--trace-mb", "30", "--seed", "3"],
    "300k": ["--events", "300000", "--trace-mb", "300", "--seed", "1"],
    "1M": ["--events", "1000000", "--trace-mb", "1200", "--seed", "2"],
}
LINES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def profile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated profile of the size that ``MEMSCOPE_BENCH`` names; ``MEMSCOPE_BENCH_DATA`` keeps it for next time."""
    size = os.environ.get("MEMSCOPE_BENCH", "small")
    if size not in SIZES:
        raise pytest.UsageError(f"MEMSCOPE_BENCH={size}: expected one of {', '.join(SIZES)}")
    if not GENERATOR.is_file():
        pytest.skip(f"the generator of profiles is not laid beside the checkout: {GENERATOR}")
    kept = os.environ.get("MEMSCOPE_BENCH_DATA")
    folder = (Path(kept) if kept else tmp_path_factory.mktemp("bench")) / size
    if not (folder / "manifest.json").is_file():
        subprocess.run([sys.executable, GENERATOR, "--out", folder, *SIZES[size]], check=True, capture_output=True)
    for file in folder.rglob("*.*"):  # into the page cache, so that no case pays for the disk
        if file.is_file():
            with file.open("rb") as opened:
                while opened.read(1 << 24):
                    pass
    return folder


@pytest.fixture(scope="session")
def lines(pytestconfig: pytest.Config) -> list[str]:
    """What to print when all is done."""
    return pytestconfig.stash.setdefault(LINES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(LINES, []):
        terminalreporter.section("CPU and memory against the stand-in")
        for line in found:
            terminalreporter.write_line(line)
