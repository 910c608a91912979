"""The check finds outliers, and asks the device only when it is told to."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the check is a torch program")

import torch

from traceq.recipes.workload.outlier_check import DeferredCheck, outlier_seen

CALM = torch.ones(4, 3)
WILD = torch.tensor([[1.0, -50.0]])


def test_a_large_negative_value_is_an_outlier() -> None:
    assert outlier_seen(CALM, WILD, threshold=10)
    assert outlier_seen(WILD, CALM, threshold=10)
    assert not outlier_seen(CALM, CALM, threshold=10)


@pytest.mark.parametrize("threshold", [0.0, -1.0])
def test_switched_off_it_touches_no_tensor(threshold: float) -> None:
    assert outlier_seen(None, None, threshold) is False  # type: ignore[arg-type]


def test_the_deferred_check_answers_every_kth_step_for_all_steps_since() -> None:
    check = DeferredCheck(every=3, seen=torch.zeros((), dtype=torch.bool))
    answers = [check.outlier_seen(CALM, WILD if step == 1 else CALM, threshold=10) for step in range(6)]
    assert answers == [False, False, True, False, False, False]
