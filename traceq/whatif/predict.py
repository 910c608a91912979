"""What steps would be under some interventions, each alone and all together: ranges, what is held fixed, and refusals.

Where more than 5 % of a step cannot be replayed, nothing is said of what a change would gain. Of what a job can be
asked for without naming anything, those are told that would gain most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import hypot, sqrt

import numpy as np
from numpy.typing import NDArray

from traceq.causes.removed_waits import LOADER, alike_syncs, kinds_of_waits, saved_without_alike
from traceq.causes.replay import replay_of
from traceq.causes.savings import Saving
from traceq.claims.limits import NOTABLE
from traceq.errors import UsageFault
from traceq.facts.events.device_work import device_work
from traceq.facts.memo import once_per_object, once_per_trace
from traceq.facts.stalls.syncs import syncs
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.intervals import empty
from traceq.model import Trace
from traceq.units import Unit, format_value
from traceq.whatif.intervention import Intervention, RankIntervention, Weights
from traceq.whatif.interventions import (
    BalancedLoader,
    HiddenComm,
    NoLaunchLatency,
    WithoutLoader,
    WithoutStraggler,
    WithoutSyncs,
)
from traceq.whatif.job_replay import CannotReplay, JobReplay
from traceq.whatif.limits import LEAST_STEPS, MOST_UNREPLAYED, SAME_SAVING
from traceq.whatif.rank_cases import changed_on_ranks
from traceq.whatif.rank_part import rank_facts
from traceq.whatif.sentences import ALL_ELSE, UNREAD_RANKS, UNREPLAYED, UNREPLAYED_PARTS


def is_replayed(trace: Trace) -> bool:
    """Return whether so much of a rank's step is replayed that something can be said of changes to it."""
    return unreplayed_share(trace) <= MOST_UNREPLAYED


def unreplayed_share(trace: Trace) -> float:
    """Return the part of a rank's mean counted step that cannot be replayed, as `refuse_unreplayed` has it of one rank.

    It is 0 of a trace without device work, in which nothing but the host is replayed.
    """
    return min(sum(_shares(trace)), 1.0)


def least_unreplayed_share(trace: Trace) -> float:
    """Return how much of it that is at least, as delays without a recorded cause and unrecorded work may overlap."""
    return min(max(_shares(trace)), 1.0)


@once_per_trace
def _shares(trace: Trace) -> tuple[float, float]:
    """Return which parts of the step are delays without a recorded cause, and unrecorded work."""
    if not len(device_work(trace)):
        return 0.0, 0.0
    replay, counted = replay_of(trace), steps(trace).counted
    step_ns = float(replay.step_ns[counted].mean())
    unreplayed_ns = max(replay.unexplained_ns(), 0), rank_facts(trace, counted, empty()).unrecorded_ns
    return (unreplayed_ns[0] / step_ns, unreplayed_ns[1] / step_ns) if step_ns else (0.0, 0.0)


def refuse_unreplayed(replay: JobReplay, path: str = "") -> int:
    """Return ns of the mean step that cannot be replayed. Raises CannotReplay if that is more than 5 % of it."""
    now_ns, parts = float(replay.observed_ns.mean()), _unreplayed(replay)
    total_ns = sum(parts.values())
    if total_ns > MOST_UNREPLAYED * now_ns:
        listed = "; ".join(f"{format_value(ns, Unit.NS)} {name}" for name, ns in parts.items() if ns > 0)
        share = format_value(100 * total_ns / max(now_ns, total_ns), Unit.PERCENT)
        step = format_value(now_ns, Unit.NS)
        where, overlap = f"{path}: " if path else "", "; these overlap" if total_ns > now_ns else ""
        raise CannotReplay(UNREPLAYED.format(where=where, share=share, step=step, listed=listed, overlap=overlap))
    return round(total_ns)


@once_per_object
def _unreplayed(replay: JobReplay) -> dict[str, float]:
    """Return ns of the mean step by what of it cannot be replayed."""
    delays = replay.observed_ns - replay.loosest_ns
    without_cause, unrecorded, unmatched = UNREPLAYED_PARTS
    parts = {
        without_cause: max(float(delays.mean()), 0.0),
        unrecorded: max(facts.unrecorded_ns for facts in replay.facts),
    }
    if len(replay.facts) > 1:
        on_path = replay.on_path()
        on_path[replay.runs] = False
        alone = replay.communication
        on_device = int(replay.observed[alone[on_path[alone]]].sum()) / replay.num_steps
        on_host = max(facts.lone_waits_ns for facts in replay.facts)
        parts[unmatched] = on_device + on_host
    return parts


Ints = NDArray[np.int64]


@frozen
class Change:
    """What the mean step would be: shorter by `least_saved_ns` to `most_saved_ns`, and from `least_ns` to `most_ns`.

    `noise_ns`: two standard errors of the saving, by how steps differ in it; None for one or two. `again_ns`: of the
    difference between the mean of these steps and that of as many others, which have the change; likewise.
    """

    option: str
    words: str
    held: tuple[str, ...]
    now_ns: int
    least_saved_ns: int
    most_saved_ns: int
    noise_ns: int | None
    again_ns: int | None

    @property
    def least_ns(self) -> int:
        """The shortest that the step would be, ns."""
        return max(self.now_ns - self.most_saved_ns - (self.noise_ns or 0), 0)

    @property
    def most_ns(self) -> int:
        """The longest that the step would be, ns: by noise alone, what saves makes no step longer."""
        longest_ns = self.now_ns - self.least_saved_ns + (self.noise_ns or 0)
        return longest_ns if self.least_saved_ns < 0 else min(longest_ns, self.now_ns)

    @property
    def is_shorter(self) -> bool:
        """Whether the step would be shorter for certain."""
        return self.most_ns < self.now_ns


@frozen
class Prediction:
    """Predictions for the mean of `num_steps` steps of some ranks, which last `now_ns`.

    `together`: all interventions at once; `each` of them alone. `unreplayed_ns` of the step are not replayed.
    `shown_ns`: the mean step of each rank by itself, as `show` has it.
    """

    ranks: tuple[int, ...]
    num_steps: int
    is_marked: bool
    world_size: int
    now_ns: int
    unreplayed_ns: int
    shown_ns: tuple[int, ...]
    together: Change
    each: tuple[Change, ...]

    @property
    def held(self) -> tuple[str, ...]:
        """What is held fixed, as sentences."""
        assumed = dict.fromkeys(text for change in self.each for text in change.held)
        others = self.world_size - len(self.ranks)
        if others > 0:
            assumed[UNREAD_RANKS.format(num=others, world_size=self.world_size)] = None
        return (ALL_ELSE, *(f"{text[:1].upper()}{text[1:]}." for text in assumed))


def predict(replay: JobReplay, interventions: Sequence[Intervention], path: str = "") -> Prediction:
    """Return what the steps would be. Raises CannotReplay, and UsageFault for what is not there to change."""
    chosen = [each.resolved(replay) if isinstance(each, WithoutStraggler) else each for each in interventions]
    each = tuple(_change(replay, [intervention]) for intervention in chosen)
    unreplayed_ns = refuse_unreplayed(replay, path)
    together = each[0] if len(each) == 1 else _change(replay, chosen)
    return Prediction(
        ranks=replay.ranks,
        num_steps=replay.num_steps,
        is_marked=replay.facts[0].is_marked,
        world_size=max(facts.world_size for facts in replay.facts),
        now_ns=together.now_ns,
        unreplayed_ns=unreplayed_ns,
        shown_ns=tuple(facts.shown_ns for facts in replay.facts),
        together=together,
        each=each,
    )


def _change(replay: JobReplay, interventions: Sequence[Intervention]) -> Change:
    now, least, most = _played(replay, interventions)
    saving, num = _saving(now, least, most), replay.num_steps
    noise = again = None
    if num >= LEAST_STEPS:
        noise = round(max(_noise_ns(now - then) for then in (least, most)))
        again = round(max(hypot(_noise_ns(now), _noise_ns(then)) for then in (least, most)))
    words = [intervention.words for intervention in interventions]
    return Change(
        option=" ".join(intervention.option for intervention in interventions),
        words=f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0],
        held=tuple(intervention.held_in(replay) for intervention in interventions),
        now_ns=round(float(now.mean())),
        least_saved_ns=saving.least_ns,
        most_saved_ns=saving.most_ns,
        noise_ns=noise,
        again_ns=again,
    )


def _played(replay: JobReplay, interventions: Sequence[Intervention]) -> tuple[Ints, Ints, Ints]:
    """Return the steps (as they were, if they become shorter by the least, by the most): int64[K] ns."""
    speeds_device = any(intervention.speeds_device for intervention in interventions)
    ignored = tuple(index for intervention in interventions for index in intervention.ignored(replay))
    now, lasts = replay.observed_ns, []
    for before, most in ((replay.observed, False), (replay.loosest, True)):
        weight = _changed(replay, before, interventions, most=most)
        then = now - replay.saved_ns(weight, ignored, most=most, speeds_device=speeds_device)
        lasts.append(now if ignored and then.mean() > now.mean() else then)  # no rank waits for longer than before
    return now, lasts[0], lasts[1]


def _changed(replay: JobReplay, before: Ints, interventions: Sequence[Intervention], *, most: bool) -> Ints:
    """Return int64[E] ns: the weights `before` with all changes, of which contracted ranks have made their own."""
    on_ranks = [each for each in interventions if isinstance(each, RankIntervention)]
    if replay.contracted and on_ranks:
        before = changed_on_ranks(replay, before, on_ranks, most=most)
    weights = Weights(replay, before)
    for intervention in interventions:
        if not (replay.contracted and isinstance(intervention, RankIntervention)):
            intervention.apply(replay, weights, most=most)
    return weights.changed()


def _noise_ns(of_steps: Ints) -> float:
    """Return two standard errors of the mean of some steps' times, or savings, ns."""
    return 2 * float(of_steps.std(ddof=1)) / sqrt(len(of_steps))


def _saving(now: Ints, least: Ints, most: Ints) -> Saving:
    """Return the saving, of which what is at least is known: the other end is no smaller, as in `Replay`.

    A step that becomes longer may do so by more than the recording shows: what may not exist hides none of it.
    """
    saved = [round(float((now - then).mean())) for then in (least, most)]
    return Saving(saved[0] if min(saved) >= 0 else min(saved), max(saved))


_MOST = 3
_MOST_LINES = 3
"""Lines of syncs that are tried: those that save most alone."""


@frozen
class RankWaits:
    """What a rank's host waits for: whether there are syncs, and waits for the data loader.

    `lines`: ns by which a mean step is shorter without the syncs of each line, at least; of lines that save anything.
    """

    has_syncs: bool
    has_loader: bool
    lines: Mapping[str, int]


def rank_waits(trace: Trace) -> RankWaits:
    """Return what the host of a rank waits for."""
    kinds, saved = kinds_of_waits(trace), Counter[str]()
    keys, texts = alike_syncs(trace).keys, syncs(trace).origin.texts
    for key, saving in zip(keys.tolist(), saved_without_alike(trace), strict=True):
        place = texts[key[2]].partition(" ")[0]
        if ":" in place:
            saved[place] += saving.least_ns
    lines = {line: ns for line, ns in saved.items() if ns}
    return RankWaits(bool((kinds >= 0).any()), bool((kinds == LOADER).any()), lines)


def candidates(replay: JobReplay, waits: Sequence[RankWaits]) -> list[Intervention]:
    """Return the interventions that are possible: lines of syncs, all syncs, the loader, the ranks, collectives.

    `waits` of each rank. A host whose ops are not recorded may do anything between its launches.
    """
    saved = sum((Counter(of_rank.lines) for of_rank in waits), Counter[str]())
    chosen: list[Intervention] = [WithoutSyncs(line) for line, _ in saved.most_common(_MOST_LINES)]
    chosen += [WithoutSyncs()] if any(of_rank.has_syncs for of_rank in waits) else []
    chosen += [WithoutLoader()] if any(of_rank.has_loader for of_rank in waits) else []
    if len(replay.facts) > 1:
        chosen += [*([WithoutStraggler()] if replay.stragglers.ranks else []), BalancedLoader()]
    chosen += [HiddenComm()] if len(replay.communication) else []
    is_launching = all(facts.has_device and not facts.lacks_host_ops for facts in replay.facts)
    return [*chosen, NoLaunchLatency()] if is_launching else chosen


def best_changes(replay: JobReplay, path: str = "") -> tuple[Prediction, ...]:
    """Return what each possible intervention alone gains, as `best_of` does. Raises CannotReplay."""
    waits = [rank_waits(part.trace) for part in replay.parts]
    return best_of(replay, candidates(replay, waits), path)


def best_of(replay: JobReplay, interventions: Sequence[Intervention], path: str = "") -> tuple[Prediction, ...]:
    """Return what interventions gain, the most first: at most three, of those that gain more than noise.

    Of two that gain the same, the narrower one comes first, and is enough. Raises CannotReplay.
    """
    gains: list[tuple[Intervention, Prediction]] = []
    for intervention in interventions:
        try:
            prediction = predict(replay, [intervention], path)
        except UsageFault:  # there is nothing of it in these steps
            continue
        change = prediction.together
        is_gain = change.is_shorter and change.least_saved_ns >= NOTABLE * prediction.now_ns
        if is_gain and not any(_is_same(each, (intervention, prediction)) for each in gains):
            gains.append((intervention, prediction))
    gains.sort(key=lambda gain: -gain[1].together.least_saved_ns)
    return tuple(prediction for _, prediction in gains[:_MOST])


def _is_same(a: tuple[Intervention, Prediction], b: tuple[Intervention, Prediction]) -> bool:
    """Return whether both save the same; all syncs are those of one line where they save hardly more than these."""
    first, second = a[1].together, b[1].together
    of_syncs = isinstance(a[0], WithoutSyncs) and isinstance(b[0], WithoutSyncs)
    grain_ns = SAME_SAVING * first.now_ns if of_syncs else 0
    return (
        abs(first.least_saved_ns - second.least_saved_ns) <= grain_ns
        and abs(first.most_saved_ns - second.most_saved_ns) <= grain_ns
    )
