"""What a job of several ranks gains by a change, by the replay of all ranks that `traceq whatif` has."""

from __future__ import annotations

from traceq.claims.limits import NOTHING
from traceq.errors import UsageFault
from traceq.facts.memo import once_per_object
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.whatif.intervention import Intervention
from traceq.whatif.job_replay import CannotReplay, JobReplay, replay_of_ranks
from traceq.whatif.predict import Change, predict
from traceq.whatif.unreplayed import refuse_unreplayed

__all__ = ["JobGain", "job_gain", "played_job", "unplayed_words"]

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
    """Return what a job gains by a change; None where its ranks cannot be replayed together, or it is not there."""
    replay = played_job(job)
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
    return f"What all {len(job.ranks):,} ranks gain together: traceq whatif; of more than {bounds}, each is alone here."


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
