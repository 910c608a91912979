"""Recipes by name or file; listing them imports neither torch nor their models."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from traceq.entry_points import RECIPES, find_plugins
from traceq.errors import TraceqError, UsageFault
from traceq.locations import Most, read_whole
from traceq.recorder.spec.parameters import describe_parameters, did_you_mean
from traceq.recorder.spec.recipe import Recipe, check_names


class RecipeModule(Protocol):
    """A module, or an object, that holds a recipe; its docstring is what `traceq recipes NAME` prints."""

    recipe: Recipe[Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A recipe with its docstring (`text`) and the name or absolute path that identifies it (`reference`)."""

    name: str
    reference: str
    text: str
    recipe: Recipe[Any]

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Each parameter as `name=default` and the values it accepts."""
        return describe_parameters(self.recipe.parameters)


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes: those of traceq, sorted, then those of plugins."""
    built_in = built_in_recipes()
    return (*built_in, *sorted(find_plugins(RECIPES).keys() - set(built_in)))


def built_in_recipes() -> tuple[str, ...]:
    """Return the names of the recipes that come with traceq, sorted."""
    folders = [Path(folder) for folder in import_module("traceq.recipes").__path__]
    return tuple(sorted(path.stem for folder in folders for path in folder.glob("*.py") if _has_recipe(path)))


def find_recipe(reference: str) -> Entry:
    """Return the recipe of that name, or in that file if the reference ends in `.py`.

    Raises UsageFault for an unknown name or a file without a recipe, TraceqError for a file or a plugin that fails.
    """
    if reference.endswith(".py"):
        path = Path(os.path.realpath(reference))
        return _entry(path.stem, str(path), _load(path), where=reference)
    if reference in built_in_recipes():
        return _entry(reference, reference, import_module(f"traceq.recipes.{reference}"), where=reference)
    if plugin := find_plugins(RECIPES).get(reference):
        return _entry(reference, reference, plugin.load(), where=f"plugin {plugin.package}: {reference}")
    raise UsageFault(
        f"no recipe {reference!r}{did_you_mean(reference, recipe_names())}; available: {', '.join(recipe_names())}"
    )


def _has_recipe(path: Path) -> bool:
    """Return True if the file assigns `recipe` at its top level; it is parsed, not imported."""
    tree = ast.parse(read_whole(path, Most.SOURCE), str(path))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "recipe" for target in targets)


def _load(path: Path) -> Any:
    if not path.is_file():
        raise UsageFault(f"{path}: no such file")
    name = f"traceq_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses resolve their annotations there
    sys.path.insert(0, str(path.parent))  # modules beside it are found, as with `python FILE.py`
    try:
        spec.loader.exec_module(module)
    except Exception as fault:
        raise TraceqError(f"{path}: {type(fault).__name__}: {fault}") from fault
    return module


def _entry(name: str, reference: str, module: Any, where: str) -> Entry:
    recipe = getattr(module, "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UsageFault(f"{where}: found no `recipe = Recipe(...)` at the top level")
    check_names(recipe, where)
    return Entry(name, reference, (module.__doc__ or recipe.question).strip(), recipe)
