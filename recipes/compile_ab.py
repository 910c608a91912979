"""What does torch.compile gain per step: how many graphs, where do they break, what is recompiled, and for how long?

`on` compiles each transformer block (`--set region=model`: the whole model at once), so that blocks of one shape share
a graph and compilation is shorter. At a graph break execution returns to Python; a graph whose inputs change shape is
recompiled in the middle of training. Breaks and recompiles are counted and listed before timing, and recompiles again
if they happen later. `check=true` adds a hook to every MLP that tests whether its output is finite: a known graph
break.

Inductor generates kernels. On a CPU it needs a C++ compiler; without one the arm is skipped with a message.
`--set backend=aot_eager` needs none, and shows the gain of graphs alone. Each arm runs in its own processes, because
compiling changes a process for good.

Result: a verdict on `on` against `off`, with the ops that became one region. Graph breaks with their lines, recompiles
and the compilation time in seconds are printed while recording and noted in run.json under the arm's `facts`. On a GPU
`traceq show RUN/off` says how far the step is host-bound (launches, host_bound), which compiling reduces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from traceq.recipes.workload.parameters import PHASES, TrainingParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Step, Unit

if TYPE_CHECKING:
    import torch

    from traceq.recipes.workload.training import Training

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    backend: Literal["inductor", "aot_eager"] = "inductor"
    region: Literal["blocks", "model"] = "blocks"
    check: bool = False


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step of a model that is compiled (`on`) or not (`off`)."""
    from traceq.recipes.workload.graph_breaks import check_backend, num_compilations, recompile_reasons
    from traceq.recipes.workload.model import transformer_blocks
    from traceq.recipes.workload.training import Training

    is_on = context.arm == "on"
    if is_on:
        check_backend(parameters.backend, context.device)
    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    if parameters.check:
        for block in transformer_blocks(training.model):
            block.mlp.register_forward_hook(_check)
    if is_on:
        _compile(context, parameters, training)
    num_seen = num_compilations() if is_on else 0

    def step(arm: str) -> None:
        nonlocal num_seen
        training.step(context.phase)
        if is_on and num_compilations() != num_seen:
            num_seen = num_compilations()
            context.facts["recompiles"] = len(recompile_reasons())
            context.facts["recompile_reasons"] = "; ".join(dict.fromkeys(recompile_reasons()))

    return step


def _compile(context: Context, parameters: Parameters, training: Training) -> None:
    """Compile the model in place; print and note graph breaks, recompiles and the time it took."""
    from traceq.recipes.workload.graph_breaks import compile_seconds, find_graph_breaks, recompile_reasons
    from traceq.recipes.workload.model import SIZES, transformer_blocks

    model = getattr(training.model, "module", training.model)  # without DDP, which is not part of the graph
    batch = SIZES[parameters.size].episodes(parameters.seed, context.rank).batch(parameters.batch_size)
    batch = batch.to(context.device)
    breaks = find_graph_breaks(model, batch)
    for module in [model] if parameters.region == "model" else transformer_blocks(model):
        module.compile(backend=parameters.backend)

    def passes() -> None:
        with training.without_reduction():
            training.forward(batch)
            training.backward()
        training.optimizer.zero_grad(set_to_none=True)

    seconds = compile_seconds(passes)
    reasons = recompile_reasons()
    context.facts["graph_breaks"] = len(breaks)
    context.facts["graph_breaks_at"] = "; ".join(dict.fromkeys(breaks))
    context.facts["recompiles"] = len(reasons)
    context.facts["recompile_reasons"] = "; ".join(dict.fromkeys(reasons))
    context.facts["compile_s"] = round(seconds, 1)
    context.say(f"{len(breaks)} graph breaks, {len(reasons)} recompiles, {seconds:.0f} s to compile")
    for line in dict.fromkeys(breaks):
        context.say(f"  break at {line}")
    for line in dict.fromkeys(reasons):
        context.say(f"  recompiled {line}")


def _check(module: torch.nn.Module, _: object, out: torch.Tensor) -> None:
    """Raise RuntimeError if the output is not finite: a branch on data, as in monitors, which breaks the graph."""
    if not out.isfinite().all():
        raise RuntimeError(f"{type(module).__name__}: not finite")


recipe = Recipe(
    question="What does torch.compile gain per step, where do its graphs break, and what is recompiled?",
    arms=(
        Arm("off", "not compiled: op by op", baseline=True),
        Arm("on", "blocks (or the whole model) compiled"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    facts=(
        Fact("graph_breaks", "graph breaks", Unit.COUNT),
        Fact("recompiles", "recompiles", Unit.COUNT),
        Fact("compile_s", "seconds to compile", Unit.NUMBER),
        Fact("graph_breaks_at", "graph breaks at", of_run=True),
        Fact("recompile_reasons", "recompiled", of_run=True),
    ),
    varied="on",
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
)
