"""Memory that a rank uses and may use: of its CUDA device, or of a process with a limit."""

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
"""Messages of oneDNN, cuBLAS and cuDNN that mean out of memory."""


@dataclass(frozen=True, slots=True)
class _Usage:
    """Bytes: `allocated` are in use, `reserved` includes the allocator's reserve, `free` are still available."""

    allocated: int
    reserved: int
    free: int


@dataclass(slots=True)
class Capacity:
    """Memory that one rank may use.

    Create it before the model, call `limit` after the first step, and use `measured_phase` as the phase of later steps.
    Without a device the limit applies to the process's data (RLIMIT_DATA). Memory used before the model was built and
    stacks of threads started by the first step are excluded, as if a device had this much memory.
    """

    device: torch.device
    limit_bytes: int
    before: int = 0
    usages: list[_Usage] = field(default_factory=list)

    @classmethod
    def of(cls, context: Context, limit_mib: int) -> Capacity:
        """Return the capacity of the current rank; 0 MiB means all of a device, or the default on a CPU.

        Raises Skip if a process cannot be limited, RecordingFailed if the limits exceed half of the available memory.
        """
        if context.device.type == "cuda":
            return cls(context.device, limit_mib * MIB)
        if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"):
            raise Skip("a memory limit needs Linux and glibc 2.33 or newer")
        limit_mib = limit_mib or CPU_LIMIT_MIB
        available = _kibibytes("/proc/meminfo", "MemAvailable") * 1024
        if limit_mib * MIB * context.world_size > available / 2:
            raise RecordingFailed(
                f"memory_limit={limit_mib} for {context.world_size} ranks: found {available // MIB:,} MiB available; "
                f"expected at most half of that"
            )
        return cls(context.device, limit_mib * MIB, before=_malloced()[0])

    def limit(self) -> None:
        """Enforce the limit from now on: allocations beyond it fail as out of memory."""
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
    def raise_memory_error() -> Iterator[None]:
        """Raise MemoryError where a library reports a failed allocation as another RuntimeError."""
        try:
            yield
        except RuntimeError as fault:
            if _REFUSED.search(str(fault)):
                raise MemoryError(f"out of memory: {fault}") from fault
            raise

    @contextmanager
    def measured_phase(self, name: str) -> Iterator[None]:
        """Measure the memory in use when the phase ends; activations are alive at the end of forward."""
        yield
        self.usages.append(self._now())

    def facts(self) -> dict[str, int]:
        """Return the most memory that any rank used in a measured phase, and the least that any had left, in bytes."""
        allocated = max(usage.allocated for usage in self.usages)
        reserved = max(usage.reserved for usage in self.usages)
        free = min(usage.free for usage in self.usages)
        maxima = torch.tensor([allocated, reserved, -free], device=self.device)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        allocated, reserved, minus_free = maxima.tolist()
        return {"allocated_bytes": allocated, "reserved_bytes": reserved, "head_room_bytes": -minus_free}

    def _now(self) -> _Usage:
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
            if self.limit_bytes:
                free = min(free, self.limit_bytes - torch.cuda.memory_reserved(self.device))
            return _Usage(
                torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device), free
            )
        allocated, reserved = _malloced()
        free = resource.getrlimit(resource.RLIMIT_DATA)[0] - _data_bytes()
        return _Usage(allocated - self.before, reserved - self.before, free)


class _Mallinfo(ctypes.Structure):
    """Statistics of glibc's allocator, in bytes: the struct `mallinfo2`."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def _malloced() -> tuple[int, int]:
    """Return malloc's bytes in use and bytes obtained from the system; both include large blocks, mapped singly."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return info.uordblks + info.hblkhd, info.arena + info.hblkhd


def _data_bytes() -> int:
    """Return the bytes that count towards RLIMIT_DATA."""
    return _kibibytes("/proc/self/status", "VmData") * 1024


def _kibibytes(path: str, key: str) -> int:
    match = re.search(rf"^{key}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])
