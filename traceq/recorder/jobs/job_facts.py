"""What was found in an unedited job: its steps, models, optimizers and device, its loader and samples of a batch.

Numbers of a loader's workers are compared by another command, as workers start with an epoch's iterator.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from traceq.errors import RecordingFailed
from traceq.locations import without_secrets
from traceq.model import DDP_PARAMETERS
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.world import World, device_with_memory, host_note, world_of_job
from traceq.recorder.rank.rank_state import LoaderWorkers
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
    """Return `step: batch, forward, backward, optimizer (6 of 6 alike); models: GPT; optimizers: AdamW; 2 ranks`."""
    facts = job_facts(job, tracker)
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks"
    return f"step: {facts['step_pattern']}; models: {facts['models']}; optimizers: {facts['optimizers']}; {ranks}"


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


_MAIN_SHARE = 0.8
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class JobLoader:
    """The loader of nearly all batches: samples of a batch (0 where unknown), its settings, and its workers."""

    samples_per_batch: int = 0
    settings: Mapping[str, int] = field(default_factory=dict)
    workers: LoaderWorkers = field(default_factory=LoaderWorkers)


class JobBatches:
    """Batches by the loader that delivered them."""

    def __init__(self) -> None:
        self._loaders: dict[int, DataLoader[Any]] = {}
        self._sizes: dict[int, Counter[int]] = {}

    def add(self, loader: DataLoader[Any] | None, batch: Any) -> None:
        """Add a batch of a training step."""
        if loader is not None:
            self._loaders[id(loader)] = loader
            self._sizes.setdefault(id(loader), Counter())[_num_samples(batch)] += 1

    def clear(self) -> None:
        """Forget the loaders: the job may want to free them."""
        self._loaders.clear()
        self._sizes.clear()

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The loader of nearly all batches; None without one."""
        key = self._main_key
        return None if key is None else self._loaders[key]

    @property
    def samples_per_batch(self) -> int:
        """Samples of the usual batch of that loader, if the batches have as many as it declares; 0 where unknown."""
        key = self._main_key
        if key is None:
            return 0
        usual = self._sizes[key].most_common(1)[0][0]
        return usual if usual == _declared_size(self._loaders[key]) else 0

    @property
    def _main_key(self) -> int | None:
        totals = {key: sizes.total() for key, sizes in self._sizes.items()}
        most = max(totals, key=lambda key: totals[key], default=None)
        return most if most is not None and totals[most] >= _MAIN_SHARE * sum(totals.values()) else None


def _declared_size(loader: DataLoader[Any]) -> int:
    """Return the batch size that a loader was made with, or its batch sampler; 0 for none.

    Frameworks give torch's iterators loaders of their own, which have only what those read.
    """
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else 0


def _num_samples(batch: Any) -> int:
    """Return the first dimension of the first tensor in a batch; 0 if it has none, or cannot be looked into."""
    with suppress(Exception):
        tensor = next(_tensors(batch, _MAX_DEPTH), None)
        return tensor.size(0) if tensor is not None and tensor.dim() else 0
    return 0


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for part in parts:
            yield from _tensors(part, depth - 1)


_OPTION = re.compile(r"^(?>[\w.-]*workers?)[\w-]*$")
_OTHER_OPTION = re.compile(r"^(-j|-w|--?[\w-]*(cpus?|threads?|procs?|jobs))$")
_IN_SCRIPT = re.compile(r"""["'](--[\w-]*workers?(?<!persistent[_-]workers))["']""")
_MOST_TRIED = 2


def worker_arms_text(command: Sequence[str], num_workers: int, script: str) -> str:
    """Return why no toggle changes `num_workers`, and the command with an arm of processes for it and for others.

    The option is the one in the command with `workers` in its name, else one such as `-j` or `--n_cpu` with just that
    number, else one that the text of the script names; "" if there is none.
    """
    option, rest = _without_option(command, num_workers)
    if not option and (named := _IN_SCRIPT.search(script)):
        option = named[1]
    if not option:
        return ""
    tried = [
        num_workers,
        *(num for num in range(_MOST_TRIED + 1) if num != num_workers and num <= (os.cpu_count() or 1)),
    ]
    words_of_option = option if option.endswith("=") else f"{option} "
    arms = [word for num in tried for word in ("--arm", f"w{num}={words_of_option}{num}")]
    words = without_secrets(shlex.join(["traceq", "record", *arms, "--replicates", "4", "--", *rest]))
    why = "workers start with an epoch and keep what they were started with, so no toggle reaches them"
    return f"num_workers={num_workers}: {why}; to compare, in processes: {words}"


def _without_option(command: Sequence[str], num_workers: int) -> tuple[str, list[str]]:
    """Return the option for the number of workers, "" without one, and the command with `{arm}` in its place.

    A setting without dashes, as of Hydra (`data.num_workers=2`), ends with `=`.
    """
    for option in (_OPTION, _OTHER_OPTION):
        for index, word in enumerate(command):
            name, joined, value = word.partition("=")
            number = value if joined else "".join(command[index + 1 : index + 2])
            is_setting = bool(joined) and not name.startswith("-")
            if not option.match(name) or "persistent" in name or not number.isdecimal():
                continue
            if option is _OTHER_OPTION and int(number) != num_workers:
                continue
            if is_setting or name.startswith("-"):
                rest = [*command[:index], "{arm}", *command[index + (1 if joined else 2) :]]
                return f"{name}=" if is_setting else name, rest
    return "", [*command, "{arm}"]
