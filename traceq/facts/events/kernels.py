"""Which kernels, rows and ops communicate, which kernels only wait or are compiled, and what launched each kernel.

Add the kernels of a communication library here: they then count as communication everywhere.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.graph_replays import graph_replays
from traceq.facts.events.name_patterns import matching
from traceq.facts.events.nesting import host_ops, tracks
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
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

REMOTE_CALL = re.compile(r"^(rpc_(a?sync|remote)(_torchscript)?|to_here)#")
"""Host rows of a call of another process, by torch's RPC."""
COMMUNICATION_ROW = re.compile(rf"^(nccl|gloo|hccl|xccl):|{REMOTE_CALL.pattern}")
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


_TINY_NS = 10_000
_SPINS = re.compile(
    r"^([^<(]|\(anonymous namespace\))*"  # not in template arguments
    r"(\b|(?<=\d))"  # in mangled names a length precedes
    r"((nano)?sleep_kernel|spin_kernel|(busy|spin)_wait\w{0,80})(?=[\s(<E]|$)",
)
"""torch's `spin_kernel` (`torch.cuda._sleep`) and `busy_wait_for_flag_kernel`, and names like theirs."""
COMPILED = re.compile(r"Torch-Compiled Region|CompiledFxGraph|TorchDynamo|^CompiledFunction(Backward)?$|^triton_")
"""Names of regions of torch.compile, of the autograd nodes around them, and of the kernels that Inductor generates."""


@frozen(eq=False)
class LaunchedKernels:
    """K kernels sorted by start.

    `work` int64[K] into DeviceWork; `ns` int64[K]; `op` int64[K] the row of Events of the innermost op around the
    launch, -1 without one; of a graph's node around the launch that was captured, where the trace shows that; `tiny`
    bool[K]: under 10 us, or shorter than its launching call, if that call launched nothing else and did not wait for
    the kernel. Where most such calls wait, all do: by a device's clock some kernels end a few us after their call.
    """

    work: NDArray[np.int64]
    ns: NDArray[np.int64]
    op: NDArray[np.int64]
    tiny: NDArray[np.bool_]


@once_per_trace
def launched_kernels(trace: Trace) -> LaunchedKernels:
    """Return every kernel of a trace."""
    work, events = device_work(trace), trace.events
    kernels = np.flatnonzero(events.category[work.rows] == Category.KERNEL)
    ns, call = (work.end - work.start)[kernels], work.call[kernels]
    num_launched = np.bincount(call[call >= 0], minlength=len(events))
    alone = (call >= 0) & (num_launched[call] == 1)
    # a call that lasts until its kernel is done is no slow launch, unless the device's clock is early
    waited = (work.end[kernels] <= events.end[call]) & (work.start[kernels] >= events.ts[call])
    waited |= 2 * np.count_nonzero(alone & waited) > np.count_nonzero(alone)
    tiny = (ns < _TINY_NS) | (alone & ~waited & (ns < events.dur[call]))
    return LaunchedKernels(kernels, ns, innermost_ops(trace, graph_replays(trace).calls(work.call)[kernels]), tiny)


def innermost_ops(trace: Trace, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of the innermost op that is open when each call starts, on the call's thread; -1 without one."""
    return host_ops(trace).rows_at(np.where(calls >= 0, tracks(trace)[calls], -1), trace.events.ts[calls])


@once_per_trace
def is_spin_wait(trace: Trace) -> NDArray[np.bool_]:
    """Return which device work only waits: bool[D], by its name; what waits for another rank is communication."""
    work, events = device_work(trace), trace.events
    is_kernel = events.category[work.rows] == Category.KERNEL
    return np.asarray(is_kernel & ~is_communication(trace) & matching(events, work.rows, _SPINS))


@once_per_trace
def runs_compiled(trace: Trace) -> bool:
    """Return whether any of the trace's work is compiled."""
    rows = np.r_[trace.events.rows(Category.ANNOTATION, Category.CPU_OP), device_work(trace).rows]
    return bool(matching(trace.events, rows, COMPILED).any())
