"""Expert parallelism: a rank with more tokens computes longer, and the others wait for it."""

from __future__ import annotations

import pytest
from builder import Event, build, comms, kernel, launch, step, table, world

from traceq.analysis.registry import analyze
from traceq.model import Run, Trace

GROUPED = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>(P)"
EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
LAYERS = 4


def rank(number: int, expert_us: int, *, slowest_us: int = 300, size: int = 4, name: str = GROUPED) -> Trace:
    """Layers of 400 us: experts compute, then all ranks exchange tokens, until 20 us after the slowest has computed."""
    rows: list[Event] = [step(0, 400 * LAYERS)]
    for layer in range(LAYERS):
        begin, corr = 400 * layer, 2 * layer + 1
        rows += [launch(begin + 1, 2, corr), kernel(name, begin + 10, expert_us, corr)]
        exchange = begin + 10 + expert_us
        rows += [comms("all_to_allv", begin + 4, 4, (1000, 1000)), launch(begin + 5, 2, corr + 1)]
        rows.append(kernel(EXCHANGE, exchange, begin + 30 + slowest_us - exchange, corr + 1, stream=20))
    return build(*rows, **world(number, size))


def test_the_busiest_rank_is_compared_with_the_mean_and_the_others_wait() -> None:
    traces = [rank(0, 100), rank(1, 300), rank(2, 100), rank(3, 100)]
    rows = table(Run("job", tuple(traces)), "experts")
    assert [(row["rank"], row["num"], row["ns"]) for row in rows] == [
        (0, 4, 400_000),
        (1, 4, 1_200_000),
        (2, 4, 400_000),
        (3, 4, 400_000),
    ]
    assert [row["ratio"] for row in rows] == pytest.approx([2 / 3, 2, 2 / 3, 2 / 3])
    assert [row["wait_ns"] for row in rows] == [600_000, 0, 600_000, 600_000]  # the first exchange does not count
    (finding,) = analyze(Run("job", tuple(traces)), "experts").findings
    assert finding.text.startswith(
        "expert compute is uneven: rank 1 has 600 us per step more than the mean (2.00x), and the others"
    )
    assert finding.ns == 600_000


def test_even_experts_are_no_finding() -> None:
    report = analyze(Run("job", tuple(rank(number, 200) for number in range(4))), "experts")
    assert report.findings == ()
    assert report.views == ()


def test_a_late_rank_that_computes_no_more_for_experts_is_no_imbalance() -> None:
    traces = [rank(number, 100, slowest_us=300 if number else 100) for number in range(4)]
    assert analyze(Run("job", tuple(traces)), "experts").findings == ()


def test_a_model_without_experts_has_no_row() -> None:
    assert table(Run("job", (rank(0, 100, name="ampere_sgemm_128x64_tn"),)), "experts") == []
