"""Durations of all steps, in the order in which they ran."""

from __future__ import annotations

from traceq.renderers.html.markup import Json, figure
from traceq.renderers.html.time_axis import time_axis
from traceq.report import Table

__all__ = ["steps_chart"]

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
