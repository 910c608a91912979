"""What is tried first, what is not worth a try, and what the table says of what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_pairs import MS, recording
from made_sides import MANIFEST, run_of

from traceq.claims.claim import AT_MOST, Basis, Claim
from traceq.claims.rules import RULES
from traceq.compare.diff import diff_runs
from traceq.improve.candidates import Candidate, candidates, fitting, leads_left, remedy_of
from traceq.improve.outcome import Outcome, Trial, leads_of, not_tried, promising, trials_of
from traceq.model import MUCH_SLOWER, Arm
from traceq.recorder.toggles.toggle import toggle_names

TOGGLES = {
    "@find_unused": ("default", "on"),
    "@gc": ("default", "off"),
    "@no_sync": ("default", "on"),
    "@optimizer": ("default", "foreach", "fused"),
    "main.k": ("1", "10"),
}
REDUCTIONS = Claim("repeated_reductions", 40 * MS, gain=(0, 40 * MS), gain_by=AT_MOST, basis=Basis(3))


def name(candidate: Candidate) -> str:
    return f"{candidate.toggle}={candidate.value}"


def test_answers_to_leads_come_first_and_what_only_costs_is_left_out() -> None:
    ranked = candidates(TOGGLES, [REDUCTIONS], 100 * MS, {"optimizer": 2 * MS}, traced=2.0)
    assert [(name(each), each.lead, each.predicted_ns) for each in ranked] == [
        ("@no_sync=on", "repeated_reductions", (0, 20 * MS)),  # of a step that is not traced
        ("@optimizer=foreach", "", (0, 2 * MS)),
        ("@optimizer=fused", "", (0, 2 * MS)),
        ("@gc=off", "", None),
        ("main.k=10", "", None),
    ]


@pytest.mark.parametrize(
    ("phase_ns", "is_unprofiled", "expected"),
    [
        (30 * MS, True, (2 * MS, 10 * MS)),
        (30 * MS, False, (1 * MS, 5 * MS)),  # half of a traced step
        (4 * MS, True, (2 * MS, 4 * MS)),
        (1 * MS, True, (1 * MS, 1 * MS)),
    ],
)
def test_a_remedy_gains_no_more_than_its_phase_takes(
    phase_ns: int, is_unprofiled: bool, expected: tuple[int, int]
) -> None:
    lead = Claim("unfused_optimizer", 5 * MS, gain=(2 * MS, 10 * MS), basis=Basis(3, is_unprofiled=is_unprofiled))
    (one,) = candidates({"@optimizer": ("default", "fused")}, [lead], 100 * MS, {"optimizer": phase_ns}, traced=2.0)
    assert one.predicted_ns == expected


def test_what_overlaps_gains_no_more_than_there_is_to_overlap_with() -> None:
    (one,) = candidates({"@prefetch": ("default", "on")}, [], 10 * MS, {"dataload_wait": 8 * MS})
    assert one.predicted_ns == (0, 2 * MS)


def test_too_little_to_gain_and_too_little_time_are_told_apart() -> None:
    ranked = candidates(TOGGLES, [REDUCTIONS], 100 * MS, {"optimizer": MS // 10})
    tried, hopeless, late = fitting(ranked, 100 * MS, most_arms=2)
    assert [name(each) for each in tried] == ["@no_sync=on", "@gc=off"]
    assert {each.toggle for each in hopeless} == {"@optimizer"}
    assert [name(each) for each in late] == ["main.k=10"]


def test_leads_that_nothing_that_gains_answers_are_left() -> None:
    metrics = Claim("metric_gathers", 5 * MS, gain=(0, 5 * MS), gain_by=AT_MOST, basis=Basis(3))
    note = Claim("cpu_bound", 50 * MS)
    (lead,) = leads_of(leads_left([REDUCTIONS, metrics, note], {"@no_sync"}))
    assert (lead.code, lead.predicted_ns) == ("metric_gathers", (0, 5 * MS))
    assert "gather them every n-th step" in lead.text
    assert leads_left([REDUCTIONS, note], {"@gc"}) == (REDUCTIONS,)


def test_every_toggle_of_a_rule_exists_and_has_a_remedy() -> None:
    toggles = {name for rule in RULES.values() for name in rule.toggles}
    assert {name.lstrip("@") for name in toggles} <= set(toggle_names())
    for each in toggle_names():
        if each != "stall":
            remedy = remedy_of(f"@{each}", "1")
            assert remedy.is_slower or remedy.code != f"@{each} = 1"


def outcome(b_ns: int, *, jitter_ns: int = MS // 100, cpu_jitter_ns: int = 5 * MS, status: str = "") -> Outcome:
    arms = (Arm("as_is", "", baseline=True, varied={"@optimizer": "default"}),)
    arms += (Arm("optimizer=fused", "", varied={"@optimizer": "fused"}, status=status, fault="it issues the same"),)
    manifest = replace(MANIFEST, arms=arms, environment={"loss.optimizer=fused": "-0.1 (standard error 0.2)"})
    steps, cpu = (recording(10 * MS, b_ns, jitter_ns=each) for each in (jitter_ns, cpu_jitter_ns))
    pairs = (replace(steps, a="as_is", b="optimizer=fused", first_cpu_ns=cpu.first_ns, second_cpu_ns=cpu.second_ns),)
    sides = [run_of(arm.name, manifest=manifest, pairs=pairs) for arm in arms]
    tried = [Candidate("@optimizer", "fused", "", (0, 2 * MS), "phase")]
    source = "# SGD(...)\noptimizer = torch.optim.AdamW(model.parameters())\n"
    trials = trials_of(tried, [] if status else [diff_runs(*sides)], manifest, source)
    return Outcome("python train.py", "train.py", 10 * MS, trials)


def test_a_gain_has_its_interval_its_line_and_its_loss() -> None:
    gains = outcome(9 * MS)
    (trial,) = gains.trials
    assert (trial.verdict, trial.estimate_ns, trial.line) == ("gains", MS, 2)
    assert promising(gains.trials) == (trial,)
    ((remedy, *predicted, measured, share, verdict),) = gains.table.rows
    assert (remedy, predicted, verdict) == ("@optimizer=fused", ["up to 2.00 ms", "up to 20.0 %"], "gains")
    assert (measured, share) == ("990 us to 1.01 ms", "9.9 to 10.1 %")
    assert list(replace(gains, afresh=gains.trials).lines()) == [
        "@optimizer=fused: train.py:2: write fused=True",
        "@optimizer=fused: loss -0.1 (standard error 0.2)",
    ]


@pytest.mark.parametrize(
    ("b_ns", "jitter_ns", "status", "verdict"),
    [
        (11 * MS, MS // 100, "", "costs"),
        (10 * MS, MS // 1000, "", "no difference"),
        (10 * MS, 5 * MS, "", "not decided"),
        (10 * MS, MS // 100, MUCH_SLOWER, f"{MUCH_SLOWER}: it issues the same"),
    ],
)
def test_where_nothing_gains_it_says_so(b_ns: int, jitter_ns: int, status: str, verdict: str) -> None:
    result = outcome(b_ns, jitter_ns=jitter_ns, status=status)
    assert [row[-1] for row in result.table.rows] == [verdict]
    assert list(result.lines()) == ["Nothing that was tried makes this job faster beyond doubt."]


def test_cpu_time_is_told_where_it_decides_what_step_times_do_not() -> None:
    (line, last) = outcome(9 * MS, jitter_ns=5 * MS, cpu_jitter_ns=MS // 100).lines()
    assert line.startswith("@optimizer=fused: not decided, but CPU time")
    assert line.endswith("saves 990 us to 1.01 ms")
    assert last.startswith("Nothing that was tried")


def test_where_nothing_can_be_tried_it_says_so() -> None:
    hopeless = not_tried([Candidate("@optimizer", "fused", "", (0, 1), "phase")], "hopeless")
    assert list(Outcome("", "", MS, hopeless).lines()) == ["No toggle can make this job faster."]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("gains", "A fresh start confirms @optimizer=fused: a"),
        ("costs", "A fresh start does not confirm @optimizer=fused: a"),
        ("not_decided", "A fresh start decides nothing of @optimizer=fused: a"),
        ("may_gain", "By a fresh start @optimizer=fused may gain too little to matter: a"),
    ],
)
def test_the_fresh_start_has_the_last_sentence(verdict: str, words: str) -> None:
    result = outcome(9 * MS)
    together = Trial("", "", verdict, measured_ns=(MS, 2 * MS), step_ns=10 * MS)
    *_, last = replace(result, afresh=result.trials, together=together).lines()
    assert last.startswith(f"{words} step saves 1.00 to 2.00 ms (10.0 to 20.0 %)")


def test_a_trial_that_only_the_fresh_start_decides_is_a_gain() -> None:
    result = outcome(10 * MS, jitter_ns=5 * MS)
    together = Trial("", "", "gains", measured_ns=(MS, 2 * MS), step_ns=10 * MS)
    lines = list(replace(result, afresh=result.trials, together=together).lines())
    assert lines[0] == "@optimizer=fused: train.py:2: write fused=True"
    assert lines[-1].startswith("A fresh start confirms @optimizer=fused")


def trials(**verdicts: str) -> list[Trial]:
    return [Trial(f"@{name.rstrip('_')}", name, verdict, estimate_ns=9) for name, verdict in verdicts.items()]


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        (trials(a="gains", b="not_decided", a_="gains", c="may_gain", d="costs"), ["a", "c"]),
        (trials(a="not_decided", b="not_decided", c="costs"), ["a"]),
        (trials(a="in_the_noise", b="costs", c="not_measured"), []),
        ([Trial("@a", "a", "not_decided", estimate_ns=-9)], []),
        ([*trials(a="not_decided"), Trial("@b", "b", "not_decided", "unused_search", estimate_ns=1)], ["b"]),
    ],
)
def test_what_gains_is_started_afresh_or_else_what_is_most_promising(tried: list[Trial], expected: list[str]) -> None:
    assert [trial.value for trial in promising(tried)] == expected
