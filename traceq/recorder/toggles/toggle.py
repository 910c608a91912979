"""What a toggle is, and how one is found by name: `@name` here or in another package, else a dotted path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from traceq.entry_points import TOGGLES, find_plugins
from traceq.errors import UsageFault
from traceq.recorder.spec.parameters import did_you_mean

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader


DEFAULT = "default"
"""Value of any built-in toggle: as the job has it."""

_BUILT_IN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "attention": ("attention", ("math", "eager", "flash", "efficient", "cudnn", "sdpa")),
    "autocast": ("settings:Autocast", ("off", "on")),
    "channels_last": ("channels_last", ("off", "on")),
    "checkpointing": ("checkpointing", ("off", "on")),
    "compile": ("settings:Compile", ("off", "on")),
    "cudnn_benchmark": ("settings:CudnnBenchmark", ("off", "on")),
    "ddp": ("ddp:BroadcastBuffers", ("broadcast_buffers:off",)),
    "find_unused": ("ddp:FindUnused", ("off", "on")),
    "gc": ("settings:GarbageCollector", ("off", "on")),
    "matmul_precision": ("settings:MatmulPrecision", ("highest", "high", "medium")),
    "no_sync": ("ddp:NoSync", ("off", "on")),
    "optimizer": ("optimizer", ("loop", "foreach", "fused")),
    "prefetch": ("prefetch", ("off", "on")),
    "stall": ("stall", ()),
    "threads": ("settings:Threads", ()),
}
"""By name of a toggle of ours the module, or a class in it, and the words that are its values, besides DEFAULT.

Words are checked before the job starts, without torch; () for numbers.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What a toggle can change: the models that no other module contains, the largest first, and the optimizers.

    `uses_autocast`: it entered a region of torch.autocast, or that was not watched. `num_passes`: how often a usual
    step runs a forward and a backward before its only optimizer steps, 1 of other steps. `loader`: that of nearly all
    batches.
    """

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    uses_autocast: bool = True
    num_passes: int = 1
    loader: DataLoader[Any] | None = None


class Toggle(Protocol):
    """One thing of this rank's job with a value per arm.

    `changes_ops`: its values issue different ops, so that equal ops prove that it changed nothing. One that finds
    while steps run that it must not take effect says why in an attribute `no_effect`.
    """

    changes_ops: bool

    def apply(self, number: int) -> None:
        """Bring the n-th value into effect, from the next step on; called between steps, in microseconds."""

    def fault(self, number: int) -> str:
        """Return why the n-th value is not in effect after `apply`; "" if it is, read from where the job reads it."""

    def restore(self) -> None:
        """Bring the job's own value back."""


class ToggleModule(Protocol):
    """A module, or an object, with a toggle; the first line of its docstring says what it changes."""

    def create(self, job: Job, values: Sequence[str]) -> Toggle:
        """Return the toggle; UsageFault if the job has no such thing, or for a value that it cannot have."""


def toggle_names() -> tuple[str, ...]:
    """Return the names of all toggles but attributes: those of traceq, then those of plugins."""
    return (*_BUILT_IN, *sorted(find_plugins(TOGGLES).keys() - _BUILT_IN.keys()))


def check_toggles(toggles: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageFault for a toggle, by `@name` with its values, that no job could have.

    That is a name that resembles one of ours (others may be those of plugins of the job), or a value that ours has not.
    """
    for name, values in toggles.items():
        if not name.startswith("@"):
            continue
        known_names = toggle_names()
        if name[1:] not in known_names and (hint := did_you_mean(name[1:], known_names)):
            raise UsageFault(f"--toggle {name}: no such toggle{hint}; available: {', '.join(known_names)}")
        _, words = _BUILT_IN.get(name[1:], ("", ()))
        accepted = (DEFAULT, *words) if words else values
        if wrong := [value for value in values if value not in accepted]:
            hint = did_you_mean(wrong[0], accepted)
            raise UsageFault(f"--toggle {name}: {wrong[0]}: expected one of {', '.join(accepted)}{hint}")


def applicable_toggles(job: Job) -> dict[str, tuple[str, ...]]:
    """Return the built-in toggles that this job has, by `@name`, each with DEFAULT and the values worth a try."""
    applicable: dict[str, tuple[str, ...]] = {}
    for name in toggle_names():
        module = _module(name)
        candidates = getattr(module, "CANDIDATES", ()) if getattr(module, "is_used", lambda _: True)(job) else ()
        values = [value for value in candidates if _is_applicable(f"@{name}", value, job)]
        if values:
            applicable[f"@{name}"] = (DEFAULT, *values)
    return applicable


def _is_applicable(name: str, value: str, job: Job) -> bool:
    """Return True if the job can have this value, and does not have it already, as far as the toggle can tell."""
    try:
        toggle = create_toggle(name, (DEFAULT, value), job)
    except Exception:  # noqa: BLE001 (nobody asked for it: what a model of any kind makes of it is no fault of the job)
        return False
    try:
        toggle.apply(0)
        return toggle.changes_ops or bool(toggle.fault(1))
    finally:
        toggle.restore()


def create_toggle(name: str, values: Sequence[str], job: Job) -> Toggle:
    """Return the toggle of `--toggle NAME=A,B`; UsageFault if the job has nothing of that name."""
    if not name.startswith("@"):
        attribute: Toggle = import_module("traceq.recorder.toggles.attribute").create(name, values, job)
        return attribute
    check_toggles({name: values})
    module = _module(name.removeprefix("@"))
    try:
        return module.create(job, values)
    except UsageFault as fault:
        raise UsageFault(f"--toggle {name}: {fault}") from fault


def _module(name: str) -> ToggleModule:
    names = toggle_names()
    if name not in names:
        raise UsageFault(f"no toggle @{name}{did_you_mean(name, names)}; available: {', '.join(names)}")
    if plugin := find_plugins(TOGGLES).get(name):
        toggle: ToggleModule = plugin.load()
        return toggle
    place, _, class_name = _BUILT_IN[name][0].partition(":")
    module: Any = import_module(f"traceq.recorder.toggles.{place}")
    built_in: ToggleModule = getattr(module, class_name) if class_name else module
    return built_in
