"""Cluster of dask workers, each of which reads some of the ranks from shared storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from traceq.engines.cache import sources
from traceq.engines.engine import Lost, Result
from traceq.errors import TraceqError

__all__ = ["Cluster"]

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
