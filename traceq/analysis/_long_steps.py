"""Steps of a trace that last much longer than its others, as with an evaluation, and what they do more."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._host_causes import host_causes, place_words
from traceq.analysis._longest_work import work_times
from traceq.analysis._wording import category_term, in_phase
from traceq.facts.events.name_patterns import unique_names
from traceq.facts.timeline.call_sites import called_frames, line_function, source_line
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import measure_within, spans
from traceq.model import Trace
from traceq.report import Finding, found
from traceq.units import Unit, format_value

__all__ = ["LongSteps", "long_steps", "long_steps_finding"]

_FEWEST = 5
"""Steps from which a minority may be the long ones."""
_TIMES = 2.0
"""Multiple of the median step from which one is long: lengths of sequences make less of a difference."""
_LEAST_SHARE, _HIGH_SHARE = 0.1, 0.3
"""Parts of the time that long steps take beyond the median, from which they are told, and from which that is severe."""
_MOST_NUMBERS = 3
_LEAST_PLACE = 0.2
"""Part of what a long step does more from which the largest place is named."""
_BUILTIN = re.compile(r"<built-in (?:function|method) (\w+)")
_BY_PLACE = (TimeCategory.COMPUTE, TimeCategory.CPU_COMPUTE, TimeCategory.HOST_BOUND, TimeCategory.PYTHON)


@frozen
class LongSteps:
    """The long ones of a rank's counted steps: their `numbers`, of `num_steps` that take `total_ns` together.

    They take `long_ns` in the mean, the median step `usual_ns`. `place`: where a long one takes `place_ns` more, "" if
    no place has much of the difference.
    """

    numbers: tuple[int, ...]
    num_steps: int
    total_ns: int
    long_ns: float
    usual_ns: float
    place: str
    place_ns: float

    @property
    def more_ns(self) -> float:
        """Ns that all of them take beyond the median."""
        return len(self.numbers) * (self.long_ns - self.usual_ns)


def long_steps(trace: Trace) -> LongSteps | None:
    """Return the steps that last twice as long as the median one, where they are a minority with much of the time."""
    all_steps = steps(trace)
    counted = np.flatnonzero(all_steps.counted)
    if not all_steps.marked or all_steps.labels or len(counted) < _FEWEST:
        return None
    ns = np.diff(all_steps.window[counted])[:, 0]
    usual_ns, total_ns = float(np.median(ns)), int(ns.sum())
    is_long = ns >= _TIMES * usual_ns
    more_ns = float((ns[is_long] - usual_ns).sum())
    if not 0 < 2 * is_long.sum() < len(ns) or more_ns < _LEAST_SHARE * total_ns:
        return None
    long, others = (np.isin(np.arange(len(all_steps)), counted[chosen]) for chosen in (is_long, ~is_long))
    place_ns, place = max(_places(trace, long, others))
    if place_ns * is_long.sum() < _LEAST_PLACE * more_ns:
        place, place_ns = "", 0.0
    if place.startswith("at "):  # Python, which may be in a function of a library
        place += _called(trace, long, others, place_ns)
    numbers = tuple(all_steps.number[long].tolist())
    return LongSteps(numbers, len(ns), total_ns, float(ns[is_long].mean()), usual_ns, place, place_ns)


def long_steps_finding(long: LongSteps | None) -> Finding | None:
    """Return how long the long steps and the others are, and what the former do more."""
    if long is None:
        return None
    num, share = len(long.numbers), long.more_ns / long.total_ns
    numbers = ", ".join(map(str, long.numbers[:_MOST_NUMBERS])) + (", ..." if num > _MOST_NUMBERS else "")
    takes, does = ("takes", "it does") if num == 1 else ("take", "they do")
    more = f", {format_value(long.place_ns, Unit.NS)} a step {long.place}" if long.place else ""
    text = (
        f"uneven steps: {num} of these {long.num_steps} traced steps ({numbers}) {takes} "
        f"{format_value(long.long_ns, Unit.NS)}, the median one {format_value(long.usual_ns, Unit.NS)}: "
        f"{format_value(100 * share, Unit.PERCENT)} of all time is what {does} more{more}; "
        f"show --step {long.numbers[0]} has one alone, and means of steps are of neither kind"
    )
    severity = "high" if share >= _HIGH_SHARE else "medium"
    long_ns, usual_ns = (format_value(ns, Unit.NS) for ns in (long.long_ns, long.usual_ns))
    lead = f"uneven steps: {num} of {long.num_steps} {takes} {long_ns}, the median one {usual_ns}"
    evidence = f"{format_value(long.place_ns, Unit.NS)} more {long.place}" if long.place else ""
    return found("uneven_steps", severity, text, round(long.more_ns / long.num_steps), lead=lead, evidence=evidence)


def _places(trace: Trace, long: NDArray[np.bool_], others: NDArray[np.bool_]) -> Iterator[tuple[float, str]]:
    """Yield (ns that a `long` step takes more than the `others`, where) for ops, Python, and what is neither."""
    more: defaultdict[str, float] = defaultdict(float)
    for chosen, sign in ((long, 1), (others, -1)):
        for (name, place, _), ns in work_times(trace, chosen).items():
            more[f"in {name}{place}"] += sign * ns
        for (cause, op, line, phase), ns in host_causes(trace, chosen).items():
            more[place_words(cause, op, line, phase, "the data loader")] += sign * ns
        for words, ns in _other_cells(trace, chosen):
            more[words] += sign * ns
    yield 0.0, ""
    yield from ((ns, place) for place, ns in more.items() if place)


def _called(trace: Trace, long: NDArray[np.bool_], others: NDArray[np.bool_], least_ns: float) -> str:
    """Return `, in serialization.py save`: the call of the user's code with most of what `long` steps take more."""
    frames, host = called_frames(trace), steps(trace).host
    names, name = unique_names(trace.events, frames.rows)
    more = np.zeros(len(names))
    for chosen, sign in ((long, 1), (others, -1)):
        ns = measure_within(spans(*host[chosen].T), frames.start, frames.end)
        more += sign * np.bincount(name, ns, len(names)) / int(chosen.sum())
    most = int(more.argmax()) if len(more) else -1
    if most < 0 or 2 * more[most] < least_ns:
        return ""
    frame = trace.events.strings[names[most]]
    builtin = _BUILTIN.match(frame)
    return f", in {builtin[1] if builtin else line_function(source_line(frame)) or frame}"


def _other_cells(trace: Trace, chosen: NDArray[np.bool_]) -> Iterator[tuple[str, float]]:
    """Yield (category and phase, ns in a mean chosen step) of what is told by no op and no place of the host."""
    done, names = activity(trace), phases(trace).names
    pieces = np.flatnonzero(in_steps(trace, chosen) & ~done.among(*_BY_PLACE))
    cells = group([done.category[pieces], done.phase[pieces]])
    for (category, phase), ns in zip(cells.keys.tolist(), cells.sum(done.ns[pieces]), strict=True):
        term = category_term(TimeCategory(category).name.lower())
        yield f"of {term} {in_phase(names[phase])}", ns / int(chosen.sum())
