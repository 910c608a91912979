"""What a step saves if the device work of some ops takes less time, by replay of their rank or of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.causes.replay import replay_of
from traceq.causes.savings import Saving
from traceq.facts.events.device_work import device_work
from traceq.facts.roofline.interruptions import interrupted_ns
from traceq.facts.roofline.op_work import rows_of_pieces
from traceq.frozen import frozen
from traceq.model import Trace
from traceq.whatif.intervention import RankIntervention, RankWeights
from traceq.whatif.rank_part import RankPart
from traceq.whatif.unreplayed import is_replayed

__all__ = ["FasterOps", "FasterRow", "saved_by_faster_ops"]


@frozen
class FasterRow:
    """A row of `rank_work`, by its index, whose calls take `factors` times as long in each counted step."""

    row: int
    factors: tuple[float, ...]


@frozen
class FasterOps(RankIntervention):
    """The calls of some ops take less time on the device: rows of `rank_work` of each rank that has them."""

    rows: Mapping[int, tuple[FasterRow, ...]]
    held = "what else runs at the same time keeps its speed"
    speeds_device = True

    @property
    def option(self) -> str:
        return "faster ops"

    @property
    def words(self) -> str:
        return "with faster ops"

    def is_in(self, part: RankPart) -> bool:
        return bool(self.rows.get(part.trace.rank))

    def nothing(self, nearest: Sequence[str]) -> str:
        return f"{self.option}: no rank has one"

    def change(self, part: RankPart, weights: RankWeights, *, most: bool) -> None:
        takes_ns = _work_ns(part.trace, self.rows.get(part.trace.rank, ()))
        runs = np.flatnonzero((part.work >= 0) & part.counted)
        weights.edges[runs] = np.minimum(weights.edges[runs], takes_ns[part.work[runs]])


def saved_by_faster_ops(trace: Trace, cases: tuple[tuple[FasterRow, ...], ...]) -> tuple[Saving, ...]:
    """Return what the mean counted step saves in each case; nothing where too much of it cannot be replayed.

    Time for which the device did something else stays.
    """
    if not is_replayed(trace):
        return ()
    return tuple(replay_of(trace).with_shorter_work([_work_ns(trace, case) for case in cases]))


def _work_ns(trace: Trace, case: tuple[FasterRow, ...]) -> NDArray[np.int64]:
    """Return how long each piece of device work takes: int64[D] ns."""
    work, interrupted = device_work(trace), interrupted_ns(trace)
    row, step = rows_of_pieces(trace)
    factor = np.ones(len(work))
    for faster in case:
        chosen = (row == faster.row) & (step >= 0)
        factor[chosen] = np.array(faster.factors)[step[chosen]]
    own_ns = work.end - work.start - interrupted
    return interrupted + np.rint(own_ns * factor).astype(np.int64)
