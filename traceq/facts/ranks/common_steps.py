"""Steps that all ranks of a job count: else a mean over ranks is one of different steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress

from traceq.facts.ranks.job_collectives import are_concurrent
from traceq.facts.ranks.rank_outline import Outline, outline
from traceq.facts.timeline.steps import Steps
from traceq.model import Trace


def counted_names(steps: Steps) -> frozenset[str]:
    """Return the names of the steps that count."""
    return frozenset(compress(steps.names, steps.counted))


def uncommon_steps(ranks: Sequence[Outline]) -> frozenset[str]:
    """Return the names of steps that some ranks count, and others do not, as they have only a part of them.

    None where a rank would have no step left, where names of steps repeat, and of ranks that ran one after the other.
    """
    marked = [rank.steps for rank in ranks if rank.steps.marked and not rank.steps.labels]
    if len(marked) < 2 or not are_concurrent(ranks):
        return frozenset()
    counted = [counted_names(steps) for steps in marked]
    partial = {name for steps in marked for name in compress(steps.names, ~steps.counted)}
    uncommon = frozenset().union(*counted) & partial
    return uncommon if all(names - uncommon for names in counted) else frozenset()


def with_common_steps(traces: Iterable[Trace]) -> tuple[Trace, ...]:
    """Return the traces of the ranks of a job, which count the same steps.

    The same traces where one has a single event: it may be the head of one that is not in memory.
    """
    traces = tuple(traces)
    if len(traces) < 2 or any(len(trace.events) < 2 for trace in traces):
        return traces
    outlines = [outline(trace) for trace in traces]
    uncommon = uncommon_steps(outlines)
    return tuple(
        replace(trace, left_out=trace.left_out | uncommon) if uncommon & counted_names(each.steps) else trace
        for trace, each in zip(traces, outlines, strict=True)
    )
