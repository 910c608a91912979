"""Who waits for whom: numbers that can be added up by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from builder import Event, annotation, build, call, comms, frame, kernel, launch, op, step, table, world
from pausing_host import APART, OPS, layers

from traceq.analysis._basis import on_the_worst_rank, slack_by_rank
from traceq.analysis.registry import analyze
from traceq.claims.claim import BY_JOB_REPLAY, BY_UNPROFILED, Basis, Claim, Measure
from traceq.claims.saying import text_of
from traceq.errors import UsageFault
from traceq.facts.ranks.arrival_waits import clocks
from traceq.facts.ranks.collective_matching import match_collectives
from traceq.facts.ranks.job import job_of
from traceq.model import Arm, Manifest, Run, Timings, Trace
from traceq.stats.ranks import saved_at_pace_of_others
from traceq.whatif.interventions import WithoutStraggler
from traceq.whatif.job_replay import job_replay
from traceq.whatif.predict import predict

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
RUN_BACKWARD = "<built-in method run_backward of torch._C._EngineBase object>"
Row = dict[str, Any]


def met(*times: tuple[float, float], name: str = "allreduce", size: int = 1000, **more: Any) -> list[Event]:
    """Collectives whose kernels run in [start, end); each is issued a microsecond before."""
    events: list[Event] = []
    for corr, (start, end) in enumerate(times, start=1):
        events += [
            comms(name, start - 1, 0.8, (size, size), **more),
            launch(start - 0.9, 0.5, corr),
            kernel(NCCL, start, end - start, corr, stream=20),
        ]
    return events


def gloo(*times: tuple[float, float]) -> list[Event]:
    """Collectives that a thread of gloo runs, each issued 5 us before."""
    shapes = {"Input Dims": [[64]], "Input type": ["float"]}
    return [
        event
        for start, end in times
        for event in (
            op("c10d::allreduce_", start - 5, 3, **shapes),
            annotation("gloo:all_reduce", start, end - start, tid=9, **shapes),
        )
    ]


def rank(number: int, *events: Event, size: int = 2, at_us: int = 0, backend: str = "nccl") -> Trace:
    """A rank's step of 1 ms from 0, its clock `at_us` ahead."""
    moved = [{**event, "ts": event["ts"] + at_us} for event in (step(0, 1000), *events)]
    return build(*moved, **world(number, size, backend))


def ranks(*traces: Trace) -> list[Row]:
    return table(Run("job", traces), "ranks")


def skew(*traces: Trace) -> list[Row]:
    result = analyze(Run("job", traces), "ranks").tables[1]
    return [dict(zip((column.key for column in result.columns), line, strict=True)) for line in result.rows]


FIRST = met((10, 20), (110, 200), (310, 400), (510, 600))
SECOND = met((15, 20), (180, 200), (390, 400), (570, 600))


def test_a_wait_lasts_from_the_own_start_to_the_latest_and_the_first_collective_does_not_count() -> None:
    first, second = ranks(rank(0, *FIRST), rank(1, *SECOND))
    assert (first["num"], first["wait_ns"], first["transfer_ns"]) == (3, (70 + 80 + 60) * 1000, (20 + 10 + 30) * 1000)
    assert (second["num"], second["wait_ns"], second["transfer_ns"]) == (3, 0, (20 + 10 + 30) * 1000)
    assert (first["offset_ns"], second["offset_ns"]) == (0, 0)


def test_only_a_wait_that_no_compute_hides_is_idle() -> None:
    hidden = launch(100, 1, 77), kernel("gemm", 130, 50, 77)
    first, _ = ranks(rank(0, *FIRST, *hidden), rank(1, *SECOND))
    assert (first["wait_ns"], first["exposed_wait_ns"]) == (210_000, 160_000)
    assert first["busy_ns"] == 50_000


def test_a_moment_in_which_a_rank_waits_in_two_collectives_is_exposed_once() -> None:
    early, late = met((10, 20), (110, 400), (150, 420)), met((10, 20), (380, 400), (390, 420))
    first, _ = ranks(rank(0, *early), rank(1, *late))
    assert first["wait_ns"] == (380 - 110 + 390 - 150) * 1000
    assert first["exposed_wait_ns"] == (390 - 110) * 1000


def test_clocks_that_are_apart_change_no_wait() -> None:
    plain = ranks(rank(0, *FIRST), rank(1, *SECOND))
    apart = ranks(rank(0, *FIRST, at_us=1000), rank(1, *SECOND, at_us=8000))
    assert [row["wait_ns"] for row in plain] == [row["wait_ns"] for row in apart]
    assert [(row["offset_ns"], row["offset_pm_ns"]) for row in apart] == [(-3_500_000, 0), (3_500_000, 0)]


def test_ranks_of_one_host_share_its_clock() -> None:
    """Ends of gloo's collectives scatter by 20 us: an estimate of one clock that all ranks read."""
    traces = (
        rank(0, *gloo((10, 20), (110, 220), (310, 400), (510, 600)), backend="gloo"),
        rank(1, *gloo((15, 20), (180, 200), (390, 420), (570, 620)), backend="gloo"),
    )

    def offsets(*hosts: str) -> tuple[list[int | None], list[int | None], str]:
        manifest = Manifest(1, "id", "", "", {}, (Arm("run", "", baseline=True),), (), 2, 0, hosts=hosts)
        run = Run("job", traces, manifest, "run")
        rows = table(run, "ranks")
        return [row["offset_ns"] for row in rows], [row["wait_ns"] for row in rows], analyze(run, "ranks").views[0].note

    same, waits, note = offsets("node1", "node1")
    assert (same, waits) == ([0, 0], [210_000, 0])
    assert "All ranks share the clock of node1." in note
    apart, _, note = offsets("node1", "node2")
    assert apart != [0, 0]
    assert "share" not in note


def test_two_hosts_of_one_name_are_told_by_their_clocks() -> None:
    apart = rank(0, *FIRST, at_us=0), rank(1, *SECOND, at_us=800_000)
    hosts = clocks(issued := job_of(Run("job", apart)).issued, match_collectives(issued), ("localhost", "localhost"))
    assert hosts.offset.tolist() == [[-400e6, 400e6]]
    near = rank(0, *FIRST), rank(1, *SECOND, at_us=3)
    shared = clocks(issued := job_of(Run("job", near)).issued, match_collectives(issued), ("localhost", "localhost"))
    assert shared.offset.tolist() == shared.uncertainty.tolist() == [[0, 0]]


def test_the_base_of_each_trace_counts_to_its_clock() -> None:
    first = rank(0, *FIRST)
    second = build(step(0, 1000), *SECOND, **world(1, 2), baseTimeNanoseconds=7_000_000)
    assert [row["wait_ns"] for row in ranks(first, second)] == [210_000, 0]
    assert [row["offset_ns"] for row in ranks(first, second)] == [-3_500_000, 3_500_000]


def test_ends_that_scatter_as_much_as_starts_give_no_clock_and_waits_by_duration() -> None:
    scattered = met((10, 20), (110, 240), (310, 330), (510, 600))
    first, second = ranks(rank(0, *scattered), rank(1, *SECOND))
    assert (first["offset_ns"], second["offset_ns"]) == (None, None)
    assert (first["wait_ns"], second["wait_ns"]) == ((130 - 20 + 20 - 10 + 90 - 30) * 1000, 0)
    (caveat,) = analyze(Run("job", (rank(0, *scattered), rank(1, *SECOND))), "ranks").caveats
    assert caveat.code == "clocks"


def in_turns() -> tuple[Trace, Trace]:
    """Two ranks of one size that wait for each other in turn, as their devices are suspended in turn."""
    starts, ends = (0, 252, 2761, 2775, 7304, 7364, 11960, 16466), (208, 262, 2774, 4808, 7317, 11894, 16464, 16478)
    others = (194, 252, 293, 4794, 4867, 9421, 13985, 14001), (206, 263, 4792, 4806, 9371, 9434, 13999, 18505)
    first, second = met(*zip(starts, ends, strict=True)), met(*zip(*others, strict=True))
    return build(*first, **world(0, 2)), build(*second, **world(1, 2))


def test_collectives_that_are_longer_than_ranks_can_wait_tell_no_waits() -> None:
    """By durations they would wait 11.0 and 13.5 ms for each other, of 18.5 ms."""
    run = Run("job", in_turns())
    assert [each.code for each in analyze(run, "ranks").caveats] == ["clocks"]
    assert [row["wait_ns"] for row in ranks(*run.traces)] == [None, None]
    (lost,) = (finding for finding in analyze(run, "partition").findings if "exposed" in finding.code)
    assert lost.code == "exposed_comm"  # neither waiting nor transfer


def thrice(*times: tuple[float, float], jitter: Sequence[float] = (0, 0, 0)) -> list[tuple[float, float]]:
    """The same collectives in each of three steps of 1 ms; those of step k start `jitter[k]` later."""
    return [(1000 * k + start + jitter[k], 1000 * k + end) for k in range(3) for start, end in times]


def three_steps(number: int, *events: Event, size: int = 2) -> Trace:
    return build(*(step(1000 * k, 1000, k) for k in range(3)), *events, **world(number, size))


def of_steps(name: str, start: float, dur: float) -> list[Event]:
    return [annotation(name, 1000 * k + start, dur) for k in range(3)]


def late(by: float, jitter: Sequence[float] = (0, 0, 0)) -> tuple[str, str]:
    """Verdicts of two ranks."""
    first_row, second_row = ranks(*late_job(by, jitter))
    return first_row["verdict"], second_row["verdict"]


def late_job(by: float, jitter: Sequence[float]) -> tuple[Trace, Trace]:
    """The second rank comes later to three collectives of each step, and waits 2 us in a fourth."""
    first = met(*thrice((100, 300), (400, 600), (700, 900), (950, 960)))
    second = met(
        *(
            (1000 * k + start + (by + jitter[k]) * (start < 900) - 2 * (start > 900), 1000 * k + end)
            for k in range(3)
            for start, end in ((100, 300), (400, 600), (700, 900), (950, 960))
        )
    )
    return three_steps(0, *first), three_steps(1, *second)


def test_the_others_wait_a_twentieth_of_the_step_for_a_straggler() -> None:
    assert late(20) == ("waits", "straggler")
    assert late(16) == ("balanced", "balanced")  # 48 us of 1,000


def test_a_straggler_is_late_in_every_step_by_more_than_the_steps_scatter() -> None:
    assert late(60, jitter=(5, 0, -5)) == ("waits", "straggler")
    assert late(60, jitter=(60, 0, -60)) == ("waits", "irregular")
    report = analyze(Run("job", irregular()), "ranks")
    assert report.findings == ()
    assert "too irregularly" in report.views[0].note


def test_steps_that_are_too_few_to_name_a_rank_that_is_late_in_each_say_so() -> None:
    """120 us without the first collective, 300 and 60 us of 1,000: symmetric ranks have such a mean by chance, too."""
    assert late(60, jitter=(0, 40, -40)) == ("waits", "undecided")
    report = analyze(Run("job", late_job(60, (0, 40, -40))), "ranks")
    assert report.findings == report.caveats == ()
    assert "too few" in report.views[0].note
    with pytest.raises(UsageFault, match="too few"):
        predict(job_replay(Run("job", late_job(60, (0, 40, -40)))), [WithoutStraggler()])


def test_waits_in_a_step_that_is_cut_off_do_not_count() -> None:
    """Work from before the trace runs in step 0: steps 1 and 2 count, in which rank 1 is 100 us late, not 500."""
    before = kernel("gemm", 0, 30, stream=20)
    arrivals = thrice((100, 700), (710, 720))
    late_by = {0: 500, 1: 100, 2: 100}
    late_arrivals = [(start + (start % 1000 == 100) * late_by[start // 1000], end) for start, end in arrivals]
    first, second = three_steps(0, before, *met(*arrivals)), three_steps(1, before, *met(*late_arrivals))
    report = analyze(Run("job", (first, second)), "ranks")
    (finding,) = report.findings
    assert (finding.subject.rank, finding.measures["wait_ns"], finding.basis) == (1, 100_000, Basis(2))
    (row, _) = table(Run("job", (first, second)), "ranks")
    assert (row["num_steps"], row["num"], row["wait_ns"]) == (2, 4, 200_000)
    assert report.views[0].rows[0][3] == 100_000


def irregular() -> tuple[Trace, Trace]:
    """The second rank is 300 us late, in one of three steps."""
    second = [(start + 300 * (1000 < start < 2000), end) for start, end in thrice((100, 500), (600, 620))]
    return three_steps(0, *met(*thrice((100, 500), (600, 620)))), three_steps(1, *met(*second))


def test_of_two_ranks_a_straggler_causes_three_quarters_of_the_waits() -> None:
    def verdicts(local: int) -> set[str]:
        first = met((1, 3), *thrice((100, 300), (400, 600), (700, 800 + local)))
        second = met((1, 3), *thrice((140, 300), (440, 600), (700 - local, 800 + local)))
        return {row["verdict"] for row in ranks(three_steps(0, *first), three_steps(1, *second))}

    assert verdicts(30) == {"balanced"}
    assert verdicts(20) == {"waits", "straggler"}


def test_late_ranks_that_take_turns_are_both_named() -> None:
    """Ranks 0 and 6 of eight: each waits for the other, as long as all others."""

    def arrivals(number: int) -> list[tuple[float, float]]:
        return [(1, 3), *thrice((100 + 150 * (number == 0), 300), (400 + 140 * (number == 6), 600))]

    traces = [three_steps(number, *met(*arrivals(number)), size=8) for number in range(8)]
    (finding,) = analyze(Run("job", tuple(traces)), "ranks").findings
    assert (finding.key, finding.subject.rank, finding.subject.collective) == ("rank 0", 0, "all_reduce")
    assert (finding.measures["wait_ns"], finding.measures["waited_phase"]) == (150_000, "forward")
    assert (finding.measures["more_ranks"], finding.ns) == ("rank 6", 150_000 + 140_000)
    rows = table(Run("job", tuple(traces)), "ranks")
    assert [row["verdict"] for row in rows] == ["straggler", *["waits"] * 5, "straggler", "waits"]
    assert [row["caused_ns"] // 1000 for row in rows] == [450, 0, 0, 0, 0, 0, 420, 0]


def test_waits_are_summed_by_the_rank_that_is_last_its_phase_and_the_collective() -> None:
    """Of three ranks 0 is last in `load`, 2 in `forward`: 100 us and 30 us each for the two others, and 60 once."""

    def rows_of(number: int) -> list[Event]:
        late = {0: (100, 0, 0), 1: (0, 0, 60), 2: (0, 30, 0)}[number]
        times = [(100 + late[0], 300), (540 + late[1], 700), (800 + late[2], 900)]
        return [*of_steps("load", 0, 500), *of_steps("forward", 500, 500), *met((1, 3), *thrice(*times))]

    run = Run("job", tuple(three_steps(number, *rows_of(number), size=3) for number in range(3)))
    report = analyze(run, "ranks")
    rows = report.table("caused_waits").to_dicts()
    assert [(row["rank"], row["phase"], row["name"], row["num_last"], row["caused_ns"]) for row in rows] == [
        (0, "load", "all_reduce", 3, 300_000),
        (1, "forward", "all_reduce", 3, 180_000),
        (2, "forward", "all_reduce", 3, 90_000),
    ]
    assert [row["exposed_ns"] for row in rows] == [300_000, 180_000, 90_000]
    (view,) = (view for view in report.views if view.key == "caused_waits")
    assert [row[:5] for row in view.rows] == [
        (0, "load", "all_reduce", 3, 100_000),
        (1, "forward", "all_reduce", 3, 60_000),
        (2, "forward", "all_reduce", 3, 30_000),
    ]


def test_the_claim_has_what_keeps_the_straggler() -> None:
    phases = *of_steps("load", 0, 500), *of_steps("forward", 500, 500)
    first = three_steps(0, *phases, *met(*thrice((1, 3), (10, 480), (510, 600), (700, 720), (760, 770))))
    busy = [op("aten::sort", 1000 * k + 20, 400) for k in range(3)]
    second = three_steps(1, *phases, *busy, *met(*thrice((1, 3), (470, 480), (512, 600), (701, 720), (759, 770))))
    (finding,) = analyze(Run("job", (first, second)), "ranks").findings
    assert (finding.code, finding.key, finding.ns) == ("straggler", "rank 1", 463_000)
    assert (finding.subject.phase, finding.subject.collective) == ("load", "all_reduce")
    assert finding.measures == {
        "wait_ns": 463_000,
        "exposed_ns": 463_000,
        "waited_phase": "load",
        "category": "host-bound",
        "excess_ns": 460_000,
        "what": "aten::sort",
        "what_excess_ns": 400_000,
        "pace": "hosts",
    }
    assert (finding.gain, finding.gain_by, finding.severity) == ((0, 0), BY_JOB_REPLAY, "low")


def test_a_rank_whose_host_pauses_is_late_by_its_pauses() -> None:
    """A host that did not run for 0.36 of 0.6 s was late in one op, in which it mostly paused."""
    of_ranks = [layers(each)[1:] for each in ({}, APART)]
    first, last = ([row["ts"] + row["dur"] for row in rows if row["name"] == f"aten::{OPS[-1]}"] for rows in of_ranks)
    traces = []
    for number, (rows, ends) in enumerate(zip(of_ranks, (first, last), strict=True)):
        begins = [max(end + 3, before + 7) for end, before in zip(ends, [0, *last], strict=False)]
        for n, (end, begin) in enumerate(zip(ends, begins, strict=True)):
            rows += [comms("allreduce", end + 1, 3, (1000, 1000)), launch(end + 2, 1, 1000 + n)]
            rows.append(kernel(NCCL, begin, last[n] + 6 - begin, 1000 + n, stream=20))
        traces.append(build(step(0, last[-1] + 100), *rows, **world(number, 2)))
    (finding,) = analyze(Run("job", tuple(traces)), "ranks").findings
    assert (finding.key, excess(finding)) == ("rank 1", ("host pauses", 32_050_000))


def test_a_wait_for_a_straggler_in_two_collectives_at_once_is_told_once() -> None:
    """Rank 0 issues two collectives at 100 and 120, and rank 1 comes to them at 600 and 610: 510 us, not 990."""
    early = met((1, 3), *thrice((100, 700), (120, 720)))
    late = met((1, 3), *thrice((600, 700), (610, 720)))
    report = analyze(Run("job", (three_steps(0, *early), three_steps(1, *late))), "ranks")
    (finding,) = report.findings
    assert (finding.subject.rank, finding.measures["wait_ns"]) == (1, 510_000)
    assert report.table("caused_waits").to_dicts()[0]["caused_ns"] == 3 * 990_000


def test_ranks_number_the_same_compiled_region_differently() -> None:
    """Each in the order in which it compiled: compared by number, all of the late rank's region would be its excess."""
    phases = *of_steps("load", 0, 500), *of_steps("forward", 500, 500)
    meetings = (1, 3), (510, 600), (700, 720), (760, 770)
    regions = [
        [op(f"Torch-Compiled Region: {n}", 1000 * k + 20, us) for k in range(3)]
        for n, us in (("4/0", 100), ("4/2", 400))
    ]
    first = three_steps(0, *phases, *regions[0], *met(*thrice(meetings[0], (120, 480), *meetings[1:])))
    second = three_steps(1, *phases, *regions[1], *met(*thrice(meetings[0], (470, 480), *meetings[1:])))
    (finding,) = analyze(Run("job", (first, second)), "ranks").findings
    assert excess(finding) == ("Torch-Compiled Region", 300_000)


def test_time_between_ops_is_python_in_the_innermost_annotation() -> None:
    phases = *of_steps("load", 0, 500), *of_steps("forward", 500, 500)
    first = three_steps(0, *phases, *met(*thrice((1, 3), (10, 480), (510, 600), (700, 720), (760, 770))))
    inner = *of_steps("# sparse #", 5, 450), *of_steps("# rows #", 10, 400)
    sort = [op("aten::sort", 1000 * k + 20, 50) for k in range(3)]
    late_times = thrice((1, 3), (470, 480), (512, 600), (701, 720), (759, 770))
    second = three_steps(1, *phases, *inner, *sort, *met(*late_times))
    (finding,) = analyze(Run("job", (first, second)), "ranks").findings
    assert excess(finding) == ("Python in # rows #", 350_000)
    assert (finding.measures["excess_ns"], finding.measures["before"]) == (460_000, "record_param_comms")


def excess(straggler: Claim) -> tuple[Measure | None, Measure | None]:
    """What takes longer on the late rank, and by how much."""
    return straggler.measures.get("what"), straggler.measures.get("what_excess_ns")


@pytest.mark.parametrize(
    ("late_us", "reason"), [(0, (None, None)), (300, ("autograd::engine::ConvBackward0", 300_000))]
)
def test_a_host_that_works_no_longer_is_no_reason(late_us: int, reason: tuple[str | None, int | None]) -> None:
    """Both ranks are as long in ops of the autograd thread, which the first one's device spends in a collective.

    It was `460 us of it Python`: the main thread waits for the backward pass, and the device of one rank idles.
    """

    def rank(number: int, us: int, *meetings: tuple[float, float]) -> Trace:
        backward = [
            event
            for k in range(3)
            for event in (
                op("autograd::engine::ConvBackward0", 1000 * k + 15, us, tid=2),
                launch(1000 * k + 16, 1, 900 + k, tid=2),
                kernel("conv", 1000 * k + 18, 1, 900 + k, stream=99),
            )
        ]
        return three_steps(number, *of_steps("load", 0, 500), *backward, *met((1, 3), *thrice(*meetings)))

    first = rank(0, 440 - late_us, (10, 480), (510, 600), (700, 720))
    second = rank(1, 440, (470, 480), (512, 600), (701, 720))
    (finding,) = analyze(Run("job", (first, second)), "ranks").findings
    assert finding.subject.rank == 1
    assert ("excess_ns" in finding.measures) == (reason != (None, None))
    assert excess(finding) == reason


@pytest.mark.parametrize(("rows", "flops_ratio"), [((32, 64), 2.0), ((32, 32), 1.0), (None, None)])
def test_the_reason_is_the_cell_that_is_explained_and_its_line_that_of_the_op(
    rows: tuple[int, int] | None, flops_ratio: float | None
) -> None:
    """The host of both is as long in `load`, where one device waits; the other one's kernel takes 190 us longer.

    It has more to compute, or is slower.
    """

    def rank(number: int, us: int, start: float, end: float) -> Trace:
        sizes = {} if rows is None else {"Input Dims": [[rows[number], 8], [8, 8]], "Input type": ["float", "float"]}
        phases = *of_steps("load", 0, 300), *of_steps("forward", 300, 650)
        busy = [op("aten::sort", 1000 * k + 5, 290) for k in range(3)]
        busy += [op("aten::mm", 1000 * k + 300, 3, **sizes) for k in range(3)]
        computing = [
            event
            for k in range(3)
            for event in (launch(1000 * k + 301, 1, 900 + k), kernel("gemm", 1000 * k + 303, us, 900 + k, stream=9))
        ]
        meetings = [(start, end), (600, 700), (720, 740)] if number else [(start, end), (510, 700), (720, 740)]
        return three_steps(number, *phases, *busy, *computing, *met((1, 3), *thrice(*meetings)))

    (finding,) = analyze(Run("job", (rank(0, 10, 6, 299), rank(1, 200, 297, 299))), "ranks").findings
    assert (finding.subject.phase, finding.measures["category"]) == ("forward", "compute")
    assert (finding.measures["excess_ns"], *excess(finding)) == (190_000, "gemm", 190_000)
    assert finding.measures.get("flops_ratio") == flops_ratio


def test_the_line_is_that_of_the_thread_whose_op_is_longer() -> None:
    """The main thread waits in another line meanwhile, and is in a third for longer."""

    def rank(number: int, us: int, start: float) -> Trace:
        rows: list[Event] = []
        for begin in (0, 1000, 2000):
            rows += [frame("train.py(1): main", begin, 990), frame("train.py(30): backward", begin + 10, 210)]
            rows += [frame(RUN_BACKWARD, begin + 11, 205)]
            rows += [frame("train.py(40): log", begin + 222, 260), kernel("gemm", begin + 217, 3, 900 + begin)]
            rows += [op("autograd::engine::MulBackward0", begin + 14, us, tid=2)]
            rows += [launch(begin + 16, 1, 900 + begin, tid=2)]
        phases = *of_steps("fwd", 0, 9), *of_steps("bwd", 9, 485), *of_steps("rest", 495, 490)
        return three_steps(number, *phases, *rows, *met((1, 3), *thrice((start, 600), (700 + number, 720))))

    (finding,) = analyze(Run("job", (rank(0, 10, 60), rank(1, 190, 478))), "ranks").findings
    assert excess(finding) == ("autograd::engine::MulBackward0", 180_000)
    assert "log" not in finding.subject.line


@pytest.mark.parametrize(("late_us", "is_reason"), [(450, True), (100, False)])
def test_a_host_that_is_late_behind_a_queue_of_work_is_the_reason(late_us: int, is_reason: bool) -> None:
    """Both devices compute for all of `load`; one host sits in Python, and launches the first collective late."""
    phases = *of_steps("load", 0, 500), *of_steps("forward", 500, 500)
    queue = [
        event
        for k in range(3)
        for event in (launch(1000 * k + 1, 1, 900 + k), kernel("gemm", 1000 * k + 2, 490, 900 + k, stream=99))
    ]
    first = three_steps(0, *phases, *queue, *met(*thrice((1, 3), (10, 480), (510, 600), (700, 720), (760, 770))))
    sparse = of_steps("# sparse #", 5, late_us)
    late_times = thrice((1, 3), (470, 480), (512, 600), (701, 720), (759, 770))
    second = three_steps(1, *phases, *queue, *sparse, *met(*late_times))
    (finding,) = analyze(Run("job", (first, second)), "ranks").findings
    host = {"excess_ns": 450_000, "what": "Python in # sparse #", "before": "record_param_comms"}
    assert {name: finding.measures.get(name) for name in host} == (host if is_reason else dict.fromkeys(host))
    assert "category" not in finding.measures


PHASES = ("forward", "backward")


def recorded(traces: tuple[Trace, ...], own_ms: tuple[float, float], num: int = 400) -> Run:
    """A run with unprofiled steps of 100 ms: `own_ms` of each rank in forward, the rest waits in backward."""
    rng = np.random.default_rng(2)
    forward = rng.normal(1, 0.02, (2, num)) * 1e6 * np.array(own_ms)[:, None]
    phase_ns = np.stack([forward, 100e6 - forward], axis=2).astype(np.int64)
    none = np.zeros(2, np.int64)
    timings = Timings(
        PHASES,
        phase_ns.sum(axis=2),
        phase_ns,
        phase_ns,
        np.arange(num),
        none,
        none,
        none,
        num_warmup=0,
        by_device=False,
        host_step_ns=phase_ns.sum(axis=2),
    )
    return Run("job", traces, timings=timings)


def late_in_forward() -> tuple[Trace, ...]:
    def phases(forward: float) -> list[Event]:
        return [*of_steps("forward", 0, forward), *of_steps("backward", forward, 1000 - forward)]

    first = three_steps(0, *phases(580), *met(*thrice((600, 980))))
    return first, three_steps(1, *phases(950), *met(*thrice((970, 980))))


def test_unprofiled_steps_confirm_a_straggler() -> None:
    (finding,) = analyze(recorded(late_in_forward(), (40, 45)), "ranks").findings
    assert (finding.subject.rank, finding.basis) == (1, Basis(400, is_unprofiled=True))
    assert finding.measures["late_ns"] == pytest.approx(5e6, rel=0.01)
    assert finding.measures["wait_ns"] == 370_000


@pytest.mark.parametrize(("own_ms", "expected_ms"), [((40, 45), 5.0), ((40, 60), 20.0)])
def test_a_straggler_gains_what_the_pace_of_the_others_saves(own_ms: tuple[float, float], expected_ms: float) -> None:
    """The recorded step lasts 100 ms whatever a rank computes; what one computes longer, the other waits."""
    (finding,) = analyze(recorded(late_in_forward(), own_ms), "ranks").findings
    least_ns, most_ns = finding.gain or (0, 0)
    expected_ns = expected_ms * 1e6
    assert 0.85 * expected_ns < least_ns <= most_ns < expected_ns  # in some steps the other one is the later, by noise
    assert finding.gain_by == BY_UNPROFILED
    assert text_of(finding).endswith("unprofiled steps)")


def test_of_many_ranks_the_next_latest_bounds_the_saving() -> None:
    """Rank 3 of four works 20 ms longer than most; without that the step waits for rank 2, which works 5 ms longer."""
    work = np.array([[40.0], [40.0], [45.0], [60.0]]) + np.zeros((4, 320))
    assert saved_at_pace_of_others(work, 100 - work, [3]) == pytest.approx((15.0, 15.0))
    assert saved_at_pace_of_others(work, 100 - work, [2, 3]) == pytest.approx((20.0, 20.0))


def test_what_unprofiled_steps_do_not_show_is_no_straggler() -> None:
    report = analyze(recorded(late_in_forward(), (40, 40)), "ranks")
    assert report.findings == ()
    assert "not late throughout 400" in report.views[0].note


@pytest.mark.parametrize("own_ms", [(40, 40), (40, 45)])
def test_too_few_unprofiled_steps_name_no_straggler_and_say_how_many_would(own_ms: tuple[float, float]) -> None:
    run = recorded(late_in_forward(), own_ms, num=199)
    report = analyze(run, "ranks")
    assert report.findings == ()
    assert [row["verdict"] for row in table(run, "ranks")] == ["undecided", "undecided"]
    (caveat,) = report.caveats
    assert caveat.code == "stragglers_undecided"
    assert caveat.text.endswith("--steps 200")
    assert f"{caveat.text}." in report.views[0].note


def test_a_recording_without_unprofiled_steps_names_no_straggler() -> None:
    manifest = Manifest(1, "id", "", "", {}, (Arm("run", "", baseline=True),), (), 2, 0)
    report = analyze(Run("job", late_in_forward(), manifest, "run"), "ranks")
    assert (report.findings, [caveat.code for caveat in report.caveats]) == ((), ["stragglers_undecided"])
    (finding,) = analyze(Run("job", late_in_forward()), "ranks").findings  # traces alone say so of their steps
    assert (finding.subject.rank, finding.measures["wait_ns"], finding.basis) == (1, 370_000, Basis(2))


def test_unprofiled_steps_name_a_rank_that_the_traced_ones_do_not() -> None:
    phases = *of_steps("forward", 0, 500), *of_steps("backward", 500, 500)
    even = tuple(three_steps(number, *phases, *met(*thrice((600, 980)))) for number in range(2))
    (finding,) = analyze(recorded(even, (45, 40)), "ranks").findings
    assert (finding.subject.rank, finding.ns, "wait_ns" in finding.measures) == (0, 0, False)
    assert finding.measures["late_ns"] == pytest.approx(5e6, rel=0.01)


def test_the_bandwidth_across_ranks_is_that_of_the_shortest_duration() -> None:
    """4,000 bytes four times, in 5 + 20 + 10 + 30 us."""
    (row,) = skew(rank(0, *FIRST), rank(1, *SECOND))
    assert (row["num"], row["num_ranks"], row["bytes"], row["shortest_ns"]) == (4, 2, 16_000, 65_000)
    assert row["algbw_gbps"] == pytest.approx(16 / 65)
    assert row["busbw_gbps"] == pytest.approx(16 / 65 * 2 * 3 / 4)
    assert (row["skew_ns"], row["skew_max_ns"], row["last_rank"], row["num_last"]) == (215_000, 80_000, 1, 4)


def test_a_broadcast_makes_nobody_wait() -> None:
    rows = ranks(rank(0, *met(*[(100, 300), (400, 600)], name="broadcast")), rank(1, *met((150, 300), (450, 600))))
    assert [(row["num"], row["wait_ns"], row["verdict"]) for row in rows] == [(0, None, "")] * 2


def test_a_send_meets_no_other_send() -> None:
    rows = ranks(rank(0, *met((100, 300), (400, 600), name="send")), rank(1, *met((150, 300), (450, 600), name="send")))
    assert [row["num"] for row in rows] == [0, 0]


def test_waits_in_several_groups_add_up() -> None:
    """Groups of one name but other members are two."""
    pairs = {0: "[0, 1]", 1: "[0, 1]", 2: "[2, 3]", 3: "[2, 3]"}
    traces = [
        rank(
            number, *met(*((start + 10 * number, 900 + start) for start in (10, 20, 30)), **{"Process Group Ranks": of})
        )
        for number, of in pairs.items()
    ]
    assert [(row["num"], row["wait_ns"]) for row in ranks(*traces)] == [(2, 20_000), (2, 0), (2, 20_000), (2, 0)]


def test_windows_that_open_in_different_steps_meet_in_the_steps_both_hold() -> None:
    def steps(first: int, *numbers: int, late: float = 0) -> list[Event]:
        marks = [step(1000 * number, 1000, number) for number in numbers]
        return [
            *marks,
            *met(*((1000 * n + 100 * k + late, 1000 * n + 100 * k + 90) for n in numbers for k in (1, 2, 3))),
        ]

    early = build(*steps(0, 3, 4, 5), **world(0, 2))
    later = build(*steps(0, 4, 5, 6, late=30), **world(1, 2))
    assert [(row["num"], row["wait_ns"]) for row in ranks(early, later)] == [(5, 150_000), (5, 0)]


def test_a_window_that_opens_within_a_step_meets_it_from_its_end() -> None:
    def window(*times: float, late: float = 0) -> list[Event]:
        return [step(1000, 1000, 8), step(2000, 1000, 9), *met(*((index + late, index + 90) for index in times))]

    whole = build(step(0, 1000, 7), *window(100, 300, 500, 1100, 1200, 2100), **world(0, 2))
    short = build(*window(300, 500, 1100, 1200, 2100, late=20), **world(1, 2))
    assert [(row["num"], row["wait_ns"]) for row in ranks(whole, short)] == [(3, 60_000), (3, 0)]  # without step 7's


def test_traces_without_steps_meet_where_all_that_both_hold_agrees() -> None:
    sizes = (10, 20, 30, 10, 40, 20)

    def window(first: int, last: int, late: float) -> list[Event]:
        events: list[Event] = []
        for place in range(first, last):
            (call, launched, carried) = met((100 * place + late, 100 * place + 90), size=sizes[place])
            events += [
                call,
                *({**event, "args": {**event["args"], "correlation": place + 1}} for event in (launched, carried)),
            ]
        return events

    rows = ranks(build(*window(0, 5, 0), **world(0, 2)), build(*window(2, 6, 25), **world(1, 2)))
    assert [(row["num"], row["wait_ns"]) for row in rows] == [(2, 50_000), (2, 0)]


def test_calls_of_which_one_ends_before_another_starts_are_not_the_same_collective() -> None:
    """One call further the ends of two ranks that take turns differ by about as much."""
    (row,) = skew(*in_turns())
    assert (row["num"], row["shortest_ns"], row["skew_ns"]) == (8, 99_000, 24_694_000)


def test_windows_of_as_many_equal_calls_may_open_apart() -> None:
    def window(first: int, late: int) -> list[Event]:
        return met(*((5000 * n + 700 * (n % 3) + late, 5000 * n + 700 * (n % 3) + 90) for n in range(first, first + 6)))

    rows = ranks(build(*window(0, 0), **world(0, 2)), build(*window(1, 25), **world(1, 2)))
    assert [(row["num"], row["wait_ns"]) for row in rows] == [(4, 100_000), (4, 0)]


def test_clocks_of_two_hosts_that_are_several_calls_apart_shift_no_call() -> None:
    times = [(1000 * n, 1000 * n + 90 + 10 * (n % 3)) for n in range(8)]
    apart = met(*((start + 3000 + 25, end + 3000) for start, end in times))
    rows = ranks(build(*met(*times), **world(0, 2)), build(*apart, **world(1, 2)))
    assert [(row["num"], row["wait_ns"]) for row in rows] == [(7, 175_000), (7, 0)]


def test_a_call_of_forward_is_none_of_backward() -> None:
    """By clocks of which nothing is known, where ends one call apart are as constant as those of the same calls."""
    phases = [annotation("forward", 0, 2500), annotation("backward", 2500, 4000)]

    def window(first: int, *, at_us: int) -> Trace:
        events = [*phases, *met(*((1000 * n + 400, 1000 * n + 490) for n in range(first, 6)))]
        return build(*({**event, "ts": event["ts"] + at_us} for event in events), **world(first, 2))

    job = job_of(Run("job", (window(0, at_us=0), window(1, at_us=123_456))))
    assert [tuple(calls) for calls in job.instances.call.tolist()] == [(0, -1), *((n, n + 5) for n in range(1, 6))]


def test_one_rank_alone_says_nothing() -> None:
    report = analyze(Run("job", (rank(0, *FIRST),)), "ranks")
    assert [table.rows for table in report.tables] == [(), (), ()]
    assert (report.views, report.findings, report.caveats) == ((), (), ())


def test_ranks_without_collectives_have_steps_but_no_verdict() -> None:
    rows = ranks(rank(0), rank(1))
    assert [(row["step_ns"], row["wait_ns"], row["verdict"]) for row in rows] == [(1_000_000, None, "")] * 2


def test_gloo_waits_by_the_rows_of_its_threads() -> None:
    first, second = (
        gloo((10, 20), (110, 200), (310, 400), (510, 600)),
        gloo((15, 20), (180, 200), (390, 400), (570, 600)),
    )
    rows = ranks(rank(0, *first, backend="gloo"), rank(1, *second, backend="gloo"))
    assert [row["wait_ns"] for row in rows] == [210_000, 0]


def test_traces_that_were_recorded_minutes_apart_are_not_compared() -> None:
    wall = {"baseTimeNanoseconds": 1_700_000_000 * 10**9}
    later = {"baseTimeNanoseconds": 1_700_000_061 * 10**9}
    first = build(step(0, 1000), *FIRST, **world(0, 2), **wall)
    runs = [Run("job", (first, build(step(0, 1000), *SECOND, **world(1, 2), **base))) for base in (wall, later)]
    assert [[row["wait_ns"] for row in table(run, "ranks")] for run in runs] == [[210_000, 0], [None, None]]
    assert [[one.code for one in analyze(run, "ranks").caveats] for run in runs] == [[], ["not_one_job"]]
    assert table(runs[1], "desync") == []


@pytest.mark.parametrize(
    ("ns", "rank_of_claim", "slack_ns"),
    [((250_000, 30_000), 0, None), ((200_000, 30_000), 1, None), ((200_000, None), 0, 210_000)],
)
def test_what_a_rank_saves_counts_beyond_what_it_waits_for_others(
    ns: tuple[int, int | None], rank_of_claim: int, slack_ns: int | None
) -> None:
    job = job_of(Run("job", (rank(0, *FIRST), rank(1, *SECOND))))
    assert slack_by_rank(job) == {0: 210_000, 1: 0}
    claims = (Claim("starved", each, gain=(each, each)) if each else None for each in ns)
    (claim,) = on_the_worst_rank(job, claims, slack_by_rank(job))
    assert (claim.subject.rank, claim.basis, claim.measures.get("slack_ns")) == (rank_of_claim, Basis(1), slack_ns)
    assert (claim.gain == (0, 0)) == (slack_ns is not None)


@pytest.mark.parametrize("gap_us", [0, 2_400])
def test_a_host_that_waits_for_its_own_device_is_not_what_makes_a_rank_late(gap_us: int) -> None:
    """Work that no trace shows holds one device before each of its kernels; its host sits in `aten::to` meanwhile."""

    def rank_of(number: int, gap: int) -> Trace:
        rows: list[Event] = []
        for begin in (0, 20_000, 40_000):
            corr, end = 100_000 + begin, begin + 10
            rows += [step(begin, 20_000, begin // 20_000), *of_phase("forward", begin, 15_000)]
            for index in range(4):
                start = end + 5 + gap
                rows += [launch(begin + 2 + 2 * index, 1, corr + index), kernel("gemm", start, 300, corr + index)]
                end = start + 300
            rows += [
                op("aten::to", begin + 20, end - begin),
                call("cudaStreamSynchronize", begin + 21, end - begin - 5),
            ]
            start = end + 40 if gap else begin + 1_300
            rows += met_at(start, max(start + 20, begin + 11_000), corr + 50)
        return build(*rows, **world(number, 2))

    def of_phase(name: str, start: int, dur: int) -> list[Event]:
        return [annotation(f"## {name} ##", start, dur)]

    def met_at(start: int, end: int, corr: int) -> list[Event]:
        return [
            comms("allreduce", start - 8, 2, (1000, 1000)),
            launch(start - 7, 1, corr),
            kernel(NCCL, start, end - start, corr, stream=20),
        ]

    findings = analyze(Run("job", (rank_of(0, 0), rank_of(1, gap_us))), "ranks").findings
    assert ["unrecorded_ns" in finding.measures for finding in findings] == [True] * bool(gap_us)
    assert not any("what" in finding.measures for finding in findings)
