"""What each piece of device work does, as people see it, and which types copies have."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import CopyTypes, copy_types, short_kernel
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.memo import once_per_trace
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace

__all__ = ["KernelLabels", "kernel_labels"]

_TYPE = re.compile(r'"([^"]*)"')


@frozen(eq=False)
class KernelLabels:
    """Short names of D pieces of device work: `label` int64[D] into `names`, and `copies` of each name, None of others.

    A name is that of `short_kernel`, with the types that the launching op shows.
    """

    names: tuple[str, ...]
    label: NDArray[np.int64]
    copies: tuple[CopyTypes | None, ...]


@once_per_trace
def kernel_labels(trace: Trace) -> KernelLabels:
    """Return what each piece of device work does, by its name and the op that launched it."""
    events, work, kernels = trace.events, device_work(trace), launched_kernels(trace)
    op = np.full(len(work), -1)
    op[kernels.work] = kernels.op
    op_name, types = (np.where(op >= 0, column[op], -1) for column in (events.name, events.types))
    groups, strings = group([events.name[work.rows], op_name, types]), [*events.strings, ""]
    numbers, copies = dict[str, int](), dict[str, CopyTypes | None]()
    of_group = np.empty(len(groups.keys), np.int64)
    for index, keys in enumerate(groups.keys.tolist()):
        name, of_op, of_types = (strings[key] for key in keys)
        inputs = _TYPE.findall(of_types)
        short = short_kernel(name, of_op, inputs).strip()
        of_group[index] = numbers.setdefault(short, len(numbers))
        copies.setdefault(short, copy_types(name, of_op, inputs))
    return KernelLabels(tuple(numbers), of_group[groups.group_ids], tuple(copies.values()))
