"""Toggles whose path is not in the job, before the steps are spent from which its pattern is learned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from traceq.errors import TraceqError, UsageFault
from traceq.recorder.jobs.job_request import ToggleRequest
from traceq.recorder.toggles.toggle import Job, create_toggle

_OPTIMIZER = "optimizer"
_WITHIN_S = 5.0
_POLL_S = 0.01


def check_paths(toggles: Sequence[ToggleRequest], job: Job) -> None:
    """Raise UsageFault for the first path that the job does not have, or whose values it cannot have.

    On several ranks only if all of them have a fault: one alone could not leave, and it is told later, to all.
    """
    fault = _first_fault(toggles, job)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        store = PrefixStore("traceq/paths", dist.distributed_c10d._get_default_store())
        if not _is_on_all_ranks(store, dist.get_rank(), dist.get_world_size(), fault):
            return
    if fault:
        raise UsageFault(fault)


def _first_fault(toggles: Sequence[ToggleRequest], job: Job) -> str:
    """Return why a path cannot be changed; "" if all can, as far as is known before an optimizer has stepped."""
    for toggle in toggles:
        if toggle.name.startswith("@") or (toggle.name.partition(".")[0] == _OPTIMIZER and not job.optimizers):
            continue
        try:
            create_toggle(toggle.name, toggle.values, job)
        except TraceqError as error:
            return str(error)
    return ""


def _is_on_all_ranks(store: Store, rank: int, size: int, fault: str) -> bool:
    """Tell the other ranks whether this one has a fault; return True if all have one. Only those with one wait."""
    store.set(str(rank), "1" if fault else "0")
    if not fault:
        return False
    keys = [str(number) for number in range(size)]
    deadline = time.monotonic() + _WITHIN_S
    with suppress(RuntimeError):
        while not store.check(keys) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return store.check(keys) and all(store.get(key) == b"1" for key in keys)
    return False
