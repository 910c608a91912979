"""The verdict and the causes as statements: true, whole, and with their measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builder import Event, annotation, build, call, kernel, launch, memcpy, op, step
from statements import codes, of_code, only

from traceq.claims.claim import Measure
from traceq.compare.cause_names import jitter_name, short_name
from traceq.compare.cause_statements import cause_statements, what_of
from traceq.compare.diff import diff_runs
from traceq.compare.result import REPLACED_BY, Cause, CellDelta, Chain, Diff, Traced
from traceq.compare.sentences import CAVEATS, SENTENCES
from traceq.compare.side import Side
from traceq.compare.statement import Statement, state
from traceq.compare.tables import causes_table, waterfall
from traceq.compare.verdict import answer, cpu_time
from traceq.compare.where_statements import most_in_phase, python_line, shown_elsewhere
from traceq.compare.work_statements import added_ops
from traceq.facts.ranks.job import ranks_in_memory
from traceq.model import Run, Trace
from traceq.stats import Comparison, Verdict

US = 1_000
MOST_WORDS = 20
TILES = ("MT16x448x64", "MT64x224x64")


def cause(
    name: str, delta_us: float, num: float = 0, *, kind: str = "host", line: str = "", phase: str = "fwd"
) -> Cause:
    delta_ns = round(delta_us * US)
    key = f"{kind}|{phase}|{name}|{line}"
    return Cause(key, kind, phase, name, line, num, delta_ns, delta_ns if num else 0, 0 if num else delta_ns, None)


def said_of(delta_us: float, *causes: Cause, same_work: bool = True) -> tuple[Statement, ...]:
    traced = Traced(0, 1000 * US, round((1000 + delta_us) * US), 3, 3)
    return cause_statements(traced, causes, same_work=same_work)


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


def compared(comparison: Comparison | None) -> Diff:
    """A diff of `off` and `on`, which have no trace, with this comparison."""
    off, on = (Run(name, (build(step(0, 100)),)) for name in ("off", "on"))
    return replace(diff_runs(off, on), traced=None, causes=(), comparison=comparison, steps=comparison)


def state_of(comparison: Comparison | None) -> Statement:
    side = Side.of(Run("off", ()))
    return answer(side, side, compared(comparison), is_other_job=False)


def given(statement: Statement, *names: str) -> list[Measure | None]:
    return [statement.measures.get(name) for name in names]


@pytest.mark.parametrize("code", sorted(SENTENCES))
def test_a_sentence_is_whole_and_has_at_most_twenty_words(code: str) -> None:
    for text in (*SENTENCES[code].leads, *SENTENCES[code].evidence):
        assert len(text.split()) <= MOST_WORDS
        assert text[0] in "{+" or text[0].isupper() or text.startswith("record_shapes")
        assert text.endswith(".")


@pytest.mark.parametrize("code", sorted(CAVEATS))
def test_a_doubt_has_at_most_twenty_words(code: str) -> None:
    assert max(len(text.split()) for text in CAVEATS[code]) <= MOST_WORDS


def test_a_clause_is_said_only_if_all_of_its_measures_are_known() -> None:
    of_rank = state("waits_and_transfers", rank=2, wait_delta_ns=80, transfer_delta_ns=-10)
    unknown = state("waits_and_transfers", wait_delta_ns=80, transfer_delta_ns=-10)
    assert ("rank 2" in of_rank.lead, "rank" in unknown.lead) == (True, False)
    cost = state("syncs", b="on", added="1 x", added_syncs_mean=1, per="per step", delta_ns=80)
    assert len(cost.evidence) == 1  # of no traced delta it has no share
    assert [
        word in state("only_rank", rank=1, delta_ns=ns, per="").lead for ns, word in ((5, "slower"), (-5, "faster"))
    ]


def test_cpu_time_of_several_ranks_is_that_of_the_rank_with_most_and_of_each() -> None:
    alone, several = (comparison_of(5, "detectable", rank_delta_ns=ranks) for ranks in ((5000,), (5000, -2000)))
    assert given(cpu_time(alone), "delta_ns", "num_ranks", "rank_deltas") == [5000, None, None]
    assert given(cpu_time(several), "num_ranks", "rank_deltas") == [2, "rank 0 +5.00 us, rank 1 -2.00 us"]


@pytest.mark.parametrize(
    ("delta_us", "name"), [(100, "material"), (-100, "material"), (3, "detectable"), (0, "in_the_noise")]
)
def test_a_verdict_is_a_state_with_its_measures(delta_us: float, name: str) -> None:
    result = state_of(comparison_of(delta_us, name))
    assert result.code == name
    ends = [round((delta_us + us) * US) for us in (0, -1, 1)]
    assert given(result, "delta_ns", "least_ci_delta_ns", "most_ci_delta_ns") == ends
    assert given(result, "threshold_pct", "num_questions") == [0.5, None]


def test_a_verdict_says_of_how_many_questions_it_is_one() -> None:
    one_of_five = replace(comparison_of(100, "material"), num_questions=5)
    assert state_of(one_of_five).measures["num_questions"] == 5


def test_traced_times_that_the_unprofiled_ones_deny_are_not_told_as_causes() -> None:
    causes = (cause("aten::item", 5, 1, line="a.py:1 f"), cause("aten::mm", 900))
    doubt = state("not_seen", delta_ns=905)
    line, last = cause_statements(Traced(0, 1000 * US, 1905 * US, 3, 3), causes, doubt=doubt)
    assert (line.code, *given(line, "added", "delta_ns")) == ("line_changes", "1 aten::item", None)
    assert last is doubt


def test_the_largest_cause_comes_first() -> None:
    small = cause("dtoh b", 5, 1, kind="sync")
    assert codes(said_of(100, cause("aten::mm", 90), small)) == ["cause", "syncs"]
    first, second = said_of(100, cause("aten::mm", 10), cause("dtoh b", 85, 1, kind="sync"))
    assert (first.code, first.measures["delta_ns"]) == ("syncs", 85_000)
    assert (second.code, second.measures["delta_ns"]) == ("cause", 10_000)


def test_the_phase_with_most_of_a_difference_is_named() -> None:
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3)
    cells = (CellDelta("fwd", "compute", 100, 100 + 12 * US), CellDelta("bwd", "compute", 0, 88 * US))
    (most,) = most_in_phase(traced, cells)
    assert given(most, "phase", "share_pct") == ["bwd", 88]
    assert not [*most_in_phase(traced, cells[1:])]
    (early,) = most_in_phase(traced, (cells[0], replace(cells[1], phase="before_window")))
    assert early.measures["phase"] != "before_window"
    assert not [*most_in_phase(traced, (*cells, CellDelta("bwd", "tail", 0, 30 * US)))]


def elsewhere(traced: Traced, cells: Sequence[CellDelta], causes: Sequence[Cause]) -> list[Statement]:
    """What is stated where ops and allocations take as long on both sides."""
    trace = build(step(0, 1000))
    return [*shown_elsewhere(trace, trace, traced, cells, causes)]


def test_host_bound_time_of_ops_that_take_as_long_as_before_is_not_their_own() -> None:
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("bwd", "host_bound", 0, 80 * US), CellDelta("fwd", "sync_wait", 0, 20 * US))
    sync = cause("dtoh aten::item", 95, 1, kind="sync", line="train.py:7 step")
    (shown,) = elsewhere(traced, cells, (sync, cause("aten::mm", 5, phase="bwd")))
    assert (shown.code, *given(shown, "delta_ns", "phase", "cause")) == ("starts_elsewhere", 80_000, "bwd", sync.key)
    assert not elsewhere(traced, cells, (sync, cause("aten::mm", 70, phase="bwd")))  # its own
    pace = no_change("pace", "pace of all host ops", 30)
    assert not elsewhere(traced, cells, (sync, pace))  # they take longer, each a little
    assert not elsewhere(traced, cells[1:], (sync,))
    back = Traced(0, 1100 * US, 1000 * US, 3, 3, matched_pct=99.0)
    removed = (CellDelta("bwd", "host_bound", 80 * US, 0),)
    (shown,) = elsewhere(back, removed, (cause("dtoh aten::item", -95, -1, kind="sync"),))
    assert (shown.measures["delta_ns"], "earlier" in str(shown)) == (-80_000, True)


def test_kernels_that_fill_the_time_in_which_the_device_waited_are_why_it_waits_less() -> None:
    traced = Traced(0, 1000 * US, 990 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("fwd", "host_bound", 90 * US, 10 * US), CellDelta("fwd", "compute", 10 * US, 80 * US))
    sync = cause("dtoh aten::item", -5, -1, kind="sync")
    (more,) = elsewhere(traced, cells, (sync,))
    assert (more.code, *given(more, "delta_ns", "kernels_delta_ns")) == ("traded_with_kernels", -80_000, 70_000)
    back = Traced(0, 990 * US, 1000 * US, 3, 3, matched_pct=99.0)
    turned = tuple(CellDelta(cell.phase, cell.category, cell.b_ns, cell.a_ns) for cell in cells)
    (less,) = elsewhere(back, turned, ())
    assert (less.code, *given(less, "delta_ns", "kernels_delta_ns")) == ("traded_with_kernels", 80_000, -70_000)
    of_another = (cells[0], replace(cells[1], phase="bwd"))
    assert "traded_with_kernels" not in codes(elsewhere(traced, of_another, (sync,)))


def test_a_pace_is_no_change_that_acts_elsewhere() -> None:
    traced = Traced(0, 1000 * US, 990 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("fwd", "host_bound", 90 * US, 10 * US), CellDelta("fwd", "sync_wait", 0, 70 * US))
    assert not elsewhere(traced, cells, (no_change("pace", "pace of all host ops", -4),))


@pytest.mark.parametrize("category", ["host_bound", "alloc_wait"])
def test_ops_and_allocations_that_take_longer_are_not_said_to_take_as_long(category: str) -> None:
    """Where each call takes a little longer, no cause may hold it: the calls themselves are asked."""
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3, matched_pct=99.0)
    cells, sync = (CellDelta("forward", category, 0, 80 * US),), cause("dtoh aten::item", 95, 1, kind="sync")

    def called(dur: float) -> Trace:
        in_op = [call("cudaMalloc", 110, dur - 20)] if category == "alloc_wait" else []
        work = launch(10, 5, 1), kernel("gemm", 20, 5, 1)
        return build(step(0, 1000), *work, op("aten::mm", 100, dur), *in_op)

    assert [*shown_elsewhere(called(300), called(300), traced, cells, (sync,))]
    assert not [*shown_elsewhere(called(300), called(380), traced, cells, (sync,))]


def test_allocator_waits_that_a_sync_uncovers_are_not_the_allocator_s() -> None:
    traced = Traced(0, 1000 * US, 1100 * US, 3, 3, matched_pct=99.0)
    cells = (CellDelta("fwd", "alloc_wait", 50 * US, 140 * US), CellDelta("fwd", "host_bound", 0, 10 * US))
    sync = cause("dtoh aten::item", 95, 2, kind="sync", line="train.py:7 step")
    (shown,) = elsewhere(traced, cells, (sync,))
    assert given(shown, "delta_ns", "category", "cause") == [90_000, "alloc wait", sync.key]
    calls = cause("alloc cudaMalloc", 60, kind="sync")
    assert not elsewhere(traced, cells, (sync, calls))


def test_a_sync_in_one_of_several_steps_is_not_one_that_a_side_adds() -> None:
    """As a loss that is read in every tenth step: it is in a window of three by chance."""
    item = cause("dtoh aten::item", 30, 1 / 3, kind="sync", line="train.py:7 step")
    stated = said_of(100, item, cause("aten::mm", 70))
    assert [each["delta_ns"] for each in of_code("cause", stated)] == [70_000, 30_000]
    assert "line_changes" not in codes(stated)
    in_all = said_of(100, replace(item, delta_num=1.0), cause("aten::mm", 70))
    assert only("line_changes", in_all)["added_mean"] == 1


def of_steps(*lengths: int, name: str = "aten::mm") -> Run:
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    marks = [step(begin, dur, number) for number, (begin, dur) in enumerate(zip(begins, lengths, strict=True))]
    return Run("arm", (build(*marks, *(op(name, begin + 10, 900) for begin in begins)),))


def state_of_steps(ours: Sequence[int], theirs: Sequence[int]) -> Statement:
    return diff_runs(of_steps(*ours), of_steps(*theirs, name="aten::bmm")).answer


def test_profiled_steps_that_differ_as_much_by_themselves_neither_cost_nor_save() -> None:
    usual = [1000, 1040, 1010, 1000]
    diff = diff_runs(of_steps(*usual), of_steps(1030, 1010, 1050, 1000, name="aten::bmm"))
    assert (diff.answer.code, *given(diff.answer, "delta_ns", "num_a")) == ("within_scatter", 10_000, 4)
    ranges = only("ranges", diff)
    assert [ranges[f"{end}_step_{side}_ns"] for side in "ab" for end in ("least", "most")] == [
        1000_000,
        1040_000,
        1000_000,
        1050_000,
    ]
    apart = state_of_steps(usual, [1330, 1310, 1350, 1300])
    assert (apart.code, apart.measures["delta_ns"]) == ("observed", 310_000)


def test_what_few_steps_do_on_one_side_alone_is_told_however_these_scatter() -> None:
    """An evaluation in two of six steps: a difference of the means that the scatter of steps hides."""
    (usual,) = of_steps(*[1000] * 6).traces
    marks = [(0, 1000), (1000, 9000), (10_000, 1000), (11_000, 1000), (12_000, 9000), (21_000, 1000)]
    rows = [step(begin, dur, number) for number, (begin, dur) in enumerate(marks)]
    rows += [op("aten::mm", begin + 10, 900) for begin, _ in marks]
    rows += [op("aten::addmm", begin + 950, 8_000) for begin in (1000, 12_000)]
    a, b = Run("A", (usual,)), Run("B", (build(*rows),))
    for sides, sign in (((a, b), 1), ((b, a), -1)):
        result = diff_runs(*sides)
        assert result.answer.code == "work_of_one_side"
        assert given(result.answer, "doing_side", "lacking_side") == (["b", "a"] if sign > 0 else ["a", "b"])
        assert result.answer.measures["alone_delta_ns"] == pytest.approx(sign * 2_667_000, rel=0.01)
        assert len(of_code("ranges", result)) == 1


def test_what_one_step_does_is_within_the_scatter_of_steps() -> None:
    """The other side may do it in a step that does not count."""
    (usual,) = of_steps(*[1000] * 6).traces
    marks = [(1000 * number, 1000) for number in range(5)] + [(5000, 9000)]
    rows = [step(begin, dur, number) for number, (begin, dur) in enumerate(marks)]
    rows += [op("aten::mm", begin + 10, 900) for begin, _ in marks]
    flush = [op("aten::addmm", 5_950 + 800 * number, 700) for number in range(10)]
    assert diff_runs(Run("A", (usual,)), Run("B", (build(*rows, *flush),))).answer.code == "within_scatter"


def test_of_few_profiled_steps_a_difference_is_told_where_their_ranges_are_apart() -> None:
    assert state_of_steps([1000, 1040], [1030, 1070]).code == "within_scatter"
    assert state_of_steps([1000, 1040], [1041, 1070]).measures["delta_ns"] == 35_500
    assert state_of_steps([1000, 1040], [1041, 1070]).code == state_of_steps([1000], [1010]).code == "observed"


def test_the_scatter_of_many_profiled_steps_is_that_of_students_t() -> None:
    """Means 36 us apart with a standard error of 14.7 us: t = 2.44; by chance 2.57 is exceeded in 5 %."""
    ours = [1000, 1040, 1010, 1030]
    assert state_of_steps(ours, [1040, 1085, 1035, 1064]).code == "within_scatter"
    assert state_of_steps(ours, [1040, 1090, 1050, 1072]).code == "observed"


def test_profiled_steps_without_an_interval_are_observed_or_as_long() -> None:
    profiled = replace(comparison_of(459, "inconclusive", ci95_ns=None), unprofiled=False, num_a=3, num_b=4)
    observed = state_of(profiled)
    assert (observed.code, *given(observed, "delta_ns", "num_a", "num_b")) == ("observed", 459_000, 3, 4)
    assert observed.measures["delta_pct"] == pytest.approx(45.9)
    assert state_of(replace(profiled, delta_ns=0)).code == "same_time"


def test_an_open_verdict_is_neither_a_cost_nor_a_saving() -> None:
    for delta_us, ends in ((100, (-150_000, 250_000)), (-100, (-150_000, 250_000)), (100, None)):
        result = state_of(comparison_of(delta_us, "inconclusive", ci95_ns=ends))
        assert result.code == "inconclusive"
        assert given(result, "least_ci_delta_ns", "most_ci_delta_ns") == [*(ends or (None, None))]
        assert not {"costs", "saves"} & set(result.lead.split())


def test_what_is_missing_is_said() -> None:
    missing = state_of(None)
    assert (missing.code, missing.measures["untraced"]) == ("nothing_to_compare", "off or on")


def test_syncs_have_their_number_and_their_part_of_the_delta() -> None:
    for num in (1, 2):
        (stated,) = of_code("syncs", said_of(-100, cause("dtoh aten::item", -50, -num, kind="sync")))
        assert (stated["removed_syncs_mean"], stated["delta_ns"], stated["share_pct"]) == (num, -50_000, 50)


def test_syncs_of_one_name_at_several_lines_are_named_once() -> None:
    lines = [cause("htod aten::copy_", -20, -1, kind="sync", phase=phase) for phase in ("fwd", "fwd", "bwd", "fwd")]
    stated = only("syncs", said_of(-100, *lines))
    assert (stated["removed_syncs_mean"], stated["delta_ns"]) == (4, -80_000)
    assert str(stated["removed"]).split(", ") == ["3 htod aten::copy_ in fwd", "1 htod aten::copy_ in bwd"]


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
    stated = only("syncs", said_of(100, cause(name, 50, num, kind="sync")))
    assert stated["added"] == f"{text} in fwd"


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
    stated = said_of(10, cause("device a", 15, 1, kind="sync"), cause("dtoh b", -5, -3, kind="sync"))
    assert [given(each, "removed_syncs_mean", "added_syncs_mean") for each in stated] == [[3, None], [None, 1]]


def test_of_a_sync_its_whole_chain_is_told() -> None:
    waits = replace(cause("dtoh aten::item", -50, -2, kind="sync"), chain=Chain(0, -38 * US, -12 * US))
    stated = only("syncs", said_of(-100, waits))
    assert [stated[f"{part}_delta_ns"] for part in ("copied", "waited", "rest")] == [0, -38_000, -12_000]


def no_change(kind: str, name: str, delta_us: float, sd_us: float = 0) -> Cause:
    return replace(cause(name, delta_us, kind=kind, phase=""), sd_ns=round(sd_us * US))


def test_jitter_is_no_cause_but_named_where_it_is_most_of_the_delta() -> None:
    jitter = no_change("jitter", "jitter of 3 kinds", 60, 40)
    (within,) = said_of(63, jitter)
    assert (within.code, *given(within, "delta_ns", "error_ns")) == ("delta_within_jitter", 60_000, 80_000)
    assert codes(said_of(81, replace(jitter, delta_ns=80 * US))) == ["mostly_jitter"]
    assert codes(said_of(82, replace(jitter, delta_ns=81 * US))) == ["many_small_changes"]
    assert not said_of(20, replace(jitter, sd_ns=10 * US))  # other changes cancel most of it
    first, rest = said_of(200, cause("aten::mm", 140), jitter)
    assert (first.measures["delta_ns"], rest.measures["delta_ns"]) == (140_000, 60_000)
    assert jitter.name in str(rest.measures["parts"])
    assert not said_of(-63, jitter)


@pytest.mark.parametrize(("kind", "code"), [("minor", "minor_changes"), ("residual", "no_known_change")])
def test_what_names_no_change_is_named_where_it_is_most_of_the_delta(kind: str, code: str) -> None:
    rest = no_change(kind, "57 smaller", -60)
    (most,) = said_of(-100, rest)
    assert (most.code, *given(most, "delta_ns")) == (code, -60_000)
    assert not said_of(-200, rest)
    assert code not in codes(said_of(-100, cause("aten::mm", -300), cause("aten::bmm", 260), rest))


def test_one_kind_that_is_most_of_a_delta_is_named_before_work_of_no_time() -> None:
    """Also where its scatter is known from one step alone, and it is therefore no cause."""
    jitter = no_change("jitter", jitter_name(98, 95 * US, 30 * US, "data loader"), 95)
    other = replace(cause(f"aten::mm > old{REPLACED_BY}new", 0), kind="kernel")
    first, second = said_of(100, other, replace(jitter, sd_ns=30 * US))
    assert (first.code, first.measures["what"], second.code) == ("minor_changes", jitter.name, "replaced")
    (rest,) = of_code("all_else", said_of(100, cause("aten::mm", 20), jitter))
    assert jitter.name in str(rest["parts"])
    assert "minor_changes" not in codes(said_of(100, cause("aten::mm", 20), jitter))


def test_no_number_is_told_of_a_replacement_of_which_more_kernels_may_be_rows_of_their_own() -> None:
    more = replace(cause("aten::mm > new", 95), kind="kernel", delta_num=16)
    (plain,) = of_code("cause", said_of(100, more))
    (replaced,) = of_code("cause", said_of(100, replace(more, name=f"aten::mm > old{REPLACED_BY}new")))
    assert (plain["more_mean"], "more_mean" in replaced) == (16, False)


def test_the_pace_of_all_work_is_a_cause_without_a_phase() -> None:
    pace = no_change("pace", "pace of all kernels", 90)
    (stated,) = of_code("cause", said_of(100, pace))
    assert (stated["delta_ns"], stated["what"]) == (90_000, pace.name)


def test_what_the_largest_causes_leave_over_is_named_where_it_is_much() -> None:
    large = cause("aten::mm", -90), cause("aten::bmm", -70), cause("aten::add", -60)
    stated = said_of(-106, *large, cause("aten::max", 55), cause("aten::cat", 59))
    assert [each["delta_ns"] for each in of_code("cause", stated)] == [-90_000, -70_000, -60_000]
    assert only("all_else", stated)["delta_ns"] == 114_000
    assert "all_else" not in codes(said_of(-240, *large, cause("aten::max", -20)))
    jitter = no_change("jitter", jitter_name(346, 80 * US, 20 * US), 80, 20)
    parts = str(only("all_else", said_of(-106, *large, jitter, cause("aten::cat", 34)))["parts"])
    assert parts == f"+80.0 us {jitter.name} of 20.0 us"


def test_occasional_allocations_on_a_rank_are_noise_as_well() -> None:
    assert not said_of(100, cause("rank 2: alloc aten::empty", 1, 0.5, kind="sync"))
    assert said_of(100, cause("ranks 1, 2: alloc aten::empty", 50, 0.5, kind="sync"))


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
    jitter = no_change("jitter", "jitter of 3 kinds", 163, 40)
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
    (stated,) = said_of(-20, cause("device a", -4, 2, kind="sync"), cause("dtoh b", -15, -3, kind="sync"))
    assert given(stated, "removed_syncs_mean", "added_syncs_mean", "delta_ns", "share_pct") == [3, 2, -19_000, 95]


def test_between_sides_that_are_not_alike_only_large_changes_are_told() -> None:
    causes = (cause("aten::mm", 90, line="a.py:1 a"), cause("Memset", 1, -5, line="b.py:1 b"))
    traced = Traced(0, 1000 * US, 1091 * US, 3, 3)
    assert codes(cause_statements(traced, causes)) == ["cause", "line_changes"]
    assert codes(cause_statements(traced, causes, same_work=False)) == ["cause"]


def test_a_sync_that_cost_no_time_says_so() -> None:
    assert only("syncs", said_of(-100, cause("dtoh aten::item", 0, -1, kind="sync")))["delta_ns"] == 0


def test_a_line_comes_with_its_ops_its_sync_first() -> None:
    line = "check.py:41 check"
    stated = only(
        "line_changes",
        said_of(
            100,
            cause("aten::any", 10, 1, line=line),
            cause("dtoh aten::item", 80, 1, kind="sync", line=line),
            cause("aten::abs", 5, 2, line="check.py:40 check"),
        ),
    )
    assert (stated["line"], stated["phases"], stated["delta_ns"]) == ("check.py:40-41 check", "fwd", 95_000)
    first, *others = str(stated["added"]).split(", ")
    assert others == ["1 aten::any", "2 aten::abs"]
    assert first.split(" in line ") == ["1 dtoh aten::item (sync)", "41"]


def test_several_syncs_of_a_function_are_told_no_line_of_one() -> None:
    syncs = cause("dtoh aten::item", 80, 2, kind="sync", line="check.py:41 check")
    stated = only("line_changes", said_of(100, syncs, cause("aten::abs", 5, 2, line="check.py:40 check")))
    assert str(stated["added"]).split(", ") == ["2 dtoh aten::item (syncs)", "2 aten::abs"]


def test_what_a_function_calls_is_named_and_its_backward_counts() -> None:
    node = cause(
        "autograd::engine::evaluate_function: SiluBackward0", 30, 4, line="model.py:7 MLP.forward", phase="bwd"
    )
    stated = only("line_changes", said_of(100, node, cause("aten::silu", 5, 4, line="model.py:6 MLP.forward")))
    assert (stated["line"], stated["phases"], stated["delta_ns"]) == ("model.py:6 MLP.forward", "fwd and bwd", 35_000)
    assert (stated["added"], stated["added_mean"]) == ("4 aten::silu", 4)
    alone = only("line_changes", said_of(100, node))
    assert alone["added"] == "4 SiluBackward0"


def test_what_reads_a_value_on_a_cpu_is_a_sync_on_a_gpu() -> None:
    for num, name in ((1, "a sync"), (2, "syncs")):
        stated = said_of(100, cause("aten::item", 80, num, kind="sync", line="check.py:41 check"))
        assert only("line_changes", stated)["added"] == f"{num} aten::item ({name} on a GPU)"
        reads = only("value_reads", said_of(100, cause("aten::item", 80, num, kind="sync")))
        assert (reads["added_syncs_mean"], reads["delta_ns"]) == (num, 80_000)


def test_a_synchronize_is_not_named_as_the_op_around_it() -> None:
    synchronize = cause("device aten::matmul", 80, 1, kind="sync", line="check.py:41 check")
    stated = only("line_changes", said_of(100, synchronize, cause("aten::any", 10, 1, line="check.py:41 check")))
    assert str(stated["added"]).split(", ") == ["1 device synchronize in aten::matmul", "1 aten::any"]


def test_a_line_that_adds_and_removes_says_which() -> None:
    line = "check.py:41 check"
    stated = only(
        "line_changes",
        said_of(-40, cause("aten::where", 10, 1, line=line), cause("aten::nonzero", -50, -3, line=line, phase="bwd")),
    )
    assert (stated["removed"], stated["added"], stated["delta_ns"]) == ("3 aten::nonzero", "1 aten::where", -40_000)


def test_a_second_line_is_told_only_if_it_matters() -> None:
    first = cause("aten::a", 90, 1, line="a.py:1 a")
    for other, num in ((1, 1), (9, 2)):
        stated = said_of(100, first, cause("aten::b", other, 1, line="b.py:1 b"))
        assert len(of_code("line_changes", stated)) == num
    stated = said_of(100, first, cause("scalar aten::b", 1, 1, kind="sync", line="b.py:1 b"))
    assert len(of_code("line_changes", stated)) == 2


def test_many_ops_are_counted_not_listed() -> None:
    stated = said_of(100, *(cause(f"aten::op{index}", 10, 1, line="a.py:1 a") for index in range(9)))
    assert str(only("line_changes", stated)["added"]).endswith(" and 3 more")


def test_without_a_line_or_a_sync_the_largest_causes_are_named() -> None:
    stated = said_of(100, cause("aten::mm", 70), cause("all_reduce", 26, 1, kind="collective"), cause("aten::add", 4))
    assert codes(stated) == ["cause", "cause_of_collective"]
    assert given(stated[1], "kind", "delta_ns", "more_mean", "fewer_mean") == ["collective", 26_000, 1, None]


def test_of_a_device_host_time_is_told_from_its_work() -> None:
    sides = cause("aten::mm", 70), cause("gemm", 50, kind="kernel"), cause("Python in train", 40)
    assert codes(said_of(160, *sides)) == ["cause_of_host", "cause", "cause"]


def test_what_cancels_is_still_told() -> None:
    sync, mm = said_of(0, cause("dtoh aten::item", 30, 1, kind="sync"), cause("aten::mm", -30))
    assert [given(each, "delta_ns", "share_pct") for each in (sync, mm)] == [[30_000, None], [-30_000, None]]


def test_nothing_is_said_of_nothing() -> None:
    assert not said_of(0)


def test_an_allocation_now_and_then_is_not_told() -> None:
    assert codes(said_of(100, cause("alloc aten::empty", 1, 1, kind="sync"), cause("aten::mm", 99))) == ["cause"]


def test_a_cause_by_its_name_line_and_phase() -> None:
    assert what_of(cause("mm", 5, -0.5, line="a.py:1 f")) == "mm at a.py:1 f in fwd"
    assert what_of(cause("aten::mm", 5)) == "aten::mm in fwd"
    assert what_of(cause("x" * 99, 5)) == "x" * 59 + "… in fwd"


def test_of_kernels_that_replaced_others_both_names_are_told() -> None:
    long, short = f"aten::mm > at::native::{'x' * 99}", f"aten::mm > {'x' * 33}…"
    assert what_of(cause(REPLACED_BY.join((long, long)), 5)) == f"{REPLACED_BY.join((short, short))} in fwd"


def test_what_tells_two_names_apart_is_not_cut() -> None:
    """Tiles of ROCm's products, and how many kernels replace how many."""
    tiles = ["Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_" + mt + "_MI16x16x1_SN" for mt in TILES]
    assert [what_of(cause(f"aten::bmm > k{REPLACED_BY}{name}", 5)) for name in tiles] == [
        f"aten::bmm > k{REPLACED_BY}Cijk_Ailk_Bljk…{tile} in fwd" for tile in TILES
    ]
    old, new = what_of(cause(f"aten::addmm > {'y' * 99} (and 5 more){REPLACED_BY}z", 5)).split(REPLACED_BY)
    assert (old, new) == (f"aten::addmm > {'y' * 17}… (and 5 more)", "z in fwd")


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


def added(off: Run, absent: Run, phase: str) -> Statement | None:
    return added_ops(ranks_in_memory(off), ranks_in_memory(absent), phase)


@pytest.mark.parametrize(
    ("num_reads", "phase", "num"), [(0, "fwd", 0), (0, "", 0), (1, "fwd", 1), (2, "", 2), (2, "opt", 0)]
)
def test_an_arm_adds_nothing_if_its_step_does_not_one_thing_more(num_reads: int, phase: str, num: int) -> None:
    off, absent = (arm(name, num_reads=num_reads, num_adds=3) for name in ("off", "absent"))
    free = added(off, absent, phase)
    assert free is not None
    num_ops = 4 + 2 * num_reads  # adds and a kernel; of a read its op and its copy
    assert (free.code, *given(free, "num_ops", "copies_mean", "reads_mean")) == ("free", num_ops, num, None)


def test_ops_that_an_arm_adds_are_listed() -> None:
    off, absent = arm("off", num_reads=0, num_adds=5), arm("absent", num_reads=0, num_adds=3)
    more = added(off, absent, "fwd")
    assert more is not None
    assert (more.code, *given(more, "added", "added_mean")) == ("not_free", "2 aten::add", 2)


def test_work_that_runs_after_the_last_step_counts_where_it_was_launched() -> None:
    def run(name: str, start: int) -> Run:
        return Run(name, (build(step(0, 100), launch(1, 2, 1), kernel("gemm", start, 10, 1)),), arm=name)

    for off, absent in ((200, 5), (5, 200)):
        free = added(run("off", off), run("absent", absent), "")
        assert free is not None
        assert free.code == "free"


def test_ranks_that_have_no_counterpart_prove_nothing() -> None:
    off, absent = arm("off", num_reads=1, num_adds=3), arm("absent", num_reads=0, num_adds=3)
    other = replace(absent, traces=(replace(absent.traces[0], rank=1),))
    assert added(off, other, "fwd") is None


def test_traces_without_steps_are_compared_as_wholes() -> None:
    def item(start: float, corr: int) -> list[Event]:
        sync = (call("cudaMemcpyAsync", start + 5, 5, corr), call("cudaStreamSynchronize", start + 10, 20))
        return [op("aten::item", start, 30), *sync, memcpy("DtoH (Device -> Pinned)", start + 20, 5, corr)]

    work = [op("aten::mm", 0, 10), launch(2, 2, 1), kernel("gemm", 5, 20, 1), *item(50, 2)]
    a, b = (Run(name, (build(*events),)) for name, events in (("a", work), ("b", [*work, *item(100, 3)])))
    result = diff_runs(a, b)
    per = "in the trace"
    assert (result.answer.code, *given(result.answer, "delta_ns", "per")) == ("observed", 50_000, per)
    syncs = only("syncs", result)
    assert (syncs["added_syncs_mean"], syncs["delta_ns"]) == (1, 30_000)
    assert not any("step" in str(each) for each in result.reasons)
    assert "whole traces of rank 0" in waterfall(result).title
    assert "more" in [column.title for column in causes_table(result).columns]


def python(steps: Comparison | None, *causes: Cause) -> list[Statement]:
    return [*python_line(causes, steps)]


def test_python_that_is_most_of_a_confirmed_delta_is_named_by_its_line() -> None:
    here = cause("Python between ops", 40, line="train.py:11 check", phase="other")
    rest = cause("aten::mm", 90)  # of traced steps, which are no evidence by themselves
    for sign, delta_us in ((1, 40), (-1, -80)):
        steps = comparison_of(60 * sign, "material", unprofiled=True)
        (stated,) = python(steps, replace(here, delta_ns=delta_us * US), rest)
        assert given(stated, "line", "phase", "delta_ns") == ["train.py:11 check", "other", delta_us * US]


def test_python_is_not_named_without_confirmation_or_a_line_or_if_it_is_not_most() -> None:
    steps = comparison_of(60, "material", unprofiled=True)
    here = cause("Python between ops", 80, line="train.py:11 check")
    for causes, compared_steps in (
        ([here], None),
        ([here], comparison_of(60, "inconclusive", unprofiled=True)),
        ([here], comparison_of(-60, "material", unprofiled=True)),
        ([replace(here, line="")], steps),
        ([replace(here, delta_ns=20 * US)], steps),
        ([replace(here, name="aten::mm")], steps),
    ):
        assert not python(compared_steps, *causes)


@pytest.mark.parametrize("op", ["", "aten::mm > "])
@pytest.mark.parametrize("more", ["", " (and 2 more)"])
def test_a_replacement_shows_in_what_its_kernels_differ(op: str, more: str) -> None:
    old, new = (f"cutlass3x_sm90_tensorop_s64x128x32gemm_{of}_f32_bf16_bf16_128x128x128" for of in ("e4m3", "e5m2"))
    shown = short_name(f"{op}{old}{more}{REPLACED_BY}{new}{more}", 45)
    assert shown.startswith(f"{op}cutla")
    of_old, of_new = shown.split(REPLACED_BY)
    for shown_kernel, number_format in ((of_old, "e4m3"), (of_new, "e5m2")):
        assert number_format in shown_kernel
        assert shown_kernel.endswith(more)
        assert len(shown_kernel) <= 45
    same = f"{op}ampere_sgemm_128x64_tn{REPLACED_BY}sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n"
    assert short_name(same, 45) == same


def test_names_that_differ_in_how_many_more_there_are_are_cut_at_their_end() -> None:
    kernel = "cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16"
    shown = short_name(f"{kernel} (and 2 more){REPLACED_BY}{kernel} (and 3 more)", 45)
    assert shown == REPLACED_BY.join(f"cutlass3x_sm90_tensorop_s64x128… (and {num} more)" for num in (2, 3))
