"""The peaks of a CPU: the best of all measurements, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch

from traceq.recorder.rank.environment_facts import cpu_peak_facts

pytestmark = pytest.mark.torch


def test_the_best_measurement_stays_and_the_lowest_is_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, str | int | float] = {}
    for ns in (3_000, 1_000, 2_000):
        monkeypatch.setattr("traceq.recorder.rank.environment_facts._ns", lambda call, ns=ns: ns)
        facts |= cpu_peak_facts(facts)
    assert facts["cpu_peak_flops"] == 2 * 512**3 * 10**6
    assert facts["cpu_peak_flops_least"] == round(2 * 512**3 / 3_000 * 1e9)
    assert facts["cpu_peak_bandwidth"] == 2 * (1 << 25) * 10**6


def test_a_call_that_was_interrupted_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9_000, 8_000, 2_000, 9_000, 1_000, 5_000, 1_020, 1_010, *[1] * 9])
    monkeypatch.setattr("traceq.recorder.rank.environment_facts._ns", lambda call: next(times))
    assert cpu_peak_facts({})["cpu_peak_flops"] == round(2 * 512**3 / 1_000 * 1e9)


def test_defaults_of_the_job_change_nothing_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its default dtype and device nor autocast, which would multiply in bfloat16."""
    seen = set()

    def note(call: Callable[[], Any]) -> int:
        result = call()
        seen.add((result.dtype, result.device.type))
        return 1_000

    monkeypatch.setattr("traceq.recorder.rank.environment_facts._ns", note)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16):
            cpu_peak_facts({})
            assert torch.is_autocast_enabled("cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen == {(torch.float32, "cpu")}


def test_without_memory_for_it_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.recorder.rank.environment_facts._COPIED", 1 << 50)
    assert cpu_peak_facts({"cpu_peak_flops": 1}) == {}
