"""What a recording says of itself, and the steps it measured unprofiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUILT_APART", "Arm", "Manifest", "Pairs", "Processes", "SourceLines", "Timings"]


BUILT_APART = "built_apart"
"""Key of a manifest's environment: names of the arms that have a model each, with a space between them."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant of an experiment. An arm that is not `timed` is only traced, as a reference.

    `against`: the arm that it is compared with; "" for the baseline. `repeats`: the arm whose change it makes once more
    in other surroundings, those of `against`: what the change costs here and there is compared, too.
    `samples_factor`: how many times the samples that the recipe tells a step of this arm trains on. `varied`: the
    parameters that this arm has for itself. `needs`: the device without which it would be another arm once more, and is
    left out; "" for any. `num_ranks`: how many it runs on if it is apart, 0 for all of the run's.
    A recording fills in the rest: `samples_per_step`, that one step of all ranks together trains on, 0 where nobody
    said; of an arm that is apart `facts`, what building and running it found out; `status`, "skipped" or "out of
    memory" where it did not come to its end: `fault` says why.
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
    def ended(self) -> str:
        """`out of memory: ...`, why it did not come to its end; "" where it did."""
        return f"{self.status}: {self.fault}" if self.status else ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was recorded, where and how: `run.json`, and a part of each trace's metadata.

    `run_id` tells two recordings apart, whatever their folders are called. `status` is recording, complete, failed or
    interrupted; `fault` says why. `environment` comes from an allow-list of keys. `phases` are the names of the
    recipe's phases, in order. `started` is when, in UTC (ISO 8601); "" where an older traceq recorded. `apart`: each
    arm ran in processes of its own. `hosts` is where each rank ran, by rank; empty until they have met.
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

    @property
    def baseline(self) -> str:
        """Name of the arm the others are compared with."""
        return next(arm.name for arm in self.arms if arm.baseline)

    def arm(self, name: str) -> Arm | None:
        """The arm of that name."""
        return next((arm for arm in self.arms if arm.name == name), None)

    def told_of(self, name: str) -> Mapping[str, str | int | float]:
        """The environment, and what that arm found out in processes of its own."""
        arm = self.arm(name)
        return {**self.environment, **(arm.facts if arm else {})}

    def ranks_of(self, name: str) -> int:
        """On how many ranks that arm runs."""
        arm = self.arm(name)
        return (arm.num_ranks if arm else 0) or self.num_ranks


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Unprofiled halves of one comparison, interleaved in one process; `a == b` is the A/A control.

    `b_second` bool[P]: True where the pair ran A then B. `first_ns`, `second_ns` int64[R, P]: time of one step of
    the pair's first and second half, on each rank. `num_looks`: how often the recording would have looked at its pairs
    to see whether it may stop; 1 where their number was fixed beforehand. `first_cpu_ns`, `second_cpu_ns` likewise the
    CPU time of the main thread, which knows no waiting; None with a device, or where it was not recorded.
    """

    a: str
    b: str
    b_second: NDArray[np.bool_]
    first_ns: NDArray[np.int64]
    second_ns: NDArray[np.int64]
    num_looks: int = 1
    first_cpu_ns: NDArray[np.int64] | None = None
    second_cpu_ns: NDArray[np.int64] | None = None

    @property
    def is_control(self) -> bool:
        """Both halves are the baseline: what the machine shows where nothing differs."""
        return self.a == self.b


@dataclass(frozen=True, slots=True, eq=False)
class Timings:
    """S unprofiled steps of one arm, the same ones on each of R ranks; warm-up and what settles after it left out.

    `phases`: P names. `step_ns` int64[R, S], `phase_ns` int64[R, S, P]: by the device where `by_device`, else by the
    host; `host_phase_ns` likewise always by the host. `since_pause` int64[S]: steps since the recording last paused.
    `peak_allocated`, `peak_reserved` int64[R]: bytes of the device, 0 without one; `peak_process` int64[R]: bytes of
    the whole process, 0 with one. `num_warmup`: steps before the first that could count.
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


@dataclass(frozen=True, slots=True, eq=False)
class Processes:
    """Unprofiled steps of one arm that ran alone in each of P processes (of a rank; all ranks' are one).

    `process` int64[P]: which of the recording's, ascending. `median_ns` int64[P]: the median step of the job, each step
    as long as on its slowest rank; `num_steps` int64[P] of them. `peak_bytes` int64[P]: most memory, of any rank.
    """

    arm: str
    process: NDArray[np.int64]
    median_ns: NDArray[np.int64]
    num_steps: NDArray[np.int64]
    peak_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SourceLines:
    """Python line of the n-th outermost host op of a name within a phase and step, from a window with stacks.

    `lines` holds `file.py:41 function`; `table` maps "phase|op" to one index into `lines` per occurrence.
    """

    lines: tuple[str, ...]
    table: Mapping[str, tuple[int, ...]]
