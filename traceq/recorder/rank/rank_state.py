"""State and resources of one rank during a recording."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from traceq.model import MUCH_SLOWER, Manifest
from traceq.recorder.process.child_processes import daemonic_children
from traceq.recorder.process.progress_counters import ProgressCounters, append_message
from traceq.recorder.process.world import World
from traceq.recorder.rank.environment_facts import blocking_warning, cpu_peak_facts, environment_facts
from traceq.recorder.rank.wall_account import WallAccount, slowest_account
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan

_MOST_LINES = 30


@dataclass(frozen=True, slots=True)
class LoaderWorkers:
    """`pids` of the living workers: the daemons that multiprocessing started, unless the loader is known.

    `sample` lets them count which lines they run, for a few seconds; `lines` waits for it and returns the counts.
    Each epoch starts `num_renewed` of them anew.
    """

    pids: Callable[[], Sequence[int]] = daemonic_children
    sample: Callable[[], object] = tuple
    lines: Callable[[], Mapping[str, int]] = dict
    num_renewed: int = 0


def loader_settings(loader: DataLoader[Any]) -> dict[str, int]:
    """Return `num_workers` and `prefetch_factor` (0 without workers) of a loader, as facts for the manifest."""
    num_workers = loader.num_workers
    return {"num_workers": num_workers, "prefetch_factor": (loader.prefetch_factor or 0) if num_workers else 0}


def worker_line_facts(ranks: Sequence[Mapping[str, int]]) -> dict[str, str | int | float]:
    """Return the lines that workers of all ranks ran most, as facts for the manifest; empty without a sample."""
    counts: Counter[str] = Counter()
    for of_rank in ranks:
        counts.update(of_rank)
    if not counts:
        return {}
    return {"worker_samples": counts.total(), "worker_lines": json.dumps(counts.most_common(_MOST_LINES))}


_OURS = "traceq"


@dataclass(frozen=True, slots=True)
class LoopControl:
    """Calls into the loop between two of its steps.

    `set_arm` makes the loop run this arm from the next step on; it does not count as part of a step. `was_regular`
    returns whether the step that just ended did what every step does, and no evaluation or checkpoint; None if the
    loop has only regular steps. Irregular steps do not count.
    """

    set_arm: Callable[[str], None] = lambda _: None  # the loop reads the arm of each step from the recording
    was_regular: Callable[[], bool] | None = None

    def is_regular(self) -> bool:
        """Return whether the step that just ended may count."""
        return self.was_regular is None or self.was_regular()


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a plan. `facts`: what was learned while building and running, for the manifest.

    `left_out`: arms of the plan that run no longer, with the reason. `account` of a loop that is not traceq's own, on
    `samples_per_step` of this rank, on average; 0 if unknown.
    """

    plan: Plan
    world: World
    phases: Phases
    progress: ProgressCounters
    facts: dict[str, str | int | float] = field(default_factory=dict)
    control: LoopControl = field(default_factory=LoopControl)
    workers: LoaderWorkers = field(default_factory=LoaderWorkers)
    left_out: dict[str, str] = field(default_factory=dict)
    account: WallAccount = field(default_factory=WallAccount)
    samples_per_step: Callable[[], float] = float

    @property
    def remaining(self) -> Rank:
        """The same rank, with a plan of the arms that still run."""
        arms = tuple(planned for planned in self.plan.arms if planned.arm.name not in self.left_out)
        return replace(self, plan=replace(self.plan, arms=arms))

    def publish(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the phases and facts so far; rank 0 writes it."""
        if self.world.device.type == "cpu":
            self.facts.update(cpu_peak_facts(self.facts))
        environment = {**environment_facts(self.world), **self.facts}
        arms = tuple(
            replace(arm, status=MUCH_SLOWER, fault=self.left_out[arm.name]) if arm.name in self.left_out else arm
            for arm in manifest.arms
        )
        current = replace(manifest, arms=arms, phases=self.phases.names, environment=environment)
        if self.world.rank == 0:
            self.plan.folder.write_manifest(current)
        return current

    def update_manifest(self) -> None:
        """Add the facts so far to the manifest, unless they are those of one arm of several; rank 0 writes it."""
        if self.world.rank == 0 and self.plan.process < 0:
            manifest = self.plan.folder.read_manifest()
            self.plan.folder.write_manifest(replace(manifest, environment={**manifest.environment, **self.facts}))

    def note_wall_time(self) -> None:
        """Store where the wall time of a loop with irregular steps went so far; all ranks call it."""
        if self.control.was_regular is not None:
            self.account.charge("recording")
            samples = sum(self.world.gather(self.samples_per_step()))
            account = self.account.account(self.world.rank, self.world.size, samples, self.workers.num_renewed)
            self.facts.update(slowest_account(self.world, account).facts())

    def warn_of_blocking(self) -> None:
        """Print that launches wait for their kernels, if they do: it is another program that is timed then."""
        if warning := blocking_warning(environment_facts(self.world)):
            self.say(f"traceq: note: {warning}")

    def note(self, arm: str, key: str, value: str) -> None:
        """Store a fact about an arm, with the arm in the key if arms share a process."""
        self.facts[key if self.plan.process >= 0 else f"{key}.{arm}"] = value

    def say(self, text: str) -> None:
        """Print a message for the user; rank 0 prints, other ranks do nothing.

        Among the lines of a loop that is the user's, each of ours begins with `traceq`.
        """
        if self.world.rank == 0:
            is_among_others = not self.plan.recipe and not text.startswith(_OURS)
            append_message(self.plan.messages_path, f"{_OURS}: {text}" if is_among_others else text)

    def reseed(self, draw: int) -> None:
        """Reset the random seed in 2 us; torch.manual_seed visits every backend and takes 80 us."""
        torch.default_generator.manual_seed(self.plan.seed + draw)
        if self.world.device.type == "cuda":
            torch.cuda.default_generators[self.world.device.index].manual_seed(self.plan.seed + draw)
