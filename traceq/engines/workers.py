"""Engines that work on many ranks at once: a pool of processes on this machine, a cluster of dask workers.

The pool runs as many processes at a time as fit into memory; a worker of the cluster reads ranks from shared storage.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any

from traceq.cores import num_cores
from traceq.engines.cache import sources
from traceq.engines.process_tuning import keep_freed_memory
from traceq.engines.rank_reader import Lost, Result
from traceq.errors import TraceqError

_PATIENCE_S = 10


class Cluster:
    """Workers of a dask scheduler; a context manager. Raises TraceqError without workers that run the same traceq.

    The tasks of a worker that dies are started again on another one, as often as the scheduler allows.
    """

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise TraceqError("--cluster needs the package distributed: pip install 'traceq-torch[cluster]'") from None
        try:
            self._client = Client(address, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as fault:
            raise TraceqError(f"--cluster {address}: no dask scheduler answers: {fault}") from None
        try:
            self._check(address)
        except BaseException:
            self._client.close()
            raise

    def map(
        self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], needs: Sequence[int]
    ) -> Iterator[Result]:
        """Yield (index, result of the function) as they complete; Lost for tasks that killed several workers.

        Tasks that ran when a worker died are repeated one at a time, as any of them may be the cause.
        """
        suspects = []
        for index, result in self._all(function, list(enumerate(arguments))):
            if isinstance(result, Lost):
                suspects.append(index)
            else:
                yield index, result
        for index in suspects:
            yield from self._all(function, [(index, arguments[index])])

    def _all(self, function: Callable[..., Any], arguments: Sequence[tuple[int, tuple[Any, ...]]]) -> Iterator[Result]:
        from distributed import KilledWorker, as_completed

        indices = {self._client.submit(function, *of_task, pure=False): index for index, of_task in arguments}
        for future in as_completed(list(indices), loop=self._client.loop):
            try:
                result = future.result()
            except KilledWorker:
                result = Lost()
            yield indices.pop(future), result

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def _check(self, address: str) -> None:
        """Raise TraceqError unless all workers run the same sources as this process."""

        def worker_version() -> str:  # nested functions are sent by value: a worker without traceq can run this one
            try:
                from traceq.engines.cache import sources
            except ImportError:
                return ""
            return sources()

        try:
            self._client.wait_for_workers(1, timeout=_PATIENCE_S)
        except TimeoutError:
            raise TraceqError(f"--cluster {address}: the scheduler has no workers") from None
        workers: dict[str, str] = self._client.run(worker_version)
        for worker, version in workers.items():
            if version != sources():
                actual = f"traceq {version}" if version else "no traceq that reads ranks"
                raise TraceqError(f"--cluster {address}: worker {worker} has {actual}; expected {sources()}, as here")


_Args = tuple[Any, ...]

_KEPT_BYTES = 256 << 20
"""Freed memory that a worker keeps for its next rank: of 40 MB of JSON a tenth of its CPU time, at the same peak."""


class Pool:
    """Processes that each work on one rank at a time; a context manager, which ends all of them.

    `budget` bytes are the limit for all of them together; a task that needs more runs alone.
    """

    def __init__(self, budget: int, num_processes: int | None = None) -> None:
        self._budget, self._num = budget, num_processes or num_cores()
        self._other_children = set(active_children())
        self._executor = self._new_executor(self._num)

    def map(self, function: Callable[..., Any], arguments: Sequence[_Args], needs: Sequence[int]) -> Iterator[Result]:
        """Yield (index, result of the function) as they complete; Lost where the process died twice, then alone."""
        waiting, running = list(range(len(arguments)))[::-1], dict[Future[Any], int]()
        while waiting or running:
            try:
                while waiting and self._fits(needs, [*running.values(), waiting[-1]]):
                    running[self._submit(function, arguments[waiting[-1]])] = waiting[-1]
                    waiting.pop()
            except BrokenProcessPool:  # raised by the running tasks, too; if there are none an idle process died
                if not running:
                    self._restart()
                    continue
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                suspects = list(running.values())
                self._restart()
                yield from self._one_by_one(function, arguments, suspects)
                running.clear()
                continue
            for future in done:
                yield running.pop(future), future.result()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._kill()
        self._executor.shutdown(cancel_futures=True)

    def _fits(self, needs: Sequence[int], together: Sequence[int]) -> bool:
        if len(together) > self._num:
            return False
        return len(together) == 1 or sum(needs[index] for index in together) <= self._budget

    def _one_by_one(
        self, function: Callable[..., Any], arguments: Sequence[_Args], suspects: Sequence[int]
    ) -> Iterator[Result]:
        """Repeat the tasks that ran when a process died, one at a time: only the cause dies again."""
        for index in suspects:
            try:
                yield index, self._submit(function, arguments[index]).result()
            except BrokenProcessPool:
                self._restart()
                yield index, Lost()

    def _submit(self, function: Callable[..., Any], arguments: _Args) -> Future[Any]:
        with _deferred_interrupts():
            return self._executor.submit(function, *arguments)

    def _restart(self) -> None:
        self._kill()
        self._executor.shutdown(cancel_futures=True)
        self._executor = self._new_executor(self._num)

    def _new_executor(self, num: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(num, mp_context=get_context("spawn"), initializer=_initialize_worker)

    def _kill(self) -> None:
        for child in set(active_children()) - self._other_children:
            child.kill()


@contextmanager
def _deferred_interrupts() -> Iterator[None]:
    """Defer SIGINT until processes have started, which inherit a blocked SIGINT from their first instruction on.

    Blocking alone is not enough, as NumPy's threads can still receive SIGINT.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if received:
        raise KeyboardInterrupt


def _initialize_worker() -> None:
    """Prepare a worker process: ignore SIGINT, which the parent handles, and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory(_KEPT_BYTES)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)
