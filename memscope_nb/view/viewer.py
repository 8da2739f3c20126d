"""A page that shows one payload: Bokeh figures, the runtime, a strict Content-Security-Policy, one HTML text.

Nothing that comes from a recording is ever written into the page as text: the payload travels as base64 of a gzip
stream and the runtime shows its strings as DOM text only. The single exception is the ``<title>``, which is escaped.
The figures are built without data; the runtime fills their sources.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from . import theme
from .bundle import boot_script, runtime_css, runtime_script
from .codec import decode_payload

GUTTER_PX = 252
"""Width left of the plots, where the byte axis and the row labels stand."""

_MAX_TITLE = 200
_LEDGER_WIDTH = {"allocated": 1.8, "active": 1.3, "reserved": 1.3, "resident": 1.5}


def _source(name: str, *columns: str) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource(name=f"ms-{name}-data", data={column: [] for column in columns})


def _figure(name: str, height: int, x_range: Any, y_range: Any, *, tools: bool) -> Any:
    from bokeh.models import BoxZoomTool, InlineStyleSheet, PanTool, WheelZoomTool
    from bokeh.plotting import figure

    plot = figure(
        name=f"ms-{name}",
        height=height,
        sizing_mode="stretch_width",
        x_range=x_range,
        y_range=y_range,
        tools=[],
        toolbar_location=None,
        output_backend="canvas",
        stylesheets=[InlineStyleSheet(css=":host, * { outline: none; }")],  # the page draws its own focus ring
        lod_threshold=None,
        min_border_left=GUTTER_PX,
        min_border_right=32,
        min_border_top=4,
        min_border_bottom=2,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=theme.FIGURE_GREY,
        outline_line_alpha=0.35,
    )
    for axis in plot.axis:
        axis.update(
            axis_line_color=theme.FIGURE_GREY,
            axis_line_alpha=0.6,
            major_tick_line_color=theme.FIGURE_GREY,
            minor_tick_line_color=None,
            major_label_text_color=theme.FIGURE_GREY,
            major_label_text_font="system-ui, sans-serif",
            major_label_text_font_size="11px",
        )
    plot.grid.grid_line_color = theme.FIGURE_GREY
    plot.grid.grid_line_alpha = 0.18
    if tools:
        pan = PanTool(dimensions="width", name=f"ms-{name}-pan")
        wheel = WheelZoomTool(dimensions="width", maintain_focus=False, name=f"ms-{name}-wheel")
        box = BoxZoomTool(dimensions="width", name=f"ms-{name}-box")
        plot.add_tools(pan, wheel, box)
        plot.toolbar.update(active_drag=pan, active_scroll=wheel, active_inspect=None, active_tap=None)
    return plot


def _time_axis(plot: Any) -> None:
    from bokeh.models import AdaptiveTicker

    axis = plot.xaxis[0]
    ticker = AdaptiveTicker(base=10, mantissas=[1, 2, 5], desired_num_ticks=7, num_minor_ticks=0)
    axis.ticker = ticker
    plot.xgrid[0].ticker = ticker
    axis.formatter.name = f"{plot.name}-time"


def _gap_strips(plot: Any, name: str) -> None:
    plot.vstrip(
        "x0",
        "x1",
        source=_source(name, "x0", "x1"),
        fill_color=theme.light("no_data"),
        fill_alpha=0.10,
        line_color=None,
        hatch_pattern="/",
        hatch_color=theme.light("no_data"),
        hatch_alpha=0.2,
        hatch_scale=9,
    )


def _step_lines(plot: Any, name: str, alpha: float) -> None:
    plot.segment(
        "x",
        "y0",
        "x",
        "y1",
        source=_source(name, "x", "y0", "y1"),
        line_color=theme.FIGURE_GREY,
        line_dash="4 4",
        line_alpha=alpha,
    )


def _curve_glyphs(plot: Any) -> None:
    from bokeh.models import Span

    _gap_strips(plot, "curve-gaps")
    plot.patch(
        "x",
        "y",
        source=_source("fill", "x", "y"),
        fill_color=theme.light("allocated_fill"),
        fill_alpha=0.22,
        line_color=None,
        name="ms-fill-glyph",
    )
    plot.patch(
        "x",
        "y",
        source=_source("older", "x", "y"),
        fill_color=theme.light("older"),
        fill_alpha=0.8,
        line_color=None,
        name="ms-older-glyph",
    )
    _step_lines(plot, "steps", 0.8)
    for ledger in ("reserved", "resident", "active", "allocated"):
        plot.line(
            "x",
            "y",
            source=_source(ledger, "x", "y"),
            line_color=theme.light("ledgers")[ledger],
            line_width=_LEDGER_WIDTH[ledger],
            line_dash="6 4" if ledger == "reserved" else "solid",
            name=f"ms-{ledger}-glyph",
        )
    plot.add_layout(
        Span(
            dimension="width",
            location=None,
            line_color=theme.light("peak"),
            line_dash="4 4",
            line_alpha=0.75,
            name="ms-peak-line",
        )
    )
    plot.scatter(
        "x",
        "y",
        source=_source("peak", "x", "y"),
        marker="inverted_triangle",
        size=11,
        fill_color=theme.light("peak"),
        line_color=None,
        name="ms-peak-glyph",
    )


def _gantt_glyphs(plot: Any) -> None:
    edges = ("left", "right", "top", "bottom")

    def quads(name: str, *columns: str, **looks: Any) -> None:
        plot.quad(*edges, source=_source(name, *edges, *columns), name=f"ms-{name}-glyph", **looks)

    _gap_strips(plot, "gantt-gaps")
    _step_lines(plot, "gantt-steps", 0.45)
    quads("bars", "color", "alpha", fill_color="color", fill_alpha="alpha", line_color=None)
    quads(
        "hatched",
        fill_color=None,
        line_color=None,
        hatch_pattern="right_diagonal_line",
        hatch_color="#ffffff",
        hatch_alpha=0.45,
        hatch_scale=5,
    )
    plot.scatter(
        "x",
        "y",
        source=_source("open", "x", "y", "color", "size"),
        marker="triangle",
        angle=-1.5707963,
        size="size",
        fill_color="color",
        line_color=None,
    )
    quads("areas", "color", fill_color="color", fill_alpha=0.85, line_color=None)
    quads("selected", fill_color=None, line_color=theme.light("selection"), line_width=2)


def _figures() -> list[Any]:
    from bokeh.models import AdaptiveTicker, FixedTicker, Range1d

    x_range = Range1d(start=0, end=1, name="ms-x")
    overview = _figure("overview", 84, Range1d(start=0, end=1), Range1d(start=0, end=1), tools=False)
    overview.yaxis.visible = False
    overview.ygrid.visible = False
    overview.patch(
        "x",
        "y",
        source=_source("overview", "x", "y"),
        fill_color=theme.light("allocated_fill"),
        fill_alpha=0.8,
        line_color=theme.light("allocated_fill"),  # short recordings are narrower than a pixel
        name="ms-overview-glyph",
    )
    curve = _figure("curve", 250, x_range, Range1d(start=0, end=1), tools=True)
    curve.min_border_top = 8
    bytes_ticker = AdaptiveTicker(
        base=1024, mantissas=[1 << k for k in range(10)], desired_num_ticks=5, num_minor_ticks=0
    )
    curve.yaxis[0].ticker = bytes_ticker
    curve.ygrid[0].ticker = bytes_ticker
    curve.yaxis[0].formatter.name = "ms-curve-bytes"
    _curve_glyphs(curve)
    gantt = _figure("gantt", 700, x_range, Range1d(start=1, end=0), tools=True)
    gantt.yaxis.visible = False
    gantt.ygrid[0].ticker = FixedTicker(ticks=[], name="ms-rows")
    _gantt_glyphs(gantt)
    for plot in (overview, curve, gantt):
        _time_axis(plot)
    return [overview, curve, gantt]


@lru_cache(maxsize=1)
def figures_text() -> str:
    """Return the runtime's third argument as JSON: ``doc`` (a Bokeh document), ``theme`` and ``gutter``.

    It is the same for every page of a Bokeh version: model ids are counted from 1 again.
    """
    from bokeh.document import Document

    document = Document()
    for plot in _figures():
        document.add_root(plot)
    text = json.dumps(
        {"doc": document.to_json(deferred=False), "theme": theme.theme_json(), "gutter": GUTTER_PX},
        separators=(",", ":"),
    )
    ids: dict[str, str] = {}
    return re.sub(r'"p\d+"', lambda match: ids.setdefault(match.group(0), f'"p{len(ids) + 1}"'), text)


@lru_cache(maxsize=1)
def bokeh_source() -> tuple[str, bytes]:
    """Return file name and content of the installed BokehJS, core only."""
    paths = import_module("bokeh.util.paths")
    version: str = import_module("bokeh").__version__
    path = Path(paths.bokehjs_path()) / "js" / "bokeh.min.js"
    return f"bokeh-{version}.min.js", path.read_bytes()


def data_script(payload: bytes) -> str:
    """Return the content of a side file that holds a payload, for ``<script src>``."""
    return f'window.memscopePayload="{base64.b64encode(payload).decode("ascii")}";\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _part(name: str, packed: bytes) -> str:
    """Write a gzip stream as a data block: a script of a type that no browser runs."""
    text = base64.b64encode(packed).decode("ascii")
    return f'<script type="application/gzip" data-part="{name}">{text}</script>\n'


def _pack(text: str | bytes) -> bytes:
    return gzip.compress(text.encode("utf-8") if isinstance(text, str) else text, compresslevel=9, mtime=0)


@lru_cache(maxsize=1)
def _packed_bokeh() -> bytes:
    return _pack(bokeh_source()[1])


def _policy(scripts: list[str], *, side_files: bool) -> str:
    """Write the page's Content-Security-Policy, which a browser enforces from the ``<meta>`` on.

    Scripts run by the hash of their text only (the ones that the boot script adds as well), or, with side files,
    from the page's own place: ``'self'`` covers neighbours on ``file://`` too. Without inline styles BokehJS draws
    nothing (it styles its canvases and its shadow trees that way). Images, fonts, frames, workers: none.
    """
    allowed = [*map(_hash, scripts), *(["'self'"] if side_files else [])]
    return "; ".join(
        [
            "default-src 'none'",
            "connect-src 'none'",
            f"script-src {' '.join(allowed)}",
            "style-src 'unsafe-inline'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def render_page(payload: bytes, *, data_href: str | None = None, bokeh_href: str | None = None) -> str:
    """Write the HTML of one page.

    Parameters
    ----------
    payload : bytes
        From :func:`memscope_nb.view.codec.encode_payload`.
    data_href : str or None
        Relative link to the file with :func:`data_script`; None puts the payload into the page.
    bokeh_href : str or None
        Relative link to the file with :func:`bokeh_source`; None puts BokehJS into the page (0.5 MB).

    Returns
    -------
    str
        A complete page that makes no network request.
    """
    header, _ = decode_payload(payload)
    title = str(header.get("title") or "memory profile")[:_MAX_TITLE]
    runtime, boot = runtime_script(), boot_script()
    scripts = [boot, runtime]
    body = [_part("figures", _pack(figures_text())), _part("runtime", _pack(runtime))]
    if bokeh_href is None:
        scripts.append(bokeh_source()[1].decode("utf-8"))
        body.append(_part("bokeh", _packed_bokeh()))
    else:
        body.append(f'<script src="{html.escape(bokeh_href)}"></script>\n')
    if data_href is None:
        body.append(_part("payload", payload))
    else:
        body.append(f'<script src="{html.escape(data_href)}"></script>\n')
    policy = _policy(scripts, side_files=data_href is not None or bokeh_href is not None)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{runtime_css()}</style>\n</head>\n"
        '<body class="memscope-page">\n<div class="memscope" data-memscope>Opening the profile…</div>\n'
        "<noscript>This page draws with JavaScript, which is switched off.</noscript>\n"
        f"{''.join(body)}<script>{boot}</script>\n</body>\n</html>\n"
    )
