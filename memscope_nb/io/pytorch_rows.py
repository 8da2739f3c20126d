"""Trace entries of a snapshot as columns, and its stacks by number, while the pickle is still being read.

An entry becomes one number, a frame another one, a list of frames a third: lists and dicts are gone as soon as they
are whole. Stacks are known by the identity of their list first (writers share it), then by their content.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..stacks import Frames

ACTIONS = (
    "alloc", "free_requested", "free_completed", "free", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom", "snapshot", "workspace_snapshot", "annotate",
)  # fmt: skip
"""Known actions (spec/pytorch 1.4); the numbers in ``Rows.action`` are positions here, others follow."""

Numbers: TypeAlias = "range | npt.NDArray[np.int64]"
"""Entries of a device, in order."""

NO_TIME = 0
MAX_FORWARD = 4096
"""Frames of a forward stack that are looked at."""
_WORD = (1 << 64) - 1
_MAX = (1 << 63) - 1

# Frames of the recorder and of the interpreter stand inside every stack of C++ frames and say nothing (spec 1.4).
_NOISE = re.compile(
    r"^(_?Py[A-Z_]\w*|_PyEval\w*|_PyObject\w*|PyEval_\w*|cfunction_\w+|method_vectorcall\w*|slot_tp_\w+|type_call|"
    r"pymain_\w+|run_(mod|eval_code_obj)|Py_(Run|Bytes)Main|__libc_start\w*|_start|function_code_fastcall)$"
    r"|torch::unwind::|CapturedTraceback|gather_with_cpp|c10::impl::(make_)?boxed|BoxedKernel"
)
_C_FILE = re.compile(r"\.(c|cc|cpp|cxx|cu|h|hpp|so[.\d]*)$|^(\?\?)?$|^<?unknown>?$")


class Frame(int):
    """Number of a frame; -1 for one that is not shown."""

    __slots__ = ()


class Stack(int):
    """Number of a stack; -1 for an empty one."""

    __slots__ = ()


class Row(int):
    """Number of a trace entry."""

    __slots__ = ()


class RowRange:
    """Trace entries ``[start, stop)``."""

    __slots__ = ("start", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop


class Texts(dict[str, int]):
    """Numbers texts in the order in which they come."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number


class Rows:
    """Collects entries, frames and stacks; the reducer of :class:`.pytorch_pickle.PlainUnpickler`.

    Attributes
    ----------
    device_free, oom_streams : dict
        By entry: what the driver had free, and the stream of a failed allocation, where they are written.
    n_odd : int
        Entries whose size or address is no number that fits: left out of the history.
    """

    def __init__(self) -> None:
        self.columns = {key: array(code) for key, code in _COLUMNS.items()}
        self.actions, self.labels, self.categories, self.pools = (Texts() for _ in range(4))
        for action in ACTIONS:
            self.actions[action]
        self.frames: list[str] = []
        self.stacks: list[tuple[int, ...]] = []
        self.device_free: dict[int, int] = {}
        self.oom_streams: dict[int, int] = {}
        self.n_odd = 0
        self.n_rows = 0
        self.backends: set[str] = set()
        self._frame_numbers: dict[tuple[str, str, int], Frame] = {}
        self._frame_items: dict[tuple[Any, ...], Frame] = {}
        self._stack_numbers: dict[tuple[int, ...], Stack] = {}

    # -- reducer --------------------------------------------------------------------------------------------------

    def reduce(self, found: dict[Any, Any]) -> Any:
        """Turn an entry or a frame into its number; other dicts stay."""
        if "action" in found:
            return self._row(found)
        if "filename" in found and "name" in found:
            frame = self._frame(found)
            if len(found) == 3 and type(found.get("line")) is int:
                self._frame_items[tuple(part for item in found.items() for part in item)] = frame
            return frame
        return found

    def reduce_json(self, found: dict[Any, Any]) -> Any:
        """Do the same for a dict of a JSON text, whose stacks are still lists."""
        if type(frames := found.get("frames")) is list:
            found["frames"] = self.stack_of(frames)
        return self.reduce(found)

    def stack_of(self, frames: list[Any]) -> Stack:
        """Return the number of a list of frames, innermost first."""
        raw = tuple(frames) if set(map(type, frames)) == {Frame} else ()  # a plain number equals a frame's
        number = self._stack_numbers.get(raw) if raw else None
        if number is not None:  # mostly seen before
            return number
        key = tuple(frame for frame in frames if type(frame) is Frame and frame >= 0)
        number = self._stack_numbers.get(key)
        if number is None:
            number = self._stack_numbers[key] = Stack(len(self.stacks)) if key else Stack(-1)
            if key:
                self.stacks.append(tuple(map(int, key)))
        if raw:
            self._stack_numbers[raw] = number
        return number

    def pack(self, items: list[Any]) -> list[Any]:
        """Join entries that follow each other, and ranges of them that were joined before."""
        if not items or type(items[-1]) is not Row:
            return items
        first = next((k for k, item in enumerate(items) if type(item) is Row), 0)
        run = items[first:]
        is_run = all(type(b) is Row and a + 1 == b for a, b in pairwise(run))
        return [*items[:first], RowRange(int(run[0]), int(run[-1]) + 1)] if is_run else items

    def known(self, items: list[Any]) -> Frame | None:
        """Return the frame of these keys and values, if it was seen in the same order."""
        try:
            return self._frame_items.get(tuple(items))
        except TypeError:
            return None

    # -- parts ----------------------------------------------------------------------------------------------------

    def _frame(self, found: dict[Any, Any]) -> Frame:
        file, name, line = found["filename"], found["name"], found.get("line")
        key = (file if type(file) is str else "", name if type(name) is str else "", line if type(line) is int else 0)
        number = self._frame_numbers.get(key)
        if number is None:
            number = self._frame_numbers[key] = self._new_frame(*key)
        return number

    def _new_frame(self, file: str, name: str, line: int) -> Frame:
        for backend in ("torch_npu", "torch/xpu"):
            if backend in file:
                self.backends.add(backend)
        if _C_FILE.search(file) and _NOISE.search(name):
            return Frame(-1)
        self.frames.append(name if file in ("", "??", "none") else f"{file}({line}): {name}")
        return Frame(len(self.frames) - 1)

    def _row(self, found: dict[Any, Any]) -> Row:
        number = self.n_rows
        self.n_rows += 1
        get = found.get
        action, addr, size, time_us = found["action"], get("addr", 0), get("size", 0), get("time_us", NO_TIME)
        stream, stack, pool = get("stream", 0), get("frames", -1), get("pool_id")
        if type(action) is not str or type(addr) is not int or type(size) is not int or not 0 <= size <= _MAX:
            self.n_odd += 1
            action, addr, size = "", 0, 0
        columns = self.columns
        columns["action"].append(self.actions[action])
        columns["addr"].append(addr & _WORD)  # the C++ writer casts to signed: the same modulo 2**64
        columns["size"].append(size)
        columns["time_us"].append(time_us if type(time_us) is int and 0 <= time_us < _MAX // 1000 else NO_TIME)
        columns["stream"].append(stream & _WORD if type(stream) is int else 0)
        columns["stack"].append(stack if type(stack) is Stack else -1)
        columns["pool"].append(-1 if pool is None else self.pools[pool_text(pool)])
        if "forward_frames" in found:
            self._put("forward", number, self._forward(found["forward_frames"]))
        if "user_metadata" in found:
            self._put("label", number, self._label(found["user_metadata"]))
        category = get("category")
        if type(category) is str:
            self._put("category", number, self.categories[category])
        free = get("device_free")
        if type(free) is int and 0 <= free <= _MAX:
            self.device_free[number] = free
        if action == "oom" and type(found.get("stream")) is int:  # 0 is a stream: absent is something else
            self.oom_streams[number] = found["stream"] & _WORD
        return Row(number)

    def _put(self, key: str, row: int, value: int) -> None:
        """Set a value of a column that most files lack: it is as long as its last value."""
        column = self.columns[key]
        column.extend(_NONE * (row - len(column)))
        column.append(value)

    def _label(self, text: Any) -> int:
        if type(text) is dict:  # some third-party writers; a nested value could unfold without end
            plain = [(key, value) for key, value in list(text.items())[:20] if type(value) in (str, int, float, bool)]
            text = ", ".join(f"{key}={value}" for key, value in plain)
        return self.labels[text] if type(text) is str and text else -1

    def _forward(self, lines: Any) -> int:
        """Stack of the forward pass: one text a frame, which may end in a newline."""
        if type(lines) is not list:
            return -1
        frames = [self._line(line) for line in lines[:MAX_FORWARD] if type(line) is str and line.strip()]
        return self.stack_of(frames)

    def _line(self, line: str) -> Frame:
        key = ("", line.strip(), 0)
        number = self._frame_numbers.get(key)
        if number is None:
            self.frames.append(key[1])
            number = self._frame_numbers[key] = Frame(len(self.frames) - 1)
        return number

    # -- result ---------------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns without copying them; one without any value takes no memory."""
        found: dict[str, npt.NDArray[Any]] = {}
        for key, values in self.columns.items():
            if key in _RARE and not values:
                found[key] = np.broadcast_to(np.int32(-1), (self.n_rows,))
                continue
            if len(values) < self.n_rows:
                values.extend(_NONE * (self.n_rows - len(values)))
            found[key] = np.frombuffer(values, _DTYPES[_COLUMNS[key]])
        return found

    def take_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns and forget them: their memory is free once nobody uses the arrays any more."""
        found = self.arrays()
        self.columns = {}
        return found

    def stack_frames(self, number: int) -> Frames:
        """Return the frames of a stack, innermost first."""
        return tuple(self.frames[frame] for frame in self.stacks[number])


_COLUMNS = {
    "action": "i", "addr": "Q", "size": "q", "time_us": "q", "stream": "Q", "stack": "i", "forward": "i",
    "pool": "i", "label": "i", "category": "i",
}  # fmt: skip
_RARE = ("forward", "label", "category")
_NONE = array("i", [-1])
_DTYPES: dict[str, Any] = {"i": np.int32, "q": np.int64, "Q": np.uint64}


def pool_text(pool: Any) -> str:
    """Return a pool's identity as text: ``0,0`` is the default pool."""
    parts = pool[:2] if isinstance(pool, (tuple, list)) else (pool,)
    return ",".join(str(part) if type(part) in (int, str) else "?" for part in parts)


def row_numbers(trace: Any, limit: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the entries in a (possibly nested) list, in order; what is no entry is left out.

    Raises
    ------
    InputError
        If there are more than ``limit``: references to one entry over and over, a small file that unfolds to a huge
        one.
    """
    parts: list[npt.NDArray[np.int64]] = []
    for part in _ranges(trace, 0):
        parts.append(part)
        limit -= len(part)
        if limit < 0:
            raise InputError("entries that refer to each other over and over: no snapshot")
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _ranges(trace: Any, depth: int) -> Iterator[npt.NDArray[np.int64]]:
    single: list[int] = []
    for item in trace if type(trace) is list else ():
        if type(item) is Row:
            single.append(int(item))
            continue
        if single:
            yield np.array(single, dtype=np.int64)
            single = []
        if type(item) is RowRange:
            yield np.arange(item.start, item.stop, dtype=np.int64)
        elif type(item) is list and depth == 0:
            yield from _ranges(item, 1)
    if single:
        yield np.array(single, dtype=np.int64)
