"""What a user types after --set and --vary becomes validated parameters, or a one-line error."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta

from traceq.errors import TraceqError, UsageFault
from traceq.model import Arm
from traceq.recorder import Recipe
from traceq.recorder.spec.catalogue import find_recipe, recipe_names
from traceq.recorder.spec.parameters import describe_parameters, overrides, with_changes
from traceq.recorder.spec.plan import Plan, planned_arms, split_by_device, with_samples
from traceq.recorder.spec.prepare import Request, create_run_folder, prepare


@dataclass(frozen=True)
class Parameters:
    size: Literal["tiny", "small"] = "tiny"
    batch_size: Annotated[int, Meta(ge=1)] = 4
    rate: float = 0.5
    fused: bool = False


RECIPE = Recipe(
    question="?",
    phases=("forward",),
    parameters=Parameters(),
    build=lambda context, parameters: lambda arm: None,
    arms=(Arm("off", "", baseline=True), Arm("on", "")),
    varied="on",
)
FIELDS = {"recipe": "x", "run_id": "id", "out": "out", "device": "cpu", "num_ranks": 2, "steps": 16, "trace_steps": 3}


def test_values_take_the_types_of_the_annotations() -> None:
    changes = overrides(["size=small", "batch_size=8", "rate=1e-3", "fused=true"])
    assert with_changes(Parameters(), changes) == Parameters("small", 8, 1e-3, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sise=tiny", r"'sise' \(did you mean size\?\)"),
        ("size=tny", r"small \(did you mean tiny\?\)"),
        ("batch_size=0", "batch_size=0: expected `int` >= 1"),
        ("batch_size=two", "batch_size=two: expected `int`"),
        ("batch_size", "--set batch_size: expected KEY=VALUE"),
    ],
)
def test_a_bad_value_is_reported_in_one_line(change: str, message: str) -> None:
    with pytest.raises(UsageFault, match=message) as fault:
        with_changes(Parameters(), overrides([change]))
    assert "\n" not in str(fault.value)


def test_a_varied_parameter_becomes_arms_of_the_designated_arm() -> None:
    first, second = planned_arms(RECIPE, Parameters(), ["size=tiny,small"])
    assert (first.arm.name, first.arm.baseline, first.runs) == ("size=tiny", True, "on")
    assert (second.arm.name, second.arm.baseline, second.runs) == ("size=small", False, "on")
    assert second.parameters["size"] == "small"


def test_two_varied_parameters_make_an_arm_of_each_combination() -> None:
    arms = planned_arms(RECIPE, Parameters(), ["size=tiny,small", "batch_size=1,2"])
    assert [planned.arm.name for planned in arms] == [
        "size=tiny,batch_size=1",
        "size=tiny,batch_size=2",
        "size=small,batch_size=1",
        "size=small,batch_size=2",
    ]


@pytest.mark.parametrize("vary", ["size", "size=tiny", "size=tiny,tiny", "size=tiny,huge", "depth=1,2"])
def test_a_bad_variation_is_refused(vary: str) -> None:
    with pytest.raises(UsageFault):
        planned_arms(RECIPE, Parameters(), [vary])


def test_an_arm_knows_what_was_varied_and_how_many_samples_all_ranks_train_on() -> None:
    counted = replace(RECIPE, samples_per_rank=lambda parameters: 2 * parameters.batch_size)
    arms = planned_arms(counted, Parameters(), ["batch_size=1,3", "rate=0.5,1"])
    samples = [(planned.arm.samples_per_step, dict(planned.arm.varied)) for planned in with_samples(counted, arms, 4)]
    assert samples == [(8 * size, {"batch_size": size, "rate": rate}) for size in (1, 3) for rate in (0.5, 1.0)]
    assert {planned.arm.samples_per_step for planned in with_samples(RECIPE, arms, 4)} == {0}


def test_an_arm_with_larger_batches_trains_on_so_many_times_the_samples() -> None:
    arms = (Arm("small", "", baseline=True), Arm("large", "", samples_factor=3))
    counted = replace(RECIPE, arms=arms, varied="large", samples_per_rank=lambda parameters: 8)

    def samples_per_step(vary: list[str]) -> list[int]:
        arms = with_samples(counted, planned_arms(counted, Parameters(), vary), 2)
        return [planned.arm.samples_per_step for planned in arms]

    assert samples_per_step([]) == [16, 48]
    assert samples_per_step(["rate=0.5,1"]) == [48, 48]


@pytest.mark.parametrize("samples", [0, -1, 2.5, None, "8"])
def test_what_is_no_number_of_samples_is_refused(samples: object) -> None:
    wrong = replace(RECIPE, samples_per_rank=lambda parameters: samples)
    with pytest.raises(UsageFault, match=rf"Recipe\(samples_per_rank=\): found {samples!r}; "):
        with_samples(wrong, planned_arms(wrong, Parameters(), []), 2)


def test_a_batch_that_varies_without_samples_is_warned_of_from_the_start() -> None:
    def warning(recipe: Recipe[Parameters], vary: str) -> str:
        arms = with_samples(recipe, planned_arms(recipe, Parameters(), [vary]), 2)
        return Plan(**FIELDS, seed=7, arms=arms).warning

    assert warning(RECIPE, "batch_size=1,2").startswith("batch_size varies, ")
    assert warning(RECIPE, "rate=1,2") == ""
    assert warning(replace(RECIPE, samples_per_rank=lambda parameters: parameters.batch_size), "batch_size=1,2") == ""


@pytest.mark.torch
def test_the_manifest_holds_the_samples_of_all_ranks_from_the_start(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    request = Request("outlier_ab", ranks=3, device="cpu", vary=("batch_size=4,8",), out=tmp_path / "run")
    plan, _ = prepare(request)
    manifest = plan.folder.read_manifest()
    assert [(arm.samples_per_step, dict(arm.varied)) for arm in manifest.arms] == [
        (12, {"batch_size": 4}),
        (24, {"batch_size": 8}),
    ]
    assert manifest.started.endswith("Z")


@pytest.mark.torch
@pytest.mark.parametrize(("vary", "replicates"), [("attention=sdpa,eager", 1), ("optimizer=foreach,fused", 0)])
def test_values_that_cannot_share_a_process_run_in_separate_processes(
    tmp_path: Path, vary: str, replicates: int
) -> None:
    pytest.importorskip("torch", reason="recording needs torch")
    request = Request("step_profile", device="cpu", vary=(vary,), out=tmp_path / "run")
    plan, entry = prepare(request)
    assert plan.replicates == replicates
    assert plan.folder.read_manifest().apart == (replicates > 0)
    assert (entry.recipe.apart, plan.steps, plan.warmup_steps) == (False, 200, 20)
    repeated = replace(request, replicates=4, out=tmp_path / "again")
    if replicates:
        assert prepare(repeated)[0].replicates == 4
    else:
        with pytest.raises(UsageFault, match="share a process"):
            prepare(repeated)


def test_parameters_describe_what_they_accept() -> None:
    assert describe_parameters(Parameters())[:2] == [("size=tiny", "tiny | small"), ("batch_size=4", "int >= 1")]


def test_a_plan_reaches_another_process_unchanged() -> None:
    arms = planned_arms(RECIPE, Parameters(), [])
    plan = Plan(**FIELDS, seed=7, parameters={"size": "tiny", "rate": 0.5}, arms=arms)
    assert Plan.from_bytes(plan.to_bytes()) == plan


def test_recipes_are_listed_and_their_models_are_not() -> None:
    assert "outlier_ab" in recipe_names()
    assert not {"model", "outlier_check", "training", "data"} & set(recipe_names())


def test_a_mistyped_recipe_is_answered_with_the_similar_name() -> None:
    with pytest.raises(UsageFault, match=r"did you mean outlier_ab\?"):
        find_recipe("outlier")


def test_a_file_that_fails_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    with pytest.raises(TraceqError, match=r"broken\.py: ZeroDivisionError: division by zero"):
        find_recipe(str(path))


def test_a_file_without_a_recipe_says_what_was_expected(tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1")
    with pytest.raises(UsageFault, match=r"found no `recipe = Recipe"):
        find_recipe(str(path))


def test_a_variant_of_a_recipe_is_three_lines(tmp_path: Path) -> None:
    path = tmp_path / "variant.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from traceq.recipes.outlier_ab import recipe as base\n"
        "recipe = replace(base, parameters=replace(base.parameters, size='small'))\n"
    )
    assert find_recipe(str(path)).recipe.parameters.size == "small"


def test_a_missing_torch_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.recorder.spec.prepare.find_spec", lambda name: None)
    with pytest.raises(TraceqError, match=r"pip install 'traceq-torch\[record\]'") as fault:
        Request("outlier_ab").check()
    assert fault.value.exit_code == 1


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(TraceqError, match="nothing but a run is overwritten") as fault:
        create_run_folder(tmp_path, "x")
    assert fault.value.exit_code == 1


def test_a_run_in_the_current_folder_has_the_next_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert create_run_folder(Path(), "x") == Path()
    assert create_run_folder(Path(), "x") == tmp_path / "here-2"
    assert create_run_folder(tmp_path / "here", "x") == tmp_path / "here-3"


@pytest.mark.parametrize("overwrite", [False, True])
def test_launchers_that_start_together_each_get_a_folder(overwrite: bool, tmp_path: Path) -> None:
    if overwrite:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "run.json").write_text("{}")
    with ThreadPoolExecutor(8) as launchers:
        folders = list(launchers.map(lambda _: create_run_folder(tmp_path / "run", "x", overwrite=overwrite), range(8)))
    assert sorted(folders) == sorted([tmp_path / "run", *(tmp_path / f"run-{number}" for number in range(2, 9))])


def test_a_run_that_is_being_recorded_is_not_overwritten(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from traceq.recorder.spec.prepare import create_run_folder
print(create_run_folder(Path({str(tmp_path / "run")!r}), "x"), flush=True)
input()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == str(tmp_path / "run")
        assert create_run_folder(tmp_path / "run", "x", overwrite=True) == tmp_path / "run-2"
        other.kill()
    assert create_run_folder(tmp_path / "run", "x", overwrite=True) == tmp_path / "run"


def test_a_folder_the_system_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceqError, match=r"^\S+/file/run: .*: Not a directory; .* --out$"):
        create_run_folder(tmp_path / "file" / "run", "x")

    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(TraceqError, match=r"locked/run: .*: Permission denied"):
        create_run_folder(tmp_path / "locked" / "run", "x")


def test_runs_of_the_same_second_get_different_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({create_run_folder(None, "x") for _ in range(5)}) == 5


def test_arms_that_need_another_device_are_skipped_with_those_compared_with_them() -> None:
    arms = (
        Arm("off", "", baseline=True),
        Arm("tuned", "", needs="cuda"),
        Arm("more", "", against="tuned"),
        Arm("on", ""),
    )
    planned = planned_arms(replace(RECIPE, arms=arms, varied=""), Parameters(), [])
    runnable, skipped = split_by_device(planned, "cpu")
    assert [planned.arm.name for planned in runnable] == ["off", "on"]
    assert [(arm.name, arm.failure) for arm in skipped] == [
        ("tuned", "skipped: requires cuda"),
        ("more", "skipped: requires cuda"),
    ]
    assert split_by_device(planned, "cuda") == (planned, ())


def test_how_many_steps_are_traced_is_asked_for_or_the_recipes_or_three() -> None:
    assert [Request(name).num_traced(find_recipe(name)) for name in ("batch_probe", "outlier_ab")] == [0, 3]
    assert Request("batch_probe", trace_steps=2).num_traced(find_recipe("batch_probe")) == 2
    with pytest.raises(UsageFault, match="nothing would be recorded"):
        Request("batch_probe", steps=0).check()


def test_backends_are_names_of_strategies() -> None:
    for value in ("ddp,fsdp", "", "ddp,"):
        with pytest.raises(UsageFault):
            Request("batch_probe", changes=(f"backends={value}",)).check()
    assert Request("batch_probe", changes=("backends=zero2,ddp",)).check()
