"""What is to be recorded of a job: written by the launcher beside the injected module, read by every process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from traceq.errors import UsageFault
from traceq.locations import Most, read_whole
from traceq.model import Arm, Fact
from traceq.recorder.spec.parameters import as_arm, check_arm, split_assignment
from traceq.recorder.spec.plan import DEFAULT_HANG_S

DEFAULT_GRACE_S = 30.0
MODERATE = Fact("loss", "loss, mean over recorded steps")
"""What is noted of the arms of every job, besides their time."""

Improves = Literal["", "survey", "trial", "together"]
"""Part of `traceq improve`: the job as it is, toggles that are tried unasked, or all that gain as one arm."""


class ToggleRequest(msgspec.Struct, frozen=True):
    """`--toggle NAME=A,B`: a dotted path or `@built_in`, and the values of the arms as they were typed."""

    name: str
    values: tuple[str, ...]


class JobRequest(msgspec.Struct, frozen=True):
    """Options of `traceq record -- COMMAND`; `steps` None is the default of the device.

    `stops`: the job ends when the recording is complete, within `grace_s` seconds. `is_dry`: nothing is recorded, the
    job ends once it is known what could be; `of_loader`: its loader alone; `is_watched`: every step is timed, until the
    job ends. If arms have processes of their own, this one runs `arm`, and is the `process`-th of all. `watch`: the
    folder through which the launcher watches the ranks of its own host, for progress within `hang_s`. `command` as it
    was typed.
    """

    out: str
    run_id: str
    seed: int
    started: str
    toggles: tuple[ToggleRequest, ...] = ()
    steps: int | None = None
    max_minutes: float = 0.0
    trace_steps: int = 3
    stops: bool = True
    grace_s: float = DEFAULT_GRACE_S
    improves: Improves = ""
    is_dry: bool = False
    of_loader: bool = False
    is_watched: bool = False
    arm: Arm | None = None
    process: int = -1
    replicates: int = 0
    hang_s: float = DEFAULT_HANG_S
    watch: str = ""
    command: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write the request for the processes of the job."""
        path.write_bytes(msgspec.json.encode(self))

    @staticmethod
    def read(path: Path) -> JobRequest:
        """Return the request that the launcher wrote."""
        return msgspec.json.decode(read_whole(path, Most.STATUS), type=JobRequest)


class JobArm(msgspec.Struct, frozen=True):
    """An arm of a job: the number of its value for each toggle."""

    arm: Arm
    values: tuple[int, ...]


def parse_toggle(text: str) -> ToggleRequest:
    """Return the toggle of `--toggle NAME=A,B`; UsageFault for fewer than two values."""
    if "=" not in text:
        raise UsageFault(f"--toggle {text}: expected NAME=A,B")
    name, joined = split_assignment(text, "--toggle")
    values = tuple(value.strip() for value in joined.split(","))
    if len(values) < 2 or not all(values):
        raise UsageFault(f"--toggle {text}: expected at least two values, NAME=A,B")
    if "." not in name and not name.startswith("@"):
        raise UsageFault(
            f"--toggle {text}: expected a path such as main.{name}, model.{name} or package.module.{name}, or a "
            f"built-in toggle such as @{name}"
        )
    return ToggleRequest(name, values)


def job_arms(toggles: Sequence[ToggleRequest], *, together: bool = False) -> tuple[JobArm, ...]:
    """Return the arms: all first values, which is the baseline, then each other value of each toggle alone.

    With `together`, one other arm has all last values.
    """
    if not toggles:
        return (JobArm(Arm("run", "the job as it is", baseline=True), ()),)
    arms: list[JobArm] = []
    for values in _settings(toggles, together=together):
        changed = [number for number, value in enumerate(values) if value] or range(len(toggles))
        settings = [(toggles[number].name, toggles[number].values[values[number]]) for number in changed]
        changes = [(name, value) for name, value in settings if value != "default"]
        name = ",".join(f"{name.lstrip('@').rpartition('.')[2]}={value}" for name, value in changes) or "as_is"
        name = _unique(as_arm(name), [each.arm.name for each in arms])
        check_arm(name)
        meaning = ", ".join(f"{name} = {value}" for name, value in changes) or "the job as it is"
        arms.append(JobArm(Arm(name, meaning, baseline=not arms, varied=dict(settings)), values))
    return tuple(arms)


def _settings(toggles: Sequence[ToggleRequest], *, together: bool) -> Iterator[tuple[int, ...]]:
    yield (0,) * len(toggles)
    if together:
        yield tuple(len(toggle.values) - 1 for toggle in toggles)
        return
    for number, toggle in enumerate(toggles):
        for value in range(1, len(toggle.values)):
            yield tuple(value if each == number else 0 for each in range(len(toggles)))


def _unique(name: str, taken: Sequence[str]) -> str:
    """Return the name, or one with a number: two equal values show what the same job differs from itself."""
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique
