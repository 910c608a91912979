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


_LOST = "or the trace lost events: {lost_pct} of it waits for work that it does not show"

SENTENCES: dict[str, Sentence] = {
    "costly_sync": Sentence(
        ("{kind} sync at {line}: {remedy}", "{kind} sync in {op}: {remedy}"),
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
            "{what} takes {what_excess_ns} longer",
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
            _LOST,
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
            "each rank then keeps buffers of its own, such as statistics of batch norm",
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
            _LOST,
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
    "costly_sync": "remove it",
    "costly_allocation": "allocate before the steps, or less",
    "free_sync": "leave it",
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
