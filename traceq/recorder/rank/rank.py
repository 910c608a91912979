"""Everything one rank records with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from traceq.model import Manifest
from traceq.recorder.process.progress_counters import Pulse
from traceq.recorder.process.rank_messages import append_message
from traceq.recorder.process.world import World
from traceq.recorder.rank.environment import environment_facts
from traceq.recorder.spec.phases import Phases
from traceq.recorder.spec.plan import Plan

__all__ = ["Rank"]


@dataclass(frozen=True, slots=True)
class Rank:
    """This rank of a plan. `facts` is what building and running found out, for the manifest."""

    plan: Plan
    world: World
    phases: Phases
    pulse: Pulse
    facts: dict[str, str | int | float] = field(default_factory=dict)

    def publish(self, manifest: Manifest) -> Manifest:
        """The manifest with what is known by now; rank 0 writes it."""
        environment = {**environment_facts(self.world), **self.facts}
        known = replace(manifest, phases=self.phases.names, environment=environment)
        if self.world.rank == 0:
            self.plan.folder.write_manifest(known)
        return known

    def note(self, arm: str, what: str, value: str) -> None:
        """Keep a fact about an arm, under its name where arms share a process."""
        self.facts[what if self.plan.process >= 0 else f"{what}.{arm}"] = value

    def say(self, text: str) -> None:
        """Tell whoever watches the recording; rank 0 has the word."""
        if self.world.rank == 0:
            append_message(self.plan.news, text)

    def reseed(self, draw: int) -> None:
        """Restart the random numbers; torch.manual_seed asks every backend and takes 80 us, this 2."""
        torch.default_generator.manual_seed(self.plan.seed + draw)
        if self.world.device.type == "cuda":
            torch.cuda.default_generators[self.world.device.index].manual_seed(self.plan.seed + draw)
