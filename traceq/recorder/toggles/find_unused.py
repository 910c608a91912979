"""DDP's search for unused parameters: off or on."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import DEFAULT, Job

CANDIDATES = ("off", "on")
_ATTRIBUTES = ("reducer", "logger", "find_unused_parameters")
_UNSYNCED: dict[str, Any] = {"init_sync": False} if "init_sync" in signature(DistributedDataParallel).parameters else {}
"""Torch 2.4 always broadcasts the weights again, which are equal on all ranks."""


class FindUnusedToggle:
    """Two reducers of one wrapper: a reducer keeps the flag that it was built with, whatever the attribute says."""

    def __init__(self, wrapper: DistributedDataParallel, values: Sequence[str]) -> None:
        self._wrapper = wrapper
        self._before = bool(wrapper.find_unused_parameters)
        self._values = [self._before if value == DEFAULT else value == "on" for value in values]
        self.changes_ops = len(set(self._values)) > 1
        other = DistributedDataParallel(
            wrapper.module,
            device_ids=wrapper.device_ids,
            process_group=wrapper.process_group,
            find_unused_parameters=not self._before,
            **_UNSYNCED,
        )
        self._attributes = {
            self._before: {name: getattr(wrapper, name) for name in _ATTRIBUTES},
            not self._before: {name: getattr(other, name) for name in _ATTRIBUTES},
        }

    def apply(self, number: int) -> None:
        """Let the next forward and backward use the reducer with the n-th flag."""
        self._exchange(is_on=self._values[number])

    def fault(self, number: int) -> str:
        """Return the flag that the wrapper has instead."""
        is_on = self._wrapper.find_unused_parameters
        return "" if is_on == self._values[number] else f"the wrapper has {is_on}"

    def restore(self) -> None:
        """Let the job's own reducer run."""
        self._exchange(is_on=self._before)

    def _exchange(self, *, is_on: bool) -> None:
        for name, value in self._attributes[is_on].items():
            setattr(self._wrapper, name, value)


def create(job: Job, values: Sequence[str]) -> FindUnusedToggle:
    """Return the toggle; UsageFault for a job that is not wrapped in DDP, or whose wrapper cannot be built twice."""
    wrapper = next((model for model in job.models if isinstance(model, DistributedDataParallel)), None)
    if wrapper is None:
        raise UsageFault("no model is wrapped in DistributedDataParallel")
    if wrapper.static_graph or wrapper.gradient_as_bucket_view:
        raise UsageFault("not possible with static_graph or gradient_as_bucket_view")
    return FindUnusedToggle(wrapper, values)
