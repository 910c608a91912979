"""A loop that knows nothing of its recording: each of its steps runs one arm, and afterwards nothing is left."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("nvtx", reason="phases are nvtx ranges")

import torch
import torch._dynamo
from job_loops import (
    LOOPS,
    Loop,
    Net,
    Notes,
    Switch,
    accumulation_with_a_tail,
    adjoint,
    evaluations_and_checkpoints,
    loss_of_a_method,
    loss_that_holds_the_model,
    plain,
    without_loader,
)

import traceq
from traceq.model import NO_EFFECT, Manifest
from traceq.recorder import job_process
from traceq.recorder.job_process import JobProcess
from traceq.recorder.jobs import step_pattern
from traceq.recorder.jobs.injection import Injection, JobRequest, Note, parse_toggle
from traceq.recorder.spec.plan import Plan
from traceq.recorder.toggles.attribute import _is_on_all_ranks
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import read_pairs

pytestmark = [pytest.mark.torch, pytest.mark.skipif(torch.cuda.is_available(), reason="counts the steps of a CPU")]

QUICK = (accumulation_with_a_tail,)
switch = Switch()
TOGGLE = f"{__name__}.switch.value=0,1"
BEFORE_THREADS = torch.get_num_threads()


def patched() -> list[Any]:
    return [torch.autograd.backward, torch.optim.Optimizer.zero_grad, torch.save, torch.nn.utils.clip_grad_norm_]


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet() -> None:
    """Let a test begin as a process of its own does, without what others have compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()


def recorded(
    folder: Path, loop: Loop, toggles: Sequence[str] = (TOGGLE,), num_steps: int = 600, **options: float | str | None
) -> Notes:
    """Run the loop in this process as a job with an injected recorder, which lets it train on."""
    request = JobRequest(
        str(folder / "run"), "run-1", 7, "", tuple(map(parse_toggle, toggles)), 16, trace_steps=1, stops=False
    )
    request = msgspec.structs.replace(request, **options)
    (folder / "run").mkdir()
    injection = Injection(folder / "inject")
    injection.write(request)
    process = JobProcess(request, injection)
    process.hooks.install()
    notes = Notes(switch)
    try:
        loop(notes, num_steps)
    finally:
        process.hooks.remove()
        gc.enable()  # a job that ends within its timed steps ends its process, too
    return notes


def _param(loop: Loop) -> Any:
    """A loop as a parameter; all but a few are slow."""
    return pytest.param(loop, id=loop.__name__, marks=[] if loop in QUICK else [pytest.mark.slow])


def manifest_of(folder: Path) -> Manifest:
    return RunFolder(folder / "run").read_manifest()


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("loop", [_param(loop) for loop in LOOPS])
def test_no_step_has_mixed_arms(loop: Loop, tmp_path: Path) -> None:
    notes = recorded(tmp_path, loop)
    assert manifest_of(tmp_path).status == "complete"
    mixed = [number for number, step in enumerate(notes.steps) if len(set(step)) > 1]
    assert mixed == []
    values = [step[0] for step in notes.steps]
    assert values.count(1) > 2 * 16
    assert values[-1] == 0 == switch.value  # its own value, once the recording is complete
    pairs = {(pairs.a, pairs.b): pairs.first_ns.shape for pairs in read_pairs(tmp_path / "run" / "steps")}
    assert pairs == {("value=0", "value=1"): (1, 16), ("value=0", "value=0"): (1, 16)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.parametrize("loop", LOOPS)
def test_no_step_has_mixed_arms_in_600_that_take_turns(loop: Loop, tmp_path: Path) -> None:
    notes = recorded(tmp_path, loop, num_steps=3000, steps=160)
    assert manifest_of(tmp_path).status == "complete"
    num_steps = (tmp_path / "run" / "steps" / "rank0.jsonl").read_bytes().count(b'"kind":"step"')
    assert num_steps >= 600
    assert [number for number, step in enumerate(notes.steps) if len(set(step)) > 1] == []


@pytest.mark.slow
@pytest.mark.parametrize("loop", [accumulation_with_a_tail, evaluations_and_checkpoints])
def test_an_irregular_loop_completes_with_the_halves_of_cuda(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "steps_per_half", 8)
    notes = recorded(tmp_path, loop, num_steps=1200)
    assert manifest_of(tmp_path).status == "complete"
    assert [number for number, step in enumerate(notes.steps) if len(set(step)) > 1] == []
    pairs = {(pairs.a, pairs.b): pairs.first_ns.shape for pairs in read_pairs(tmp_path / "run" / "steps")}
    assert pairs == {("value=0", "value=1"): (1, 16), ("value=0", "value=0"): (1, 16)}


def test_phases_and_what_was_found_are_in_the_manifest(tmp_path: Path) -> None:
    recorded(tmp_path, plain)
    manifest = manifest_of(tmp_path)
    assert manifest.phases == ("dataload_wait", "forward", "backward", "optimizer", "zero_grad")
    assert manifest.environment["step_pattern"] == "batch, forward, backward, optimizer (6 of 6 alike)"
    assert "Net" in str(manifest.environment["models"])  # among those of other tests
    assert manifest.environment["optimizers"] == "AdamW"
    of_baseline, of_other = (str(manifest.fact("loss", arm)) for arm in manifest.arms)
    assert ", sd " in of_baseline
    assert ") from value=0 in" in of_other
    assert [(arm.name, arm.baseline) for arm in manifest.arms] == [("value=0", True), ("value=1", False)]


@pytest.mark.slow
def test_modules_that_a_method_of_the_model_calls_are_its_forward(tmp_path: Path) -> None:
    recorded(tmp_path, loss_of_a_method)
    manifest = manifest_of(tmp_path)
    assert manifest.phases == ("forward", "backward", "optimizer", "no_grad_forward")
    assert str(manifest.environment["step_pattern"]).startswith("forward, forward, backward, optimizer (")


@pytest.mark.slow
def test_a_module_that_the_loop_calls_itself_is_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss contains it, and is given its output. Another test may have compiled something in this process."""
    for module in ("loop_hooks", "root_models"):
        monkeypatch.setattr(f"traceq.recorder.jobs.{module}.has_compiled", lambda: False)
    recorded(tmp_path, loss_that_holds_the_model)
    environment = manifest_of(tmp_path).environment
    assert environment["step_pattern"] == "forward, forward, backward, optimizer (6 of 6 alike)"
    assert "LossOfModel" in str(environment["models"])


@pytest.mark.slow
def test_a_model_that_is_wrapped_anew_in_each_step_is_found(tmp_path: Path) -> None:
    """What its backward runs is backward, and begins no step."""
    recorded(tmp_path, adjoint)
    manifest = manifest_of(tmp_path)
    assert str(manifest.environment["step_pattern"]).startswith("backward, optimizer, forward* (")
    assert "Solver" not in str(manifest.environment["models"])
    assert manifest.phases == ("backward", "optimizer", "zero_grad", "no_grad_forward")


@pytest.mark.slow
def test_a_job_without_toggles_has_one_arm(tmp_path: Path) -> None:
    recorded(tmp_path, plain, toggles=(), num_steps=200)
    assert [arm.name for arm in manifest_of(tmp_path).arms] == ["run"]


@pytest.mark.slow
def test_samples_of_a_step_are_those_of_its_batches(tmp_path: Path) -> None:
    recorded(tmp_path, accumulation, toggles=(), num_steps=200)
    assert [arm.samples_per_step for arm in manifest_of(tmp_path).arms] == [6]


@pytest.mark.slow
def test_arms_that_accumulate_differently_are_compared_per_sample(tmp_path: Path) -> None:
    toggle = f"{__name__}.accumulated.value=2,4"
    recorded(tmp_path, accumulation, toggles=(toggle,), num_steps=600)
    assert {arm.name: arm.samples_per_step for arm in manifest_of(tmp_path).arms} == {"value=2": 6, "value=4": 12}
    (diff,) = traceq.diff(tmp_path / "run").diffs
    assert diff.answer.measures["per"] == "per sample"


accumulated = Switch(2)


def accumulation(notes: Notes, num_steps: int) -> None:
    """Batches of three samples, some of which are a step."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    since = 0
    for batch in torch.utils.data.DataLoader(torch.ones(12 * num_steps, 4), 3):
        model(batch).sum().backward()
        since += 1
        if since >= accumulated.value:
            optimizer.step()
            optimizer.zero_grad()
            since = 0


@pytest.mark.slow
def test_arms_whose_steps_hold_other_numbers_of_iterations_are_not_compared(tmp_path: Path) -> None:
    """Where one optimizer steps in every second iteration, that is a step, and twice as long as an iteration."""
    toggle = f"{__name__}.accumulated.value=2,1"
    recorded(tmp_path, two_optimizers, toggles=(toggle,), num_steps=600)
    (diff,) = traceq.diff(tmp_path / "run").diffs
    assert diff.answer.code == "not_comparable"
    assert diff.comparable.reasons[0].startswith("steps of O0 in a step: 2 against 1")


def two_optimizers(notes: Notes, num_steps: int) -> None:
    """One of them steps in each iteration, the other one in some."""
    models = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    often, seldom = (torch.optim.SGD(model.parameters()) for model in models)
    for number in range(4 * num_steps):
        models[0](torch.ones(4)).sum().backward()
        often.step()
        often.zero_grad()
        if number % accumulated.value == 0:
            models[1](torch.ones(4)).sum().backward()
            seldom.step()
            seldom.zero_grad()


@pytest.mark.slow
def test_the_loader_of_a_job_is_measured_alone(tmp_path: Path) -> None:
    notes = recorded(tmp_path, plain, toggles=(), num_steps=40, of_loader=True)
    assert len(notes.steps) > 16 + 40  # batches of a second iterator, and those of the loop, which trains on
    run = traceq.read(tmp_path / "run")
    assert run.manifest is not None
    assert (run.manifest.recipe, run.manifest.phases) == ("dataloader", ("fetch", "h2d"))
    assert run.manifest.parameters == {"batch_size": 1, "num_workers": 0, "prefetch_factor": 0}
    assert [arm.samples_per_step for arm in run.manifest.arms] == [1]
    (table,) = (table for table in traceq.analyze(run, "loader").tables if table.key == "loader")
    (row,) = table.to_dicts()
    assert row["measured"] >= 16
    assert row["samples_per_sec_ceiling"] > 0


@pytest.mark.slow
def test_a_loop_without_a_loader_has_none_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, without_loader, toggles=(), num_steps=40, of_loader=True)
    assert "no DataLoader of torch" in capsys.readouterr().err
    assert not RunFolder(tmp_path / "run").manifest_path.exists()


@pytest.mark.slow
def test_nothing_is_left_in_the_process(tmp_path: Path) -> None:
    hook, functions = sys.excepthook, patched()
    recorded(tmp_path, plain)
    assert patched() == functions
    assert sys.excepthook is hook
    assert gc.isenabled()
    assert not hasattr(Net.forward, "__wrapped__")


@pytest.mark.slow
def test_a_model_that_the_job_freezes_has_a_forward(tmp_path: Path) -> None:
    """Without it the step would have none, and nothing to toggle."""

    class Frozen(Net): ...

    def loop(notes: Notes, num_steps: int) -> None:
        model = Frozen(notes)
        optimizer = torch.optim.SGD(model.parameters())
        gc.freeze()
        for batch in torch.utils.data.DataLoader(torch.ones(num_steps, 4)):
            model(batch).sum().backward()
            optimizer.step()

    recorded(tmp_path, loop, toggles=(), num_steps=200)
    manifest = manifest_of(tmp_path)
    assert manifest.environment["step_pattern"] == "batch, forward, backward, optimizer (6 of 6 alike)"
    assert "Frozen" in str(manifest.environment["models"])


@pytest.mark.slow
def test_a_copy_of_the_model_does_not_call_the_original(tmp_path: Path) -> None:
    """A recorder that patched instances would make an average of weights run the model that it was copied from."""
    import copy

    outputs: list[float] = []

    def loop(notes: Notes, num_steps: int) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters())
        for number in range(30):
            if number == 15:
                average = copy.deepcopy(model)
                torch.nn.init.zeros_(average[0].weight)
                torch.nn.init.zeros_(average[0].bias)
                outputs.append(average(torch.ones(1, 4)).item())
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    recorded(tmp_path, loop, toggles=())
    assert outputs == [0.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toggle", "message"),
    [
        (f"{__name__}.switch.valu=0,1", "'valu' (did you mean value?)"),
        (f"{__name__}.switch.value=0,x", "'x' is no int; "),
        ("nobody.knows=0,1", "variable is called 'nobody'"),
        ("model.layer.weight=0,1", "holds a Parameter; "),
        ("@unknown=0,1", "no toggle @unknown"),
    ],
)
def test_a_toggle_that_the_job_does_not_have_ends_the_recording_and_not_the_job(
    toggle: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = recorded(tmp_path, plain, toggles=(toggle,), num_steps=30)
    assert len(notes.steps) == 30
    assert not RunFolder(tmp_path / "run").manifest_path.exists()
    assert message in capsys.readouterr().err
    assert message in Injection(tmp_path / "inject").noted(Note.REASON)


@pytest.mark.slow
def test_a_mistyped_path_is_refused_in_the_second_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = recorded(tmp_path, plain, toggles=(f"{__name__}.switch.valu=0,1",), num_steps=2)
    assert len(notes.steps) == 2
    assert "'valu' (did you mean value?)" in capsys.readouterr().err


def test_a_path_that_only_one_rank_lacks_is_no_fault_of_all() -> None:
    store = torch.distributed.HashStore()
    assert not _is_on_all_ranks(store, 0, 2, "")
    assert not _is_on_all_ranks(store, 1, 2, "nothing has this name")
    store.set("0", "1")
    assert _is_on_all_ranks(store, 1, 2, "nothing has this name")


def test_a_value_that_does_not_take_effect_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Stubborn:
        @property
        def value(self) -> int:
            return 0

        @value.setter
        def value(self, value: int) -> None:
            pass

    globals()["stubborn"] = Stubborn()
    recorded(tmp_path, plain, toggles=(f"{__name__}.stubborn.value=0,1",), num_steps=30)
    assert re.search("'1' is not .*Stubborn.value .* 1 and reads 0", capsys.readouterr().err)


@pytest.mark.slow
def test_a_loop_whose_steps_differ_is_not_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def loop(notes: Notes, num_steps: int) -> None:
        model = torch.nn.Linear(4, 4)
        optimizer, other = torch.optim.SGD(model.parameters()), torch.optim.SGD(model.parameters())
        for number in range(40):
            model(torch.ones(1, 4)).sum().backward()
            for _ in range(number % 5):
                other.step()
            optimizer.step()

    recorded(tmp_path, loop)
    assert "steps of the loop differ: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_loop_of_long_steps_says_while_it_is_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(6, 10**6, 6))
    monkeypatch.setattr(step_pattern, "monotonic", lambda: next(now))
    monkeypatch.setattr(job_process, "LearningNotes", lambda: step_pattern.LearningNotes(_began_s=0.0))
    recorded(tmp_path, plain)
    lines = [line for line in capsys.readouterr().err.splitlines() if "learning" in line]
    backwards = [re.findall(r"(\d+) backward passes in (\d+) s", line)[0] for line in lines]
    assert backwards == [("3", "12"), ("5", "24")]


def test_every_line_among_those_of_the_job_says_whose_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path, plain, num_steps=200, steps=None, max_minutes=0.01)
    lines = capsys.readouterr().err.splitlines()
    assert any("pairs per comparison" in line for line in lines)
    assert [line for line in lines if not line.startswith("traceq")] == []


def test_an_arm_that_changes_nothing_has_no_verdict(tmp_path: Path) -> None:
    recorded(tmp_path, plain, toggles=("@autocast=on,off", TOGGLE))
    manifest = manifest_of(tmp_path)
    assert [(arm.name, arm.status) for arm in manifest.arms] == [
        ("autocast=on,value=0", ""),
        ("autocast=off", NO_EFFECT),
        ("value=1", ""),
    ]
    diffs = traceq.diff(tmp_path / "run")
    assert [diff.b_name for diff in diffs.diffs] == ["value=1"]
    assert any("issues the same" in caveat.text for caveat in diffs.diffs[0].caveats)


class Drawn(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(4)


def augmented(notes: Notes, num_steps: int) -> None:
    """A loop whose batches draw random numbers."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    for batch in torch.utils.data.DataLoader(Drawn(), batch_size=1):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
def test_an_arm_whose_toggle_must_not_act_has_no_verdict_but_its_reason(tmp_path: Path) -> None:
    recorded(tmp_path, augmented, toggles=("@prefetch=off,on",))
    as_is, prefetch = manifest_of(tmp_path).arms
    assert (as_is.status, prefetch.status) == ("", NO_EFFECT)
    assert prefetch.fault.startswith("the loader's batches draw random numbers")


@pytest.mark.slow
@pytest.mark.parametrize("is_dry", [False, True])
def test_toggles_that_apply_are_noted_or_listed(
    is_dry: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, plain, toggles=(), num_steps=1200, is_dry=is_dry, improves="" if is_dry else "survey")
    if is_dry:
        lines = capsys.readouterr().err.splitlines()
        assert any(line.startswith("traceq: ") and ": traceq record --" in line for line in lines)
        (line,) = (each for each in lines if "toggles that apply: " in each)
        assert "@optimizer=default,foreach,fused" in line
        assert "@attention" not in line
        assert "@autocast" not in line
        assert not RunFolder(tmp_path / "run").manifest_path.exists()
        return
    toggles = {each["name"]: each["values"] for each in json.loads(RunFolder(tmp_path / "run").toggles.read_bytes())}
    assert toggles["@optimizer"] == ["default", "foreach", "fused"]
    assert not {"@attention", "@autocast"} & toggles.keys()
    assert [arm.name for arm in manifest_of(tmp_path).arms] == ["run"]


@pytest.mark.slow
def test_toggles_are_restored_if_a_later_one_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path, plain, toggles=("@threads=1,2", "@optimizer=loop,fused", "model.layer.no=0,1"), num_steps=30)
    assert torch.get_num_threads() == BEFORE_THREADS
    assert not RunFolder(tmp_path / "run").manifest_path.exists()
