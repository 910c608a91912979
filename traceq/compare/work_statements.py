"""What work makes of a delta: more calls of an op, more work per call, another speed; of all ops a common factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp

from traceq.claims.limits import MOST, NOTABLE
from traceq.compare.limits import COMMON, COUNTED, MODELLED, NAMED, SAME, SCATTER
from traceq.compare.result import Diff, Traced
from traceq.compare.statement import Statement, state
from traceq.compare.work_deltas import WorkDelta, log_mean
from traceq.facts.timeline.time_partition import TimeCategory

__all__ = ["op_work", "work_factor"]

_COMPUTING = (TimeCategory.COMPUTE.name.lower(), TimeCategory.CPU_COMPUTE.name.lower())

_MOST_OPS = 3
_OPTIMIZER = "optimizer"
"""The phase that no batch changes."""


def op_work(traced: Traced, work: Sequence[WorkDelta], *, timed: bool = True) -> Iterator[Statement]:
    """Yield the ops with most of a change, each with the factors of its time.

    With calls, work per call and speed, time B / time A is calls x work / speed. Where the mix of shapes changed it is
    not, as shapes differ in speed; then the speed is that of calls of the same shapes. Not `timed`, where durations are
    no evidence, only ops that do other work are named, without times and speeds.
    """
    roles = [role for role in _by_role(work) if (_is_notable if timed else _does_other_work)(role, traced)]
    for role in roles[:_MOST_OPS]:
        calls_ratio, work_ratio, speed_ratio = _ratio(*_calls(role)), _ratio(*_work(role)), _speed(role)
        overall_ratio = work_ratio / _ratio(*_ns(role))
        is_mixed = _is_changed(overall_ratio / speed_ratio, SCATTER)
        yield state(
            "op_work",
            op=role[0].role,
            work="FLOPs" if role[0].is_flops else "bytes",
            calls_ratio=calls_ratio,
            per_call_ratio=work_ratio / calls_ratio,
            delta_ns=_delta_ns(role) if timed else None,
            speed_ratio=speed_ratio if timed else None,
            overall_ratio=overall_ratio if timed and is_mixed else None,
        )


def work_factor(diff: Diff) -> Iterator[Statement]:
    """Yield by what the work of all ops changed, and the step, of ops that share one factor.

    Without ops that have FLOPs, that is the factor of the bytes of all others but those of an optimizer, which a batch
    does not change. Nothing where the verdict is of samples, or not decided, nor where ops with a model have less than
    a hundredth of what a side computes, as where graphs are replayed.
    """
    steps = diff.steps
    is_step = steps is not None and diff.comparison is not None and diff.comparison.samples is None
    if steps is None or not is_step or not diff.comparable.ok or not (steps.a_ns and steps.b_ns):
        return
    if steps.unprofiled and steps.verdict.is_open and not steps.steps_apart:
        return
    computing = [cell for cell in diff.cells if cell.category in _COMPUTING]
    computing_ns = sum(cell.a_ns for cell in computing), sum(cell.b_ns for cell in computing)
    factor, unit = _factor_of_all(diff.work, computing_ns)
    if factor and _is_changed(factor, SAME):
        slower = steps.b_ns / steps.a_ns
        per_work = 100 * (slower / factor - 1)
        yield state("work_factor", work=unit, work_ratio=factor, time_ratio=slower, per_work_delta_pct=per_work)


def _factor_of_all(work: Sequence[WorkDelta], computing_ns: tuple[float, float]) -> tuple[float, str]:
    """Return (the ratio of B's work to A's, its unit) of ops that share one; 0 without."""
    modelled = (sum(each.a_ns for each in work), sum(each.b_ns for each in work))
    if any(ns < MODELLED * whole_ns for ns, whole_ns in zip(modelled, computing_ns, strict=True)):
        return 0.0, ""
    counted = [each for each in work if not each.is_bound and each.phase != _OPTIMIZER]
    flops = [each for each in counted if each.is_flops]
    modelled_work = [each for each in work if not each.is_bound]  # an optimizer that takes most of it has no FLOPs
    if flops:
        return _common_factor(flops, modelled_work), "FLOPs"
    return _common_factor(counted, counted), "bytes"


def _common_factor(work: Sequence[WorkDelta], others: Sequence[WorkDelta]) -> float:
    """Return the ratio of B's work to A's at which nearly all time of several ops is, most of all; else 0."""
    both = [each for each in work if each.a_work and each.b_work]
    if not both:
        return 0.0
    most = max(both, key=lambda each: each.a_ns + each.b_ns)
    factor = _ratio(most.a_work, most.b_work)
    alike = [each for each in both if not _is_changed(_ratio(each.a_work, each.b_work) / factor, SAME)]
    alike_ns, work_ns, all_ns = (sum(each.a_ns + each.b_ns for each in chosen) for chosen in (alike, work, others))
    is_common = alike_ns >= COMMON * work_ns and alike_ns >= MOST * all_ns
    return factor if is_common and len(alike) >= COUNTED else 0.0


def _is_notable(role: Sequence[WorkDelta], traced: Traced) -> bool:
    """Return whether an op's time changed by much, because of its work or as the step's did."""
    delta_ns = _delta_ns(role)
    is_large = abs(delta_ns) >= max(NAMED * abs(traced.delta_ns), NOTABLE * traced.a_ns)
    return is_large and (_is_changed(_ratio(*_work(role)), SAME) or delta_ns * traced.delta_ns > 0)


def _does_other_work(role: Sequence[WorkDelta], traced: Traced) -> bool:
    return max(_ns(role)) >= NOTABLE * traced.a_ns and _is_changed(_ratio(*_work(role)), SAME)


def _by_role(work: Sequence[WorkDelta]) -> list[list[WorkDelta]]:
    """Return the rows of each role that both sides have, of all phases, largest change of time first."""
    roles: dict[tuple[str, bool], list[WorkDelta]] = defaultdict(list)
    for each in work:
        roles[each.role, each.is_flops].append(each)
    both = [role for role in roles.values() if all((*_ns(role), *_work(role))) and not any(w.is_bound for w in role)]
    return sorted(both, key=lambda role: -abs(_delta_ns(role)))


def _is_changed(ratio: float, same: float) -> bool:
    return abs(ratio - 1) > same


def _ratio(a: float, b: float) -> float:
    return b / a


def _delta_ns(role: Sequence[WorkDelta]) -> int:
    return sum(each.delta_ns for each in role)


def _ns(role: Sequence[WorkDelta]) -> tuple[int, int]:
    return sum(each.a_ns for each in role), sum(each.b_ns for each in role)


def _work(role: Sequence[WorkDelta]) -> tuple[int, int]:
    return sum(each.a_work for each in role), sum(each.b_work for each in role)


def _speed(role: Sequence[WorkDelta]) -> float:
    """Return B's speed as a multiple of A's, at the work that calls of the same shapes do."""
    return exp(-sum(each.slower_ns for each in role) / log_mean(*_ns(role)))


def _calls(role: Sequence[WorkDelta]) -> tuple[float, float]:
    return sum(each.a_calls for each in role), sum(each.b_calls for each in role)
