"""A setting of DDP: whether it broadcasts buffers, such as batch-norm statistics, from rank 0 before each forward."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.parallel import DistributedDataParallel

from traceq.errors import UsageFault
from traceq.recorder.toggles.toggle import DEFAULT, Job

CANDIDATES = ("broadcast_buffers:off",)


class BroadcastToggle:
    """The attribute, which each forward reads; most others are read once, where the reducer is built.

    Without broadcasts the buffers of other ranks than 0 are theirs, until the next broadcast.
    """

    changes_ops = True

    def __init__(self, wrappers: Sequence[DistributedDataParallel], values: Sequence[str]) -> None:
        self._wrappers, self._values = wrappers, values

    def apply(self, number: int) -> None:
        """Broadcast buffers before the next forwards, or not."""
        for wrapper in self._wrappers:
            wrapper.broadcast_buffers = self._values[number] == DEFAULT

    def fault(self, number: int) -> str:
        """Return what the wrapper would do instead."""
        is_sent = self._values[number] == DEFAULT
        differ = any(_sends(wrapper) != is_sent for wrapper in self._wrappers)
        return f"a wrapper {'does not send' if is_sent else 'sends'} its buffers" if differ else ""

    def restore(self) -> None:
        """Broadcast buffers."""
        for wrapper in self._wrappers:
            wrapper.broadcast_buffers = True


def create(job: Job, values: Sequence[str]) -> BroadcastToggle:
    """Return the toggle; UsageFault for a job without a wrapper of DDP that broadcasts buffers."""
    wrappers = [model for model in job.models if isinstance(model, DistributedDataParallel)]
    wrappers = [each for each in wrappers if _sends(each)]
    if not wrappers:
        raise UsageFault("no model is wrapped in DistributedDataParallel that broadcasts buffers")
    return BroadcastToggle(wrappers, values)


def _sends(wrapper: DistributedDataParallel) -> bool:
    return bool(wrapper.will_sync_module_buffers())  # type: ignore[no-untyped-call]
