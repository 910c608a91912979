"""The device that a job is timed on: that of its parameters, or that on which it holds memory."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="devices are torch's")

import torch

import traceq
from traceq.errors import RecordingFailed
from traceq.recorder.jobs.job_facts import device_note, device_of, world_on_devices
from traceq.recorder.process.world import World, running_world
from traceq.recorder.toggles.toggle import Job

pytestmark = pytest.mark.torch


def job(*models: str) -> Job:
    """Return a job of models with parameters on these devices, `cpu cuda:1`; the largest comes first."""
    kinds: list[Any] = [
        SimpleNamespace(parameters=lambda model=model: [SimpleNamespace(device=torch.device(d)) for d in model.split()])
        for model in models
    ]
    return Job(kinds, ())


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Bytes that the process holds on each of its GPUs, of which the first is the current one."""
    held: dict[int, int] = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(held))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(held))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: held[index])
    return held


@pytest.mark.parametrize(
    ("models", "held", "device", "note"),
    [
        (["cpu"], (), "cpu", ""),
        ([], (), "cpu", ""),
        (["cuda:1 cuda:1", "cuda:0"], (0, 9), "cuda:1", r"on cuda:1, cuda:0: .* of cuda:1$"),
        (["cpu cuda:0"], (9,), "cuda:0", ""),  # an embedding on the host
        (["cpu", "cuda:1"], (0, 9), "cuda:1", ""),  # a teacher on the host
        (["cpu cpu"], (0, 9), "cuda:1", "no parameter .* timed on cuda:1"),  # offloaded
        (["meta"], (3, 9), "cuda:0", "no parameter is on a GPU"),
        ([], (3, 9), "cuda:0", "no parameter is on a GPU"),  # functions instead of modules
        (["cpu"], (0, 0), "cpu", ""),  # another program of this machine has the GPUs
        (["mps:0"], (), "cpu", "on mps: .* on the host"),
        (["xpu:0"], (), "cpu", "on xpu: .* on the host"),
    ],
)
def test_a_job_is_timed_on_the_device_that_computes(
    gpus: dict[int, int], models: list[str], held: tuple[int, ...], device: str, note: str
) -> None:
    gpus.update(enumerate(held))
    timed_on = device_of(job(*models))
    assert timed_on == torch.device(device)
    text = device_note(job(*models), timed_on)
    assert re.search(note, text)
    assert bool(text) is bool(note)


def test_an_allocator_that_keeps_no_account_is_no_error(gpus: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> int:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    gpus[0] = 9
    monkeypatch.setattr(torch.cuda, "memory_reserved", refuse)
    assert device_of(job("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(
    ("requested", "held", "expected"),
    [
        ("cuda", (0, 9), "cuda:1"),
        ("cuda", (3, 9), "cuda:0"),
        ("cuda", (0, 0), "cuda:0"),
        ("cuda:1", (9, 0), "cuda:1"),
        ("cpu", (9,), "cpu"),
    ],
)
def test_a_loop_of_a_process_that_never_called_set_device_is_timed_where_its_memory_is(
    gpus: dict[int, int], requested: str, held: tuple[int, ...], expected: str
) -> None:
    gpus.update(enumerate(held))
    with running_world(requested) as world:
        assert world.device == torch.device(expected)


def test_ranks_on_devices_of_several_kinds_are_refused(gpus: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of steps are longer on a GPU: ranks would wait for each other at different steps."""
    monkeypatch.setattr(World, "gather", lambda self, kind: [kind, "cpu", "cuda"])
    with pytest.raises(RecordingFailed, match="ranks 0, 2 compute on a GPU"):
        world_on_devices(job("cuda:0"))


def test_a_loop_on_another_accelerator_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 9)
    with traceq.record(tmp_path / "run", device="cpu", steps=2, trace_steps=0) as rec:
        list(rec.steps(range(20)))
    assert "the models are on mps: " in capfd.readouterr().err
