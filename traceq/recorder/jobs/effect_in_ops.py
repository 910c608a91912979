"""Whether the arms of a job issue different ops: the proof that a toggle changed something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traceq.recorder.tracing.line_marks import PREFIX
from traceq.recorder.tracing.line_table import read_rows
from traceq.runs.run_folder import RunFolder

__all__ = ["arms_with_equal_ops"]


def arms_with_equal_ops(folder: RunFolder, baseline: str, arms: Sequence[str]) -> dict[str, int]:
    """Return the arms whose traced step issues the same ops as that of the baseline, with their number."""
    expected = _count_ops(folder, baseline)
    return {arm: expected.total() for arm in arms if _count_ops(folder, arm) == expected}


def _count_ops(folder: RunFolder, arm: str) -> Counter[str]:
    rows = read_rows(folder.stacks(arm, 0))
    return Counter(row.name for row in rows if row.cat == "cpu_op" and not row.name.startswith(PREFIX))
