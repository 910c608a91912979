"""Entry points by which other packages extend traceq; a fault in one names its package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ParamSpec, TypeVar

from traceq.errors import TraceqError
from traceq.frozen import frozen

ANALYSES, RECIPES, RENDERERS = "traceq.analyses", "traceq.recipes", "traceq.renderers"
TOGGLES = "traceq.toggles"

P = ParamSpec("P")
T = TypeVar("T")


@frozen
class Plugin:
    """One entry point of another package."""

    point: EntryPoint

    @property
    def package(self) -> str:
        """Name and version of the package, like `toy 1.0`; the module where it has no name."""
        return f"{self.point.dist.name} {self.point.dist.version}" if self.point.dist else self.point.module

    def load(self) -> Any:
        """Import what the entry point refers to. Raises TraceqError with the package's name."""
        with self._blamed():
            return self.point.load()

    def fault(self, text: str) -> TraceqError:
        """Return a fault that names the package, in one line."""
        return TraceqError(f"plugin {self.package}: {self.point.group} {self.point.name}: {text}")

    def guarded(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function with its exceptions turned into a TraceqError that names the package."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with self._blamed():
                return function(*args, **kwargs)

        return call

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except (TraceqError, BrokenPipeError, MemoryError):  # not faults of the plugin
            raise
        except Exception as fault:
            lines = str(fault).splitlines() or [""]
            raise self.fault(f"{type(fault).__name__}: {lines[0]}") from fault


@cache
def find_plugins(group: str) -> dict[str, Plugin]:
    """Return the plugins of a group by name, without importing them; of two with one name the first on sys.path."""
    plugins: dict[str, Plugin] = {}
    for point in entry_points(group=group):
        plugins.setdefault(point.name, Plugin(point))
    return plugins


def import_or_fault(module: str, package: str = "") -> Any:
    """Return an imported module. Raises TraceqError that says how to install its package, else of the same name."""
    try:
        return import_module(module)
    except ImportError:
        package = package or module
        raise TraceqError(f"{package} is not installed: pip install {package}") from None
