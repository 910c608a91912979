"""Jobs of eight ranks that compute and meet, step by step: what any of them does otherwise is told, not drawn."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .program import (
    COMM_STREAM,
    US,
    Await,
    Backward,
    Collective,
    Instruction,
    Job,
    Launch,
    Python,
    Record,
    Synchronize,
    op,
    phase,
)

PHASES = ("forward", "backward")
WAIT = Synchronize("stream", COMM_STREAM)


@dataclass(frozen=True)
class Late:
    """A rank that takes `ns` longer before the n-th collective of every step: on its host, or in its kernel."""

    rank: int
    ns: int
    place: int = 0
    in_kernel: bool = False


@dataclass
class Meetings:
    """What a job does: `plan` are the collectives of a step as (name, elements), the first half of them in forward.

    `wrong[rank, step]` is what a rank issues instead. `noise`: up to how far apart a collective ends on its ranks.
    `ahead`: hosts run ahead of their devices; else each waits in a call for every collective.
    """

    plan: list[tuple[str, int]]
    num_ranks: int = 8
    num_steps: int = 3
    backend: str = "nccl"
    compute: int = 100 * US
    jitter: int = 20 * US
    noise: int = 300
    ahead: bool = True
    late: Late | None = None
    wrong: dict[tuple[int, int], list[tuple[str, int]]] = field(default_factory=dict)
    offsets: tuple[int, ...] = ()

    def job(self, rng: random.Random) -> Job:
        """The programs; costs are drawn."""
        steps = tuple(
            tuple(tuple(self.step(rng, rank, step)) for step in range(self.num_steps)) for rank in range(self.num_ranks)
        )
        starts = tuple(rng.randrange(self.jitter + 1) for _ in range(self.num_ranks))
        return Job(steps, self.backend, starts=starts, offsets=self.offsets)

    def phase_of(self, place: int) -> str:
        return PHASES[place >= len(self.plan) // 2]

    def step(self, rng: random.Random, rank: int, step: int) -> list[Instruction]:
        issued = self.wrong.get((rank, step), self.plan)
        parts = [self.place(rng, rank, index, one) for index, one in enumerate(issued)]
        forward = [part for index, body in enumerate(parts) if self.phase_of(index) == PHASES[0] for part in body]
        backward = [part for index, body in enumerate(parts) if self.phase_of(index) == PHASES[1] for part in body]
        return [phase(PHASES[0], *forward), phase(PHASES[1], Backward(tuple(backward)))]

    def place(self, rng: random.Random, rank: int, position: int, what: tuple[str, int]) -> list[Instruction]:
        """Host work, a kernel, and the collective, which waits for the kernel and is waited for by the next one."""
        on_host, computes, name = 5 * US, self.compute + rng.randrange(self.jitter + 1), "aten::linear"
        if self.late is not None and self.late.place == position:
            name, more = "aten::prepare", self.late.ns if self.late.rank == rank else 0
            on_host, computes = (on_host, computes + more) if self.late.in_kernel else (on_host + more, computes)
        reduce = Collective(*what, rng.randrange(30 * US, 60 * US), rng.randrange(-self.noise, self.noise + 1))
        work = op(name, Launch("gemm", computes), before=on_host)
        if self.backend == "gloo":
            return [work, reduce]
        then: tuple[Instruction, ...] = (Record(2, COMM_STREAM), Await(2)) if self.ahead else (WAIT,)
        return [work, Record(1), Await(1, COMM_STREAM), reduce, *then, Python(2 * US)]
