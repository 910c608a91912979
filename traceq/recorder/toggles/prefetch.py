"""The next batch of a loader without workers, made on a thread while the step runs: off or on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import Job

CANDIDATES = ("on",)
_NUM_CHECKED = 8
"""Batches of which it is seen, before any is made ahead, that they draw no random numbers that the job shares."""
_DRAWS = "the loader's batches draw random numbers, which the job shares: others would follow"


class _Batch:
    """A batch that a thread makes, or the exception that it raised."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._is_made = Event()
        self._error: BaseException | None = None
        self._batch: Any = None

    def run(self) -> None:
        make, self._make = self._make, None  # it holds the iterator by which others find this
        assert make is not None
        try:
            self._batch = make()
        except BaseException as error:  # noqa: BLE001 (raised where the job takes the batch: StopIteration, too)
            self._error = error
        del make
        self._is_made.set()

    def take(self) -> Any:
        self._is_made.wait()
        if self._error is not None:
            raise self._error
        return self._batch


class PrefetchToggle:
    """The method that makes a batch, for all iterators over the loader's data set.

    Batches come in the same order, with the same random numbers, and exceptions where the job would meet them. A batch
    that was begun is delivered also once this is off or restored. `no_effect` is why none is made ahead.
    """

    changes_ops = False

    def __init__(self, loader: DataLoader[Any], values: Sequence[str]) -> None:
        self.no_effect = ""
        self._dataset: Any = loader.dataset
        self._values = values
        self._is_on = False
        self._num_checked = 0
        self._begun: WeakKeyDictionary[Any, _Batch] = WeakKeyDictionary()
        self._queue: SimpleQueue[_Batch | None] = SimpleQueue()
        self._next_data = _SingleProcessDataLoaderIter._next_data
        _SingleProcessDataLoaderIter._next_data = self._replaced(self._next_data)  # type: ignore[method-assign]
        Thread(target=_make_batches, args=(self._queue,), name="traceq-prefetch", daemon=True).start()

    def apply(self, number: int) -> None:
        """Make the batches after the next one ahead, or each when it is asked for."""
        self._is_on = self._values[number] == "on"

    def fault(self, number: int) -> str:
        """Return that batches are made otherwise than the n-th value says."""
        is_on = self._values[number] == "on"
        return "" if is_on == self._is_on else f"batches are{'' if self._is_on else ' not'} made ahead"

    def restore(self) -> None:
        """Make no more batches ahead, and deliver those that were begun."""
        _SingleProcessDataLoaderIter._next_data = self._next_data  # type: ignore[method-assign]
        self._queue.put(None)
        for iterator, batch in list(self._begun.items()):
            _deliver_first(iterator, batch)
        self._begun.clear()
        self._dataset = None  # the job may want to free it

    def _replaced(self, next_data: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(iterator: Any) -> Any:
            if iterator._dataset is not self._dataset:
                return next_data(iterator)
            begun = self._begun.pop(iterator, None)
            batch = begun.take() if begun is not None else self._checked(iterator, next_data)
            is_known = self._num_checked >= _NUM_CHECKED and not self.no_effect
            if self._is_on and is_known and not torch.is_inference_mode_enabled():
                self._begin(iterator, next_data)
            return batch

        return call

    def _checked(self, iterator: Any, next_data: Callable[[Any], Any]) -> Any:
        """Make a batch here, and note whether it draws random numbers; a sampler may do so before the first of all."""
        if self._num_checked >= _NUM_CHECKED or not iterator._num_yielded:
            return next_data(iterator)
        before = _random_state()
        batch = next_data(iterator)
        self._num_checked += 1
        if _random_state() != before:
            self.no_effect = _DRAWS
        return batch

    def _begin(self, iterator: Any, next_data: Callable[[Any], Any]) -> None:
        has_gradients = torch.is_grad_enabled()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

        def make() -> Any:
            with torch.set_grad_enabled(has_gradients), nullcontext() if device is None else torch.cuda.device(device):
                return next_data(iterator)

        self._begun[iterator] = batch = _Batch(make)
        self._queue.put(batch)


def create(job: Job, values: Sequence[str]) -> PrefetchToggle:
    """Return the toggle; UsageFault unless the job's batches come from a loader without workers."""
    if job.loader is None or job.loader.num_workers:
        raise UsageFault("the batches come from no DataLoader with num_workers=0")
    if torch._C._len_torch_function_stack():
        raise UsageFault("not possible with a default device, which holds for one thread alone")
    return PrefetchToggle(job.loader, values)


def _make_batches(queue: SimpleQueue[_Batch | None]) -> None:
    while (batch := queue.get()) is not None:
        batch.run()
        del batch


def _deliver_first(iterator: Any, batch: _Batch) -> None:
    """Let an iterator deliver a batch before those that it makes itself."""

    def deliver() -> Any:
        del iterator.__dict__["_next_data"]
        return batch.take()

    iterator.__dict__["_next_data"] = deliver


def _random_state() -> tuple[Any, ...]:
    """Return the states of the generators that all code of a process shares: those of torch, Python and NumPy."""
    of_numpy: Any = np.random.get_state(legacy=False)
    keys, *rest = of_numpy.pop("state").values()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), keys.tobytes(), *rest, *of_numpy.values()
