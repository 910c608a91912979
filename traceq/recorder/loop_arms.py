"""Arms of a user's loop: which one the next step runs, and what it changes in the loop's objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traceq.errors import UsageFault
from traceq.recorder.spec.names import check_arm
from traceq.recorder.toggles.attribute_path import Slot, slot_of

__all__ = ["LoopArms", "check_arms"]


@dataclass(slots=True)
class LoopArms:
    """Names of the arms, of which the first is the baseline; `current` is the arm of the step that runs."""

    names: tuple[str, ...]
    current: str
    _is_regular: bool = True
    _toggles: list[tuple[Slot, Any, Mapping[str, Any]]] = field(default_factory=list)

    def add_toggle(self, owner: Any, name: str, values: Mapping[str, Any]) -> None:
        """Let the arms change an attribute or item of an object.

        UsageFault if it does not exist, cannot be changed, or lacks a value for an arm.
        """
        slot = slot_of(owner, name)
        if slot is None:
            raise UsageFault(f"toggle: {type(owner).__name__} has no {name!r}")
        if set(values) != set(self.names):
            raise UsageFault(f"toggle {name!r}: found values for {', '.join(values)}; expected {', '.join(self.names)}")
        before = slot.get()
        try:
            slot.write(before)()
        except (AttributeError, TypeError) as error:
            raise UsageFault(f"toggle {name!r}: cannot be changed: {error}") from error
        self._toggles.append((slot, before, values))
        slot.write(values[self.current])()

    def set(self, arm: str) -> None:
        """Let the next steps run this arm."""
        self.current = arm
        for slot, _, values in self._toggles:
            slot.write(values[arm])()

    def exclude_step(self) -> None:
        """Let the step that runs not count."""
        self._is_regular = False

    def was_regular(self) -> bool:
        """Return whether the step that just ended counts; call it once per step."""
        was_regular, self._is_regular = self._is_regular, True
        return was_regular

    def restore(self) -> None:
        """Restore what the toggles changed; the loop goes on with the baseline."""
        self.current = self.names[0]
        for slot, before, _ in reversed(self._toggles):
            slot.write(before)()
        self._toggles.clear()


def check_arms(names: Sequence[str]) -> None:
    """Raise UsageFault for names of arms that are invalid or not unique."""
    for name in names:
        check_arm(name)
    if len(set(names)) < len(names):
        raise UsageFault(f"arms: found {', '.join(names)}; expected different names")
