"""Which attention is fastest, what does each keep for backward, and how exact is it?

`eager` computes attention op by op, with the whole matrix of weights between two products; `sdpa` leaves it to
`scaled_dot_product_attention`, which picks a fused kernel by device, type and shape; `compiled` has inductor fuse the
ops of `eager`, or recognise them and pick that kernel, too (it takes a C++ compiler on a CPU, Triton on a GPU; without,
the arm is skipped and says so). The arms run apart, as a process that compiled once is not what it was before.

Before anything is timed each arm says what it was dispatched to (`aten::_softmax`, `aten::_scaled_dot_product_flash_
attention_for_cpu`, ...), the bytes that forward saves for backward, how far output and gradients are from float64 on
the same random inputs, and the loss of the first batch: all arms have the same weights and see the same noise. The
same stands in run.json under each arm's `facts`.

The answer is a verdict on each arm against `eager`, with the ops that came and went in `forward` and `bwd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Recipe, Step

if TYPE_CHECKING:
    from traceq.recipes.workload.attention import Mix
    from traceq.recipes.workload.training import Training

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    backend: Literal["inductor", "aot_eager"] = "inductor"


def build(context: Context, parameters: Parameters) -> Step:
    """One training step; arms differ in how each attention mixes its values."""
    from traceq.recipes.workload.model import Attention
    from traceq.recipes.workload.training import Training

    mix = _mix(context, parameters)
    training = Training.build(context, parameters.size, parameters.batch_size, parameters.num_workers, parameters.seed)
    for module in training.model.modules():
        if isinstance(module, Attention):
            module.mix = mix
    _tell(context, parameters, training, mix)

    def step(arm: str) -> None:
        training.begin(context.phase)
        training.finish(context.phase)

    return step


def _mix(context: Context, parameters: Parameters) -> Mix:
    """The arm's attention."""
    import torch

    from traceq.recipes.workload.attention import by_ops
    from traceq.recipes.workload.graph_breaks import check_backend

    if context.arm == "sdpa":
        return torch.nn.functional.scaled_dot_product_attention
    if context.arm == "eager":
        return by_ops
    check_backend(parameters.backend, context.device)
    compiled: Mix = torch.compile(by_ops, backend=parameters.backend)
    return compiled


def _tell(context: Context, parameters: Parameters, training: Training, mix: Mix) -> None:
    """Say and note where the arm's attention ends up, what it keeps and how exact it is."""
    import torch

    from traceq.recipes.workload.attention import error_against_float64, kernels_of, saved_bytes
    from traceq.recipes.workload.model import SIZES

    size = SIZES[parameters.size]
    tower, length = size.language, (size.image_size // size.patch_size) ** 2 + size.text_length + 1
    torch.manual_seed(parameters.seed)
    shape = (parameters.batch_size, tower.heads, length, tower.width // tower.heads)
    kind = torch.bfloat16 if training.autocast else size.weights
    inputs = tuple(torch.randn(shape, device=context.device, dtype=kind) for _ in range(3))
    batch = size.episodes(parameters.seed, context.rank).batch(parameters.batch_size).to(context.device)
    output, gradients = error_against_float64(mix, inputs)
    training.forward(batch)  # what is compiled for shapes that are new is compiled here
    torch.manual_seed(parameters.seed)
    saved = saved_bytes(lambda: training.forward(batch), training.model)
    facts: dict[str, str | int | float] = {
        "attention": kernels_of(mix, inputs),
        "saved_bytes": saved,
        "error": output,
        "error_of_gradients": gradients,
        "loss": float(training.last_loss),
    }
    context.facts.update(facts)
    context.say(
        f"{context.arm}: {facts['attention']}; {saved / 1e6:,.2f} MB saved for backward; {output:.1e} from float64, "
        f"gradients {gradients:.1e}; first loss {facts['loss']:.6f}"
    )


recipe = Recipe(
    question="Which attention is fastest, what does each keep for backward, and how exact is it?",
    arms=(
        Arm("eager", "op by op, with the whole matrix of weights", baseline=True),
        Arm("sdpa", "scaled_dot_product_attention: one kernel"),
        Arm("compiled", "the ops of eager, fused by torch.compile"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
)
