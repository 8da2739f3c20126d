"""Cells of one block of a CSV file to integers: exact, and fast where every cell looks as a profiler writes it.

Each conversion first tests cheaply that nothing is out of the ordinary, in one pass over the bytes of the column. Only
a column that fails is looked at cell by cell, with patterns, to find and count the culprits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError
from ..model import NA_NS
from .report import ReadReport

Int64Array = npt.NDArray[np.int64]
Place = Callable[[int], str]
"""Names the place of a row of the block, for remarks."""

EMPTY_CELLS = ["", "N/A", "NA", "nan", "None", "null"]
_TIME = r"^-?((\d{1,15}|[1-8]\d{15})(\.\d{0,3})?|\.\d{1,3})$"
_EMPTY = pa.array(EMPTY_CELLS)
_ZERO_TAIL = r"^(-?\d*\.\d{3})0+$"
_LONG_TIME = r"^(-?\d*\.\d{3})\d+$"
_EXPONENT = r"^-?\d+(\.\d*)?[eE][+-]?\d+$"
_SIZE = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?$"
_INTEGER = r"^-?\d{1,18}$"
_EPOCH_WIDTH = len("1779785515596661.421")
_EPOCH_POWERS = 10 ** np.arange(_EPOCH_WIDTH - 2, -1, -1, dtype=np.int64)
_EPOCH_DOT = _EPOCH_WIDTH - 4


class NeedsTextError(Exception):
    """A column read as numbers holds something that only its text can settle."""


# -- times --------------------------------------------------------------------------------------------------------


def times(cells: pa.StringArray, name: str, file_name: str, place: Place, report: ReadReport) -> Int64Array:
    """Turn decimal microseconds into integer ns without a float (spec/ascend_profiler 8).

    Raises
    ------
    InputError
        If a spreadsheet program has destroyed the times.
    """
    plain = _plain_times(cells)
    return plain if plain is not None else _odd_times(cells, name, file_name, place, report)


def _plain_times(cells: pa.StringArray) -> Int64Array | None:
    """Digits with at most three decimals, a TAB behind them or not, or empty; None if a cell looks different."""
    offsets, text = _text_of(cells)
    lengths = np.diff(offsets)
    filled = lengths > 0
    widths = lengths if (n_filled := int(filled.sum())) == len(lengths) else lengths[filled]
    if not n_filled:
        return np.full(len(lengths), NA_NS, dtype=np.int64)
    width = int(widths[0])
    if width - _EPOCH_WIDTH in (0, 1) and (widths == width).all():
        values = _epochs(text.reshape(n_filled, width))
    else:
        values = _decimals(cells.filter(pa.array(filled)) if n_filled < len(lengths) else cells, text)
    if values is None or n_filled == len(lengths):
        return values
    full = np.full(len(lengths), NA_NS, dtype=np.int64)
    full[filled] = values
    return full


def _epochs(table: npt.NDArray[np.uint8]) -> Int64Array | None:
    """Times of today, which all have their dot in the same place: digits times powers of ten."""
    if (table[:, _EPOCH_DOT] != 46).any() or (table[:, _EPOCH_WIDTH:] != 9).any():
        return None
    digits = np.delete(table[:, :_EPOCH_WIDTH], _EPOCH_DOT, axis=1) - 48  # what is no digit wraps around to above 9
    if digits.max() > 9 or digits[:, 0].max() == 9:  # the latter is near the end of int64
        return None
    return digits @ _EPOCH_POWERS


def _decimals(cells: pa.StringArray, text: npt.NDArray[np.uint8]) -> Int64Array | None:
    if text.tobytes().translate(None, b"0123456789.\t"):  # a sign, an exponent, a word
        return None
    try:
        decimals = pc.ascii_rtrim(cells, characters="\t").cast(pa.decimal128(22, 3))
    except pa.ArrowInvalid:
        return None
    low, high = np.frombuffer(decimals.buffers()[1], np.int64)[: 2 * len(decimals)].reshape(-1, 2).T
    return np.ascontiguousarray(low) if not high.any() and low.min(initial=0) >= 0 else None


def _odd_times(cells: pa.StringArray, name: str, file_name: str, place: Place, report: ReadReport) -> Int64Array:
    cells = _without_empty(cells)
    damaged = pc.fill_null(pc.match_substring_regex(cells, _EXPONENT), False)
    if pc.any(damaged).as_py():
        value = cells.filter(damaged)[0].as_py()
        raise InputError(
            f"{file_name}: times such as {value} have lost their resolution (saved by a spreadsheet program); "
            "use the original file or export it again"
        )
    cells = pc.replace_substring_regex(cells, _ZERO_TAIL, r"\1")
    long = pc.fill_null(pc.match_substring_regex(cells, _LONG_TIME), False)
    if pc.any(long).as_py():
        report.repair(f"{file_name}: {name} cut to whole nanoseconds", pc.sum(long).as_py())
        cells = pc.replace_substring_regex(cells, _LONG_TIME, r"\1")
    decimals = _readable(cells, _TIME, name, file_name, place, report).cast(pa.decimal128(22, 3))
    ns = pc.multiply(decimals, pa.scalar(1000, pa.decimal128(4, 0))).cast(pa.int64())
    return _filled(ns)


# -- sizes --------------------------------------------------------------------------------------------------------


def whole_sizes(cells: pa.DoubleArray, factor: int) -> Int64Array:
    """Turn sizes that Arrow has read as numbers into bytes.

    A float64 is exact here: sizes are multiples of 512 B, so their text in KB or MB is a dyadic number, which parsing
    returns exactly.

    Raises
    ------
    NeedsTextError
        If one is not a whole number of bytes, or no number at all (``inf``).
    """
    scaled = cells.to_numpy(zero_copy_only=False) * factor
    unknown = np.isnan(scaled)
    n_unknown = int(unknown.sum())
    if n_unknown:
        scaled[unknown] = 0.0
    whole = np.rint(scaled)
    if n_unknown != cells.null_count or not (whole == scaled).all() or np.abs(whole).max(initial=0) >= 1 << 62:
        raise NeedsTextError
    values: Int64Array = whole.astype(np.int64)
    if n_unknown:
        values[unknown] = NA_NS
    return values


def sizes(
    cells: pa.StringArray, factor: int, name: str, file_name: str, place: Place, report: ReadReport
) -> tuple[Int64Array, Int64Array]:
    """Turn sizes into bytes; where the text is not a whole number of bytes also give half its last digit in bytes.

    Text that its producer rounded is brought to the nearest byte.
    """
    good = _readable(_without_empty(cells), _SIZE, name, file_name, place, report)
    scaled = pc.fill_null(good.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False) * factor
    whole = np.rint(scaled)
    known = np.isfinite(scaled) & (np.abs(scaled) < 1 << 62)
    values = np.where(known, np.where(known, whole, 0).astype(np.int64), NA_NS)
    rounding = np.zeros(len(values), dtype=np.int64)
    cut = np.flatnonzero(known & (np.abs(scaled - whole) > 1e-4))
    for i in cut:  # only the cells that a producer or a re-save rounded
        decimals = len(good[int(i)].as_py().partition(".")[2])
        rounding[i] = int(np.ceil(factor * 0.5 * 10.0**-decimals))
    return values, rounding


# -- integers -----------------------------------------------------------------------------------------------------


def integers(cells: pa.StringArray, name: str, file_name: str, place: Place, report: ReadReport) -> Int64Array:
    """Turn cells of up to 18 digits into integers."""
    offsets, text = _text_of(cells)
    if np.diff(offsets).max(initial=0) > 18 or text.tobytes().translate(None, b"0123456789"):
        good = _readable(_without_empty(cells), _INTEGER, name, file_name, place, report)
    else:
        good = pc.if_else(pc.equal(cells, ""), pa.scalar(None, pa.string()), cells)
    return _filled(good.cast(pa.int64()))


# -- common -------------------------------------------------------------------------------------------------------


def _text_of(cells: pa.StringArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Where the cells begin and end, and the bytes from the first to the last one."""
    _, offsets, text = cells.buffers()
    ends = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1]
    if text is None or not len(cells):
        return np.zeros(len(cells) + 1, np.int32), np.empty(0, np.uint8)
    return ends, np.frombuffer(text, np.uint8)[ends[0] : ends[-1]]


def _without_empty(cells: pa.StringArray) -> pa.StringArray:
    trimmed = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.is_in(trimmed, value_set=_EMPTY), pa.scalar(None, pa.string()), trimmed)


def _readable(
    cells: pa.StringArray, pattern: str, name: str, file_name: str, place: Place, report: ReadReport
) -> pa.StringArray:
    """Cells that match; the others become unknown and are counted with line and value."""
    bad = pc.fill_null(pc.invert(pc.match_substring_regex(cells, pattern)), False)
    if pc.any(bad).as_py():
        first = int(pc.index(bad, True).as_py())
        example = f"{place(first)}: {cells[first].as_py()[:60]!r}"
        report.repair(f"{file_name}: unreadable cells in {name} taken as unknown", pc.sum(bad).as_py(), example)
        cells = pc.if_else(bad, pa.scalar(None, pa.string()), cells)
    return cells


def _filled(values: pa.Array) -> Int64Array:
    filled: Int64Array = pc.fill_null(values, NA_NS).to_numpy(zero_copy_only=False)
    return filled
