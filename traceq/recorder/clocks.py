"""Clocks and throttling of a CUDA device, where NVML answers: a slow group then has a reason."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch

from traceq.runs.samples import ClocksLine

__all__ = ["read_clocks"]


def read_clocks(device: torch.device) -> Iterator[ClocksLine]:
    """One line of clocks; none without CUDA, without pynvml, or where NVML refuses."""
    if device.type != "cuda" or find_spec("pynvml") is None:
        return
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        yield ClocksLine(
            sm_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            memory_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            throttle=pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
            celsius=pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        )
    except pynvml.NVMLError:
        return
