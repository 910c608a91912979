"""How should the ranks share the model: what does each strategy exchange, what does that cost, what does it free?

DDP keeps everything on every rank and reduces gradients. ZeRO-2 and SHARD_GRAD_OP share out gradients and moments,
FULL_SHARD, FSDP2 and ZeRO-3 the parameters as well, so these have to be gathered before they are used. Each arm trains
the same model from the same weights on the same data in processes of its own, wrapped by torch's own API (DeepSpeed for
ZeRO). What was got is checked: class and span of the wrapper, its units, the elements that all ranks hold, and the
kinds of collectives that a step issues; `wrapper`, `wrapper_units` and `issued` in each arm's facts. `loss` is what
`loss_steps` steps on one batch lead to: the same for all arms, up to rounding; `state_bytes` what rank 0 keeps of
weights and moments between steps.

The answer is `traceq diff RUN`: the time of a step, its memory and its collectives arm by arm, those against what the
strategy predicts; then what the difference comes from by what collectives are for (parameters gathered in backward,
gradients reduced). `traceq show RUN/fsdp2` has the prediction role by role. Without DeepSpeed the arms zero2 and zero3
are skipped. DeepSpeed clips and zeroes gradients within its step, so `optim_step` holds for it what `unscale_clip` and
`zero_grad_sched` hold for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from traceq.errors import RecordingFailed
from traceq.recipes.workload.parameters import ShardedParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Recipe, Skip, Step

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(ShardedParameters):
    """What `--set` and `--vary` can change."""

    loss_steps: Annotated[int, Meta(ge=1)] = 5


def build(context: Context, parameters: Parameters) -> Step:
    """One training step under the strategy of the parameters."""
    from contextlib import nullcontext
    from functools import partial

    import torch

    from traceq.recipes.memory.model_state import state_bytes
    from traceq.recipes.sharding_backends.check_collectives import check_issued, issued_by
    from traceq.recipes.sharding_backends.deepspeed import missing_engine
    from traceq.recipes.sharding_backends.training import Sharded
    from traceq.recipes.workload.model import SIZES

    strategy, seed = parameters.strategy, parameters.seed
    if context.world_size == 1:
        raise RecordingFailed("a model is shared between ranks, and here is one: --ranks 2")
    if missing := missing_engine(strategy):
        raise Skip(missing)
    sharded = Sharded.build(context, parameters)
    batch = SIZES[parameters.size].episodes(seed, context.rank).batch(parameters.batch_size).to(context.device)
    train = partial(sharded.train, batch, lambda _: nullcontext())
    for _ in range(parameters.loss_steps):
        torch.manual_seed(seed)
        train()
    assert sharded.loss is not None
    context.facts["loss"] = float(sharded.loss)
    context.facts["state_bytes"] = state_bytes(sharded.spread.model, sharded.spread.optimizer)
    seen = issued_by(train)
    check_issued(strategy, seen)
    context.facts["issued"] = ", ".join(f"{name} {num}" for name, num in sorted(seen.items()))
    return lambda _: sharded.step(context.phase)


ARMS = {
    "ddp": "everything on every rank, gradients reduced",
    "full_shard": "FSDP1: parameters gathered for forward and again for backward, gradients scattered",
    "shard_grad_op": "FSDP1: parameters gathered for forward and kept until backward, gradients scattered",
    "fsdp2": "fully_shard: as full_shard, parameter by parameter",
    "zero2": "DeepSpeed: gradients and moments shared out, parameters gathered after the update",
    "zero3": "DeepSpeed: parameters, too, gathered unit by unit",
}


def _arm(strategy: str, *, checkpointing: bool = False) -> Arm:
    name = strategy + ("_checkpointed" if checkpointing else "")
    meaning = f"{strategy}, and blocks compute again in backward" if checkpointing else ARMS[strategy]
    varied = {"strategy": strategy} | ({"checkpointing": True} if checkpointing else {})
    return Arm(name, meaning, baseline=name == "ddp", varied=varied)


recipe = Recipe(
    question="What does each way to share a model between ranks exchange, cost and free?",
    arms=(*map(_arm, ARMS), *(_arm(strategy, checkpointing=True) for strategy in ("fsdp2", "zero3"))),
    phases=PHASES[:-1],
    parameters=Parameters(),
    build=build,
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
    steps=16,
)
