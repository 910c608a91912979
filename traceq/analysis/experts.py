"""Which rank computes more tokens and longer for its experts than the others, and do they wait for it?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import holds_in_steps, step_lengths, waits_in_steps
from traceq.analysis._rank_rows import of_all
from traceq.analysis._wording import MOST_RANKS, more_rows, with_step_headings
from traceq.claims.claim import AT_MOST, Claim, Subject, measured
from traceq.claims.limits import FEW, MOST
from traceq.facts.comm.expert_tokens import EXCHANGES, expert_tokens
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.name_patterns import matching
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import contains, measure, measure_within, span_index, spans
from traceq.model import Trace
from traceq.report import Report, Table, column
from traceq.units import Unit, format_value

_EXPERTS = re.compile(
    r"group(ed)?_?(gemm|mm)|Grouped\w{0,80}Gemm|GroupProblemShape|m_grouped_|MoeFCGemm|moe_?gemm|fused_moe|_matmul_ogs|ragged_dot",
    re.IGNORECASE,
)
"""Kernels that multiply for several experts at once."""

_LEAST_RATIO = 1.1
"""Busiest rank over the mean, from which people see them."""


@frozen
class ExpertRow:
    """Expert compute in a counted step."""

    rank: int = column("rank", Unit.COUNT)
    num: int = column("kernels", Unit.COUNT)
    dur_ns: int = column("expert compute", Unit.NS)
    ratio: float = column("of the mean", Unit.MEAN)
    """Of the mean."""
    tokens: int | None = column("tokens", Unit.COUNT)
    """Of its experts, over forward layers."""
    token_ratio: float | None = column("of their mean", Unit.MEAN)
    """Of their mean."""
    wait_ns: int | None = column("waits", Unit.NS)


@frozen
class LayerRow:
    """Tokens of experts in one layer of a counted step: of the mean and of the busiest rank."""

    layer: int = column("layer", Unit.COUNT)
    """Place in the step."""
    mean: float = column("tokens, mean", Unit.MEAN)
    tokens: int = column("most", Unit.COUNT)
    rank: int = column("rank", Unit.COUNT)
    ratio: float = column("of the mean", Unit.MEAN)
    """Of the mean."""


@frozen(eq=False)
class _Rank:
    """One rank's row, none for a model without experts, and `tokens` int64[L] of the layers of its counted steps.

    `source`: what tells the tokens, "" where nothing does. `steps_ns` int64[K]: expert compute of each counted step.
    """

    rows: tuple[ExpertRow, ...]
    source: str
    tokens: NDArray[np.int64]
    steps_ns: NDArray[np.int64]


def summarize(trace: Trace) -> _Rank:
    """Return the rank's expert compute and tokens in its counted steps."""
    work, all_steps, layers = device_work(trace), steps(trace), expert_tokens(trace)
    selected = matching(trace.events, work.rows, _EXPERTS) & ~is_communication(trace)
    start, end = work.start[selected], work.end[selected]
    windows = spans(*all_steps.window[all_steps.counted].T)
    inside = contains(windows, start)
    num_steps = max(int(all_steps.counted.sum()), 1)
    steps_ns = measure_within(spans(start, end), *all_steps.window[all_steps.counted].T)
    ns = round(int(steps_ns.sum()) / num_steps)
    tokens = layers.tokens[span_index(all_steps.host[all_steps.counted], layers.ts) >= 0]
    if not inside.any() and len(tokens) and tokens.min() == tokens.max():
        tokens = tokens[:0]  # other programs exchange activations, too, always as many
    per_step = round(int(tokens.sum()) / num_steps) if len(tokens) else None
    has_experts = inside.any() or len(tokens) > 0
    rows = (ExpertRow(trace.rank, int(inside.sum()), ns, 1.0, per_step, None, None),) if has_experts else ()
    return _Rank(rows, layers.source if len(tokens) else "", tokens, steps_ns)


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return a row per rank and per layer; people see ranks, and a finding, where they differ."""
    rows = list(of_all(parts))
    waits = {rank: round(float(ns.mean())) for rank, ns in waits_in_steps(job).items()}
    mean = float(np.mean([row.dur_ns for row in rows])) if rows else 0.0
    tokens = [row.tokens for row in rows if row.tokens is not None]
    mean_tokens = float(np.mean(tokens)) if len(tokens) == len(rows) and any(tokens) else 0.0
    rows = [
        replace(
            row,
            ratio=row.dur_ns / mean if mean else 1.0,
            token_ratio=row.tokens / mean_tokens if row.tokens is not None and mean_tokens else None,
            wait_ns=waits.get(row.rank),
        )
        for row in rows
    ]
    layers = _layers(job, parts)
    tables = (
        Table.of("experts", "Expert compute", ExpertRow, rows),
        Table.of("expert_layers", sentences.EXPERT_LAYERS, LayerRow, layers),
    )
    if len(rows) < 2 or max(max(row.ratio, row.token_ratio or 0.0) for row in rows) < _LEAST_RATIO:
        return Report("experts", tables)
    busiest = sorted(rows, key=lambda row: (-row.dur_ns, -(row.tokens or 0), row.rank))[:MOST_RANKS]
    note = " ".join(filter(None, [_of_layers(layers, parts), more_rows(len(rows) - len(busiest))]))
    view = Table.of("experts", sentences.EXPERTS, ExpertRow, busiest, note=note)
    shown = view if mean_tokens else view.without("tokens", "token_ratio")
    return Report("experts", tables, (with_step_headings(shown, job),), _findings(job, parts, rows, mean))


def _layers(job: Job, parts: Sequence[_Rank]) -> list[LayerRow]:
    """Return the tokens by layer of a mean step, where all ranks that have any have as many layers from one source."""
    of_ranks = [(part.rows[0].rank, part.tokens) for part in parts if part.source]
    if len({(part.source, len(part.tokens)) for part in parts if part.source}) != 1:
        return []
    ranks = [rank for rank, _ in of_ranks]
    num_steps = max(int(rank.steps.counted.sum()) for rank in job.ranks)
    tokens = np.array([tokens for _, tokens in of_ranks], np.float64)
    if tokens.shape[1] % num_steps == 0:
        tokens = tokens.reshape(len(ranks), num_steps, -1).mean(axis=1)
    columns = zip(
        tokens.mean(axis=0).tolist(), tokens.max(axis=0).tolist(), tokens.argmax(axis=0).tolist(), strict=True
    )
    return [
        LayerRow(layer, mean, round(most), ranks[busiest], most / mean if mean else 1.0)
        for layer, (mean, most, busiest) in enumerate(columns)
    ]


def _of_layers(layers: Sequence[LayerRow], parts: Sequence[_Rank]) -> str:
    """Return how much more tokens than the mean the busiest rank of a layer has."""
    if not layers:
        return ""
    worst = max(layers, key=lambda row: row.ratio)
    mean = format_value(float(np.mean([row.ratio for row in layers])), Unit.MEAN)
    tokens = sentences.TOKENS.format(mean=mean, most=worst.ratio, layer=worst.layer, rank=worst.rank)
    return tokens if any(part.source == EXCHANGES for part in parts) else f"{tokens} {sentences.TOKENS_OF_ROWS}"


def _findings(job: Job, parts: Sequence[_Rank], rows: Sequence[ExpertRow], mean: float) -> tuple[Claim, ...]:
    """Return the rank with most expert compute if the others wait for about as long as it computes more.

    Both have to hold in most steps.
    """
    busiest = max(rows, key=lambda row: (row.dur_ns, -row.rank))
    others = [row.wait_ns for row in rows if row.rank != busiest.rank and row.wait_ns is not None]
    steps_of = next(rank.steps for rank in job.ranks if rank.rank == busiest.rank)
    step_ns = measure(spans(*steps_of.window[steps_of.counted].T)) / max(int(steps_of.counted.sum()), 1)
    excess = busiest.dur_ns - mean
    waited = float(np.median(others)) if others else 0.0
    busiest_wait = busiest.wait_ns or 0
    if excess < FEW * step_ns or waited - busiest_wait < MOST * excess:
        return ()
    if not _holds(job, parts, busiest.rank):
        return ()
    ratio, tokens_ratio = busiest.ratio, busiest.token_ratio
    measures = measured(
        excess_ns=round(excess),
        compute_ratio=ratio,
        tokens_ratio=tokens_ratio,
        wait_ns=round(waited),
        own_wait_ns=busiest_wait,
    )
    is_slow = tokens_ratio is not None and tokens_ratio - 1 < MOST * (ratio - 1)
    subject, gain = Subject(rank=busiest.rank, key=f"rank {busiest.rank}"), (0, round(excess))
    remedy = "slow_experts" if is_slow else "balance_experts"
    return (Claim("expert_imbalance", round(excess), subject, measures, gain, AT_MOST, remedy),)


def _holds(job: Job, parts: Sequence[_Rank], busiest: int) -> bool:
    """Return whether a rank computes longer for experts in most steps, and the others wait for it in most steps.

    Steps are compared by their number.
    """
    numbers = {rank.rank: rank.steps.number[rank.steps.counted].tolist() for rank in job.ranks}
    common = sorted(set.intersection(*map(set, numbers.values())))
    place = {rank: [of_rank.index(number) for number in common] for rank, of_rank in numbers.items()}
    ns = {part.rows[0].rank: part.steps_ns[place[part.rows[0].rank]] for part in parts if part.rows}
    waits_ns = {rank: of_rank[place[rank]] for rank, of_rank in waits_in_steps(job).items()}
    step_ns = next(step_lengths(rank.steps) for rank in job.ranks if rank.rank == busiest)[place[busiest]]
    excess_ns = ns[busiest] - np.mean(list(ns.values()), axis=0)
    others_ns = [waits_ns[rank] for rank in ns if rank != busiest and rank in waits_ns]
    waited_ns = np.median(others_ns, axis=0) - waits_ns.get(busiest, np.zeros(len(common)))
    return all(
        holds_in_steps(each, step_ns, 100 * least) for each, least in ((excess_ns, FEW), (waited_ns, FEW * MOST))
    )
