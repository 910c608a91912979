"""The fuzzer of commands: a few of its cases, so that it works when it is needed."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the mcp package is not installed")

import fuzz_commands
from fuzz_commands import COMMANDS, MOST_BYTES, in_process, mutated, places, run, tool_call, trace

from traceq.agent_tools.server import TOOLS
from traceq.commands import SUMMARIES


def test_a_tree_is_changed_and_the_original_is_not() -> None:
    tree, before = trace(), trace()
    trees = [mutated(tree, random.Random(seed)) for seed in range(20)]
    assert tree == before
    assert sum(changed != before for changed in trees) > 10
    assert len(places({"a": [1, {"b": 2}]})) == 4


def line_of(number: int) -> str:
    return random.Random(number).choice(COMMANDS)


QUICK = [number for number in range(40) if not line_of(number).startswith(("crosscheck", "record"))][:12]


@pytest.mark.parametrize("number", QUICK)
def test_no_command_fails_on_some_cases(number: int) -> None:
    assert run(number) == ""


def test_every_command_and_tool_has_cases() -> None:
    assert {line.split()[0] for line in COMMANDS} == {*SUMMARIES}
    assert {tool_call("x", random.Random(seed))[0] for seed in range(100)} == {*TOOLS}


@pytest.mark.parametrize("case", [lambda _: "wrong", lambda _: f"{len(bytes(MOST_BYTES))} bytes", lambda _: 1 / 0])
def test_a_case_that_is_wrong_or_takes_too_much_is_counted(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_commands, "run", case)
    assert not in_process(0)[0]
    monkeypatch.setattr(fuzz_commands, "run", lambda number: "")
    assert in_process(0)[0]
