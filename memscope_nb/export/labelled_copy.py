"""A copy of a dump with labels in its Attr cells; the dump itself keeps its bytes (spec/msmemscope 9.6, 13).

The original tool writes labels into its input, and on the way loses labels, line ends and sometimes the right row.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from ..analysis.inefficient import Inefficiency, find_inefficient
from ..errors import InputError
from ..io.memscope_attrs import KNOWN_KEYS, parse_attrs
from ..io.memscope_db import dump_table, read_database
from ..io.memscope_rows import COLUMNS, MAX_HEADER_BYTES, read_rows, sniff_header
from ..io.report import ReadReport
from ..model import MemoryProfile, as_profile
from .files import safe_name
from .labelled_db import Labels, with_labels, write_labelled_db

HEADER = (
    "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)"
)
_LIKE_A_ROW = re.compile(r'^([^,\n]{0,24}),(?="?[A-Za-z_]{2,24}"?,)', re.MULTILINE)
"""In a stack: such a line could be taken for a row; a blank behind the comma prevents it."""
_PLAIN_KEYS = frozenset(KNOWN_KEYS[: KNOWN_KEYS.index("inefficient_type") + 1]) | {"type", "dtype", "shape"}
_ATTR = re.compile(rb'"(?P<attr>\{.*?\}|)"(?=,|\r?\n|$)')


def labelled_copy(
    p: MemoryProfile | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    found: Inefficiency | None = None,
    force: bool = False,
) -> list[Path]:
    """Write a dump anew with the labels of inefficient blocks as ``inefficient_type``.

    Parameters
    ----------
    p : MemoryProfile or path
        A msMemScope dump.
    out : path
        ``*.csv`` or ``*.db``: one file with all rows, in either format; anything else: a folder that receives one
        file for each file of the dump, under its name. MindStudio Insight opens databases whose name is
        ``memscope_dump_`` and digits; they get its tables ``memory_block`` and ``memory_allocation``, too.
    found : Inefficiency, optional
        What to write; :func:`memscope_nb.find_inefficient` of ``p`` if not given.
    force : bool
        Write over a file that is there (never over the dump).

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    InputError
        If the dump's files are not there, or a target is: one of them, or a file without ``force``.

    Notes
    -----
    Labels that are there already are kept, new ones follow. From CSV to CSV all other bytes stay as they are.
    """
    profile = as_profile(p)
    files = dump_files(profile)
    labels = _labels(profile, find_inefficient(profile) if found is None else found)
    target = Path(out)
    if target.suffix.lower() in (".csv", ".db"):
        jobs = [(target, files)]
    else:
        jobs = [(target / safe_name(file.name), [file]) for file in files]
        if len({job[0] for job in jobs}) < len(jobs):
            raise InputError(f"files of the dump have equal names; give one file, such as {target / 'labelled.db'}")
    _check_targets([job[0] for job in jobs], files, force)
    for path, inputs in jobs:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _whole_or_nothing(path) as temporary:
            if path.suffix.lower() == ".db":
                write_labelled_db(temporary, _rows_for_db(inputs, labels), profile, inputs, labels)
            else:
                _write_csv(temporary, inputs, labels)
    return [job[0] for job in jobs]


def dump_files(profile: MemoryProfile) -> list[Path]:
    """Return the files that a profile of a dump was read from.

    Raises
    ------
    InputError
        If it is no dump or a file is gone.
    """
    names = [str(name) for facts in profile.sources["facts"] for name in facts.get("files", ())]
    files = [Path(name) for name in dict.fromkeys(names)]
    if not files or not len(profile.events):
        raise InputError("this profile was not read from the files of a msMemScope dump")
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: the dump's file is not there any more; load it again from its new place")
    return files


def _labels(profile: MemoryProfile, found: Inefficiency) -> Labels:
    pids = found.frame["pid"].astype(object)
    return {
        ("" if pd.isna(pid) else str(int(pid)), int(event_id)): list(names)
        for pid, event_id, names in zip(pids, found.frame["event_id"], found.frame["labels"], strict=True)
    }


def _check_targets(targets: Iterable[Path], inputs: list[Path], force: bool) -> None:
    for path in targets:
        if any(path.exists() and path.samefile(file) for file in inputs):
            raise InputError(f"{path} is the dump itself, which is never changed; choose another name")
        if path.exists() and (not force or not path.is_file()):
            raise InputError(f"{path} is there already; choose another name or pass force")


@contextmanager
def _whole_or_nothing(path: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(prefix=".memscope-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


# -- CSV --------------------------------------------------------------------------------------------------------


def _write_csv(path: Path, inputs: list[Path], labels: Labels) -> None:
    with path.open("wb") as target:
        for number, file in enumerate(inputs):
            lines = _edited(file, labels) if _is_plain(file) else _rewritten(file, labels)
            for i, line in enumerate(lines):
                if number == 0 or i > 0:  # one header
                    target.write(line)


def _is_plain(file: Path) -> bool:
    """Whether a file is CSV with the tool's own columns: its rows need no parsing."""
    if dump_table(file) is not None:
        return False
    with file.open("rb") as source:
        header = sniff_header(source.read(MAX_HEADER_BYTES))
    return header is not None and header.columns[:10] == COLUMNS[:10]


def _edited(file: Path, labels: Labels) -> Iterator[bytes]:
    """Lines of a dump; only the Attr cell of MALLOC rows with labels is another one.

    Stacks span lines but come after it. A line of a stack that looks like a row comes after that row, if ever: each
    row is edited once.
    """
    left = dict(labels)
    with file.open("rb") as source:
        for line in source:
            yield _edited_line(line, left) if b",MALLOC," in line or b',"MALLOC",' in line else line


def _edited_line(line: bytes, left: Labels) -> bytes:
    cells = line.split(b",", 9)
    if len(cells) < 10:
        return line
    event_id, pid = cells[0].strip(b' "'), cells[5].strip(b' "').decode("ascii", "replace")
    if not event_id.isdigit() or len(event_id) > 19 or cells[1].strip(b' "') != b"MALLOC":
        return line
    names = left.get((pid, int(event_id)))
    match = _ATTR.match(cells[9])
    if names is None or match is None:
        return line
    del left[pid, int(event_id)]
    attr = with_labels(match["attr"].decode("utf-8", "surrogateescape"), names)
    cells[9] = b'"' + attr.encode("utf-8", "surrogateescape") + b'"' + cells[9][match.end() :]
    return b",".join(cells)


def _rewritten(file: Path, labels: Labels) -> Iterator[bytes]:
    """Rows of a database or of an old CSV in the present form of a CSV."""
    yield (HEADER + "\n").encode()
    for row in _rows(file, labels):
        cells = list(row)
        name, attr = cells[3], cells[9]
        if attr.startswith('{"') or attr == "{}":
            pairs = parse_attrs(attr)
            attr = "{" + ",".join(f"{key}:{value}" for key, value in pairs.items()) + "}" if pairs else ""
        cells[9] = f'"{attr}"' if attr else ""
        if cells[1].upper() == "MSTX":
            cells[3] = f'"{name.strip(chr(34))}"'
        for i in (10, 11):
            text = _LIKE_A_ROW.sub(r"\1, ", _unquoted(cells[i])).replace('"', '""')
            cells[i] = f'"{text}"' if text else ""
        for i in (5, 6):
            cells[i] = "N/A" if cells[i] == "-1" else cells[i]
        yield (",".join(cells) + "\n").encode("utf-8", "replace")


def _pairs(attr: str) -> dict[str, str]:
    """Values of an Attr cell; most cells are plain enough not to need the parser."""
    found: dict[str, str] = {}
    last = ""
    if attr[:1] != "{" or attr[-1:] != "}" or '"' in attr:
        return parse_attrs(attr)
    for piece in attr[1:-1].split(","):
        key, colon, value = piece.partition(":")
        if not colon and last:
            found[last] += f",{piece}"
        elif not colon or key not in _PLAIN_KEYS or key in found or ":" in value or "{" in value:
            return parse_attrs(attr)
        else:
            last, found[key] = key, value.strip()
    return found


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] == '"' else text


# -- rows of either format --------------------------------------------------------------------------------------


def _rows(file: Path, labels: Labels) -> Iterator[tuple[str, ...]]:
    """All rows as text cells, labels added."""
    read = read_rows if dump_table(file) is None else read_database
    for batch in read(file, report=ReadReport()):
        columns = [batch.column(i).to_pylist() for i in range(len(COLUMNS))]
        for cells in zip(*columns, strict=True):
            if cells[1].strip().upper() == "MALLOC" and cells[0].strip().isdecimal():
                names = labels.get((cells[5].strip(), int(cells[0])))
                if names is not None:
                    cells = (*cells[:9], with_labels(cells[9], names), *cells[10:])
            yield cells


def _rows_for_db(inputs: list[Path], labels: Labels) -> Iterator[tuple[str, ...]]:
    """All rows in the form of a database: Attr as JSON, quotes around marks and stacks (spec 3.1)."""
    for file in inputs:
        is_csv = dump_table(file) is None
        for row in _rows(file, labels):
            if not is_csv:
                yield row
                continue
            attr = json.dumps(_pairs(row[9]), ensure_ascii=False, separators=(",", ":"))
            name = f'"{row[3]}"' if row[1].upper() == "MSTX" else row[3]
            stacks = (f'"{text}"' if text else "" for text in row[10:])
            yield (*row[:3], name, *row[4:9], attr, *stacks)
