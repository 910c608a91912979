"""How the ranks share the work, recognised from what one of them issued: what it reduces, gathers and exchanges.

The marks of FSDP tell its two versions apart; else it is what each collective is for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceq.facts.comm.collective_roles import Role, collective_roles, issued_in_backward
from traceq.facts.comm.collectives import COLLECTIVE_NAMES, Calls, collective_calls
from traceq.facts.events.name_patterns import matching
from traceq.facts.memo import once_per_trace
from traceq.facts.timeline.steps import steps
from traceq.model import Category, Trace

__all__ = ["Issues", "PerStep", "issues", "marks_per_step", "strategy_of"]

_DDP = re.compile(r"^DistributedDataParallel\.forward$")
_FSDP1 = re.compile(r"^FullyShardedDataParallel\.")
_FSDP2 = re.compile(r"^FSDP::")


@dataclass(frozen=True, slots=True, eq=False)
class PerStep:
    """`num` calls and their `elements` in each of S steps, int64[S]; elements -1 where the trace does not tell."""

    num: NDArray[np.int64]
    elements: NDArray[np.int64]

    def __bool__(self) -> bool:
        return bool(self.num.any())


@dataclass(frozen=True, slots=True, eq=False)
class Issues:
    """C calls of one rank with their roles: `step` int64[C], into the steps, -1 between them; `backward` bool[C]."""

    calls: Calls
    role: NDArray[np.int64]
    backward: NDArray[np.bool_]
    step: NDArray[np.int64]
    num_steps: int

    def per_step(self, mine: NDArray[np.bool_]) -> PerStep:
        """Sums over some of the calls."""
        mine = mine & (self.step >= 0)
        num, elements = np.zeros(self.num_steps, np.int64), np.zeros(self.num_steps, np.int64)
        np.add.at(num, self.step[mine], 1)
        np.add.at(elements, self.step[mine], self.calls.elements[mine])
        untold = np.zeros(self.num_steps, np.bool_)
        untold[self.step[mine & (self.calls.elements < 0)]] = True
        return PerStep(num, np.where(untold, -1, elements))

    def of(self, *roles: int) -> NDArray[np.bool_]:
        """bool[C]: calls with one of these roles."""
        return np.isin(self.role, roles)

    def called(self, *names: str) -> NDArray[np.bool_]:
        """bool[C]: calls of these collectives."""
        return np.isin(self.calls.name, [COLLECTIVE_NAMES.index(name) for name in names])


@once_per_trace
def issues(trace: Trace) -> Issues:
    """What a rank issued, by step."""
    calls = collective_calls(trace)
    step = _step_of(trace, trace.events.ts[calls.issued])
    return Issues(calls, collective_roles(trace), issued_in_backward(trace), step, len(steps(trace)))


def marks_per_step(trace: Trace, pattern: re.Pattern[str], *, outermost: bool = False) -> NDArray[np.int64]:
    """int64[S]: annotations of a name that begin in each step; on demand those only that stand in no other of them."""
    events = trace.events
    rows = events.rows(Category.ANNOTATION)
    rows = rows[matching(events, rows, pattern)]
    if outermost and len(rows):
        rows = rows[np.lexsort((-events.end[rows], events.ts[rows]))]
        reach = np.maximum.accumulate(np.r_[np.iinfo(np.int64).min, events.end[rows]])[:-1]
        rows = rows[events.ts[rows] >= reach]
    step = _step_of(trace, events.ts[rows])
    return np.bincount(step[step >= 0], minlength=len(steps(trace))).astype(np.int64)


def strategy_of(trace: Trace) -> tuple[str, str]:
    """(name, the rule by which it was recognised); several strategies at once are joined by +."""
    found = issues(trace)
    if len(found.calls) == 0:
        return "none", "no collective was issued"
    if _largest_group(trace, found.calls) == 1:
        return "one rank", "all groups have one rank"
    parts = [part for part in (_of_parameters(trace, found), _of_activations(found)) if part is not None]
    if not parts:
        return "none", "nothing reduces gradients, gathers parameters or exchanges activations"
    return " + ".join(name for name, _ in parts), "; ".join(rule for _, rule in parts)


def _step_of(trace: Trace, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Index of the step in which the host was at each instant, -1 between steps."""
    host = steps(trace).host
    step = np.searchsorted(host[:, 0], at, "right") - 1
    inside = (step >= 0) & ((at < host[step, 1]) | (not steps(trace).marked))
    return np.where(inside, step, -1)


def _largest_group(trace: Trace, calls: Calls) -> int:
    """Ranks of the largest group that the calls tell, else of the world; 0 where the trace tells neither."""
    messages = trace.events.messages
    told = messages.group_size[calls.message[calls.message >= 0]] if len(messages.row) else calls.message[:0]
    return int(told.max(initial=-1)) if (told > 0).any() else trace.world_size if trace.backend else 0


def _of_parameters(trace: Trace, found: Issues) -> tuple[str, str] | None:
    """How gradients and parameters are spread."""
    gradients = found.of(Role.GRADIENT)
    scattered = bool((gradients & found.called("reduce_scatter")).any())
    reduced = bool((gradients & ~found.called("reduce_scatter")).any())
    forward, backward, step = (
        bool(found.of(role).any()) for role in (Role.GATHER_FORWARD, Role.GATHER_BACKWARD, Role.GATHER_STEP)
    )
    again = "and again for backward" if backward else "and kept for backward"
    if forward or (backward and scattered):
        family = _family(trace)
        name = family or "ZeRO-3"
        name += (" FULL_SHARD" if backward else " SHARD_GRAD_OP") if family == "FSDP1" else ""
        name += " SHARD_GRAD_OP" if family == "FSDP2" and not backward else ""
        name += " over replicas" if scattered and reduced else ""
        return name, f"parameters are gathered for forward {again}, gradients reduce-scattered"
    if step and (scattered or reduced):
        how = "reduce-scattered" if scattered else "all-reduced"
        by_ddp = bool(
            marks_per_step(trace, _DDP).any()
        )  # around torch's own ZeRO-1; all-reduces do not tell the others
        name = "ZeRO-2" if scattered else "ZeRO-1" if by_ddp else "ZeRO-1 or 2"
        return name, f"gradients are {how}, parameters gathered after the update"
    if scattered or reduced:
        return "DDP", "gradients are reduced, parameters never gathered"
    return None


def _family(trace: Trace) -> str:
    """FSDP1 or FSDP2 by its marks, else nothing."""
    return next(
        (name for name, mark in (("FSDP2", _FSDP2), ("FSDP1", _FSDP1)) if marks_per_step(trace, mark).any()), ""
    )


def _of_activations(found: Issues) -> tuple[str, str] | None:
    """How layers are spread."""
    exchanged = found.of(Role.ACTIVATIONS)
    names = []
    if (exchanged & found.called("all_reduce", "all_gather", "reduce_scatter")).any():
        names.append(("TP", "layers exchange activations with all-reduces, all-gathers or reduce-scatters"))
    if (exchanged & found.called("all_to_all")).any():
        names.append(("EP", "layers exchange activations with all-to-alls"))
    if (exchanged & found.called("send", "recv", "send_recv")).any():
        names.append(("PP", "activations are sent from rank to rank"))
    return (" + ".join(name for name, _ in names), "; ".join(rule for _, rule in names)) if names else None
