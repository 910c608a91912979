"""Peak rates of this CPU, measured: the best of short runs, before and after the steps are timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

_SIZE, _COPIED = 512, 1 << 25
"""Rows of the measured matrix; bytes of the measured copy."""
_ALIKE, _MOST_S = 0.05, 0.2
"""Trials end once three of them are this close to the best, and after this time."""


def cpu_peak_facts(facts: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    """Return the FLOP/s of a product of matrices in float32 and the bytes per second of a copy.

    Each is the best of a few runs now and of what `facts` has from before; the lowest of these bests is beside it, as
    `_least`: they differ where something else used the cores. With the threads that the rank has, while other ranks do
    the same; by the job's default dtype, device and autocast nothing changes. Empty where memory is limited and the
    job left none for it.
    """
    try:
        a = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device="cpu")
        source = torch.ones(_COPIED // a.element_size(), dtype=torch.float32, device="cpu")
        target = torch.empty_like(source)
    except RuntimeError:  # of torch's allocator
        return {}
    with _without_autocast():
        rates = {
            "cpu_peak_flops": 2 * _SIZE**3 / _shortest_ns(lambda: torch.mm(a, a)),
            "cpu_peak_bandwidth": 2 * _COPIED / _shortest_ns(lambda: target.copy_(source)),
        }
    measured: dict[str, str | int | float] = {}
    for key, per_ns in rates.items():
        rate = round(per_ns * 1e9)
        measured[key] = max(rate, int(facts.get(key, rate)))
        measured[f"{key}_least"] = min(rate, int(facts.get(f"{key}_least", rate)))
    return measured


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Let products be of the dtype of their factors; no region, of which a job's are noted."""
    is_enabled = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", is_enabled)


def _shortest_ns(call: Callable[[], object]) -> int:
    """Return the time of the fastest of several calls, the first of which may have to start threads."""
    deadline = time.perf_counter() + _MOST_S
    times = sorted(_ns(call) for _ in range(4))
    while times[2] > (1 + _ALIKE) * times[0] and time.perf_counter() < deadline:
        times = sorted([*times, _ns(call)])[:3]
    return times[0]


def _ns(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    call()
    return max(time.perf_counter_ns() - start, 1)
