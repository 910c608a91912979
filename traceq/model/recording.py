"""Manifest of a recording, and the steps that it measured unprofiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from traceq.frozen import frozen
from traceq.units import Unit

BUILT_APART = "built_apart"
"""Key of a manifest's environment: names of the arms that were built with separate models, separated by spaces."""


NO_EFFECT = "no effect"
"""Status of an arm that changed nothing: it issues the same ops as the baseline, and has no verdict."""

MUCH_SLOWER = "much slower"
"""Status of an arm that was left out after its first steps, as they took many times those of the baseline."""

BATCHES_PER_STEP = "batches_per_step"
"""Fact of an arm: how many batches a usual step asks for, on average."""

DDP_PARAMETERS = "ddp_parameters"
"""Fact: parameters that require a gradient, of the only model in which DDP looks for unused ones."""

MEMORY_BEFORE, MEMORY_AFTER = "memory_before_bytes", "memory_after_bytes"
"""Facts of rank 0: memory of the device's tensors, or of the process, as its unprofiled steps begin and end."""


def memory_growth(facts: Mapping[str, str | int | float]) -> float:
    """Return by what part of it the memory grew in unprofiled steps; 0 where that was not read."""
    before, after = (float(facts.get(key, 0)) for key in (MEMORY_BEFORE, MEMORY_AFTER))
    return after / before - 1 if before > 0 else 0.0


KEPT_BYTES, KEPT_LINE = "kept_bytes", "kept_line"
"""Facts of rank 0, if its memory grew: bytes of one step that outlive it beyond those that it frees, line of most."""

OPTIMIZER_STEPS = "optimizer_steps."
"""Before the name of an optimizer, O0 or O1: the fact of an arm how often it steps in a usual step."""


@frozen
class Arm:
    """One variant of an experiment. An arm that is not `timed` is only traced, as a reference.

    `against`: the arm that it is compared with; "" for the baseline. `repeats`: the arm whose change it makes again in
    another context, that of `against`; the costs of the change in the two contexts are compared, too.
    `samples_factor`: multiple of the recipe's samples per step that a step of this arm trains on. `varied`: the
    parameters that differ in this arm. `needs`: the device without which it would equal another arm, and is left out;
    "" for any. `num_ranks`: number of ranks if it runs in separate processes, 0 for all ranks of the run.
    A recording fills in the rest: `samples_per_step`, on which one step of all ranks together trains, 0 if unknown;
    `facts` from building and running an arm in separate processes, and OPTIMIZER_STEPS of an unedited job; `status`,
    "skipped" or "out of memory" if it did not complete, MUCH_SLOWER or NO_EFFECT, for the reason in `fault`.
    """

    name: str
    meaning: str
    baseline: bool = False
    timed: bool = True
    samples_per_step: int = 0
    varied: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    samples_factor: int = 1
    against: str = ""
    repeats: str = ""
    needs: str = ""
    num_ranks: int = 0
    status: str = ""
    fault: str = ""
    facts: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def failure(self) -> str:
        """Why it did not complete, as `out of memory: ...`; "" if it did."""
        return f"{self.status}: {self.fault}" if self.status else ""


@frozen
class Fact:
    """Something that a recipe measures of each arm besides its time, under `key` in the arm's facts.

    Where arms share a process, it is in the run's environment under `<key>.<arm>`, or under `key` if it holds for all
    of them. `of_run`: one value for all arms, printed once.
    """

    key: str
    title: str
    unit: Unit = Unit.TEXT
    of_run: bool = False


@frozen
class Manifest:
    """Description of a recording: `run.json`, and a part of each trace's metadata.

    `run_id` is unique, whatever the folder is called. `status` is recording, complete, failed or interrupted, for the
    reason in `fault`. `environment` comes from an allow-list of keys. `phases` are the names of the recipe's phases, in
    order. `started` is the start time in UTC (ISO 8601); "" in recordings of older versions. `apart`: each arm ran in
    separate processes. `hosts` are the host names by rank; empty until all ranks have connected. `facts`: what the
    recipe measures besides time.
    """

    version: int
    run_id: str
    recipe: str
    question: str
    parameters: Mapping[str, str | int | float | bool]
    arms: tuple[Arm, ...]
    phases: tuple[str, ...]
    num_ranks: int
    seed: int
    status: str = "recording"
    fault: str = ""
    environment: Mapping[str, str | int | float] = field(default_factory=dict)
    started: str = ""
    apart: bool = False
    hosts: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def baseline(self) -> str:
        """Name of the arm the others are compared with."""
        return next(arm.name for arm in self.arms if arm.baseline)

    def arm(self, name: str) -> Arm | None:
        """Return the arm of that name, None if there is none."""
        return next((arm for arm in self.arms if arm.name == name), None)

    def facts_for(self, name: str) -> Mapping[str, str | int | float]:
        """Return the environment, updated by the facts of an arm that ran in separate processes."""
        arm = self.arm(name)
        return {**self.environment, **(arm.facts if arm else {})}

    def fact(self, key: str, arm: Arm | None = None) -> str | int | float | None:
        """Return a fact of an arm, or of the run; None if it was not measured."""
        if arm is None:
            of_arms = (each.facts[key] for each in self.arms if key in each.facts)
            return self.environment.get(key, next(of_arms, None))
        of_process = self.environment.get(f"{key}.{arm.name}", self.environment.get(key))
        return arm.facts.get(key, of_process if arm.timed else None)

    def num_ranks_of(self, name: str) -> int:
        """Return the number of ranks on which an arm runs."""
        arm = self.arm(name)
        return (arm.num_ranks if arm else 0) or self.num_ranks


@frozen
class EventKind:
    """Kind of events; `is_shared` if one falls into whichever step is next, not into the one that brought it on."""

    name: str
    is_shared: bool


@frozen(eq=False)
class PairedEvents:
    """Events of K kinds in both halves of P pairs on R ranks.

    `num`, `ns` int64[R, P, 2, K]: of all steps of a half; `counted_ns` likewise: per step that counts. `num_steps`
    int64[R, P, 2] of the halves; `brought` likewise: what brings on shared events, as allocated objects do collections.
    """

    kinds: tuple[EventKind, ...]
    num: NDArray[np.int64]
    ns: NDArray[np.int64]
    counted_ns: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    brought: NDArray[np.int64]


@frozen(eq=False)
class Pairs:
    """Unprofiled halves of one comparison, interleaved in one process; `a == b` is the A/A control.

    `b_second` bool[P]: True where the pair ran A then B. `first_ns`, `second_ns` int64[R, P]: time of one step of
    the pair's first and second half, on each rank. `num_looks`: number of planned interim analyses of a recording that
    may stop early; 1 if the number of pairs was fixed. `first_cpu_ns`, `second_cpu_ns`: likewise CPU time of the main
    thread (excludes blocked time); None with a device, or if it was not recorded. `events`: those that were recorded.
    """

    a: str
    b: str
    b_second: NDArray[np.bool_]
    first_ns: NDArray[np.int64]
    second_ns: NDArray[np.int64]
    num_looks: int = 1
    first_cpu_ns: NDArray[np.int64] | None = None
    second_cpu_ns: NDArray[np.int64] | None = None
    events: PairedEvents | None = None

    @property
    def is_control(self) -> bool:
        """Whether both halves are the same arm (A/A), which measures the noise floor."""
        return self.a == self.b


@frozen(eq=False)
class PairedSteps:
    """Pairs of S steps: `pair`, `half` int64[S], its number and 0 or 1; `partners`: the arms of the other halves."""

    pair: NDArray[np.int64]
    half: NDArray[np.int64]
    partners: tuple[str, ...]


@frozen
class Pauses:
    """Garbage collections of one kind in all steps of a rank."""

    name: str
    num: int
    ns: int


@frozen(eq=False)
class Timings:
    """S unprofiled steps of one arm, the same ones on each of R ranks, without warm-up and settling steps.

    `phases`: P names. `step_ns` int64[R, S], `phase_ns` int64[R, S, P]: by the device where `by_device`, else by the
    host; `host_phase_ns` and `host_step_ns` likewise always by the host. `since_pause` int64[S]: steps since the
    recording last paused.
    `peak_allocated`, `peak_reserved` int64[R]: device bytes, 0 without a device; `peak_process` int64[R]: bytes of the
    whole process, 0 with a device. `num_warmup`: steps before the first counted one. `of_pairs`: of steps in pairs.
    `pauses`: garbage collections of the rank that spends most time in them, longest first. `cpu_ns` int64[R, S] of the
    main threads, None where it is not known.
    """

    phases: tuple[str, ...]
    step_ns: NDArray[np.int64]
    phase_ns: NDArray[np.int64]
    host_phase_ns: NDArray[np.int64]
    since_pause: NDArray[np.int64]
    peak_allocated: NDArray[np.int64]
    peak_reserved: NDArray[np.int64]
    peak_process: NDArray[np.int64]
    num_warmup: int
    by_device: bool
    host_step_ns: NDArray[np.int64]
    of_pairs: PairedSteps | None = None
    pauses: tuple[Pauses, ...] = ()
    cpu_ns: NDArray[np.int64] | None = None


@frozen(eq=False)
class Processes:
    """Unprofiled steps of one arm that ran alone in P processes; the processes of all ranks count as one.

    `process` int64[P]: number of the process in the recording, ascending. `median_ns` int64[P]: median step of the job,
    each step as long as on its slowest rank; `num_steps` int64[P]. `peak_bytes` int64[P]: maximum over the ranks.
    """

    arm: str
    process: NDArray[np.int64]
    median_ns: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    peak_bytes: NDArray[np.int64]


@frozen
class SourceLines:
    """Python lines of the main thread in a step, from a window with stacks.

    `lines` holds `file.py:41 function`; `table` maps "phase|op" to one index into `lines` per outermost occurrence in
    the step. `between` holds lines of Python in no op, by what comes before it: "phase|op" of an op, "phase|" of the
    begin of a phase, "|phase" of its end, "|" of the begin of the step; of each occurrence (index into `lines`, percent
    of the time) in the order in which they run, none where no line is known.
    """

    lines: tuple[str, ...]
    table: Mapping[str, tuple[int, ...]]
    between: Mapping[str, tuple[tuple[tuple[int, int], ...], ...]] = field(default_factory=dict)
