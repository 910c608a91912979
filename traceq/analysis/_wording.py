"""Wording shared by all reports: the step that times are given for, and the rows that a view leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traceq.analysis import sentences
from traceq.claims import saying
from traceq.claims.claim import Basis
from traceq.claims.limits import NOTABLE
from traceq.claims.saying import in_steps
from traceq.facts.events.graph_replays import ReplayTimes
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.rank_outline import Outline
from traceq.facts.timeline.phases import BEFORE_WINDOW, OTHER
from traceq.facts.timeline.steps import Steps
from traceq.report import Table
from traceq.units import Unit, format_ends, format_value

MOST_RANKS = 8
"""Most ranks that people see one by one."""


def per_step(steps: Steps) -> str:
    """Return `per step`, to follow a time; `of the trace` where that has no steps."""
    return "per step" if steps.marked else "of the trace"


def a_step(steps: Steps) -> str:
    """Return `a step`; `the trace` where that has no steps."""
    return "a step" if steps.marked else "the trace"


def in_traced_steps(job: Job, num: int = 0) -> str:
    """Return `in these 3 traced steps`, on which a finding rests; `in this trace` where that has no steps.

    `num` steps; without, those that each rank counts.
    """
    is_marked = bool(job.ranks) and job.ranks[0].steps.marked
    num = num or min((int(rank.steps.counted.sum()) for rank in job.ranks), default=0)
    return in_steps(Basis(num * is_marked))


def the_step(steps: Steps) -> str:
    """Return `the step`; `the trace` where that has no steps."""
    return "the step" if steps.marked else "the trace"


def until_done(rank: Outline, step_ns: float) -> str:
    """Return the note on a step of `step_ns` that lasts longer than in other tables; "" for one that does not."""
    if step_ns - float(np.diff(rank.steps.window[rank.steps.counted]).mean()) < NOTABLE * step_ns:
        return ""
    return sentences.UNTIL_DONE.format(the_step=the_step(rank.steps), time=format_value(step_ns, Unit.NS))


def with_step_headings(view: Table, job: Job) -> Table:
    """Return a view whose headings say `per step` only where the traces have steps."""
    if job.ranks and job.ranks[0].steps.marked:
        return view
    columns = (
        replace(column, title=column.title or "time", is_per_step=False) if column.is_per_step else column
        for column in view.columns
    )
    return replace(view, columns=tuple(columns))


def plain_phase(name: str) -> str:
    """Return the name of a phase without its decoration: `forward` of `## forward ##`."""
    return "before trace" if name == BEFORE_WINDOW else saying.plain_phase(name)


def values_words(values: Sequence[int], unit: Unit) -> str:
    """Return `4`, `4 or 10`, `288 or 656 MiB`, and of more values their range, `2 to 16`."""
    distinct = sorted(set(values))
    ends = format_ends(distinct[0], distinct[-1], unit)
    if not distinct[0] and len(distinct) > 1:
        ends = f"0 to {format_value(distinct[-1], unit)}"
    return ends.replace(" to ", " or ") if len(distinct) == 2 else ends


def category_term(category: str) -> str:
    """Return the term for a time category in a sentence: `host-bound`, `exposed communication`, else its name."""
    return sentences.CATEGORIES.get(category, category.replace("_", " "))


def category_heading(category: str) -> str:
    """Return the heading for a time category: exposed copies are memsets, too, and often nothing else."""
    return "copies, memsets" if category == "exposed_memcpy" else category.replace("_", " ")


def in_phase(phase: str) -> str:
    """Return `in forward`; `outside of phases` for time that belongs to none."""
    return "outside of phases" if phase == OTHER else f"in {phase}"


def python_or_host(line: str) -> str:
    """Return what a thread runs in no op: `python` where a line shows it, else `host`, as nothing proves it."""
    return "python" if line else "host"


def python_place(annotation: str) -> str:
    """Return where Python runs in no op: `in DistributedDataParallel.forward`, else `between ops`."""
    return f"in {annotation}" if annotation else "between ops"


def scope(job: Job) -> str:
    """Return `whole trace`, or `step 2` for a trace that was cut to that step."""
    alone = job.ranks[0].steps if job.ranks and job.ranks[0].steps.is_cut else None
    return "whole trace" if alone is None else f"step {alone.number[0]}"


def over_ranks(job: Job) -> str:
    """Return `sum of 8 ranks, whole trace`: what counts are summed over."""
    return f"sum of {len(job.ranks)} ranks, {scope(job)}" if len(job.ranks) > 1 else scope(job)


def in_graphs(times: ReplayTimes) -> str:
    """Return how much GPU time replays of CUDA graphs launch, and what that counts to; "" without replays."""
    replay_ns, captured_ns = times.replay_ns, times.captured_ns
    if not times.num or not times.gpu_ns or not replay_ns:
        return ""
    hidden = format_value(100 * (replay_ns - captured_ns) / replay_ns, Unit.PERCENT)
    share = format_value(100 * replay_ns / times.gpu_ns, Unit.PERCENT)
    extent = "not" if not captured_ns else "captured" if captured_ns == replay_ns else "in part"
    return sentences.IN_GRAPHS[extent].format(share=share, num=times.num, s="s" * (times.num > 1), hidden=hidden)


def more_rows(num: int) -> str:
    """Return `12 more rows in --json.`; "" where a view shows all."""
    return sentences.MORE_ROWS.format(num=num, s="s" * (num > 1)) if num > 0 else ""
