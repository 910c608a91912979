"""Python's garbage collector in timed steps: off, as in every recording, or on."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from traceq.recorder.toggles.setting import Setting
from traceq.recorder.toggles.toggle import Job

__all__ = ["CANDIDATES", "create"]

CANDIDATES = ("on", "off")


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle; collections of the arm `on` visit the whole program, as they do without a recording."""
    is_frozen_by_the_job = gc.get_freeze_count() > 0

    def set_collector(is_on: bool) -> None:
        if not is_on:
            gc.disable()
            return
        gc.enable()
        if not is_frozen_by_the_job:
            gc.unfreeze()

    settings = {"on": True, "off": False}
    return Setting(set_collector, gc.isenabled, [settings.get(value, value) for value in values])
