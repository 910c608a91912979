"""Some of the events of a trace, with their rows in the side tables."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceq.model import Allocations, CallStacks, Events, EventWaits, GraphNodes, Messages

__all__ = ["select_events"]

T = TypeVar("T", Messages, CallStacks, EventWaits, GraphNodes)
C = TypeVar("C", Messages, CallStacks, EventWaits, GraphNodes, Allocations)


def select_events(events: Events, mask: NDArray[np.bool_], allocations: NDArray[np.bool_]) -> Events:
    """Return the rows of `mask` (bool[N]) of every column, the rows of side tables that refer to them, and allocations.

    `allocations` selects rows of that table, which do not refer to events.
    """
    columns = {field.name: getattr(events, field.name) for field in fields(events)}
    cut: dict[str, Any] = {name: column[mask] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return replace(
        events,
        **cut,
        messages=_select_references(events.messages, mask),
        stacks=_select_references(events.stacks, mask),
        waits=_select_references(events.waits, mask),
        nodes=_select_references(events.nodes, mask),
        allocations=_select_rows(events.allocations, allocations),
    )


def _select_references(table: T, mask: NDArray[np.bool_]) -> T:
    """Return the table's rows that refer to events of `mask` (bool[N]), with the events' new row numbers."""
    selected = _select_rows(table, mask[table.row])
    return replace(selected, row=(np.cumsum(mask) - 1)[selected.row])


def _select_rows(table: C, mask: NDArray[np.bool_]) -> C:
    return replace(table, **{field.name: getattr(table, field.name)[mask] for field in fields(table)})
