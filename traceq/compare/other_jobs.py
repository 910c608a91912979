"""Whether two sides are different jobs: one trains and the other does not, or they run models of different layers.

Or one only decodes, and the other never does. No single change of a program does that. What compiles, captures, fuses
or replaces ops changes their numbers, too, and has something in their place; recomputation and evaluation repeat the
forward pass alone, frozen layers leave out parts of the backward pass alone: neither is another job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from traceq.compare.input_shapes import weight_difference
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.kernels import runs_compiled
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.self_time import VIEW
from traceq.facts.timeline.inference_marks import STEP_KINDS
from traceq.facts.timeline.inference_steps import inference_steps
from traceq.facts.timeline.steps import forward_calls_per_step, op_calls_per_step
from traceq.model import Category, Trace
from traceq.units import Unit, format_value

_KINDS = {
    "convolution": ("aten::convolution",),
    "product": ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::_grouped_mm", "aten::_scaled_mm"),
    "norm": ("aten::batch_norm", "aten::layer_norm", "aten::group_norm", "aten::instance_norm", "aten::rms_norm"),
    "attention": ("aten::scaled_dot_product_attention",),
}
"""Heavy ops of the layers of a model, by kind."""
_NODES = {
    "convolution": re.compile(r"Convolution\w{0,80}Backward"),
    "product": re.compile(r"(Linear|Add[bm]?mm|Ba?ddbmm|[MB]m{1,2}|GroupedMm)Backward", re.IGNORECASE),
    "norm": re.compile(r"(Batch|Layer|Group|Instance|RMS)_?Norm\w{0,80}Backward", re.IGNORECASE),
    "attention": re.compile(r"Attention\w{0,80}Backward"),
}
"""Nodes of autograd that are the backward pass of each kind."""
_HEAVY = tuple(op for ops in _KINDS.values() for op in ops)
_ENGINE, _NODE = "autograd::engine::evaluate_function: ", re.compile(r"^\w+Backward\d*$")
_TRAINS = re.compile(r"^Optimizer\.step#|backward|\bbwd", re.IGNORECASE)
"""Names of what only a job that trains does, whether or not the ops of its backward pass were recorded."""
_MESSAGE = re.compile(r"(c10d|nccl|gloo)::?(send|recv)", re.IGNORECASE)

_APART, _SAME, _FEWEST_KINDS = 1.1, 0.01, 2
"""Ratio of the numbers of a kind of op from which they differ, by how little several ratios differ, and kinds that
change in one direction."""
_REPLACES = 0.25
"""Part of the ops that a side lacks that one of its own op, which the other never calls, is called as often as."""
_MOST_NAMED = 2

_DECODE, _UNKNOWN = STEP_KINDS[1], STEP_KINDS[3]

_Counts = Mapping[str, float]
"""Calls per counted step, by name."""


def job_difference(a: Trace, b: Trace) -> str:
    """Return `layers: 36 aten::convolution against 52, and 36 aten::batch_norm against 52`, or what trains; else "".

    `backward pass: 88 nodes of autograd against none` if one side alone trains; where shapes are recorded, and no
    weight has the same, that. Of inference engines `steps: 2 prefill against 40 decode`, if one side only decodes and
    the other never does.
    """
    if of_steps := _other_steps(a, b):
        return of_steps
    ours, theirs = op_calls_per_step(a), op_calls_per_step(b)
    if not (_by_kind(ours) and _by_kind(theirs)):
        return ""
    if bool(_nodes(ours)) != bool(_nodes(theirs)):
        other = b if _nodes(ours) else a
        words = f"backward pass: {_number_of_nodes(ours)} against {_number_of_nodes(theirs)}"
        return "" if _may_train(other) or _is_generated(other) else words
    if _sends(ours) != _sends(theirs):  # stages of a pipeline hold part of the layers
        return ""
    if not (_is_generated(a) or _is_generated(b)) and (of_weights := weight_difference(a, b)):
        return of_weights
    if _is_multiple(ours, theirs) or _has_other_passes(a, b):
        return ""
    b_has_more, kinds = _kinds_apart(ours, theirs)
    fewer, more = (ours, theirs) if b_has_more else (theirs, ours)
    if len(kinds) < _FEWEST_KINDS or _is_replaced(a if b_has_more else b, fewer, more, kinds):
        return ""
    nums = [(op, ours.get(op, 0.0), theirs.get(op, 0.0)) for kind in kinds for op in _KINDS[kind]]
    nums.sort(key=lambda each: -abs(each[2] - each[1]))
    texts = [
        f"{_number(num_a)} {op} against {_number(num_b)}" for op, num_a, num_b in nums[:_MOST_NAMED] if num_a != num_b
    ]
    return f"layers: {', and '.join(texts)}"


def _other_steps(a: Trace, b: Trace) -> str:
    """Return the steps of two inference engines if one of them only decodes, and the other never does; else ""."""
    sides = [inference_steps(trace) for trace in (a, b)]
    kinds = [Counter(STEP_KINDS[kind] for kind in side.kind[side.counted].tolist()) for side in sides]
    (decoding, *others) = sorted(map(set, kinds), key=lambda names: names != {_DECODE})
    if decoding != {_DECODE} or not others[0] or others[0] & {_DECODE, _UNKNOWN}:
        return ""
    ours, theirs = (", ".join(f"{num:,} {kind}" for kind, num in side.most_common()) for side in kinds)
    return f"steps: {ours} against {theirs}"


def _is_multiple(a: _Counts, b: _Counts) -> bool:
    """Return whether all heavy ops run as many times as often: one side accumulates gradients, or has more passes."""
    of_a, of_b = (dict(_nodes_by_kind(each)) | {op: each.get(op, 0.0) for op in _HEAVY} for each in (a, b))
    ratios = [of_b.get(name, 0.0) / num if num else np.inf for name, num in of_a.items() if num or of_b.get(name)]
    return bool(ratios) and of_a.keys() == of_b.keys() and max(ratios) <= (1 + _SAME) * min(ratios)


def _has_other_passes(a: Trace, b: Trace) -> bool:
    """Return whether all heavy ops of forward passes run as many times as often: the same layers, with other passes.

    As with more steps of an inner loop, or without its second derivatives, which run the same ops in backward.
    """
    of_a, of_b = (forward_calls_per_step(trace) for trace in (a, b))
    names = [op for op in _HEAVY if of_a.get(op) or of_b.get(op)]
    ratios = [of_b.get(op, 0.0) / of_a[op] if of_a.get(op) else np.inf for op in names]
    return len(ratios) > 1 and max(ratios) <= (1 + _SAME) * min(ratios)


def _kinds_apart(a: _Counts, b: _Counts) -> tuple[bool, list[str]]:
    """Return (whether it is B that has more, the kinds of which it does), not only of kinds that the other lacks.

    Of sides that train it has more of them forward and backward.
    """
    of_ops, of_nodes = (_by_kind(a), _by_kind(b)), (_nodes_by_kind(a), _nodes_by_kind(b))
    apart = {
        b_has_more: [
            kind
            for kind in _KINDS
            if _is_more(of_ops, kind, b_has_more) and (not any(of_nodes) or _is_more(of_nodes, kind, b_has_more))
        ]
        for b_has_more in (False, True)
    }
    b_has_more = max(apart, key=lambda side: len(apart[side]))
    kinds = apart[b_has_more]
    return b_has_more, kinds if any(kind in of_ops[0] and kind in of_ops[1] for kind in kinds) else []


def _is_more(sides: tuple[_Counts, _Counts], kind: str, b_has_more: bool) -> bool:
    """Return whether B, or A, has more of a kind."""
    less, more = (side.get(kind, 0.0) for side in (sides if b_has_more else reversed(sides)))
    return more > _APART * less


def _is_replaced(trace: Trace, fewer: _Counts, more: _Counts, kinds: list[str]) -> bool:
    """Return whether something takes the place of what a trace has `fewer` of: compiled code, a graph, another op."""
    ours, theirs = _by_kind(fewer), _by_kind(more)
    missing = min(theirs[kind] - ours.get(kind, 0.0) for kind in kinds)
    num_instead = max((num for name, num in fewer.items() if name not in more and not VIEW.match(name)), default=0.0)
    return num_instead >= _REPLACES * missing or _is_generated(trace)


def _may_train(trace: Trace) -> bool:
    """Return whether anything but ops tells of a backward pass or an update, which a trace may lack the ops of."""
    events = trace.events
    return bool(matching(events, events.rows(Category.CPU_OP, Category.ANNOTATION, Category.PYTHON), _TRAINS).any())


def _is_generated(trace: Trace) -> bool:
    """Return whether work of a trace runs without its ops: compiled, or in a graph."""
    return runs_compiled(trace) or bool(graph_replays(trace).replayed.any())


def _by_kind(counts: _Counts) -> dict[str, float]:
    """Return the calls of the heavy ops of each kind that is called."""
    sums = {kind: sum(counts.get(op, 0.0) for op in ops) for kind, ops in _KINDS.items()}
    return {kind: num for kind, num in sums.items() if num}


def _nodes_by_kind(counts: _Counts) -> dict[str, float]:
    nodes = _nodes(counts)
    sums = {kind: sum(num for name, num in nodes.items() if of.search(name)) for kind, of in _NODES.items()}
    return {kind: num for kind, num in sums.items() if num}


def _nodes(counts: _Counts) -> dict[str, float]:
    """Return the calls of autograd's nodes, by the engine where its calls are recorded."""
    of_engine = {name: num for name, num in counts.items() if name.startswith(_ENGINE)}
    return of_engine or {name: num for name, num in counts.items() if _NODE.match(name)}


def _sends(counts: _Counts) -> bool:
    return any(_MESSAGE.match(name) for name in counts)


def _number_of_nodes(counts: _Counts) -> str:
    num = sum(_nodes(counts).values())
    return f"{_number(num)} nodes of autograd" if num else "none"


def _number(num: float) -> str:
    return format_value(num, Unit.MEAN)
