"""Number of threads of an op on the CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import DEFAULT, Job, Setting

CANDIDATES = tuple(str(number) for number in (1, 2, 4, 8) if number <= (os.cpu_count() or 1))


def create(job: Job, values: Sequence[str]) -> Setting:
    """Return the toggle; UsageFault for anything but positive integers."""
    wrong = [value for value in values if value != DEFAULT and not (value.isdigit() and int(value))]
    if wrong:
        raise UsageFault(f"{wrong[0]}: expected a number of threads")
    return Setting(
        torch.set_num_threads, torch.get_num_threads, [value if value == DEFAULT else int(value) for value in values]
    )
