"""How a recording controls the loop whose steps it records, where traceq does not own that loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LoopControl"]


def _ignore(arm: str) -> None:
    """Do nothing: the loop reads the arm of each step from the recording."""


@dataclass(frozen=True, slots=True)
class LoopControl:
    """Calls into the loop between two of its steps.

    `set_arm` makes the loop run this arm from the next step on; it does not count as part of a step. `was_regular`
    returns whether the step that just ended did what every step does, and no evaluation or checkpoint; None if the
    loop has only regular steps. Irregular steps do not count.
    """

    set_arm: Callable[[str], None] = _ignore
    was_regular: Callable[[], bool] | None = None

    def is_regular(self) -> bool:
        """Return whether the step that just ended may count."""
        return self.was_regular is None or self.was_regular()
