"""Parallelism strategy, recognised from what one rank reduces, gathers and exchanges.

FSDP's annotations distinguish its two versions; everything else follows from the roles of the collectives.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collective_roles import Role, collective_roles, issued_in_backward
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, Calls, collective_calls
from traceq.facts.events.name_patterns import rows_named
from traceq.facts.memo import once_per_trace
from traceq.facts.sentences import NO_COLLECTIVE, RULES
from traceq.facts.timeline.steps import steps
from traceq.frozen import frozen
from traceq.model import Category, Trace

_MOST_GATHERED = 1.5
"""Elements gathered after the update for each reduced one, above which they are not the parameters."""

_DDP = re.compile(r"^DistributedDataParallel\.forward$")
_FSDP1 = re.compile(r"^FullyShardedDataParallel\.")
_FSDP2 = re.compile(r"^FSDP::")
_POOLED_LOOKUP = re.compile(r"^aten::_?embedding_bag$|^fbgemm::\w{0,80}embedding\w{0,80}lookup|^## KJTAllToAll")
"""Lookups of recommendation models, which pool the rows of each sample; TorchRec's exchange of their indices."""


@frozen(eq=False)
class PerStep:
    """`num` calls and their `elements` in each of S steps, int64[S]; elements -1 where the trace does not have them."""

    num: NDArray[np.int64]
    elements: NDArray[np.int64]

    def __bool__(self) -> bool:
        return bool(self.num.any())


@frozen(eq=False)
class IssuedCalls:
    """C calls of one rank: `role` int64[C], `backward` bool[C]."""

    calls: Calls
    role: NDArray[np.int64]
    backward: NDArray[np.bool_]
    num_steps: int

    def per_step(self, selected: NDArray[np.bool_]) -> PerStep:
        """Return the sums per step over the selected calls."""
        selected = selected & (self.calls.step >= 0)
        num, elements = np.zeros(self.num_steps, np.int64), np.zeros(self.num_steps, np.int64)
        np.add.at(num, self.calls.step[selected], 1)
        np.add.at(elements, self.calls.step[selected], self.calls.elements[selected])
        is_unknown = np.zeros(self.num_steps, np.bool_)
        is_unknown[self.calls.step[selected & (self.calls.elements < 0)]] = True
        return PerStep(num, np.where(is_unknown, -1, elements))

    def of(self, *roles: int) -> NDArray[np.bool_]:
        """Return bool[C]: calls with one of these roles."""
        return np.isin(self.role, roles)

    def named(self, *names: str) -> NDArray[np.bool_]:
        """Return bool[C]: calls of these collectives."""
        return np.isin(self.calls.name, [COLLECTIVE_NAMES.index(name) for name in names])


@once_per_trace
def issued_calls(trace: Trace) -> IssuedCalls:
    """Return the calls of a rank with their roles and steps."""
    calls = collective_calls(trace)
    return IssuedCalls(calls, collective_roles(trace), issued_in_backward(trace), len(steps(trace)))


def marks_per_step(trace: Trace, pattern: re.Pattern[str], *, outermost: bool = False) -> NDArray[np.int64]:
    """Return int64[S]: annotations of a name that begin in each step; `outermost` skips those nested in another."""
    step = steps(trace).issued(mark_times(trace, pattern, outermost=outermost))
    return np.bincount(step[step >= 0], minlength=len(steps(trace))).astype(np.int64)


def mark_times(trace: Trace, pattern: re.Pattern[str], *, outermost: bool = False) -> NDArray[np.int64]:
    """Return int64[M] ns: when annotations of a name begin; `outermost` skips those nested in another."""
    events = trace.events
    rows = rows_named(events, pattern, Category.ANNOTATION)
    if outermost and len(rows):
        rows = rows[np.lexsort((-events.end[rows], events.ts[rows]))]
        reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, events.end[rows]])[:-1]
        rows = rows[events.ts[rows] >= reach]
    return events.ts[rows]


def strategy_of(trace: Trace) -> tuple[str, str]:
    """Return (name, the rule by which it was recognised); several strategies are joined by +."""
    issued = issued_calls(trace)
    if len(issued.calls) == 0:
        return "none", NO_COLLECTIVE
    if _largest_group(trace, issued.calls) == 1:  # a group is no larger than the world
        return "one rank", RULES["one rank"]
    parts = [part for part in (_of_parameters(trace, issued), _of_activations(trace, issued)) if part is not None]
    if not parts:
        return "none", RULES["none"]
    return " + ".join(name for name, _ in parts), "; ".join(rule for _, rule in parts)


def _largest_group(trace: Trace, calls: Calls) -> int:
    """Return the size of the largest group of the calls, else of the world; 0 where the trace has neither."""
    sizes = calls.group_size
    return int(sizes.max(initial=-1)) if (sizes > 0).any() else trace.world_size if trace.backend else 0


def _of_parameters(trace: Trace, issued: IssuedCalls) -> tuple[str, str] | None:
    """Return (name, rule) of how gradients and parameters are sharded; None where they are not."""
    gradients = issued.of(Role.GRADIENT)
    scattered = bool((gradients & issued.named("reduce_scatter")).any())
    reduced = bool((gradients & ~issued.named("reduce_scatter")).any())
    forward, backward, step = (
        bool(issued.of(role).any()) for role in (Role.GATHER_FORWARD, Role.GATHER_BACKWARD, Role.GATHER_STEP)
    )
    step = step and not _gathers_more_than_reduced(issued)
    if forward or (backward and scattered):
        family = _family(trace)
        name = family or "ZeRO-3"
        name += (" FULL_SHARD" if backward else " SHARD_GRAD_OP") if family == "FSDP1" else ""
        name += " SHARD_GRAD_OP" if family == "FSDP2" and not backward else ""
        name += " over replicas" if scattered and reduced else ""
        return name, RULES["resharded" if backward else "sharded"]
    if step and (scattered or reduced):
        how = "reduce-scattered" if scattered else "all-reduced"
        by_ddp = bool(marks_per_step(trace, _DDP).any())  # around torch's ZeRO-1; all-reduces fit the others, too
        name = "ZeRO-2" if scattered else "ZeRO-1" if by_ddp else "ZeRO-1 or 2"
        return name, RULES["ZeRO"].format(how=how)
    if scattered or reduced:
        return "DDP", RULES["DDP"]
    return None


def _gathers_more_than_reduced(issued: IssuedCalls) -> bool:
    """Return whether after the update far more is gathered than was reduced, in every step: no parameters."""
    gathered, reduced = issued.per_step(issued.of(Role.GATHER_STEP)), issued.per_step(issued.of(Role.GRADIENT))
    is_more = (reduced.elements > 0) & (gathered.elements > _MOST_GATHERED * reduced.elements)
    return bool(is_more[gathered.num > 0].all())


def _family(trace: Trace) -> str:
    """Return FSDP1 or FSDP2 by its annotations, else ""."""
    return next(
        (name for name, mark in (("FSDP2", _FSDP2), ("FSDP1", _FSDP1)) if marks_per_step(trace, mark).any()), ""
    )


def _of_activations(trace: Trace, issued: IssuedCalls) -> tuple[str, str] | None:
    """Return (name, rule) of how layers are split over ranks; None where they are not."""
    exchanges = issued.of(Role.ACTIVATIONS)
    of_layers = bool((exchanges & issued.named("all_reduce", "all_gather", "reduce_scatter")).any())
    of_tokens = bool((exchanges & issued.named("all_to_all")).any())
    names = []
    if (of_layers or of_tokens) and any(map(_POOLED_LOOKUP.search, trace.events.strings)):
        names.append(("sharded embeddings", RULES["embeddings"]))
    else:
        if of_layers:
            names.append(("TP", RULES["TP"]))
        if of_tokens:
            names.append(("EP", RULES["EP"]))
    if (exchanges & issued.named("send", "recv", "send_recv")).any():
        names.append(("PP", RULES["PP"]))
    return (" + ".join(name for name, _ in names), "; ".join(rule for _, rule in names)) if names else None
