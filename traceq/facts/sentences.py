"""Facts' sentences: what a trace does not show, where loaders are, a rank's parallelism and the rule that tells it.

Fields are texts that their callers format, and counts.
"""

from __future__ import annotations

NO_COLLECTIVE = "no collective was issued"
"""The rule of ranks that exchange nothing."""
RULES = {
    "one rank": "all groups have one rank",
    "none": "nothing reduces gradients, gathers parameters or exchanges activations",
    "sharded": "parameters are gathered for forward and kept for backward, gradients reduce-scattered",
    "resharded": "parameters are gathered for forward and again for backward, gradients reduce-scattered",
    "ZeRO": "gradients are {how}, parameters gathered after the update",
    "DDP": "gradients are reduced, parameters never gathered",
    "embeddings": "ranks exchange embeddings, of which each has some tables or rows",
    "TP": "layers exchange activations with all-reduces, all-gathers or reduce-scatters",
    "EP": "layers exchange activations with all-to-alls",
    "PP": "activations are sent from rank to rank",
}

KERNELS = {
    "early": "launched before the window",
    "by_graph": "launched by a graph",
    "of_barrier": "of barriers",
    "missing": "calls without a kernel: fused with another call, or cut off by the window",
    "extra": "extra kernels of calls that launch several",
    "alone": "without a call in the trace",
}
"""Kernels of collectives, and calls, that are not one for one."""

NOTES = {
    "unsharded": "units were still unsharded",
    "unreduced": "units without a reduction: frozen, or no_sync",
    "rebuilt": "DDP rebuilds its buckets once",
    "bucket": "a bucket of {size:,} bytes is below DDP's default of 1, then 25 MiB: bucket_cap_mb is set, or several "
    "modules are wrapped",
    "padded": "parts are padded to the same size on all ranks",
    "one_way": "messages go one way",
    "one_way_forward": "messages go one way: the trace has no backward pass",
    "no_counterpart": "backward has no counterpart",
    "forward_only": "forward only: the trace has no backward pass",
    "recomputed": "activations are recomputed in backward",
    "some_without": "some have no counterpart in backward: a first layer, an embedding, a loss",
    "clip_norm": "the norm of all gradients is clipped",
    "join_check": "ranks with fewer batches: each forward asks whether one has joined",
    "metric": "metrics are reduced or gathered for logging",
    "token_count": "the tokens of the batch are counted over all ranks",
    "index_exchange": "indices of the rows and tokens to exchange",
    "batch_statistics": "SyncBatchNorm shares its statistics",
    "state_broadcast": "state is sent from one rank to all",
    "optimizer_state": "the optimizer gathers integers, which are no parameters: its own state or packed updates",
    "unused_map": "find_unused_parameters: map of the parameters used",
}
"""Why calls differ from what a strategy predicts, or what they are for."""

UNSURE = {"bound": "work is a bound", "arguments": "bytes of all arguments"}
"""Why rates of an op's work would not be those of the device."""
CPU_PEAKS = "this CPU, as measured", "measured by the recording"
"""Name and source of peaks."""

# what traces do not show

UNRECORDED = "{percent} of the window{where} waits for work that the trace does not show{more}; {what}"
MORE_RANKS = " (so do {num} more ranks)"
OPENS = "steps begin after it: record from a synchronised start"
"""What to do where a trace opens with such work."""
LOST = "it is `unrecorded` in the partition: were events lost, or do others use the device?"
NO_ROWS = "{where}{lost}: times are {times}, and what a sync costs is not known"
NOT_RECORDED = "the profiler recorded no device activity ({why})"
NOT_READ = "traceq does not read the rows of this device, {device}"
WHY_NONE = "of MPS it records none, ProfilerActivity.CUDA is missing, CUPTI was busy, or the file is cut short"
WHY_COUNTERS = "it measured counters of kernels instead (`cuda_profiler_range`)"
OF_COUNTERS = "those of a host that waits while each kernel runs by itself, and no job's"
"""Which times a trace has whose profiler measured counters."""
NO_STEP = "{path}: no step {number}; expected {expected}"
MARK_STEPS = "a trace with steps: call profiler.step() after each"
STEP_LACKS = "no step {number} on {ranks}: left out"

WORKERS = "{share} of {num:,} samples of loading workers are in {function}, most at {line}"
