"""What of a step cannot be replayed: where that is more than 5 %, nothing is said of what a change would gain."""

from __future__ import annotations

from traceq.causes.replay import replay_of
from traceq.facts.events.device_work import device_work
from traceq.facts.memo import once_per_object, once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.intervals import empty
from traceq.model import Trace
from traceq.units import Unit, format_value
from traceq.whatif.job_replay import CannotReplay, JobReplay
from traceq.whatif.limits import MOST_UNREPLAYED
from traceq.whatif.rank_part import rank_facts
from traceq.whatif.sentences import UNREPLAYED, UNREPLAYED_PARTS


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
