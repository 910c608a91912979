"""Names of phases and arms: what a trace, or a folder of a run, can hold."""

from __future__ import annotations

import re

from traceq.errors import UsageFault

__all__ = ["check_arm", "check_phase"]

_PHASE = re.compile(r"[A-Za-z0-9_.:/#-]+")  # Kineto corrupts anything else: quotes, backslashes, non-ASCII
_ARM = re.compile(r"[A-Za-z0-9_.=,+-]+")  # an arm is a folder
_RESERVED = ("steps", "logs", "stalled", "faults")


def check_phase(name: str) -> None:
    """UsageFault for a name that a trace cannot hold."""
    if not _PHASE.fullmatch(name):
        raise UsageFault(f"phase {name!r}: only letters, digits and _.:/#- survive in a trace")


def check_arm(name: str) -> None:
    """UsageFault for a name that cannot be a folder of a run."""
    if not _ARM.fullmatch(name) or set(name) <= {"."} or name in _RESERVED:
        taken = f"{', '.join(_RESERVED)} are taken"
        raise UsageFault(f"arm {name!r}: only letters, digits and _.=,+- name a folder; {taken}")
