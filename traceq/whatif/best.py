"""Which interventions would gain most, of those that a job can be asked for without naming anything."""

from __future__ import annotations

from collections import Counter

from traceq.causes.removed_waits import LOADER, alike_syncs, kinds_of_waits, saved_without_alike
from traceq.errors import UsageFault
from traceq.facts.stalls.syncs import syncs
from traceq.whatif.host_waits import BalancedLoader, WithoutLoader, WithoutSyncs
from traceq.whatif.intervention import Intervention
from traceq.whatif.interventions import HiddenComm, NoLaunchLatency, WithoutStraggler
from traceq.whatif.job_replay import JobReplay
from traceq.whatif.predict import Prediction, predict

__all__ = ["best_changes", "candidates"]

_MOST = 3
_MOST_LINES = 3
"""Lines of syncs that are tried: those that save most alone."""
_LEAST_SHARE = 0.01
"""Part of a step that an intervention has to gain at least."""


def candidates(replay: JobReplay) -> list[Intervention]:
    """Return the interventions that are possible: lines of syncs, all syncs, the loader, the ranks, collectives."""
    kinds = [kinds_of_waits(part.trace) for part in replay.parts]
    chosen: list[Intervention] = [WithoutSyncs(line) for line in _costliest_lines(replay)]
    chosen += [WithoutSyncs()] if any((of_rank >= 0).any() for of_rank in kinds) else []
    chosen += [WithoutLoader()] if any((of_rank == LOADER).any() for of_rank in kinds) else []
    if len(replay.parts) > 1:
        chosen += [*([WithoutStraggler()] if replay.stragglers.ranks else []), BalancedLoader()]
    chosen += [HiddenComm()] if len(replay.communication) else []
    has_device = all(facts.has_device for facts in replay.facts)
    return [*chosen, NoLaunchLatency()] if has_device else chosen


def best_changes(replay: JobReplay, path: str = "") -> tuple[Prediction, ...]:
    """Return what each intervention alone gains, the most first: at most three, of those that gain more than noise.

    Of two that gain the same, the narrower one comes first, and is enough. Raises CannotReplay.
    """
    gains: list[Prediction] = []
    for intervention in candidates(replay):
        try:
            prediction = predict(replay, [intervention], path)
        except UsageFault:  # there is nothing of it in these steps
            continue
        change = prediction.together
        is_gain = change.is_shorter and change.least_saved_ns >= _LEAST_SHARE * prediction.now_ns
        if is_gain and not any(_is_same(each, prediction) for each in gains):
            gains.append(prediction)
    gains.sort(key=lambda each: -each.together.least_saved_ns)
    return tuple(gains[:_MOST])


def _is_same(a: Prediction, b: Prediction) -> bool:
    """Return whether both save the same: all syncs are those of one line, as a rule."""
    first, second = a.together, b.together
    return (first.least_saved_ns, first.most_saved_ns) == (second.least_saved_ns, second.most_saved_ns)


def _costliest_lines(replay: JobReplay) -> list[str]:
    """Return the lines whose syncs save most alone, summed over ranks."""
    saved: Counter[str] = Counter()
    for part in replay.parts:
        keys, texts = alike_syncs(part.trace).keys, syncs(part.trace).origin.texts
        for key, saving in zip(keys.tolist(), saved_without_alike(part.trace), strict=True):
            place = texts[key[2]].partition(" ")[0]
            if ":" in place:
                saved[place] += saving.least_ns
    return [line for line, ns in saved.most_common(_MOST_LINES) if ns > 0]
