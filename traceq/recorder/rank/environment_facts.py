"""Environment of a recording: an allow-list of facts, without variables or tokens, and measured rates of the CPU."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from traceq import __version__
from traceq.garbage_collection import live_objects
from traceq.recorder.process.world import World

_BLOCKING = "CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING"
EnvironmentFacts = dict[str, str | int | float]
WrapperFacts = Mapping[str, str | int | float]
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
_PLUGINS = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DeepSpeed"}
_WRAPPERS_OF_PLUGIN = {"FSDP": {"FullyShardedDataParallel", "FSDPModule"}, "DeepSpeed": {"DeepSpeedEngine"}}


@cache
def environment_facts(world: World) -> EnvironmentFacts:
    """Return facts about host, software and device that are needed to interpret the results."""
    facts: EnvironmentFacts = {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "traceq": __version__,
        "torch": str(torch.__version__),
        "accelerate": _package("accelerate"),
        "git": _git(),
        "cpu": _cpu(),
        "num_cores": os.cpu_count() or 0,
        "num_threads": torch.get_num_threads(),
        "world_size": world.size,
        "backend": world.backend,
        "device": world.device.type,
    }
    if world.device.type == "cuda":
        facts |= _cuda(world.device)
    return {key: value for key, value in facts.items() if value != ""}


def _cuda(device: torch.device) -> EnvironmentFacts:
    properties = torch.cuda.get_device_properties(device)
    return {
        "device_name": properties.name,
        "device_memory_bytes": properties.total_memory,
        "num_devices": torch.cuda.device_count(),
        "cuda": torch.version.cuda or "",
        "hip": torch.version.hip or "",
        "nccl": _nccl(),
        "launch_blocking": ", ".join(key for key in _BLOCKING if os.environ.get(key, "0") not in ("", "0")),
        "driver": _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
    }


def _nccl() -> str:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except AttributeError:  # torch was built without it, as on Windows
        return ""


def blocking_warning(facts: Mapping[str, str | int | float]) -> str:
    """Return a warning if each launch waits for its kernel; "" if it does not."""
    if not (names := facts.get("launch_blocking")):
        return ""
    return f"{names} is set: each launch waits for its kernel, so that the times are not those of the job without it"


def _package(name: str) -> str:
    try:
        return str(version(name))
    except PackageNotFoundError:
        return ""


def _git() -> str:
    """Return the commit of the working directory, with `+dirty` if files differ from it; "" outside a checkout."""
    commit = _run("git", "rev-parse", "HEAD")
    return commit + ("+dirty" if commit and _run("git", "status", "--porcelain", "--untracked-files=no") else "")


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def wrapper_facts(facts: WrapperFacts) -> dict[str, str]:
    """Return facts for the manifest: wrapper classes with live instances, and accelerate's configuration.

    A wrapper that is already in `facts` is kept. Inspects all objects of the process: do not call it while steps are
    timed.
    """
    wrapper = {} if "wrapper" in facts else {"wrapper": ", ".join(_live_wrappers()) or "none"}
    plugins = [name for key, name in _PLUGINS.items() if os.environ.get(key, "").lower() in ("1", "true")]
    return wrapper | ({"accelerate_config": ", ".join(plugins)} if plugins else {})


def wrapper_warning(facts: WrapperFacts) -> str:
    """Return a warning if accelerate silently ignored its configuration, as for FSDP on a CPU; "" if it did not."""
    configured, wrapper = str(facts.get("accelerate_config", "")), str(facts.get("wrapper", "none"))
    if not configured or _WRAPPERS_OF_PLUGIN[configured] & set(wrapper.split(", ")):
        return ""
    return f"accelerate was configured for {configured}, but the wrapper of the training model is: {wrapper}"


def _live_wrappers() -> list[str]:
    """Return the names of wrapper classes with live instances, by base class: fully_shard subclasses each module."""
    types = {type(instance) for instance in live_objects()}
    names = {base.__name__ for type_ in types for base in type_.__mro__}
    return [name for name in _WRAPPERS if name in names]


_SIZE, _COPIED = 512, 1 << 25
"""Rows of the measured matrix; bytes of the measured copy."""
_ALIKE, _MOST_S = 0.05, 0.2
"""Trials end once three of them are this close to the best, and after this time."""


def cpu_peak_facts(facts: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    """Return the FLOP/s of a product of matrices in float32 and the bytes per second of a copy.

    Each is the best of a few runs now and of what `facts` has from before; the lowest of these bests is beside it, as
    `_least`: they differ where something else used the cores. With the threads that the rank has, while other ranks do
    the same; by the job's default dtype, device and autocast nothing changes. Empty where memory is limited and the
    job left none for it.
    """
    try:
        a = torch.ones(_SIZE, _SIZE, dtype=torch.float32, device="cpu")
        source = torch.ones(_COPIED // a.element_size(), dtype=torch.float32, device="cpu")
        target = torch.empty_like(source)
    except RuntimeError:  # of torch's allocator
        return {}
    with _without_autocast():
        rates = {
            "cpu_peak_flops": 2 * _SIZE**3 / _shortest_ns(lambda: torch.mm(a, a)),
            "cpu_peak_bandwidth": 2 * _COPIED / _shortest_ns(lambda: target.copy_(source)),
        }
    measured: dict[str, str | int | float] = {}
    for key, per_ns in rates.items():
        rate = round(per_ns * 1e9)
        measured[key] = max(rate, int(facts.get(key, rate)))
        measured[f"{key}_least"] = min(rate, int(facts.get(f"{key}_least", rate)))
    return measured


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Let products be of the dtype of their factors; no region, of which a job's are noted."""
    is_enabled = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", is_enabled)


def _shortest_ns(call: Callable[[], object]) -> int:
    """Return the time of the fastest of several calls, the first of which may have to start threads."""
    deadline = time.perf_counter() + _MOST_S
    times = sorted(_ns(call) for _ in range(4))
    while times[2] > (1 + _ALIKE) * times[0] and time.perf_counter() < deadline:
        times = sorted([*times, _ns(call)])[:3]
    return times[0]


def _ns(call: Callable[[], object]) -> int:
    start = time.perf_counter_ns()
    call()
    return max(time.perf_counter_ns() - start, 1)
