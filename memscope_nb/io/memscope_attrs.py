"""The ``Attr`` cell of msMemScope dumps: ``{key:value,...}`` without any quoting, or JSON in databases (spec 2.4).

Values hold commas (shapes, lists of labels) and colons (paths, labels), so a value runs to the next *known* key.
Numbers are cut out of whole columns by regular expressions; labels once per distinct text.
"""

from __future__ import annotations

import json
import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..model import NA_NS

KNOWN_KEYS = (
    "allocation_id", "addr", "size", "used", "total", "process_used", "device_used", "owner", "page_type", "alloc_type",
    "inefficient_type", "inefficient", "pinned", "type", "dtype", "format", "shape", "path", "workspace_ptr",
    "workspace_size", "workspace ptr", "workspace size", "streamId", "taskId", "reserved", "max_reserved", "allocated",
    "max_allocated", "free", "device_rate", "reserved_rate", "total_mem", "free_mem", "peak_reserved",
    "peak_allocated", "device_utilization", "pt_utilization", "MID", "shadow", "ret", "step", "kernel", "client",
    "func", "req_size", "flag", "pool", "ptr", "timestamp",
)  # fmt: skip

_KEY = re.compile(r"[{,]\s*(" + "|".join(sorted(KNOWN_KEYS, key=len, reverse=True)) + r")\s*:")
_SPELLINGS = {
    "inefficient": "inefficient_type",
    "workspace ptr": "workspace_ptr",
    "workspace size": "workspace_size",
    "total_mem": "total",
    "free_mem": "free",
    "peak_reserved": "max_reserved",
    "peak_allocated": "max_allocated",
    "device_utilization": "device_rate",
    "pt_utilization": "reserved_rate",
}
"""Names in the documentation, and what the tool writes."""


def parse_attrs(text: str) -> dict[str, str]:
    """Split an Attr cell into its values; the first of equal keys counts, documented spellings become the real ones.

    Never fails: what is not a known key is part of the value before it. A text that was cut keeps its last value.
    """
    if text.startswith('{"'):
        try:
            pairs = json.loads(text)
        except (ValueError, RecursionError):
            pairs = None
            text = text.replace('"', "")  # a colon inside a value broke the JSON: the text rule still holds
        if isinstance(pairs, dict):
            return {_SPELLINGS.get(str(key), str(key)): str(value) for key, value in pairs.items()}
    found: dict[str, str] = {}
    matches = list(_KEY.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)][: len(matches)]
    for match, end in zip(matches, ends, strict=True):
        value = text[match.end() : end].strip()
        if end == len(text):
            value = value.removesuffix("}").rstrip()
        found.setdefault(_SPELLINGS.get(match[1], match[1]), value)
    return found


def attr_numbers(texts: pa.Array, key: str) -> npt.NDArray[np.int64]:
    """Return the integer of a key in each text, ``NA_NS`` where there is none."""
    cells = _extract(texts, key, r"-?\d{1,18}")
    numbers: npt.NDArray[np.int64] = pc.fill_null(cells.cast(pa.int64()), NA_NS).to_numpy(zero_copy_only=False)
    return numbers


def attr_words(texts: pa.Array, key: str) -> pa.Array:
    """Return the value of a key that is one word in each text, null where there is none."""
    return _extract(texts, key, r"\w*")


def attr_labels(texts: pa.Array, keys: tuple[str, ...]) -> dict[str, pa.Array]:
    """Return values that may hold commas and colons, null where there are none.

    The tail of a cell from the first of the keys on has few distinct texts: only these are parsed.
    """
    names = "|".join(keys)
    pattern = rf'[{{,]\s*"?(?P<v>(?:{names})"?\s*:.*)$'
    tails = pc.struct_field(pc.extract_regex(texts, pattern=f"(?s){pattern}"), "v").dictionary_encode()
    # The quote before the first key belongs to its JSON, which is no longer whole: the text rule serves both.
    parsed = [parse_attrs("{" + tail.replace('"', "")) for tail in tails.dictionary.to_pylist()]
    found = {}
    for key in keys:
        values = pa.array([one.get(_SPELLINGS.get(key, key)) or None for one in parsed], pa.string())
        found[key] = values.take(tails.indices)
    return found


def attr_flags(texts: pa.Array, key: str) -> npt.NDArray[np.bool_]:
    """Whether each text says ``key:true``."""
    hits = pc.match_substring_regex(texts, rf'[{{,]\s*"?{key}"?\s*:\s*"?true')
    flags: npt.NDArray[np.bool_] = pc.fill_null(hits, False).to_numpy(zero_copy_only=False)
    return flags


def _extract(texts: pa.Array, key: str, value: str) -> pa.Array:
    """First value of a key, in either syntax."""
    if not len(texts):
        return pa.array([], pa.string())
    return pc.struct_field(pc.extract_regex(texts, pattern=rf'[{{,]\s*"?{key}"?\s*:\s*"?(?P<v>{value})'), "v")
