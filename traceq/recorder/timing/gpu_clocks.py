"""Clocks and throttling of a CUDA device, where NVML answers: a slow group then has a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from statistics import median

import torch

from traceq.runs.step_log import ClocksLine

__all__ = ["clock_facts", "read_clocks"]

_SLOWDOWNS = {  # NVML's bits of clocks event reasons, without those that are no fault: idle, and settings
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


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
    except (pynvml.NVMLError, AttributeError):  # a binding or a driver that does not tell
        return


def clock_facts(ranks: Sequence[Sequence[ClocksLine]]) -> dict[str, str | int | float]:
    """For the manifest: the slowest rank's median clock, and why clocks were held down in any group; nothing where no
    clock was read.
    """
    medians = [median(line.sm_mhz for line in lines) for lines in ranks if lines]
    if not medians:
        return {}
    seen = {name for lines in ranks for line in lines for bit, name in _SLOWDOWNS.items() if line.throttle & bit}
    return {"sm_mhz": round(min(medians)), "throttled": ", ".join(sorted(seen))}
