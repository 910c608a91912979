"""How should ranks share the model: what does each strategy exchange, what does that cost, and what does it free?

DDP replicates everything and reduces gradients. ZeRO-2 and SHARD_GRAD_OP shard gradients and moments; FULL_SHARD, FSDP2
and ZeRO-3 shard the parameters as well, which must be gathered before use. Each arm trains the same model from the same
weights on the same data in its own processes, wrapped by torch's API (DeepSpeed for ZeRO). The wrapping is verified:
class and span of the wrapper, its units, the number of elements on all ranks, and the kinds of collectives that a step
issues; see `wrapper`, `wrapper_units` and `issued` in each arm's facts. `loss` is the loss after `loss_steps` steps on
one batch: equal for all arms of one precision, up to rounding. All arms keep float32 weights (masters, where a size
computes in bfloat16) and float32 moments, which is verified on the tensors that the optimizer updates (`state`); the
arms `*_bfloat16` keep both in bfloat16, which DeepSpeed does not offer. `state_bytes` is the memory of weights and
moments that rank 0 holds between steps.

Result, from `traceq diff RUN`: step time, memory and collectives of each arm, the collectives also against what the
strategy predicts; then the causes of the difference by the role of collectives (parameters gathered in backward,
gradients reduced). `traceq show RUN/fsdp2` has the prediction by role. Without DeepSpeed the arms zero2 and zero3 are
skipped. DeepSpeed clips and zeroes gradients within its step, so its `optim_step` includes what `unscale_clip` and
`zero_grad_sched` contain for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from traceq.errors import RecordingFailed
from traceq.recipes.workload.parameters import PHASES, ShardedParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Skip, Step, Unit

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(ShardedParameters):
    """Parameters that `--set` and `--vary` can change."""

    loss_steps: Annotated[int, Meta(ge=1)] = 5


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step under the strategy of the parameters."""
    from contextlib import nullcontext
    from functools import partial

    import torch

    from traceq.recipes.memory.model_state import state_bytes
    from traceq.recipes.sharding_backends.build import check_issued, issued_collectives, missing_backend
    from traceq.recipes.sharding_backends.training import ShardedTraining
    from traceq.recipes.workload.precision import note_state, sized

    strategy, seed = parameters.strategy, parameters.seed
    if context.world_size == 1:
        raise RecordingFailed("sharding needs at least two ranks; found one: --ranks 2")
    if missing := missing_backend(strategy, parameters.precision):
        raise Skip(missing)
    training = ShardedTraining.build(context, parameters)
    size = sized(parameters.size, cameras=parameters.cameras, prompts=parameters.prompts)
    batch = size.episodes(seed, context.rank).batch(parameters.batch_size).to(context.device)
    train = partial(training.train, batch, lambda _: nullcontext())
    for _ in range(parameters.loss_steps):
        torch.manual_seed(seed)
        train()
    assert training.loss is not None
    context.facts["loss"] = float(training.loss)
    note_state(context, training.sharded.optimizer, parameters.precision)
    context.facts["state_bytes"] = state_bytes(training.sharded.model, training.sharded.optimizer)
    issued = issued_collectives(train)
    check_issued(strategy, issued)
    context.facts["issued"] = ", ".join(f"{name} {num}" for name, num in sorted(issued.items()))
    return lambda _: training.step(context.phase)


ARMS = {
    "ddp": "replicated on every rank, gradients reduced",
    "full_shard": "FSDP1: parameters gathered for forward and again for backward, gradients reduce-scattered",
    "shard_grad_op": "FSDP1: parameters gathered for forward and kept until backward, gradients reduce-scattered",
    "fsdp2": "fully_shard: as full_shard, sharded per parameter",
    "zero2": "DeepSpeed: gradients and moments sharded, parameters gathered after the update",
    "zero3": "DeepSpeed: parameters sharded as well, gathered unit by unit",
}


def _arm(strategy: str) -> Arm:
    return Arm(strategy, ARMS[strategy], baseline=strategy == "ddp", varied={"strategy": strategy})


def _checkpointed(strategy: str) -> Arm:
    meaning = f"{strategy} with activation checkpointing of blocks"
    return Arm(f"{strategy}_checkpointed", meaning, varied={"strategy": strategy, "checkpointing": True})


def _in_bfloat16(strategy: str) -> Arm:
    meaning = f"{strategy} with weights and moments in bfloat16, without float32 masters"
    return Arm(f"{strategy}_bfloat16", meaning, varied={"strategy": strategy, "precision": "bfloat16"})


recipe = Recipe(
    question="What does each sharding strategy exchange, cost and free?",
    arms=(*map(_arm, ARMS), *map(_checkpointed, ("fsdp2", "zero3")), *map(_in_bfloat16, ("ddp", "fsdp2"))),
    phases=PHASES[:-1],
    parameters=Parameters(),
    build=build,
    facts=(
        Fact("loss", "loss", Unit.NUMBER),
        Fact("state", "the optimizer updates"),
        Fact("state_bytes", "weights, moments", Unit.BYTES),
        Fact("issued", "collectives of a step"),
    ),
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
    steps=16,
)
