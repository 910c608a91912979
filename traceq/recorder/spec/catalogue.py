"""Recipes by name or file. Listing them imports neither torch nor their models."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from traceq.errors import TraceqError, UsageFault
from traceq.recorder.spec.parameters import describe_parameters, did_you_mean
from traceq.recorder.spec.recipe import Recipe, check_names

__all__ = ["Entry", "find_recipe", "recipe_names"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A recipe and where it comes from. `reference` finds it again in another process: a name or an absolute path."""

    name: str
    reference: str
    text: str
    recipe: Recipe[Any]

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Each parameter's `name=default` and what it accepts."""
        return describe_parameters(self.recipe.parameters)


def recipe_names() -> tuple[str, ...]:
    """Names of the recipes that come with traceq, sorted."""
    folders = [Path(folder) for folder in import_module("traceq.recipes").__path__]
    return tuple(sorted(path.stem for folder in folders for path in folder.glob("*.py") if _holds(path)))


def find_recipe(reference: str) -> Entry:
    """The recipe of that name, or of that file when it ends in `.py`."""
    if reference.endswith(".py"):
        path = Path(reference).resolve()
        return _entry(path.stem, str(path), _load(path), where=reference)
    if reference not in recipe_names():
        raise UsageFault(
            f"no recipe {reference!r}{did_you_mean(reference, recipe_names())}; there are {', '.join(recipe_names())}"
        )
    return _entry(reference, reference, import_module(f"traceq.recipes.{reference}"), where=reference)


def _holds(path: Path) -> bool:
    """The file assigns `recipe` at its top level: models and data beside the recipes do not, and are not imported."""
    tree = ast.parse(path.read_bytes(), str(path))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "recipe" for target in targets)


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageFault(f"{path}: no such file")
    name = f"traceq_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the annotations of its dataclasses are looked up there
    sys.path.insert(0, str(path.parent))  # its own neighbours, as `python FILE.py` would find them
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        raise TraceqError(f"{path}: {type(fault).__name__}: {fault}") from fault
    return module


def _entry(name: str, reference: str, module: ModuleType, where: str) -> Entry:
    recipe = getattr(module, "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UsageFault(f"{where}: found no `recipe = Recipe(...)` at its top level")
    check_names(recipe, where)
    return Entry(name, reference, (module.__doc__ or recipe.question).strip(), recipe)
