"""Classify parameters by their gradient after one backward pass, as DDP would at run time; a model with unused ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor, nn

from traceq.recipes.workload.data import Sample
from traceq.recipes.workload.model import Size, VisionLanguageAction

__all__ = ["ParameterUse", "Use", "WithUnusedHeads", "parameter_uses", "usage_lines"]


class Use(StrEnum):
    """Outcome of backward for a parameter."""

    UNUSED = "UNUSED"
    ZERO_GRAD = "ZERO-GRAD"
    FROZEN = "FROZEN"
    USED = "USED"


_ADVICE = {
    Use.UNUSED: "DDP refuses these: freeze them (requires_grad_(False)), delete them, or let it search",
    Use.ZERO_GRAD: "gradients are zero (a closed gate?): reduced and updated in vain; freeze them if that is permanent",
    Use.FROZEN: "no gradient, not reduced: nothing to do",
    Use.USED: "",
}


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """One parameter and its use; `module` is the path of its module."""

    module: str
    name: str
    shape: tuple[int, ...]
    size: int
    use: Use


def parameter_uses(model: nn.Module, loss: Tensor) -> tuple[ParameterUse, ...]:
    """Return the use of every parameter of an unwrapped model, in order; runs backward, then frees the gradients."""
    loss.backward()  # type: ignore[no-untyped-call]
    uses = []
    for path, parameter in model.named_parameters():
        module, _, name = path.rpartition(".")
        uses.append(ParameterUse(module, name, tuple(parameter.shape), parameter.numel(), _use(parameter)))
    model.zero_grad(set_to_none=True)
    return tuple(uses)


def usage_lines(uses: tuple[ParameterUse, ...]) -> Iterator[str]:
    """Yield a line per use, with counts and advice, then one per module with shapes; for USED only the counts."""
    for use in Use:
        selected = [each for each in uses if each.use is use]
        if not selected:
            continue
        advice = f": {_ADVICE[use]}" if _ADVICE[use] else ""
        yield f"{use:<9} {_counts(selected)}{advice}"
        by_module: dict[str, list[ParameterUse]] = defaultdict(list)
        for each in selected if use is not Use.USED else []:
            by_module[each.module].append(each)
        for module, parameters in by_module.items():
            shapes = ", ".join(f"{each.name} {list(each.shape)}" for each in parameters)
            yield f"  {module or 'the model itself'}: {_counts(parameters)}: {shapes}"


def _use(parameter: nn.Parameter) -> Use:
    if not parameter.requires_grad:
        return Use.FROZEN
    if parameter.grad is None:
        return Use.UNUSED
    return Use.USED if parameter.grad.any() else Use.ZERO_GRAD


def _counts(uses: list[ParameterUse]) -> str:
    tensors = "1 tensor" if len(uses) == 1 else f"{len(uses):,} tensors"
    return f"{tensors}, {sum(each.size for each in uses):,} parameters"


class WithUnusedHeads(nn.Module):
    """A policy with an auxiliary head that the loss ignores and a head that the loss multiplies by zero."""

    def __init__(self, size: Size, frozen_encoder: bool) -> None:
        super().__init__()
        self.policy = VisionLanguageAction(size)
        self.auxiliary = nn.Linear(size.state_size, size.action_size, dtype=size.weights)
        self.gated = nn.Linear(size.state_size, size.action_size, dtype=size.weights)
        if frozen_encoder:
            self.policy.vision.requires_grad_(False)

    def forward(self, batch: Sample) -> Tensor:
        state = batch.state.to(self.gated.weight.dtype)
        loss: Tensor = self.policy(batch) + (0.0 * self.gated(state)).float().mean()
        return loss
