"""What takes most, as bars: collectives and what is exposed of them, kernels, memory, the time findings are about."""

from __future__ import annotations

from collections.abc import Sequence

from traceq.renderers.html import charts
from traceq.renderers.html.charts import Mark, said
from traceq.report import Cell, Finding, Table
from traceq.units import Unit

__all__ = ["about", "ranking"]

_MS, _MIB = 1e6, 2**20
_PLAIN = "compute"
_EXPOSED, _HIDDEN = "exposed_comm", "hidden"
_LONGEST = 56


def ranking(view: Table) -> str:
    """The picture of a table that ranks something, "" for another."""
    rows = [dict(zip((column.key for column in view.columns), row, strict=True)) for row in view.rows]
    if view.key == "collectives" and rows:
        return _collectives(rows)
    if view.key == "kernels" and rows:
        return _plain([(_label(row, "phase", "name"), row["gpu_ns"]) for row in rows])
    if view.key == "memory" and rows:
        peaks = [(_label(row, "phase"), row["peak_bytes"]) for row in rows]
        return _plain(peaks, Unit.BYTES, _MIB, "MiB, at the peak")
    return ""


def about(findings: Sequence[Finding]) -> str:
    """Findings by the time that each is about; "" where fewer than two name one."""
    known = [(finding.text, finding.ns) for finding in findings if finding.ns > 0]
    return _plain([(_cut(text), ns) for text, ns in known], title="ms a step") if len(known) > 1 else ""


def _collectives(rows: Sequence[dict[str, Cell]]) -> str:
    """Of each the time in which nothing computes, then the rest; without a device the time of the host."""
    marks: list[Mark] = []
    for row in rows:
        name = _label(row, "name", "role", "phase", "dtype")
        whole, exposed = _number(row.get("gpu_ns", row.get("host_ns"))), _number(row.get("exposed_ns"))
        for place, (category, ns) in enumerate(((_EXPOSED, exposed), (_HIDDEN, whole - exposed))):
            if ns > 0:
                told = said(f"{name} · {category.replace('_', ' ')}", ns)
                marks.append({"row": name, "category": category, "place": place, "ms": ns / _MS, "said": told})
    return charts.bars(marks, _names(marks), [_EXPOSED, _HIDDEN]) if marks else ""


def _plain(ranked: Sequence[tuple[str, Cell]], unit: Unit = Unit.NS, scale: float = _MS, title: str = "ms") -> str:
    """One bar a name."""
    marks: list[Mark] = [
        {"row": name, "category": _PLAIN, "place": 0, "ms": size / scale, "said": said(name, size, unit)}
        for name, value in ranked
        if (size := _number(value)) > 0
    ]
    return charts.bars(marks, _names(marks), [_PLAIN], title) if marks else ""


def _names(marks: Sequence[Mark]) -> list[str]:
    return list(dict.fromkeys(str(mark["row"]) for mark in marks))


def _label(row: dict[str, Cell], *keys: str) -> str:
    return _cut(" · ".join(str(row[key]) for key in keys if row.get(key)))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
