"""Host ops of A whose place other ops of B took, at the same places between the same two calls of both sides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.compare.contributions import Contributions, Part
from traceq.compare.result import REPLACED_BY
from traceq.facts.timeline.data_loading import LOADING

__all__ = ["is_replacement", "replaced_name", "replaced_together"]

_MAJORITY = 2
_COMPILED_REGION = re.compile(r"(?<=^Torch-Compiled Region: )\d+/\d+$")
"""Numbers of a region in the order in which regions were compiled: of the same code others in another recording."""


def replaced_together(
    groups: Sequence[tuple[int, ...]], parts: Contributions, only_a: NDArray[np.bool_], only_b: NDArray[np.bool_]
) -> list[tuple[int, ...]]:
    """Return the rows with those joined in which the host does one thing on A and another on B at the same places.

    Places between the same two calls of both sides, in one phase, line and module, outside of the data loader: what
    workers took over is not replaced by how the process receives it.
    """
    of_label = np.empty(len(parts.labels), np.int64)
    for number, members in enumerate(groups):
        of_label[list(members)] = number
    host = np.flatnonzero((parts.part == Part.HOST) & (only_a | only_b)[parts.label])
    num_places = np.bincount(of_label[parts.label[host]], minlength=len(groups))
    old, new = (host[side[parts.label[host]]] for side in (only_a, only_b))
    new = new[np.argsort(parts.edge[new], kind="stable")]
    first, last = (np.searchsorted(parts.edge[new], parts.edge[old], side) for side in ("left", "right"))
    source = np.repeat(np.arange(len(old)), last - first)
    target = np.arange(len(source)) - np.repeat(np.cumsum(last - first) - last + first, last - first) + first[source]
    rows = np.column_stack([of_label[parts.label[old[source]]], of_label[parts.label[new[target]]]])
    pairs, counts = np.unique(rows, axis=0, return_counts=True)
    heads = [parts.labels[members[0]] for members in groups]
    more = _more_by_name(parts)
    inner = [head.inner for head in heads]
    place = [(head.phase, head.line, head.module) for head in heads]
    by_count = sorted(
        zip(pairs.tolist(), counts.tolist(), strict=True), key=lambda p: (-p[1], inner[p[0][0]] != inner[p[0][1]])
    )
    joined, result = set[int](), list(groups)
    for (x, y), num in by_count:
        is_most = _MAJORITY * num > max(num_places[x], num_places[y])
        is_fewer_and_more = more[heads[x].inner or heads[x].name] < 0 < more[heads[y].inner or heads[y].name]
        is_placed = place[x] == place[y] and heads[x].phase not in LOADING
        if is_most and is_fewer_and_more and is_placed and not {x, y} & joined:
            joined |= {x, y}
            result[x], result[y] = (*groups[x], *groups[y]), ()
    return [members for members in result if members]


def _more_by_name(parts: Contributions) -> Counter[str]:
    """Return, by name, in how many more places between two calls B's host does something than A's."""
    more: Counter[str] = Counter()
    of_host = parts.part == Part.HOST
    for side, sign in ((parts.a_ns, -1), (parts.b_ns, 1)):
        nums = np.bincount(parts.label[of_host & (side > 0)], minlength=len(parts.labels)).tolist()
        for label, num in zip(parts.labels, nums, strict=True):
            more[label.inner or label.name] += sign * num
    return more


def is_replacement(parts: Contributions, row: Sequence[int], least_ns: float) -> bool:
    """Return whether the work of a row took the place of other work: listed even where it costs nothing.

    Host ops only if they take `least_ns` in all steps: the odd short op is in another place by chance.
    """
    if any(REPLACED_BY in parts.labels[number].name for number in row):
        return True
    takes_ns = int(parts.ns_of_labels[:, list(row)].sum(axis=1).max())
    return takes_ns >= least_ns and bool(replaced_name(parts, row))


def replaced_name(parts: Contributions, row: Sequence[int]) -> str:
    """Return `old replaced by new` of a row of host ops that took the place of others, "" for any other."""
    labels = [parts.labels[number] for number in row]
    ns = parts.ns_of_labels[:, list(row)]
    names = [(label.inner or label.name) for label in labels]
    if labels[0].kind != "host" or len({_COMPILED_REGION.sub("", name) for name in names}) == 1:
        return ""
    old, new = (names[int(np.argmax(side))] for side in (ns[::-1] if parts.is_swapped else ns))
    return f"{old}{REPLACED_BY}{new}"
