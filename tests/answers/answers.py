"""What traceq answers on every input at hand, recorded: `make answers` compares, `make answers WRITE=--write` renews.

Facts are tables, cells and causes; a table is kept as the number of its rows and, of each column, a sum and a digest,
so that the record is small and a difference has a name. Claims are findings and verdicts without their words: wording
may change freely. Inputs that are not on this machine are not compared.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from inputs import Question, questions
from rich.console import Console
from rich.table import Table
from terminal import traceq

from traceq.errors import TraceqError
from traceq.rules.evaluate import judge_run
from traceq.rules.parse import parse
from traceq.runs.read import read

__all__ = ["RECORD", "Changes", "answers_now", "changes", "recorded"]

RECORD = Path(__file__).with_name("recorded.json.gz")
Answer = Mapping[str, object]
"""Values by the name of a field, such as `syncs.dur_ns sum`."""
Changes = dict[tuple[str, str, str], list[str]]
"""Names of questions by (field, value before, value now)."""

_NO_FACTS = {"path", "text", "words", "reason", "remedy", "held_fixed", "warnings", "schema", "unknown"}
"""Keys of sentences, and of what differs between machines."""
_CLAIMS = {"findings": ("code", "key", "severity", "ns"), "causes": ("kind", "name", "phase", "ns", "delta_ns")}
"""Keys of rows that are kept whole."""
_RULES = (
    "syncs per step == 0",
    "dtoh_copies per step == 0",
    "htod_copies per step == 0",
    "collectives per step == 0",
    "all_gather per step == 0",
    "all_reduce per step == 0",
    "kernels per step == 0",
    "step == 0 ms",
    "gpu_busy == 0 ms",
    "exposed_comm == 0 ms",
    "host_bound == 0 ms",
    "collectives identical across ranks",
)
"""Rules that hardly ever hold: what breaks them is the value."""
_NO_ANSWER = "TraceqError"
"""What the record has for a rule that a rank cannot answer."""
_WORKERS = 2


def answer(question: Question) -> Answer:
    """Return the answer to a question now."""
    if question.command == "check":
        return dict(_rule_values(question.paths[0]))
    done = traceq(question.command, *question.paths, "--json")
    document = json.loads(done.out) if done.out else {"fault": done.code}
    return {"exit code": done.code, **dict(_fields("", document))}


def answers_now() -> dict[str, Answer]:
    """Return the answers to all questions of this machine, by name."""
    all_questions = questions()
    with ProcessPoolExecutor(_WORKERS) as pool:
        return dict(sorted(zip([each.name for each in all_questions], pool.map(answer, all_questions), strict=True)))


def recorded() -> dict[str, Answer]:
    """Return the answers of the record."""
    answers: dict[str, Answer] = json.loads(gzip.decompress(RECORD.read_bytes()))
    return answers


def changes(before: Mapping[str, Answer], now: Mapping[str, Answer]) -> Changes:
    """Return what differs between answers; fields with None on one side came or went."""
    differences: Changes = {}
    for name in sorted(before.keys() & now.keys()):
        old, new = before[name], now[name]
        for field in sorted(old.keys() | new.keys()):
            if old.get(field) != new.get(field):
                differences.setdefault((field, str(old.get(field)), str(new.get(field))), []).append(name)
    for name in sorted(now.keys() - before.keys()):
        differences.setdefault(("not in the record", "", ""), []).append(name)
    return differences


def _rule_values(path: Path) -> Iterator[tuple[str, object]]:
    try:
        run = read(path)
    except TraceqError:
        yield "fault", "unreadable"
        return
    for text in _RULES:
        (outcome,) = judge_run(run, [parse(text)])
        values = {breach.rank: str(breach.value) for breach in outcome.breaches}
        yield text, _NO_ANSWER if outcome.unanswered else outcome.mismatch != "" or values


def _fields(name: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield the fields of a document by their path; a list of objects is a table."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in _NO_FACTS:
                yield from _fields(f"{name}.{key}" if name else key, each)
    elif name in _CLAIMS:
        yield name, [[row.get(key) for key in _CLAIMS[name]] for row in value]
    elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        yield f"{name} rows", len(value)
        for key in dict.fromkeys(key for row in value for key in row if key not in _NO_FACTS):
            yield f"{name}.{key}", _column([row.get(key) for row in value])
    else:
        yield name, value


def _without_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_words(each) for key, each in value.items() if key not in _NO_FACTS}
    return [_without_words(each) for each in value] if isinstance(value, list) else value


def _column(values: list[Any]) -> object:
    """Return a short list of values as it is; the sum and a digest of a long one."""
    values = _without_words(values)
    text = json.dumps(values, sort_keys=True)
    if len(text) <= 60:
        return values
    numbers = [each for each in values if isinstance(each, int | float)]
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return [round(sum(numbers), 3), digest] if numbers else [digest]


def _print(differences: Changes) -> None:
    table = Table("field", "before", "now", "inputs", "such as", box=None)
    for (field, old, new), names in sorted(differences.items(), key=lambda each: (-len(each[1]), each[0])):
        table.add_row(field, old, new, f"{len(names)}", names[0])
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def main() -> None:
    """Compare what traceq answers now with the record, or renew that."""
    now = answers_now()
    if "--write" in sys.argv:
        before = recorded() if RECORD.exists() else {}
        text = json.dumps({**before, **now}, sort_keys=True, separators=(",", ":"))
        RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))
        return
    before = recorded()
    differences = changes(before, json.loads(json.dumps(now)))
    if differences:
        _print(differences)
        sys.exit(f"{len(differences)} kinds of differences")
    sys.stdout.write(f"{len(before.keys() & now.keys())} of {len(before)} answers compared, all the same\n")


if __name__ == "__main__":
    main()
