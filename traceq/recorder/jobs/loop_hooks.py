"""Functions of torch that a training loop calls, replaced so that they report events and phases.

The replaced functions call the original alone while torch compiles, on other threads, and once the observer has stopped
watching. They repeat some lines, as each Python call less saves about 1 us: where a step has emptied the caches, what
counts is how much code runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
import torch.utils.data
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.recorder.jobs.batch_waits import BatchWaits
from traceq.recorder.jobs.framework_phases import ENGINE_METHODS, imported_functions, owners
from traceq.recorder.jobs.inner_calls import InnerCalls
from traceq.recorder.jobs.root_models import with_forward
from traceq.recorder.jobs.step_pattern import BACKWARD, BATCH, FORWARD
from traceq.recorder.rank.replaced_methods import ReplacedMethods
from traceq.recorder.tracing.worker_samples import WorkerSamples

__all__ = ["LoopHooks", "Observer"]

_COMPILED_END = 3
"""Steps in a row that begin and do not end: torch compiles what follows the first hook, so the other never runs."""


class Observer(Protocol):
    """What the replaced functions report to; none of its methods raises.

    `thread`: that of the loop while it is learned or recorded; only what runs on it is a phase. `is_learning`: the
    steps are not known yet.
    """

    thread: int | None
    is_learning: bool

    def batch_requested(self) -> None:
        """Report a batch while no thread is watched: there may never be a backward in a compiled step."""
        ...

    def batch_delivered(self, loader: DataLoader[Any] | None, batch: Any) -> None:
        """Report a batch while steps are learned, and the loader it came from where that is known."""
        ...

    def backward_began(self, tensors: Any) -> None:
        """Report a backward, on any thread, and what it begins with: the first one's thread is watched from here on."""
        ...

    def begin(self, phase: str, event: str) -> int:
        """Report that a phase begins, with an event of the loop or ""; return what `end` requires."""
        ...

    def end(self, depth: int) -> None:
        """Report that the phase ended."""
        ...

    def is_inside_model(self) -> bool:
        """Return whether a forward or a backward of the watched thread has begun."""
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
        self.waits = BatchWaits()
        self.has_entered_autocast = False
        self._is_graphing = False
        self._restore: list[Callable[[], None]] = []
        self._methods: list[ReplacedMethods] = []
        self._inner: InnerCalls | None = None
        self._open_steps: list[tuple[int, int]] = []  # (the optimizer's id, the depth of its phase)
        self._num_unended: dict[int, int] = {}  # steps in a row without an end, by the optimizer's id
        self._loaders: WeakKeyDictionary[Any, Callable[[], DataLoader[Any] | None]] = WeakKeyDictionary()

    def install(self) -> None:
        """Replace functions and methods of torch; models follow once they exist."""
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        self._replace(torch.autograd, "backward", self._backward(torch.autograd.backward))
        self._replace(torch.autograd, "grad", self._gradient(torch.autograd.grad))
        self._replace(loader, "__init__", self._iterator(loader.__init__))
        forking = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        self._replace(forking, "__init__", self.samples.of_forked(forking.__init__))
        self._replace(loader, "__next__", self._batch(loader.__next__))
        self._replace(forking, "_try_get_data", self._reading(forking._try_get_data))
        self._replace(DataLoader, "__iter__", self._phase(DataLoader.__iter__, DATALOAD_WAIT))
        self._replace(Optimizer, "zero_grad", self._phase(Optimizer.zero_grad, "zero_grad"))
        self._replace(torch.nn.Module, "zero_grad", self._phase(torch.nn.Module.zero_grad, "zero_grad"))
        self._replace(torch.cuda, "make_graphed_callables", self._graphing(torch.cuda.make_graphed_callables))
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

    def hook_models(self, models: Sequence[torch.nn.Module]) -> None:
        """Replace the forward of models, of one without a forward that of the modules which its methods call.

        Frameworks put parts of the step into functions of theirs; those are phases, and no events.
        """
        self.hook_forwards(with_forward(models))
        for base, method, phase in ENGINE_METHODS:
            replacement = functools.partial(self._phase, phase=phase)
            self._methods.append(ReplacedMethods(owners(models, base), replacement, method))
        for owner, name, phase in imported_functions():
            self._replace(owner, name, self._phase(getattr(owner, name), phase))

    def hook_forwards(self, models: Sequence[torch.nn.Module]) -> None:
        """Replace the forward of each of these models."""
        self._methods.append(ReplacedMethods(models, self._forward))

    def watch_inner(self, models: Sequence[torch.nn.Module]) -> None:
        """Take calls of the modules inside models for forwards, too, where they are outside of one, until `take_inner`.

        To be called behind `hook_models`, whose replaced methods are below these.
        """
        observer = self._observer
        self._inner = InnerCalls(
            with_forward(models),
            self._forward,
            lambda: observer.thread != get_ident() or observer.is_inside_model(),
        )

    def take_inner(self) -> list[torch.nn.Module]:
        """Watch these modules no more; return those that each step calls, and replace their forward for good."""
        called = [] if self._inner is None else self._inner.take()
        self._inner = None
        self.hook_forwards(called)
        return called

    def worker_pids(self, loader: Callable[[], DataLoader[Any] | None]) -> list[int]:
        """Return the living workers of a loader's iterators."""
        of_loader = loader()
        iterators = [each for each, get in list(self._loaders.items()) if of_loader is not None and get() is of_loader]
        workers = (worker for iterator in iterators for worker in getattr(iterator, "_workers", ()))
        return [worker.pid for worker in workers if worker.pid is not None and worker.is_alive()]

    def remove(self) -> None:
        """Restore everything that nobody else has replaced since."""
        self.take_inner()
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
        observer, begin, end = self._observer, self._observer.begin, self._observer.end

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or observer.thread != get_ident():
                return function(*args, **kwargs)
            depth = begin(phase, event)
            try:
                return function(*args, **kwargs)
            finally:
                end(depth)

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

    def _reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        observer, waits = self._observer, self.waits

        @functools.wraps(function)
        def call(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if observer.thread == get_ident():
                waits.reads(iterator)
            return function(iterator, *args, **kwargs)

        return call

    def _batch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        observer, begin, end, loaders = self._observer, self._observer.begin, self._observer.end, self._loaders
        waits, forking = self.waits, torch.utils.data.dataloader._MultiProcessingDataLoaderIter

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return function(*args, **kwargs)
            if observer.thread is None:
                observer.batch_requested()
            if observer.thread != get_ident():
                return function(*args, **kwargs)
            depth = begin(DATALOAD_WAIT, BATCH)
            try:
                batch = function(*args, **kwargs)
            finally:
                end(depth)
            if type(args[0]) is forking:
                waits.received()
            if observer.is_learning:
                loader = loaders.get(args[0])
                observer.batch_delivered(None if loader is None else loader(), batch)
            return batch

        return call

    def _backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        observer, begin, end = self._observer, self._observer.begin, self._observer.end

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return function(*args, **kwargs)
            observer.backward_began(args[0] if args else kwargs.get("tensors"))
            if observer.thread != get_ident():
                return function(*args, **kwargs)
            depth = begin("backward", BACKWARD)
            try:
                return function(*args, **kwargs)
            finally:
                end(depth)

        return call

    def _gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of gradients that is a phase; a loop that has no other backward is watched from here on."""
        observer, phase = self._observer, self._phase(function, "autograd_grad")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if observer.thread is None and not (self._is_graphing or is_dynamo_compiling()):
                observer.backward_began(args[0] if args else kwargs.get("outputs"))
            return phase(*args, **kwargs)

        return call

    def _graphing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose gradients are no training: it captures parts of a model that may not exist yet."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._is_graphing = True
            try:
                return function(*args, **kwargs)
            finally:
                self._is_graphing = False

        return call

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that is training if gradients are enabled: not all wrappers are in training mode."""
        observer, begin, end = self._observer, self._observer.begin, self._observer.end

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or observer.thread != get_ident():
                return function(*args, **kwargs)
            depth = begin("forward", FORWARD) if torch.is_grad_enabled() else begin("no_grad_forward", "f")
            try:
                return function(*args, **kwargs)
            finally:
                end(depth)

        return call

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if is_dynamo_compiling():
            return
        number, is_watched = id(optimizer), self._observer.thread == get_ident()
        if is_watched and self._open_steps:
            self._end_steps(number)  # of one that raised, and has no other end
        num_unended = self._num_unended.get(number, 0)
        if num_unended == _COMPILED_END:
            self._observer.optimizer_left()
            return
        self._num_unended[number] = num_unended + 1
        if self._observer.is_learning:
            self._observer.optimizer_began()
        if is_watched:
            self._open_steps.append((number, self._observer.begin("optimizer", "")))

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if is_dynamo_compiling():
            return
        number = id(optimizer)
        self._num_unended.pop(number, None)
        if (steps := self._open_steps) and self._observer.thread == get_ident():
            if steps[-1][0] == number:
                self._observer.end(steps.pop()[1])
            else:
                self._end_steps(number)
        self._observer.optimizer_stepped(optimizer)

    def _end_steps(self, number: int) -> None:
        """End the phases of an optimizer's step, by its id, and of steps inside it."""
        for index, (begun, depth) in enumerate(self._open_steps):
            if begun == number:
                self._observer.end(depth)
                del self._open_steps[index:]
                return
