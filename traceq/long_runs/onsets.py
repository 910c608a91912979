"""Onsets of a watched run: when its steps became slower or its memory began to grow, on which ranks, and of what kind.

Series of the job decide when: its median step, what its loader and the collector add to one, and what each rank itself
computes: a step of synchronous ranks is as long as that of the slowest, and as noisy as that of the noisiest. Where the
time went, by rank and phase, says what kind it is.

Whether a series rose and stayed there is a likelihood ratio over all recent moments, with correlated noise. Values are
parts of a usual step. The test is of the mean after a moment against that before, less the growth that counts
(`LEAST_GROWTH`), in standard errors of a variance that holds the correlation of values: the largest of batch means of
1, 2, 4 and 8 values (Schmeiser 1982).
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.long_runs.limits import (
    BASELINE,
    CLIP,
    COARSE,
    FEWEST_AFTER,
    FEWEST_BEFORE,
    LEAST_GROWTH,
    LEAST_SCALE,
    MEMORY_AGAIN,
    MEMORY_GROWTH,
    MEMORY_VALUES,
    MOST_AFTER,
    MOST_OF_JUMP,
    PART_OF_GROWTH,
    STEPS_PER_BLOCK,
    THRESHOLD,
)
from traceq.long_runs.step_store import StepBlock, measure

_BATCHES = (1, 2, 4, 8)
_FEWEST_BATCHES = 6
_FEWEST_SURE = 3
"""Values after the begin of a rise: of fewer there is no median."""
_NORMAL_95 = 1.96
_LEAST_CLIP = 3
_AT_ONCE = 1024
"""Series that are judged together: their values fit into the cache of a core."""
_MAD_TO_SD = 1.4826


@frozen
class Rise:
    """A rise of the last `num_after` values over the `num_before` ones before them, with its 95 % interval."""

    num_before: int
    num_after: int
    growth: float
    half_width: float
    is_ramp: bool


class ChangeDetector:
    """Detector of a rise in each of `num_series`; a fall is followed in silence. Memory and time are fixed."""

    def __init__(self, num_series: int) -> None:
        self._values = np.zeros((num_series, BASELINE + MOST_AFTER))  # the newest last
        self._num = np.zeros(num_series, np.int64)  # how many of them count
        # by the tail of the normal distribution, so that all series together alarm falsely as rarely as one
        self._threshold = (THRESHOLD**2 + 2 * np.log(num_series)) ** 0.5

    def scale(self, factor: float) -> None:
        """Multiply the values so far, as what they are parts of is another."""
        self._values *= factor

    def add(self, values: NDArray[np.float64]) -> dict[int, Rise]:
        """Add a value to each series; return the rises that are beyond doubt with it, by series, which begin anew."""
        self._values[:, :-1] = self._values[:, 1:]
        self._values[:, -1] = values
        self._num = np.minimum(self._num + 1, self._values.shape[1])
        rises: dict[int, Rise] = {}
        for num in np.unique(self._num[self._num >= FEWEST_BEFORE + FEWEST_AFTER]):
            series = np.flatnonzero(self._num == num)
            for begin in range(0, len(series), _AT_ONCE):
                self._judge(series[begin : begin + _AT_ONCE], int(num), rises)
        return dict(sorted(rises.items()))

    def _judge(self, series: NDArray[np.int64], num: int, rises: dict[int, Rise]) -> None:
        """Add the rises of series of so many values, and keep what counts of those that rose or fell."""
        values = self._values[series, -num:]
        num_after = np.arange(FEWEST_AFTER, min(MOST_AFTER, num - FEWEST_BEFORE) + 1)
        reference = values[:, : -num_after[-1]]
        middle, (of_value, of_mean) = np.median(reference, axis=1, keepdims=True), _scale(reference)
        width = np.maximum(CLIP * of_value, _LEAST_CLIP * LEAST_GROWTH)  # a quiet series has to be able to rise
        clipped = np.clip(values, middle - width, middle + width)
        sums = np.pad(np.cumsum(clipped, axis=1), ((0, 0), (1, 0)))
        begin = num - num_after
        num_before = np.minimum(begin, BASELINE)
        after = (sums[:, -1:] - sums[:, begin]) / num_after
        before = (sums[:, begin] - sums[:, begin - num_before]) / num_before
        error = of_mean * np.sqrt(1 / num_after + 1 / num_before)
        growth = after - before
        fall, score = (-growth - LEAST_GROWTH) / error, (growth - LEAST_GROWTH) / error
        falls = fall.max(axis=1) > self._threshold
        self._num[series[falls]] = num_after[np.argmax(fall[falls], axis=1)]  # judge by what follows it
        for row in np.flatnonzero((score.max(axis=1) > self._threshold) & ~falls):
            best = int(np.argmax(score[row]))
            if self._stays(values[row], int(num_after[best]), before[row, best]):
                rise = self._rise(values[row, begin[best] - num_before[best] :], float(error[row, best]))
                self._num[series[row]] = rise.num_after
                rises[int(series[row])] = rise

    @staticmethod
    def _stays(values: NDArray[np.float64], num_after: int, before: float) -> bool:
        """Return whether three in four values since then are above the least growth: a few high ones make no level."""
        return bool(np.quantile(values[-num_after:], 0.25) > before + LEAST_GROWTH)

    @staticmethod
    def _rise(values: NDArray[np.float64], error: float) -> Rise:
        """Return the rise by the best fit of one: a jump from one level to another, or a line that begins to climb."""
        begins = np.arange(_FEWEST_SURE, len(values) - _FEWEST_SURE + 1)
        since = np.arange(len(values)) - begins[:, None]
        jumps, climbs = _explained(values, since >= 0), _explained(values, np.maximum(since + 1, 0))
        begin = int(begins[np.argmax(jumps)])
        growth = float(np.median(values[begin:]) - np.median(values[:begin]))
        return Rise(begin, len(values) - begin, growth, _NORMAL_95 * error, bool(climbs.max() > jumps.max()))


def _explained(values: NDArray[np.float64], shapes: NDArray[Any]) -> NDArray[np.float64]:
    """Return how much of the variance of values each shape explains beside a constant: float64[len(shapes)]."""
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    explained: NDArray[np.float64] = (centred @ (values - values.mean())) ** 2 / (centred**2).sum(axis=1)
    return explained


def _scale(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the standard deviation of a value, and of a mean times the root of its number of values.

    `values`: float64[num_series, N]; of each series one: float64[num_series, 1].
    """
    num_values = values.shape[1]
    place = np.arange(num_values) - (num_values - 1) / 2
    values = values - place * (values @ place / (place @ place))[:, None]  # drift is no noise
    middle = np.median(values, axis=1, keepdims=True)
    of_value = np.maximum(_MAD_TO_SD * np.median(np.abs(values - middle), axis=1, keepdims=True), LEAST_SCALE)
    clipped = np.clip(values, middle - CLIP * of_value, middle + CLIP * of_value)
    most = np.maximum(of_value, clipped.std(axis=1, ddof=1, keepdims=True))
    for size in _BATCHES[1:]:
        num = num_values // size
        if num < _FEWEST_BATCHES:
            break
        means = clipped[:, num_values - num * size :].reshape(-1, num, size).mean(axis=2)
        most = np.maximum(most, means.std(axis=1, ddof=1, keepdims=True) * size**0.5)
    return of_value, most * (1 + 2 / num_values**0.5)


SLOW_RANK, SLOW_JOB, SLOW_LOADER = "slow rank", "slow job", "slow loader"
COLLECTOR, LESS_CPU = "garbage collection", "less CPU"
GROWING_STEPS, GROWING_MEMORY, THROTTLED = "growing steps", "growing memory", "throttled device"
KINDS = (SLOW_RANK, SLOW_JOB, SLOW_LOADER, COLLECTOR, LESS_CPU, GROWING_STEPS, GROWING_MEMORY, THROTTLED)
_OF_DEVICES = (SLOW_RANK, SLOW_JOB, GROWING_STEPS)
"""Kinds that a device which became slower may be the cause of."""
_OF_JOB, _OF_RANKS = ("median", "loader", "gc"), ("compute", "cpu")
_CAUSES = (("gc", COLLECTOR), ("loader", SLOW_LOADER), ("cpu", SLOW_RANK), ("queued", LESS_CPU), ("compute", SLOW_RANK))
"""Measures in which a step may have grown, the surest first, with its kind."""
Values = NDArray[np.float32]


class Onset(msgspec.Struct, frozen=True, kw_only=True):
    """What began at a step: its kind, and its ranks, all of them for what is the job's.

    `before` and `after`: s of a step that the rank where it grew most spends in `measure`, bytes of its memory, or Hz.
    `growth`: what that adds, as a part of the job's step, or of the memory; its 95 % interval is from `low` to `high`.
    `phase`: which grew most on those ranks. `seen_at`: the step from which it was beyond doubt; `time` of that,
    s since the epoch. `capture`: the folder in the run of the steps that were traced for it, or "".
    """

    number: int = 0
    kind: str
    ranks: tuple[int, ...]
    step: int
    seen_at: int = 0
    time: float = 0.0
    measure: str
    before: float
    after: float
    growth: float
    low: float
    high: float
    phase: str = ""
    capture: str = ""


class OnsetDetector:
    """Detector of the onsets of a run, of blocks in order; memory and time for a block are fixed."""

    def __init__(self) -> None:
        self._looks = (_Look(1), _Look(COARSE))
        self._coarse: list[StepBlock] = []
        self._num = self._begun_until = self._said_until = 0

    def add(self, block: StepBlock) -> Onset | None:
        """Add a block; return the onset that is beyond doubt with it."""
        fine, coarse = self._looks
        block = fine.with_usual(block)
        onset, is_coarse = fine.add(block), False
        self._coarse.append(block)
        if len(self._coarse) == COARSE:
            values = _medians([each.values for each in self._coarse])
            values[:, measure("memory")] = self._coarse[-1].values[:, measure("memory")]
            later = coarse.add(StepBlock(self._coarse[0].first_step, block.time, values))
            onset, is_coarse = onset or later, onset is None
            self._coarse.clear()
        if onset is None:
            return None
        if onset.kind != GROWING_MEMORY:
            if onset.step < (self._said_until if is_coarse else self._begun_until):  # another series of what was said
                return None
            self._begun_until = onset.step + 2 * FEWEST_AFTER * STEPS_PER_BLOCK
            self._said_until = block.first_step + STEPS_PER_BLOCK
        for look in self._looks:
            look.note(onset)
        self._num += 1
        seen_at = block.first_step + STEPS_PER_BLOCK
        return msgspec.structs.replace(onset, number=self._num, seen_at=seen_at, time=block.time)


class _Look:
    """Looks at blocks of one size."""

    def __init__(self, num_blocks: int) -> None:
        self._steps_per_value = num_blocks * STEPS_PER_BLOCK
        self._history: deque[StepBlock] = deque(maxlen=BASELINE + MOST_AFTER)
        self._num_seen = 0
        self._usual_s = 0.0  # a step, of which series are parts
        self._detector = ChangeDetector(1)
        self._since = 0  # the step of the last onset
        self._memory: deque[Values] = deque(maxlen=MEMORY_VALUES)
        self._said_bytes: Values = np.zeros(1, np.float32)  # memory of each rank at its last onset

    def note(self, onset: Onset) -> None:
        """Judge by what follows an onset, and measure series by a step as it is now."""
        if onset.kind == GROWING_MEMORY:
            self._memory.clear()
            self._said_bytes = self._history[-1].values[:, measure("memory")]
        else:
            self._since = onset.step
            self._measure_by(FEWEST_AFTER)

    def _measure_by(self, num: int) -> None:
        """Let the median step of the last blocks be what series are parts of."""
        steps = [block.values[:, measure("median")].max() for block in self._history]
        before_s, self._usual_s = self._usual_s, float(np.median(steps[-num:]))
        self._detector.scale(before_s / self._usual_s)

    def with_usual(self, block: StepBlock) -> StepBlock:
        """Return a block in which ranks of which nothing came are as they usually were: neither rise nor fall."""
        absent = np.isnan(block.values[:, measure("median")])
        if not absent.any():
            return block
        values = block.values.copy()
        values[absent] = _medians([each.values[absent] for each in self._history])
        return StepBlock(block.first_step, block.time, values)

    def add(self, block: StepBlock) -> Onset | None:
        self._history.append(block)
        self._num_seen += 1
        of_job = [block.values[:, measure(name)].max() for name in _OF_JOB]
        series = np.concatenate([of_job, *(block.values[:, measure(name)] for name in _OF_RANKS)], dtype=np.float64)
        if not self._usual_s:
            self._usual_s = float(block.values[:, measure("median")].max())
            self._detector = ChangeDetector(len(series))
        elif self._num_seen == FEWEST_BEFORE:
            self._measure_by(FEWEST_BEFORE)
        rises = self._detector.add(series / self._usual_s)
        onset = self._slower(next(iter(rises.values()))) if rises else None
        return onset or self._memory_growth(block)

    def _slower(self, rise: Rise) -> Onset:
        after, before = self._medians(rise)
        kind, ranks, name = _kind(after - before, self._usual_s * rise.growth, is_ramp=rise.is_ramp)
        whole = float(before[:, measure("median")].max()) / self._usual_s
        phase = _phase((after - before)[list(ranks)].mean(axis=0))
        throttled = _throttled(before, after, rise.growth / whole) if kind in _OF_DEVICES else ()
        if throttled:
            kind, ranks, name = THROTTLED, throttled, "clock"
        grew = (before - after if throttled else after - before)[:, measure(name)]
        worst = max(ranks, key=lambda rank: grew[rank])
        return Onset(
            kind=kind,
            ranks=ranks,
            step=self._history[-rise.num_after].first_step,
            measure=name,
            before=float(before[worst, measure(name)]),
            after=float(after[worst, measure(name)]),
            growth=rise.growth / whole,
            low=(rise.growth - rise.half_width) / whole,
            high=(rise.growth + rise.half_width) / whole,
            phase=phase,
        )

    def _medians(self, rise: Rise) -> tuple[Values, Values]:
        """Return medians of blocks after a rise, and before it since the last: float64[num_ranks, len(MEASURES)]."""
        blocks = list(self._history)
        before = blocks[: -rise.num_after][-rise.num_before :]
        later = [block for block in before if block.first_step >= self._since]
        if len(later) >= FEWEST_AFTER:
            before = later
        return _medians([each.values for each in blocks[-rise.num_after :]]), _medians([each.values for each in before])

    def _memory_growth(self, block: StepBlock) -> Onset | None:
        """Return that the memory of a rank grew in every one of the last blocks, evenly, by more than a little."""
        memory = block.values[:, measure("memory")]
        if np.isnan(memory).any() or self._num_seen < FEWEST_BEFORE:
            return None
        self._memory.append(memory)
        if len(self._memory) < MEMORY_VALUES:
            return None
        values = np.array(self._memory)
        increments = np.diff(values, axis=0)
        total = values[-1] - values[0]
        grows = (increments > 0).all(axis=0) & (total > MEMORY_GROWTH * values[0])
        grows &= (increments.max(axis=0) < MOST_OF_JUMP * total) & (values[-1] > MEMORY_AGAIN * self._said_bytes)
        if not grows.any():
            return None
        rank = int(np.argmax(total * grows))
        growth = total / values[0]
        spread = _NORMAL_95 * increments[:, rank].std(ddof=1) * len(increments) ** 0.5 / values[0, rank]
        return Onset(
            kind=GROWING_MEMORY,
            ranks=tuple(map(int, np.flatnonzero(grows))),
            step=block.first_step - (MEMORY_VALUES - 1) * self._steps_per_value,
            measure="memory",
            before=float(values[0, rank]),
            after=float(values[-1, rank]),
            growth=float(growth[rank]),
            low=float(growth[rank] - spread),
            high=float(growth[rank] + spread),
        )


def _medians(values: Sequence[Values]) -> Values:
    """Return the medians of blocks, of those in which a measure was read; NaN where it was in none."""
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        medians: Values = np.nanmedian(values, axis=0)
    return medians


def _throttled(before: Values, after: Values, growth: float) -> tuple[int, ...]:
    """Return the ranks whose device is throttled, and whose clock fell by enough of what the step grew.

    A clock alone is no cause: that of a device which waits falls, too.
    """
    clock = measure("clock")
    fall = 1 - after[:, clock] / before[:, clock]
    fell = fall >= max(LEAST_GROWTH, PART_OF_GROWTH * growth)
    return tuple(map(int, np.flatnonzero(fell & (after[:, measure("throttled")] > 0))))


def _phase(delta: Values) -> str:
    """Return the phase that grew most."""
    phases = {name: delta[measure(name)] for name in ("loader", "forward", "backward", "optimizer")}
    phases["rest"] = delta[measure("wall")] - sum(phases.values())
    return max(phases, key=lambda name: phases[name])


def _kind(delta: Values, amount_s: float, *, is_ramp: bool) -> tuple[str, tuple[int, ...], str]:
    """Return the kind of what grew by so much, the ranks where it did, and its measure; the first that applies.

    A rank that is late in its own part makes the others wait in the collectives of their backward.
    """
    for name, kind in _CAUSES:
        grew = np.nan_to_num(delta[:, measure(name)])
        if grew.max() < PART_OF_GROWTH * amount_s:
            continue
        ranks = tuple(map(int, np.flatnonzero(grew >= PART_OF_GROWTH * grew.max())))
        if kind == SLOW_RANK and 2 * len(ranks) > len(delta):
            break
        return kind, ranks, name
    return GROWING_STEPS if is_ramp else SLOW_JOB, tuple(range(len(delta))), "wall"
