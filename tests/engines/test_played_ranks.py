"""`traceq whatif` has one answer, whether the ranks' events are in memory or read in turn by an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fleet import Fleet, play
from paths import ROOT

from traceq.engines.played_ranks import Answers, answers
from traceq.engines.rank_reader import SameProcess
from traceq.engines.workers import Pool
from traceq.errors import UsageFault
from traceq.whatif.answers import to_document
from traceq.whatif.intervention import Intervention
from traceq.whatif.interventions import (
    BalancedLoader,
    CommBandwidth,
    HiddenComm,
    NoLaunchLatency,
    Scaled,
    WithoutLoader,
    WithoutStraggler,
    WithoutSyncs,
)
from traceq.whatif.job_replay import CannotReplay

QUESTIONS: tuple[tuple[Intervention, ...], ...] = (
    (),
    (WithoutSyncs(),),
    (HiddenComm(), WithoutStraggler()),
    (BalancedLoader(),),
    (WithoutLoader(), CommBandwidth(2), Scaled("aten::mm", 0.5)),
    (NoLaunchLatency(),),
    (Scaled("no such name", 0.5),),
)


def never() -> SameProcess:
    raise AssertionError("an engine was started for ranks that are in memory")


def document_of(path: Path, question: Sequence[Intervention], *, small: int) -> object:
    try:
        answered = answers(path, question, start=SameProcess if small < 0 else never, small=small)
    except (UsageFault, CannotReplay) as fault:
        return str(fault)
    return to_document("", answered.predictions, answered.run.caveats)


@pytest.mark.parametrize("name", ["example/job", "outlier_ab/on", "kinds/experts"])
def test_ranks_that_are_read_in_turn_give_the_answers_of_ranks_in_memory(name: str) -> None:
    path = ROOT / "fixtures" / name
    for question in QUESTIONS:
        assert document_of(path, question, small=-1) == document_of(path, question, small=10**9)


def test_a_rank_that_counted_other_steps_is_read_again_for_those_of_all(tmp_path: Path) -> None:
    whole = play(Fleet(2, layers=6, steps=4, late_ranks=(1,))).write(tmp_path / "job", packed=False)
    text = (whole / "rank1.json").read_text()
    (whole / "rank1.json").write_text(text.replace("ProfilerStep#13", "AnotherMark#13"))
    for question in QUESTIONS[1:3]:
        in_memory = document_of(whole, question, small=10**9)
        assert document_of(whole, question, small=-1) == in_memory
        assert isinstance(in_memory, dict)
        assert in_memory["predictions"][0]["num_steps"] == 3


def test_processes_of_a_pool_answer_alike(tmp_path: Path) -> None:
    folder = play(Fleet(4, layers=6, steps=4, late_ranks=(1,))).write(tmp_path / "job")
    with Pool(10**9, 2) as pool:
        answered: Answers = answers(folder, (WithoutStraggler(), Scaled("aten::mm", 0.5)), start=lambda: pool, small=-1)
    expected = document_of(folder, (WithoutStraggler(), Scaled("aten::mm", 0.5)), small=10**9)
    assert to_document("", answered.predictions, answered.run.caveats) == expected


def test_the_only_rank_of_a_folder_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes((ROOT / "fixtures" / "example" / "job" / "rank0.json").read_bytes())
    for question in QUESTIONS:
        assert document_of(tmp_path, question, small=-1) == document_of(tmp_path, question, small=10**9)
