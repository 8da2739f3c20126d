"""Text cells of a dump to the ``events`` table, one per process (spec/msmemscope 2.2-2.4, 2.6, 14).

Texts become numbers of distinct texts batch by batch, so that of a large dump only typed columns stay in memory, and
the Attr cells, which analyses with the original tool's rules need whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ..model import NA_NS, Int64Array, empty_events, from_int64
from ..stacks import Frames, stacks_frame
from .memscope_attrs import attr_flags, attr_labels, attr_numbers, attr_words
from .report import ReadReport

LATEST_US = 9 * 10**15
"""Times below are microseconds: in ns this is April 1970, in µs the year 2255 (spec 2.2)."""
NO_DEVICE = "N/A"
_TYPES = {"ACL INIT": "ACL_INIT", "ACL FINI": "ACL_FINI"}
_NUMBERS = {
    "size": "size_bytes", "used": "used_bytes", "total": "total_bytes", "process_used": "process_used_bytes",
    "device_used": "device_used_bytes", "allocation_id": "allocation_id",
}  # fmt: skip
_NONE = ("", "N/A", "-1", "n/a", "NA")


def _type(text: str) -> str:
    """One spelling of an event type."""
    upper = " ".join(text.strip().strip('"').upper().split())
    return _TYPES.get(upper, upper).replace("EXCUTE", "EXECUTE")


def _device(text: str) -> str:
    shown = text.strip().strip('"')
    return NO_DEVICE if shown in _NONE else shown.lower()


def parse_address(text: str) -> int | None:
    """Address from hexadecimal (``0x``) or decimal text; ``None`` if it is neither or does not fit 64 bits."""
    text = text.strip()
    try:
        value = int(text, 16) if text[:2].lower() == "0x" else int(text)
    except ValueError:
        return None
    return value if 0 <= value < 1 << 64 else None


def split_frames(text: str) -> Frames:
    """Frames of a stack cell, innermost first; quotes around the whole (databases keep them) do not count."""
    text = text.strip()
    while len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1].strip()
    text = text.strip('"')
    frames = tuple(line.strip() for line in text.splitlines() if line.strip())
    return () if frames == ("NA",) else frames


class _Codes:
    """Numbers for distinct texts, the same over all batches."""

    def __init__(self, clean: Callable[[str], str] | None = None) -> None:
        self.clean = clean
        self.raw: dict[str | None, int] = {None: -1}
        self.values: dict[str, int] = {}
        self.parts: list[npt.NDArray[np.int32]] = []

    def add(self, cells: pa.Array) -> None:
        """Encode a batch of texts; null becomes -1."""
        encoded = cells.dictionary_encode()
        mapping = [self._code(text) for text in encoded.dictionary.to_pylist()]
        indices = pc.fill_null(encoded.indices, len(mapping)).to_numpy(zero_copy_only=False)
        self.parts.append(np.array([*mapping, -1], dtype=np.int32)[indices])

    def _code(self, text: str) -> int:
        code = self.raw.get(text)
        if code is None:
            value = self.clean(text) if self.clean else text
            code = self.raw[text] = self.values.setdefault(value, len(self.values))
        return code

    def codes(self) -> npt.NDArray[np.int32]:
        """Return the numbers of all rows."""
        self.parts = [np.concatenate(self.parts) if self.parts else np.empty(0, dtype=np.int32)]
        return self.parts[0]

    def categorical(self) -> pd.Categorical:
        """Return the texts of all rows."""
        return pd.Categorical.from_codes(self.codes(), list(self.values))


class EventCollector:
    """Collects batches of one or more files into the ``events`` of their processes."""

    def __init__(self, report: ReadReport) -> None:
        self.report = report
        self.n_files = 0
        self.n_rows = 0
        self.ints: dict[str, list[Int64Array]] = {
            name: [] for name in ("event_id", "t_ns", "pid", "tid", "row", "file", *_NUMBERS.values())
        }
        self.flags: dict[str, list[npt.NDArray[np.bool_]]] = {"shadow": [], "pinned": []}
        self.texts = {
            "event": _Codes(lambda text: text.strip().upper()),
            "type": _Codes(_type),
            "name": _Codes(),
            "device": _Codes(_device),
            "ptr_text": _Codes(str.strip),
            "access_pool": _Codes(str.upper),
            "owner": _Codes(),
            "inefficient_type": _Codes(),
        }
        self.stacks = _Codes()
        self.c_stacks = _Codes()
        self.attrs: list[pa.Array] = []

    def add(self, batch: pa.RecordBatch, *, is_database: bool) -> None:
        """Take the rows of a batch; those without a usable ID or time are counted and left out."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        ids, id_ok = _whole(columns["id"])
        times, time_ok = _whole(columns["time"])
        for what, good in (("ID", id_ok), ("time", time_ok | ~id_ok)):
            if not good.all():
                row = columns["row"][int(np.argmin(good))].as_py()
                self.report.skip(f"rows whose {what} is not a number", int((~good).sum()), f"record {row}")
        keep = id_ok & time_ok
        if not keep.all():
            ids, times = ids[keep], times[keep]
            columns = {name: cells.filter(pa.array(keep)) for name, cells in columns.items()}
        in_us = (times > 0) & (times < LATEST_US)
        self.report.count("n_times_in_us", int(in_us.sum()))
        self._ints("event_id", ids)
        self._ints("t_ns", np.where(in_us, times * 1000, times))
        for name in ("pid", "tid"):
            self._ints(name, _optional(columns[name]))
        self._ints("row", columns["row"].to_numpy(zero_copy_only=False))
        self._ints("file", np.full(len(ids), self.n_files - 1, dtype=np.int64))
        self._texts(columns, is_database)
        self._attrs(columns["attrs"])
        self.n_rows += len(ids)

    def _ints(self, name: str, values: Int64Array) -> None:
        self.ints[name].append(np.asarray(values, dtype=np.int64))

    def _texts(self, columns: dict[str, pa.Array], is_database: bool) -> None:
        name = columns["name"]
        if is_database:
            # The database keeps the quotes of marks, one more pair for each file that a mark was written to.
            is_mark = pc.equal(columns["event"], "MSTX")
            name = pc.if_else(is_mark, pc.replace_substring_regex(name, r'^"+|"+$', ""), name)
        for key, cells in (
            ("event", columns["event"]),
            ("type", columns["type"]),
            ("name", name),
            ("device", columns["device"]),
            ("ptr_text", columns["ptr"]),
        ):
            self.texts[key].add(cells)
        self.stacks.add(columns["py_stack"])
        self.c_stacks.add(columns["c_stack"])

    def _attrs(self, attrs: pa.Array) -> None:
        """Cut the values of block rows out of their Attr cells; other rows have keys of the same names (spec 2.3)."""
        self.attrs.append(attrs)
        event = self.texts["event"]
        known = np.array([name in ("MALLOC", "FREE", "ACCESS") for name in event.values] + [False], dtype=bool)
        chosen = known[event.parts[-1]]
        some = attrs.filter(pa.array(chosen))
        at = np.flatnonzero(chosen)
        for key, column in _NUMBERS.items():
            values = np.full(len(attrs), NA_NS, dtype=np.int64)
            values[at] = attr_numbers(some, key)
            self._ints(column, values)
        for key, parts in self.flags.items():
            flags = np.zeros(len(attrs), dtype=bool)
            flags[at] = attr_flags(some, key)
            parts.append(flags)
        labels = attr_labels(some, ("owner", "inefficient_type", "inefficient"))
        labels["inefficient_type"] = pc.coalesce(labels["inefficient_type"], labels.pop("inefficient"))
        place = pa.array(np.where(chosen, np.cumsum(chosen) - 1, -1))
        place = pc.if_else(pa.array(chosen), place, pa.scalar(None, pa.int64()))
        for key, cells in {**labels, "access_pool": attr_words(some, "type")}.items():
            self.texts[key].add(cells.take(place) if len(cells) else pa.nulls(len(attrs), pa.string()))

    # -- result -----------------------------------------------------------------------------------------------

    def by_process(self) -> tuple[dict[int | None, pd.DataFrame], pd.DataFrame]:
        """Return the events of each process, in file order, and the stacks that they share; once only.

        Rows without a process belong to the only one there is. A row that was written to several files of its process
        (rows without a device are) appears once.
        """
        stack_table, mappings = self._stack_tables()
        events = self._frame(mappings)
        pids = self._column("pid")
        found = np.unique(pids[pids != NA_NS])
        if len(found) == 1:
            pids = np.full(len(pids), found[0], dtype=np.int64)
        parts: dict[int | None, pd.DataFrame] = {}
        for pid in np.unique(pids):
            rows = events if len(found) == 1 else events[pids == pid]
            parts[None if pid == NA_NS else int(pid)] = self._without_repeats(rows.reset_index(drop=True))
        return parts, stack_table

    def _column(self, name: str) -> Int64Array:
        """Join the parts of a column and forget them: two copies of everything would be too many."""
        parts = self.ints.pop(name)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _frame(self, mappings: list[npt.NDArray[np.int32]]) -> pd.DataFrame:
        text = {name: codes.categorical() for name, codes in self.texts.items()}
        addresses = [parse_address(value) for value in self.texts["ptr_text"].values]
        table = np.array([*(value or 0 for value in addresses), 0], dtype=np.uint64)
        unknown = np.array([*(value is None for value in addresses), True], dtype=bool)
        codes = self.texts["ptr_text"].codes()
        columns: dict[str, object] = {
            "source": np.zeros(self.n_rows, dtype=np.int32),
            **text,
            **{name: from_int64(self._column(name)) for name in ("tid", *_NUMBERS.values())},
            **{name: np.concatenate(parts) if parts else np.empty(0, bool) for name, parts in self.flags.items()},
            "file": self._column("file").astype(np.int16),
            "row": self._column("row"),
            "event_id": self._column("event_id"),
            "t_ns": self._column("t_ns"),
            "addr": pd.arrays.IntegerArray(table[codes], unknown[codes]),
            "attrs": pd.array(pa.chunked_array(self.attrs, pa.string()), dtype=pd.StringDtype("pyarrow")),
            "stack_id": mappings[0][self.stacks.codes()],
            "c_stack_id": mappings[1][self.c_stacks.codes()],
        }
        return pd.DataFrame({name: columns[name] for name in empty_events().columns}, copy=False)

    def _stack_tables(self) -> tuple[pd.DataFrame, list[npt.NDArray[np.int32]]]:
        ids: dict[Frames, int] = {}
        mappings = []
        for codes in (self.stacks, self.c_stacks):
            frames = [split_frames(text) for text in codes.values]
            numbers = [ids.setdefault(one, len(ids)) if one else -1 for one in frames]
            mappings.append(np.array([*numbers, -1], dtype=np.int32))
        return stacks_frame(ids), mappings

    def _without_repeats(self, events: pd.DataFrame) -> pd.DataFrame:
        if events["event_id"].is_unique:
            return events
        keys = events[["event_id", "event", "type", "t_ns", "device", "ptr_text", "tid", "name"]]
        again = keys.duplicated().to_numpy()
        if not again.any():
            return events
        with_device = again & (events["device"] != NO_DEVICE).to_numpy()
        if with_device.any():
            first = int(np.argmax(with_device))
            self.report.skip(
                "rows that are there twice", int(with_device.sum()), f"ID {events['event_id'].iloc[first]}"
            )
        self.report.count("n_repeated_rows", int(again.sum()))
        return events[~again].reset_index(drop=True)


def _whole(cells: pa.Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Non-negative integers of a column, and where there is one."""
    trimmed = pc.utf8_trim_whitespace(cells)
    good = pc.fill_null(pc.match_substring_regex(trimmed, r"^\d{1,18}$|^[0-8]\d{18}$"), False)
    values = pc.if_else(good, trimmed, "0").cast(pa.int64())
    return values.to_numpy(zero_copy_only=False), good.to_numpy(zero_copy_only=False)


def _optional(cells: pa.Array) -> Int64Array:
    """Integers of a column, ``NA_NS`` for ``N/A``, -1 and anything else."""
    values, good = _whole(cells)
    return np.where(good, values, NA_NS)
