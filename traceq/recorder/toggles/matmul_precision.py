"""Precision of float32 matrix products: highest, high (TF32) or medium (bfloat16)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from traceq.recorder.toggles.toggle import Job, Setting

CANDIDATES = ("high",)


def is_used(job: Job) -> bool:
    """Return whether a parameter is on a device that has other precisions than float32's."""
    return any(parameter.is_cuda for model in job.models for parameter in model.parameters())


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle."""
    return Setting(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, values)
