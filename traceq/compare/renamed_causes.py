"""Causes under the names of both sides, where these call one kind of work differently."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.labels import replacement_name
from traceq.compare.result import REPLACED_BY, Cause

__all__ = ["with_both_names"]

_BETWEEN_NAMES = re.compile(r"( > | in |^(?:dtoh|htod|copy) | \(and \d+ more\))")


def with_both_names(causes: Sequence[Cause], others: Mapping[str, str], *, is_swapped: bool) -> Sequence[Cause]:
    """Return causes whose ops have A's names, and behind these B's where they have `others` there.

    `is_swapped`: the other names are A's.
    """
    return [_with_both(cause, others, is_swapped=is_swapped) for cause in causes] if others else causes


def _with_both(cause: Cause, others: Mapping[str, str], *, is_swapped: bool) -> Cause:
    old, new = _both(cause.work)
    old, new = (_other(others, old), new) if is_swapped else (old, _other(others, new))
    return replace(
        cause,
        name=cause.name.removesuffix(cause.work) + (old if old == new else replacement_name(old, new)),
        self_op=_other(others, cause.self_op) if is_swapped else cause.self_op,
        phase=_other(others, cause.phase) if is_swapped else cause.phase,
    )


def _both(work: str) -> tuple[str, str]:
    """Return the names of A and B, each with the op that launches it, of `aten::mm > old replaced by new`."""
    old, _, new = work.partition(REPLACED_BY)
    op, launches, _ = old.rpartition(LAUNCHES)
    return old, (new if LAUNCHES in new else f"{op}{launches}{new}") if new else old


def _other(others: Mapping[str, str], text: str) -> str:
    return "".join(others.get(part, part) for part in _BETWEEN_NAMES.split(text))
