"""Python lines that are sampled: those of a data loader's workers, and of the loop's thread while a step lasts long.

Workers are sampled once the job's steps are profiled. One that is forked gets a thread that sleeps in a read of a pipe,
at no cost, until the training process writes a byte for it; then it samples the worker's stack for one to three
seconds, writes a file and ends. Nothing is done to workers that are spawned: their `worker_init_fn` is pickled, and
stays the job's own.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread, get_ident
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch

from traceq.locations import Most, read_whole
from traceq.recorder.rank.rank_state import LoaderWorkers
from traceq.recorder.rank.wall_account import WallAccount
from traceq.recorder.tracing.line_marks import frames_from, function_name, is_own_code, is_user_code
from traceq.short_texts import without_module

_LEAST_S, _MOST_S, _PERIOD_S = 1.0, 3.0, 0.01
_ENOUGH = 50
"""Samples after which a worker ends its sampling, once it took the least time."""
_WRITTEN_WITHIN_S = 6.0
_SUFFIX = ".samples.json"


class WorkerSamples:
    """Samples of the workers of this process's data loaders, which they write into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipes: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        self._started: list[Any] = []  # processes

    @contextmanager
    def sampled_workers(self, iterator: Any, loader: DataLoader[Any]) -> Iterator[None]:
        """Let the workers that an iterator of the loader forks in this block be sampled later; it raises nothing."""
        pipe, of_job = None, None
        with suppress(Exception):
            of_job = loader.worker_init_fn
            if loader.num_workers > 0 and _forks(loader):
                pipe = os.pipe()
                loader.worker_init_fn = _SampledInit(of_job, self._folder, pipe[0])
        try:
            yield
        finally:
            if pipe is not None:
                with suppress(Exception):
                    loader.worker_init_fn = of_job
                    finalize(iterator, _close, *pipe).atexit = False
                    self._pipes[iterator] = (pipe[1], loader.num_workers)

    def of_forked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the `__init__` of an iterator that forks workers, with which they can be sampled later."""

        @functools.wraps(function)
        def call(iterator: Any, loader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
            with self.sampled_workers(iterator, loader):
                return function(iterator, loader, *args, **kwargs)

        return call

    def start(self) -> None:
        """Let all living workers begin to sample; each does so once."""
        for iterator in list(self._pipes):
            descriptor, num_workers = self._pipes.pop(iterator)
            with suppress(OSError):
                os.write(descriptor, bytes(num_workers))
                self._started += getattr(iterator, "_workers", ())

    def take(self) -> Counter[str]:
        """Return how often each line was met in the workers, as far as they live and write it in time."""
        deadline = time.monotonic() + _WRITTEN_WITHIN_S
        with suppress(Exception):
            while any(map(self._is_sampling, self._started)) and time.monotonic() < deadline:
                time.sleep(_PERIOD_S)
        counts: Counter[str] = Counter()
        for worker in self._started:
            with suppress(OSError, ValueError):
                counts.update(json.loads(read_whole(_file(self._folder, worker.pid), Most.STATUS)))
        return counts

    def _is_sampling(self, worker: Any) -> bool:
        return bool(worker.is_alive()) and not _file(self._folder, worker.pid).is_file()


@contextmanager
def forked_workers() -> Iterator[LoaderWorkers]:
    """Yield the workers that data loaders of this process fork in the block."""
    iterator: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    original = iterator.__init__
    with TemporaryDirectory(prefix="traceq-") as folder:
        samples = WorkerSamples(Path(folder))
        replaced = iterator.__init__ = samples.of_forked(original)
        try:
            yield LoaderWorkers(sample=samples.start, lines=samples.take)
        finally:
            if iterator.__init__ is replaced:
                iterator.__init__ = original


class _SampledInit:
    """A `worker_init_fn` that starts the thread, then calls the job's own."""

    def __init__(self, of_job: Callable[[int], None] | None, folder: Path, descriptor: int) -> None:
        self._of_job = of_job
        self._folder = folder
        self._descriptor = descriptor

    def __call__(self, worker_id: int) -> None:
        with suppress(Exception):
            arguments = (self._folder, self._descriptor, threading.get_ident())
            threading.Thread(target=_sample, args=arguments, name="traceq-samples", daemon=True).start()
        if self._of_job is not None:
            self._of_job(worker_id)


def _sample(folder: Path, descriptor: int, thread: int) -> None:
    """Wait for a byte, then count the lines of a thread's stack for one to three seconds, and write them."""
    with suppress(Exception):
        if not os.read(descriptor, 1):
            return
        counts: Counter[str] = Counter()
        begin = time.monotonic()
        while (past := time.monotonic() - begin) < _LEAST_S or (past < _MOST_S and counts.total() < _ENOUGH):
            time.sleep(_PERIOD_S)
            if line := line_of(sys._current_frames().get(thread)):
                counts[line] += 1
        part = folder / f"{os.getpid()}.part"
        part.write_text(json.dumps(counts))
        part.rename(_file(folder, os.getpid()))


def _file(folder: Path, pid: int) -> Path:
    return folder / f"{pid}{_SUFFIX}"


def line_of(frame: FrameType | None) -> str:
    """Return `file.py:17 __getitem__` of the innermost user frame while a batch is made; "" while the worker rests.

    Where only libraries run, it is the frame that torch calls: the dataset's, or the collate function's.
    """
    innermost, called = "", ""
    for each in frames_from(frame):
        code = each.f_code
        if code.co_filename == fetch.__file__:
            return innermost or called
        called = f"{Path(code.co_filename).name}:{each.f_lineno} {function_name(code).rpartition('.')[2]}"
        if not innermost and is_user_code(code.co_filename):
            innermost = called
    return ""


def _forks(loader: DataLoader[Any]) -> bool:
    context = loader.multiprocessing_context or multiprocessing
    return bool(context.get_start_method() == "fork")


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


_LONG = 1.25
"""Multiple of a usual step from which one is sampled."""

_Places = list[tuple[CodeType, int]]


class StepSamples:
    """A thread that samples another one. While steps take as long as usual it sleeps, at least 10 ms.

    Lines are where the work departs from the loop: below the frames that run where a step begins, in the job's own
    files if it comes to them, else in the library that does it.
    """

    def __init__(self, account: WallAccount) -> None:
        """Sample the calling thread, where a step begins; the account of its steps learns the lines."""
        self._account = account
        account.take_lines = self.take
        self._thread = get_ident()
        self._loop = _places(sys._getframe())
        self._departed_ns = 0  # when the step began that last went over to other work
        self._sampled_ns = 0  # when the step began of which the lines are
        self._lines: Counter[str] = Counter()
        self._stopped = Event()
        Thread(target=self._run, name="traceq-step-samples", daemon=True).start()

    def depart(self) -> None:
        """Note, on the thread that is sampled, that the step goes over to other work: what was met before is usual."""
        if self._departed_ns != self._account.at_ns:
            self._departed_ns = self._sampled_ns = self._account.at_ns
            self._lines = Counter([line] if (line := self._line(sys._getframe())) else [])

    def take(self, began_ns: int) -> Counter[str]:
        """Return how often each line was met in the step that began then."""
        return self._lines if self._sampled_ns == began_ns else Counter()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(max(_PERIOD_S, self._rest_ns() * 1e-9)):
            began_ns = self._account.at_ns
            if self._account.is_running and self._rest_ns() <= 0:
                if self._sampled_ns != began_ns:
                    self._sampled_ns, self._lines = began_ns, Counter()
                frame = sys._current_frames().get(self._thread)
                if line := self._line(frame):
                    self._lines[line] += 1
                del frame  # it would keep what its locals hold

    def _rest_ns(self) -> float:
        """Return how long the step that runs, if any, is none that is to be sampled."""
        began_ns = self._account.at_ns
        usual_ns = 0 if self._departed_ns == began_ns else self._account.usual_ns
        return began_ns + _LONG * usual_ns - perf_counter_ns() if self._account.is_running else 0.0

    def _line(self, frame: FrameType | None) -> str:
        """Return `file.py:17 function` of a stack; "" where it has only the loop's frames, and none of the user's."""
        places = [place for place in _places(frame) if is_user_code(place[0].co_filename)]
        loop = [place for place in self._loop if is_user_code(place[0].co_filename)]
        num_common = next((i for i, pair in enumerate(zip(places, loop, strict=False)) if pair[0] != pair[1]), None)
        departed = places[num_common:] if num_common is not None else places[min(len(loop), len(places)) :]
        of_job = [place for place in departed if is_own_code(place[0].co_filename)]
        chosen = of_job[-1:] or departed[:1] or places[-1:]
        lines = (f"{Path(code.co_filename).name}:{line} {function_name(code)}" for code, line in chosen)
        return "".join(map(without_module, lines))


def _places(frame: FrameType | None) -> _Places:
    """Return code and line of a frame and of those around it, outermost first."""
    return [(each.f_code, each.f_lineno) for each in frames_from(frame)][::-1]
