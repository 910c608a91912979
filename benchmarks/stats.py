"""Simulate recordings, to measure coverage, power and error rates of `traceq.stats`.

    python benchmarks/stats.py [TABLE ...] [--replications 1000]

The first table has the error rates and the power of a whole run that asks five questions. Then: how often the 95 %
interval covers the truth, and how many pairs a verdict needs; the same for sequential stopping and for one change in
two contexts; how often carry-over from one half to the next is detected, and what remedies against it cost; how often a
rank is called late. A simulated step is 100 ms plus noise; B adds a known difference. "interleaved" is traceq's design,
pairs in random order; "A..A B..B" gives the same formula the same number of steps, first all of A's, then all of B's.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from traceq.model import EventKind, PairedEvents, Pairs
from traceq.recorder.spec.plan import block_sizes
from traceq.stats import (
    LOOKS,
    Comparison,
    VerdictName,
    answer_together,
    compare_pairs,
    interaction,
    slowest_rank_ns,
)
from traceq.stats.hodges_lehmann import shift_between
from traceq.stats.means import lowest_mean
from traceq.stats.ranks import late_ranks, lateness_of_ranks
from traceq.stats.verdict import VERDICT_TEXTS

Noise = Callable[[np.random.Generator, int, float], NDArray[np.float64]]  # sigma, result in percent of a step

STEP_NS = 100_000_000
NUM_PAIRS = 64
STEPS_PER_HALF = 2
NUM_QUESTIONS = 5
CARRY_PCT = 2.0


def autocorrelated(rng: np.random.Generator, num: int, sigma: float) -> NDArray[np.float64]:
    """Return AR(1) noise with coefficient 0.7 and standard deviation sigma."""
    first, *others = rng.normal(scale=sigma, size=num).tolist()
    new = (np.sqrt(1 - 0.7**2) * np.array(others)).tolist()
    return np.array(list(accumulate(new, lambda before, part: 0.7 * before + part, initial=first)))


def heavy_tailed(rng: np.random.Generator, num: int, sigma: float) -> NDArray[np.float64]:
    """Return autocorrelated noise in which 2 % of the steps take 1.5 to 5 times as long."""
    return autocorrelated(rng, num, sigma) + (rng.random(num) < 0.02) * rng.uniform(50, 400, num)


def drifting(rng: np.random.Generator, num: int, sigma: float) -> NDArray[np.float64]:
    """Return autocorrelated noise of a machine that slows down by 10 standard deviations, as in warm-up."""
    return autocorrelated(rng, num, sigma) + sigma * np.linspace(0, 10, num)


def switching(rng: np.random.Generator, num: int, sigma: float) -> NDArray[np.float64]:
    """Return autocorrelated noise of two clock rates, 5 standard deviations apart, for 40 steps on average."""
    return autocorrelated(rng, num, sigma) + 5 * sigma * (np.cumsum(rng.random(num) < 1 / 40) % 2)


def max_of_8(rng: np.random.Generator, num: int, sigma: float) -> NDArray[np.float64]:
    """Return the noise of the slowest of eight heavy-tailed ranks."""
    return np.asarray(np.max([heavy_tailed(rng, num, sigma) for _ in range(8)], axis=0))


NOISES: tuple[Noise, ...] = (autocorrelated, heavy_tailed, drifting, switching, max_of_8)


def simulate(
    rng: np.random.Generator,
    noise: Noise,
    looks: Sequence[int],
    sigma_pct: float,
    delta_pct: float,
    carry_pct: float = 0.0,
    steps_per_half: int = STEPS_PER_HALF,
) -> Pairs:
    """Return one recording up to its last look: orders shuffled within blocks, half each way; `sigma_pct` of noise.

    A step of A that follows one of B takes `carry_pct` longer. Each block starts with a pair that settles, in the order
    of its first. Of a half with several steps the first does not count.
    """
    blocks = [rng.permutation(np.arange(size) < size // 2) for size in block_sizes(looks)]
    orders = np.concatenate([np.r_[block[0], block] for block in blocks])
    counts = np.concatenate([np.r_[False, np.full(len(block), True)] for block in blocks])
    b_runs = np.column_stack([~orders, orders]).ravel().repeat(steps_per_half)
    after_b = np.r_[False, b_runs[:-1]]
    effect_pct = delta_pct * b_runs + carry_pct * (after_b & ~b_runs)
    step = STEP_NS * (1 + (noise(rng, len(b_runs), sigma_pct) + effect_pct) / 100)
    counted = step.reshape(-1, 2, steps_per_half)[counts, :, min(1, steps_per_half - 1) :]
    halves = counted.mean(axis=2).astype(np.int64)
    return Pairs("off", "on", orders[counts], halves[None, :, 0], halves[None, :, 1], len(looks))


def covers(interval: tuple[int, int] | None, delta_pct: float) -> bool:
    """Return whether the interval contains the true difference."""
    return interval is not None and interval[0] <= STEP_NS * delta_pct / 100 <= interval[1]


def sequential_covers(rng: np.random.Generator, noise: Noise, *, sigma_pct: float, delta_pct: float) -> bool:
    """Return whether the interval of the same formula covers the truth if all of A's steps run before all of B's."""
    step = STEP_NS * (1 + noise(rng, 2 * NUM_PAIRS, sigma_pct) / 100)
    step[NUM_PAIRS:] += STEP_NS * delta_pct / 100
    a, b = np.split(step.astype(np.int64), 2)
    return covers(shift_between(b, a).ci95, delta_pct)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses of `size_pct` of a step in one of `every` steps, of each arm by its factor as often; no two are alike.

    Shared ones fall where what the steps of both arms bring on adds up, others into the steps of their own arm.
    """

    every: float
    size_pct: float
    is_shared: bool = False
    a_factor: float = 1.0
    b_factor: float = 1.0

    @property
    def delta_pct(self) -> float:
        """What B's cost more per step, in percent of a step."""
        return (self.b_factor - self.a_factor) * self.size_pct / self.every

    def add(self, rng: np.random.Generator, pairs: Pairs, steps_per_half: int = STEPS_PER_HALF) -> Pairs:
        """Return a recording with such pauses, of whose halves the last steps count."""
        num = 2 * len(pairs.b_second)
        is_b = np.column_stack([~pairs.b_second, pairs.b_second]).reshape(num, 1)
        brought = np.where(is_b, self.b_factor, self.a_factor) * rng.normal(1, 0.1, (num, steps_per_half)) / self.every
        if self.is_shared:
            has_pause = np.diff(np.floor(rng.random() + brought.cumsum()), prepend=0).reshape(brought.shape) > 0
        else:
            has_pause = rng.random(brought.shape) < brought
        sizes = STEP_NS * self.size_pct / 100 * rng.lognormal(-0.125, 0.5, brought.shape) * has_pause
        counted = sizes[:, min(1, steps_per_half - 1) :].mean(axis=1)

        def halves(values: NDArray[np.float64]) -> NDArray[np.int64]:
            return values.astype(np.int64).reshape(1, -1, 2)

        events = PairedEvents(
            kinds=(EventKind("pause", self.is_shared),),
            num=halves(has_pause.sum(axis=1))[..., None],
            ns=halves(sizes.sum(axis=1))[..., None],
            counted_ns=halves(counted)[..., None],
            num_steps=halves(np.full(num, steps_per_half)),
            brought=halves(1e6 * brought.sum(axis=1)),
        )
        longer = halves(counted)
        first, second = pairs.first_ns + longer[..., 0], pairs.second_ns + longer[..., 1]
        return replace(pairs, first_ns=first, second_ns=second, events=events)


@dataclass(frozen=True, slots=True)
class Rate:
    """Share of replications, printed with the half-width of its 95 % interval."""

    share: float
    num: int

    def __str__(self) -> str:
        error = 1.96 * np.sqrt(max(self.share * (1 - self.share), 1 / self.num) / self.num)
        return f"{self.share:.1%} ±{error:.1%}"


def questions(rng: np.random.Generator, replications: int) -> Table:
    """Return error rates and power of runs with five questions.

    Without an effect: runs with at least one false claim, each question by itself and all together. Then the main
    question's verdicts if only it has an effect; last the false claims of a single question whose A takes 2 % longer
    after B, with halves of one step and of two.
    """
    title = f"{NUM_QUESTIONS} questions, {NUM_PAIRS} pairs each, threshold 0.5 %, {replications:,} replications"
    table = Table(title=title)
    rates_of_null, powers = ("null, alone", "null, together", "null, claims"), ("at 1 %", "at 2 %", "at 5 %")
    for heading in ("noise", *rates_of_null, *powers, "carry 1", "carry 2"):
        table.add_column(heading, justify="left" if heading == "noise" else "right")
    for noise in NOISES:
        for sigma_pct in (1.0, 5.0, 20.0):
            null = [run_of_five(rng, noise, sigma_pct, 0.0) for _ in range(replications)]
            together = [answer_together(run) for run in null]
            rates = [share_with(null, "material"), share_with(together, "material")]
            rates.append(share_with(together, "material", "detectable"))
            for delta_pct in (1.0, 2.0, 5.0):
                runs = (answer_together(run_of_five(rng, noise, sigma_pct, delta_pct)) for _ in range(replications))
                rates.append(share_with([run[:1] for run in runs], "material"))
            for steps_per_half in (1, STEPS_PER_HALF):
                carried = (
                    simulate(rng, noise, (NUM_PAIRS,), sigma_pct, 0.0, CARRY_PCT, steps_per_half)
                    for _ in range(replications)
                )
                rates.append(share_with([(compare_pairs(pairs),) for pairs in carried], "material", "detectable"))
            shares = [str(Rate(rate, replications)) for rate in rates]
            table.add_row(f"{noise.__name__} {sigma_pct:g} %", *shares)
    return table


def run_of_five(rng: np.random.Generator, noise: Noise, sigma_pct: float, delta_pct: float) -> tuple[Comparison, ...]:
    """Return the answers of one run, each by itself; the main question, the first, has an effect of `delta_pct`."""
    return tuple(_compare(rng, noise, NUM_PAIRS, sigma_pct, delta_pct * (i == 0)) for i in range(NUM_QUESTIONS))


def share_with(runs: Sequence[Sequence[Comparison]], *names: VerdictName) -> float:
    """Return the share of runs in which at least one answer is one of these verdicts."""
    return float(np.mean([any(answer.verdict.name in names for answer in run) for run in runs]))


def remedies(rng: np.random.Generator, replications: int) -> Table:
    """Return what each remedy against carry-over claims, at equal time: falsely with carry-over, truly without.

    `margin` claims what exceeds the threshold by three quarters of the carry-over that the pairs do not exclude; halves
    of two and of four steps leave out their first one.
    """
    table = Table(title=f"carry-over of {CARRY_PCT:g} %, material or detectable, {replications:,} replications")
    for heading in ("noise", "remedy", "false claims", "power at 1 %", "at 2 %", "at 5 %"):
        table.add_column(heading, justify="left" if heading in ("noise", "remedy") else "right")
    for noise in (autocorrelated, heavy_tailed):
        for sigma_pct in (1.0, 5.0):
            for name, steps_per_half in (("none", 1), ("margin", 1), ("halves of 2", 2), ("halves of 4", 4)):
                effects = ((0.0, CARRY_PCT), (1.0, 0.0), (2.0, 0.0), (5.0, 0.0))
                rates = []
                for delta_pct, carry_pct in effects:
                    looks = (2 * NUM_PAIRS // steps_per_half,)
                    runs = (
                        simulate(rng, noise, looks, sigma_pct, delta_pct, carry_pct, steps_per_half)
                        for _ in range(replications)
                    )
                    rates.append(np.mean([claims(pairs, needs_margin=name == "margin") for pairs in runs]))
                shares = [str(Rate(float(rate), replications)) for rate in rates]
                table.add_row(f"{noise.__name__} {sigma_pct:g} %", name, *shares)
    return table


def claims(pairs: Pairs, *, needs_margin: bool) -> bool:
    """Return whether the recording claims a difference, by more than a margin for carry-over if it `needs_margin`."""
    answer = compare_pairs(pairs)
    if not (answer.verdict.is_difference and answer.ci95_ns):
        return False
    return not needs_margin or min(map(abs, answer.ci95_ns)) > 0.75 * largest_carry_ns(pairs)


def largest_carry_ns(pairs: Pairs) -> float:
    """Return the far end of the 95 % interval of the carry-over, of the arm with the larger one."""
    before, order = pairs.b_second[:-1], pairs.b_second[1:]
    change = (pairs.second_ns - pairs.first_ns)[0, 1:]
    ends = [
        shift_between(change[(order == starts) & (before != starts)], change[(order == starts) & (before == starts)])
        for starts in (True, False)
    ]
    return max(abs(end) for shift in ends for end in shift.ci95 or (STEP_NS,))


def late(rng: np.random.Generator, replications: int) -> Table:
    """Return how often a rank is called late: of symmetric ranks, and of one that works longer (and is the right one).

    Ranks work for 40 % of the step, with independent noise in percent of the step.
    """
    table = Table(title=f"late ranks, noise 5 %, {replications:,} replications")
    for heading in ("noise", "ranks", "steps", "symmetric", "2 % longer", "5 % longer", "10 % longer"):
        table.add_column(heading, justify="left" if heading == "noise" else "right")
    for noise in (autocorrelated, heavy_tailed, switching):
        for num_ranks, num_steps in ((2, 200), (2, 400), (8, 400)):
            rates = []
            for more_pct in (0.0, 2.0, 5.0, 10.0):
                ranks = [_late_ranks(rng, noise, num_ranks, num_steps, more_pct) for _ in range(replications)]
                rates.append(np.mean([bool(late) if not more_pct else late == (0,) for late in ranks]))
            shares = [str(Rate(float(rate), replications)) for rate in rates]
            table.add_row(noise.__name__, str(num_ranks), str(num_steps), *shares)
    return table


def _late_ranks(
    rng: np.random.Generator, noise: Noise, num_ranks: int, num_steps: int, more_pct: float
) -> tuple[int, ...]:
    """Return the late ranks of a recording in which rank 0 works `more_pct` of the step longer than the others."""
    work = 40 + np.array([noise(rng, num_steps, 5.0) for _ in range(num_ranks)])
    work[0] += more_pct
    step = np.broadcast_to(work.max(axis=0) + 60, work.shape)
    return late_ranks(lateness_of_ranks(work, step - work, step))


def coverage(rng: np.random.Generator, replications: int) -> Table:
    """Return the share of 95 % intervals that cover the true difference of 1 %, and of A/A comparisons by verdict."""
    table = Table(title=f"{NUM_PAIRS} pairs, noise 1 %, {replications:,} replications")
    for heading in ("noise", "covered", "covered, A..A B..B", "half-width", "A/A: material", "A/A: any caveat"):
        table.add_column(heading, justify="left" if heading == "noise" else "right")
    for noise in NOISES:
        runs = [_compare(rng, noise, NUM_PAIRS, 1.0, 1.0) for _ in range(replications)]
        null = [_compare(rng, noise, NUM_PAIRS, 1.0, 0.0) for _ in range(replications)]
        naive = [sequential_covers(rng, noise, sigma_pct=1.0, delta_pct=1.0) for _ in range(replications)]
        width = np.mean([(run.ci95_ns[1] - run.ci95_ns[0]) / 2 / STEP_NS for run in runs if run.ci95_ns])
        table.add_row(
            noise.__name__,
            f"{np.mean([covers(run.ci95_ns, 1.0) for run in runs]):.1%}",
            f"{np.mean(naive):.1%}",
            f"{width:.2%}",
            f"{np.mean([run.verdict.name == 'material' for run in null]):.1%}",
            f"{np.mean([bool(run.caveats) for run in null]):.1%}",
        )
    return table


def power(rng: np.random.Generator, replications: int) -> Table:
    """Return the share of each verdict, by true difference, noise and number of pairs."""
    names = tuple(VERDICT_TEXTS)
    table = Table(title=f"heavy-tailed noise, threshold 0.5 %, {replications:,} replications")
    for heading in ("delta", "noise", "pairs", *names):
        table.add_column(heading, justify="right")
    for delta_pct in (0.0, 0.5, 1.0, 2.0):
        for sigma_pct in (0.5, 1.0, 3.0):
            for num_pairs in (16, 64, 256):
                runs = [_compare(rng, heavy_tailed, num_pairs, sigma_pct, delta_pct) for _ in range(replications)]
                counts = Counter(run.verdict.name for run in runs)
                shares = [f"{counts[name] / replications:.0%}" for name in names]
                table.add_row(f"{delta_pct} %", f"{sigma_pct} %", str(num_pairs), *shares)
    return table


def carry(rng: np.random.Generator, replications: int) -> Table:
    """Return the share of recordings with detected carry-over into counted steps, by how much longer A takes after B.

    At 0 % they are false alarms.
    """
    table = Table(title=f"carry-over into counted steps detected, noise 1 %, {replications:,} replications")
    carries = (0.0, 1.0, 2.0, 4.0)
    for heading in ("noise", "pairs", *(f"{carry_pct:g} %" for carry_pct in carries)):
        table.add_column(heading, justify="left" if heading == "noise" else "right")
    for noise in NOISES:
        for num_pairs in (64, 256):
            shares = []
            for carry_pct in carries:
                runs = (simulate(rng, noise, (num_pairs,), 1.0, 0.0, carry_pct, 1) for _ in range(replications))
                shares.append(np.mean([_has(compare_pairs(pairs), "carried_over") for pairs in runs]))
            table.add_row(noise.__name__, str(num_pairs), *(f"{share:.1%}" for share in shares))
    return table


def joint(rng: np.random.Generator, replications: int) -> Table:
    """Return the share of 95 % intervals of an interaction that cover it, and of material verdicts, by interaction."""
    table = Table(title=f"one change in two contexts, {NUM_PAIRS} pairs each, noise 1 %, {replications:,} replications")
    for heading in ("noise", "covered at 0", "at 1 %", "at 0: material", "at 1 %: material", "at 3 %: material"):
        table.add_column(heading, justify="left" if heading == "noise" else "right")
    for noise in NOISES:
        by_delta = {
            delta_pct: [
                interaction(
                    _compare(rng, noise, NUM_PAIRS, 1.0, 1.0), _compare(rng, noise, NUM_PAIRS, 1.0, 1.0 + delta_pct)
                )
                for _ in range(replications)
            ]
            for delta_pct in (0.0, 1.0, 3.0)
        }
        covered = [np.mean([covers(one.ci95_ns, delta_pct) for one in by_delta[delta_pct]]) for delta_pct in (0.0, 1.0)]
        material = [np.mean([one.verdict.name == "material" for one in runs]) for runs in by_delta.values()]
        table.add_row(noise.__name__, *(f"{share:.1%}" for share in (*covered, *material)))
    return table


def pauses(rng: np.random.Generator, replications: int) -> Table:
    """Return what is claimed of an arm with as many pauses as A, and of one with more: by the mean, and without it.

    More are twice as many shared ones, and explicit ones where A has none. "fell": by the mean step with each pause
    where it fell, tested by Student's t, which no verdict uses. "typical": by the median of differences alone.
    "covered": the true mean difference, of the recordings that tell one.
    """
    title = f"pauses of 4 steps, threshold 0.5 %, heavy-tailed noise of 1 %, {replications:,} replications"
    table = Table(title=title)
    rates_of_null, rates = ("null, material", "null, claims", "null, fell"), ("more, claims", "typical", "covered")
    for heading in ("pauses", "every", "pairs", *rates_of_null, *rates):
        table.add_column(heading, justify="left" if heading == "pauses" else "right")
    claimed: tuple[VerdictName, ...] = ("material", "detectable")
    for is_shared in (True, False):
        for every in (10.0, 50.0, 200.0):
            for num_pairs in (NUM_PAIRS, 256):
                as_many = Pauses(every, 400.0, is_shared)
                more = replace(as_many, b_factor=2.0) if is_shared else replace(as_many, a_factor=0.0)
                null, effect = (
                    [each.add(rng, simulate(rng, heavy_tailed, (num_pairs,), 1.0, 0.0)) for _ in range(replications)]
                    for each in (as_many, more)
                )
                of_null, of_more = ([compare_pairs(pairs) for pairs in runs] for runs in (null, effect))
                covered = [covers(each.ci95_ns, more.delta_pct) for each in of_more if each.typical]
                shares = (
                    share_with([[each] for each in of_null], "material"),
                    share_with([[each] for each in of_null], *claimed),
                    float(np.mean([means_fell_apart(pairs) for pairs in null])),
                    share_with([[each] for each in of_more], *claimed),
                    share_with([[compare_pairs(replace(pairs, events=None))] for pairs in effect], *claimed),
                )
                name = "automatic, shared" if is_shared else "explicit"
                cells = [*(str(Rate(share, replications)) for share in shares)]
                cells.append(str(Rate(float(np.mean(covered)), len(covered))) if covered else "")
                table.add_row(name, f"{every:g}", str(num_pairs), *cells)
    return table


def means_fell_apart(pairs: Pairs) -> bool:
    """Return whether the mean of B's halves less A's is beyond chance, by Student's t over pairs."""
    more = slowest_rank_ns(pairs, of_b=True) - slowest_rank_ns(pairs, of_b=False)
    return lowest_mean(more.astype(np.float64)) > 0 or lowest_mean(-more.astype(np.float64)) > 0


def _has(comparison: Comparison, code: str) -> bool:
    return any(caveat.code == code for caveat in comparison.caveats)


def _compare(rng: np.random.Generator, noise: Noise, num_pairs: int, sigma_pct: float, delta_pct: float) -> Comparison:
    return compare_pairs(simulate(rng, noise, (num_pairs,), sigma_pct, delta_pct))


@dataclass(frozen=True, slots=True)
class Stopped:
    """A recording that stops early: its verdict, its number of pairs, and whether any look missed the truth.

    `missed` includes looks after the stop.
    """

    verdict: VerdictName
    num_pairs: int
    missed: bool


def stop(rng: np.random.Generator, noise: Noise, sigma_pct: float, delta_pct: float) -> Stopped:
    """Return the outcome of one recording with all looks."""
    pairs = simulate(rng, noise, LOOKS, sigma_pct, delta_pct)
    looks = [compare_at_edge(first_of(pairs, look)) for look in LOOKS]
    last = next((comparison for comparison in looks if comparison.verdict.is_final), looks[-1])
    missed = any(not covers(comparison.ci95_ns, delta_pct) for comparison in looks)
    return Stopped(last.verdict.name, last.num_pairs, missed)


def compare_at_edge(pairs: Pairs) -> Comparison:
    """Compare with a threshold of 0.5 ms; 0.5 % of A's median would grow with a machine that slows down."""
    return compare_pairs(pairs, threshold_pct=0.5 * STEP_NS / float(np.median(slowest_rank_ns(pairs, of_b=False))))


def first_of(pairs: Pairs, num: int) -> Pairs:
    """Return the first pairs of a recording."""
    first_ns, second_ns = pairs.first_ns[:, :num], pairs.second_ns[:, :num]
    return replace(pairs, b_second=pairs.b_second[:num], first_ns=first_ns, second_ns=second_ns)


def errors(rng: np.random.Generator, replications: int) -> Table:
    """Return error rates of sequential stopping at the hardest difference, the threshold itself, and at 0."""
    table = Table(title=f"--until decided, {len(LOOKS)} looks, noise 1 %, {replications:,} replications")
    headings = ("noise", "any look misses", "at 0.5 %: material", "at 0.5 %: in the noise", "at 0: material")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "noise" else "right")
    for noise in NOISES:
        edge = [stop(rng, noise, 1.0, 0.5) for _ in range(replications)]
        null = [stop(rng, noise, 1.0, 0.0) for _ in range(replications)]
        table.add_row(
            noise.__name__,
            f"{np.mean([run.missed for run in (*edge, *null)]):.1%}",
            f"{np.mean([run.verdict == 'material' for run in edge]):.1%}",
            f"{np.mean([run.verdict == 'in_the_noise' for run in edge]):.1%}",
            f"{np.mean([run.verdict == 'material' for run in null]):.1%}",
        )
    return table


def stopping(rng: np.random.Generator, replications: int) -> Table:
    """Return verdicts of sequential stopping, and the number of pairs until it stops."""
    table = Table(title=f"--until decided, up to {LOOKS[-1]} pairs, heavy-tailed noise, {replications:,} replications")
    for heading in ("delta", "noise", "in_the_noise", "material", "undecided", "pairs, mean", "pairs, 9 in 10"):
        table.add_column(heading, justify="right")
    for delta_pct in (0.0, 0.25, 0.5, 1.0, 2.0):
        for sigma_pct in (0.5, 1.0, 3.0):
            runs = [stop(rng, heavy_tailed, sigma_pct, delta_pct) for _ in range(replications)]
            shares = [np.mean([run.verdict == name for run in runs]) for name in ("in_the_noise", "material")]
            pairs = [run.num_pairs for run in runs]
            table.add_row(
                f"{delta_pct} %",
                f"{sigma_pct} %",
                *(f"{share:.1%}" for share in (*shares, 1 - sum(shares))),
                f"{np.mean(pairs):.0f}",
                f"{np.percentile(pairs, 90):.0f}",
            )
    return table


TABLES: dict[str, tuple[Callable[[np.random.Generator, int], Table], int]] = {
    "questions": (questions, 1),
    "remedies": (remedies, 1),
    "late": (late, 1),
    "coverage": (coverage, 1),
    "power": (power, 5),
    "carry": (carry, 1),
    "joint": (joint, 1),
    "errors": (errors, 1),
    "stopping": (stopping, 2),
    "pauses": (pauses, 1),
}
"""Each table, and by what its number of replications is divided."""


def main() -> None:
    """Print the tables, or those named, each of which is the same alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"no such table: {', '.join(sorted(unknown))}; one of {', '.join(TABLES)}")
    console = Console(width=140)  # wide enough for every heading, whatever the terminal
    for name in options.tables or TABLES:
        table, part = TABLES[name]
        console.print(table(np.random.default_rng(options.seed), options.replications // part))


if __name__ == "__main__":
    main()
