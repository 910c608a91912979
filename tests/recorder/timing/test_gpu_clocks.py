"""Facts in the manifest about the clocks during a recording."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="recording needs torch")

from traceq.recorder.timing.clocks import clock_facts
from traceq.runs.step_log import ClocksLine

pytestmark = pytest.mark.torch


def test_the_slowest_rank_and_every_throttle_reason_are_reported() -> None:
    def clocks(mhz: int, bits: int) -> ClocksLine:
        return ClocksLine(sm_mhz=mhz, memory_mhz=2619, throttle=bits, celsius=60)

    fast, slow = [clocks(1980, 0), clocks(1980, 0x01)], [clocks(1980, 0), clocks(1710, 0x04), clocks(1700, 0x40 | 0x04)]
    assert clock_facts([fast, slow]) == {"sm_mhz": 1710, "throttled": "hw_thermal_slowdown, sw_power_cap"}
    assert clock_facts([fast, fast]) == {"sm_mhz": 1980, "throttled": ""}  # idle is no slowdown
    assert clock_facts([[], []]) == {}
