"""Backend of scaled_dot_product_attention: default, math (eager), flash, efficient or cudnn."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from traceq.recorder.toggles.toggle import DEFAULT, Job, check_values

__all__ = ["CANDIDATES", "AttentionToggle", "create"]

CANDIDATES = ("math",)
_SWITCHES = ("math", "flash", "mem_efficient", "cudnn")
_BACKENDS = {"math": "math", "eager": "math", "flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn"}
_ALL = "sdpa"


class AttentionToggle:
    """Which backends torch may dispatch to; it takes another one if the only one allowed does not fit the inputs."""

    changes_ops = True

    def __init__(self, values: Sequence[str]) -> None:
        self._values = values
        self._before = _enabled()

    def apply(self, number: int) -> None:
        """Allow the n-th backend only."""
        _enable(self._allowed(number))

    def fault(self, number: int) -> str:
        """Return what is allowed instead."""
        allowed = _enabled()
        return "" if allowed == self._allowed(number) else f"torch allows {', '.join(sorted(allowed))}"

    def restore(self) -> None:
        """Allow what the job allows."""
        _enable(self._before)

    def _allowed(self, number: int) -> frozenset[str]:
        value = self._values[number]
        if value == DEFAULT:
            return self._before
        return frozenset(_SWITCHES) if value == _ALL else frozenset([_BACKENDS[value]])


def create(job: Job, values: Sequence[str]) -> AttentionToggle:
    """Return the toggle; UsageFault for an unknown backend."""
    check_values(values, (*_BACKENDS, _ALL))
    return AttentionToggle(values)


def _enabled() -> frozenset[str]:
    return frozenset(name for name in _SWITCHES if getattr(torch.backends.cuda, f"{name}_sdp_enabled")())


def _enable(allowed: frozenset[str]) -> None:
    for name in _SWITCHES:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in allowed)
