"""Charts of a report: its three numbers, a step by phase and category, rankings, heat maps of ranks, the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from traceq.claims.limits import NOTHING
from traceq.renderers.html.markup import Json, bytes_axis, figure, time_axis
from traceq.renderers.limits import OPS_DRAWN, RANK_COLUMNS, ROOF_MARGIN, STEP_POINTS
from traceq.report import Cell, Sheet, Table
from traceq.units import Unit, format_value

_COMPUTES = ("compute", "cpu_compute")

Row = Mapping[str, Cell]


_EXPOSED, _HIDDEN = "exposed_comm", "hidden"
_ONLY = "compute"
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


def lost_time_chart(view: Table) -> str:
    """Return the time of each rank that is not compute, which would dominate the colours."""
    columns = [
        column
        for column in view.columns
        if column.unit is Unit.NS and column.key != "total" and column.key not in _COMPUTES
    ]
    rows = [row for row in view.to_dicts() if row["rank"] != "total"]
    cells = {(column.heading, str(row["rank"])): _number(row[column.key]) for row in rows for column in columns}
    return _heatmap(cells, "Time per step that is not compute, by rank", "{column}, {row}: {size}")


def rank_heatmap(rank_phases: Table) -> str:
    """Return the chart of the table `rank_phases`: a row per phase, a column for each rank.

    If there are too many ranks for a page, a column is a host, or a group of adjacent ranks, by its slowest rank.
    """
    times: dict[str, list[tuple[str, int, float]]] = {}
    for row in rank_phases.to_dicts():
        of_rank = str(row["host"]), int(row["rank"] or 0), _number(row["own_ns"])
        times.setdefault(str(row["phase"]), []).append(of_rank)
    names = _columns([(host, rank) for host, rank, _ in next(iter(times.values()))])
    slowest: dict[tuple[str, str], float] = {}
    for phase, each in times.items():
        median_ns = median(ns for *_, ns in each)
        for (*_, ns), name in zip(each, names, strict=True):
            slowest[phase, name] = max(slowest.get((phase, name), 0.0), ns - median_ns)
    title = "Time over the median rank, per step, without exposed communication"
    return _heatmap(slowest, title, "{column}, {row}: {size} over the median")


def _heatmap(cells: Mapping[tuple[str, str], float], title: str, label: str) -> str:
    """Return the figure of a size in ns per (row, column)."""
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True)) if cells else ([], [])
    if not rows or not any(cells.values()):
        return ""
    data: dict[str, Json] = {
        "rows": rows,
        "columns": [name.removeprefix("rank ") for name in columns],
        "across": "rank" if columns[0].startswith("rank ") else "host",
        "cells": [
            {
                "row": rows.index(row),
                "column": columns.index(column),
                "size": round(size),
                "text": format_value(size, Unit.NS),
                "label": label.format(column=column, row=row, size=format_value(size, Unit.NS)),
            }
            for (row, column), size in cells.items()
        ],
    }
    return figure("heatmap", data, title)


def _columns(ranks: Sequence[tuple[str, float]]) -> list[str]:
    """Return the column of each (host, rank)."""
    if len(ranks) <= RANK_COLUMNS:
        return [f"rank {rank:.0f}" for _, rank in ranks]
    hosts = dict.fromkeys(host for host, _ in ranks)
    if all(hosts) and len(hosts) <= RANK_COLUMNS:
        return [host for host, _ in ranks]
    size = -(-len(ranks) // RANK_COLUMNS)
    return [f"rank {ranks[index - index % size][1]:.0f} on" for index in range(len(ranks))]


def roofline_chart(ops: Table) -> str:
    """Return the chart of the ops with FLOPs that take most of the time, "" where none has a share of a roof."""
    rows = [row for row in ops.to_dicts() if row["roof_pct"] and row["tflops"] and row["intensity"]]
    least_ns = NOTHING * sum(_number(row["gpu_ns"]) for row in rows)
    rows = [row for row in rows if _number(row["gpu_ns"]) >= least_ns]
    rows = sorted(rows, key=lambda row: -_number(row["gpu_ns"]))[:OPS_DRAWN]
    if not rows:
        return ""
    data: dict[str, Json] = {
        "dtypes": list(dict.fromkeys(str(row["dtype"]) for row in rows)),
        "points": [_point(row) for row in rows],
        "roofs": _roofs(rows),
    }
    return figure("roofline", data, "Ops below the roofs of their device", f"{len(rows)} ops that take the most time.")


def _point(row: Row) -> Json:
    used, time = f"{_number(row['roof_pct']):.0f} % of its roof", format_value(_number(row["gpu_ns"]), Unit.NS)
    return {
        "x": _short(_number(row["intensity"])),
        "y": _short(_number(row["tflops"])),
        "ns": round(_number(row["gpu_ns"])),
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
            peaks[str(row["dtype"])] = 100 * _number(row["tflops"]) / _number(row["roof_pct"])
        else:
            bandwidth = 100 * _number(row["tflops"]) / _number(row["intensity"]) / _number(row["roof_pct"])
    intensities = [_number(row["intensity"]) for row in rows]
    left, right = min(intensities) / ROOF_MARGIN, max(intensities) * ROOF_MARGIN
    roofs: list[Json] = []
    for dtype in dict.fromkeys(str(row["dtype"]) for row in rows):
        peak = peaks.get(dtype, bandwidth * max(_number(row["intensity"]) for row in rows if row["dtype"] == dtype))
        ridge = min(max(peak / bandwidth, left), right) if bandwidth else left
        corners = sorted({left, ridge, right} if dtype in peaks else {left, ridge})
        points: list[Json] = [[_short(x), _short(min(peak, bandwidth * x if bandwidth else peak))] for x in corners]
        roofs.append({"dtype": dtype, "points": points})
    return roofs


def _short(value: float) -> float:
    """Return the value to five digits."""
    return float(f"{value:.5g}")


def step_numbers(sheet: Sheet) -> Iterator[tuple[str, str, str, str]]:
    """Yield (what, number, its detail, "") each, of what the reports have."""
    views = {view.key: view for report in sheet.reports for view in report.views if view.rows}
    profiles = [table.to_dicts() for report in sheet.reports for table in report.tables if table.key == "step_profile"]
    if profile := next((rows[0] for rows in profiles if rows), None):
        step_ns = 1e9 * _number(profile["global_step_time_s"])
        rank = f", on the slowest rank ({profile['slowest_rank']})" if profile["ranks_differ"] else ""
        detail = f"unprofiled, {profile['measured']} steps{rank}"
        yield "Step", format_value(step_ns, Unit.NS), detail, ""
    elif "steps" in views:
        yield (_whole_trace if _is_whole_trace(views) else _mean_step)(views["steps"].to_dicts())
    partitions = [view for report in sheet.reports for view in report.views if view.key == "partition" and view.rows]
    if partitions:
        compute = "Host's compute" if sheet.source.lacks_device_rows else "Compute"
        yield from _shares(partitions[0], compute, "trace" if _is_whole_trace(views) else "step")


def _mean_step(ranks: Sequence[Mapping[str, Cell]]) -> tuple[str, str, str, str]:
    slowest = max(ranks, key=lambda row: _number(row["mean_ns"]))
    detail = f"profiled, mean of {_steps(_number(slowest['num']))}"
    return "Step", format_value(slowest["mean_ns"], Unit.NS), f"{detail}{_of_rank(slowest, ranks)}", ""


def _whole_trace(ranks: Sequence[Mapping[str, Cell]]) -> tuple[str, str, str, str]:
    longest = max(ranks, key=lambda row: _number(row["dur_ns"]))
    return "Trace", format_value(longest["dur_ns"], Unit.NS), f"profiled, without steps{_of_rank(longest, ranks)}", ""


def _of_rank(row: Mapping[str, Cell], ranks: Sequence[Mapping[str, Cell]]) -> str:
    return f" of the slowest rank ({row['rank']})" if len(ranks) > 1 else ""


def _is_whole_trace(views: Mapping[str, Table]) -> bool:
    return "steps" in views and not any(column.key == "mean_ns" for column in views["steps"].columns)


def _shares(partition: Table, compute: str, whole_of: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the share of `compute`, and the category of most of the rest, of the mean step or the whole trace."""
    columns = [column for column in partition.columns if column.unit is Unit.NS and column.key != "total"]
    rows = [row for row in partition.to_dicts() if row[partition.columns[0].key] != "total"]
    sums = {column: sum(_number(row[column.key]) for row in rows) for column in columns}
    whole = sum(sums.values())
    if not whole:
        return
    computes = sum(ns for column, ns in sums.items() if column.key in _COMPUTES)
    yield compute, format_value(100 * computes / whole, Unit.PERCENT), f"{_ns(computes)} of {_ns(whole)}", ""
    rest = {column: ns for column, ns in sums.items() if column.key not in _COMPUTES and ns}
    if rest:
        most = max(rest, key=lambda column: rest[column])
        share = format_value(100 * rest[most] / whole, Unit.PERCENT)
        yield f"Most of the rest: {most.heading}", _ns(rest[most]), f"{share} of the {whole_of}", ""


def _steps(num: float) -> str:
    return "1 step" if num == 1 else f"{num:,.0f} steps"


def _ns(ns: float) -> str:
    return format_value(ns, Unit.NS)


def _number(value: Cell) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def steps_chart(steps: Table) -> str:
    """Return the chart of the table `steps`: a point for each whole step of each rank; "" for fewer than two.

    Of more than 4,000 points those of some ranks are left out, evenly.
    """
    numbers: dict[int, int] = {}
    points: list[tuple[int, int, int]] = []
    for row in steps.to_dicts():
        rank, ns = row["rank"], row["window_ns"]
        if isinstance(rank, int) and isinstance(ns, int) and not row["partial"]:
            numbers[rank] = numbers.get(rank, 0) + 1
            points.append((rank, numbers[rank], ns))
    ranks = list(numbers)[:: -(-len(points) // STEP_POINTS) or 1]
    place = {rank: index for index, rank in enumerate(ranks)}
    shown: list[Json] = [[place[rank], number, ns] for rank, number, ns in points if rank in place]
    if len(shown) < 2:
        return ""
    left_out = len(numbers) - len(ranks)
    data: dict[str, Json] = {**time_axis((ns for *_, ns in points)), "ranks": ranks, "steps": shown}
    summary = f"{len(points)} of {len(numbers)} {'rank' if len(numbers) == 1 else 'ranks'}." + (
        f" {left_out} ranks are not drawn." if left_out else ""
    )
    return figure("steps", data, "Durations of all whole steps", summary)
