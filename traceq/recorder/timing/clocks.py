"""CPU time of a rank and of its data loader's workers, and the time for which their threads waited for a core.

Linux counts both for each thread; read between blocks of steps, never while a step is timed. Elsewhere, and where
/proc is hidden, nothing is known.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from time import perf_counter_ns, process_time_ns

import torch

from traceq.cores import num_cores
from traceq.model import CoreUse
from traceq.runs.step_log import ClocksLine, CoresLine

_SLOWDOWNS = {  # NVML's bits of clock event reasons that indicate throttling: not idle, nor settings
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
_NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_SM_CLOCK, _MEMORY_CLOCK, _GPU_TEMPERATURE = 1, 2, 0

try:
    import resource
except ImportError:  # Windows has no such module
    resource = None  # type: ignore[assignment]

_PROC = Path("/proc")
Threads = dict[tuple[int, int], tuple[int, int]]
"""CPU time and wait for a core so far, ns, by process and thread."""


@dataclass(slots=True)
class CoreClocks:
    """Clocks of a rank's process, `worker_pids()` and the machine since `start`."""

    worker_pids: Callable[[], Sequence[int]]
    _since: _Reading | None = None

    def start(self) -> None:
        """Read all clocks."""
        self._since = _read(self.worker_pids())

    def lines(self, num_steps: int) -> list[CoresLine]:
        """Return the use of cores in the steps since `start`, none if this system does not count it."""
        before, after = self._since, _read(self.worker_pids())
        if before is None or after is None or not num_steps:
            return []
        worker_ns = sum(after.cpu_ns.values()) - sum(before.cpu_ns.values())
        if not before.cpu_ns.keys() <= after.cpu_ns.keys():  # of workers that have ended meanwhile, too
            worker_ns += after.ended_ns - before.ended_ns
        if worker_ns < 0:  # a worker that is no child of this process has ended
            return []
        waits = _waits(before.threads, after.threads)
        line = CoresLine(
            num_steps=num_steps,
            wall_ns=after.wall_ns - before.wall_ns,
            process_ns=after.process_ns - before.process_ns,
            worker_ns=worker_ns,
            process_wait_ns=sum(waits),
            thread_wait_ns=max(waits, default=0),
            worker_wait_ns=sum(_waits(before.workers, after.workers)),
            machine_ns=after.machine_ns - before.machine_ns if after.machine_ns else 0,
            num_workers=max(len(before.pids), len(after.pids)),
        )
        return [line]


@dataclass(frozen=True, slots=True)
class _Reading:
    """All clocks at one time, ns since some past; `machine_ns` 0 where this process may not use all cores of it."""

    wall_ns: int
    process_ns: int
    threads: Threads
    pids: Sequence[int]
    workers: Threads
    ended_ns: int
    machine_ns: int

    @property
    def cpu_ns(self) -> dict[int, int]:
        """CPU time of each living worker by its process; `ended_ns` is that of all children that have ended."""
        of_workers = dict.fromkeys((pid for pid, _ in self.workers), 0)
        for (pid, _), (cpu_ns, _) in self.workers.items():
            of_workers[pid] += cpu_ns
        return of_workers


def _read(pids: Sequence[int]) -> _Reading | None:
    if resource is None or not (_PROC / "self" / "schedstat").is_file():
        return None
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Reading(
        wall_ns=perf_counter_ns(),
        process_ns=process_time_ns(),
        threads=dict(_threads(os.getpid())),
        pids=pids,
        workers=dict(each for pid in pids for each in _threads(pid)),
        ended_ns=round((ended.ru_utime + ended.ru_stime) * 1e9),
        machine_ns=_machine_ns(),
    )


def _threads(pid: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield CPU time and wait of each thread of a process, of none if it has ended."""
    tasks = f"/proc/{pid}/task"
    with suppress(OSError):
        for thread in os.listdir(tasks):  # a Path for each would take longer than to read the file
            with suppress(OSError, ValueError), open(f"{tasks}/{thread}/schedstat", "rb", buffering=0) as file:
                cpu, wait, *_ = file.read().split()
                yield (pid, int(thread)), (int(cpu), int(wait))


def _waits(before: Threads, after: Threads) -> list[int]:
    """Return the wait of each thread that lived all the time."""
    return [wait - before[key][1] for key, (_, wait) in after.items() if key in before]


def _machine_ns() -> int:
    """Return for how long the cores of the machine were busy, added up; 0 where the job may use only some of them."""
    every, tick_ns = os.cpu_count() or 0, 10**9 // os.sysconf("SC_CLK_TCK")
    lines = (_PROC / "stat").read_text().splitlines()
    if every != num_cores() or sum(line.startswith("cpu") for line in lines) != 1 + every:
        return 0
    user, nice, system, _, _, irq, softirq, *stolen = (int(field) for field in lines[0].split()[1:])
    return (user + nice + system + irq + softirq + sum(stolen[:1])) * tick_ns


def core_facts(ranks: Sequence[Sequence[CoresLine]], hosts: Sequence[str]) -> dict[str, str | int | float]:
    """Return the mean use of a step over all ranks as facts for the manifest; empty where a rank read none.

    `hosts` of the ranks, empty if they share one; others' load is that of the busiest host.
    """
    if not ranks or not all(ranks):
        return {}
    hosts = hosts or [""] * len(ranks)
    num_steps = sum(line.num_steps for lines in ranks for line in lines)

    def per_step(value: Callable[[CoresLine], int]) -> int:
        return round(sum(value(line) for lines in ranks for line in lines) / num_steps)

    use = CoreUse(
        cores_available=num_cores(),
        ranks_per_host=max(Counter(hosts).values(), default=1),
        loader_workers=max(line.num_workers for lines in ranks for line in lines),
        timed_step_ns=per_step(lambda line: line.wall_ns),
        step_cpu_ns=per_step(lambda line: line.process_ns),
        worker_cpu_ns=per_step(lambda line: line.worker_ns),
        step_core_wait_ns=per_step(lambda line: line.process_wait_ns),
        thread_core_wait_ns=per_step(lambda line: line.thread_wait_ns),
        worker_core_wait_ns=per_step(lambda line: line.worker_wait_ns),
        other_busy_cores=max(_other_busy_cores(ranks, hosts), default=-1),
    )
    return use.facts()


def _other_busy_cores(ranks: Sequence[Sequence[CoresLine]], hosts: Sequence[str]) -> Iterator[float]:
    """Yield how many cores processes outside the job kept busy, for each host on which that is known."""
    for host in dict.fromkeys(hosts):
        of_host = [lines for lines, each in zip(ranks, hosts, strict=True) if each == host]
        if not all(line.machine_ns for lines in of_host for line in lines):
            continue
        cores = sum(_cores(lines, (line.process_ns + line.worker_ns for line in lines)) for lines in of_host)
        machine = sum(_cores(lines, (line.machine_ns for line in lines)) for lines in of_host) / len(of_host)
        yield round(max(machine - cores, 0.0), 2)


def _cores(lines: Sequence[CoresLine], cpu_ns: Iterable[int]) -> float:
    return sum(cpu_ns) / max(sum(line.wall_ns for line in lines), 1)


def read_clocks(device: torch.device) -> Iterator[ClocksLine]:
    """Yield one line of clocks; nothing without CUDA, or if NVML, which comes with the driver, fails."""
    if device.type == "cuda" and (line := _read_gpu(device)) is not None:
        yield line


def _read_gpu(device: torch.device) -> ClocksLine | None:
    try:
        nvml, handle = _nvml_device(device)
        clock, temperature = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetTemperature
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # its name since driver 535
        reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    except (OSError, AttributeError):  # no driver, or one that lacks one of these queries
        return None
    sm_mhz, memory_mhz, throttle, celsius = (ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong(), ctypes.c_uint())
    has_failed = (
        clock(handle, _SM_CLOCK, ctypes.byref(sm_mhz))
        or clock(handle, _MEMORY_CLOCK, ctypes.byref(memory_mhz))
        or reasons(handle, ctypes.byref(throttle))
        or temperature(handle, _GPU_TEMPERATURE, ctypes.byref(celsius))
    )
    return None if has_failed else ClocksLine(sm_mhz.value, memory_mhz.value, throttle.value, celsius.value)


@cache
def _nvml_device(device: torch.device) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Return NVML and its handle of a device. Raises OSError or AttributeError where one is missing."""
    nvml, handle = ctypes.CDLL(_NVML), ctypes.c_void_p()
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        raise OSError(f"{_NVML}: no device {uuid.decode()}")
    return nvml, handle


def is_throttled(line: ClocksLine) -> bool:
    """Return whether the device has lowered its clock for power or temperature."""
    return any(line.throttle & bit for bit in _SLOWDOWNS)


def clock_facts(ranks: Sequence[Sequence[ClocksLine]]) -> dict[str, str | int | float]:
    """Return facts for the manifest: the slowest rank's median clock, and the throttle reasons of all blocks.

    Empty if no clock was read.
    """
    medians = [median(line.sm_mhz for line in lines) for lines in ranks if lines]
    if not medians:
        return {}
    reasons = {name for lines in ranks for line in lines for bit, name in _SLOWDOWNS.items() if line.throttle & bit}
    return {"sm_mhz": round(min(medians)), "throttled": ", ".join(sorted(reasons))}
