"""Collectives that a strategy predicts per step and role, compared with those issued: exact, explained or not."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collective_roles import ROLES, Role
from traceq.facts.comm.collectives import collective_calls, collective_kernels
from traceq.facts.comm.parallelism import IssuedCalls, PerStep, issued_calls, mark_times, marks_per_step, strategy_of
from traceq.facts.events.device_work import device_work
from traceq.facts.events.forward_ops import is_backward
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import surroundings
from traceq.facts.sentences import KERNELS as OF_KERNELS
from traceq.facts.sentences import NOTES
from traceq.frozen import frozen
from traceq.intervals import sorted_unique
from traceq.model import Trace

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
_NOTED = (
    *(Role.CLIP_NORM, Role.JOIN, Role.METRIC, Role.TOKENS),
    *(Role.INDICES, Role.STATISTICS, Role.STATE, Role.OPTIMIZER),
)
"""Roles of calls that no strategy predicts, in the order in which they are said."""
_FIRST_BUCKET, _BUCKET = 2**20, 25 * 2**20
_MAX_PADDING = 1024
"""Limit on the padding of one part, in elements."""

Counts = NDArray[np.int64]


@frozen
class Check:
    """One role's calls over all steps against the prediction; None where nothing is predicted or sizes are unknown."""

    role: str
    num: int
    expected_num: int | None
    elements: int | None
    expected_elements: int | None
    verdict: str
    reason: str = ""


def checks(trace: Trace) -> tuple[Check, ...]:
    """Return the checks of one rank's steps, role by role; none without a strategy or for a single rank."""
    issued, (name, _) = issued_calls(trace), strategy_of(trace)
    if name in ("none", "one rank"):
        return ()
    parameters = _sharded(trace, issued) if issued.of(Role.GATHER_FORWARD).any() else _replicated(trace, issued)
    all_checks = [*parameters, *_exchanges(trace, issued), *_auxiliary(trace, issued), *_kernels(trace)]
    return tuple(check for check in all_checks if check.num or check.expected_num)


def _kernels(trace: Trace) -> list[Check]:
    """Return the check that every call has one kernel, or a known reason why not."""
    work, kernels, num = device_work(trace), collective_kernels(trace), len(collective_calls(trace))
    if len(work) == 0:
        return []
    linked, launch = kernels.call >= 0, work.call[kernels.work]
    early = ~linked & work.before_window[kernels.work]
    by_graph = ~linked & (launch >= 0) & matching(trace.events, launch, _GRAPH)
    of_barrier = ~linked & (launch >= 0) & surroundings(trace, launch).within(_BARRIER)
    alone = ~linked & ~early & ~by_graph & ~of_barrier
    carried = len(sorted_unique(kernels.call[linked]))
    reasons = (
        (int(early.sum()), "early"),
        (int(by_graph.sum()), "by_graph"),
        (int(of_barrier.sum()), "of_barrier"),
        (num - carried, "missing"),
        (int(linked.sum()) - carried, "extra"),
        (int(alone.sum()), "alone"),
    )
    reason = "; ".join(f"{count:,} {OF_KERNELS[what]}" for count, what in reasons if count)
    verdict = UNEXPLAINED if alone.any() else EXPLAINED if reason else EXACT
    return [Check(KERNELS, len(kernels.work), num, None, None, verdict, reason)]


def micro_batches(trace: Trace) -> Counts:
    """Return int64[S]: forward passes of the wrapped model in each step, at least one."""
    return np.maximum(marks_per_step(trace, _FORWARDS, outermost=True), 1)


def _reducing_batches(trace: Trace, issued: IssuedCalls) -> Counts:
    """Return int64[S]: forward passes of each step after which gradients are reduced, at least one.

    DDP broadcasts buffers in the forward pass that follows such a one: under no_sync, not in every micro-batch.
    """
    begins = np.sort(mark_times(trace, _FORWARDS, outermost=True))
    reduces = issued.of(Role.GRADIENT) & (issued.calls.step >= 0)
    passes = np.searchsorted(begins, trace.events.ts[issued.calls.issued[reduces]])
    _, first = np.unique(passes, return_index=True)
    return np.maximum(np.bincount(issued.calls.step[reduces][first], minlength=issued.num_steps), 1)


def unit_forwards(trace: Trace) -> Counts:
    """Return int64[S]: forward passes of FSDP's units in each step; 0 without its annotations."""
    return marks_per_step(trace, _UNIT_FORWARD)


def _check(
    role: int, actual: PerStep, num: Counts | None, elements: Counts | None = None, fewer: str = "", note: str = ""
) -> Check:
    """Return the check of one role: exact if every step is as predicted.

    `fewer` is the reason that explains the same shortage of calls in every step; `note` is the assumption under which
    the steps are as predicted.
    """
    has_elements = elements is not None and (actual.elements >= 0).all() and (elements >= 0).all()
    off_num = actual.num - num if num is not None else np.zeros_like(actual.num)
    off_elements = actual.elements - elements if elements is not None and has_elements else np.zeros_like(actual.num)
    verdict, reason = (EXPLAINED, note) if note else (EXACT, "")
    if off_num.any() or off_elements.any():
        is_short = fewer and (off_num <= 0).all() and (off_elements <= 0).all() and len(sorted_unique(off_num)) == 1
        verdict, reason = (EXPLAINED, fewer) if is_short else (UNEXPLAINED, _deviation(off_num, off_elements))
    return Check(
        ROLES[role],
        int(actual.num.sum()),
        None if num is None else int(num.sum()),
        int(actual.elements.sum()) if (actual.elements >= 0).all() else None,
        int(elements.sum()) if elements is not None and has_elements else None,
        verdict,
        reason,
    )


def _deviation(off_num: Counts, off_elements: Counts) -> str:
    """Return text such as `2 calls over and 640 elements over, in 3 of 4 steps`."""
    wrong = int(((off_num != 0) | (off_elements != 0)).sum())
    parts = [_count(int(off_num.sum()), "call"), _count(int(off_elements.sum()), "element")]
    text = " and ".join(part for part in parts if part) or "steps differ"
    return f"{text}, in {wrong} of {len(off_num)} step{'s' if len(off_num) > 1 else ''}"


def _count(off: int, what: str) -> str:
    """Return text such as `2 calls over`; "" for 0."""
    return f"{abs(off):,} {what}{'' if abs(off) == 1 else 's'} {'over' if off > 0 else 'short'}" if off else ""


def _sharded(trace: Trace, issued: IssuedCalls) -> list[Check]:
    """Return the checks of FSDP and ZeRO-3.

    FSDP gathers each unit for forward, again for backward if it was resharded, and reduces it once; it reduces as many
    elements as it gathers.
    """
    forward, backward = (issued.per_step(issued.of(role)) for role in (Role.GATHER_FORWARD, Role.GATHER_BACKWARD))
    scattered = issued.of(Role.GRADIENT) & issued.named("reduce_scatter")
    gradients = issued.per_step(scattered)
    passes, reductions = unit_forwards(trace), marks_per_step(trace, _UNIT_REDUCES)
    if not passes.any():
        return _partitioned(issued)
    regathers = _expected_regathers(trace, passes, backward.num)
    sums = issued.per_step(issued.of(Role.GRADIENT) & ~scattered)
    batches = micro_batches(trace)
    whole = _usual(np.r_[forward.elements // batches, gradients.elements // batches])[: len(batches)] * batches
    return [
        _check(Role.GATHER_FORWARD, forward, passes, whole, NOTES["unsharded"]),
        _check(Role.GATHER_BACKWARD, backward, regathers, whole if (regathers == passes).all() else None),
        _check(Role.GRADIENT, gradients, reductions, whole, NOTES["unreduced"]),
        *([_check(Role.GRADIENT, sums, gradients.num, None)] if sums else []),
    ]


def _partitioned(issued: IssuedCalls) -> list[Check]:
    """Return the checks of ZeRO-3, whose units have no annotations: each step is as most steps."""
    roles = (Role.GATHER_FORWARD, Role.GATHER_BACKWARD, Role.GRADIENT, Role.GATHER_STEP)
    sums = [(role, issued.per_step(issued.of(role))) for role in roles]
    return [_check(role, actual, _usual(actual.num), _usual(actual.elements)) for role, actual in sums]


def _expected_regathers(trace: Trace, passes: Counts, backward: Counts) -> Counts:
    """Return the gathers for backward: none, all units, or all but the root unit of each forward pass."""
    batches = micro_batches(trace)
    if not backward.any():
        return np.zeros_like(passes)
    return passes - batches if int(backward.sum()) <= int((passes - batches).sum()) else passes


def _replicated(trace: Trace, issued: IssuedCalls) -> list[Check]:
    """Return the checks of DDP, ZeRO-1 and ZeRO-2.

    They reduce the same gradients every step, in buckets. ZeRO then gathers as many elements as were reduced, with the
    same number of calls in all steps of that size.
    """
    is_gradient = issued.of(Role.GRADIENT)
    gradients, gathered = issued.per_step(is_gradient), issued.per_step(issued.of(Role.GATHER_STEP))
    if gathered:
        parts = _in_equal_parts(gradients.elements, gathered.elements, trace.world_size)
        padding = _padding(gathered, gradients) if (gathered.elements != parts).any() else ""
        reduced_elements, gathered_elements = (None, None) if padding else (gradients.elements, parts)
        return [
            _check(Role.GRADIENT, gradients, _as_usual(gradients), reduced_elements, note=padding),
            _check(Role.GATHER_STEP, gathered, _as_usual(gathered), gathered_elements, note=padding),
        ]
    if not gradients:
        return []
    usual, elements = _usual(gradients.num), _usual(gradients.elements)
    if gradients.num[0] != usual[0] and (gradients.num[1:] == usual[1:]).all() and len(usual) > 2:
        return [_check(Role.GRADIENT, gradients, gradients.num, elements, note=NOTES["rebuilt"])]
    return [_check(Role.GRADIENT, gradients, usual, elements, note=_buckets(trace, issued, is_gradient))]


def _usual(values: Counts) -> Counts:
    """Return the most frequent value for every step; of equally frequent values the largest."""
    seen, count = np.unique(values, return_counts=True)
    return np.full_like(values, seen[len(seen) - 1 - int(np.argmax(count[::-1]))])


def _as_usual(actual: PerStep) -> Counts:
    """Return int64[S]: the usual number of calls of the steps that move as many elements."""
    return np.array([_usual(actual.num[actual.elements == elements])[0] for elements in actual.elements], np.int64)


def _in_equal_parts(elements: Counts, gathered: Counts, num_ranks: int) -> Counts:
    """Return int64[S]: the elements, padded to equal parts per rank if every step gathers that many.

    DeepSpeed pads the parts to an even size as well.
    """
    rounded = (-(-elements // multiple) * multiple for multiple in (num_ranks, 2 * num_ranks) if multiple > 0)
    return next((padded for padded in rounded if (padded == gathered).all()), elements)


def _padding(gathered: PerStep, gradients: PerStep) -> str:
    """Return the note on padding if it explains the difference between gathered and reduced elements, else ""."""
    more = np.abs(gathered.elements - gradients.elements)
    per_call = np.maximum(gathered.num, gradients.num) * _MAX_PADDING
    return NOTES["padded"] if more.any() and (more <= per_call).all() else ""


def _buckets(trace: Trace, issued: IssuedCalls, is_gradient: NDArray[np.bool_]) -> str:
    """Return why the buckets of a step differ from DDP's defaults; "" where they do not.

    A bucket is closed by the parameter that fills it: so all but the last hold at least 1 MiB (the first) or 25 MiB.
    """
    sizes = [issued.calls.size[is_gradient & (issued.calls.step == step)] for step in range(issued.num_steps)]
    forwards = micro_batches(trace).tolist()
    small = []
    for step_sizes, passes in zip(sizes, forwards, strict=True):
        num = passes if len(step_sizes) and len(step_sizes) % passes == 0 else 1
        for buckets in np.split(step_sizes, num):
            least = np.where(np.arange(len(buckets)) == 0, _FIRST_BUCKET, _BUCKET)[:-1]
            small += buckets[:-1][(buckets[:-1] < least) & (buckets[:-1] >= 0)].tolist()
    return NOTES["bucket"].format(size=min(small)) if small else ""


def _exchanges(trace: Trace, issued: IssuedCalls) -> list[Check]:
    """Return the checks of tensor and expert parallelism, where backward mirrors each exchange, and of pipelines."""
    exchanges = issued.of(Role.ACTIVATIONS)
    passes = bool((issued.backward | issued.of(Role.GRADIENT)).any() or is_backward(trace).any())
    checked = _messages(issued, passes=passes)
    for name, mirror in _MIRRORS:
        forward = issued.per_step(exchanges & ~issued.backward & issued.named(name))
        backward = issued.per_step(exchanges & issued.backward & issued.named(mirror))
        if forward and not backward:
            note = NOTES["no_counterpart" if passes else "forward_only"]
            checked.append(_check(Role.ACTIVATIONS, forward, None, note=note))
        elif forward or backward:
            usual = _check(Role.ACTIVATIONS, forward, _usual(forward.num))
            checked += [usual, _mirrored(forward, backward, parts_differ=name == "all_to_all")]
    return checked


def _messages(issued: IssuedCalls, *, passes: bool) -> list[Check]:
    """Return the checks of pipeline stages: for each activation sent, a gradient of the same size is received."""
    exchanges = issued.of(Role.ACTIVATIONS)
    sent, received = (issued.per_step(exchanges & issued.named(name)) for name in ("send", "recv"))
    if bool(sent) != bool(received):
        note = NOTES["one_way" if passes else "one_way_forward"]
        return [_check(Role.ACTIVATIONS, sent or received, None, note=note)]
    sends = _check(Role.ACTIVATIONS, sent, _usual(sent.num), _usual(sent.elements))
    return [sends, _check(Role.ACTIVATIONS, received, sent.num, sent.elements)] if sent else []


def _mirrored(forward: PerStep, backward: PerStep, *, parts_differ: bool) -> Check:
    """Return the check of backward's exchanges against those of forward; sizes only if parts are equal on all ranks."""
    if forward and (backward.num == 2 * forward.num).all():
        return _check(Role.ACTIVATIONS, backward, backward.num, note=NOTES["recomputed"])
    sized = forward.elements if (forward.num == backward.num).all() and not parts_differ else None
    return _check(Role.ACTIVATIONS, backward, forward.num, sized, NOTES["some_without"])


def _auxiliary(trace: Trace, issued: IssuedCalls) -> list[Check]:
    """Return the checks of collectives that are no part of the strategy itself."""
    forwards = _reducing_batches(trace, issued)
    buffers, unused = (issued.per_step(issued.of(role)) for role in (Role.BUFFERS, Role.UNUSED_MAP))
    kinds = np.maximum(buffers.num.max(initial=0) // forwards, 1) * forwards
    noted = [_check(role, issued.per_step(issued.of(role)), None, note=NOTES[ROLES[role]]) for role in _NOTED]
    unknown = issued.per_step(issued.of(Role.UNKNOWN))
    return [
        _check(Role.BUFFERS, buffers, kinds if buffers else None),
        _check(Role.UNUSED_MAP, unused, None, note=NOTES["unused_map"]),
        *noted,
        _check(Role.UNKNOWN, unknown, np.zeros_like(unknown.num)),
    ]
