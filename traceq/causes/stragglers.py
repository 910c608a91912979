"""Which ranks are stragglers: decided once, for what `show` says of a job and what `traceq whatif` leaves out of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.causes.sentences import NO_STRAGGLER, UNDECIDED
from traceq.claims.limits import MODERATE
from traceq.facts.memo import once_per_object
from traceq.facts.ranks.caused_waits import CausedWaits, caused_waits, stragglers
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.intervals import empty, sorted_unique
from traceq.stats.means import chance_of_mean
from traceq.stats.ranks import late_ranks, lateness_of_ranks, saved_at_pace_of_others, steps_needed
from traceq.units import name_ranks

_MOST_CHANCE = 0.025


@frozen(eq=False)
class UnprofiledLateness:
    """S unprofiled steps: `late` float64[R, S] ns; phases in which ranks wait for each other, where lateness hides.

    `saves_ns`: (least, most) that the step is shorter if the late ranks are not late; None without any.
    """

    late: NDArray[np.float64]
    waiting_phases: frozenset[str]
    late_ranks: tuple[int, ...]
    saves_ns: tuple[float, float] | None

    @property
    def num_steps(self) -> int:
        """Number of unprofiled steps."""
        return len(self.late[0])


@frozen(eq=False)
class StragglerRanks:
    """The stragglers of a job, those that cause most of the waits first, and what decided.

    `candidates`: the ranks for which the others wait in traced steps; they are stragglers if that is so in most
    steps, and no `unprofiled` ones decide. `is_in_each`: that is so in each of several traced steps.
    `undecided`: why a recording has no answer, and how to get one; "" where it has.
    """

    ranks: tuple[int, ...]
    candidates: tuple[int, ...] = ()
    is_in_each: bool = False
    unprofiled: UnprofiledLateness | None = None
    undecided: str = ""

    @property
    def why_none(self) -> str:
        """Why no rank is a straggler, as the rest of a sentence."""
        if self.undecided:
            return self.undecided
        if self.unprofiled is not None:
            return NO_STRAGGLER["on_time"].format(num=self.unprofiled.num_steps)
        if self.candidates:
            why = NO_STRAGGLER["too_few" if self.is_in_each else "irregular"]
            return why.format(ranks=name_ranks(self.candidates))
        return NO_STRAGGLER["no_waits"]


@once_per_object
def straggler_ranks(job: Job) -> StragglerRanks:
    """Return the ranks that are late: by its unprofiled steps where a recording has enough of them, else by traces.

    A recording with fewer names none. Where only traces exist, lateness has to hold in most traced steps, and beyond
    their scatter.
    """
    ranks = job.issued.ranks
    waits = caused_waits(job, dict.fromkeys(ranks, empty()))
    step_ns = _shortest_step_ns(job, waits)
    indices = stragglers(waits, step_ns, MODERATE).tolist()
    candidates = tuple(ranks[index] for index in indices)
    if undecided := _undecided(job):
        return StragglerRanks((), candidates, undecided=undecided)
    (is_steady, is_in_each), unprofiled = _steadiness(waits, indices, step_ns), _unprofiled(job)
    if unprofiled is None:
        return StragglerRanks(candidates if is_steady else (), candidates, is_in_each)
    late = tuple(sorted(unprofiled.late_ranks, key=lambda rank: (*candidates, rank).index(rank)))
    return StragglerRanks(late, candidates, is_in_each, unprofiled)


def _shortest_step_ns(job: Job, waits: CausedWaits) -> float:
    """Return the shortest mean step of the ranks with a collective that counts, ns; 0 without any."""
    takes_part = (waits.counted[:, None] & (job.waits.duration >= 0)).any(axis=0)
    chosen = {job.issued.ranks[index] for index in np.flatnonzero(takes_part).tolist()}
    windows = (rank.steps.window[rank.steps.counted] for rank in job.ranks if rank.rank in chosen)
    return min((float(np.mean(window[:, 1] - window[:, 0])) for window in windows), default=0.0)


def _undecided(job: Job) -> str:
    """Return why the unprofiled steps of a recording are too few to name a late rank, and how to get enough."""
    if job.manifest is None and job.timings is None:
        return ""
    num = job.timings.step_ns.shape[1] if job.timings is not None else 0
    least = steps_needed(len(job.ranks))
    if num >= least:
        return ""
    return UNDECIDED["too_few" if num else "no_steps"].format(num=num, least=least)


def _steadiness(waits: CausedWaits, candidates: Sequence[int], step_ns: float) -> tuple[bool, bool]:
    """Return whether these ranks together are late in most steps, and beyond their scatter; whether in each of several.

    A single step has no scatter: there, in most of its collectives, and beyond theirs.
    """
    if not candidates:
        return False, False
    is_one = waits.num_steps < 2
    caused = waits.per_collective(waits.ns) if is_one else waits.per_step(waits.ns)
    of_them, all_ranks = caused[:, candidates].sum(axis=1), caused.sum(axis=1)
    by_turns = all_ranks * len(candidates) / caused.shape[1]
    is_late = of_them > all_ranks / 2 if is_one else of_them >= MODERATE * step_ns
    is_beyond = chance_of_mean(of_them - by_turns) <= _MOST_CHANCE
    return 2 * int(np.count_nonzero(is_late)) > len(caused) and is_beyond, bool(is_late.all()) and not is_one


def _unprofiled(job: Job) -> UnprofiledLateness | None:
    """Return the lateness of all ranks in the unprofiled steps of the run's arm; None where that is not recorded."""
    timings, issued = job.timings, job.issued
    if timings is None or issued.ranks != tuple(range(len(timings.step_ns))) or len(issued.ranks) < 2:
        return None
    waiting = frozenset(issued.phases[phase] for phase in sorted_unique(issued.phase).tolist() if phase >= 0)
    index = [number for number, name in enumerate(timings.phases) if name in waiting]
    if not index:
        return None
    step_ns = timings.step_ns.astype(np.float64)
    wait_ns = timings.phase_ns[..., index].sum(axis=2).astype(np.float64)
    own_ns = step_ns - wait_ns
    late = lateness_of_ranks(own_ns, wait_ns, step_ns)
    numbers = late_ranks(late)
    median_ns = float(np.median(step_ns.max(axis=0)))
    saves_ns = saved_at_pace_of_others(own_ns, wait_ns, numbers) if numbers else None
    return UnprofiledLateness(late * median_ns, waiting, numbers, saves_ns)
