"""What is going to be recorded, decided before any rank starts: every rank is given the same plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from traceq.errors import UsageFault
from traceq.model import Arm, Manifest
from traceq.recorder.spec.parameters import ParameterValues, checked, plain_values, split_assignment
from traceq.recorder.spec.recipe import Recipe
from traceq.runs.layout import FORMAT, RunFolder

__all__ = [
    "MAX_WARMUP_STEPS",
    "Plan",
    "PlannedArm",
    "check_samples",
    "for_device",
    "planned_arm",
    "planned_arms",
    "with_samples",
]

MAX_WARMUP_STEPS = 20


@dataclass(frozen=True, slots=True)
class PlannedArm:
    """An arm of the run: which arm of the recipe it runs, built with which parameters."""

    arm: Arm
    runs: str
    parameters: ParameterValues


@dataclass(frozen=True, slots=True)
class Plan:
    """One recording. `steps` = measured unprofiled steps an arm and comparison, `trace_steps` = profiled ones an arm.

    `max_minutes` > 0: timing goes on until every comparison is decided, or for that long, whatever `steps` says.
    `reseeds`: both halves of a pair draw the same random numbers. `scratch` is the launcher's folder, for what goes
    between it and its ranks; "" for ranks that someone else started. `replicates` > 0: arms run apart, in so many
    processes each; `process` is which of all these a rank is given, with the one arm that it runs, and -1 before that;
    cores are then divided among `sharing` ranks, those of the arm that has most. `marked`: arms that are not run any
    more, with the reason.
    """

    recipe: str
    run_id: str
    out: str
    device: str
    num_ranks: int
    steps: int
    trace_steps: int
    seed: int
    parameters: ParameterValues
    arms: tuple[PlannedArm, ...]
    max_minutes: float = 0.0
    scratch: str = ""
    reseeds: bool = True
    started: str = ""
    replicates: int = 0
    process: int = -1
    sharing: int = 0
    marked: tuple[Arm, ...] = ()

    @property
    def folder(self) -> RunFolder:
        """Where the run is written."""
        return RunFolder(Path(self.out))

    @property
    def pulse(self) -> str:
        """The launcher's file of counters; "" without a launcher of ours."""
        return f"{self.scratch}/pulse" if self.scratch else ""

    @property
    def news(self) -> str:
        """The launcher's file of lines for people; "" without a launcher of ours."""
        return f"{self.scratch}/news" if self.scratch else ""

    @property
    def faults(self) -> str:
        """The folder in which ranks tell what ended them."""
        return f"{self.scratch}/faults" if self.scratch else str(self.folder.faults)

    @property
    def log_head(self) -> str:
        """The line in a rank's log at which one process of an arm that runs apart begins; "" where one has it alone."""
        return f"process {self.process}: arm {self.arms[0].arm.name}\n" if self.process >= 0 else ""

    @property
    def warmup_steps(self) -> int:
        """Steps each arm runs before anything counts: 20, or as many as are measured if that is less."""
        return min(MAX_WARMUP_STEPS, max(self.steps, 1))

    @property
    def steps_per_half(self) -> int:
        """8 on CUDA, where the host runs ahead and one step cannot show what an arm does to that; else 1."""
        return 8 if self.device == "cuda" else 1

    @property
    def doubt(self) -> str:
        """What stands in the way of a verdict, known before anything ran; "" for nothing."""
        varied = sorted({key for planned in self.arms for key in planned.arm.varied if "batch" in key})
        if not varied or all(planned.arm.samples_per_step for planned in self.arms):
            return ""
        return (
            f"{', '.join(varied)} varies, and the recipe does not tell how many samples a step trains on "
            "(samples_per_rank): there will be no verdict"
        )

    def manifest(self, recipe: str, question: str, phases: tuple[str, ...] = ()) -> Manifest:
        """The manifest as it stands before the first step."""
        return Manifest(
            version=FORMAT,
            run_id=self.run_id,
            recipe=recipe,
            question=question,
            parameters=self.parameters,
            arms=(*(planned.arm for planned in self.arms), *self.marked),
            phases=phases,
            num_ranks=self.num_ranks,
            seed=self.seed,
            started=self.started,
            apart=self.replicates > 0,
        )

    def to_bytes(self) -> bytes:
        """JSON, for another process."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        """The plan another process wrote."""
        return msgspec.json.decode(data, type=Plan)


def for_device(arms: Sequence[PlannedArm], device: str) -> tuple[tuple[PlannedArm, ...], tuple[Arm, ...]]:
    """(the arms that the device can run; the others, marked as skipped, with those that stand against them)."""
    lacking = {planned.arm.name: planned.arm.needs for planned in arms if planned.arm.needs not in ("", device)}
    lacking |= {planned.arm.name: lacking[planned.arm.against] for planned in arms if planned.arm.against in lacking}
    can = tuple(planned for planned in arms if planned.arm.name not in lacking)
    cannot = (planned.arm for planned in arms if planned.arm.name in lacking)
    return can, tuple(replace(arm, status="skipped", fault=f"it needs {lacking[arm.name]}") for arm in cannot)


def planned_arms(recipe: Recipe[Any], parameters: object, vary: Sequence[str]) -> tuple[PlannedArm, ...]:
    """The recipe's own arms, or one for each combination of varied values, the first of them the baseline."""
    if not vary:
        return tuple(planned_arm(arm, parameters) for arm in recipe.arms)
    axes = [_axis(text) for text in vary]
    runs = recipe.varied or recipe.baseline.name
    base = next(arm for arm in recipe.arms if arm.name == runs)
    arms: list[PlannedArm] = []
    for combination in itertools.product(*axes):
        values = checked(parameters, {**base.varied, **dict(combination)})
        name = ",".join(f"{key}={value}" for key, value in combination)
        varied = {key: plain_values(values)[key] for key, _ in combination}
        meaning = f"{runs} with {name}"
        arm = Arm(_folder_name(name), meaning, baseline=not arms, varied=varied, samples_factor=base.samples_factor)
        arm = replace(arm, num_ranks=base.num_ranks)
        arms.append(PlannedArm(arm, runs, plain_values(values)))
    if len({planned.arm.name for planned in arms}) < len(arms):
        raise UsageFault(f"--vary {' '.join(vary)}: two arms are the same")
    return tuple(arms)


def planned_arm(arm: Arm, parameters: object) -> PlannedArm:
    """An arm of the recipe with the parameters that it has for itself. Raises UsageFault."""
    return PlannedArm(arm, arm.name, plain_values(checked(parameters, arm.varied)))


def with_samples(recipe: Recipe[Any], arms: Sequence[PlannedArm], num_ranks: int) -> tuple[PlannedArm, ...]:
    """The arms with the samples of a step of all ranks, where the recipe tells those of one. Raises UsageFault."""
    if recipe.samples_per_rank is None:
        return tuple(arms)
    found = []
    for planned in arms:
        samples = recipe.samples_per_rank(checked(recipe.parameters, planned.parameters))
        check_samples(samples, "Recipe(samples_per_rank=)")
        samples *= (planned.arm.num_ranks or num_ranks) * planned.arm.samples_factor
        found.append(replace(planned, arm=replace(planned.arm, samples_per_step=samples)))
    return tuple(found)


def check_samples(samples: object, where: str) -> None:
    """UsageFault for what is no number of samples."""
    if not isinstance(samples, int) or samples < 1:
        raise UsageFault(f"{where}: found {samples!r}; expected the samples of a step of one rank, 1 or more")


def _axis(text: str) -> list[tuple[str, str]]:
    key, values = split_assignment(text, "--vary")
    found = [(key, value.strip()) for value in values.split(",") if value.strip()]
    if len(found) < 2:
        raise UsageFault(f"--vary {text}: expected two values or more, KEY=A,B")
    return found


def _folder_name(name: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_.=,+-") else "_" for letter in name)
