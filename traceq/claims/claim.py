"""A claim as data: what it is about, what was measured, what the step gains and how that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from traceq.claims.limits import UNLIKE
from traceq.frozen import frozen
from traceq.units import Unit

Measure = int | float | str
"""A number whose unit the end of its name tells (`unit_of`), or a name."""

_UNITS = {
    "ns": Unit.NS,
    "pct": Unit.PERCENT,
    "bytes": Unit.BYTES,
    "gbps": Unit.GBPS,
    "mean": Unit.MEAN,
    "rate": Unit.RATE,
    "ratio": Unit.RATIO,
    "sequence": Unit.COUNT,
    "step": Unit.COUNT,
}
_DELTAS = {Unit.NS: Unit.DELTA_NS, Unit.BYTES: Unit.DELTA_BYTES, Unit.PERCENT: Unit.DELTA_PERCENT}


HIGH, MEDIUM, LOW = "high", "medium", "low"
"""How much a claim matters; the judge says so (`claims.rules`)."""
BY_JOB_REPLAY, BY_REPLAY, AT_MOST = "replay of all ranks", "replay", "at most its time"
BY_UNPROFILED = "95 % interval of unprofiled steps"
"""How it is known what a step gains."""


@frozen
class Subject:
    """What a claim is about; each part may be unknown.

    `rank` where it is about one of several; `kind` of a sync, or of messages; `key` of the row it is about.
    """

    rank: int | None = None
    phase: str = ""
    line: str = ""
    op: str = ""
    kind: str = ""
    module: str = ""
    collective: str = ""
    key: str = ""


@frozen
class Basis:
    """What a claim rests on: `num_steps` traced steps, or unprofiled ones; 0 of a trace that has none.

    `is_beside_unprofiled`: traced steps of a run that has unprofiled ones, too, which are shorter. `num_alone`: ranks
    whose waits for missing ones stay as they are; 0 where no rank is missing.
    """

    num_steps: int = 0
    is_unprofiled: bool = False
    is_beside_unprofiled: bool = False
    num_alone: int = 0


@frozen
class Claim:
    """A result worth a reader's time.

    `ns` of a step that its remedy is about; 0 where it is no matter of time. `measures` by name, as JSON has them.
    `gain`: by how many ns the job's step would be shorter, at least and at most, None where that is not known;
    `gain_by` tells how it is. `remedy`: key of what to do, where a rule has several. `lead` and `evidence` are the
    words of a claim whose code has no sentence here, as of another package. `basis` and `severity` are the judge's.
    """

    code: str
    ns: int = 0
    subject: Subject = Subject()
    measures: Mapping[str, Measure] = field(default_factory=dict)
    gain: tuple[int, int] | None = None
    gain_by: str = ""
    remedy: str = ""
    lead: str = ""
    evidence: str = ""
    basis: Basis | None = None
    severity: str = ""

    @property
    def key(self) -> str:
        """Key of the row that it is about."""
        return self.subject.key

    @property
    def is_unprofiled(self) -> bool:
        """Whether it rests on unprofiled steps."""
        return self.basis is not None and self.basis.is_unprofiled


def measured(**values: Measure | None) -> dict[str, Measure]:
    """Return the measures that are known: neither None nor ""."""
    return {name: value for name, value in values.items() if value is not None and value != ""}


def by_step(name: str, ns: Sequence[int]) -> dict[str, Measure]:
    """Return the least and the most of a time by step where steps are so unlike that the mean is none of any."""
    least, most = (min(ns), max(ns)) if len(ns) else (0, 0)
    return {f"least_{name}_by_step_ns": least, f"most_{name}_by_step_ns": most} if most > UNLIKE * least else {}


def by_rank(ns: Mapping[int, int]) -> dict[str, Measure]:
    """Return the least and the most of a time by rank, and which has most, where ranks are so unlike; else nothing."""
    least, most = (min(ns.values()), max(ns.values())) if ns else (0, 0)
    if most <= UNLIKE * least:
        return {}
    return {"least_by_rank_ns": least, "most_by_rank_ns": most, "most_rank": str(max(ns, key=ns.__getitem__))}


def in_some_steps(num: int, num_counted: int) -> dict[str, Measure]:
    """Return in how many of the counted steps it is; nothing for what every one has."""
    return {"num_steps_with": num, "num_counted": num_counted} if 0 < num < num_counted else {}


def unit_of(name: str) -> Unit:
    """Return the unit of a measure by the end of its name, as of `blocked_ns`, or by its begin, as of `num_calls`.

    A delta, as `delta_ns` or `wait_delta_ns`, has a sign.
    """
    if name.startswith("num"):
        return Unit.COUNT
    unit = _UNITS.get(name.rpartition("_")[2], Unit.NUMBER)
    return _DELTAS.get(unit, unit) if "delta" in name.split("_") else unit
