"""The browser runtime as one script.

The files in ``runtime/`` are plain ES modules, but a page opened from disk cannot import modules (``file://`` has no
origin). So they are put in order, stripped of ``import`` and ``export`` and wrapped in one function. That keeps one
name space for all of them, hence a name may be declared at the top of one file only; :func:`bundle` checks it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_RUNTIME = Path(__file__).with_name("runtime")
_ENTRY = "main.js"
_BOOT = "boot.js"
_WIDGET = "widget.js"
_HUB = "hub.js"
_IMPORT = re.compile(r"""^import\s*\{([^}]*)\}\s*from\s*["']\./([\w.-]+)["'];?[ \t]*$\n?""", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function\b|class\b|const\b)", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?://[^\n]*|/\*\*.*?\*/[ \t]*)\n", re.MULTILINE | re.DOTALL)
"""Comments that fill whole lines. They stay in the sources; a page does not carry them."""
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
_TOP_NAME = re.compile(r"^(?:export )?(?:async )?(?:function\*?|class|const|let|var)\s+([\w$]+)", re.MULTILINE)


def _names(text: str, pattern: re.Pattern[str]) -> set[str]:
    return {match.group(1) for match in pattern.finditer(text)}


def _ordered(files: Mapping[str, str], name: str, done: list[str], open_files: tuple[str, ...] = ()) -> None:
    if name in done:
        return
    if name in open_files:
        raise ValueError(f"runtime modules import each other: {' -> '.join((*open_files, name))}")
    if name not in files:
        raise ValueError(f"runtime module {name} is imported but missing")
    for match in _IMPORT.finditer(files[name]):
        _ordered(files, match.group(2), done, (*open_files, name))
    done.append(name)


def bundle(files: Mapping[str, str], entry: str) -> str:
    """Join modules into one function body that ends by returning the entry's exports.

    Parameters
    ----------
    files : mapping of str to str
        Text by file name.
    entry : str
        File to start from; what nothing imports is left out.

    Raises
    ------
    ValueError
        For a missing or circular import, an imported name that its module does not export, a form of ``import`` or
        ``export`` that is not understood, or a name declared in two files.
    """
    order: list[str] = []
    _ordered(files, entry, order)
    owner: dict[str, str] = {}
    exported = re.compile(r"^export (?:async )?(?:function\*?|class|const)\s+([\w$]+)", re.MULTILINE)
    parts = []
    for name in order:
        text = files[name]
        for match in _IMPORT.finditer(text):
            wanted = {item.strip() for item in match.group(1).split(",") if item.strip()}
            missing = wanted - _names(files[match.group(2)], exported)
            if missing:
                raise ValueError(f"{name} imports {sorted(missing)} which {match.group(2)} does not export")
        for top in sorted(_names(text, _TOP_NAME)):
            if top in owner:
                raise ValueError(f"{top} is declared in {owner[top]} and in {name}")
            owner[top] = name
        body = _COMMENT.sub("", _EXPORT.sub("", _IMPORT.sub("", text)))
        uneven = next((line for line in body.splitlines() if line.count("`") % 2), None)
        if uneven is not None:  # its inner lines would lose their indentation below
            raise ValueError(f"{name}: a template literal over several lines: {uneven.strip()!r}")
        body = _INDENT.sub("", body)
        left = re.search(r"^(?:import|export)\b.*", body, re.MULTILINE)
        if left:
            raise ValueError(f"{name}: cannot bundle {left.group(0)!r}")
        parts.append(f"// {name}\n{body.strip()}\n")
    exports = ", ".join(sorted(_names(files[entry], exported)))
    return "\n".join(parts) + f"\nreturn {{ {exports} }};\n"


@lru_cache(maxsize=1)
def _runtime_body() -> str:
    files = {path.name: path.read_text("utf-8") for path in sorted(_RUNTIME.glob("*.js"))}
    for host in (_BOOT, _WIDGET, _HUB):
        files.pop(host, None)
    return bundle(files, _ENTRY)


def runtime_script() -> str:
    """Return the runtime as a classic script that sets ``window.memscopeRuntime = {mount, …}``."""
    return f'"use strict";\nwindow.memscopeRuntime = (() => {{\n{_runtime_body()}}})();\n'


def runtime_module() -> str:
    """Return the runtime as one ES module that exports ``mount``, for an anywidget."""
    return f"const runtime = (() => {{\n{_runtime_body()}}})();\nexport const mount = runtime.mount;\n"


def runtime_css() -> str:
    """Return the style sheets, joined; every rule lies below ``.memscope``."""
    return "".join(path.read_text("utf-8") for path in sorted(_RUNTIME.glob("*.css")))


def boot_script() -> str:
    """Return the small script of an exported page: unpacks the parts and mounts the viewer."""
    return (_RUNTIME / _BOOT).read_text("utf-8")


def widget_module() -> str:
    """Return the small ES module that a notebook knows of; it gets :func:`hub_module` and all else from Python."""
    return (_RUNTIME / _WIDGET).read_text("utf-8")


def hub_module() -> str:
    """Return the ES module that keeps the views of a notebook widget and Python in step."""
    return (_RUNTIME / _HUB).read_text("utf-8")
