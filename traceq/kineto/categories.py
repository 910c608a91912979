"""Mapping of Kineto's category strings, of every year and accelerator, to Category."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from traceq.model import Category

_TABLE = {
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,  # 2021
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "mtia_user_annotation": Category.DEVICE_ANNOTATION,
    "runtime": Category.RUNTIME,  # 2021
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "hip_api": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "hpu_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "concurrent_kernel": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "mtia_workloadd": Category.KERNEL,
    "hpu_op": Category.KERNEL,
    "memcpy": Category.MEMCPY,  # 2021
    "gpu_memcpy": Category.MEMCPY,
    "memset": Category.MEMSET,  # 2021
    "gpu_memset": Category.MEMSET,
    "cuda_sync": Category.SYNC,
    "xpu_sync": Category.SYNC,
    "python_function": Category.PYTHON,
    "overhead": Category.OVERHEAD,
    "trace": Category.PROFILER,
}

_ANNOTATION_PREFIXES_2021 = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "nccl:", "gloo:")


class Accelerator(NamedTuple):
    """A kind of device: its name, and what tells it.

    `prefix` begins the names of its runtime's calls and categories; `unread` is in names of processes, or of
    categories, whose rows are not read.
    """

    name: str
    prefix: str
    unread: str


ACCELERATORS = (
    Accelerator("cuda", "cuda", ""),
    Accelerator("rocm", "hip", ""),
    Accelerator("mtia", "mtia", ""),
    Accelerator("xpu", "xpu", r"^xpu|\bXPU\b"),
    Accelerator("hpu", "hpu", r"^hpu|\bHPU\b"),
    Accelerator("Ascend NPU", "npu", r"^Ascend Hardware$|^CANN$|^npu|\bNPU\b"),
    Accelerator("IBM AIU", "aiu", r"^aiu|\bAIU\b"),
)
"""All devices that traces are known of."""


def device_of(texts: Iterable[str]) -> str:
    """Return the name of the first device whose calls or categories are among some names; "" without one."""
    names = (each.name for text in texts for each in ACCELERATORS if text.startswith(each.prefix))
    return next(names, "")


def unread_device_of(texts: Iterable[str]) -> str:
    """Return the name of the first device of whose unread rows some names tell; "" without one."""
    names = (each.name for text in texts for each in ACCELERATORS if each.unread and re.search(each.unread, text))
    return next(names, "")


UNNAMED_DEVICES = {(9, 4, 304, 192): "AMD Instinct MI300X", (9, 4, 304, 256): "AMD Instinct MI325X"}
"""Compute capability, compute units and GiB of memory of devices whose name ROCm may leave empty -> name."""

BY_NAME = ("Operator", "mtia_ccp_events")
"""Categories whose meaning depends on the event's name."""


_MTIA_BY_NAME = {
    "dma_request": Category.MEMCPY,
    "event_record": Category.SYNC,
    "event_wait": Category.SYNC,
}
"""What rows of MTIA's processors are that are no kernels."""


def categorise(cat: str, name: str) -> Category:
    """Return the Category of an event; in traces of 2021 annotations are operators with certain names."""
    category = _TABLE.get(cat.lower(), Category.OTHER)
    if category is Category.CPU_OP and cat[0] in "Oo" and name.startswith(_ANNOTATION_PREFIXES_2021):
        return Category.ANNOTATION
    return _MTIA_BY_NAME.get(name, category) if category is Category.KERNEL else category


def category_names(*categories: Category) -> list[str]:
    """Return Kineto's names of some categories, in lower case, also those that the name of an event decides."""
    return [name for name, category in _TABLE.items() if category in categories]
