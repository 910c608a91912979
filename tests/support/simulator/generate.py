"""Training jobs that a seed draws: what is done is the same on all ranks, what it costs is each rank's own."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from .program import (
    COMM_STREAM,
    US,
    Allocate,
    Await,
    Backward,
    Collective,
    Copy,
    Instruction,
    Job,
    Launch,
    Memory,
    Python,
    Record,
    Scope,
    Steps,
    Synchronize,
    compilation,
    item,
    line,
    load,
    nonzero,
    op,
    phase,
    upload,
)


@dataclass(frozen=True)
class Shape:
    """How a job looks. `syncs`: how often an op is followed by something that keeps the host; `host_ns`, `kernel_ns`:
    up to how long an op and a kernel take; `compiles`: how often a layer, or its gradient, is compiled before it runs.
    """

    layers: int = 4
    syncs: float = 0.3
    host_ns: int = 20 * US
    kernel_ns: int = 60 * US
    collectives: bool = False
    streams: int = 2
    compiles: float = 0.0


def a_job(
    seed: int,
    *,
    num_ranks: int = 1,
    num_steps: int = 2,
    shape: Shape | None = None,
    annotated: bool = True,
    compiles: float = 0.0,
) -> Job:
    """Any job of that seed."""
    rng = random.Random(seed)
    shape = replace(shape or a_shape(rng, num_ranks), compiles=compiles)
    plan_seed = rng.random()
    steps: list[Steps] = []
    for _ in range(num_ranks):
        costs = random.Random(rng.random())
        plan = random.Random(plan_seed)
        steps.append(tuple(_Step(plan, costs, shape).body() for _ in range(num_steps)))
    starts = tuple(rng.randrange(50 * US) for _ in range(num_ranks))
    offsets = tuple(rng.randrange(-5_000_000, 5_000_000) for _ in range(num_ranks))
    return Job(tuple(steps), annotated=annotated, starts=starts, offsets=offsets)


def a_shape(rng: random.Random, num_ranks: int) -> Shape:
    """From a host that keeps its device waiting to one that runs far ahead."""
    host_ns, kernel_ns = rng.choice([(40, 10), (20, 20), (10, 60), (5, 200)])
    syncs, streams = rng.choice([0.0, 0.1, 0.4]), rng.choice([1, 2, 3])
    return Shape(rng.randint(2, 5), syncs, host_ns * US, kernel_ns * US, num_ranks > 1, streams)


class _Step:
    """`plan` draws what is done, `costs` how long it takes."""

    def __init__(self, plan: random.Random, costs: random.Random, shape: Shape) -> None:
        self.plan, self.costs, self.shape, self.events = plan, costs, shape, 0

    def body(self) -> tuple[Instruction, ...]:
        layers = range(self.shape.layers)
        forward = [part for n in layers for part in self.layer(n)]
        backward = [part for n in layers for part in self.gradient(n)]
        return (
            phase("data", load(self.ns(60 * US)), *self.batch()),
            phase("forward", line("train.py(20): forward", *forward)),
            phase("backward", Backward(tuple(backward))),
            phase("update", Scope("optimizer", "Optimizer.step#SGD.step", tuple(self.update()))),
        )

    def ns(self, upto: int) -> int:
        return self.costs.randrange(200, upto + 201)

    def batch(self) -> list[Instruction]:
        ns, kind = self.ns(30 * US), self.plan.choice(["Pinned -> Device", "Pageable -> Device", "waits", ""])
        copy = Copy("HtoD", kind, 4096, ns, waits="none")
        made = {"": (), "waits": (upload(4096, ns),)}.get(kind, (op("aten::to", op("aten::copy_", copy)),))
        return [*made, Memory(4096)]

    def kernel(self, name: str) -> Launch:
        stream = 7 + self.plan.randrange(self.shape.streams)
        call = self.costs.randrange(2 * US, 8 * US)
        return Launch(name, self.ns(self.shape.kernel_ns), stream, call, self.costs.randrange(1 * US, 12 * US))

    def layer(self, number: int) -> list[Instruction]:
        name = self.plan.choice(["aten::linear", "aten::conv2d", "aten::relu"])
        kernels = [self.kernel(f"{name[6:]}_{n}") for n in range(self.plan.randint(1, 2))]
        made = op(name, *kernels, before=self.ns(self.shape.host_ns), after=self.ns(self.shape.host_ns))
        parts: list[Instruction] = [*self.compiles("dynamo"), Scope("module", f"Layer_{number}", (made,)), Memory(1024)]
        if self.plan.random() < self.shape.syncs:
            parts.append(line(f"model.py({30 + number}): check", *self.sync()))
        return parts

    def compiles(self, name: str) -> list[Instruction]:
        """What is compiled first, which may try out a kernel."""
        if not self.shape.compiles or self.plan.random() >= self.shape.compiles:
            return []
        tries = [self.kernel("benchmark")] * self.plan.randint(0, 1)
        return [compilation(name, *tries, before=self.ns(4 * self.shape.host_ns))]

    def sync(self) -> list[Instruction]:
        stream = 7 + self.plan.randrange(self.shape.streams)
        returns, size = self.costs.randrange(500, 9 * US), 8 * self.plan.randint(1, 999)
        match self.plan.randrange(8):
            case 0:
                return [item(stream=stream, returns=returns)]
            case 1:
                return [nonzero(returns=returns)]
            case 2:
                cpu = Copy("DtoH", "Device -> Pageable", size, self.ns(20 * US), stream, "both", returns=returns)
                return [op("aten::to", op("aten::copy_", cpu))]
            case 3:
                return [upload(size, self.ns(20 * US), stream=stream, returns=returns)]
            case 4:
                return [Synchronize("device", returns=returns)]
            case 5:
                return [Synchronize("stream", stream, returns=returns)]
            case 6:
                self.events += 1
                later = op("aten::mul", self.kernel("mul"), before=self.ns(self.shape.host_ns))
                return [Record(self.events, stream), later, Synchronize("event", self.events, returns=returns)]
            case _:
                return [op("aten::empty", Allocate(self.ns(50 * US), self.plan.choice(["cudaMalloc", "cudaFree"])))]

    def gradient(self, number: int) -> list[Instruction]:
        made = op("MulBackward0", self.kernel("mul_backward"), before=self.ns(self.shape.host_ns))
        engine = "autograd::engine::evaluate_function: MulBackward0"
        compiles = self.compiles("backward._backward_impl (dynamo_timed)")
        parts: list[Instruction] = [op(engine, *compiles, made, before=self.ns(5 * US)), Memory(-1024)]
        if self.shape.collectives:
            self.events += 1
            reduce = Collective(
                self.plan.choice(["all_reduce", "all_gather", "reduce_scatter"]),
                64 * self.plan.randint(1, 200),
                transfer=self.plan.randrange(10 * US, 60 * US),
                late=self.costs.randrange(-300, 301),
            )
            parts += [Record(self.events), Await(self.events, COMM_STREAM), reduce, Record(-self.events, COMM_STREAM)]
        return parts

    def update(self) -> list[Instruction]:
        awaits: list[Instruction] = []
        if self.shape.collectives:
            awaits = [Await(-n) for n in range(1, self.events + 1) if n > self.events - self.shape.layers]
        made = op("aten::_foreach_add_", self.kernel("adam"), before=self.ns(self.shape.host_ns))
        return [*awaits, made, Memory(-4096), Python(self.ns(5 * US))]
