"""How should a batch reach the device: through Python values, from pinned memory, or one step ahead of its use?

`naive` is common when data arrives as rows of Python or Arrow values: each row is converted to lists and back, copies
from pageable memory block the host, and `.item()` on the batch checks its range. `pinned` copies the loader's tensors
without blocking. `prefetch` requests the next batch after the forward pass has been launched, and copies it on a side
stream while the device computes. `tuned` is `prefetch` with TF32 matrix products and cudnn.benchmark, which such
changes often enable as well: how much of the gain is theirs? They have no effect on a CPU, so the arm is skipped there.

Result: a verdict on each arm against `naive`, with the syncs and the host work removed from `dataload_wait`. On CUDA
`traceq show RUN/ARM` states under Copies how much of the HtoD time is hidden by kernels, and how long each sync blocked
the host. On a CPU there are no copies; the remaining effect of `prefetch` is that the loader is called in the phase
`dataload_ahead`.

Before timing, each arm runs `memory_steps` steps to measure host memory, of rank 0 on Linux: the peaks of the rank and
of its workers (`rank_peak_bytes.<arm>`, `workers_peak_bytes.<arm>` in the run's environment), and the number of
batches, in use and prefetched, in the loader's shared memory (`shared_batches.<arm>`). A loader that is faster than the
steps stays `prefetch_factor` batches per worker ahead: `--vary prefetch_factor=2,16` shows how much memory they take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from traceq.recipes.workload.parameters import PHASES, EnterPhase, TrainingParameters
from traceq.recorder import Arm, Context, Fact, Recipe, Step, Unit

__all__ = ["recipe"]

TOO_LARGE = 1e3
AHEAD = ("prefetch", "tuned")


@dataclass(frozen=True, slots=True)
class Parameters(TrainingParameters):
    """Parameters that `--set` and `--vary` can change."""

    memory_steps: Annotated[int, Meta(ge=1)] = 6
    prefetch_factor: Annotated[int, Meta(ge=1)] = 2


def build(context: Context, parameters: Parameters) -> Step:
    """Return one training step for all arms; they differ in how the batch is delivered."""
    from contextlib import nullcontext
    from mmap import PAGESIZE

    from traceq.recipes.memory.host_memory import host_memory, reset_peaks
    from traceq.recipes.workload.data import Sample
    from traceq.recipes.workload.host_to_device import Prefetcher, copy_rowwise, tune
    from traceq.recipes.workload.training import Training
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

    def deliver(arm: str) -> Sample:
        if arm == "pinned":
            return training.next_batch()
        if arm in AHEAD:
            return prefetcher.take()
        batch = copy_rowwise(next(training.batches), context.device)
        training.count_outlier(batch.state.abs().max().item() > TOO_LARGE)
        return batch

    def run(arm: str, phase: EnterPhase) -> None:
        with phase("dataload_wait"):
            training.batch = deliver(arm)
        with phase("forward"):
            training.forward(training.batch)
        with phase("dataload_ahead"):
            if arm in AHEAD:
                prefetcher.fetch()
        training.finish(phase)

    one_batch = sum(-(-field.nbytes // PAGESIZE) * PAGESIZE for field in training.next_batch())  # one file per tensor
    for arm in ("naive", "pinned", "prefetch"):
        reset_peaks()
        for _ in range(parameters.memory_steps):
            run(arm, lambda _: nullcontext())
        memory = host_memory()
        context.facts[f"rank_peak_bytes.{arm}"] = memory.rank
        context.facts[f"workers_peak_bytes.{arm}"] = memory.workers
        context.facts[f"shared_batches.{arm}"] = round(memory.shared / one_batch, 1)
        sizes = (memory.rank, memory.workers, memory.shared)
        rank, workers, shared = (format_value(size, Unit.BYTES) for size in sizes)
        context.say(f"{arm}: peak {rank} in rank 0, {workers} in its workers; {shared} of batches in shared memory")

    def step(arm: str) -> None:
        tune(arm == "tuned")
        run(arm, context.phase)

    return step


recipe = Recipe(
    question="What is gained by delivering batches from pinned memory, or one step ahead, instead of row by row?",
    arms=(
        Arm("naive", "rows through Python values, pageable copies, an .item() per batch", baseline=True),
        Arm("pinned", "the loader's pinned tensors, copied without blocking"),
        Arm("prefetch", "the same one step ahead, on a side stream"),
        Arm("tuned", "prefetch with TF32 and cudnn.benchmark; CUDA only", needs="cuda"),
    ),
    phases=(*PHASES[:2], "dataload_ahead", *PHASES[2:]),
    parameters=Parameters(),
    build=build,
    facts=(
        Fact("rank_peak_bytes", "peak of rank 0", Unit.BYTES),
        Fact("workers_peak_bytes", "of its workers", Unit.BYTES),
        Fact("shared_batches", "batches in shared memory", Unit.NUMBER),
    ),
    varied="pinned",
    samples_per_rank=lambda parameters: parameters.batch_size,
)
