"""The kernels in which a device computes longest, or the ops of a CPU: to weigh losses against, and as what limits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from traceq.claims.claim import Measure, measured
from traceq.claims.limits import MUCH
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import kernel_labels, without_tunings
from traceq.facts.events.kernels import launched_kernels, runs_compiled
from traceq.facts.events.self_time import self_times
from traceq.facts.roofline.peaks import peaks_of
from traceq.facts.timeline.main_lines import differentiated_lines, main_lines
from traceq.facts.timeline.once import once
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import span_index
from traceq.model import Trace
from traceq.short_texts import cut_apart
from traceq.units import Unit, format_value

WorkTimes = Mapping[tuple[str, str, str], float]
"""(kernel or op, its place, kind of which something can be said or "") -> ns of a mean counted step.

The place is ` of ` the op that launched it, ` at ` its line, or "".
"""

_NAMED, _LEAST_NAMED = 3, 0.05
"""Kernels that are named at most, and the part of the compute time from which one is."""
_OF_ONE_PLACE, _LONGEST_NAME = 0.9, 50
"""Part of a kernel's time from which it is one op's, or an op's one line's; the most characters of a name."""

_FLOAT32, _ELEMENTWISE, _SLOW_CONVOLUTION = "float32_pct", "elementwise_pct", "slow_convolution_pct"
_IN_PYTHON = "autograd_function_pct"
_KINDS = (_FLOAT32, _ELEMENTWISE, _IN_PYTHON, _SLOW_CONVOLUTION)
"""Kinds of kernels and ops, by the measure of their share."""
_PATTERNS = {
    _ELEMENTWISE: re.compile(r"elementwise_kernel"),
    _FLOAT32: re.compile(
        r"^(?!.*(tf32|s1688|fp16|bf16)).*(sgemm|scudnn|(winograd\w{0,80}|[wd]grad\w{0,80}engine|convolve\w{0,80})<float\b)"
    ),
    _SLOW_CONVOLUTION: re.compile(r"aten::(_slow_conv|slow_conv|thnn_conv)"),
}
"""What names tell: kernels of torch for one op on each element; products of cuBLAS, cuDNN and CUTLASS in float32 that
use no Tensor Cores; convolutions that are a product of the unfolded input."""
_AUTOGRAD_FUNCTION = re.compile(r"(?!CompiledFunction)[A-Z]\w*[A-Za-z]")
"""Classes of `torch.autograd.Function` are ops by their names, and those of their backward pass, which end in
`Backward`; those of torch's own have a number behind it."""
_HAS_TENSOR_CORES = re.compile(r"(volta|turing|ampere|sm[789]\d|sm1\d\d|cutlass_[789]\d)_")
"""Kernels for devices that have Tensor Cores."""


@frozen
class LongWork:
    """A kernel, or an op of a CPU; where it is from, ` of aten::mm` or ` at train.py:6 step`, if most is of one place.

    `ns` of a step in which it computes, `by_kind` how much of it is of a kind, and `named_ns` of that place, or all.
    """

    name: str
    place: str
    named_ns: float
    ns: float
    by_kind: Mapping[str, float]


def work_times(trace: Trace) -> WorkTimes:
    """Return in which kernels a device computes, or the self times of ops where there is none.

    Of the mean counted step. The times of kernels add up to `compute` of the partition.
    """
    return _kernel_times(trace) if len(device_work(trace)) else _op_times(trace)


def _kernel_times(trace: Trace) -> WorkTimes:
    done, kernels, names, does = activity(trace), launched_kernels(trace), trace.events.name, kernel_labels(trace)
    chosen = np.flatnonzero((done.category == TimeCategory.COMPUTE) & in_counted_steps(trace))
    op = np.full(len(device_work(trace)), -1)
    op[kernels.work] = np.where(kernels.op >= 0, names[kernels.op], -1)
    owner = done.owner[chosen]
    groups = group([names[device_work(trace).rows[owner]], op[owner], does.label[owner]])
    num_steps, strings = int(steps(trace).counted.sum()), [*trace.events.strings, ""]
    said_of = {_FLOAT32: _has_tensor_cores(trace.device, {strings[name] for name, *_ in groups.keys.tolist()})}
    said_of[_ELEMENTWISE] = not runs_compiled(trace)
    times: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for (name, of_op, label), ns in zip(groups.keys.tolist(), groups.sum(done.ns[chosen]), strict=True):
        kind = _kind(strings[name])
        place = f" of {strings[of_op]}" if strings[of_op] else ""
        key = does.names[label], place, kind if said_of.get(kind, True) else ""
        times[key] += ns / num_steps
    return dict(times)


def _op_times(trace: Trace) -> WorkTimes:
    times, events, host = self_times(trace), trace.events, steps(trace).host[steps(trace).counted]
    recurs = span_index(once(trace).parts, events.ts[times.rows]) < 0
    chosen = np.flatnonzero((span_index(host, events.ts[times.rows]) >= 0) & recurs)
    rows, ns = times.rows[chosen], times.ns[chosen]
    of_names = group([events.name[rows]])
    is_long = np.zeros(len(of_names.keys), np.bool_)
    is_long[np.argsort(-np.array(of_names.sum(ns), np.int64), kind="stable")[:_NAMED]] = True
    placed = np.flatnonzero(is_long[of_names.group_ids])
    lines, line = _lines(trace, rows[placed], times.track[chosen[placed]])
    place = np.zeros(len(rows), np.int64)
    place[placed] = line
    groups = group([events.name[rows], place])
    keys = [(events.strings[name], lines[number]) for name, number in groups.keys.tolist()]
    in_python = _autograd_functions({name for name, _ in keys})
    return {
        (name, f" at {line}" if line else "", _IN_PYTHON if name in in_python else _kind(name)): total / len(host)
        for (name, line), total in zip(keys, groups.sum(ns), strict=True)
    }


def _lines(
    trace: Trace, rows: NDArray[np.int64], track: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return (lines, "" first; int64[K] that of each op, in a backward op that of its forward op)."""
    start = trace.events.ts[rows]
    differentiated, lines = differentiated_lines(trace, track, start), main_lines(trace)
    return lines.texts, np.where(differentiated > 0, differentiated, lines.line_at(start))


def _autograd_functions(names: Set[str]) -> set[str]:
    """Return the names of autograd functions that are written in Python, forward and backward."""
    backward = {f"{name}Backward": name for name in names if _AUTOGRAD_FUNCTION.fullmatch(name)}
    return {each for name in backward.keys() & names for each in (name, backward[name])}


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(name)), "")


def _has_tensor_cores(device: str, kernels: Iterable[str]) -> bool:
    """Return whether a device is known to have Tensor Cores, by its peaks or by kernels that are for such devices."""
    peaks = peaks_of(device)
    if peaks is not None:
        return peaks.rate("float16") > peaks.rate("float32")
    return any(_HAS_TENSOR_CORES.search(name) for name in kernels)


def longest_work(ranks: Sequence[WorkTimes]) -> tuple[LongWork, ...]:
    """Return the kernels or ops, the longest first, mean of ranks."""
    by_name: defaultdict[str, defaultdict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
    for rank in ranks:
        for (name, place, kind), ns in rank.items():
            by_name[name][place, kind] += ns / len(ranks)
    return tuple(sorted((_long_work(*each) for each in by_name.items()), key=lambda each: -each.ns))


def _long_work(name: str, ns: Mapping[tuple[str, str], float]) -> LongWork:
    by_place, by_kind = defaultdict[str, float](float), defaultdict[str, float](float)
    for (place, kind), each in ns.items():
        by_place[place] += each
        by_kind[kind] += each
    place, whole = max(by_place, key=by_place.__getitem__), sum(ns.values())
    if by_place[place] < _OF_ONE_PLACE * whole:
        return LongWork(name, "", whole, whole, by_kind)
    return LongWork(name, place, by_place[place], whole, by_kind)


def work_measures(work: Sequence[LongWork], whole_ns: float) -> dict[str, Measure]:
    """Return the longest kernels or ops of a step that takes `whole_ns`, and shares of kinds that could be shorter."""
    computes_ns = sum(each.ns for each in work)
    named = [each for each in work[:_NAMED] if each.ns >= _LEAST_NAMED * computes_ns]
    shares = (
        f"{name}{each.place} {format_value(100 * each.named_ns / whole_ns, Unit.PERCENT)}"
        for name, each in zip(_shown_names(named), named, strict=True)
    )
    of_kind = {kind: sum(each.by_kind.get(kind, 0.0) for each in work) for kind in _KINDS}
    large = {kind: 100 * ns / whole_ns for kind, ns in of_kind.items() if ns >= MUCH * computes_ns > 0}
    return measured(longest=", ".join(shares), **large)


def _shown_names(work: Sequence[LongWork]) -> list[str]:
    """Return the names as people see them beside each other."""
    return cut_apart(without_tunings([each.name for each in work]), _LONGEST_NAME)
