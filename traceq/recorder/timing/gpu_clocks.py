"""Clocks and throttling of a CUDA device, if NVML reports them: they can explain a slow block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from statistics import median

import torch

from traceq.runs.step_log import ClocksLine

__all__ = ["clock_facts", "read_clocks"]

_SLOWDOWNS = {  # NVML's bits of clock event reasons that indicate throttling: not idle, nor settings
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


def read_clocks(device: torch.device) -> Iterator[ClocksLine]:
    """Yield one line of clocks; nothing without CUDA or pynvml, or if NVML fails."""
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
    except (pynvml.NVMLError, AttributeError):  # a driver or binding that lacks one of these queries
        return


def clock_facts(ranks: Sequence[Sequence[ClocksLine]]) -> dict[str, str | int | float]:
    """Return facts for the manifest: the slowest rank's median clock, and the throttle reasons of all blocks.

    Empty if no clock was read.
    """
    medians = [median(line.sm_mhz for line in lines) for lines in ranks if lines]
    if not medians:
        return {}
    reasons = {name for lines in ranks for line in lines for bit, name in _SLOWDOWNS.items() if line.throttle & bit}
    return {"sm_mhz": round(min(medians)), "throttled": ", ".join(sorted(reasons))}
