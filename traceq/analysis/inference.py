"""How long are the steps of an inference engine, by what they compute, per step and per token?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analysis import sentences
from traceq.analysis._rank_rows import Part, of_all
from traceq.analysis._wording import in_graphs, more_rows
from traceq.facts.events.graph_replays import ReplayTimes
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.inference_marks import STEP_KINDS
from traceq.facts.timeline.inference_steps import inference_steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import sorted_unique
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit

_TOP = 12


@frozen
class InferenceRow:
    """Steps of an inference engine of one kind and batch size; times are means, the rest sums."""

    key: str = column("key", is_hidden=True)
    rank: int = column("rank", Unit.COUNT)
    kind: str = column("step")
    """`prefill`, `decode`, `mixed`, or `step`: not known."""
    batch: int | None = column("batch", Unit.COUNT)
    """Requests."""
    num: int = column("steps", Unit.COUNT)
    tokens: int | None = column("tokens", Unit.COUNT)
    dur_ns: int = column("per step", Unit.NS)
    """From its begin, or the end before, until the device finished."""
    token_ns: int | None = column("per token", Unit.NS)
    host_ns: int = column("host", Unit.NS)
    gpu_ns: int = column("GPU sum", Unit.NS)
    replay_ns: int = column("in graphs", Unit.NS)
    """Of `gpu_ns`, by replays of CUDA graphs."""
    captured_ns: int = column("of captures", Unit.NS)
    """Of `replay_ns`, of known capture."""
    num_replays: int = column("replays", Unit.COUNT)


def summarize(trace: Trace) -> Part[InferenceRow]:
    """Return the steps by kind and batch size; of several, a first step that waits for earlier work does not count."""
    return Part(tuple(_rows(trace)))


def merge(job: Job, parts: Sequence[Part[InferenceRow]]) -> Report:
    """Return the rows of all ranks; people see those of the first rank, as all run the same steps."""
    rows = of_all(parts)
    table = Table.of("inference", "Inference steps", InferenceRow, rows)
    return Report("inference", (table,), (_view(rows),) if rows else ())


def _rows(trace: Trace) -> list[InferenceRow]:
    all_steps = inference_steps(trace)
    selected = all_steps.counted.nonzero()[0]
    groups = group([all_steps.kind[selected], all_steps.batch[selected]])
    tokens = all_steps.tokens[selected]
    sums = zip(
        groups.keys.tolist(),
        groups.count(),
        groups.sum(tokens),
        groups.sum((tokens < 0).astype(tokens.dtype)),
        groups.sum(all_steps.ns[selected]),
        groups.sum(all_steps.host_ns[selected]),
        groups.sum(all_steps.gpu_ns[selected]),
        groups.sum(all_steps.replay_ns[selected]),
        groups.sum(all_steps.captured_ns[selected]),
        groups.sum(all_steps.num_replays[selected]),
        strict=True,
    )
    return [
        InferenceRow(
            key=f"{STEP_KINDS[kind]}|{batch if batch >= 0 else ''}",
            rank=trace.rank,
            kind=STEP_KINDS[kind],
            batch=batch if batch >= 0 else None,
            num=num,
            tokens=None if num_untold else num_tokens,
            dur_ns=round(ns / num),
            token_ns=round(ns / num_tokens) if num_tokens > 0 and not num_untold else None,
            host_ns=round(host_ns / num),
            gpu_ns=round(gpu_ns / num),
            replay_ns=round(replay_ns / num),
            captured_ns=round(captured_ns / num),
            num_replays=num_replays,
        )
        for (kind, batch), num, num_tokens, num_untold, ns, host_ns, gpu_ns, replay_ns, captured_ns, num_replays in sums
    ]


def _view(rows: Sequence[InferenceRow]) -> Table:
    first = [row for row in rows if row.rank == rows[0].rank]
    shown = sorted(
        sorted(first, key=lambda row: -row.num * row.dur_ns)[:_TOP], key=lambda row: (row.kind, row.batch or 0)
    )
    note = " ".join(filter(None, [_replays(first), more_rows(len(rows) - len(shown))]))
    of_rank = f" (rank {rows[0].rank})" if len(first) < len(rows) else ""
    table = Table.of("inference", sentences.INFERENCE.format(of_rank=of_rank), InferenceRow, shown, note=note).visible
    has_replays, has_captures = (any(getattr(row, name) for row in shown) for name in ("num_replays", "captured_ns"))
    unused = ("captured_ns",) if has_replays else ("replay_ns", "captured_ns", "num_replays")
    return table.without("rank", *(() if has_captures else unused))


def _replays(rows: Sequence[InferenceRow]) -> str:
    """Return how much GPU time graphs launch, and what it counts to."""
    replay_ns, captured_ns, gpu_ns = (
        sum(row.num * getattr(row, name) for row in rows) for name in ("replay_ns", "captured_ns", "gpu_ns")
    )
    return in_graphs(ReplayTimes(gpu_ns, replay_ns, captured_ns, sum(row.num_replays for row in rows)))


@frozen
class StepKindRow:
    """Traced steps of one kind."""

    rank: int = column("rank", Unit.COUNT)
    kind: str = column("step")
    """`prefill`, `decode`, `mixed`, or `step`: not known."""
    num: int = column("steps", Unit.COUNT)
    mean_ns: int = column("mean", Unit.NS)
    """As `dur_ns` of `inference`."""
    median_ns: int = column("median", Unit.NS)
    p95_ns: int = column("p95", Unit.NS)
    share_pct: float = column("share", Unit.PERCENT)
    tokens_per_second: float | None = column("tokens/s", Unit.COUNT)


def step_kinds(trace: Trace) -> tuple[StepKindRow, ...]:
    """Return a row per kind of step; none for other programs. A first step that waits for earlier work is left out."""
    steps = inference_steps(trace)
    whole_ns = max(int(steps.ns[steps.counted].sum()), 1)
    rows = []
    for kind in sorted_unique(steps.kind[steps.counted]).tolist():
        selected = steps.counted & (steps.kind == kind)
        ns, tokens = steps.ns[selected], steps.tokens[selected]
        total_ns = int(ns.sum())
        has_tokens = total_ns > 0 and bool((tokens >= 0).all())
        rows.append(
            StepKindRow(
                rank=trace.rank,
                kind=STEP_KINDS[kind],
                num=len(ns),
                mean_ns=round(total_ns / len(ns)),
                median_ns=round(float(np.median(ns))),
                p95_ns=round(float(np.percentile(ns, 95))),
                share_pct=100 * total_ns / whole_ns,
                tokens_per_second=1e9 * int(tokens.sum()) / total_ns if has_tokens else None,
            )
        )
    return tuple(rows)


def step_kinds_view(rows: Sequence[StepKindRow]) -> Table:
    """Return the rows of the first rank, as all run the same steps."""
    first = [row for row in rows if row.rank == rows[0].rank]
    of_rank = f" (rank {rows[0].rank})" if len(first) < len(rows) else ""
    return Table.of("step_kinds", sentences.INFERENCE_KINDS.format(of_rank=of_rank), StepKindRow, first).without("rank")
