"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)  # CI machines are slow and shared
settings.load_profile("default")

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "samples"


@pytest.fixture(scope="session")
def ascend_samples() -> Path:
    """Folder of public Ascend samples; they are not part of this project."""
    folder = SAMPLES / "ascend"
    if not folder.is_dir():
        pytest.skip("the public samples are not laid beside the checkout")
    return folder


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory):
    """The demo run: its folder and the truth that the simulator kept."""
    from memscope_nb.demo import write_demo

    folder = tmp_path_factory.mktemp("demo") / "run"
    return folder, write_demo(folder)


@pytest.fixture(scope="session")
def demo_profile(demo):
    """The demo run, loaded."""
    import memscope_nb as ms

    return ms.load(demo[0])
