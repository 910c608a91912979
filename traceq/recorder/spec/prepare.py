"""From what a user asked for to a plan: device, ranks, numbers of steps, and a fresh folder."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from traceq.errors import TraceqError, UsageFault
from traceq.recorder.spec.catalogue import Entry, find_recipe
from traceq.recorder.spec.parameters import checked, overrides, plain_values
from traceq.recorder.spec.plan import Plan, PlannedArm, for_device, planned_arms, with_samples
from traceq.runs.layout import RunFolder

__all__ = ["DEFAULT_STEPS", "Request", "fresh_folder", "now", "prepare", "resolve_device"]

DEFAULT_STEPS = {"cpu": 64, "cuda": 256}
DEFAULT_CPU_RANKS = 2
DEFAULT_MINUTES = 10.0
DEFAULT_TRACE_STEPS = 3
DEFAULT_REPLICATES = {"cpu": 1, "cuda": 4}  # 4 give an interval; on a CPU each costs ten seconds an arm and more
MAX_REPLICATES = 100
MAX_STEPS = 100_000
MAX_TRACE_STEPS = 50


@dataclass(frozen=True, slots=True)
class Request:
    """What `traceq record` was asked for; None is left to the recipe or the machine, `max_minutes` to the default."""

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

    def check(self) -> tuple[Entry, object, tuple[PlannedArm, ...]]:
        """The recipe, its parameters and its arms; UsageFault for whatever names nothing or is out of range."""
        if find_spec("torch") is None:
            raise TraceqError("recording needs torch: pip install 'traceq-torch[record]'")
        entry = find_recipe(self.recipe)
        parameters = checked(entry.recipe.parameters, overrides(self.changes))
        arms = planned_arms(entry.recipe, parameters, self.vary)
        apart = entry.recipe.runs_apart(planned.arm for planned in arms)
        self._check_until(arms, apart=apart)
        if self.replicates is not None and not apart:
            raise UsageFault(
                f"--replicates {self.replicates}: the arms of {self.recipe} share a process; --steps times more of them"
            )
        _check_range("--replicates", self.replicates, 1, MAX_REPLICATES)
        _check_range("--steps", self.steps, 0, MAX_STEPS)
        _check_range("--trace-steps", self.trace_steps, 0, MAX_TRACE_STEPS)
        if self.num_traced(entry) == 0 and self.steps == 0:
            raise UsageFault("--steps 0 and --trace-steps 0: nothing would be recorded")
        return entry, parameters, arms

    def num_traced(self, entry: Entry) -> int:
        """Profiled steps of each arm: as asked for, else as the recipe has it."""
        wanted = (self.trace_steps, entry.recipe.trace_steps, DEFAULT_TRACE_STEPS)
        return next(steps for steps in wanted if steps is not None)

    def _check_until(self, arms: Sequence[PlannedArm], *, apart: bool) -> None:
        """UsageFault for what makes no sense with, or without, `--until decided`."""
        if not self.until_decided:
            if self.max_minutes is not None:
                raise UsageFault(f"--max-minutes {self.max_minutes:g}: caps --until decided; add it, or use --steps")
            return
        if apart:
            raise UsageFault(
                f"--until decided: each arm of {self.recipe} has processes of its own, and it takes four to decide "
                "anything; --replicates N says how many"
            )
        if self.steps is not None:
            raise UsageFault(
                f"--steps {self.steps}: --until decided finds out how many it takes; leave one of them out"
            )
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise UsageFault(f"--max-minutes {self.max_minutes:g}: expected more than 0")
        if sum(planned.arm.timed for planned in arms) < 2:
            raise UsageFault(
                f"--until decided: {self.recipe} times one arm; --vary KEY=A,B gives it another to compare"
            )


def prepare(request: Request, world_size: int = 0) -> tuple[Plan, Entry]:
    """The plan and its recipe; makes the run's folder. `world_size` > 0: the ranks are already there."""
    entry, parameters, arms = request.check()
    apart = entry.recipe.runs_apart(planned.arm for planned in arms)
    device = resolve_device(request.device)
    num_ranks = _num_ranks(request.ranks, device, world_size)
    _check_ranks(arms, num_ranks)
    arms, marked = for_device(with_samples(entry.recipe, arms, num_ranks), device)
    out = fresh_folder(request.out, entry.name)
    seed = secrets.randbelow(2**31)
    plan = Plan(
        recipe=entry.reference,
        run_id=f"{out.name}-{seed:08x}",
        out=str(out),
        device=device,
        num_ranks=num_ranks,
        steps=(entry.recipe.steps or DEFAULT_STEPS[device]) if request.steps is None else request.steps,
        max_minutes=(request.max_minutes or DEFAULT_MINUTES) if request.until_decided else 0.0,
        trace_steps=request.num_traced(entry),
        seed=seed,
        parameters=plain_values(parameters),
        arms=arms,
        started=now(),
        marked=marked,
        replicates=_num_processes(request, entry, device) if apart else 0,
    )
    try:
        plan.folder.write_manifest(plan.manifest(entry.name, entry.recipe.question, entry.recipe.phases))
    except OSError as fault:
        raise TraceqError(f"{plan.folder.manifest_path}: cannot be written: {fault.strerror}") from fault
    return plan, entry


def _num_processes(request: Request, entry: Entry, device: str) -> int:
    """Processes of each arm that runs apart."""
    return request.replicates or entry.recipe.replicates or DEFAULT_REPLICATES[device]


def now() -> str:
    """UTC to the second, as a manifest has it."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def fresh_folder(out: Path | None, name: str, *, remedy: str = "choose another --out") -> Path:
    """A folder for one run: the one asked for, if it is empty or new, else `traceq-runs/<name>-<time>`.

    `remedy` is what to do about a fault, in the words of whoever named the folder.
    """
    if out is not None:
        _make(out, remedy)
        return out
    base = Path("traceq-runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    candidates = [base, *(base.with_name(f"{base.name}-{number}") for number in range(2, 100))]
    for candidate in candidates:
        if not candidate.exists():
            _make(candidate, remedy)
            return candidate
    raise TraceqError(f"{base}: a hundred runs in one second; {remedy}")


def _make(folder: Path, remedy: str) -> None:
    try:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise TraceqError(f"{folder}: exists and is not empty; a run is never overwritten, {remedy}")
        folder.mkdir(parents=True, exist_ok=True)
        RunFolder(folder).reserve()
    except OSError as fault:
        raise TraceqError(f"{folder}: cannot make this folder: {fault.strerror}; {remedy}") from fault


def resolve_device(wanted: str) -> str:
    """Cpu or cuda; TraceqError when CUDA is asked for and not there."""
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TraceqError("--device cuda: torch finds no CUDA device; --device cpu works everywhere")
    return wanted


def _num_ranks(wanted: int | None, device: str, world_size: int) -> int:
    if world_size:
        if wanted not in {None, world_size}:
            raise UsageFault(f"--ranks {wanted}: the launcher started {world_size}; leave --ranks out")
        return world_size
    import torch

    num_devices = torch.cuda.device_count() if device == "cuda" else 0
    _check_range("--ranks", wanted, 1, max(8, 4 * (num_devices or os.cpu_count() or 1)))
    return wanted or num_devices or DEFAULT_CPU_RANKS


def _check_ranks(arms: Sequence[PlannedArm], num_ranks: int) -> None:
    """UsageFault for an arm that needs more ranks than there are; one with fewer than all needs two of them."""
    for arm in (planned.arm for planned in arms if planned.arm.num_ranks):
        if not arm.num_ranks < num_ranks:
            raise UsageFault(f"--ranks {num_ranks}: arm {arm.name} has {arm.num_ranks} already; expected more")


def _check_range(option: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UsageFault(f"{option} {value}: expected {least} to {most}")
