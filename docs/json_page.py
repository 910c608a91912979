"""Writes docs/json.md: every key of the JSON of `show`, `diff` and `whatif` with its type and meaning.

    python docs/json_page.py

Types are the annotations of rows. A key means what the docstring of its field says, and a row what that of its class
says.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from itertools import groupby, pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from traceq.analysis.registry import analyze_all
from traceq.compare.collective_volumes import CollectiveVolume, Exchange
from traceq.compare.inference import InferenceDelta
from traceq.compare.result import Cause, CellDelta, Chain, Comparable, RankDelta, Traced
from traceq.compare.run_list import RUNS_SCHEMA, RunRow
from traceq.compare.step_counts import CountDelta
from traceq.compare.work_deltas import WorkDelta
from traceq.history.events import History
from traceq.history.tables import HISTORY_SCHEMA, history_sheet
from traceq.model import Caveat
from traceq.renderers import diff_json
from traceq.renderers.json import SHOW_SCHEMA, FindingObject, SourceObject
from traceq.report import Sheet, Table, Unknown, columns_of
from traceq.runs.read import read
from traceq.snapshots.compare import SNAPSHOT_DIFF_SCHEMA, snapshot_diff
from traceq.snapshots.show import SNAPSHOT_SCHEMA, snapshot_sheet
from traceq.stats import Comparison
from traceq.whatif.answers import WHATIF_SCHEMA, ChangeRow, PredictionObject, WhatifObject

__all__ = ["PAGE", "page"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "json.md"
_FIXTURES = ROOT / "fixtures"

_HEAD = """# The JSON of show, diff and whatif

`traceq show PATH --json`, `traceq diff A B --json` and `traceq whatif PATH --json` print one object. Text shows the
largest rows, JSON all; of [more than 64 ranks](#more-than-64-ranks) some. [Definitions](method.md) of the numbers. This
page is written by `python docs/json_page.py`.

- A key ends in its unit: `_ns`, `_bytes`, `_pct` (percent), `_gbps` (10<sup>9</sup> bytes per second). `int?` may be
  null, an unknown number; "" is an unknown text. `or absent`: some objects lack the key.
- A row with a `rank` is about its whole trace unless stated otherwise. A **counted** step is one that is not
  `partial`, or the only one.
- `--only NAME` omits the other tables. [`source`](#source), [`findings`](#findings), [`unknown`](#unknown) and
  [`warnings`](#warnings) are the same in all documents that have them; so are `facts`.
- Keys may be added. A schema with the same number keeps all keys and their meaning.
"""

_MANY_RANKS = """
### More than 64 ranks

Tables with a `rank` then have the rows of the ranks in `source.rows_of` only: the middle one by own time of each
cluster (at most 16), the slowest, median and fastest, up to two stragglers, both sides of a desync, and the ranks of
findings. A row that a finding names by its `key` is kept. Tables of the job (`clusters`, `skew`, `job_path`, ...) are
complete. `--json --full` has all rows, `--only NAME` those of one analysis, `--ranks 0-63` those of some ranks;
`traceq query` and `traceq export` have all. The warning `like_ranks` says so.
"""

_FEW_WORDS = 5
"""Most words of a meaning that stands in parentheses beside its key."""
_BY_NAME = "A key without a type, or meaning, has that of the first row that fits its name."
_KINDS = "[Kinds](analyses/snapshots.md#kinds), and what counts as allocated."
_AT_PEAK = "Kinds and lines are those at the peak, or at the end where one file has no history."


@dataclass(frozen=True, slots=True)
class Key:
    """A key of an object: its type and what it means, "" where its name tells."""

    name: str
    type: str
    meaning: str = ""


_EVERYWHERE = (
    Key("schema", "text", "that of the heading"),
    Key("key", "text", "identifies the row, also across traces"),
    Key("rank", "int", "global rank"),
    Key("step", "int", "number of the step: 7 of `ProfilerStep#7`, else counted from 0"),
    Key("phase", "text", 'as in `phases`: that in which the host issued it; "" without one'),
    Key("line", "text", "`file.py:7 function`"),
    Key("op", "text", "op that the host was in, or that launched it"),
    Key("module", "text", "path of nn.Modules"),
    Key("category", "text", "of the `partition`"),
    Key("group", "text", "name of the process group"),
    Key("dtype", "text", "`float32`, ..."),
    Key("moment", "text", "`peak`, `oom` or `end`"),
    Key("num", "int", "how many"),
    Key("gpu_ns", "int", "summed device work"),
    Key("step_ns", "int", "of a counted step, mean"),
    Key("exposed_ns", "int", "nothing computes meanwhile"),
    Key("algbw_gbps", "number?", "bytes over time"),
    Key("busbw_gbps", "number?", "as defined by nccl-tests"),
    Key("samples_per_step", "int?", "samples in a step of all ranks"),
    Key("arm", "text", "its name"),
    Key("num_a", "int", "steps, or values, of A"),
    Key("num_b", "int", "of B"),
    Key("a_ns", "int", "mean step of A"),
    Key("b_ns", "int", "of B"),
    Key("delta_ns", "int", "B minus A"),
    Key("ci95_ns", "list of ints?", "ends of the 95 % confidence interval; null: too few values"),
    Key("ci90_ns", "list of ints?", "of the 90 % interval"),
    Key("*_ns", "int"),
    Key("*_bytes", "int"),
    Key("*_pct", "number"),
    Key("num_*", "int"),
    Key("is_*", "bool"),
    Key("bytes", "int"),
    Key("*", "text"),
)
"""Keys of many tables; the first whose name matches says the type and meaning, where nothing else is said."""

_TYPES = {str: "text", int: "int", float: "number", bool: "bool"}

_DIFF = (
    (f"`{diff_json.DIFFS_SCHEMA}`", diff_json.DiffsObject),
    ("`exchanges`", Exchange),
    ("`moved`", CollectiveVolume),
    ("`joint`", diff_json.JointObject),
    (f"`{diff_json.DIFF_SCHEMA}`, `diffs`", diff_json.DiffObject),
    ("`a`, `b`", diff_json.SideObject),
    ("`comparable`", Comparable),
    ("`step`, `cpu_step`", Comparison),
    ("`sample`", diff_json.SampleObject),
    ("`verdict`", diff_json.VerdictObject),
    ("`statement`, `basis`, `reasons`, `doubt`, `free`", diff_json.StatementObject),
    ("`feeding`", diff_json.FeedingObject),
    ("`traced`", Traced),
    ("`ranks`", RankDelta),
    ("`inference`", InferenceDelta),
    ("`cells`", CellDelta),
    ("`counts`", CountDelta),
    ("`work`", WorkDelta),
    ("`causes`", Cause),
    ("`chain`", Chain),
)
_WHATIF = (
    (f"`{WHATIF_SCHEMA}`", WhatifObject),
    ("`predictions`", PredictionObject),
    ("`together`, `each`", ChangeRow),
)
"""Objects of the commands whose JSON is not made of tables, in the order of the page."""


def page() -> str:
    """Return the text of the page."""
    last, before = (_FIXTURES / "kinds" / f"snapshot{which}.pickle" for which in ("_oom", ""))
    tables = [table for report in analyze_all(read(_FIXTURES / "example" / "job")) for table in report.tables]
    runs = [Table.of("runs", "", RunRow, ())]
    shown = [*_sections(tables), *_section("`findings`", FindingObject), *_section("`unknown`", Unknown)]
    return "\n".join(
        (
            f"{_HEAD}\n## Keys of many tables\n\n{_BY_NAME}\n",
            *_rows(_EVERYWHERE),
            "\n## show",
            *_document(SHOW_SCHEMA, tables),
            *_section("`source`", SourceObject),
            _MANY_RANKS.rstrip(),
            *shown,
            *_section("`warnings`", Caveat),
            "\n## diff",
            *_of_objects(_DIFF),
            "\n## whatif",
            *_of_objects(_WHATIF),
            "\n## a folder of runs\n\n`traceq show FOLDER --json`.",
            *_document(RUNS_SCHEMA, runs),
            *_sections(runs),
            "\n## history\n\n`traceq history show --json`.",
            *_sheet(HISTORY_SCHEMA, history_sheet(History("", "", (), ()))),
            f"\n## memory snapshot\n\n`traceq show snapshot.pickle --json`. {_KINDS}",
            *_sheet(SNAPSHOT_SCHEMA, snapshot_sheet(last)),
            f"\n## two memory snapshots\n\n`traceq diff a.pickle b.pickle --json`. {_AT_PEAK}",
            *_sheet(SNAPSHOT_DIFF_SCHEMA, snapshot_diff(before, last)),
            "",
        )
    )


def _sheet(schema: str, sheet: Sheet) -> Iterator[str]:
    tables = [table for report in sheet.reports for table in report.tables]
    yield from _document(schema, tables)
    yield from _sections(tables)


def _document(schema: str, tables: Sequence[Table]) -> Iterator[str]:
    """Yield the object that a command prints: its tables, and what is beside them."""
    kinds = [Key(table.key, "object?" if table.single else "list of objects") for table in tables]
    lists = [Key(name, "list of objects") for name in ("findings", "unknown", "warnings")]
    yield f"\n### `{schema}`\n"
    yield from _rows((Key("schema", "text"), Key("source", "object"), *kinds, *lists))


def _sections(tables: Sequence[Table]) -> Iterator[str]:
    """Yield the sections of tables; those of the same rows share one."""
    for row_type, alike in groupby(tables, lambda table: table.row_type):
        same = list(alike)
        parts = [Key(part.key, "numbers by name") for table in same for part in table.parts]
        yield from _section(", ".join(f"`{table.key}`" for table in same), row_type, parts)


def _of_objects(objects: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for heading, row_type in objects:
        yield from _section(heading, row_type)


def _section(heading: str, row_type: Any, more: Sequence[Key] = ()) -> Iterator[str]:
    """Yield the heading of an object, what it is, and its keys."""
    keys = [*_keys(row_type), *more]
    common, rest = [[key for key in keys if _is_common(key) is expected] for expected in (True, False)]
    yield f"\n### {heading}\n"
    yield " ".join(filter(None, (_plain(row_type.__doc__), f"With {_named(common)}." if common else "")))
    if rest:
        yield ""
        yield from _rows(rest)


def _named(keys: Iterable[Key]) -> str:
    return ", ".join(f"`{key.name}`" + (f" ({key.meaning})" if key.meaning else "") for key in keys)


def _is_common(key: Key) -> bool:
    return key.type == _usual_type(key.name) and len(key.meaning.split()) <= _FEW_WORDS


def _usual_type(name: str) -> str:
    return next(each.type for each in _EVERYWHERE if fnmatchcase(name, each.name))


def _rows(keys: Iterable[Key]) -> Iterator[str]:
    """Yield a list of keys, with types that their names do not say; those with the same of either share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        kind = "" if key.type == _usual_type(key.name) and key not in _EVERYWHERE else f" ({key.type})"
        rows.setdefault((kind, key.meaning), []).append(f"`{key.name}`")
    for (kind, meaning), names in rows.items():
        yield f"- {', '.join(names)}{kind}" + (f": {meaning}" if meaning else "")


def _keys(row_type: Any) -> list[Key]:
    """Return the keys of an object by its class, in their order."""
    hints, docs = get_type_hints(row_type, include_extras=True), _field_docs(row_type)
    if columns := {} if is_typeddict(row_type) else columns_of(row_type):
        return [Key(column.key, _type(hints[name]), docs.get(name, "")) for name, column in columns.items()]
    keys = []
    for name in diff_json.SHAPES.get(row_type, tuple(hints)):
        hint, meaning = hints.get(name), docs.get(name, "")
        if isinstance(attribute := getattr(row_type, name, None), property):
            hint, meaning = get_type_hints(attribute.fget)["return"], _meaning(attribute.__doc__)
        keys.append(Key(name, _type(hint), meaning))
    return keys


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(import_module(module)))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _field_docs(row_type: Any) -> dict[str, str]:
    """Return the docstring of each field that has one: the text below it."""
    docs = {}
    for item, below in pairwise(_classes(row_type.__module__)[row_type.__name__].body):
        match item, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = _meaning(text)
    return docs


def _plain(docstring: str) -> str:
    """Return a docstring as one line of the page, with the words of JSON."""
    return re.sub(r"\bNone\b", "null", " ".join(docstring.split()))


def _meaning(docstring: str) -> str:
    """Return the docstring of a field as a cell: no sentence."""
    text = _plain(docstring).removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _type(hint: Any) -> str:
    """Return a type in words: `int?`, `list of texts`, `object`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return f"{_type(inner[0])} or absent"
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(_type(each) for each in inner if each is not NoneType)
        if "number" in kinds:
            kinds.pop("int", None)
        return " or ".join(kinds) + "?" * (NoneType in inner)
    if origin in (tuple, list):
        return f"list of {_type(inner[0])}s"
    if origin is Mapping:
        return "values by name"
    return "text" if origin is Literal else _TYPES.get(hint, "object")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
