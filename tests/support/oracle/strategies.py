"""What a strategy predicts of a rank's collectives, and what it issued, by counting them step by step in its file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

from .collectives import NAMES, num_elements
from .nested import nested
from .reader import Event, Trace, integer, read

__all__ = ["deviations"]

Sums = list[tuple[int, int]]
"""Calls and elements of each step."""

FORWARD, BACKWARD = "parameter gather forward", "parameter gather backward"
GRADIENT, STEP, ACTIVATIONS = "gradient reduction", "parameter gather step", "activation exchange"
FEW = 16
OF_FORWARD = ("FSDP::pre_forward", "FSDP::all_gather", "FullyShardedDataParallel._pre_forward")
OF_BACKWARD = ("FSDP::pre_backward", "FSDP::backward_prefetch", "FullyShardedDataParallel._pre_backward")
AFTER_BACKWARD = ("FSDP::post_backward", "FullyShardedDataParallel._post_backward")


def deviations(path: Path, strategy: str) -> list[tuple[str, int, int]]:
    """(role, calls, elements) that a file has over what the strategy predicts, of roles that are not as predicted."""
    rank = Rank(read(path))
    gradients = rank.sums(GRADIENT)
    if strategy.startswith("FSDP"):
        checks = of_fsdp(rank, gradients)
    elif strategy == "ZeRO-3":
        checks = [(role, sums := rank.sums(role), usual(sums)) for role in (FORWARD, BACKWARD, GRADIENT, STEP)]
    elif strategy.startswith("ZeRO"):
        gathered = rank.sums(STEP)
        checks = [
            (GRADIENT, gradients, [(same_size(gradients, size), size) for _, size in gradients]),
            (STEP, gathered, [(same_size(gathered, gathered[i][1]), size) for i, (_, size) in enumerate(gradients)]),
        ]
    elif strategy == "TP":
        forward, backward = (rank.sums(f"{ACTIVATIONS} {way}") for way in ("forward", "backward"))
        as_forward = [(num, size) for (num, _), (_, size) in zip(forward, backward, strict=True)]
        as_usual = [(num, size) for (num, _), (_, size) in zip(usual(forward), forward, strict=True)]
        checks = [(ACTIVATIONS, forward, as_usual), (ACTIVATIONS, backward, as_forward)]
    else:
        checks = [(GRADIENT, gradients, usual(gradients))]
    off = [
        (role, [(a[0] - b[0], a[1] - b[1]) for a, b in zip(issued, predicted, strict=True)])
        for role, issued, predicted in checks
    ]
    return [(role, *map(sum, zip(*steps, strict=True))) for role, steps in off if any(map(any, steps))]


def of_fsdp(rank: Rank, gradients: Sums) -> list[tuple[str, Sums, Sums]]:
    """Each unit gathers once a pass, again in backward where it was resharded, and reduces once, all of it."""
    forward, backward = rank.sums(FORWARD), rank.sums(BACKWARD)
    passes = rank.marks(lambda name: bool(re.match(r"FullyShardedDataParallel\.forward$|FSDP::pre_forward( |$)", name)))
    wrapped = rank.marks(lambda name: name == "FSDP::root_pre_forward")
    batches = [num or 1 for num in wrapped]
    per_pass = [size // num for sums in (forward, gradients) for (_, size), num in zip(sums, batches, strict=True)]
    whole = [most_frequent(per_pass) * num for num in batches]
    reduces = rank.marks(
        lambda name: bool(re.match(r"FullyShardedDataParallel\._post_backward_hook$|FSDP::post_backward_reduce", name))
    )
    resharded = [num - root for num, root in zip(passes, batches, strict=True)]
    again = resharded if sum(num for num, _ in backward) <= sum(resharded) else passes
    if not any(num for num, _ in backward):
        again = [0] * len(passes)
    sizes = whole if again == passes else [size for _, size in backward]
    return [
        (FORWARD, forward, list(zip(passes, whole, strict=True))),
        (BACKWARD, backward, list(zip(again, sizes, strict=True))),
        (GRADIENT, gradients, list(zip(reduces, whole, strict=True))),
    ]


class Rank:
    """The collectives of a file by role and step."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        info = trace.meta.get("distributedInfo", {})
        self.world_size = int(info.get("world_size", 1))
        self.ranges = nested(e for e in trace.events if e.cat in ("cpu_op", "annotation"))
        self.types = dict(self._types())
        self.calls = list(self._calls())

    def sums(self, role: str) -> Sums:
        return [self._sum(role, start, end) for _, start, end in self.trace.host_steps]

    def _sum(self, role: str, start: int, end: int) -> tuple[int, int]:
        sizes = [size for of, at_ns, size in self.calls if of == role and start <= at_ns < end]
        return len(sizes), sum(sizes)

    def marks(self, is_mark: Callable[[str], bool]) -> list[int]:
        starts = [e.start for e in self.trace.events if e.cat in ("annotation", "cpu_op") and is_mark(e.name)]
        return [sum(start <= each < end for each in starts) for _, start, end in self.trace.host_steps]

    def _calls(self) -> Iterable[tuple[str, int, int]]:
        """(role, start, elements): of rows with arguments, else of NCCL's annotations, else of the ops of c10d."""
        events = self.trace.events
        rows = [e for e in events if e.name == "record_param_comms" and e.args.get("collective name")]
        rows_of_nccl = [e for e in events if e.cat == "annotation" and e.name.startswith("nccl:")]
        ops = [e for e in events if e.cat == "cpu_op" and e.name.startswith("c10d::")]
        for event in rows or rows_of_nccl or ops:
            text = event.args.get("collective name") or event.name.rpartition(":")[2]
            name = NAMES.get(str(text).lower().replace("_", ""))
            if name:
                size = num_elements(event) if rows else self._elements(event, name)
                yield self._role(event, name, size), event.start, size

    def _types(self) -> Iterable[tuple[int, str]]:
        """(row, type of the elements): an op of c10d has that of gloo's row, in order."""
        by_start = sorted(self.trace.events, key=lambda e: e.start)
        rows = [e for e in by_start if e.name.startswith("gloo:")]
        ops = [e for e in by_start if e.cat == "cpu_op" and e.name.startswith("c10d::")]
        for op, row in zip(ops, rows, strict=False):
            yield op.row, str(row.args.get("input type"))
        for event in by_start:
            if "dtype" in event.args:
                yield event.row, str(event.args["dtype"])

    def _elements(self, event: Event, name: str) -> int:
        """The larger side; where an all-gather shows one rank's input alone, that of all ranks."""
        sides = [elements_of(dims) for dims in event.args.get("input dims", [])[:2]]
        is_one_side = name == "all_gather" and sides[:1] == [0]
        return max(sides, default=0) * (self.world_size if is_one_side else 1)

    def _role(self, event: Event, name: str, size: int) -> str:
        around = [row.name for row in self.ranges[event.thread].around_row(event)]

        def is_in(prefixes: tuple[str, ...]) -> bool:
            return any(row.startswith(prefixes) for row in around)

        if name == "all_gather" and (is_in(OF_BACKWARD) or any("PreBackwardFunction" in row for row in around)):
            return BACKWARD
        if name == "all_gather" and is_in(OF_FORWARD):
            return FORWARD
        if any("AccumulateGrad" in row for row in around):
            return "unused map" if "int" in self.types.get(event.row, "").lower() else GRADIENT
        if is_in(AFTER_BACKWARD):
            return GRADIENT
        if size <= FEW:
            return "few"
        if is_in(("Optimizer.step#",)):
            return STEP if name in ("all_gather", "broadcast") else GRADIENT
        return self._of_position(event, name, around)

    def _of_position(self, event: Event, name: str, around: list[str]) -> str:
        """DeepSpeed's gathers by the optimizer's step before them; a sum in the pass that runs is of activations."""
        start = max((start for _, start, _ in self.trace.host_steps if start <= event.start), default=0)
        updates = [e.end for e in self.trace.events if e.name.startswith("Optimizer.step#") and e.start >= start]
        if name == "all_gather":
            is_sharded = any("PreBackwardFunction" in e.name for e in self.trace.events)
            is_after = bool(updates) and min(updates) <= event.start
            return FORWARD if is_sharded and not is_after else STEP
        if any(row.startswith("autograd::engine") for row in around):
            return f"{ACTIVATIONS} backward"
        engine = [e.start for e in self.trace.events if e.name.startswith("autograd::engine") and e.start >= start]
        return GRADIENT if engine and min(engine) <= event.start else f"{ACTIVATIONS} forward"


def elements_of(dims: Any) -> int:
    """Of one shape, or of all shapes in a list."""
    if dims and isinstance(dims[0], list):
        return sum(map(elements_of, dims))
    return prod(map(integer, dims)) if dims else 0


def most_frequent(values: list[int]) -> int:
    """Of equally frequent ones the largest."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))


def usual(sums: Sums) -> Sums:
    one = most_frequent([num for num, _ in sums]), most_frequent([size for _, size in sums])
    return [one] * len(sums)


def same_size(sums: Sums, size: int) -> int:
    """The usual number of calls of the steps that move as many elements."""
    return most_frequent([num for num, other in sums if other == size] or [0])
