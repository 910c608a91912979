"""A trace of a few lines, with a sync or without."""

from __future__ import annotations

from builder import Event, call, kernel, launch, memcpy, op, step

__all__ = ["with_item"]


def with_item(*, item: bool) -> list[Event]:
    """gemm, then perhaps a host that waits for a copy until 48, then an add."""
    rows = [op("aten::mm", 1, 4), launch(2, 2, 1), kernel("gemm", 5, 20, 1)]
    if not item:
        return [step(0, 65), *rows, op("aten::add", 15, 5), launch(16, 2, 3), kernel("add", 25, 30, 3)]
    return [
        step(0, 100),
        *rows,
        op("aten::_local_scalar_dense", 10, 40),
        call("cudaMemcpyAsync", 12, 3, 2),
        memcpy("DtoH (Device -> Pinned)", 25, 2, 2),
        call("cudaStreamSynchronize", 15, 33),
        op("aten::add", 55, 5),
        launch(56, 2, 3),
        kernel("add", 60, 30, 3),
    ]
