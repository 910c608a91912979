"""Charts as SVG by altair: without scripts, readable on light and dark, in colours safe for the colour-blind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape, unescape
from typing import Any

from traceq.errors import UsageFault
from traceq.renderers.html.drawing import draw
from traceq.renderers.html.markup import element
from traceq.units import Unit, format_value

__all__ = ["Mark", "bars", "heatmap", "intervals", "mark_label", "points", "roofline", "timeline", "waterfall"]

Mark = Mapping[str, str | float | bool]
"""Data of one mark of a chart: its row, its length, and `label`, the tooltip."""

_WIDTH, _ROW = 760, 26
_SQUARE = 12
"""Rows whose height a chart without rows has."""
_COLOURS = {  # Okabe and Ito, 2008: eight colours that the colour-blind can distinguish
    "compute": "#0072B2",
    "exposed_comm": "#CC79A7",
    "exposed_wait": "#CC79A7",
    "exposed_transfer": "#8E4A74",
    "exposed_memcpy": "#56B4E9",
    "sync_wait": "#D55E00",
    "alloc_wait": "#8C4A00",
    "host_bound": "#E69F00",
    "launch_latency": "#F0E442",
    "spin_wait": "#8C564B",
    "tail": "#999999",
    "unrecorded": "#DDDDDD",
    "cpu_compute": "#0072B2",
    "dataload_wait": "#D55E00",
    "python": "#E69F00",
}
_MORE, _LESS, _SUM = "#D55E00", "#009E73", "#999999"
_INK = "currentColor"
_MARK = re.compile(r'<(path|text) aria-label="([^"]*)"([^>]*)/>')


def bars(marks: Sequence[Mark], rows: Sequence[str], categories: Sequence[str], title: str = "ms") -> str:
    """Return stacked bars, one per row. Marks have `row`, `category`, `order`, and `ms` in the unit of the title."""
    alt = _altair()
    colours = [_COLOURS.get(category, _SUM) for category in categories]
    chart = (
        alt.Chart(_data(marks))
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title=title, stack="zero"),
            y=alt.Y("row:N", sort=list(rows), title=None),
            color=alt.Color(
                "category:N",
                scale=alt.Scale(domain=list(categories), range=colours),
                legend=alt.Legend() if len(categories) > 1 else None,
                title=None,
            ),
            order=alt.Order("order:Q"),
            description="label:N",
        )
    )
    return _svg(chart, len(rows))


def heatmap(marks: Sequence[Mark], rows: Sequence[str], columns: Sequence[str]) -> str:
    """Return a cell per row and column, darker for more. Marks have `row`, `column`, `ms`."""
    alt = _altair()
    chart = (
        alt.Chart(_data(marks))
        .mark_rect()
        .encode(
            x=alt.X("column:N", sort=list(columns), title=None, axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
            y=alt.Y("row:N", sort=list(rows), title=None),
            color=alt.Color("ms:Q", scale=alt.Scale(scheme="cividis", reverse=True), title="ms"),
            description="label:N",
        )
    )
    return _svg(chart, len(rows))


def points(marks: Sequence[Mark], rows: Sequence[str], title: str) -> str:
    """Return a tick per value, in rows. Marks have `row`, `ms`."""
    alt = _altair()
    chart = (
        alt.Chart(_data(marks))
        .mark_tick(thickness=1.5, opacity=0.6, color=_COLOURS["compute"])
        .encode(
            x=alt.X("ms:Q", title=title, scale=alt.Scale(zero=False)),
            y=alt.Y("row:N", sort=list(rows), title=None),
            description="label:N",
        )
    )
    return _svg(chart, len(rows))


def roofline(marks: Sequence[Mark], roofs: Sequence[Mark]) -> str:
    """Return points below roofs on logarithmic axes. Marks have `x` FLOP/byte, `y` TFLOP/s, `ms`, `dtype`."""
    alt = _altair()
    scale = alt.Scale(type="log", nice=False)
    x = alt.X("x:Q", title="FLOPs per byte", scale=scale)
    y = alt.Y("y:Q", title="TFLOP/s", scale=scale)
    colours = list(dict.fromkeys((_COLOURS["compute"], _MORE, _LESS, *_COLOURS.values())))
    dtypes = list(dict.fromkeys(str(mark["dtype"]) for mark in marks))
    colour = alt.Color("dtype:N", title=None, scale=alt.Scale(domain=dtypes, range=colours[: len(dtypes)]))
    lines = alt.Chart(_data(roofs)).mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour)
    size = alt.Size("ms:Q", legend=None, scale=alt.Scale(range=[15, 400]))
    dots = alt.Chart(_data(marks)).mark_point(filled=True, opacity=0.6)
    return _svg(lines + dots.encode(x=x, y=y, color=colour, size=size, description="label:N"), _SQUARE)


def waterfall(marks: Sequence[Mark], rows: Sequence[str]) -> str:
    """Return a waterfall. Marks have `row`, `from_ms`, `to_ms`, and `kind`: "more", "less" or "sum"."""
    alt = _altair()
    colours = alt.Scale(domain=["more", "less", "sum"], range=[_MORE, _LESS, _SUM])
    chart = (
        alt.Chart(_data(marks))
        .mark_bar()
        .encode(
            x=alt.X("from_ms:Q", title="ms per step"),
            x2="to_ms:Q",
            y=alt.Y("row:N", sort=list(rows), title=None, axis=alt.Axis(labelLimit=320)),
            color=alt.Color("kind:N", scale=colours, legend=None),
            description="label:N",
        )
    )
    return _svg(chart, len(rows))


def timeline(marks: Sequence[Mark], rows: Sequence[str], categories: Sequence[str]) -> str:
    """Return a timeline. Marks have `row`, `from_ms`, `to_ms`, `category`; unknown categories are grey."""
    alt = _altair()
    colours = alt.Scale(domain=list(categories), range=[_COLOURS.get(name, _SUM) for name in categories])
    shown = [name for name in categories if name in _COLOURS]
    y = alt.Y("row:N", sort=list(rows), title=None)
    pieces = (
        alt.Chart(_data(marks))
        .mark_bar(height=alt.RelativeBandSize(0.9))
        .encode(
            x=alt.X("from_ms:Q", title="ms", scale=alt.Scale(nice=False)),
            x2="to_ms:Q",
            y=y,
            color=alt.Color("category:N", scale=colours, legend=alt.Legend(values=shown), title=None),
            opacity=alt.Opacity("shade:Q", scale=None),
            description="label:N",
        )
    )
    named = [mark for mark in marks if mark.get("named")]
    names = (
        alt.Chart(_data(named)).mark_text(align="left", dx=4, color=_INK).encode(x="from_ms:Q", y=y, text="category:N")
    )
    return _svg(pieces + names if named else pieces, len(rows))


def intervals(marks: Sequence[Mark], rows: Sequence[str], threshold_ms: float) -> str:
    """Return estimates with intervals, 0 and the threshold. Marks have `row`, `ms`, `low_ms`, `high_ms`."""
    alt = _altair()
    y = alt.Y("row:N", sort=list(rows), title=None)
    band = (
        alt.Chart(_data([{"from_ms": -threshold_ms, "to_ms": threshold_ms}]))
        .mark_rect(color=_SUM, opacity=0.25)
        .encode(x=alt.X("from_ms:Q", title="ms per step; grey: below the threshold"), x2="to_ms:Q")
    )
    zero = alt.Chart(_data([{"ms": 0}])).mark_rule(color=_INK, strokeDash=[2, 2]).encode(x="ms:Q")
    base = alt.Chart(_data(marks))
    lines = base.mark_rule(color=_COLOURS["compute"], strokeWidth=3).encode(x="low_ms:Q", x2="high_ms:Q", y=y)
    dots = base.mark_point(filled=True, size=90, color=_COLOURS["compute"], opacity=1)
    return _svg(band + zero + lines + dots.encode(x="ms:Q", y=y, description="label:N"), len(rows))


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401 (renders the charts)
    except ImportError:
        raise UsageFault("--html needs altair and vl-convert: pip install altair vl-convert-python") from None
    return altair


def _data(marks: Sequence[Mark]) -> Any:
    return _altair().Data(values=[dict(mark) for mark in marks])


def _svg(chart: Any, num_rows: int) -> str:
    """Return the chart as SVG, or a note if it cannot be drawn; each mark's label becomes its tooltip."""
    configured = (
        chart.properties(width=_WIDTH, height=max(60, _ROW * num_rows), background="transparent")
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=_INK, titleColor=_INK, tickColor=_INK, domainColor=_INK, gridOpacity=0.2, labelLimit=260
        )
        .configure_legend(labelColor=_INK, titleColor=_INK, orient="bottom", columns=8)
    )
    svg = draw(configured.to_dict())
    return _MARK.sub(_with_title, svg) if svg else element("p", "This picture could not be drawn.", of="note")


def _with_title(match: re.Match[str]) -> str:
    tag, label, rest = match.groups()
    text = escape(unescape(label))
    return f'<{tag} aria-label="{text}"{rest}><title>{text}</title></{tag}>'


def mark_label(name: str, ns: float, unit: Unit = Unit.NS) -> str:
    """Return the label of a mark, such as `backward · exposed_comm: 3.1 ms`."""
    return f"{name}: {format_value(ns, unit)}"
