"""Bar charts: a step by phase and category, and rankings of collectives, kernels and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceq.renderers.html.markup import Json, figure
from traceq.renderers.html.time_axis import bytes_axis, time_axis
from traceq.report import Cell, Table
from traceq.units import Unit, format_value

__all__ = ["partition_chart", "ranking_chart"]

_EXPOSED, _HIDDEN = "exposed_comm", "hidden"
_ONLY = "compute"

Row = Mapping[str, Cell]
Parts = Mapping[str, float]
"""Category -> size of its part of a bar."""


def partition_chart(view: Table) -> str:
    """Return stacked bars of a table of times by two keys, without its totals."""
    columns = [column for column in view.columns if column.unit is Unit.NS and column.key != "total"]
    rows = [
        (str(row[view.columns[0].key]), {column.key: _number(row[column.key]) for column in columns})
        for row in view.to_dicts()
        if row[view.columns[0].key] != "total"
    ]
    return _stacked(rows, {column.key: column.heading for column in columns}, view.title, what="per step")


def ranking_chart(view: Table) -> str:
    """Return the chart of a table that ranks collectives, kernels or memory, "" for other tables."""
    rows = view.to_dicts()
    if view.key == "collectives":
        return _collectives(rows, view.title)
    if view.key == "kernels":
        ranked = [(_label(row, "phase", "name"), {_ONLY: _number(row["gpu_ns"])}) for row in rows]
        return _stacked(ranked, {_ONLY: "time on the device"}, view.title)
    if view.key == "memory":
        peaks = [(_label(row, "phase"), {_ONLY: _number(row["peak_bytes"])}) for row in rows]
        return _stacked(peaks, {_ONLY: "peak"}, view.title, Unit.BYTES)
    return ""


def _collectives(rows: Sequence[Row], title: str) -> str:
    """Return bars of exposed time, then of the rest; of the host's time without a device, where nothing hides any."""
    names = [_label(row, "name", "role", "phase", "dtype") for row in rows]
    if not any("gpu_ns" in row for row in rows):
        calls = [{_EXPOSED: _number(row.get("host_ns"))} for row in rows]
        return _stacked(list(zip(names, calls, strict=True)), {_EXPOSED: "host time of the calls"}, title)
    parts: list[Parts] = []
    for row in rows:
        total, exposed = _number(row.get("gpu_ns")), _number(row.get("exposed_ns"))
        parts.append({_EXPOSED: exposed, _HIDDEN: total - exposed})
    titles = {_EXPOSED: "exposed", _HIDDEN: "hidden by other work"}
    return _stacked(list(zip(names, parts, strict=True)), titles, title)


def _stacked(
    rows: Sequence[tuple[str, Parts]], titles: Mapping[str, str], title: str, unit: Unit = Unit.NS, what: str = ""
) -> str:
    """Return one bar per row, of the parts that have a size; "" without any."""
    shown = [(name, {key: size for key, size in parts.items() if size > 0}) for name, parts in rows]
    shown = [(name, parts) for name, parts in shown if parts]
    if not shown:
        return ""
    present = [key for key in titles if any(key in parts for _, parts in shown)]
    axis = (bytes_axis if unit is Unit.BYTES else time_axis)((sum(parts.values()) for _, parts in shown), what)
    data: dict[str, Json] = {
        **axis,
        "categories": [{"key": key, "title": titles[key]} for key in present],
        "rows": [_bar(name, parts, titles, unit) for name, parts in shown],
    }
    return figure("bars", data, title)


def _bar(name: str, parts: Parts, titles: Mapping[str, str], unit: Unit) -> Json:
    return {
        "title": name,
        "text": format_value(sum(parts.values()), unit),
        "parts": [
            {"category": key, "size": round(size), "label": f"{name}\n{titles[key]}: {format_value(size, unit)}"}
            for key, size in parts.items()
        ],
    }


def _label(row: Row, *keys: str) -> str:
    return " · ".join(str(row[key]) for key in keys if row.get(key))


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
