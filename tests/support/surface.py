"""What docs/stability.md promises, read off the code: names with their types, in parts.

The last word of a name is a part of what the words before it name: `show --step`, `syncs kind`, `diff threshold_pct`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from typing import Any, get_args, get_type_hints

import msgspec
import typer
from paths import DOCS, FIXTURES

import traceq
from traceq.cli import app
from traceq.commands import SUMMARIES
from traceq.compare.run_list import runs_sheet
from traceq.frames import Texts, frames
from traceq.history.comparing import COMPARE_SCHEMA, Verdict
from traceq.history.events import History
from traceq.history.store import Row
from traceq.history.tables import history_sheet
from traceq.locations import place
from traceq.model import Arm, Caveat, Fact, Manifest
from traceq.renderers.checks import CHECK_SCHEMA, CulpritObject, RuleObject
from traceq.renderers.diff_json import DIFF_SCHEMA
from traceq.renderers.json import SHOW_SCHEMA, FindingObject, SourceObject
from traceq.report import Unknown
from traceq.rules.parse import METRICS
from traceq.runs.step_log import StepLine
from traceq.snapshots.compare import snapshot_diff
from traceq.whatif.answers import WHATIF_SCHEMA

sys.path.insert(0, str(DOCS))

import json_page

JOB, SNAPSHOT = FIXTURES / "example" / "job", FIXTURES / "kinds" / "snapshot_oom.pickle"
OBJECTS = (  # the schema, the keys that they stand under, the class
    (SHOW_SCHEMA, "`source`", SourceObject),
    (SHOW_SCHEMA, "`findings`", FindingObject),
    (SHOW_SCHEMA, "`unknown`", Unknown),
    (SHOW_SCHEMA, "`warnings`", Caveat),
    (COMPARE_SCHEMA, "`verdicts`", Verdict),
    (CHECK_SCHEMA, "`rules`", RuleObject),
    (CHECK_SCHEMA, "`culprits`", CulpritObject),
    *((DIFF_SCHEMA, *each) for each in json_page._DIFF),
    *((WHATIF_SCHEMA, *each) for each in json_page._WHATIF),
)
Names = Iterator[tuple[str, str]]


def surface(part: str) -> dict[str, str]:
    return {name: kind for name, kind in PARTS[part]() if not re.search(r" (_|self$)", name)}


def commands() -> Names:
    group: Any = typer.main.get_command(app)
    for name in SUMMARIES:
        module, made = import_module(f"traceq.commands.{name}"), group.get_command(None, name)
        yield from options(name, module.command, made)
        for below, function in getattr(module, "SUBCOMMANDS", {}).items():
            yield from options(f"{name} {below}", function, made.commands[below])
    yield from ((f"show --only {name}", "value") for name in traceq.analyses())


def options(command: str, function: Callable[..., None], made: Any) -> Names:
    yield command, "command"
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    for position, each in enumerate(made.params):
        hint, given = hints[each.name], parameters[each.name].default
        given = getattr(given, "default", given)
        kind = re.sub(r"\b(\w+\.)+", "", inspect.formatannotation(hint))
        kind += ", required" if each.required else f" = {getattr(given, 'value', given)!r}"
        if each.param_type_name == "argument":
            yield f"{command} {each.name}", f"argument {position}: {kind}"
        for option in (*each.opts, *each.secondary_opts) if each.param_type_name == "option" else ():
            yield f"{command} {option}", kind
            enums = [type_ for type_ in (hint, *get_args(hint)) if inspect.isclass(type_) and issubclass(type_, Enum)]
            yield from ((f"{command} {option} {value.value}", "value") for type_ in enums for value in type_)


def json_objects() -> Names:
    sheets = [traceq.analyze(JOB), traceq.analyze(SNAPSHOT), snapshot_diff(SNAPSHOT, SNAPSHOT)]
    objects = [*OBJECTS]
    for sheet in (*sheets, runs_sheet(place(str(FIXTURES))), history_sheet(History("", "", (), ()))):
        schema = sheet.schema or SHOW_SCHEMA
        for table in (table for report in sheet.reports for table in report.tables):
            yield f"{schema} {table.key}", "object" if table.single else "list of objects"
            yield from ((f"{schema} {table.key} {part.key}", "numbers by name") for part in table.parts)
            objects.append((schema, f"`{table.key}`", table.row_type))
    for schema, heading, row_type in objects:
        for key in re.findall("`(.*?)`", heading):
            name = key if key.startswith("traceq.") else f"{schema} {key}"
            yield from ((f"{name} {key.name}", key.type.partition(",")[0]) for key in json_page._keys(row_type))


def sql_columns() -> Names:
    for table in frames(traceq.read(JOB)):
        for name, column in table.columns.items():
            yield f"{table.name} {name}", "text" if isinstance(column, Texts) else column.dtype.name


def library() -> Names:
    for name in sorted({*traceq.__all__} - {"__version__"}):
        thing = getattr(traceq, name)
        if inspect.isfunction(thing):
            yield from signature(name, thing)
            continue
        bases = [base for base in thing.__mro__ if base.__module__.startswith("traceq.")]
        exit_code = f", exit code {thing.exit_code}" if issubclass(thing, Exception) else ""
        yield name, " of ".join(base.__name__ for base in bases) + exit_code
        for base in bases:
            yield from ((f"{name} {field}", str(hint)) for field, hint in inspect.get_annotations(base).items())
            for member, value in vars(base).items():
                if isinstance(value, property):
                    yield f"{name} {member}", inspect.signature(value.fget).return_annotation
                elif inspect.isfunction(value) or isinstance(value, classmethod):
                    yield from signature(f"{name} {member}", getattr(thing, member))


def signature(name: str, function: Any) -> Names:
    made = inspect.signature(function)
    yield name, f"returns {made.return_annotation}"
    for position, each in enumerate(made.parameters.values()):
        place = "keyword" if each.kind is each.KEYWORD_ONLY else f"argument {position}"
        kind = ", required" if each.default is each.empty else f" = {each.default!r}"
        yield f"{name} {each.name}", f"{place}: {each.annotation}{kind}"


def metrics() -> Names:
    yield from ((name, " or ".join(kind.name.lower() for kind in metric.columns)) for name, metric in METRICS.items())


def recordings() -> Names:
    for row_type in (Manifest, Arm, Fact, StepLine, Row):
        yield row_type.__name__, "object"
        for field in msgspec.inspect.type_info(row_type).fields:
            kind = inspect.get_annotations(row_type)[field.name] + ", required" * field.required
            yield f"{row_type.__name__} {field.encode_name}", kind


PARTS = {part.__name__: part for part in (commands, json_objects, sql_columns, library, metrics, recordings)}
