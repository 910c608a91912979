"""The verdict of a comparison as a state with its measures, what it rests on, and whether it keeps a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from traceq.claims.claim import Measure
from traceq.compare.busy_machine import busy_machine
from traceq.compare.cause_statements import is_jitter, work_alone
from traceq.compare.comparable import are_ranks_of_one_job, uncommon_steps
from traceq.compare.confounders import (
    cold_start,
    unchanged_work,
    uncounted_steps,
    unlike_device,
    unlike_work,
    work_between_steps,
)
from traceq.compare.limits import SAME_TIME
from traceq.compare.result import ArmInteraction, Diff, Traced
from traceq.compare.sentences import DECISIONS, UNKNOWN_SAMPLES, WITH_INTERVAL, WITHOUT_INTERVAL
from traceq.compare.side import Side
from traceq.compare.statement import Statement, intervals, state
from traceq.compare.step_times import ranges_of_steps
from traceq.compare.work_statements import work_factor
from traceq.errors import Unanswerable
from traceq.frozen import frozen
from traceq.model import Arm
from traceq.stats import Comparison, Interaction, interaction
from traceq.stats.verdict import PROCESSES, STEPS
from traceq.units import Unit, format_value

_MOST_RANKS = 8


def answer(a: Side, b: Side, diff: Diff, *, is_other_job: bool) -> Statement:
    """Return the state of the verdict on B against A.

    A verdict that is open is that first: its estimate is neither a cost nor a saving. Profiled steps have no interval:
    they only show that there is no difference, one that has another reason than a change, or what was observed. Of
    another job nothing costs or saves.
    """
    comparison = diff.comparison
    if not diff.comparable.ok:
        return state("not_comparable", reasons="; ".join(diff.comparable.reasons))
    if comparison is None:
        return state("nothing_to_compare", untraced=_untraced(a, b, diff))
    measures: dict[str, Measure | None] = {
        "per": _per(comparison, diff.traced),
        **intervals(comparison),
        "num_a": comparison.num_a,
        "num_b": comparison.num_b,
    }
    if not comparison.unprofiled:
        return _of_profiled(a, b, diff, comparison, measures, is_other_job=is_other_job)
    verdict = comparison.verdict
    measures |= {
        "num_pairs": comparison.num_pairs,
        "verdict": verdict.text,
        "threshold_pct": verdict.threshold_pct,
        "num_questions": comparison.num_questions if comparison.num_questions > 1 else None,
        "windows": _processes(comparison) if comparison.steps_apart else None,
    }
    if verdict.is_open and not comparison.steps_apart:
        return state("inconclusive", **measures)
    if is_other_job:
        return state("other_work", **measures)
    return state("steps_apart" if comparison.steps_apart else verdict.name, **measures)


def _of_profiled(
    a: Side,
    b: Side,
    diff: Diff,
    comparison: Comparison,
    measures: Mapping[str, Measure | None],
    *,
    is_other_job: bool,
) -> Statement:
    """Return the state of profiled steps, which have no interval: the first that applies."""
    num_a, num_b, of_steps = comparison.num_a, comparison.num_b, measures["per"] != "in the trace"
    measures = {**measures, "windows": f"{num_a:,} and {num_b:,} profiled steps" if of_steps else "one trace each"}
    alone = work_alone(diff.causes, diff.traced) if diff.traced else {}
    has_scatter = bool(ranges_of_steps(a, b))
    if is_same_time(comparison):
        return state("same_time", **measures)
    if diff.traced is not None and is_jitter(diff.traced, diff.causes):
        return state("within_jitter", **measures)
    if are_ranks_of_one_job(a, b):
        return state("ranks_of_one_job", **measures, uncommon_steps=uncommon_steps(a, b))
    if is_other_job:
        return state("other_work", **measures)
    if has_scatter and alone:
        return state("work_of_one_side", **measures, **alone)
    if has_scatter:
        return state("within_scatter", **measures)
    has_other_pace = unchanged_work(a, b, diff.causes, diff.cells, diff.traced) or cold_start(a, b, diff.traced)
    return state("other_pace" if has_other_pace else "observed", **measures)


def basis(a: Side, b: Side, diff: Diff, cpu: Comparison | None, *, is_other_job: bool) -> Iterator[Statement]:
    """Yield what the verdict rests on, what else is compared, and in what the sides differ; `cpu` may be of samples."""
    comparison = diff.comparison
    is_unprofiled = comparison is not None and comparison.unprofiled
    if not diff.comparable.ok and UNKNOWN_SAMPLES in "; ".join(diff.comparable.reasons):
        yield state("count_samples")
    once = cold_start(a, b, diff.traced)
    if diff.answer.code in ("other_pace", "steps_apart"):
        yield from filter(None, [unchanged_work(a, b, diff.causes, diff.cells, diff.traced)])
    if comparison is not None and not is_unprofiled and diff.comparable.ok:
        ranges = {} if is_same_time(comparison) else ranges_of_steps(a, b)
        yield from [state("ranges", **ranges)] if ranges else []
        yield from [state("slowest_decides", num_ranks=len(diff.ranks))] if len(diff.ranks) > 1 else []
    yield from unlike_device(a, b)
    yield from [once] if once else []
    yield from (*work_between_steps(a, b), *uncounted_steps(a, b)) if is_unprofiled else ()
    yield from unlike_work(a, b)
    yield from () if is_other_job else work_factor(diff)
    if comparison is not None and is_unprofiled and diff.comparable.ok:
        control = (a.run.manifest.baseline if a.run.manifest else "") or diff.a_name
        reason, floor_ns = comparison.verdict.reason, comparison.noise_floor_ns
        yield state("why", reason=reason, noise_floor_ns=floor_ns, control=control)
        yield from _rare_events(comparison)
    yield from busy_machine(a, b, diff.steps)
    yield from [cpu_time(cpu)] if cpu is not None and diff.comparable.ok else []
    yield from _samples(comparison, diff.steps)


def _rare_events(comparison: Comparison) -> Iterator[Statement]:
    """Yield what the typical step differs by, and the rare events that the mean has besides."""
    if comparison.typical is None:
        return
    event = comparison.rare_events[0]
    yield state(
        "rare_events",
        **intervals(comparison),
        typical_delta_ns=round(comparison.each(comparison.typical.delta)),
        event=event.name,
        event_ns=event.size_ns,
        num_steps_a=_num_steps(event.rate_a),
        num_steps_b=_num_steps(event.rate_b),
    )


def _num_steps(rate: float) -> int | None:
    """Return in how many steps an event is once; None if it never is."""
    return max(1, round(1 / rate)) if rate else None


def is_same_time(comparison: Comparison | None) -> bool:
    """Return whether profiled steps are as long on both sides."""
    return comparison is not None and not comparison.unprofiled and abs(comparison.delta_pct) < SAME_TIME


def _samples(comparison: Comparison | None, steps: Comparison | None) -> Iterator[Statement]:
    """Yield, where a verdict is about samples, the samples and the time of a step."""
    if comparison is None or steps is None or comparison.samples is None:
        return
    num_a, num_b = comparison.samples
    yield state(
        "samples",
        num_a=num_a,
        num_b=num_b,
        a_ns=steps.a_ns,
        b_ns=steps.b_ns,
        **intervals(steps),
        num_a_per_s=num_a * 1e9 / steps.a_ns if steps.a_ns else None,
        num_b_per_s=num_b * 1e9 / steps.b_ns if steps.b_ns else None,
    )


def arm_interactions(arms: Sequence[Arm], diffs: Sequence[Diff]) -> Iterator[ArmInteraction]:
    """Yield one interaction per arm that repeats another's change, in the recipe's order, where both have pairs."""
    by_arm = {diff.b_name: diff for diff in diffs}
    for arm in arms:
        here, there = by_arm.get(arm.repeats), by_arm.get(arm.name)
        if here is None or there is None or here.comparison is None or there.comparison is None:
            continue
        if here.comparison.num_pairs and there.comparison.num_pairs:
            result = interaction(here.comparison, there.comparison)
            yield ArmInteraction(here.b_name, there.b_name, result, _interaction(here, there, result))


def _interaction(here: Diff, there: Diff, result: Interaction) -> Statement:
    """Return whether a change costs as much in another context, or what other work there hides of it or adds."""
    low, high = result.ci95_ns or (None, None)
    is_difference, is_same = result.verdict.is_difference, result.verdict.name == "in_the_noise"
    hides = is_difference and result.delta_ns > 0
    return state(
        "interaction",
        delta_ns=result.delta_ns,
        least_ci_delta_ns=low,
        most_ci_delta_ns=high,
        verdict=result.verdict.text,
        here=here.b_name,
        here_from=here.a_name,
        here_delta_ns=here.comparison.delta_ns if here.comparison else None,
        there=there.b_name,
        there_from=there.a_name,
        there_delta_ns=there.comparison.delta_ns if there.comparison else None,
        same_contexts=f"{here.a_name} and {there.a_name}" if is_same else None,
        hides=here.a_name if hides else None,
        adds=here.a_name if is_difference and not hides else None,
    )


def cpu_time(comparison: Comparison) -> Statement:
    """Return the verdict on the main thread's CPU time, which excludes blocked time, by rank where these are few."""
    deltas = comparison.rank_delta_ns
    by_rank = [f"rank {rank} {format_value(ns, Unit.DELTA_NS)}" for rank, ns in enumerate(deltas)]
    is_short = len(deltas) <= _MOST_RANKS and comparison.samples is None
    return state(
        "cpu_time",
        per=_per(comparison),
        **intervals(comparison),
        verdict=comparison.verdict.text,
        num_ranks=len(deltas) if len(deltas) > 1 else None,
        rank_deltas=", ".join(by_rank) if len(deltas) > 1 and is_short else None,
    )


def doubt(traced: Traced, comparison: Comparison | None, steps: Comparison | None) -> Statement | None:
    """Return why durations of the traced steps are no evidence; None where they are.

    `comparison` is of samples where the sides differ in them, `steps` always of steps, as the traced delta is.
    """
    delta_ns = traced.delta_ns
    if _is_outside(traced, steps):
        return state("outside_interval", delta_ns=delta_ns)
    if steps is not None and steps.steps_apart and not _is_alike(delta_ns, steps.delta_ns):
        return state("unlike_unprofiled", delta_ns=delta_ns, unprofiled_delta_ns=steps.delta_ns)
    if comparison is not None and comparison.unprofiled and not comparison.is_seen:
        return state("undecided" if comparison.verdict.is_open else "not_seen", delta_ns=delta_ns)
    return None


def _is_outside(traced: Traced, steps: Comparison | None) -> bool:
    if steps is None or not steps.unprofiled or steps.ci95_ns is None:
        return False
    low, high = steps.ci95_ns
    return not low <= traced.delta_ns <= high


def _is_alike(traced_ns: int, unprofiled_ns: int) -> bool:
    """Return whether one is at most twice the other."""
    low, high = sorted((traced_ns, unprofiled_ns), key=abs)
    return low * high > 0 and 2 * abs(low) >= abs(high)


def _per(comparison: Comparison, traced: Traced | None = None) -> str:
    """Return the unit of a cost: `per step`, `in the trace`, or `per sample`."""
    if comparison.samples is not None:
        return "per sample"
    return traced.per if traced else "per step"


def _processes(comparison: Comparison) -> str:
    """Return `1 process per side`."""
    nums = dict.fromkeys((comparison.num_a, comparison.num_b))
    return PROCESSES.count(" and ".join(f"{num:,}" for num in nums))


def _untraced(a: Side, b: Side, diff: Diff) -> str:
    """Return the names of the sides without a trace: `off or on`."""
    return " or ".join(name for name, side in ((diff.a_name, a), (diff.b_name, b)) if not side.run.traces)


class DeltaState(StrEnum):
    """Whether B's step is longer by more than the limit."""

    EXCEEDED = "exceeded"
    KEPT = "kept"
    UNDECIDED = "undecided"


@frozen
class DeltaOutcome:
    """State of a limit, and one sentence that says so and what it rests on."""

    state: DeltaState
    text: str


def judge_delta(diff: Diff, limit_pct: float) -> DeltaOutcome:
    """Return whether B's step, or the time per sample, is longer than A's by more than `limit_pct` percent of it.

    Where there is an interval of unprofiled steps all of it has to be on one side of the limit. Without one the
    estimate decides. Raises Unanswerable where there is nothing to compare.
    """
    comparison = diff.comparison
    if comparison is None or not diff.comparable.ok or not comparison.a_ns:
        raise Unanswerable(diff.answer.lead)
    low, high = (_percent(ns, comparison) for ns in comparison.ci95_ns or (comparison.delta_ns, comparison.delta_ns))
    state = DeltaState.KEPT if high <= limit_pct else DeltaState.EXCEEDED if low > limit_pct else DeltaState.UNDECIDED
    if state is DeltaState.EXCEEDED and comparison.ci95_ns and comparison.verdict.is_open:
        state = DeltaState.UNDECIDED  # the interval excludes 0, and yet there is no verdict: the A/A control differs
    limit, rests_on = format_value(limit_pct, Unit.PERCENT), _basis(comparison, low, high)
    text = DECISIONS[state.value].format(a=diff.a_name, b=diff.b_name, limit=limit, basis=rests_on)
    return DeltaOutcome(state, text)


def _basis(comparison: Comparison, low: float, high: float) -> str:
    """Return what a decision rests on."""
    per = "per sample" if comparison.samples else "per step"
    least, most = (format_value(pct, Unit.DELTA_PERCENT) for pct in (low, high))
    if comparison.ci95_ns:
        return WITH_INTERVAL.format(least=least, most=most, per=per)
    nums = " and ".join(f"{num:,}" for num in dict.fromkeys((comparison.num_a, comparison.num_b)))
    steps = f"unprofiled steps of {PROCESSES.count(nums)}" if comparison.unprofiled else STEPS.count(nums)
    return WITHOUT_INTERVAL.format(least=least, per=per, steps=steps)


def _percent(ns: float, comparison: Comparison) -> float:
    return 100 * ns / comparison.a_ns
