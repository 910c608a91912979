"""What does torch.compile gain a step: how many graphs, where do they break, what is compiled again, and for how long?

`on` compiles each transformer block (`--set region=model`: the whole model as one), so that blocks of one shape share
a graph and less is compiled. A graph that breaks goes back to Python in between; a graph whose inputs change shape is
compiled again, in the middle of training. Both are counted and named before anything is timed, and again if it happens
later: `check=true` hangs a check into every MLP that asks whether its output is finite, which is known to break it.

Inductor makes kernels of graphs: on a CPU it needs a C++ compiler, without one the arm is skipped and says so;
`--set backend=aot_eager` needs none, and shows what graphs alone are worth. The arms run apart, as a process that
compiled once is not what it was before.

The answer is a verdict on `on` against `off`, with the ops that became one region; graphs, breaks with their lines,
recompiles and the seconds they took are told while it records, and stand in run.json under the arm's `facts`. On a GPU
`traceq show RUN/off` says how far the step is launch-bound (launches, host_bound), which is what compiling takes away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Recipe, Step

if TYPE_CHECKING:
    import torch

    from traceq.recipes.workload.training import Training

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    backend: Literal["inductor", "aot_eager"] = "inductor"
    region: Literal["blocks", "model"] = "blocks"
    check: bool = False


def build(context: Context, parameters: Parameters) -> Step:
    """One training step, of a model that is compiled or not."""
    from traceq.recipes.workload.graph_breaks import check_backend, num_compiled, recompiles
    from traceq.recipes.workload.model import blocks_of
    from traceq.recipes.workload.training import Training

    is_on = context.arm == "on"
    if is_on:
        check_backend(parameters.backend, context.device)
    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    if parameters.check:
        for block in blocks_of(training.model):
            block.mlp.register_forward_hook(_check)
    if is_on:
        _compile(context, parameters, training)
    known = num_compiled() if is_on else 0

    def step(arm: str) -> None:
        nonlocal known
        training.begin(context.phase)
        training.finish(context.phase)
        if is_on and num_compiled() != known:
            known = num_compiled()
            context.facts["recompiles"] = len(recompiles())
            context.facts["recompile_reasons"] = "; ".join(dict.fromkeys(recompiles()))

    return step


def _compile(context: Context, parameters: Parameters, training: Training) -> None:
    """Compile the model in place, say what came of it, and note it."""
    from traceq.recipes.workload.graph_breaks import breaks_in, recompiles, seconds_to_compile
    from traceq.recipes.workload.model import SIZES, blocks_of

    model = getattr(training.model, "module", training.model)  # without DDP, which is no part of the graph
    batch = SIZES[parameters.size].episodes(parameters.seed, context.rank).batch(parameters.batch_size)
    batch = batch.to(context.device)
    breaks = breaks_in(model, batch)
    for module in [model] if parameters.region == "model" else blocks_of(model):
        module.compile(backend=parameters.backend)

    def passes() -> None:
        with training.gradients_kept():
            training.forward(batch)
            training.backward()
        training.optimizer.zero_grad(set_to_none=True)

    seconds = seconds_to_compile(passes)
    again = recompiles()
    context.facts["graph_breaks"] = len(breaks)
    context.facts["graph_breaks_at"] = "; ".join(dict.fromkeys(breaks))
    context.facts["recompiles"] = len(again)
    context.facts["recompile_reasons"] = "; ".join(dict.fromkeys(again))
    context.facts["compile_s"] = round(seconds, 1)
    context.say(f"{len(breaks)} graph breaks, {len(again)} recompiles, {seconds:.0f} s to compile")
    for line in dict.fromkeys(breaks):
        context.say(f"  break at {line}")
    for line in dict.fromkeys(again):
        context.say(f"  recompiled {line}")


def _check(module: torch.nn.Module, _: object, out: torch.Tensor) -> None:
    """A check as a monitor does it: which way Python goes depends on the data, and no graph can hold that."""
    if not out.isfinite().all():
        raise RuntimeError(f"{type(module).__name__}: not finite")


recipe = Recipe(
    question="What does torch.compile gain a step, where does its graph break, and what is compiled again?",
    arms=(
        Arm("off", "every op by itself", baseline=True),
        Arm("on", "blocks, or the model, compiled"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    varied="on",
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
)
