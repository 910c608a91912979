"""What an experiment is: a question, the arms it compares, and a function that builds the step they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from traceq.errors import TraceqError, UsageFault
from traceq.model import Arm
from traceq.recorder.spec.context import Context
from traceq.recorder.spec.names import check_arm, check_phase

__all__ = ["Outcome", "Recipe", "Skip", "Step", "check_names"]

P = TypeVar("P")
Step: TypeAlias = Callable[[str], None]
"""Runs one training step the way the arm of that name does."""


class Skip(TraceqError):
    """Raised by `build`, on every rank, where an arm that runs apart cannot run here: the others do, and the run says
    why this one did not.
    """


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an arm that ran apart ended: `arm.status` is "" if well, else "skipped" or "out of memory"; `arm.facts` are
    what its `build` noted. `step_ns` is the median unprofiled step of the job, `peak_bytes` the most memory of any
    rank; both are 0 where no step was timed.
    """

    arm: Arm
    step_ns: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Recipe(Generic[P]):
    """One experiment. A variant is `dataclasses.replace(recipe, parameters=replace(recipe.parameters, size="small"))`.

    `build(context, parameters)` is called once on every rank and returns the step all arms share: the same model, the
    same optimizer, so that nothing but the arm differs. `parameters` is a frozen dataclass whose defaults are the
    recipe's; annotate with Literal or msgspec.Meta to have values checked before anything starts.
    `varied` is the arm that `--vary` turns into one arm a value (the baseline unless named). `samples_per_rank` tells
    from the parameters how many samples a step of one rank trains on, gradient accumulation included (of an arm that
    takes larger batches, `Arm(samples_factor=)` times as many): arms that differ in that are then compared by the time
    a sample takes. `steps`: how many unprofiled steps of each arm are measured where nobody says; 0 leaves it to the
    device. `trace_steps` likewise is how many are profiled, 3 if it is None.
    `apart`: arms cannot share a process, so each has processes of its own (`Context.arm` tells which it is), one after
    another; a process is then what is repeated, `replicates` times where nobody says, 0 leaving that to the device. Of
    such a recipe an arm may have parameters (`Arm(varied=)`) and a number of ranks (`Arm(num_ranks=)`) of its own, and
    `next_arms(parameters, outcomes)` may name further arms when the ones before them have run, until it names none.
    `varied_apart`: parameters of which two values cannot share a process; `--vary` of one has the arms run apart.
    """

    question: str
    phases: tuple[str, ...]
    parameters: P
    build: Callable[[Context, P], Step]
    arms: tuple[Arm, ...] = (Arm("run", "the step as it is", baseline=True),)
    varied: str = ""
    samples_per_rank: Callable[[P], int] | None = None
    steps: int = 0
    trace_steps: int | None = None
    apart: bool = False
    replicates: int = 0
    varied_apart: tuple[str, ...] = ()
    next_arms: Callable[[P, Sequence[Outcome]], Sequence[Arm]] | None = None

    @property
    def baseline(self) -> Arm:
        """The arm the others are compared with."""
        return next(arm for arm in self.arms if arm.baseline)

    def runs_apart(self, arms: Iterable[Arm]) -> bool:
        """Each of these arms has processes of its own."""
        return self.apart or any(arm.varied.keys() & set(self.varied_apart) for arm in arms)


def check_names(recipe: Recipe[Any], where: str) -> None:
    """UsageFault unless phases and arms can be written, exactly one timed arm is the baseline, and what arms name is
    timed, too.
    """
    for name in recipe.phases:
        check_phase(name)
    for arm in recipe.arms:
        check_arm(arm.name)
    names = [arm.name for arm in recipe.arms]
    if len(set(names)) < len(names):
        raise UsageFault(f"{where}: two arms have the same name: {', '.join(names)}")
    if [arm.timed for arm in recipe.arms if arm.baseline] != [True]:
        raise UsageFault(f"{where}: exactly one timed arm has to be the baseline")
    if recipe.baseline.needs:
        raise UsageFault(f"{where}: arm {recipe.baseline.name!r}: the baseline has to run on any device")
    timed = {arm.name for arm in recipe.arms if arm.timed}
    for arm in recipe.arms:
        if unknown := {arm.against, arm.repeats} - {""} - (timed - {arm.name}):
            raise UsageFault(f"{where}: arm {arm.name!r} names {', '.join(sorted(unknown))}: no other timed arm")
    if recipe.varied and recipe.varied not in names:
        raise UsageFault(f"{where}: varied={recipe.varied!r} is none of its arms: {', '.join(names)}")
    if not recipe.apart and (recipe.next_arms or any(arm.num_ranks or arm.varied for arm in recipe.arms)):
        raise UsageFault(f"{where}: next_arms=, and Arm(num_ranks=) or Arm(varied=), need Recipe(apart=True)")
