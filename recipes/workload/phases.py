"""The phases that a training step has in every experiment on it."""

from __future__ import annotations

__all__ = ["PHASES"]

PHASES = ("dataload_wait", "forward", "bwd", "unscale_clip", "optim_step", "zero_grad_sched", "sync_gather")
