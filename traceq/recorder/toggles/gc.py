"""Python's garbage collector in the steps of an arm: on, or off."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from traceq.recorder.toggles.toggle import Job, Setting

CANDIDATES = ("on", "off")


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle; `on` is the collector with the thresholds and the frozen objects of the job."""

    def set_collector(is_on: bool) -> None:
        (gc.enable if is_on else gc.disable)()

    settings = {"on": True, "off": False}
    return Setting(set_collector, gc.isenabled, [settings.get(value, value) for value in values])
