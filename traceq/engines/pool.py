"""A pool of processes on this machine, as many at a time as the memory holds."""

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

from traceq.engines.engine import Lost, Result

__all__ = ["Pool"]

_Args = tuple[Any, ...]


class Pool:
    """Processes that each work on one rank; a context manager, which leaves none behind.

    `budget` bytes for all of them together; what needs more than that runs alone.
    """

    def __init__(self, budget: int, num_processes: int | None = None) -> None:
        self._budget, self._num = budget, num_processes or num_cores()
        self._known = set(active_children())
        self._executor = self._started(self._num)

    def map(self, function: Callable[..., Any], arguments: Sequence[_Args], needs: Sequence[int]) -> Iterator[Result]:
        """(index, what the function says), as they come; Lost where the process died twice: with others, and alone."""
        waiting, running = list(range(len(arguments)))[::-1], dict[Future[Any], int]()
        while waiting or running:
            try:
                while waiting and self._has_room(needs, [*running.values(), waiting[-1]]):
                    running[self._submit(function, arguments[waiting[-1]])] = waiting[-1]
                    waiting.pop()
            except BrokenProcessPool:  # as those that run will say, too; where none does one died idle
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

    def _has_room(self, needs: Sequence[int], together: Sequence[int]) -> bool:
        if len(together) > self._num:
            return False
        return len(together) == 1 or sum(needs[at] for at in together) <= self._budget

    def _one_by_one(
        self, function: Callable[..., Any], arguments: Sequence[_Args], suspects: Sequence[int]
    ) -> Iterator[Result]:
        """Of those that ran when a process died, only the one to blame dies again."""
        for at in suspects:
            try:
                yield at, self._submit(function, arguments[at]).result()
            except BrokenProcessPool:
                self._restart()
                yield at, Lost()

    def _submit(self, function: Callable[..., Any], arguments: _Args) -> Future[Any]:
        with _uninterrupted():
            return self._executor.submit(function, *arguments)

    def _restart(self) -> None:
        self._kill()
        self._executor.shutdown(cancel_futures=True)
        self._executor = self._started(self._num)

    def _started(self, num: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(num, mp_context=get_context("spawn"), initializer=_begin)

    def _kill(self) -> None:
        for child in set(active_children()) - self._known:
            child.kill()


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interrupt waits until processes have started; they inherit that they hear none, from their first instruction
    on. A mask alone would not do: threads of numpy's hear it for all.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if heard:
        raise KeyboardInterrupt


def _begin() -> None:
    """In each process: an interrupt is the parent's to handle, and without a parent there is nobody to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)
