"""The fuzzer of commands: a few of its cases, so that it works when it is needed."""

from __future__ import annotations

import random

import pytest
from fuzz_commands import COMMANDS, mutated, places, run, trace


def test_a_tree_is_changed_and_the_original_is_not() -> None:
    tree, before = trace(), trace()
    trees = [mutated(tree, random.Random(seed)) for seed in range(20)]
    assert tree == before
    assert sum(changed != before for changed in trees) > 10
    assert len(places({"a": [1, {"b": 2}]})) == 4


@pytest.mark.parametrize("number", range(12))
def test_no_command_fails_on_some_cases(number: int) -> None:
    assert len(COMMANDS) > 15
    assert run(number) == ""
