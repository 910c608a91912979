"""How long is each stage of a pipeline idle, when, and by which schedule?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._basis import holds_in_steps
from traceq.analysis._wording import MOST_RANKS, more_rows, with_step_headings
from traceq.claims.claim import AT_MOST, Claim, Subject, measured
from traceq.claims.limits import LARGE, UNEVEN_STAGES
from traceq.facts.comm.microbatches import Passes, passes
from traceq.facts.ranks.job import Job
from traceq.facts.ranks.message_matching import MessageTimes
from traceq.facts.ranks.pipelines import UNKNOWN, Pipeline, StageTimes, pipelines, stage_times
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_ranks

_REMEDIES = {"GPipe": "gpipe", "1F1B": "1f1b", "looped BFS": "looped_bfs", "interleaved 1F1B": "interleaved_1f1b"}


@frozen
class StageRow:
    """A mean counted step: passes, warm-up, steady, cool-down, transfer and other add up to it."""

    rank: int = column("rank", Unit.COUNT)
    pipeline: int = column("pipeline", Unit.COUNT, is_hidden=True)
    position: int | None = column("position", Unit.COUNT, is_hidden=True)
    stages: str = column("stages")
    """As annotations number them, else by position."""
    schedule: str = column("schedule", is_hidden=True)
    """`GPipe`, `1F1B`, `ZB1P`, `looped BFS`, `interleaved 1F1B`, `interleaved ZB1P`, `unknown`."""
    num_microbatches: int | None = column("microbatches", Unit.COUNT, is_hidden=True)
    step_ns: int = column("step", Unit.NS)
    passes_ns: int = column("passes", Unit.NS)
    bubble_pct: float = column("bubble", Unit.PERCENT)
    """Warm-up, steady and cool-down, of the step."""
    warmup_ns: int = column("warm-up", Unit.NS)
    steady_ns: int = column("steady", Unit.NS)
    cooldown_ns: int = column("cool-down", Unit.NS)
    wait_ns: int | None = column("of it waits", Unit.NS)
    """Of the bubble: for the other side."""
    transfer_ns: int | None = column("transfers", Unit.NS)
    """Only messages move."""
    other_ns: int = column("other", Unit.NS)


@frozen
class MessageRow:
    """Messages with another rank; times are of those that the other rank has, too."""

    rank: int = column("rank", Unit.COUNT)
    peer: int = column("peer", Unit.COUNT)
    direction: str = column("direction")
    num: int = column("messages", Unit.COUNT)
    num_matched: int = column("matched", Unit.COUNT)
    dur_ns: int = column("time", Unit.NS)
    wait_ns: int = column("waits", Unit.NS)
    """Until the other side starts."""
    transfer_ns: int = column("transfers", Unit.NS)
    """Until the first of both sides ends."""
    done_ns: int = column("done", Unit.NS)
    """Until this side ends."""


def summarize(trace: Trace) -> Passes:
    """Return the rank's passes of microbatches."""
    return passes(trace)


def merge(job: Job, parts: Sequence[Passes]) -> Report:
    """Return a row per rank of each pipeline, and the finding on the one with the largest bubble."""
    every = pipelines(job.ranks, parts, job.messages) if job.is_concurrent and any(map(len, parts)) else ()
    of_stages = [stage_times(job.ranks, parts, pipeline, job.messages) for pipeline in every]
    rows = [row for number, each in enumerate(every) for row in _rows(job, number, each, of_stages[number])]
    messages = list(_message_rows(job, job.messages)) if rows else []
    tables = (
        Table.of("pipeline", "Pipeline", StageRow, rows),
        Table.of("pipeline_messages", "Messages of the pipeline", MessageRow, messages),
    )
    if not rows:
        return Report("pipeline", tables)
    worst = max(range(len(every)), key=lambda number: _mean([row for row in rows if row.pipeline == number]))
    finding = _finding(every[worst], of_stages[worst], [row for row in rows if row.pipeline == worst])
    return Report("pipeline", tables, (_view(job, every, worst, rows),), finding)


def _rows(job: Job, number: int, pipeline: Pipeline, times: dict[int, StageTimes]) -> Iterator[StageRow]:
    messages = job.messages
    for position, index in enumerate(pipeline.ranks):
        each = times[index]
        step, *parts, wait, moved = (
            round(float(ns.mean()))
            for ns in (each.window, each.passes, each.warmup, each.steady, each.cooldown, each.wait, each.transfer)
        )
        is_matched = bool((messages.partner[messages.rank == index] >= 0).any())
        yield StageRow(
            rank=job.ranks[index].rank,
            pipeline=number,
            position=position if pipeline.is_ordered else None,
            stages=", ".join(map(str, pipeline.stages[position])),
            schedule=pipeline.schedule,
            num_microbatches=pipeline.num_microbatches or None,
            step_ns=step,
            passes_ns=parts[0],
            bubble_pct=100 * sum(parts[1:]) / max(step, 1),
            warmup_ns=parts[1],
            steady_ns=parts[2],
            cooldown_ns=parts[3],
            wait_ns=wait if is_matched else None,
            transfer_ns=moved if is_matched else None,
            other_ns=step - sum(parts) - moved,
        )


def _message_rows(job: Job, times: MessageTimes) -> Iterator[MessageRow]:
    """Return a row for each rank, peer and direction."""
    ran = times.end >= 0
    keys = np.column_stack([times.rank, times.peer, times.is_send])
    for rank, peer, is_send in np.unique(keys[ran & (times.peer >= 0)], axis=0).tolist():
        chosen = np.flatnonzero((keys == (rank, peer, is_send)).all(axis=1) & ran)
        matched = chosen[times.partner[chosen] >= 0]
        start, end = times.start[matched], times.end[matched]
        both, done = times.both_started[matched], times.transferred[matched]
        yield MessageRow(
            rank=job.ranks[rank].rank,
            peer=job.ranks[peer].rank,
            direction="send" if is_send else "recv",
            num=len(chosen),
            num_matched=len(matched),
            dur_ns=int((end - start).sum()),
            wait_ns=int((both - start).sum()),
            transfer_ns=int((done - both).sum()),
            done_ns=int((end - done).sum()),
        )


def _mean(rows: Sequence[StageRow]) -> float:
    """Return ns of the bubble in a step, mean over ranks."""
    return float(np.mean([row.warmup_ns + row.steady_ns + row.cooldown_ns for row in rows]))


def _view(job: Job, every: Sequence[Pipeline], worst: int, rows: Sequence[StageRow]) -> Table:
    """Return the pipeline with the largest bubble; of many stages those that compute longest."""
    shown = [row for row in rows if row.pipeline == worst]
    if len(shown) > MOST_RANKS:
        shown = sorted(shown, key=lambda row: (-row.passes_ns, row.rank))[:MOST_RANKS]
    title = sentences.PIPELINE if len(every) == 1 else sentences.LARGEST_BUBBLE
    title = title.format(pipeline=f"Pipeline {_words(every[worst])}", num=len(every))
    view = Table.of("pipeline", title, StageRow, shown, note=more_rows(len(rows) - len(shown))).visible
    return with_step_headings(view, job)


def _words(pipeline: Pipeline) -> str:
    """Return `(1F1B, 4 ranks, 8 microbatches)`."""
    schedule = "schedule unknown" if pipeline.schedule == UNKNOWN else pipeline.schedule
    num = pipeline.num_microbatches
    parts = [schedule, f"{len(pipeline.ranks)} rank{'s' if len(pipeline.ranks) > 1 else ''}"]
    return f"({', '.join([*parts, *([f'{num} microbatches'] if num else [])])})"


def _finding(pipeline: Pipeline, times: dict[int, StageTimes], rows: Sequence[StageRow]) -> tuple[Claim, ...]:
    """Return the bubble if it is a large part of most steps."""
    num = min(len(each.window) for each in times.values())
    bubble, step = (
        np.mean([getattr(each, name)[:num] for each in times.values()], axis=0) for name in ("bubble", "window")
    )
    if not holds_in_steps(bubble, step, 100 * LARGE):
        return ()
    ns, step_ns = _mean(rows), float(np.mean([row.step_ns for row in rows]))
    slowest, passes_ns = max(rows, key=lambda row: row.passes_ns), float(np.mean([row.passes_ns for row in rows]))
    is_uneven = slowest.passes_ns >= UNEVEN_STAGES * passes_ns
    measures = measured(
        share_pct=100 * ns / step_ns,
        schedule=pipeline.schedule,
        num_ranks=len(pipeline.ranks),
        num_microbatches=pipeline.num_microbatches or None,
        warmup_ns=round(float(np.mean([row.warmup_ns for row in rows]))),
        steady_ns=round(float(np.mean([row.steady_ns for row in rows]))),
        cooldown_ns=round(float(np.mean([row.cooldown_ns for row in rows]))),
        even_pct=_even_pct(pipeline),
        passes_ratio=slowest.passes_ns / passes_ns if is_uneven else None,
    )
    key = f"ranks {format_ranks(sorted(row.rank for row in rows))}"
    subject = Subject(rank=slowest.rank if is_uneven else None, key=key)
    remedy = "even_stages" if is_uneven else _REMEDIES.get(pipeline.schedule, "microbatches")
    return (Claim("pipeline_bubble", round(ns), subject, measures, (0, round(ns)), AT_MOST, remedy),)


def _even_pct(pipeline: Pipeline) -> float | None:
    """Return what GPipe and 1F1B leave idle with equal stages, (p - 1) / (m + p - 1); None for other schedules."""
    hops, num = len(pipeline.ranks) - 1, pipeline.num_microbatches
    return 100 * hops / (num + hops) if pipeline.schedule in ("GPipe", "1F1B") and num else None
