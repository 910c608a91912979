"""Answers: within their budget whatever they hold, and nothing left out without a word."""

from __future__ import annotations

import json

import pytest
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("mcp", reason="the mcp package is not installed")

from traceq.agent_tools.answer import Answer, Rows, num_tokens, rows_of, to_document, to_text
from traceq.agent_tools.limits import MOST_TOKENS
from traceq.report import Column, Table

CELLS = st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=300))


def table(*rows: tuple[object, ...], columns: str = "key rank ns line") -> Table:
    return Table("t", "", tuple(map(Column, columns.split())), rows)  # type: ignore[arg-type]


def test_the_key_and_columns_without_a_value_are_no_columns_and_the_latter_are_named() -> None:
    rows = rows_of(table(("a|b", 0, 1234567, ""), ("c|d", 1, None, None)))
    assert rows.first(2) == {"columns": ("rank", "ns"), "rows": [[0, 1234567], [1, None]], "unknown": ("line",)}


def test_rows_that_do_not_fit_are_counted_and_the_first_ones_kept() -> None:
    many = rows_of(table(*((f"{number}", 0, number, "train.py:31 main") for number in range(100_000))))
    document = to_document(Answer("found", "traceq show x", parts={"t": many}))
    part = document["t"]
    assert isinstance(part, dict)
    assert [row[1] for row in part["rows"]] == list(range(len(part["rows"])))
    assert len(part["rows"]) + part["left_out"] == 100_000
    assert MOST_TOKENS * 0.9 < num_tokens(to_text(document)) <= MOST_TOKENS


def test_a_short_table_is_whole_beside_a_long_one() -> None:
    long, short = (rows_of(table(*((str(n), 0, n, "a") for n in range(num)))) for num in (5_000, 5))
    document = to_document(Answer("found", "traceq show x", parts={"long": long, "short": short}))
    assert isinstance(document["short"], dict)
    assert len(document["short"]["rows"]) == 5
    assert "left_out" not in document["short"]


@pytest.mark.slow
@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), max_size=30), st.lists(st.text(max_size=2000), max_size=20))
@up_to(100)
def test_no_answer_exceeds_its_budget(rows: list[tuple[object, ...]], texts: list[str]) -> None:
    parts = {"t": rows_of(table(*rows)), "words": [{"texts": Rows.of_texts(texts)}]}
    text = to_text(to_document(Answer("found", "traceq show x", "why " * 500, parts, {"warnings": parts["t"]})))
    assert num_tokens(text) <= MOST_TOKENS
    assert json.loads(text)["verdict"] == "found"


def test_names_of_a_trace_control_no_terminal_and_stay_in_their_line() -> None:
    text = to_text(to_document(Answer("found", "x", parts={"t": rows_of(table(("k", 0, 1, "a\x1b[31m\nb\u202e")))})))
    assert "\x1b" not in text
    assert "\\u001b" not in text
    assert "\\n" not in text
    assert "\u202e" not in text


def test_tokens_are_counted_on_the_safe_side() -> None:
    assert num_tokens("host-bound 632000 ns") == 6
    assert num_tokens('{"replay_ns":1234567}') == 12
    assert num_tokens("日本") == 4


@pytest.mark.parametrize("text", ["x" * 10_000, "a<b>, " * 2_000, "\N{CJK UNIFIED IDEOGRAPH-65E5}" * 4_000])
def test_every_text_column_and_list_is_within_the_budget(text: str) -> None:
    columns = tuple(f"{number}{text}" for number in range(3000))
    rows = Rows(columns, [[text] * 3000] * 400, 400, columns)
    compared = [{"a": text, "b": text, "words": Rows.of_texts([text])}] * 200
    parts = {"device": text, text: [text] * 1000, "t": rows, "comparisons": compared, "together": {"command": text}}
    looked = {"could_not": [{"what": (text,) * 100, "why": text}] * 100}
    document = to_document(Answer("found", f"traceq show {text}", text, parts, looked))
    assert num_tokens(to_text(document)) <= MOST_TOKENS
    assert (document["verdict"], document["command"]) == ("found", "too long to be repeated")
    assert isinstance(document["t"], dict)
    assert len(document["t"]["columns"]) + document["t"]["left_out_columns"] == 3000


def test_a_command_is_whole_or_not_there() -> None:
    for length in (3000, 30_000):
        command = f"traceq show {'a' * length}"
        assert to_document(Answer("found", command))["command"] in (command, "too long to be repeated")
    assert to_document(Answer("found", "traceq show " + "a" * 3000))["command"] != "too long to be repeated"
