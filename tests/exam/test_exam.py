"""Sixty questions put to `traceq mcp` as a person would put them, by the SDK's client to a server in its own process.

The answers come from the oracle, which shares no code with the server; what cannot be answered must be refused, with
the reason.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT, TRACES

pytest.importorskip("mcp", reason="the mcp package is not installed")
pytest.importorskip("duckdb", reason="queries need DuckDB")

from mcp_client import Connection, connected
from oracle.exam import oracle_answer

from traceq.agent_tools.answer import CANNOT_TELL, num_tokens
from traceq.agent_tools.limits import MOST_TOKENS

QUESTIONS = tomllib.loads((Path(__file__).parent / "questions.toml").read_text(encoding="utf-8"))["question"]
MOST_CALLS = 3
TAKE = re.compile(r"(?P<table>\w+)\.(?P<column>\w+)(\[(?P<where>.+)\])?")


def location(path: str) -> Path:
    """Where a path of a question lies; the real traces are outside of the checkout."""
    return TRACES / path.removeprefix("shared/") if path.startswith("shared/") else ROOT / path


EVERY = 2
"""Questions of which one is in the default suite."""


def parameters() -> Iterator[Any]:
    for number, question in enumerate(QUESTIONS, 1):
        is_real, is_there = question["path"].startswith("shared/"), location(question["path"]).exists()
        marks = [pytest.mark.slow] if is_real or number % EVERY else []
        marks += [] if is_there else [pytest.mark.skip(reason=f"no real traces in {TRACES}")]
        yield pytest.param(question, id=f"{number:02}", marks=marks)


@pytest.fixture(scope="module")
def server() -> Iterator[Connection]:
    with connected(ROOT) as connection:
        yield connection


def put(server: Connection, question: dict[str, Any]) -> dict[str, Any]:
    """The answer to the last call of a question."""
    answer: dict[str, Any] = {}
    for call in question["calls"]:
        arguments = {name: value for name, value in call.items() if name != "tool"}
        if call["tool"] not in ("compare", "causes"):
            arguments["path"] = str(location(question["path"]))
        answer = server.answer(call["tool"], **arguments)
        assert num_tokens(json.dumps(answer, separators=(",", ":"))) <= MOST_TOKENS
        assert answer["command"].startswith("traceq ")
    return answer


def taken(answer: dict[str, Any], take: str) -> Any:
    """What `take` names in an answer; all values where a table has several."""
    if take == "answer":
        rows = answer["answer"]["rows"]
        return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows
    match = TAKE.fullmatch(take)
    if match and match["table"] == "summary":
        tables = [table for title, table in answer["summary"].items() if title != "command"]
        answer = {"summary": next(table for table in tables if match["column"] in table["columns"])}
    if match is None or "columns" not in answer.get(match["table"], {}):
        value: Any = answer
        for key in take.split("."):
            value = value[int(key) if isinstance(value, list) else key]
        return value
    table = answer[match["table"]]
    assert "left_out" not in table or match["table"] == "summary", f"{take}: not all rows fit"
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    where = match["where"] or ""
    if where.startswith("max "):
        rows = [max(rows, key=lambda row: row[where.removeprefix("max ")])]
    elif where:
        key, _, value = where.partition("=")
        rows = [row for row in rows if str(row[key]) == value]
    return [row[match["column"]] for row in rows]


def test_the_exam_is_large_and_honest() -> None:
    refused = [question for question in QUESTIONS if "cannot" in question]
    of_fixtures = [question for question in QUESTIONS if question["path"].startswith("fixtures/")]
    assert (len(QUESTIONS), len(refused)) == (60, 15)
    assert len(of_fixtures) >= 30
    assert len({question["ask"] for question in QUESTIONS}) == len(QUESTIONS)
    assert max(len(question["calls"]) for question in QUESTIONS) <= MOST_CALLS


@pytest.mark.parametrize("question", list(parameters()))
def test_a_question_is_answered_or_refused_with_its_reason(server: Connection, question: dict[str, Any]) -> None:
    answer = put(server, question)
    if "cannot" in question:
        assert answer["verdict"] == CANNOT_TELL
        assert re.search(question["cannot"], answer["reason"])
        return
    expected = oracle_answer(location(question["path"]), question["oracle"], **question.get("with", {}))
    value = taken(answer, question["take"])
    if isinstance(value, list) and not isinstance(expected, list):
        [value] = value
    assert value == pytest.approx(expected, rel=1e-5) if isinstance(expected, float) else value == expected
