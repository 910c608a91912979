"""Flame view of the host's time by phase, module, line and op, as JSON for flame.js: of one run, or of A and B."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from traceq.facts.timeline.call_sites import line_function
from traceq.facts.timeline.host_stacks import Frame, host_stacks
from traceq.facts.timeline.steps import steps
from traceq.model import Trace
from traceq.renderers.html.markup import Json, figure
from traceq.renderers.limits import FRAMES, NAME_LENGTH
from traceq.short_texts import cut_middle
from traceq.units import Unit, format_value

_KINDS = ("step", "phase", "annotation", "module", "line", "op", "rest")

Stack = tuple[Frame, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A frame and the frames inside it; `ns` per side over all counted steps, of one side or of A and B."""

    kind: str
    name: str
    ns: list[int]
    inside: dict[Frame, Node] = field(default_factory=dict)

    @property
    def sum_ns(self) -> int:
        """Time of all sides together."""
        return sum(self.ns)


def flame_figure(trace: Trace, title: str) -> str:
    """Return the figure of one trace's host, per counted step; `title` says which rank it is."""
    host = host_stacks(trace)
    root = _flame_of([dict(zip(host.stacks, host.ns.tolist(), strict=True))])
    step = format_value(root.ns[0] / host.num_steps, Unit.NS)
    of_steps = f"{step} per step, mean of {host.num_steps:,}" if steps(trace).marked else f"{step} of the trace"
    summary = f"{title}: {of_steps}. {_top_words(root, host.num_steps)}"
    return figure("flame", _json(root, (host.num_steps,)), "Host time by module and line", summary, key="flame")


def flame_pair_figure(ours: Trace, theirs: Trace, names: tuple[str, str]) -> str:
    """Return the figure of A's and B's host, per counted step of each; lines that moved are functions."""
    a, b = host_stacks(ours), host_stacks(theirs)
    sides = [dict(zip(host.stacks, host.ns.tolist(), strict=True)) for host in (a, b)]
    root = _flame_of(_with_same_lines(*sides))
    nums = (a.num_steps, b.num_steps)
    a_ns, b_ns = (ns / num for ns, num in zip(root.ns, nums, strict=True))
    delta, of_a, of_b = format_value(b_ns - a_ns, Unit.DELTA_NS), *(format_value(ns, Unit.NS) for ns in (a_ns, b_ns))
    summary = f"rank {theirs.rank}: {delta} from {names[0]} ({of_a}) to {names[1]} ({of_b})."
    data = {**_json(root, nums), "names": list(names)}
    return figure("flame", data, "Host time by module and line, B against A", summary, key="flame")


def _flame_of(sides: Sequence[Mapping[Stack, int]]) -> Node:
    """Return the tree of the stacks of one side or two, the longest frame first; short frames are joined.

    The frames inside one never take longer than it, and the root is the sum of all stacks.
    """
    root = Node("step", "step", [0] * len(sides))
    for number, stacks in enumerate(sides):
        for stack, ns in stacks.items():
            node = root
            node.ns[number] += ns
            for frame in stack:
                node = node.inside.setdefault(frame, Node(*frame, [0] * len(sides)))
                node.ns[number] += ns
    sizes = sorted((node.sum_ns for node, _ in _walk(root)), reverse=True)
    least_ns = sizes[FRAMES] + 1 if len(sizes) > FRAMES else 1
    _join_short(root, least_ns)
    return root


def _join_short(node: Node, least_ns: int) -> None:
    """Join the frames inside one that are shorter than `least_ns`, at any depth, to one frame each."""
    short = {frame: inner for frame, inner in node.inside.items() if inner.sum_ns < least_ns}
    kept = [item for item in node.inside.items() if item[0] not in short]
    for _, inner in kept:
        _join_short(inner, least_ns)
    node.inside = dict(sorted(kept, key=lambda item: -item[1].sum_ns))
    ns = [sum(column) for column in zip(*(inner.ns for inner in short.values()), strict=True)]
    if sum(ns):
        node.inside["rest", ""] = Node("rest", f"{len(short):,} shorter", ns)


def _walk(root: Node) -> Iterator[tuple[Node, int]]:
    """Yield every node with its depth, each before those inside it."""
    pending = [(root, 0)]
    while pending:
        node, depth = pending.pop()
        yield node, depth
        pending += [(inner, depth + 1) for inner in reversed(node.inside.values())]


def _with_same_lines(a: Mapping[Stack, int], b: Mapping[Stack, int]) -> list[dict[Stack, int]]:
    """Return the stacks of both sides, with the function of a line in place of a line that only one side has."""
    lines_a, lines_b = ({name for stack in side for kind, name in stack if kind == "line"} for side in (a, b))
    moved = lines_a ^ lines_b
    both = []
    for side in (a, b):
        stacks: dict[Stack, int] = {}
        for stack, ns in side.items():
            renamed = tuple((kind, line_function(name) if name in moved else name) for kind, name in stack)
            stacks[renamed] = stacks.get(renamed, 0) + ns
        both.append(stacks)
    return both


def _top_words(root: Node, num_steps: int) -> str:
    """Return the largest frames below the step in words: `backward 4.20 ms, forward 2.10 ms`."""
    largest = list(root.inside.values())[:3]
    return ", ".join(f"{node.name} {format_value(node.ns[0] / num_steps, Unit.NS)}" for node in largest) + "."


def _json(root: Node, num_steps: Sequence[int]) -> dict[str, Json]:
    """Return the nodes as columns, each before those inside it; `ns` has a column for each side."""
    nodes = list(_walk(root))
    names = dict.fromkeys(cut_middle(node.name, NAME_LENGTH) for node, _ in nodes)
    number = {name: index for index, name in enumerate(names)}
    return {
        "steps": list(num_steps),
        "depth": [depth for _, depth in nodes],
        "label": [number[cut_middle(node.name, NAME_LENGTH)] for node, _ in nodes],
        "kind": [_KINDS.index(node.kind) for node, _ in nodes],
        "ns": [[node.ns[side] for node, _ in nodes] for side in range(len(num_steps))],
        "kinds": list(_KINDS),
        "texts": list(names),
    }
