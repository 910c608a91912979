"""The house rules that a reader relies on: which way imports run, and what a module holds."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from builder import op, step, write

from traceq.cli import app

ROOT = Path(__file__).resolve().parents[1]
TRACEQ = ROOT / "traceq"
MODULES = sorted(path for path in TRACEQ.rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").rglob("*.py"))

LAYERS = (
    {"errors", "units"},
    {"model", "intervals", "places"},
    {"kineto", "links", "stats", "report"},
    {"runs"},
    {"analyses", "frames"},
    {"diff", "engines"},
    {"rules"},
    {"renderers", "recorder", "viewer"},
    {"commands", "pytest_plugin"},
    {"cli"},
    {"__main__"},
)
"""Packages and modules of traceq from the bottom up; those of one layer do not know each other."""

FORBIDDEN = {
    "renderers": {"analyses", "kineto", "runs", "recorder"},
    "analyses": {"kineto", "runs", "renderers", "recorder"},
}
HEAVY = ("torch", "pandas", "matplotlib")
"""What reading a trace never imports."""

SLOW = (*HEAVY, "altair", "numpy.ma", "traceq.diff", "traceq.renderers.html")
"""What text and JSON do not need, nor a trace without pictures."""


def place(path: Path) -> str:
    """The package, or the single module, of traceq that a file belongs to."""
    parts = path.relative_to(TRACEQ).with_suffix("").parts
    return "traceq" if parts == ("__init__",) else parts[0]


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Everything a module imports, at its top or inside a function, for types or for real: full dotted names."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ids(path: Path) -> str:
    return dotted(path)


def level(name: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if name in layer)


def places_imported(path: Path) -> set[str]:
    """Packages of traceq that a module imports from; `traceq.__version__` and the like come from the door."""
    names = [name.split(".") for name in imports(path)]
    homes = {parts[1] for parts in names if parts[0] == "traceq" and len(parts) > 1}
    known = {place(module) for module in MODULES}
    return (homes & known) - {place(path)}


@pytest.mark.parametrize("path", [path for path in MODULES if path != TRACEQ / "__init__.py"], ids=ids)
def test_imports_run_one_way(path: Path) -> None:
    mine = place(path)
    for home in places_imported(path):
        assert level(home) < level(mine), f"{dotted(path)} imports from {home}, which is not below {mine}"
        assert home not in FORBIDDEN.get(mine, ()), f"{dotted(path)} imports from {home}"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_only_the_recorder_imports_torch_and_nothing_imports_a_recipe(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    assert "recipes" not in roots
    assert not any(name.startswith("traceq.recipes") for name in imports(path))
    if place(path) != "recorder":
        assert not roots & {*HEAVY, "accelerate", "deepspeed", "nvtx"}


def test_every_place_in_the_tree_has_its_layer() -> None:
    named = set().union(*LAYERS)
    assert {place(path) for path in MODULES} - named == {"traceq"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["show", "--help"], ["show", "FILE"], ["show", "--json", "FILE"], []]
)
def test_reading_a_trace_imports_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    write(file, step(0, 10), op("aten::mm", 1, 2))
    argv = [str(file) if argument == "FILE" else argument for argument in arguments]
    run = f"sys.argv = ['traceq', *{argv!r}]; from traceq.cli import main; main()" if argv else "import traceq"
    found = f"atexit.register(lambda: print([name for name in {SLOW!r} if name in sys.modules], file=sys.stderr))"
    done = subprocess.run(
        [sys.executable, "-c", f"import atexit, sys; {found}; {run}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.parametrize("arguments", ["--help", "show --help", "diff --help"])
def test_help_is_there_before_numpy_or_rich_could_be(arguments: str) -> None:
    run = f"import sys; sys.argv = ['traceq', *{arguments.split()!r}]; from traceq.cli import main"
    seen = "import atexit; atexit.register(lambda: print({'numpy', 'rich'} & sys.modules.keys(), file=sys.stderr))"
    done = subprocess.run([sys.executable, "-c", f"{run}; {seen}; main()"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "set()\n")


@pytest.mark.parametrize("path", MODULES + RECIPES, ids=ids)
def test_a_module_opens_with_a_docstring_and_fits_on_a_few_screens(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "no docstring"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_half_of_the_modules_are_no_longer_than_120_lines() -> None:
    sizes = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES)
    assert sizes[len(sizes) // 2] <= 120


def exported(path: Path) -> list[str] | None:
    """`__all__` of a module, None without one."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def defined(path: Path) -> set[str]:
    """Names that a module defines at its top."""
    names: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return names


def is_analysis(path: Path) -> bool:
    """A module that the registry finds: it is called by its contract, and not imported."""
    return place(path) == "analyses" and {"summarize", "merge", "POSITION"} <= defined(path)


def holds_only_a_docstring(path: Path) -> bool:
    return len(tree(path).body) == 1


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_a_module_says_what_others_may_use_of_it(path: Path) -> None:
    if is_analysis(path) or holds_only_a_docstring(path) or path.name == "__main__.py":
        return
    listed = exported(path)
    assert listed is not None, "no __all__"
    assert len(listed) == len(set(listed))
    if path.name != "__init__.py":
        assert set(listed) <= defined(path)


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_nobody_uses_more_of_a_module_than_it_offers(path: Path) -> None:
    offers = {dotted(module): exported(module) for module in MODULES}
    for name in imports(path):
        module, _, used = name.rpartition(".")
        is_compiled = (ROOT / f"{name.replace('.', '/')}.pyi").exists()
        if module in offers and name not in offers and not is_compiled:
            assert used in (offers[module] or ()), f"{dotted(path)} imports {used}, which {module} does not offer"


def test_the_door_opens_to_what_it_promises() -> None:
    (homes,) = (
        ast.literal_eval(node.value)
        for node in tree(TRACEQ / "__init__.py").body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    )
    assert sorted([*homes, "__version__"]) == sorted(exported(TRACEQ / "__init__.py") or ())
    for name, home in homes.items():
        assert name in (exported(ROOT / (home.replace(".", "/") + ".py")) or ())


def test_every_module_of_commands_is_a_command() -> None:
    modules = {path.stem for path in (TRACEQ / "commands").glob("*.py") if not path.stem.startswith("_")}
    assert {command.name for command in app.registered_commands} == {name.rstrip("_") for name in modules}
    assert all(command.callback and command.callback.__doc__ for command in app.registered_commands)


def test_every_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {dotted(path) for path in MODULES if path.name == "__init__.py"}
    assert set(settings["tool"]["setuptools"]["packages"]) == folders | {"traceq.recipes"}
