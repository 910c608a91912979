"""How should a batch get to the device: through Python values, from pinned memory, or a step ahead of its use?

`naive` is what grows when data comes as rows of Python or Arrow values: each row boxed into lists and back, copies from
pageable memory that the host waits for, and an `.item()` on the batch to see whether it is sound. `pinned` takes the
loader's tensors as they are and copies without waiting. `prefetch` asks for the next batch once the forward pass is
under way, and copies it on a side stream while the device computes. `tuned` is `prefetch` with TF32 in matrix products
and cudnn.benchmark, the switches that such a change often flips as well: how much of a gain is theirs? On a CPU they
switch nothing, and the arm is left out.

The answer is a verdict on each arm against `naive`, with the syncs and the host's work that went away from
`dataload_wait`. On CUDA `traceq show RUN/ARM` has, under Copies, how much of the time of HtoD copies kernels hide, and
how long the host was blocked in each sync. On a CPU there are no copies, and what is left of `prefetch` is that the
loader is asked in the phase `dataload_ahead`.

Before anything is timed each arm runs `memory_steps` steps for what it takes of the host's memory, of rank 0 on Linux:
most that the rank and that its workers held (`rank_peak_bytes.<arm>`, `workers_peak_bytes.<arm>` in the run's
environment), and how many batches, in use and finished ahead, the loader had in shared memory (`shared_batches.<arm>`).
A producer that is faster than the steps stays `prefetch_factor` batches a worker ahead: `--vary prefetch_factor=2,16`
shows what they take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import TrainingParameters
from traceq.recipes.workload.phases import PHASES
from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]

TOO_LARGE = 1e3
AHEAD = ("prefetch", "tuned")


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """What `--set` and `--vary` can change."""

    memory_steps: Annotated[int, Meta(ge=1)] = 6
    prefetch_factor: Annotated[int, Meta(ge=1)] = 2


def build(context: Context, parameters: Parameters) -> Step:
    """One training step for all arms; they differ in how its batch is delivered."""
    from contextlib import nullcontext
    from mmap import PAGESIZE

    from traceq.recipes.memory.host_memory import forget_peaks, host_memory
    from traceq.recipes.workload.data import Sample
    from traceq.recipes.workload.host_to_device import Prefetcher, copy_rowwise, tune
    from traceq.recipes.workload.training import Phase, Training
    from traceq.units import Unit, format_value

    training = Training.build(
        context,
        parameters.size,
        parameters.batch_size,
        parameters.num_workers,
        parameters.seed,
        prefetch_factor=parameters.prefetch_factor,
    )
    prefetcher = Prefetcher(training.batches, context.device)

    def delivered(arm: str) -> Sample:
        if arm == "pinned":
            return training.next_batch()
        if arm in AHEAD:
            return prefetcher.take()
        batch = copy_rowwise(next(training.batches), context.device)
        training.count_outlier(batch.state.abs().max().item() > TOO_LARGE)
        return batch

    def run(arm: str, phase: Phase) -> None:
        with phase("dataload_wait"):
            training.batch = delivered(arm)
        with phase("forward"):
            training.forward(training.batch)
        with phase("dataload_ahead"):
            if arm in AHEAD:
                prefetcher.fetch()
        training.finish(phase)

    one_batch = sum(-(-field.nbytes // PAGESIZE) * PAGESIZE for field in training.next_batch())  # a file each
    for arm in ("naive", "pinned", "prefetch"):
        forget_peaks()
        for _ in range(parameters.memory_steps):
            run(arm, lambda _: nullcontext())
        held = host_memory()
        context.facts[f"rank_peak_bytes.{arm}"] = held.rank
        context.facts[f"workers_peak_bytes.{arm}"] = held.workers
        context.facts[f"shared_batches.{arm}"] = round(held.shared / one_batch, 1)
        rank, workers, shared = (format_value(size, Unit.BYTES) for size in (held.rank, held.workers, held.shared))
        context.say(f"{arm}: at most {rank} in rank 0, {workers} in its workers; {shared} of batches are shared")

    def step(arm: str) -> None:
        tune(arm == "tuned")
        run(arm, context.phase)

    return step


recipe = Recipe(
    question="What does it gain to deliver batches from pinned memory, or a step ahead, instead of row by row?",
    arms=(
        Arm("naive", "rows boxed into Python values, pageable copies, an .item() on each batch", baseline=True),
        Arm("pinned", "the loader's tensors, copied without waiting"),
        Arm("prefetch", "the same one step ahead, on a stream of its own"),
        Arm("tuned", "prefetch, with TF32 and cudnn.benchmark; on CUDA alone", needs="cuda"),
    ),
    phases=(*PHASES[:2], "dataload_ahead", *PHASES[2:]),
    parameters=Parameters(),
    build=build,
    varied="pinned",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
