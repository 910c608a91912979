"""Role of each collective: gradient reduction, parameter gather, activation exchange, metric and so on.

The role follows from the events around it on the issuing thread: annotations of DDP, FSDP, optimizers and the autograd
engine, other ops; without any of these from its size and its position between backward and optimizer. Streams and
kernels are not used.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, Calls, collective_calls
from traceq.facts.events.name_patterns import BACKWARD
from traceq.facts.events.nesting import Surroundings, surroundings
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.phases import OPTIMIZER_STEP, phases
from traceq.facts.timeline.steps import steps
from traceq.model import Trace

ROLES = (
    "gradient_reduction",
    "parameter_gather_forward",
    "parameter_gather_backward",
    "parameter_gather_step",
    "buffer_broadcast",
    "unused_map",
    "clip_norm",
    "metric",
    "activation_exchange",
    "index_exchange",
    "batch_statistics",
    "state_broadcast",
    "unknown",
    "token_count",
    "optimizer_state",
    "join_check",
)
"""Names of the roles, in the order of `Role`."""


class Role:
    """Indices into ROLES."""

    GRADIENT = ROLES.index("gradient_reduction")
    GATHER_FORWARD = ROLES.index("parameter_gather_forward")
    GATHER_BACKWARD = ROLES.index("parameter_gather_backward")
    GATHER_STEP = ROLES.index("parameter_gather_step")
    BUFFERS = ROLES.index("buffer_broadcast")
    UNUSED_MAP = ROLES.index("unused_map")
    CLIP_NORM = ROLES.index("clip_norm")
    METRIC = ROLES.index("metric")
    ACTIVATIONS = ROLES.index("activation_exchange")
    INDICES = ROLES.index("index_exchange")
    STATISTICS = ROLES.index("batch_statistics")
    STATE = ROLES.index("state_broadcast")
    UNKNOWN = ROLES.index("unknown")
    TOKENS = ROLES.index("token_count")
    OPTIMIZER = ROLES.index("optimizer_state")
    JOIN = ROLES.index("join_check")


_MAX_FEW_ELEMENTS = 16
_MAX_SMALL_BYTES = 4096
_LEAST_OF_REDUCED = 1 / 8
"""Part of the bytes of gradients that gathered weights have at least: they may have a quarter of the precision."""
_MAX_NORMS = 2**16
"""Limit on the elements of a norm reduction: one norm per parameter."""

_ACCUMULATE_GRAD = re.compile(r"AccumulateGrad")
_FSDP_REDUCES = re.compile(r"^FSDP::(root_)?post_backward|^FullyShardedDataParallel\._post_backward")
_GATHERS_BACKWARD = re.compile(
    r"^FSDP::(pre_backward|backward_prefetch)|^FullyShardedDataParallel\._pre_backward|PreBackwardFunction"
)
_GATHERS_FORWARD = re.compile(
    r"^FSDP::(pre_forward|all_gather)|^FullyShardedDataParallel\._pre_forward|\.py\(\d+\): fetch_sub_module$"
)
_PARTITIONS = re.compile(r"PreBackwardFunction")
"""Autograd node that DeepSpeed adds to each module with partitioned parameters."""
_COMPILED_BACKWARD = re.compile(r"^CompiledFunctionBackward$")
_BACKWARD_PHASE = re.compile(r"backward", re.IGNORECASE)
_DDP_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
_CLIPS = re.compile(r"clip_grad_norm|^FSDP::clip")
_NORMALIZES = re.compile(r"^SyncBatchNorm(Backward[0-9]*)?$")
_MEASURES = re.compile(r"^(?!.*\.py\().*(metric|accuracy)|^(?>.*?\.py\(\d+\): ).*(metric|accuracy)", re.IGNORECASE)
_COUNTS_TOKENS = re.compile(r"\.py\(\d+\): (_?get_batch_samples|_get_num_items_in_batch)$")
_COMPUTES = re.compile(r"^aten::(linear|addmm|mm|bmm|matmul|conv\w*|embedding|layer_norm|rms_norm|_?scaled_dot\w+)$")
"""Ops of which every forward pass has some."""
_NORM = re.compile(r"^aten::(linalg_vector_norm|linalg_norm|norm|_foreach_norm)$")
_DISTRIBUTES_INPUT = re.compile(r"kjt|sparse_data_dist|SparseFeatures", re.IGNORECASE)
_TRANSPARENT = re.compile(
    r"^(aten::|c10d::|record_param_comms$|profiler::|autograd::|nccl:|gloo:|hccl:|xccl:"
    rf"|ProfilerStep|Optimizer\.|DistributedDataParallel\.|{LOADER}|Torch-Compiled Region)"
)
_INTEGERS = re.compile(r"^(u?int|bool)")
_BYTES = re.compile(r"^u?int8$")
"""Dtypes of quantised values, and of values seen as bytes: too small for indices."""


@once_per_trace
def collective_roles(trace: Trace) -> NDArray[np.int64]:
    """Return int64[C]: the role of each of the trace's calls, into ROLES, by the first rule that applies."""
    calls = collective_calls(trace)
    role = np.full(len(calls), Role.UNKNOWN)
    if len(calls):
        around = surroundings(trace, calls.issued)
        for number, applies in reversed([*_by_marks(trace, calls, around), *_by_position(trace, calls, around)]):
            role[applies] = number
    return role


@once_per_trace
def issued_in_backward(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[C]: issued inside the autograd engine, or in a phase named backward."""
    calls = collective_calls(trace)
    return surroundings(trace, calls.issued).within(BACKWARD) | _in_backward_phase(trace, calls)


RoleRule = tuple[int, NDArray[np.bool_]]
"""(role, bool[C]: the calls to which the rule applies)."""


def _by_marks(trace: Trace, calls: Calls, around: Surroundings) -> list[RoleRule]:
    """Return the rules by annotations of frameworks and of the autograd engine, strongest first."""
    reduces, summed = _is(calls, "all_reduce", "reduce_scatter", "reduce"), _is(calls, "all_reduce", "reduce")
    gathers, broadcasts = _is(calls, "all_gather"), _is(calls, "broadcast")
    exchanges = _is(calls, "all_to_all", "send", "recv", "send_recv")
    integers, few = _is_of_dtype(trace, calls, _INTEGERS), _holds_few(calls)
    indices = integers & ~_is_of_dtype(trace, calls, _BYTES)
    accumulates, optimizer = around.within(_ACCUMULATE_GRAD), around.within(OPTIMIZER_STEP)
    in_an_op = around.within(BACKWARD) | around.within_other_op(_TRANSPARENT)
    outside_ops, updated = gathers & ~in_an_op & ~integers, _after_update(trace, around)
    after_update = outside_ops & ~few & updated & ~_computed_since_update(around)
    partitioned = outside_ops & bool(len(around.named(_PARTITIONS)))
    several = calls.elements > trace.world_size  # fewer: one value per rank
    one_number = gathers & integers & ~in_an_op & ~several
    return [
        (Role.GRADIENT, reduces & around.within(_FSDP_REDUCES)),
        (Role.GATHER_BACKWARD, gathers & around.within(_GATHERS_BACKWARD)),
        (Role.GATHER_FORWARD, gathers & around.within(_GATHERS_FORWARD)),
        (Role.BUFFERS, broadcasts & around.within(_DDP_FORWARD)),
        (Role.JOIN, summed & (calls.elements == 1) & _begins_forward_of_ddp(around)),
        (Role.UNUSED_MAP, summed & accumulates & integers),
        (Role.GRADIENT, reduces & accumulates),
        (Role.CLIP_NORM, summed & (around.within(_CLIPS) | (few & optimizer))),
        (Role.CLIP_NORM, summed & _follows_norms(around) & (calls.elements >= 0) & (calls.elements <= _MAX_NORMS)),
        (Role.GRADIENT, reduces & optimizer),
        (Role.OPTIMIZER, gathers & optimizer & integers & ~one_number),
        (Role.GATHER_STEP, (gathers | broadcasts) & optimizer),
        (Role.STATISTICS, around.within(_NORMALIZES)),
        (Role.INDICES, exchanges & (indices | around.within(_DISTRIBUTES_INPUT)) | (gathers & indices & in_an_op)),
        (Role.METRIC, ~exchanges & around.within(_MEASURES)),
        (Role.TOKENS, one_number & (around.within(_COUNTS_TOKENS) | ~_computed_since_update(around))),
        (Role.GATHER_STEP, _of_weights(calls, after_update, reduces & (accumulates | ~in_an_op))),
        (Role.GATHER_STEP, partitioned & ~few & updated),
        (Role.GATHER_FORWARD, partitioned & (~few | (several & ~updated))),
        (Role.GRADIENT, reduces & around.within(_COMPILED_BACKWARD) & _none_in_forward(around, reduces | gathers)),
        (Role.ACTIVATIONS, exchanges | (~broadcasts & in_an_op)),
    ]


def _by_position(trace: Trace, calls: Calls, around: Surroundings) -> list[RoleRule]:
    """Return the rules for calls without annotations: by size and by position between backward and optimizer."""
    reduces, broadcasts = _is(calls, "all_reduce", "reduce_scatter", "reduce"), _is(calls, "broadcast")
    is_small, ends_step = (calls.size >= 0) & (calls.size <= _MAX_SMALL_BYTES), _ends_step(trace, around)
    return [
        (Role.GRADIENT, reduces & ~_holds_few(calls) & (_after_backward(around) | _in_backward_phase(trace, calls))),
        (Role.METRIC, ~broadcasts & (_holds_few(calls) | is_small)),
        (Role.GRADIENT, reduces & ends_step),
        (Role.GATHER_STEP, _is(calls, "all_gather") & ends_step & _follows(around, reduces & ends_step)),
        (Role.STATE, broadcasts),
        (Role.ACTIVATIONS, _is(calls, "all_reduce", "all_gather", "reduce_scatter") & (calls.elements >= 0)),
    ]


def _of_weights(calls: Calls, gathers: NDArray[np.bool_], of_gradients: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return some gathers if, by their bytes, they may be of the weights whose gradients others reduce; else none."""
    gathered, reduced = calls.size[gathers], calls.size[of_gradients]
    is_known = bool((gathered >= 0).all() and (reduced >= 0).all())
    return gathers & (not is_known or bool(gathered.sum() >= _LEAST_OF_REDUCED * reduced.sum()))


def _none_in_forward(around: Surroundings, chosen: NDArray[np.bool_]) -> bool:
    """Return whether no op of forward issues any of some calls: what only backward reduces are gradients."""
    return not (chosen & around.within_other_op(_TRANSPARENT) & ~around.within(BACKWARD)).any()


def _is(calls: Calls, *names: str) -> NDArray[np.bool_]:
    return np.isin(calls.name, [COLLECTIVE_NAMES.index(name) for name in names])


def _in_backward_phase(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    return np.array([bool(_BACKWARD_PHASE.search(name)) for name in phases(trace).names])[calls.phase]


def _holds_few(calls: Calls) -> NDArray[np.bool_]:
    return (calls.elements >= 0) & (calls.elements <= _MAX_FEW_ELEMENTS)


def _is_of_dtype(trace: Trace, calls: Calls, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return bool[C]: the dtype's name matches; False where it is unknown."""
    dtype, strings = trace.events.messages.dtype, trace.events.strings
    if len(dtype) == 0:
        return np.zeros(len(calls), np.bool_)
    distinct, inverse = np.unique(dtype, return_inverse=True)
    matches = np.array([text >= 0 and bool(pattern.match(strings[text])) for text in distinct.tolist()])[inverse]
    return np.asarray((calls.message >= 0) & matches[calls.message])


def _after_update(trace: Trace, around: Surroundings) -> NDArray[np.bool_]:
    """Return bool[C]: issued after the optimizer within the same step; False in a trace without steps."""
    host = steps(trace).host
    step = np.searchsorted(host[:, 0], around.start_ns, "right") - 1
    updated = around.last_end_before(around.named(OPTIMIZER_STEP)) >= host[step, 0]
    return np.asarray(updated & (step >= 0) & steps(trace).marked)


def _begins_forward_of_ddp(around: Surroundings) -> NDArray[np.bool_]:
    """Return bool[C]: issued in the forward of DDP before the model in it computes."""
    begins = around.last_start_before(around.named(_DDP_FORWARD))
    return around.within(_DDP_FORWARD) & (around.last_end_before(around.named(_COMPUTES, ops_only=True)) <= begins)


def _computed_since_update(around: Surroundings) -> NDArray[np.bool_]:
    """Return bool[C]: another forward pass has begun since the optimizer's step."""
    computed = around.last_end_before(around.named(_COMPUTES, ops_only=True))
    return computed > around.last_end_before(around.named(OPTIMIZER_STEP))


def _after_backward(around: Surroundings) -> NDArray[np.bool_]:
    """Return bool[C]: issued between the last backward pass and the optimizer's step."""
    backward, optimizer = around.named(BACKWARD), around.named(OPTIMIZER_STEP)
    return (around.last_end_before(backward) > around.last_end_before(optimizer)) & (
        around.next_start_after(optimizer) < around.next_start_after(backward)
    )


def _ends_step(trace: Trace, around: Surroundings) -> NDArray[np.bool_]:
    """Return bool[C]: issued after the last backward pass of its step, in a trace in which no optimizer is marked."""
    host, backward = steps(trace).host, around.named(BACKWARD)
    step = np.searchsorted(host[:, 0], around.start_ns, "right") - 1
    since = around.last_end_before(backward) >= host[step, 0]
    until = around.next_start_after(backward) >= host[step, 1]
    return np.asarray(since & until & (step >= 0) & (steps(trace).marked and not len(around.named(OPTIMIZER_STEP))))


def _follows(around: Surroundings, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return bool[C]: issued after any of the chosen calls."""
    first = around.start_ns[chosen].min(initial=np.iinfo(np.int64).max)
    return np.asarray(around.start_ns > first)


def _follows_norms(around: Surroundings) -> NDArray[np.bool_]:
    """Return bool[C]: norms were computed since the backward pass before it."""
    norms = around.last_end_before(around.named(_NORM, ops_only=True))
    return _after_backward(around) & (norms > around.last_end_before(around.named(BACKWARD)))
