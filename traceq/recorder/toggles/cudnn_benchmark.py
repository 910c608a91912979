"""cuDNN's search for the fastest algorithm of each convolution: off or on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.modules.conv import _ConvNd

from traceq.recorder.toggles.toggle import Job, Setting

CANDIDATES = ("on",)


def is_used(job: Job) -> bool:
    """Return whether the models have a convolution on a CUDA device."""
    modules = (module for model in job.models for module in model.modules())
    return any(isinstance(module, _ConvNd) and module.weight.is_cuda for module in modules)


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle; losses may differ by rounding, as other algorithms are chosen."""

    def set_search(is_on: bool) -> None:
        torch.backends.cudnn.benchmark = is_on

    settings = {"on": True, "off": False}
    return Setting(set_search, lambda: torch.backends.cudnn.benchmark, [settings.get(value, value) for value in values])
