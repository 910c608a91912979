"""The command that compares numbers of workers has the job's own option in its arms."""

from __future__ import annotations

import pytest

from traceq.recorder.jobs import job_facts
from traceq.recorder.jobs.job_facts import worker_arms_text


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_facts.os, "cpu_count", lambda: 2)


@pytest.mark.parametrize(
    ("command", "arms", "rest"),
    [
        (
            "python train.py --workers 1 --lr 3",
            "--arm 'w1=--workers 1' --arm 'w0=--workers 0'",
            "train.py '{arm}' --lr 3",
        ),
        ("python train.py --num_workers=1", "--arm 'w1=--num_workers 1'", "python train.py '{arm}'"),
        (
            "train.py --persistent-workers --workers 1",
            "--arm 'w1=--workers 1'",
            "train.py --persistent-workers '{arm}'",
        ),
        ("python train.py -b 2 -j 1 --lr 3", "--arm 'w1=-j 1' --arm 'w0=-j 0'", "train.py -b 2 '{arm}' --lr 3"),
        ("python gan.py --n_cpu 1", "--arm 'w1=--n_cpu 1'", "gan.py '{arm}'"),
        ("python train.py data.num_workers=1 lr=3", "--arm w1=data.num_workers=1 --arm", "train.py '{arm}' lr=3"),
    ],
)
def test_the_option_of_the_command_becomes_the_arms(command: str, arms: str, rest: str) -> None:
    text = worker_arms_text(command.split(), 1, "")
    assert text.startswith("num_workers=1: ")
    assert arms in text
    assert text.endswith(rest)


@pytest.mark.parametrize(
    ("command", "rest"),
    [
        ("python train.py --threads 8", "train.py --threads 8 '{arm}'"),
        ("python workers/train.py", "workers/train.py '{arm}'"),
        ("python train.py --workers", "train.py --workers '{arm}'"),
    ],
)
def test_an_option_that_only_the_script_names_becomes_the_arms(command: str, rest: str) -> None:
    script = """p.add_argument("--persistent-workers"); p.add_argument('--data_workers', type=int)"""
    text = worker_arms_text(command.split(), 1, script)
    assert "--arm 'w1=--data_workers 1'" in text
    assert text.endswith(rest)
    assert worker_arms_text(command.split(), 1, "DataLoader(data, num_workers=1)") == ""


def test_no_more_workers_than_cores_are_tried() -> None:
    assert "'w4=-j 4' --arm 'w0=-j 0' --arm 'w1=" in worker_arms_text(["python", "a.py", "-j", "4"], 4, "")
    assert "w3=" not in worker_arms_text(["python", "a.py", "-j", "0"], 0, "")


def test_the_command_has_no_secret_of_a_url() -> None:
    text = worker_arms_text(["python", "t.py", "--workers", "1", "--data", "s3://KEY:word@b/x?sig=abc"], 1, "")
    assert "s3://xxxxx@b/x?sig=xxxxx" in text
