"""Standard words for standard things: retired identifiers and phrases do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from paths import DOCS, ROOT, TESTS

CODE = sorted(
    path
    for folder in ("traceq", "recipes", "benchmarks", "fixtures", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "recipes" not in path.relative_to(ROOT).parts[1:2] or folder == "tests"
)
TEXTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((TESTS / "golden").rglob("*.*")),
]

VAGUE = {"found", "told", "mine", "own", "at", "said", "whose", "asked", "known", "of_row", "told_of", "doing"}
"""Names that say nothing of what they hold."""

RENAMED = {
    "whose_turn": "active_thread",
    "first_come": "earliest_owner",
    "num_until": "count_before",
    "boxed": "copy_rowwise",
    "leave_flight": "dump_flight_recorder",
    "forget_peak": "reset_peak_memory",
    "turn_to": "set_phase",
    "telling": "top_findings",
    "job_ns": "slowest_rank_ns",
    "built_apart": "separate_builds",
    "Doing": "TimeCategory",
    "Turns": "ActiveThread",
    "Called": "CollectiveColumns",
    "Did": "RankIssue",
    "Holds": "HostWaits",
    "Look": "RankQuery",
    "Told": "RankError",
    "Wish": "ShardingSpec",
    "Spread": "ShardedModel",
}

PHRASES = re.compile(
    r"lacks the change|believe them|out of reach with|against itself shows|rooms lie|flows between them"
    r"|stands around it|told nothing|left it early|survive in a trace|knows no waiting|is forfeit|ends in peace"
    r"|has the (last )?word|nobody waits for|allocator's affair|and its kin|rubbish|anybody's guess|outshine"
    r"|hear it for all|line of the cache|has no opinion|without signs|worst place in view|is gone on with"
    r"|two cores for themselves|gives back a part|belongs into rules|has \d+ already|whose turn"
)


def names_bound(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable, argument, attribute that is assigned, function and class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_names_say_what_they_hold() -> None:
    offenders = [
        f"{where(path, line)} {name}"
        for path in CODE
        for line, name in names_bound(ast.parse(path.read_text(encoding="utf-8")))
        if name.lstrip("_") in VAGUE or name in RENAMED
    ]
    assert offenders == []


def test_phrases_are_those_of_the_field() -> None:
    offenders = [
        f"{where(path, number)} {match[0]}"
        for path in [*CODE, *TEXTS]
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := PHRASES.search(line))
    ]
    assert offenders == []
