"""Kinds of changes: what a user might have done to a training step, done to a recorded trace."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from known_changes.recording import (
    Change,
    Doc,
    Recording,
    UnsuitableSource,
    after,
    is_compute,
    largest_kernel,
    launched_kernels,
    main_stream,
    stream_of,
)
from traceq.facts.events.kernel_names import kernel_family

_OTHER_OPS = ("aten::native_layer_norm", "aten::cudnn_batch_norm", "aten::add", "aten::empty", "aten::mul")
SYNC_OPS = {
    "item": ("dtoh", "aten::item", "aten::_local_scalar_dense"),
    "nonzero": ("dtoh", "aten::nonzero"),
    "pageable": ("htod", "aten::to", "aten::_to_copy", "aten::copy_"),
    "devsync": ("device", "cudaDeviceSynchronize"),
}
"""Direction of a sync, and the ops that it is made of."""


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """A trace with changes.

    `a` and `b` are by rank; `others` are B with a part of the changes, by name.
    """

    a: Mapping[int, Doc]
    b: Mapping[int, Doc]
    changes: tuple[Change, ...]
    others: Mapping[str, Doc] = field(default_factory=dict)


def sync(recording: Recording, kind: str, num: int = 1) -> Edit:
    """Add `num` syncs per step; a copy waits for its stream, a device synchronize for all streams."""
    doc, simulator = recording.start()
    places = recording.tools.places(doc, num)
    stream = None if kind == "devsync" else main_stream(simulator)
    waits = simulator.run(syncsat=after(places), syncstream=stream)
    recording.tools.add_sync(doc, simulator, places, waits, kind)
    return Edit(recording.replayed(), {0: doc}, (Change("sync", SYNC_OPS[kind], len(places)),))


def removed(recording: Recording) -> Edit:
    """Remove the syncs that `item` adds."""
    edit = sync(recording, "item")
    return Edit(edit.b, edit.a, edit.changes)


def sleep(recording: Recording, dur_us: float) -> Edit:
    """Add host time twice per step."""
    doc, simulator = recording.start()
    places = recording.tools.places(doc, 2)
    change = recording.tools.owners(doc, places)
    simulator.run(stalls=[(ts, dur_us) for ts in after(places)])
    return Edit(recording.replayed(), {0: doc}, (change,))


def slower_kernel(recording: Recording, factor: float = 1.3) -> Edit:
    """Make all instances of the largest kernel slower."""
    doc, simulator = recording.start()
    name = largest_kernel(doc)
    change = _kernel_change(doc, simulator, name)
    simulator.run(scale=lambda work: factor if work["name"] == name else 1)
    return Edit(recording.replayed(), {0: doc}, (change,))


def _kernel_change(doc: Doc, simulator: Any, name: str) -> Change:
    ops = {op for op, kernel in launched_kernels(doc, simulator) if kernel["name"] == name}
    num = sum(kernel["name"] == name for kernel in simulator.dev)
    return Change("kernel", (kernel_family(name),), num, tuple(sorted(ops)))


def replaced_op(recording: Recording) -> Edit:
    """Replace an op and its kernels by others that take 1.5 times as long."""
    doc, simulator = recording.start()
    kernels = launched_kernels(doc, simulator)
    time: Counter[str] = Counter()
    for op, kernel in kernels:
        time[op] += kernel["dur"]
    if not time:
        raise UnsuitableSource("no op launches a kernel")
    most = time.most_common(1)[0][0]
    selected = {id(kernel): kernel for op, kernel in kernels if op == most}
    families = sorted({kernel_family(kernel["name"]) for kernel in selected.values()})
    simulator.run(scale=lambda work: 1.5 if id(work) in selected else 1)
    for event in doc["traceEvents"]:
        if event.get("cat") == "cpu_op" and event["name"] == most:
            event["name"] = "mine::replaced"
    for kernel in selected.values():
        kernel["name"] = f"replaced_kernel<{kernel['name'][:8]}>"
    names = ("mine::replaced", "replaced_kernel", most, *families)
    return Edit(recording.replayed(), {0: doc}, (Change("replaced", names, len(selected)),))


def all_gather(recording: Recording, *, exposed: bool) -> Edit:
    """Add an all-gather on its own stream between two kernels of each step; the second waits if it is exposed."""
    doc, simulator = recording.start()
    device, stream = main_stream(simulator)
    info, works = simulator.info, simulator.dev
    calls = [call["ts"] for call in simulator.rt]
    selected = []
    for start, end, _ in recording.tools.gen.steps(doc) or [(min(calls), max(calls), "")]:
        inside = [
            i
            for i, work in enumerate(works)
            if is_compute(work) and stream_of(work) == (device, stream) and info[i][1] and info[i][0] is not None
            if start < info[i][1]["ts"] < end and info[info[i][0]][1] is not None
        ]
        selected += inside[len(inside) // 2 :][:1]
    if not selected:
        raise UnsuitableSource("no two kernels of a step were launched in the trace")
    launches = [(info[i][1]["ts"], info[i][1]["pid"], info[i][1]["tid"]) for i in selected]
    late = dict.fromkeys(selected, 520.0) if exposed else None
    recorded = [event["args"] for event in doc["traceEvents"] if event.get("name") == "record_param_comms"]
    has_metadata = not recorded or any("Collective name" in args for args in recorded)
    simulator.run(late=late, stalls=[(ts - 0.002, 4.0) for ts, _, _ in launches])
    for number, (i, (_, pid, tid)) in enumerate(zip(selected, launches, strict=True)):
        before, launch_us = works[info[i][0]], info[i][1]["ts"]
        start = works[i]["ts"] - 512 if exposed else max(before["ts"] + before["dur"] + 2, launch_us + 1)
        op, *others = _all_gather_events(works[i], pid, tid, launch_us, start, number)
        if has_metadata:  # in a trace without it, one collective that has it would change how all others are read
            op["args"] |= {"Collective name": "all_gather", "dtype": "BFloat16"}
        doc["traceEvents"] += [op, *(others if exposed else others[:-1])]
    return Edit(recording.replayed(), {0: doc}, (Change("collective", ("all_gather",), len(selected)),))


def _all_gather_events(neighbour: Doc, pid: Any, tid: Any, launch_us: float, start_us: float, number: int) -> list[Doc]:
    """Return the op, the launch, the kernel, and the wait of another stream for it."""
    call, op = {"correlation": 90_000_000 + 2 * number}, {"External id": 60_000_000 + number}
    device = {"device": neighbour["args"].get("device"), "stream": 999, "context": 1}
    kernel = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    wait = {"cbid": 147, "correlation": call["correlation"] + 1}
    host, runtime = (pid, tid), "cuda_runtime"
    events = (
        ("cpu_op", "record_param_comms", *host, launch_us - 3.9, 3.8, op),
        (runtime, "cudaLaunchKernelExC", *host, launch_us - 3.5, 1, {**op, **call, "cbid": 430}),
        ("kernel", kernel, neighbour["pid"], 999, start_us, 510, {**op, **call, **device}),
        (runtime, "cudaStreamWaitEvent", *host, launch_us - 1.2, 0.5, wait),
    )
    keys = ("cat", "name", "pid", "tid", "ts", "dur", "args")
    return [{"ph": "X", **dict(zip(keys, event, strict=True))} for event in events]


def jittered(recording: Recording, seed: int, *, with_item: bool = False, share: float = 0.03) -> tuple[Doc, int]:
    """Return the trace with every duration on host and device changed at random, and the number of added syncs."""
    rng, (doc, simulator) = random.Random(seed), recording.start()
    launches = sorted({call["ts"] for call in simulator.launch.values()})
    gaps = [(ts, min(ts - before, 2000)) for before, ts in pairwise(launches)]
    stalls = [(ts - 0.002, rng.expovariate(1 / (share * gap))) for ts, gap in gaps if gap > 0.5]
    factor = {id(work): max(0.9, 1 + rng.gauss(0, share)) for work in simulator.dev}
    places = recording.tools.places(doc, 1) if with_item else []
    waits = simulator.run(
        stalls=stalls,
        scale=lambda work: factor[id(work)],
        syncsat=after(places),
        syncstream=main_stream(simulator),
    )
    if with_item:
        recording.tools.add_sync(doc, simulator, places, waits, "item")
    return doc, len(places)


def noise(recording: Recording, *, with_item: bool) -> Edit:
    """Jitter A and B independently; `without` is B without the sync."""
    a, (b, num) = {0: jittered(recording, 1)[0]}, jittered(recording, 2, with_item=with_item)
    if not with_item:
        return Edit(a, {0: b}, ())
    return Edit(a, {0: b}, (Change("sync", SYNC_OPS["item"], num),), {"without": jittered(recording, 2)[0]})


def three_changes(recording: Recording) -> Edit:
    """Add syncs, a slower kernel and 10 ms of host work twice a step; `n` holds the changes of the bits of n."""
    worlds: list[Doc] = []
    changes: tuple[Change, ...] = ()
    for mask in range(8):
        doc, simulator = recording.start()
        places, stalled = recording.tools.places(doc, 1), recording.tools.places(doc, 2, _OTHER_OPS)
        name, owners = largest_kernel(doc), recording.tools.owners(doc, stalled)
        item = Change("sync", SYNC_OPS["item"], len(places))
        changes = (item, _kernel_change(doc, simulator, name), owners)
        waits = simulator.run(
            syncsat=after(places) if mask & 1 else (),
            syncstream=main_stream(simulator),
            scale=partial(_factor, name=name) if mask & 2 else None,
            stalls=[(ts, 10_000.0) for ts in after(stalled)] if mask & 4 else (),
        )
        if mask & 1:
            recording.tools.add_sync(doc, simulator, places, waits, "item")
        worlds.append(doc)
    others = {str(mask): worlds[mask] for mask in range(1, 7)}
    return Edit({0: worlds[0]}, {0: worlds[7]}, changes, others)


def _factor(work: Doc, name: str) -> float:
    return 1.3 if work["name"] == name else 1


def full_queue(recording: Recording, kind: str) -> Edit:
    """Add syncs or 30 ms of host work where launch calls block on a full queue, and model the queue on both sides."""
    doc, simulator = recording.start()
    queue = simulator.full_queue()
    if not queue:
        raise UnsuitableSource("no launch call blocks on a full queue")
    simulator.run(queue=queue)
    a, (doc, simulator) = {0: doc}, recording.start()
    simulator.full_queue()  # the simulator keeps the order of launches that it finds
    places = recording.tools.places(doc, 1)
    if kind == "sleep":
        change = recording.tools.owners(doc, places)
        simulator.run(queue=queue, stalls=[(ts, 30_000.0) for ts in after(places)])
        return Edit(a, {0: doc}, (change,))
    waits = simulator.run(queue=queue, syncsat=after(places), syncstream=main_stream(simulator))
    recording.tools.add_sync(doc, simulator, places, waits, kind)
    return Edit(a, {0: doc}, (Change("sync", SYNC_OPS[kind], len(places)),))


KINDS: Mapping[str, Callable[[Recording], Edit]] = {
    "item": partial(sync, kind="item"),
    "item8": partial(sync, kind="item", num=8),
    "nonzero": partial(sync, kind="nonzero"),
    "pageable": partial(sync, kind="pageable"),
    "devsync": partial(sync, kind="devsync"),
    "removed": removed,
    "sleep": partial(sleep, dur_us=3_000.0),
    "sleep20": partial(sleep, dur_us=20_000.0),
    "kx": slower_kernel,
    "swap": replaced_op,
    "ag_exposed": partial(all_gather, exposed=True),
    "ag_hidden": partial(all_gather, exposed=False),
    "noise_aa": partial(noise, with_item=False),
    "noise_item": partial(noise, with_item=True),
    "multi": three_changes,
    "queue_item": partial(full_queue, kind="item"),
    "queue_sleep": partial(full_queue, kind="sleep"),
}
