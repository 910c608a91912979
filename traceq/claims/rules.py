"""Rules: a row for each claim that traceq makes, with what it means, what it explains, and what its limits are."""

from __future__ import annotations

from traceq.claims.claim import Claim
from traceq.claims.limits import EXPLAINED, LOST, NOTABLE, REASON, RETRAINED, UNEVEN_STAGES, Limit
from traceq.frozen import frozen

__all__ = ["NO_RULE", "RULES", "Rule", "rule_of", "supersedes"]


@frozen
class Rule:
    """What is the same for all claims of a code.

    `limits` from which it is made. `explains`: codes of claims about the same time that it explains better, and
    `explains_syncs` kinds of syncs. `is_error`: it questions all the rest. `is_note`: nothing is to be done about it.
    `whatif`: the option of `traceq whatif` that asks what its remedy gains.
    """

    code: str
    meaning: str
    limits: tuple[Limit, ...] = ()
    explains: tuple[str, ...] = ()
    explains_syncs: tuple[str, ...] = ()
    is_error: bool = False
    is_note: bool = False
    whatif: str = ""


_OVERLAP = ("exposed_comm", "exposed_wait", "exposed_transfer")

_ALL = (
    # what questions the rest
    Rule("missing_ops", "the profiler lost ops of the host", is_error=True),
    Rule("foreign_trace", "no event is of PyTorch's profiler", is_error=True),
    Rule("empty_recording", "no op, no annotation and no work of a device is recorded", is_error=True),
    Rule("desync", "ranks issue different collectives, or with different arguments", limits=(LOST,), is_error=True),
    Rule("never_arrived", "a collective never completed, by the flight recorders", is_error=True),
    Rule("ranks_alone", "ranks train and exchange nothing", is_error=True),
    Rule("out_of_memory", "the allocator found no memory", is_error=True),
    # the whole step
    Rule("cold_start", "time that the job takes once: starts, loading, compiling, first calls, a pause"),
    Rule("wall_time", "most of the job's wall time is not regular steps"),
    Rule("garbage_collection", "Python's collector takes much of the time"),
    Rule("busy_machine", "processes outside the job keep cores busy", is_note=True),
    Rule("contended_cores", "the job's own processes keep threads of a step waiting for a core"),
    Rule("compiling", "torch.compile compiles in the steps"),
    Rule("recompiles", "torch.compile compiles again, as a guard failed"),
    # the host
    Rule("host_bound", "the device waits while the host prepares the next launch"),
    Rule(
        "launch_bound",
        "the device idles in many short gaps until the next kernel is launched",
        explains=("host_bound",),
        whatif="--no-launch-latency",
    ),
    Rule("host_round_trips", "the device idles while ops copy to the host and back", explains=("host_bound",)),
    Rule(
        "costly_sync",
        "a step is shorter without a call that waits for the device",
        explains=("sync_wait",),
        whatif="--without syncs",
    ),
    Rule("costly_allocation", "a step is shorter without a call of the allocator", explains=("alloc_wait",)),
    Rule("free_sync", "a call blocks the host for long, and removing it saves nothing", is_note=True),
    Rule(
        "joint_syncs",
        "syncs that save little alone save much together",
        explains=("sync_wait", "alloc_wait"),
        whatif="--without syncs",
    ),
    Rule("sync_wait", "the device idles after syncs"),
    Rule("outside_phases", "much of an unprofiled step is in no phase"),
    Rule("long_backward", "the backward pass takes longer than the forward pass explains"),
    Rule("host_op", "the op in which the host is longest, where the device is not recorded", is_note=True),
    # the data loader
    Rule(
        "starved",
        "the step waits for the data loader",
        explains=("host_bound", "dataload_wait"),
        whatif="--without loader",
    ),
    Rule(
        "batch_transfer",
        "the step waits for batches that workers had ready before",
        explains=("host_bound", "dataload_wait"),
    ),
    Rule(
        "worker_restarts",
        "workers of the data loader are started again for each epoch",
        explains=("starved", "dataload_wait", "host_bound"),
    ),
    Rule("dataload_wait", "the main thread waits for the data loader"),
    # what computes
    Rule("device_bound", "the device computes nearly all the time", is_note=True),
    Rule("cpu_bound", "ops on the CPU take nearly all the time", is_note=True),
    Rule("python_bound", "Python between ops takes much of the time", is_note=True),
    Rule("below_roof", "an op reaches little of what the device can do"),
    Rule("unfused_attention", "attention computes its scores in separate kernels", explains=("below_roof",)),
    Rule("unfused_optimizer", "the optimizer updates each parameter by kernels of its own"),
    # communication
    Rule("exposed_comm", "collectives run while nothing computes"),
    Rule("exposed_wait", "ranks wait for the last one to arrive"),
    Rule("exposed_transfer", "ranks exchange data while nothing computes"),
    Rule(
        "straggler",
        "the others wait for a rank that is late in most steps",
        limits=(REASON,),
        explains=("exposed_wait",),
        whatif="--without-straggler",
    ),
    Rule("late_ranks", "ranks of one kind are later than the others", limits=(EXPLAINED,), explains=("exposed_wait",)),
    Rule("pipeline_bubble", "stages of a pipeline are idle", limits=(RETRAINED, UNEVEN_STAGES), explains=_OVERLAP),
    Rule("expert_imbalance", "a rank computes longer for experts, and the others wait", limits=(NOTABLE, EXPLAINED)),
    Rule("strategy", "the collectives are not those of the parallelism that the trace shows", limits=(LOST,)),
    Rule("metric_gathers", "every step exchanges metrics", limits=(NOTABLE,)),
    Rule("buffer_broadcasts", "DistributedDataParallel sends buffers in every forward pass", limits=(RETRAINED,)),
    # copies and memory
    Rule("exposed_memcpy", "copies run while nothing computes"),
    Rule("pageable_copies", "copies from pageable memory block the host", explains_syncs=("htod",)),
    Rule("alloc_wait", "the device idles while the allocator asks the driver"),
    Rule(
        "allocator_retries",
        "the allocator returns memory to the driver and asks for it again",
        explains=("alloc_wait",),
        explains_syncs=("alloc",),
    ),
    Rule(
        "uncached_allocations",
        "every allocation asks the driver",
        explains=("alloc_wait", "joint_syncs"),
        explains_syncs=("alloc",),
    ),
    Rule("fragmentation", "the memory that is free is in too small pieces", is_error=True),
    Rule("memory_peak", "what is alive at the peak of memory"),
    Rule("memory_delta", "what is alive at the peak of one recording and not of the other"),
)

RULES = {rule.code: rule for rule in _ALL}
"""Rules by code."""
NO_RULE = Rule("", "a claim of another package")


def rule_of(claim: Claim) -> Rule:
    """Return the rule that made a claim."""
    return RULES.get(claim.code, NO_RULE)


def supersedes(claim: Claim, other: Claim) -> bool:
    """Return whether a claim explains better, for a part of its time, what another one is about.

    Of two about rows of one table only if it is the same row.
    """
    rule = rule_of(claim)
    is_same = not claim.key or not other.key or claim.key == other.key
    return (other.code in rule.explains and is_same) or other.subject.kind in rule.explains_syncs
