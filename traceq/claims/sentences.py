"""Every sentence of a claim: one template per code, filled with its measures by `claims.saying`.

A field is a measure (`{blocked_ns}`, with its unit), a range of two (`{saved_ns}` of `least_saved_ns` and
`most_saved_ns`), a part of the subject (`{line}`), `{remedy}`, or one of `{per_step}`, `{a_step}`, `{the_step}`,
`{what_gains}`, `{the_jobs_step}`, `{in_steps}`. What a share is of, `{it}` or `{whole}`, is a step, unless the measure
`share_of` says what else. A noun after a colon is counted: `{num_calls:call}`. Of leads the first is said of which
everything is known, of evidence every clause.
"""

from __future__ import annotations

from traceq.claims.claim import AT_MOST, BY_JOB_REPLAY, BY_REPLAY, BY_UNPROFILED
from traceq.frozen import frozen


@frozen
class Sentence:
    """How a claim is said: what it is and what to do, and clauses on what it rests on."""

    leads: tuple[str, ...]
    evidence: tuple[str, ...] = ()


_LOST = ("{time_ns} {per_step}, {share_pct} of {it}",)
_UNRECORDED = "it may be less, as work that the trace does not show runs for {unrecorded_ns} {per_step}"
_REPLAYED = "the gain is that of {replayed}, which waits least for others"
_WAITS_FOR_CORE = "a thread of {a_step} waits {wait_ns} for a core, {share_pct} of it"
_WORKERS_AT = "{workers_pct} of {num_samples:sample} of workers are in {function}"
_LONGEST = (
    "longest: {longest}",
    "{float64_pct} is in float64: try float32",
    "{float32_pct} is float32 products without Tensor Cores: try autocast or TF32",
    "{float32_without_tf32_pct} is float32 products without Tensor Cores: try autocast",
    "{elementwise_pct} is elementwise kernels, which torch.compile can fuse",
    "{autograd_function_pct} is autograd functions in Python, between the ops that they call",
    "{slow_convolution_pct} is convolutions of the unfolded input, as without oneDNN",
)
_LOST_EVENTS = "or the trace lost events: {lost_pct} of it waits for work that it does not show"

SENTENCES: dict[str, Sentence] = {
    "costly_sync": Sentence(
        (
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
        (
            "{kind} sync at {line}: {remedy}",
            "{kind} sync in {op}: {remedy}",
            "allocation at {line}: {remedy}",
            "allocation in {op}: {remedy}",
        ),
        ("the host is blocked {blocked_ns} {per_step} ({op}, {phase}), and would wait elsewhere",),
    ),
    "joint_syncs": Sentence(
        (
            "blocking allocations, {allocations_pct} of what all syncs cost: allocate before the steps, or less",
            "all syncs together: remove them at once",
        ),
        (
            "removing those of one place saves at most {alone_pct} of that",
            "removing {of_kind} alone {kind_pct} of that",
            "with the waits for the data loader, {with_loader_ns}",
            "{why_once}",
        ),
    ),
    # what questions the rest
    "missing_ops": Sentence(
        ("{missing_pct} of the ops are missing: idle and exposed times are unknown",),
        ("ops of rank {rank} are numbered with gaps: the trace is a sample, or lost events",),
    ),
    "foreign_trace": Sentence(
        (
            "{ranks}: no events from PyTorch's profiler: read theirs with traceq query",
            "no events from PyTorch's profiler: read its events with traceq query",
        ),
        ("no event is a `cpu_op` or a `kernel`, so where the time goes is unknown",),
    ),
    "empty_recording": Sentence(
        ("the recording has no ops or kernels: record while steps run",),
        ("{call} takes {call_ns} of {whole_ns}",),
    ),
    "memory_growth": Sentence(
        (
            "memory grows by {step_bytes} per step, allocated at {line}: {remedy}",
            "memory grows by {step_bytes} per step: {remedy}",
        ),
        ("{before_bytes} before {num_steps:unprofiled step}, {after_bytes} after them",),
    ),
    "anomaly_detection": Sentence(
        ("anomaly detection is on, which is for debugging: {remedy}",),
        (
            "checks of gradients take {time_ns} {per_step} ({share_pct})",
            "each forward op notes its Python stack, too",
        ),
    ),
    # the whole step
    "cold_start": Sentence(
        (
            "{what} takes {once_ns} once, not per step: profile after warm-up steps (schedule(warmup=1))",
            "the profiler itself takes {once_ns}: profile more steps, after warm-up steps (schedule(warmup=1))",
        ),
        (
            "the first use of the device takes {device_start_ns} (longest: {device_start_of})",
            "starting libraries takes {library_start_ns} (longest: {library_start_of})",
            "loading kernels takes {kernel_loading_ns} (longest: {kernel_loading_of})",
            "capturing CUDA graphs takes {graph_capture_ns}",
            "the profiler's own work takes {profiler_ns} (longest: {profiler_of})",
            "first calls of ops take {first_calls_ns} (longest: {first_calls_of})",
            "compiling before a first launch takes {compiling_ns} (longest: {compiling_of})",
            "a pause before {pause_before} takes {pause_ns}",
            "a loader's start, to a first batch, or end takes {loader_start_ns}: persistent_workers=True keeps workers",
            "in the other {after_ns} after the last long one of these, the device is busy for {busy_after_pct}",
        ),
    ),
    "wall_time": Sentence(
        ("{part_pct} of training is {part}: {remedy}", "{part_pct} of training is {part}"),
        (
            "{irregular_pct} of {training_ns} of training is not in regular steps",
            "samples by the clock: {samples_rate}, in regular steps {regular_samples_rate}",
        ),
    ),
    "longer_steps": Sentence(
        ("steps grow longer, by {more_pct} from the first half to the second: {remedy}",),
        ("{first_ns} and {second_ns} per step {in_steps}",),
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
            "an input changes size, for example from {old_size} to {new_size}",
        ),
    ),
    "outside_phases": Sentence(
        (
            "{share_pct} of an unprofiled step is outside all phases, {line_pct} of that at {line}",
            "{share_pct} of an unprofiled step is outside all phases",
        ),
        (
            "{outside_ns} is outside of {phases}",
            "the ops there: {op}",
            "traced steps spend {traced_ns} outside",
        ),
    ),
    # what computes
    "below_roof": Sentence(
        ("{op} in {phase} reaches {roof_pct} of its {roof} roof: {remedy}",),
        (
            "{tflops} of {peak_tflops} TFLOP/s in {dtype}",
            "{gbps} of {peak_gbps}",
            "it takes {takes_ns} {per_step}, a well-tuned kernel {reachable_ns}",
            "well-tuned kernels reach {reachable_pct} of that roof",
            "TF32 reaches {tf32_tflops} TFLOP/s, if its precision suffices",
            "it is a setting of all products in {dtype}, which take {setting_ns}",
        ),
    ),
    "casts": Sentence(
        (
            "casts between types, most at {line}: {remedy}",
            "casts between types, most in {op}: {remedy}",
            "casts between types: {remedy}",
        ),
        (
            "{casts_mean:cast} {per_step} take {time_ns}, {share_pct} of {it}",
            "the longest, {cast}, take {longest_ns} in one place",
        ),
    ),
    "unfused_attention": Sentence(
        ("attention without a fused kernel in {phase}: use scaled_dot_product_attention",),
        (
            "{ops} of {scores} scores take {takes_ns} {per_step}, {share_pct} of {it}",
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
        ("{num_frees:time} {in_steps}",),
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
            "{free_bytes} are free, but no contiguous block of {asked_bytes}: {remedy}",
            "{free_bytes} are free, but no contiguous block of {asked_bytes}",
        ),
        ("on device {device}", "the largest free block for such a request has {largest_bytes}"),
    ),
    "memory_delta": Sentence(
        (
            "{moment}: {delta_bytes} ({delta_pct}), {before_bytes} to {after_bytes}",
            "{moment}: {delta_bytes}, {before_bytes} to {after_bytes}",
            "{moment}: {after_bytes} on both sides, by the same lines",
        ),
        ("{holders}",),
    ),
    # the host
    "host_bound": Sentence(
        (
            "host-bound, mostly {place}: shorten what the host does there",
            "host-bound: see what the host does between launches (--only idle)",
        ),
        (*_LOST, "the device computes for {compute_pct} of {it}", "{places}", _UNRECORDED, _REPLAYED),
    ),
    "launch_bound": Sentence(
        (
            "launch-bound, mostly by launches at {line}: {remedy}",
            "launch-bound, mostly in {phase}: {remedy}",
            "launch-bound: {remedy}",
        ),
        (
            *_LOST,
            "the device computes for {compute_pct} of {it}",
            "{tiny_pct} of kernels are under 10 us, or shorter than their launch",
            "a CUDA graph cannot capture {syncs_mean:sync} {per_step}",
        ),
    ),
    "host_round_trips": Sentence(
        ("host round trips, most in {op}: keep scalars and operands on the device",),
        (*_LOST, "{copies_mean} copies between host and device and {kernels_mean} kernels {per_step}"),
    ),
    "host_op": Sentence(
        (
            "the host spends {share_pct} of {whole} in {op} at {line}: {remedy}",
            "the host spends {share_pct} of {whole} in {op}: {remedy}",
        ),
        ("{time_ns} {per_step}",),
    ),
    "busy_machine": Sentence(
        ("busy machine: other processes keep {other_cores_mean} of {num_cores} cores busy, so compare arms in turns",),
        (_WAITS_FOR_CORE, "{remedy}"),
    ),
    "contended_cores": Sentence(
        (
            "cores contended by {num_workers:loader worker} ({line}): {remedy}",
            "cores contended by {num_workers:loader worker}: {remedy}",
            "cores contended by threads of {num_ranks:rank}: {remedy}",
        ),
        (
            _WAITS_FOR_CORE,
            "threads of all ranks would keep {training_cores_mean} of {num_cores} cores busy",
            "workers run for {busy_pct} of the time, with waits for a core {runnable_pct}",
            _WORKERS_AT,
        ),
    ),
    # the data loader
    "starved": Sentence(
        (
            "starved because the main thread makes each batch (num_workers={num_workers}, {line}): {remedy}",
            "starved because the main thread makes each batch (num_workers={num_workers}): {remedy}",
            "the main thread takes {hand_over_ns} to unpack each batch of its workers: {remedy}",
            "starved by the data loader ({line}): {remedy}",
            "starved by the data loader: {remedy}",
        ),
        (
            "{a_step} waits {wait_ns}, {share_pct} of {it}",
            "{first_batches_ns} of it is for first batches of epochs, which workers start only then",
            "{line_pct} of the loader's time is at {line}",
            _WORKERS_AT,
        ),
    ),
    "worker_restarts": Sentence(
        ("the loader starts new workers for each epoch: persistent_workers=True keeps them",),
        (*_LOST, "{num_restarts:restart} {in_steps}"),
    ),
    "dataload_wait": Sentence(
        (
            "the main thread makes each batch itself (num_workers={num_workers}): use workers",
            "the main thread waits for the data loader: more workers, or less work per sample",
        ),
        _LOST,
    ),
    # what computes
    "device_bound": Sentence(
        (
            "the device computes for {share_pct} of {whole}: {remedy}",
            "the device computes for {share_pct} of {whole}",
        ),
        ("{time_ns} {per_step}", *_LONGEST),
    ),
    "cpu_bound": Sentence(
        (
            "ops on the CPU take {share_pct} of {whole}, mostly in {op} of {node}",
            "ops on the CPU take {share_pct} of {whole}, mostly in {op}",
            "ops on the CPU take {share_pct} of {whole}, mostly in {function}, longest at {line}",
            "ops on the CPU take {share_pct} of {whole}, mostly at {line}",
            "ops on the CPU take {share_pct} of {whole}, mostly in module {module}",
            "ops on the CPU take {share_pct} of {whole}, longest at {longest_line}",
            "ops on the CPU take {share_pct} of {whole}",
        ),
        ("{time_ns} {per_step}", "{remedy}", *_LONGEST),
    ),
    "python_bound": Sentence(
        (
            "Python takes {share_pct} of {whole}, mostly {place}",
            "Python between ops takes {share_pct} of {whole}",
        ),
        ("{time_ns} {per_step}", "{places}", "longest ops: {longest}", *_LONGEST[1:]),
    ),
    # communication and copies
    "exposed_comm": Sentence(
        (
            "waits for other processes, mostly in {op}: {remedy}",
            "waits for other processes by {kind}: {remedy}",
            "exposed communication: {remedy}",
        ),
        (
            *_LOST,
            "at most {most_transfer_ns} of it is transfer, if each takes as long as the fastest of its size",
            _UNRECORDED,
            _REPLAYED,
        ),
    ),
    "exposed_wait": Sentence(
        ("ranks wait {share_pct} of {whole} for the last to arrive: see which one (--only ranks)",),
        (
            "{time_ns} {per_step}",
            "{first_collective_ns} of it in a first collective, where profilers start apart",
            _UNRECORDED,
        ),
    ),
    "exposed_transfer": Sentence(
        ("exposed transfers between ranks: overlap them with compute, or exchange less",), (*_LOST, _UNRECORDED)
    ),
    "exposed_memcpy": Sentence(
        ("exposed copies: {remedy}",),
        (*_LOST, "{device_copies_ns} of it are copies within the device", "most of these by {op}", "{rates}"),
    ),
    "sync_wait": Sentence(("the device idles after syncs: remove them",), (*_LOST, _REPLAYED)),
    "alloc_wait": Sentence(
        ("the device idles while the allocator asks the driver: reuse memory that is cached",),
        (*_LOST, _REPLAYED, "{why_once}"),
    ),
    # communication and ranks
    "straggler": Sentence(
        (
            "rank {rank} is late: its device is held {unrecorded_ns} longer by work that the trace does not show",
            "rank {rank} is late: its {category} time in {phase} is {excess_ns} longer, see {line}",
            "rank {rank} is late: its {category} time in {phase} is {excess_ns} longer",
            "rank {rank} is late: its host takes {excess_ns} longer in {what} at {line}",
            "rank {rank} is late: its host takes {excess_ns} longer in {what}",
            "rank {rank} works {late_ns} longer than the others",
            "the others wait {wait_ns} for rank {rank}",
        ),
        (
            "the others wait {wait_ns} {per_step} for it, {exposed_ns} of it exposed",
            "most at {collective} in {waited_phase}",
            "{what_excess_ns} longer in {what}",
            "its ops there have {flops_ratio} the FLOPs of the others'",
            "the next op is {before}",
            "it works {late_ns} longer {in_steps}",
            "also late: {more_ranks}",
            "the {pace} set the pace",
            "without these waits the step is {replayed_ns} shorter, no more than its noise",
        ),
    ),
    "late_ranks": Sentence(
        (
            "late by {phase_ns} in {phase}: {ranks} on {host}",
            "late by {phase_ns} in {phase}: {ranks} on {num_hosts:host}",
            "late by {phase_ns} in {phase}: {ranks}",
        ),
        (
            "{num_late:rank} late by {late_ns} in all, there mostly in {category} time",
            "also late: {more_ranks}",
            "{num_alike} ranks are alike",
        ),
    ),
    "pipeline_bubble": Sentence(
        ("the pipeline is idle {share_pct} of {a_step}: {remedy}",),
        (
            "{num_ranks:rank}, schedule {schedule}",
            "microbatches: {num_microbatches}",
            "{warmup_ns} in warm-up, {steady_ns} in the steady state, {cooldown_ns} in cool-down",
            "equal stages would leave {even_pct} of the schedule idle",
            "rank {rank} computes {passes_ratio} the mean",
        ),
    ),
    "expert_imbalance": Sentence(
        ("rank {rank} has {compute_ratio} the mean expert compute: {remedy}",),
        (
            "{excess_ns} {per_step} more than the mean",
            "it has {tokens_ratio} the mean number of tokens",
            "the others wait {wait_ns} in collectives, it waits {own_wait_ns}",
        ),
    ),
    "strategy": Sentence(
        ("{ranks}: calls for {role} are not those of {strategy}",),
        (
            "{num_elements} elements issued {in_steps}, {num_expected_elements} predicted",
            "{num_calls:call} issued {in_steps}, {num_expected_calls} predicted",
            "{reason}",
            _LOST_EVENTS,
        ),
    ),
    "ranks_alone": Sentence(
        ("{num_ranks:rank} exchange nothing: wrap the model (DistributedDataParallel, FSDP, accelerator.prepare)",),
        ("no call of torch.distributed {in_steps}",),
    ),
    "metric_gathers": Sentence(
        ("every step exchanges metrics: gather them every n-th step",),
        ("{calls_mean:collective} and {exposed_ns} of exposed communication {per_step}",),
    ),
    "buffer_broadcasts": Sentence(
        ("DDP sends buffers before each forward pass: try broadcast_buffers=False",),
        (
            "nothing computes meanwhile for {idle_ns} {per_step} ({share_pct})",
            "without broadcasts each rank keeps separate buffers, such as batch-norm statistics",
        ),
    ),
    "repeated_reductions": Sentence(
        ("DDP reduces gradients {num_reductions} times per optimizer step: no_sync() for all passes but the last",),
        ("nothing computes in the repeated ones for {idle_ns} {per_step} ({share_pct})",),
    ),
    "unused_search": Sentence(
        ("DDP looks for unused parameters, and each gets a gradient: find_unused_parameters=False",),
        (
            "the search and its exchange take {idle_ns} {per_step} ({share_pct})",
            "all {num_parameters} parameters get a gradient {in_steps}",
        ),
    ),
    "desync": Sentence(
        (
            "desync at collective {sequence} of step {step}: ranks differ",
            "desync at collective {sequence}: ranks differ",
        ),
        (
            "in group {group}",
            "{issued}",
            "{missing_ranks} skipped one",
            "{extra_ranks} issued one more",
            "{swapped_ranks} issued two in the other order",
            _LOST_EVENTS,
        ),
    ),
    "never_arrived": Sentence(
        (
            "{collective} {sequence} of group {group} never completed: {absent_ranks} never arrived",
            "{collective} {sequence} of group {group} never completed",
        ),
        (
            "last issued there: {last_collective} {last_sequence}",
            "last seen at {last_line}",
            "{undumped_ranks} left no dump",
            "{queued_ranks} issued it and did not start it",
            "{waiting_ranks} waited in it",
            "{done_ranks} completed it",
            "issued at {line}",
        ),
    ),
}
"""Sentences by code."""

REMEDIES: dict[str, str] = {
    "graphs_or_compile": "CUDA graphs, torch.compile or larger batches",
    "more_graphs_or_compile": "more of the step in CUDA graphs, torch.compile or larger batches",
    "graphs": "CUDA graphs or larger batches",
    "more_graphs": "more of the step in CUDA graphs, or larger batches",
    "compile": "torch.compile or larger batches",
    "batches": "larger batches",
    "host_op": "record the device with torch.profiler, too",
    "on_device": "move it to the device",
    "fewer_threads": "also compare fewer torch threads: --toggle @threads=default,1",
    "less_loading": "less work per sample, or num_workers=0",
    "less_loading_or_threads": "less work per sample, num_workers=0, or fewer torch threads",
    "more_cores": "more cores per rank",
    "fewer_threads_or_more_cores": "fewer torch threads, or more cores per rank",
    "starved": "less work per sample, or more workers",
    "own_batches": "use workers, or less work per sample",
    "first_batches": "longer epochs, or less work per sample",
    "hand_over": "fewer tensors in it, or pin_memory=True",
    "no_free_core": "less work per sample, as its workers find no free core",
    "only_compute": "only less or faster work there saves much",
    "exposed_comm": "overlap it with compute, or exchange less",
    "remote_call": "see what they do meanwhile",
    "all_ranks": "traces of all ranks tell waiting from transfer",
    "exposed_memcpy": "overlap them with compute, or copy less",
    "device_copies": "avoid contiguous(), clone() and layout changes",
    "costly_sync": "remove it",
    "costly_allocation": "allocate before the steps, or less",
    "free_sync": "leave it",
    "persistent_workers": "persistent_workers=True keeps the loader's workers",
    "recompiles": "find the guard that fails with TORCH_LOGS=recompiles",
    "dynamic_sizes": "try dynamic=True, mark_dynamic, or padding to a few sizes",
    "values_in_tensors": "keep values that change in tensors (TORCH_LOGS=recompiles)",
    "checkpointing": "activation checkpointing recomputes part of forward",
    "casts": "keep tensors in one type, or let torch.compile fuse them",
    "below_roof": "a well-tuned kernel is faster",
    "tf32": "try torch.set_float32_matmul_precision('high')",
    "unfused_optimizer": "try torch.optim.{optimizer}(..., fused=True)",
    "unfused_optimizer_on_cpu": "try torch.optim.{optimizer}(..., fused=True), from torch 2.4 on",
    "longer_steps": "keep less from step to step",
    "memory_growth": "detach() or item() what outlives a step",
    "anomaly_detection": "leave out set_detect_anomaly(True)",
    "pageable_copies": "use pin_memory=True and non_blocking=True",
    "expandable_segments": "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "even_stages": "move layers from rank {rank} to others",
    "gpipe": "use more microbatches, or an interleaved schedule",
    "1f1b": "use more microbatches, interleaved stages, or a zero-bubble schedule",
    "looped_bfs": "use more microbatches, or interleaved 1F1B",
    "interleaved_1f1b": "use more microbatches, or a zero-bubble schedule",
    "microbatches": "use more microbatches",
    "balance_experts": "balance the tokens of experts, or place experts otherwise",
    "slow_experts": "compare its kernels and its device, as tokens do not explain it",
}
"""What to do, by the remedy of a claim, or by its code."""

ONCE: dict[str, str] = {
    "graph_capture": "a CUDA graph is captured there, once for each shape: trace steps after a warm-up",
    "first_use": "the process begins to use the device here: trace steps after a warm-up",
    "pool_growth": "no memory is returned meanwhile, so the pool still grows, as in a warm-up",
    "pool_refill": "memory was returned to the driver before: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}
"""Why what a claim is about does not recur, by its measure `once`."""

SHARES_OF: dict[str, str] = {
    "rest": "the rest",
}
"""What shares are of, by the measure `share_of`: steps without what is once, which is told beside."""

SHARED_EVIDENCE = (
    "{blocked_by_step_ns} by step",
    "{time_by_step_ns} by step",
    "{by_rank_ns} by rank, most on rank {most_rank}",
    "in {num_steps_with} of {num_counted} counted steps",
    "rank {rank} waits {slack_ns} longer for others anyway",
)
"""Clauses of claims of all codes."""

GAINS = {
    "": "{what_gains} gets {gain} shorter",
    AT_MOST: "{what_gains} gets {gain} shorter",
    BY_REPLAY: "{what_gains} gets {gain} shorter (replay)",
    BY_JOB_REPLAY: "{the_jobs_step} gets {gain} shorter (replay of all ranks)",
    BY_UNPROFILED: "the job's step gets {gain} shorter (95 % interval of unprofiled steps)",
    "nothing": "{the_step} gets no shorter",
}
"""What a step gains, by how that is known."""

MEANINGS = {
    "missing_ops": "a fifth of the ops follows a gap in the profiler's numbering",
    "foreign_trace": "a rank has no event of PyTorch's profiler",
    "empty_recording": "no trace has ops, annotations, Python or device work",
    "desync": "ranks of a group issue different collectives, types or sizes",
    "never_arrived": "by the flight recorders a collective never completed",
    "ranks_alone": "ranks train without a collective in any traced step",
    "out_of_memory": "what is alive at a snapshot's last out-of-memory error",
    "memory_growth": "memory grows over unprofiled steps, by what outlives a traced one",
    "anomaly_detection": "autograd checks the gradients of most nodes for NaN",
    "cold_start": "work done once (start of the device, loading, first calls, a pause) is much of the counted steps",
    "wall_time": "much of the training's wall time is outside regular steps",
    "longer_steps": "unprofiled steps take half as much again in the second half of a recording",
    "garbage_collection": "Python's collector takes much of a rank's unprofiled steps",
    "busy_machine": "a thread of the step waits for a core that processes outside the job keep busy",
    "contended_cores": "a thread of the step waits for a core, as the job wants more than there are",
    "compiling": "torch.compile takes much of the counted steps, but not of later ones",
    "recompiles": "most counted steps compile a function again",
    "host_bound": "the device waits while the host prepares the next launch",
    "launch_bound": "the device idles in gaps of up to 1 ms without a sync, and many kernels are tiny",
    "host_round_trips": "the device idles while ops copy to the host and back",
    "costly_sync": "by replay most steps are shorter without the syncs of one place",
    "costly_allocation": "by replay a step is shorter without one place's calls of the driver for memory",
    "free_sync": "a sync blocks the host for long, but by replay costs the step nothing",
    "joint_syncs": "by replay a step gains more without any sync than without those of one place",
    "sync_wait": "the device idles after syncs",
    "outside_phases": "much of an unprofiled step is outside its phases",
    "host_op": "without a device's rows, the op in which the host is longest",
    "starved": "nothing runs while the main thread is in the data loader, and by replay that costs the step",
    "worker_restarts": "the loop starts a loader's workers anew, and nothing runs until the first batch",
    "dataload_wait": "without a device, the main thread waits for the data loader",
    "device_bound": "the device computes nearly all the time",
    "cpu_bound": "without a device, ops compute nearly all the time",
    "python_bound": "without a device, the main thread is in no op for much of the time",
    "below_roof": "by replay a step is shorter if one op comes as close to its roof as well-tuned kernels do",
    "casts": "kernels that only change a type take a part of most steps",
    "unfused_attention": "products, softmax and products of one shape in a row take much of the step",
    "unfused_optimizer": "fusing an optimizer could save much of the step, without one pass over its tensors",
    "exposed_comm": "collectives run, or calls of other processes, while nothing computes",
    "exposed_wait": "ranks wait for the last to arrive while nothing computes",
    "exposed_transfer": "ranks exchange data while nothing computes",
    "straggler": "the others wait for one rank, beyond chance",
    "late_ranks": "ranks of one kind are later than the others",
    "pipeline_bubble": "the ranks of a pipeline are idle for much of the mean step",
    "expert_imbalance": "the others wait for a rank that computes longer for experts than the mean",
    "strategy": "a rank's collectives are not those of its parallelism",
    "metric_gathers": "every step exchanges metrics while nothing computes",
    "buffer_broadcasts": "nothing computes while DDP sends buffers before its forward pass",
    "repeated_reductions": "DDP reduces the same gradients in several backward passes of one optimizer step",
    "unused_search": "DDP looks for unused parameters in every step, and each gets a gradient",
    "exposed_memcpy": "copies run while nothing computes",
    "pageable_copies": "by replay a step is shorter if the host did not wait for copies from pageable memory",
    "alloc_wait": "the device idles while the allocator asks the driver for memory",
    "allocator_retries": "within steps the allocator returns memory to the driver, and asks for it again",
    "fragmentation": "a request fails although its pool has that much free, in smaller pieces",
    "memory_peak": "what is alive at the peak of a snapshot",
    "memory_delta": "what is alive at the peak of one snapshot and not of the other",
}
"""When each claim is made, for the page of claims."""
