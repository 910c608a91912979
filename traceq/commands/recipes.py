"""`traceq recipes`: what can be recorded, and the parameters of each recipe."""

from __future__ import annotations

import typer

from traceq.errors import TraceqError
from traceq.recorder.spec.catalogue import Entry, find_recipe, recipe_names


def command(
    name: str | None = typer.Argument(None, metavar="NAME", help="A recipe, or a FILE.py that holds one."),
) -> None:
    """List the recipes, or show one: its question, arms and parameters."""
    if name is not None:
        typer.echo(_described(find_recipe(name)))
        return
    names = recipe_names()
    width = max(map(len, names))
    for each in names:
        try:
            typer.echo(f"{each:{width}}  {find_recipe(each).recipe.question}")
        except TraceqError as fault:  # of a plugin: the others are there
            typer.echo(f"traceq: note: {fault}", err=True)


def _described(entry: Entry) -> str:
    """Return the docstring, then arms and parameters as two aligned lists."""
    arms = [(arm.name, _role(arm.baseline, arm.timed) + arm.meaning) for arm in entry.recipe.arms]
    apart = ", each in separate processes (--replicates N)" if entry.recipe.apart else ""
    lines = [f"{entry.name}: {entry.text}", "", f"arms{apart}", *_aligned(arms)]
    parameters = entry.parameters
    if parameters:
        lines += ["", "parameters (--set KEY=VALUE, --vary KEY=A,B)", *_aligned(parameters)]
    lines += ["", f"phases  {', '.join(entry.recipe.phases)}"]
    return "\n".join(lines)


def _role(baseline: bool, timed: bool) -> str:
    return "baseline: " if baseline else "" if timed else "traced only: "


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(first) for first, _ in rows)
    return [f"  {first:{width}}  {second}" for first, second in rows]
