"""Roofline of a run: FLOP/s of its ops over their arithmetic intensity, below the roofs of the device."""

from __future__ import annotations

from collections.abc import Mapping

from traceq.renderers.html.markup import Json, figure
from traceq.report import Cell, Table
from traceq.units import Unit, format_value

__all__ = ["roofline_chart"]

_MOST = 200
_LEAST = 0.001
"""Part of their time from which ops are drawn."""
_MARGIN = 2.0
"""Factor by which roofs go beyond the ops."""

Row = Mapping[str, Cell]


def roofline_chart(ops: Table) -> str:
    """Return the chart of the ops with FLOPs that take most of the time, "" where none has a share of a roof."""
    rows = [row for row in ops.to_dicts() if row["roof_pct"] and row["tflops"] and row["intensity"]]
    least_ns = _LEAST * sum(_number(row, "gpu_ns") for row in rows)
    rows = [row for row in rows if _number(row, "gpu_ns") >= least_ns]
    rows = sorted(rows, key=lambda row: -_number(row, "gpu_ns"))[:_MOST]
    if not rows:
        return ""
    data: dict[str, Json] = {
        "dtypes": list(dict.fromkeys(str(row["dtype"]) for row in rows)),
        "points": [_point(row) for row in rows],
        "roofs": _roofs(rows),
    }
    return figure("roofline", data, "Ops below the roofs of their device", f"{len(rows)} ops that take the most time.")


def _point(row: Row) -> Json:
    used, time = f"{_number(row, 'roof_pct'):.0f} % of its roof", format_value(_number(row, "gpu_ns"), Unit.NS)
    return {
        "x": _short(_number(row, "intensity")),
        "y": _short(_number(row, "tflops")),
        "ns": round(_number(row, "gpu_ns")),
        "dtype": str(row["dtype"]),
        "label": f"{row['op']} {row['shapes']}\n{used}, {time}",
    }


def _roofs(rows: list[dict[str, Cell]]) -> list[Json]:
    """Return the corners of the roof of each dtype: the memory's up to the peak, both as the rows below them reveal.

    The roof of a dtype whose ops are all bound by the memory ends at the last of them.
    """
    peaks: dict[str, float] = {}
    bandwidth = 0.0  # TB/s
    for row in rows:
        if row["roof"] == "compute":
            peaks[str(row["dtype"])] = 100 * _number(row, "tflops") / _number(row, "roof_pct")
        else:
            bandwidth = 100 * _number(row, "tflops") / _number(row, "intensity") / _number(row, "roof_pct")
    intensities = [_number(row, "intensity") for row in rows]
    left, right = min(intensities) / _MARGIN, max(intensities) * _MARGIN
    roofs: list[Json] = []
    for dtype in dict.fromkeys(str(row["dtype"]) for row in rows):
        peak = peaks.get(dtype, bandwidth * max(_number(row, "intensity") for row in rows if row["dtype"] == dtype))
        ridge = min(max(peak / bandwidth, left), right) if bandwidth else left
        corners = sorted({left, ridge, right} if dtype in peaks else {left, ridge})
        points: list[Json] = [[_short(x), _short(min(peak, bandwidth * x if bandwidth else peak))] for x in corners]
        roofs.append({"dtype": dtype, "points": points})
    return roofs


def _short(value: float) -> float:
    """Return the value to five digits."""
    return float(f"{value:.5g}")


def _number(row: Row, key: str) -> float:
    value = row[key]
    return float(value) if isinstance(value, int | float) else 0.0
