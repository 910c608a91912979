"""`collectives identical across ranks`: broken where ranks differ, refused where nothing was compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builder import Event, build, comms, kernel, launch, op, step, world, write
from paths import TRACES

from traceq.cli import main
from traceq.errors import UsageFault
from traceq.model import Caveat, Run, Trace
from traceq.rules.evaluate import RuleOutcome, judge_run
from traceq.rules.messages import line
from traceq.rules.parse import parse
from traceq.rules.sentences import IDENTICAL

USUAL = ("allreduce 10", "_allgather_base 30", "allreduce 20")
NCCL = {"Process Group Name": "0", "Group size": 3}


def events(*steps: tuple[str, ...], group: dict[str, Any] | None = None) -> list[Event]:
    """Steps of 100 us with a call `name elements` every 10 us."""
    events: list[Event] = []
    for number, calls in enumerate(steps):
        events.append(step(100 * number, 100, number))
        for place, (name, _, size) in enumerate(call.partition(" ") for call in calls):
            sizes = (int(size), int(size))
            events.append(comms(name, 100 * number + 10 * place, 5, sizes, **(NCCL if group is None else group)))
    return events


def rank(number: int, *steps: tuple[str, ...], group: dict[str, Any] | None = None) -> Trace:
    return build(*events(*steps, group=group), **world(number, 3))


def judged(*traces: Trace, why: str = "") -> RuleOutcome:
    return judge_run(Run("job", traces), [parse(IDENTICAL, why)])[0]


def test_ranks_that_issue_the_same_hold() -> None:
    result = judged(*(rank(number, USUAL, USUAL) for number in range(3)))
    assert result.holds
    assert line(result) == "ok     collectives identical across ranks"


def test_the_first_mismatch_is_named() -> None:
    wrong = (USUAL[0], "_allgather_base 31", USUAL[2])
    result = judged(rank(0, USUAL, USUAL), rank(1, USUAL, wrong), rank(2, USUAL, USUAL), why="ranks would hang")
    assert not result.holds
    text = line(result)
    assert text.startswith(f"BROKEN {IDENTICAL}: desync at collective 2 of step 1")
    assert "ranks 0, 2: all_gather float32 x 30" in text
    assert "rank 1: all_gather float32 x 31" in text
    assert text.endswith("; ranks would hang")


@pytest.mark.parametrize(
    ("traces", "reason"),
    [
        ([rank(0, USUAL)], "only rank 0"),
        ([rank(0, ()), rank(1, ())], "ranks 0, 1: no collective in common"),
        ([rank(0, USUAL), rank(1, USUAL), rank(2, ())], "rank 2: no collective in common"),
        (
            [rank(0, USUAL), replace(rank(1, USUAL), caveats=(Caveat("truncated", ""),)), rank(2, USUAL)],
            "rank 1 lost events",
        ),
        (
            [rank(0, ("allreduce 10", "send 10"), group={}), rank(1, ("allreduce 10", "recv 10"), group={})],
            "ranks send to each other",
        ),
    ],
)
def test_a_rule_that_compares_nothing_does_not_pass(traces: list[Trace], reason: str) -> None:
    result = judged(*traces)
    assert (result.state, reason in result.unanswered) == ("cannot tell", True)


def test_kernels_without_calls_compare_nothing() -> None:
    nccl = [step(0, 100), op("aten::x", 1, 9), launch(2, 2, 1), kernel("ncclDevKernel_AllReduce_Sum_f32", 5, 9, 1)]
    result = judged(*(build(*nccl, **world(number, 2)) for number in range(2)))
    assert "ranks 0, 1: no collective in common" in result.unanswered


@pytest.mark.parametrize("text", ["collectives identical", "collectives identical across rank", "all_reduce identical"])
def test_a_rule_that_is_nearly_this_one_is_told(text: str) -> None:
    with pytest.raises(UsageFault, match=f"expected '{IDENTICAL}'$"):
        parse(text)


def test_the_command_ends_as_for_every_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(path: Path) -> tuple[int, str, str]:
        monkeypatch.setattr(
            "sys.argv", ["traceq", "check", str(path), "--rule", IDENTICAL, "--rule", "collectives > 0"]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for number in range(3):
        first = USUAL[: 2 if number == 1 else 3]
        write(tmp_path / f"rank{number}.json", *events(first, USUAL), **world(number, 3))
    code, out, err = check(tmp_path)
    assert (code, err) == (3, "traceq: 1 of 2 rules broken\n")
    assert out.splitlines()[1].startswith(f"::error title=traceq check::{tmp_path}: {IDENTICAL}: desync")
    assert out.splitlines()[2] == "ok     collectives > 0"
    code, out, err = check(tmp_path / "rank0.json")
    assert (code, err) == (1, "traceq: 1 of 2 rules cannot be told\n")
    assert "only rank 0" in out.splitlines()[0]
    assert out.splitlines()[2] == "ok     collectives > 0"


@pytest.mark.parametrize("name", ["nanogpt-h100-8r", "dlrm-v100-8r", "torchrec-v100-ab/a"])
def test_real_jobs_that_ran_hold(name: str) -> None:
    from traceq.runs.read import read

    if not (TRACES / name).is_dir():
        pytest.skip("no ../shared/traces here")
    assert judge_run(read(TRACES / name), [parse(IDENTICAL)])[0].holds
