"""Snapshots of an allocator that is simulated action by action, and what is alive after each, by brute force."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
Row = dict[str, Any]

CPP = {"filename": "??", "line": 0, "name": "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc"}
EMPTY = {"filename": "??", "line": 0, "name": "at::detail::empty_cuda(c10::ArrayRef<long>, c10::TensorOptions const&)"}
ENGINE = {
    "filename": "??",
    "line": 0,
    "name": "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)",
}
NODE = {
    "filename": "??",
    "line": 0,
    "name": "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
}
CALL = {"filename": "/site-packages/torch/nn/modules/module.py", "line": 1773, "name": "_call_impl"}
APPLY = {"filename": "/site-packages/torch/nn/modules/module.py", "line": 930, "name": "_apply"}
OPTIMIZER = {"filename": "/site-packages/torch/optim/optimizer.py", "line": 493, "name": "wrapper"}


def user(place: str) -> Row:
    """`model.py:41 forward` as a frame."""
    where, _, name = place.partition(" ")
    file, _, line = where.partition(":")
    return {"filename": f"/home/me/{file}", "line": int(line), "name": name}


def stack(*frames: Row | str) -> list[Row]:
    """A stack, innermost first, below the frames of the allocator; texts are frames of the user."""
    return [CPP, EMPTY, *(user(frame) if isinstance(frame, str) else frame for frame in frames)]


@dataclass
class Allocator:
    """An allocator that does as it is told: rows of `device_traces`, and segments with the blocks in use.

    Each allocation has an address of its choice and a block that is rounded up to 512 bytes. `states` has the bytes in
    use by address before the first row and after each.
    """

    rows: list[Row] = field(default_factory=list)
    segments: dict[int, Row] = field(default_factory=dict)
    alive: dict[int, Row] = field(default_factory=dict)
    states: list[dict[int, int]] = field(default_factory=lambda: [{}])
    time_us: int = 1_700_000_000_000_000

    def segment(self, address: int, size: int, action: str = "segment_alloc", **more: Any) -> None:
        self.segments[address] = {"address": address, "total_size": size, "segment_type": "large", **more}
        self._row(action, address, size, [])

    def release(self, address: int) -> None:
        self._row("segment_free", address, self.segments.pop(address)["total_size"], [])

    def alloc(self, address: int, size: int, frames: Sequence[Row] = ()) -> None:
        self.alive[address] = {"requested_size": size, "frames": list(frames), "state": "active_allocated"}
        self._row("alloc", address, size, frames)

    def request_free(self, address: int) -> None:
        self.alive[address]["state"] = "active_pending_free"
        self._row("free_requested", address, self.alive[address]["requested_size"], stack("free.py:1 other"))

    def complete_free(self, address: int) -> None:
        size = self.alive.pop(address)["requested_size"]
        self._row("free_completed", address, size, stack("free.py:1 other"))

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.request_free(address)
            self.complete_free(address)

    def oom(self, size: int, device_free: int, frames: Sequence[Row] = ()) -> None:
        self._row("oom", 0, size, frames)
        self.rows[-1]["device_free"] = device_free
        del self.rows[-1]["addr"]

    def _row(self, action: str, address: int, size: int, frames: Sequence[Row]) -> None:
        self.time_us += 10
        row = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time_us}
        self.rows.append({**row, "frames": list(frames)})
        self.states.append({each: block["requested_size"] for each, block in self.alive.items()})

    def content(self, *, last: int | None = None, **more: Any) -> Row:
        """The snapshot, whose history is cut to its `last` rows."""
        rows = self.rows if last is None else self.rows[len(self.rows) - last :]
        segments = [self._with_blocks(segment) for _, segment in sorted(self.segments.items())]
        settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}
        return {"segments": segments, "device_traces": [rows], "allocator_settings": settings} | more

    def pickled(self, *, last: int | None = None, protocol: int = 4, **more: Any) -> bytes:
        return pickle.dumps(self.content(last=last, **more), protocol)

    def write(self, path: Path, **options: Any) -> Path:
        path.write_bytes(self.pickled(**options))
        return path

    def _with_blocks(self, segment: Row) -> Row:
        start, end = segment["address"], segment["address"] + segment["total_size"]
        blocks, place = [], start
        for address, block in sorted(self.alive.items()):
            if start <= address < end:
                if address > place:
                    blocks.append(self._gap(place, address))
                place = min(end, address + -(-block["requested_size"] // 512) * 512)
                blocks.append({"address": address, "size": place - address, **block})
        if place < end:
            blocks.append(self._gap(place, end))
        sizes = {"allocated_size": sum(block["size"] for block in blocks if block["state"] != "inactive")}
        return (
            {"device": 0, "stream": 0, "segment_pool_id": (0, 0), "is_expandable": False}
            | segment
            | sizes
            | {
                "blocks": blocks,
                "frames": [],
            }
        )

    @staticmethod
    def _gap(start: int, end: int) -> Row:
        return {"address": start, "size": end - start, "requested_size": 77, "state": "inactive", "frames": []}


def replay(rows: Sequence[Row], blocks: Sequence[Row]) -> list[dict[int, int]]:
    """Bytes in use by address, before the first row and after each; `blocks` are those in use at the end.

    What was in use before is what is freed without having been allocated, and blocks that no row is about.
    """
    allocates = any(row["action"] == "alloc" for row in rows)
    ends = "free_completed" if any(row["action"] == "free_completed" for row in rows) else "free_requested"
    relevant = [row if allocates and row["action"] in ("alloc", ends) else None for row in rows]
    if ends == "free_requested":  # still awaited where the block is in use
        in_use = {block["address"] for block in blocks}
        last = {row["addr"]: index for index, row in enumerate(relevant) if row is not None}
        for address, index in last.items():
            if address in in_use and rows[index]["action"] == ends:
                relevant[index] = None
    first: dict[int, Row] = {}
    for row in relevant:
        if row is not None:
            first.setdefault(row["addr"], row)
    alive = {block["address"]: block["requested_size"] for block in blocks if block["address"] not in first}
    alive |= {address: row["size"] for address, row in first.items() if row["action"] == ends}
    states = [dict(alive)]
    for index, row in enumerate(relevant):
        if row is not None and row["action"] == "alloc":
            alive[row["addr"]] = row["size"]
        elif row is not None:
            alive.pop(row["addr"], None)
            following = next((r for r in relevant[index + 1 :] if r is not None and r["addr"] == row["addr"]), None)
            if following is not None and following["action"] == ends:  # it was allocated in between, unrecorded
                alive[row["addr"]] = following["size"]
        states.append(dict(alive))
    return states


def training(*, activation: int = 60 * MIB, line: int = 41, oom: int = 0) -> Allocator:
    """A step of training in 512 MiB: 40 MiB of weights, activations at model.py:`line`, gradients, AdamW's state.

    With `oom`, backward asks for so many bytes in vain and nothing follows.
    """
    base = 1 << 40
    job = Allocator()
    job.segment(base, 512 * MIB)
    job.segment(base + (1 << 30), 2 * MIB, segment_type="small")
    weights, inputs, first, second, loss = base, base + 40 * MIB, base + 64 * MIB, base + 160 * MIB, base + (1 << 30)
    job.alloc(weights, 40 * MIB, stack(APPLY, "train.py:10 main"))
    job.alloc(inputs, 3 * MIB, stack("train.py:20 batch", "train.py:30 main"))
    job.alloc(first, activation, stack(f"model.py:{line} forward", CALL, "train.py:31 main"))
    job.alloc(second, 20 * MIB + 100, stack(f"model.py:{line + 1} forward", CALL, "train.py:31 main"))
    job.alloc(loss, 4, stack("train.py:32 main"))
    gradients = base + 200 * MIB
    job.alloc(gradients, 40 * MIB, stack(NODE, ENGINE))
    job.free(second)
    if oom:
        job.oom(oom, 30 * MIB, stack(NODE, ENGINE))
        return job
    job.alloc(second, 10 * MIB, stack(NODE, ENGINE))
    job.free(first, second)
    state = stack("optimizer.py:7 step", OPTIMIZER, "train.py:33 main")
    for number in range(2):
        job.alloc(base + (250 + 50 * number) * MIB, 40 * MIB, state)
    job.alloc(base + 400 * MIB, 5 * MIB, stack("optimizer.py:9 step", OPTIMIZER, "train.py:33 main"))
    job.free(base + 400 * MIB, gradients, inputs)
    job.alloc(first, activation // 2, stack(f"model.py:{line} forward", CALL, "train.py:31 main"))
    return job
