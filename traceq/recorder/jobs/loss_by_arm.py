"""The loss of a job's steps by the arm that they run: whether a change that is faster learns the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from traceq.recorder.timing.graph_capture import is_capturing

__all__ = ["LossByArm", "loss_texts"]


class LossByArm:
    """The tensor of each step's last backward, kept on its device until the recording ends: reading it would wait.

    Of a device it is a copy: the next replay of a CUDA graph, also one of torch.compile, writes over its outputs.
    """

    __slots__ = ("_latest", "_losses")

    def __init__(self) -> None:
        self._latest: torch.Tensor | None = None
        self._losses: dict[str, list[torch.Tensor]] = {}

    def note(self, tensors: Any) -> None:
        """Note what a backward is called with, a tensor or several of them; only one of a single value is a loss."""
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if isinstance(first, torch.Tensor) and first.numel() == 1:
            if not first.is_cuda:
                self._latest = first.detach()
            elif not is_capturing():
                self._latest = first.detach().clone()

    def end_step(self, arm: str) -> None:
        """Add the last loss to those of the arm that the step ran."""
        if self._latest is not None:
            self._losses.setdefault(arm, []).append(self._latest)
            self._latest = None

    def moments(self) -> dict[str, tuple[int, float, float]]:
        """Return (number, sum, sum of squares) of the losses that are finite, by arm; waits for the device.

        Of a DTensor it is this rank's part.
        """
        moments = {}
        kept = [loss for losses in self._losses.values() for loss in losses if loss.is_cuda]
        for device in {loss.device for loss in kept}:  # a copy may have run on another stream than this one
            torch.cuda.synchronize(device)
        for arm, losses in self._losses.items():
            local = [loss.to_local() if hasattr(loss, "to_local") else loss for loss in losses]
            values = torch.stack([loss.reshape(()).to("cpu", torch.float64) for loss in local])
            finite = values[values.isfinite()]
            moments[arm] = (len(finite), float(finite.sum()), float(finite.square().sum()))
        self._losses.clear()
        return moments


def loss_texts(of_ranks: Sequence[Mapping[str, tuple[int, float, float]]]) -> dict[str, str]:
    """Return `4.02, sd 0.031` by arm, over the steps of all ranks."""
    texts = {}
    for arm in dict.fromkeys(arm for each in of_ranks for arm in each):
        num, total, squares = (
            sum(column) for column in zip(*(each[arm] for each in of_ranks if arm in each), strict=True)
        )
        if num:
            mean = total / num
            texts[arm] = f"{mean:.5g}, sd {max(squares / num - mean**2, 0.0) ** 0.5:.2g}"
    return texts
