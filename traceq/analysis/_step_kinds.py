"""Steps of an inference engine by what they compute: how long, how evenly, for how many tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.facts.timeline.inference_marks import STEP_KINDS
from traceq.facts.timeline.inference_steps import inference_steps
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Trace
from traceq.report import Table, column
from traceq.units import Unit


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


def table_of(rows: Sequence[StepKindRow]) -> Table:
    """Return the rows of all ranks."""
    return Table.of("step_kinds", "Inference steps by what they compute", StepKindRow, rows)


def view_of(rows: Sequence[StepKindRow]) -> Table:
    """Return the rows of the first rank, as all run the same steps."""
    first = [row for row in rows if row.rank == rows[0].rank]
    of_rank = f" (rank {rows[0].rank})" if len(first) < len(rows) else ""
    title = f"A traced step, by what it computes{of_rank}"
    return Table.of("step_kinds", title, StepKindRow, first).without("rank")
