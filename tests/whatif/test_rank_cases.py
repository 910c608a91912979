"""Ranks whose events are not kept give every answer that they give in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from paths import ROOT, TRACES

from traceq.errors import UsageFault
from traceq.facts.ranks.job import job_of
from traceq.model import Run
from traceq.runs.read import read
from traceq.whatif.intervention import Intervention, RankIntervention
from traceq.whatif.interventions import (
    BalancedLoader,
    CommBandwidth,
    HiddenComm,
    NoLaunchLatency,
    Scaled,
    ScaledLoader,
    WithoutLoader,
    WithoutStraggler,
    WithoutSyncs,
    loader_waits_by_step,
)
from traceq.whatif.job_replay import CannotReplay, JobReplay, job_replay, joined
from traceq.whatif.predict import Prediction, predict
from traceq.whatif.rank_cases import contracted_part

NAMES = ("nanogpt-h100-8r", "torchrec-v100-straggler-4r", "torchrec-v100-ab/a", "dlrm-v100-8r")
JOBS = [
    *(pytest.param(ROOT / "fixtures" / name, id=name) for name in ("example/job", "outlier_ab/on", "kinds/experts")),
    *(
        pytest.param(
            TRACES / name,
            id=name,
            marks=[pytest.mark.slow, pytest.mark.skipif(not (TRACES / name).is_dir(), reason=f"no {TRACES / name}")],
        )
        for name in NAMES
    ),
]
QUESTIONS: tuple[tuple[Intervention, ...], ...] = (
    (WithoutSyncs(),),
    (WithoutLoader(),),
    (HiddenComm(),),
    (CommBandwidth(2),),
    (WithoutStraggler((1,)),),
    (NoLaunchLatency(),),
    (BalancedLoader(),),
    (Scaled("*gemm*", 0.5),),
    (Scaled("forward", 0.5),),
    (Scaled("nothing-has-this-name", 0.5),),
    (WithoutSyncs("nowhere.py:1"),),
    (Scaled("*nccl*", 0.5), HiddenComm()),
    (WithoutSyncs(), CommBandwidth(2), WithoutStraggler((0,))),
    (BalancedLoader(), Scaled("aten::*", 0.7), Scaled("aten::mm", 0.5), WithoutStraggler((1,))),
)


def answer(replay: JobReplay, question: Sequence[Intervention]) -> Prediction | str:
    try:
        return predict(replay, question)
    except (UsageFault, CannotReplay) as fault:
        return str(fault)


def contracted(run: Run, whole: JobReplay, question: Sequence[Intervention]) -> Prediction | str:
    """The answer from ranks that are contracted, each by what is asked of it."""
    try:
        scaled = BalancedLoader().of_ranks(whole.ranks, list(map(loader_waits_by_step, whole.parts)))
    except UsageFault as fault:
        if any(isinstance(each, BalancedLoader) for each in question):
            return str(fault)
        scaled = [ScaledLoader((), ())] * len(whole.ranks)
    parts = []
    for part, of_rank in zip(whole.parts, scaled, strict=True):
        changes = [of_rank if isinstance(each, BalancedLoader) else each for each in question]
        local = [each for each in changes if isinstance(each, RankIntervention)]
        parts.append(contracted_part(part, [*([each] for each in local), local]))
        assert len(parts[-1].source) < len(part.source)
    changes = [scaled[0] if isinstance(each, BalancedLoader) else each for each in question]
    return answer(joined(job_of(run), parts), changes)


@pytest.mark.parametrize("path", JOBS)
def test_contracted_ranks_give_the_answers_of_whole_ones(path: object) -> None:
    run = read(str(path))
    whole = job_replay(run)
    answers = [answer(whole, question) for question in QUESTIONS]
    assert [contracted(run, whole, question) for question in QUESTIONS] == answers
    assert sum(isinstance(each, Prediction) for each in answers) >= 3 or "dlrm" in str(path)
