"""The Bokeh figures of a viewer, without data: the runtime finds them and their sources by name and fills them."""

from __future__ import annotations

from typing import Any

from . import theme

GUTTER_PX = 252
"""Width left of the plots, where the byte axis and the row labels stand."""

MAX_LAYERS = 6
"""Glyphs for layers on the device; as many as ``runtime/layers.js`` draws."""

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
        outline_line_color=None,  # BokehJS 3.9 strokes it along with what it drew last: old tick marks come back
    )
    for axis in plot.axis:
        axis.update(
            axis_line_color=theme.FIGURE_GREY,
            axis_line_alpha=0.6,
            major_tick_line_color=theme.FIGURE_GREY,
            minor_tick_line_color=None,
            axis_label_text_color=theme.FIGURE_GREY,
            axis_label_text_font="system-ui, sans-serif",
            axis_label_text_font_size="11px",
            axis_label_text_font_style="normal",
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
    from bokeh.models import BasicTicker

    axis = plot.xaxis[0]
    ticker = BasicTicker(name=f"{plot.name}-ticker")  # the runtime puts ticks at round true times
    axis.ticker = ticker
    plot.xgrid[0].ticker = ticker
    axis.formatter.name = f"{plot.name}-time"


def _byte_axis(plot: Any, *, n_ticks: int) -> None:
    from bokeh.models import AdaptiveTicker

    ticker = AdaptiveTicker(
        base=1024, mantissas=[1 << k for k in range(10)], desired_num_ticks=n_ticks, num_minor_ticks=0
    )
    plot.yaxis[0].ticker = ticker
    plot.ygrid[0].ticker = ticker
    plot.yaxis[0].formatter.name = f"{plot.name}-bytes"


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


def _capacity_line(plot: Any, name: str) -> None:
    from bokeh.models import Span

    plot.add_layout(
        Span(
            dimension="width",
            location=None,
            line_color=theme.light("capacity"),
            line_dash="8 4",
            line_width=1.5,
            name=f"ms-{name}-line",
        )
    )


def _layer_glyphs(plot: Any) -> None:
    """Stack from the top: each patch reaches down to 0 and is covered by the lower ones."""
    _gap_strips(plot, "layer-gaps")
    for i in reversed(range(MAX_LAYERS)):
        plot.patch("x", "y", source=_source(f"layer{i}", "x", "y"), line_color=None, name=f"ms-layer{i}-glyph")
    plot.quad(
        "left",
        "right",
        "top",
        "bottom",
        source=_source("unbacked", "left", "right", "top", "bottom"),
        fill_color=theme.light("css")["ground"],
        fill_alpha=0.6,
        line_color=None,
        hatch_pattern="right_diagonal_line",
        hatch_color=theme.light("capacity"),
        hatch_alpha=0.45,
        hatch_scale=9,
        name="ms-unbacked-glyph",
    )
    plot.line(
        "x",
        "y",
        source=_source("layers-resident", "x", "y"),
        line_color=theme.light("ledgers")["resident"],
        line_width=_LEDGER_WIDTH["resident"],
        name="ms-layers-resident-glyph",
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
    quads("areas", "color", fill_color="color", line_color=None)
    quads("selected", fill_color=None, line_color=theme.light("selection"), line_width=2)


def _stack_glyphs(plot: Any) -> None:
    """Only the top edge is Bokeh's: the bands lie on a canvas below, drawn pixel by pixel."""
    _gap_strips(plot, "stack-gaps")
    _step_lines(plot, "stack-steps", 0.45)
    plot.line("x", "y", source=_source("stack-top", "x", "y"), line_alpha=0.5, name="ms-stack-top-glyph")


def build_figures() -> list[Any]:
    """Return overview, curve, layers, Gantt and stack; all but the first share their x range (ns offsets)."""
    from bokeh.models import FixedTicker, Range1d

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
    _byte_axis(curve, n_ticks=5)
    _curve_glyphs(curve)
    _capacity_line(curve, "capacity")
    layers = _figure("layers", 150, x_range, Range1d(start=0, end=1), tools=True)
    _byte_axis(layers, n_ticks=3)
    _layer_glyphs(layers)
    _capacity_line(layers, "layers-capacity")
    gantt = _figure("gantt", 700, x_range, Range1d(start=1, end=0), tools=True)
    gantt.yaxis.visible = False
    gantt.ygrid[0].ticker = FixedTicker(ticks=[], name="ms-rows")
    _gantt_glyphs(gantt)
    stack = _figure("stack", 460, x_range, Range1d(start=0, end=1), tools=True)
    stack.yaxis[0].ticker = stack.ygrid[0].ticker = FixedTicker(ticks=[], name="ms-stack-ticks")
    stack.yaxis[0].formatter.name = "ms-stack-bytes"
    _stack_glyphs(stack)
    plots = [overview, curve, layers, gantt, stack]
    for plot in plots:
        _time_axis(plot)
    return plots
