"""A user's request turned into a plan: device, ranks, numbers of steps, and a new folder."""

from __future__ import annotations

import math
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from traceq.errors import TraceqError, UsageFault
from traceq.recorder.spec.catalogue import Entry, find_recipe
from traceq.recorder.spec.parameters import overrides, plain_values, with_changes
from traceq.recorder.spec.plan import DEFAULT_HANG_S, Plan, PlannedArm, planned_arms, split_by_device, with_samples
from traceq.runs.run_folder import RUNS, RunFolder, locked_folder
from traceq.stats.ranks import steps_needed

_DEFAULT_STEPS = {"cpu": 128, "cuda": 256}
DEFAULT_CPU_RANKS = 2
DEFAULT_MINUTES = 10.0
DEFAULT_TRACE_STEPS = 3
DEFAULT_REPLICATES = {"cpu": 1, "cuda": 4}  # 4 give a confidence interval; on a CPU each takes over 10 s per arm
_MOST_RANKS, _RANKS_PER_DEVICE = 8, 4
"""Ranks that any machine may start, and beyond that on each of its GPUs, or cores without one."""
MAX_REPLICATES = 100
MAX_RUNS = 1000
MAX_STEPS = 100_000
MAX_TRACE_STEPS = 50


@dataclass(frozen=True, slots=True)
class Request:
    """Options of `traceq record`; None means the default of the recipe or the machine."""

    recipe: str
    ranks: int | None = None
    steps: int | None = None
    until_decided: bool = False
    max_minutes: float | None = None
    trace_steps: int | None = None
    changes: tuple[str, ...] = ()
    vary: tuple[str, ...] = ()
    device: str = "auto"
    out: Path | None = None
    replicates: int | None = None
    hang_s: float | None = None
    overwrite: bool = False

    def check(self) -> tuple[Entry, object, tuple[PlannedArm, ...]]:
        """Return the recipe, its parameters and its arms; UsageFault for unknown names and values out of range."""
        check_installed("torch", "accelerate")
        entry = find_recipe(self.recipe)
        parameters = with_changes(entry.recipe.parameters, overrides(self.changes))
        arms = planned_arms(entry.recipe, parameters, self.vary)
        apart = entry.recipe.runs_apart(planned.arm for planned in arms)
        self._check_until(arms, apart=apart)
        if self.replicates is not None and not apart:
            raise UsageFault(
                f"--replicates {self.replicates}: arms of {self.recipe} share a process; use --steps to time more steps"
            )
        check_range("--replicates", self.replicates, 1, MAX_REPLICATES)
        check_seconds("--hang-after", self.hang_s or 0)
        check_range("--steps", self.steps, 0, MAX_STEPS)
        check_range("--trace-steps", self.trace_steps, 0, MAX_TRACE_STEPS)
        if self.num_traced(entry) == 0 and self.steps == 0:
            raise UsageFault("--steps 0 and --trace-steps 0: nothing would be recorded")
        return entry, parameters, arms

    def num_traced(self, entry: Entry) -> int:
        """Return the profiled steps per arm: of the request, else the recipe, else the default."""
        candidates = (self.trace_steps, entry.recipe.trace_steps, DEFAULT_TRACE_STEPS)
        return next(steps for steps in candidates if steps is not None)

    def _check_until(self, arms: Sequence[PlannedArm], *, apart: bool) -> None:
        """Raise UsageFault for options that contradict `--until decided`, or require it."""
        if not self.until_decided:
            if self.max_minutes is not None:
                raise UsageFault(
                    f"--max-minutes {self.max_minutes:g}: requires --until decided; without it use --steps"
                )
            return
        if apart:
            raise UsageFault(
                f"--until decided: each arm of {self.recipe} runs in separate processes, and a verdict needs at least "
                "four of them; set their number with --replicates"
            )
        if self.steps is not None:
            raise UsageFault(
                f"--steps {self.steps}: --until decided determines the number of steps; use one of the two options"
            )
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise UsageFault(f"--max-minutes {self.max_minutes:g}: expected more than 0")
        if sum(planned.arm.timed for planned in arms) < 2:
            raise UsageFault(
                f"--until decided: {self.recipe} times only one arm; --vary KEY=A,B adds an arm to compare"
            )


def default_steps(device: str, num_ranks: int, num_arms: int) -> int:
    """Return the steps that a loop or job is timed for; of one arm on several ranks enough to tell a late rank."""
    of_ranks = steps_needed(num_ranks) if num_ranks > 1 and num_arms == 1 else 0
    return max(_DEFAULT_STEPS[device], of_ranks)


def prepare(request: Request, world_size: int = 0) -> tuple[Plan, Entry]:
    """Return the plan and its recipe, and create the run's folder.

    `world_size` > 0: the number of ranks that an external launcher started.
    """
    entry, parameters, arms = request.check()
    apart = entry.recipe.runs_apart(planned.arm for planned in arms)
    device = resolve_device(request.device)
    num_ranks = _num_ranks(request.ranks, device, world_size)
    _check_ranks(arms, num_ranks)
    arms, marked = split_by_device(with_samples(entry.recipe, arms, num_ranks), device)
    out = create_run_folder(request.out, entry.name, overwrite=request.overwrite)
    seed, replicates = secrets.randbelow(2**31), request.replicates or entry.recipe.replicates
    plan = Plan(
        recipe=entry.reference,
        run_id=f"{out.name}-{seed:08x}",
        out=str(out),
        device=device,
        num_ranks=num_ranks,
        steps=(entry.recipe.steps or _DEFAULT_STEPS[device]) if request.steps is None else request.steps,
        max_minutes=(request.max_minutes or DEFAULT_MINUTES) if request.until_decided else 0.0,
        trace_steps=request.num_traced(entry),
        seed=seed,
        parameters=plain_values(parameters),
        arms=arms,
        started=utc_now(),
        marked=marked,
        replicates=(replicates or DEFAULT_REPLICATES[device]) if apart else 0,
        hang_s=DEFAULT_HANG_S if request.hang_s is None else request.hang_s,
    )
    try:
        recipe = entry.recipe
        plan.folder.write_manifest(plan.manifest(entry.name, recipe.question, recipe.phases, recipe.facts))
    except OSError as fault:
        raise TraceqError(f"{plan.folder.manifest_path}: cannot be written: {fault.strerror}") from fault
    return plan, entry


def utc_now() -> str:
    """Return the UTC time to the second, in the manifest's format."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def create_run_folder(
    out: Path | None, name: str, *, overwrite: bool = False, remedy: str = "choose another --out"
) -> Path:
    """Create and return the folder of a run: `out` or `traceq-runs/<name>-<time>`, with `-2` or more if it is a run.

    `overwrite` removes the run that `out` is instead, unless it is being recorded. TraceqError if it holds anything but
    a run; `remedy` is the next step that the error suggests, in terms of the caller's option.
    """
    base = out or Path(RUNS) / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    named = base.resolve() if base.name in ("", "..") else base
    others = (named.parent / f"{named.name}-{number}" for number in range(2, MAX_RUNS))
    try:
        with suppress(FileExistsError):  # a file, which is said below
            named.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(named.parent):
            if overwrite and RunFolder(base).is_begun and not RunFolder(base).is_being_recorded:
                shutil.rmtree(base)
            for folder in (base, *others):
                is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
                if not is_free and not RunFolder(folder).is_begun:
                    raise TraceqError(f"{folder}: exists and is not empty; nothing but a run is overwritten, {remedy}")
                if is_free:
                    folder.mkdir(exist_ok=True)
                    with suppress(FileExistsError):  # the launcher of another node, or task, was faster
                        RunFolder(folder).reserve()
                        return folder
    except OSError as fault:
        raise TraceqError(f"{base}: cannot create this folder: {fault.strerror}; {remedy}") from fault
    raise TraceqError(f"{base}: {MAX_RUNS} runs of this name; {remedy}")


def resolve_device(device: str) -> str:
    """Return cpu or cuda for auto, else the device: cpu, cuda or cuda:N.

    TraceqError if that GPU is not available, UsageFault for any other name.
    """
    import torch

    kind, _, number = device.partition(":")
    if device not in ("auto", "cpu") and (kind != "cuda" or not (number.isdecimal() or device == kind)):
        raise UsageFault(f"device {device!r}: expected auto, cpu, cuda or cuda:N")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise TraceqError(f"--device {device}: torch finds no CUDA device; use --device cpu")
    if number and int(number) >= torch.cuda.device_count():
        raise TraceqError(f"device {device}: torch finds no more than {torch.cuda.device_count()} of them")
    return device


def _num_ranks(requested: int | None, device: str, world_size: int) -> int:
    if world_size:
        if requested not in {None, world_size}:
            raise UsageFault(f"--ranks {requested}: the launcher started {world_size} ranks; omit --ranks")
        return world_size
    import torch

    num_devices = torch.cuda.device_count() if device == "cuda" else 0
    num = num_devices or os.cpu_count() or 1
    unit = f"{'GPU' if num_devices else 'CPU core'}{'s' if num > 1 else ''}"
    why = f"{_MOST_RANKS}, or {_RANKS_PER_DEVICE} for each of {num} {unit} if that is more"
    check_range("--ranks", requested, 1, max(_MOST_RANKS, _RANKS_PER_DEVICE * num), why)
    return requested or num_devices or DEFAULT_CPU_RANKS


def _check_ranks(arms: Sequence[PlannedArm], num_ranks: int) -> None:
    """Raise UsageFault for an arm with a number of ranks that is not below that of the job."""
    for arm in (planned.arm for planned in arms if planned.arm.num_ranks):
        if arm.num_ranks >= num_ranks:
            raise UsageFault(
                f"--ranks must exceed {arm.num_ranks}, the rank count of arm {arm.name}; found {num_ranks}"
            )


def check_seconds(option: str, seconds: float) -> None:
    """Raise UsageFault for what is no time to wait."""
    if not 0 <= seconds < math.inf:
        raise UsageFault(f"{option} {seconds:g}: expected seconds, 0 or more")


def check_installed(*packages: str) -> None:
    """Raise TraceqError if this Python lacks one of the packages."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise TraceqError(f"recording needs {' and '.join(missing)}: pip install 'traceq-torch[record]'")


def check_range(option: str, value: int | None, least: int, most: int, why: str = "") -> None:
    """Raise UsageFault for a value outside of the range; None is the default, `why` says where `most` is from."""
    if value is not None and not least <= value <= most:
        raise UsageFault(f"{option} {value}: expected {least} to {most}" + (f" ({why})" if why else ""))
