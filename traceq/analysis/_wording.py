"""What all reports call the same things: the step that times are given for, and what a view leaves out."""

from __future__ import annotations

from dataclasses import replace

from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import Steps
from traceq.report import Column

__all__ = [
    "MOST_RANKS",
    "a_step",
    "more_rows",
    "over_ranks",
    "per_step",
    "python_place",
    "scope",
    "stepwise",
    "the_step",
]

MOST_RANKS = 8
"""Ranks that people see one by one."""


def per_step(found: Steps) -> str:
    """`a step`, behind a time; `of the trace` where that has no steps."""
    return "a step" if found.marked else "of the trace"


def a_step(found: Steps) -> str:
    """`a step`; `the trace` where that has no steps."""
    return "a step" if found.marked else "the trace"


def the_step(found: Steps) -> str:
    """`the step`; `the trace` where that has no steps."""
    return "the step" if found.marked else "the trace"


def stepwise(columns: tuple[Column, ...], job: Job) -> tuple[Column, ...]:
    """Headings that end in `a step` without it where there are no steps."""
    if job.ranks and job.ranks[0].steps.marked:
        return columns
    return tuple(
        replace(column, title=column.title.removesuffix("a step").strip() or "time")
        if column.title.endswith("a step")
        else column
        for column in columns
    )


def python_place(annotation: str) -> str:
    """Where Python runs in no op: `in DistributedDataParallel.forward`, else `between ops`."""
    return f"in {annotation}" if annotation else "between ops"


def scope(job: Job) -> str:
    """`whole trace`, or `step 2` of one that was cut to it."""
    alone = job.ranks[0].steps if job.ranks and job.ranks[0].steps.alone else None
    return "whole trace" if alone is None else f"step {alone.number[0]}"


def over_ranks(job: Job) -> str:
    """`sum of 8 ranks, whole trace`: what counts are of."""
    return f"sum of {len(job.ranks)} ranks, {scope(job)}" if len(job.ranks) > 1 else scope(job)


def more_rows(num: int) -> str:
    """`12 more rows in --json.`; "" where a view holds all."""
    return f"{num:,} more row{'s' if num > 1 else ''} in --json." if num > 0 else ""
