"""Valid names of phases, which are stored in traces, and of arms, which are folders of a run."""

from __future__ import annotations

import re

from traceq.errors import UsageFault

__all__ = ["check_arm", "check_phase"]

_PHASE = re.compile(r"[A-Za-z0-9_.:/#-]+")  # Kineto corrupts quotes, backslashes and non-ASCII characters
_ARM = re.compile(r"[A-Za-z0-9_.=,+-]+")  # an arm is a folder
_RESERVED = ("steps", "logs", "stalled", "faults")


def check_phase(name: str) -> None:
    """Raise UsageFault for a phase name that a trace would corrupt."""
    if not _PHASE.fullmatch(name):
        raise UsageFault(f"phase {name!r}: phase names may contain only letters, digits and _.:/#-")


def check_arm(name: str) -> None:
    """Raise UsageFault for an arm name that cannot be a folder of a run."""
    if not _ARM.fullmatch(name) or set(name) <= {"."} or name in _RESERVED:
        raise UsageFault(
            f"arm {name!r}: arm names may contain only letters, digits and _.=,+-; {', '.join(_RESERVED)} are reserved"
        )
