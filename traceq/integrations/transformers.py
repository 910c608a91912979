"""Recording of the Trainer of transformers: `Trainer(..., callbacks=[TraceqCallback("run")])`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from traceq.integrations.trainer_recording import TrainerRecording


class TraceqCallback(TrainerCallback):  # type: ignore[misc]
    """Records optimizer steps, each with all its micro-batches; those that evaluate or save do not count.

    `options` are those of `traceq.record`, or with `watch=True` those of `traceq.watch`. Phases: `dataload_wait`,
    `forward_backward`, `optimizer`. The Trainer fetches the batches of a step before it begins, so `dataload_wait` is
    the time for that. Training goes on, unrecorded, after the recording is complete.
    """

    def __init__(self, out: str | Path | None = None, **options: Any) -> None:
        self._recording = TrainerRecording(out, options)

    @property
    def arm(self) -> str:
        """Arm of the step that runs; it changes only where a step begins."""
        return self._recording.arm

    def toggle(self, owner: Any, name: str, **values: Any) -> TraceqCallback:
        """Let the arms change an attribute or item: `toggle(model.config, "threshold", off=0, on=10)`."""
        self._recording.toggle(owner, name, values)
        return self

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin the recording."""
        self._recording.begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin the phase of forward and backward."""
        self._recording.set_phase("forward_backward")

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Begin the phase of the optimizer."""
        self._recording.set_phase("optimizer")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """End the step; what follows, such as logging, belongs to the next one."""
        self._recording.end_step()

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        """Let the step not count."""
        self._recording.exclude_step()

    on_save = on_predict = on_evaluate

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the recording."""
        self._recording.close()

    def on_exception(self, error: BaseException) -> None:
        """End the recording, which says why."""
        self._recording.close(error)


def _reporting_exceptions(train: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Trainer.train` that tells the callbacks of this module of an exception: it tells callbacks nothing."""

    @functools.wraps(train)
    def call(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        try:
            return train(self, *args, **kwargs)
        except BaseException as error:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, TraceqCallback):
                    callback.on_exception(error)
            raise

    return call


Trainer.train = _reporting_exceptions(Trainer.train)
