"""Colours of the viewer, in one place: Python builds figures from them and hands them to the browser runtime.

Lifetime classes and ledgers take their hues from the palette of Okabe and Ito, which people with a colour vision
deficiency can tell apart. One mid grey serves text, grid and axes of the figures on both grounds, so that Bokeh needs
no theme of its own; only the hues that are dim on a dark ground are lighter there.
"""

from __future__ import annotations

from typing import Any

CLASS_KEYS = ("older", "phase", "step", "fwdbwd", "transient", "open")
"""Keys of the lifetime classes, in the order of the legend."""

LEDGERS = ("allocated", "active", "reserved", "resident")
"""Curves that a viewer can draw beside the *older* band."""

HUES = [
    *("#0072b2", "#56b4e9", "#e69f00", "#f5c563", "#009e73", "#66c9a8"),
    *("#cc79a7", "#e5b5cf", "#d55e00", "#f0a070", "#6a51a3", "#a899d0"),
]
"""Six hues in two lightnesses, for the twelve largest operators or owners; all others are grey."""

FIGURE_GREY = "#77808c"
SELECTION = "#d55e00"

BANDS = [
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9"),
    *("#d55e00", "#7a5fb5", "#c9b037", "#2f8f9d", "#a5673f"),
]
"""Colours of stacked bands, ten that can be told apart from their neighbours."""

_LIGHT: dict[str, Any] = {
    "css": {
        "ground": "#ffffff",
        "raised": "#f6f8fa",
        "text": "#1c2733",
        "muted": "#5c6875",
        "border": "#d9dfe6",
        "link": "#0062a3",
        "mark": "#fff1d6",
        "selection": SELECTION,
    },
    "classes": {
        "older": "#8c939c",
        "phase": "#0072b2",
        "step": "#e69f00",
        "fwdbwd": "#009e73",
        "transient": "#56b4e9",
        "open": "#cc79a7",
    },
    "ledgers": {"allocated": "#0072b2", "active": "#e69f00", "reserved": "#5f6873", "resident": "#cc79a7"},
    "older": "#a4abb4",
    "allocated_fill": "#56b4e9",
    "bands": BANDS,
    "peak": SELECTION,
    "selection": SELECTION,
    "capacity": "#b3261e",
    "layers": {
        "allocated": "#4a9bd1",
        "cached": "#c9dcea",
        "module1": "#e69f00",
        "module2": "#009e73",
        "module3": "#cc79a7",
        "other": "#b4bbc3",
    },
    "no_data": "#9aa3ad",
    "hues": HUES,
    "rest": "#b4bbc3",
    "sizes": ["#dbe9f4", "#08306b"],
}

_DARK: dict[str, Any] = {
    **_LIGHT,
    "css": {
        "ground": "#14181d",
        "raised": "#1c2229",
        "text": "#e3e8ed",
        "muted": "#9aa6b2",
        "border": "#333c46",
        "link": "#6cbcf0",
        "mark": "#3d3117",
        "selection": "#ff8a3d",
    },
    "classes": {**_LIGHT["classes"], "phase": "#3d9bd6", "older": "#7d8690"},
    "ledgers": {"allocated": "#56b4e9", "active": "#e69f00", "reserved": "#aab3bd", "resident": "#d58db6"},
    "older": "#69727c",
    "allocated_fill": "#2b78a8",
    "peak": "#ff8a3d",
    "capacity": "#ff7b72",
    "layers": {**_LIGHT["layers"], "allocated": "#2b78a8", "cached": "#37556b", "other": "#5d6772"},
    "selection": "#ff8a3d",
    "rest": "#5d6772",
    "sizes": ["#28435c", "#c6e2f7"],
}


def theme_json() -> dict[str, Any]:
    """Return what the runtime needs: ``light`` and ``dark`` colours, ready for JSON.

    ``css`` becomes custom properties ``--ms-…`` on the viewer's root; ``hues``, ``rest`` and ``sizes`` colour bars by
    operator, owner or size, ``bands`` the groups of stacked areas; the others colour Bokeh glyphs.
    """
    return {"light": _LIGHT, "dark": _DARK}


def light(key: str) -> Any:
    """Return one colour (or group) of the light theme, which figures are first built with."""
    return _LIGHT[key]
