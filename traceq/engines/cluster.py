"""A cluster of dask workers, each of which reads its own ranks from storage that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from traceq.engines.engine import Lost, Result
from traceq.engines.source_digest import sources
from traceq.errors import TraceqError

__all__ = ["Cluster"]

_PATIENCE_S = 10


class Cluster:
    """The workers of a scheduler; a context manager. Raises TraceqError where none answers, or another traceq does.

    What a worker has not finished when it dies another one begins anew, as often as the scheduler allows.
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
        """(index, what the function says), as they come; Lost where worker after worker died of it: with others, which
        are then suspect too, and alone.
        """
        suspects = []
        for at, result in self._all(function, list(enumerate(arguments))):
            if isinstance(result, Lost):
                suspects.append(at)
            else:
                yield at, result
        for at in suspects:
            yield from self._all(function, [(at, arguments[at])])

    def _all(self, function: Callable[..., Any], arguments: Sequence[tuple[int, tuple[Any, ...]]]) -> Iterator[Result]:
        from distributed import KilledWorker, as_completed

        index = {self._client.submit(function, *own, pure=False): at for at, own in arguments}
        for future in as_completed(list(index), loop=self._client.loop):
            try:
                result = future.result()
            except KilledWorker:
                result = Lost()
            yield index.pop(future), result

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def _check(self, address: str) -> None:
        """All workers run the sources that run here."""

        def told() -> str:  # a function within one goes by value: a worker without traceq can run it
            try:
                from traceq.engines.source_digest import sources
            except ImportError:
                return ""
            return sources()

        try:
            self._client.wait_for_workers(1, timeout=_PATIENCE_S)
        except TimeoutError:
            raise TraceqError(f"--cluster {address}: the scheduler has no workers") from None
        workers: dict[str, str] = self._client.run(told)
        for worker, version in workers.items():
            if version != sources():
                found = f"traceq {version}" if version else "no traceq that reads ranks"
                raise TraceqError(f"--cluster {address}: worker {worker} has {found}; expected {sources()}, as here")
