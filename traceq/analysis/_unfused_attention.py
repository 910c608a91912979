"""Attention as two products of matrices with a softmax between them, whose scores go through memory."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import holds_in_steps, step_lengths
from traceq.analysis._job_gain import on_the_worst_rank
from traceq.claims.claim import AT_MOST, Claim, Subject, measured
from traceq.claims.limits import LARGE
from traceq.facts.ranks.job import Job
from traceq.facts.roofline.op_work import OpWork, RankWork

_SOFTMAX, _PRODUCTS = ("aten::_softmax", "aten::_safe_softmax"), {"aten::bmm": 0, "aten::baddbmm": 1}
"""Names of softmax ops; products of batches of matrices, with the position of their first factor."""

Scores = tuple[str, int, int, int]
"""(phase, batch, rows, columns) of a batch of matrices."""


def unfused_attention(job: Job, parts: Sequence[RankWork], below_roof: Sequence[str] = ()) -> tuple[Claim, ...]:
    """Return the scores that products and a softmax of the same shape take most time for, on the rank where it is most.

    As many products have to give such scores, and to multiply them, as softmaxes take them, in most steps. It explains
    a claim on an op below its roof whose key, in `below_roof`, is that of one of these: its time is part of theirs.
    """
    worst: list[Claim | None] = []
    for index, part in enumerate(parts):
        claims: list[Claim] = []
        step_ns = step_lengths(job.ranks[index].steps)
        rows_of_scores: dict[Scores, list[list[OpWork]]] = defaultdict(lambda: [[], [], []])
        for row in part.rows:
            for role, scores in _roles(row):
                rows_of_scores[scores][role].append(row)
        for (phase, *shape), rows_of_role in rows_of_scores.items():
            numbers = {sum(row.num for row in rows) for rows in rows_of_role}
            ns: NDArray[np.float64] = np.array([row.steps_ns for rows in rows_of_role for row in rows], np.float64)
            ns = ns.sum(axis=0)
            is_large = len(numbers) == 1 and 0 not in numbers and ns.sum() >= LARGE * step_ns.sum() > 0
            if is_large and holds_in_steps(ns, step_ns, 100 * LARGE):
                keys, mean_ns = {row.key for rows in rows_of_role for row in rows}, round(float(ns.mean()))
                measures = measured(
                    ops=", ".join(rows[0].op for rows in rows_of_role),
                    scores=" x ".join(f"{number:,}" for number in shape),
                    takes_ns=mean_ns,
                    share_pct=100 * float(ns.sum() / step_ns.sum()),
                )
                subject = Subject(phase=phase, key=min(keys.intersection(below_roof) or keys))
                claims.append(Claim("unfused_attention", mean_ns, subject, measures, (0, mean_ns), AT_MOST))
        worst.append(max(claims, key=lambda claim: claim.ns, default=None))
    return on_the_worst_rank(job, worst)


def _roles(row: OpWork) -> list[tuple[int, Scores]]:
    """Return (0, the scores that a product gives), (1, those that a softmax takes), (2, those that a product takes)."""
    first = _PRODUCTS.get(row.op, 0)
    if not row.shapes or (row.op not in _SOFTMAX and row.op not in _PRODUCTS):
        return []
    shapes = json.loads(row.shapes)[first : first + 2]
    if row.op in _SOFTMAX:
        *batch, rows, columns = shapes[0] if len(shapes[0]) > 2 else (0, 0, 0)
        return [(1, (row.phase, prod(batch), rows, columns))]
    if [len(shape) for shape in shapes] != [3, 3]:  # a trace may hold any shapes
        return []
    (batch, rows, inner), (_, _, columns) = shapes
    if inner == columns:  # cannot tell scores from what they multiply
        return []
    return [(0, (row.phase, batch, rows, columns)), (2, (row.phase, batch, rows, inner))]
