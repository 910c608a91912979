"""How a batch gets from the loader to the device: boxed and copied, copied at once, or a step ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from traceq.recipes.workload.data import Sample

__all__ = ["Prefetcher", "copy_rowwise", "tune"]


def tune(on: bool) -> None:
    """TF32 in matrix products, and cudnn's search for the fastest convolution; what a CPU computes stays the same."""
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.benchmark = on


def copy_rowwise(batch: Sample, device: torch.device) -> Sample:
    """The batch by way of Python values, row by row, in pageable memory: the host waits for every copy."""
    rows = [[torch.tensor(row) for row in field.tolist()] for field in (batch.text, batch.state, batch.actions)]
    text, state, actions = (torch.stack(row).to(device) for row in rows)
    return Sample(batch.image.clone().to(device), text, state, actions)


class Prefetcher:
    """Fetches each batch a step before it is used; on CUDA its copies run on a stream of their own."""

    def __init__(self, batches: Iterator[Sample], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ahead: Sample | None = None

    def take(self) -> Sample:
        """The batch that was fetched a step ago; the first one is fetched now."""
        if self._ahead is None:
            self.fetch()
        batch, self._ahead = self._ahead, None
        assert batch is not None
        if self._stream is not None:
            running = torch.cuda.current_stream(self._device)
            running.wait_stream(self._stream)
            for field in batch:
                field.record_stream(running)  # else its memory is given away while this stream still reads it
        return batch

    def fetch(self) -> None:
        """Ask the loader for the next batch and start its copies."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._ahead = next(self._batches).to(self._device)
