"""Recording of a loop of accelerate: `for batch in recorded_batches(recording, loader, accelerator):`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from accelerate import Accelerator

from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.recorder.user_loop import Session, Stepper

B = TypeVar("B")


def recorded_batches(recording: Session, loader: Iterable[B], accelerator: Accelerator) -> Iterator[B]:
    """Yield all batches of a loader; a step ends with the batch after which gradients were synchronized.

    Phases: `dataload_wait`, `forward`, `backward` in `accelerator.backward`, and `optimizer` after it. Batches
    continue, unrecorded, after the recording is complete.
    """
    backward = accelerator.backward
    with recording.stepper() as stepper:
        accelerator.backward = _with_phases(backward, stepper)
        try:
            for batch in loader:
                stepper.set_phase("forward")
                yield batch
                if accelerator.sync_gradients:
                    stepper.end_step()
                else:
                    stepper.set_phase(DATALOAD_WAIT)
        finally:
            accelerator.backward = backward


def _with_phases(backward: Callable[..., None], stepper: Stepper) -> Callable[..., None]:
    def call(*args: Any, **kwargs: Any) -> None:
        stepper.set_phase("backward")
        backward(*args, **kwargs)
        stepper.set_phase("optimizer")

    return call
