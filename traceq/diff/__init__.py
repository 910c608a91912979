"""Two runs: align them, explain the difference, decide whether it matters.

The package can be called: `traceq.diff(a, b)` is `traceq.diff.diff.diff(a, b)`, whichever was imported first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceq.diff.result import Diff
    from traceq.model import Run

__all__ = ()


class _Callable(ModuleType):
    def __call__(self, a: str | Path | Run, b: str | Path | Run, *, threshold_pct: float = 0.5) -> Diff:
        from traceq.diff.diff import diff

        return diff(a, b, threshold_pct=threshold_pct)


sys.modules[__name__].__class__ = _Callable
