"""Requests out of range: the option, what was given, what is possible, and why."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest
from terminal import traceq

from traceq.errors import TraceqError
from traceq.recorder.spec import prepare
from traceq.recorder.spec.prepare import default_steps, resolve_device


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="recording needs torch")
@pytest.mark.parametrize(
    ("num_cores", "bound", "cores"),
    [(2, 8, "2 CPU cores"), (16, 64, "16 CPU cores"), (1, 8, "1 CPU core ")],
)
def test_too_many_ranks_are_refused_with_the_bound_and_its_reason(
    num_cores: int, bound: int, cores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: num_cores)
    outcome = traceq("record", "--recipe", "outlier_ab", "--device", "cpu", "--ranks", "65")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith(f"traceq: --ranks 65: expected 1 to {bound} ")
    assert cores in outcome.err


@pytest.mark.parametrize(
    "words", [("--recipe", "outlier_ab"), ("--", sys.executable, "train.py")], ids=["recipe", "job"]
)
def test_a_package_that_recording_needs_is_named_before_anything_runs(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recipe ended with the traceback of a rank, and a job trained on to its end, unrecorded."""
    monkeypatch.setattr(prepare, "find_spec", lambda name: None if name == "torch" else object())
    outcome = traceq("record", *words)
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert "pip install 'traceq-torch[record]'" in outcome.err


def test_a_job_of_one_arm_is_timed_for_long_enough_to_tell_a_late_rank() -> None:
    assert [default_steps("cpu", num_ranks, 1) for num_ranks in (1, 2, 8)] == [128, 200, 400]
    assert [default_steps("cuda", num_ranks, 1) for num_ranks in (2, 8)] == [256, 400]
    assert default_steps("cpu", 8, 2) == 128


@pytest.mark.torch
@pytest.mark.parametrize(
    ("device", "num_gpus", "expected"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda"),
        ("cpu", 2, "cpu"),
        ("cuda:1", 2, "cuda:1"),
        ("cuda:2", 2, "device cuda:2: .* 2 of them$"),
        ("cuda", 0, "--device cuda: .* --device cpu$"),
        ("mps", 0, "device 'mps': expected auto, cpu, "),
        ("cuda:", 2, "device 'cuda:': expected auto, cpu, "),
        ("gpu", 2, "device 'gpu': expected auto, cpu, "),
    ],
)
def test_a_device_is_one_that_is_there(
    device: str, num_gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = pytest.importorskip("torch", reason="devices are torch's").cuda
    monkeypatch.setattr(cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(cuda, "device_count", lambda: num_gpus)
    if "device" in expected:
        with pytest.raises(TraceqError, match=expected):
            resolve_device(device)
    else:
        assert resolve_device(device) == expected
