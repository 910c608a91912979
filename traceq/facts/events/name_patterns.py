"""Names of rows: each distinct name is examined once, and distinct names come from a lookup table, not a sort."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from traceq.grouping import Numbers, inverse
from traceq.model import Category, Events, Trace

AUTOGRAD_NODE = re.compile(r"^autograd::engine::evaluate_function")
"""Names of the ops in which autograd runs a node of the graph in a backward."""
LAUNCHES_KERNEL = re.compile(r"^(cuda|hip|cu)\w{0,40}Launch\w{0,40}Kernel")
"""Names of the runtime calls that launch a kernel, cooperative and extended ones too."""
VENDOR = re.compile(r"^(cuda|hip|cu)(?=[A-Z])")
"""Begin of the names of runtime calls, by which two kinds of devices differ."""
READS_VALUE = re.compile(r"^aten::(item|_local_scalar_dense)$")
"""Names of the ops in which the program reads a value of a tensor."""
READS_SCALAR = re.compile(r"^aten::_local_scalar_dense$")
"""Names of the ops that do so on the host, after a copy from the device."""
EMPTY = re.compile(r"^aten::empty(_|$)")
"""Names of the ops that allocate a tensor, and compute and copy nothing."""
BACKWARD = re.compile(r"^autograd::engine|Backward\d*$")
"""Names of the ops and ranges of a backward pass."""
FREE_CALL = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")
"""Names of the runtime calls that return memory to the driver."""
MODULE = re.compile(r"^nn\.Module: ")
"""Names of the frames in which an nn.Module is called: `nn.Module: Linear_3`."""


def matching(events: Events, rows: NDArray[np.int64], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return whether the pattern occurs in each row's name: bool[len(rows)]."""
    strings = events.strings
    hits = [name for name in events.names_among(rows).tolist() if pattern.search(strings[name]) is not None]
    if not hits:
        return np.zeros(len(rows), np.bool_)
    is_hit = np.zeros(len(strings), np.bool_)
    is_hit[hits] = True
    return np.asarray(is_hit[events.name[rows]])


def rows_named(events: Events, pattern: re.Pattern[str], *categories: Category) -> NDArray[np.int64]:
    """Return the rows of some categories in whose names the pattern occurs, ascending: int64[K]."""
    rows = events.rows(*categories)
    return np.asarray(rows[matching(events, rows, pattern)])


def unique_names(events: Events, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (ascending string ids of the distinct names of some rows, index of each row's name among them)."""
    names = events.names_among(rows)
    return names, inverse(names, len(events.strings))[events.name[rows]]


def values_of_texts(events: Events, texts: Numbers, value_of: Callable[[str], int]) -> NDArray[np.int64]:
    """Return what each of some string ids tells, -1 for -1: int64[K]; each distinct text is read once."""
    distinct, index = np.unique(texts, return_inverse=True)
    values = [value_of(events.strings[text]) if text >= 0 else -1 for text in distinct.tolist()]
    return np.array(values, np.int64)[index.reshape(-1)] if len(texts) else np.empty(0, np.int64)


def unique_inverse(numbers: Numbers, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (ascending distinct values, index of each number among them) for numbers below `size`.

    Like np.unique(return_inverse=True) in linear time; -1 counts as `size` - 1.
    """
    is_used = np.zeros(size, np.bool_)
    is_used[numbers] = True
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[numbers]


def module_frames(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the calls of modules, on any thread."""
    return rows_named(trace.events, MODULE, Category.PYTHON)
