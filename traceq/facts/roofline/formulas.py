"""The model of a call by the op's name: a contraction's FLOPs, else compulsory bytes, else bytes of its arguments."""

from __future__ import annotations

import re
from functools import cache

from traceq.facts.roofline.attention import ATTENTIONS
from traceq.facts.roofline.contractions import CONTRACTIONS, product_template
from traceq.facts.roofline.memory_traffic import USES_VALUES, traffic_formula
from traceq.facts.roofline.op_calls import OpCall
from traceq.facts.roofline.work import Kind, Work, total_bytes

_FORMULAS = CONTRACTIONS | ATTENTIONS
_OPAQUE = re.compile(r"^triton_|_kernel_\d+$|^(?!(aten|c10d|prims|record|profiler|autograd|torch)::)\w+::")
"""Ops that wrap kernels of Triton or of another library: all that is known of them is what they are given."""


@cache
def has_formula(name: str) -> bool:
    """Return whether there is a formula for FLOPs or bytes of ops of this name."""
    return name in _FORMULAS or traffic_formula(name) is not None or product_template(name) is not None


@cache
def is_opaque_kernel(name: str) -> bool:
    """Return whether ops of this name are kernels of a library, of which only the arguments are known."""
    return name not in _FORMULAS and _OPAQUE.search(name) is not None


@cache
def needs_values(name: str) -> bool:
    """Return whether the formula for ops of this name depends on inputs that are no tensors."""
    return name in _FORMULAS or name.removeprefix("aten::").rstrip("_") in USES_VALUES


def work_of(call: OpCall) -> Work | None:
    """Return the work of a call; None if there is no model for it, or what it needs was not recorded."""
    if call.name in _FORMULAS:
        return _FORMULAS[call.name](call)
    formula = traffic_formula(call.name)
    if formula is not None:
        moved = formula(call)
        return None if not moved else Work(Kind.BYTES, moved)
    template = product_template(call.name)
    if template is not None and (work := template(call)) is not None:
        return work
    if is_opaque_kernel(call.name) and (moved := total_bytes(call.tensors)):
        return Work(Kind.ARGUMENTS, moved)
    return None
