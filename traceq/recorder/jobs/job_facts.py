"""What was found in an unedited job: its steps, models, optimizers and device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from traceq.errors import RecordingFailed
from traceq.model import DDP_PARAMETERS
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.world import World, device_with_memory, host_note, world_of_job
from traceq.recorder.toggles.toggle import Job


def job_facts(job: Job, tracker: StepTracker) -> dict[str, str | int]:
    """Return what was found in the job, for the manifest."""
    searched = [each for each in job.models if getattr(each, "find_unused_parameters", False)]
    learning = [each for model in searched for each in model.parameters() if each.requires_grad]
    return {
        "step_pattern": tracker.pattern.text if tracker.pattern else "",
        "models": _names(job.models),
        "optimizers": _names(job.optimizers),
        **({DDP_PARAMETERS: len(learning)} if len(searched) == 1 else {}),
    }


def found_text(job: Job, tracker: StepTracker, world: World) -> str:
    """Return `step L F B O0 (6 of 6 alike), models: GPT, optimizers: AdamW, 2 ranks`."""
    facts = job_facts(job, tracker)
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    return f"step {facts['step_pattern']}; models: {facts['models']}; optimizers: {facts['optimizers']}; {ranks}"


def _names(objects: Sequence[object]) -> str:
    """Return the classes of objects in order, as `Linear, 3 GPT`, or `DistributedDataParallel(GPT)`."""
    counts = Counter(map(_name, objects))
    return ", ".join(f"{num} {name}" if num > 1 else name for name, num in counts.items()) or "none"


def _name(each: object) -> str:
    """Return the class, with that of what it wraps: `module` of DDP, FSDP, DeepSpeed; `_orig_mod` of torch.compile."""
    name, wrapped = type(each).__name__, getattr(each, "_orig_mod", getattr(each, "module", None))
    return f"{name}({_name(wrapped)})" if isinstance(wrapped, torch.nn.Module) else name


def device_of(job: Job) -> torch.device:
    """Return the CUDA device of the first parameter that is on one, of the largest model first.

    Without one that on which this process holds memory: parameters may be offloaded to the host. Else the CPU.
    """
    on_gpu = next((device for device in _devices(job) if device.type == "cuda"), None)
    return on_gpu or device_with_memory() or torch.device("cpu")


def world_on_devices(job: Job) -> World:
    """Return the world of a job with this rank's device.

    Raises RecordingFailed, on every rank, if they compute on different kinds: halves have as many steps on all of them.
    """
    world = world_of_job(device_of(job))
    kinds = world.gather(world.device.type)
    if len(set(kinds)) > 1:
        on_gpu = [str(rank) for rank, kind in enumerate(kinds) if kind == "cuda"]
        raise RecordingFailed(f"ranks {', '.join(on_gpu)} compute on a GPU, the others on the host")
    return world


def device_note(job: Job, device: torch.device) -> str:
    """Return what the times of this device do not tell of the job; "" for a job that is on this device alone."""
    devices = _devices(job)
    on_gpus = [str(each) for each in devices if each.type == "cuda"]
    others = [each.type for each in devices if each.type not in ("cuda", "cpu", "meta")]
    if len(on_gpus) > 1:
        return f"the models are on {', '.join(on_gpus)}: device times and memory are those of {device}"
    if others and device.type == "cpu":
        return host_note(others[0])
    if device.type == "cuda" and not on_gpus:
        return f"no parameter is on a GPU: timed on {device}, which holds memory of this process"
    return ""


def _devices(job: Job) -> list[torch.device]:
    """Return the devices of all parameters in order, each once."""
    return list(dict.fromkeys(parameter.device for model in job.models for parameter in model.parameters()))
