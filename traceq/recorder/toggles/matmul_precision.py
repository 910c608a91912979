"""Precision of float32 matrix products: highest, high (TF32) or medium (bfloat16)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from traceq.recorder.toggles.toggle import Job, Setting

__all__ = ["CANDIDATES", "create"]

CANDIDATES = ("high",)


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle."""
    return Setting(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision, values)
