"""The payload's binary form: a JSON header and unsigned integer columns in one gzip stream.

::

    gzip( uint32 little-endian: length of the header | header JSON (UTF-8) | column planes, one after another )

``header["columns"]`` lists ``{"name", "n", "width", "delta", "unit"}`` in the order of the planes. A column of ``n``
values takes ``width`` byte planes of ``n`` bytes (first the lowest byte of every value, then the next…): planes of
slowly changing bytes compress far better than interleaved integers. A value is the little-endian number made of its
bytes; with ``delta`` the running sum of those numbers; then times ``unit`` (the greatest common divisor, e.g. a 10 ns
clock). Everything is an unsigned integer below 2**53, hence exact as a JavaScript number.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

MAX_EXACT = 1 << 53
"""Above this a JavaScript number no longer holds every integer."""


def encode_payload(header: Mapping[str, Any], columns: Mapping[str, Int64Array], *, delta: Iterable[str] = ()) -> bytes:
    """Pack a header and columns of non-negative integers.

    Parameters
    ----------
    header : mapping
        JSON-ready; a key ``columns`` is added.
    columns : mapping of str to int64 array
        Non-negative values below 2**53.
    delta : iterable of str
        Names of the columns that never fall; they are stored as differences.

    Raises
    ------
    ValueError
        For a negative value, one of 2**53 or more, or a ``delta`` column that falls.
    """
    in_steps = set(delta)
    specs: list[dict[str, Any]] = []
    planes: list[bytes] = []
    for name, column in columns.items():
        values = np.asarray(column, dtype=np.int64)
        if len(values) and (values.min() < 0 or values.max() >= MAX_EXACT):
            raise ValueError(f"payload column {name!r} needs values in 0 .. 2**53 - 1")
        stored = np.diff(values, prepend=np.int64(0)) if name in in_steps else values
        if len(stored) and stored.min() < 0:
            raise ValueError(f"payload column {name!r} falls, so it cannot be stored as differences")
        unit = max(int(np.gcd.reduce(stored)), 1) if len(stored) else 1
        stored = stored // unit
        width = max((int(stored.max()).bit_length() + 7) // 8, 1) if len(stored) else 1
        little = stored.astype("<i8").view(np.uint8).reshape(-1, 8)
        planes.append(np.ascontiguousarray(little[:, :width].T).tobytes())
        specs.append({"name": name, "n": len(stored), "width": width, "delta": name in in_steps, "unit": unit})
    text = json.dumps({**header, "columns": specs}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    head = text.encode("utf-8", "replace")
    return gzip.compress(len(head).to_bytes(4, "little") + head + b"".join(planes), compresslevel=6, mtime=0)


def decode_payload(blob: bytes) -> tuple[dict[str, Any], dict[str, Int64Array]]:
    """Unpack what :func:`encode_payload` packed (the browser does the same in ``runtime/payload.js``)."""
    data = gzip.decompress(blob)
    start = 4 + int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4:start])
    columns: dict[str, Int64Array] = {}
    for spec in header.pop("columns"):
        n, width = spec["n"], spec["width"]
        planes = np.frombuffer(data, np.uint8, n * width, start).reshape(width, n)
        start += n * width
        little = np.zeros((n, 8), np.uint8)
        little[:, :width] = planes.T
        values = little.view("<i8").reshape(n).astype(np.int64)
        columns[spec["name"]] = (np.cumsum(values) if spec["delta"] else values) * spec["unit"]
    return header, columns
