"""What a diff says: everything a renderer needs. All values are means of a step, in ns."""

from __future__ import annotations

from dataclasses import dataclass

from traceq.compare.exchanges import Exchange
from traceq.model import Caveat, Pairs
from traceq.report import Source
from traceq.stats import Comparison, Interaction

__all__ = [
    "Cause",
    "CellDelta",
    "Chain",
    "Comparable",
    "Diff",
    "Diffs",
    "Feeding",
    "Joint",
    "RankDelta",
    "Traced",
    "share",
]


@dataclass(frozen=True, slots=True)
class Comparable:
    """Whether the two sides can be compared; what differs besides the change itself."""

    ok: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traced:
    """The profiled windows of one rank: the mean step of either side, over `num_a` and `num_b` whole steps; not
    `marked` where the traces have no steps and count as one each.
    """

    rank: int
    a_ns: int
    b_ns: int
    num_a: int
    num_b: int
    marked: bool = True

    @property
    def delta_ns(self) -> int:
        """B's step minus A's."""
        return self.b_ns - self.a_ns

    @property
    def per(self) -> str:
        """What times and numbers are of."""
        return "a step" if self.marked else "in the trace"


@dataclass(frozen=True, slots=True)
class RankDelta:
    """The mean traced step of one rank on either side; `own` is it without the time in which only collectives run,
    which holds what the rank waits for others.
    """

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
        """The same of the rank's own time."""
        return self.own_b_ns - self.own_a_ns


@dataclass(frozen=True, slots=True)
class CellDelta:
    """One phase and category."""

    phase: str
    category: str
    a_ns: int
    b_ns: int

    @property
    def delta_ns(self) -> int:
        """B minus A."""
        return self.b_ns - self.a_ns


@dataclass(frozen=True, slots=True)
class Chain:
    """What a sync's difference is made of: its copy, the host blocked while nothing ran, the device idle after it."""

    copied_ns: int
    waited_ns: int
    idle_ns: int


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: `delta_ns` is `count_ns` (more or fewer of them) plus `dur_ns` (each takes longer or shorter). `line`
    and `module`, a class of nn.Module, are "" where the trace does not tell; `self_op` is the op inside a host op that
    makes up most of the difference, "" where that is the op itself; `delta_bytes` is what copies and collectives move
    more; `chain` is that of a sync on a device.
    """

    key: str
    kind: str
    phase: str
    name: str
    line: str
    delta_num: float
    delta_ns: int
    count_ns: int
    dur_ns: int
    share_pct: float | None
    module: str = ""
    self_op: str = ""
    delta_bytes: int = 0
    chain: Chain | None = None

    @property
    def is_replacement(self) -> bool:
        """Kernels, or collectives, of A's in place of which B has others."""
        return self.key.endswith("|replaced")

    @property
    def path(self) -> str:
        """Name and, inside it, the op that took the time."""
        return f"{self.name} > {self.self_op}" if self.self_op else self.name


@dataclass(frozen=True, slots=True)
class Feeding:
    """A loader alone beside the steps that it feeds: `loader_ns` for the `batches_per_step` of a rank, `step_ns` with
    `wait_ns` of it for data, None where the steps do not tell; `samples_per_step` of all ranks, 0 if unknown.
    """

    loader_ns: int
    step_ns: int
    wait_ns: int | None
    batches_per_step: float
    samples_per_step: int

    @property
    def rest_ns(self) -> int:
        """The step without its wait."""
        return self.step_ns - (self.wait_ns or 0)

    @property
    def is_starved(self) -> bool:
        """The loader takes longer than all that it could hide behind."""
        return self.loader_ns > self.rest_ns


@dataclass(frozen=True, slots=True)
class Diff:
    """B against A. `comparison` decides and is None where there is nothing to compare; `steps` is about steps, also if
    that is about samples. `traced`, `cells` and `causes` explain one rank, and are empty where a side has no trace;
    `ranks` are those that both sides have. `words` is the answer, a line each; `free` says whether A is free of the
    change, and is "" where no traced reference tells; `cpu` compares the main thread's CPU time of a step, where there
    is no device. Of a loader alone and steps `feeding` is the answer, and the rest is empty.
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
    words: tuple[str, ...]
    ranks: tuple[RankDelta, ...] = ()
    free: str = ""
    cpu: Comparison | None = None
    caveats: tuple[Caveat, ...] = ()
    feeding: Feeding | None = None

    @property
    def residual_ns(self) -> int:
        """What the cells leave of the traced delta: 0, or the diff is wrong."""
        return (self.traced.delta_ns if self.traced else 0) - sum(cell.delta_ns for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Joint:
    """A change that `arm` makes once more, in other surroundings than `repeats`: what it costs there, minus here."""

    repeats: str
    arm: str
    interaction: Interaction
    words: str


@dataclass(frozen=True, slots=True)
class Diffs:
    """A recorded run: every other arm against the baseline, or the arm that it stands against, in the recipe's order;
    its unprofiled `pairs`; `joint` has a row for each change that was made in two places, `exchanges` one an arm where
    they share the model in different ways.
    """

    baseline: str
    diffs: tuple[Diff, ...]
    caveats: tuple[Caveat, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    joint: tuple[Joint, ...] = ()
    exchanges: tuple[Exchange, ...] = ()


def share(part_ns: int, delta_ns: int) -> float | None:
    """Percent of the traced delta; nothing is 0 of it, never -0."""
    return 100 * part_ns / delta_ns + 0.0 if delta_ns else None
