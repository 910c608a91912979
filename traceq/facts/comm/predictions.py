"""What a strategy predicts for each role, per step, against what was issued: exact, explained or unexplained."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collective_roles import ROLES, Role
from traceq.facts.comm.collectives import collective_calls, collective_kernels
from traceq.facts.comm.parallelism import Issues, PerStep, issues, marks_per_step, strategy_of
from traceq.facts.events.device_work import device_work
from traceq.facts.events.enclosing_rows import surroundings
from traceq.facts.events.name_patterns import matching
from traceq.intervals import sorted_unique
from traceq.model import Trace

__all__ = ["EXACT", "EXPLAINED", "UNEXPLAINED", "Check", "checks", "micro_batches", "units"]

EXACT, EXPLAINED, UNEXPLAINED = "exact", "explained", "unexplained"
KERNELS = "kernels"

_FORWARDS = re.compile(r"^(DistributedDataParallel|FullyShardedDataParallel)\.forward$|^FSDP::root_pre_forward$")
_UNIT_FORWARD = re.compile(r"^FullyShardedDataParallel\.forward$|^FSDP::pre_forward( |$)")
_UNIT_REDUCES = re.compile(r"^FullyShardedDataParallel\._post_backward_hook$|^FSDP::post_backward_reduce( |$)")
_GRAPH = re.compile(r"GraphLaunch$")
_BARRIER = re.compile(r"barrier")
_MIRRORS = (
    ("all_reduce", "all_reduce"),
    ("all_gather", "reduce_scatter"),
    ("reduce_scatter", "all_gather"),
    ("all_to_all", "all_to_all"),
)
_FIRST_BUCKET, _BUCKET = 2**20, 25 * 2**20
_MOST_PADDING = 1024
"""Elements that a part may be padded by."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Check:
    """One role's calls over all steps against the prediction; None where nothing is predicted, or sizes not told."""

    role: str
    num: int
    expected_num: int | None
    elements: int | None
    expected_elements: int | None
    verdict: str
    reason: str = ""


def checks(trace: Trace) -> tuple[Check, ...]:
    """What was issued in the steps of one rank, role by role."""
    found, (name, _) = issues(trace), strategy_of(trace)
    if name in ("none", "one rank"):
        return ()
    parameters = _sharded(trace, found) if found.of(Role.GATHER_FORWARD).any() else _replicated(trace, found)
    several = [*parameters, *_exchanges(found), *_besides(trace, found), *_kernels(trace)]
    return tuple(check for check in several if check.num or check.expected_num)


def _kernels(trace: Trace) -> list[Check]:
    """Every call has one kernel, or the reason why not is known."""
    work, kernels, num = device_work(trace), collective_kernels(trace), len(collective_calls(trace))
    if len(work) == 0:
        return []
    linked, launch = kernels.call >= 0, work.call[kernels.work]
    early = ~linked & work.before_window[kernels.work]
    by_graph = ~linked & (launch >= 0) & matching(trace.events, launch, _GRAPH)
    of_barrier = ~linked & (launch >= 0) & surroundings(trace, launch).within(_BARRIER)
    alone = ~linked & ~early & ~by_graph & ~of_barrier
    carried = len(sorted_unique(kernels.call[linked]))
    told = (
        (int(early.sum()), "launched before the window"),
        (int(by_graph.sum()), "launched by a graph"),
        (int(of_barrier.sum()), "of barriers"),
        (num - carried, "calls without one of their own: fused with another's, or cut off by the window"),
        (int(linked.sum()) - carried, "more for calls that launch several"),
        (int(alone.sum()), "whose call is not in the trace"),
    )
    reason = "; ".join(f"{count:,} {why}" for count, why in told if count)
    verdict = UNEXPLAINED if alone.any() else EXPLAINED if reason else EXACT
    return [Check(KERNELS, len(kernels.work), num, None, None, verdict, reason)]


def micro_batches(trace: Trace) -> Counts:
    """int64[S]: forward passes of the wrapped model in each step, at least one."""
    return np.maximum(marks_per_step(trace, _FORWARDS, outermost=True), 1)


def units(trace: Trace) -> Counts:
    """int64[S]: forward passes of FSDP's units in each step; 0 without its marks."""
    return marks_per_step(trace, _UNIT_FORWARD)


def _check(
    role: int, got: PerStep, num: Counts | None, elements: Counts | None = None, fewer: str = "", note: str = ""
) -> Check:
    """Exact if every step is as predicted. Fewer calls in every step alike are explained by `fewer`, if it says why;
    `note` explains what is as predicted only if it applies.
    """
    sized = elements is not None and (got.elements >= 0).all() and (elements >= 0).all()
    off_num = got.num - num if num is not None else np.zeros_like(got.num)
    off = got.elements - elements if elements is not None and sized else np.zeros_like(got.num)
    verdict, reason = (EXPLAINED, note) if note else (EXACT, "")
    if off_num.any() or off.any():
        is_short = fewer and (off_num <= 0).all() and (off <= 0).all() and len(sorted_unique(off_num)) == 1
        verdict, reason = (EXPLAINED, fewer) if is_short else (UNEXPLAINED, _over(off_num, off))
    return Check(
        ROLES[role],
        int(got.num.sum()),
        None if num is None else int(num.sum()),
        int(got.elements.sum()) if (got.elements >= 0).all() else None,
        int(elements.sum()) if elements is not None and sized else None,
        verdict,
        reason,
    )


def _over(off_num: Counts, off: Counts) -> str:
    """`2 calls over and 640 elements over, in 3 of 4 steps`."""
    wrong = int(((off_num != 0) | (off != 0)).sum())
    parts = [_count(int(off_num.sum()), "call"), _count(int(off.sum()), "element")]
    told = " and ".join(part for part in parts if part) or "steps differ"
    return f"{told}, in {wrong} of {len(off)} step{'s' if len(off) > 1 else ''}"


def _count(off: int, what: str) -> str:
    """`2 calls over`, nothing for 0."""
    return f"{abs(off):,} {what}{'' if abs(off) == 1 else 's'} {'over' if off > 0 else 'short'}" if off else ""


def _sharded(trace: Trace, found: Issues) -> list[Check]:
    """FSDP: a gather for each unit's forward, one for the backward of each that was resharded, a reduction for each; as
    many elements are reduced as gathered.
    """
    forward, backward = (found.per_step(found.of(role)) for role in (Role.GATHER_FORWARD, Role.GATHER_BACKWARD))
    scattered = found.of(Role.GRADIENT) & found.called("reduce_scatter")
    gradients = found.per_step(scattered)
    passes, reductions = units(trace), marks_per_step(trace, _UNIT_REDUCES)
    if not passes.any():
        return _partitioned(found)
    again = _gathered_again(trace, passes, backward.num)
    sums = found.per_step(found.of(Role.GRADIENT) & ~scattered)
    batches = micro_batches(trace)
    whole = _usual(np.r_[forward.elements // batches, gradients.elements // batches])[: len(batches)] * batches
    return [
        _check(Role.GATHER_FORWARD, forward, passes, whole, "units were still whole from before"),
        _check(Role.GATHER_BACKWARD, backward, again, whole if (again == passes).all() else None),
        _check(Role.GRADIENT, gradients, reductions, whole, "units reduce nothing: frozen, or no_sync"),
        *([_check(Role.GRADIENT, sums, gradients.num, None)] if sums else []),
    ]


def _partitioned(found: Issues) -> list[Check]:
    """ZeRO-3, whose units leave no marks: it gathers by fetch and reduces by bucket, each step as most steps do."""
    roles = (Role.GATHER_FORWARD, Role.GATHER_BACKWARD, Role.GRADIENT, Role.GATHER_STEP)
    several = [(role, found.per_step(found.of(role))) for role in roles]
    return [_check(role, got, _usual(got.num), _usual(got.elements)) for role, got in several]


def _gathered_again(trace: Trace, passes: Counts, backward: Counts) -> Counts:
    """What is kept for backward: all, nothing, or the root, of which there is one in each forward pass."""
    kept = micro_batches(trace)
    if not backward.any():
        return np.zeros_like(passes)
    return passes - kept if int(backward.sum()) <= int((passes - kept).sum()) else passes


def _replicated(trace: Trace, found: Issues) -> list[Check]:
    """DDP, ZeRO-1 and 2: the same gradients every step, in buckets; then as many elements are gathered as were reduced,
    by as many calls in all steps of that size.
    """
    mine = found.of(Role.GRADIENT)
    gradients, gathered = found.per_step(mine), found.per_step(found.of(Role.GATHER_STEP))
    if gathered:
        parts = _in_equal_parts(gradients.elements, gathered.elements, trace.world_size)
        padding = _padding(gathered, gradients) if (gathered.elements != parts).any() else ""
        reduced, back = (None, None) if padding else (gradients.elements, parts)
        return [
            _check(Role.GRADIENT, gradients, _as_usual(gradients), reduced, note=padding),
            _check(Role.GATHER_STEP, gathered, _as_usual(gathered), back, note=padding),
        ]
    if not gradients:
        return []
    usual, elements = _usual(gradients.num), _usual(gradients.elements)
    if gradients.num[0] != usual[0] and (gradients.num[1:] == usual[1:]).all() and len(usual) > 2:
        return [_check(Role.GRADIENT, gradients, gradients.num, elements, note="DDP rebuilds its buckets once")]
    return [_check(Role.GRADIENT, gradients, usual, elements, note=_buckets(trace, found, mine))]


def _usual(values: Counts) -> Counts:
    """The most frequent value, for every step; of equally frequent ones the largest."""
    seen, count = np.unique(values, return_counts=True)
    return np.full_like(values, seen[len(seen) - 1 - int(np.argmax(count[::-1]))])


def _as_usual(got: PerStep) -> Counts:
    """int64[S]: the usual number of calls of the steps that move as many elements; an optimizer may skip some."""
    return np.array([_usual(got.num[got.elements == mine])[0] for mine in got.elements], np.int64)


def _in_equal_parts(elements: Counts, gathered: Counts, num_ranks: int) -> Counts:
    """int64[S]: these elements, or as many more as make the parts of all ranks equal (and even, as DeepSpeed has them),
    whichever is gathered in every step.
    """
    rounded = (-(-elements // multiple) * multiple for multiple in (num_ranks, 2 * num_ranks) if multiple > 0)
    return next((padded for padded in rounded if (padded == gathered).all()), elements)


def _padding(gathered: PerStep, gradients: PerStep) -> str:
    """Why a little more was gathered than reduced, or reduced than gathered."""
    more = np.abs(gathered.elements - gradients.elements)
    per_call = np.maximum(gathered.num, gradients.num) * _MOST_PADDING
    return "parts are padded to the same size on all ranks" if more.any() and (more <= per_call).all() else ""


def _buckets(trace: Trace, found: Issues, mine: NDArray[np.bool_]) -> str:
    """Why the buckets of a step are not those of DDP's defaults; nothing where they are.

    A bucket is closed by the parameter that fills it: so all but the last hold at least 1 MiB, then 25.
    """
    sizes = [found.calls.size[mine & (found.step == step)] for step in range(found.num_steps)]
    forwards = micro_batches(trace).tolist()
    small = []
    for of_step, passes in zip(sizes, forwards, strict=True):
        for own in np.split(of_step, passes) if len(of_step) and len(of_step) % passes == 0 else [of_step]:
            least = np.where(np.arange(len(own)) == 0, _FIRST_BUCKET, _BUCKET)[:-1]
            small += own[:-1][(own[:-1] < least) & (own[:-1] >= 0)].tolist()
    return (
        f"a bucket of {min(small):,} bytes is below DDP's 1, then 25 MiB: bucket_cap_mb is set, or several are wrapped"
        if small
        else ""
    )


def _exchanges(found: Issues) -> list[Check]:
    """Tensor and expert parallelism: the backward pass mirrors each exchange of the forward pass; then messages."""
    mine, checked = found.of(Role.ACTIVATIONS), _messages(found)
    passes = bool(found.backward.any()) or bool(found.of(Role.GRADIENT).any())
    for name, mirror in _MIRRORS:
        forward = found.per_step(mine & ~found.backward & found.called(name))
        backward = found.per_step(mine & found.backward & found.called(mirror))
        if forward and not backward:
            why = "no gradient comes back through it" if passes else "forward only: the trace has no backward pass"
            checked.append(_check(Role.ACTIVATIONS, forward, None, note=why))
        elif forward or backward:
            usual = _check(Role.ACTIVATIONS, forward, _usual(forward.num))
            checked += [usual, _mirrored(forward, backward, parts_differ=name == "all_to_all")]
    return checked


def _messages(found: Issues) -> list[Check]:
    """Pipeline stages: for each activation that goes one way between two of them a gradient of its size comes back."""
    mine = found.of(Role.ACTIVATIONS)
    sent, received = (found.per_step(mine & found.called(name)) for name in ("send", "recv"))
    if bool(sent) != bool(received):
        why = "messages go one way: the trace has no backward pass"
        return [_check(Role.ACTIVATIONS, sent or received, None, note=why)]
    sends = _check(Role.ACTIVATIONS, sent, _usual(sent.num), _usual(sent.elements))
    return [sends, _check(Role.ACTIVATIONS, received, sent.num, sent.elements)] if sent else []


def _mirrored(forward: PerStep, backward: PerStep, *, parts_differ: bool) -> Check:
    if forward and (backward.num == 2 * forward.num).all():
        return _check(Role.ACTIVATIONS, backward, backward.num, note="activations are recomputed in backward")
    sized = forward.elements if (forward.num == backward.num).all() and not parts_differ else None
    fewer = "no gradient comes back through some: a first layer, an embedding, a loss"
    return _check(Role.ACTIVATIONS, backward, forward.num, sized, fewer)


def _besides(trace: Trace, found: Issues) -> list[Check]:
    """What runs beside the strategy itself."""
    forwards = micro_batches(trace)
    buffers, unused = (found.per_step(found.of(role)) for role in (Role.BUFFERS, Role.UNUSED_MAP))
    kinds = np.maximum(buffers.num.max(initial=0) // forwards, 1) * forwards
    notes = (
        (Role.CLIP_NORM, "the norm of all gradients is clipped"),
        (Role.METRIC, "numbers are added up or gathered for people"),
        (Role.INDICES, "which rows and tokens go where"),
        (Role.STATISTICS, "SyncBatchNorm shares its statistics"),
        (Role.STATE, "state is sent from one rank to all"),
    )
    told = [_check(role, found.per_step(found.of(role)), None, note=note) for role, note in notes]
    unknown = found.per_step(found.of(Role.UNKNOWN))
    return [
        _check(Role.BUFFERS, buffers, kinds if buffers else None),
        _check(Role.UNUSED_MAP, unused, None, note="find_unused_parameters: a map of what took part"),
        *told,
        _check(Role.UNKNOWN, unknown, np.zeros_like(unknown.num)),
    ]
