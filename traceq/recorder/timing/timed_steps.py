"""Unprofiled timing: blocks of pairs, with arms interleaved in one process."""

from __future__ import annotations

import random
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count, groupby, islice
from pathlib import Path
from statistics import mean, median
from time import monotonic

import msgspec

from traceq.model import MEMORY_AFTER, MEMORY_BEFORE, MUCH_SLOWER
from traceq.recorder.rank.rank_state import Rank
from traceq.recorder.spec.plan import (
    PAIRS_PER_BLOCK,
    SINGLE_ARM_STEPS_PER_BLOCK,
    Block,
    Plan,
    block_sizes,
    comparisons,
    pairs_for,
    pairs_for_single_arm,
    schedule,
)
from traceq.recorder.timing.clocks import CoreClocks, clock_facts, core_facts, read_clocks
from traceq.recorder.timing.stopwatch import (
    StepTime,
    Stopwatch,
    half_pauses,
    mean_cpu_ns,
    mean_ns,
    memory_in_use,
    reset_peak_memory,
)
from traceq.recorder.tracing.traced_steps import num_traced_steps
from traceq.runs.step_log import SETTLING, WARM_UP, ClocksLine, CoresLine, Line, PairLine, StepLine, pairs_of
from traceq.stats import LOOKS, Comparison, answer_together, compare_pairs, samples_apart
from traceq.units import Unit, format_value


class Journal:
    """Open file of samples; it is created at once, so that a rank without samples is visible, too."""

    __slots__ = ("_encoder", "_file", "_path")

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def write(self, lines: Iterable[Line]) -> None:
        """Append the lines in one write; call it between blocks, so that it is not part of a step.

        Raises FileNotFoundError once the file is gone: nobody could read what is written.
        """
        self._path.stat()
        self._file.write(b"".join(self._encoder.encode(line) + b"\n" for line in lines))

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


_MAX_ATTEMPTS = 20
_SHORT_NS = 2e9
_FIRST_BLOCKS = 4
"""Blocks of the A/A control in each of which clocks of cores are read; later in one of that many."""
_MUCH_IRREGULAR = 0.1
"""Part of the time of a block in irregular steps from which its use of cores is not that of usual ones."""
_BAR = 20
"""Characters of a progress bar."""


def timed_steps(rank: Rank) -> Generator[str, None, list[PairLine]]:
    """Yield the arm of each step to run, and return the pairs: warm-up, then all blocks of all comparisons.

    A step ends when the next arm is requested. Each block is on disk before the next one begins. Pairs with a half of
    which no step counts are repeated at the end of their block.
    """
    pairs: list[PairLine] = []
    clocks: list[ClocksLine] = []
    cores: list[CoresLine] = []
    stopwatch = Stopwatch(rank.world.device, rank.phases)
    rank.account.collected_ns = lambda: stopwatch.collector.collected_ns
    with Journal(rank.plan.folder.samples(rank.world.rank)) as journal, stopwatch:
        rank.world.barrier()  # no rank begins unless all have their files
        warm_up = yield from _warm_up(rank, stopwatch)
        rank = rank.remaining
        journal.write(warm_up)
        quarter = _announce_rest(rank, warm_up)
        reset_peak_memory(rank.world.device)
        rank.facts[MEMORY_BEFORE] = memory_in_use(rank.world.device)
        for block in blocks_until_decided(rank, warm_up, pairs) if rank.plan.max_minutes else _blocks(rank.plan):
            for attempt in _attempts(rank, block):
                rank.world.barrier()
                before = list(read_clocks(rank.world.device))
                lines = [*before, *(yield from _run_pairs(rank, stopwatch, block, attempt))]
                clocks += before
                journal.write(lines)
                pairs += [line for line in lines if isinstance(line, PairLine)]
                cores += [line for line in lines if isinstance(line, CoresLine)]
            quarter = _announce_rest(rank, lines, quarter)
        rank.facts[MEMORY_AFTER] = memory_in_use(rank.world.device)
    rank.facts.update(clock_facts(rank.world.gather(clocks)))
    rank.facts.update(core_facts(rank.world.gather(cores), [peer.host for peer in rank.world.peers]))
    return pairs


def num_timed_steps(plan: Plan) -> int:
    """Return the number of steps that `timed_steps` yields without `--until`."""
    warm_up, blocks = _num_warm_up_rounds(plan) * len(_warm_up_round(plan)), _blocks(plan)
    num_halves = warm_up + sum(2 + 2 * len(block.b_second) for block in blocks)
    return num_halves * plan.steps_per_half + sum(sum(_leads(plan, block)) for block in blocks)


def _blocks(plan: Plan) -> tuple[Block, ...]:
    compared, per_half = comparisons([planned.arm for planned in plan.arms]), plan.steps_per_half
    if len(compared) == 1:
        return schedule(
            compared,
            (pairs_for_single_arm(plan.steps, per_half),),
            plan.seed,
            SINGLE_ARM_STEPS_PER_BLOCK // (2 * per_half),
        )
    return schedule(compared, (pairs_for(plan.steps, per_half),), plan.seed)


def _num_warm_up_rounds(plan: Plan) -> int:
    return -(-plan.warmup_steps // (2 * plan.steps_per_half))


def _warm_up_round(plan: Plan) -> list[str]:
    """Return the arms of the halves of one round, in pairs, so that later pairs begin with an even number of halves.

    Both halves of a pair then get the same batches.
    """
    return [planned.arm.name for planned in plan.arms if planned.arm.timed for _ in range(2)]


def _warm_up(rank: Rank, stopwatch: Stopwatch) -> Generator[str, None, list[Line]]:
    """Run rounds of all arms, and return their steps; those that prove to be slow are left out from then on."""
    lines: list[StepLine] = []
    draws, size = count(), rank.plan.steps_per_half
    for number in range(_num_warm_up_rounds(rank.plan)):
        order = _warm_up_round(rank.remaining.plan)
        regular = yield from _run_halves(rank, stopwatch, [(arm, next(draws), size) for arm in order])
        halves = zip(order, _take_halves(stopwatch, regular), strict=True)
        lines += [step for arm, half in halves for step in _excluded_lines(arm, half, WARM_UP)]
        if rank.plan.max_slowdown:
            slow = slow_arms(rank, [step for step in lines if step.arm not in rank.left_out], is_first=number == 0)
            rank.left_out.update(slow)
            for arm, reason in slow.items():
                rank.say(f"traceq: note: arm {arm}: {MUCH_SLOWER}: {reason}")
    return [*lines]


def _announce_rest(rank: Rank, latest: Sequence[Line], last_quarter: int = -1) -> int:
    """Print how long the rest takes by the latest steps, if another quarter has ended, and return which has.

    Nothing that is not worth a line, and nothing where a launcher has a progress bar.
    """
    steps_ns = [line.wall_ns for line in latest if isinstance(line, StepLine)]
    if rank.plan.messages_path or rank.plan.max_minutes or not steps_ns:
        return last_quarter
    num_ended, num_planned = rank.progress.num_ended, rank.progress.num_planned
    quarter, rest_ns = 4 * num_ended // max(num_planned, 1), (num_planned - num_ended) * median(steps_ns)
    if quarter > last_quarter and rest_ns > _SHORT_NS:
        bar = f"{_bar(num_ended / num_planned)} " if sys.stderr.isatty() else ""
        rank.say(f"traceq: {bar}{rank.progress.text}; the rest takes about {format_value(rest_ns, Unit.NS)}")
    return quarter


def _bar(share: float) -> str:
    """Return a bar of which a share is full; it is not redrawn, as the loop may print below it."""
    num_full = int(share * _BAR)
    return "█" * num_full + "░" * (_BAR - num_full)


@dataclass(slots=True)
class _Attempt:
    """One run of some pairs of a block, each after a number of halves, and of steps, that settle and do not count.

    `irregular`: the pairs to run again, on all ranks.
    """

    indices: Sequence[int]
    num_settling: Sequence[int]
    leads: Sequence[int]
    irregular: Sequence[int] = ()

    def arms(self, block: Block, per_half: int) -> Iterator[tuple[str, int | None, int]]:
        """Yield the arm of each half in order, the index of its pair, None if it settles, and its number of steps."""
        for index, num_settling in zip(self.indices, self.num_settling, strict=True):
            halves = block.halves(index)
            yield from ((halves[half % 2], None, per_half) for half in range(num_settling))
            if self.leads[index]:
                yield halves[0], None, self.leads[index]
            yield from ((arm, index, per_half) for arm in halves)


def _leads(plan: Plan, block: Block) -> list[int]:
    """Return for each pair of a block how many steps of its first arm come before it, at random.

    What a loop does in every second or fourth step would else be in all steps that count, or in none.
    """
    rng = random.Random(f"{plan.seed} {block.first_pair}")
    return [rng.randint(0, plan.most_lead_steps) for _ in block.b_second]


def _attempts(rank: Rank, block: Block) -> Iterator[_Attempt]:
    """Yield the runs of a block: all of its pairs, then those with a half of which no step counts.

    In a repeated run pairs are a random number of halves apart: otherwise a period of the loop, such as an evaluation
    in every fourth step, would meet the same pairs again. Pairs that stay irregular are missing in the results.
    """
    rng = random.Random(rank.plan.seed + block.first_pair)
    num_pairs = len(block.b_second)
    leads = _leads(rank.plan, block)
    attempt = _Attempt(range(num_pairs), [2] + [0] * (num_pairs - 1), leads)
    for _ in range(_MAX_ATTEMPTS):
        yield attempt
        if not attempt.irregular:
            return
        gaps = [rng.randrange(3) for _ in attempt.irregular]
        attempt = _Attempt(attempt.irregular, [2 + gaps[0], *gaps[1:]], leads)
    missing = _missing_text(block, len(attempt.indices))
    rank.say(f"traceq: note: {missing}: in each of {_MAX_ATTEMPTS} runs a step did more or less than the others")


def _missing_text(block: Block, num: int) -> str:
    """Return how many pairs of a block are missing; those of the A/A control are pairs of one arm."""
    arms = f"{block.a} with itself" if block.is_control else f"{block.a} and {block.b}"
    return f"1 pair of {arms} is missing" if num == 1 else f"{num} pairs of {arms} are missing"


def _run_pairs(rank: Rank, stopwatch: Stopwatch, block: Block, attempt: _Attempt) -> Generator[str, None, list[Line]]:
    """Run pairs of a block, note those in `attempt` of which a half has no step that counts, and return the lines.

    The first halves settle, after a pause of the recording. The use of cores is that of usual steps: of blocks without
    much else.
    """
    order = list(attempt.arms(block, rank.plan.steps_per_half))
    cores = CoreClocks(rank.workers.pids)
    number = block.first_pair // PAIRS_PER_BLOCK
    reads_cores = block.is_control and (number < _FIRST_BLOCKS or number % _FIRST_BLOCKS == 0)
    if reads_cores:
        cores.start()
    draws = [(arm, block.first_pair + (0 if index is None else 1 + index), size) for arm, index, size in order]
    regular = yield from _run_halves(rank, stopwatch, draws)
    use_of_cores = list(cores.lines(sum(map(len, regular)))) if reads_cores else []
    regular = regular_on_all_ranks(rank, regular)
    halves = [
        _Half(arm, index, times, counted_steps(is_regular))
        for (arm, index, _), times, is_regular in zip(order, _take_halves(stopwatch, regular), regular, strict=True)
    ]
    attempt.irregular = sorted({half.index for half in halves if half.index is not None and not half.counted})
    times_ns = [time.wall_ns for half in halves for time in half.times]
    irregular_ns = sum(compress(times_ns, (not each for half in regular for each in half)))
    lines: list[Line] = [] if irregular_ns > _MUCH_IRREGULAR * sum(times_ns) else [*use_of_cores]
    of_pair: dict[int, list[_Half]] = {}
    for half in halves:
        if half.index is None or half.index in attempt.irregular:
            lines += _excluded_lines(half.arm, half.times, SETTLING)
        else:
            of_pair.setdefault(half.index, []).append(half)
    for index, (first, second) in of_pair.items():
        lines += _pair_lines(block, index, first, second)
    return lines


@dataclass(frozen=True, slots=True)
class _Half:
    """Steps of one arm in a row, of the pair `index` (None: they settle); `counted`: numbers of those that count."""

    arm: str
    index: int | None
    times: Sequence[StepTime]
    counted: Sequence[int]

    @property
    def counted_times(self) -> list[StepTime]:
        return [self.times[number] for number in self.counted]


def counted_steps(is_regular: Sequence[bool]) -> list[int]:
    """Return the numbers of the steps of a half that count: regular ones that follow a regular one of the same half.

    What comes before leaves caches and queues as it needs them: the other arm, an evaluation. A half of one step has
    no other to follow. In longer ones than two, of which no two regular steps are neighbours, any but the first counts.
    """
    if len(is_regular) == 1:
        return [0] if is_regular[0] else []
    following = [number for number in range(1, len(is_regular)) if is_regular[number]]
    guarded = [number for number in following if is_regular[number - 1]]
    return guarded or (following if len(is_regular) > 2 else [])


def regular_on_all_ranks(rank: Rank, halves: list[Sequence[bool]]) -> list[Sequence[bool]]:
    """Return of each step whether it was regular on all ranks; they do not communicate if the loop has only those."""
    if rank.control.was_regular is None:
        return halves
    return [[all(step) for step in zip(*half, strict=True)] for half in zip(*rank.world.gather(halves), strict=True)]


def _run_halves(
    rank: Rank, stopwatch: Stopwatch, halves: Sequence[tuple[str, int, int]]
) -> Generator[str, None, list[Sequence[bool]]]:
    """Run halves, each an arm, a draw and a number of steps, and return of each of their steps whether it was regular.

    Both halves of a pair draw the same random numbers.
    """
    regular: list[Sequence[bool]] = []
    reseeds = rank.plan.reseeds
    was_regular, last = rank.control.was_regular, rank.plan.steps_per_half - 1
    stopwatch.mark()
    for arm, draw, num_steps in halves:
        if reseeds:
            rank.reseed(draw)
        rank.control.set_arm(arm)
        stopwatch.resume()
        steps: list[bool] = []
        for index in range(num_steps):
            yield arm
            stopwatch.mark(half_ended=index == last)
            rank.progress.count_step()
            steps.append(was_regular is None or was_regular())
        regular.append(steps)
    return regular


def _pair_lines(block: Block, index: int, first: _Half, second: _Half) -> Iterator[Line]:
    """Yield the steps of a pair, then the pair; irregular steps, and those that follow one, do not count."""
    pair = block.first_pair + index
    for number, half in enumerate((first, second)):
        for position, time in enumerate(half.times):
            if position in half.counted or position == 0:
                yield step_line(half.arm, time, a=block.a, b=block.b, pair=pair, half=number, index=position)
            else:
                yield step_line(half.arm, time, pair=SETTLING, index=position)
    times_ns = mean_ns(first.counted_times), mean_ns(second.counted_times)
    cpu_ns = mean_cpu_ns(first.counted_times), mean_cpu_ns(second.counted_times)
    pauses = half_pauses(first.times, first.counted), half_pauses(second.times, second.counted)
    yield PairLine(block.a, block.b, pair, block.b_second[index], *times_ns, block.num_looks, *cpu_ns, *pauses)


def _excluded_lines(arm: str, half: Sequence[StepTime], pair: int) -> Iterator[StepLine]:
    """Yield lines of steps that do not count; `pair`: WARM_UP or SETTLING."""
    for index, time in enumerate(half):
        yield step_line(arm, time, pair=pair, index=index)


def step_line(
    arm: str,
    time: StepTime,
    *,
    pair: int,
    a: str = "",
    b: str = "",
    half: int = 0,
    index: int = 0,
    process: int = -1,
) -> StepLine:
    """Return a step as a line of the journal."""
    return StepLine(
        arm=arm,
        a=a,
        b=b,
        pair=pair,
        half=half,
        index=index,
        phases=time.phases,
        wall_ns=time.wall_ns,
        cpu_ns=time.cpu_ns,
        device_ns=time.device_ns,
        peak_bytes=time.peak.allocated,
        device_phases=time.device_phases,
        reserved_bytes=time.peak.reserved,
        process=process,
        pauses=time.pauses.kinds,
        allocated=time.pauses.allocated,
    )


def _take_halves(stopwatch: Stopwatch, regular: Sequence[Sequence[bool]]) -> list[Sequence[StepTime]]:
    """Return the times of each half, which has as many steps as its entry of `regular`."""
    times = iter(stopwatch.take())
    return [list(islice(times, len(half))) for half in regular]


def slow_arms(rank: Rank, warm_up: Sequence[StepLine], *, is_first: bool = True) -> dict[str, str]:
    """Return the arms that the plan leaves out after these steps, the same on every rank, each with the reason.

    After the first round by the fastest step of an arm, so that neither its first, which may compile, nor a busy
    machine counts as slow; later by the median.
    """
    times_ns: dict[str, list[int]] = {}
    for step in warm_up:
        times_ns.setdefault(step.arm, []).append(step.device_ns or step.wall_ns)
    (baseline,) = (planned.arm.name for planned in rank.plan.arms if planned.arm.baseline)
    baseline_ns, typical = median(times_ns[baseline]), min if is_first else median
    ratios = {arm: typical(times) / baseline_ns for arm, times in times_ns.items() if arm != baseline}
    of_ranks = rank.world.gather(ratios)
    least = {arm: min(each[arm] for each in of_ranks) for arm in ratios}
    which = "each" if is_first else "half"
    return {
        arm: f"{which} of its first {len(times_ns[arm])} steps took at least {ratio:.1f} times a step of {baseline}: "
        "not measured further"
        for arm, ratio in least.items()
        if ratio >= rank.plan.max_slowdown
    }


Compared = tuple[str, str]

_FEW = 3
"""Questions of which each look prints a line; of more only those that are answered, or end without an answer."""


def blocks_until_decided(rank: Rank, warm_up: Sequence[Line], pairs: Sequence[PairLine]) -> Iterator[Block]:
    """Yield the blocks to run until each comparison is decided, out of looks, or out of time.

    A look gathers the pairs of all ranks, so it takes place between blocks, where nothing is timed. The number of looks
    is fixed after the warm-up, by the number of pairs that fit into the time limit: the width of the intervals depends
    on it.

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
