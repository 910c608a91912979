"""Functions of torch that a training loop calls, replaced so that they report events and phases.

The replaced functions cost about 5 us per call, and call the original alone while torch compiles, on other threads,
and once the observer has stopped watching.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
import torch.utils.data
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.recorder.jobs.framework_phases import ENGINE_METHODS, imported_functions, owners
from traceq.recorder.jobs.root_models import find_roots
from traceq.recorder.jobs.step_pattern import BACKWARD, BATCH, FORWARD
from traceq.recorder.rank.replaced_methods import ReplacedMethods
from traceq.recorder.tracing.worker_samples import WorkerSamples

__all__ = ["LoopHooks", "Observer"]

_COMPILED_END = 3
"""Steps in a row that begin and do not end: torch compiles what follows the first hook, so the other never runs."""


class Observer(Protocol):
    """What the replaced functions report to; none of its methods raises."""

    def is_watching(self) -> bool:
        """Return True on the thread of a loop that is being learned or recorded."""
        ...

    def is_learning(self) -> bool:
        """Return True on that thread until its steps are known."""
        ...

    def wake(self) -> None:
        """Begin to watch, on the thread of the first backward."""
        ...

    def batch_requested(self) -> None:
        """Report a batch, also before any backward has run: there may never be one in a compiled step."""
        ...

    def batch_delivered(self, loader: DataLoader[Any] | None, batch: Any) -> None:
        """Report a batch while steps are learned, and the loader it came from where that is known."""
        ...

    def backward_of(self, tensors: Any) -> None:
        """Report what a backward begins with, on that thread."""
        ...

    def begin(self, phase: str, event: str) -> int:
        """Report that a phase begins, with an event of the loop or ""; return what `end` requires."""
        ...

    def end(self, depth: int) -> None:
        """Report that the phase ended."""
        ...

    def optimizer_began(self) -> None:
        """Report that an optimizer begins its step, also before any backward: its closure may run the first."""
        ...

    def optimizer_left(self) -> None:
        """Report that the step of an optimizer ended without its hook: it raised, or its end is compiled."""
        ...

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Report that an optimizer has stepped, on any thread."""
        ...


class LoopHooks:
    """Replaced functions of this process, until they are removed."""

    def __init__(self, observer: Observer, samples: WorkerSamples) -> None:
        self._observer = observer
        self.samples = samples
        self.has_entered_autocast = False
        self._restore: list[Callable[[], None]] = []
        self._methods: list[ReplacedMethods] = []
        self._open_steps: list[tuple[int, int]] = []  # (the optimizer's id, the depth of its phase)
        self._num_unended: dict[int, int] = {}  # steps in a row without an end, by the optimizer's id
        self._loaders: WeakKeyDictionary[Any, Callable[[], DataLoader[Any] | None]] = WeakKeyDictionary()

    def install(self) -> None:
        """Replace functions and methods of torch; models follow once they exist."""
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        self._replace(torch.autograd, "backward", self._backward(torch.autograd.backward))
        self._replace(loader, "__init__", self._iterator(loader.__init__))
        forking = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        self._replace(forking, "__init__", self.samples.of_forked(forking.__init__))
        self._replace(loader, "__next__", self._batch(loader.__next__))
        self._replace(Optimizer, "zero_grad", self._phase(Optimizer.zero_grad, "zero_grad"))
        self._replace(torch.nn.Module, "zero_grad", self._phase(torch.nn.Module.zero_grad, "zero_grad"))
        self._replace(torch, "save", self._phase(torch.save, "save", "S"))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = self._phase(getattr(torch.nn.utils, name), "clip_grad")
            self._replace(torch.nn.utils, name, clip)
            self._replace(torch.nn.utils.clip_grad, name, clip)
        self._restore.append(register_optimizer_step_pre_hook(self._before_step).remove)
        self._restore.append(register_optimizer_step_post_hook(self._after_step).remove)

    def watch_autocast(self) -> None:
        """Note from here on whether the job enters a region of torch.autocast."""
        enter: Callable[[Any], Any] = torch.autocast.__enter__

        @functools.wraps(enter)
        def call(region: Any) -> Any:
            self.has_entered_autocast = True
            return enter(region)

        self._replace(torch.autocast, "__enter__", call)

    def hook_models(self) -> list[torch.nn.Module]:
        """Replace the forward of the models that exist, and return these.

        Frameworks put parts of the step into functions of theirs; those are phases, and no events.
        """
        models = find_roots()
        self._methods.append(ReplacedMethods(models, self._forward))
        for base, method, phase in ENGINE_METHODS:
            replacement = functools.partial(self._phase, phase=phase)
            self._methods.append(ReplacedMethods(owners(models, base), replacement, method))
        for owner, name, phase in imported_functions():
            self._replace(owner, name, self._phase(getattr(owner, name), phase))
        return models

    def worker_pids(self, loader: Callable[[], DataLoader[Any] | None]) -> list[int]:
        """Return the living workers of a loader's iterators."""
        of_loader = loader()
        iterators = [each for each, get in list(self._loaders.items()) if of_loader is not None and get() is of_loader]
        workers = (worker for iterator in iterators for worker in getattr(iterator, "_workers", ()))
        return [worker.pid for worker in workers if worker.pid is not None and worker.is_alive()]

    def remove(self) -> None:
        """Restore everything that nobody else has replaced since."""
        while self._methods:
            self._methods.pop().restore()
        while self._restore:
            self._restore.pop()()
        self._loaders.clear()

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, function)

        def restore() -> None:
            if getattr(owner, name) is function:
                setattr(owner, name, original)

        self._restore.append(restore)

    def _phase(self, function: Callable[..., Any], phase: str, event: str = "") -> Callable[..., Any]:
        observer = self._observer

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling() or not observer.is_watching():
                return function(*args, **kwargs)
            depth = observer.begin(phase, event)
            try:
                return function(*args, **kwargs)
            finally:
                observer.end(depth)

        return call

    def _iterator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self._loaders

        @functools.wraps(function)
        def call(iterator: Any, loader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
            result = function(iterator, loader, *args, **kwargs)
            # an iterator may outlive its loader; but one with persistent workers is held by it, and would never go
            loaders[iterator] = ref(loader) if loader.persistent_workers else lambda: loader
            return result

        return call

    def _batch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        observed = self._phase(function, DATALOAD_WAIT, BATCH)
        observer, loaders = self._observer, self._loaders

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return observed(*args, **kwargs)
            observer.batch_requested()
            batch = observed(*args, **kwargs)
            if observer.is_learning():
                loader = loaders.get(args[0])
                observer.batch_delivered(None if loader is None else loader(), batch)
            return batch

        return call

    def _backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        observed = self._phase(function, "backward", BACKWARD)
        observer = self._observer

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling():
                observer.wake()
                if observer.is_watching():
                    observer.backward_of(args[0] if args else kwargs.get("tensors"))
            return observed(*args, **kwargs)

        return call

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that is training if gradients are enabled: not all wrappers are in training mode."""
        training = self._phase(function, "forward", FORWARD)
        without_gradients = self._phase(function, "no_grad_forward", "f")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (training if torch.is_grad_enabled() else without_gradients)(*args, **kwargs)

        return call

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        num_unended = self._num_unended.get(id(optimizer), 0)
        if self._observer.is_watching():
            self._end_steps(optimizer)  # of one that raised, and has no other end
        if num_unended == _COMPILED_END:
            self._observer.optimizer_left()
            return
        self._num_unended[id(optimizer)] = num_unended + 1
        self._observer.optimizer_began()
        if self._observer.is_watching():
            self._open_steps.append((id(optimizer), self._observer.begin("optimizer", "")))

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        self._num_unended.pop(id(optimizer), None)
        if self._observer.is_watching():
            self._end_steps(optimizer)
        self._observer.optimizer_stepped(optimizer)

    def _end_steps(self, optimizer: Optimizer) -> None:
        """End the phases of an optimizer's step, and of steps inside it."""
        if not self._open_steps:
            return
        if self._open_steps[-1][0] == id(optimizer) and len(self._open_steps) == 1:
            self._observer.end(self._open_steps.pop()[1])
            return
        numbers = [number for number, _ in self._open_steps]
        if id(optimizer) in numbers:
            first = numbers.index(id(optimizer))
            self._observer.end(self._open_steps[first][1])
            del self._open_steps[first:]
