"""Where the workers of a data loader spend their time, from the samples of their stacks."""

from __future__ import annotations

import json
from collections import Counter

from traceq.facts.ranks.job import Job
from traceq.facts.sentences import WORKERS
from traceq.frozen import frozen
from traceq.units import Unit, format_value

_MIN_SAMPLES = 20
"""Samples of workers below which they name no line."""


@frozen
class WorkerPlace:
    """The function in which workers are in most of `num_samples`, its line of most of these, and its share in percent.

    `line` is `train.py:17`.
    """

    function: str
    line: str
    share_pct: float
    num_samples: int


def worker_place(job: Job) -> WorkerPlace | None:
    """Return where the workers of a loader are most of the time; None of few samples."""
    facts = job.manifest.facts_for(job.arm) if job.manifest else {}
    num = facts.get("worker_samples")
    try:
        counts = {str(line): int(count) for line, count in json.loads(str(facts.get("worker_lines", "")))}
    except (ValueError, TypeError):
        return None
    of_function: Counter[tuple[str, str]] = Counter()
    for line, count in counts.items():
        of_function[_function(line)] += count
    if not isinstance(num, int) or num < _MIN_SAMPLES or not 0 < of_function.total() <= num:
        return None
    [(function, most)] = of_function.most_common(1)
    line = max((line for line in counts if _function(line) == function), key=lambda line: counts[line])
    return WorkerPlace(function[1], line.partition(" ")[0], 100 * most / num, num)


def worker_line(job: Job) -> str:
    """Return `83.0 % of 97 samples of loading workers are in __getitem__, most at train.py:17`; "" of few samples."""
    place = worker_place(job)
    if place is None:
        return ""
    share = format_value(place.share_pct, Unit.PERCENT)
    return WORKERS.format(share=share, num=place.num_samples, function=place.function, line=place.line)


def _function(line: str) -> tuple[str, str]:
    """Return (file, function) of `train.py:17 __getitem__`."""
    place, _, function = line.partition(" ")
    return place.rpartition(":")[0], function
