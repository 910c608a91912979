"""Rules: a row for each claim that traceq makes, with what it means, what it explains, and what its limits are."""

from __future__ import annotations

from traceq.claims.claim import HIGH, Claim
from traceq.claims.limits import (
    BUSY_CORES,
    FAR_MORE,
    FEW,
    LARGE,
    LEAST_BATCHES,
    LIMITING,
    LOST,
    MODERATE,
    MOST,
    MUCH,
    NOTABLE,
    NOTHING,
    SHORT_GAP,
    UNEVEN_STAGES,
    WORKER_CORES,
    Limit,
)
from traceq.frozen import frozen

__all__ = ["RULES", "questions_rest", "rule_of", "supersedes"]


@frozen
class Rule:
    """What is the same for all claims of a code.

    `limits` from which it is made. `explains`: codes of claims about the same time that it explains better, and
    `explains_syncs` kinds of syncs. `questions_rest`: it stands first. `is_note`: nothing is to be done about it.
    `whatif`: the option of `traceq whatif` that asks what its remedy gains.
    """

    code: str
    meaning: str
    limits: tuple[Limit, ...] = ()
    explains: tuple[str, ...] = ()
    explains_syncs: tuple[str, ...] = ()
    questions_rest: bool = False
    is_note: bool = False
    whatif: str = ""


_OVERLAP = ("exposed_comm", "exposed_wait", "exposed_transfer")

_ALL = (
    # what questions the rest
    Rule(
        "missing_ops",
        "a fifth of the ops follows a gap in the profiler's numbering",
        questions_rest=True,
    ),
    Rule("foreign_trace", "a rank has no event of PyTorch's profiler", questions_rest=True),
    Rule("empty_recording", "no trace has ops, annotations, Python or device work", questions_rest=True),
    Rule(
        "desync",
        "ranks issue different collectives in a group, or with different types or sizes",
        (LOST,),
        questions_rest=True,
    ),
    Rule("never_arrived", "the flight recorders show a collective that never completed", questions_rest=True),
    Rule("ranks_alone", "recorded ranks train, and issue no collective in any traced step", questions_rest=True),
    Rule("out_of_memory", "what is alive at a snapshot's last out-of-memory error", questions_rest=True),
    Rule(
        "memory_growth",
        "unprofiled steps make memory grow, by as much as tensors of one step outlive it",
        (LARGE, MOST),
        questions_rest=True,
    ),
    # the whole step
    Rule(
        "cold_start",
        "what happens once (start of the device, loading, first calls, a pause) is much of the counted steps",
        (LARGE,),
        questions_rest=True,
    ),
    Rule("wall_time", "much of the training's wall time is not in regular steps", questions_rest=True),
    Rule(
        "longer_steps",
        "unprofiled steps of the second half of a recording take half as much again as those of the first",
        (MOST,),
        questions_rest=True,
    ),
    Rule(
        "garbage_collection",
        "Python's collector takes much of the unprofiled steps of a rank",
        (MODERATE,),
        explains=("outside_phases", "python_bound"),
        questions_rest=True,
    ),
    Rule(
        "busy_machine",
        "processes outside the job keep cores busy, and a thread of the step waits for one",
        (MODERATE, BUSY_CORES),
        is_note=True,
    ),
    Rule(
        "contended_cores",
        "the job's threads and workers want more cores than there are, and a thread of the step waits for one",
        (MODERATE, MUCH, WORKER_CORES),
    ),
    Rule(
        "compiling",
        "torch.compile takes much of the counted steps, but not of later ones",
        (MODERATE,),
        explains=("cold_start",),
    ),
    Rule(
        "recompiles",
        "in most counted steps a function is compiled that was compiled before",
        (MODERATE,),
        explains=("cold_start",),
    ),
    # the host
    Rule("host_bound", "the device waits while the host prepares the next launch", (LARGE,)),
    Rule(
        "launch_bound",
        "the device idles in gaps of up to 1 ms that no sync caused, and many kernels are tiny",
        (LARGE, MUCH, SHORT_GAP),
        explains=("host_bound",),
        whatif="--no-launch-latency",
    ),
    Rule(
        "host_round_trips",
        "the device idles while ops copy to the host and back",
        (LARGE, MOST, SHORT_GAP),
        explains=("host_bound",),
    ),
    Rule(
        "costly_sync",
        "by replay a step is shorter without the syncs of one place, in most steps",
        explains=("sync_wait", "free_sync"),
        whatif="--without syncs",
    ),
    Rule(
        "costly_allocation",
        "by replay a step is shorter without the allocator's calls of the driver at one place",
        explains=("alloc_wait",),
    ),
    Rule("free_sync", "a sync blocks the host for long, but by replay a step without it takes as long", is_note=True),
    Rule(
        "joint_syncs",
        "by replay a step gains more without any sync than without those of one place",
        (FEW, FAR_MORE),
        explains=("sync_wait", "alloc_wait"),
        whatif="--without syncs",
    ),
    Rule("sync_wait", "the device idles after syncs", (FEW,)),
    Rule(
        "outside_phases",
        "much of an unprofiled step is outside its phases; traced steps show the lines",
        (LARGE,),
    ),
    Rule("host_op", "the op in which the host is longest, where the device is not recorded", (MOST,), is_note=True),
    # the data loader
    Rule(
        "starved",
        "nothing runs while the main thread is in the data loader, and by replay a step without this wait is shorter",
        (MODERATE, LEAST_BATCHES),
        explains=("host_bound", "dataload_wait"),
        whatif="--without loader",
    ),
    Rule(
        "worker_restarts",
        "the loop starts the workers of a loader anew, and nothing runs until the first batch",
        (MODERATE,),
        explains=("starved", "dataload_wait", "host_bound"),
    ),
    Rule("dataload_wait", "without a device, the main thread waits for the data loader", (MODERATE,)),
    # what computes
    Rule("device_bound", "the device computes nearly all the time", (LIMITING,), is_note=True),
    Rule(
        "cpu_bound",
        "without a device, ops compute nearly all the time, or one place has most of it",
        (LIMITING, MOST),
        is_note=True,
    ),
    Rule("python_bound", "without a device, the main thread is in no op for much of the time", (MUCH,), is_note=True),
    Rule(
        "below_roof",
        "by replay a step is shorter if one op comes as close to its roof as well-tuned kernels do",
        (LARGE,),
    ),
    Rule("casts", "kernels that only change a type take a part of most steps", (MODERATE,)),
    Rule(
        "unfused_attention",
        "products, softmax and products of one shape in a row take much of the step",
        (LARGE,),
        explains=("below_roof",),
    ),
    Rule(
        "unfused_optimizer",
        "an optimizer that torch can fuse runs as foreach or as a loop, and takes much of the step",
        (LARGE,),
    ),
    # communication
    Rule("exposed_comm", "collectives run while nothing computes", (LARGE,)),
    Rule(
        "exposed_wait",
        "by the traces of all ranks, they wait for the last to arrive while nothing computes",
        (MODERATE,),
    ),
    Rule("exposed_transfer", "ranks exchange data while nothing computes", (MODERATE,)),
    Rule(
        "straggler",
        "the others wait for a late rank, beyond chance, in unprofiled steps or else in most traced ones",
        (MODERATE, MUCH),
        explains=("exposed_wait",),
        whatif="--without-straggler",
    ),
    Rule("late_ranks", "ranks of one kind are later than the others", (MOST,), explains=("exposed_wait",)),
    Rule(
        "pipeline_bubble",
        "the ranks of a pipeline are idle for much of the mean step",
        (LARGE, UNEVEN_STAGES),
        explains=_OVERLAP,
    ),
    Rule(
        "expert_imbalance",
        "one rank computes longer for experts than the mean, and the others wait for it",
        (FEW, MOST),
    ),
    Rule("strategy", "the collectives of a rank are not those of the parallelism that its trace shows", (LOST,)),
    Rule("metric_gathers", "every step exchanges metrics while nothing computes", (NOTABLE,), explains=_OVERLAP),
    Rule(
        "buffer_broadcasts",
        "nothing computes between the start of DDP's forward pass, which sends buffers, and its first op",
        (MODERATE,),
    ),
    Rule(
        "repeated_reductions",
        "DDP reduces the same gradients in several backward passes before one step of the optimizer",
        (MODERATE,),
        explains=_OVERLAP,
    ),
    Rule("unused_search", "DDP looks for unused parameters in every step, and each parameter gets a gradient"),
    # copies and memory
    Rule("exposed_memcpy", "copies run while nothing computes", (MODERATE,)),
    Rule(
        "pageable_copies",
        "by replay a step is shorter if the host did not wait for copies from pageable memory",
        (NOTABLE,),
        explains_syncs=("htod",),
    ),
    Rule("alloc_wait", "the device idles while the allocator asks the driver for memory", (FEW,)),
    Rule(
        "allocator_retries",
        "the allocator returns memory to the driver within steps, and asks for it again",
        (NOTHING,),
        explains=("alloc_wait",),
        explains_syncs=("alloc",),
    ),
    Rule(
        "fragmentation", "a request fails although its pool has that much free, in smaller pieces", questions_rest=True
    ),
    Rule("memory_peak", "what is alive at the peak of a snapshot"),
    Rule("memory_delta", "what is alive at the peak of one snapshot and not of the other"),
)

RULES = {rule.code: rule for rule in _ALL}
"""Rules by code."""
NO_RULE = Rule("", "a claim of another package")


def rule_of(claim: Claim) -> Rule:
    """Return the rule that made a claim."""
    return RULES.get(claim.code, NO_RULE)


def questions_rest(claim: Claim) -> bool:
    """Return whether a claim stands before what a step gains; of another package if it is severe and has no gain."""
    rule = rule_of(claim)
    return rule.questions_rest or (rule is NO_RULE and claim.severity == HIGH and claim.gain is None)


def supersedes(claim: Claim, other: Claim) -> bool:
    """Return whether a claim explains better, for a part of its time, what another one is about.

    Of two about rows of one table only if it is the same row, or line of source. What some collectives expose explains
    exposed communication only if it is most of it.
    """
    rule = rule_of(claim)
    is_most = float(claim.measures.get("exposed_pct", 100)) >= 100 * MOST
    is_line = claim.subject.line != "" and claim.subject.line == other.subject.line
    is_same = not claim.key or not other.key or claim.key == other.key or is_line
    return (other.code in rule.explains and is_same and is_most) or other.subject.kind in rule.explains_syncs
