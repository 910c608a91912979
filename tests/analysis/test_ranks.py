"""Who waits for whom: numbers that can be added up by hand."""

from __future__ import annotations

from typing import Any

import pytest
from builder import Event, annotation, build, comms, kernel, launch, op, step, table, world

from traceq.analysis.registry import analyze
from traceq.model import Run, Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
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


def test_clocks_that_are_apart_change_no_wait() -> None:
    plain = ranks(rank(0, *FIRST), rank(1, *SECOND))
    apart = ranks(rank(0, *FIRST, at_us=1000), rank(1, *SECOND, at_us=8000))
    assert [row["wait_ns"] for row in plain] == [row["wait_ns"] for row in apart]
    assert [(row["offset_ns"], row["offset_pm_ns"]) for row in apart] == [(-3_500_000, 0), (3_500_000, 0)]


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


def late(by: float, window: int = 1000) -> tuple[str, str]:
    """Verdicts of two ranks: the second comes later to each of three collectives, and waits 2 us in a fourth."""
    first = met((1, 3), (100, 300), (400, 600), (700, 900), (950, 960))
    second = met((1, 3), (100 + by, 300), (400 + by, 600), (700 + by, 900), (948, 960))
    events = [
        {**event, "dur": window} if event["name"].startswith("ProfilerStep") else event for event in [step(0, 1000)]
    ]
    traces = [build(*events, *local, **world(number, 2)) for number, local in enumerate((first, second))]
    first_row, second_row = ranks(*traces)
    return first_row["verdict"], second_row["verdict"]


def test_a_straggler_waits_less_than_a_quarter_of_the_others_and_these_a_twentieth_of_the_time() -> None:
    assert late(17) == ("waits", "straggler")  # 51 us of 1,000
    assert late(16) == ("balanced", "balanced")  # 48 us
    assert late(17, window=1100) == ("balanced", "balanced")


def test_a_quarter_is_not_less_than_a_quarter() -> None:
    def verdicts(local: int) -> set[str]:
        first = met((1, 3), (100, 300), (400, 600), (700, 800 + local))
        second = met((1, 3), (140, 300), (440, 600), (700 - local, 800 + local))
        return {row["verdict"] for row in ranks(rank(0, *first), rank(1, *second))}

    assert verdicts(20) == {"balanced"}  # 20 of 80
    assert verdicts(19) == {"waits", "straggler"}


def test_the_finding_says_what_keeps_the_straggler() -> None:
    phases = annotation("load", 0, 500), annotation("forward", 500, 500)
    first = rank(0, *phases, *met((1, 3), (10, 480), (510, 600), (700, 720), (760, 770)))
    busy = op("aten::sort", 20, 400)
    second = rank(1, *phases, busy, *met((1, 3), (470, 480), (512, 600), (701, 720), (759, 770)))
    (finding,) = analyze(Run("job", (first, second)), "ranks").findings
    assert (finding.code, finding.key, finding.ns) == ("straggler", "rank 1", 463_000)
    assert finding.text == (
        "rank 1 is the straggler: the others wait 463 us per step for it, 463 us of it exposed; "
        "its host-bound time in load is 460 us longer than theirs, 400 us of it aten::sort"
    )


def test_time_between_ops_is_python_in_the_innermost_annotation() -> None:
    phases = annotation("load", 0, 500), annotation("forward", 500, 500)
    first = rank(0, *phases, *met((1, 3), (10, 480), (510, 600), (700, 720), (760, 770)))
    inner = annotation("# sparse #", 5, 450), annotation("# rows #", 10, 400), op("aten::sort", 20, 50)
    second = rank(1, *phases, *inner, *met((1, 3), (470, 480), (512, 600), (701, 720), (759, 770)))
    (finding,) = analyze(Run("job", (first, second)), "ranks").findings
    assert finding.text.endswith(
        "is 460 us longer than theirs, 350 us of it Python in # rows #, before record_param_comms"
    )


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
    assert [(row["num"], row["wait_ns"]) for row in ranks(whole, short)] == [(4, 80_000), (4, 0)]


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


def test_one_rank_alone_says_nothing() -> None:
    report = analyze(Run("job", (rank(0, *FIRST),)), "ranks")
    assert [table.rows for table in report.tables] == [(), ()]
    assert (report.views, report.findings, report.caveats) == ((), (), ())


def test_ranks_without_collectives_have_steps_but_no_verdict() -> None:
    rows = ranks(rank(0), rank(1))
    assert [(row["step_ns"], row["wait_ns"], row["verdict"]) for row in rows] == [(1_000_000, None, "")] * 2


def test_gloo_waits_by_the_rows_of_its_threads() -> None:
    def gloo(*times: tuple[float, float]) -> list[Event]:
        shapes = {"Input Dims": [[64]], "Input type": ["float"]}
        return [
            event
            for start, end in times
            for event in (
                op("c10d::allreduce_", start - 5, 3, **shapes),
                annotation("gloo:all_reduce", start, end - start, tid=9, **shapes),
            )
        ]

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
