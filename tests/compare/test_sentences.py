"""The answer in sentences: true, whole, and in the right number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builder import Event, annotation, build, call, kernel, launch, memcpy, op, step

from traceq.compare.cause_names import jitter_name, short_name
from traceq.compare.cause_sentences import cause_text, cause_words
from traceq.compare.diff import diff_runs
from traceq.compare.disabled_change import added_ops_text
from traceq.compare.result import Cause, CellDelta, Chain, Comparable, SideReplay, Traced
from traceq.compare.tables import causes_table, waterfall
from traceq.compare.verdict_sentences import cpu_words, verdict_words
from traceq.compare.where_sentences import elsewhere_words, phase_words, python_words
from traceq.facts.ranks.run_ranks import ranks_in_memory
from traceq.model import Run, Trace
from traceq.stats import Comparison, Verdict

US = 1_000
OK = Comparable(True)


def cause(
    name: str, delta_us: float, num: float = 0, *, kind: str = "host", line: str = "", phase: str = "fwd"
) -> Cause:
    delta_ns = round(delta_us * US)
    key = f"{kind}|{phase}|{name}|{line}"
    return Cause(key, kind, phase, name, line, num, delta_ns, delta_ns if num else 0, 0 if num else delta_ns, None)


def words_of(delta_us: float, *causes: Cause, same_work: bool = True) -> tuple[str, ...]:
    traced = Traced(0, 1000 * US, round((1000 + delta_us) * US), 3, 3)
    return cause_words("A", "on", traced, causes, same_work=same_work)


def comparison_of(delta_us: float, name: Any, **more: Any) -> Comparison:
    interval = (round((delta_us - 1) * US), round((delta_us + 1) * US))
    verdict = Verdict(name, 0.5, "because")
    entries: dict[str, Any] = {
        "ci95_ns": interval,
        "ci90_ns": interval,
        "mean_delta_ns": 0,
        "num_slow_a": 0,
        "num_slow_b": 0,
    }
    return Comparison(1000 * US, 0, round(delta_us * US), verdict=verdict, **{**entries, **more})


def test_cpu_time_of_several_ranks_is_that_of_the_rank_with_most_and_of_each() -> None:
    alone, several = (comparison_of(5, "detectable", rank_delta_ns=ranks) for ranks in ((5000,), (5000, -2000)))
    assert cpu_words(alone)[0].startswith("CPU time of the main thread (excludes blocked time): +5.00 us per step")
    (text,) = cpu_words(several)
    assert text.startswith("CPU time of the main thread on the rank with most (excludes blocked time): +5.00 us")
    assert text.endswith(" By rank: rank 0 +5.00 us, rank 1 -2.00 us per step.")


@pytest.mark.parametrize(
    ("delta_us", "name", "sentence"),
    [
        (100, "material", "on costs 100 us per step (+10.0 %, 95 % CI +99.0 us to +101 us): material"),
        (-100, "material", "on saves 100 us per step (-10.0 %, 95 % CI -101 us to -99.0 us): material"),
        (
            3,
            "detectable",
            "on costs 3.00 us per step (+0.30 %, 95 % CI +2.00 us to +4.00 us): detectable, not surely material",
        ),
        (0, "in_the_noise", "on costs nothing per step (0.00 %, 95 % CI -1.00 us to +1.00 us): in the noise"),
    ],
)
def test_the_verdict_in_a_line(delta_us: float, name: str, sentence: str) -> None:
    assert verdict_words("off", "on", OK, comparison_of(delta_us, name)) == (
        f"{sentence} at the 0.50 % threshold.",
        "Why: because.",
    )


def test_a_verdict_says_of_how_many_questions_it_is_one() -> None:
    one_of_five = replace(comparison_of(100, "material"), num_questions=5)
    first, _ = verdict_words("off", "on", OK, one_of_five)
    assert first.endswith(": material at the 0.50 % threshold (1 of 5 questions).")


def test_cpu_time_is_told_beside_the_step_where_it_was_recorded() -> None:
    (sentence,) = cpu_words(comparison_of(3, "in_the_noise"))
    assert sentence == (
        "CPU time of the main thread (excludes blocked time): "
        "+3.00 us per step (+0.30 %, 95 % CI +2.00 us to +4.00 us): in the noise."
    )
    assert cpu_words(None) == ()


def test_the_noise_of_the_baseline_against_itself_is_told() -> None:
    _, why = verdict_words("off", "on", OK, comparison_of(100, "material", noise_floor_ns=7 * US))
    assert why == "Why: because. A/A noise floor: 7.00 us (off against itself)."


def test_traced_times_that_the_unprofiled_ones_deny_are_not_told_as_causes() -> None:
    causes = (cause("aten::item", 5, 1, line="a.py:1 f"), cause("aten::mm", 900))
    words = cause_words("A", "on", Traced(0, 1000 * US, 1905 * US, 3, 3), causes, doubt="No evidence.")
    assert words == ("on adds at a.py:1 f in fwd: 1 aten::item.", "No evidence.")


def test_the_largest_cause_comes_first() -> None:
    small = cause("dtoh b", 5, 1, kind="sync")
    first, second = words_of(100, cause("aten::mm", 90), small)
    assert first == "Causes of the traced +100 us per step: +90.0 us aten::mm in fwd."
    assert second.startswith("on adds 1 sync per step (1 dtoh b in fwd): +5.00 us per step")
    first, second = words_of(100, cause("aten::mm", 10), cause("dtoh b", 85, 1, kind="sync"))
    assert first.startswith("on adds 1 sync per step (1 dtoh b in fwd): +85.0 us per step")
    assert second == "Other causes: +10.0 us aten::mm in fwd."


def test_the_phase_with_most_of_a_difference_is_named() -> None:
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3)
    cells = (CellDelta("fwd", "compute", 100, 100 + 12 * US), CellDelta("bwd", "compute", 0, 88 * US))
    assert phase_words(traced, cells) == ("88 % of the difference is in bwd.",)
    assert phase_words(traced, cells[1:]) == ()
    early = replace(cells[1], phase="before_window")
    assert phase_words(traced, (cells[0], early)) == (
        "88 % of the difference is in work launched before the trace began.",
    )
    assert phase_words(traced, (*cells, CellDelta("bwd", "tail", 0, 30 * US))) == ()


def elsewhere(traced: Traced, cells: Sequence[CellDelta], causes: Sequence[Cause]) -> tuple[str, ...]:
    """The sentence where ops and allocations take as long on both sides."""
    trace = build(step(0, 1000))
    return elsewhere_words(trace, trace, traced, cells, causes)


def test_host_bound_time_of_ops_that_take_as_long_as_before_is_not_their_own() -> None:
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("bwd", "host_bound", 0, 80 * US), CellDelta("fwd", "sync_wait", 0, 20 * US))
    sync = cause("dtoh aten::item", 95, 1, kind="sync", line="train.py:7 step")
    sentence = (
        "It shows as +80.0 us of host-bound time in bwd, whose host ops take as long as before: they start later "
        "because of dtoh aten::item at train.py:7 step."
    )
    assert elsewhere(traced, cells, (sync, cause("aten::mm", 5, phase="bwd"))) == (sentence,)
    assert elsewhere(traced, cells, (sync, cause("aten::mm", 70, phase="bwd"))) == ()  # its own
    pace = no_change("pace", "pace of all host ops", 30)
    assert elsewhere(traced, cells, (sync, pace)) == ()  # they take longer, each a little
    assert elsewhere(traced, cells[1:], (sync,)) == ()
    assert elsewhere(replace(traced, matched_pct=40.0), cells, (sync,)) == ()  # causes are accounts
    back = Traced(0, 1100 * US, 1000 * US, 3, 3, matched_pct=99.0)
    removed = (CellDelta("bwd", "host_bound", 80 * US, 0),)
    (text,) = elsewhere(back, removed, (cause("dtoh aten::item", -95, -1, kind="sync"),))
    assert text.startswith("It shows as -80.0 us of host-bound time in bwd")
    assert "they start earlier because of dtoh aten::item" in text


def test_kernels_that_fill_the_time_in_which_the_device_waited_are_why_it_waits_less() -> None:
    traced = Traced(0, 1000 * US, 990 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("fwd", "host_bound", 90 * US, 10 * US), CellDelta("fwd", "compute", 10 * US, 80 * US))
    sync = cause("dtoh aten::item", -5, -1, kind="sync")
    (more,) = elsewhere(traced, cells, (sync,))
    assert more == (
        "It shows as -80.0 us of host-bound time in fwd, where kernels take 70.0 us more: they fill time in which the "
        "device waited."
    )
    back = Traced(0, 990 * US, 1000 * US, 3, 3, matched_pct=99.0)
    turned = tuple(CellDelta(cell.phase, cell.category, cell.b_ns, cell.a_ns) for cell in cells)
    assert elsewhere(back, turned, ()) == (
        "It shows as +80.0 us of host-bound time in fwd, where kernels take 70.0 us less: the device waits instead.",
    )
    of_another = (cells[0], replace(cells[1], phase="bwd"))
    assert "where kernels" not in "".join(elsewhere(traced, of_another, (sync,)))


def test_a_pace_is_no_change_that_acts_elsewhere() -> None:
    traced = Traced(0, 1000 * US, 990 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("fwd", "host_bound", 90 * US, 10 * US), CellDelta("fwd", "sync_wait", 0, 70 * US))
    assert elsewhere(traced, cells, (no_change("pace", "pace of all host ops", -4),)) == ()


@pytest.mark.parametrize("category", ["host_bound", "alloc_wait"])
def test_ops_and_allocations_that_take_longer_are_not_said_to_take_as_long(category: str) -> None:
    """Where each call takes a little longer, no cause may hold it: the calls themselves are asked."""
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3, matched_pct=99.0)
    cells, sync = (CellDelta("forward", category, 0, 80 * US),), cause("dtoh aten::item", 95, 1, kind="sync")

    def called(dur: float) -> Trace:
        in_op = [call("cudaMalloc", 110, dur - 20)] if category == "alloc_wait" else []
        work = launch(10, 5, 1), kernel("gemm", 20, 5, 1)
        return build(step(0, 1000), *work, op("aten::mm", 100, dur), *in_op)

    assert elsewhere_words(called(300), called(300), traced, cells, (sync,))
    assert elsewhere_words(called(300), called(380), traced, cells, (sync,)) == ()


def test_allocator_waits_that_a_sync_uncovers_are_not_the_allocator_s() -> None:
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("fwd", "alloc_wait", 50 * US, 140 * US), CellDelta("fwd", "host_bound", 0, 10 * US))
    sync = cause("dtoh aten::item", 95, 2, kind="sync", line="train.py:7 step")
    (text,) = elsewhere(traced, cells, (sync,))
    assert text == (
        "It shows as +90.0 us of alloc wait in fwd, whose allocations take as long as before: they start later "
        "because of dtoh aten::item at train.py:7 step."
    )
    calls = cause("alloc cudaMalloc", 60, kind="sync")
    assert elsewhere(traced, cells, (sync, calls)) == ()


def test_a_sync_in_one_of_several_steps_is_not_one_that_a_side_adds() -> None:
    """As a loss that is read in every tenth step: it is in a window of three by chance."""
    item = cause("dtoh aten::item", 30, 1 / 3, kind="sync", line="train.py:7 step")
    text = " ".join(words_of(100, item, cause("aten::mm", 70)))
    assert "adds" not in text
    assert "+30.0 us" in text
    in_all = " ".join(words_of(100, replace(item, delta_num=1.0), cause("aten::mm", 70)))
    assert "on adds at train.py:7 step in fwd: 1 dtoh aten::item" in in_all


def of_steps(*lengths: int, name: str = "aten::mm") -> Run:
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    marks = [step(begin, dur, number) for number, (begin, dur) in enumerate(zip(begins, lengths, strict=True))]
    return Run("arm", (build(*marks, *(op(name, begin + 10, 900) for begin in begins)),))


def lead_of_steps(ours: Sequence[int], theirs: Sequence[int]) -> str:
    return diff_runs(of_steps(*ours), of_steps(*theirs, name="aten::bmm")).words[0]


def test_profiled_steps_that_differ_as_much_by_themselves_neither_cost_nor_save() -> None:
    usual = [1000, 1040, 1010, 1000]
    assert lead_of_steps(usual, [1030, 1010, 1050, 1000]) == (
        "No difference beyond the scatter of steps seen between A and B: +10.0 us per step (+0.99 %), "
        "from 4 and 4 profiled steps of 1.00 ms to 1.04 ms and 1.00 ms to 1.05 ms."
    )
    apart = lead_of_steps(usual, [1330, 1310, 1350, 1300])
    assert apart == "B costs 310 us per step (+30.6 %), from 4 and 4 profiled steps, no interval."


def test_what_few_steps_do_on_one_side_alone_is_told_however_these_scatter() -> None:
    """An evaluation in two of six steps: a difference of the means that the scatter of steps hides."""
    (usual,) = of_steps(*[1000] * 6).traces
    marks = [(0, 1000), (1000, 9000), (10_000, 1000), (11_000, 1000), (12_000, 9000), (21_000, 1000)]
    rows = [step(begin, dur, number) for number, (begin, dur) in enumerate(marks)]
    rows += [op("aten::mm", begin + 10, 900) for begin, _ in marks]
    rows += [op("aten::addmm", begin + 950, 8_000) for begin in (1000, 12_000)]
    a, b = Run("A", (usual,)), Run("B", (build(*rows),))
    assert diff_runs(a, b).words[0] == (
        "B takes 2.67 ms more per step (+266.7 %), from 6 and 6 profiled steps of 1.00 ms to 1.00 ms and 1.00 ms to "
        "9.00 ms, no interval: +2.67 ms is work that B does, and A less often or never."
    )
    assert diff_runs(b, a).words[0].endswith("no interval: -2.67 ms is work that B does, and A less often or never.")


def test_of_few_profiled_steps_a_difference_is_told_where_their_ranges_are_apart() -> None:
    assert lead_of_steps([1000, 1040], [1030, 1070]).endswith("of 1.00 ms to 1.04 ms and 1.03 ms to 1.07 ms.")
    assert lead_of_steps([1000, 1040], [1041, 1070]).startswith("B costs 35.5 us per step")
    assert lead_of_steps([1000], [1010]).startswith("B costs 10.0 us per step")


def test_the_scatter_of_many_profiled_steps_is_that_of_students_t() -> None:
    """Means 36 us apart with a standard error of 14.7 us: t = 2.44; by chance 2.57 is exceeded in 5 %."""
    ours = [1000, 1040, 1010, 1030]
    assert lead_of_steps(ours, [1040, 1085, 1035, 1064]).startswith("No difference beyond the scatter of steps seen")
    assert lead_of_steps(ours, [1040, 1090, 1050, 1072]).startswith("B costs 43.0 us per step")


def test_profiled_steps_lead_with_what_is_known() -> None:
    profiled = replace(comparison_of(459, "inconclusive", ci95_ns=None), unprofiled=False, num_a=3, num_b=4)
    assert verdict_words("off", "on", OK, profiled) == (
        "on costs 459 us per step (+45.9 %), from 3 and 4 profiled steps, no interval.",
    )
    several = verdict_words("off", "on", OK, profiled, num_ranks=4)[0]
    assert "from 3 and 4 profiled steps, each on its slowest rank, no interval." in several
    same = replace(profiled, delta_ns=0)
    assert verdict_words("off", "on", OK, same) == (
        "No difference in time seen between off and on, from 3 and 4 profiled steps.",
    )


def test_without_an_interval_none_is_named() -> None:
    first, _ = verdict_words("off", "on", OK, comparison_of(100, "inconclusive", ci95_ns=None))
    estimate = "estimate +100 us per step (+10.0 %)"
    assert first == f"Not decided: on against off has no interval, {estimate}: inconclusive at the 0.50 % threshold."


def test_an_open_verdict_begins_with_that_and_the_interval() -> None:
    """Not with `costs` or `saves`: the estimate of what is not decided is neither."""
    for delta_us in (100, -100):
        comparison = comparison_of(delta_us, "inconclusive", ci95_ns=(-150_000, 250_000))
        first, *_ = verdict_words("off", "on", OK, comparison)
        assert first == (
            f"Not decided: on against off is -150 us to +250 us per step (95 % CI, estimate {delta_us:+d} us, "
            f"{delta_us / 10:+.1f} %): inconclusive at the 0.50 % threshold."
        )
        assert "costs" not in first
        assert "saves" not in first


def test_what_is_missing_is_said() -> None:
    assert verdict_words("off", "on", OK, None, missing="no pairs") == ("Nothing to compare: no pairs.",)


def test_one_sync_and_more_syncs() -> None:
    one = words_of(-100, cause("dtoh aten::item", -50, -1, kind="sync"))
    assert one[0] == (
        "on removes 1 sync per step (1 dtoh aten::item in fwd): "
        "-50.0 us per step including the idle time it causes, 50.0 % of the traced -100 us."
    )
    two = words_of(-100, cause("dtoh aten::item", -50, -2, kind="sync"))
    assert two[0] == (
        "on removes 2 syncs per step (2 dtoh aten::item in fwd): "
        "-50.0 us per step including the idle time they cause, 50.0 % of the traced -100 us."
    )


def test_syncs_of_one_name_at_several_lines_are_named_once() -> None:
    lines = [cause("htod aten::copy_", -20, -1, kind="sync", phase=phase) for phase in ("fwd", "fwd", "bwd", "fwd")]
    (text,) = words_of(-100, *lines)
    assert text.startswith(
        "on removes 4 syncs per step (3 htod aten::copy_ in fwd, 1 htod aten::copy_ in bwd): -80.0 us"
    )


@pytest.mark.parametrize(
    ("name", "num", "text"),
    [
        ("device aten::matmul", 1, "1 device synchronize in aten::matmul"),
        ("device Torch-Compiled Region: 4/2", 5, "5 device synchronizes in Torch-Compiled Region: 4/2"),
        ("rank 3: stream StreamSynchronize", 2, "rank 3: 2 stream synchronizes"),
        ("alloc aten::cat", 2, "2 allocations in aten::cat"),
        ("alloc Free", 1, "1 Free call"),
    ],
)
def test_synchronizes_and_allocations_have_names_in_words(name: str, num: int, text: str) -> None:
    words = words_of(100, cause(name, 50, num, kind="sync"))
    assert f"({text} in fwd)" in words[0]


def test_the_table_of_causes_names_syncs_in_words_as_well() -> None:
    a, b = (Run(name, (build(step(0, 100), op("aten::mm", 10, 80)),)) for name in ("a", "b"))
    names = "alloc aten::cat", "ranks 1, 2: alloc Free", "device aten::matmul", "dtoh aten::item"
    causes = tuple(cause(name, 30, 2, kind="sync") for name in names)
    table = causes_table(replace(diff_runs(a, b), causes=causes))
    column = [column.key for column in table.columns].index("name")
    assert [row[column] for row in table.rows] == [
        "allocations in aten::cat",
        "ranks 1, 2: Free calls",
        "device synchronizes in aten::matmul",
        "dtoh aten::item",
    ]


def test_syncs_that_came_and_syncs_that_went_are_told_apart() -> None:
    words = words_of(10, cause("device a", 15, 1, kind="sync"), cause("dtoh b", -5, -3, kind="sync"))
    assert [text.partition(" (")[0] for text in words] == ["on removes 3 syncs per step", "on adds 1 sync per step"]


def test_of_a_sync_its_whole_chain_is_told() -> None:
    waits = replace(cause("dtoh aten::item", -50, -2, kind="sync"), chain=Chain(0, -38 * US, -12 * US))
    assert words_of(-100, waits)[0] == (
        "on removes 2 syncs per step (2 dtoh aten::item in fwd): "
        "-50.0 us per step (waits -38.0 us, rest -12.0 us), 50.0 % of the traced -100 us."
    )


def no_change(kind: str, name: str, delta_us: float, sd_us: float = 0) -> Cause:
    return replace(cause(name, delta_us, kind=kind, phase=""), sd_ns=round(sd_us * US))


def test_jitter_is_no_cause_but_named_where_it_is_most_of_the_delta() -> None:
    jitter = no_change("jitter", "run-to-run jitter of 3 kinds of work", 60, 40)
    assert words_of(63, jitter) == (
        "The traced delta, +63.0 us per step, is within run-to-run jitter, which adds +60.0 us ± 80.0 us.",
    )
    assert words_of(81, replace(jitter, delta_ns=80 * US)) == (
        "Most of the traced +81.0 us per step is run-to-run jitter: +80.0 us ± 80.0 us.",
    )
    assert words_of(82, replace(jitter, delta_ns=81 * US)) == (
        (
            "Most of the traced +82.0 us per step is in many changes, each of which is within run-to-run jitter, but "
            "not all together: +81.0 us ± 80.0 us."
        ),
    )
    assert words_of(20, replace(jitter, sd_ns=10 * US)) == ()  # other changes cancel most of it
    rest = "all else +60.0 us (run-to-run jitter of 3 kinds of work)"
    assert words_of(200, cause("aten::mm", 140), jitter) == (
        f"Causes of the traced +200 us per step: +140 us aten::mm in fwd; {rest}.",
    )
    assert words_of(-63, jitter) == ()


def test_small_changes_that_make_up_most_of_the_delta_are_named_without_a_deviation() -> None:
    assert words_of(81, no_change("minor", "57 smaller changes", 80)) == (
        "Most of the traced +81.0 us per step is in 57 smaller changes: +80.0 us in all.",
    )


def test_what_is_not_recorded_is_no_cause_but_named_where_it_is_most_of_the_delta() -> None:
    waits = no_change("residual", "waits of the device whose cause is not recorded", -60)
    assert words_of(-100, waits) == (
        (
            "Most of the traced -100 us per step is no known change: "
            "-60.0 us waits of the device whose cause is not recorded."
        ),
    )
    assert words_of(-200, waits) == ()
    assert len(words_of(-100, cause("aten::mm", -300), cause("aten::bmm", 260), waits)) == 1


def test_the_pace_of_all_work_is_a_cause_without_a_phase() -> None:
    pace = no_change("pace", "pace of all kernels (+3.0 %)", 90)
    assert words_of(100, pace) == ("Causes of the traced +100 us per step: +90.0 us pace of all kernels (+3.0 %).",)


def test_sides_with_little_in_common_are_told_where_not_why() -> None:
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3, matched_pct=37.6)
    assert cause_words("A", "on", traced, (cause("aten::mm", 90),)) == (
        "Differences in the traced +100 us per step: +90.0 us aten::mm in fwd.",
        "Only 38 % of the host's calls are on both sides: the table shows where the time went, not why.",
    )
    assert len(cause_words("A", "on", replace(traced, matched_pct=70.0), (cause("aten::mm", 90),))) == 1
    assert len(cause_words("A", "on", replace(traced, matched_pct=None), (cause("aten::mm", 90),))) == 1


def test_what_the_largest_causes_leave_over_is_named_where_it_is_much() -> None:
    large = cause("aten::mm", -90), cause("aten::bmm", -70), cause("aten::add", -60)
    (text,) = words_of(-106, *large, cause("aten::max", 55), cause("aten::cat", 59))
    assert text.endswith("in fwd; -70.0 us aten::bmm in fwd; -60.0 us aten::add in fwd; all else +114 us.")
    (text,) = words_of(-240, *large, cause("aten::max", -20))
    assert "all else" not in text
    jitter = replace(no_change("jitter", "346 kinds of work, each within jitter", 80), phase="dataload")
    (text,) = words_of(-106, *large, jitter, cause("aten::cat", 34))
    assert text.endswith("all else +114 us (+80.0 us 346 kinds of work, each within jitter, most in dataload).")
    beyond = replace(jitter, name=jitter_name(346, 80 * US, 20 * US), sd_ns=20 * US)
    (text,) = words_of(-106, *large, beyond, cause("aten::cat", 34))
    what = "346 kinds of work, small each, together beyond their jitter of 20.0 us, most in dataload"
    assert text.endswith(f"all else +114 us (+80.0 us {what}).")


def test_occasional_allocations_on_a_rank_are_noise_as_well() -> None:
    assert words_of(100, cause("rank 2: alloc aten::empty", 1, 0.5, kind="sync")) == ()
    assert words_of(100, cause("ranks 1, 2: alloc aten::empty", 50, 0.5, kind="sync"))


def test_parts_larger_than_the_delta_have_no_share_of_it() -> None:
    a, b = (Run(name, (build(step(0, 100), op("aten::mm", 10, 80)),)) for name in ("a", "b"))
    for rest, has_share in ((10, True), (-20, False)):
        result = replace(diff_runs(a, b), causes=(cause("aten::mm", 100), cause("aten::bmm", rest)))
        assert result.traced is not None
        result = replace(result, traced=replace(result.traced, b_ns=result.traced.a_ns + (100 + rest) * US))
        cells = (CellDelta("fwd", "compute", 0, 100 * US), CellDelta("bwd", "compute", -rest * US, 0))
        result = replace(result, cells=cells)
        for table in (causes_table(result), waterfall(result)):
            assert ("share" in [column.heading for column in table.columns]) == has_share


def test_in_the_table_jitter_has_its_deviation_and_no_number() -> None:
    a, b = (Run(name, (build(step(0, 100), op("aten::mm", 10, 80)),)) for name in ("a", "b"))
    jitter = no_change("jitter", "run-to-run jitter of 3 kinds of work", 163, 40)
    causes = (cause("aten::mm", 30, 1), no_change("pace", "pace of all kernels (+3.0 %)", 90), jitter)
    table = causes_table(replace(diff_runs(a, b), causes=causes))
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
    assert [(row["phase"], row["delta_num"], row["delta_ns"]) for row in rows] == [
        ("fwd", 1, 30_000),
        ("", None, 90_000),
        ("", None, "+163 us ± 80.0 us"),
    ]


def test_syncs_that_cost_less_although_they_are_more_are_told_together() -> None:
    (sentence,) = words_of(-20, cause("device a", -4, 2, kind="sync"), cause("dtoh b", -15, -3, kind="sync"))
    what = "on removes 3 syncs per step (3 dtoh b in fwd) and adds 2 syncs per step (2 device synchronizes in a in fwd)"
    assert sentence == f"{what}: -19.0 us per step including the idle time they cause, 95.0 % of the traced -20.0 us."


def test_between_sides_that_are_not_alike_only_large_changes_are_told() -> None:
    causes = (cause("aten::mm", 90, line="a.py:1 a"), cause("Memset", 1, -5, line="b.py:1 b"))
    traced = Traced(0, 1000 * US, 1091 * US, 3, 3)
    assert cause_words("A", "on", traced, causes)[1].startswith("on removes at b.py:1 b in fwd: 5 Memset")
    assert cause_words("A", "on", traced, causes, same_work=False) == (
        "Causes of the traced +91.0 us per step: +90.0 us aten::mm at a.py:1 a in fwd.",
    )


def test_a_sync_that_cost_no_time_says_so() -> None:
    words = words_of(-100, cause("dtoh aten::item", 0, -1, kind="sync"))
    assert words == ("on removes 1 sync per step (1 dtoh aten::item in fwd): no time difference per step.",)


def test_a_line_comes_with_its_ops_its_sync_first() -> None:
    line = "check.py:41 check"
    words = words_of(
        100,
        cause("aten::any", 10, 1, line=line),
        cause("dtoh aten::item", 80, 1, kind="sync", line=line),
        cause("aten::abs", 5, 2, line="check.py:40 check"),
    )
    assert words[0] == (
        "on adds at check.py:40-41 check in fwd: 1 dtoh aten::item (sync) in line 41, 1 aten::any, 2 aten::abs: "
        "+95.0 us per step, 95.0 % of the traced +100 us."
    )


def test_several_syncs_of_a_function_are_told_no_line_of_one() -> None:
    syncs = cause("dtoh aten::item", 80, 2, kind="sync", line="check.py:41 check")
    words = words_of(100, syncs, cause("aten::abs", 5, 2, line="check.py:40 check"))
    assert words[0].startswith("on adds at check.py:40-41 check in fwd: 2 dtoh aten::item (syncs), 2 aten::abs: ")


def test_what_reads_a_value_on_a_cpu_is_a_sync_on_a_gpu() -> None:
    line = "check.py:41 check"
    one = words_of(100, cause("aten::item", 80, 1, kind="sync", line=line))
    assert "1 aten::item (a sync on a GPU): " in one[0]
    several = words_of(100, cause("aten::item", 80, 2, kind="sync", line=line))
    assert "2 aten::item (syncs on a GPU): " in several[0]


def test_what_reads_a_value_on_a_cpu_causes_no_idle_time() -> None:
    """Without lines it is the same: a read, which takes time and waits for nothing."""
    (one,) = words_of(100, cause("aten::item", 80, 1, kind="sync"))
    assert one.startswith("on adds 1 read of a value per step, a sync on a GPU (1 aten::item in fwd): +80.0 us per ")
    (two,) = words_of(100, cause("aten::item", 80, 2, kind="sync"))
    assert two.startswith("on adds 2 reads of a value per step, each a sync on a GPU (2 aten::item in fwd): +80.0 us")


def test_a_synchronize_is_not_named_as_the_op_around_it() -> None:
    words = words_of(
        100,
        cause("device aten::matmul", 80, 1, kind="sync", line="check.py:41 check"),
        cause("aten::any", 10, 1, line="check.py:41 check"),
    )
    assert words[0].startswith(
        "on adds at check.py:41 check in fwd: 1 device synchronize in aten::matmul, 1 aten::any:"
    )


def test_a_line_that_adds_and_removes_says_which() -> None:
    line = "check.py:41 check"
    words = words_of(
        -40, cause("aten::where", 10, 1, line=line), cause("aten::nonzero", -50, -3, line=line, phase="bwd")
    )
    assert words[0] == (
        "on removes at check.py:41 check in fwd and bwd: 3 aten::nonzero; adds 1 aten::where: "
        "-40.0 us per step, 100.0 % of the traced -40.0 us."
    )


def test_a_second_line_is_told_only_if_it_matters() -> None:
    first = cause("aten::a", 90, 1, line="a.py:1 a")
    assert len(words_of(100, first, cause("aten::b", 1, 1, line="b.py:1 b"))) == 1
    assert len(words_of(100, first, cause("aten::b", 9, 1, line="b.py:1 b"))) == 2
    assert len(words_of(100, first, cause("scalar aten::b", 1, 1, kind="sync", line="b.py:1 b"))) == 2


def test_many_ops_are_counted_not_listed() -> None:
    words = words_of(100, *(cause(f"aten::op{index}", 10, 1, line="a.py:1 a") for index in range(9)))
    assert "1 aten::op5 and 3 more: +90.0 us per step" in words[0]


def test_without_a_line_or_a_sync_the_largest_causes_are_named() -> None:
    words = words_of(100, cause("aten::mm", 70), cause("all_reduce", 26, 1, kind="collective"), cause("aten::add", 4))
    causes = "+70.0 us aten::mm in fwd; +26.0 us all_reduce in fwd (1 more per step, with waits for other ranks)"
    assert words == (f"Causes of the traced +100 us per step: {causes}.",)


def test_of_a_device_host_time_is_told_from_its_work_and_in_accounts_is_time_in_which_it_is_idle() -> None:
    sides = cause("aten::mm", 70), cause("gemm", 50, kind="kernel"), cause("Python in train", 40)
    assert words_of(160, *sides)[0].endswith(
        ": +70.0 us host time of aten::mm in fwd; +50.0 us gemm in fwd; +40.0 us Python in train in fwd."
    )
    accounts = Traced(0, 1000 * US, 1160 * US, 3, 3, matched_pct=37.6)
    assert cause_words("A", "on", accounts, sides)[0].endswith(
        ": +70.0 us idle device during aten::mm in fwd; +50.0 us gemm in fwd; "
        "+40.0 us idle device during Python in train in fwd."
    )


def test_what_cancels_is_still_told() -> None:
    words = words_of(0, cause("dtoh aten::item", 30, 1, kind="sync"), cause("aten::mm", -30))
    assert words == (
        "on adds 1 sync per step (1 dtoh aten::item in fwd): +30.0 us per step including the idle time it causes.",
        "Other causes: -30.0 us aten::mm in fwd.",
    )


def test_nothing_is_said_of_nothing() -> None:
    assert words_of(0) == ()


def test_an_allocation_now_and_then_is_not_told() -> None:
    assert words_of(100, cause("alloc aten::empty", 1, 1, kind="sync"), cause("aten::mm", 99)) == (
        "Causes of the traced +100 us per step: +99.0 us aten::mm in fwd.",
    )


def test_a_cause_in_words() -> None:
    assert (
        cause_text(cause("aten::mm", 5, -0.5, line="a.py:1 a")) == "aten::mm at a.py:1 a in fwd (0.50 fewer per step)"
    )
    assert cause_text(cause("aten::mm", 5)) == "aten::mm in fwd"
    assert cause_text(cause("x" * 99, 5)) == "x" * 59 + "… in fwd"


def test_of_kernels_that_replaced_others_both_names_are_told() -> None:
    long = "aten::mm > at::native::" + "x" * 99
    assert cause_text(cause(f"{long} replaced by {long}", 5)) == (
        f"aten::mm > {'x' * 33}… replaced by aten::mm > {'x' * 33}… in fwd"
    )


def test_what_tells_two_names_apart_is_not_cut() -> None:
    """Tiles of ROCm's products, and how many kernels replace how many."""
    tiles = [
        "aten::bmm > " + "Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_" + mt + "_MI16x16x1_SN"
        for mt in ("MT16x448x64", "MT64x224x64")
    ]
    assert [cause_text(cause(f"aten::bmm > k replaced by {name.partition(' > ')[2]}", 5)) for name in tiles] == [
        "aten::bmm > k replaced by Cijk_Ailk_Bljk…MT16x448x64 in fwd",
        "aten::bmm > k replaced by Cijk_Ailk_Bljk…MT64x224x64 in fwd",
    ]
    many = cause_text(cause(f"aten::addmm > {'y' * 99} (and 5 more) replaced by z", 5))
    assert many == f"aten::addmm > {'y' * 17}… (and 5 more) replaced by z in fwd"


def arm(name: str, *, num_reads: int, num_adds: int) -> Run:
    rows = [step(0, 1000), annotation("fwd", 0, 900), annotation("opt", 900, 100), launch(1, 2, 1)]
    rows += [kernel("gemm", 5, 10, 1), *(op("aten::add", 20 + 2 * index, 1) for index in range(num_adds))]
    for index in range(num_reads):
        start = 200 + 100 * index
        rows += [op("aten::_local_scalar_dense", start, 20), call("cudaMemcpyAsync", start + 1, 2, 2 + index)]
        rows += [
            memcpy("DtoH (Device -> Pinned)", start + 4, 1, 2 + index),
            call("cudaStreamSynchronize", start + 3, 9),
        ]
    return Run(name, (build(*rows),), arm=name)


def added_text(off: Run, absent: Run, phase: str) -> str:
    return added_ops_text(ranks_in_memory(off), ranks_in_memory(absent), phase)


@pytest.mark.parametrize(
    ("num_reads", "phase", "syncs"),
    [
        (0, "fwd", "no device-to-host copy in fwd"),
        (0, "", "no device-to-host copy"),
        (1, "fwd", "1 device-to-host copy in fwd, as many as without it"),
        (2, "", "2 device-to-host copies, as many as without it"),
        (2, "opt", "no device-to-host copy in opt"),
    ],
)
def test_an_arm_adds_nothing_if_its_step_does_not_one_thing_more(num_reads: int, phase: str, syncs: str) -> None:
    off, absent = (arm(name, num_reads=num_reads, num_adds=3) for name in ("off", "absent"))
    text = added_text(off, absent, phase)
    num_ops = 4 + 2 * num_reads  # adds and a kernel; of a read its op and its copy
    assert text == f"off adds no op to absent: the same {num_ops} ops per step, {syncs}."


def test_ops_that_an_arm_adds_are_listed() -> None:
    off, absent = arm("off", num_reads=0, num_adds=5), arm("absent", num_reads=0, num_adds=3)
    assert added_text(off, absent, "fwd") == "off adds ops to absent, per step: 2 aten::add."


def test_work_that_runs_after_the_last_step_counts_where_it_was_launched() -> None:
    def run(name: str, start: int) -> Run:
        return Run(name, (build(step(0, 100), launch(1, 2, 1), kernel("gemm", start, 10, 1)),), arm=name)

    for off, absent in ((200, 5), (5, 200)):
        assert added_text(run("off", off), run("absent", absent), "").startswith("off adds no op")


def test_ranks_that_have_no_counterpart_prove_nothing() -> None:
    off, absent = arm("off", num_reads=1, num_adds=3), arm("absent", num_reads=0, num_adds=3)
    other = replace(absent, traces=(replace(absent.traces[0], rank=1),))
    assert added_text(off, other, "fwd") == ""


def test_traces_without_steps_are_compared_as_wholes() -> None:
    def item(start: float, corr: int) -> list[Event]:
        sync = (call("cudaMemcpyAsync", start + 5, 5, corr), call("cudaStreamSynchronize", start + 10, 20))
        return [op("aten::item", start, 30), *sync, memcpy("DtoH (Device -> Pinned)", start + 20, 5, corr)]

    work = [op("aten::mm", 0, 10), launch(2, 2, 1), kernel("gemm", 5, 20, 1), *item(50, 2)]
    a, b = (Run(name, (build(*events),)) for name, events in (("a", work), ("b", [*work, *item(100, 3)])))
    result = diff_runs(a, b)
    assert result.words[0] == "b costs 50.0 us in the trace (+62.5 %), from one trace each, no interval."
    assert result.words[1].startswith(
        "b adds 1 sync in the trace (1 dtoh aten::item in forward): +30.0 us in the trace (copy +5.00 us, waits +2"
    )
    assert not any("step" in line for line in result.words[2:])
    assert waterfall(result).title == "Delta by phase and category (whole traces of rank 0; profiled)"
    assert "more" in [column.title for column in causes_table(result).columns]


def test_of_sides_with_little_in_common_syncs_cost_what_their_own_side_saves_without_them() -> None:
    replays = SideReplay(2, 70 * US, 70 * US, 30 * US, 45 * US), SideReplay(0, 0, 0, 90 * US, 91 * US)
    traced = Traced(0, 1000 * US, 950 * US, 3, 3, matched_pct=37.6, replays=replays)
    words = cause_words("A", "on", traced, (cause("dtoh aten::item", -20, -2, kind="sync"),))
    assert words[:-1] == (
        (
            "on removes 2 syncs per step (2 dtoh aten::item in fwd): without them A would be 70.0 us faster per step "
            "by replay; all differences together make the traced -50.0 us."
        ),
        ("With a host that takes no time, on would be 90.0 us faster per step by replay, A 30.0 us to 45.0 us."),
    )
    free = replace(traced, replays=(SideReplay(2, 0, 0, 0, 0), SideReplay(0, 0, 0, 0, 0)))
    (text,) = cause_words("A", "on", free, (cause("dtoh aten::item", -20, -2, kind="sync"),))[:1]
    assert text.partition(": ")[2] == (
        "without them A would take as long by replay; all differences together make the traced -50.0 us."
    )
    others = cause_words("A", "on", traced, (cause("dtoh aten::item", -20, -1, kind="sync"),))
    assert others[0].endswith("-20.0 us per step including the idle time it causes, 40.0 % of the traced -50.0 us.")


def test_python_that_is_most_of_a_confirmed_delta_is_named_by_its_line() -> None:
    steps = comparison_of(60, "material", unprofiled=True)
    python = cause("Python between ops", 40, line="train.py:11 check", phase="other")
    rest = cause("aten::mm", 90)  # of traced steps, which are no evidence by themselves
    sentence = "on spends more time in Python at train.py:11 check in other than off."
    assert python_words("off", "on", (python, rest), steps) == (sentence,)
    saved = comparison_of(-60, "material", unprofiled=True)
    assert python_words("off", "on", (replace(python, delta_ns=-80 * US), rest), saved) == (
        sentence.replace("more", "less"),
    )


def test_python_is_not_named_without_confirmation_or_a_line_or_if_it_is_not_most() -> None:
    steps = comparison_of(60, "material", unprofiled=True)
    python = cause("Python between ops", 80, line="train.py:11 check")
    for causes, compared in (
        ([python], None),
        ([python], comparison_of(60, "inconclusive", unprofiled=True)),
        ([python], comparison_of(-60, "material", unprofiled=True)),
        ([replace(python, line="")], steps),
        ([replace(python, delta_ns=20 * US)], steps),
        ([replace(python, name="aten::mm")], steps),
    ):
        assert python_words("off", "on", causes, compared) == ()


@pytest.mark.parametrize("op", ["", "aten::mm > "])
@pytest.mark.parametrize("more", ["", " (and 2 more)"])
def test_a_replacement_shows_in_what_its_kernels_differ(op: str, more: str) -> None:
    old, new = (f"cutlass3x_sm90_tensorop_s64x128x32gemm_{of}_f32_bf16_bf16_128x128x128" for of in ("e4m3", "e5m2"))
    shown = short_name(f"{op}{old}{more} replaced by {new}{more}", 45)
    assert shown.startswith(f"{op}cutla")
    of_old, of_new = shown.split(" replaced by ")
    for shown_kernel, number_format in ((of_old, "e4m3"), (of_new, "e5m2")):
        assert number_format in shown_kernel
        assert shown_kernel.endswith(more)
        assert len(shown_kernel) <= 45
    same = f"{op}ampere_sgemm_128x64_tn replaced by sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n"
    assert short_name(same, 45) == same


def test_names_that_differ_in_how_many_more_there_are_are_cut_at_their_end() -> None:
    kernel = "cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16"
    shown = short_name(f"{kernel} (and 2 more) replaced by {kernel} (and 3 more)", 45)
    assert shown == " replaced by ".join(f"cutlass3x_sm90_tensorop_s64x128… (and {num} more)" for num in (2, 3))
