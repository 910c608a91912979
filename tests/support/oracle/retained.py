"""Nodes of autograd that several steps run, event by event."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from .reader import Event, integer, read

__all__ = ["retained_ns"]


def retained_ns(path: Path) -> float:
    """Time of these nodes in a mean step, by the device if there is one; of nodes whose forward op is older."""
    trace = read(path)
    steps = [(start, end) for _, start, end in trace.host_steps]
    runs: dict[tuple[int, int], list[tuple[int, Event]]] = defaultdict(list)
    for event in trace.events:
        sequence, thread = (integer(event.args.get(key)) for key in ("sequence number", "fwd thread id"))
        if event.cat != "cpu_op" or not event.name.startswith("autograd::engine::") or sequence is None or not thread:
            continue
        for number, (start, end) in enumerate(steps):
            is_new = any(
                other.cat == "cpu_op"
                and integer(other.args.get("sequence number")) == sequence
                and not integer(other.args.get("fwd thread id"))
                and start <= other.start < event.start
                for other in trace.events
            )
            if start <= event.start < end and not is_new:
                runs[sequence, thread].append((number, event))
    nodes = [event for each in runs.values() if len({number for number, _ in each}) > 1 for _, event in each]
    launches = [(op.end - op.start, trace.launches[op.row]) for op in trace.device_ops if op.row in trace.launches]
    if not trace.device_ops:
        return sum(node.end - node.start for node in nodes) / len(steps)
    inside = (
        ns
        for ns, call in launches
        if any(node.thread == call.thread and node.start <= call.start < node.end for node in nodes)
    )
    return sum(inside) / len(steps)
