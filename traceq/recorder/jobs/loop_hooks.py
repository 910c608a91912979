"""Functions of torch that a training loop calls, replaced so that they report events and phases.

The replaced functions call the original alone while torch compiles, on other threads, and once the observer has stopped
watching.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
import torch.utils.data
from torch._guards import _TLS
from torch.compiler import is_dynamo_compiling
from torch.nn import Module
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.recorder.jobs.phase_stack import Begin, PhaseStack
from traceq.recorder.jobs.root_models import compiled_modules, replaceable, skip_own_code, with_forward
from traceq.recorder.jobs.step_pattern import BACKWARD, BATCH, COMPILE, EPOCH, FORWARD, NO_GRAD_FORWARD, SAVE
from traceq.recorder.rank.replaced_methods import ReplacedMethods, Replacement, has_forward
from traceq.recorder.toggles.settings import has_compiled
from traceq.recorder.tracing.line_samples import WorkerSamples

_COMPILED_END = 3
"""Steps in a row that begin and do not end: torch compiles what follows the first hook, so the other never runs."""


class Observer(Protocol):
    """What the replaced functions report to, besides phases; `is_learning`: the steps are not known yet."""

    is_learning: bool

    def fail(self, error: Exception) -> None:
        """End the recording, as the recorder raised this; must not raise."""

    def models_compiled(self) -> None:
        """Report that torch begins to compile, and that models are to be hooked again once it has."""

    def compiled(self, ns: int) -> None:
        """Report that torch has compiled for so long on the watched thread."""

    def batch_requested(self) -> None:
        """Report a batch of a thread that is not watched: there may never be a backward in a compiled step."""

    def batch_delivered(self, loader: DataLoader[Any] | None, batch: Any) -> None:
        """Report a batch while steps are learned, and the loader it came from where that is known."""

    def backward_began(self, tensors: Any) -> None:
        """Report a backward, on any thread, and what it begins with: the first one's thread is watched from here on."""

    def optimizer_made(self) -> None:
        """Report that an optimizer takes parameters, on any thread."""

    def optimizer_began(self) -> None:
        """Report that an optimizer begins its step, also before any backward: its closure may run the first."""

    def optimizer_left(self) -> None:
        """Report that the step of an optimizer ended without its hook: it raised, or its end is compiled."""

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Report that an optimizer has stepped, on any thread."""


class LoopHooks:
    """Replaced functions of this process, until they are removed; only what runs on `stack.thread` is a phase."""

    def __init__(self, observer: Observer, stack: PhaseStack, samples: WorkerSamples) -> None:
        self._observer, self._stack = observer, stack
        self.samples = samples
        self.has_entered_autocast = False
        self._is_graphing = False
        self._assumes_eager = False  # models were replaced before anything was compiled
        self._compilers: list[Callable[..., None]] = []
        self._compiling: tuple[int, int] | None = None  # the depth of the phase, and when it began
        self._optimizer_hooks: list[Any] = []
        self._restore: list[Callable[[], None]] = []
        self._methods: list[ReplacedMethods] = []
        self._inner: InnerCalls | None = None
        self._begin_optimizer = stack.phase("optimizer")
        self._begin_compiling = stack.phase("compiling", COMPILE)
        self._steps: dict[int, int | None] = {}  # of optimizers, by their id, that have begun: what `end` requires
        self._num_unended: Counter[int] = Counter()  # steps in a row without an end, by the optimizer's id
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
        self._replace(DataLoader, "__iter__", self._phase(DataLoader.__iter__, DATALOAD_WAIT, EPOCH))
        self._replace(Optimizer, "add_param_group", self._set_up(Optimizer.add_param_group))
        self._replace(Optimizer, "zero_grad", self._phase(Optimizer.zero_grad, "zero_grad"))
        self._replace(torch.nn.Module, "zero_grad", self._phase(torch.nn.Module.zero_grad, "zero_grad"))
        self._replace(torch.cuda, "make_graphed_callables", self._graphing(torch.cuda.make_graphed_callables))
        self._replace(torch, "save", self._phase(torch.save, "save", SAVE))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = self._phase(getattr(torch.nn.utils, name), "clip_grad")
            self._replace(torch.nn.utils, name, clip)
            self._replace(torch.nn.utils.clip_grad, name, clip)
        self._replace(torch, "compile", self._compiler(torch.compile))
        self._optimizer_hooks = [
            register_optimizer_step_pre_hook(self._guarded(self._before_step)),
            register_optimizer_step_post_hook(self._guarded(self._after_step)),
        ]

    def watch_autocast(self) -> None:
        """Note from here on whether the job enters a region of torch.autocast."""

        def before(*_: object) -> None:
            self.has_entered_autocast = True

        self._replace(torch.autocast, "__enter__", self._around(torch.autocast.__enter__, before))

    def hook_models(self, models: Sequence[torch.nn.Module]) -> None:
        """Replace the forward of models, of one without a forward that of the modules which its methods call.

        Frameworks put parts of the step into functions of theirs; those are phases, and no events.
        """
        self._assumes_eager = not has_compiled() and not compiled_modules(models)
        self.hook_forwards(replaceable(with_forward(models)))
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

        To be called behind `hook_models`, whose replaced methods are below these. Not where torch compiles: it would
        compile once more for every class of which a method is replaced.
        """
        if not self._assumes_eager:
            return
        self._inner = InnerCalls(with_forward(models), self._inner_forward)

    def take_inner(self) -> list[torch.nn.Module]:
        """Watch these modules no more; return those that each step calls, and replace their forward for good."""
        called = [] if self._inner is None else self._inner.take()
        self._inner = None
        self.hook_forwards(replaceable(called))
        return called

    def worker_pids(self, loader: Callable[[], DataLoader[Any] | None]) -> list[int]:
        """Return the living workers of a loader's iterators."""
        of_loader = loader()
        iterators = [each for each, get in list(self._loaders.items()) if of_loader is not None and get() is of_loader]
        workers = (worker for iterator in iterators for worker in getattr(iterator, "_workers", ()))
        return [worker.pid for worker in workers if worker.pid is not None and worker.is_alive()]

    def remove(self) -> None:
        """Restore everything that nobody else has replaced since.

        Where torch has compiled, its own functions stay replaced, and do nothing: it would compile those of them anew.
        """
        self._restore_models()
        self._compile_ended()
        if not has_compiled():
            while self._optimizer_hooks:
                self._optimizer_hooks.pop().remove()
            while self._restore:
                self._restore.pop()()
        self._loaders.clear()

    def _restore_models(self) -> None:
        if self._inner is not None:
            self._inner.take()
            self._inner = None
        while self._methods:
            self._methods.pop().restore()

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, function)

        def restore() -> None:
            if getattr(owner, name) is function:
                setattr(owner, name, original)

        self._restore.append(restore)

    def _around(
        self,
        function: Callable[..., Any],
        before: Begin,
        after: Callable[[int, tuple[Any, ...], Any], None] | None = None,
    ) -> Callable[..., Any]:
        """Return the function between calls of `before`, of its args and kwargs, and `after`, of that one's result.

        `after` gets the args and the result as well, None if the function raised; without it the phase ends that
        `before` began. Neither happens if `before` returned None. The recorder runs inside calls of the job here and in
        `_guarded` alone, and raises into neither.
        """
        end, fail = self._stack.end, self._observer.fail

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # Dynamo traces no further than the first half; the other, `TracingContext.try_get` without a call, is of
            # AOTAutograd, which computes gradients while it compiles
            if is_dynamo_compiling() or _TLS.__dict__.get("tracing_context") is not None:
                return function(*args, **kwargs)
            try:
                depth = before(args, kwargs)
            except Exception as error:  # noqa: BLE001 (any fault of the recorder ends the recording, not the job)
                fail(error)
                depth = None
            if depth is None:
                return function(*args, **kwargs)
            result = None
            try:
                result = function(*args, **kwargs)
            finally:
                try:
                    if after is None:
                        end(depth)
                    else:
                        after(depth, args, result)
                except Exception as error:  # noqa: BLE001 (see above)
                    fail(error)
            return result

        return call

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return a callback of torch that does nothing while torch compiles, and never raises."""
        fail = self._observer.fail

        def call(*args: Any) -> None:
            if is_dynamo_compiling():
                return
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 (see `_around`)
                fail(error)

        return call

    def _phase(self, function: Callable[..., Any], phase: str, event: str = "") -> Callable[..., Any]:
        return self._around(function, self._stack.phase(phase, event))

    def _set_up(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method by which every optimizer takes its parameters; the job is set up once it has.

        The first one imports what torch needs for it, for a second or more.
        """

        def after(*_: object) -> None:
            self._observer.optimizer_made()

        return self._around(function, lambda *_: 0, after)

    def _iterator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        loaders = self._loaders

        def after(_: int, args: tuple[Any, ...], __: Any) -> None:
            iterator, loader = args[:2]
            # an iterator may outlive its loader; but one with persistent workers is held by it, and would never go
            loaders[iterator] = ref(loader) if loader.persistent_workers else lambda: loader

        return self._around(function, lambda args, _: 0 if len(args) > 1 else None, after)

    def _batch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        observer, begin, end = self._observer, self._stack.phase(DATALOAD_WAIT, BATCH), self._stack.end

        def before(*_: object) -> int | None:
            if (depth := begin()) is None:
                observer.batch_requested()
                depth = begin()
            return depth

        def after(depth: int, args: tuple[Any, ...], batch: Any) -> None:
            end(depth)
            if batch is None:  # the loader is at its end, or raised
                return
            if observer.is_learning:
                loader = self._loaders.get(args[0])
                observer.batch_delivered(None if loader is None else loader(), batch)

        return self._around(function, before, after)

    def _backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        observer, begin = self._observer, self._stack.phase("backward", BACKWARD)

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
            observer.backward_began(args[0] if args else kwargs.get("tensors"))
            return begin()

        return self._around(function, before)

    def _gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of gradients that is a phase; a loop that has no other backward is watched from here on."""
        observer, begin = self._observer, self._stack.phase("autograd_grad")

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
            if self._stack.thread is None and not self._is_graphing:
                observer.backward_began(args[0] if args else kwargs.get("outputs"))
            return begin()

        return self._around(function, before)

    def _graphing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose gradients are no training: it captures parts of a model that may not exist yet."""

        def before(*_: object) -> int:
            self._is_graphing = True
            return 0

        def after(*_: object) -> None:
            self._is_graphing = False

        return self._around(function, before, after)

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward that is training if gradients are enabled: not all wrappers are in training mode."""
        return self._around(function, self._forward_phase())

    def _inner_forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a forward of a module inside a model that is one where it is outside of any forward or backward."""
        stack, begin = self._stack, self._forward_phase()

        def before(args: tuple[Any, ...], _: object) -> int | None:
            if stack.thread != get_ident() or stack.is_inside_model() or self._inner is None:
                return None
            self._inner.count(args[0])
            return begin()

        return self._around(function, before)

    def _forward_phase(self) -> Begin:
        training = self._stack.phase("forward", FORWARD)
        other = self._stack.phase("no_grad_forward", NO_GRAD_FORWARD)
        return lambda *_: training() if torch.is_grad_enabled() else other()

    def _compiler(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch.compile that lets what it compiles be watched, from its first call on."""

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            model = args[0] if args else kwargs.get("model")
            if isinstance(getattr(model, "__self__", model), torch.nn.Module):
                self._restore_eager()  # of which Dynamo would compile the replaced forward
            if not self._compilers:
                from torch._dynamo.callback import callback_handler  # torch.compile loads it now; nobody else needs it

                began, ended = self._guarded(self._compile_began), self._guarded(self._compile_ended)
                self._compilers += [callback_handler.register_start_callback(began)]
                self._compilers += [callback_handler.register_end_callback(ended)]
                skip_own_code()

        return self._around(function, before)

    def _restore_eager(self) -> None:
        """Restore what Dynamo would trace, if it was replaced while nothing was compiled."""
        if self._assumes_eager:
            self._assumes_eager = False
            self._restore_models()
            self._observer.models_compiled()

    def _compile_began(self, *_: object) -> None:
        self._restore_eager()
        if (depth := self._begin_compiling()) is not None:
            self._compiling = depth, perf_counter_ns()

    def _compile_ended(self, *_: object) -> None:
        if self._compiling is not None:
            (depth, since_ns), self._compiling = self._compiling, None
            self._stack.end(depth)
            self._observer.compiled(perf_counter_ns() - since_ns)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        number = id(optimizer)
        if number in self._steps and self._has_compiled_end(number):
            self._observer.optimizer_left()
            return
        if self._observer.is_learning:
            self._observer.optimizer_began()
        self._steps[number] = self._begin_optimizer()

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._end_step(id(optimizer))
        if self._num_unended:
            del self._num_unended[id(optimizer)]
        self._observer.optimizer_stepped(optimizer)

    def _has_compiled_end(self, number: int) -> bool:
        """End the last step of an optimizer, which raised, or has no end that is seen; return whether it never has."""
        self._end_step(number)
        self._num_unended[number] += 1
        if self._num_unended[number] < _COMPILED_END:
            return False
        self._steps[number] = None
        return True

    def _end_step(self, number: int) -> None:
        """End the phase of an optimizer's step, by its id, and those of steps inside it."""
        depth = self._steps.pop(number, None)
        if depth is not None:
            if self._steps:
                self._steps = {key: each for key, each in list(self._steps.items()) if each is None or each < depth}
            self._stack.end(depth)


ENGINE_METHODS = (
    ("LightningModule", "training_step", "forward"),
    ("DeepSpeedEngine", "backward", "backward"),
    ("DeepSpeedEngine", "step", "optimizer"),
)
"""Methods of models: base class, method, phase."""

_LIGHTNING = (
    (".trainer.call", "_call_callback_hooks", "callbacks"),
    (".trainer.call", "_call_lightning_module_hook", "module_hooks"),
    (".trainer.connectors.logger_connector", "_LoggerConnector.on_batch_end", "log"),
    (".trainer.connectors.logger_connector", "_LoggerConnector.update_train_step_metrics", "log"),
    (".strategies.strategy", "Strategy.batch_to_device", "h2d"),
    (".loops.training_epoch_loop", "_TrainingEpochLoop._broadcast_sigterm_tensor", "sigterm_broadcast"),
)
_FUNCTIONS = (
    ("torch.optim.lr_scheduler", "LRScheduler.step", "lr_scheduler"),
    ("accelerate.data_loader", "send_to_device", "h2d"),
    ("transformers.trainer_callback", "CallbackHandler.call_event", "callbacks"),
    ("transformers.trainer", "Trainer._prepare_inputs", "h2d"),
    ("transformers.trainer", "Trainer.floating_point_ops", "count_flops"),
    ("transformers.trainer", "Trainer._maybe_log_save_evaluate", "log"),
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", "optimizer"),
    ("keras.src.trainers.trainer", "Trainer.compute_metrics", "log"),
    ("keras.src.callbacks.callback_list", "CallbackList.on_train_batch_begin", "callbacks"),
    ("keras.src.callbacks.callback_list", "CallbackList.on_train_batch_end", "callbacks"),
    ("fastai.optimizer", "Optimizer.step", "optimizer"),
    ("fastai.optimizer", "Optimizer.zero_grad", "zero_grad"),
    ("fastai.learner", "Learner.__call__", "callbacks"),
    *((f"lightning.pytorch{module}", name, phase) for module, name, phase in _LIGHTNING),
    *((f"pytorch_lightning{module}", name, phase) for module, name, phase in _LIGHTNING),
)
"""Functions: module, name in it, phase; none of them is an event, so that no step begins in one."""


def imported_functions() -> Iterator[tuple[Any, str, str]]:
    """Yield (owner, name, phase) of the functions of all frameworks that are imported, and have them."""
    for module, path, phase in _FUNCTIONS:
        class_name, _, name = path.rpartition(".")
        owner = sys.modules.get(module)
        if class_name:
            owner = getattr(owner, class_name, None)
        if hasattr(owner, name):
            yield owner, name, phase


def owners(models: Sequence[Module], base: str) -> list[Module]:
    """Return the modules in the models whose class is, or is derived from, one of this name."""
    modules = (module for model in models for module in model.modules())
    return [module for module in modules if any(class_.__name__ == base for class_ in type(module).__mro__)]


_LEAST_CALLS = 4
"""Calls while steps are learned: what a loop calls more rarely is no part of its usual step."""


class InnerCalls:
    """Calls of the modules inside some models: each that is outside of any forward or backward is one, as of a model.

    A loss may hold the model and be given only what that computed; an agent has several networks; and some libraries
    wrap the model anew in each step. `forward` returns what replaces their forward, and calls `count` for such calls.
    """

    def __init__(self, models: Sequence[Module], forward: Replacement) -> None:
        self._num_calls: Counter[int] = Counter()  # by the module's id
        modules = _inner_modules(models)
        self._modules = {id(module): ref(module) for module in modules}  # the job may want to free them
        self._methods = ReplacedMethods(modules, forward)

    def count(self, module: Module) -> None:
        """Count a call."""
        self._num_calls[id(module)] += 1

    def take(self) -> list[Module]:
        """Count no more; return the modules that a usual step calls, and that still exist."""
        self._methods.restore()
        numbers = [number for number in self._modules if self._num_calls[number] >= _LEAST_CALLS]
        return [module for number in numbers if (module := self._modules[number]()) is not None]


def _inner_modules(models: Sequence[Module]) -> list[Module]:
    """Return the modules with parameters and a forward of their class inside the models, each once."""
    outermost = {id(model) for model in models}
    inner = dict.fromkeys(module for model in models for module in model.modules())
    return [module for module in inner if id(module) not in outermost and _is_watchable(module)]


def _is_watchable(module: Module) -> bool:
    attributes = vars(module)
    is_plain = "forward" not in attributes and not attributes.get("_compiled_call_impl")
    has_parameters = any(True for _ in module.parameters())
    return is_plain and has_parameters and has_forward(module) and not isinstance(module, torch.jit.ScriptModule)
