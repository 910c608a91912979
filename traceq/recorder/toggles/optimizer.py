"""Implementation of all optimizers that have several: default, loop, foreach or fused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import DEFAULT, Job

CANDIDATES = ("foreach", "fused")
_FLAGS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}
_SCALES_GRADIENTS = "_step_supports_amp_scaling"


class OptimizerToggle:
    """Flags of the parameter groups, which each step reads."""

    changes_ops = True

    def __init__(self, optimizers: Sequence[Optimizer], values: Sequence[str]) -> None:
        self._optimizers = optimizers
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups if "foreach" in group]
        self._before: list[dict[str, Any]] = [
            {key: group[key] for key in ("foreach", "fused") if key in group} for group in self._groups
        ]
        self._scales = [getattr(optimizer, _SCALES_GRADIENTS, False) for optimizer in optimizers]
        self._values = values

    def apply(self, number: int) -> None:
        """Set the flags of the n-th implementation, and move step counters to the device where it expects them."""
        name = self._values[number]
        for group, flags in zip(self._groups, self._flags(name), strict=True):
            group.update(flags)
        for optimizer, scales in zip(self._optimizers, self._scales, strict=True):
            setattr(optimizer, _SCALES_GRADIENTS, scales if name == DEFAULT else name == "fused")
            _move_counters(optimizer)

    def fault(self, number: int) -> str:
        """Return the first group with other flags."""
        for group, flags in zip(self._groups, self._flags(self._values[number]), strict=True):
            if {key: group[key] for key in flags} != flags:
                return f"a parameter group reads { ({key: group[key] for key in flags}) }"
        return ""

    def restore(self) -> None:
        """Restore the job's own flags."""
        self._values = [*self._values, DEFAULT]
        self.apply(len(self._values) - 1)

    def _flags(self, name: str) -> Sequence[dict[str, Any]]:
        return [*self._before] if name == DEFAULT else [_FLAGS[name]] * len(self._groups)


def create(job: Job, values: Sequence[str]) -> OptimizerToggle:
    """Return the toggle; UsageFault if no optimizer has several implementations, or not those that are asked for."""
    optimizers = [each for each in job.optimizers if any("foreach" in group for group in each.param_groups)]
    if not optimizers:
        names = ", ".join(type(each).__name__ for each in job.optimizers) or "none was found"
        raise UsageFault(f"no optimizer has several implementations: {names}")
    unfused = [type(each).__name__ for each in optimizers if any("fused" not in group for group in each.param_groups)]
    if "fused" in values and unfused:
        raise UsageFault(f"no fused implementation: {', '.join(dict.fromkeys(unfused))}")
    if "foreach" in values and any(_has_lr_of_host(group) for each in optimizers for group in each.param_groups):
        raise UsageFault("foreach does not take a learning rate that is a tensor, unless capturable=True")
    has = {
        name
        for name, flags in _FLAGS.items()
        if all(_has(group, flags) for each in optimizers for group in each.param_groups)
    }
    if DEFAULT in values and (same := has & set(values)):
        raise UsageFault(f"the optimizers are {same.pop()} already")
    return OptimizerToggle(optimizers, values)


def _has(group: dict[str, Any], flags: dict[str, bool]) -> bool:
    """Return whether a group asks for an implementation, or for none but the loop."""
    return any(flags.values()) and all(bool(group.get(key)) == value for key, value in flags.items())


def _has_lr_of_host(group: dict[str, Any]) -> bool:
    """Return whether the foreach implementation refuses a group: each step would raise."""
    return isinstance(group.get("lr"), torch.Tensor) and not group.get("capturable")


def _move_counters(optimizer: Optimizer) -> None:
    """Move `state["step"]` to the parameter's device if it is fused, else to the host: a loop would wait for it."""
    for group in optimizer.param_groups:
        on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            counter = optimizer.state.get(parameter, {}).get("step")
            device = parameter.device if on_device else torch.device("cpu")
            if isinstance(counter, torch.Tensor) and counter.device != device:
                optimizer.state[parameter]["step"] = counter.to(device)
