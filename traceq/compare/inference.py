"""Steps of an inference engine on both sides, by what they compute: per step and per token."""

from __future__ import annotations

import numpy as np

from traceq.facts.ranks.job import RunRanks
from traceq.facts.timeline.inference_marks import STEP_KINDS
from traceq.facts.timeline.inference_steps import InferenceSteps, inference_steps
from traceq.frozen import frozen
from traceq.model import Trace


@frozen
class InferenceDelta:
    """Steps of one kind and batch size that both sides have; means."""

    kind: str
    batch: int | None
    """Requests; None: all steps of the kind."""
    num_a: int
    num_b: int
    a_ns: int
    b_ns: int
    a_token_ns: int | None
    b_token_ns: int | None

    @property
    def delta_ns(self) -> int:
        """B's step minus A's."""
        return self.b_ns - self.a_ns

    @property
    def token_delta_ns(self) -> int | None:
        """B's time per token minus A's."""
        if self.a_token_ns is None or self.b_token_ns is None:
            return None
        return self.b_token_ns - self.a_token_ns


def inference_deltas(a: RunRanks, b: RunRanks) -> tuple[InferenceDelta, ...]:
    """Return the kinds of step of the first rank that is on both sides, each by batch size where they share some."""
    ours, theirs = a.run.ranks, b.run.ranks
    common = [(rank, rank) for rank in ours if rank in theirs]
    if not common and len(ours) == len(theirs) == 1:
        common = [(ours[0], theirs[0])]
    return _of_traces(a.trace(common[0][0]), b.trace(common[0][1])) if common else ()


def _of_traces(a: Trace, b: Trace) -> tuple[InferenceDelta, ...]:
    of_a, of_b = inference_steps(a), inference_steps(b)
    deltas: list[InferenceDelta] = []
    for kind in sorted({*of_a.kind.tolist()} & {*of_b.kind.tolist()}):
        batches = sorted({*of_a.batch[of_a.kind == kind].tolist()} & {*of_b.batch[of_b.kind == kind].tolist()})
        for batch in [batch for batch in batches if batch >= 0] or [-1]:
            sides = [_mean(side, kind, batch) for side in (of_a, of_b)]
            if all(num for num, _, _ in sides):
                (num_a, a_ns, a_token_ns), (num_b, b_ns, b_token_ns) = sides
                size = batch if batch >= 0 else None
                deltas.append(InferenceDelta(STEP_KINDS[kind], size, num_a, num_b, a_ns, b_ns, a_token_ns, b_token_ns))
    return tuple(deltas)


def _mean(side: InferenceSteps, kind: int, batch: int) -> tuple[int, int, int | None]:
    """Return (steps, mean ns, ns per token) of the counted steps of a kind and, if not -1, a batch size."""
    selected = side.counted & (side.kind == kind) & ((side.batch == batch) | (batch < 0))
    num, ns = int(selected.sum()), int(side.ns[selected].sum())
    tokens = np.where(side.tokens[selected] < 0, 0, side.tokens[selected])
    is_told = num > 0 and bool((side.tokens[selected] > 0).all())
    return num, round(ns / num) if num else 0, round(ns / int(tokens.sum())) if is_told else None
