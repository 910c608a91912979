"""What each collective is for: reduces gradients, gathers parameters, carries activations, adds up a metric.

By what its issuing thread is in: the marks that DDP, FSDP, optimizers and the autograd engine leave, other ops; and
where there is none of these by its size and its place between backward and optimizer. Never by streams or kernels.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collectives import COLLECTIVE_NAMES, Calls, collective_calls
from traceq.facts.events.enclosing_rows import Surroundings, surroundings
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.data_loading import LOADER
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.model import Trace

__all__ = ["ROLES", "Role", "collective_roles", "issued_in_backward"]

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
)
"""What a collective can be for, in the order of `Role`."""


class Role:
    """Numbers of ROLES."""

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


_FEW = 16
_SMALL_BYTES = 4096
_MOST_NORMS = 2**16
"""A norm for each parameter."""

_ACCUMULATES = re.compile(r"AccumulateGrad")
_FSDP_REDUCES = re.compile(r"^FSDP::(root_)?post_backward|^FullyShardedDataParallel\._post_backward")
_GATHERS_BACKWARD = re.compile(
    r"^FSDP::(pre_backward|backward_prefetch)|^FullyShardedDataParallel\._pre_backward|PreBackwardFunction"
)
_GATHERS_FORWARD = re.compile(
    r"^FSDP::(pre_forward|all_gather)|^FullyShardedDataParallel\._pre_forward|\.py\(\d+\): fetch_sub_module$"
)
_PARTITIONS = re.compile(r"PreBackwardFunction")
"""What DeepSpeed leaves in the backward pass of each module whose parameters are partitioned."""
_AUTOGRAD = re.compile(r"^autograd::engine|Backward[0-9]*$")
_BACKWARD_PHASE = re.compile(r"backward", re.IGNORECASE)
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_DDP_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
_CLIPS = re.compile(r"clip_grad_norm|^FSDP::clip")
_NORMALIZES = re.compile(r"^SyncBatchNorm(Backward[0-9]*)?$")
_MEASURES = re.compile(r"^(?!.*\.py\().*(metric|accuracy)|\.py\(\d+\): .*(metric|accuracy)", re.IGNORECASE)
_COMPUTES = re.compile(r"^aten::(linear|addmm|mm|bmm|matmul|conv\w*|embedding|layer_norm|rms_norm|_?scaled_dot\w+)$")
"""What no forward pass does without."""
_NORM = re.compile(r"^aten::(linalg_vector_norm|linalg_norm|norm|_foreach_norm)$")
_DISTRIBUTES_INPUT = re.compile(r"kjt|sparse_data_dist|SparseFeatures", re.IGNORECASE)
_PASSES_ON = re.compile(
    r"^(aten::|c10d::|record_param_comms$|profiler::|autograd::|nccl:|gloo:|hccl:|xccl:"
    rf"|ProfilerStep|Optimizer\.|DistributedDataParallel\.|{LOADER}|Torch-Compiled Region)"
)
_INTEGERS = re.compile(r"^(u?int|bool)")


@once_per_trace
def collective_roles(trace: Trace) -> NDArray[np.int64]:
    """int64[C]: the role of each of the trace's calls, into ROLES, by the first rule that applies."""
    calls = collective_calls(trace)
    role = np.full(len(calls), Role.UNKNOWN)
    if len(calls):
        around = surroundings(trace, calls.issued)
        for number, applies in reversed([*_by_marks(trace, calls, around), *_by_place(trace, calls, around)]):
            role[applies] = number
    return role


@once_per_trace
def issued_in_backward(trace: Trace) -> NDArray[np.bool_]:
    """bool[C]: inside the autograd engine, or in a phase that is called backward."""
    calls = collective_calls(trace)
    return surroundings(trace, calls.issued).within(_AUTOGRAD) | _in_backward_phase(trace, calls)


RoleRule = tuple[int, NDArray[np.bool_]]


def _by_marks(trace: Trace, calls: Calls, around: Surroundings) -> list[RoleRule]:
    """(role, bool[C] to which calls it applies), the strongest first: what frameworks and the autograd engine mark."""
    reduces, summed = _is(calls, "all_reduce", "reduce_scatter", "reduce"), _is(calls, "all_reduce", "reduce")
    gathers, broadcasts = _is(calls, "all_gather"), _is(calls, "broadcast")
    exchanges = _is(calls, "all_to_all", "send", "recv", "send_recv")
    whole, few = _holds_integers(trace, calls), _holds_few(calls)
    accumulates, optimizer = around.within(_ACCUMULATES), around.within(_OPTIMIZER)
    in_an_op = around.within(_AUTOGRAD) | around.within_an_op_besides(_PASSES_ON)
    loose, updated = gathers & ~in_an_op & ~whole, _after_update(trace, around)
    fetches = loose & bool(len(around.named(_PARTITIONS)))
    several = calls.elements > trace.world_size  # else a number of each rank's
    return [
        (Role.GRADIENT, reduces & around.within(_FSDP_REDUCES)),
        (Role.GATHER_BACKWARD, gathers & around.within(_GATHERS_BACKWARD)),
        (Role.GATHER_FORWARD, gathers & around.within(_GATHERS_FORWARD)),
        (Role.BUFFERS, broadcasts & around.within(_DDP_FORWARD)),
        (Role.UNUSED_MAP, summed & accumulates & whole),
        (Role.GRADIENT, reduces & accumulates),
        (Role.CLIP_NORM, summed & (around.within(_CLIPS) | (few & optimizer))),
        (Role.CLIP_NORM, summed & _follows_norms(around) & (calls.elements >= 0) & (calls.elements <= _MOST_NORMS)),
        (Role.GRADIENT, reduces & optimizer),
        (Role.GATHER_STEP, (gathers | broadcasts) & optimizer),
        (Role.STATISTICS, around.within(_NORMALIZES)),
        (Role.INDICES, exchanges & (whole | around.within(_DISTRIBUTES_INPUT)) | (gathers & whole & in_an_op)),
        (Role.METRIC, ~exchanges & around.within(_MEASURES)),
        (Role.GATHER_STEP, loose & ~few & updated & ~_computed_since_update(around)),
        (Role.GATHER_STEP, fetches & ~few & updated),
        (Role.GATHER_FORWARD, fetches & (~few | (several & ~updated))),
        (Role.ACTIVATIONS, exchanges | (~broadcasts & in_an_op)),
    ]


def _by_place(trace: Trace, calls: Calls, around: Surroundings) -> list[RoleRule]:
    """Rules for calls that stand alone: by size, and by place between backward and optimizer."""
    reduces, broadcasts = _is(calls, "all_reduce", "reduce_scatter", "reduce"), _is(calls, "broadcast")
    is_small = (calls.size >= 0) & (calls.size <= _SMALL_BYTES)
    return [
        (Role.GRADIENT, reduces & ~_holds_few(calls) & (_after_backward(around) | _in_backward_phase(trace, calls))),
        (Role.METRIC, ~broadcasts & (_holds_few(calls) | is_small)),
        (Role.STATE, broadcasts),
        (Role.ACTIVATIONS, _is(calls, "all_reduce", "all_gather", "reduce_scatter") & (calls.elements >= 0)),
    ]


def _is(calls: Calls, *names: str) -> NDArray[np.bool_]:
    return np.isin(calls.name, [COLLECTIVE_NAMES.index(name) for name in names])


def _in_backward_phase(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    return np.array([bool(_BACKWARD_PHASE.search(name)) for name in phases(trace).names])[calls.phase]


def _holds_few(calls: Calls) -> NDArray[np.bool_]:
    return (calls.elements >= 0) & (calls.elements <= _FEW)


def _holds_integers(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    """bool[C]: whole numbers; no where the type is not told."""
    dtype, strings = trace.events.messages.dtype, trace.events.strings
    if len(dtype) == 0:
        return np.zeros(len(calls), np.bool_)
    distinct, inverse = np.unique(dtype, return_inverse=True)
    whole = np.array([d >= 0 and bool(_INTEGERS.match(strings[d])) for d in distinct.tolist()])[inverse]
    return np.asarray((calls.message >= 0) & whole[calls.message])


def _after_update(trace: Trace, around: Surroundings) -> NDArray[np.bool_]:
    """bool[C]: the optimizer's step ended before it within the same step; nowhere in a trace without steps."""
    host = steps(trace).host
    began = np.searchsorted(host[:, 0], around.at, "right") - 1
    updated = around.since(around.named(_OPTIMIZER)) >= host[began, 0]
    return np.asarray(updated & (began >= 0) & steps(trace).marked)


def _computed_since_update(around: Surroundings) -> NDArray[np.bool_]:
    """bool[C]: another forward pass has begun since the optimizer's step."""
    computed = around.since(around.named(_COMPUTES, ops_only=True))
    return computed > around.since(around.named(_OPTIMIZER))


def _after_backward(around: Surroundings) -> NDArray[np.bool_]:
    """bool[C]: between the end of a backward pass and the optimizer's step, with no other backward pass between."""
    backward, optimizer = around.named(_AUTOGRAD), around.named(_OPTIMIZER)
    return (around.since(backward) > around.since(optimizer)) & (around.until(optimizer) < around.until(backward))


def _follows_norms(around: Surroundings) -> NDArray[np.bool_]:
    """bool[C]: norms were taken since the backward pass that it follows."""
    norms = around.since(around.named(_NORM, ops_only=True))
    return _after_backward(around) & (norms > around.since(around.named(_AUTOGRAD)))
