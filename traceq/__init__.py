"""What does a change cost per training step, on every rank, and why?

>>> import traceq
>>> run = traceq.read("traceq-runs/outlier_ab-1/on")
>>> traceq.analyze(run, "syncs")
>>> traceq.diff("a.json.gz", "b.json.gz")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceq.analysis.registry import analyze
    from traceq.compare.diff import diff
    from traceq.recorder.session import record
    from traceq.runs.read import read

__version__ = "0.1.0"
__all__ = ["__version__", "analyze", "diff", "read", "record"]

_HOMES = {
    "analyze": "traceq.analysis.registry",
    "diff": "traceq.compare.diff",
    "read": "traceq.runs.read",
    "record": "traceq.recorder.session",
}


def __getattr__(name: str) -> Any:
    """Import the part that is asked for, so that reading a trace never imports torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return getattr(home, name)
