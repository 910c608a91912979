"""The recorded answers hold, and a difference is a row that says what changed, where and how often."""

from __future__ import annotations

import json

import pytest
from answers import answer, answers_now, changes, recorded
from inputs import Question

RANKS = Question("show", ("fixtures/example/job",))


@pytest.mark.slow
def test_every_answer_is_as_recorded() -> None:
    now = json.loads(json.dumps(answers_now()))

    assert changes(recorded(), now) == {}


def test_the_answer_about_a_job_of_this_checkout_is_as_recorded() -> None:
    now = {RANKS.name: json.loads(json.dumps(answer(RANKS)))}

    assert changes(recorded(), now) == {}


def test_a_difference_has_its_field_its_values_and_all_its_inputs() -> None:
    before = {"show a": {"syncs.num": [3], "steps rows": 2}, "show b": {"syncs.num": [3]}, "show gone": {"x": 1}}
    now = {"show a": {"syncs.num": [4], "steps rows": 2}, "show b": {"syncs.num": [4]}, "show new": {}}

    assert changes(before, now) == {
        ("syncs.num", "[3]", "[4]"): ["show a", "show b"],
        ("not in the record", "", ""): ["show new"],
    }
