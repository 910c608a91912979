"""What work makes of a delta: more calls of an op, more work per call, another speed; of all ops a common factor.

Also whether one side replays CUDA graphs instead of launching, and whether a disabled change issues anything at all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import exp

import numpy as np
from numpy.typing import NDArray

from traceq.claims.limits import MOST, NOTABLE
from traceq.compare.limits import BUSY_DEVICE, BY_GRAPHS, COMMON, COUNTED, FEW_LAUNCHES, NAMED, SAME, SCATTER
from traceq.compare.result import CellDelta, Diff, Traced
from traceq.compare.statement import Statement, state
from traceq.compare.work_deltas import WorkDelta, log_mean
from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import capture_spans
from traceq.facts.events.name_patterns import matching
from traceq.facts.ranks.job import RunRanks
from traceq.facts.stalls.syncs import SYNC_KINDS, syncs
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.intervals import measure_within, span_index, spans
from traceq.model import Category, Trace

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
    half of what a side computes, as where graphs are replayed.
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
    if any(ns < MOST * whole_ns for ns, whole_ns in zip(modelled, computing_ns, strict=True)):
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


_MOST_NAMED = 3


def added_ops(arm: RunRanks, reference: RunRanks, phase: str) -> Statement | None:
    """Return whether the arm issues anything that the reference does not, op by op and sync by sync.

    On all ranks that both have; None where there are none.
    """
    common = [rank for rank in arm.run.ranks if rank in reference.run.ranks]
    if not common:
        return None
    context = {"a": reference.run.arm, "b": arm.run.arm}
    ops = [(_ops_per_step(arm.trace(rank)), _ops_per_step(reference.trace(rank))) for rank in common]
    extra = sum((_extra(ours, theirs) for ours, theirs in ops), Counter[str]())
    if extra:
        added = ", ".join(f"{count:g} {text}" for text, count in extra.most_common(_MOST_NAMED))
        return state("not_free", added=added, added_mean=extra.total()).within(context)
    on_device = any(rank.has_device for rank in arm.job.ranks)
    num_syncs = _num_syncs(arm, phase)
    return state(
        "free",
        num_ops=round(sum(_ops_per_step(arm.trace(arm.run.ranks[0])).values())),
        phase=phase or "a step",
        copies_mean=num_syncs if on_device else None,
        reads_mean=None if on_device else num_syncs,
    ).within(context)


def _extra(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Counter[str]:
    """Return the ops that the first issues more often per step than the second, and how many more."""
    more = {name: num - theirs.get(name, 0) for name, num in ours.items()}
    return Counter({name: num for name, num in more.items() if num > 0})


def _ops_per_step(trace: Trace) -> dict[str, float]:
    """Return host ops inside the steps and device work launched there, per step by name.

    Device work counts where it was launched, as it may run after the end of the last step.
    """
    events, work = trace.events, device_work(trace)
    ops, launches = events.rows(Category.CPU_OP), work.call[work.linked]
    rows = np.r_[ops[_in_steps(trace, ops)], work.rows[work.linked][_in_steps(trace, launches)]]
    names, counts = np.unique(events.name[rows], return_counts=True)
    num_steps = len(steps(trace))
    return {events.strings[n]: c / num_steps for n, c in zip(names.tolist(), counts.tolist(), strict=True)}


def _in_steps(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    host, start = steps(trace).host, trace.events.ts[rows]
    inside: NDArray[np.bool_] = (start >= host[0, 0]) & (start < host[-1, 1])
    return inside


def _num_syncs(arm: RunRanks, phase: str) -> float:
    """Return device-to-host syncs per step in one phase or in all, on the rank with most.

    Without a device: reads of a tensor's value.
    """
    most = 0.0
    for trace in map(arm.trace, arm.run.ranks):
        all_syncs, names = syncs(trace), phases(trace).names
        selected = np.isin(all_syncs.kind, [SYNC_KINDS.index("dtoh"), SYNC_KINDS.index("scalar")])
        if phase:
            selected &= all_syncs.phase == (names.index(phase) if phase in names else -1)
        most = max(most, int(selected.sum()) / len(steps(trace)))
    return most


_REPLAY = re.compile(r"GraphLaunch")
_LAUNCH = re.compile(r"^(cuda|hip|cu)\w*Launch(Cooperative)?Kernel")
_COMPUTE = TimeCategory.COMPUTE.name.lower()


def graph_replays(
    a: Trace, b: Trace, traced: Traced, cells: Sequence[CellDelta], *, timed: bool = True, is_seen: bool = True
) -> Iterator[Statement]:
    """Yield that one side replays CUDA graphs, with how many kernels each side launches, and what its host saves.

    That its host needs less time is said where durations are evidence (`timed`), and no graph is captured meanwhile;
    that this gains nothing, where no difference of the steps `is_seen` and the device of the other side computes all
    along.
    """
    traces = (a, b)
    nums = [_runtime_calls(trace, _REPLAY) for trace in traces]
    if traced.whole is not None or min(nums) > 0 or max(nums) < BY_GRAPHS:
        return
    replaying = nums.index(max(nums))
    other = 1 - replaying
    num_launches = [_runtime_calls(trace, _LAUNCH) for trace in traces]
    if num_launches[replaying] > FEW_LAUNCHES * num_launches[other]:
        return
    saved_ns = round(_host_ns(traces[other]) - _host_ns(traces[replaying]))
    is_captured = any(len(capture_spans(trace)) for trace in traces)
    has_host = timed and not is_captured and abs(saved_ns) >= NOTABLE * traced.a_ns
    computing = sum((cell.b_ns if other else cell.a_ns) for cell in cells if cell.category == _COMPUTE)
    busy = computing / max(traced.b_ns if other else traced.a_ns, 1)
    gains_nothing = has_host and saved_ns > 0 and not is_seen and busy >= BUSY_DEVICE
    yield state(
        "graph_replays",
        replaying_side="ab"[replaying],
        launching_side="ab"[other],
        replays_mean=nums[replaying],
        launches_mean=num_launches[replaying],
        other_launches_mean=num_launches[other],
        less_host_ns=saved_ns if has_host and saved_ns > 0 else None,
        more_host_ns=-saved_ns if has_host and saved_ns <= 0 else None,
        busy_pct=100 * busy if gains_nothing else None,
    )


def _runtime_calls(trace: Trace, pattern: re.Pattern[str]) -> float:
    """Return how often calls of the runtime match in a counted step."""
    counted = steps(trace).host[steps(trace).counted]
    rows = trace.events.rows(Category.RUNTIME)
    rows = rows[span_index(counted, trace.events.ts[rows]) >= 0]
    return float(matching(trace.events, rows, pattern).sum()) / len(counted)


def _host_ns(trace: Trace) -> float:
    """Return ns of a mean counted step in which the host is at work: not in a sync, nor at its end."""
    begin, end = steps(trace).host[steps(trace).counted].T
    host = trace.events.rows(Category.CPU_OP, Category.ANNOTATION, Category.RUNTIME)
    end = np.minimum(end, trace.events.end[host].max(initial=0))
    waits = syncs(trace)
    waited = measure_within(spans(waits.start, waits.start + waits.blocked), begin, end)
    return float((end - begin - waited).mean())
