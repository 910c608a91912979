"""Renderers by name: those of traceq, listed here and imported when one is used, and those of plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TextIO

from traceq.claims.claim import Claim
from traceq.entry_points import RENDERERS, find_plugins
from traceq.errors import UsageFault

if TYPE_CHECKING:
    from traceq.compare.result import Diff, Diffs
    from traceq.display import RenderOptions
    from traceq.frames import Frame
    from traceq.model import Run
    from traceq.report import Sheet

__all__ = ["Exporter", "Renderer", "export_suffix", "find_renderer", "renders"]


class Renderer(Protocol):
    """A form of results, as text: a module, or an object, with one or both of these functions."""

    def write_sheet(self, sheet: Sheet, file: TextIO, options: RenderOptions, /) -> None:
        """Write the reports on a run: `traceq show PATH --to NAME`."""

    def write_diffs(self, diffs: Diffs, file: TextIO, options: RenderOptions, /) -> None:
        """Write a comparison: `traceq diff A B --to NAME`."""


class Exporter(Protocol):
    """A form of whole runs, as files: a module, or an object, with one or more of these functions.

    An attribute `SUFFIX`, like ".csv", ends the name of the file or folder that `traceq export` suggests.
    """

    def write_run(self, run: Run, findings: Sequence[Claim], file: BinaryIO, /) -> None:
        """Write a run as one file: `traceq export PATH --to NAME`."""

    def write_pair(self, a: Run, b: Run, diff: Diff, file: BinaryIO, /) -> None:
        """Write two runs as one file: `traceq export A B --to NAME`."""

    def write_tables(self, frames: Iterable[Frame], folder: Path, /) -> None:
        """Write the tables of a run into a folder: `traceq export PATH --to NAME`."""


_BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "text": {
        "sheet": "one_screen:write_sheet",
        "report": "text:write_report",
        "table": "text:write_table",
        "caveats": "text:write_caveats",
        "diffs": "diff_text:write_diffs",
        "history": "history_text:write_history",
    },
    "json": {"sheet": "json:write_sheet", "diffs": "diff_json:write_diffs", "checks": "checks:write_checks"},
    "junit": {"checks": "checks:write_junit"},
    "markdown": {"sheet": "markdown:write_sheet", "diffs": "markdown:write_diffs"},
    "html": {
        "sheet": "html.show:write_sheet",
        "diffs": "html.diff:write_diffs",
        "history": "html.history:write_history",
    },
    "notebook": {
        "sheet": "notebook:write_sheet",
        "report": "notebook:write_report",
        "table": "notebook:write_table",
        "diffs": "notebook:write_diffs",
    },
    "parquet": {"tables": "parquet:write_parquet"},
    "perfetto": {"run": "perfetto.exports:write_perfetto", "pair": "perfetto.exports:write_pair"},
}
"""Name of a renderer -> kind of result -> module and function that writes it."""

_SUFFIXES = {"parquet": ".parquet", "perfetto": ".pftrace.gz"}

_KINDS = {"sheet": "reports", "diffs": "comparisons", "run": "runs", "tables": "runs", "pair": "pairs of runs"}
"""Kinds of results that a user chooses a renderer for, as a message calls them."""


def find_renderer(name: str, kind: str) -> Callable[..., None]:
    """Return the function with which a renderer writes one kind of result. Raises UsageFault."""
    if path := _BUILT_IN.get(name, {}).get(kind):
        module, _, function = path.partition(":")
        writer: Callable[..., None] = getattr(import_module(f"{__name__}.{module}"), function)
        return writer
    if renders(name, kind):
        plugin = find_plugins(RENDERERS)[name]
        return plugin.guarded(getattr(plugin.load(), f"write_{kind}"))
    raise UsageFault(f"no renderer {name!r} for {_KINDS.get(kind, kind)}; choose from {', '.join(_names(kind))}")


def renders(name: str, kind: str) -> bool:
    """Return whether there is a renderer of that name that writes this kind of result."""
    if name in _BUILT_IN:
        return kind in _BUILT_IN[name]
    plugin = find_plugins(RENDERERS).get(name)
    return plugin is not None and hasattr(plugin.load(), f"write_{kind}")


def export_suffix(name: str) -> str:
    """Return what ends the name of a file or folder that a renderer writes."""
    plugin = find_plugins(RENDERERS).get(name) if name not in _BUILT_IN else None
    return str(getattr(plugin.load(), "SUFFIX", f".{name}")) if plugin else _SUFFIXES.get(name, f".{name}")


def _names(kind: str) -> list[str]:
    """Return the renderers to choose from: those of traceq that write such results, and all plugins."""
    kinds = {other for other, label in _KINDS.items() if label == _KINDS.get(kind)} or {kind}
    return [*(name for name, writers in _BUILT_IN.items() if kinds & writers.keys()), *find_plugins(RENDERERS)]
