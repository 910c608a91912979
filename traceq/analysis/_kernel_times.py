"""The kernels in which a device computes longest: to weigh what is lost against, and as what limits a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernel_names import cut_name, short_kernel, without_tuning
from traceq.facts.events.kernels import launched_kernels
from traceq.facts.timeline.steps import steps
from traceq.facts.timeline.time_partition import TimeCategory, activity, in_counted_steps
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.model import Trace
from traceq.units import Unit, format_value

__all__ = ["KernelTime", "KernelTimes", "kernel_times", "longest_kernels", "what_computes"]

KernelTimes = Mapping[tuple[str, str], float]
"""(kernel, op that launched it or "") -> ns of a mean counted step in which it computes."""

_NAMED, _LEAST_NAMED = 3, 0.05
"""Kernels that are named at most, and the part of the compute time from which one is."""
_OF_ONE_OP, _LONGEST_NAME = 0.9, 50
"""Part of a kernel's time from which it is one op's, and the most characters of a name."""
_LEAST_KIND = 0.2
"""Part of the compute time from which a kind of kernels is told."""
_ELEMENTWISE = re.compile(r"elementwise_kernel")
_FLOAT32 = re.compile(
    r"(?=.*(volta|turing|ampere|sm[789]\d|sm1\d\d|cutlass_[789]\d)_)(?!.*(tf32|s1688)).*(sgemm|scudnn)"
)
"""Products of cuBLAS, cuDNN and CUTLASS in float32 for devices that have Tensor Cores, which these do not use."""


@frozen
class KernelTime:
    """Name of a kernel for people, the op that launches it if that is one, and ns of a step in which it computes."""

    name: str
    op: str
    ns: float

    def words(self, whole_ns: float) -> str:
        """Return `ampere_sgemm_128x64_tn of aten::mm 24.3 %`, of a step that takes `whole_ns`."""
        of_op = f" of {self.op}" if self.op else ""
        return f"{self.name}{of_op} {format_value(100 * self.ns / whole_ns, Unit.PERCENT)}"


def kernel_times(trace: Trace) -> KernelTimes:
    """Return in which kernels a device computes; the times add up to `compute` of the partition."""
    done, kernels, names = activity(trace), launched_kernels(trace), trace.events.name
    chosen = np.flatnonzero((done.category == TimeCategory.COMPUTE) & in_counted_steps(trace))
    op = np.full(len(device_work(trace)), -1)
    op[kernels.work] = np.where(kernels.op >= 0, names[kernels.op], -1)
    owner = done.owner[chosen]
    groups = group([names[device_work(trace).rows[owner]], op[owner]])
    num_steps, strings = int(steps(trace).counted.sum()), [*trace.events.strings, ""]
    times: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (name, of_op), ns in zip(groups.keys.tolist(), groups.sum(done.ns[chosen]), strict=True):
        times[short_kernel(strings[name]).strip(), strings[of_op]] += ns / num_steps
    return dict(times)


def longest_kernels(ranks: Sequence[KernelTimes]) -> tuple[KernelTime, ...]:
    """Return the kernels in which devices compute, the longest first, mean of ranks."""
    by_name: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for rank in ranks:
        for (name, op), ns in rank.items():
            by_name[name][op] += ns / len(ranks)
    kernels = []
    for name, by_op in by_name.items():
        ns, op = sum(by_op.values()), max(by_op, key=by_op.__getitem__)
        shown = cut_name(without_tuning(name), _LONGEST_NAME)
        kernels.append(KernelTime(shown, op if by_op[op] >= _OF_ONE_OP * ns else "", ns))
    return tuple(sorted(kernels, key=lambda kernel: -kernel.ns))


def what_computes(kernels: Sequence[KernelTime], whole_ns: float) -> list[str]:
    """Return the longest kernels with their shares of a step, and what would make a large part of them shorter."""
    computes_ns = sum(kernel.ns for kernel in kernels)
    named = [kernel for kernel in kernels[:_NAMED] if kernel.ns >= _LEAST_NAMED * computes_ns]
    words = [f"longest: {', '.join(kernel.words(whole_ns) for kernel in named)}"] if named else []
    for kind, remedy in (
        (_FLOAT32, "float32 products that use no Tensor Cores: try autocast, or TF32 where the device has it"),
        (_ELEMENTWISE, "elementwise kernels, which torch.compile can fuse"),
    ):
        ns = sum(kernel.ns for kernel in kernels if kind.search(kernel.name))
        if ns >= _LEAST_KIND * computes_ns:
            words.append(f"{format_value(100 * ns / whole_ns, Unit.PERCENT)} is {remedy}")
    return words
