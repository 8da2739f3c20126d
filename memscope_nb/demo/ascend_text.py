"""Writes a simulated run as the tree that the Ascend PyTorch Profiler leaves on disk, as text, database or both."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Literal

from .ascend_csv import memory_record, npu_module_mem, operator_memory, step_trace_time
from .ascend_db import write_database
from .ascend_trace import trace_events
from .dump_folder import LOCAL_TIME, new_folder
from .memscope_dump import DUMP_ITERATIONS, write_processes
from .records import Collection, DemoRun
from .simulate import simulate_run

ProfilerExport = Literal["text", "db", "both"]
Export = ProfilerExport | Literal["dump"]

TORCH_NPU_VERSION = "2.7.1.post2"
CANN_VERSION = "8.3.RC1"
# Roles whose training code adds itself to the metadata; for the others the parent folder has to tell.
ROLES_IN_METADATA = ("rollout", "actor_update")


def write_demo(
    out_dir: str | os.PathLike[str],
    *,
    seed: int = 0,
    ranks: int = 2,
    iterations: int | None = None,
    export: Export = "text",
) -> DemoRun:
    """Simulate a run and write it below ``out_dir`` as ``<iteration>/<role>/<worker>_ascend_pt``, or as a dump.

    Parameters
    ----------
    out_dir : path
        A folder that does not exist yet or is empty. The tree appears in it when all is written.
    seed, ranks, iterations : int
        See `simulate_run`. The same arguments write the same bytes (databases: the same rows). Without
        ``iterations`` there are 2, of a dump 5.
    export : {"text", "db", "both", "dump"}
        CSV and JSON files, a database for each collection as verl has it, or both of the same run; or what msMemScope
        writes of it, one folder for each process (`write_demo_dump` has more choices).

    Returns
    -------
    DemoRun
        The run with the truth about each collection.

    Raises
    ------
    InputError
        When ``out_dir`` is a file or a folder with something in it.
    """
    if iterations is None:
        iterations = DUMP_ITERATIONS if export == "dump" else 2
    with new_folder(out_dir) as root:
        run = simulate_run(seed=seed, ranks=ranks, iterations=iterations)
        if export == "dump":
            write_processes(root, seed=seed, ranks=ranks, iterations=iterations)
        else:
            for collection in run.collections:
                folder = root / collection_folder(collection)
                write_collection(folder, collection, world_size=run.world_size, export=export)
    return run


def collection_folder(collection: Collection) -> PurePosixPath:
    """Where a collection lies below the output folder."""
    seconds, rest = divmod(collection.start_ns, 1_000_000_000)
    local = datetime.fromtimestamp(seconds, tz=LOCAL_TIME).strftime("%Y%m%d%H%M%S")
    process = collection.process
    name = f"{process.host}_{process.pid}_{local}{rest // 1_000_000:03d}_ascend_pt"
    return PurePosixPath(str(collection.iteration), collection.role, name)


def write_collection(folder: Path, collection: Collection, *, world_size: int, export: ProfilerExport = "text") -> None:
    """Write one ``*_ascend_pt`` folder."""
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    rank = collection.process.rank
    _write_json(folder / f"profiler_info_{rank}.json", _profiler_info(collection, export))
    metadata = _profiler_metadata(collection, world_size)
    if export != "text":
        write_database(output / f"ascend_pytorch_profiler_{rank}.db", collection, metadata)
    if export == "db":  # the environment is in the database; without a role nothing is left to write
        metadata.pop("ENV_VARIABLES")
    if metadata:
        _write_json(folder / "profiler_metadata.json", metadata)
    if export != "db":
        _write_table(output / "operator_memory.csv", operator_memory(collection))
        _write_table(output / "memory_record.csv", memory_record(collection))
        _write_table(output / "npu_module_mem.csv", npu_module_mem(collection))
        _write_table(output / "step_trace_time.csv", step_trace_time(collection))
        _write_text(output / "trace_view.json", json.dumps(trace_events(collection), ensure_ascii=False))
    _write_text(output / "analyse.done", "")


def _profiler_info(collection: Collection, export: ProfilerExport) -> dict[str, object]:
    has_steps = any(op.name.startswith("ProfilerStep#") for op in collection.ops)
    schedule = {"wait": 0, "active": 2, "warmup": 0, "repeat": 1, "skip_first": 0} if has_steps else None
    # The monotonic clock and the counter started when the node did, 11 days before.
    uptime_ns = 950_400_000_000_000 + collection.start_ns % 100_000_000_000_000
    return {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"],
                "schedule": schedule,
                "record_shapes": True,
                "profile_memory": True,
                "with_stack": True,
                "with_flops": False,
                "with_modules": False,
            },
            "experimental_config": {
                "_profiler_level": "Level1",
                "_aic_metrics": "ACL_AICORE_NONE",
                "_l2_cache": False,
                "_msprof_tx": True,
                "_data_simplification": True,
                "_record_op_args": False,
                "_export_type": ["text", "db"] if export == "both" else [export],
                "_op_attr": False,
                "_gc_detect_threshold": None,
            },
        },
        "start_info": {
            "syscnt_enable": True,
            "freq": 100,
            "start_cnt": uptime_ns // 10,
            "start_monotonic": uptime_ns,
        },
        "end_info": {
            "collectionTimeEnd": collection.end_ns,
            "MonotonicTimeEnd": uptime_ns + collection.end_ns - collection.start_ns,
        },
        "torch_npu_version": TORCH_NPU_VERSION,
        "cann_version": CANN_VERSION,
        "rank_id": str(collection.process.rank),
    }


def _profiler_metadata(collection: Collection, world_size: int) -> dict[str, object]:
    metadata: dict[str, object] = {"role": collection.role} if collection.role in ROLES_IN_METADATA else {}
    metadata["ENV_VARIABLES"] = {
        "ASCEND_GLOBAL_LOG_LEVEL": "3",
        "TASK_QUEUE_ENABLE": "1",
        "PYTORCH_NPU_ALLOC_CONF": "",
        "ASCEND_LAUNCH_BLOCKING": "",
        "RANK": str(collection.process.rank),
        "WORLD_SIZE": str(world_size),
    }
    return metadata


def _write_json(path: Path, content: object) -> None:
    _write_text(path, json.dumps(content, indent=4))


def _write_table(path: Path, lines: Iterable[str]) -> None:
    _write_text(path, "".join(f"{line}\r\n" for line in lines))


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))  # bytes: no platform may change the line ends
