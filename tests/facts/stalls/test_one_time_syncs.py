"""Which syncs do not recur in every step, and what claims tell of them. Times in us."""

from __future__ import annotations

import pytest
from builder import Event, build, call, kernel, launch, op, step

from traceq.analysis.registry import analyze
from traceq.facts.stalls.syncs import allocates_once, is_in_graph_capture, syncs
from traceq.model import Run, Trace


def capturing(*, other_thread: bool = False) -> Trace:
    """A compiled region that captures a graph, launches it and waits; then an op that waits as long."""
    thread = {"tid": 3} if other_thread else {}
    return build(
        step(0, 400),
        op("aten::copy_", 0, 5),
        launch(1, 2, 1),
        kernel("copy", 4, 10, 1),
        op("Torch-Compiled Region", 20, 160, **thread),
        call("cudaStreamBeginCapture", 30, 2, **thread),
        call("cudaStreamEndCapture", 50, 2, **thread),
        call("cudaGraphLaunch", 55, 5, 2, **thread),
        kernel("graph", 62, 100, 2),
        call("cudaDeviceSynchronize", 70, 100),
        op("aten::item", 200, 120),
        launch(201, 2, 3),
        kernel("sum", 205, 100, 3),
        call("cudaDeviceSynchronize", 210, 100),
        op("aten::add", 330, 10),
        launch(331, 2, 4),
        kernel("add", 336, 20, 4),
    )


def reasons(trace: Trace) -> list[object]:
    """Why what the claims on syncs are about does not recur, "" where it may."""
    return sorted(str(claim.measures.get("once", "")) for claim in analyze(Run("", (trace,)), "syncs").findings)


def test_a_sync_beside_a_capture_is_one_of_a_warm_up() -> None:
    trace = capturing()
    assert is_in_graph_capture(trace).tolist() == [True, False]
    assert reasons(trace) == ["", "graph_capture"]


def test_a_capture_on_another_thread_is_none_of_this_one() -> None:
    assert is_in_graph_capture(capturing(other_thread=True)).tolist() == [False, False]


@pytest.mark.parametrize(("num_filled", "prepares"), [(0, True), (2, True), (3, False)])
def test_what_torch_returns_before_a_capture_is_returned_once(num_filled: int, prepares: bool) -> None:
    """No op is around: torch synchronizes, frees memory, fills seed and offset of its random numbers, and captures."""
    begin = call("cudaStreamBeginCapture", 230, 2), call("cudaStreamEndCapture", 250, 2)
    work = [
        row for n in range(num_filled) for row in (launch(202 + 6 * n, 2, 5 + n), kernel("fill", 205 + 6 * n, 2, 5 + n))
    ]
    rows = [launch(1, 2, 1), kernel("copy", 4, 10, 1), call("cudaFree", 100, 60), *work, *begin]
    trace = build(step(0, 400), *rows, launch(300, 2, 2), kernel("add", 305, 20, 2))
    assert is_in_graph_capture(trace).tolist() == [prepares]
    assert reasons(trace) == ["graph_capture" if prepares else ""]
    retries = analyze(Run("", (trace,)), "memory").findings
    assert [finding.code for finding in retries] == ([] if prepares else ["allocator_retries"])


def allocating(*calls: str, first_op: float = 5, last_call: float = 20) -> Trace:
    """Runtime calls of 20 in an op, in the second of two steps; `first_op`: how long the op takes that comes first."""
    rows: list[Event] = [step(0, 500 + first_op), step(500 + first_op, 500, 1), op("aten::zeros", 0, first_op)]
    rows += [launch(1, 2, 1), kernel("zeros", first_op + 1, 490, 1)]
    begin = 510 + first_op
    takes = [20.0] * (len(calls) - 1) + [last_call]
    rows += [call(name, begin + 30 * n, dur) for n, (name, dur) in enumerate(zip(calls, takes, strict=False))]
    rows += [op("aten::empty", begin - 2, 30 * len(calls)), launch(begin + 200, 2, 2)]
    return build(*rows, kernel("fill", begin + 210, 150, 2))


@pytest.mark.parametrize(
    ("calls", "first_op", "why"),
    [
        (["cudaMalloc", "cudaMalloc"], 5, "pool_growth"),
        (["cudaFree", "cudaMalloc"], 5, ""),
        ([], 5, ""),
        (["cudaFree", "cudaMalloc"], 200_000, "first_use"),
    ],
)
def test_allocations_recur_unless_a_pool_grows_or_a_process_begins(calls: list[str], first_op: float, why: str) -> None:
    trace = allocating(*calls, first_op=first_op)
    assert len(syncs(trace)) == len(calls)
    assert allocates_once(trace) == why


@pytest.mark.parametrize(("free_us", "why"), [(20, ""), (3, "pool_growth")])
def test_a_free_of_nothing_returns_no_memory(free_us: float, why: str) -> None:
    """A thread asks for a context by it, and is answered at once."""
    assert allocates_once(allocating("cudaMalloc", "cudaFree", last_call=free_us)) == why


@pytest.mark.parametrize("is_library", [False, True])
def test_a_library_that_starts_returns_no_memory(is_library: bool) -> None:
    """It frees nothing for some ms, then asks for the device's attributes."""
    asks = [call("cudaDeviceGetAttribute", 2_520, 1)] if is_library else []
    rows = [op("aten::mm", 502, 2_060), call("cudaFree", 510, 2_000), *asks, call("cudaMalloc", 2_525, 20)]
    trace = build(
        step(0, 3_000), launch(1, 2, 1), kernel("a", 4, 480, 1), *rows, launch(2_800, 2, 2), kernel("b", 2_810, 9, 2)
    )
    assert allocates_once(trace) == ("pool_growth" if is_library else "")


@pytest.mark.parametrize("num", [1, 3])
def test_a_pool_that_was_emptied_before_the_counted_steps_is_refilled(num: int) -> None:
    """The frees lie before the only marked step."""
    rows = [op("aten::empty", 502, 60), call("cudaMalloc", 510, 20), call("cudaMalloc", 540, 20), launch(620, 2, 2)]
    events = step(500, 500), launch(-9, 2, 1), kernel("a", 0, 480, 1), *rows, kernel("b", 630, 150, 2)
    frees = (call("cudaFree", 100 + 30 * n, 20) for n in range(num))
    trace = build(*events, *frees)
    assert allocates_once(trace) == "pool_refill"
    assert allocates_once(build(*events)) == "pool_growth"
    (claim,) = analyze(Run("", (trace,)), "syncs").findings
    assert (claim.measures["once"], claim.measures["num_returned"]) == ("pool_refill", num)


def test_a_claim_tells_that_a_pool_still_grows() -> None:
    assert reasons(allocating("cudaMalloc", "cudaMalloc")) == ["pool_growth"]
    assert "pool_growth" not in reasons(allocating("cudaFree", "cudaMalloc"))


@pytest.mark.parametrize(("num_steps", "why"), [(1, "pool_growth"), (2, "pool_growth"), (3, "")])
def test_a_pool_that_grows_in_most_steps_is_no_end_of_growth(num_steps: int, why: str) -> None:
    """Of four steps, the first `num_steps` allocate."""
    rows: list[Event] = []
    for n in range(4):
        begin = 500 * n
        rows += [step(begin, 500, n), launch(begin + 200, 2, n + 1), kernel("fill", begin + 210, 280, n + 1)]
        rows += [op("aten::empty", begin + 20, 40), call("cudaMalloc", begin + 30, 20)] if n < num_steps else []
    assert allocates_once(build(*rows)) == why
