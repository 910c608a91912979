"""What backward passes of a job show: its loss by the arm of a step, and which parameters get a gradient.

The losses tell whether a change that is faster learns the same. DDP waits for each parameter that requires a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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


class LossByArm:
    """The value of each step's last backward, kept on its device until the recording ends: reading it would wait.

    There it is a copy: the next replay of a CUDA graph, also one of torch.compile, writes over its outputs.
    """

    __slots__ = ("_latest", "_losses")

    def __init__(self) -> None:
        self._latest: torch.Tensor | float | None = None
        self._losses: list[tuple[str, torch.Tensor | float]] = []

    def note(self, tensors: Any) -> None:
        """Note what a backward is called with, a tensor or several of them; only one of a single value is a loss."""
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if isinstance(first, torch.Tensor) and first.numel() == 1:
            if type(first) is torch.Tensor and first.is_cpu:
                self._latest = first.item()
            elif not first.is_cuda:
                self._latest = first.detach()
            elif not is_capturing():
                self._latest = first.detach().clone()

    def end_step(self, arm: str) -> None:
        """Add the last loss to those of the arm that the step ran."""
        if self._latest is not None:
            self._losses.append((arm, self._latest))
            self._latest = None

    def moments(self, baseline: str) -> dict[str, tuple[float, ...]]:
        """Return by arm what its finite losses add up to; waits for the device.

        These are (number, sum, sum of squares) of the losses, and of their differences from those of the baseline, a
        difference for each stretch of steps between two of the baseline: a loss that falls does so in all arms, and
        arms do not run at the same steps. Of a DTensor it is this rank's part.
        """
        devices = {loss.device for _, loss in self._losses if isinstance(loss, torch.Tensor) and loss.is_cuda}
        for device in devices:  # copied on another stream than this
            torch.cuda.synchronize(device)
        values = np.array([_value(loss) for _, loss in self._losses])
        arms = [arm for arm, _ in self._losses]
        steps = {
            arm: np.flatnonzero([each == arm for each in arms] & np.isfinite(values)) for arm in dict.fromkeys(arms)
        }
        self._losses.clear()
        nothing = np.zeros(0, np.int64)
        of_baseline = steps.get(baseline, nothing)
        moments: dict[str, tuple[float, ...]] = {}
        for arm, of_arm in steps.items():
            differences = _differences(values, nothing if arm == baseline else of_arm, of_baseline)
            moments[arm] = (*_sums(values[of_arm]), *_sums(differences))
        return moments


def _value(loss: torch.Tensor | float) -> float:
    if not isinstance(loss, torch.Tensor):
        return loss
    local = loss.to_local() if hasattr(loss, "to_local") else loss
    return float(local.reshape(()).to("cpu", torch.float64))


def _sums(values: NDArray[np.float64]) -> tuple[int, float, float]:
    return len(values), float(values.sum()), float(np.square(values).sum())


def _differences(
    values: NDArray[np.float64], of_arm: NDArray[np.int64], of_baseline: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the mean difference of each stretch of an arm's steps between two of the baseline, from what these have.

    `values` float64[N] by step; `of_arm` int64[K] and `of_baseline` int64[M] are steps in order.
    """
    gaps = np.searchsorted(of_baseline, of_arm)
    is_between = (gaps > 0) & (gaps < len(of_baseline))
    if not is_between.any():
        return np.zeros(0)
    between = of_arm[is_between]
    _, stretches = np.unique(gaps[is_between], return_inverse=True)
    deltas = values[between] - np.interp(between, of_baseline, values[of_baseline])
    return np.bincount(stretches, deltas) / np.bincount(stretches)


def loss_texts(of_ranks: Sequence[Mapping[str, tuple[float, ...]]], baseline: str) -> dict[str, str]:
    """Return by arm, over the steps of all ranks, how its loss differs from the baseline's, or its mean.

    A mean is no comparison while the loss falls, as arms do not run at the same steps.
    """
    texts = {}
    for arm in dict.fromkeys(arm for each in of_ranks for arm in each):
        sums = [sum(column) for column in zip(*(each[arm] for each in of_ranks if arm in each), strict=True)]
        of_losses, of_differences = sums[:3], sums[3:]
        if of_differences[0] > 1:
            delta, sd = _mean_and_sd(*of_differences)
            error = sd / (of_differences[0] - 1) ** 0.5
            texts[arm] = f"{delta:+.2g} (standard error {error:.2g}) from {baseline} in the steps beside them"
        elif of_losses[0]:
            texts[arm] = "{:.5g}, sd {:.2g}".format(*_mean_and_sd(*of_losses))
    return texts


def _mean_and_sd(num: float, total: float, squares: float) -> tuple[float, float]:
    mean = total / num
    return mean, max(squares / num - mean**2, 0.0) ** 0.5
