"""Which batch is the largest that fits, and which trains most samples a second?

For each backend the batch is doubled until a step runs out of memory, then halved in between until the largest that
fits is known to an eighth. Each try is an arm in processes of its own, so what one leaves behind fragments no other's
memory: a step on one sample, two whole steps whose memory is watched, then a few that are timed. On CUDA each backend
is also tried with expandable segments. `memory_limit` is what a rank may take, in MiB; 0 stands for all of a CUDA
device, and for 128 on a CPU, where it is a limit of the process (RLIMIT_DATA) beside what this had before the model
was made, so the machine is safe. On one rank `ddp` is the bare model, and the other backends are skipped.

The answer is printed as the recording ends, and by `traceq show RUN`: backends by batch, with samples a second or `out
of memory`; then for each backend the largest batch, the fastest one, and of the largest the memory in use, what the
allocator holds beyond that (fragmentation) and what was left (head-room). `run.json` has it with each arm.
`--set backends=ddp,full_shard,zero2` chooses backends; more `--steps` give steadier rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.batch_search import next_batch
from traceq.recipes.workload.parameters import ShardedParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Outcome, Recipe, Skip, Step

__all__ = ["recipe"]

ANY = "(ddp|full_shard|shard_grad_op|fsdp2|zero2|zero3)"


@dataclass(frozen=True, slots=True)
class Parameters(ShardedParameters):
    """What `--set` and `--vary` can change."""

    backends: Annotated[str, Meta(pattern=f"^{ANY}(,{ANY})*$")] = "ddp,fsdp2"
    batch_size: Annotated[int, Meta(ge=1)] = 16
    most: Annotated[int, Meta(ge=1)] = 4096
    memory_limit: Annotated[int, Meta(ge=0)] = 0
    expandable_segments: bool = False


def build(context: Context, parameters: Parameters) -> Step:
    """One training step within the limit; what its first ones take is noted."""
    from contextlib import nullcontext

    import torch

    from traceq.recipes.memory.limit import Capacity
    from traceq.recipes.sharding_backends.build import too_few_ranks
    from traceq.recipes.sharding_backends.deepspeed import missing_engine
    from traceq.recipes.sharding_backends.training import Phase, Sharded
    from traceq.recipes.workload.model import SIZES

    if missing := missing_engine(parameters.strategy) or too_few_ranks(context, parameters.strategy):
        raise Skip(missing)
    context.facts["memory"] = context.device.type
    if parameters.expandable_segments:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")  # else only an environment variable
    capacity = Capacity.of(context, parameters.memory_limit)
    sharded = Sharded.build(context, parameters)
    episodes = SIZES[parameters.size].episodes(parameters.seed, context.rank)
    sharded.train(episodes.batch(1).to(context.device), lambda _: nullcontext())
    capacity.limit()

    def step(phase: Phase) -> None:
        with capacity.told():
            sharded.step(phase)

    for _ in range(2):
        step(capacity.watched)
    context.facts.update(capacity.facts())
    return lambda _: step(context.phase)


def next_arms(parameters: Parameters, outcomes: Sequence[Outcome]) -> list[Arm]:
    """The next try of every backend that has one."""
    on_cuda = any(outcome.arm.facts.get("memory") == "cuda" for outcome in outcomes)
    tries = product(parameters.backends.split(","), (False, True) if on_cuda else (False,))
    found = []
    for strategy, expandable in tries:
        mine = [outcome.arm for outcome in outcomes if _backend(parameters, outcome.arm) == (strategy, expandable)]
        if any(arm.status == "skipped" for arm in mine):
            continue
        fits = {_batch(parameters, arm): not arm.status for arm in mine}
        size = next_batch(fits, parameters.batch_size, parameters.most)
        if size:
            found.append(_try(strategy, size, expandable=expandable))
    return found


def _try(strategy: str, batch_size: int, *, expandable: bool) -> Arm:
    name = strategy + ("+expandable" if expandable else "")
    varied: dict[str, str | int] = {"strategy": strategy, "expandable_segments": expandable, "batch_size": batch_size}
    return Arm(f"{name},batch={batch_size}", f"{name} with {batch_size} samples a rank", varied=varied)


def _backend(parameters: Parameters, arm: Arm) -> tuple[str, bool]:
    strategy = str(arm.varied.get("strategy", parameters.strategy))
    return strategy, bool(arm.varied.get("expandable_segments", parameters.expandable_segments))


def _batch(parameters: Parameters, arm: Arm) -> int:
    return int(arm.varied.get("batch_size", parameters.batch_size))


recipe = Recipe(
    question="Which batch is the largest that fits, and which one trains most samples a second?",
    arms=(Arm("start", "ddp with the first batch", baseline=True, varied={"strategy": "ddp"}),),
    phases=PHASES[:-1],
    parameters=Parameters(),
    build=build,
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
    next_arms=next_arms,
    steps=4,
    trace_steps=0,
    replicates=1,
)
