"""Process that answers calls of tools: one that takes too much time or memory ends it, and not the server."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from traceq.agent_tools.limits import MOST_CALL_S, MOST_SHARE
from traceq.cores import memory_bytes
from traceq.errors import TraceqError

Answering = Callable[[], Callable[[str, Mapping[str, Any]], dict[str, object]]]
"""Function of a module that makes, in the process, what answers a call by name and arguments, or raises TraceqError."""


class Worker:
    """Process that is started with the first call, and again after it was ended; calls are made one by one."""

    def __init__(
        self, answering: Answering, *, most_s: float = MOST_CALL_S, most_bytes: int = memory_bytes() // MOST_SHARE
    ) -> None:
        self._answering, self._most_s, self._most_bytes = answering, most_s, most_bytes
        self._one_by_one, self._is_over = threading.Lock(), False
        self._process: Any = None
        self._connection: Any = None

    def ask(self, name: str, arguments: Mapping[str, Any]) -> dict[str, object]:
        """Return the answer of a tool. Raises TraceqError, also for a call that took too much time or memory."""
        document: dict[str, object] | None = None
        with self._one_by_one:
            connection = self._started()
            try:
                connection.send((name, arguments))
                if connection.poll(self._most_s):
                    document, fault = connection.recv()
                else:
                    fault = f"{name}: stopped after {self._most_s:g} s; ask for less"
                    self._end()
            except (EOFError, OSError):  # it has ended
                fault = f"{name}: ended, as if by more than {self._most_bytes >> 20} MB of memory; ask for less"
                self._end()
        if document is None:
            raise TraceqError(fault)
        return document

    @property
    def process_id(self) -> int:
        """The id of the process, 0 before the first call."""
        return self._process.pid if self._process is not None else 0

    def close(self) -> None:
        """End the process, and with it a call that is being answered."""
        self._is_over = True
        self._end()

    def _started(self) -> Any:
        if self._is_over:
            raise TraceqError("the server has ended")
        if self._process is None or not self._process.is_alive():
            context = get_context("spawn")  # a fork of a program with threads may hang
            self._connection, theirs = context.Pipe()
            arguments = (theirs, self._answering, self._most_bytes)
            self._process = context.Process(target=_answer_calls, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        return self._connection

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _answer_calls(connection: Connection, answering: Answering, most_bytes: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's end is this one's, too
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # stdout is the server's
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _limit_memory(most_bytes)
    answer = answering()
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((answer(name, arguments), None))
        except TraceqError as fault:
            connection.send((None, str(fault)))
        except MemoryError:  # what is in memory stays there
            return
        except Exception as fault:  # noqa: BLE001 (a fault of ours, whose end would be taken for one of memory)
            connection.send((None, f"{name}: {type(fault).__name__}: {fault}"))


def _limit_memory(most_bytes: int) -> None:
    """Let allocations beyond so many bytes fail, where the system has such a limit: Linux."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes if most < 0 else min(most_bytes, most), most))


def _exit_with_parent() -> None:
    if (parent := parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)
