"""Python's garbage collector in timed steps: off, as in every recording, or on."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from traceq.recorder.toggles.setting import Setting
from traceq.recorder.toggles.toggle import Job, check_values

__all__ = ["CANDIDATES", "create"]

CANDIDATES = ("on", "off")


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle."""
    check_values(values, ("off", "on"))
    settings = {"on": True, "off": False}
    return Setting(_set_collector, gc.isenabled, [settings.get(value, value) for value in values])


def _set_collector(is_on: bool) -> None:
    if is_on:
        gc.enable()
    else:
        gc.disable()
