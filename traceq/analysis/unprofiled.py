"""How long are unprofiled steps? The verdict of a diff is based on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traceq.analysis import sentences
from traceq.facts.ranks.job import Job
from traceq.frozen import frozen
from traceq.model import Pairs, Trace
from traceq.report import Report, Table, column
from traceq.stats import slowest_rank_ns
from traceq.units import Unit


@frozen
class _Comparison:
    """Median unprofiled steps of two arms that ran in turn; `iqr_ns` is the first arm's interquartile range."""

    arms: str = column("arms")
    num_pairs: int = column("pairs", Unit.COUNT)
    a_ns: float = column("first arm", Unit.NS)
    b_ns: float = column("second arm", Unit.NS)
    iqr_ns: float = column("IQR", Unit.NS)


def summarize(trace: Trace) -> None:
    """Return nothing: profiled steps are not part of this."""


def merge(job: Job, parts: Sequence[None]) -> Report:
    """Return the median step of the job (the slowest rank) in each arm of a recording; nothing for other traces.

    Arms in separate processes are in the analysis `arms`.
    """
    rows = [_comparison(pairs) for pairs in job.pairs if pairs.b_second.size]
    note = "" if all(pairs.is_control for pairs in job.pairs) else sentences.COMPARED_BY_DIFF
    view = Table.of("unprofiled", sentences.UNPROFILED, _Comparison, rows, note=note)
    return Report("unprofiled", views=(view,) if rows else ())


def _comparison(pairs: Pairs) -> _Comparison:
    a_ns, b_ns = (slowest_rank_ns(pairs, of_b=side) for side in (False, True))
    low, high = np.percentile(a_ns, (25, 75))
    return _Comparison(
        arms=f"{pairs.a} (A/A control)" if pairs.is_control else f"{pairs.a}, {pairs.b}",
        num_pairs=len(a_ns),
        a_ns=float(np.median(a_ns)),
        b_ns=float(np.median(b_ns)),
        iqr_ns=float(high - low),
    )
