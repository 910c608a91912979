"""Lanes of the timeline as columns, and the labels that their spans share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.grouping import Numbers, group

__all__ = ["BLOCK", "Label", "Labels", "Lane", "labelled"]

BLOCK = -1
"""Label of several spans that are drawn as one."""

_LONGEST = 160
"""Characters of a name that the page holds; names of kernels have up to thousands."""


@dataclass(frozen=True, slots=True)
class Label:
    """What a span says: its name, its colour by its kind, the op and line that it comes from, and a note."""

    name: str
    colour: str
    op: str = ""
    line: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Labels:
    """Distinct labels in order of first use."""

    numbers: dict[Label, int] = field(default_factory=dict)

    def number(self, label: Label) -> int:
        """Return the number of a label, a new one included."""
        return self.numbers.setdefault(label, len(self.numbers))


@frozen(eq=False)
class Lane:
    """N spans of one row of the timeline, by start.

    `start`, `end` int64[N] ns in the trace's own time; `label` int64[N] into Labels, BLOCK for merged spans; `num`
    int64[N] spans that each stands for, `busy` int64[N] ns, the sum of their durations. `extra` int64[N] ns: the
    device's idle time right after a sync, the time from its launch to device work, -1 without one; None elsewhere.

    `kind` decides how a lane is drawn; `depth` of nested rows counts from 0; `title` is "" for all but the first of
    several rows.
    """

    title: str
    kind: str
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    label: NDArray[np.int64]
    num: NDArray[np.int64]
    busy: NDArray[np.int64]
    extra: NDArray[np.int64] | None = None
    depth: int = 0

    @classmethod
    def of(
        cls,
        title: str,
        kind: str,
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        label: NDArray[np.int64],
        *,
        extra: NDArray[np.int64] | None = None,
        depth: int = 0,
    ) -> Lane:
        """Return the lane of spans that stand for themselves."""
        return cls(title, kind, start, end, label, np.ones(len(start), np.int64), end - start, extra, depth)

    def __len__(self) -> int:
        return len(self.start)


def labelled(labels: Labels, columns: Sequence[Numbers], label_of: Callable[..., Label]) -> NDArray[np.int64]:
    """Return the label of each row: int64[N]; `label_of` is called with the values of each distinct combination."""
    if len(columns[0]) == 0:
        return np.empty(0, np.int64)
    groups = group(columns)
    numbers = np.array([labels.number(_cut(label_of(*key))) for key in groups.keys.tolist()], np.int64)
    return numbers[groups.group_ids]


def _cut(label: Label) -> Label:
    """Return the label with a name that is not longer than the page holds, cut in its middle."""
    if len(label.name) <= _LONGEST:
        return label
    half = _LONGEST // 2
    return replace(label, name=f"{label.name[:half]}…{label.name[-half:]}")
