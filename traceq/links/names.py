"""Which rows carry a name that matches: the pattern is tried once per distinct name, not once per row."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.model import Events

__all__ = ["matching"]


def matching(events: Events, rows: NDArray[np.int64], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """bool[len(rows)]: does the row's name match somewhere?"""
    names, hits = events.name[rows], np.zeros(len(events.strings), np.bool_)
    hits[names] = True
    for name in np.flatnonzero(hits).tolist():
        hits[name] = pattern.search(events.strings[name]) is not None
    return np.asarray(hits[names])
