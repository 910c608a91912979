"""Where ranks first issue different collectives: named, and never because a window was cut short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builder import AUTOGRAD, Event, annotation, build, comms, frame, op, step, table, world, write

from traceq.analysis.registry import analyze
from traceq.claims.claim import Measure
from traceq.model import Caveat, Run, Trace
from traceq.runs.read import read

Row = dict[str, Any]
REDUCED, GATHERED = "all_reduce float32 x 20 in forward", "all_gather float32 x 30 in forward"
USUAL = ("allreduce 10", "allreduce 20", "_allgather_base 30", "allreduce 10")


def calls(start: int, *what: str, **more: Any) -> list[Event]:
    """One call every 10 us, `name elements`."""
    events = []
    for place, text in enumerate(what):
        name, _, size = text.partition(" ")
        events.append(comms(name, start + 10 * place, 5, (int(size or 1), int(size or 1)), **more))
    return events


def rank(number: int, *steps: tuple[str, ...], first: int = 7, size: int = 3, **more: Any) -> Trace:
    """Steps of 100 us."""
    events = [
        e for n, what in enumerate(steps) for e in (step(100 * n, 100, first + n), *calls(100 * n + 5, *what, **more))
    ]
    return build(*events, **world(number, size))


def job(*of_one: tuple[str, ...], wrong: int = 1, **more: Any) -> Run:
    """Three ranks of three usual steps, but for one."""
    usual = (USUAL, USUAL, USUAL)
    return Run("job", tuple(rank(n, *(of_one if n == wrong else usual), **more) for n in range(3)))


def desync(run: Run) -> list[Row]:
    return table(run, "desync")


def measures_of(run: Run) -> Mapping[str, Measure]:
    (finding,) = analyze(run, "desync").findings
    return finding.measures


def test_ranks_that_agree_say_nothing() -> None:
    report = analyze(job(USUAL, USUAL, USUAL), "desync")
    assert (report.tables[0].rows, report.views, report.findings, report.caveats) == ((), (), (), ())


def test_a_collective_left_out_is_named_with_what_the_rank_did_instead() -> None:
    run = job(USUAL, ("allreduce 10", "_allgather_base 30", "allreduce 10"), USUAL)
    assert measures_of(run) == {
        "sequence": 2,
        "step": 8,
        "issued": f"ranks 0, 2: {REDUCED}; rank 1: {GATHERED}",
        "missing_ranks": "rank 1",
    }
    rows = desync(run)
    assert [(row["rank"], row["how"], row["name"], row["elements"]) for row in rows] == [
        (0, "", "all_reduce", 20),
        (1, "missing", "all_gather", 30),
        (2, "", "all_reduce", 20),
    ]
    assert {(row["group"], row["sequence"], row["step"], row["place"]) for row in rows} == {("", None, 8, 2)}


def test_the_last_collective_of_a_step_can_be_missing_too() -> None:
    measures = measures_of(job(USUAL, USUAL[:3], USUAL))
    assert measures["missing_ranks"] == "rank 1"
    assert str(measures["issued"]).endswith("; rank 1: nothing")


@pytest.mark.parametrize(
    ("issued", "how", "elements"),
    [
        (("allreduce 20", "allreduce 10", *USUAL[2:]), "swapped", 20),
        (("allreduce 10", "allreduce 21", *USUAL[2:]), "different", 21),
        (("allreduce 10", "broadcast 1", *USUAL[1:]), "extra", 1),
    ],
)
def test_a_swapped_resized_or_added_collective_is_named(issued: tuple[str, ...], how: str, elements: int) -> None:
    run = job(USUAL, issued, USUAL)
    assert measures_of(run)[f"{how}_ranks"] == "rank 1"
    assert [(row["how"], row["elements"]) for row in desync(run) if row["rank"] == 1] == [(how, elements)]


def test_another_type_of_the_same_size_is_a_mismatch() -> None:
    run = job(USUAL, USUAL, USUAL)
    other = rank(1, USUAL, USUAL, USUAL, dtype="BFloat16")
    rows = desync(replace(run, traces=(run.traces[0], other, run.traces[2])))
    assert [(row["how"], row["dtype"], row["step"]) for row in rows] == [
        ("", "float32", 7),
        ("different", "bfloat16", 7),
        ("", "float32", 7),
    ]


def test_the_parts_of_an_all_to_all_may_differ() -> None:
    sizes = [(f"alltoallv {n}", "gather 5") for n in range(3)]
    assert desync(Run("job", tuple(rank(n, size, size) for n, size in enumerate(sizes)))) == []


def test_of_two_ranks_neither_is_called_wrong() -> None:
    pair = (rank(0, USUAL, USUAL, size=2), rank(1, USUAL[:1] + USUAL[2:], USUAL, size=2))
    issued = f"rank 0: {REDUCED}; rank 1: {GATHERED}"
    assert measures_of(Run("job", pair)) == {"sequence": 2, "step": 7, "issued": issued}


def test_a_window_that_ends_early_or_opens_late_is_no_desync() -> None:
    short = [rank(1, USUAL, USUAL, USUAL[:n]) for n in range(4)] + [rank(1, USUAL, USUAL), rank(1, USUAL, first=8)]
    for one in short:
        run = job(USUAL, USUAL, USUAL)
        assert desync(replace(run, traces=(run.traces[0], one, run.traces[2]))) == []


@pytest.mark.parametrize("held", range(5))
def test_a_window_that_opens_within_a_step_is_no_desync_but_can_show_one(held: int) -> None:
    def opened(*what: str) -> Run:
        run = job(USUAL, USUAL, USUAL)
        late = build(*calls(5 + 10 * (4 - held), *what), step(100, 100, 8), *calls(105, *USUAL), **world(1, 3))
        return replace(run, traces=(run.traces[0], late, run.traces[2]))

    usual = USUAL[4 - held :]
    assert desync(opened(*usual)) == []
    if held:
        assert [row["how"] for row in desync(opened("broadcast 3", *usual[1:]))] == ["", "different", ""]


def test_a_call_on_the_other_side_of_a_step_mark_is_no_desync() -> None:
    """A thread beside the steps issues it a little later on one rank."""
    straddling = job(USUAL, USUAL[:3], (USUAL[3], *USUAL), USUAL)
    usual = [rank(n, USUAL, USUAL, USUAL, USUAL) for n in (0, 2)]
    assert desync(replace(straddling, traces=(usual[0], straddling.traces[1], usual[1]))) == []


def numbered(number: int, *steps: tuple[str, ...], first: int = 500, skip: int = 0) -> Trace:
    events, sequence = [], first
    for n, what in enumerate(steps):
        events.append(step(100 * n, 100, 7 + n))
        for event in calls(100 * n + 5, *what):
            event["args"] |= {"Seq": sequence, "Process Group Name": "dp", "Process Group Ranks": "[0, 1, 2]"}
            events.append(event)
            sequence += 1
    return build(*events[skip:], **world(number, 3))


def test_sequence_numbers_find_the_place_whatever_the_windows_hold() -> None:
    wrong = numbered(1, USUAL, (USUAL[0], *USUAL[2:]), USUAL, skip=3)
    run = Run("job", (numbered(0, USUAL, USUAL, USUAL), wrong, numbered(2, USUAL, USUAL, USUAL, skip=2)))
    rows = desync(run)
    assert {(row["group"], row["sequence"], row["step"], row["place"]) for row in rows} == {("dp", 505, 8, None)}
    assert [row["how"] for row in rows] == ["", "missing", ""]


def test_a_missing_one_among_equals_shows_at_the_next_step() -> None:
    equal = ("allreduce 10",) * 3
    run = Run("job", tuple(numbered(n, equal, equal[: 2 if n == 2 else 3], equal) for n in range(3)))
    assert [(row["sequence"], row["how"]) for row in desync(run)] == [(505, ""), (505, ""), (505, "missing")]
    plain = Run("job", tuple(rank(n, equal, equal[: 2 if n == 2 else 3], equal) for n in range(3)))
    assert [(row["place"], row["how"]) for row in desync(plain)] == [(3, ""), (3, ""), (3, "missing")]


def test_a_member_that_issues_nothing_at_all_is_missing() -> None:
    """If its group's ranks are told, and its window holds the step."""
    group = {"Process Group Name": "tp", "Process Group Ranks": "[0, 2]"}
    run = Run("job", tuple(rank(n, *((("allreduce 4",) if n == 0 else (),) * 2), **group) for n in range(3)))
    rows = desync(run)
    assert [(row["rank"], row["name"]) for row in rows] == [(0, "all_reduce"), (2, None)]


def test_groups_are_compared_each_for_itself() -> None:
    def mixed(number: int, second: str) -> Trace:
        pair = f"[{number // 2 * 2}, {number // 2 * 2 + 1}]"
        issued = calls(5, "allreduce 10", second, **{"Process Group Name": "tp", "Process Group Ranks": pair})
        return build(step(0, 100, 7), *issued, step(100, 100, 8), **world(number, 4))

    run = Run("job", tuple(mixed(n, "broadcast 3" if n < 2 else "allreduce 9") for n in range(4)))
    assert desync(run) == []


def test_groups_that_a_trace_does_not_tell_apart_are_not_compared_where_ranks_send_to_each_other() -> None:
    stages = [("send 10", "allreduce 5"), ("recv 10",)]
    assert desync(Run("job", tuple(rank(n, stage, stage, size=2) for n, stage in enumerate(stages)))) == []


def test_a_trace_that_lost_events_is_left_out() -> None:
    run = job(USUAL, USUAL[1:], USUAL)
    damaged = replace(run.traces[1], caveats=(Caveat("truncated", "byte 9: the file ends early"),))
    report = analyze(replace(run, traces=(run.traces[0], damaged, run.traces[2])), "desync")
    assert report.tables[0].rows == ()
    assert [caveat.code for caveat in report.caveats] == ["not_compared"]


def test_one_rank_alone_says_nothing() -> None:
    run = job(USUAL, USUAL[1:], USUAL)
    assert desync(Run("job", run.traces[1:2])) == []


def test_the_line_and_the_phase_are_those_of_the_call() -> None:
    def issuing(number: int, size: int) -> Trace:
        engine = op("autograd::engine::evaluate_function: MmBackward0", 20, 60, tid=AUTOGRAD)
        late = comms("allreduce", 30, 5, (9, 9), tid=AUTOGRAD)
        early = comms("allreduce", 10, 5, (size, size))
        return build(step(0, 100, 7), frame("train.py(41): clip", 8, 9), early, engine, late, **world(number, 3))

    rows = desync(Run("job", (issuing(0, 5), issuing(1, 6), issuing(2, 5))))
    assert {(row["phase"], row["line"]) for row in rows} == {("forward", "train.py:41 clip")}


def test_the_line_of_a_call_that_backward_issued_is_that_of_the_main_thread() -> None:
    def issuing(number: int, size: int) -> Trace:
        engine = op("autograd::engine::evaluate_function: MmBackward0", 20, 60, tid=AUTOGRAD)
        issued = comms("allreduce", 30, 5, (size, size), tid=AUTOGRAD)
        return build(step(0, 100, 7), frame("train.py(52): run", 8, 80), engine, issued, **world(number, 3))

    run = Run("job", (issuing(0, 5), issuing(1, 6), issuing(2, 5)))
    rows = desync(run)
    assert [(row["phase"], row["line"], row["elements"]) for row in rows] == [
        ("backward", "train.py:52 run", elements) for elements in (5, 6, 5)
    ]


def gloo(number: int, *what: str, size: int = 3) -> Trace:
    """`reduce_scatter 64` as gloo shows it: an all_reduce, under a c10d op that tells the truth."""
    events: list[Event] = []
    for index, text in enumerate(what):
        name, _, elements = text.partition(" ")
        shapes = {"Input Dims": [[int(elements)]], "Input type": ["float"]}
        shown = "all_reduce" if name == "reduce_scatter" else name
        events.append(op(f"c10d::{name}_", 10 * index, 3, **shapes))
        events.append(annotation(f"gloo:{shown}", 10 * index + 4, 5, tid=9, **shapes))
    return build(step(0, 500, 7), *events, step(500, 100, 8), **world(number, size, "gloo"))


def test_gloo_is_compared_by_its_ops() -> None:
    usual = ("allreduce 8", "reduce_scatter 64", "allgather 8")
    run = Run("job", (gloo(0, *usual), gloo(1, "allreduce 8", "allreduce 64", "allgather 8"), gloo(2, *usual)))
    assert [(row["how"], row["name"]) for row in desync(run)] == [
        ("", "reduce_scatter"),
        ("different", "all_reduce"),
        ("", "reduce_scatter"),
    ]
    assert desync(replace(run, traces=(run.traces[0], gloo(1, *usual), run.traces[2]))) == []


def broadcasting(number: int, *dtypes: str) -> Trace:
    """Two buffers of as many elements, as DDP sends them: threads of gloo run the broadcasts in this order."""
    events: list[Event] = []
    for index, dtype in enumerate(dtypes):
        shapes = {"Input Dims": [[8]], "Input type": [dtype]}
        events.append(op("c10d::broadcast_", 2 * index, 1, **{"Input Dims": [[8]], "Input type": [""]}))
        events.append(annotation("gloo:broadcast", 10 + index, 50, tid=8 + index, **shapes))
    return build(step(0, 500, 7), *events, step(500, 100, 8), **world(number, 2, "gloo"))


def test_the_order_in_which_threads_begin_is_no_desync() -> None:
    run = Run("job", (broadcasting(0, "long int", "float"), broadcasting(1, "float", "long int")))
    assert desync(run) == []


def entry(sequence: int, name: str = "all_reduce", size: int = 10, **more: Any) -> Row:
    """An entry of a flight recorder's dump."""
    return {
        "process_group": ["0", "default_pg"],
        "collective_seq_id": sequence,
        "is_p2p": False,
        "profiling_name": f"gloo:{name}",
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "time_created_ns": 1000 * sequence,
    } | more


def recorded(folder: Path, *dumps: list[Row]) -> Run:
    """A folder of traces without collectives beside flight recorders' dumps."""
    for number, entries in enumerate(dumps):
        write(folder / f"rank{number}.json", step(0, 5000), op("aten::mm", 1, 5), **world(number, len(dumps), "gloo"))
        (folder / f"rank{number}.flight.json").write_text(json.dumps({"version": "2.10", "entries": entries}), "utf-8")
    return read(folder)


USUALLY = [entry(100), entry(101, "all_gather", 20), entry(102), entry(103, "reduce_scatter", 64)]


def test_flight_recorders_tell_by_sequence_number(tmp_path: Path) -> None:
    wrong = [USUALLY[0], entry(101, "reduce", 20), *USUALLY[2:]]
    run = recorded(tmp_path, USUALLY, wrong, USUALLY)
    rows = desync(run)
    assert [(row["source"], row["group"], row["sequence"], row["rank"], row["how"], row["name"]) for row in rows] == [
        ("flight recorder", "0", 101, 0, "", "all_gather"),
        ("flight recorder", "0", 101, 1, "different", "reduce"),
        ("flight recorder", "0", 101, 2, "", "all_gather"),
    ]
    assert {(row["phase"], row["dtype"]) for row in rows} == {("forward", "float32")}


def test_a_recorder_that_began_later_or_stopped_earlier_is_no_desync(tmp_path: Path) -> None:
    assert desync(recorded(tmp_path, USUALLY, USUALLY[1:], USUALLY[:2])) == []


def test_point_to_point_entries_have_numbers_of_their_own(tmp_path: Path) -> None:
    sent = [entry(100, "send", is_p2p=True), *USUALLY]
    assert desync(recorded(tmp_path, USUALLY, sent, USUALLY)) == []


def test_groups_of_one_name_and_other_members_are_two(tmp_path: Path) -> None:
    dumps = [[entry(100, "all_reduce" if number < 2 else "broadcast")] for number in range(4)]
    assert len(desync(recorded(tmp_path, *dumps))) == 4
    for number in range(4):
        config = {"0": {"ranks": "[0, 1]" if number < 2 else "[2, 3]"}}
        dump = {"entries": dumps[number], "pg_config": config}
        (tmp_path / f"rank{number}.flight.json").write_text(json.dumps(dump), "utf-8")
    assert desync(read(tmp_path)) == []


@pytest.mark.parametrize("content", ["", "[]", '{"entries": 5}', '{"entries": [{"input_sizes": "x"}]}', "[" * 5000])
def test_a_broken_dump_is_a_doubt_and_no_fault(tmp_path: Path, content: str) -> None:
    recorded(tmp_path, USUALLY, USUALLY)
    (tmp_path / "rank1.flight.json").write_text(content, "utf-8")
    run = read(tmp_path)
    assert [caveat.code for caveat in run.caveats] == ["unreadable_flight"]
    assert desync(run) == []
