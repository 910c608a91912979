"""Ways to copy a batch to the device: row by row through Python values, at once, or one step ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch

from traceq.recipes.workload.data import Sample

__all__ = ["Prefetcher", "copy_rowwise", "tune"]


def tune(on: bool) -> None:
    """Switch TF32 in matrix products and cudnn.benchmark on or off; results on a CPU do not change."""
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.benchmark = on


def copy_rowwise(batch: Sample, device: torch.device) -> Sample:
    """Copy the batch row by row through Python values and pageable memory; every copy blocks the host."""
    rows = [[torch.tensor(row) for row in field.tolist()] for field in (batch.text, batch.state, batch.actions)]
    text, state, actions = (torch.stack(row).to(device) for row in rows)
    return Sample(batch.image.clone().to(device), text, state, actions)


class Prefetcher:
    """Loader that fetches each batch one step before it is used; on CUDA copies run on a side stream."""

    def __init__(self, batches: Iterator[Sample], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._ahead: Sample | None = None

    def take(self) -> Sample:
        """Return the batch that was fetched one step ago; the first one is fetched now."""
        if self._ahead is None:
            self.fetch()
        batch, self._ahead = self._ahead, None
        assert batch is not None
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            for field in batch:
                field.record_stream(current)  # else its memory may be reused while this stream still reads it
        return batch

    def fetch(self) -> None:
        """Ask the loader for the next batch and start its copies."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._ahead = next(self._batches).to(self._device)
