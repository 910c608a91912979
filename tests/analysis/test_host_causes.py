"""Where the host is while the device waits for it, in the finding on host-bound time."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, frame, kernel, launch, op, step, table

from traceq.analysis.registry import analyze
from traceq.claims.claim import BY_REPLAY, Claim, Subject
from traceq.model import Run, Trace


def reads_its_input(*, with_lines: bool) -> Trace:
    """A step whose host normalizes images for 60 us, resizes for 20 us and runs an op for 10 us before it launches."""
    lines = [frame("image.py(390): normalize", 0, 60), frame("image.py(93): rescale", 60, 20)]
    rows: list[Event] = [step(0, 150), op("aten::stack", 80, 10), launch(90, 5, 1), kernel("gemm", 95, 55, 1)]
    return build(*rows, *(lines if with_lines else []))


def host_bound(*traces: Trace) -> Claim:
    (claim,) = (each for each in analyze(Run("", traces), "partition").findings if each.code == "host_bound")
    return claim


@pytest.mark.parametrize(
    ("with_lines", "subject", "places"),
    [
        (
            True,
            Subject(line="image.py:390 normalize"),
            {"60.0 us at image.py:390 normalize", "20.0 us at image.py:93 rescale"},
        ),
        (False, Subject(phase="forward"), {"85.0 us between ops", "10.0 us in aten::stack"}),
    ],
)
def test_a_host_bound_claim_says_where_the_host_is(with_lines: bool, subject: Subject, places: set[str]) -> None:
    trace = reads_its_input(with_lines=with_lines)
    claim = host_bound(trace)
    assert (claim.subject, claim.gain_by) == (subject, BY_REPLAY)
    assert {each.removesuffix(" in forward") for each in str(claim.measures["places"]).split(", ")} == places
    assert claim.ns == sum(row["step_ns"] for row in table(trace, "idle") if row["category"] == "host_bound")


def test_a_host_that_is_nowhere_for_most_of_the_time_is_at_no_place() -> None:
    lines = [frame(f"image.py({number}): load", 30 * number, 30) for number in range(3)]
    claim = host_bound(build(step(0, 150), *lines, launch(90, 5, 1), kernel("gemm", 95, 55, 1)))
    assert (claim.subject, claim.measures.get("place")) == (Subject(), None)


def test_without_host_ops_it_is_not_known_where_the_host_is() -> None:
    """So nothing is said of a host that takes no time: between its launches it may wait for anything."""
    launches = launch(0, 60, 1), kernel("gemm", 60, 40, 1), launch(160, 5, 2), kernel("gemm", 165, 40, 2)
    for ops, gain in (((), (0, 125_000)), ([op("aten::mm", 0, 62)], (63_500, 88_500))):
        trace = build(*ops, *launches)
        claim = host_bound(trace)
        assert ("places" in claim.measures, claim.gain) == (bool(ops), gain)
        assert ("host time" in [row["removed"] for row in table(trace, "replay")]) == bool(ops)
        views = [view for view in analyze(Run("", (trace,)), "replay").views if view.key == "whatif"]
        assert bool(views) == bool(ops)


@pytest.mark.parametrize(("second", "share_pct", "ends"), [(900, 55, (200_000, 900_000)), (300, 25, (None, None))])
def test_a_mean_that_no_step_has_comes_with_those_of_the_steps(
    second: int, share_pct: int, ends: tuple[int | None, int | None]
) -> None:
    """The device waits for 200 us in the first step of 1 ms, and for `second` in the next."""
    rows: list[Event] = [step(0, 1000), step(1000, 1000, 1)]
    for number, start in enumerate((200, 1000 + second)):
        rows += [launch(start - 5, 5, number + 1), kernel("gemm", start, 1000 * (number + 1) - start, number + 1)]
    measures = host_bound(build(*rows)).measures
    assert (measures["share_pct"], measures["compute_pct"]) == (share_pct, 100 - share_pct)
    assert (measures.get("least_time_by_step_ns"), measures.get("most_time_by_step_ns")) == ends


@pytest.mark.parametrize(
    ("loader", "places", "place"),
    [
        ("_MultiProcessing", "2.00 ms in the data loader", "in the data loader in dataload"),  # workers start once
        ("_SingleProcess", "10.0 ms in the data loader", "in the data loader in dataload"),  # as any other batch
    ],
)
def test_what_a_loader_does_until_its_first_batch_is_apart_from_the_waits_that_recur(
    loader: str, places: str, place: str | None
) -> None:
    """A window without steps: a seed, 6 ms until workers were started, 2 ms for a batch, then 1 ms for each of two."""
    batch = f"enumerate(DataLoader)#{loader}DataLoaderIter.__next__"
    rows: list[Event] = [op("aten::random_", 0, 2), op("aten::item", 2, 2), annotation(batch, 6_000, 2_000)]
    for number, start in enumerate((8_000, 9_100, 10_200)):
        rows += [launch(start, 10, number + 1), kernel("gemm", start + 10, 90, number + 1)]
        rows += [annotation(batch, start + 100, 1_000)] if number < 2 else []
    claim = host_bound(build(*rows))
    assert str(claim.measures["places"]).startswith(places)
    assert claim.measures.get("place") == place  # where something can be shortened
    assert claim.gain is not None
    assert claim.gain[0] >= 0.99 * claim.ns, "the loader's part is gained, too"


def test_of_ranks_that_differ_each_may_be_the_one_that_gains() -> None:
    """Two of eight ranks waited for their hosts for 227 and 8 ms: a mean of 117, and a gain of 109, are of neither."""
    waits_us = {0: 600, 1: 100}
    info = {"backend": "nccl", "world_size": 4}
    traces = (
        build(
            step(0, 1000),
            op("aten::mm", us - 20, 30),
            launch(us - 5, 5, 1),
            kernel("gemm", us, 1000 - us, 1),
            distributedInfo=info | {"rank": rank},
        )
        for rank, us in waits_us.items()
    )
    claim = host_bound(*traces)
    assert claim.ns == 350_000
    by_rank = [claim.measures[name] for name in ("least_by_rank_ns", "most_by_rank_ns", "most_rank")]
    assert by_rank == [100_000, 600_000, "0"]
    assert claim.gain == (0, 595_000)
