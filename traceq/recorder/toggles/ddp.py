"""Settings of DDP: broadcasts of buffers, the search for unused parameters, reductions in steps that accumulate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from traceq.errors import UsageFault
from traceq.recorder.rank.replaced_methods import ReplacedMethods
from traceq.recorder.toggles.settings import Setting
from traceq.recorder.toggles.toggle import DEFAULT, Job

_ATTRIBUTES = ("reducer", "logger", "find_unused_parameters")
_UNSYNCED: dict[str, Any] = {"init_sync": False} if "init_sync" in signature(DistributedDataParallel).parameters else {}
"""Torch 2.4 always broadcasts the weights again, which are equal on all ranks."""


class BroadcastBuffers:
    """Whether buffers, such as batch-norm statistics, are broadcast from rank 0 before each forward.

    Each forward reads the attribute; most others are read once, where the reducer is built. Without broadcasts the
    buffers of other ranks than 0 are theirs, until the next broadcast.
    """

    CANDIDATES = ("broadcast_buffers:off",)

    @staticmethod
    def create(job: Job, values: Sequence[str]) -> Setting:
        """Return the toggle; UsageFault for a job without a wrapper of DDP that broadcasts buffers."""
        wrappers = [each for each in _wrappers(job) if _sends(each)]
        if not wrappers:
            raise UsageFault("no model is wrapped in DistributedDataParallel that broadcasts buffers")

        def set_broadcasts(are_sent: Sequence[bool]) -> None:
            for wrapper, is_sent in zip(wrappers, are_sent, strict=True):
                wrapper.broadcast_buffers = is_sent

        none_is_sent = [False] * len(wrappers)
        settings = [value if value == DEFAULT else none_is_sent for value in values]
        return Setting(set_broadcasts, lambda: list(map(_sends, wrappers)), settings, changes_ops=True)


class FindUnused:
    """The search for unused parameters, by two reducers of one wrapper.

    A reducer keeps the flag that it was built with, whatever the attribute says.
    """

    CANDIDATES = ("off", "on")

    @staticmethod
    def create(job: Job, values: Sequence[str]) -> Setting:
        """Return the toggle; UsageFault for a job without DDP, or whose wrapper cannot be built twice."""
        wrapper = next(iter(_wrappers(job)), None)
        if wrapper is None:
            raise UsageFault("no model is wrapped in DistributedDataParallel")
        if wrapper.static_graph or wrapper.gradient_as_bucket_view:
            raise UsageFault("not possible with static_graph or gradient_as_bucket_view")
        before = bool(wrapper.find_unused_parameters)
        other = DistributedDataParallel(
            wrapper.module,
            device_ids=wrapper.device_ids,
            process_group=wrapper.process_group,
            find_unused_parameters=not before,
            **_UNSYNCED,
        )
        attributes = {
            is_on: {name: getattr(each, name) for name in _ATTRIBUTES}
            for is_on, each in ((before, wrapper), (not before, other))
        }

        def exchange(is_on: bool) -> None:
            for name, value in attributes[is_on].items():
                setattr(wrapper, name, value)

        settings = [before if value == DEFAULT else value == "on" for value in values]
        return Setting(exchange, lambda: wrapper.find_unused_parameters, settings, changes_ops=len(set(settings)) > 1)


class NoSync:
    """The reduction of gradients in the last backward of a step alone, where a step accumulates.

    It clears the flag that `no_sync()` clears, which the wrapper reads where a forward begins and where it ends.
    Forwards are counted from the optimizer's last step on. A step with fewer passes than usual, as the last one of an
    epoch, has none that reduces: its gradients are reduced before the optimizer reads them. `no_effect` is why no pass
    goes without.
    """

    CANDIDATES = ("on",)
    changes_ops = True

    def __init__(
        self, wrapper: DistributedDataParallel, optimizer: Optimizer, num_passes: int, values: Sequence[str]
    ) -> None:
        self.no_effect = ""
        self._wrapper, self._num_passes, self._values = wrapper, num_passes, values
        self._is_on = self._is_known = self._is_stepping = self._is_cleared = False
        self._num_forwards = self._num_unreduced = 0
        self._versions: list[int] = []
        self._methods = (
            ReplacedMethods([wrapper], self._with_begin, "_pre_forward"),
            ReplacedMethods([wrapper], self._with_end, "_post_forward"),
        )
        self._handles = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )

    @classmethod
    def create(cls, job: Job, values: Sequence[str]) -> NoSync:
        """Return the toggle; UsageFault unless one wrapper of DDP and one optimizer take several passes per step."""
        wrappers = _wrappers(job)
        if len(wrappers) != 1 or len(job.optimizers) != 1:
            raise UsageFault("expected one model wrapped in DistributedDataParallel, and one optimizer")
        if job.num_passes < 2:
            raise UsageFault("no step accumulates gradients of several backward passes, each after one forward")
        if wrappers[0].static_graph:
            raise UsageFault("not possible with static_graph")
        return cls(wrappers[0], job.optimizers[0], job.num_passes, values)

    def apply(self, number: int) -> None:
        """Reduce in the last backward of the next steps alone, or in each."""
        self._is_on = self._values[number] == "on"

    def fault(self, number: int) -> str:
        """Return ""; that it has an effect shows in the ops."""
        return ""

    def restore(self) -> None:
        """Let the wrapper reduce in each backward."""
        self._reset_flag()
        for methods in self._methods:
            methods.restore()
        for handle in self._handles:
            handle.remove()

    def _with_begin(self, pre_forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(pre_forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._begin_forward()
            return pre_forward(*args, **kwargs)

        return call

    def _with_end(self, post_forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(post_forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return post_forward(*args, **kwargs)
            finally:
                self._reset_flag()

        return call

    def _begin_forward(self) -> None:
        self._reset_flag()  # a forward that raised has no end
        if not torch.is_grad_enabled():
            return
        self._num_forwards += 1
        if not self._is_known:
            self._check_passes()
        if self._wrapper.require_backward_grad_sync:  # else the job is in no_sync() itself
            is_usual = self._is_known and not self.no_effect and self._num_forwards < self._num_passes
            self._is_cleared = self._is_on and is_usual
            self._wrapper.require_backward_grad_sync = not self._is_cleared
            self._num_unreduced = self._num_unreduced + 1 if self._is_cleared else 0

    def _check_passes(self) -> None:
        """Note whether the passes of a step see the same weights; else each needs the gradients of the one before."""
        versions = [parameter._version for parameter in self._wrapper.parameters()]
        if self._num_forwards == 1:
            self._versions = versions
        elif self._num_forwards == self._num_passes:
            self._is_known = True
            if self._is_stepping or versions != self._versions:
                self.no_effect = "the weights change between the passes of a step"

    def _reset_flag(self) -> None:
        if self._is_cleared:
            self._wrapper.require_backward_grad_sync, self._is_cleared = True, False

    def _before_step(self, *_: Any) -> None:
        self._is_stepping = True
        if self._num_unreduced:
            group = self._wrapper.process_group
            for parameter in self._wrapper.parameters():
                if parameter.requires_grad:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    torch.distributed.all_reduce(parameter.grad, group=group)
                    parameter.grad /= torch.distributed.get_world_size(group)

    def _after_step(self, *_: Any) -> None:
        self._is_stepping = False
        self._num_forwards = self._num_unreduced = 0


def _wrappers(job: Job) -> list[DistributedDataParallel]:
    return [model for model in job.models if isinstance(model, DistributedDataParallel)]


def _sends(wrapper: DistributedDataParallel) -> bool:
    return bool(wrapper.will_sync_module_buffers())  # type: ignore[no-untyped-call]
