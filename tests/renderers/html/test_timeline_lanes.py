"""The timeline's data: nothing is lost in merging, lanes say what the oracle computes, places are on the shown step."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from dataclasses import fields, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from builder import Event, annotation, build, call, comms, frame, kernel, launch, memcpy, op, step, world
from catalogue import FILES
from fleet import MS, Fleet, play
from hypothesis import given
from hypothesis import strategies as st
from oracle.partition import without_once

import traceq
from traceq.analysis.registry import analyze, sheet
from traceq.claims.claim import Claim, Subject
from traceq.facts.timeline.steps import steps
from traceq.model import Events, Run, Trace
from traceq.renderers.html.flame import flame_figure
from traceq.renderers.html.markup import unbroken
from traceq.renderers.html.timeline import (
    finest_ns,
    lanes_of,
    median_step,
    merge_short,
    run_timeline,
    shown_ranks,
    traces_of_run,
)
from traceq.renderers.html.timeline_lanes import BLOCK, Lane
from traceq.renderers.html.timeline_places import place_of_finding, place_of_sync

Spans = list[tuple[int, int]]
LINE = "train.py:12 train"


def lane(spans: Spans, extra: bool = False) -> Lane:
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    cost = np.arange(len(spans)) if extra else None
    return Lane.of("lane", "host", start, end, np.arange(len(spans)), extra=cost)


@st.composite
def disjoint(draw: st.DrawFn) -> Spans:
    gaps = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=40))
    spans, time = [], draw(st.integers(-50, 50))
    for gap, length in gaps:
        spans.append((time + gap, time + gap + length))
        time += gap + length
    return spans


def merged_one_by_one(spans: Spans, finest: int) -> list[tuple[int, int, int, int]]:
    """(start, end, number, busy ns) of each span or block, by a walk."""
    result: list[tuple[int, int, int, int]] = []
    cell = None
    for start, end in spans:
        is_short = end - start < finest
        if is_short and cell == start // finest:
            first, _, num, busy = result.pop()
            result.append((first, end, num + 1, busy + end - start))
        else:
            result.append((start, end, 1, end - start))
        cell = start // finest if is_short else None
    return result


@given(spans=disjoint(), finest=st.integers(1, 64))
def test_merging_is_what_a_walk_over_the_spans_does(spans: Spans, finest: int) -> None:
    merged = merge_short(lane(spans), finest)
    columns = (merged.start, merged.end, merged.num, merged.busy)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == merged_one_by_one(spans, finest)


@given(spans=disjoint(), finest=st.integers(0, 64))
def test_merging_keeps_the_time_the_number_and_the_costs(spans: Spans, finest: int) -> None:
    merged = merge_short(lane(spans, extra=True), finest)
    assert int(merged.busy.sum()) == sum(end - start for start, end in spans)
    assert int(merged.num.sum()) == len(spans)
    assert merged.extra is not None
    assert int(merged.extra.sum()) == sum(range(len(spans)))
    assert ((merged.label == BLOCK) == (merged.num > 1)).all()
    assert {*range(len(spans))} >= {*merged.label[merged.label != BLOCK].tolist()}
    kept = {(start, end) for start, end in spans if end - start >= max(finest, 1)}
    assert kept <= set(zip(merged.start.tolist(), merged.end.tolist(), strict=True))


def test_the_resolution_is_the_finest_that_fits() -> None:
    lanes = [lane([(10 * k, 10 * k + 5) for k in range(1000)])]
    finest = finest_ns(lanes, 100)
    assert len(merge_short(lanes[0], finest)) <= 100 < len(merge_short(lanes[0], finest // 2))
    assert finest_ns(lanes, 1000) == 0


def trace_with_syncs() -> Trace:
    """Three steps of 1 ms; in the second, the median one, a sync of 300 us in a module, at a line."""
    events: list[Event] = []
    for number, length in enumerate((1000, 1100, 1200)):
        events.append(step(2000 * number, length, number))
        events += events_of_a_step(2000 * number, length, 300 if number == 1 else 100, 10 * number)
    return build(*events)


def events_of_a_step(start: int, length: int, waits: int, corr: int) -> list[Event]:
    """A matrix product, a sync that waits for it, and an addition."""
    return [
        annotation("forward", start, length - 200),
        annotation("backward", start + length - 200, 150),
        frame("train.py(12): train", start + 1, length - 10),
        frame("nn.Module: Net_0", start + 5, 500),
        op("aten::mm", start + 10, 20),
        launch(start + 12, 5, corr=corr + 1),
        kernel("void gemm<float>(int)", start + 30, 200, corr=corr + 1),
        op("aten::item", start + 40, waits + 20),
        call("cudaMemcpyAsync", start + 45, 5, corr + 2),
        memcpy("DtoH (Device -> Pinned)", start + 240, 5, corr=corr + 2),
        call("cudaStreamSynchronize", start + 50, waits),
        op("aten::add", start + 700, 20),
        launch(start + 705, 5, corr=corr + 3),
        kernel("add", start + 720, 50, corr=corr + 3),
    ]


def unpacked(markup: str) -> dict[str, Any]:
    text = markup.partition('<script type="application/json">')[2].partition("</script>")[0]
    data: dict[str, Any] = json.loads(zlib.decompress(b64decode(json.loads(unescape(text))["packed"])))
    return data


def test_the_page_holds_every_span_to_the_ns() -> None:
    recorded = trace_with_syncs()
    timeline = run_timeline(Run("run", (recorded,)), {0: "rank 0"})
    data = unpacked(timeline.figure())
    [group], zero = timeline.groups, timeline.shown[0].zero_ns
    for shown, packed in zip(group.lanes, data["groups"][0]["lanes"], strict=True):
        time, spans = 0, []
        for gap, ns in zip(packed["gap"], packed["ns"], strict=True):
            spans.append((time + gap, time := time + gap + ns))
        assert spans == [(start - zero, end - zero) for start, end in zip(shown.start, shown.end, strict=True)]
        names = [data["texts"][data["labels"][number][0]] for number in packed["label"]]
        assert all(names)
    kernels = next(each for each in data["groups"][0]["lanes"] if each["title"] == "stream 7")
    assert kernels["ns"][:3] == [200_000, 5_000, 50_000]
    assert kernels["extra"][:3] == [18_000, 195_000, 15_000]


def test_a_sync_says_its_op_line_and_what_a_step_without_it_saves() -> None:
    savings = {(0, f"dtoh|aten::item|{LINE}|Net_0|forward"): 250_000}
    timeline = run_timeline(Run("run", (trace_with_syncs(),)), {0: "rank 0"}, savings)
    data = unpacked(timeline.figure())
    syncs = next(each for each in data["groups"][0]["lanes"] if each["kind"] == "sync")
    label = [data["texts"][number] for number in data["labels"][syncs["label"][1]]]
    assert label[:-1] == ["dtoh sync: aten::item", "sync_wait", "aten::item", LINE]
    assert " 250 us shorter " in label[-1]
    assert syncs["ns"] == [105_000, 305_000, 105_000]


def test_the_copy_and_the_synchronize_of_a_sync_have_its_colour() -> None:
    timeline = run_timeline(Run("run", (trace_with_syncs(),)), {0: "rank 0"})
    colours = {label.name: label.colour for label in timeline.labels.numbers}
    assert colours["cudaMemcpyAsync"] == colours["cudaStreamSynchronize"] == "sync_wait"
    assert (colours["cudaLaunchKernel"], colours["aten::item"]) == ("call", "op")


def test_a_place_is_the_sync_of_the_shown_step() -> None:
    shown = run_timeline(Run("run", (trace_with_syncs(),)), {0: "rank 0"}).shown
    row = {"kind": "dtoh", "op": "aten::item", "line": LINE, "phase": "forward"}
    place = place_of_sync(shown, row)
    assert place is not None
    assert json.loads(place.attribute())["rank"] == 0
    assert json.loads(place.attribute(2))["timeline"] == 2
    zero = shown[0].zero_ns
    assert (place.start_ns + zero, place.end_ns + zero) == (2_045_000, 2_350_000)
    subject = Subject(kind="dtoh", op="aten::item", line=LINE)
    assert place_of_finding(shown, Claim("costly_sync", 1, subject)) == place
    for other in ({"kind": "htod"}, {"op": "aten::nonzero"}, {"line": ""}, {"phase": "backward"}):
        assert place_of_sync(shown, row | other) is None


def test_a_late_rank_leads_to_the_step_on_its_lane_and_an_op_to_its_first_call() -> None:
    shown = run_timeline(Run("run", (trace_with_syncs(),)), {0: "rank 0"}).shown
    (each,) = shown
    step_ns = tuple(ns - each.zero_ns for ns in each.step_ns)
    for code in ("straggler", "late_ranks"):
        place = place_of_finding(shown, Claim(code, 1, Subject(key="rank 0")))
        assert place is not None
        assert (place.rank, place.start_ns, place.end_ns) == (0, *step_ns)
        assert place_of_finding(shown, Claim(code, 1, Subject(key="rank 1"))) is None
    place = place_of_finding(shown, Claim("below_roof", 1, Subject(key="forward|aten::item|float32|[[1]]")))
    assert place is not None
    events = each.trace.events
    starts = [
        int(ns) - each.zero_ns
        for ns, name in zip(events.ts, events.name, strict=True)
        if events.strings[name] == "aten::item" and each.step_ns[0] <= ns < each.step_ns[1]
    ]
    assert place.start_ns == min(starts)
    assert place_of_finding(shown, Claim("below_roof", 1, Subject(key="backward|aten::item|float32|"))) is None


def test_a_number_and_its_unit_stand_on_one_line() -> None:
    text = unbroken("costs 1.20 ms (+3.1 %, 40 GB/s); 3 steps in 2 GiB, 5 more, 7 s")
    assert text.split() == text.replace("\N{NO-BREAK SPACE}", " ").split()
    assert [part for part in text.split(" ") if "\N{NO-BREAK SPACE}" in part] == [
        "1.20\N{NO-BREAK SPACE}ms",
        "(+3.1\N{NO-BREAK SPACE}%,",
        "40\N{NO-BREAK SPACE}GB/s);",
        "2\N{NO-BREAK SPACE}GiB,",
        "7\N{NO-BREAK SPACE}s",
    ]


def test_a_finding_about_a_category_leads_to_its_longest_span_in_the_step() -> None:
    timeline = run_timeline(Run("run", (trace_with_syncs(),)), {0: "rank 0"})
    place = place_of_finding(timeline.shown, Claim("host_bound", 1))
    assert place is not None
    time = next(each for each in timeline.groups[0].lanes if each.kind == "category")
    spans = zip(time.start - timeline.shown[0].zero_ns, time.end - timeline.shown[0].zero_ns, strict=True)
    assert (place.start_ns, place.end_ns) in set(spans)
    assert place_of_finding(timeline.shown, Claim("strategy", 0, Subject(key="rank 0"))) is None  # none is issued


def test_a_collective_that_is_not_predicted_and_a_cold_start_are_led_to() -> None:
    """Of three steps the middle one, which is shown, lacks a bucket: its gradients begin at 1,250 us."""
    events = []
    for number, buckets in enumerate((2, 1, 2)):
        start = 1000 * number
        events += [step(start, 1000, number), launch(start + 5, 2, number + 1), kernel("mm", start + 10, 900 + number)]
        hook = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        events += [op(hook, start + 250, 300, tid=2)]
        events += [comms("allreduce", start + 250 + 90 * n, 50, (10**7, 10**7), tid=2) for n in range(buckets)]
    trace = build(*events, **world(0, 4))
    shown = run_timeline(Run("run", (trace,)), {0: "rank 0"}).shown
    (finding,) = analyze(Run("run", (trace,)), "strategy").findings
    place = place_of_finding(shown, finding)
    assert place is not None
    assert place.start_ns + shown[0].zero_ns == 250_000 + 1_000_000 * shown[0].step
    cold = build(
        step(0, 200_000), op("aten::zeros", 10, 150_000), launch(20, 149_990, 1), kernel("fill", 150_020, 9, 1)
    )
    shown = run_timeline(Run("run", (cold,)), {0: "rank 0"}).shown
    place = place_of_finding(shown, Claim("cold_start", 1))
    assert place is not None
    assert place.end_ns - place.start_ns == 150_000_000


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("finest", [0, 50_000, 5_000_000])
def test_categories_of_the_shown_step_are_those_of_the_oracle(path: Path, finest: int) -> None:
    """Whatever is merged, the lane has the step's time to the ns, and unmerged each category's."""
    recorded = traceq.read(path).traces[0]
    shown = traces_of_run(Run("run", (recorded,)), {recorded.rank: ""}, 0)[0]
    start, end = steps(recorded).window[shown.step].tolist()
    window = replace(shown, start_ns=start - shown.zero_ns, end_ns=end - shown.zero_ns)
    [group], labels = lanes_of([window], {})
    [time] = [each for each in group.lanes if each.kind == "category"]
    cells = oracle.answer(path)["partition"][shown.step]
    merged = merge_short(time, finest)
    assert int(merged.busy.sum()) == sum(cells.values()) == end - start
    if not finest:
        sums: dict[str, int] = {}
        names = [label.colour for label in labels.numbers]
        for label, ns in zip(time.label.tolist(), time.busy.tolist(), strict=True):
            sums[names[label]] = sums.get(names[label], 0) + ns
        expected: dict[str, int] = {}
        for (_, category), ns in cells.items():
            expected[category] = expected.get(category, 0) + ns
        of_lane, of_oracle = without_once(
            {("", name): ns for name, ns in sums.items()}, {("", name): ns for name, ns in expected.items()}
        )
        assert of_lane == of_oracle


def repeated(trace: Trace, times: int) -> Trace:
    """The same events again and again, one after the other."""
    events, shift = trace.events, int(trace.events.end.max() - trace.events.ts.min())
    columns = {each.name: getattr(events, each.name) for each in fields(Events)}
    repeat = {
        name: np.tile(column, times)
        for name, column in columns.items()
        if isinstance(column, np.ndarray) and len(column) == len(events)
    }
    number = np.repeat(np.arange(times), len(events))
    correlation = np.where(repeat["correlation"] > 0, repeat["correlation"] + 100 * number, repeat["correlation"])
    later = {"ts": repeat["ts"] + shift * number, "correlation": correlation}
    return replace(trace, events=replace(events, **(repeat | later)))


@pytest.mark.slow
def test_a_million_events_are_half_a_megabyte() -> None:
    recorded = repeated(build(*events_of_a_step(0, 1000, 300, 0)), 72_000)
    assert len(recorded.events) > 1_000_000
    timeline = run_timeline(Run("run", (recorded,)), {0: "rank 0"})
    drawn = sum(len(each) for each in timeline.groups[0].lanes)
    assert timeline.num_spans > 500_000 > 60_000 >= drawn
    assert len(timeline.figure()) + len(flame_figure(recorded, "rank 0")) < 600_000
    assert f"{timeline.num_spans:,} spans as {drawn:,}" in timeline.notes[0]


@pytest.mark.slow
def test_of_many_ranks_the_slowest_the_median_and_the_fastest_are_shown(tmp_path: Path) -> None:
    fleet = Fleet(12, layers=1, steps=3, late_ranks=(9,), late_ns=30 * MS)
    play(fleet).write(tmp_path / "job")
    run = traceq.read(tmp_path / "job")
    titles = shown_ranks(sheet(run))
    assert next(iter(titles)) == 9
    assert titles[9].startswith("rank 9 · slowest")
    assert len(titles) == 3
    timeline = run_timeline(run, titles)
    first, *others = timeline.shown
    for other in others:
        ours, theirs = (steps(each.trace).window[each.step, 0] - each.zero_ns for each in (first, other))
        assert abs(int(ours - theirs)) <= 31 * MS
    assert {each.step for each in timeline.shown} == {median_step(first.trace)}
