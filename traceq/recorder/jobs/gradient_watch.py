"""Which parameters of a job get a gradient, as DDP would see it: it waits for each that requires one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from traceq.recorder.timing.stopwatch import is_capturing

UNUSED, ZERO, FROZEN, USED = "unused", "zero", "frozen", "used"
_MOST_MODULES = 6
_ADVICE = {
    UNUSED: "without a gradient; where DDP wraps them, set find_unused_parameters, or freeze or delete them",
    ZERO: "with a gradient of zero in every step, which DDP reduces in vain",
    FROZEN: "frozen",
}


class GradientWatch:
    """Notes every gradient of some models from now on, until it is closed."""

    __slots__ = ("_handles", "_nonzero", "_parameters", "_watched")

    def __init__(self, models: Sequence[Module]) -> None:
        watched = [each.module if isinstance(each, DistributedDataParallel) else each for each in models]
        # by name, of each model: no model is kept that the job makes anew in each step
        self._parameters = [dict(each.named_parameters()) for each in watched]
        self._nonzero: dict[int, bool] = {}
        self._watched: set[int] = set()
        self._handles: list[Any] = []
        self.watch()

    def watch(self) -> None:
        """Watch what was frozen so far and no longer is: some jobs freeze a model for one backward of each step."""
        for parameters in self._parameters:
            for parameter in parameters.values():
                learns = parameter.requires_grad and parameter.is_leaf  # views of a sharded model are no leaves
                if learns and id(parameter) not in self._watched:
                    self._watched.add(id(parameter))
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._note))

    def uses(self) -> dict[str, str]:
        """Return what every parameter of the models that train is so far, by name."""
        return {
            name: self._use(parameter)
            for parameters in self._parameters
            if any(id(parameter) in self._nonzero for parameter in parameters.values())
            for name, parameter in parameters.items()
            if parameter.is_leaf
        }

    def close(self) -> None:
        """Note no more, and forget the parameters."""
        while self._handles:
            self._handles.pop().remove()
        self._parameters.clear()

    def _note(self, parameter: Tensor) -> None:
        was_nonzero = self._nonzero.setdefault(id(parameter), False)
        if not was_nonzero and parameter.grad is not None:
            self._nonzero[id(parameter)] = _has_values(parameter.grad)

    def _use(self, parameter: Tensor) -> str:
        if id(parameter) not in self._nonzero:
            return UNUSED if parameter.requires_grad else FROZEN
        return USED if self._nonzero[id(parameter)] else ZERO


def _has_values(gradient: Any) -> bool:
    """Return whether a gradient has a value other than zero; True where none may be read.

    That is while a CUDA graph is captured, which waiting would end; under `set_sync_debug_mode("error")`; and of a
    dtype without comparisons.
    """
    if is_capturing():
        return True
    try:
        return bool(_values(gradient).any())
    except RuntimeError:
        return True


def _values(gradient: Any) -> Tensor:
    """Return the values that this rank holds: to ask a sharded tensor for all of them would be a collective."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    values: Tensor = local._values() if local.is_sparse else local
    return values


def gradient_lines(uses_of_ranks: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield how many parameters get a gradient, then those that get none on any rank, those of zero on all, frozen."""
    first = uses_of_ranks[0] if uses_of_ranks else {}
    uses = {name: _joined([each.get(name, UNUSED) for each in uses_of_ranks]) for name in first}
    if not uses:
        return
    yield f"{list(uses.values()).count(USED):,} of {_tensors(len(uses))} get gradients"
    for use, advice in _ADVICE.items():
        if names := [name for name in uses if uses[name] == use]:
            some = use == UNUSED and any(each.get(name) != UNUSED for name in names for each in uses_of_ranks)
            where = ", on some rank" if some else ""
            yield f"{_tensors(len(names))} {advice}{where}: {_by_module(names)}"


def _joined(of_ranks: Sequence[str]) -> str:
    """Return the use over ranks: DDP waits on each of them."""
    return UNUSED if UNUSED in of_ranks else USED if USED in of_ranks else of_ranks[0]


def _tensors(num: int) -> str:
    return f"{num:,} parameter{'' if num == 1 else 's'}"


def _by_module(names: Sequence[str]) -> str:
    """Return `head.aux (weight, bias), gate (scale) and 2 more modules`."""
    modules: dict[str, list[str]] = {}
    for name in names:
        module, _, parameter = name.rpartition(".")
        modules.setdefault(module, []).append(parameter)
    listed = [f"{module or 'the model itself'} ({', '.join(each)})" for module, each in modules.items()]
    rest = len(listed) - _MOST_MODULES
    return ", ".join(listed[:_MOST_MODULES]) + (f" and {rest:,} more modules" if rest > 0 else "")
