"""Which interventions would gain most, of those that a job can be asked for without naming anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from traceq.causes.removed_waits import LOADER, alike_syncs, kinds_of_waits, saved_without_alike
from traceq.claims.limits import NOTABLE
from traceq.errors import UsageFault
from traceq.facts.stalls.syncs import syncs
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.whatif.intervention import Intervention
from traceq.whatif.interventions import (
    BalancedLoader,
    HiddenComm,
    NoLaunchLatency,
    WithoutLoader,
    WithoutStraggler,
    WithoutSyncs,
)
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.limits import SAME_SAVING
from traceq.whatif.predict import Prediction, predict

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
