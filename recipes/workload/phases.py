"""The phases of a training step, the same in every recipe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

__all__ = ["PHASES", "EnterPhase"]

PHASES = ("dataload_wait", "forward", "bwd", "unscale_clip", "optim_step", "zero_grad_sched", "sync_gather")
EnterPhase: TypeAlias = Callable[[str], AbstractContextManager[None]]
"""Enters a phase by name, as `Context.phase` does."""
