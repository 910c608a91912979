"""Which attention is fastest, what does each save for backward, and how exact is it?

`eager` computes attention op by op and materialises the matrix of attention weights. `sdpa` calls
`scaled_dot_product_attention`, which selects a fused kernel by device, type and shape. `compiled` is `eager` under
torch.compile: inductor fuses its ops, or recognises the pattern and calls the fused kernel (needs a C++ compiler on a
CPU, Triton on a GPU; without one the arm is skipped with a message). Each arm runs in its own processes, because
compiling changes a process for good.

With `prompts=ragged` prompts are padded to the longest of a batch and attention is masked, by blocks and padding: which
kernel takes a mask, and does it still save less?

Before timing, each arm reports the kernels it was dispatched to (`aten::_softmax`,
`aten::_scaled_dot_product_flash_attention_for_cpu`, ...), the bytes that forward saves for backward, the largest
difference of output and gradients from float64 on the same random inputs, and the loss of the first batch (all arms
have the same weights and the same noise). run.json holds the same under each arm's `facts`.

Result: a verdict on each arm against `eager`, with the ops that were added and removed in `forward` and `bwd`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, Prompts, TrainingParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Step, Unit

if TYPE_CHECKING:
    from traceq.recipes.workload.attention import AttentionFunction
    from traceq.recipes.workload.training import Training

__all__ = ["recipe"]


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    backend: Literal["inductor", "aot_eager"] = "inductor"
    cameras: Annotated[int, Meta(ge=1, le=4)] = 1
    prompts: Prompts = "fixed"


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step; the arms differ in the attention function."""
    from traceq.recipes.workload.model import Attention
    from traceq.recipes.workload.training import Training

    attend = _attention(context, parameters)
    training = Training.build(
        context,
        parameters.size,
        parameters.batch_size,
        parameters.num_workers,
        parameters.seed,
        cameras=parameters.cameras,
        prompts=parameters.prompts,
    )
    for module in training.model.modules():
        if isinstance(module, Attention):
            module.attend = attend
    _report(context, parameters, training, attend)

    return lambda arm: training.step(context.phase)


def _attention(context: Context, parameters: Parameters) -> AttentionFunction:
    """Return the arm's attention."""
    import torch

    from traceq.recipes.workload.attention import eager_attention
    from traceq.recipes.workload.graph_breaks import check_backend

    if context.arm == "sdpa":
        return torch.nn.functional.scaled_dot_product_attention
    if context.arm == "eager":
        return eager_attention
    check_backend(parameters.backend, context.device)
    compiled: AttentionFunction = torch.compile(eager_attention, backend=parameters.backend)
    return compiled


def _report(context: Context, parameters: Parameters, training: Training, attend: AttentionFunction) -> None:
    """Print and note the kernels of the arm's attention, the bytes that it saves for backward, and its error."""
    import torch

    from traceq.recipes.workload.attention import attention_kernels, error_against_float64, saved_bytes
    from traceq.recipes.workload.model import prefix_mask
    from traceq.recipes.workload.precision import sized

    size = sized(parameters.size, cameras=parameters.cameras, prompts=parameters.prompts)
    batch = size.episodes(parameters.seed, context.rank).batch(parameters.batch_size).to(context.device)
    num_patches = parameters.cameras * (size.image_size // size.patch_size) ** 2
    tower, length = size.language, num_patches + batch.text.shape[1] + 1
    torch.manual_seed(parameters.seed)
    shape = (parameters.batch_size, tower.heads, length, tower.width // tower.heads)
    dtype = torch.bfloat16 if training.autocast else size.weights
    inputs = tuple(torch.randn(shape, device=context.device, dtype=dtype) for _ in range(3))
    inputs += prefix_mask(batch.text, num_patches)[:1] if size.ragged else ()
    output, gradients = error_against_float64(attend, inputs)
    training.forward(batch)  # compiles for the shapes of the batch
    torch.manual_seed(parameters.seed)
    saved = saved_bytes(lambda: training.forward(batch), training.model)
    facts: dict[str, str | int | float] = {
        "attention": attention_kernels(attend, inputs),
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
    question="Which attention is fastest, what does each save for backward, and how exact is it?",
    arms=(
        Arm("eager", "op by op, with the matrix of attention weights", baseline=True),
        Arm("sdpa", "scaled_dot_product_attention: one kernel"),
        Arm("compiled", "the ops of eager, fused by torch.compile"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    facts=(
        Fact("attention", "kernels"),
        Fact("saved_bytes", "saved for backward", Unit.BYTES),
        Fact("error", "output from float64", Unit.NUMBER),
        Fact("error_of_gradients", "gradients", Unit.NUMBER),
        Fact("loss", "loss", Unit.NUMBER),
    ),
    samples_per_rank=lambda parameters: parameters.batch_size,
    apart=True,
)
