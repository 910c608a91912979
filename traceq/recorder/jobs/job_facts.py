"""What was found in an unedited job: its steps, models and optimizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from traceq.model import DDP_PARAMETERS
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.world import World
from traceq.recorder.toggles.toggle import Job

__all__ = ["found_text", "job_facts"]


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
