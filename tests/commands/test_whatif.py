"""`traceq whatif`: every number in JSON, what gains most, errors that name what was given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builder import kernel, launch, step, write
from paths import FIXTURES
from terminal import traceq

JOB = FIXTURES / "example" / "job"


def test_json_has_every_number() -> None:
    outcome = traceq("whatif", JOB / "rank1.json", "--without", "sync:train.py:31", "--without", "loader", "--json")
    (answer,) = json.loads(outcome.out)["predictions"]
    assert answer["ranks"] == [1]
    assert answer["step_ns"] == 5_576_000
    assert [each["option"] for each in answer["each"]] == ["--without sync:train.py:31", "--without loader"]
    assert [each["saved_ns"] for each in answer["each"]] == [816_000, 1_032_000]
    assert answer["together"]["saved_ns"] >= 1_032_000
    assert len(answer["held_fixed"]) == 4


def test_without_a_question_it_says_what_gains_most() -> None:
    outcome = traceq("whatif", JOB)
    assert (outcome.code, outcome.err, outcome.out.count("instead of 5.58 ms")) == (0, "", 3)
    answers = json.loads(traceq("whatif", JOB, "--json").out)["predictions"]
    saved = [answer["together"]["saved_ns"] for answer in answers]
    assert saved == sorted(saved, reverse=True)
    assert len(saved) == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--without", "sinks"], "syncs, sync:FILE:LINE or loader"),
        (["--without", "sync:a.py:3"], "; the syncs: train.py:31"),
        (["--scale", "gemm"], ", like 'nvjet_*=0.5'"),
        (["--scale", "gemm=-1"], ", like 'nvjet_*=0.5'"),
        (["--scale", "gemm=nan"], ", like 'nvjet_*=0.5'"),
        (["--scale", "sgem=0.5"], "; the nearest: ampere_sgemm_128x64_tn"),
        (["--without-straggler=2"], "; the ranks: 0-1"),
        (["--without-straggler=x"], "expected a rank, like 3"),
        (["--comm-bandwidth", "fast"], ", like 2x"),
        (["--comm-bandwidth", "0x"], ", like 2x"),
    ],
)
def test_errors_name_what_was_given_and_what_is_there(options: list[str], expected: str) -> None:
    outcome = traceq("whatif", JOB, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"traceq: {' '.join(options).removesuffix('=0.5')}: ")
    assert expected in outcome.err


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "late.json", step(0, 50), launch(5, 2, 1), kernel("a", 400, 100, 1))
    outcome = traceq("whatif", path, "--scale", "a=0.5")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"traceq: {path}: 72.0 % of the step")
