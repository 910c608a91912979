"""Result types of a diff: everything a renderer needs. All values are means per step, in ns."""

from __future__ import annotations

import re
from collections.abc import Iterable

from traceq.compare.collective_volumes import Exchange
from traceq.compare.inference import InferenceDelta
from traceq.compare.statement import Statement
from traceq.compare.step_counts import CountDelta
from traceq.compare.work_deltas import WorkDelta
from traceq.display import to_html, to_text
from traceq.facts.timeline.python_places import PYTHON
from traceq.frozen import frozen
from traceq.model import Caveat, Pairs
from traceq.report import Source, Table
from traceq.stats import Comparison, Interaction, VerdictName

REPLACED_BY = " replaced by "
"""Between the names of a cause that is a replacement."""

AND = " and "
"""Between the phases of a cause that is in several."""

_SHARE_OF_A_DECISION = 0.05
_RANKS = re.compile(r"^ranks? (?P<ranks>\d+(, \d+)*): ")
_NO_CHANGE = ("minor", "jitter", "residual")
_MOST_ANSWERS = 8
"""Arms that the repr of a run's comparison lists."""


@frozen
class Comparable:
    """Whether the two sides can be compared, and the reasons if not."""

    ok: bool
    """False refuses a verdict."""
    reasons: tuple[str, ...] = ()


@frozen
class Traced:
    """Profiled steps of one rank: means of either side over whole ones."""

    rank: int
    a_ns: int
    b_ns: int
    num_a: int
    num_b: int
    marked: bool = True
    """False where the traces have no steps and count as one each."""
    matched_pct: float | None = None
    """Host calls that both sides have, None without a device."""
    b_rank: int | None = None
    """B's, if another one."""
    whole: int | None = None
    """The side, 0 or 1, that has no steps where the other has, None elsewhere."""

    @property
    def ranks_text(self) -> str:
        """`rank 0`, `rank 0 and rank 1` where B's is another."""
        return f"rank {self.rank}" + (f" and rank {self.b_rank}" if self.b_rank not in (None, self.rank) else "")

    @property
    def delta_ns(self) -> int:
        """B's step minus A's."""
        return self.b_ns - self.a_ns

    @property
    def per(self) -> str:
        """Unit of differences of times and counts, for sentences."""
        if self.whole is not None:
            return "from step to trace" if self.whole else "from trace to step"
        return self.of_sides[0]

    @property
    def of_sides(self) -> tuple[str, str]:
        """Units of times and counts of A and of B."""
        a, b = ("per step" if self.marked and self.whole != side else "in the trace" for side in (0, 1))
        return a, b

    @property
    def window(self) -> str:
        """What times are of: `step`, `trace`, or either."""
        return "step" if self.marked and self.whole is None else "step or trace" if self.marked else "trace"

    @property
    def windows_text(self) -> str:
        """`3 and 3 traced steps`, `whole traces`, `1 whole trace and 3 traced steps`."""
        if self.whole is None:
            return f"{self.num_a} and {self.num_b} traced steps" if self.marked else "whole traces"
        num = self.num_b if self.whole == 0 else self.num_a
        sides = ["1 whole trace", f"{num} traced step{'s' * (num > 1)}"]
        return " and ".join(sides if self.whole == 0 else sides[::-1])


@frozen
class RankDelta:
    """Mean traced step of one rank on either side; `own` times exclude exposed communication."""

    rank: int
    a_ns: int
    b_ns: int
    own_a_ns: int
    own_b_ns: int

    @property
    def delta_ns(self) -> int:
        """B's step minus A's."""
        return self.b_ns - self.a_ns

    @property
    def own_delta_ns(self) -> int:
        """B's step minus A's, both without exposed communication."""
        return self.own_b_ns - self.own_a_ns


@frozen
class CellDelta:
    """Time of one phase and category per step; with `residual_ns` they add up to `traced.delta_ns`."""

    phase: str
    category: str
    a_ns: int
    b_ns: int

    @property
    def delta_ns(self) -> int:
        """B minus A."""
        return self.b_ns - self.a_ns


@frozen
class Chain:
    """Parts of a sync's delta."""

    copied_ns: int
    waited_ns: int
    rest_ns: int
    """The op that asks, idle time that follows."""

    @property
    def idle_ns(self) -> int:
        """`rest_ns` by its former name."""
        return self.rest_ns


@frozen
class Cause:
    """One cause of the delta per step: `delta_ns` is `count_ns` (by calls) plus `dur_ns` (by duration per call)."""

    key: str
    """Ends in `|replaced` for a replacement."""
    kind: str
    """`sync`, `collective`, `kernel`, `memcpy`, `host`, `pace` (unchanged work), and last `minor`, `jitter`, `residual`
    (not recorded).
    """
    phase: str
    """`backward and forward` for work in both."""
    name: str
    """Op and kernel, collective, annotation; after `rank 3: ` of several ranks."""
    line: str
    delta_num: float
    delta_ns: int
    count_ns: int
    dur_ns: int
    share_pct: float | None
    """Of `traced.delta_ns`; None if that is 0."""
    module: str = ""
    """Class of nn.Module; "" if unknown."""
    self_op: str = ""
    """Op inside that makes most of it."""
    delta_bytes: int = 0
    """Of copies and collectives."""
    chain: Chain | None = None
    sd_ns: int = 0
    """Jitter of the same code; 0: unknown."""
    moved: str = ""
    """`from optimizer to backward` of a collective issued as often; or ""."""
    in_steps: str = ""
    """`1 of 3` with the change; "": each."""
    memory: str = ""
    """`pageable -> pinned, 4.4 -> 8.7 GB/s`, where the host's memory differs."""
    python_ns: int = 0
    """Of ops that one side alone calls: Python between them."""

    @property
    def names_a_change(self) -> bool:
        """Whether this is something that changed: neither run-to-run jitter nor time whose cause is not recorded."""
        return self.kind not in _NO_CHANGE

    @property
    def is_python(self) -> bool:
        """Whether this is Python of the program, not one of its ops."""
        return self.kind == "host" and self.name.startswith(PYTHON)

    @property
    def is_replacement(self) -> bool:
        """Whether this is work of A that other work of B replaced."""
        return REPLACED_BY in self.name

    @property
    def ranks(self) -> tuple[str, ...]:
        """The ranks that it is on where several are compared."""
        match = _RANKS.match(self.name)
        return tuple(match["ranks"].split(", ")) if match else ()

    @property
    def work(self) -> str:
        """Name without the ranks."""
        return _RANKS.sub("", self.name)

    @property
    def path(self) -> str:
        """Name and, inside it, the op with most of the delta, or what the memory of the copies is."""
        name = f"{self.name} > {self.self_op}" if self.self_op not in ("", self.work) else self.name
        return ", ".join(filter(None, (name, self.memory)))


@frozen
class Feeding:
    """A data loader timed alone, and the steps that it feeds.

    `loader_ns` is for the `batches_per_step` of a rank; `wait_ns` is the part of `step_ns` that waits for data, None
    where not recorded; `samples_per_step` is of all ranks, 0 if unknown.
    """

    loader_ns: int
    step_ns: int
    wait_ns: int | None
    batches_per_step: float
    samples_per_step: int

    @property
    def rest_ns(self) -> int:
        """Step without its wait for data."""
        return self.step_ns - (self.wait_ns or 0)

    @property
    def is_starved(self) -> bool:
        """Whether the loader takes longer than the rest of the step, which could hide it."""
        return self.loader_ns > self.rest_ns


@frozen
class Diff:
    """Result of comparing B with A.

    `comparison` has the verdict and is None where there is nothing to compare; `steps` compares steps even if the
    verdict is about samples. `traced`, `cells` and `causes` explain one rank and are empty where a side has no trace;
    `ranks` are those of both sides. `answer` is the state of the verdict, `basis` what it rests on and in what the
    sides differ, `reasons` what makes the traced delta. `free` says whether A, the change when off, issues anything
    more, None without a traced reference. `doubt` says why durations of traced steps are no evidence, None where they
    are. `cpu` compares the main thread's CPU time per step where pairs have it. `inference` compares the kinds of step
    of an inference engine, `work` what ops of the explained rank do and how fast, `counts` its syncs and collectives
    per step. If one side is a data loader alone, `feeding` has its times and the rest is empty.
    """

    a: Source
    b: Source
    a_name: str
    b_name: str
    comparable: Comparable
    comparison: Comparison | None
    steps: Comparison | None
    traced: Traced | None
    cells: tuple[CellDelta, ...]
    causes: tuple[Cause, ...]
    answer: Statement
    basis: tuple[Statement, ...] = ()
    reasons: tuple[Statement, ...] = ()
    ranks: tuple[RankDelta, ...] = ()
    free: Statement | None = None
    doubt: Statement | None = None
    cpu: Comparison | None = None
    caveats: tuple[Caveat, ...] = ()
    feeding: Feeding | None = None
    inference: tuple[InferenceDelta, ...] = ()
    work: tuple[WorkDelta, ...] = ()
    counts: tuple[CountDelta, ...] = ()

    @property
    def verdict_name(self) -> VerdictName:
        """Name of the verdict, inconclusive where there is nothing to compare."""
        return self.comparison.verdict.name if self.comparison else "inconclusive"

    @property
    def residual_ns(self) -> int:
        """Traced delta minus the cells: 0, or the diff is wrong."""
        return (self.traced.delta_ns if self.traced else 0) - sum(cell.delta_ns for cell in self.cells)

    def __repr__(self) -> str:
        return f"<Diff {self.b_name} against {self.a_name}: {self.answer.lead}>"

    def __str__(self) -> str:
        return str(Diffs(self.a_name, (self,)))

    def _repr_html_(self) -> str:
        return to_html("diffs", Diffs(self.a_name, (self,)))


@frozen
class ArmInteraction:
    """Cost of a change in the context of `arm` minus its cost in that of `repeats`, which makes the same change."""

    repeats: str
    arm: str
    interaction: Interaction
    statement: Statement


@frozen
class Diffs:
    """Diffs of a recorded run: every timed arm against the baseline, or against the arm that it names.

    `diffs` are in the recipe's order, `pairs` are unprofiled. `interactions` has a row for each change that was made in
    two contexts, `exchanges` one per arm where arms use different sharding strategies. `facts`: what the recipe
    measured besides time, complete and for people; empty where it declares none.
    """

    baseline: str
    diffs: tuple[Diff, ...]
    caveats: tuple[Caveat, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    interactions: tuple[ArmInteraction, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    facts: tuple[Table, ...] = ()

    def __repr__(self) -> str:
        answers = [f"  {diff.answer.lead}" for diff in self.diffs[:_MOST_ANSWERS]]
        more = [f"  and {len(self.diffs) - _MOST_ANSWERS} more"] if len(self.diffs) > _MOST_ANSWERS else []
        return "\n".join([f"<Diffs against {self.baseline}:", *answers, *more]) + ">"

    def __str__(self) -> str:
        return to_text("diffs", self)

    def _repr_html_(self) -> str:
        return to_html("diffs", self)


def share(part_ns: int, delta_ns: int) -> float | None:
    """Return percent of the traced delta, None if that is 0; never -0."""
    return 100 * part_ns / delta_ns + 0.0 if delta_ns else None


def sorted_causes(causes: Iterable[Cause], delta_ns: int) -> tuple[Cause, ...]:
    """Return syncs that were added or removed, as someone wrote each of them, then the others by size, then the rest.

    The rest is what names no change: run-to-run jitter and what was not recorded.
    """

    def key(cause: Cause) -> tuple[bool, bool, int, str]:
        is_large = abs(cause.delta_ns) >= _SHARE_OF_A_DECISION * abs(delta_ns)
        is_decision = cause.kind == "sync" and cause.delta_num != 0 and is_large
        return not cause.names_a_change, not is_decision, -abs(cause.delta_ns), cause.key

    return tuple(sorted(causes, key=key))
