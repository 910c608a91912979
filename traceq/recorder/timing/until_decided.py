"""Sequential timing: after each interim look at the pairs of all ranks, only undecided comparisons continue.

A look gathers the pairs of all ranks, so it takes place between blocks, where nothing is timed. The number of looks is
fixed after the warm-up, by the number of pairs that fit into the time limit: the width of the intervals depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import mean
from time import monotonic

from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.schedule import Block, block_sizes, comparisons, schedule
from traceq.recorder.tracing.traced_steps import num_traced_steps
from traceq.runs.step_log import Line, PairLine, StepLine, pairs_of
from traceq.stats import LOOKS, Comparison, answer_together, compare_pairs, samples_apart
from traceq.units import Unit, format_value

__all__ = ["blocks_until_decided", "look_text", "looks_within"]

Compared = tuple[str, str]

_FEW = 3
"""Questions of which each look prints a line; of more only those that are answered, or end without an answer."""


def blocks_until_decided(rank: Rank, warm_up: Sequence[Line], pairs: Sequence[PairLine]) -> Iterator[Block]:
    """Yield the blocks to run until each comparison is decided, out of looks, or out of time.

    The caller appends the pairs of a block to `pairs` before it requests the next one. The A/A control runs exactly as
    long as any other comparison: it measures the noise of as many pairs, and has no verdict to wait for.
    """
    compared = comparisons([planned.arm for planned in rank.plan.arms])
    seconds = 60 * rank.plan.max_minutes
    deadline = monotonic() + seconds
    looks = rank.world.share(looks_within(seconds, _pair_seconds(rank, compared, warm_up)))
    _announce(rank, compared, looks)
    questions = [names for names in compared if names[0] != names[1]]
    undecided = questions
    for num_pairs, blocks in groupby(schedule(compared, looks, rank.plan.seed), lambda block: block.end_pair):
        for block in blocks:
            if block.is_control or (block.a, block.b) in undecided:
                yield block
        is_last = num_pairs == looks[-1] or rank.world.share(monotonic() >= deadline)
        if is_last or num_pairs in looks:
            undecided = _take_look(rank, pairs, questions, undecided, is_last=is_last) if questions else []
        if is_last or not undecided:
            return


def looks_within(seconds: float, pair_seconds: float) -> tuple[int, ...]:
    """Return as many looks as fit into the time, at least one; each block runs one extra pair to settle."""
    fitting = (
        looks
        for looks in (LOOKS[:num] for num in range(len(LOOKS), 1, -1))
        if (looks[-1] + len(block_sizes(looks))) * pair_seconds <= seconds
    )
    return next(fitting, LOOKS[:1])


def look_text(arm: str, comparison: Comparison, *, is_last: bool) -> str:
    """Return `on: +1.1 % (-0.40 to +2.6) after 32 pairs, not yet decided`, with the interval behind the verdict."""
    name = comparison.verdict.name
    interval = comparison.ci90_ns if name == "in_the_noise" else comparison.ci95_ns
    ends = [_percent(100 * end / comparison.a_ns).removesuffix(" %") for end in interval or ()]
    span = f" ({' to '.join(ends)})" if ends else ""
    undecided = "undecided" if is_last else "not yet decided"
    state = comparison.verdict.text if comparison.verdict.is_final else undecided
    unit = " per sample" if comparison.samples else ""
    return f"{arm}: {_percent(comparison.delta_pct)}{span}{unit} after {comparison.num_pairs:,} pairs, {state}"


def _percent(value: float) -> str:
    return format_value(value, Unit.DELTA_PERCENT)


def _pair_seconds(rank: Rank, compared: Sequence[Compared], warm_up: Sequence[Line]) -> float:
    """Return the time of one pair of every comparison, s, from the second half of the warm-up on the slowest rank."""
    steps = [line for line in warm_up if isinstance(line, StepLine)]
    times_ns: dict[str, list[int]] = {}
    for step in steps[len(steps) // 2 :]:
        times_ns.setdefault(step.arm, []).append(step.device_ns or step.wall_ns)
    ranks: list[Mapping[str, float]] = rank.world.gather({arm: mean(times) for arm, times in times_ns.items()})
    step_ns = {arm: max(means[arm] for means in ranks) for arm in times_ns}
    num_steps = rank.plan.steps_per_half + rank.plan.most_lead_steps / 4
    return num_steps * sum(step_ns[a] + step_ns[b] for a, b in compared) / 1e9


def _announce(rank: Rank, compared: Sequence[Compared], looks: Sequence[int]) -> None:
    """Report the largest number of pairs and looks, also to the progress bar."""
    sizes = block_sizes(looks)
    num_steps = 2 * len(compared) * (sum(sizes) + len(sizes)) * rank.plan.steps_per_half
    num_steps += len(compared) * sum(sizes) * rank.plan.most_lead_steps
    rank.progress.plan_steps(num_steps + num_traced_steps(rank.plan))
    num_looks = "1 look" if len(looks) == 1 else f"{len(looks)} looks"
    rank.say(f"up to {looks[-1]} pairs per comparison, {num_looks}, at most {rank.plan.max_minutes:g} min")


def _take_look(
    rank: Rank,
    lines: Sequence[PairLine],
    questions: Sequence[Compared],
    undecided: Sequence[Compared],
    *,
    is_last: bool,
) -> list[Compared]:
    """Return the comparisons that are still undecided, the same on every rank; rank 0 prints their results.

    Those that were decided keep their answer, and pass their share of the 5 % on to the others.
    """
    pairs = {(pairs.a, pairs.b): pairs for pairs in pairs_of(rank.world.gather(list(lines)))}
    samples = {planned.arm.name: planned.arm.samples_per_step for planned in rank.plan.arms}
    answers = answer_together(
        [compare_pairs(pairs[a, b], samples=samples_apart(samples[a], samples[b])) for a, b in questions]
    )
    results = {names: answer for names, answer in zip(questions, answers, strict=True) if names in undecided}
    for (_, arm), result in results.items():
        if is_last or result.verdict.is_final or len(questions) <= _FEW:
            rank.say(look_text(arm, result, is_last=is_last))
    return rank.world.share([names for names, result in results.items() if not result.verdict.is_final])
