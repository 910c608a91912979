"""What of a device's environment changes its times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch

from traceq.recorder.process.world import World
from traceq.recorder.rank import environment_facts as module
from traceq.recorder.rank.environment_facts import blocking_warning, environment_facts
from traceq.recorder.timing.stopwatch import NO_PEAK, read_peak, reset_peak_memory

pytestmark = pytest.mark.torch
CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="card", total_memory=2**34)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(module, "environment_facts", environment_facts.__wrapped__)


def test_a_torch_without_nccl_is_recorded(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_nccl_version", raising=False)  # as on Windows
    facts = module.environment_facts(World(0, 0, 1, CUDA))
    assert facts["device_name"] == "card"
    assert "nccl" not in facts
    assert blocking_warning(facts) == ""


@pytest.mark.parametrize(("value", "is_set"), [("1", True), ("0", False), ("", False)])
def test_launches_that_wait_for_their_kernels_are_told(
    gpu: None, monkeypatch: pytest.MonkeyPatch, value: str, is_set: bool
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    warning = blocking_warning(module.environment_facts(World(0, 0, 1, CUDA)))
    assert warning.startswith("CUDA_LAUNCH_BLOCKING is set: each launch waits") is is_set


def test_an_allocator_that_keeps_no_account_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", refuse)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", refuse)
    reset_peak_memory(CUDA)
    assert read_peak(CUDA) == NO_PEAK
