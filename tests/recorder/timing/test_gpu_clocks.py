"""What a manifest says of the clocks during a recording."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="recording needs torch")

from traceq.recorder.timing.gpu_clocks import clock_facts
from traceq.runs.step_log import ClocksLine

pytestmark = pytest.mark.torch


def test_the_slowest_rank_and_every_slowdown_of_any_group_are_told() -> None:
    def group(mhz: int, bits: int) -> ClocksLine:
        return ClocksLine(sm_mhz=mhz, memory_mhz=2619, throttle=bits, celsius=60)

    fast, slow = [group(1980, 0), group(1980, 0x01)], [group(1980, 0), group(1710, 0x04), group(1700, 0x40 | 0x04)]
    assert clock_facts([fast, slow]) == {"sm_mhz": 1710, "throttled": "hw_thermal_slowdown, sw_power_cap"}
    assert clock_facts([fast, fast]) == {"sm_mhz": 1980, "throttled": ""}  # idle is no slowdown
    assert clock_facts([[], []]) == {}
