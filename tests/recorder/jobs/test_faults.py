"""A recorder with a fault: whichever of its functions raises, the job computes what it does alone."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import torch

from traceq.recorder import job_process
from traceq.recorder.job_process import JobProcess
from traceq.recorder.jobs import step_tracker
from traceq.recorder.jobs.backwards import LossByArm
from traceq.recorder.jobs.injection import Injection, JobRequest
from traceq.recorder.jobs.job_facts import JobBatches
from traceq.recorder.jobs.loop_hooks import LoopHooks
from traceq.recorder.jobs.phase_stack import PhaseStack
from traceq.recorder.jobs.step_tracker import StepTracker, UsualSteps
from traceq.recorder.rank import rank_state
from traceq.recorder.rank.wall_account import WallAccount
from traceq.recorder.timing.stopwatch import Stopwatch

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # `make guard` runs them

FAULTY = [
    *((PhaseStack, name) for name in ("end", "is_inside_model", "_is_backward", "_is_open")),
    *((StepTracker, name) for name in ("add", "was_regular", "num_batches", "optimizer_steps", "_ends_step")),
    *((StepTracker, name) for name in ("_learn_before", "_usual_steps")),
    (step_tracker, "learn_pattern"),
    (step_tracker, "split_steps"),
    *((UsualSteps, name) for name in ("add", "events", "num_batches", "_learn")),
    (JobBatches, "add"),
    (LossByArm, "note"),
    (LossByArm, "end_step"),
    (Stopwatch, "mark"),
    (WallAccount, "classify"),
    *((LoopHooks, name) for name in ("hook_models", "watch_inner", "take_inner", "remove", "_restore_models")),
    *((LoopHooks, name) for name in ("_before_step", "_after_step", "_end_step")),
    (job_process, "find_roots"),
    (job_process, "start_rank"),
    *((JobProcess, name) for name in ("backward_began", "batch_requested", "batch_delivered")),
    *((JobProcess, name) for name in ("optimizer_began", "optimizer_left", "optimizer_stepped")),
    *((JobProcess, name) for name in ("optimizer_made", "_watch_loop", "_be_watched")),
    *((JobProcess, name) for name in ("_find_models", "_settle_models")),
    *((JobProcess, name) for name in ("_begin_step", "_start", "_finish", "_end", "_note_failure")),
]


def _trained(num_steps: int = 80) -> list[float]:
    """Return losses of a seeded loop with every kind of event."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for batch in torch.utils.data.DataLoader(torch.randn(num_steps, 8), batch_size=1):  # type: ignore[arg-type]
        loss = model(batch).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _process(folder: Path, **options: Any) -> JobProcess:
    request = JobRequest(str(folder / "run"), "run-1", 7, "", (), 16, trace_steps=0, stops=False, **options)
    (folder / "run").mkdir()
    injection = Injection(folder / "inject")
    injection.write(request)
    return JobProcess(request, injection)


@pytest.mark.parametrize("num_before", [0, 30])
@pytest.mark.parametrize(("owner", "name"), FAULTY, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_of_the_recorder_changes_nothing_in_the_job(
    owner: Any, name: str, num_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first call, and after some."""
    alone, num_calls, original = _trained(), 0, getattr(owner, name)

    def raises(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls > num_before:
            raise ZeroDivisionError(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, raises)
    monkeypatch.setattr(rank_state, "cpu_peak_facts", dict)  # which measures the machine, for a second
    process = _process(tmp_path)
    process.hooks.install()
    try:
        assert _trained() == alone
    finally:
        monkeypatch.undo()
        process.hooks.remove()


def test_a_loop_on_another_thread_is_none_of_the_watched_one(tmp_path: Path) -> None:
    """Its optimizers stepped in the middle of steps of this one, of which no pattern could be learned."""
    process = _process(tmp_path)
    process.hooks.install()
    other = Thread(target=_trained, args=(600,))
    try:
        other.start()
        _trained(200)
        other.join()
    finally:
        process.hooks.remove()
    assert process._tracker.pattern is not None
    assert process._tracker.pattern.is_regular
    assert [event for event in process._tracker.pattern.events if event.startswith("O")] == ["O0"]
