"""Which kernels, rows and ops move data between ranks, by their names.

Add the kernels of a communication library here: they then count as communication everywhere.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.intervals import sorted_unique
from traceq.model import Category, Trace

_KERNEL = re.compile(
    r"nccl|rccl|cross_device_reduce"
    r"|^([^<(]|\(anonymous namespace\))*"  # not in template arguments
    r"(all_?to_?all(?!\w{0,80}(gemm|gmm|matmul))"  # through symmetric memory; torchao
    r"|(\b|(?<=\d))"  # in mangled names a length precedes
    r"((one|two)_?shot_?all_?reduce|multimem_|nvshmem|all_gather_\w*symm"
    r"|symmetric_memory::(\w+::|\(anonymous namespace\)::){0,8}(barrier|(wait|put)_signal)_kernel"
    r"|(deep_ep|dpsk::ep)::(\w+::){0,8}(cached_notify|((cached_)?notify_)?(dispatch|combine)(_ll)?)\b"  # DeepEP
    r"|a2a_(dispatch|combine)_(send|recv)_kernel|pplx::(\w+::){0,8}(dispatch|combine)"  # pplx
    r"|Ep(Dispatch|Combine)"  # MORI
    r"|moeA2A(Dispatch|Combine)Kernel|allreduce_(fusion_kernel|prototype)_\w"  # TensorRT, FlashInfer, quick reduce
    r"))",
    re.IGNORECASE,
)

COMMUNICATION_ROW = re.compile(r"^(nccl|gloo|hccl|xccl):|^rpc_(a?sync|remote)(_torchscript)?#")
"""Host rows of a collective, by backend, and of a call of another process."""

COMMUNICATION_OP = re.compile(r"^(c10d::|record_param_comms$)")
"""Ops that issue or describe a collective."""


@once_per_trace
def is_communication(trace: Trace) -> NDArray[np.bool_]:
    """Return which device work moves data between ranks: bool[D], by its name or its kernel row, never by stream."""
    work, events = device_work(trace), trace.events
    named = matching(events, work.rows, _KERNEL)
    has_message = np.isin(work.rows, events.messages.row[events.messages.name >= 0])
    return np.asarray((events.category[work.rows] == Category.KERNEL) & (named | has_message))


def has_untold_ranks(trace: Trace) -> bool:
    """Return whether other processes take part in collectives of a trace that does not tell of how many ranks it is.

    Collectives of one process, as of DataParallel, run on all of its devices.
    """
    rows = device_work(trace).rows[is_communication(trace)]
    return not trace.backend and len(sorted_unique(trace.events.device[rows])) == 1
