"""The loss of a job's steps by the arm that they run: whether a change that is faster learns the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from traceq.recorder.timing.stopwatch import is_capturing


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
