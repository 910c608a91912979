"""Predictions: exact on a few lines, the same numbers as `show`, refused where they would rest on nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from builder import Event, annotation, build, call, comms, frame, kernel, launch, op, row, step, table, world
from paths import ROOT, TRACES

from traceq.analysis.registry import analyze
from traceq.errors import UsageFault
from traceq.model import Run, Trace
from traceq.runs.read import read
from traceq.whatif.answers import first_sentence, held_lines
from traceq.whatif.intervention import Intervention
from traceq.whatif.interventions import (
    BalancedLoader,
    CommBandwidth,
    HiddenComm,
    NoLaunchLatency,
    Scaled,
    WithoutLoader,
    WithoutStraggler,
    WithoutSyncs,
)
from traceq.whatif.job_replay import CannotReplay, job_replay
from traceq.whatif.predict import best_changes, candidates, predict

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
SYNC_AND_KERNEL = (
    *(step(0, 55), op("aten::mm", 4, 4), launch(5, 2, 1), kernel("gemm_a", 10, 10, 1)),
    *(call("cudaDeviceSynchronize", 15, 25), op("aten::add", 44, 4), launch(45, 2, 2), kernel("add_b", 50, 10, 2)),
)


def run_of(*events: Event) -> Run:
    return Run("trace", (build(*events),))


def saved_us(run: Run, *interventions: Intervention) -> tuple[float, float]:
    change = predict(job_replay(run), interventions).together
    return change.least_saved_ns / 1000, change.most_saved_ns / 1000


def test_a_kernel_at_half_its_time_saves_the_half_that_the_host_waited_for() -> None:
    """It ends at 15, when the host begins to wait, which then takes as long as it did to return."""
    assert saved_us(run_of(*SYNC_AND_KERNEL), Scaled("gemm_a", 0.5)) == (5, 5)
    assert saved_us(run_of(*SYNC_AND_KERNEL), Scaled("aten::mm", 0.5)) == (5, 5)
    assert saved_us(run_of(*SYNC_AND_KERNEL), Scaled("*_b", 0)) == (5, 5)  # the host ends at 55
    assert saved_us(run_of(*SYNC_AND_KERNEL), Scaled("*", 2)) == (-20, -20)


def test_interventions_together_are_not_their_sum() -> None:
    """Without the wait the host is through at 30; with a kernel of no time b still starts when it is launched."""
    run = run_of(*SYNC_AND_KERNEL)
    assert saved_us(run, WithoutSyncs()) == (25, 25)
    assert saved_us(run, WithoutSyncs(), Scaled("gemm_a", 0)) == (25, 25)
    assert saved_us(run, WithoutSyncs(), Scaled("add_b", 0.5)) == (30, 30)


def test_time_on_the_host_has_names_where_no_device_works() -> None:
    """A phase of 40, in which the host waits for nothing, at a quarter of its time."""
    events = step(0, 100), annotation("prepare", 10, 40), op("aten::mm", 60, 20)
    assert saved_us(run_of(*events), Scaled("prepare", 0.25)) == (30, 30)
    assert saved_us(run_of(*events), Scaled("aten::mm", 0)) == (20, 20)


def test_launches_of_no_time_save_at_least_their_calls_and_at_most_the_host() -> None:
    """Kernels of 2 every 20; a launch takes 5 and 5 more until it runs; the host does the rest."""
    events = [step(0, 200)]
    for number in range(10):
        events += [launch(20 * number + 5, 5, number + 1), kernel("k", 20 * number + 15, 2, number + 1)]
    least, most = saved_us(run_of(*events), NoLaunchLatency())
    assert least == pytest.approx(50, abs=6)
    assert most == pytest.approx(180, abs=20)


def test_launches_of_no_time_still_load_a_kernel_once() -> None:
    """As above, but the sixth launch loads another kernel for 2,000, which no graph saves."""
    events = [step(0, 2200)]
    for number in range(10):
        start, took, name = 20 * number + 2000 * (number > 5), 2005 if number == 5 else 5, "kj"[number == 5]
        events += [launch(start + 5, took, number + 1), kernel(name, start + took + 10, 2, number + 1)]
    least, most = saved_us(run_of(*events), NoLaunchLatency())
    assert least == pytest.approx(45, abs=6)
    assert most == pytest.approx(180, abs=20)


@pytest.mark.parametrize("name", ["Activity Buffer Request", "Lazy Function Loading", "Buffer Flush"])
def test_launches_of_no_time_leave_what_the_profiler_holds_up_in_an_op(name: str) -> None:
    """As above, but the first op takes 2,000 more, in which its thread is held up; a flush is on another thread."""
    events = [step(0, 2200), op("aten::mm", 1, 2008), row("overhead", name, 3, 2000, tid=0)]
    for number in range(10):
        start = 20 * number + 2000
        events += [launch(start + 5, 5, number + 1), kernel("k", start + 15, 2, number + 1)]
    least, most = saved_us(run_of(*events), NoLaunchLatency())
    assert least == pytest.approx(50, abs=6)
    assert most == pytest.approx(2180 if name == "Buffer Flush" else 180, abs=20)


def meeting(number: int, start: int, end: int) -> list[Event]:
    reported = {"Process Group Name": "0", "Seq": number}
    issued = comms("allreduce", 20 + 4 * number, 3, (500, 500), **reported)
    return [issued, launch(21 + 4 * number, 1, 100 + number), kernel(NCCL, start, end - start, 100 + number)]


def rank(number: int, *events: Event) -> Trace:
    return build(step(0, 50), *events, **world(number, 2))


MEET = (*meeting(1, 100, 110), *meeting(2, 110, 120))
JOB = Run(
    "job",
    (
        rank(0, launch(2, 1, 1), kernel("short", 7, 20, 1), *meeting(0, 30, 100), *MEET),
        rank(1, launch(2, 1, 1), kernel("long", 7, 80, 1), *meeting(0, 90, 100), *MEET),
    ),
)


def test_a_shorter_kernel_of_the_late_rank_shortens_what_the_others_wait() -> None:
    """It ends at 47 instead of 87, and is still last to come; that of the early rank changes nothing."""
    assert saved_us(JOB, Scaled("long", 0.5)) == (40, 40)
    assert saved_us(JOB, Scaled("short", 0)) == (0, 0)
    assert saved_us(JOB, Scaled("long", 0)) == (60, 60)  # rank 0 comes at 30


def test_no_rank_waits_for_a_straggler() -> None:
    assert saved_us(JOB, WithoutStraggler((1,))) == (60, 60)
    assert saved_us(JOB, WithoutStraggler((0,))) == (0, 0)


def stragglers_of_show(run: Run) -> tuple[int, ...]:
    return tuple(row["rank"] for row in table(run, "ranks") if row["verdict"] == "straggler")


def test_the_straggler_is_the_one_that_show_names() -> None:
    """Without a rank it is never another one than there, and where there is none the question has no answer."""
    experts = read(ROOT / "fixtures" / "kinds" / "experts")
    assert stragglers_of_show(experts) == (1,)
    assert WithoutStraggler().resolved(job_replay(experts)) == WithoutStraggler((1,))  # of which nothing is gained
    even = Run("job", tuple(rank(number, *meeting(0, 90, 100), *MEET) for number in (0, 1)))
    assert stragglers_of_show(even) == ()
    with pytest.raises(UsageFault, match="no rank is a straggler: "):
        predict(job_replay(even), [WithoutStraggler()])
    assert not any(isinstance(each, WithoutStraggler) for each in candidates(job_replay(even), []))
    with pytest.raises(UsageFault, match=r"--without-straggler=0,1: .* all ranks"):
        predict(job_replay(even), [WithoutStraggler((0, 1))])


@pytest.mark.parametrize("name", ["nanogpt-h100-8r", "torchrec-v100-straggler-4r", "dlrm-v100-8r"])
def test_the_straggler_of_a_real_job_is_the_one_that_show_names(name: str) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip(f"no {TRACES}")
    run = read(TRACES / name)
    named = stragglers_of_show(run)
    if named:
        assert WithoutStraggler().resolved(job_replay(run)).ranks == named
    else:
        with pytest.raises(UsageFault, match="no rank is a straggler: "):
            WithoutStraggler().resolved(job_replay(run))


def test_several_ranks_are_left_out_together() -> None:
    """Ranks 1 and 2 come at 90 and 80: without one of them the other is waited for, until without both rank 0 is."""
    late = [rank(n, launch(2, 1, 1), kernel("k", 7, ns, 1), *meeting(0, ns + 10, 100), *MEET) for n, ns in LATE]
    run = Run("job", (JOB.traces[0], *late))
    assert [saved_us(run, WithoutStraggler(ranks))[0] for ranks in ((1,), (2,), (1, 2))] == [10, 0, 60]


LATE = [(1, 80), (2, 70)]


def loading(iterator: str, *batches: int) -> Run:
    """Ranks whose hosts wait so long for a batch in each of three steps, then block until 130, and meet at 150."""
    traces = []
    for number, batch in enumerate(batches):
        rows: list[Event] = []
        for n in range(3):
            begin, a, b = 200 * n, 2 * n + 1, 2 * n + 2
            reported = {"Process Group Name": "0", "Seq": n}
            rows += [step(begin, 200, n), annotation(f"enumerate(DataLoader)#_{iterator}.__next__", begin + 2, batch)]
            rows += [launch(begin + batch + 5, 2, a), kernel("a", begin + batch + 10, 5, a)]
            rows += [call("cudaDeviceSynchronize", begin + batch + 20, 110 - batch)]
            rows += [comms("allreduce", begin + 140, 5, (500, 500), **reported), launch(begin + 141, 2, b)]
            rows += [kernel(NCCL, begin + 150, 10, b)]
        traces.append(build(*rows, **world(number, len(batches))))
    return Run("job", tuple(traces))


def test_ranks_that_ask_earlier_for_late_batches_get_them_no_earlier() -> None:
    """Batches of workers are held fixed, at least, unless the loader is what changes."""
    on_time, late = (loading(name, 60, 40) for name in ("SingleProcessDataLoaderIter", "MultiProcessingDataLoaderIter"))
    for change in (WithoutLoader(), BalancedLoader()):
        assert saved_us(late, change) == saved_us(on_time, change)
    least, most = saved_us(on_time, WithoutSyncs())
    assert least == most == 50
    assert saved_us(late, WithoutSyncs()) == (pytest.approx(most / 3, abs=0.01), most)  # of the last step


def test_transfers_are_hidden_or_faster_behind_the_last_rank_that_comes() -> None:
    """Each transfer takes 10 once both are there; as all are of one kind, 10 may be latency alone."""
    assert saved_us(JOB, HiddenComm()) == (30, 30)
    assert saved_us(JOB, CommBandwidth(2)) == (0, 15)
    assert saved_us(JOB, CommBandwidth(0.5)) == (-30, 0)
    assert saved_us(JOB, CommBandwidth(1)) == (0, 0)


@pytest.mark.parametrize(
    ("intervention", "problem"),
    [
        (WithoutStraggler((7,)), "--without-straggler=7: .*; the ranks: 0-1"),
        (WithoutSyncs(), "--without syncs: .* nowhere"),
        (WithoutSyncs("a.py:3"), "--without sync:a.py:3: .*: none"),
        (WithoutLoader(), "--without loader: no wait"),
        (BalancedLoader(), "--balance-loader: no step"),
        (Scaled("lon", 0.5), "--scale lon: .*; the nearest: long"),
    ],
)
def test_what_is_not_there_is_named(intervention: Intervention, problem: str) -> None:
    with pytest.raises(UsageFault, match=f"^{problem}"):
        predict(job_replay(JOB), [intervention])


@pytest.mark.parametrize("intervention", [CommBandwidth(2), WithoutStraggler(), BalancedLoader()])
def test_one_rank_is_not_asked_about_others(intervention: Intervention) -> None:
    with pytest.raises(UsageFault, match="one rank"):
        predict(job_replay(run_of(*SYNC_AND_KERNEL)), [intervention])


def test_a_step_of_delays_without_a_cause_is_refused_and_the_part_named() -> None:
    late = run_of(step(0, 50), launch(5, 2, 1), kernel("a", 400, 100, 1))
    with pytest.raises(CannotReplay) as refused:
        predict(job_replay(late), [Scaled("a", 0.5)], "x.json")
    assert str(refused.value).startswith("x.json: 72.0 % of the step of 500 ")
    assert ": 360 us between launch, " in str(refused.value)


def test_ranks_whose_clocks_cannot_be_compared_are_refused() -> None:
    apart = [event for n in range(4) for event in meeting(n, 90 + 20 * n, 100 + 20 * n + 9 * (n % 2))]
    even = [event for n in range(4) for event in meeting(n, 90 + 20 * n, 100 + 20 * n)]
    with pytest.raises(CannotReplay, match=r"clocks cannot be compared; .* --ranks"):
        job_replay(Run("job", (rank(0, *even), rank(1, *apart))))


def test_a_message_on_the_path_that_is_not_matched_is_refused_and_named() -> None:
    message = "ncclDevKernel_SendRecv(x)"
    lone = rank(1, launch(2, 1, 1), kernel(message, 7, 80, 1), *meeting(0, 90, 100), *MEET)
    with pytest.raises(CannotReplay, match=r"66\.7 % .* 80\.0 us in messages and collectives"):
        predict(job_replay(Run("job", (JOB.traces[0], lone))), [HiddenComm()])


def on_cpu(number: int, *events: Event) -> Trace:
    """A rank without a device, whose last 50 of 1000 are an all-reduce that both ranks begin at 950."""
    reduce = annotation("gloo:all_reduce", 950, 50, tid=9)
    return build(step(0, 1000), *events, reduce, **world(number, 2, "gloo"))


def test_without_a_device_the_host_waits_for_collectives_and_messages_are_refused() -> None:
    """Both compute from 100 on, to 600 and 800: rank 0, which saves less, then decides when both meet.

    What a wait for a message would become is not known.
    """
    run = Run("job", (on_cpu(0, op("aten::mm", 100, 500)), on_cpu(1, op("aten::mm", 100, 700))))
    assert saved_us(run, Scaled("aten::mm", 0.5)) == (250, 250)
    assert saved_us(run, HiddenComm()) == (50, 50)
    with pytest.raises(UsageFault, match=r"without a device, .* all ranks together"):
        predict(job_replay(Run("job", run.traces[:1])), [HiddenComm()])
    waits = Run("job", (on_cpu(0, annotation("gloo:recv", 100, 500, tid=9)), on_cpu(1, op("aten::mm", 100, 700))))
    with pytest.raises(CannotReplay, match=r"50\.0 % .* 500 us in messages and collectives"):
        predict(job_replay(waits), [HiddenComm()])


def assert_replays(run: Run) -> None:
    """With nothing changed each moment is when it was recorded, on the clock of its rank."""
    replay = job_replay(run)
    time, first = replay.graph.times(replay.observed), 0
    for part in replay.parts:
        shift = (time[first : first + len(part.time)] - part.time)[1:]
        assert shift.min() == shift.max()
        first += len(part.time)


def test_with_nothing_changed_a_job_is_as_it_was() -> None:
    assert_replays(JOB)
    assert_replays(run_of(*SYNC_AND_KERNEL))
    assert_replays(read(ROOT / "fixtures" / "outlier_ab" / "on"))  # without a device


@pytest.mark.parametrize(
    "name", ["nanogpt-h100-8r", "torchrec-v100-straggler-4r", "dlrm-v100-8r", "torchrec-v100-ab/a"]
)
def test_with_nothing_changed_a_real_job_is_as_it_was(name: str) -> None:
    if not (TRACES / name).is_dir():
        pytest.skip(f"no {TRACES}")
    assert_replays(read(TRACES / name))


def test_the_sentence_has_the_range_and_the_share() -> None:
    prediction = predict(job_replay(JOB), [CommBandwidth(2), WithoutStraggler((1,))])
    assert (prediction.together.least_ns, prediction.together.most_ns) == (50_000, 60_000)
    assert first_sentence(prediction).endswith(" 120 us (-58.3 to -50.0 %).")
    nothing = predict(job_replay(JOB), [Scaled("short", 0.5)])
    assert (nothing.together.least_ns, nothing.together.most_ns) == (120_000, 120_000)
    assert first_sentence(nothing).endswith(" it does, 120 us.")
    assert [each.option for each in prediction.each] == ["--comm-bandwidth 2x", "--without-straggler=1"]
    assert held_lines([prediction])[1].startswith("One traced step of ranks 0-1: ")


def test_how_a_step_is_measured_is_said_where_show_has_another_one() -> None:
    """Work of the first step ends after that of the second, so windows are the host's; else both are the same."""
    begun = step(0, 10), launch(2, 1, 1), kernel("a", 3, 60, 1)
    run = run_of(*begun, step(10, 10, 1), launch(12, 1, 2), kernel("b", 13, 9, 2))
    (*_, line) = held_lines([predict(job_replay(run), [Scaled("a", 0.5)])])
    assert re.findall(r"[\d.]+ us", line) == ["31.5 us", "10.0 us"]
    assert "`show`" in line
    same = read(ROOT / "fixtures" / "example" / "job")
    assert len(held_lines([predict(job_replay(same), [HiddenComm()])])) == 2


def test_allocations_among_the_syncs_are_named() -> None:
    alloc = call("cudaMalloc", 20, 10)
    run = run_of(step(0, 55), launch(5, 2, 1), kernel("a", 10, 30, 1), alloc, call("cudaDeviceSynchronize", 35, 10))
    (_, held) = predict(job_replay(run), [WithoutSyncs()]).held
    assert re.search(r" 1 of these waits .* \(cudaMalloc\)", held)
    assert "allocation" not in " ".join(predict(job_replay(run_of(*SYNC_AND_KERNEL)), [WithoutSyncs()]).held)


def test_ranks_that_were_not_read_are_named() -> None:
    one = predict(job_replay(Run("job", JOB.traces[:1])), [HiddenComm()])
    assert one.held[-1].startswith("1 of 2 ranks were not read")
    assert not any("not read" in text for text in predict(job_replay(JOB), [HiddenComm()]).held)


def test_without_a_question_it_is_what_gains_most() -> None:
    options = [each.together.option for each in best_changes(job_replay(JOB))]
    assert options == ["--hide-comm", "--no-launch-latency"]


def synced_at(line: int, start: int, lasts: int, corr: int) -> list[Event]:
    """A sync at a line of train.py, for a kernel that ends with it."""
    return [
        frame(f"train.py({line}): step", start, lasts + 9),
        launch(start + 1, 2, corr),
        kernel("k", start + 6, lasts - 3, corr),
        call("cudaDeviceSynchronize", start + 4, lasts),
    ]


def test_all_syncs_are_not_named_beside_the_line_that_has_nearly_all_of_their_cost() -> None:
    rows = [step(0, 9000), launch(8900, 2, 3), kernel("last", 8910, 50, 3)]
    run = run_of(*rows, *synced_at(77, 100, 12, 2), *synced_at(31, 200, 4000, 1))
    lines = [saved_us(run, WithoutSyncs(line))[0] for line in ("train.py:31", "")]
    assert 0 < lines[1] - lines[0] < 18
    options = [each.together.option for each in best_changes(job_replay(run))]
    assert [option for option in options if "sync" in option] == ["--without sync:train.py:31"]


PATHS = [
    *(ROOT / "fixtures" / "example" / "job" / f"rank{number}.json" for number in range(2)),
    *(TRACES / name for name in ("ep-moe-b200-ab/ref.json.gz", "resnet50-2021/workers0.json.gz")),
    *(TRACES / name for name in ("qwen-h100", "owlv2", "hta-diff")),
]


def traces_at(paths: Sequence[object]) -> list[Trace]:
    return [trace for path in paths for trace in read(str(path)).traces]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "/".join(path.parts[-2:]))
def test_one_number_has_one_meaning_here_and_in_show(path: object) -> None:
    """Without all syncs, without those of a line, without the loader and communication: the numbers of `show`."""
    from pathlib import Path

    assert isinstance(path, Path)
    if not path.exists():
        pytest.skip(f"no {TRACES}")
    files = sorted(path.rglob("*.json*")) if path.is_dir() else [path]
    num = 0
    for trace in traces_at(files[:2]):
        run = Run(str(path), (trace,))
        replay = job_replay(run)
        shown = {row["removed"]: (row["saved_ns"], row["most_saved_ns"]) for row in table(run, "replay")}
        syncs = [row for name, row in shown.items() if name.endswith("syncs")]
        questions: list[tuple[Intervention, tuple[int, int]]] = []
        questions += [(WithoutSyncs(), shown.get("all syncs", syncs[-1]))] if syncs else []
        questions += [(WithoutLoader(), shown["data loader"])] if "data loader" in shown else []
        questions += [(HiddenComm(), shown["communication"])] if "communication" in shown else []
        rows = [row for row in table(run, "syncs") if row["line"]]
        places = [row["line"].partition(" ")[0] for row in rows]
        questions += [
            (WithoutSyncs(place), (row["replay_ns"], row["most_replay_ns"]))
            for place, row in zip(places, rows, strict=True)
            if places.count(place) == 1 and row["replay_ns"]
        ]
        for intervention, wanted in questions:
            change = predict(replay, [intervention]).together
            assert (change.least_saved_ns, change.most_saved_ns) == wanted, intervention
            num += 1
        assert round(float(np.mean(replay.observed_ns))) == shown_step(run)
    assert num


def shown_step(run: Run) -> int:
    row = next(row for row in table(run, "replay") if row["removed"] == "nothing")
    return int(row["saved_ns"] + row["step_ns"])


def test_show_has_what_gains_most_of_a_trace_that_can_be_replayed() -> None:
    (view, _) = analyze(run_of(*SYNC_AND_KERNEL), "replay").views
    saved = [(row["option"], row["saved_ns"]) for row in view.to_dicts()]
    assert (view.key, saved) == ("whatif", [("--without syncs", 25_000), ("--no-launch-latency", 10_000)])
    late = run_of(step(0, 50), call("cudaDeviceSynchronize", 10, 30), launch(45, 2, 1), kernel("a", 400, 100, 1))
    refused = analyze(late, "replay")
    assert (refused.views, len(table(late, "replay"))) == ((), 1)
    (caveat,) = refused.caveats
    assert (caveat.code, caveat.text.partition(" of ")[0]) == ("not_replayed", "64.0 %")
    of_ranks = [view for view in analyze(JOB, "replay").views if view.key == "whatif"]
    assert [row["option"] for view in of_ranks for row in view.to_dicts()] == ["--hide-comm", "--no-launch-latency"]


def test_launches_of_a_host_whose_ops_are_not_recorded_may_not_be_all_that_it_does() -> None:
    events = launch(0, 5, 1), kernel("k", 10, 2, 1), launch(100, 5, 2), kernel("k", 110, 2, 2)
    for ops, is_asked in ((), False), ([op("aten::mm", 0, 6)], True):
        replay = job_replay(run_of(*ops, *events))
        assert [each.together.option for each in best_changes(replay)] == ["--no-launch-latency"] * is_asked
        (held, *_) = held_lines([predict(replay, [NoLaunchLatency()])])
        assert ("host does between its calls" in held) != is_asked


@pytest.mark.parametrize(
    ("name", "took", "with_call", "stays"),
    [
        ("aten::randn", 500, False, True),
        ("aten::randn", 50, False, False),  # no longer than what some launches need
        ("aten::randn", 500, True, False),
        ("aten::split_with_sizes", 500, False, False),
        ("aten::empty_strided", 500, False, False),
        ("Torch-Compiled Region: 0/0", 500, False, False),
    ],
)
def test_launches_of_no_time_leave_what_computes_on_the_cpu(name: str, took: int, with_call: bool, stays: bool) -> None:
    """The op runs between two launches, of kernels of 2 that the device waits for."""
    events = [step(0, 1000), op(name, 100, took), *([call("cudaGetDevice", 200, 1)] * with_call)]
    for number, start in enumerate((10, 700), 1):
        events += [op("aten::add", start, 8), launch(start + 2, 5, number), kernel("k", start + 10, 2, number)]
    _, most = saved_us(run_of(*events), NoLaunchLatency())
    assert most == pytest.approx(995 - took * stays, abs=20)


def test_a_step_of_which_nothing_is_replayed_is_refused() -> None:
    """Launches are missing: the step waits for work that the trace does not show."""
    late = kernel("b", 157_404, 4, 2), kernel("c", 274_387, 4, 3)
    steps = step(0, 100_298), step(100_343, 122_149, 1)
    replay = job_replay(Run("", (build(*steps, kernel("a", 46_122, 2, 1), launch(100_228, 4, 2), *late),)))
    assert replay.observed_ns.tolist() == [0]
    with pytest.raises(CannotReplay, match="of the step of 0 cannot be replayed"):
        predict(replay, [NoLaunchLatency()])
