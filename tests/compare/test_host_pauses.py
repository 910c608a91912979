"""Pauses of a host that lacks cores are jitter: another run has them elsewhere, or not at all."""

from __future__ import annotations

import pytest
from builder import build
from pausing_host import APART, OPS, Pauses, layers

from traceq.compare.explain import explain
from traceq.compare.result import Cause

ELSEWHERE: Pauses = {(layer, OPS[(OPS.index(name) + 2) % len(OPS)]): us for (layer, name), us in APART.items()}
NUM_LAYERS = 40


def causes_of(a: Pauses, b: Pauses) -> list[Cause]:
    _, _, causes = explain(*(build(*layers(each, num=NUM_LAYERS)) for each in (a, b)))
    return list(causes)


@pytest.mark.parametrize(("a", "b"), [({}, APART), (APART, {}), (APART, ELSEWHERE)])
def test_pauses_are_jitter(a: Pauses, b: Pauses) -> None:
    causes = causes_of(a, b)
    assert {cause.kind for cause in causes} <= {"jitter", "minor"}, causes


@pytest.mark.parametrize("pauses", [{}, APART])
def test_an_op_that_takes_longer_in_every_call_is_a_cause_beside_pauses(pauses: Pauses) -> None:
    longer = {(layer, "sum"): 300 for layer in range(NUM_LAYERS)} | pauses
    (cause,) = (cause for cause in causes_of(ELSEWHERE, longer) if cause.kind == "host")
    assert cause.name == "aten::sum"
    assert cause.delta_ns == pytest.approx(NUM_LAYERS * 300_000, rel=0.05)


@pytest.mark.parametrize("pauses", [{}, APART])
def test_a_long_time_in_one_place_is_a_cause_beside_pauses(pauses: Pauses) -> None:
    (cause,) = (cause for cause in causes_of(ELSEWHERE, {(20, "view"): 90_000} | pauses) if cause.kind == "host")
    assert cause.name == "aten::view"
