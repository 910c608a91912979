"""Collectives by name, and copies by direction."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from .reader import Event, Trace, integer

NAMES = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_all",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
SIZES = {
    "double": 8, "long": 8, "complexfloat": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2,
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
COMMUNICATION = re.compile(r"nccl|rccl|cross_device_reduce", re.IGNORECASE)
CUSTOM = ("one_shot_all_reduce", "two_shot_all_reduce", "multimem_", "nvshmem")
ANNOTATION = re.compile(r"(?:nccl|gloo|hccl):(.*)")
DIRECTIONS = {"DEVICE_TO_HOST": "DtoH", "HOST_TO_DEVICE": "HtoD", "DEVICE_TO_DEVICE": "DtoD"}


def is_communication(op: Event) -> bool:
    """Whether a device op is a collective's kernel."""
    called = op.name.replace("(anonymous namespace)::", "").split("<")[0].split("(")[0].split("::")
    custom = any(part.startswith(CUSTOM) for part in called[-1].split() + called)
    of_experts = called[0].endswith("deep_ep") or [part.split()[-1] for part in called[:2]] == ["dpsk", "ep"]
    custom |= called[-1].endswith("_kernel") and "all_to_all" in called[-1]  # through symmetric memory
    custom |= of_experts and called[-1] in ("dispatch", "combine", "notify_dispatch", "cached_notify")
    return op.cat == "kernel" and bool(custom or COMMUNICATION.search(op.name) or op.args.get("collective name"))


def collectives(trace: Trace) -> dict[str, Any]:
    """The calls per normalised name at the level the trace offers, their bytes where told, and the kernels."""
    level, calls = find_calls(trace)
    kernels = [op for op in trace.device_ops if is_communication(op)]
    sizes: Counter[str] = Counter()
    for name, event in calls:
        sizes[name] += payload(event)
    return {
        "level": level,
        "calls": dict(Counter(name for name, _ in calls)),
        "bytes": dict(sizes) if level == "record_param_comms" else {},
        "elements": element_counts(calls) if level == "record_param_comms" else {},
        "num_kernels": len(kernels),
        "gpu_ns": sum(op.end - op.start for op in kernels),
    }


def find_calls(trace: Trace) -> tuple[str, list[tuple[str, Event]]]:
    """The level that names the collectives of this trace, and its data calls (normalised name, event)."""
    rows = [e for e in trace.events if e.cat == "cpu_op" and e.name == "record_param_comms"]
    named = data_calls([(e.args["collective name"], e) for e in rows if e.args.get("collective name")])
    if named:
        return "record_param_comms", named
    ops = data_calls([(e.name[6:], e) for e in trace.events if e.cat == "cpu_op" and e.name.startswith("c10d::")])
    annotations = [(m[1], e) for e in trace.events if e.cat == "annotation" and (m := ANNOTATION.match(e.name))]
    if not annotations:
        return "c10d", ops
    calls = data_calls(annotations)
    is_gloo = all(event.name.startswith("gloo:") for _, event in calls)
    if is_gloo and not trace.device_ops and len(ops) == len(calls):
        return "annotation", ops  # gloo shows its reduce_scatter as an all_reduce
    return "annotation", calls


def data_calls(rows: list[tuple[str, Event]]) -> list[tuple[str, Event]]:
    """The rows whose name is a data collective; wait, barrier and the unknown are dropped."""
    result = [(NAMES.get(re.split(r"[ ]", name)[0].lower().replace("_", "")), event) for name, event in rows]
    return [(name, event) for name, event in result if name]


def payload(event: Event) -> int:
    return num_elements(event) * SIZES.get(str(event.args.get("dtype", "")).lower(), 0)


def num_elements(event: Event) -> int:
    return max(integer(event.args.get("in msg nelems"), 0), integer(event.args.get("out msg nelems"), 0))


def element_counts(calls: list[tuple[str, Event]]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for name, event in calls:
        counts[name] += num_elements(event)
    return dict(counts)


def memcpys(trace: Trace) -> dict[str, dict[str, int]]:
    """Per direction: number of device copies, their bytes and their time."""
    table: dict[str, dict[str, int]] = {}
    for op in trace.device_ops:
        if op.cat != "memcpy":
            continue
        result = re.search(r"[A-Za-z]to[A-Za-z]", op.name)
        kind = result[0] if result else DIRECTIONS.get(str(op.args.get("direction")), "unknown")
        row = table.setdefault(kind, {"num": 0, "bytes": 0, "gpu_ns": 0})
        row["num"] += 1
        row["bytes"] += max(0, integer(op.args.get("bytes", op.args.get("size"))))
        row["gpu_ns"] += op.end - op.start
    return table
