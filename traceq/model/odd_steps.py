"""Steps of a recorded loop that did more or less than the others and do not count, as facts of its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from traceq.frozen import frozen
from traceq.units import Unit, format_value

__all__ = ["OddSteps"]


@frozen
class OddSteps:
    """How many of the timed steps of rank 0 do not count, and their time; fields are keys of a manifest's environment.

    Stored where they took a tenth of the time or more. The first step of an epoch, evaluations and checkpoints are
    such steps, and all that an agent does between two updates. `odd_loading_ns` of their time is for the data loader,
    whose workers are `renewed_workers` if each epoch starts others, else 0.
    """

    odd_steps: int
    all_steps: int
    odd_steps_ns: int
    all_steps_ns: int
    odd_loading_ns: int = 0
    renewed_workers: int = 0

    def facts(self) -> dict[str, str | int | float]:
        """Return the fields by name, for a manifest's environment."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @staticmethod
    def of(environment: Mapping[str, str | int | float]) -> OddSteps | None:
        """Return what an environment says; None where nothing was stored, or it is damaged."""
        values = {each.name: environment.get(each.name, each.default) for each in fields(OddSteps)}
        if not all(isinstance(value, int) and value >= 0 for value in values.values()):
            return None
        odd = OddSteps(**values)  # type: ignore[arg-type]
        return odd if odd.odd_steps and odd.odd_steps_ns and odd.all_steps_ns else None

    @property
    def share_pct(self) -> float:
        """Their part of the time, in percent."""
        return 100 * self.odd_steps_ns / self.all_steps_ns

    @property
    def text(self) -> str:
        """How many steps they are and what they take, in words."""
        return (
            f"{self.odd_steps:,} of {self.all_steps:,} steps did more or less than the others, such as to begin an "
            f"epoch, evaluate, save or act, and do not count: they took {format_value(self.odd_steps_ns, Unit.NS)} of "
            f"{format_value(self.all_steps_ns, Unit.NS)} ({format_value(self.share_pct, Unit.PERCENT)}){self._loading}"
        )

    @property
    def _loading(self) -> str:
        """That most of their time is for the loader, and whether it starts others for each epoch; "" of less time."""
        if 2 * self.odd_loading_ns < self.odd_steps_ns:
            return ""
        waits = f", {format_value(self.odd_loading_ns, Unit.NS)} of it for the data loader"
        if not self.renewed_workers:
            return waits
        workers = "worker" if self.renewed_workers == 1 else f"{self.renewed_workers} workers"
        return f"{waits}, which starts its {workers} anew for each epoch: persistent_workers=True keeps them"
