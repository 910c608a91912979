"""Environment of a recording: an allow-list of facts, without environment variables or tokens."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
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
