"""A job of two CPU ranks in which each arm really makes one change that `traceq whatif` is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from time import sleep

from traceq.recorder import Arm, Context, Recipe, Step

__all__ = ["recipe"]

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
PHASES = ("load", "forward", "stall", "uneven", "exchange")


@dataclass(frozen=True, slots=True)
class Parameters:
    """How long the parts of a step take; rank 1 alone takes `uneven_us`."""

    load_us: int = 6000
    stall_us: int = 8000
    uneven_us: int = 10000
    products: int = 20
    size: int = 256
    exchanged: int = 1_000_000


def build(context: Context, parameters: Parameters) -> Step:
    """Return the step of all arms."""
    import torch
    import torch.distributed as dist
    from torch.profiler import record_function

    torch.manual_seed(0)
    left, right = torch.randn(2, parameters.size, parameters.size)
    large, small = torch.ones(parameters.exchanged), torch.ones(1)

    def step(arm: str) -> None:
        with context.phase("load"), record_function(LOADER):
            sleep(0 if arm == "loader" else parameters.load_us / 1e6)
        with context.phase("forward"):
            for _ in range(parameters.products // 2 if arm == "cheaper" else parameters.products):
                torch.mm(left, right)
        with context.phase("stall"):
            sleep(0 if arm == "no_stall" else parameters.stall_us / 1e6)
        with context.phase("uneven"):
            sleep(parameters.uneven_us / 1e6 if context.rank == 1 and arm != "balanced" else 0)
        with context.phase("exchange"):
            if arm != "no_exchange":
                dist.all_reduce(large.fill_(1))
            dist.all_reduce(small.fill_(1))

    return step


recipe = Recipe(
    question="Does a change do what replay said of it?",
    arms=(
        Arm("base", "nothing is changed", baseline=True),
        Arm("no_stall", "the host does not stall"),
        Arm("loader", "the data loader is ready"),
        Arm("cheaper", "half as many products"),
        Arm("balanced", "rank 1 has no more to do than rank 0"),
        Arm("no_exchange", "the large collective is left out"),
    ),
    phases=PHASES,
    parameters=Parameters(),
    build=build,
    samples_per_rank=lambda parameters: 1,
)
