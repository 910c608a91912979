"""The kernel in which a device computes longest, to weigh what is lost against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import short_kernel
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace

__all__ = ["LargestKernel", "compute_by_kernel", "largest_kernel"]


@frozen
class LargestKernel:
    """Name of a kernel for people, and ns of a mean counted step in which it computes, mean over ranks."""

    name: str
    ns: float


def compute_by_kernel(trace: Trace) -> dict[str, float]:
    """Return ns of a mean counted step in which each kernel computes; they add up to `compute` of the partition."""
    done = activity(trace)
    chosen = np.flatnonzero((done.category == TimeCategory.COMPUTE) & in_counted_steps(trace))
    groups = group([trace.events.name[device_work(trace).rows[done.owner[chosen]]]])
    num_steps = int(steps(trace).counted.sum())
    by_name: defaultdict[str, float] = defaultdict(float)
    for (name,), ns in zip(groups.keys.tolist(), groups.sum(done.ns[chosen]), strict=True):
        by_name[short_kernel(trace.events.strings[name]).strip()] += ns / num_steps
    return dict(by_name)


def largest_kernel(ranks: Sequence[Mapping[str, float]]) -> LargestKernel | None:
    """Return the kernel that computes longest, mean of ranks; None without kernels."""
    by_name: defaultdict[str, float] = defaultdict(float)
    for rank in ranks:
        for name, ns in rank.items():
            by_name[name] += ns / len(ranks)
    return max((LargestKernel(name, ns) for name, ns in by_name.items()), key=lambda kernel: kernel.ns, default=None)
