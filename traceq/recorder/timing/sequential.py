"""Timing that stops when it knows: all ranks look at the pairs so far, and rank 0 says which comparisons go on.

A look gathers the pairs of all ranks, so it happens between groups, where nothing is timed. The number of looks is
fixed after the warm-up, by how many pairs fit into the time: what an interval has to prove depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import mean
from time import monotonic

from traceq.recorder.rank.rank import Rank
from traceq.recorder.spec.schedule import Group, comparisons, group_sizes, schedule
from traceq.recorder.tracing.traced_steps import num_traced_steps
from traceq.runs.step_log import Line, PairLine, StepLine, pairs_of
from traceq.stats import LOOKS, Comparison, compare_pairs, samples_apart
from traceq.units import Unit, format_value

__all__ = ["groups_until_decided", "looks_within", "sentence"]

Compared = tuple[str, str]
_WORDS = {"in_the_noise": "in the noise", "material": "material"}


def groups_until_decided(rank: Rank, warm_up: Sequence[Line], found: Sequence[PairLine]) -> Iterator[Group]:
    """Yields the groups to run, until each comparison is decided, out of looks, or out of time.

    The caller adds the pairs of a group to `found` before it asks for the next. The control runs as long as any
    comparison does, and never longer: it has to show the noise of as many pairs, and nothing waits for its verdict.
    """
    compared = comparisons([planned.arm for planned in rank.plan.arms])
    seconds = 60 * rank.plan.max_minutes
    deadline = monotonic() + seconds
    looks = rank.world.share(looks_within(seconds, _pair_seconds(rank, compared, warm_up)))
    _announce(rank, compared, looks)
    undecided = [names for names in compared if names[0] != names[1]]
    for num_pairs, groups in groupby(schedule(compared, looks, rank.plan.seed), lambda group: group.end_pair):
        for group in groups:
            if group.is_control or (group.a, group.b) in undecided:
                yield group
        is_last = num_pairs == looks[-1] or rank.world.share(monotonic() >= deadline)
        if is_last or num_pairs in looks:
            undecided = _look(rank, found, undecided, is_last=is_last)
        if is_last or not undecided:
            return


def looks_within(seconds: float, pair_seconds: float) -> tuple[int, ...]:
    """As many looks as fit, one at least; each group settles for one pair before its own."""
    within = (
        looks
        for looks in (LOOKS[:num] for num in range(len(LOOKS), 1, -1))
        if (looks[-1] + len(group_sizes(looks))) * pair_seconds <= seconds
    )
    return next(within, LOOKS[:1])


def sentence(arm: str, found: Comparison, *, is_last: bool) -> str:
    """`on: +1.1 % (-0.40 to +2.6) after 32 pairs, not yet decided`; the interval is the one that decides."""
    name = found.verdict.name
    interval = found.ci90_ns if name == "in_the_noise" else found.ci95_ns
    ends = [_percent(100 * end / found.a_ns).removesuffix(" %") for end in interval or ()]
    span = f" ({' to '.join(ends)})" if ends else ""
    state = _WORDS.get(name, "undecided" if is_last else "not yet decided")
    per = " a sample" if found.samples else ""
    return f"{arm}: {_percent(found.delta_pct)}{span}{per} after {found.num_pairs:,} pairs, {state}"


def _percent(value: float) -> str:
    return format_value(value, Unit.DELTA_PERCENT)


def _pair_seconds(rank: Rank, compared: Sequence[Compared], warm_up: Sequence[Line]) -> float:
    """Time of one pair of every comparison, each step as long as on its slowest rank, from the warm-up's later half."""
    steps = [line for line in warm_up if isinstance(line, StepLine)]
    mine: dict[str, list[int]] = {}
    for step in steps[len(steps) // 2 :]:
        mine.setdefault(step.arm, []).append(step.device_ns or step.wall_ns)
    ranks: list[Mapping[str, float]] = rank.world.gather({arm: mean(times) for arm, times in mine.items()})
    step_ns = {arm: max(means[arm] for means in ranks) for arm in mine}
    return rank.plan.steps_per_half * sum(step_ns[a] + step_ns[b] for a, b in compared) / 1e9


def _announce(rank: Rank, compared: Sequence[Compared], looks: Sequence[int]) -> None:
    """Say how long it may take, to the progress bar too."""
    sizes = group_sizes(looks)
    num_steps = 2 * len(compared) * (sum(sizes) + len(sizes)) * rank.plan.steps_per_half
    rank.pulse.expect(num_steps + num_traced_steps(rank.plan))
    times = "1 look" if len(looks) == 1 else f"{len(looks)} looks"
    rank.say(f"up to {looks[-1]} pairs a comparison, {times}, within {rank.plan.max_minutes:g} min")


def _look(rank: Rank, found: Sequence[PairLine], undecided: Sequence[Compared], *, is_last: bool) -> list[Compared]:
    """The comparisons that are still undecided, the same on every rank."""
    pairs = {(pairs.a, pairs.b): pairs for pairs in pairs_of(rank.world.gather(list(found)))}
    samples = {planned.arm.name: planned.arm.samples_per_step for planned in rank.plan.arms}
    results = {(a, b): compare_pairs(pairs[a, b], samples=samples_apart(samples[a], samples[b])) for a, b in undecided}
    for (_, arm), result in results.items():
        rank.say(sentence(arm, result, is_last=is_last))
    return rank.world.share([names for names, result in results.items() if not result.verdict.is_final])
