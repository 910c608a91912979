"""Every sentence of a claim: one template per code, filled with its measures by `claims.saying`.

A field is a measure (`{blocked_ns}`, with its unit), a range of two (`{saved_ns}` of `least_saved_ns` and
`most_saved_ns`), a part of the subject (`{line}`), `{remedy}`, or one of `{per_step}`, `{a_step}`, `{the_step}`,
`{in_steps}`. A noun after a colon is counted: `{num_calls:call}`. Of leads the first is said of which everything is
known, of evidence every clause.
"""

from __future__ import annotations

from traceq.frozen import frozen

__all__ = ["GAINS", "ONCE", "REMEDIES", "SENTENCES", "SHARED_EVIDENCE", "Sentence"]


@frozen
class Sentence:
    """How a claim is said: what it is and what to do, and clauses on what it rests on."""

    leads: tuple[str, ...]
    evidence: tuple[str, ...] = ()


SENTENCES: dict[str, Sentence] = {
    "costly_sync": Sentence(
        (
            "{kind} sync at {line} in {module}: {remedy}",
            "{kind} sync at {line}: {remedy}",
            "{kind} sync in {op}: {remedy}",
        ),
        (
            "the host is blocked {blocked_ns} {per_step} ({op}, {phase})",
            "{unrecorded_ns} of it waits for work that the trace does not show",
            "it began before the window of {window_ns}",
            "{why_once}",
        ),
    ),
    "costly_allocation": Sentence(
        ("allocation at {line}: {remedy}", "allocation in {op}: {remedy}"),
        ("the host is blocked {blocked_ns} {per_step} ({op}, {phase})", "{why_once}"),
    ),
    "free_sync": Sentence(
        ("{kind} sync at {line}: {remedy}", "{kind} sync in {op}: {remedy}"),
        ("the host is blocked {blocked_ns} {per_step} ({op}, {phase}), and would wait elsewhere",),
    ),
    "joint_syncs": Sentence(
        ("all syncs together: remove them at once",),
        (
            "together they gain {together_ns}, none alone more than {alone_ns}",
            "{of_kind} alone gain {kind_ns}",
            "with the waits for the data loader {with_loader_ns}",
        ),
    ),
    # what questions the rest
    "missing_ops": Sentence(
        ("{missing_pct} of the ops are missing: idle and exposed times are not known",),
        ("by the numbers of the ops on rank {rank}: it is a sample, or events are lost",),
    ),
    "foreign_trace": Sentence(
        (
            "{ranks}: no event is of PyTorch's profiler: traceq query reads its events",
            "no event is of PyTorch's profiler: traceq query reads its events",
        ),
        ("no category is `cpu_op` or `kernel`, so that it is not known what takes the time",),
    ),
    "empty_recording": Sentence(
        ("an empty recording, without an op or a kernel: record while the steps run",),
        ("{call} takes {call_ns} of {whole_ns}",),
    ),
    # the whole step
    "cold_start": Sentence(
        ("{what}, {once_ns} once per process: trace steps after a warm-up",),
        (
            "the first use of the device ({device_start_of}) takes {device_start_ns}",
            "starting libraries ({library_start_of}) takes {library_start_ns}",
            "loading kernels ({kernel_loading_of}) takes {kernel_loading_ns}",
            "capturing CUDA graphs takes {graph_capture_ns}",
            "the profiler's own work ({profiler_of}) takes {profiler_ns}",
            "first calls of ops ({first_calls_of}) take {first_calls_ns}",
            "compiling before a first launch ({compiling_of}) takes {compiling_ns}",
            "a pause before {pause_before} takes {pause_ns}",
            "after it the device is busy for {busy_after_pct} of {after_ns}",
        ),
    ),
    "wall_time": Sentence(
        ("{part_pct} of training is {part}: {remedy}", "{part_pct} of training is {part}"),
        (
            "{irregular_pct} of {training_ns} of training is not in regular steps",
            "samples by the clock: {samples_rate}, in regular steps {regular_samples_rate}",
        ),
    ),
    "garbage_collection": Sentence(
        ("garbage collection takes {share_pct} of unprofiled steps, mostly {collection}",),
        ("{num_pauses:pause} of {pause_ns} in {num_steps:unprofiled step}",),
    ),
    "compiling": Sentence(
        ("compiling {functions} takes {compiling_ns} {per_step}: trace later steps",),
        ("{share_pct} of {the_step}", "one function is compiled {num_times:time}"),
    ),
    "recompiles": Sentence(
        ("torch.compile compiles {functions} again: {remedy}", "torch.compile compiles again: {remedy}"),
        (
            "in {num_again} of {num_steps} steps, {compiling_ns} {per_step} ({share_pct})",
            "the guard that fails: {guard}",
            "an input changes its size, as from {old_size} to {new_size}",
        ),
    ),
    "outside_phases": Sentence(
        (
            "{share_pct} of an unprofiled step is in no phase, {line_pct} of that at {line}",
            "{share_pct} of an unprofiled step is in no phase",
        ),
        (
            "{outside_ns} is outside of {phases}",
            "the ops there: {op}",
            "traced steps spend {traced_ns} outside",
        ),
    ),
    "long_backward": Sentence(
        ("backward takes {backward_ratio} as long as forward: {remedy}",),
        ("it computes {computes_ratio} as long, where 2x is usual", "{excess_ns} {per_step} more than usual"),
    ),
    # what computes
    "below_roof": Sentence(
        ("{op} in {phase} reaches {roof_pct} of its {roof} roof: {remedy}",),
        (
            "{tflops} of {peak_tflops} TFLOP/s in {dtype}",
            "{gbps} of {peak_gbps}",
            "{takes_ns} {per_step}, which would take {reachable_ns}",
            "well-tuned kernels reach {reachable_pct} of that roof",
            "TF32 has {tf32_tflops} TFLOP/s, if its precision is enough",
        ),
    ),
    "unfused_attention": Sentence(
        ("attention without a fused kernel in {phase}: use scaled_dot_product_attention",),
        (
            "{ops} of {scores} scores take {takes_ns} {per_step} ({share_pct})",
            "mask, dropout and dtype have to allow a fused kernel",
        ),
    ),
    "unfused_optimizer": Sentence(
        ("{optimizer} runs as {implementation}: {remedy}",),
        (
            "it takes {takes_ns} {per_step} ({share_pct}), of which a fused one needs a part",
            "in {num_unprofiled:unprofiled step} its phase takes {unprofiled_ns} ({unprofiled_pct})",
        ),
    ),
    # copies and memory
    "pageable_copies": Sentence(
        (
            "pageable HtoD copies at {line}: {remedy}",
            "pageable HtoD copies in {op}: {remedy}",
            "pageable HtoD copies: {remedy}",
        ),
        (
            "they block the host {blocked_ns} {per_step}",
            "tensors that stay the same, such as indices, can stay on the device",
        ),
    ),
    "allocator_retries": Sentence(
        ("the allocator returns memory to the driver: {remedy}, or use less memory",),
        ("{frees_mean} times {per_step}",),
    ),
    "uncached_allocations": Sentence(
        ("the driver allocates every tensor: unset PYTORCH_NO_CUDA_MEMORY_CACHING",),
        (
            "{allocations_mean} allocations and {frees_mean} frees beside {launches_mean} launches {per_step}",
            "on ROCm unset PYTORCH_NO_HIP_MEMORY_CACHING",
        ),
    ),
    "out_of_memory": Sentence(
        ("out of memory at {line}: {asked_bytes} asked for", "out of memory: {asked_bytes} asked for"),
        ("on device {device}", "{free_bytes} free on the device", "{allocated_bytes} allocated: {holders}"),
    ),
    "memory_peak": Sentence(
        ("peak: {peak_bytes} allocated of {reserved_bytes} reserved", "peak: {peak_bytes} allocated"),
        ("on device {device}", "{holders}"),
    ),
    "fragmentation": Sentence(
        (
            "{free_bytes} are free, but in no piece of {asked_bytes}: {remedy}",
            "{free_bytes} are free, but in no piece of {asked_bytes}",
        ),
        ("on device {device}", "the largest piece for such a request has {largest_bytes}"),
    ),
    "memory_delta": Sentence(
        (
            "{moment}: {delta_bytes} ({delta_pct}), {before_bytes} to {after_bytes}",
            "{moment}: {delta_bytes}, {before_bytes} to {after_bytes}",
            "{moment}: {after_bytes} on both sides, by the same lines",
        ),
        ("{holders}",),
    ),
}
"""Sentences by code."""

REMEDIES: dict[str, str] = {
    "costly_sync": "remove it",
    "costly_allocation": "allocate before the steps, or less",
    "free_sync": "leave it",
    "persistent_workers": "persistent_workers=True keeps the loader's workers",
    "recompiles": "find the guard that fails with TORCH_LOGS=recompiles",
    "dynamic_sizes": "try dynamic=True, mark_dynamic, or padding to a few sizes",
    "values_in_tensors": "keep values that change in tensors (TORCH_LOGS=recompiles)",
    "long_backward": "look for recomputation and slow kernels in it",
    "checkpointing": "activation checkpointing recomputes part of forward",
    "long_backward_on_the_host": "look for hooks and other host work in it",
    "below_roof": "a well-tuned kernel is faster",
    "tf32": "try torch.set_float32_matmul_precision('high')",
    "unfused_optimizer": "try {optimizer}(..., fused=True)",
    "unfused_optimizer_on_cpu": "try {optimizer}(..., fused=True), from torch 2.4 on",
    "pageable_copies": "use pin_memory=True and non_blocking=True",
    "expandable_segments": "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}
"""What to do, by the remedy of a claim, or by its code."""

ONCE: dict[str, str] = {
    "graph_capture": "a CUDA graph is captured there, once for each shape: trace steps after a warm-up",
    "first_use": "the process begins to use the device here: trace steps after a warm-up",
    "pool_growth": "no memory is returned meanwhile, so the pool still grows, as in a warm-up",
    "pool_refill": "memory was returned to the driver before: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}
"""Why what a claim is about does not recur, by its measure `once`."""

SHARED_EVIDENCE = (
    "{blocked_by_step_ns} by step",
    "in {num_steps_with} of {num_counted} traced steps",
    "rank {rank} waits {slack_ns} longer for others anyway",
)
"""Clauses of claims of all codes."""

GAINS = {
    "step": "{a_step} gains {gain}",
    "all ranks": "the job's step gains {gain}",
    "nothing": "{the_step} gains nothing",
}
