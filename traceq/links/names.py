"""Which rows carry a name that matches: the pattern is tried once per distinct name, not once per row."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.model import Events

__all__ = ["matching"]


def matching(events: Events, rows: NDArray[np.int64], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """bool[len(rows)]: does the row's name match somewhere?"""
    names, inverse = np.unique(events.name[rows], return_inverse=True)
    hits = np.fromiter((bool(pattern.search(events.strings[name])) for name in names.tolist()), np.bool_, len(names))
    return hits[inverse] if len(names) else np.zeros(len(rows), np.bool_)
