"""A made-up job of several ranks whose truth is known: when each rank arrives where, what its clock says, what it did.

A step is a list of collectives; before each one a rank prepares on its host and computes on its device, then all meet:
a collective ends everywhere at once, `transfer` after the last rank came. Times in ns of the true clock; a rank's trace
shows them by its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from builder import Event, annotation, comms, kernel, launch, op, read_text, step, text, world

from traceq.model import Run, Trace

US = 1000
ORIGIN = 5_000_000 * US
WRITTEN = {"all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}
PHASES = ("forward", "backward")


@dataclass(frozen=True)
class Collective:
    """What is issued: by all ranks the same, unless something went wrong."""

    name: str
    elements: int


@dataclass(frozen=True)
class Met:
    """One collective as it happened: arrivals by rank, and its end by rank."""

    step: int
    place: int
    what: Collective
    arrived: tuple[int, ...]
    ended: tuple[int, ...]


@dataclass
class Job:
    """`backend` nccl or gloo; `numbered`: calls carry `Seq`; `offsets` of the ranks' clocks; `cuts` by rank: its window
    holds what begins in [from, to) of the true clock."""

    num_ranks: int = 8
    num_steps: int = 3
    plan: tuple[Collective, ...] = ()
    backend: str = "nccl"
    numbered: bool = False
    first_step: int = 10
    offsets: tuple[int, ...] = ()
    cuts: dict[int, tuple[int, int]] = field(default_factory=dict)
    met: list[Met] = field(default_factory=list)
    events: list[list[tuple[int, int, Event]]] = field(default_factory=list)
    issued: list[dict[int, list[Collective]]] = field(default_factory=list)

    def run(self) -> Run:
        """The traces of all ranks."""
        return Run("job", tuple(self.trace(rank) for rank in range(self.num_ranks)))

    def trace(self, rank: int) -> Trace:
        low, high = self.cuts.get(rank, (-(2**62), 2**62))
        offset = ORIGIN + (self.offsets[rank] if self.offsets else 0)
        shown = []
        for start, dur, event in self.events[rank]:
            if low <= start < high:
                seen = min(dur, high - start)
                shown.append({**event, "ts": _us(start + offset), "dur": _us(seen)})
        return read_text(text(*shown, **world(rank, self.num_ranks, self.backend)))

    def true_waits(self) -> list[int]:
        """What each rank waits for the last in all collectives but the first."""
        return [sum(max(met.arrived) - met.arrived[rank] for met in self.met[1:]) for rank in range(self.num_ranks)]


def _us(ns: int) -> Decimal:
    return Decimal(ns) / 1000


def a_plan(rng: random.Random, length: int, *, alike: bool = False) -> tuple[Collective, ...]:
    """Collectives of a step; `alike`: of few sizes, as buckets and layers are."""
    names = list(WRITTEN)
    sizes = [1024, 4096] if alike else [64 * n for n in range(1, 200)]
    return tuple(Collective(rng.choice(names[:2] if alike else names), rng.choice(sizes)) for _ in range(length))


def simulate(
    rng: random.Random,
    job: Job,
    *,
    late: int = -1,
    delay: int = 0,
    at_place: int = 0,
    in_kernel: bool = False,
    jitter: int = 20 * US,
    compute: int = 100 * US,
    transfer: int = 30 * US,
    noise: int = 300,
    wrong: dict[int, dict[int, list[Collective]]] | None = None,
) -> Job:
    """Fill the job. Rank `late` takes `delay` longer before the collective at `at_place` of every step, on its host or
    in its kernel. `wrong[rank][step]` is what a rank issues instead of the plan, at the times of the plan."""
    wrong = wrong or {}
    now = [rng.randrange(jitter + 1) for _ in range(job.num_ranks)]
    job.events = [[] for _ in now]
    job.issued = [{} for _ in now]
    sequence = [100] * job.num_ranks
    for number in range(job.first_step, job.first_step + job.num_steps):
        opened, middle = list(now), list(now)
        met = []
        for place, what in enumerate(job.plan):
            if place == len(job.plan) // 2:
                middle = list(now)
            took = [compute + rng.randrange(jitter + 1) for _ in now]
            host = [5 * US] * job.num_ranks
            if late >= 0 and place == at_place:
                (took if in_kernel else host)[late] += delay
            launched = [t + h for t, h in zip(now, host, strict=True)]
            arrived = [t + 4 * US + c for t, c in zip(launched, took, strict=True)]
            moved = transfer + rng.randrange(transfer)
            ended = [max(arrived) + moved + rng.randrange(-noise, noise + 1) for _ in now]
            met.append(Met(number, place, what, tuple(arrived), tuple(ended)))
            for rank in range(job.num_ranks):
                name = "aten::prepare" if late >= 0 and place == at_place else "aten::linear"
                _computes(job, rank, (now[rank], launched[rank], arrived[rank]), name)
            now = [end + 2 * US for end in ended]
        job.met += met
        for rank in range(job.num_ranks):
            doing = wrong.get(rank, {}).get(number, list(job.plan))
            job.issued[rank][number] = doing
            for what, meeting in zip(doing, met, strict=False):
                sequence[rank] += 1
                _meets(job, rank, what, meeting, sequence[rank])
            spans = ((opened[rank], middle[rank]), (middle[rank], now[rank]))
            job.events[rank].append((opened[rank], now[rank] - opened[rank], step(0, 0, number)))
            for phase, (start, end) in zip(PHASES, spans, strict=True):
                job.events[rank].append((start, end - start, annotation(phase, 0, 0)))
    return job


def _computes(job: Job, rank: int, times: tuple[int, int, int], name: str) -> None:
    """Host work, and a kernel that it launches."""
    begin, launched, arrived = times
    corr = len(job.events[rank]) + 1
    own = job.events[rank]
    own.append((begin, launched - begin + 2 * US, op(name, 0, 0)))
    if job.backend == "gloo":
        own.append((launched + 2 * US, arrived - launched - 2 * US, op("aten::mm", 0, 0)))
        return
    own.append((launched, US, launch(0, 0, corr)))
    own.append((launched + 2 * US, arrived - launched - 2 * US, kernel("gemm", 0, 0, corr)))


def _meets(job: Job, rank: int, what: Collective, met: Met, sequence: int) -> None:
    """The call of a collective and what carries it out."""
    start, end = met.arrived[rank], met.ended[rank]
    corr = len(job.events[rank]) + 1
    own = job.events[rank]
    issue = start - 3 * US
    if job.backend == "gloo":
        shapes = {"Input Dims": [[what.elements]], "Input type": ["float"]}
        called = {
            "all_reduce": "allreduce_",
            "all_gather": "_allgather_base_",
            "reduce_scatter": "_reduce_scatter_base_",
        }
        shown = "all_reduce" if what.name == "reduce_scatter" else what.name
        own.append((issue, 2 * US, op(f"c10d::{called[what.name]}", 0, 0, **shapes)))
        own.append((start, end - start, annotation(f"gloo:{shown}", 0, 0, tid=9, **shapes)))
        return
    more: dict[str, Any] = {"Group size": job.num_ranks, "Process Group Name": "0"}
    more |= {"Seq": sequence} if job.numbered else {}
    sides = (what.elements, what.elements)
    own.append((issue, 2 * US, comms(WRITTEN[what.name], 0, 0, sides, **more)))
    own.append((issue + 500, US, launch(0, 0, corr)))
    own.append((start, end - start, kernel(f"ncclDevKernel_{what.name}(x)", 0, 0, corr, stream=20)))
