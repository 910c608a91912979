"""By how much some ranks of a job take longer than others, from their files: for experts, and by their own work."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import mean

from .partition import pieces
from .phases import Phases
from .reader import Trace, read
from .spans import Span, clip, union
from .steps import windows
from .syncs import find_syncs
from .unrecorded import gaps, opening

__all__ = ["expert_excess_ns", "late_ns"]

EXPERTS = re.compile("m_grouped|grouped_gemm|GroupProblemShape|fused_moe", re.IGNORECASE)


def expert_excess_ns(paths: Sequence[Path]) -> float:
    """By how much the kernels of experts run longer on the busiest rank than on the mean: ns of a counted step."""
    of_ranks = [expert_ns(read(path)) for path in paths]
    return max(of_ranks) - mean(of_ranks)


def expert_ns(trace: Trace) -> float:
    """While at least one kernel of experts runs: ns of a counted step."""
    running = union([(op.start, op.end) for op in trace.device_ops if EXPERTS.search(op.name)])
    counted = counted_windows(trace)
    return sum(b - a for start, end in counted for a, b in clip(running, start, end)) / len(counted)


def late_ns(paths: Sequence[Path], late: Collection[int]) -> float:
    """By how much some ranks take longer than the others in all that is not exposed communication: ns of a step."""
    of_ranks = [own_ns(read(path)) for path in paths]
    return mean(of_ranks[rank] for rank in late) - mean(ns for rank, ns in enumerate(of_ranks) if rank not in late)


def own_ns(trace: Trace) -> float:
    """Time of a counted step that is not exposed communication, ns."""
    phases, syncs, hidden = Phases(trace), find_syncs(trace), gaps(trace)
    counted = counted_windows(trace)
    parts = (piece for start, end in counted for piece in pieces(trace, phases, syncs, hidden, start, end))
    return sum(piece.end - piece.start for piece in parts if piece.category != "exposed_comm") / len(counted)


def counted_windows(trace: Trace) -> list[Span]:
    """The windows of the whole steps, of all if none is whole."""
    steps = windows(trace, Phases(trace), opening(trace, gaps(trace)))
    return [(step["start_ns"], step["end_ns"]) for step in steps if not step["partial"]] or [
        (step["start_ns"], step["end_ns"]) for step in steps
    ]
