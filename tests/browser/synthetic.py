"""Payloads made without any reader: blocks of two recordings with a gap, and the truth about them in numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from memscope_nb.view.codec import encode_payload

Int64Array = npt.NDArray[np.int64]

NS_PER_S = 1_000_000_000
SPAN = (0, 60 * NS_PER_S)
RECORDED = ((500_000_000, 28_300_000_000), (33_100_000_000, 59_800_000_000))
T0 = "1764428931123456789"
CLASSES = (
    ("older", "older than the window"),
    ("phase", "crosses a phase"),
    ("step", "crosses a step"),
    ("fwdbwd", "forward to backward"),
    ("transient", "transient"),
    ("open", "not released"),
)
OPEN, TRANSIENT = 5, 4
_OPS = (
    "aten::linear aten::mm aten::bmm aten::addmm aten::matmul aten::convolution aten::layer_norm aten::softmax "
    "aten::dropout aten::gelu aten::silu aten::mul aten::add aten::sub aten::cat aten::transpose aten::contiguous "
    "aten::embedding aten::native_layer_norm_backward aten::mm_backward aten::addmm_backward aten::softmax_backward "
    "aten::nll_loss aten::scatter aten::cumsum aten::masked_fill aten::empty aten::ones aten::copy_ aten::tanh "
    "npu::npu_fusion_attention npu::npu_rms_norm npu::npu_swiglu c10d::allreduce_ c10d::_allgather_base_ "
    "aten::_to_copy aten::empty_strided aten::index_select aten::gather aten::topk aten::sort aten::where "
    "Optimizer.step#AdamW.step ProfilerStep#3"
)
OPS = _OPS.split()
HOSTILE = (
    "aten::mm</script><img src=x onerror=alert(1)>",
    "$$\\href{javascript:alert(1)}{x}$$",
    "<svg onload=alert(1)>&lt;b&gt;",
    "\u202ertl override \u05d0\u05d1\u05d2",
    "nul\x00in\x00side",
    "long" * 25_000,
    "'\"`${alert(1)}",
    "",
)
PLUMBING = tuple(f"torch/nn/modules/module.py:{1770 + k} _call_impl" for k in range(6))


@dataclass
class Synthetic:
    """One payload and what it was made of, as plain arrays of every block of the timeline."""

    header: dict[str, Any]
    columns: dict[str, Int64Array]
    start: Int64Array
    end: Int64Array
    size: Int64Array
    name: Int64Array
    series: Int64Array
    late: Int64Array
    reserved: dict[int, tuple[Int64Array, Int64Array]] = field(default_factory=dict)

    def payload(self) -> bytes:
        delta = ["start", *(name for name in self.columns if "_t" in name), "late_block"]
        return encode_payload(self.header, self.columns, delta=[name for name in delta if name in self.columns])

    def recorded(self, t: int) -> bool:
        return any(start <= t < end for start, end in RECORDED)

    def live(self, t: int, series: int = 0, *, active: bool = False) -> npt.NDArray[np.bool_]:
        """Mask of the blocks alive at an instant, straight from the definition."""
        end = self.end + self.late if active else self.end
        return (self.series == series) & (self.start <= t) & (t < end)

    def value(self, ledger: str, t: int, series: int = 0) -> int | None:
        """Value of a ledger at an instant, None without data."""
        if ledger == "resident":
            return stored_value(self.columns["resident_t"], self.columns["resident_v"], t)
        column = "older" if ledger == "allocated" else ledger
        base = stored_value(self.columns[f"{column}_t_{series}"], self.columns[f"{column}_v_{series}"], t)
        if base is None or ledger in ("older", "reserved"):
            return base
        return base + int(self.size[self.live(t, series, active=ledger == "active")].sum())

    def instants(self, series: int = 0) -> Int64Array:
        """Return every instant at which something of a series changes."""
        mine = self.series == series
        end = self.end[mine]
        older = self.columns[f"older_t_{series}"]
        return np.unique(np.concatenate([self.start[mine], end, end + self.late[mine], older]))

    def highest(self, t0: int, t1: int, series: int = 0) -> int:
        """Highest allocated bytes in [t0, t1], in numpy."""
        return int(self.allocated(t0, t1, series)[1].max())

    def allocated(self, t0: int, t1: int, series: int = 0) -> tuple[Int64Array, Int64Array]:
        t = self.instants(series)
        t = np.unique(np.concatenate([[t0], t[(t >= t0) & (t <= t1)]]))
        mine = (self.series == series) & (self.end > self.start)
        older_t, older_v = self.columns[f"older_t_{series}"], self.columns[f"older_v_{series}"]
        older = older_v[np.searchsorted(older_t, t, "right") - 1]
        live = _sum_until(self.start[mine], self.size[mine], t) - _sum_until(self.end[mine], self.size[mine], t)
        return t, np.where(older > 0, older - 1 + live, -1)


def stored_value(times: Int64Array, values: Int64Array, t: int) -> int | None:
    """Value of a stored step column at an instant."""
    i = int(np.searchsorted(times, t, "right")) - 1
    return None if i < 0 or values[i] == 0 else int(values[i]) - 1


def _sum_until(t: Int64Array, size: Int64Array, at: Int64Array) -> Int64Array:
    order = np.argsort(t, kind="stable")
    total = np.concatenate([[0], np.cumsum(size[order])])
    return total[np.searchsorted(t[order], at, "right")]


def _blocks(rng: np.random.Generator, n: int, series: int, n_names: int) -> dict[str, Int64Array]:
    source = rng.integers(0, 2, n)
    low = np.array([r[0] for r in RECORDED])[source]
    high = np.array([r[1] for r in RECORDED])[source]
    step = 2 * NS_PER_S
    kind = rng.choice(5, n, p=[0.01, 0.03, 0.08, 0.16, 0.72])
    at = low + ((high - low) * rng.random(n) ** 0.9).astype(np.int64)
    scale = np.array([6e9, 2.5e9, 8e8, 6e7, 2e5])[kind] * min(1.0, (2e4 / n) ** 0.5 * 2)
    life = (rng.exponential(scale) + 1).astype(np.int64)
    within = np.where(kind == 3, step - (at - low) % step, 1 << 60)
    life = np.minimum(life, within)
    life[rng.random(n) < 0.002] = 0
    end = np.minimum(at + life, high)
    reuse = np.flatnonzero(rng.random(n) < 0.03)  # the next block of an operator starts as another one ends
    before = rng.integers(0, n, len(reuse))
    free = ~np.isin(before, reuse) & (end[before] < high[before])
    reuse, before = reuse[free], before[free]
    at[reuse], high[reuse] = end[before], high[before]
    end[reuse] = np.minimum(at[reuse] + life[reuse], high[reuse])
    is_open = (rng.random(n) < min(0.005, 40 / n)) & (end > at)
    end = np.where(is_open, high, end)
    size = 512 * (1 + (2 ** (rng.random(n) * 12)).astype(np.int64) * np.where(kind < 3, 6, 1))
    cls = np.where(is_open, OPEN, np.array([1, 2, 2, 3, TRANSIENT])[kind])
    name = np.minimum((rng.exponential(0.16, n) * n_names).astype(np.int64), n_names - 1)
    name[reuse] = name[before]
    at, end = at // 10 * 10, np.maximum(end // 10 * 10, at // 10 * 10)
    return {
        "start": at,
        "end": end,
        "size": size,
        "name": name,
        "class": cls,
        "series": np.full(n, series, np.int64),
    }


def _older(rng: np.random.Generator, scale: float = 1.0) -> tuple[Int64Array, Int64Array]:
    times: list[int] = [SPAN[0]]
    values: list[int] = [0]
    for start, end in RECORDED:
        falls = np.sort(rng.integers(start + 1, end - 1, 12)) // 10 * 10
        levels = np.sort(rng.integers(6 << 20, int(scale * (180 << 20)), 13))[::-1]
        times += [start, *falls.tolist(), end]
        values += [*(levels + 1).tolist(), 0]
    return np.array(times, np.int64), np.array(values, np.int64)


def make(
    n: int = 2000,
    *,
    seed: int = 1,
    hostile: bool = False,
    giant: bool = False,
    second: bool = True,
    segments: int = 1,
    segment: int = 0,
) -> Synthetic:
    """Make a timeline of ``n`` blocks and the payload of one of its segments."""
    rng = np.random.default_rng(seed)
    names = [*HOSTILE, *OPS[: 12 if hostile else None]] if hostile else list(OPS)
    parts = [_blocks(rng, n, 0, len(names))]
    if second:
        parts.append(_blocks(rng, max(n // 10, 20), 1, len(names)))
    if giant:
        at = 20 * NS_PER_S
        parts.append(
            {
                key: np.array([value], np.int64)
                for key, value in {
                    "start": at,
                    "end": at + 4000,
                    "size": 1 << 30,
                    "name": 29,
                    "class": TRANSIENT,
                    "series": 0,
                }.items()
            }
        )
    block = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    order = np.lexsort((np.arange(len(block["start"])), block["start"]))
    block = {key: value[order] for key, value in block.items()}
    total = len(block["start"])
    late = np.where(
        (rng.random(total) < 0.02) & (block["class"] != OPEN), rng.integers(100, 400_000, total) // 10 * 10, 0
    )
    limit = np.where(block["start"] < RECORDED[1][0], RECORDED[0][1], RECORDED[1][1])
    late = np.maximum(np.minimum(late, limit - block["end"]), 0)

    frames = [
        *PLUMBING,
        *(f"model/layer_{k}.py:{70 + k} forward" for k in range(40)),
        "train.py:212 step",
        "train.py:48 main",
    ]
    if hostile:
        frames[10] = "<img src=x onerror=alert(2)> $$frame$$"
    n_frames = len(frames)
    stacks, sites = [], []
    for _ in range(120):
        inner = int(rng.integers(1, 4))
        own = rng.integers(len(PLUMBING), n_frames - 2, 2).tolist()
        stacks.append([*range(inner), own[0], 4, 5, own[1], n_frames - 2, n_frames - 1])
        sites.append(inner)
    stack = np.where(rng.random(total) < 0.8, block["name"] % 120 + 1, 0)

    columns: dict[str, Int64Array] = {}
    window = (SPAN[1] * segment // segments, SPAN[1] * (segment + 1) // segments)
    inside = (block["start"] < window[1]) & (np.maximum(block["end"], block["start"] + 1) > window[0])
    if segments == 1:
        inside[:] = True
    made = Synthetic({}, columns, block["start"], block["end"], block["size"], block["name"], block["series"], late)
    columns["id"] = np.arange(total, dtype=np.int64)[inside]
    columns["start"] = block["start"][inside]
    columns["life"] = (block["end"] - block["start"])[inside]
    columns["size"] = block["size"][inside]
    columns["name"] = block["name"][inside]
    columns["stack"] = stack[inside]
    columns["kind"] = np.where(stack[inside] > 0, 1 + (columns["id"] % 3 == 0), 0)
    columns["class"] = block["class"][inside]
    columns["series"] = block["series"][inside]
    late_at = np.flatnonzero(late[inside])
    columns["late_block"] = late_at.astype(np.int64)
    columns["late"] = late[inside][late_at]
    series = []
    for k in range(2 if second else 1):
        columns[f"older_t_{k}"], columns[f"older_v_{k}"] = _older(rng, 1.0 if k == 0 else 0.2)
        if k == 0:
            columns["active_t_0"], columns["active_v_0"] = columns["older_t_0"], columns["older_v_0"]
        t, v = made.allocated(*SPAN, k)
        top = int(v.argmax())
        reserved_t, reserved_v = _reserved(t, v)
        columns[f"reserved_t_{k}"], columns[f"reserved_v_{k}"] = reserved_t, reserved_v
        peak = {
            "allocated": [int(t[top]), int(v[top])],
            "reserved": [int(reserved_t[reserved_v.argmax()]), int(reserved_v.max()) - 1],
        }
        series.append(
            {
                "label": ("PTA", "GE")[k],
                "pool": ("PTA", "GE")[k],
                "device": "NPU:0",
                "peak": peak,
                "has_active": k == 0,
                "has_reserved": True,
                "caveat": None,
            }
        )
    resident_t = np.arange(0, SPAN[1], 250_000_000, dtype=np.int64)
    columns["resident_t"] = resident_t
    top0 = series[0]["peak"]["reserved"][1]
    columns["resident_v"] = (top0 * (1.08 + 0.05 * np.sin(resident_t / 4e9))).astype(np.int64) + 1
    t, v = made.allocated(*SPAN, 0)
    columns["overview_t"], columns["overview_v"] = _thin(t, v + 1, 700)

    text = HOSTILE[0] if hostile else ""
    made.header = {
        "format": 1,
        "title": f"actor rank 0{text}",
        "subtitle": f"run-a · NPU 0 · PTA{text}",
        "t0_ns": T0,
        "span": list(SPAN),
        "window": list(window),
        "segment": segment,
        "segments": [
            {
                "href": f"memory_timeline_{k:02d}.html",
                "start": SPAN[1] * k // segments,
                "end": SPAN[1] * (k + 1) // segments,
            }
            for k in range(segments)
        ],
        "index_href": "index.html",
        "names": names,
        "frames": frames,
        "plumbing": [1 if k < len(PLUMBING) else 0 for k in range(n_frames)],
        "stacks": stacks,
        "sites": sites,
        "classes": [{"key": key, "label": label} for key, label in CLASSES],
        "series": series,
        "resident": {"label": "resident (APP)", "interval_ns": 250_000_000, "peak": [0, 0]},
        "sources": [
            {"label": f"collection {k}", "start": start, "end": end, "status": "ok", "series": 0}
            for k, (start, end) in enumerate(RECORDED)
        ],
        "phases": [
            {
                "name": f"rollout{text}",
                "kind": "role",
                "start": RECORDED[0][0],
                "end": 14_000_000_000,
                "peak_bytes": 900 << 20,
                "floor_bytes": 200 << 20,
            },
            {
                "name": "actor_update",
                "kind": "role",
                "start": 14_000_000_000,
                "end": RECORDED[0][1],
                "peak_bytes": 1500 << 20,
                "floor_bytes": 220 << 20,
            },
            {
                "name": "ref_log_prob",
                "kind": "role",
                "start": RECORDED[1][0],
                "end": RECORDED[1][1],
                "peak_bytes": 700 << 20,
                "floor_bytes": 150 << 20,
            },
            {
                "name": "micro_batch 0",
                "kind": "range",
                "start": 15_000_000_000,
                "end": 19_000_000_000,
                "peak_bytes": None,
                "floor_bytes": None,
            },
            {
                "name": "attention",
                "kind": "range",
                "start": 15_500_000_000,
                "end": 17_000_000_000,
                "peak_bytes": None,
                "floor_bytes": None,
            },
        ],
        "steps": [
            {
                "name": f"ProfilerStep#{k}",
                "start": 2 * k * NS_PER_S + 500_000_000,
                "end": 2 * (k + 1) * NS_PER_S + 500_000_000,
            }
            for k in [*range(13), *range(17, 29)]
        ],
        "notes": ["3 rows had no release", "older memory is recorded allocated minus live rows" + text],
    }
    return made


def _reserved(t: Int64Array, allocated: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Reserve in whole 64 MiB, never less than before inside a recording."""
    grain = 64 << 20
    times, values = [SPAN[0]], [0]
    for start, end in RECORDED:
        inside = (t >= start) & (t < end)
        level = np.maximum.accumulate((allocated[inside] // grain + 1) * grain)
        change = np.flatnonzero(np.diff(level, prepend=-1))
        times += [*t[inside][change].tolist(), end]
        values += [*(level[change] + 1).tolist(), 0]
    return np.array(times, np.int64), np.array(values, np.int64)


def _thin(t: Int64Array, v: Int64Array, columns: int) -> tuple[Int64Array, Int64Array]:
    keep: set[int] = set()
    place = (t * columns // (SPAN[1] + 1)).astype(np.int64)
    for c in np.unique(place):
        at = np.flatnonzero(place == c)
        keep |= {int(at[0]), int(at[-1]), int(at[v[at].argmax()]), int(at[v[at].argmin()])}
    order = np.array(sorted(keep))
    return t[order], np.maximum(v[order], 0)
