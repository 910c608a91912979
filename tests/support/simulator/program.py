"""What a host thread is told to do, and what each instruction costs: ns, all fixed beforehand.

A program is a list of steps, a step a tuple of instructions; scopes hold instructions. Nothing here is random, so a
job can be run again with one thing changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

US = 1000
MAIN, AUTOGRAD, RUNLOOP = 100, 101, 102
COMPUTE_STREAM, COMM_STREAM = 7, 20


@dataclass(frozen=True)
class Python:
    """The host is busy, and nothing shows it."""

    ns: int


@dataclass(frozen=True)
class Scope:
    """A row around what happens inside: `kind` op, phase, note (an annotation that is no phase), load, optimizer, line,
    module or compile. `before` and `after` are its own time.
    """

    kind: str
    name: str
    body: tuple[Instruction, ...] = ()
    before: int = 1 * US
    after: int = 1 * US


@dataclass(frozen=True)
class Backward:
    """The main thread waits while the autograd thread does this; without a device it does it itself."""

    body: tuple[Instruction, ...]


@dataclass(frozen=True)
class Launch:
    """A kernel: ready to run `delay` after its call began, whether or not that has returned."""

    name: str
    ns: int
    stream: int = COMPUTE_STREAM
    call: int = 4 * US
    delay: int = 6 * US


@dataclass(frozen=True)
class Copy:
    """A copy: `waits` none, inside (its call returns when it is over), after (a stream synchronize) or both."""

    kind: str = "DtoH"
    memory: str = "Device -> Pinned"
    size: int = 8
    ns: int = 1500
    stream: int = COMPUTE_STREAM
    waits: str = "after"
    call: int = 4 * US
    delay: int = 6 * US
    returns: int = 2 * US


@dataclass(frozen=True)
class Synchronize:
    """The host waits for a stream, an event, or the whole device; `returns` after that is done."""

    what: str = "device"
    number: int = 0
    call: int = 1 * US
    returns: int = 2 * US


@dataclass(frozen=True)
class Allocate:
    """cudaMalloc, cudaFree: blocks, and waits for nothing."""

    ns: int
    call: str = "cudaMalloc"


@dataclass(frozen=True)
class Record:
    """An event behind what is on a stream."""

    event: int
    stream: int = COMPUTE_STREAM
    call: int = 1 * US


@dataclass(frozen=True)
class Await:
    """What comes on a stream runs after an event."""

    event: int
    stream: int = COMPUTE_STREAM
    call: int = 1 * US


@dataclass(frozen=True)
class Collective:
    """All that issue the n-th of a group in a step meet: it ends `transfer` after the last one came, here by `late`."""

    name: str
    elements: int
    transfer: int = 30 * US
    late: int = 0
    group: str = "0"
    stream: int = COMM_STREAM
    call: int = 4 * US
    delay: int = 6 * US


@dataclass(frozen=True)
class Memory:
    """The allocator hands out bytes of the device, or takes them back."""

    size: int


Instruction = Python | Scope | Backward | Launch | Copy | Synchronize | Allocate | Record | Await | Collective | Memory
Steps = tuple[tuple[Instruction, ...], ...]


@dataclass(frozen=True)
class Job:
    """`steps` by rank. `backend` nccl, or gloo: then there is no device, and what was launched is computed by the host.

    `annotated`: phases are annotations, else they show by structure alone. `offsets`: what each rank's clock is ahead.
    `queue`: a launch blocks while so many are outstanding, 0 for never.
    """

    steps: tuple[Steps, ...]
    backend: str = "nccl"
    annotated: bool = True
    first_step: int = 10
    starts: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    queue: int = 0
    at_once: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    """(rank, n): the rank's n-th blocking call takes no time at all; its copy still runs."""

    @property
    def num_ranks(self) -> int:
        return len(self.steps)


def op(name: str, *body: Instruction, before: int = 1 * US, after: int = 1 * US) -> Scope:
    return Scope("op", name, body, before, after)


def phase(name: str, *body: Instruction) -> Scope:
    return Scope("phase", name, body)


def line(name: str, *body: Instruction) -> Scope:
    return Scope("line", name, body, 200, 200)


def load(ns: int) -> Scope:
    """The loop waits for its data loader."""
    return Scope("load", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", (Python(ns),))


def compilation(name: str, *body: Instruction, before: int) -> Scope:
    """torch.compile at work, which runs ops on tensors without data, backward included."""
    engine = op("autograd::engine::evaluate_function: MmBackward0", op("MmBackward0"))
    return Scope("compile", name, (op("aten::mm"), engine, *body), before)


def item(**costs: int) -> Scope:
    """`.item()`: a copy of eight bytes, and a synchronize."""
    return op("aten::item", op("aten::_local_scalar_dense", Copy(**costs)))  # type: ignore[arg-type]


def nonzero(**costs: int) -> Scope:
    """A boolean mask: the host must know how many are set."""
    return op("aten::nonzero", Launch("DeviceSelectSweep", 3 * US), Copy(size=4, **costs))  # type: ignore[arg-type]


def upload(size: int, ns: int, **costs: int) -> Scope:
    """`.to(device)` of a tensor in pageable memory: the call returns when it is there."""
    copy = Copy("HtoD", "Pageable -> Device", size, ns, waits="inside", **costs)  # type: ignore[arg-type]
    return op("aten::to", op("aten::_to_copy", op("aten::copy_", copy)))
