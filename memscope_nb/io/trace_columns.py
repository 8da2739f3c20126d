"""Columns of a trace from undecoded JSON values: numbers for names and stacks, exact times and integers."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..stacks import StackPool

Int64Array = npt.NDArray[np.int64]

ALWAYS_KEPT = re.compile(r"ProfilerStep#\d+$|autograd::engine|Backward\d*$")
"""Names of operators that steps and backward passes are known by: kept whatever the filter."""

_TIME_CHARACTERS = b'0123456789."\n'
_NS_PER_DIGIT = np.array([1000, 100, 10, 1], dtype=np.int64)
_MAX = np.iinfo(np.int64).max
_EPOCH_WIDTH = len('"1779785515596661.421"\n')
_EPOCH_MARKS = np.array([0, 17, 21, 22])
_EPOCH_MARK_VALUES = np.frombuffer(b'"."\n', np.uint8)
_EPOCH_DIGITS = np.array([*range(1, 17), *range(18, 21)])
_EPOCH_POWERS = 10 ** np.arange(18, -1, -1, dtype=np.int64)
_SAMPLE_STEP = 23


class NameCodes(dict[str, int]):
    """Numbers names in the order in which they come, and remembers which ones the filter keeps."""

    def __init__(self, names: Collection[str] | None) -> None:
        super().__init__()
        self._names = names
        self.wanted = bytearray()

    def __missing__(self, name: str) -> int:
        code = self[name] = len(self)
        self.wanted.append(self._names is None or clean(name) in self._names or ALWAYS_KEPT.search(name) is not None)
        return code

    def compact(self, codes: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Drop the names that no code uses; the others get new numbers in the same order."""
        used = np.zeros(len(self) + 1, dtype=bool)
        used[codes] = True
        return (np.cumsum(used, dtype=np.int32) - 1)[codes], list(_unique(compress(self, used.tolist())))


class RawStacks:
    """Gives stacks numbers while their JSON text is still undecoded: most are repeats of one seen before.

    Hashing 2 KB takes longer than comparing them. A sample of the bytes finds the candidate and the comparison
    decides, so that a whole text is hashed only when another one has the same sample.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[bytes, int]] = {}
        self._others: dict[bytes, int] = {}
        self._decoded: dict[str, int] = {}
        self._texts: list[bytes | str] = []

    def intern(self, values: Iterable[msgspec.Raw | None]) -> Iterator[int]:
        """Yield the number of each JSON value, -1 where there is no text."""
        first = self._first
        for raw in values:
            if raw is None:
                yield -1
                continue
            data = bytes(raw)
            sample = data[::_SAMPLE_STEP]
            known = first.get(sample)
            if known is None:
                known = first[sample] = data, self._new(data)
            elif known[0] != data:
                if data not in self._others:
                    self._others[data] = self._new(data)
                yield self._others[data]
                continue
            yield known[1]

    def _new(self, data: bytes) -> int:
        if not data.startswith(b'"') or data == b'""':  # another type, or no value at all
            return -1
        self._texts.append(data)
        return len(self._texts) - 1

    def intern_text(self, text: str) -> int:
        """Return the number of a decoded text, -1 for an empty one."""
        number = self._decoded.get(text, -1)
        if number < 0 and text:
            number = self._decoded[text] = len(self._texts)
            self._texts.append(text)
        return number

    def compact(self, codes: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], StackPool]:
        """Decode; texts that were written in different ways become one."""
        self._first.clear()
        self._others.clear()
        self._decoded.clear()
        pool = StackPool()
        mapping = np.full(len(self._texts) + 1, -1, dtype=np.int32)
        for number, data in enumerate(self._texts):
            text = data if isinstance(data, str) else json.loads(data.decode("utf-8", "surrogateescape"))
            mapping[number] = pool.intern(clean(text))
            self._texts[number] = ""
        return mapping[codes], pool


def exact_ints(values: list[Any]) -> Int64Array | None:
    """Turn integers into an array; None if one is no integer or too large."""
    try:
        return np.frombuffer(array("q", values), np.int64)
    except (TypeError, OverflowError):
        return None


def exact_ns(values: Sequence[msgspec.Raw]) -> Int64Array | None:
    """Turn microseconds, JSON numbers or texts of digits with at most one dot, into ns; None if one looks different.

    No digit passes through a float. More than three decimals, signs and exponents are left to
    :func:`~memscope_nb.units.us_to_ns`, which is the rule here.
    """
    text = b"\n".join(values) + b"\n"
    if text.translate(None, _TIME_CHARACTERS):
        return None
    epochs = _epochs(text, len(values))
    return epochs if epochs is not None else _decimals(text.translate(None, b'"'), len(values))


def _epochs(text: bytes, n: int) -> Int64Array | None:
    """Read quoted times of today, ``"1779785515596661.421"``, which all have their dot in the same place."""
    if len(text) != n * _EPOCH_WIDTH:
        return None
    table = np.frombuffer(text, np.uint8).reshape(n, _EPOCH_WIDTH)
    if not (table[:, _EPOCH_MARKS] == _EPOCH_MARK_VALUES).all():
        return None
    digits = table[:, _EPOCH_DIGITS] - 48  # quotes, dots and line feeds wrap around to more than 9
    if digits.max(initial=0) > 9 or digits[:, 0].max(initial=0) == 9:  # not a digit, or near the end of int64
        return None
    return digits @ _EPOCH_POWERS


def _decimals(text: bytes, n: int) -> Int64Array | None:
    """Read one number a line, whole or with up to three decimals."""
    characters = np.frombuffer(text, np.uint8)
    ends, dots = np.flatnonzero(characters == 10), np.flatnonzero(characters == 46)
    if len(ends) != n:
        return None
    row = np.arange(n) if len(dots) == n else np.searchsorted(ends, dots)
    starts = np.append(0, ends[:-1] + 1)
    n_decimals = ends[row] - dots - 1
    # One dot in a row at most, digits before it, and no more than three after it.
    if len(dots) and (
        (np.diff(row) <= 0).any() or (dots <= starts[row]).any() or n_decimals.min() < 0 or n_decimals.max() > 3
    ):
        return None
    scale = np.full(n, 1000, dtype=np.int64)
    scale[row] = _NS_PER_DIGIT[n_decimals]
    try:
        digits = np.fromiter(map(int, text.translate(None, b".").split(b"\n", n)[:-1]), np.int64, n)
    except (ValueError, OverflowError):
        return None
    return digits * scale if (digits <= _MAX // scale).all() else None


def clean(text: str) -> str:
    """Replace lone surrogates, which JSON allows and UTF-8 (Arrow, HTML) does not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _unique(names: Iterator[str]) -> Iterator[str]:
    """Category names must differ even after cleaning."""
    seen: dict[str, int] = {}
    for name in names:
        cleaned = clean(name)
        count = seen[cleaned] = seen.get(cleaned, 0) + 1
        yield cleaned if count == 1 else f"{cleaned} ({count})"
