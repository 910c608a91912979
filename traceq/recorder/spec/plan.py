"""The plan of a recording, made before any rank starts and identical on all ranks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from traceq.errors import UsageFault
from traceq.model import Arm, Fact, Manifest
from traceq.recorder.spec.parameters import ParameterValues, as_arm, plain_values, split_assignment, with_changes
from traceq.recorder.spec.recipe import Recipe
from traceq.runs.run_folder import FORMAT, RunFolder

PAIRS_PER_BLOCK = 16
SINGLE_ARM_STEPS_PER_BLOCK = 512  # in single-arm runs: longer blocks interrupt the data loader less often


@dataclass(frozen=True, slots=True)
class Block:
    """Adjacent pairs of one comparison, timed without interruption.

    `b_second[i]` is True where the i-th pair runs A then B. `num_looks`: the number of interim looks at which the
    comparison may stop.
    """

    a: str
    b: str
    first_pair: int
    b_second: tuple[bool, ...]
    num_looks: int = 1

    @property
    def is_control(self) -> bool:
        """True for the A/A control, the baseline against itself."""
        return self.a == self.b

    @property
    def end_pair(self) -> int:
        """Number of pairs of its comparison after this block."""
        return self.first_pair + len(self.b_second)

    def halves(self, index: int) -> tuple[str, str]:
        """Return the arms of the i-th pair, in the order they run."""
        return (self.a, self.b) if self.b_second[index] else (self.b, self.a)


_MAX_WARMUP_STEPS = 20
DEFAULT_HANG_S = 30.0


@dataclass(frozen=True, slots=True)
class PlannedArm:
    """An arm of the run, with the arm of the recipe that it runs and the parameters of its build."""

    arm: Arm
    runs: str = ""
    parameters: ParameterValues = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One recording, of a `recipe` or of a loop that is the user's.

    `steps`: measured unprofiled steps per arm and comparison; `trace_steps`: profiled steps per arm.
    `max_minutes` > 0: timing lasts until every comparison is decided, at most that long, and ignores `steps`.
    `reseeds`: both halves of a pair draw the same random numbers.
    `scratch`: the folder in which launcher and ranks exchange files; "" with an external launcher.
    `replicates` > 0: each arm runs in this many separate processes; `process` is the number of this process among
    all of them, -1 in the launcher. `sharing` is then the number of ranks among which the cores are divided: the ranks
    of the largest arm.
    `marked`: arms that will not run, with the reason.
    `hang_s`: the recording ends after as many seconds in which no rank makes progress; 0: never.
    `max_slowdown` > 0: an arm whose first steps take at least so many times those of the baseline runs no longer.
    `is_regular`: False for a loop in which every few steps one does more than the others, such as an evaluation.
    """

    recipe: str = ""
    run_id: str
    out: str
    device: str
    num_ranks: int
    steps: int
    trace_steps: int
    seed: int
    parameters: ParameterValues = field(default_factory=dict)
    arms: tuple[PlannedArm, ...]
    max_minutes: float = 0.0
    scratch: str = ""
    reseeds: bool = True
    started: str = ""
    replicates: int = 0
    process: int = -1
    sharing: int = 0
    marked: tuple[Arm, ...] = ()
    max_slowdown: float = 0.0
    is_regular: bool = True
    hang_s: float = DEFAULT_HANG_S

    @property
    def folder(self) -> RunFolder:
        """Folder of the run."""
        return RunFolder(Path(self.out))

    @property
    def progress_path(self) -> str:
        """File of the progress counters; "" with an external launcher."""
        return f"{self.scratch}/progress" if self.scratch else ""

    @property
    def messages_path(self) -> str:
        """File of the messages for the user; "" with an external launcher."""
        return f"{self.scratch}/messages" if self.scratch else ""

    @property
    def faults_folder(self) -> str:
        """Folder in which ranks write the exceptions that ended them."""
        return f"{self.scratch}/faults" if self.scratch else str(self.folder.faults)

    @property
    def log_header(self) -> str:
        """Line with which a process begins its part of a log, if processes of several arms share it; else ""."""
        return f"process {self.process}: arm {self.arms[0].arm.name}\n" if self.process >= 0 else ""

    @property
    def warmup_steps(self) -> int:
        """Warm-up steps per arm: 20, or the number of measured steps if that is smaller."""
        return min(_MAX_WARMUP_STEPS, max(self.steps, 1))

    @property
    def steps_per_half(self) -> int:
        """8 on CUDA, where the host runs ahead of the device; 2 on a CPU; the first of them follows the other arm.

        1 if there is no other arm to follow. In an irregular loop 4: 2 of them count where every fourth is irregular.
        """
        if self.device == "cuda":
            return 8
        if not self.is_regular:
            return 4
        return 2 if sum(planned.arm.timed for planned in self.arms) > 1 else 1

    @property
    def most_lead_steps(self) -> int:
        """The most steps before a pair that do not count; none of a recipe, whose halves get the same batches."""
        return 0 if self.recipe else min(self.steps_per_half, 4) - 1

    @property
    def warning(self) -> str:
        """Why the recording cannot have a verdict, as known before it starts; "" if it can."""
        varied = sorted({key for planned in self.arms for key in planned.arm.varied if "batch" in key})
        if not varied or all(planned.arm.samples_per_step for planned in self.arms):
            return ""
        return (
            f"{', '.join(varied)} varies, but the recipe does not define the samples per step (samples_per_rank): "
            "there will be no verdict"
        )

    def manifest(
        self, recipe: str, question: str, phases: tuple[str, ...] = (), facts: tuple[Fact, ...] = ()
    ) -> Manifest:
        """Return the manifest before the first step."""
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
            facts=facts,
        )

    def to_bytes(self) -> bytes:
        """Return the plan as JSON, for another process."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        """Return the plan that another process wrote as JSON."""
        return msgspec.json.decode(data, type=Plan)


def split_by_device(arms: Sequence[PlannedArm], device: str) -> tuple[tuple[PlannedArm, ...], tuple[Arm, ...]]:
    """Return (arms that the device can run, other arms marked as skipped).

    Arms that are compared with a skipped arm are skipped, too.
    """
    missing = {planned.arm.name: planned.arm.needs for planned in arms if planned.arm.needs not in ("", device)}
    missing |= {planned.arm.name: missing[planned.arm.against] for planned in arms if planned.arm.against in missing}
    runnable = tuple(planned for planned in arms if planned.arm.name not in missing)
    skipped = (planned.arm for planned in arms if planned.arm.name in missing)
    return runnable, tuple(replace(arm, status="skipped", fault=f"requires {missing[arm.name]}") for arm in skipped)


def planned_arms(recipe: Recipe[Any], parameters: object, vary: Sequence[str]) -> tuple[PlannedArm, ...]:
    """Return the recipe's arms, or one arm per combination of varied values, of which the first is the baseline.

    Raises UsageFault for a bad `--vary`.
    """
    if not vary:
        return tuple(planned_arm(arm, parameters) for arm in recipe.arms)
    axes = [_axis(text) for text in vary]
    runs = recipe.varied or recipe.baseline.name
    base = next(arm for arm in recipe.arms if arm.name == runs)
    arms: list[PlannedArm] = []
    for combination in itertools.product(*axes):
        values = with_changes(parameters, {**base.varied, **dict(combination)})
        name = ",".join(f"{key}={value}" for key, value in combination)
        varied = {key: plain_values(values)[key] for key, _ in combination}
        meaning = f"{runs} with {name}"
        arm = Arm(as_arm(name), meaning, baseline=not arms, varied=varied, samples_factor=base.samples_factor)
        arm = replace(arm, num_ranks=base.num_ranks)
        arms.append(PlannedArm(arm, runs, plain_values(values)))
    if len({planned.arm.name for planned in arms}) < len(arms):
        raise UsageFault(f"--vary {' '.join(vary)}: two arms have the same name")
    return tuple(arms)


def planned_arm(arm: Arm, parameters: object) -> PlannedArm:
    """Return an arm of the recipe with its parameters; UsageFault if they are invalid."""
    return PlannedArm(arm, arm.name, plain_values(with_changes(parameters, arm.varied)))


def with_samples(recipe: Recipe[Any], arms: Sequence[PlannedArm], num_ranks: int) -> tuple[PlannedArm, ...]:
    """Return the arms with the samples per step of all ranks, if the recipe defines those of one rank.

    Raises UsageFault if that is not a positive integer.
    """
    if recipe.samples_per_rank is None:
        return tuple(arms)
    counted = []
    for planned in arms:
        samples = recipe.samples_per_rank(with_changes(recipe.parameters, planned.parameters))
        check_samples(samples, "Recipe(samples_per_rank=)")
        samples *= (planned.arm.num_ranks or num_ranks) * planned.arm.samples_factor
        counted.append(replace(planned, arm=replace(planned.arm, samples_per_step=samples)))
    return tuple(counted)


def check_samples(samples: object, where: str) -> None:
    """Raise UsageFault unless `samples` is a positive integer."""
    if not isinstance(samples, int) or samples < 1:
        raise UsageFault(f"{where}: found {samples!r}; expected the samples per step of one rank, an integer >= 1")


def _axis(text: str) -> list[tuple[str, str]]:
    key, values = split_assignment(text, "--vary")
    axis = [(key, value.strip()) for value in values.split(",") if value.strip()]
    if len(axis) < 2:
        raise UsageFault(f"--vary {text}: expected at least two values, KEY=A,B")
    return axis


def comparisons(arms: Sequence[Arm]) -> tuple[tuple[str, str], ...]:
    """Return (reference arm, arm) for each timed arm but the baseline, and last the A/A control."""
    (baseline,) = (arm.name for arm in arms if arm.baseline)
    others = [arm for arm in arms if arm.timed and not arm.baseline]
    return (*((arm.against or baseline, arm.name) for arm in others), (baseline, baseline))


def pairs_for(steps: int, steps_per_half: int) -> int:
    """Return the number of pairs, in whole blocks, that measures at least `steps` steps of each arm."""
    halves = -(-steps // steps_per_half)
    return -(-halves // PAIRS_PER_BLOCK) * PAIRS_PER_BLOCK


def pairs_for_single_arm(steps: int, steps_per_half: int) -> int:
    """Return the even number of pairs that measures at least `steps` steps of the only arm, which both halves run.

    The first step of a half with several steps settles and does not count.
    """
    halves = -(-steps // max(1, steps_per_half - 1))
    return 2 * -(-halves // 4)


def block_sizes(looks: Sequence[int], max_pairs: int = PAIRS_PER_BLOCK) -> tuple[int, ...]:
    """Return the pairs of each block, such that every look is at the end of a block: 16, or 8 from 16 to 24 pairs."""
    sizes: list[int] = []
    for before, look in pairwise((0, *looks)):
        whole, rest = divmod(look - before, max_pairs)
        sizes += [*[max_pairs] * whole, *[rest] * bool(rest)]
    return tuple(sizes)


def schedule(
    compared: Sequence[tuple[str, str]], looks: Sequence[int], seed: int, max_pairs: int = PAIRS_PER_BLOCK
) -> tuple[Block, ...]:
    """Return the blocks of all comparisons, of at most `max_pairs` pairs each, in the order they run to the last look.

    Comparisons alternate. The same seed gives every rank the same order.
    """
    rng = random.Random(seed)
    blocks, first_pair = [], 0
    for size in block_sizes(looks, max_pairs):
        for a, b in rng.sample(list(compared), len(compared)):
            b_second = [True, False] * (size // 2)
            rng.shuffle(b_second)
            blocks.append(Block(a, b, first_pair, tuple(b_second), len(looks)))
        first_pair += size
    return tuple(blocks)
