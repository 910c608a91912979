"""What runs faster or slower as a whole, as on a busy machine, is told from a change of what runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from builder import Event, build, op, step
from statements import of_code, only

from traceq.compare.account_pace import NO_PACE, pace_of_accounts
from traceq.compare.attribution import Account
from traceq.compare.diff import diff_runs
from traceq.compare.result import Diff
from traceq.model import Run, Trace

NAMES = [f"aten::op{number}" for number in range(20)]


def accounts(ns: Sequence[float], nums: Sequence[int] | None = None, kind: str = "host") -> dict[str, Account]:
    nums = nums or [5] * len(ns)
    return {
        name: Account(name, kind, "forward", name, "", "", num, round(1000 * each))
        for name, each, num in zip(NAMES, ns, nums, strict=False)
    }


def ratio(of_a: Mapping[str, Account], of_b: Mapping[str, Account]) -> float:
    return pace_of_accounts(of_a, of_b, 5, 5).ratio


def test_what_all_accounts_have_in_common_is_the_pace_and_the_rest_cancels() -> None:
    a = accounts(range(10, 30))
    b = accounts([1.4 * ns + noise for ns, noise in zip(range(10, 30), [1, -1] * 10, strict=True)])
    pace = pace_of_accounts(a, b, 5, 5)
    assert pace.ratio == pytest.approx(1.4)
    assert ratio(b, a) == pytest.approx(1 / 1.4)
    explained = sum(pace.explained_ns(key, a[key].ns, b[key].ns) for key in a)
    assert explained == pytest.approx(sum(each.ns for each in b.values()) - sum(each.ns for each in a.values()), abs=20)
    first, second = pace.without("aten::op0", [100, 200], [140, 280])
    assert first == second
    assert pace.without("another", [100], [140]) == ([100], [140])


@pytest.mark.parametrize(
    "b",
    [
        [400, *[10] * 19],  # one long account
        [*[100] * 3, *[10] * 17],  # some long ones, half of the time of the step
        [10 if number % 2 else 20 for number in range(20)],  # half of them
        [10.05] * 20,  # too little
    ],
)
def test_changes_of_some_accounts_are_no_pace(b: Sequence[float]) -> None:
    a = [100, *[10] * 19] if b[0] == 400 else [50] * 3 + [10] * 17 if b[0] == 100 else [10] * 20
    assert ratio(accounts(a), accounts(b)) == 1
    assert ratio(accounts(b), accounts(a)) == 1


def test_what_few_steps_do_is_no_part_of_the_pace() -> None:
    """A checkpoint in two of ten steps, in Python that runs in all of them; all else takes 1.5 times as long."""

    def side(each: int, saves: int) -> dict[str, Account]:
        made = {
            name: replace(one, num=10, ns=10 * each, by_step=(each,) * 10) for name, one in accounts([0] * 20).items()
        }
        by_step = (each,) * 8 + (saves,) * 2
        return made | {"save": replace(made["aten::op0"], key="save", ns=sum(by_step), by_step=by_step)}

    pace = pace_of_accounts(side(1_000, 1_000), side(1_500, 90_000), 10, 10)
    assert pace.ratio == pytest.approx(1.5)
    assert pace.explained_ns("save", 1_000, 19_200) == 0


def test_few_accounts_and_those_of_other_work_have_no_pace() -> None:
    a, b = [10] * 20, [20] * 20
    assert ratio(accounts(a), accounts(b)) == 2
    assert pace_of_accounts(accounts(a[:9]), accounts(b[:9]), 5, 5) == NO_PACE
    assert pace_of_accounts({}, accounts(b), 5, 5) == NO_PACE
    assert pace_of_accounts(accounts(a), accounts(b, [10] * 20), 5, 5) == NO_PACE  # twice the calls
    assert pace_of_accounts(accounts(a, kind="sync"), accounts(b, kind="sync"), 5, 5) == NO_PACE


def test_accounts_that_are_little_of_both_sides_tell_nothing_of_their_pace() -> None:
    """Of ops that a rewrite replaced, only what is around them is on both sides."""
    a, b = accounts([10] * 20), accounts([20] * 20)
    old, new = (Account(name, "host", "forward", name, "", "", 5, 700_000) for name in ("aten::old", "aten::new"))
    assert pace_of_accounts({**a, "old": old}, {**b, "new": new}, 5, 5) == NO_PACE
    assert ratio({**a, "old": old}, b) == 2  # one side has little else


def steps_of_ops(slower: float, *, added: bool = False, shapes: str = "[[8, 8]]") -> Trace:
    """Three steps of twenty ops of 10 to 29 us; `added` is one more, of 8 us."""
    rows: list[Event] = []
    for number in range(3):
        start = end = 2000 * number
        for name, dur in [*((name, slower * (10 + index)) for index, name in enumerate(NAMES)), ("aten::clone", 8)]:
            if added or name != "aten::clone":
                rows.append(op(name, end, dur, **({"Input Dims": shapes} if shapes else {})))
                end += dur
        rows.append(step(start, end - start, number))
    return build(*rows)


def diff_of(a: Trace, b: Trace) -> Diff:
    return diff_runs(Run("a", (a,)), Run("b", (b,)))


def test_a_step_that_is_shorter_by_the_pace_alone_saves_nothing() -> None:
    diff = diff_of(steps_of_ops(1), steps_of_ops(0.7, added=True))
    assert (diff.answer.code, diff.answer.measures["delta_ns"]) == ("other_pace", -109_000)
    pace = only("pace", diff)
    assert (pace["paced_delta_ns"], "unknown_sizes" in pace) == (-117_000, False)
    assert [each["delta_ns"] for each in of_code("cause", diff)] == [-117_000, 8_000]


def test_of_unknown_or_larger_inputs_more_time_is_no_matter_of_load_alone() -> None:
    diff = diff_of(steps_of_ops(1, shapes=""), steps_of_ops(2, shapes=""))
    assert only("pace", diff)["unknown_sizes"] == "A and B"


def one_trace(*durs: float, python: int = 0) -> Trace:
    """Ops of 10 us times a factor each, and a pause of Python in the middle."""
    rows: list[Event] = []
    end = 0.0
    for name, dur in zip(NAMES, durs, strict=False):
        rows.append(op(name, end, 10 * dur, **{"Input Dims": [[8, 8]]}))
        end += 10 * dur + (python if len(rows) == 10 else 0)
    return build(*rows)


def test_an_op_that_takes_longer_in_another_process_is_no_cost() -> None:
    """One of twenty ops takes 14 us longer in each step: as where the memory that it fills is new to the process."""

    def run(us: float) -> Run:
        rows: list[Event] = []
        for number in range(3):
            for index, name in enumerate(NAMES):
                dur = us if index == 7 else 10
                rows.append(op(name, 1000 * number + 30 * index, dur, **{"Input Dims": [[8]]}))
            rows.append(step(1000 * number, 600 + us, number))
        return Run("", (build(*rows),))

    diff = diff_runs(run(10), run(24))
    assert diff.answer.code == "other_pace"
    assert "same_delta_ns" not in only("same_ops", diff)
    assert "aten::op7" in str(only("cause", diff)["what"])


def test_the_same_ops_of_one_trace_each_neither_cost_nor_save() -> None:
    """Half of them take twice as long: no common pace, and nothing that tells a change from a busy machine."""
    usual = one_trace(*[1] * 20)
    slower = diff_of(usual, one_trace(*[1, 2] * 10))
    assert (slower.answer.code, slower.answer.measures["delta_ns"]) == ("other_pace", 100_000)
    assert "same_delta_ns" not in only("same_ops", slower)
    assert diff_of(usual, one_trace(*[1] * 15)).answer.code == "observed"  # five ops are gone
    fewer = diff_of(usual, one_trace(*[1, 2] * 9))  # two ops are gone, and those that are left take 90 us longer
    assert (fewer.answer.code, fewer.answer.measures["delta_ns"]) == ("other_pace", 70_000)
    assert only("same_ops", fewer)["same_delta_ns"] == 90_000
    assert diff_of(usual, one_trace(*[1] * 20, python=100)).answer.code == "observed"  # Python has a line
    nodes = [[op("aten::mm", 20 * number, 19), op("aten::ne", 20 * number + 1, 15)] for number in range(20)]
    plain, checked = build(*(node[0] for node in nodes)), build(*(each for node in nodes for each in node))
    assert not of_code("same_ops", diff_of(plain, checked))  # those inside others are more, as in anomaly mode
    names = {"resize_": True, "view": True, "ne": False}
    for name, is_same in names.items():
        other = build(
            *(each for us in range(0, 800, 40) for each in (op("aten::mm", us, 39), op(f"aten::{name}", us + 1, 15)))
        )
        assert (
            bool(of_code("same_ops", diff_of(plain, other))) == is_same
        )  # what other versions of torch run inside of others
