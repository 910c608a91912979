"""What does a change cost per training step, on every rank, and why?

>>> import traceq
>>> run = traceq.read("fixtures/outlier_ab/on")
>>> run
<Run fixtures/outlier_ab/on: arm on, ranks 0-1, 41,514 events>
>>> traceq.analyze(run, "syncs")
<Report syncs: 0 findings; tables: syncs, syncs_steps>

`read` reads a trace, a folder of rank traces or a recorded run; `analyze` and `diff` answer the questions of
`traceq show` and `traceq diff` about it; `analyses` lists what can be asked; `record` records a training loop,
`watch` times one for as long as it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceq.compare.result import Cause, Diff, Diffs
    from traceq.errors import GateTripped, RecordingFailed, TraceqError, Unanswerable, UnreadableInput, UsageFault
    from traceq.library import analyses, analyze, diff
    from traceq.model import Run, Trace
    from traceq.recorder.user_loop import record
    from traceq.recorder.watched_loop import watch
    from traceq.report import Report, Sheet, Table
    from traceq.runs.read import read
    from traceq.stats import Verdict

__version__ = "1.0.0rc1"
__all__ = [
    "Cause",
    "Diff",
    "Diffs",
    "GateTripped",
    "RecordingFailed",
    "Report",
    "Run",
    "Sheet",
    "Table",
    "Trace",
    "TraceqError",
    "Unanswerable",
    "UnreadableInput",
    "UsageFault",
    "Verdict",
    "__version__",
    "analyses",
    "analyze",
    "diff",
    "read",
    "record",
    "watch",
]

_HOMES = {
    "analyses": "library",
    "analyze": "library",
    "diff": "library",
    "read": "runs.read",
    "record": "recorder.user_loop",
    "watch": "recorder.watched_loop",
    "Cause": "compare.result",
    "Diff": "compare.result",
    "Diffs": "compare.result",
    "Report": "report",
    "Sheet": "report",
    "Table": "report",
    "Run": "model",
    "Trace": "model",
    "Verdict": "stats",
    "GateTripped": "errors",
    "RecordingFailed": "errors",
    "TraceqError": "errors",
    "Unanswerable": "errors",
    "UnreadableInput": "errors",
    "UsageFault": "errors",
}
"""Module that each exported name is imported from when it is first used, so that reading a trace imports no torch."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as fault:
        if (fault.name or "").partition(".")[0] != "torch":
            raise
        return _without_torch  # for `from traceq import *` and `help(traceq)`
    return value


def _without_torch(*_: Any, **__: Any) -> None:
    """Raise TraceqError: recording needs torch."""
    from traceq.recorder.spec.prepare import check_installed

    check_installed("torch")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
