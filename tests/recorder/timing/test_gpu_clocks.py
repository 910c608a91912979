"""Clocks of a GPU, and facts in the manifest about those during a recording."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch

from traceq.recorder.timing import clocks as timing_clocks
from traceq.recorder.timing.clocks import clock_facts, is_throttled, read_clocks
from traceq.runs.step_log import ClocksLine

pytestmark = pytest.mark.torch


def test_the_slowest_rank_and_every_throttle_reason_are_reported() -> None:
    def clocks(mhz: int, bits: int) -> ClocksLine:
        return ClocksLine(sm_mhz=mhz, memory_mhz=2619, throttle=bits, celsius=60)

    fast, slow = [clocks(1980, 0), clocks(1980, 0x01)], [clocks(1980, 0), clocks(1710, 0x04), clocks(1700, 0x40 | 0x04)]
    assert clock_facts([fast, slow]) == {"sm_mhz": 1710, "throttled": "hw_thermal_slowdown, sw_power_cap"}
    assert clock_facts([fast, fast]) == {"sm_mhz": 1980, "throttled": ""}  # idle is no slowdown
    assert clock_facts([[], []]) == {}


_NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)0x7fff00000042;
    return strcmp(uuid, "GPU-5a-1") != 0;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1410 : kind == 2 ? 2619 : 0;
    return device != (void *)0x7fff00000042;
}
int nvmlDeviceGetCurrentClocks%sReasons(void *device, unsigned long long *bits) { *bits = 0x20; return 0; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) { *celsius = 87 + sensor; return %d; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("reasons", "code", "uuid", "is_read"),
    [("Event", 0, "5a-1", True), ("Throttle", 0, "5a-1", True), ("Event", 3, "5a-1", False), ("Event", 0, "2", False)],
    ids=["a new driver", "an old driver", "a query fails", "another device"],
)
def test_the_driver_says_clock_and_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reasons: str, code: int, uuid: str, is_read: bool
) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "nvml.so"
    source.write_text(_NVML % (reasons, code))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(timing_clocks, "_NVML", str(library))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=uuid))
    timing_clocks._nvml_device.cache_clear()
    lines = list(read_clocks(torch.device("cuda", 0)))
    timing_clocks._nvml_device.cache_clear()
    assert lines == [ClocksLine(sm_mhz=1410, memory_mhz=2619, throttle=0x20, celsius=87)] * is_read
    assert [is_throttled(line) for line in lines] == [True] * is_read
    assert list(read_clocks(torch.device("cpu"))) == []
