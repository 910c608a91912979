"""Which collectives do ranks issue, how much do they move, and how much of their time is exposed?"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.analysis._basis import on_the_worst_rank, recurs, step_lengths
from traceq.analysis._rank_rows import each_of, of_all
from traceq.analysis._wording import in_traced_steps, over_ranks, per_step, values_words
from traceq.claims.claim import AT_MOST, Claim, Measure, measured
from traceq.claims.rules import RULES
from traceq.facts.comm.collective_roles import ROLES, Role, collective_roles
from traceq.facts.comm.collectives import (
    COLLECTIVE_NAMES,
    Calls,
    algbw_gbps,
    busbw_gbps,
    collective_calls,
    collective_kernels,
    exposed_by_step,
    exposed_pct,
    time_on_thread,
)
from traceq.facts.comm.parallelism import mark_times
from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import surroundings, tracks
from traceq.facts.events.unrecorded_work import lacks_shapes
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import main_track, step_of_work, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import Spans, intersect, measure_within, spans, subtract
from traceq.model import DDP_PARAMETERS, Category, Trace
from traceq.report import Report, Table, Unknown, column
from traceq.units import Unit

_NAME, _ROLE, _STEP = 0, 5, 7
"""Columns of `_identities`."""


_FOR = {
    "gradient_reduction": "gradients",
    "parameter_gather_forward": "weights, forward",
    "parameter_gather_backward": "weights, backward",
    "parameter_gather_step": "updated weights",
    "buffer_broadcast": "buffers",
    "unused_map": "unused parameters",
    "clip_norm": "gradient norm",
    "metric": "metrics",
    "activation_exchange": "activations",
    "index_exchange": "indices",
    "batch_statistics": "batch norm",
    "state_broadcast": "state",
    "unknown": "",
    "token_count": "token counts",
    "optimizer_state": "optimizer state",
    "join_check": "join of uneven inputs",
}
"""Role -> what a collective is for, in a narrow column."""


@frozen
class CollectiveRow:
    """Collectives of one name, group, dtype, phase and role.

    Bandwidths are of kernel time, with waits for other ranks.
    """

    host_ns: int
    """Of the calls on their threads."""
    key: str = column("key")
    rank: int = column("rank", Unit.COUNT)
    name: str = column("collective")
    """`all_reduce`, ...; `unknown` for kernels without a known call."""
    group: str = column("group")
    group_size: int | None = column("ranks", Unit.COUNT)
    dtype: str = column("dtype")
    num: int = column("calls", Unit.COUNT)
    num_kernels: int = column("kernels", Unit.COUNT)
    bytes: int | None = column("bytes", Unit.BYTES)
    """Larger side."""
    gpu_ns: int = column("GPU time", Unit.NS)
    exposed_ns: int = column("exposed", Unit.NS)
    """Nothing computes meanwhile."""
    algbw_gbps: float | None = column("algbw", Unit.GBPS)
    busbw_gbps: float | None = column("busbw", Unit.GBPS)
    """As defined by nccl-tests."""
    phase: str = column("phase")
    role: str = column("role")
    """[What it is for](method.md#role-of-a-collective)."""
    num_copies: int = column("copies", Unit.COUNT)
    """That carried calls without a kernel."""


@frozen
class StepRow:
    """Collectives of one name and role issued in one step, None between steps, with the times of their kernels."""

    host_ns: int
    rank: int = column("rank", Unit.COUNT)
    step: int | None = column("step", Unit.COUNT)
    name: str = column("collective")
    role: str = column("role")
    num: int = column("calls", Unit.COUNT)
    num_kernels: int = column("kernels", Unit.COUNT)
    bytes: int | None = column("bytes", Unit.BYTES)
    gpu_ns: int = column("GPU time", Unit.NS)
    exposed_ns: int = column("exposed", Unit.NS)


@frozen
class _PerStep:
    """Collectives of one name and role in a counted step: values of all steps and ranks, and means of times."""

    name: str = column("collective")
    role: str = column("for")
    num: str = column("calls", Unit.COUNT)
    num_kernels: str = column("kernels", Unit.COUNT)
    bytes: str = column("bytes", Unit.BYTES)
    gpu_ns: float = column("GPU time", Unit.NS)
    exposed_ns: float = column("exposed", Unit.NS)
    host_ns: float = column("host time", Unit.NS)


@frozen
class _Sum:
    """Collectives of one name, role, phase, dtype and group size, summed over ranks and groups."""

    name: str = column("collective")
    role: str = column("role")
    phase: str = column("phase")
    dtype: str = column("dtype")
    group_size: int | None = column("ranks", Unit.COUNT)
    num: int | None = column("calls", Unit.COUNT)
    num_kernels: int = column("kernels", Unit.COUNT)
    bytes: int | None = column("bytes", Unit.BYTES)
    gpu_ns: int = column("GPU time", Unit.NS)
    exposed_ns: int = column("exposed", Unit.NS)
    host_ns: int = column("host time", Unit.NS)


@frozen
class _Rank:
    rows: tuple[CollectiveRow, ...]
    steps: tuple[StepRow, ...]
    extras: tuple[DdpExtra, ...]
    lacks_shapes: bool


def summarize(trace: Trace) -> _Rank:
    """Return calls and kernels of collectives, of the whole trace and by step; kernels without a call have 0 calls."""
    sums = _sums(trace, _identities(trace)[:_STEP])
    rows = sorted((_row(trace, identity, *values) for identity, *values in sums), key=lambda row: row.key)
    return _Rank(tuple(rows), tuple(_step_rows(trace)), ddp_extras(trace), lacks_shapes(trace))


def merge(job: Job, parts: Sequence[_Rank]) -> Report:
    """Return the rows of all ranks, of which people see sums, and what they lose to what DDP does more."""
    rows, by_step = of_all(parts), each_of(parts, lambda part: part.steps)
    tables = (
        Table.of("collectives", "Collectives", CollectiveRow, rows),
        Table.of("collectives_steps", "Collectives by step", StepRow, by_step),
    )
    findings = tuple(ddp_claims(job, [part.extras for part in parts]))
    views = (_view(job, rows),) if rows else ()
    has_bytes = not by_step or any(row.bytes is not None for row in by_step)
    needs = "record_shapes=True" if any(part.lacks_shapes for part in parts) else "torch 2.2 or newer"
    unknown = () if has_bytes else (Unknown("bytes of collectives", needs),)
    first = (_per_step(job, by_step),) if job.ranks else ()
    return Report("collectives", tables, views, findings, unknown=unknown, first=first)


def _step_rows(trace: Trace) -> Iterator[StepRow]:
    number = steps(trace).number.tolist()
    sums = _sums(trace, _identities(trace)[[_STEP, _NAME, _ROLE]])
    for (step, name, role), num, num_kernels, _, size_bytes, num_unsized, gpu_ns, exposed_ns, host_ns in sums:
        yield StepRow(
            host_ns=host_ns,
            rank=trace.rank,
            step=number[step] if step >= 0 else None,
            name=COLLECTIVE_NAMES[name],
            role=ROLES[role],
            num=num,
            num_kernels=num_kernels,
            bytes=None if num_unsized or not num else size_bytes,
            gpu_ns=gpu_ns,
            exposed_ns=exposed_ns,
        )


def _sums(trace: Trace, identities: NDArray[np.int64]) -> Iterator[tuple[Any, ...]]:
    """Yield (identity, the arguments of `_row` after it) for calls and kernels of equal identity, a column each."""
    calls, kernels, work = collective_calls(trace), collective_kernels(trace), device_work(trace)
    groups = group(list(identities))
    no_call, no_kernel = np.zeros(len(calls), np.int64), np.zeros(len(kernels.work), np.int64)
    duration, exposed = (work.end - work.start)[kernels.work], _exposed(trace, len(work))[kernels.work]
    yield from zip(
        groups.keys.tolist(),
        groups.sum(np.r_[no_call + 1, no_kernel]),
        groups.sum(np.r_[no_call, ~kernels.is_copy]),
        groups.sum(np.r_[no_call, kernels.is_copy]),
        groups.sum(np.r_[np.maximum(calls.size, 0), no_kernel]),
        groups.sum(np.r_[calls.size < 0, no_kernel]),
        groups.sum(np.r_[no_call, duration]),
        groups.sum(np.r_[_exposed_on_cpu(trace, calls), exposed]),
        groups.sum(np.r_[time_on_thread(trace, calls), no_kernel]),
        strict=True,
    )


def calls_words(kinds: Mapping[tuple[str, str], Sequence[StepRow]], num_steps: int) -> str:
    """Return `5 all_to_all, 4 all_reduce`: the calls of a step by name, most first; kernels where no call is known."""
    by_name: dict[str, Counter[tuple[int, int | None]]] = defaultdict(Counter)
    for (name, _), rows in kinds.items():
        for row in rows:
            by_name[name][row.rank, row.step] += row.num or row.num_kernels
    of_names = {name: [*nums.values(), *[0] * (num_steps > len(nums))] for name, nums in by_name.items()}
    most_first = sorted(of_names.items(), key=lambda item: -sum(item[1]))
    return ", ".join(f"{values_words(nums, Unit.COUNT)} {name}" for name, nums in most_first)


def _row(
    trace: Trace,
    identity: Sequence[int],
    num: int,
    num_kernels: int,
    num_copies: int,
    size_bytes: int,
    num_unsized: int,
    gpu_ns: int,
    exposed_ns: int,
    host_ns: int,
) -> CollectiveRow:
    """Return the row of one group; `identity` as in `_identities`."""
    name, group_, dtype = COLLECTIVE_NAMES[identity[0]], _text(trace, identity[1]), _text(trace, identity[3])
    group_size = identity[2] if identity[2] > 0 else None
    phase, role = phases(trace).names[identity[4]], ROLES[identity[5]]
    known_bytes = None if num_unsized or not num else size_bytes
    algbw = algbw_gbps(known_bytes, gpu_ns)
    return CollectiveRow(
        host_ns=host_ns,
        key="|".join((name, group_, dtype, phase, role, "" if num else "no call")).rstrip("|"),
        rank=trace.rank,
        name=name,
        group=group_,
        group_size=group_size,
        dtype=dtype,
        num=num,
        num_kernels=num_kernels,
        bytes=known_bytes,
        gpu_ns=gpu_ns,
        exposed_ns=exposed_ns,
        algbw_gbps=algbw,
        busbw_gbps=busbw_gbps(algbw, name, group_size),
        phase=phase,
        role=role,
        num_copies=num_copies,
    )


def _identities(trace: Trace) -> NDArray[np.int64]:
    """Return int64[8, C + K] of calls, then kernels: name, group, its size, dtype, phase, role, no call (0 or 1), step.

    A kernel has those of its call; without one its own phase and step, and no known role.
    """
    calls, kernels, messages = collective_calls(trace), collective_kernels(trace), trace.events.messages
    of_work = phases(trace).work_phase[kernels.work]
    linked = kernels.call >= 0

    def both(of_call: NDArray[np.int64], otherwise: NDArray[np.int64]) -> NDArray[np.int64]:
        of_kernel = np.where(linked, of_call[kernels.call], otherwise) if len(of_call) else otherwise
        return np.concatenate([of_call, of_kernel])

    def of_message(column: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
        if len(column) == 0:
            return np.full(len(calls), -1)
        return np.where(calls.message >= 0, column[calls.message].astype(np.int64), -1)

    absent = np.full(len(kernels.work), -1)
    columns: NDArray[np.int64] = np.stack(
        [
            both(calls.name, kernels.name),
            both(of_message(messages.group), absent),
            both(calls.group_size, absent),
            both(of_message(messages.dtype), absent),
            both(calls.phase, of_work),
            both(collective_roles(trace), np.full(len(kernels.work), Role.UNKNOWN)),
            np.r_[np.zeros(len(calls), np.int64), (~linked).astype(np.int64)],
            both(calls.step, step_of_work(trace)[kernels.work]),
        ]
    )
    return columns


def _exposed(trace: Trace, num_work: int) -> NDArray[np.int64]:
    """Return int64[D] ns: the time that each piece of device work runs exposed, as a collective or a copy."""
    partition = activity(trace)
    return partition.ns_of_work(partition.among(TimeCategory.EXPOSED_COMM, TimeCategory.EXPOSED_MEMCPY), num_work)


def _exposed_on_cpu(trace: Trace, calls: Calls) -> NDArray[np.int64]:
    """Return int64[C] ns: the time of each call in which the main thread computes nothing; 0 where a device runs it."""
    if len(device_work(trace)):
        return np.zeros(len(calls), np.int64)
    exposed = activity(trace).when(TimeCategory.EXPOSED_COMM)
    return measure_within(exposed, trace.events.ts[calls.rows], trace.events.end[calls.rows])


def _text(trace: Trace, number: int) -> str:
    return trace.events.strings[number] if number >= 0 else ""


def _per_step(job: Job, rows: Sequence[StepRow]) -> Table:
    """Return what a counted step of a rank exchanges, most time first; a title that says so where that is nothing."""
    counted = {rank.rank: set(rank.steps.number[rank.steps.counted].tolist()) for rank in job.ranks}
    num_steps, kinds = sum(map(len, counted.values())), dict[tuple[str, str], list[StepRow]]()
    for row in rows:
        if row.step in counted[row.rank]:
            kinds.setdefault((row.name, row.role), []).append(row)
    title = f"Collectives {per_step(job.ranks[0].steps)}" if job.ranks[0].steps.marked else "Collectives"
    if not kinds:
        return Table("collectives", sentences.NONE_RECORDED.format(title=title, in_steps=in_traced_steps(job)), (), ())

    def values(rows_of_steps: Sequence[StepRow], key: str, unit: Unit) -> str:
        of_rows = [getattr(row, key) for row in rows_of_steps]
        return "" if None in of_rows else values_words([*of_rows, *[0] * (num_steps > len(of_rows))], unit)

    def mean(rows_of_steps: Sequence[StepRow], key: str) -> float:
        return float(sum(getattr(row, key) for row in rows_of_steps)) / num_steps

    shown = [
        _PerStep(
            name=name,
            role=_FOR[role],
            num=values(of_steps, "num", Unit.COUNT) if any(row.num for row in of_steps) else "",
            num_kernels=values(of_steps, "num_kernels", Unit.COUNT),
            bytes=values(of_steps, "bytes", Unit.BYTES),
            gpu_ns=mean(of_steps, "gpu_ns"),
            exposed_ns=mean(of_steps, "exposed_ns"),
            host_ns=mean(of_steps, "host_ns"),
        )
        for (name, role), of_steps in kinds.items()
    ]
    if len({row.name for row in shown}) < len(shown):  # then calls of a name are rows of several roles
        title += f": {calls_words(kinds, num_steps)}"
    on_device = any(row.gpu_ns for row in shown)
    mean_of = sentences.MEAN_OF_RANKS.format(num=len(job.ranks)) if len(job.ranks) > 1 else ""
    view = Table.of("collectives", f"{title}{mean_of}", _PerStep, shown)
    view = view.largest_first("gpu_ns" if on_device else "host_ns")
    has_calls = all(row.num for row in shown)
    return view.without(
        *(["num_kernels"] if has_calls or not on_device else []),
        *(["host_ns"] if on_device else ["gpu_ns", "exposed_ns"]),
    )


def _view(job: Job, rows: Sequence[CollectiveRow]) -> Table:
    """Return sums over ranks and groups; without a device they have the time of the calls' threads."""
    on_device = any(row.num_kernels or row.num_copies for row in rows)
    alike: dict[tuple[str, str, str, str, int | None], list[CollectiveRow]] = {}
    for row in rows:
        identity = (row.name, row.role.replace("_", " "), row.phase, row.dtype, row.group_size)
        alike.setdefault(identity, []).append(row)
    shown = [
        _Sum(
            *identity,
            num=sum(row.num for row in of_kind) or None,  # kernels whose calls are not recorded
            num_kernels=sum(row.num_kernels for row in of_kind),
            bytes=None if any(row.bytes is None for row in of_kind) else sum(row.bytes or 0 for row in of_kind),
            gpu_ns=sum(row.gpu_ns for row in of_kind),
            exposed_ns=sum(row.exposed_ns for row in of_kind),
            host_ns=sum(row.host_ns for row in of_kind),
        )
        for identity, of_kind in alike.items()
    ]
    title = f"Collectives ({over_ranks(job)})"
    keys = ("num_kernels", "bytes", "gpu_ns", "exposed_ns") if on_device else ("bytes", "host_ns")
    view = Table.of("collectives", title, _Sum, shown).largest_first("gpu_ns" if on_device else "host_ns")
    return view.select("name", "role", "phase", "dtype", "group_size", "num", *keys)


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
        exchanged = intersect(sends, activity(trace).when(TimeCategory.EXPOSED_COMM))
        pct = exposed_pct(trace, _idle_by_step(trace, exchanged))
        yield _extra(trace, "buffer_broadcasts", _idle_by_step(trace, sends), exposed_pct=pct)


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
    if not all(recurs(lost_ns.tolist(), step_ns, 100 * least) for least in RULES[code].limits):
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
