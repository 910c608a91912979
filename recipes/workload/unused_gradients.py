"""What a backward pass gave each parameter: a gradient, zeros, or nothing at all, as DDP will find out at run time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor, nn

__all__ = ["Use", "Used", "usage_lines", "uses_of"]


class Use(StrEnum):
    """What becomes of a parameter in backward."""

    UNUSED = "UNUSED"
    ZERO_GRAD = "ZERO-GRAD"
    FROZEN = "FROZEN"
    USED = "USED"


_ADVICE = {
    Use.UNUSED: "DDP refuses these: freeze them (requires_grad_(False)), delete them, or let it search",
    Use.ZERO_GRAD: "reduced and stepped for nothing, as behind a gate that is shut; freeze them if it stays shut",
    Use.FROZEN: "no gradient, not reduced: nothing to do",
    Use.USED: "",
}


@dataclass(frozen=True, slots=True)
class Used:
    """One parameter and its use. `module` is the path of the module that owns it."""

    module: str
    name: str
    shape: tuple[int, ...]
    size: int
    use: Use


def uses_of(model: nn.Module, loss: Tensor) -> tuple[Used, ...]:
    """Every parameter of an unwrapped model after the loss's backward pass, in the model's order; frees gradients."""
    loss.backward()  # type: ignore[no-untyped-call]
    found = []
    for path, parameter in model.named_parameters():
        module, _, name = path.rpartition(".")
        found.append(Used(module, name, tuple(parameter.shape), parameter.numel(), _use(parameter)))
    model.zero_grad(set_to_none=True)
    return tuple(found)


def usage_lines(found: tuple[Used, ...]) -> Iterator[str]:
    """A line a use, with counts and advice, and below it one a module, with shapes; of USED the counts alone."""
    for use in Use:
        mine = [each for each in found if each.use is use]
        if not mine:
            continue
        advice = f": {_ADVICE[use]}" if _ADVICE[use] else ""
        yield f"{use:<9} {_counted(mine)}{advice}"
        by_module: dict[str, list[Used]] = defaultdict(list)
        for each in mine if use is not Use.USED else []:
            by_module[each.module].append(each)
        for module, parameters in by_module.items():
            shapes = ", ".join(f"{each.name} {list(each.shape)}" for each in parameters)
            yield f"  {module or 'the model itself'}: {_counted(parameters)}: {shapes}"


def _use(parameter: nn.Parameter) -> Use:
    if not parameter.requires_grad:
        return Use.FROZEN
    if parameter.grad is None:
        return Use.UNUSED
    return Use.USED if parameter.grad.any() else Use.ZERO_GRAD


def _counted(found: list[Used]) -> str:
    tensors = "1 tensor" if len(found) == 1 else f"{len(found):,} tensors"
    return f"{tensors}, {sum(each.size for each in found):,} parameters"
