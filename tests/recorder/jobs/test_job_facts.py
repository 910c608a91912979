"""What is noted of a job's models: of DDP that looks for unused parameters, how many could be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from traceq.recorder.jobs.job_facts import job_facts

TRACKER: Any = SimpleNamespace(pattern=None)


def model(*, searches: bool) -> Any:
    parameters = [SimpleNamespace(requires_grad=learns) for learns in (True, True, False)]
    return SimpleNamespace(find_unused_parameters=searches, parameters=lambda: parameters)


@pytest.mark.parametrize(("searches", "num"), [([True], 2), ([False], None), ([True, True], None), ([False, True], 2)])
def test_parameters_are_counted_of_the_only_model_in_which_ddp_looks_for_unused_ones(
    searches: list[bool], num: int | None
) -> None:
    job: Any = SimpleNamespace(models=[model(searches=each) for each in searches], optimizers=[])
    assert job_facts(job, TRACKER).get("ddp_parameters") == num
