"""Phase of every instant of the main thread, and of every piece of device work.

The phases are those that the recording declares; else what the steps of an inference engine compute; else the
passes that annotations of a pipeline name (`attn(F)`, `PP:1F0`); else the outermost annotations of the main thread.
Where these did not launch most of the work, the rest has the phases of a training step (optimizer, data loader,
backward, and forward before it). Time in which a thread compiles is a phase of its own under every rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work, lacks_host_ops
from traceq.facts.events.kernels import COMMUNICATION_ROW
from traceq.facts.events.name_patterns import BACKWARD, READS_VALUE, matching, module_frames, rows_named
from traceq.facts.events.nesting import nest, tracks
from traceq.facts.memo import keep, once_per_trace
from traceq.facts.timeline.compilations import compilations, compiling
from traceq.facts.timeline.data_loading import LOADER, LOADER_RANGE, around_iterations
from traceq.facts.timeline.inference_marks import STEP_KINDS, inference_marks
from traceq.facts.timeline.steps import main_track, on_main_thread, steps
from traceq.frozen import frozen
from traceq.intervals import (
    Spans,
    ascending,
    contains,
    earliest_owner,
    empty,
    intersect,
    measure,
    measure_common,
    measure_within,
    sorted_unique,
    span_index,
    spans,
    union,
)
from traceq.model import Category, Trace

OTHER, BEFORE_WINDOW, UNATTRIBUTED = "other", "before_window", "unattributed"
COMPILING = "compiling"

_MOST = 0.8
"""Part of the time of the steps, or of the work launched in them, from which annotations say what they do."""
_NO_PHASE = re.compile(
    rf"^(nccl:|gloo:|hccl:|xccl:|Optimizer\.|{LOADER}|ProfilerStep"
    r"|DistributedDataParallel\.|FullyShardedDataParallel\.|FSDP::|## Call CompiledFxGraph)"
)
_STRUCTURE = ("optimizer", "zero_grad", "dataload", "backward", "forward")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#(?P<name>.*?)(\.step)?$")
_NAMED = {
    "optimizer": OPTIMIZER_STEP,
    "zero_grad": re.compile(r"^Optimizer\.zero_grad#"),
    "dataload": LOADER_RANGE,
}
_PASSES = ("forward", "backward", "weight_gradient", "forward_backward")
_PASS_OF = {"F": 0, "B": 1, "I": 1, "W": 2, "O": 3}
_PASS = re.compile(r"\((F|B|W)\)$|^PP:\d+(F|B|I|W)\d+$|^(F)orward \d+$|^(B)ackward \d+$|^PP:\(.*\)(O)VERLAP_F_B$")
"""Annotations of a micro-batch in a pipeline: forward, backward (`I`: for inputs), backward for weights, and both.

Those of torch.distributed.pipelining have the stage before the letter, and the micro-batch after it.
"""
_AUTOGRAD = re.compile(r"^autograd::engine")
_ROOT_GRADIENT = re.compile(r"^aten::ones_like$")
_CALL = re.compile(r"^<built-in method run_backward of ")
_REDUCED = re.compile(r"^(torch\.distributed\.ddp\.reducer::copy_bucket_to_grad|FSDP::root_post_backward_callback)$")
"""What DDP and FSDP do last in a pass, before `backward()` returns: gradients of the last layers are reduced."""


@frozen(eq=False)
class Timeline:
    """Phases of a thread over time: `parts` int64[M, 2] ns, sorted and disjoint; `label` int64[M] phase numbers."""

    parts: Spans
    label: NDArray[np.int64]

    def label_at(self, instants: NDArray[np.int64], default: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the phase number at each instant, `default` outside the parts."""
        index = span_index(self.parts, instants)
        return np.where(index >= 0, self.label[index] if len(self.label) else default, default)


_NO_PHASES = Timeline(empty(), np.empty(0, np.int64))


@frozen(eq=False)
class PhaseLabels:
    """Phases of all threads and of device work.

    `names` of P phases, the last three OTHER, BEFORE_WINDOW and UNATTRIBUTED; `rule` by which they were determined;
    `main` the main thread's timeline, `threads` those of the other threads by track; `work_phase` int64[D] phase number
    of each piece of device work.
    """

    names: tuple[str, ...]
    rule: str
    main: Timeline
    threads: Mapping[int, Timeline]
    work_phase: NDArray[np.int64]

    @property
    def other(self) -> int:
        """Phase number of OTHER."""
        return len(self.names) - 3

    @property
    def unattributed(self) -> int:
        """Phase number of UNATTRIBUTED."""
        return len(self.names) - 1

    @property
    def in_order(self) -> tuple[str, ...]:
        """Names in order of their first occurrence on the main thread; names that never occur there come last."""
        numbers, first = np.unique(self.main.label, return_index=True)
        occurring = (self.names[number] for number in numbers[np.argsort(first)].tolist())
        return tuple(dict.fromkeys((*occurring, *self.names)))

    def main_phase_at(self, instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the phase number of the main thread at each instant: int64[K]."""
        return self.main.label_at(instants, self.other)

    def phase_at(self, track: NDArray[np.int64], instants: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the phase number of host calls: int64[K], by the call's thread, else by the main thread."""
        return _phase_of_calls(self.main, self.threads, self.other, track, instants)


@once_per_trace
def phases(trace: Trace) -> PhaseLabels:
    """Return the phases by the first rule that applies.

    The rules are `recorded`, `inference`, `passes`, `annotations`, `mixed` and `structure`.
    """
    return _phases(trace, frozenset())


def annotated_phases(trace: Trace) -> frozenset[str]:
    """Return the names of the phases that are annotations of the job, and of no other rule."""
    labels = phases(trace)
    of_rules = () if labels.rule == "annotations" else _STRUCTURE if labels.rule == "mixed" else labels.names
    return frozenset(labels.names[: labels.other]).difference(of_rules)


def with_phases(trace: Trace, names: Collection[str]) -> Trace:
    """Return the trace with annotations around all of its steps as phases, where `names` has them."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION)
    annotated = frozenset(events.strings[name] for name in events.names_among(rows).tolist())
    lacked = annotated.intersection(names).difference(phases(trace).names)
    if not lacked or (labels := _phases(trace, lacked)).names == phases(trace).names:
        return trace
    trace = replace(trace)
    keep(phases, trace, labels)
    return trace


def _phases(trace: Trace, kept: frozenset[str]) -> PhaseLabels:
    """Return the phases; an annotation that is `kept` is one even if it is around all of the steps."""
    names, rule, rows = _names_and_rule(trace, kept)
    threads: dict[int, Timeline] = {}
    if rule == "inference":
        main = _timeline(trace, rows, _kind_of_text(trace))
    elif rule == "passes":
        main = _innermost_passes(trace, rows)
    else:
        main, threads = _annotation_timelines(trace, rows, names)
    if rule in ("mixed", "structure"):
        main, threads = _with_structure(trace, main, threads, np.array([names.index(name) for name in _STRUCTURE]))
    if len(compilations(trace)):
        names = tuple(dict.fromkeys((*names, COMPILING)))
        main, threads = _with_compiling(trace, main, threads, names.index(COMPILING))
    work = device_work(trace)
    launch_phase = _phase_of_calls(main, threads, len(names), tracks(trace)[work.call], trace.events.ts[work.call])
    unlinked = np.where(work.before_window, len(names) + 1, len(names) + 2)
    work_phase = np.where(work.linked, launch_phase, unlinked)
    return PhaseLabels((*names, OTHER, BEFORE_WINDOW, UNATTRIBUTED), rule, main, threads, work_phase)


def _phase_of_calls(
    main: Timeline,
    threads: Mapping[int, Timeline],
    other: int,
    track: NDArray[np.int64],
    instants: NDArray[np.int64],
) -> NDArray[np.int64]:
    label = main.label_at(instants, other)
    for number, timeline in threads.items():
        on_track = track == number
        label[on_track] = timeline.label_at(instants[on_track], label[on_track])
    return label


def _with_structure(
    trace: Trace, main: Timeline, threads: Mapping[int, Timeline], numbers: NDArray[np.int64]
) -> tuple[Timeline, dict[int, Timeline]]:
    """Return the timelines (main thread's, the others') of annotations, beneath them those of a training step.

    Annotations of the main thread come before what another thread, such as that of autograd, is known to run.
    """
    beneath, of_threads = _structure_timelines(trace)
    result = dict(threads)
    for track, line in of_threads.items():
        inferred = _overlaid(Timeline(line.parts, numbers[line.label]), main)
        result[track] = _overlaid(inferred, threads.get(track, _NO_PHASES))
    return _overlaid(Timeline(beneath.parts, numbers[beneath.label]), main), result


def _with_compiling(
    trace: Trace, main: Timeline, threads: Mapping[int, Timeline], number: int
) -> tuple[Timeline, dict[int, Timeline]]:
    """Return the timelines (main thread's, the others') with the phase number of compiling where a thread compiles."""
    times = compilations(trace)
    result = dict(threads)
    for track in sorted_unique(times.track[times.track != main_track(trace)]).tolist():
        of_track = spans(times.start[times.track == track], times.end[times.track == track])
        result[track] = _overlaid(threads.get(track, _NO_PHASES), _uniform(of_track, number))
    return _overlaid(main, _uniform(compiling(trace), number)), result


def _uniform(parts: Spans, number: int) -> Timeline:
    return Timeline(parts, np.full(len(parts), number))


def _overlaid(beneath: Timeline, above: Timeline) -> Timeline:
    """Return the timeline `beneath` with the phases of the one `above` wherever that has any."""
    edges = sorted_unique(beneath.parts.ravel(), above.parts.ravel())
    label = above.label_at(edges[:-1], beneath.label_at(edges[:-1], -1))
    return Timeline(np.column_stack([edges[:-1], edges[1:]])[label >= 0], label[label >= 0])


def _names_and_rule(trace: Trace, kept: frozenset[str]) -> tuple[tuple[str, ...], str, NDArray[np.int64]]:
    """Return (names, rule, annotations that carry the names)."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION)
    if trace.manifest is not None and trace.manifest.phases:
        return trace.manifest.phases, "recorded", rows[matching(events, rows, _any_of(trace.manifest.phases))]
    marks = inference_marks(trace)
    if marks.classified and _are_most(trace, marks.rows):
        return STEP_KINDS, "inference", marks.rows
    rows = rows[~matching(events, rows, _NO_PHASE)]
    on_main = on_main_thread(trace, rows)
    passes = on_main[matching(events, on_main, _PASS)]
    if len({_pass_of(trace, row) for row in passes.tolist()}) > 1 and _are_most(trace, passes):
        return _PASSES, "passes", passes
    outer = _outermost(trace, on_main)
    while len(alone := _names_in_order(trace, outer)) == 1 and not kept.intersection(alone) and _are_most(trace, outer):
        # it tells no more than the step
        on_main = on_main[events.name[on_main] != events.name[outer[0]]]
        outer = _outermost(trace, on_main)
    names = _names_in_order(trace, outer)
    rows = rows[matching(events, rows, _any_of(names))] if names else rows[:0]
    if names and _are_most(trace, outer):
        return names, "annotations", rows
    return tuple(dict.fromkeys((*names, *_STRUCTURE))), "mixed" if names else "structure", rows


def _pass_of(trace: Trace, row: int) -> int:
    match = _PASS.search(trace.events.text(row))
    return _PASS_OF[next(filter(None, match.groups()))] if match else -1


def _innermost_passes(trace: Trace, rows: NDArray[np.int64]) -> Timeline:
    """Return the timeline of the innermost annotations, whatever is around them (`1F1B`)."""
    marks = nest(trace.events, rows)
    edges = sorted_unique(marks.start, marks.end)
    innermost = marks.innermost_at(edges[:-1])
    number = np.array([_pass_of(trace, row) for row in marks.rows.tolist()], np.int64)
    parts = np.column_stack([edges[:-1], edges[1:]])
    return Timeline(parts[innermost >= 0], number[innermost[innermost >= 0]])


def _kind_of_text(trace: Trace) -> dict[str, int]:
    marks = inference_marks(trace)
    return {trace.events.text(row): kind for row, kind in zip(marks.rows.tolist(), marks.kind.tolist(), strict=True)}


def _any_of(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile("^(" + "|".join(map(re.escape, names)) + ")$")


def _outermost(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of one thread that are inside no other of them, sorted by start."""
    rows = rows[np.lexsort((rows, -trace.events.end[rows], trace.events.ts[rows]))]
    end = trace.events.end[rows]
    latest_end = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, end])[:-1]
    return np.asarray(rows[end > latest_end])


def _names_in_order(trace: Trace, rows: NDArray[np.int64]) -> tuple[str, ...]:
    names, first = np.unique(trace.events.name[rows], return_index=True)
    return tuple(trace.events.strings[name] for name in names[np.argsort(first)].tolist())


def _are_most(trace: Trace, rows: NDArray[np.int64]) -> bool:
    """Return whether annotations take most time of the steps, or most of their work is launched meanwhile."""
    host, work = steps(trace).host, device_work(trace)
    stepped, annotated = spans(*host.T), spans(trace.events.ts[rows], trace.events.end[rows])
    launched = trace.events.ts[work.call[work.linked]]
    launched = launched[contains(stepped, launched)]
    launches_most = len(launched) and contains(annotated, launched).mean() >= _MOST
    return bool(launches_most) or measure_common(annotated, stepped) >= _MOST * measure(stepped)


def _annotation_timelines(
    trace: Trace, rows: NDArray[np.int64], names: Sequence[str]
) -> tuple[Timeline, dict[int, Timeline]]:
    """Return the timelines of the threads that carry annotations named like phases: (main thread's, the others')."""
    number = {name: index for index, name in enumerate(names)}
    row_track = tracks(trace)[rows]
    timelines = {int(track): _timeline(trace, rows[row_track == track], number) for track in sorted_unique(row_track)}
    main = timelines.pop(main_track(trace), _NO_PHASES)
    return main, timelines


def _timeline(trace: Trace, rows: NDArray[np.int64], number: dict[str, int]) -> Timeline:
    rows = _outermost(trace, rows)
    parts, owners = earliest_owner(trace.events.ts[rows], trace.events.end[rows])
    label = [number[trace.events.text(row)] for row in rows[owners].tolist()]
    return Timeline(parts, np.array(label, np.int64))


def _structure_timelines(trace: Trace) -> tuple[Timeline, dict[int, Timeline]]:
    """Return timelines by marks of optimizers, data loaders and autograd: (main thread's, the others')."""
    events, row_track, main = trace.events, tracks(trace), main_track(trace)
    rows = events.rows(Category.ANNOTATION, Category.CPU_OP)
    by_phase = {phase: rows[matching(events, rows, pattern)] for phase, pattern in _NAMED.items()}
    marks = [*by_phase.values()]
    backward_threads = _backward_threads(trace)
    ops = events.rows(Category.CPU_OP)
    engine = rows[matching(events, rows, _AUTOGRAD)]
    in_backward = np.r_[engine[row_track[engine] == main], ops[np.isin(row_track[ops], backward_threads)]]
    is_other = row_track == main
    is_other[in_backward] = False
    on_main = rows[is_other[rows]]
    begun = ascending(events.ts[on_main])
    passes = _with_root_gradients(trace, spans(events.ts[in_backward], events.end[in_backward]), begun)
    backward = _with_ends(trace, _without_idle_gaps(union(passes, _backward_calls(trace)), begun), begun)
    main_marks = _layers(trace, marks, main)
    loading = _STRUCTURE.index("dataload")
    main_marks[loading] = union(main_marks[loading], around_iterations(trace))
    forward = empty() if lacks_host_ops(trace) else _forward(trace, backward, main_marks)
    main_layers = [*main_marks, backward, forward]
    always = np.array([[np.iinfo(np.int64).min, np.iinfo(np.int64).max]])
    threads: dict[int, Timeline] = {}
    for track in sorted_unique(row_track[np.concatenate(marks)], np.array(backward_threads, np.int64)).tolist():
        if track != main:
            layers = _layers(trace, marks, track)
            threads[track] = _first_layer([*layers, always if track in backward_threads else empty()])
    return _first_layer(main_layers), threads


def _with_root_gradients(trace: Trace, passes: Spans, begun: NDArray[np.int64]) -> Spans:
    """Return the backward passes from their first gradient on, of ones like the loss, which the caller's thread makes.

    `begun` int64[M]: starts of ops and annotations of the main thread that are of no pass, ascending.
    """
    events = trace.events
    roots = on_main_thread(trace, rows_named(events, _ROOT_GRADIENT, Category.CPU_OP))
    pass_of = np.searchsorted(passes[:, 0], events.end[roots])
    follows = pass_of < len(passes)
    roots, since = roots[follows], passes[pass_of[follows], 0]
    is_last = np.searchsorted(begun, events.end[roots]) == np.searchsorted(begun, since)
    return union(passes, spans(events.ts[roots[is_last]], since[is_last]))


def _without_idle_gaps(backward: Spans, begun: NDArray[np.int64]) -> Spans:
    """Return the backward passes: with the gaps in which the main thread, which waits for them, begins nothing.

    `begun` int64[M]: starts of its other ops and annotations, ascending.
    """
    start, end = backward[:-1, 1], backward[1:, 0]
    is_idle = np.searchsorted(begun, start) == np.searchsorted(begun, end)
    return spans(np.r_[backward[:, 0], start[is_idle]], np.r_[backward[:, 1], end[is_idle]])


def _forward(trace: Trace, backward: Spans, marks: Sequence[Spans]) -> Spans:
    """Return the time in the steps that a backward pass follows, before an update or the step's end.

    Of a step without any it is the time in modules, without recorded ones all of it. What follows the last pass
    (clipping, reductions, logging) is no forward; where steps are not marked, the end of the trace may be within the
    next one, until the last op that begins there. `marks`: the phases that are marked, updates first.
    """
    all_steps = steps(trace)
    host, updates = all_steps.host, marks[0]
    points = np.concatenate([backward[:, 0], updates[:, 0], host[:, 1]])
    order = np.argsort(points, kind="stable")
    since = np.r_[host[:1, 0], points[order][:-1]]
    num_before = np.searchsorted(backward[:, 0], host)
    is_alone = num_before[:, 0] == num_before[:, 1]
    is_pass = order < len(backward)
    forward = spans(since[is_pass], points[order][is_pass])
    if not all_steps.marked and not is_alone.any():
        forward = union(forward, _next_forward(trace, int(since[-1]), [backward, *marks]))
    return union(intersect(forward, spans(*host.T)), _in_modules(trace, host[is_alone]))


def _next_forward(trace: Trace, since_ns: int, layers: Sequence[Spans]) -> Spans:
    """Return the time from an instant until the end of the main thread's last op that begins then in no other phase.

    A loop reads values, such as its loss, after an update, too: that is no forward.
    """
    events, ops = trace.events, trace.events.rows(Category.CPU_OP)
    ops = ops[(tracks(trace)[ops] == main_track(trace)) & (events.ts[ops] >= since_ns)]
    reads = ops[matching(events, ops, READS_VALUE)]
    ops = ops[~contains(spans(events.ts[reads], events.end[reads]), events.ts[ops])]
    others = ops[~np.logical_or.reduce([contains(layer, events.ts[ops]) for layer in layers])]
    return spans(np.full(len(others), since_ns), events.end[others])


def _in_modules(trace: Trace, host: Spans) -> Spans:
    """Return the time of some steps in which the main thread is in a module; all of a step in which none is recorded.

    What a step does before, between and after (preparing its input, sampling) is no forward.
    """
    rows = on_main_thread(trace, module_frames(trace))
    called = intersect(spans(trace.events.ts[rows], trace.events.end[rows]), spans(*host.T))
    has_none = measure_within(called, *host.T) == 0
    return union(called, spans(*host[has_none].T))


def _layers(trace: Trace, marks: list[NDArray[np.int64]], track: int) -> list[Spans]:
    events = trace.events
    optimizer, *on_track = [rows[tracks(trace)[rows] == track] for rows in marks]
    updates = spans(update_starts(trace, optimizer), events.end[optimizer])
    return [updates, *(spans(events.ts[rows], events.end[rows]) for rows in on_track)]


def _first_layer(layers: list[Spans]) -> Timeline:
    """Return the timeline that labels each instant with the number of the first layer that covers it."""
    edges = sorted_unique(*(layer.ravel() for layer in layers))
    if len(edges) == 0:
        return _NO_PHASES
    label = np.full(len(edges) - 1, -1)
    for number, layer in reversed(list(enumerate(layers))):
        label[contains(layer, edges[:-1])] = number
    parts = np.column_stack([edges[:-1], edges[1:]])
    return Timeline(parts[label >= 0], label[label >= 0])


def _backward_threads(trace: Trace) -> list[int]:
    """Return the tracks other than the main one that run backward ops."""
    events = trace.events
    ops = events.rows(Category.CPU_OP)
    marks = ops[matching(events, ops, BACKWARD) | (events.forward_thread[ops] > 0)]
    marks = np.r_[marks, rows_named(events, _AUTOGRAD, Category.ANNOTATION)]
    return [track for track in sorted_unique(tracks(trace)[marks]).tolist() if track != main_track(trace)]


def _backward_calls(trace: Trace) -> Spans:
    """Return when the main thread runs backward passes, where Python's frames are recorded."""
    rows = on_main_thread(trace, rows_named(trace.events, _CALL, Category.PYTHON))
    return spans(trace.events.ts[rows], trace.events.end[rows])


def _with_ends(trace: Trace, passes: Spans, begun: NDArray[np.int64]) -> Spans:
    """Return the backward passes with their ends: while a collective that began in one runs, and the main thread waits.

    `begun` int64[M]: starts of all else that the main thread does, ascending. DDP ends the pass with copies of the
    gradients, where these are no views of its buckets, and FSDP with a callback.
    """
    if not len(passes):
        return passes
    events, never = trace.events, np.iinfo(np.int64).max
    marks = events.rows(Category.ANNOTATION, Category.CPU_OP)
    comm = marks[matching(events, marks, COMMUNICATION_ROW)]
    comm = comm[tracks(trace)[comm] != main_track(trace)]
    goes_on = np.r_[begun, never][np.searchsorted(begun, passes[:, 1])]
    index = np.searchsorted(passes[:, 0], events.ts[comm], "right") - 1
    is_of_pass = (index >= 0) & (events.ts[comm] < goes_on[index])
    end = passes[:, 1].copy()
    np.maximum.at(end, index[is_of_pass], np.minimum(events.end[comm], goes_on[index])[is_of_pass])
    passes = spans(passes[:, 0], end)
    copies = on_main_thread(trace, marks[matching(events, marks, _REDUCED)])
    index = np.searchsorted(passes[:, 1], events.ts[copies], "right") - 1
    annotated = ascending(events.ts[on_main_thread(trace, events.rows(Category.ANNOTATION))])
    since = passes[index, 1]
    follows = (index >= 0) & (np.searchsorted(annotated, since) == np.searchsorted(annotated, events.ts[copies]))
    return union(passes, spans(since[follows], events.end[copies[follows]]))


def other_annotations(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the annotations that are neither steps nor phases: int64[N]."""
    rows = trace.events.rows(Category.ANNOTATION)
    steps_and_phases = re.compile("^(ProfilerStep#.*|" + "|".join(map(re.escape, phases(trace).names)) + ")$")
    return rows[~matching(trace.events, rows, steps_and_phases)]


def optimizer_steps(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of Events of the ranges of optimizers' steps: int64[N]."""
    return rows_named(trace.events, OPTIMIZER_STEP, Category.ANNOTATION, Category.CPU_OP)


def update_starts(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[N] ns: when the update begins in each range of an optimizer's step.

    A trainer may pass forward and backward as a closure (Lightning does); then it is the end of the last backward op
    that begins inside the range, on any thread.
    """
    start, end = trace.events.ts[rows], trace.events.end[rows]
    began, latest_end = _backward_ops(trace)
    last = np.searchsorted(began, end) - 1
    has_backward = (last >= 0) & (last >= np.searchsorted(began, start))
    return np.where(has_backward, np.minimum(latest_end[last] if len(began) else start, end), start)


@once_per_trace
def _backward_ops(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (starts of the autograd engine's ops, ascending; the latest end up to each), ns."""
    rows = trace.events.by_start(rows_named(trace.events, _AUTOGRAD, Category.ANNOTATION, Category.CPU_OP))
    return trace.events.ts[rows], np.maximum.accumulate(trace.events.end[rows])
