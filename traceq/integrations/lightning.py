"""Recording of a Lightning trainer: `Trainer(callbacks=[TraceqCallback("run")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Callback

from traceq.integrations.trainer_recording import TrainerRecording


class TraceqCallback(Callback):  # type: ignore[misc]
    """Records optimizer steps, each with all its micro-batches; those that validate or save do not count.

    `options` are those of `traceq.record`, or with `watch=True` those of `traceq.watch`. Phases: `dataload_wait`,
    `forward`, `backward`, `optimizer`, which lasts to the end of the batch. Training goes on, unrecorded, after the
    recording is complete.
    """

    def __init__(self, out: str | Path | None = None, **options: Any) -> None:
        self._recording = TrainerRecording(out, options)
        self._num_steps = 0

    @property
    def arm(self) -> str:
        """Arm of the step that runs; it changes only where a step begins."""
        return self._recording.arm

    def toggle(self, owner: Any, name: str, **values: Any) -> TraceqCallback:
        """Let the arms change an attribute or item: `toggle(module.hparams, "threshold", off=0, on=10)`."""
        self._recording.toggle(owner, name, values)
        return self

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Begin the recording."""
        self._num_steps = trainer.global_step
        self._recording.begin()

    def on_train_batch_start(self, *_: Any) -> None:
        """Begin the forward."""
        self._recording.set_phase("forward")

    def on_before_backward(self, *_: Any) -> None:
        """Begin the backward."""
        self._recording.set_phase("backward")

    def on_before_optimizer_step(self, *_: Any) -> None:
        """Begin the phase of the optimizer."""
        self._recording.set_phase("optimizer")

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """End the step, if an optimizer has stepped; else wait for the next batch."""
        if trainer.global_step > self._num_steps:
            self._num_steps = trainer.global_step
            self._recording.end_step()
        else:
            self._recording.set_phase("dataload_wait")

    def on_validation_start(self, *_: Any) -> None:
        """Let the step not count."""
        self._recording.exclude_step()

    on_save_checkpoint = on_validation_start

    def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:
        """End the recording, which says why."""
        self._recording.close(exception)

    def on_train_end(self, *_: Any) -> None:
        """End the recording."""
        self._recording.close()
