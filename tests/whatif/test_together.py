"""Changes that are combined, on hosts of several threads, on ranks that do not agree, and in the right words."""

from __future__ import annotations

import numpy as np
import pytest
from builder import Event, build, call, comms, kernel, launch, op, step, world

from traceq.facts.timeline.active_thread import thread_chains
from traceq.model import Run, Trace
from traceq.whatif.answers import first_sentence
from traceq.whatif.intervention import Intervention
from traceq.whatif.interventions import CommBandwidth, HiddenComm, NoLaunchLatency, Scaled, WithoutStraggler
from traceq.whatif.job_replay import CannotReplay, job_replay
from traceq.whatif.predict import predict

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def saved_us(run: Run, *interventions: Intervention) -> tuple[float, float]:
    change = predict(job_replay(run), interventions).together
    return change.least_saved_ns / 1000, change.most_saved_ns / 1000


def run_of(*events: Event) -> Run:
    return Run("trace", (build(*events),))


HOST = run_of(step(0, 100), op("aten::mm", 10, 40), op("aten::add", 60, 20))
"""A host without a device: 40 us in one op, 20 in another."""


@pytest.mark.parametrize(
    ("scaled", "saved"),
    [
        ([("aten::mm", 0.5), ("aten::*", 0.5)], 30 + 10),
        ([("aten::*", 0.5), ("aten::mm", 0.5)], 30 + 10),
        ([("aten::mm", 0), ("aten::*", 0)], 60),
        ([("aten::mm", 2), ("aten::*", 0.5)], 10),
    ],
)
def test_what_is_scaled_twice_takes_the_product_of_its_time(scaled: list[tuple[str, float]], saved: float) -> None:
    assert saved_us(HOST, *(Scaled(*each) for each in scaled)) == (saved, saved)


def side_by_side() -> list[Event]:
    """Two threads that launch on streams of their own: the main one for 90 us, the other one for 60."""
    events = [step(0, 100)]
    for n in range(10):
        events += [op("aten::main", 9 * n, 8), launch(9 * n + 4, 1, n + 1), kernel("m", 9 * n + 6, 2, n + 1)]
        other = {"tid": 9}
        events += [op("aten::other", 6 * n, 5, **other), launch(6 * n + 2, 1, n + 51, **other)]
        events += [kernel("o", 6 * n + 4, 1, n + 51, stream=8)]
    return events


def test_time_of_a_thread_is_none_of_one_that_runs_beside_it() -> None:
    """Only the main thread makes the step as long as it is: 80 us of it are its ops."""
    run = run_of(*side_by_side())
    assert len(thread_chains(run.traces[0])) == 2
    assert saved_us(run, Scaled("aten::other", 0)) == (0, 0)
    assert (
        saved_us(run, NoLaunchLatency())[0]
        == saved_us(run_of(*(e for e in side_by_side() if e.get("tid") != 9)), NoLaunchLatency())[0]
    )


def meeting(number: int, start: int, end: int, issued: int = -1) -> list[Event]:
    issued = 20 + 4 * number if issued < 0 else issued
    reported = {"Process Group Name": "0", "Seq": number}
    event = comms("allreduce", issued, 3, (500, 500), **reported)
    return [event, launch(issued + 1, 1, 100 + number), kernel(NCCL, start, end - start, 100 + number)]


def rank(number: int, *events: Event, num_ranks: int = 2) -> Trace:
    return build(step(0, 50), *events, **world(number, num_ranks))


def job(transfers: tuple[int, ...]) -> Run:
    """Ranks that meet at 40 us, and whose transfers of some us follow each other."""
    ends = 40 + np.cumsum(transfers)
    pairs = list(enumerate(zip([40, *ends.tolist()][:-1], ends.tolist(), strict=True)))
    return Run("job", tuple(rank(r, *(e for n, span in pairs for e in meeting(n, *span))) for r in (0, 1)))


def test_a_faster_transfer_keeps_what_other_changes_have_left_of_it() -> None:
    """Three transfers of 10, 10 and 40: all 60 at twice the bandwidth save at most 30, and nothing that is hidden."""
    run = job((10, 10, 40))
    for changes in ([HiddenComm(), CommBandwidth(2)], [CommBandwidth(2), HiddenComm()]):
        assert saved_us(run, *changes) == saved_us(run, HiddenComm())
    half = Scaled("nccl*", 0.5)
    for changes in ([half, CommBandwidth(2)], [CommBandwidth(2), half]):
        assert saved_us(run, *changes)[1] == pytest.approx(45)
    assert saved_us(run, CommBandwidth(2)) == (15, 30)


def test_what_becomes_longer_may_do_so_by_more_than_the_recording_shows() -> None:
    """B follows a on its stream, and starts 80 us after its launch for no recorded reason, of which 35 are explained.

    If a ends at 90 instead of 20, b is as late as it was, or by 26.5 later than at 65.
    """
    events = step(0, 40), launch(5, 2, 1), kernel("a", 10, 10, 1), launch(30, 2, 2), kernel("b", 110, 1000, 2)
    assert saved_us(run_of(*events), Scaled("a", 8)) == (-26.5, 0)
    run = job((10, 10, 40))
    assert saved_us(run, CommBandwidth(0.5)) == (-60, -30)


def test_a_range_that_includes_nothing_is_no_noise_of_a_single_step() -> None:
    transfers = job((10, 10, 10))
    sentence = first_sentence(predict(job_replay(transfers), [CommBandwidth(2)]))
    assert " 55.0 to 70.0 us instead of 70.0 us: " in sentence
    assert "nothing" in sentence
    assert "noise" not in sentence


def test_no_step_becomes_longer_because_no_rank_waits() -> None:
    """Rank 1 begins its step 40 us late, is waited for from 88 to 90, and decides when the step begins."""
    others = [event for n in (1, 2) for event in meeting(n, 90 + 10 * n, 100 + 10 * n, 51 + 5 * n)]
    late = [step(40, 50), launch(42, 2, 1), kernel("k", 47, 43, 1), *meeting(0, 90, 100, 50), *others]
    early = [step(0, 90), launch(2, 1, 1), kernel("k", 7, 81, 1), *meeting(0, 88, 100, 20), *others]
    run = Run("job", (build(*early, **world(0, 2)), build(*late, **world(1, 2))))
    assert round(float(job_replay(run).observed_ns.mean())) == 80_000  # rank 0 alone has 118 us without its wait
    assert saved_us(run, WithoutStraggler((1,))) == (0, 0)


def test_collectives_that_wait_for_each_other_in_a_circle_are_refused() -> None:
    """Of ten at one time rank 0 runs the first before the second on one stream, rank 1 the second before the first."""
    after = [[e for n in range(2, 10) for e in meeting(n, 100 * n + waits, 100 * n + 100)] for waits in (0, 80)]
    a = [*meeting(0, 100, 110), *meeting(1, 110, 120)]
    b = [*meeting(1, 100, 110, 20), *meeting(0, 110, 120, 24)]
    with pytest.raises(CannotReplay, match="in a circle"):
        job_replay(Run("job", (rank(0, *a, *after[0]), rank(1, *b, *after[1]))))


def test_a_job_of_devices_without_their_rows_is_refused() -> None:
    """Of what it waits for nothing is recorded: the launches are, and no kernel."""
    bare = run_of(step(0, 100), op("aten::mm", 10, 40), launch(20, 2, 1), call("cudaDeviceSynchronize", 60, 30))
    with pytest.raises(CannotReplay, match="device rows of rank 0"):
        job_replay(bare)


def counted_steps(*numbers: int, long: int) -> list[Event]:
    """Steps of 100 us: a kernel of 50 us, of 80 in the step `long`, and an all-reduce up to 95."""
    events: list[Event] = []
    for place, number in enumerate(numbers):
        t = 100 * place
        took = 80 if number == long else 50
        events += [step(t, 100, number), launch(t + 1, 1, number + 1), kernel("k", t + 5, took, number + 1)]
        reported = {"Process Group Name": "0", "Seq": number}
        events += [comms("allreduce", t + 10, 3, (500, 500), **reported), launch(t + 11, 1, 100 + number)]
        events += [kernel(NCCL, t + 85, 10, 100 + number), call("cudaDeviceSynchronize", t + 20, 76)]
    return events


def test_only_steps_that_all_ranks_counted_are_changed() -> None:
    """Rank 0 has steps 0-3, rank 1 only 1-3: nothing that is done in step 0 is credited to them."""
    ranks = counted_steps(0, 1, 2, 3, long=-1), [row for row in counted_steps(0, 1, 2, 3, long=-1) if row["ts"] >= 100]
    run = Run("job", tuple(build(*events, **world(number, 2)) for number, events in enumerate(ranks)))
    replay = job_replay(run)
    assert [part.counted_steps.tolist() for part in replay.parts] == [[False, True, True, True], [True, True, True]]
    assert replay.num_steps == 3


def test_steps_whose_numbers_begin_again_are_paired_in_their_order() -> None:
    """Two windows of a profiler that counts from 0 in each."""

    def twice(number: int) -> Trace:
        events = counted_steps(0, 1, 2, 3, long=-1)
        for row in events:
            if row["name"].startswith("ProfilerStep#"):
                row["name"] = f"ProfilerStep#{int(row['name'][-1]) % 2}"
        return build(*events, **world(number, 2))

    assert job_replay(Run("job", (twice(0), twice(1)))).num_steps == 4


def test_ranks_of_which_only_some_have_step_marks_are_refused() -> None:
    bare = [row for row in counted_steps(0, 1, long=-1) if not row["name"].startswith("ProfilerStep#")]
    traces = build(*counted_steps(0, 1, long=-1), **world(0, 2)), build(*bare, **world(1, 2))
    with pytest.raises(CannotReplay, match="some ranks have step marks"):
        job_replay(Run("job", traces))


def test_another_recording_differs_by_the_noise_of_both() -> None:
    """Of steps of 100, 104, 96 and 100 us each loses 40: the saving has no noise, means of four differ by chance."""
    events, begin = [], 0
    for number, us in enumerate((100, 104, 96, 100)):
        events += [step(begin, us, number), op("aten::mm", begin + 1, 40), op("aten::add", begin + 42, us - 44)]
        begin += us
    change = predict(job_replay(run_of(*events)), [Scaled("aten::mm", 0)]).together
    variance_of_mean = (4**2 + 4**2) / 3 / 4
    assert (change.least_saved_ns, change.most_saved_ns, change.noise_ns) == (40_000, 40_000, 0)
    assert change.again_ns == round(2000 * (variance_of_mean + variance_of_mean) ** 0.5)


@pytest.mark.slow
def test_measured_again_steps_are_as_far_from_the_prediction_as_it_says() -> None:
    """Steps of 100 us with 5 % of noise, 8 in each recording; in the second one half of them is gone."""
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        before, after = (np.rint(rng.normal(us, 5, 8)).astype(int) for us in (100, 60))
        events, begin = [], 0
        for number, us in enumerate(before.tolist()):
            events += [step(begin, us, number), op("aten::mm", begin + 1, 40)]
            begin += us
        change = predict(job_replay(run_of(*events)), [Scaled("aten::mm", 0)]).together
        least, most = change.now_ns - change.most_saved_ns, change.now_ns - change.least_saved_ns
        inside += least - (change.again_ns or 0) <= 1000 * after.mean() <= most + (change.again_ns or 0)
    assert 0.88 <= inside / 200 <= 0.98
