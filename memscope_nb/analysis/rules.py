"""A user's own rules for a decomposition: which blocks go where, from a small TOML file.

Each ``[[rule]]`` names itself, says where its blocks go, and what they must all meet; the first rule that fits a block
takes it::

    [[rule]]
    name = "kv cache"
    place = "kv_cache@attention"    # path below the pool
    pool = ["PTA"]                  # any of
    owner = "vllm@kv_cache"         # regular expressions, found anywhere in the text
    operator = "empty"
    stack = "attention_backend"     # in any frame, Python or C
    min_bytes = "1 MiB"             # at least, at most
    max_bytes = "4 GiB"
    lifetime = ["step", "open"]     # any of: open, older, phase, step, fwdbwd, transient
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import InputError, MissingFactError
from ..model import STACK_COLUMNS, MemoryProfile
from ..units import parse_bytes
from .decompose_owner import split_label
from .lifetime import LIFETIMES, lifetimes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BoolArray = npt.NDArray[np.bool_]
Pattern = re.Pattern[str]

MAX_FILE_BYTES = 1 << 20
_PATTERNS = ("owner", "operator", "stack")
_LISTS = ("pool", "lifetime")
_SIZES = ("min_bytes", "max_bytes")
_KEYS = ("name", "place", *_PATTERNS, *_LISTS, *_SIZES)


@dataclass(frozen=True)
class Rule:
    """One rule: blocks that meet every condition go to ``place``.

    Attributes
    ----------
    name : str
        Shown with the bytes that it placed.
    place : tuple of str
        Path below the root of the pool.
    owner, operator, stack : re.Pattern, optional
        Found in the raw owner label, the operator's name, any frame of a stack.
    pool, lifetime : tuple of str
        Any of these; empty for any at all.
    min_bytes, max_bytes : int, optional
        Limits of the size, both included.
    """

    name: str
    place: tuple[str, ...]
    owner: Pattern | None = None
    operator: Pattern | None = None
    stack: Pattern | None = None
    pool: tuple[str, ...] = ()
    lifetime: tuple[str, ...] = ()
    min_bytes: int | None = None
    max_bytes: int | None = None


RuleSource = str | os.PathLike[str] | Sequence[Rule]


def load_rules(path: str | os.PathLike[str]) -> tuple[Rule, ...]:
    """Read rules from a TOML file.

    Raises
    ------
    InputError
        If the file cannot be read, is no TOML, or a rule has an unknown key, a wrong value or a broken regular
        expression; the message names the file and the rule.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{file}: larger than {MAX_FILE_BYTES} bytes: no file of rules")
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # both decoding and TOML errors
        raise InputError(f"{file}: no TOML: {error}") from None
    entries = table.pop("rule", [])
    if table:
        raise InputError(f"{file}: unknown keys {sorted(table)}; write [[rule]] tables")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{file}: 'rule' must be tables: write [[rule]], with two pairs of brackets")
    return tuple(_rule(entry, f"{file}: rule {number}") for number, entry in enumerate(entries, 1))


def _rule(entry: dict[str, Any], where: str) -> Rule:
    unknown = sorted(set(entry) - set(_KEYS))
    if unknown:
        raise InputError(f"{where}: unknown keys {unknown}; known are {', '.join(_KEYS)}")
    place = _text(entry, "place", where)
    if not place or not split_label(place):
        raise InputError(f"{where}: needs 'place', where its blocks go, for instance \"weights\"")
    if not set(entry) - {"name", "place"}:
        raise InputError(f"{where}: has no condition, so that it would take every block")
    values: dict[str, Any] = {key: _pattern(entry, key, where) for key in _PATTERNS}
    values |= {key: _list(entry, key, where) for key in _LISTS}
    values |= {key: _size(entry, key, where) for key in _SIZES}
    wrong = sorted(set(values["lifetime"]) - set(LIFETIMES))
    if wrong:
        raise InputError(f"{where}: lifetime {wrong} does not exist; there is {', '.join(LIFETIMES)}")
    return Rule(_text(entry, "name", where) or place, split_label(place), **values)


def _text(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} must be text, not {value!r}")
    return value


def _pattern(entry: dict[str, Any], key: str, where: str) -> Pattern | None:
    text = _text(entry, key, where)
    try:
        return re.compile(text) if key in entry else None
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"{where}: {key} = {text!r} is no regular expression: {error}") from None


def _list(entry: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise InputError(f"{where}: {key} must be a text or a list of texts, not {value!r}")
    if key in entry and not values:
        raise InputError(f"{where}: {key} is an empty list, which no block can meet")
    return tuple(values)


def _size(entry: dict[str, Any], key: str, where: str) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise ValueError(f"{value!r} is not a size")
        return parse_bytes(value)
    except ValueError as error:
        raise InputError(f"{where}: {key}: {error}") from None


def as_rules(rules: RuleSource | None) -> tuple[Rule, ...]:
    """Return rules as they are, and those of a file."""
    if rules is None:
        return ()
    return load_rules(rules) if isinstance(rules, (str, os.PathLike)) else tuple(rules)


# -- applying ---------------------------------------------------------------------------------------------------


def match_rules(
    profile: MemoryProfile, rules: Sequence[Rule], owner: pd.Categorical, classes: pd.Categorical | None
) -> npt.NDArray[np.int64]:
    """Return for every block the position of the first rule that fits it, -1 where none does.

    Raises
    ------
    MissingFactError
        If a rule asks for a stack or an owner and the recording has none at all: it could never fit.
    """
    found = np.full(len(profile.blocks), -1, dtype=np.int64)
    if any(rule.lifetime for rule in rules) and classes is None:
        classes = lifetimes(profile)
    for number, rule in enumerate(rules):
        fits = _fits(profile, rule, owner, classes)
        found[fits & (found < 0)] = number
    return found


def _fits(profile: MemoryProfile, rule: Rule, owner: pd.Categorical, classes: pd.Categorical | None) -> BoolArray:
    blocks = profile.blocks
    size = blocks["size_bytes"].to_numpy(np.int64)
    fits = np.ones(len(blocks), dtype=bool)
    if rule.min_bytes is not None:
        fits &= size >= rule.min_bytes
    if rule.max_bytes is not None:
        fits &= size <= rule.max_bytes
    if rule.pool:
        fits &= blocks["pool"].isin(rule.pool).to_numpy()
    if rule.lifetime and classes is not None:
        fits &= np.asarray(classes.isin(rule.lifetime))
    if rule.operator is not None:
        fits &= _of_category(pd.Categorical(blocks["name"]), rule.operator)
    if rule.owner is not None:
        if len(blocks) and (owner.codes < 0).all():
            how = "record with msmemscope.config(analysis='decompose')"
            raise MissingFactError(f"rule {rule.name!r} asks for an owner, and no block has one: {how}")
        fits &= _of_category(owner, rule.owner)
    if rule.stack is not None:
        fits &= _of_stack(profile, rule)
    return fits


def _of_category(values: pd.Categorical, pattern: Pattern) -> BoolArray:
    hits = np.array([pattern.search(str(text)) is not None for text in values.categories] + [False], dtype=bool)
    chosen: BoolArray = hits[values.codes]
    return chosen


def _of_stack(profile: MemoryProfile, rule: Rule) -> BoolArray:
    columns = [name for name in STACK_COLUMNS if name in profile.blocks]
    if len(profile.blocks) and not any((profile.blocks[name] >= 0).any() for name in columns):
        raise MissingFactError(
            f"rule {rule.name!r} asks for a stack, and no block has one: record with msmemscope.config("
            "call_stack='python') or, for the Ascend profiler, with_stack=True"
        )
    pattern = rule.stack
    assert pattern is not None
    hits = [any(pattern.search(str(frame)) for frame in frames) for frames in profile.stacks["frames"]]
    table = np.array([*hits, False], dtype=bool)
    found = np.zeros(len(profile.blocks), dtype=bool)
    for name in columns:
        found |= table[profile.blocks[name].to_numpy()]
    return found
