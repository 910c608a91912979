"""House rules that a reader relies on: import layers, module contents, names and vocabulary.

Every file is parsed once; a test collects all offenders and fails with the list.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from paths import ROOT
from setuptools import find_packages

from traceq.analysis.registry import _POSITIONS
from traceq.commands import SUMMARIES

TRACEQ = ROOT / "traceq"
RECIPES = sorted((ROOT / "recipes").rglob("*.py"))
MODULES = sorted(path for path in TRACEQ.rglob("*.py") if "recipes" not in path.relative_to(TRACEQ).parts)

LAYERS = (
    {"frozen"},
    {"cores", "errors", "escaping", "units", "threshold", "garbage_collection", "stages", "short_texts", "intervals"},
    {"escaped_console", "model", "locations", "grouping", "entry_points"},
    {"display", "claims"},
    {"kineto", "facts", "stats", "report"},
    {"runs", "causes"},
    {"whatif"},
    {"analysis", "frames", "crosscheck", "snapshots", "interop"},
    {"compare", "engines"},
    {"rules", "library", "improve"},
    {"history", "long_runs"},
    {"renderers", "recorder", "viewer"},
    {"plugins", "integrations", "agent_tools"},
    {"commands", "pytest_plugin"},
    {"cli"},
    {"__main__"},
)
"""Packages and modules of traceq from the bottom up; those of one layer do not import each other."""

INNER_LAYERS = {
    "facts": ({"memo", "sentences"}, {"events"}, {"timeline"}, {"stalls", "comm", "roofline"}, {"ranks"}),
    "recorder": ({"process"}, {"spec"}, {"failures"}, {"rank"}, {"tracing"}, {"timing"}, {"toggles"}, {"jobs"}),
}
"""Domains inside a package, from the bottom up; modules beside them are entry points and import any domain."""

FORBIDDEN = {
    "renderers": {"analysis", "kineto", "runs", "recorder"},
    "analysis": {"kineto", "runs", "renderers", "recorder"},
}
HEAVY = ("torch", "pandas", "matplotlib")
"""What reading a trace never imports."""


def dotted(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


NAMES = {dotted(path): path for path in MODULES}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def walk_imports(node: ast.AST, *, types_too: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif types_too or not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from walk_imports(child, types_too=types_too)


@cache
def imports(path: Path, *, types_too: bool = True) -> tuple[str, ...]:
    """Everything a module imports, at its top or inside a function: full dotted names."""
    names: list[str] = []
    for node in walk_imports(tree(path), types_too=types_too):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{path}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def module_of(name: str) -> str | None:
    """The module of traceq that an imported name is, or comes from."""
    return name if name in NAMES else next((name[:end] for end in [name.rfind(".")] if name[:end] in NAMES), None)


def modules_imported(path: Path, *, types_too: bool = True) -> set[str]:
    result = {module_of(name) for name in imports(path, types_too=types_too)}
    return {name for name in result if name and name != dotted(path)}


def part(name: str, depth: int) -> str:
    """The `depth`-th part of a dotted name, "" where it has none."""
    parts = name.split(".")
    return parts[depth] if len(parts) > depth else ""


def level(name: str, layers: tuple[set[str], ...]) -> int | None:
    return next((number for number, layer in enumerate(layers) if name in layer), None)


def against_layers(layers: tuple[set[str], ...], edges: Iterable[tuple[str, str]], depth: int) -> Iterator[str]:
    """Imports that do not go down from layer to layer; parts outside the layers are free to import anything."""
    for importer, imported in edges:
        here, there = part(importer, depth), part(imported, depth)
        upper, lower = level(here, layers), level(there, layers)
        if here != there and upper is not None and (there and (lower is None or lower >= upper)):
            yield f"{importer} imports {imported}"


def edges() -> list[tuple[str, str]]:
    return [(dotted(path), name) for path in MODULES for name in sorted(modules_imported(path))]


def test_imports_go_down_from_layer_to_layer() -> None:
    outside = [(importer, imported) for importer, imported in edges() if importer != "traceq" != imported]
    assert list(against_layers(LAYERS, outside, 1)) == []
    assert [
        f"{importer} imports {imported}"
        for importer, imported in outside
        if part(imported, 1) in FORBIDDEN.get(part(importer, 1), ())
    ] == []


def test_results_and_commands_reach_renderers_by_name_alone() -> None:
    """Only the view of the Perfetto UI is imported; one module below the renderers looks them up when it is used."""
    assert {
        (importer, part(imported, 2))
        for importer, imported in edges()
        if part(imported, 1) == "renderers" != part(importer, 1) and part(imported, 2)
    } == {("traceq.commands.open", "perfetto")}
    below = {name for layer in LAYERS[: level("renderers", LAYERS)] for name in layer}
    assert [
        dotted(path)
        for path in MODULES
        if part(dotted(path), 1) in below
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and str(node.value).startswith("traceq.renderers")
    ] == ["traceq.display", "traceq.entry_points"]


@pytest.mark.parametrize("package", INNER_LAYERS)
def test_domains_of_a_package_import_downwards(package: str) -> None:
    inside = [edge for edge in edges() if {part(name, 1) for name in edge} == {package}]
    assert list(against_layers(INNER_LAYERS[package], inside, 2)) == []
    folders = {path.parent.name for path in (TRACEQ / package).glob("*/__init__.py")}
    assert folders <= set().union(*INNER_LAYERS[package])


def test_every_part_of_the_tree_has_its_layer() -> None:
    assert {part(name, 1) for name in NAMES} - {""} == set().union(*LAYERS)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {dotted(path): modules_imported(path, types_too=False) for path in MODULES}
    while leaves := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}
    assert graph == {}


def test_only_the_recorder_imports_torch() -> None:
    roots = {dotted(path): {name.split(".")[0] for name in imports(path)} for path in MODULES}
    heavy = {*HEAVY, "accelerate", "deepspeed", "nvtx"}
    recorders = {"recorder", "integrations"}
    assert [
        name
        for name, result in roots.items()
        if part(name, 1) not in recorders and result & (heavy - {"pandas"} if part(name, 1) == "interop" else heavy)
    ] == []


def test_nothing_imports_a_recipe_and_recipes_import_absolutely() -> None:
    assert [
        dotted(path)
        for path in MODULES
        if any(name.startswith(("recipes", "traceq.recipes")) for name in imports(path))
    ] == []
    assert {name.split(".")[0] for path in RECIPES for name in imports(path)} & {"recipes", "workload"} == set()


def test_the_first_level_of_recipes_holds_nothing_but_recipes() -> None:
    first = [path for path in (ROOT / "recipes").glob("*.py") if path.name != "__init__.py"]
    assert [path.name for path in first if "recipe" not in defined(path)] == []


def test_the_launcher_of_a_job_does_not_wait_for_torch(tmp_path: Path) -> None:
    run = f"sys.argv = ['traceq', 'record', '--out', {str(tmp_path / 'run')!r}, '--', 'true']"
    seen = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))"
    program = f"{seen}; {run}; from traceq.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[0].startswith("traceq: recording this job into ")
    assert done.stderr.splitlines()[-1] == "False"


def test_modules_open_with_a_docstring() -> None:
    assert [dotted(path) for path in MODULES + RECIPES if not ast.get_docstring(tree(path))] == []


@cache
def exported(path: Path) -> tuple[str, ...] | None:
    """`__all__` of a module, None without one."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return None


@cache
def defined(path: Path) -> frozenset[str]:
    """Names that a module defines at its top."""
    names: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(child.id for target in targets for child in ast.walk(target) if isinstance(child, ast.Name))
    return frozenset(names)


def is_analysis(path: Path) -> bool:
    """A module that the registry finds: it is called by its contract, and not imported."""
    return path.parent == TRACEQ / "analysis" and {"summarize", "merge"} <= defined(path)


def test_modules_of_analysis_are_analyses_in_the_order_of_a_report_or_private() -> None:
    public = {path for path in (TRACEQ / "analysis").glob("*.py") if path.stem[0] != "_"}
    assert {path.stem for path in public if not is_analysis(path)} == {"registry", "sentences"}
    assert {path.stem for path in public if is_analysis(path)} == _POSITIONS.keys()


def test_packages_list_what_they_take_from_their_modules() -> None:
    """What an `__init__` offers is its `__all__`; of a module it is what has no underscore."""
    packages = [path for path in MODULES if path.name == "__init__.py" and imports(path, types_too=False)]
    assert [dotted(path) for path in packages if exported(path) is None] == []
    lists = {dotted(path): exported(path) or () for path in MODULES}
    assert [name for name, names in lists.items() if len(names) != len(set(names))] == []


def test_nothing_private_is_imported_nor_from_where_it_is_not_defined() -> None:
    offenders = []
    for path in MODULES:
        for name in imports(path):
            module, _, used = name.rpartition(".")
            is_compiled = (ROOT / f"{name.replace('.', '/')}.pyi").exists()
            if module not in NAMES or name in NAMES or is_compiled:
                continue
            offered = {*defined(NAMES[module]), *(exported(NAMES[module]) or ())}
            if used not in offered or (used.startswith("_") and not used.endswith("__")):
                offenders.append(f"{dotted(path)} imports {used} from {module}")
    assert offenders == []


def test_every_module_of_commands_is_a_command_that_is_listed() -> None:
    modules = {path.stem for path in (TRACEQ / "commands").glob("*.py") if not path.stem.startswith("_")}
    assert SUMMARIES.keys() == modules
    for name, summary in SUMMARIES.items():
        text = import_module(f"traceq.commands.{name}").command.__doc__
        assert " ".join(re.split("[:;.]", text, maxsplit=1)[0].split()) == summary


def test_every_package_is_found_and_a_copied_recipe_finds_its_helpers() -> None:
    folders = {path.parent for path in MODULES + RECIPES if path.name == "__init__.py"}
    names = {dotted(folder) for folder in folders}
    assert set(find_packages(str(ROOT), include=["traceq*"])) == {
        f"traceq.{name}" if name.split(".")[0] == "recipes" else name for name in names
    }
    assert importlib.util.find_spec("traceq.recipes.workload.model") is not None


def test_no_file_holds_both_sides_of_a_merge() -> None:
    texts = [*TRACEQ.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    markers = tuple(sign * 7 + " " for sign in "<>")
    assert [path for path in texts if any(line.startswith(markers) for line in path.read_text().splitlines())] == []


OWN_FILES = {
    "traceq.analysis.registry",  # sources of plugins
    "traceq.cores",  # of the system
    "traceq.engines.rank_reader",  # of the system
    "traceq.engines.cache",  # sources
    "traceq.kineto.reader_choice",  # sources
    "traceq.locations",
    "traceq.recorder.jobs.injection",  # of the system, as in the next six
    "traceq.recorder.process.job_guard",
    "traceq.recorder.process.child_processes",
    "traceq.recorder.rank.environment_facts",
    "traceq.recorder.rank.wall_account",
    "traceq.recorder.timing.clocks",
    "traceq.recorder.watched_steps",
    "traceq.renderers.html.markup",  # scripts of the page
    "traceq.runs.run_folder",  # folders, to lock them
}
"""Modules that open files which no user names, and no recording writes."""
OPENS = re.compile(r"\bopen\(|read_bytes|read_text|fromfile|memmap")


def opens_to_read(call: ast.Call) -> bool:
    """Whether a call may open a file for reading, by its name: anything but an `open` whose mode is to write."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name != "open":
        return name in ("read_bytes", "read_text", "fromfile", "memmap")
    modes = [set(str(word.value)) for word in call.args if isinstance(word, ast.Constant)]
    is_written = any(mode & set("wxa+") and mode <= set("rwxabt+") for mode in modes) or "O_WRONLY" in ast.unparse(call)
    return not is_written and ast.unparse(call.func) not in ("webbrowser.open", "document.open", "self.open")


def test_what_is_read_is_opened_by_locations_alone() -> None:
    """It opens regular files, and never waits."""
    offenders = {
        dotted(path)
        for path in MODULES
        if OPENS.search(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and opens_to_read(node)
    }
    assert offenders == OWN_FILES
