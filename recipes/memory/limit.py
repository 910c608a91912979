"""How much memory a rank has taken and may take: of its CUDA device, or of a process that was given a limit."""

from __future__ import annotations

import ctypes
import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from traceq.errors import RecordingFailed
from traceq.recorder import Context, Skip

__all__ = ["Capacity"]

MIB = 2**20
CPU_LIMIT_MIB = 128
_REFUSED = re.compile(r"could not (create|execute) a (primitive|memory)|ALLOC_FAILED")
"""What oneDNN, cuBLAS and cuDNN say for out of memory."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """Bytes: `allocated` is in use, `reserved` is kept for use as well, `free` can still be had."""

    allocated: int
    reserved: int
    free: int


@dataclass(slots=True)
class Capacity:
    """What one rank may take. Made before the model; `limit` follows its first step, `watched` is a phase of others.

    Without a device the limit is on data of the process (RLIMIT_DATA). What it had before the model was made is not
    counted, nor are stacks of threads that the first step started: as if a device had this much memory.
    """

    device: torch.device
    limit_bytes: int
    before: int = 0
    taken: list[_Taken] = field(default_factory=list)

    @classmethod
    def of(cls, context: Context, limit_mib: int) -> Capacity:
        """Of this rank; 0: all of a device, or the default of a CPU. Skip where a process cannot be limited."""
        if context.device.type == "cuda":
            return cls(context.device, limit_mib * MIB)
        if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"):
            raise Skip("a limit on memory takes Linux and glibc 2.33 or newer")
        limit_mib = limit_mib or CPU_LIMIT_MIB
        available = _kibibytes("/proc/meminfo", "MemAvailable") * 1024
        if limit_mib * MIB * context.world_size > available / 2:
            found = f"found {available // MIB:,} MiB available; expected at most half of that"
            raise RecordingFailed(f"memory_limit={limit_mib} for {context.world_size} ranks: {found}")
        return cls(context.device, limit_mib * MIB, before=_malloced()[0])

    def limit(self) -> None:
        """From here on what exceeds the limit is refused, as out of memory."""
        if self.device.type == "cuda":
            if self.limit_bytes:
                total = torch.cuda.get_device_properties(self.device).total_memory
                torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_bytes / total), self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        overhead = _data_bytes() - (_malloced()[0] - self.before)
        resource.setrlimit(resource.RLIMIT_DATA, (overhead + self.limit_bytes,) * 2)

    @staticmethod
    @contextmanager
    def told() -> Iterator[None]:
        """MemoryError for whatever a library says where memory was refused to it."""
        try:
            yield
        except RuntimeError as fault:
            if _REFUSED.search(str(fault)):
                raise MemoryError(f"out of memory: {fault}") from fault
            raise

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """A phase, at the end of which is seen what is taken: activations are there when forward ends."""
        yield
        self.taken.append(self._now())

    def facts(self) -> dict[str, int]:
        """Most that any rank had taken in a watched phase, and the least that was left to one, in bytes."""
        allocated = max(taken.allocated for taken in self.taken)
        reserved = max(taken.reserved for taken in self.taken)
        free = min(taken.free for taken in self.taken)
        mine = torch.tensor([allocated, reserved, -free], device=self.device)
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        allocated, reserved, missing = mine.tolist()
        return {"allocated_bytes": allocated, "reserved_bytes": reserved, "head_room_bytes": -missing}

    def _now(self) -> _Taken:
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            if self.limit_bytes:
                free = min(free, self.limit_bytes - torch.cuda.memory_reserved(self.device))
            return _Taken(
                torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device), free
            )
        allocated, reserved = _malloced()
        free = resource.getrlimit(resource.RLIMIT_DATA)[0] - _data_bytes()
        return _Taken(allocated - self.before, reserved - self.before, free)


class _Mallinfo(ctypes.Structure):
    """What glibc tells of its allocator, in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _malloced() -> tuple[int, int]:
    """Bytes in use and bytes taken from the system, of this process's malloc; large blocks are mapped one by one."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Mallinfo
    told = ask()
    return told.uordblks + told.hblkhd, told.arena + told.hblkhd


def _data_bytes() -> int:
    """What RLIMIT_DATA counts."""
    return _kibibytes("/proc/self/status", "VmData") * 1024


def _kibibytes(path: str, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
