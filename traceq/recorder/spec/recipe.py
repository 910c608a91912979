"""The definition of an experiment: a question, its arms, and a function that builds their step in a context.

One that looks for the largest batch doubles it until it does not fit, then bisects.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from traceq.errors import RecordingFailed, TraceqError, UsageFault
from traceq.model import BUILT_APART, Arm, Fact
from traceq.recorder.spec.parameters import check_arm, check_phase

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

    from traceq.recorder.spec.phases import Phases

_LOADER_TIMEOUT_S = 90
"""Without a timeout, a worker whose sending thread died (TMPDIR too long for a socket's name) blocks forever."""


@dataclass(frozen=True, slots=True)
class Context:
    """The rank that executes a recipe, as `build` sees it.

    `facts` are written into the manifest's environment. `steps_per_half` steps of an arm run before the next arm.
    `say` prints a line for the user, on rank 0 only; do not call it while steps are timed. `arm` is the arm of this
    process, to which `facts` belong; "" if all arms share the process.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    phase: Phases
    steps_per_half: int = 1
    facts: MutableMapping[str, str | int | float] = field(default_factory=dict)
    say: Callable[[str], None] = print  # into the rank's log
    arm: str = ""
    loaders: dict[Hashable, Iterator[Any]] = field(default_factory=dict)

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return the model on the device, in DDP if there are several ranks.

        The wrapper is noted in the facts. Raises RecordingFailed if DDP does not span all ranks.
        """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        model = model.to(self.device)
        self.facts["num_parameters"] = sum(parameter.numel() for parameter in model.parameters())
        if self.world_size > 1:
            devices = [self.device.index] if self.device.type == "cuda" else None
            model = DistributedDataParallel(model, device_ids=devices, **options)
            if model.process_group.size() != self.world_size:
                raise RecordingFailed(f"DDP spans {model.process_group.size()} ranks; expected {self.world_size}")
        self.facts["wrapper"] = type(model).__name__ if self.world_size > 1 else "none"
        self.facts["wrapper_world_size"] = dist.get_world_size()
        return model

    def batches(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        num_workers: int = 1,
        prefetch_factor: int = 2,
        batches_per_step: int = 1,
        collate: Callable[[Any], Any] | None = None,
    ) -> Iterator[Any]:
        """Return endless batches of a DataLoader with workers; both halves of a pair get the same batches.

        A dataset with a length is read again and again, of another one `dataset[i]` for every i >= 0; the dataset
        itself has to differ between ranks. Each worker prefetches up to `prefetch_factor` batches. Calls with equal
        arguments return the same iterator: arms that are built separately share the workers, and get the same batches.
        `collate` makes a batch of samples; torch's by default.
        """
        arguments = (dataset, batch_size, num_workers, prefetch_factor, batches_per_step, collate)
        try:
            hash(arguments)
        except TypeError:  # an unhashable dataset is not shared
            return self._loader(*arguments)
        if arguments not in self.loaders:
            self.loaders[arguments] = self._loader(*arguments)
        return self.loaders[arguments]

    def separate_builds(self, *arms: str) -> None:
        """Note arms with separate models: they also differ in memory layout, which their diff points out."""
        self.facts[BUILT_APART] = " ".join(arms)

    def _loader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        num_workers: int,
        prefetch_factor: int,
        batches_per_step: int,
        collate: Callable[[Any], Any] | None,
    ) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        from traceq.recorder.process.child_processes import die_with_parent

        loader = DataLoader(
            dataset,
            batch_sampler=PairedBatches(batch_size, self.steps_per_half * batches_per_step, _length(dataset)),
            num_workers=num_workers,
            collate_fn=collate,
            prefetch_factor=prefetch_factor if num_workers else None,
            pin_memory=self.device.type == "cuda",
            worker_init_fn=die_with_parent,
            timeout=_LOADER_TIMEOUT_S if num_workers else 0,
        )
        return iter(loader)


@dataclass(frozen=True, slots=True)
class PairedBatches:
    """Indices of endless batches: the batches of one half, repeated for the other half of the pair, then the next.

    `length`: the number of samples after which they begin again, None for never.
    """

    batch_size: int
    batches_per_half: int
    length: int | None = None

    def __iter__(self) -> Iterator[list[int]]:
        for pair in count():
            for _ in range(2):
                for batch in range(self.batches_per_half):
                    first = (pair * self.batches_per_half + batch) * self.batch_size
                    indices = range(first, first + self.batch_size)
                    yield [index % self.length for index in indices] if self.length else list(indices)


def _length(dataset: Dataset[Any]) -> int | None:
    try:
        return len(dataset)  # type: ignore[arg-type]  # a map-style dataset may have none
    except (NotImplementedError, TypeError):
        return None


_PRECISION = 8
"""The search ends when the largest batch is known to one eighth of its size."""

P = TypeVar("P")
Step: TypeAlias = Callable[[str], None]
"""A function that runs one training step of the arm with that name."""


class Skip(TraceqError):
    """Exception of a `build` whose arm cannot run on this machine, raised on every rank.

    Only for arms in separate processes: the other arms run, and the run records the reason.
    """


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an arm that ran in separate processes.

    `arm.status` is "" after success, else "skipped" or "out of memory"; `arm.facts` are those of its `build`.
    `step_ns`: median unprofiled step of the job; `peak_bytes`: peak memory of any rank; both 0 if no step was timed.
    """

    arm: Arm
    step_ns: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Recipe(Generic[P]):
    """One experiment. A variant is `dataclasses.replace(recipe, parameters=replace(recipe.parameters, size="small"))`.

    `build(context, parameters)` is called once on every rank and returns the step that all arms share: the same model
    and optimizer, so that only the arm differs. `parameters` is a frozen dataclass with the recipe's defaults;
    annotations with Literal or msgspec.Meta validate values before anything starts.
    `varied`: the arm that `--vary` turns into one arm per value; the baseline if "".
    `samples_per_rank`: the samples per step of one rank as a function of the parameters, gradient accumulation
    included (an arm with larger batches multiplies them by `Arm(samples_factor=)`). Arms with different numbers of
    samples are compared by the time per sample.
    `facts`: what `build` measures of each arm besides time (`Context.facts`); `traceq show` and `traceq diff` print it.
    `steps`: default of the measured unprofiled steps per arm; 0 for the default of the device. `trace_steps`: default
    of the profiled steps; 3 if None.
    `apart`: arms cannot share a process. Each arm runs in separate processes, one after another (`Context.arm` names
    it), and a process is the unit of repetition: `replicates` processes by default, 0 for the default of the device.
    Arms of such a recipe may have different parameters (`Arm(varied=)`) and numbers of ranks (`Arm(num_ranks=)`), and
    `next_arms(parameters, outcomes)` may return further arms once the earlier ones have run, until it returns none.
    `varied_apart`: parameters of which two values cannot share a process; with `--vary` of one, arms run apart.
    """

    question: str
    phases: tuple[str, ...]
    parameters: P
    build: Callable[[Context, P], Step]
    arms: tuple[Arm, ...] = (Arm("run", "the step as it is", baseline=True),)
    varied: str = ""
    samples_per_rank: Callable[[P], int] | None = None
    facts: tuple[Fact, ...] = ()
    steps: int = 0
    trace_steps: int | None = None
    apart: bool = False
    replicates: int = 0
    varied_apart: tuple[str, ...] = ()
    next_arms: Callable[[P, Sequence[Outcome]], Sequence[Arm]] | None = None

    @property
    def baseline(self) -> Arm:
        """The arm that the others are compared with."""
        return next(arm for arm in self.arms if arm.baseline)

    def runs_apart(self, arms: Iterable[Arm]) -> bool:
        """Return True if these arms run in separate processes."""
        return self.apart or any(arm.varied.keys() & set(self.varied_apart) for arm in arms)


def check_names(recipe: Recipe[Any], where: str) -> None:
    """Raise UsageFault for an inconsistent recipe.

    Names of phases and arms must be valid and unique, keys of facts unique, exactly one timed arm is the baseline, and
    arms refer only to other timed arms.
    """
    for name in recipe.phases:
        check_phase(name)
    for arm in recipe.arms:
        check_arm(arm.name)
    names = [arm.name for arm in recipe.arms]
    if len(set(names)) < len(names):
        raise UsageFault(f"{where}: two arms have the same name: {', '.join(names)}")
    if [arm.timed for arm in recipe.arms if arm.baseline] != [True]:
        raise UsageFault(f"{where}: exactly one timed arm must be the baseline")
    if recipe.baseline.needs:
        raise UsageFault(f"{where}: arm {recipe.baseline.name!r}: the baseline must run on any device")
    timed = {arm.name for arm in recipe.arms if arm.timed}
    for arm in recipe.arms:
        if unknown := {arm.against, arm.repeats} - {""} - (timed - {arm.name}):
            raise UsageFault(f"{where}: arm {arm.name!r} refers to {', '.join(sorted(unknown))}: no other timed arm")
    keys = [fact.key for fact in recipe.facts]
    if len(set(keys)) < len(keys):
        raise UsageFault(f"{where}: two facts have the same key: {', '.join(keys)}")
    if recipe.varied and recipe.varied not in names:
        raise UsageFault(f"{where}: varied={recipe.varied!r} is not one of its arms: {', '.join(names)}")
    if not recipe.apart and (recipe.next_arms or any(arm.num_ranks or arm.varied for arm in recipe.arms)):
        raise UsageFault(f"{where}: next_arms=, Arm(num_ranks=) and Arm(varied=) require Recipe(apart=True)")


def next_batch(fits: Mapping[int, bool], first: int, most: int) -> int | None:
    """Return the next size to try, None when the largest that fits is known or `most` fits."""
    if not fits:
        return first
    smallest_failed = min((size for size, fitted in fits.items() if not fitted), default=0)
    largest = max((size for size, fitted in fits.items() if fitted), default=0)
    if not smallest_failed:
        return min(2 * largest, most) if largest < most else None
    if not largest:
        return smallest_failed // 2 or None
    middle = (largest + smallest_failed) // 2
    return middle if smallest_failed - largest > max(1, largest // _PRECISION) else None
