"""Owner labels of msMemScope, old and new grammar, as paths of one tree (spec/msmemscope 8)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..model import MemoryProfile

Path = tuple[str, ...]

CANN_MODULES = (
    "SLOG", "IDEDD", "IDEDH", "HCCL", "FMK", "HIAIENGINE", "DVPP", "RUNTIME", "CCE", "HDC", "DRV", "MDCFUSION",
    "MDCLOCATION", "MDCPERCEPTION", "MDCFSM", "MDCCOMMON", "MDCMONITOR", "MDCBSWP", "MDCDEFAULT", "MDCSC", "MDCPNC",
    "MLL", "DEVMM", "KERNEL", "LIBMEDIA", "CCECPU", "ASCENDDK", "ROS", "HCCP", "ROCE", "TEFUSION", "PROFILING", "DP",
    "APP", "TS", "TSDUMP", "AICPU", "LP", "TDT", "FE", "MD", "MB", "ME", "IMU", "IMP", "GE", "MDCFUSA", "CAMERA",
    "ASCENDCL", "TEEOS", "ISP", "SIS", "HSM", "DSS", "PROCMGR", "BBOX", "AIVECTOR", "TBE", "FV", "MDCMAP", "TUNE",
    "HSS", "FFTS", "OP", "UDF", "HICAID", "TSYNC", "AUDIO", "TPRT", "ASCENDCKERNEL", "ASYS", "ATRACE", "RTC",
    "SYSMONITOR", "AML", "INVLID_MOUDLE_ID",
)  # fmt: skip
"""Names of the module ids of the driver, by number (spec 8.4)."""

CATEGORIES: tuple[tuple[str, frozenset[str]], ...] = (
    ("weight", frozenset({"weight", "weights", "sharded_weight"})),
    ("gradient", frozenset({"gradient"})),
    ("optimizer_state", frozenset({"optimizer_state"})),
    ("activation", frozenset({"activation", "backward", "serve", "profile", "warmup"})),
    ("kv_cache", frozenset({"kv_cache"})),
    ("all_gather", frozenset({"all_gather", "all_gather_output"})),
    ("graph_pool", frozenset({"graph_pool"})),
    ("ops", frozenset({"ops", "aten"})),
)
"""Categories in order of precedence, and the labels that mean them (spec 8.2)."""

NO_LABEL, OLDER, REMAINDER, FREE, NOT_SELECTED, OTHERS = RESERVED = (
    "(no label)", "(older)", "(remainder)", "(reserved, not allocated)", "(not selected or older)", "(other leaves)",
)  # fmt: skip
"""Names of what no label describes."""

MAX_LEVELS = 12
"""Deepest path: the grammar has 9 levels; a longer label keeps its tail in the last one."""

_OLD_MODEL = frozenset({"weight", "gradient", "optimizer_state"})
_MODULE_ID = r'[{,]\s*"?MID"?\s*:\s*"?(?P<mid>-?\d{1,9})'


def root_of(pool: str) -> str:
    """Return the first segment of the owners of a pool; what HAL takes belongs to CANN's modules."""
    return "CANN" if pool == "HAL" else pool


def split_label(text: str) -> Path:
    """Split a path text at ``@``; names that this package gives to other things are put in quotes."""
    parts = [part.strip() for part in text.split("@", MAX_LEVELS - 1)]
    return tuple(f"'{part}'" if part in RESERVED else part for part in parts if part)


def owner_path(owner: str, root: str) -> Path:
    """Return where an owner label belongs below the root of its pool.

    Both grammars give one path (spec 8.2): ``PTA@ops@aten`` was what ``PTA@ops`` is now, ``PTA@model@weight`` is
    ``PTA@weight``.
    """
    parts = split_label(owner)
    below = parts[1:] if parts[:1] == (root,) else parts
    if below[:2] == ("ops", "aten"):
        return ("ops", *below[2:])
    if below[:1] == ("model",) and below[1:2] and below[1] in _OLD_MODEL:
        return below[1:]
    return below


def category_of(path: Path, root: str) -> str:
    """Return the category of a path below a root: the first of :data:`CATEGORIES` that it names, else ``other``."""
    if root == "CANN":
        return "module"
    labels = set(path)
    return next((name for name, known in CATEGORIES if known & labels), "other")


def module_name(number: int) -> str:
    """Return the name of a CANN module id; ``UNKNOWN`` for one that the driver does not define."""
    return CANN_MODULES[number] if 0 <= number < len(CANN_MODULES) else "UNKNOWN"


def owners(profile: MemoryProfile) -> tuple[pd.Categorical, npt.NDArray[np.bool_]]:
    """Return the owner of every block and whether it comes from a module id instead of a label.

    Rows of early 2025 have ``MID:n`` in place of a label.
    """
    blocks = profile.blocks
    if "owner" not in blocks:
        return pd.Categorical.from_codes(np.full(len(blocks), -1, np.int8), []), np.zeros(len(blocks), dtype=bool)
    owner = pd.Categorical(blocks["owner"])
    by_id = np.zeros(len(blocks), dtype=bool)
    numbers = _module_ids(profile, np.asarray((blocks["pool"] == "HAL").to_numpy() & (owner.codes < 0)))
    if not len(numbers):
        return owner, by_id
    labels = {number: f"CANN@{module_name(number)}" for number in np.unique(numbers["mid"])}
    categories = list(dict.fromkeys([*owner.categories, *labels.values()]))
    codes = owner.codes.astype(np.int32)
    position = {label: i for i, label in enumerate(categories)}
    rows = numbers["row"].to_numpy(np.int64)
    codes[rows] = [position[labels[number]] for number in numbers["mid"]]
    by_id[rows] = True
    return pd.Categorical.from_codes(codes, categories), by_id


def _module_ids(profile: MemoryProfile, wanted: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Positions of blocks whose MALLOC row has a module id, and the id."""
    none = pd.DataFrame({"row": np.empty(0, np.int64), "mid": np.empty(0, np.int64)})
    events, blocks = profile.events, profile.blocks
    if not wanted.any() or not len(events) or "event_id" not in blocks:
        return none
    rows = events.loc[(events["event"] == "MALLOC") & (events["type"] == "HAL"), ["source", "event_id", "attrs"]]
    ids = rows["attrs"].str.extract(_MODULE_ID)["mid"]
    rows = rows.assign(mid=ids)[ids.notna()].drop(columns="attrs").drop_duplicates(["source", "event_id"])
    if not len(rows):
        return none
    at = np.flatnonzero(wanted)
    chosen = blocks[["source", "event_id"]].iloc[at].assign(row=at)
    chosen = chosen[chosen["event_id"].notna()].astype({"event_id": np.int64, "source": np.int64})
    found = chosen.merge(rows.astype({"source": np.int64, "event_id": np.int64}), on=["source", "event_id"])
    return found[["row"]].assign(mid=pd.to_numeric(found["mid"]).astype(np.int64))
