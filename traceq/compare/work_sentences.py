"""Sentences on work: of ops that take longer or shorter more calls, more per call or slower; of all a common factor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import exp

from traceq.compare.result import Traced
from traceq.compare.work_deltas import WorkDelta, log_mean
from traceq.units import Unit, format_value

__all__ = ["work_factor_words", "work_split_words"]

_LARGE_SHARE, _SHARE_OF_STEP = 0.05, 0.01
"""Parts of the traced delta and of the step from which ops are named."""
_SAME_WORK, _SAME_SPEED = 0.01, 0.02
"""Differences below which a ratio is no change: work is counted, times scatter."""
_MOST = 3
_LEAST_MODELLED = 0.01
"""Part of what a side computes that ops with a model have, or they tell nothing of it."""
_COMMON, _MOST_OF_TIME, _SEVERAL, _OPTIMIZER = 0.95, 0.5, 2, "optimizer"
"""Parts of the time of ops with FLOPs, and of all with a model, whose work changes by the common factor; ops that have
to; the phase that no batch changes."""


def work_split_words(traced: Traced, work: Sequence[WorkDelta], *, timed: bool = True) -> tuple[str, ...]:
    """Return `By recorded shapes: matrix products +52.0 ms, 1.60 times the FLOPs at the same speed.`, or nothing.

    The factors of one op are those of its time: with calls, work per call and speed, time B / time A is calls x work /
    speed. Where the mix of shapes changed they are not, as shapes differ in speed; then `each shape at the same speed`
    compares calls of the same shapes. Not `timed`, where durations are no evidence, only ops that do other work are
    named, without times and speeds.
    """
    roles = [
        role for role in _by_role(work) if (_is_notable(role, traced) if timed else _does_other_work(role, traced))
    ]
    if not roles:
        return ()
    texts = [_text(role, timed=timed) for role in roles[:_MOST]]
    more = f"; {len(roles) - _MOST} more" if len(roles) > _MOST else ""
    of_device = " (device time)" if timed and traced.matched_pct is not None else ""
    return (f"By recorded shapes{of_device}: {'; '.join(texts)}{more}.",)


def work_factor_words(
    work: Sequence[WorkDelta], a_ns: float, b_ns: float, computing_ns: tuple[float, float] = (0.0, 0.0)
) -> tuple[str, ...]:
    """Return `8.00 times the FLOPs in 7.39 times the time: 7.6 % less time per FLOP.`, of ops that share one factor.

    Without ops that have FLOPs, that is the factor of the bytes of all others but those of an optimizer, which a batch
    does not change. `a_ns`, `b_ns`: the step of either side, of which it computes for `computing_ns`: nothing is said
    where ops with a model have less than a hundredth of that on a side, as where graphs are replayed.
    """
    modelled = (sum(each.a_ns for each in work), sum(each.b_ns for each in work))
    if any(ns < _LEAST_MODELLED * whole_ns for ns, whole_ns in zip(modelled, computing_ns, strict=True)):
        return ()
    counted = [each for each in work if not each.is_bound and each.phase != _OPTIMIZER]
    flops = [each for each in counted if each.is_flops]
    modelled_work = [each for each in work if not each.is_bound]  # an optimizer that takes most of it has no FLOPs
    factor = _common_factor(flops, modelled_work) if flops else _common_factor(counted, counted)
    if not factor or not _is_changed(factor, _SAME_WORK) or not (a_ns and b_ns):
        return ()
    slower = b_ns / a_ns
    percent = 100 * (slower / factor - 1)
    more = f"{format_value(abs(percent), Unit.PERCENT)} {'more' if percent > 0 else 'less'} time"
    what, unit = ("FLOPs", "FLOP") if flops else ("bytes of ops with recorded shapes", "byte")
    return (f"{_times(factor)} the {what} in {_times(slower)} the time: {more} per {unit}.",)


def _common_factor(work: Sequence[WorkDelta], others: Sequence[WorkDelta]) -> float:
    """Return the ratio of B's work to A's at which nearly all time of several ops is, most of all; else 0."""
    both = [each for each in work if each.a_work and each.b_work]
    if not both:
        return 0.0
    most = max(both, key=lambda each: each.a_ns + each.b_ns)
    factor = _ratio(most.a_work, most.b_work)
    alike = [each for each in both if not _is_changed(_ratio(each.a_work, each.b_work) / factor, _SAME_WORK)]
    alike_ns, work_ns, all_ns = (sum(each.a_ns + each.b_ns for each in chosen) for chosen in (alike, work, others))
    is_common = alike_ns >= _COMMON * work_ns and alike_ns >= _MOST_OF_TIME * all_ns
    return factor if is_common and len(alike) >= _SEVERAL else 0.0


def _is_notable(role: Sequence[WorkDelta], traced: Traced) -> bool:
    """Return whether an op's time changed by much, because of its work or as the step's did."""
    delta_ns = _delta_ns(role)
    is_large = abs(delta_ns) >= max(_LARGE_SHARE * abs(traced.delta_ns), _SHARE_OF_STEP * traced.a_ns)
    return is_large and (_is_changed(_ratio(*_work(role)), _SAME_WORK) or delta_ns * traced.delta_ns > 0)


def _does_other_work(role: Sequence[WorkDelta], traced: Traced) -> bool:
    return max(_ns(role)) >= _SHARE_OF_STEP * traced.a_ns and _is_changed(_ratio(*_work(role)), _SAME_WORK)


def _by_role(work: Sequence[WorkDelta]) -> list[list[WorkDelta]]:
    """Return the rows of each role that both sides have, of all phases, largest change of time first."""
    roles: dict[tuple[str, bool], list[WorkDelta]] = defaultdict(list)
    for each in work:
        roles[each.role, each.is_flops].append(each)
    both = [role for role in roles.values() if all((*_ns(role), *_work(role))) and not any(w.is_bound for w in role)]
    return sorted(both, key=lambda role: -abs(_delta_ns(role)))


def _text(role: Sequence[WorkDelta], *, timed: bool) -> str:
    """Return `aten::relu +52.0 ms, 1.50 times the calls, 1.07 times the bytes per call at 0.98 times the speed`."""
    unit = "FLOPs" if role[0].is_flops else "bytes"
    calls, work = _ratio(*_calls(role)), _ratio(*_work(role))
    if _is_changed(calls, _SAME_WORK):
        of_work = f"{_times(calls)} the calls, {_factor(work / calls, _SAME_WORK)} {unit} per call"
    else:
        of_work = f"{_factor(work, _SAME_WORK)} {unit}"
    if not timed:
        return f"{role[0].role}, {of_work}"
    overall, by_shape = work / _ratio(*_ns(role)), _speed(role)
    each = ", each shape" if _is_changed(overall / by_shape, _SAME_SPEED) else ""
    speed = _factor(by_shape, _SAME_SPEED)
    return f"{role[0].role} {format_value(_delta_ns(role), Unit.DELTA_NS)}, {of_work}{each} at {speed} speed"


def _factor(ratio: float, same: float) -> str:
    return f"{_times(ratio)} the" if _is_changed(ratio, same) else "the same"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times"


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
