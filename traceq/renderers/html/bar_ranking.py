"""Bar charts of rankings: collectives with their exposed part, kernels, memory, the time of findings."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.renderers.html import charts
from traceq.renderers.html.charts import Mark, mark_label
from traceq.report import Cell, Finding, Table
from traceq.units import Unit

__all__ = ["findings_chart", "ranking_chart"]

_MS, _MIB = 1e6, 2**20
_CATEGORY = "compute"
_EXPOSED, _HIDDEN = "exposed_comm", "hidden"
_LONGEST = 56


def ranking_chart(view: Table) -> str:
    """Return the chart of a table that ranks collectives, kernels or memory, "" for other tables."""
    rows = [dict(zip((column.key for column in view.columns), row, strict=True)) for row in view.rows]
    if view.key == "collectives" and rows:
        return _collectives(rows)
    if view.key == "kernels" and rows:
        return _simple([(_label(row, "phase", "name"), row["gpu_ns"]) for row in rows])
    if view.key == "memory" and rows:
        peaks = [(_label(row, "phase"), row["peak_bytes"]) for row in rows]
        return _simple(peaks, Unit.BYTES, _MIB, "MiB, peak")
    return ""


def findings_chart(findings: Sequence[Finding]) -> str:
    """Return the chart of findings by their time; "" if fewer than two have one."""
    timed = [(finding.text, finding.ns) for finding in findings if finding.ns > 0]
    return _simple([(_cut(text), ns) for text, ns in timed], title="ms per step") if len(timed) > 1 else ""


def _collectives(rows: Sequence[dict[str, Cell]]) -> str:
    """Return bars of exposed time, then of the rest; without a device, where nothing hides them, of the host's time."""
    if not any("gpu_ns" in row for row in rows):
        return _simple([(_label(row, "name", "role", "phase", "dtype"), row.get("host_ns")) for row in rows])
    marks: list[Mark] = []
    for row in rows:
        name = _label(row, "name", "role", "phase", "dtype")
        total, exposed = _number(row.get("gpu_ns")), _number(row.get("exposed_ns"))
        for order, (category, ns) in enumerate(((_EXPOSED, exposed), (_HIDDEN, total - exposed))):
            if ns > 0:
                label = mark_label(f"{name} · {category.replace('_', ' ')}", ns)
                marks.append({"row": name, "category": category, "order": order, "ms": ns / _MS, "label": label})
    return charts.bars(marks, _names(marks), [_EXPOSED, _HIDDEN]) if marks else ""


def _simple(ranked: Sequence[tuple[str, Cell]], unit: Unit = Unit.NS, scale: float = _MS, title: str = "ms") -> str:
    """Return one bar per name."""
    marks: list[Mark] = [
        {"row": name, "category": _CATEGORY, "order": 0, "ms": size / scale, "label": mark_label(name, size, unit)}
        for name, value in ranked
        if (size := _number(value)) > 0
    ]
    return charts.bars(marks, _names(marks), [_CATEGORY], title) if marks else ""


def _names(marks: Sequence[Mark]) -> list[str]:
    return list(dict.fromkeys(str(mark["row"]) for mark in marks))


def _label(row: dict[str, Cell], *keys: str) -> str:
    return _cut(" · ".join(str(row[key]) for key in keys if row.get(key)))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
