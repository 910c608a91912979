"""What a claim about time rests on, and what the job gains by it.

It rests on unprofiled steps where a run has them, else on steps of a trace that agree. The gain is by the replay of all
ranks, and by what a rank waits for others anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceq.analysis import sentences
from traceq.claims.claim import BY_JOB_REPLAY, Basis, Claim
from traceq.claims.limits import NEARLY_ALL, NOTABLE, NOTHING
from traceq.errors import UsageFault
from traceq.facts.memo import once_per_object
from traceq.facts.ranks.exposed_waits import waiting_times
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.phases import OTHER
from traceq.facts.timeline.steps import Steps
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.frozen import frozen
from traceq.intervals import measure_within
from traceq.model import Trace
from traceq.stats.means import BLOCK, block_means, lowest_mean
from traceq.whatif.intervention import Intervention
from traceq.whatif.job_replay import CannotReplay, JobReplay, replay_of_ranks
from traceq.whatif.limits import LEAST_STEPS
from traceq.whatif.predict import Change, predict, refuse_unreplayed

Times = NDArray[np.float64]


@frozen
class UnprofiledShare:
    """Mean time of a phase in the unprofiled steps of one rank, and its percentage of the step.

    `exceeds` the least percentage if the lower end of the 95 % interval does, or nearly all of the steps.
    """

    rank: int
    num_steps: int
    ns: int
    pct: float
    exceeds: bool


def unprofiled_share(job: Job, phase: re.Pattern[str], least_pct: float) -> UnprofiledShare | None:
    """Return the share of the phases of such a name on the rank where it is largest.

    None where no such phase was timed, or fewer than two blocks of steps, which are too few for an interval.
    """
    return _share(job, unprofiled_phase_ns(job, phase), least_pct)


def other_share(job: Job, least_pct: float) -> UnprofiledShare | None:
    """Return the share of what is in none of the timed phases, likewise; None where no phase was timed."""
    if job.timings is None or not any(name != OTHER for name in job.timings.phases):
        return None
    return _share(job, unprofiled_phases(job.timings)[-1].ns.astype(np.float64), least_pct)


def _share(job: Job, phase_ns: Times | None, least_pct: float) -> UnprofiledShare | None:
    if job.timings is None or phase_ns is None or phase_ns.shape[1] < 2 * BLOCK:
        return None
    step_ns = job.timings.step_ns.astype(np.float64)
    rank = int((phase_ns.sum(axis=1) / step_ns.sum(axis=1)).argmax())
    of_phase, of_step = phase_ns[rank], step_ns[rank]
    is_in_nearly_all = bool(np.mean(100 * of_phase >= least_pct * of_step) >= NEARLY_ALL)  # whatever a pause adds
    return UnprofiledShare(
        rank=rank,
        num_steps=len(of_step),
        ns=round(float(of_phase.mean())),
        pct=100 * float(of_phase.mean() / of_step.mean()),
        exceeds=is_in_nearly_all or lowest_mean(block_means(of_phase - least_pct / 100 * of_step)) > 0,
    )


def unprofiled_phase_ns(job: Job, phase: re.Pattern[str]) -> Times | None:
    """float64[R, S]: time of the phases of such a name in the unprofiled steps; None where none was timed."""
    timings = job.timings
    index = [number for number, name in enumerate(timings.phases) if phase.search(name)] if timings is not None else []
    if timings is None or not index or not timings.step_ns.size:
        return None
    phase_ns: Times = timings.phase_ns[..., index].sum(axis=2).astype(np.float64)
    return phase_ns


def ranks_differ(step_ns: NDArray[np.int64]) -> bool:
    """Return whether the slowest of the ranks (int64[R, S]) is slower than the fastest by 1 %, beyond their scatter."""
    means = step_ns.mean(axis=1)
    longer = (step_ns[means.argmax()] - step_ns[means.argmin()]).astype(np.float64)
    is_much = float(longer.mean()) >= NOTABLE * float(means.max())
    return is_much and lowest_mean(block_means(longer)) > 0


def holds_in_steps(ns: Times, step_ns: Times, least_pct: float) -> bool:
    """Return whether a time is at least this percentage of most steps, and its share above 0 beyond their scatter.

    `ns`, `step_ns` float64[K] of the counted steps. One or two have no scatter to speak of (the interval of two that
    differ by a third includes 0): all of them have to reach the percentage, and the finding says how many they are.
    """
    in_most = 2 * int(np.count_nonzero(100 * ns >= least_pct * step_ns)) > len(ns)
    return in_most and (len(ns) < LEAST_STEPS or lowest_mean(ns / step_ns) > 0)


def exceeds_in_mean(ns: Times, step_ns: Times, least_pct: float) -> bool:
    """Return whether a time is at least this percentage of the mean step beyond its scatter, in however few of them.

    As waits for a loader with several workers, which bring as many batches at once.
    """
    return len(ns) >= LEAST_STEPS and 100 * lowest_mean(ns / step_ns) >= least_pct


def recurs(steps_ns: Sequence[int], step_ns: Times, least_pct: float) -> bool:
    """Return whether a time is at least this percentage of each counted step, or of most and beyond their scatter.

    Of times that are never negative, as what a replay saves: chance alone gives these no sign. `step_ns` float64[K].
    """
    ns = np.array(steps_ns, np.float64)
    return bool((100 * ns >= least_pct * step_ns).all()) or holds_in_steps(ns, step_ns, least_pct)


def mean_step_ns(steps: Steps) -> float:
    """Return the mean window of the counted steps, ns."""
    return float(step_lengths(steps).mean())


def step_lengths(steps: Steps) -> Times:
    """float64[K] ns: the windows of the counted steps."""
    lengths: Times = np.diff(steps.window[steps.counted])[:, 0].astype(np.float64)
    return lengths


_MOST_EVENTS, _MOST_RANKS = 500_000, 64
"""Events of all ranks, and ranks, up to which they are replayed together; `traceq whatif` has no such bounds.

Here they are in the process that merges: to build the graph of a rank takes it 10 ms however small its trace is.
"""


@frozen
class JobGain:
    """What the mean step of all ranks gains by a change.

    `is_host_bound`: the hosts' own time is most of that step.
    """

    change: Change
    is_host_bound: bool

    @property
    def is_nothing(self) -> bool:
        """Whether the step would be as long as it is."""
        return self.change.most_saved_ns < NOTHING * self.change.now_ns

    @property
    def saved_ns(self) -> tuple[int, int]:
        """Ns that the step of all ranks is shorter at least and at most; no more than the steps scatter is nothing."""
        if self.is_nothing or (self.change.noise_ns is not None and not self.change.is_shorter):
            return 0, 0
        return round(max(self.change.least_saved_ns, 0)), round(self.change.most_saved_ns)


def job_gain(job: Job, intervention: Intervention) -> JobGain | None:
    """Return what a job gains by a change; None where its ranks cannot be replayed together, or it is not there.

    Waits for ranks that were not read would count as transfers, which no change of the others shortens.
    """
    replay = None if job.lacks_ranks else played_job(job)
    if replay is None:
        return None
    try:
        change = predict(replay, [intervention]).together
    except UsageFault:
        return None
    return JobGain(change, 2 * replay.host_ns() >= change.now_ns)


def unplayed_words(job: Job) -> str:
    """Return that each rank is replayed alone, as the job is too large to be replayed unasked; "" where it is not."""
    if len(job.ranks) < 2 or not _is_too_large(job):
        return ""
    bounds = f"{_MOST_RANKS} ranks" if len(job.ranks) > _MOST_RANKS else f"{_MOST_EVENTS:,} events"
    return sentences.ALONE.format(bounds=bounds)


def _is_too_large(job: Job) -> bool:
    return len(job.ranks) > _MOST_RANKS or sum(rank.num_events for rank in job.ranks) > _MOST_EVENTS


@once_per_object
def played_job(job: Job) -> JobReplay | None:
    """Return the replay of all ranks of a job of several; None where they are too many, or no change can be told."""
    if len(job.ranks) < 2 or _is_too_large(job):
        return None
    try:
        replay = replay_of_ranks(job, job.query(_whole, [(rank.rank, None) for rank in job.ranks]))
        refuse_unreplayed(replay)
    except CannotReplay:
        return None
    return replay


def _whole(trace: Trace, _: None) -> Trace:
    return trace


@once_per_object
def waits_in_steps(job: Job) -> dict[int, NDArray[np.int64]]:
    """Return, by rank, how long it waits in collectives for others in each of its counted steps, int64[K] ns.

    Empty where the waits are not known; without ranks of which they are not.
    """
    steps_of, waits_ns = {rank.rank: rank.steps for rank in job.ranks}, dict[int, NDArray[np.int64]]()
    for rank, waiting in waiting_times(job, "later").items():
        windows = steps_of[rank].window[steps_of[rank].counted]
        waits_ns[rank] = measure_within(waiting, windows[:, 0], windows[:, 1])
    return waits_ns


def slack_by_rank(job: Job) -> dict[int, float]:
    """Return, by rank, how long it waits for others in its mean counted step, less the rank that waits least, ns."""
    waits_ns = {rank: float(ns.mean()) for rank, ns in waits_in_steps(job).items()}
    least_ns = min(waits_ns.values(), default=0.0)
    return {rank: ns - least_ns for rank, ns in waits_ns.items()}


def least_waiting_rank(slack_ns: Mapping[int, float]) -> int | None:
    """Return the rank for which the others wait more than it waits for them; None where the waits are not known."""
    return min(slack_ns, key=lambda rank: slack_ns[rank], default=None)


def in_vain(claim: Claim, slack_ns: float) -> Claim:
    """Return the claim that something shortens a rank's own work, as one of no use to the step."""
    return replace(claim, gain=(0, 0), gain_by="", measures={**claim.measures, "slack_ns": round(slack_ns)})


def on_the_worst_rank(
    job: Job,
    claims: Iterable[Claim | None],
    slack_ns: Mapping[int, float] | None = None,
    change: Intervention | None = None,
) -> tuple[Claim, ...]:
    """Return the claim with the most time over all ranks, with that rank and its steps; nothing where no rank has one.

    `claims` in the order of the ranks. With `slack_ns`, by rank, time counts as far as it exceeds what the rank waits
    for others anyway; where it does nowhere, the step gains nothing. The gain is that of all ranks by `change`, where
    it is given and these can be replayed together.
    """
    slack_ns = slack_ns or {}
    by_rank = [(claim, rank) for claim, rank in zip(claims, job.ranks, strict=True) if claim is not None]
    if not by_rank:
        return ()
    claim, worst = max(by_rank, key=lambda pair: pair[0].ns - slack_ns.get(pair[1].rank, 0.0))
    subject = replace(claim.subject, rank=worst.rank) if len(job.ranks) > 1 else claim.subject
    claim = replace(claim, subject=subject, basis=Basis(int(worst.steps.counted.sum()) * worst.steps.marked))
    if change is not None and (gain := job_gain(job, change)) is not None:
        return (replace(claim, gain=gain.saved_ns, gain_by=BY_JOB_REPLAY),)
    own_slack_ns = slack_ns.get(worst.rank, 0.0)
    return (in_vain(claim, own_slack_ns) if own_slack_ns >= claim.ns > 0 else claim,)
