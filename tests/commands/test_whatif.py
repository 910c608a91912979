"""`traceq whatif`: one sentence, a table, what is held fixed; errors that name what was given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builder import kernel, launch, step, write
from paths import FIXTURES
from terminal import traceq

JOB = FIXTURES / "example" / "job"


def test_the_answer_is_a_sentence_a_table_and_what_is_held_fixed() -> None:
    outcome = traceq("whatif", JOB, "--scale", "*gemm*=0.5", "--without-straggler")
    sentence, headings, *rows = outcome.out.splitlines()
    assert (outcome.code, outcome.err) == (0, "")
    assert sentence == (
        "With *gemm* at 0.5 times its time and if no rank waited for rank 1 the step would take "
        "2.50 to 2.64 ms instead of 5.58 ms (-55.2 to -52.6 %)."
    )
    assert headings.split() == ["what", "if", "now", "then,", "from", "to", "saves", "at", "most", "again"]
    assert [row.partition("  ")[0] for row in rows[:3]] == [
        "--scale '*gemm*=0.5'",
        "--without-straggler=1",
        "--scale '*gemm*=0.5' --without-straggler=1",
    ]
    assert rows[3].startswith("Held fixed: All else takes as long as it did, and waits for the same.")
    again = "again: two standard errors of the difference to as many others with the change."
    assert rows[4] == f"Mean of 3 traced steps of ranks 0-1; {again}"


def test_json_has_every_number() -> None:
    outcome = traceq("whatif", JOB / "rank1.json", "--without", "sync:train.py:31", "--without", "loader", "--json")
    (answer,) = json.loads(outcome.out)["predictions"]
    assert answer["ranks"] == [1]
    assert answer["step_ns"] == 5_576_000
    assert [each["option"] for each in answer["each"]] == ["--without sync:train.py:31", "--without loader"]
    assert [each["saved_ns"] for each in answer["each"]] == [816_000, 1_032_000]
    assert answer["together"]["saved_ns"] >= 1_032_000
    assert answer["held_fixed"][0] == "All else takes as long as it did, and waits for the same."


def test_without_a_question_it_says_what_gains_most() -> None:
    outcome = traceq("whatif", JOB)
    assert outcome.out.count("instead of 5.58 ms") == 3
    answers = json.loads(traceq("whatif", JOB, "--json").out)["predictions"]
    saved = [answer["together"]["saved_ns"] for answer in answers]
    assert saved == sorted(saved, reverse=True)
    assert len(saved) == 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--without", "sinks"], "--without sinks: expected syncs, sync:FILE:LINE or loader"),
        (["--without", "sync:a.py:3"], "--without sync:a.py:3: no sync of a step is there; the syncs: train.py:31"),
        (["--scale", "gemm"], "--scale gemm: expected a name and a factor of its time, like 'nvjet_*=0.5'"),
        (["--scale", "gemm=-1"], "--scale gemm=-1: expected a name"),
        (["--scale", "gemm=nan"], "--scale gemm=nan: expected a name"),
        (["--scale", "sgem=0.5"], "--scale sgem: nothing has such a name; the nearest: ampere_sgemm_128x64_tn"),
        (["--without-straggler=2"], "--without-straggler=2: no such rank; the ranks: 0-1"),
        (["--without-straggler=x"], "--without-straggler=x: expected a rank, like 3"),
        (["--comm-bandwidth", "fast"], "--comm-bandwidth fast: expected how many times the bandwidth, like 2x"),
        (["--comm-bandwidth", "0x"], "--comm-bandwidth 0x: expected how many times"),
    ],
)  # fmt: skip
def test_errors_name_what_was_given(options: list[str], problem: str) -> None:
    outcome = traceq("whatif", JOB, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"traceq: {problem}")


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "late.json", step(0, 50), launch(5, 2, 1), kernel("a", 400, 100, 1))
    outcome = traceq("whatif", path, "--scale", "a=0.5")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"traceq: {path}: 72.0 % of the step of 500 us cannot be replayed, more than 5 %")
