"""What takes longest: kernels of a device, ops of a CPU; where a host is meanwhile: causes, ops, lines and modules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from operator import itemgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._wording import in_phase, plain_phase, python_place
from traceq.claims.claim import Measure, Subject, measured
from traceq.claims.limits import MOST, MUCH
from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import kernel_labels, without_tunings
from traceq.facts.events.kernels import launched_kernels, runs_compiled
from traceq.facts.events.name_patterns import AUTOGRAD_NODE
from traceq.facts.events.nesting import tracks
from traceq.facts.events.self_time import SelfTimes, self_times
from traceq.facts.roofline.peaks import peaks_of
from traceq.facts.stalls.idle_time import IdleCause, idleness
from traceq.facts.timeline.call_sites import line_function
from traceq.facts.timeline.main_lines import differentiated_lines, main_lines, outermost_ops
from traceq.facts.timeline.modules import modules, modules_at
from traceq.facts.timeline.once import once
from traceq.facts.timeline.phases import optimizer_steps, phases
from traceq.facts.timeline.steps import main_track, steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import contains, measure_within, sorted_unique, span_index, spans
from traceq.model import Category, Trace
from traceq.short_texts import cut_apart
from traceq.units import Unit, format_value

PlaceKind = Literal["op", "line", "function", "module"]

_LEAST = 0.2
"""Part of the step of a rank from which a place is kept: what has half of the mean step has that on some rank."""
_NUMBER = re.compile(r"_\d+(?=\.|$)")
_FUNCTION = re.compile(r" [^<]")
"""Name of a function in a line, but for parts of a script, such as `<listcomp>`."""
HostCauses = Mapping[tuple[IdleCause, str, str, str], float]
"""(cause, op, line, phase) -> ns of a mean counted step, as the rows of `idle` have it but for the host's pauses."""

_CAUSES_NAMED, _LEAST_CAUSE = 2, 0.1
"""Causes that are named at most, and the part of the host-bound time from which one is."""


@frozen(eq=False)
class HostPlace:
    """An op, a line, a function or a module, with the self time of its ops: `ns` float64[K] of each counted step.

    `line` is the longest one of a function. `asks_device`: these are, or may make, calls of a device's runtime.
    """

    kind: PlaceKind
    name: str
    ns: NDArray[np.float64]
    asks_device: bool
    line: str = ""

    @property
    def mean_ns(self) -> float:
        """Of a counted step."""
        return float(self.ns.mean()) if len(self.ns) else 0.0


@frozen(eq=False)
class _Ops:
    """The O ops and runtime calls that begin in counted steps.

    int64[O]: `row` of Events, `track`, self time `ns`, `step` number among the `num_steps`.
    """

    row: NDArray[np.int64]
    track: NDArray[np.int64]
    ns: NDArray[np.int64]
    step: NDArray[np.int64]
    num_steps: int


def host_places(trace: Trace) -> tuple[HostPlace, ...]:
    """Return the places with a fifth of the counted steps; none where the trace has work of a device.

    A line, a function and a module have the ops of the main thread, a backward op those of its forward op; a module
    also the ops of the modules inside it.
    """
    if len(device_work(trace)):
        return ()
    all_steps = steps(trace)
    counted = all_steps.host[all_steps.counted]
    ops = _ops(self_times(trace), trace, counted)
    least_ns = _LEAST * int(np.diff(counted).sum())
    if not least_ns or not len(ops.row):
        return ()
    of_main = ops.track == main_track(trace)
    on_main = _Ops(ops.row[of_main], ops.track[of_main], ops.ns[of_main], ops.step[of_main], ops.num_steps)
    return (
        *_places(trace, "op", trace.events.strings, trace.events.name[ops.row].astype(np.int64), ops, least_ns),
        *_line_places(trace, on_main, least_ns),
        *_module_places(trace, on_main, least_ns),
    )


def _ops(times: SelfTimes, trace: Trace, counted: NDArray[np.int64]) -> _Ops:
    """Return the ops of counted steps but those most of whose time is once."""
    start, end = trace.events.ts[times.rows], trace.events.end[times.rows]
    step = span_index(counted, start)
    inside = (step >= 0) & (2 * measure_within(once(trace).parts, start, end) <= end - start)
    return _Ops(times.rows[inside], times.track[inside], times.ns[inside], step[inside], len(counted))


def _line_places(trace: Trace, ops: _Ops, least_ns: float) -> Iterator[HostPlace]:
    """Yield lines, and functions but those that update parameters, which have all of a step."""
    texts, line = _lines(trace, ops.row, ops.track)
    yield from (place for place in _places(trace, "line", texts, line, ops, least_ns) if place.name)
    names = [line_function(text) if _FUNCTION.search(text) else "" for text in texts]
    updates = main_lines(trace).line_at(trace.events.ts[optimizer_steps(trace)])
    loops = {"", *(names[number] for number in updates.tolist())}
    functions = sorted({*names} - loops)
    number = {name: index for index, name in enumerate(functions)}
    function = np.array([number.get(name, -1) for name in names], np.int64)
    sums = np.bincount(line, ops.ns, len(texts))
    for place in _places(trace, "function", functions, function[line], ops, least_ns):
        longest = max(np.flatnonzero(function == number[place.name]).tolist(), key=sums.__getitem__)
        yield replace(place, line=texts[longest])


def _module_places(trace: Trace, ops: _Ops, least_ns: float) -> Iterator[HostPlace]:
    """Yield modules that are one of several inside another one, and so are not all of a model.

    Modules of one class at one place of the model count together, as layers.
    """
    tree = modules(trace)
    module = modules_at(trace, ops.track, trace.events.ts[ops.row])
    if not len(tree) or not (module >= 0).any():
        return
    total = tree.with_inner(np.bincount(module[module >= 0], ops.ns[module >= 0], len(tree)))
    kinds = [_NUMBER.sub("", path) for path in tree.paths]
    sums, num_inner = defaultdict[str, float](float), np.bincount(tree.parent[tree.parent >= 0], minlength=len(tree))
    is_part = np.zeros(len(tree), np.bool_)
    for index, parent in enumerate(tree.parent.tolist()):
        is_part[index] = parent >= 0 and (num_inner[parent] > 1 or is_part[parent])
        sums[kinds[index]] += float(total[index]) if is_part[index] else 0.0
    for kind in (kind for kind, ns in sums.items() if ns >= least_ns):
        inside = np.array([each == kind or each.startswith(f"{kind}.") for each in kinds] + [False])[module]
        yield from _places(trace, "module", (kind,), np.where(inside, 0, -1), ops, least_ns)


def _places(
    trace: Trace, kind: PlaceKind, names: Sequence[str], place: NDArray[np.int64], ops: _Ops, least_ns: float
) -> Iterator[HostPlace]:
    """Yield the places (int64[O] into `names`, -1 for none) with that much self time in all counted steps."""
    selected = place >= 0
    sums = np.bincount(place[selected], ops.ns[selected], len(names))
    for number in np.flatnonzero(sums >= least_ns).tolist():
        of_place = np.flatnonzero(place == number)
        ns = np.bincount(ops.step[of_place], ops.ns[of_place], ops.num_steps).astype(np.float64)
        yield HostPlace(kind, names[number], ns, _ask_device(trace, ops.row[of_place]))


def _ask_device(trace: Trace, rows: NDArray[np.int64]) -> bool:
    """Return whether some ops are, or make, calls of a device's runtime; they may where none is recorded."""
    events, row_track = trace.events, tracks(trace)
    calls = events.rows(Category.RUNTIME)
    if not len(calls) or np.isin(rows, calls).any():
        return True
    by_track = {number: rows[row_track[rows] == number] for number in sorted_unique(row_track[rows]).tolist()}
    return any(
        contains(spans(events.ts[ops], events.end[ops]), events.ts[calls[row_track[calls] == number]]).any()
        for number, ops in by_track.items()
    )


def merged_places(ranks: Sequence[Sequence[HostPlace]], num_steps: int) -> tuple[HostPlace, ...]:
    """Return the places of all ranks, mean of ranks in each of the steps, the longest first."""
    by_name: defaultdict[tuple[PlaceKind, str], list[HostPlace]] = defaultdict(list)
    for place in (place for rank in ranks for place in rank):
        by_name[place.kind, place.name].append(place)
    merged = [_merged(places, len(ranks), num_steps) for places in by_name.values()]
    return tuple(sorted(merged, key=lambda place: (-place.mean_ns, place.kind, place.name)))


def _merged(places: Sequence[HostPlace], num_ranks: int, num_steps: int) -> HostPlace:
    ns = np.zeros(num_steps)
    for place in places:
        ns[: len(place.ns)] += place.ns / num_ranks
    return replace(places[0], ns=ns, asks_device=any(place.asks_device for place in places))


def host_causes(trace: Trace) -> HostCauses:
    """Return what the host does in the counted steps while the device waits for the next launch.

    Where it pauses it does nothing: the op in which a thread happens to be is not what takes the time. Without a
    device: where the main thread is in Python between ops; nothing if no op is recorded, as then it is not known what
    is Python.
    """
    if not len(device_work(trace)) and not len(trace.events.rows(Category.CPU_OP)):
        return {}
    idle, names = idleness(trace), phases(trace).names
    category = TimeCategory.HOST_BOUND if len(device_work(trace)) else TimeCategory.PYTHON
    pieces = np.flatnonzero((idle.category == category) & (idle.cause != IdleCause.HOST_PAUSE))
    groups = group([each[pieces] for each in (idle.cause, idle.name, idle.line, idle.phase)])
    num_steps = int(steps(trace).counted.sum())
    sums = groups.sum(np.diff(idle.parts[pieces])[:, 0])
    return {
        (IdleCause(cause), idle.texts[op], idle.texts[line], names[phase]): ns / num_steps
        for (cause, op, line, phase), ns in zip(groups.keys.tolist(), sums, strict=True)
    }


def most_of_host(ranks: Sequence[HostCauses], host_ns: float) -> tuple[Subject, dict[str, Measure]]:
    """Return the place with most of `host_ns`, and in words that and the largest ones, mean of ranks.

    Nothing where no place has much of it, or where it is known only that the host is not in a call.
    """
    sums, subjects = defaultdict[str, float](float), dict[str, Subject]()
    for rank in ranks:
        for (cause, op, line, phase), ns in rank.items():
            place = _place_words(cause, op, line, phase)
            sums[place] += ns / len(ranks)
            is_op = cause == IdleCause.HOST_OP
            subjects[place] = Subject(phase="" if line else phase, line=line, op=op if is_op else "")
    large = ((-ns, place) for place, ns in sums.items() if place and ns >= _LEAST_CAUSE * host_ns)
    largest = sorted(large)[:_CAUSES_NAMED]
    places = ", ".join(f"{format_value(-ns, Unit.NS)} {place}" for ns, place in largest)
    most = next((place for ns, place in largest if -ns >= MOST * host_ns), "")
    return subjects.get(most, Subject()), measured(place=most, places=places)


def _place_words(cause: IdleCause, op: str, line: str, phase: str) -> str:
    """Return where the host is, with the phase of what has no line; "" without host ops, which alone could tell."""
    place = _place(cause, op, line)
    return place if line or not place else f"{place} {in_phase(plain_phase(phase))}"


def _place(cause: IdleCause, op: str, line: str) -> str:
    if cause == IdleCause.HOST:
        return ""
    at_line = f"at {line}" if line else ""
    if cause == IdleCause.DATA_LOADER:
        return f"in the data loader {at_line}".strip()
    if cause == IdleCause.PYTHON:
        return at_line or python_place(op)
    return f"in {op} {at_line}".strip()


WorkTimes = Mapping[tuple[str, str, str], float]
"""(kernel or op, its place, kind of which something can be said or "") -> ns of a mean counted step.

The place is ` of ` the op that launched it or a node of the backward pass, ` at ` its line, both, or "".
"""

_NAMED, _LEAST_NAMED = 3, 0.05
"""Kernels that are named at most, and the part of the compute time from which one is."""
_OF_ONE_PLACE, _LONGEST_NAME = 0.9, 50
"""Part of a kernel's time from which it is one op's, or an op's one line's; the most characters of a name."""

_FLOAT32, _ELEMENTWISE, _SLOW_CONVOLUTION = "float32_pct", "elementwise_pct", "slow_convolution_pct"
_FLOAT32_ONLY, _FLOAT64 = "float32_without_tf32_pct", "float64_pct"
_IN_PYTHON = "autograd_function_pct"
_KINDS = (_FLOAT64, _FLOAT32, _FLOAT32_ONLY, _ELEMENTWISE, _IN_PYTHON, _SLOW_CONVOLUTION)
"""Kinds of kernels and ops, by the measure of their share."""
_PATTERNS = {
    _FLOAT64: re.compile(r"(?<![a-z])d\d{0,4}gemm|<double\b"),
    _ELEMENTWISE: re.compile(r"elementwise_kernel"),
    _FLOAT32: re.compile(
        r"^(?!.*(tf32|s1688|fp16|bf16)).*(sgemm|scudnn|(winograd\w{0,80}|[wd]grad\w{0,80}engine|convolve\w{0,80})<float\b)"
    ),
    _SLOW_CONVOLUTION: re.compile(r"aten::(_slow_conv|slow_conv|thnn_conv)"),
}
"""What names tell: kernels of torch and products in float64; kernels of torch for one op on each element; products of
cuBLAS, cuDNN and CUTLASS in float32 that use no Tensor Cores; convolutions that are a product of the unfolded input."""
_OTHER_FLOATS = re.compile(r'"(float|c10::(Half|BFloat16|Float8\w{0,20}))"')
_AUTOGRAD_FUNCTION = re.compile(r"(?!CompiledFunction)[A-Z]\w*[A-Za-z]")
"""Classes of `torch.autograd.Function` are ops by their names, and those of their backward pass, which end in
`Backward`; those of torch's own have a number behind it."""
_NODE_END = re.compile(r"Backward\d*$")
_HAS_TENSOR_CORES = re.compile(r"(volta|turing|ampere|sm[789]\d|sm1\d\d|cutlass_[789]\d)_")
_HAS_TF32 = re.compile(r"(ampere|sm[89]\d|sm1\d\d|cutlass_[89]\d)_")
"""Kernels for devices that have Tensor Cores, and for those whose have TF32."""
_FIRST_WITH_TF32 = 8
"""Major compute capability from which each device has it."""


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

    @property
    def node(self) -> str:
        """The op that launched it, or the node of the backward pass that it is of, "" where not of one."""
        return self.place.partition(" at ")[0].removeprefix(" of ")

    @property
    def line(self) -> str:
        """The line of most of it, "" where not known, or not of one."""
        return self.place.partition(" at ")[2]


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
    said_of = {_FLOAT32: _float32_kind(trace, {strings[name] for name, *_ in groups.keys.tolist()})}
    said_of[_ELEMENTWISE] = "" if runs_compiled(trace) else _ELEMENTWISE
    times: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for (name, of_op, label), ns in zip(groups.keys.tolist(), groups.sum(done.ns[chosen]), strict=True):
        kind = _kind(strings[name])
        place = f" of {strings[of_op]}" if strings[of_op] else ""
        key = does.names[label], place, said_of.get(kind, kind)
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
    track = times.track[chosen[placed]]
    lines, line = _lines(trace, rows[placed], track)
    place = np.zeros(len(rows), np.int64)
    place[placed] = line
    groups = group([events.name[rows], place, _is_in_float64(trace, rows).astype(np.int64)])
    keys = [(events.strings[name], lines[number], in_float64) for name, number, in_float64 in groups.keys.tolist()]
    in_python = _autograd_functions({name for name, *_ in keys})
    nodes = _nodes(trace, rows[placed], track, ns[placed])
    work = []
    for name, line, in_float64 in keys:
        kind = _IN_PYTHON if name in in_python else _FLOAT64 if in_float64 else _kind(name)
        work.append((name, nodes.get(name, "") + (f" at {line}" if line else ""), kind))
    return {each: total / len(host) for each, total in zip(work, groups.sum(ns), strict=True)}


def _is_in_float64(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether ops have inputs in float64, and in no other float: a number beside a tensor is float64, too."""
    types, strings = trace.events.types[rows], trace.events.strings
    of_float64 = [
        text
        for text in sorted_unique(types[types >= 0]).tolist()
        if '"double"' in strings[text] and not _OTHER_FLOATS.search(strings[text])
    ]
    return np.isin(types, of_float64)


def _nodes(trace: Trace, rows: NDArray[np.int64], track: NDArray[np.int64], ns: NDArray[np.int64]) -> dict[str, str]:
    """Return ` of EmbeddingBackward0` by the name of each op that is nearly all of one node of the backward pass.

    `aten::fill_` alone does not tell what is filled; `aten::convolution_backward` does.
    """
    (outermost, _), strings = outermost_ops(trace, track, trace.events.ts[rows]), [*trace.events.strings, ""]
    groups, sums = group([trace.events.name[rows], outermost]), defaultdict[str, dict[str, int]](dict)
    for (op, node), total in zip(groups.keys.tolist(), groups.sum(ns), strict=True):
        sums[strings[op]][strings[node]] = total
    most = {op: max(by_node.items(), key=itemgetter(1)) for op, by_node in sums.items()}
    return {
        op: f" of {node.rpartition(': ')[2]}"
        for op, (node, most_ns) in most.items()
        if AUTOGRAD_NODE.match(node) and most_ns >= _OF_ONE_PLACE * sum(sums[op].values())
        if _NODE_END.sub("", node.rpartition(": ")[2]).lower() not in op.replace("_", "").lower()
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


def _float32_kind(trace: Trace, kernels: Set[str]) -> str:
    """Return the kind of products in float32 by what the device has for them; "" where that may be no Tensor Cores.

    Known peaks decide, as some devices multiply in TF32 no faster; else its compute capability, or kernels for it.
    """
    peaks = peaks_of(trace.device)
    if peaks is not None:
        has_tensor_cores = peaks.rate("float16") > peaks.rate("float32")
        has_tf32 = peaks.rate("tf32") > peaks.rate("float32")
    else:
        has_tf32 = trace.compute_major >= _FIRST_WITH_TF32 or any(_HAS_TF32.search(name) for name in kernels)
        has_tensor_cores = has_tf32 or any(_HAS_TENSOR_CORES.search(name) for name in kernels)
    if not has_tensor_cores:
        return ""
    return _FLOAT32 if has_tf32 else _FLOAT32_ONLY


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
