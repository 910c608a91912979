"""Known changes of a simulated job: one thing in the second layer of every step's forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .program import US, Instruction, Job, Launch, Scope, item, line, op

__all__ = ["CHANGES", "Edit", "edited", "named", "slower_host", "slower_kernel", "with_item", "with_op"]

Edit = Callable[[Scope], Scope]
"""Changes the scope of a step's second layer of forward."""


def named(layer: Scope) -> Scope:
    """The layer whose op no other layer has."""
    (made,) = layer.body
    assert isinstance(made, Scope)
    return replace(layer, body=(replace(made, name="aten::special", body=(Launch("special", 20 * US), *made.body)),))


def slower_host(layer: Scope) -> Scope:
    (made,) = layer.body
    assert isinstance(made, Scope)
    return replace(layer, body=(replace(made, before=made.before + 400 * US),))


def slower_kernel(layer: Scope) -> Scope:
    (made,) = layer.body
    assert isinstance(made, Scope)
    first, *rest = made.body
    assert isinstance(first, Launch)
    return replace(layer, body=(replace(made, body=(replace(first, ns=first.ns + 300 * US), *rest)),))


def with_item(layer: Scope) -> Scope:
    return replace(layer, body=(*layer.body, line("loss.py(7): check", item())))


def with_op(layer: Scope) -> Scope:
    return replace(layer, body=(*layer.body, op("aten::added", Launch("added_kernel", 80 * US), before=30 * US)))


CHANGES = {
    slower_host: "aten::special",
    slower_kernel: "special",
    with_item: "aten::_local_scalar_dense",
    with_op: "added",
}
"""Changes, with a word that the name of their cause has."""


def edited(job: Job, edit: Edit) -> Job:
    """The job with one layer of every step's forward changed, on rank 0."""
    return replace(job, steps=(tuple(tuple(map(_edited_part(edit), body)) for body in job.steps[0]), *job.steps[1:]))


def _edited_part(edit: Edit) -> Callable[[Instruction], Instruction]:
    def of(part: Instruction) -> Instruction:
        if not (isinstance(part, Scope) and part.name == "forward"):
            return part
        (body,) = part.body
        assert isinstance(body, Scope)
        layers = [n for n, one in enumerate(body.body) if getattr(one, "kind", "") == "module"]
        parts = list(body.body)
        chosen = parts[layers[1]]
        assert isinstance(chosen, Scope)
        parts[layers[1]] = edit(chosen)
        return replace(part, body=(replace(body, body=tuple(parts)),))

    return of
