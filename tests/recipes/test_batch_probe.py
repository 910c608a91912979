"""The arms of batch_probe, by how those before them ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="a recipe is a torch program")

from traceq.model import Arm
from traceq.recipes.batch_probe import Parameters, next_arms
from traceq.recorder import Outcome


def walked(parameters: Parameters, fits: Callable[[Arm], str], facts: dict[str, str]) -> list[str]:
    """Names of all arms, when each ends with the status that `fits` gives it."""
    outcomes = [Outcome(Arm("start", "", baseline=True, varied={"strategy": "ddp"}, facts=facts), 1, 1)]
    while arms := next_arms(parameters, outcomes):
        for arm in arms:
            status = fits(arm)
            outcomes.append(Outcome(Arm(arm.name, "", varied=arm.varied, status=status, facts=facts), 1, 1))
    return [outcome.arm.name for outcome in outcomes]


def test_backends_walk_side_by_side_and_what_cannot_run_is_tried_once() -> None:
    def fits(arm: Arm) -> str:
        if arm.varied["strategy"] == "zero2":
            return "skipped"
        return "out of memory" if int(arm.varied["batch_size"]) > 2 else ""

    names = walked(Parameters(backends="ddp,fsdp2,zero2", batch_size=2), fits, {"memory": "cpu"})
    assert names == [
        "start",
        "ddp,batch=4",
        "fsdp2,batch=2",
        "zero2,batch=2",
        "ddp,batch=3",
        "fsdp2,batch=4",
        "fsdp2,batch=3",
    ]


def test_on_a_gpu_each_backend_is_tried_with_expandable_segments_too() -> None:
    names = walked(Parameters(backends="ddp", batch_size=1, most=2), lambda arm: "", {"memory": "cuda"})
    assert names == ["start", "ddp,batch=2", "ddp+expandable,batch=1", "ddp+expandable,batch=2"]
