"""Which batch is the largest that fits, and which trains most samples a second?

For each backend the batch is doubled until a step runs out of memory, then bisected until the largest batch that fits
is known to one eighth. Each attempt is an arm in its own processes, so no attempt fragments the memory of another: a
step on one sample, two steps whose memory is measured, then a few timed ones. On CUDA each backend is also tried with
expandable segments. `memory_limit` is the memory of a rank in MiB; 0 means all of a CUDA device, and 128 on a CPU,
where it limits the process (RLIMIT_DATA) on top of what it used before the model was built, so that the machine stays
usable. There each thread of a rank has memory of its own as well (20 MiB of `size=tiny`): compare with equal numbers.
On one rank `ddp` is the bare model, and the other backends are skipped.

Result, printed at the end of the recording and by `traceq show RUN`: a table of backends by batch, with samples per
second or `out of memory`; then for each backend the largest batch, the fastest batch and, for the largest, the memory
in use, the allocator's reserve beyond that (fragmentation) and the memory left (head-room). `run.json` holds these
figures for each arm. `--set backends=ddp,full_shard,zero2` selects backends; more `--steps` give steadier rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, EnterPhase, ShardedParameters
from traceq.recorder import Arm, Context, Fact, Outcome, Recipe, Skip, Step, next_batch

__all__ = ["recipe"]

ANY = "(ddp|full_shard|shard_grad_op|fsdp2|zero2|zero3)"


@dataclass(frozen=True, slots=True)
class Parameters(ShardedParameters):
    """Parameters that `--set` and `--vary` can change."""

    backends: Annotated[str, Meta(pattern=f"^{ANY}(,{ANY})*$")] = "ddp,fsdp2"
    batch_size: Annotated[int, Meta(ge=1)] = 16
    most: Annotated[int, Meta(ge=1)] = 4096
    memory_limit: Annotated[int, Meta(ge=0)] = 0
    expandable_segments: bool = False


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step within the memory limit; the memory of the first steps is noted in the facts."""
    from contextlib import nullcontext

    import torch

    from traceq.recipes.memory.limit import Capacity
    from traceq.recipes.sharding_backends.build import missing_backend, too_few_ranks
    from traceq.recipes.sharding_backends.training import ShardedTraining
    from traceq.recipes.workload.precision import note_state, sized

    strategy, precision = parameters.strategy, parameters.precision
    if missing := missing_backend(strategy, precision) or too_few_ranks(context, strategy):
        raise Skip(missing)
    context.facts["memory"] = context.device.type
    if parameters.expandable_segments:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")  # else only an environment variable
    capacity = Capacity.of(context, parameters.memory_limit)
    training = ShardedTraining.build(context, parameters)
    size = sized(parameters.size, cameras=parameters.cameras, prompts=parameters.prompts)
    episodes = size.episodes(parameters.seed, context.rank)
    training.train(episodes.batch(1).to(context.device), lambda _: nullcontext())
    capacity.limit()

    def step(phase: EnterPhase) -> None:
        with capacity.raise_memory_error():
            training.step(phase)

    for _ in range(2):
        step(capacity.measured_phase)
    note_state(context, training.sharded.optimizer, precision)
    context.facts.update(capacity.facts())
    return lambda _: step(context.phase)


def next_arms(parameters: Parameters, outcomes: Sequence[Outcome]) -> list[Arm]:
    """Return the next attempt of every backend whose search is not finished."""
    on_cuda = any(outcome.arm.facts.get("memory") == "cuda" for outcome in outcomes)
    variants = product(parameters.backends.split(","), (False, True) if on_cuda else (False,))
    arms = []
    for strategy, expandable in variants:
        tried = [outcome.arm for outcome in outcomes if _backend(parameters, outcome.arm) == (strategy, expandable)]
        if any(arm.status == "skipped" for arm in tried):
            continue
        fits = {_batch(parameters, arm): not arm.status for arm in tried}
        size = next_batch(fits, parameters.batch_size, parameters.most)
        if size:
            arms.append(_attempt(strategy, size, expandable=expandable))
    return arms


def _attempt(strategy: str, batch_size: int, *, expandable: bool) -> Arm:
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
    facts=(Fact("state", "the optimizer updates"),),
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
    next_arms=next_arms,
    steps=4,
    trace_steps=0,
    replicates=1,
)
