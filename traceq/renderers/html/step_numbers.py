"""The three numbers above a report: how long a step is, how much of it computes, and what most of the rest is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traceq.renderers.html.markup import Json, figure
from traceq.renderers.html.time_axis import time_axis
from traceq.report import Cell, Sheet, Table
from traceq.units import Unit, format_value

__all__ = ["step_numbers", "steps_chart"]

_COMPUTES = ("compute", "cpu_compute")


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


_MOST_POINTS = 4000


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
    ranks = list(numbers)[:: -(-len(points) // _MOST_POINTS) or 1]
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
