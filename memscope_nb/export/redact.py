"""Profiles that may be shown to strangers: no user names, host names or absolute paths in any text of them.

A redacted profile is a profile like any other, so that every page, table or text made of it is redacted by
construction. Numbers are not touched. What stays of a path is what makes a stack useful: its last part, the line, the
function, and of an installed package everything from ``site-packages`` on. The folder before becomes a token, the same
one wherever that folder occurs: ``/home/ann/train/loss.py(7): f`` reads ``dir1/loss.py(7): f``.

Names are learned first (from the hosts and paths of the sources, from home folders in any text) and then replaced
wherever they stand as a word, in operators, labels and functions too.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from ..io.ascend import parse_folder_name
from ..model import SOURCE_TABLES, MemoryProfile
from ..stacks import is_plumbing

OWN_WORDS = frozenset({"scope", "origin", "status", "stack_kind"})
"""Text columns whose words are this package's own."""

_NOBODY = """
root user users admin administrator ubuntu debian centos work worker jovyan ma-user hwhiaiuser public default shared
home data tmp localhost local host node master
process device module pool pta ge hal app step range role mark snapshot oom block recorded rows none own forward
cpu npu cuda gpu hccl nccl cann atb mindspore workspace
torch torch_npu torchair functorch ray vllm verl megatron python
"""
NOT_SECRET = frozenset(_NOBODY.split())
"""Accounts that are nobody's and words of the data: never replaced as words; as part of a path they still go."""

# No pattern may look twice at a character from different starts: texts of 100 kB made of one character are read, too.
_END = r"(?:[^\s'\"<>|`]|['\"<>|`](?=\S{0,60}[/\\]))"  # a quote or bracket ends a path unless there is more of it
_START = r"(?:/|~[\w.-]*[/\\]|[A-Za-z]:[\\/]|\$\{?\w+\}?[/\\]|%\w+%[/\\])"
_MORE = rf"(?:(?![,;:]{_START}){_END})"
_BLANKS = r"(?: (?:[^\s'\"<>|`/\\,;:]{1,40} ){0,2}[^\s'\"<>|`/\\,;:]{0,40}(?=[/\\]))"  # a folder's name of a few words
_URL = rf"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*://{_MORE}+"
_PATH = (
    r"(?<![A-Za-z0-9_./\\])"
    r"(?:[A-Za-z]:[\\/]+|\\\\+(?=[\w?.])|~[\w.-]*[/\\]+|\$\{?\w+\}?[/\\]+|%\w+%[/\\]+|\\?/+(?=[^\s/]))"
    rf"(?:{_MORE}|{_BLANKS})*"
)
_QUOTED = rf"(?<=['\"])(?:{_START}|\\\\|file://)[^'\"\r\n]*(?=['\"])"
_ADDRESS = r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
_VERSION = re.compile(r"\d+(?:\.\d+){1,4}(?:\.?(?:rc|post|dev|a|b)\d+)?", re.IGNORECASE)
_NUMBERS = re.compile(r"\d\.\d{1,3}\.")
_MAIL = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}"
_HOME = re.compile(r"[/\\](?:home|users?)[/\\]+(?:users[/\\]+)?([^/\\'\"\r\n:<>|]+)", re.IGNORECASE)
_FRAME = re.compile(r"(.*)(\(\d+\))(: .*)?", re.DOTALL)
_ROOTED = re.compile(rf"\s*(?:{_START}|\\\\|file://)")
_PACKAGES = re.compile(r"(?:^|/)((?:site|dist)-packages/.*)", re.DOTALL)
_ANY_LINE = "(1): f"
_TAIL_MARKS = ".,;:)]}"
_UNPLAIN = re.compile(rf"[\s'\"<>|`]|[,;:]{_START}")
_AFTER_LITERAL = r"(?=[/\\\s'\"<>|`]|$|[,;:.)\]}]+(?:\s|$))"
_NAMING_KEY = re.compile(r"(?:.*[_-])?(?:(user|account)|host)(?:[_-]?name)?", re.IGNORECASE)
_KINETO_FILE = re.compile(r"(.+)_\d+\.\d{10,19}\.pt\.trace\.json")


class Redactor:
    """Replaces names and paths; the same one everywhere keeps tokens the same from profile to profile.

    Parameters
    ----------
    also : iterable of str
        More words to replace, such as the name of a project.
    local : bool
        Also replace the user and the host of this machine, where a profile is often made.
    """

    def __init__(self, *, also: Iterable[str] = (), local: bool = False) -> None:
        self._local = local
        self._words: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._short_hosts: dict[str, str] = {}
        self._literals: set[str] = set()
        self._counts: dict[str, int] = {}
        self._done: dict[str, str] = {}
        self._paths_re: re.Pattern[str] | None = None
        for word in also:
            self._learn_word(word, "name", asked=True)

    # -- learning ---------------------------------------------------------------------------------------------

    def learn_source(self, path: str, host: str | None) -> None:
        """Learn from where a source lies and which host recorded it."""
        if host:
            self._learn_host(host)
        parts = re.split(r"[/\\]+", path)
        for part in parts:
            match = _KINETO_FILE.match(part)
            named = match[1] if match else parse_folder_name(part)[0]
            if named:
                self._learn_host(named)
        for match in _HOME.finditer(path):
            self._learn_word(match[1], "user")
        for end in range(2, len(parts) + 1):
            folder = _joined(path, parts[:end])
            if _ROOTED.match(folder) and _UNPLAIN.search(folder[2:]):  # what the patterns would not find the end of
                self._literals.add(folder)
                self._changed()

    def learn(self, profile: MemoryProfile) -> None:
        """Learn every name that a profile gives away."""
        for row in profile.sources[["path", "host", "facts"]].itertuples(index=False):
            self.learn_source(str(row.path), row.host if isinstance(row.host, str) else None)
            self._learn_facts(row.facts)
        for text in _texts(profile):
            self._learn_homes(text)
        if self._local:
            self._learn_local()

    def _learn_local(self) -> None:
        self._learn_host(socket.gethostname())
        try:
            self._learn_word(getpass.getuser(), "user")
        except (OSError, KeyError, ImportError):  # a container whose user has no name
            return

    def _learn_facts(self, value: Any, key: str = "") -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                self._learn_facts(inner, str(name))
        elif isinstance(value, (list, tuple)):
            for inner in value:
                self._learn_facts(inner, key)
        elif isinstance(value, str) and (match := _NAMING_KEY.fullmatch(key)):
            if match[1]:
                self._learn_word(value, "user")
            else:
                self._learn_host(value)

    def _learn_homes(self, text: str) -> None:
        if "/" in text or "\\" in text:
            for match in _HOME.finditer(text):
                self._learn_word(match[1].split()[0].rstrip(_TAIL_MARKS) if match[1].split() else "", "user")

    def _learn_host(self, host: str) -> None:
        known = self._learn_word(host, "host")
        short = host.split(".")[0]
        if known and short != host and not short.isdecimal():  # an address has no short form
            self._learn_word(short, "host", like=known)

    def _learn_word(self, word: str, kind: str, *, like: str | None = None, asked: bool = False) -> str | None:
        key = word.lower()
        if not asked and (len(word) < 2 or key in NOT_SECRET or not re.search(r"[^\W_]", word)):
            return None
        if key and key not in self._words:
            self._words[key] = like or self._number(kind)
            self._changed()
        return self._words.get(key)

    def _number(self, kind: str) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}{self._counts[kind]}"

    def _changed(self) -> None:
        """What was learned changes what a text becomes."""
        self._paths_re = None
        self._done.clear()

    def _patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        if self._paths_re is None:
            known = "|".join(re.escape(text) for text in sorted(self._literals, key=len, reverse=True))
            literal = rf"(?:{known}){_AFTER_LITERAL}(?:[/\\]{_MORE}*)?|" if known else ""
            self._paths_re = re.compile(f"{literal}{_QUOTED}|{_URL}|{_PATH}")
            words = "|".join(re.escape(word) for word in sorted(self._words, key=len, reverse=True))
            names = rf"|(?<![A-Za-z])(?:{words})(?![A-Za-z])" if words else ""
            self._words_re = re.compile(f"(?P<mail>{_MAIL})|(?P<address>{_ADDRESS}){names}", re.IGNORECASE)
        return self._paths_re, self._words_re

    # -- replacing --------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """Redact free text: paths anywhere in it, then names, mail and network addresses."""
        if text not in self._done:
            paths, _ = self._patterns()
            has_path = "/" in text or "\\" in text
            found = paths.sub(lambda match: self._path_in_text(match[0]), text) if has_path else text
            self._done[text] = self._named(found)
        return self._done[text]

    def frame(self, text: str) -> str:
        """Redact a stack frame ``path(line): function``; whether it counts as plumbing stays the same."""
        match = _FRAME.fullmatch(text)
        if match is None or not _ROOTED.match(match[1]):
            return self.text(text)
        rest = match[2] + (match[3] or "")
        return self._named(self._path(match[1], framework=is_plumbing(f"{match[1]}{_ANY_LINE}"))) + self.text(rest)

    def host(self, text: str) -> str:
        """Redact the name of a host, also one too short to be replaced within text."""
        key = text.lower()
        if key in NOT_SECRET or key in self._words:
            return self._words.get(key, text)
        if key not in self._short_hosts:
            self._short_hosts[key] = self._number("host")
        return self._short_hosts[key]

    def value(self, value: Any) -> Any:
        """Redact texts inside lists, tuples and dictionaries; anything else is returned as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.value(key): inner if _is_version(key, inner) else self.value(inner) for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return type(value)([self.value(inner) for inner in value])
        return value

    def _named(self, text: str) -> str:
        _, words = self._patterns()
        lower = text.lower()
        if "@" not in text and not _NUMBERS.search(text) and not any(word in lower for word in self._words):
            return text

        def new(match: re.Match[str]) -> str:
            key = match[0].lower()
            if match["mail"] and key.split("@")[0] in NOT_SECRET:  # an owner such as PTA@model.layer
                return words.sub(lambda inner: inner[0] if inner["mail"] else new(inner), match[0])
            if key not in self._words:
                self._words[key] = self._number("mail" if match["mail"] else "address")
            return self._words[key]

        return words.sub(new, text)

    def _path_in_text(self, found: str) -> str:
        path = found.rstrip(_TAIL_MARKS)
        return self._path(path) + found[len(path) :]

    def _path(self, path: str, *, framework: bool = False) -> str:
        """Replace the folder of a path by its token; of a ``framework`` the package stays: it is plumbing."""
        scheme, mark, inner = path.partition("://")
        web = bool(mark) and scheme.lower() != "file" and scheme.isalnum()
        inner = re.split(r"[?#]", inner)[0] if web else inner
        plain = re.sub(r"[/\\]+", "/", inner if mark else path).rstrip("/")
        parts = plain.split("/")
        if web and len(parts) < 2:  # no path: all of it is a host
            return f"{scheme}://{self._folder(plain)}" if plain else f"{scheme}://"
        packages = _PACKAGES.search(plain)
        kept = len(packages[1].split("/")) if packages else 1
        while framework and kept < len(parts) and not is_plumbing(f"dir/{'/'.join(parts[-kept:])}{_ANY_LINE}"):
            kept += 1
        folder = "/".join(parts[:-kept]) or "/"
        token = self._folder(folder)
        return (f"{scheme}://" if mark else "") + f"{token}/{'/'.join(parts[-kept:])}"

    def _folder(self, folder: str) -> str:
        if folder not in self._folders:
            self._folders[folder] = self._number("dir")
        return self._folders[folder]

    # -- tables -----------------------------------------------------------------------------------------------

    def profile(self, profile: MemoryProfile) -> MemoryProfile:
        """Return the profile with every text redacted; what was learned before applies, too."""
        self.learn(profile)
        tables = {name: self._table(getattr(profile, name), self.text) for name in SOURCE_TABLES}
        stacks = self._table(profile.stacks, self.frame)
        self._done.clear()  # of one profile after the other only names and tokens are kept
        return replace(profile, **tables, stacks=stacks)

    def _table(self, table: pd.DataFrame, redact: Callable[[str], str]) -> pd.DataFrame:
        new = {}
        for name in table.columns:
            column = table[name]
            if name in OWN_WORDS or not (_is_text(column) or isinstance(column.dtype, pd.CategoricalDtype)):
                continue
            if name == "frames":
                new[name] = pd.Series([tuple(redact(f) for f in frames) for frames in column], column.index, object)
            else:
                new[name] = self._column(column, self.host if name == "host" else redact)
        return table.assign(**new)

    def _column(self, column: pd.Series, redact: Callable[[str], str]) -> pd.Series:
        if isinstance(column.dtype, pd.CategoricalDtype):
            old = column.cat.categories
            names = [redact(text) if isinstance(text, str) else text for text in old]
            if names == list(old):
                return column
            if len(set(names)) == len(names):
                return column.cat.rename_categories(names)
            return column.astype(object).map(dict(zip(old, names, strict=True)), na_action="ignore").astype("category")
        values = column.to_numpy(dtype=object)
        if pd.api.types.is_string_dtype(column.dtype) and column.dtype != object:
            new = {text: redact(text) for text in pd.unique(column.dropna())}
            return column if all(k == v for k, v in new.items()) else column.map(new, na_action="ignore")
        redacted = [redact(v) if isinstance(v, str) else self.value(v) for v in values]
        return pd.Series(redacted, index=column.index, dtype=column.dtype)


def redact_profile(profile: MemoryProfile, *, also: Iterable[str] = ()) -> MemoryProfile:
    """Replace user names, host names and absolute paths in every text of a profile.

    Parameters
    ----------
    profile : MemoryProfile
        Is not changed.
    also : iterable of str
        More words to replace, such as the name of a project.

    Returns
    -------
    MemoryProfile
        The same numbers; texts with ``user1``, ``host1``, ``dir1/…`` in place of what was there. Text that only looks
        like an absolute path is treated as one. Names that nothing gives away (a colleague's name in an operator) stay:
        give them in ``also``.
    """
    return Redactor(also=also).profile(profile)


def _is_version(key: object, value: object) -> bool:
    """Four numbers with dots are an address, unless they are called a version."""
    return str(key).endswith("version") and isinstance(value, str) and _VERSION.fullmatch(value) is not None


def _is_text(column: pd.Series) -> bool:
    return column.dtype == object or isinstance(column.dtype, pd.StringDtype)


def _joined(path: str, parts: list[str]) -> str:
    """Return the start of ``path`` that holds these parts, with its own separators."""
    pattern = r"[/\\]+".join(re.escape(part) for part in parts)
    match = re.match(pattern, path)
    return match[0] if match else path


def _texts(profile: MemoryProfile) -> Iterable[str]:
    """Every distinct text of a profile, column by column."""
    for name in (*SOURCE_TABLES, "stacks"):
        table: pd.DataFrame = getattr(profile, name)
        for column_name in table.columns:
            column = table[column_name]
            if isinstance(column.dtype, pd.CategoricalDtype):
                yield from (text for text in column.cat.categories if isinstance(text, str))
            elif isinstance(column.dtype, pd.StringDtype):
                yield from pd.unique(column.dropna())
            elif column.dtype == object:
                yield from _strings(column.tolist())


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)
