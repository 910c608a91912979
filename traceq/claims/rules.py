"""Rules: a row for each claim that traceq makes, with its limits and what it explains; the severity of all alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traceq.claims.claim import HIGH, LOW, MEDIUM, Basis, Claim
from traceq.claims.limits import (
    BUSY_CORES,
    FAR_MORE,
    FEW,
    LARGE,
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
)
from traceq.frozen import frozen


@frozen
class Rule:
    """What is the same for all claims of a code.

    `limits` from which it is made. `explains`: codes of claims about the same time that it explains better, and
    `explains_syncs` kinds of syncs. `questions_rest`: it stands first. `is_note`: nothing is to be done about it.
    `whatif`: the option of `traceq whatif` that asks what its remedy gains. `toggles`: those that make its remedy.
    """

    limits: tuple[float, ...] = ()
    explains: tuple[str, ...] = ()
    explains_syncs: tuple[str, ...] = ()
    questions_rest: bool = False
    is_note: bool = False
    whatif: str = ""
    toggles: tuple[str, ...] = ()


_OVERLAP = ("exposed_comm", "exposed_wait", "exposed_transfer")

RULES = {
    # what questions the rest
    "missing_ops": Rule(questions_rest=True),
    "foreign_trace": Rule(questions_rest=True),
    "empty_recording": Rule(questions_rest=True),
    "desync": Rule((LOST,), questions_rest=True),
    "never_arrived": Rule(questions_rest=True),
    "ranks_alone": Rule(questions_rest=True),
    "out_of_memory": Rule(questions_rest=True),
    "memory_growth": Rule((LARGE, MOST), questions_rest=True),
    "anomaly_detection": Rule((NOTABLE, MOST), questions_rest=True),
    # the whole step
    "cold_start": Rule((LARGE,), questions_rest=True),
    "wall_time": Rule(questions_rest=True),
    "longer_steps": Rule((MOST,), questions_rest=True),
    "garbage_collection": Rule((MODERATE,), explains=("outside_phases", "python_bound"), toggles=("@gc",)),
    "busy_machine": Rule((MODERATE, BUSY_CORES), is_note=True),
    "contended_cores": Rule((MODERATE, MUCH, WORKER_CORES), toggles=("@threads",)),
    "compiling": Rule((MODERATE,), explains=("cold_start",)),
    "recompiles": Rule((MODERATE,), explains=("cold_start",)),
    # the host
    "host_bound": Rule((LARGE,)),
    "launch_bound": Rule(
        (LARGE, MUCH, SHORT_GAP), explains=("host_bound",), whatif="--no-launch-latency", toggles=("@optimizer",)
    ),
    "host_round_trips": Rule((LARGE, MOST, SHORT_GAP), explains=("host_bound",)),
    "costly_sync": Rule(explains=("sync_wait", "free_sync"), whatif="--without syncs"),
    "costly_allocation": Rule(explains=("alloc_wait",)),
    "free_sync": Rule(is_note=True),
    "joint_syncs": Rule((FEW, FAR_MORE), explains=("sync_wait", "alloc_wait"), whatif="--without syncs"),
    "sync_wait": Rule((FEW,)),
    "outside_phases": Rule((LARGE,)),
    "host_op": Rule((MOST,), is_note=True),
    # the data loader
    "starved": Rule(
        (MODERATE,),
        explains=("host_bound", "dataload_wait"),
        whatif="--without loader",
        toggles=("@prefetch",),
    ),
    "worker_restarts": Rule((MODERATE,), explains=("starved", "dataload_wait", "host_bound")),
    "dataload_wait": Rule((MODERATE,), toggles=("@prefetch",)),
    # what computes
    "device_bound": Rule((LIMITING,), is_note=True),
    "cpu_bound": Rule((LIMITING, MOST), is_note=True),
    "python_bound": Rule((MUCH,), is_note=True),
    "below_roof": Rule((LARGE,), toggles=("@matmul_precision",)),
    "casts": Rule((MODERATE,)),
    "unfused_attention": Rule((LARGE,), explains=("below_roof",)),
    "unfused_optimizer": Rule((LARGE,), toggles=("@optimizer",)),
    # communication
    "exposed_comm": Rule((LARGE,)),
    "exposed_wait": Rule((MODERATE,)),
    "exposed_transfer": Rule((MODERATE,)),
    "straggler": Rule((MODERATE, MUCH), explains=("exposed_wait",), whatif="--without-straggler"),
    "late_ranks": Rule((MOST,), explains=("exposed_wait",)),
    "pipeline_bubble": Rule((LARGE, UNEVEN_STAGES), explains=_OVERLAP),
    "expert_imbalance": Rule((FEW, MOST)),
    "strategy": Rule((LOST,)),
    "metric_gathers": Rule((NOTABLE,), explains=_OVERLAP),
    "buffer_broadcasts": Rule((MODERATE,), explains=_OVERLAP, toggles=("@ddp",)),
    "repeated_reductions": Rule((MODERATE,), explains=_OVERLAP, toggles=("@no_sync",)),
    "unused_search": Rule(toggles=("@find_unused",)),
    # copies and memory
    "exposed_memcpy": Rule((MODERATE,)),
    "pageable_copies": Rule((NOTABLE,), explains_syncs=("htod",)),
    "alloc_wait": Rule((FEW,)),
    "allocator_retries": Rule((NOTHING,), explains=("alloc_wait", "joint_syncs"), explains_syncs=("alloc",)),
    "fragmentation": Rule(questions_rest=True),
    "memory_peak": Rule(),
    "memory_delta": Rule(),
}
"""Rules by the code of the claims that each makes."""
_OF_ANOTHER_PACKAGE = Rule()


def rule_of(claim: Claim) -> Rule:
    """Return the rule that made a claim."""
    return RULES.get(claim.code, _OF_ANOTHER_PACKAGE)


def questions_rest(claim: Claim) -> bool:
    """Return whether a claim stands before what a step gains; of another package if it is severe and has no gain."""
    rule = rule_of(claim)
    return rule.questions_rest or (rule is _OF_ANOTHER_PACKAGE and claim.severity == HIGH and claim.gain is None)


def supersedes(claim: Claim, other: Claim) -> bool:
    """Return whether a claim explains better, for a part of its time, what another one is about.

    Of two about rows of one table only if it is the same row, or line of source. What some collectives expose explains
    exposed communication only if it is most of it; a rank that is late by its host what the host takes only if the step
    gains most of that without it.
    """
    rule = rule_of(claim)
    is_most = float(claim.measures.get("exposed_pct", 100)) >= 100 * MOST
    is_line = claim.subject.line != "" and claim.subject.line == other.subject.line
    is_same = not claim.key or not other.key or claim.key == other.key or is_line
    if (claim.code, other.code) == ("straggler", "host_bound"):
        return claim.gain is not None and other.gain is not None and claim.gain[0] >= MOST * other.gain[1]
    return (other.code in rule.explains and is_same and is_most) or other.subject.kind in rule.explains_syncs


_ENDS = ("first_use", "graph_capture", "pool_growth")
"""Why what a claim is about does not recur (`claims.sentences.ONCE`), where later steps have none of it."""


def judged(
    claims: Iterable[Claim],
    basis: Basis,
    step_ns: float,
    *,
    num_alone: int = 0,
    has_unprofiled: bool = False,
) -> tuple[Claim, ...]:
    """Return claims with what they rest on and their severity, of a job whose mean step takes `step_ns`.

    Where all but `num_alone` ranks are missing, which may be later, the step may gain nothing. Later steps gain nothing
    of what is once.
    """

    def judge(claim: Claim) -> Claim:
        gain = (0, claim.gain[1]) if claim.gain is not None and num_alone else claim.gain
        if claim.measures.get("once") in _ENDS:
            gain = (0, 0)
        rests_on = claim.basis or basis
        if not rests_on.is_unprofiled:
            rests_on = replace(rests_on, is_beside_unprofiled=has_unprofiled, num_alone=num_alone * (gain is not None))
        claim = replace(claim, basis=rests_on, gain=gain)
        return replace(claim, severity=claim.severity or severity_of(claim, step_ns))

    return tuple(map(judge, claims))


def severity_of(claim: Claim, step_ns: float) -> str:
    """Return how much a claim matters in a step of `step_ns`, 0 where that is not known."""
    rule = rule_of(claim)
    if rule.questions_rest and not claim.ns:
        return HIGH
    if rule.is_note or (claim.gain is not None and claim.gain[1] < NOTHING * step_ns):
        return LOW
    return HIGH if 0 < LARGE * step_ns <= claim.ns else MEDIUM
