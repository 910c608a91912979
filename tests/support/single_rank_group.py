"""A process group of one rank, in the process of a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

__all__ = ["single_rank_group"]


@contextmanager
def single_rank_group() -> Iterator[None]:
    """Start a group, and end it when its threads are idle.

    They need Python's lock to drop the last collective; who frees the group may hold that lock, and waits for them.
    """
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        time.sleep(0.1)
        dist.destroy_process_group()
