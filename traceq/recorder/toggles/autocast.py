"""Whether the job's autocast regions take effect: on or off."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from traceq.recorder.toggles.toggle import Job

CANDIDATES = ("off",)


class AutocastToggle:
    """The entry of torch.autocast, which is disabled while off."""

    changes_ops = True

    def __init__(self, values: Sequence[str]) -> None:
        self._values = values
        self._is_on = True
        self._before = torch.autocast.__enter__
        torch.autocast.__enter__ = self._entered(self._before)  # type: ignore[method-assign]

    def apply(self, number: int) -> None:
        """Let the next regions take effect, or not."""
        self._is_on = self._values[number] != "off"

    def fault(self, number: int) -> str:
        """Return ""; that it has an effect shows in the ops."""
        return ""

    def restore(self) -> None:
        """Restore the entry."""
        torch.autocast.__enter__ = self._before  # type: ignore[method-assign]

    def _entered(self, enter: Any) -> Any:
        @functools.wraps(enter)
        def call(region: Any) -> Any:
            if self._is_on or torch.compiler.is_compiling():
                return enter(region)
            is_enabled, region._enabled = region._enabled, False
            try:
                return enter(region)
            finally:
                region._enabled = is_enabled

        return call


def is_used(job: Job) -> bool:
    """Return whether the job has regions that could be off."""
    return job.uses_autocast


def create(job: Job, values: Sequence[str]) -> AutocastToggle:
    """Return the toggle; a job without autocast shows in that its arms issue the same ops."""
    return AutocastToggle(values)
