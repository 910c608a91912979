"""The parts of the recorder that time a device, run with a stand-in for it (`support/cuda_stand_in.py`).

Times of a real device, and what waits for it, are tests marked `cuda`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

import cuda_stand_in
import msgspec
import torch
from torch.utils.data import DataLoader

import traceq
from traceq.facts.events.device_work import lacks_device_rows
from traceq.facts.timeline.unprofiled_phases import unprofiled_phases
from traceq.recorder.job_process import JobProcess
from traceq.recorder.jobs.injection import Injection, JobRequest, Note, parse_toggle
from traceq.recorder.spec.phases import Phases
from traceq.recorder.timing.stopwatch import CAPTURED_STEP, Stopwatch
from traceq.runs.read import read
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_lines, timings_of

pytestmark = [pytest.mark.torch, pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a device")]
CUDA = torch.device("cuda", 0)
Step = Callable[[], None]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cuda_stand_in.install(monkeypatch.setattr)
    yield
    cuda_stand_in.state.is_capturing, cuda_stand_in.state.current_device = False, 0


class Switch:
    value = 0


switch = Switch()


def record(folder: Path, loop: Callable[[Step], None], *toggles: str, **options: object) -> Path:
    """Return the run of a job that calls `loop` with its training step, and trains on when it is recorded."""
    run = folder / "run"
    request = JobRequest(str(run), "run-1", 7, "", tuple(map(parse_toggle, toggles)), 16, trace_steps=1, stops=False)
    run.mkdir()
    injection = Injection(folder / "inject")
    injection.write(msgspec.structs.replace(request, **options))
    process = JobProcess(injection.attach(), injection)
    process.hooks.install()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    try:
        loop(step)
    finally:
        process.hooks.remove()
        process._note_exit(-1)
    return run


def lines_of(run: Path) -> list[StepLine]:
    return [line for line in read_lines(run / "steps" / "rank0.jsonl") if isinstance(line, StepLine)]


def test_a_job_is_timed_by_its_device_in_halves_of_eight_of_which_seven_count(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def loop(step: Step) -> None:
        for _ in range(700):
            step()

    run = record(tmp_path, loop, f"{__name__}.switch.value=0,1")
    manifest = RunFolder(run).read_manifest()
    assert (manifest.status, manifest.environment["device"]) == ("complete", "cuda")
    lines = lines_of(run)
    assert all(line.device_ns > 0 and line.device_phases.keys() == line.phases.keys() for line in lines)
    assert all((line.peak_bytes > 0) == (line.index == 7) for line in lines)
    timings = timings_of([lines], "value=1", manifest.phases)
    assert timings is not None
    assert timings.by_device
    assert unprofiled_phases(timings)[-1].host_ns.min() > 0
    halves = Counter((line.a, line.b, line.pair, line.half) for line in lines if line.pair >= 0)
    assert set(halves.values()) == {8}
    messages = capfd.readouterr().err
    assert ": timed on cuda:0" in messages
    assert messages.count("saw no work of the GPU") == 1
    (trace,) = read(run / "value=1" / "rank0.json.gz", strict=True).traces
    assert lacks_device_rows(trace)


def test_pairs_are_means_of_the_device_without_the_step_that_settles(tmp_path: Path) -> None:
    """A loop of the user, timed by events: of each half seven steps count."""
    with traceq.record(tmp_path / "run", arms=("a", "b"), steps=16, trace_steps=0) as rec:
        for _ in rec.steps(range(1_000)):
            with rec.phase("forward"):
                torch.ones(4).sum()
    lines = lines_of(tmp_path / "run")
    (pairs, *_) = read_pairs_of(tmp_path / "run")
    times: dict[int, list[int]] = {}
    for line in lines:
        if (line.a, line.b, line.half) == ("a", "b", 0) and line.index:
            times.setdefault(line.pair, []).append(line.device_ns)
    assert {len(each) for each in times.values()} == {7}
    assert pairs == [int(mean(times[number])) for number in sorted(times)]


def read_pairs_of(run: Path) -> Iterator[list[int]]:
    from traceq.runs.step_log import read_pairs

    for pairs in read_pairs(run / "steps"):
        if pairs.a != pairs.b:
            yield pairs.first_ns[0].tolist()


def _captured(step: Step) -> None:
    cuda_stand_in.state.is_capturing = True
    step()
    cuda_stand_in.state.is_capturing = False


@pytest.mark.parametrize("num_eager", [8, 12])
def test_a_captured_step_ends_the_recording_and_not_the_job(tmp_path: Path, num_eager: int) -> None:
    """Before its steps are known, and after: nothing waits for the device, and no event of the capture is read."""
    trained = []

    def loop(step: Step) -> None:
        for _ in range(num_eager):
            step()
        _captured(step)
        trained.append(True)

    run = record(tmp_path, loop)
    assert trained
    assert Injection(tmp_path / "inject").noted(Note.REASON) == CAPTURED_STEP
    if num_eager > 8:
        assert CAPTURED_STEP in RunFolder(run).read_manifest().fault


def test_a_part_captured_within_a_step_has_no_time_of_the_device() -> None:
    phases = Phases()
    with Stopwatch(CUDA, phases) as stopwatch:
        stopwatch.mark()
        phases.switch("forward")
        cuda_stand_in.state.is_capturing = True
        phases.switch("captured")
        with phases("nested"):
            pass
        phases.switch("optimizer")
        cuda_stand_in.state.is_capturing = False
        phases.switch("zero_grad")
        phases.switch("")
        stopwatch.mark()
        (step,) = stopwatch.take()
    assert list(step.device_phases) == ["zero_grad"]
    assert set(step.phases) == {"nested"}  # who switches times the host


def test_events_are_of_the_device_of_the_model_whichever_is_current() -> None:
    """A model on cuda:1 of a process that never called set_device, or one whose parts are on several devices."""
    phases = Phases()
    with Stopwatch(torch.device("cuda", 1), phases) as stopwatch:
        stopwatch.mark()
        phases.switch("forward")
        cuda_stand_in.state.current_device = 2
        phases.switch("")
        stopwatch.mark()
        (step,) = stopwatch.take()
    assert step.device_ns > 0
    assert list(step.device_phases) == ["forward"]


def test_gradients_of_captured_parts_are_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.make_graphed_callables calls torch.autograd.grad, often before there is a model."""
    weight = torch.ones(2, requires_grad=True)

    def graph(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        torch.autograd.grad(function(weight).sum(), weight)
        return functools.partial(function)

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", graph)
    injection = Injection(tmp_path / "inject")
    injection.write(JobRequest(str(tmp_path / "run"), "run-1", 7, "", (), 16, trace_steps=1, stops=False))
    process = JobProcess(injection.attach(), injection)
    process.hooks.install()
    try:
        torch.cuda.make_graphed_callables(torch.exp)
        assert process._stack.thread is None
        torch.autograd.grad(torch.exp(weight).sum(), weight)
        assert process._stack.thread is not None
    finally:
        process.hooks.remove()
    assert torch.cuda.make_graphed_callables is graph


@pytest.mark.slow
def test_a_loader_of_a_device_is_timed_as_well(tmp_path: Path) -> None:
    """The step begins with its batch, outside of any phase that is captured."""

    def loop(step: Step) -> None:
        for _ in range(20):
            for _ in DataLoader(range(20)):
                step()

    assert RunFolder(record(tmp_path, loop)).read_manifest().status == "complete"
