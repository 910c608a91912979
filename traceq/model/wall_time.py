"""Where the wall time of a recorded job went, as a closed account, and how it used its host's cores: manifest facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Literal

import msgspec

from traceq.frozen import frozen
from traceq.units import Unit, format_value


@frozen
class CoreUse:
    """CPU time of a mean timed step, over ranks; the names of the fields are keys of a manifest's environment.

    `cores_available` to the processes of a host, on which at most `ranks_per_host` run. `step_cpu_ns` of all threads
    of a rank; `worker_cpu_ns` of all workers of its data loader, of which there are `loader_workers`. The core waits
    are times in which threads could have run and had no core, added up over the threads; `thread_core_wait_ns` is that
    of the thread of a rank that waits longest. `other_busy_cores`: cores that processes outside the job kept busy; -1
    where that is not known.
    """

    cores_available: int
    ranks_per_host: int
    loader_workers: int
    timed_step_ns: int
    step_cpu_ns: int
    worker_cpu_ns: int
    step_core_wait_ns: int
    thread_core_wait_ns: int
    worker_core_wait_ns: int
    other_busy_cores: float

    def facts(self) -> dict[str, str | int | float]:
        """Return the fields by name, for a manifest's environment."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @staticmethod
    def of(environment: Mapping[str, str | int | float]) -> CoreUse | None:
        """Return what an environment says; None where nothing was measured, or it is damaged."""
        values = {each.name: environment.get(each.name) for each in fields(CoreUse)}
        if not all(isinstance(value, int | float) for value in values.values()):
            return None
        use = CoreUse(**values)  # type: ignore[arg-type]
        return use if use.timed_step_ns > 0 and use.cores_available > 0 else None

    @property
    def worker_busy(self) -> float:
        """Share of the time in which a worker computes, 0 to 1; 0 without workers."""
        return self._of_worker(self.worker_cpu_ns)

    @property
    def worker_runnable(self) -> float:
        """Share of the time in which a worker computes or waits for a core, 0 to 1; 0 without workers."""
        return self._of_worker(self.worker_cpu_ns + self.worker_core_wait_ns)

    def _of_worker(self, ns: int) -> float:
        return min(ns / self.loader_workers / self.timed_step_ns, 1.0) if self.loader_workers else 0.0


WorkKind = tuple[Literal["checkpoint", "collection", "epoch", "evaluation", "other", "pause", "rollout"], ...]
"""What an irregular step does besides what regular ones do."""

OTHER_STEPS: WorkKind = ("other",)
"""More or less of what regular steps do: the tail of an accumulation, a step that a GradScaler skips."""

NOTABLE_PCT = 10.0
"""Part of the training's time from which anything but regular steps is a finding."""

_KEY = "wall_time"
_NAMES = {
    "checkpoint": ("checkpoint", "checkpoints"),
    "collection": ("garbage collection", "garbage collections"),
    "epoch": ("epoch start", "epoch starts"),
    "evaluation": ("evaluation", "evaluations"),
    "other": ("other step", "other steps"),
    "pause": ("pause", "pauses"),
    "rollout": ("rollout or evaluation", "rollouts or evaluations"),
}
_TITLES = {
    "regular": "regular steps",
    "compiling": "compiling",
    "recompiling": "compiling in steps",
    "learning": "learning what steps are",
    "start_up": "start-up",
    "recording": "recording itself",
}
_SMALL_PCT = 5.0
"""Part of the training's time that the sentence leaves to the table."""


@frozen
class WallPart:
    """A part of the wall time of one rank: `num` times, `ns` together.

    `name`: start_up, compiling (before the steps are known), learning (which steps are usual), regular, recompiling,
    recording (barriers, profiled steps, exports), or the kinds of irregular steps, joined by "+": what these take
    longer than a regular step, on average. `line`: where the main thread was found most often, in `line_pct` of it.
    `weight`: how many of them the steps of the training are due, by the cycles in which they come, for each timed one.
    """

    name: str
    ns: int
    num: int = 0
    line: str = ""
    line_pct: float = 0.0
    weight: float = 1.0

    @property
    def weighed_ns(self) -> float:
        """Time of as many as the steps of the training are due."""
        return self.ns * self.weight

    @property
    def title(self) -> str:
        """Return `regular steps`, `epoch starts`, `evaluations + checkpoints`."""
        return _TITLES.get(self.name) or " + ".join(_NAMES[kind][1] for kind in self.name.split("+"))

    @property
    def is_training(self) -> bool:
        """Whether it is part of the training, from the first step that is known, as it would be unrecorded."""
        return self.name in ("regular", "recompiling") or self.name not in _TITLES

    @property
    def tells_rate(self) -> bool:
        """Whether it is irregular, and known to recur: one pause or garbage collection may be the only one."""
        return self.name != "regular" and (self.num > 1 or not {"collection", "pause"} & {*self.name.split("+")})

    @property
    def counted_text(self) -> str:
        """Return `6 epoch starts (train.py:20 main)`."""
        if self.name in _TITLES:
            return self.title
        of_kinds = " + ".join(_NAMES[kind][self.num > 1] for kind in self.name.split("+"))
        return f"{self.num:,} {of_kinds}" + (f" ({self.line})" if self.line else "")


@frozen
class WallTime:
    """The account of the rank `rank` of `num_ranks`, on which most of the time is in irregular steps.

    Its parts add up to the time from the start of the process to the end of the recording. `samples` of all ranks in
    the training, 0 if unknown, of which `regular_samples` are of steps that were regular, in `regular_ns`;
    `renewed_workers` of the data loader start anew in each epoch.
    """

    parts: tuple[WallPart, ...]
    rank: int = 0
    num_ranks: int = 1
    samples: int = 0
    regular_samples: int = 0
    regular_ns: int = 0
    renewed_workers: int = 0

    def facts(self) -> dict[str, str | int | float]:
        """Return it as a fact for a manifest's environment."""
        return {_KEY: msgspec.json.encode(self).decode()}

    @staticmethod
    def of(environment: Mapping[str, str | int | float]) -> WallTime | None:
        """Return what an environment says; None where nothing was stored, or it is damaged."""
        try:
            account = msgspec.json.decode(str(environment.get(_KEY, "")), type=WallTime)
        except msgspec.MsgspecError:
            return None
        names = {kind for part in account.parts for kind in part.name.split("+")}
        is_whole = names <= {*_NAMES, *_TITLES} and all(part.ns >= 0 and part.num >= 0 for part in account.parts)
        return account if is_whole and account.training_ns else None

    @property
    def training_ns(self) -> int:
        """Time of the training, from the first step that was known."""
        return sum(part.ns for part in self.training)

    @property
    def training(self) -> tuple[WallPart, ...]:
        """Parts of the training, largest first."""
        return tuple(sorted((part for part in self.parts if part.is_training), key=lambda part: -part.weighed_ns))

    @property
    def weighed_ns(self) -> float:
        """Time of the training if each of its parts had come as often as its steps are due."""
        return sum(part.weighed_ns for part in self.training)

    @property
    def irregular_ns(self) -> int:
        """Time of the training that is not in regular steps."""
        return sum(part.ns for part in self.training if part.name != "regular")

    @property
    def irregular_pct(self) -> float:
        """Part of the training's time that is not in regular steps, in percent."""
        return sum(self.share_pct(part) for part in self.training if part.name != "regular")

    def share_pct(self, part: WallPart) -> float:
        """Return a part's share of the training's time, in percent."""
        return 100 * part.weighed_ns / max(self.weighed_ns, 1)

    @property
    def samples_per_second(self) -> float | None:
        """Throughput of the training by the clock; None if the number of samples is unknown."""
        return self.samples * 1e9 / self.weighed_ns if self.samples else None

    @property
    def regular_samples_per_second(self) -> float | None:
        """Throughput in regular steps; None if the number of samples is unknown."""
        return self.regular_samples * 1e9 / self.regular_ns if self.samples and self.regular_ns else None

    @property
    def renews_workers(self) -> bool:
        """Whether the data loader starts its workers anew for each epoch, and that takes a notable part of the time."""
        epochs = next((part for part in self.training if part.name == "epoch"), None)
        return epochs is not None and self.renewed_workers > 0 and self.share_pct(epochs) >= NOTABLE_PCT

    def text(self, where: str = "", where_pct: float = 0.0) -> str:
        """Return where the training's time went, in a sentence; in a second one what avoids most of it, if known.

        `where`: `in backward`, where `where_pct` of the regular steps is, which is most of them.
        """
        inside = {"regular": f" ({format_value(where_pct, Unit.PERCENT)} of them {where})"} if where else {}
        shares = [
            f"{format_value(self.share_pct(part), Unit.PERCENT)} is {part.counted_text}{inside.get(part.name, '')}"
            for part in self.training
            if self.share_pct(part) >= _SMALL_PCT
        ]
        of_rank = f" of rank {self.rank}" if self.num_ranks > 1 else ""
        listed = " and ".join(filter(None, (", ".join(shares[:-1]), shares[-1])))
        where = f"Of {format_value(self.training_ns, Unit.NS)} of training{of_rank}, {listed}"
        return f"{where}{self._throughput}.{self._remedy}"

    @property
    def _throughput(self) -> str:
        """Return `: 625 samples/s by the clock, 2,135 in regular steps`; "" if samples are unknown."""
        rate, regular_rate = self.samples_per_second, self.regular_samples_per_second
        if rate is None or regular_rate is None:
            return ""
        in_regular = f", {_rate(regular_rate)} in regular steps" if self.is_notable else ""
        return f": {_rate(rate)} samples/s by the clock{in_regular}"

    @property
    def is_notable(self) -> bool:
        """Whether what is not in regular steps, and recurs, takes a notable part of the time."""
        return sum(self.share_pct(part) for part in self.training if part.tells_rate) >= NOTABLE_PCT

    @property
    def _remedy(self) -> str:
        if not self.renews_workers:
            return ""
        workers = "worker" if self.renewed_workers == 1 else f"{self.renewed_workers} workers"
        return f" The data loader starts its {workers} anew for each epoch: persistent_workers=True keeps them."


def _rate(rate: float) -> str:
    return format_value(rate, Unit.COUNT if rate >= 100 else Unit.MEAN)
