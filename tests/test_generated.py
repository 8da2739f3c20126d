"""Agreement with the truth that the shared generator writes beside its profiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import memscope_nb as ms

TOOLS = Path(__file__).resolve().parents[2] / "shared" / "tools"


@pytest.fixture(scope="module", params=[(1, []), (2, ["--quoted", "--layout", "mixed"]), (3, ["--no-record"])], ids=str)
def generated(request, tmp_path_factory):
    if not (TOOLS / "make_profile.py").is_file():
        pytest.skip("the shared generator is not laid beside the checkout")
    seed, extra = request.param
    out = tmp_path_factory.mktemp("generated") / "run"
    sizes = ["--events", "6000", "--trace-mb", "6", "--ge", "60", "--ranks", "2", "--negative-rows", "0.01"]
    command = [sys.executable, str(TOOLS / "make_profile.py"), "--out", str(out), "--seed", str(seed), *sizes, *extra]
    subprocess.run(command, check=True, capture_output=True)
    return out, json.loads((out / "manifest.json").read_text())["ranks"]


@pytest.mark.parametrize("reader", ["auto", "ijson"])
def test_levels_rows_and_stacks_are_those_of_the_manifest(generated, reader):
    out, ranks = generated
    p = ms.load(out, reader=reader)
    summary = p.summary()
    for truth in ranks:
        source = p.sources[p.sources["rank_id"] == truth["rank"]].iloc[0]
        pta = summary[(summary["source"] == source["source"]) & (summary["pool"] == "PTA")].iloc[0]
        assert pta["peak_bytes"] == truth["peak_bytes"]
        assert pta["peak_ns"] == truth["peak_ns"]
        assert pta["baseline_bytes"] == truth["baseline_bytes"]
        assert (pta["older_start_bytes"], pta["older_end_bytes"]) == (
            truth["older_start_bytes"],
            truth["older_end_bytes"],
        )
        facts = source["facts"]
        assert facts["n_in_operator"] == truth["rows_in_op"]
        assert facts["n_own_stack"] == truth["rows_own_stack"]
        assert facts["n_forward_stack"] == truth["rows_forward_stack"]
        blocks = p.blocks[(p.blocks["source"] == source["source"]) & (p.blocks["pool"] == "PTA")]
        real = blocks[blocks["alloc_ns"].notna()]
        assert len(real) == truth["pta_rows"]
        assert (real["free_ns"].isna() & real["active_free_ns"].isna()).sum() == truth["never_released"]
        assert (real["name"] == "").sum() == truth["rows_empty_name"]
