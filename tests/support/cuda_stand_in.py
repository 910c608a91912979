"""A stand-in for one CUDA device in a process whose tensors are on the CPU: `python cuda_stand_in.py SCRIPT ARGS`.

Its events are instants of the host's clock, and refuse what those of torch refuse (c10/cuda/CUDAEvent.h): so the parts
of the recorder that time a device run, and their errors show. This torch profiles the host alone, as one without CUPTI.
It cannot show whether anything waits for a device.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["Event", "install", "state"]

_CAPTURED = "CUDA error: operation not permitted on an event last recorded in a capturing stream"
_CAPTURING = "CUDA error: operation not permitted when stream is capturing"
_PEAK = {"all": {"peak": 3 * 2**20}}
state = SimpleNamespace(is_capturing=False, current_device=0)


class Event:
    """As torch.cuda.Event, on a stream that is never behind."""

    def __init__(self, enable_timing: bool = False, **_: bool) -> None:
        self._times = enable_timing
        self._recorded_s = 0.0
        self._device = -1
        self._was_capturing = False

    def record(self, stream: Any = None) -> None:
        """Record it now."""
        stream = stream or current_stream()
        if self._device not in (-1, stream.device_index):
            raise RuntimeError(
                f"Event device {self._device} does not match recording stream's device {stream.device_index}."
            )
        self._recorded_s, self._device, self._was_capturing = perf_counter(), stream.device_index, state.is_capturing

    def elapsed_time(self, end: Event) -> float:
        """Return the ms until the other was recorded."""
        if not (self._times and end._times):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._recorded_s and end._recorded_s):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._was_capturing or end._was_capturing:
            raise RuntimeError(_CAPTURED)
        if self._device != end._device:
            raise RuntimeError("CUDA error: invalid resource handle")
        return (end._recorded_s - self._recorded_s) * 1e3

    def query(self) -> bool:
        """Return whether it has come."""
        return True

    def synchronize(self) -> None:
        """Wait for it."""
        if self._was_capturing or state.is_capturing:
            raise RuntimeError(_CAPTURED)


def current_stream(device: Any = None) -> SimpleNamespace:
    """Return the one stream of a device."""
    return SimpleNamespace(device_index=state.current_device if device is None else torch.device(device).index)


def synchronize(device: Any = None) -> None:
    """Wait for the device, which a capture does not allow."""
    if state.is_capturing:
        raise RuntimeError(_CAPTURING)


def install(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let torch.cuda have one device, which the models of a job are on."""
    properties = SimpleNamespace(name="stand-in", total_memory=2**34, uuid="0")
    replaced = {
        "Event": Event,
        "current_device": lambda: state.current_device,
        "current_stream": current_stream,
        "device": lambda _: nullcontext(),
        "default_generators": (torch.Generator(),),
        "device_count": lambda: 1,
        "get_device_properties": lambda _: properties,
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: state.is_capturing,
        "is_initialized": lambda: True,
        "memory_reserved": lambda _: 2**20,
        "memory_stats_as_nested_dict": lambda _: {"allocated_bytes": _PEAK, "reserved_bytes": _PEAK},
        "reset_peak_memory_stats": lambda _: None,
        "synchronize": synchronize,
    }
    for name, value in replaced.items():
        replace(torch.cuda, name, value)


if __name__ == "__main__":
    install()
    sys.modules["cuda_stand_in"] = sys.modules["__main__"]  # for a script that captures
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
