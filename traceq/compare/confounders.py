"""What differs besides the change: parameters, versions, hardware, clocks, input shapes, profiler options, phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traceq.claims.claim import Measure, measured
from traceq.claims.limits import NOTABLE
from traceq.compare.comparable import differences, parameters_of, unrecorded_device
from traceq.compare.input_shapes import (
    calls_difference,
    dtype_difference,
    have_same_work,
    shape_difference,
)
from traceq.compare.labels import LOADER
from traceq.compare.limits import DRAWN, INSIDE, NAMED, SCATTER, UNCOUNTED
from traceq.compare.other_jobs import job_difference
from traceq.compare.result import Cause, CellDelta, Traced
from traceq.compare.sentences import OTHER_PACE, PHASES
from traceq.compare.side import Side
from traceq.compare.statement import Statement, doubtful, state
from traceq.facts.events.device_work import device_work
from traceq.facts.events.self_time import ALLOCATES, VIEW
from traceq.facts.events.unrecorded_work import has_shapes
from traceq.facts.timeline.phases import COMPILING, phases
from traceq.facts.timeline.steps import op_calls_per_step
from traceq.facts.timeline.time_partition import TimeCategory, lost_once_ns, lost_once_share
from traceq.model import Caveat, Run, Trace, WallTime

_ENVIRONMENT_KEYS = {
    **dict.fromkeys(("host", "cpu", "device_name", "driver", "cuda", "hip", "nccl", "torch"), "unknown"),
    **dict.fromkeys(("accelerate", "python", "backend", "num_threads", "models", "wrapper"), "unknown"),
    "launch_blocking": "no",
    "throttled": "no",
}
"""Keys of a manifest's environment that can change the step time, and what a missing key means. Without the commit,
which can be the change itself."""

_BETWEEN_STEPS = frozenset(("checkpoint", "epoch", "evaluation", "rollout"))
_NO_OP, _PYTHON = ("Python", LOADER.name), TimeCategory.PYTHON.name.lower()
"""How names of causes begin that are time of the host outside of ops."""


def confounders(a: Side, b: Side) -> tuple[Caveat, ...]:
    """Return a caveat for each difference besides the change: parameters, versions, clocks, phases.

    Arms of one run share its manifest, so only their traces are compared.
    """
    texts: list[str] = []
    if not _is_one_recording(a, b):
        texts += _recording_differences(a, b)
        texts += _work_differences(a, b)
    texts += filter(None, [unrecorded_device(a, b)])
    if a.run.traces and b.run.traces:
        texts += _trace_differences(a.first_trace(), b.first_trace())
    confounded = [doubtful("confounded", difference=text) for text in texts]
    reasons = {str(reason) for side in (a, b) for run in side.runs if (reason := _environment(run).get("throttled"))}
    throttled = [doubtful("throttled", why=reason) for reason in sorted(reasons)]
    return (*confounded, *throttled)


def unlike_work(a: Side, b: Side) -> Iterator[Statement]:
    """Yield in what separate recordings compute something else: `dtype: aten::mm of float32 against bfloat16`."""
    texts = [] if _is_one_recording(a, b) else list(_work_differences(a, b))
    if texts:
        yield state("work_differs", differences="; ".join(texts))


def are_other_jobs(a: Side, b: Side) -> bool:
    """Return whether separate recordings are of different jobs, between which no change costs or saves anything."""
    has_traces = bool(a.run.traces and b.run.traces)
    return has_traces and not _is_one_recording(a, b) and bool(_job_difference(a, b))


def unlike_device(a: Side, b: Side) -> Iterator[Statement]:
    """Yield that one side does not say its device, which may be another one."""
    if text := unrecorded_device(a, b):
        yield state("unrecorded_device", device=text.removeprefix("device: "))


def uncounted_steps(a: Side, b: Side) -> Iterator[Statement]:
    """Yield how much of the time is in steps that do not count, where that is much: a change may be in those."""
    a_pct, b_pct = map(_uncounted_pct, (a, b))
    if max(a_pct, b_pct) >= UNCOUNTED:
        yield state("uncounted_steps", a_pct=a_pct, b_pct=b_pct)


def _uncounted_pct(side: Side) -> float:
    """Return the part of a recording's training time that is not in regular steps, in percent; 0 if hardly any."""
    account = _wall_time(side)
    return account.irregular_pct if account else 0.0


def work_between_steps(a: Side, b: Side) -> Iterator[Statement]:
    """Yield the work besides regular steps on which one side spends more of its training: the steps do not show it.

    Of the kinds of which a program decides how often they come: evaluations, rollouts, checkpoints, epochs.
    """
    accounts = [account for side in (a, b) if (account := _wall_time(side)) is not None]
    if len(accounts) < 2:
        return
    shares = [{part.name: each.share_pct(part) for part in each.training} for each in accounts]
    apart = {name: shares[1].get(name, 0.0) - shares[0].get(name, 0.0) for name in shares[0].keys() | shares[1].keys()}
    chosen = {name: pct for name, pct in apart.items() if _BETWEEN_STEPS.issuperset(name.split("+"))}
    most = max(sorted(chosen), key=lambda name: abs(chosen[name]), default="")
    if abs(chosen.get(most, 0.0)) < 100 * NOTABLE:
        return
    more = int(chosen[most] > 0)
    work = next(part.counted_text for part in accounts[more].training if part.name == most)
    pct, other_pct = shares[more][most], shares[1 - more].get(most)
    yield state("work_between", side="ab"[more], other_side="ba"[more], work=work, spent_pct=pct, other_pct=other_pct)


def _wall_time(side: Side) -> WallTime | None:
    return WallTime.of(side.run.manifest.facts_for(side.run.arm)) if side.run.manifest else None


def cold_start(a: Side, b: Side, traced: Traced | None) -> Statement | None:
    """Return what each process does once in the steps that are compared, where that is much of them on a side.

    Of several ranks that is said of the one that is explained.
    """
    if not (a.run.traces and b.run.traces):
        return None
    traces = [side.first_trace() if traced is None else side.trace_or_first(traced.rank) for side in (a, b)]
    if max(map(lost_once_share, traces)) < NAMED:
        return None
    once_a_ns, once_b_ns = (round(lost_once_ns(trace)) for trace in traces)
    rank = traces[0].rank if min(len(side.run.ranks) for side in (a, b)) > 1 else None
    return state("cold_start", once_a_ns=once_a_ns, once_b_ns=once_b_ns, rank=rank)


def unchanged_work(
    a: Side, b: Side, causes: Sequence[Cause], cells: Sequence[CellDelta], traced: Traced | None
) -> Statement | None:
    """Return what may give the same work another time, where that is most of the delta: its pace, or the same ops."""
    if traced is None:
        return None
    return _pace(a, b, causes, traced.delta_ns) or _same_ops(a, b, causes, cells, traced)


def _pace(a: Side, b: Side, causes: Sequence[Cause], delta_ns: int) -> Statement | None:
    """Return that most of a delta is the pace of what both sides do alike."""
    paced_ns = sum(cause.delta_ns for cause in causes if cause.kind == "pace")
    if not paced_ns or (paced_ns > 0) != (delta_ns > 0) or 2 * abs(paced_ns) < abs(delta_ns):
        return None
    return state("pace", paced_delta_ns=paced_ns, **_other_pace(a, b))


def _same_ops(
    a: Side, b: Side, causes: Sequence[Cause], cells: Sequence[CellDelta], traced: Traced
) -> Statement | None:
    """Return that most of what differs between separate processes on a CPU are durations of the same ops.

    Steps of one process scatter less than processes do, in which memory lies elsewhere, and the machine has other work.
    Python and the loader have a place in the program, as ops that one side alone has, and are none of that.
    """
    traces = [side.first_trace() for side in (a, b)]
    if _is_one_recording(a, b) or any(len(device_work(trace)) for trace in traces) or not have_same_work(*traces):
        return None
    sign = 1 if traced.delta_ns > 0 else -1
    changed = [cause for cause in causes if _has_place(cause)]
    changed_ns = sum(max(sign * cause.delta_ns, 0) for cause in changed)
    if 2 * changed_ns >= max(abs(traced.delta_ns), sum(abs(cause.delta_ns) for cause in causes)):
        return None
    num_changed = sum(abs(cause.delta_num) for cause in causes)
    if _num_apart(*traces) > INSIDE * num_changed:  # more ops inside of those that both run
        return None
    if not (num_changed or any(cause.is_replacement for cause in causes)):
        return state("same_ops", **_other_pace(a, b))
    other_ns = sum(cause.delta_ns for cause in changed if not cause.name.startswith("Python"))
    same_ns = traced.delta_ns - other_ns - sum(cell.delta_ns for cell in cells if cell.category == _PYTHON)
    if 2 * sign * same_ns < abs(traced.delta_ns):
        return None
    return state("same_ops", same_delta_ns=same_ns, **_other_pace(a, b))


def _has_place(cause: Cause) -> bool:
    """Return whether a cause is work of one side alone, or time of the host outside of ops."""
    outside = cause.kind == "host" and cause.name.startswith(_NO_OP)
    return bool(cause.delta_num) or cause.is_replacement or bool(cause.moved) or outside


def _num_apart(a: Trace, b: Trace) -> float:
    """Return how many more or fewer ops B runs per step, also inside of others, beyond what a draw changes.

    Views and allocations compute nothing, and other versions of torch run others.
    """
    ours, theirs = op_calls_per_step(a), op_calls_per_step(b)
    computing = [op for op in ours.keys() | theirs.keys() if not (VIEW.match(op) or ALLOCATES.match(op))]
    apart = sum(abs(ours.get(op, 0.0) - theirs.get(op, 0.0)) for op in computing)
    return max(apart - DRAWN * sum(ours.values()), 0.0)


def _other_pace(a: Side, b: Side) -> dict[str, Measure]:
    """Return what else gives the same work another pace, and the sides whose inputs may be of another size."""
    traces = [side.first_trace() for side in (a, b)]
    names = [name for name, trace in zip("AB", traces, strict=True) if not has_shapes(trace)]
    on_device = any(len(device_work(trace)) > 0 for trace in traces)
    return measured(other=OTHER_PACE[on_device], unknown_sizes=" and ".join(names))


def _work_differences(a: Side, b: Side) -> Iterator[str]:
    """Yield the differences in dtypes, shapes, numbers of products and layers, and passes between the traces."""
    if a.run.traces and b.run.traces:
        ours, theirs = a.first_trace(), b.first_trace()
        yield from filter(None, [dtype_difference(ours, theirs)])
        if a.samples == b.samples:
            yield from filter(None, [shape_difference(ours, theirs), calls_difference(ours, theirs)])
            yield from filter(None, [_job_difference(a, b)])


def _job_difference(a: Side, b: Side) -> str:
    """Return in what two traces are of different jobs; "" where steps differ in samples, and with them in calls."""
    return job_difference(a.first_trace(), b.first_trace()) if a.samples == b.samples else ""


def _is_one_recording(a: Side, b: Side) -> bool:
    ours, theirs = ({run.manifest.run_id for run in side.runs if run.manifest} for side in (a, b))
    return bool(ours) and ours == theirs


def _recording_differences(a: Side, b: Side) -> Iterator[str]:
    """Yield the differences between the manifests; of several processes per side, all their values."""
    if any(run.manifest is None for run in (*a.runs, *b.runs)):
        return
    keys = sorted({key for side in (a, b) for run in side.runs for key in parameters_of(run)})
    declared = {key for side in (a, b) for run in side.runs for key in _varied(run)}
    for key in keys:
        if key not in declared:
            yield from _difference(key, *([parameters_of(run).get(key) for run in side.runs] for side in (a, b)))
    for key, absent in _ENVIRONMENT_KEYS.items():
        yield from _difference(key, *([_environment(run).get(key) or absent for run in side.runs] for side in (a, b)))
    clocks = [max(float(_environment(run).get("sm_mhz", 0)) for run in side.runs) for side in (a, b)]
    if all(clocks) and abs(clocks[0] - clocks[1]) > SCATTER * max(clocks):
        yield f"clocks: {clocks[0]:,.0f} MHz against {clocks[1]:,.0f} MHz"
    yield from _difference("ranks", *([run.manifest.num_ranks for run in side.runs if run.manifest] for side in (a, b)))
    yield from _difference("recipe", *([run.manifest.recipe for run in side.runs if run.manifest] for side in (a, b)))


def _varied(run: Run) -> Iterable[str]:
    arm = run.manifest.arm(run.arm) if run.manifest else None
    return arm.varied if arm else ()


def _environment(run: Run) -> dict[str, str | int | float]:
    return dict(run.manifest.facts_for(run.arm)) if run.manifest else {}


def _difference(key: str, a: Sequence[object], b: Sequence[object]) -> Iterator[str]:
    ours, theirs = (" or ".join(sorted({str(value) for value in values})) for values in (a, b))
    if ours != theirs:
        yield f"{key}: {ours} against {theirs}"


def _trace_differences(a: Trace, b: Trace) -> Iterator[str]:
    """Yield the differences between the traces: versions, profiler options, phases."""
    ours, theirs = (dict[str, object](trace.versions) for trace in (a, b))
    yield from differences(ours, theirs)
    phases_a, phases_b = ({*phases(trace).names} - {COMPILING} for trace in (a, b))
    if phases_a != phases_b:
        yield PHASES.format(phases=", ".join(sorted(phases_a ^ phases_b)[:4]))
