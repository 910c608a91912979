"""What DDP does in a step beyond one reduction of its gradients: buffers, repeated reductions, unused parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import on_the_worst_rank, recurs, step_lengths
from traceq.claims.claim import AT_MOST, Claim, Measure, measured
from traceq.claims.rules import RULES
from traceq.facts.comm.collective_roles import Role, collective_roles
from traceq.facts.comm.collectives import collective_calls, exposed_by_step, exposed_pct
from traceq.facts.comm.parallelism import mark_times
from traceq.facts.events.enclosing_rows import surroundings
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import tracks
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.intervals import Spans, measure_within, spans, subtract
from traceq.model import DDP_PARAMETERS, Category, Trace

_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
_ACCUMULATES = re.compile(r"^torch::autograd::AccumulateGrad$")
_IN_NODE = re.compile(r"AccumulateGrad")
_MARKS = re.compile(r"^aten::(select|fill_)$")
_SEARCHES = re.compile(r"ddp\.reducer::search_unused_parameters$")
_UPDATE = re.compile(r"^Optimizer\.step#")
_SENDS = re.compile(
    r"^(c10d::|nccl:|gloo:|record_param_comms$"
    r"|aten::(flatten_dense_tensors|unflatten_dense_tensors|cat|view|reshape|_reshape_alias|narrow|slice|as_strided|copy_"
    r"|empty|empty_like|empty_strided|detach|to|_to_copy|select)$)"
)
"""Ops with which buffers are put into one tensor, sent, and copied back."""


def buffer_broadcast_spans(trace: Trace) -> Spans:
    """Return the time from the begin of each forward pass of DDP that broadcasts buffers to its first other op."""
    events, calls, main = trace.events, collective_calls(trace), main_track(trace)
    sent = np.sort(events.ts[calls.rows[collective_roles(trace) == Role.BUFFERS]])
    marks = events.rows(Category.ANNOTATION)
    marks = marks[matching(events, marks, _FORWARD)]
    marks = marks[tracks(trace)[marks] == main]
    start, end = events.ts[marks], events.end[marks]
    last = np.searchsorted(sent, end) - 1
    has_sent = (last >= 0) & (np.r_[sent, 0][last] >= start)
    start, end, last = start[has_sent], end[has_sent], last[has_sent]
    ops = events.rows(Category.CPU_OP)
    ops = ops[(tracks(trace)[ops] == main) & ~matching(events, ops, _SENDS)] if len(start) else ops[:0]
    others = np.r_[np.sort(events.ts[ops]), np.iinfo(np.int64).max]
    return spans(start, np.minimum(others[np.searchsorted(others, sent[last])], end))


@frozen
class DdpExtra:
    """What a rank does, by the code of its claim, and the claim where that takes much of most of its steps."""

    code: str
    finding: Claim | None = None


def ddp_extras(trace: Trace) -> tuple[DdpExtra, ...]:
    """Return what DDP does in the steps of a rank beyond one reduction of its gradients."""
    extras = _buffer_broadcasts, _repeated_reductions, _unused_search
    return tuple(extra for of_kind in extras for extra in of_kind(trace)) if steps(trace).marked else ()


def _buffer_broadcasts(trace: Trace) -> Iterator[DdpExtra]:
    """Yield what broadcasts of buffers take of steps, in which the device computes nothing."""
    sends = buffer_broadcast_spans(trace)
    if len(sends):
        yield _extra(trace, "buffer_broadcasts", _idle_by_step(trace, sends))


def _repeated_reductions(trace: Trace) -> Iterator[DdpExtra]:
    """Yield the exposed reductions of all backward passes before an optimizer's step but the last.

    Passes of one model reduce as many elements; those of several models, trained in turns, do not.
    """
    calls, forwards = collective_calls(trace), np.sort(mark_times(trace, _FORWARD, outermost=True))
    reductions = np.flatnonzero((collective_roles(trace) == Role.GRADIENT) & (calls.step >= 0))
    issued_ns, updates = trace.events.ts[calls.issued[reductions]], np.sort(mark_times(trace, _UPDATE))
    if not len(reductions) or not len(forwards) or not len(updates):
        return
    update, number = np.searchsorted(updates, issued_ns), np.searchsorted(forwards, issued_ns)
    passes, of_pass = np.unique(np.stack([update, number]), axis=1, return_inverse=True)
    elements = np.bincount(of_pass.ravel(), calls.elements[reductions])
    is_repeated = np.r_[(np.diff(passes[0]) == 0) & (np.diff(elements) == 0) & (elements[1:] > 0), False]
    if is_repeated.any():
        num_reductions = 1 + round(float(is_repeated.sum() / len(np.unique(passes[0]))))
        exposed_ns = exposed_by_step(trace, reductions[is_repeated[of_pass.ravel()]])
        pct = exposed_pct(trace, exposed_ns)
        yield _extra(trace, "repeated_reductions", exposed_ns, num_reductions=num_reductions, exposed_pct=pct)


def _unused_search(trace: Trace) -> Iterator[DdpExtra]:
    """Yield what DDP does to find unused parameters, if it does so in every counted step.

    That is a search of the graph, a mark of each parameter that gets a gradient, and an exchange of these marks.
    `num_parameters` get a gradient in each backward pass; 0 where they are not as many in all.
    """
    calls, events, all_steps = collective_calls(trace), trace.events, steps(trace)
    roles, counted = collective_roles(trace), np.flatnonzero(all_steps.counted)
    maps = np.flatnonzero((roles == Role.UNUSED_MAP) & np.isin(calls.step, counted))
    ops = events.rows(Category.CPU_OP)
    nodes = all_steps.issued(events.ts[ops[matching(events, ops, _ACCUMULATES)]])
    num_maps, num_nodes = (np.bincount(each[each >= 0], minlength=len(all_steps)) for each in (calls.step[maps], nodes))
    if not len(maps) or not num_maps[counted].all():
        return
    num_parameters = np.unique(num_nodes[counted] / num_maps[counted])
    gradients, marks = np.flatnonzero(roles == Role.GRADIENT), ops[matching(events, ops, _MARKS)]
    searches = np.r_[ops[matching(events, ops, _SEARCHES)], marks[surroundings(trace, marks).within(_IN_NODE)]]
    exchanged_ns = exposed_by_step(trace, np.r_[gradients, maps]) - exposed_by_step(trace, gradients)
    searched_ns = _idle_by_step(trace, spans(events.ts[searches], events.end[searches]))
    num = int(num_parameters[0]) if len(num_parameters) == 1 else 0
    yield _extra(trace, "unused_search", exchanged_ns + searched_ns, num_parameters=num)


def _idle_by_step(trace: Trace, parts: Spans) -> NDArray[np.int64]:
    """Return int64[K] ns of each counted step in which the device computes nothing in these parts."""
    all_steps = steps(trace)
    window = all_steps.window[all_steps.counted]
    return measure_within(subtract(parts, activity(trace).when(TimeCategory.COMPUTE)), *window.T)


def _extra(trace: Trace, code: str, lost_ns: NDArray[np.int64], **measures: Measure) -> DdpExtra:
    """Return the claim on a time of each counted step (int64[K]), if it is as much of most of them as its rule asks."""
    ns, step_ns = round(float(lost_ns.mean())), step_lengths(steps(trace))
    if not all(recurs(lost_ns.tolist(), steps(trace), 100 * least) for least in RULES[code].limits):
        return DdpExtra(code)
    shown = measured(idle_ns=ns, share_pct=100 * ns / float(step_ns.mean()), **measures)
    return DdpExtra(code, Claim(code, ns, measures=shown, gain=(0, ns), gain_by=AT_MOST))


def ddp_claims(job: Job, of_ranks: Sequence[Sequence[DdpExtra]]) -> Iterator[Claim]:
    """Yield the claims on a job: of all its ranks that of the rank with the least time in what DDP does.

    The others wait for that one beyond it, and would without. A search is one in vain if each parameter of the model,
    of which the recording has the number, gets a gradient.
    """
    facts = job.manifest.facts_for(job.arm) if job.manifest else {}
    for code in dict.fromkeys(extra.code for extras in of_ranks for extra in extras):
        done = [[extra for extra in extras if extra.code == code] for extras in of_ranks]
        used = {extra.finding.measures.get("num_parameters") for extras in done for extra in extras if extra.finding}
        if code != "unused_search" or used == {facts.get(DDP_PARAMETERS)}:
            yield from on_the_worst_rank(job, _least_of_job(job, done))


def _least_of_job(job: Job, done: Sequence[Sequence[DdpExtra]]) -> list[Claim | None]:
    """Return by rank the finding that counts: that with the least time, if all ranks of the job are there."""
    findings = [extras[0].finding if extras else None for extras in done]
    if not job.ranks or len(done) < job.ranks[0].world_size:
        return findings
    is_little = any(extra.finding is None for extras in done for extra in extras)
    least = None if is_little else min(filter(None, findings), key=lambda each: each.ns, default=None)
    return [each if each is least else None for each in findings]
