"""Expert parallelism: a rank with more tokens computes longer, and the others wait for it."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from builder import AUTOGRAD, Event, build, comms, kernel, launch, op, step, table, world
from paths import TESTS, TRACES

from traceq.analysis.registry import analyze
from traceq.claims.claim import Basis
from traceq.facts.comm.expert_tokens import EXCHANGES, PRODUCTS, expert_tokens
from traceq.kineto.read import read_trace
from traceq.model import Run, Trace
from traceq.runs.read import read

WIDTH = 64
GROUPED = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<int>>>(P)"
EXCHANGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
LAYERS = 4
EP_MOE = TRACES / "ep-moe-b200-ab" / "ref.json.gz"


def exchange(start: int, received: int, sent: int, kind: str = "c10::BFloat16") -> Event:
    dims = {"Input Dims": [[received, WIDTH], [sent, WIDTH], [], [], [], []]}
    return op("c10d::alltoall_base_", start, 2, **dims, **{"Input type": [kind, kind, "", "", "", ""]})


def rank(
    number: int,
    expert_us: int,
    *,
    slowest_us: int = 300,
    size: int = 4,
    name: str = GROUPED,
    tokens: Sequence[int] = (),
    sent: int = 100,
) -> Trace:
    """Layers of 400 us: experts compute, then all ranks exchange tokens, until 20 us after the slowest has computed.

    `tokens` of each layer, of `sent` that the rank has before.
    """
    return build(
        *one_step(0, expert_us, slowest_us=slowest_us, name=name, tokens=tokens, sent=sent), **world(number, size)
    )


def one_step(
    number: int,
    expert_us: int,
    *,
    slowest_us: int = 300,
    name: str = GROUPED,
    tokens: Sequence[int] = (),
    sent: int = 100,
) -> list[Event]:
    rows: list[Event] = [step(400 * LAYERS * number, 400 * LAYERS, number)]
    for layer in range(LAYERS * number, LAYERS * (number + 1)):
        begin, corr = 400 * layer, 2 * layer + 1
        rows += [launch(begin + 1, 2, corr), kernel(name, begin + 10, expert_us, corr)]
        computed = begin + 10 + expert_us
        rows += [comms("all_to_allv", begin + 4, 4, (1000, 1000)), launch(begin + 5, 2, corr + 1)]
        rows.append(kernel(EXCHANGE, computed, begin + 30 + slowest_us - computed, corr + 1, stream=20))
        if tokens:
            rows += [exchange(begin + 12, tokens[layer], sent), exchange(begin + 15, sent, tokens[layer])]
    return rows


def test_the_busiest_rank_is_compared_with_the_mean_and_the_others_wait() -> None:
    traces = [rank(0, 100), rank(1, 300), rank(2, 100), rank(3, 100)]
    rows = table(Run("job", tuple(traces)), "experts")
    assert [(row["rank"], row["num"], row["dur_ns"]) for row in rows] == [
        (0, 4, 400_000),
        (1, 4, 1_200_000),
        (2, 4, 400_000),
        (3, 4, 400_000),
    ]
    assert [row["ratio"] for row in rows] == pytest.approx([2 / 3, 2, 2 / 3, 2 / 3])
    assert [row["wait_ns"] for row in rows] == [600_000, 0, 600_000, 600_000]  # the first exchange does not count
    (finding,) = analyze(Run("job", tuple(traces)), "experts").findings
    assert (finding.subject.rank, finding.ns, finding.gain) == (1, 600_000, (0, 600_000))
    measures = finding.measures
    assert (measures["compute_ratio"], measures["wait_ns"], measures["own_wait_ns"]) == (2, 600_000, 0)


@pytest.mark.parametrize(
    ("of_steps", "has_finding"), [((300, 310, 300), True), ((100, 300, 100), False), ((100, 300, 300), False)]
)
def test_experts_are_uneven_in_most_steps_and_beyond_their_scatter(
    of_steps: tuple[int, ...], has_finding: bool
) -> None:
    def steps_of(busiest: bool) -> list[Event]:
        return [
            row
            for number, us in enumerate(of_steps)
            for row in one_step(number, us if busiest else 100, slowest_us=max(us, 100))
        ]

    traces = [build(*steps_of(number == 1), **world(number, 4)) for number in range(4)]
    report = analyze(Run("job", tuple(traces)), "experts")
    busiest = report.tables[0].to_dicts()[1]
    assert busiest["ratio"] > 1.3  # of which the mean alone would make a finding
    assert [finding.code for finding in report.findings] == ["expert_imbalance"] * has_finding
    assert all(finding.basis == Basis(3) for finding in report.findings)


def test_even_experts_are_no_finding() -> None:
    report = analyze(Run("job", tuple(rank(number, 200) for number in range(4))), "experts")
    assert report.findings == ()
    assert report.views == ()


def test_a_late_rank_that_computes_no_more_for_experts_is_no_imbalance() -> None:
    traces = [rank(number, 100, slowest_us=300 if number else 100) for number in range(4)]
    assert analyze(Run("job", tuple(traces)), "experts").findings == ()


def test_a_model_without_experts_has_no_row() -> None:
    assert table(Run("job", (rank(0, 100, name="ampere_sgemm_128x64_tn"),)), "experts") == []


def test_exchanges_of_as_many_rows_without_expert_kernels_are_no_experts() -> None:
    def job_of(num: Sequence[int]) -> Run:
        return Run("job", tuple(rank(number, 100, name="ampere_sgemm_128x64_tn", tokens=num) for number in range(4)))

    assert table(job_of((100, 100, 100, 100)), "experts") == []  # attention split by heads, for one
    assert [row["tokens"] for row in table(job_of((100, 90, 80, 100)), "experts")] == [370] * 4


TOKENS = ((80, 90, 100, 70), (220, 190, 180, 240), (60, 70, 60, 50), (40, 50, 60, 40))
"""Tokens of each rank in each layer, of 400 in all."""


def job(*, tokens: Sequence[Sequence[int]] = TOKENS, expert_us: Sequence[int] = (100, 300, 100, 100)) -> Run:
    ranks = zip(expert_us, tokens, strict=True)
    return Run("job", tuple(rank(number, us, tokens=each) for number, (us, each) in enumerate(ranks)))


def test_the_tokens_of_each_layer_are_compared_with_their_mean() -> None:
    rows, layers = table(job(), "experts"), analyze(job(), "experts").tables[1]
    assert [row["tokens"] for row in rows] == [sum(each) for each in TOKENS] == [340, 830, 240, 190]
    assert [row["token_ratio"] for row in rows] == pytest.approx([sum(each) / 400 for each in TOKENS])
    by_layer = [dict(zip((column.key for column in layers.columns), row, strict=True)) for row in layers.rows]
    for layer, row in enumerate(by_layer):
        of_layer = [each[layer] for each in TOKENS]
        assert row == {
            "layer": layer,
            "mean": sum(of_layer) / 4,
            "tokens": max(of_layer),
            "rank": 1,
            "ratio": pytest.approx(4 * max(of_layer) / sum(of_layer)),
        }
    assert json.dumps(layers.rows)
    (view,) = analyze(job(), "experts").views
    assert all(part in view.note for part in ("2.07 times", "at most 2.40 (layer 3, rank 1)"))


def test_the_remedy_is_another_one_where_tokens_do_not_explain_it() -> None:
    (uneven,) = analyze(job(), "experts").findings
    assert (uneven.measures["tokens_ratio"], uneven.remedy) == (2.075, "balance_experts")
    (slow,) = analyze(job(tokens=((100,) * 4,) * 4), "experts").findings
    assert (slow.measures["tokens_ratio"], slow.remedy) == (1, "slow_experts")


def test_uneven_tokens_that_cost_no_time_are_shown_and_no_finding() -> None:
    report = analyze(job(expert_us=(200, 200, 200, 200)), "experts")
    assert report.findings == ()
    assert len(report.views) == 1


def tokens(*rows: Event) -> tuple[str, list[int]]:
    result = expert_tokens(build(*rows))
    return result.source, result.tokens.tolist()


def product(start: int, *dims: object, **more: object) -> Event:
    shapes = {"Input Dims": [*dims, [4]], "Input type": ["c10::BFloat16", "c10::BFloat16", "int"]}
    return op("aten::_grouped_mm", start, 2, **shapes, **more)


def test_of_two_exchanges_the_first_brings_the_tokens() -> None:
    layers = [exchange(0, 30, 10), exchange(5, 10, 30), exchange(10, 0, 10), exchange(15, 10, 0)]
    assert tokens(*layers) == (EXCHANGES, [30, 0])
    assert tokens(*layers[1:]) == (EXCHANGES, [0])  # the window opens within a layer
    assert tokens(*layers[:3]) == (EXCHANGES, [30])


def test_other_exchanges_tell_no_tokens() -> None:
    assert tokens(exchange(0, 30, 10), exchange(5, 10, 20)) == ("", [])
    assert tokens(exchange(0, 30, 10, "long int"), exchange(5, 10, 30, "long int")) == ("", [])
    flat = {"Input Dims": [[30], [10], []], "Input type": ["float", "float", ""]}
    assert tokens(op("c10d::alltoall_base_", 0, 2, **flat), op("c10d::alltoall_base_", 5, 2, **flat)) == ("", [])
    odd = {"Input Dims": '{"a": 1}', "Input type": [7]}
    assert tokens(op("c10d::alltoall_base_", 0, 2, **odd), op("c10d::alltoall_base_", 5, 2, **odd)) == ("", [])


def split(start: int, received: Sequence[int], sent: Sequence[int], width: int = WIDTH, **more: object) -> Event:
    sizes = {"In split size": str(list(sent)), "Out split size": str(list(received)), "dtype": "BFloat16"}
    return comms("all_to_allv", start, 2, (sum(sent) * width, sum(received) * width), **sizes | more)


def test_without_shapes_split_sizes_tell_the_tokens() -> None:
    rng = random.Random(5)
    layers = [([rng.randrange(50) for _ in range(4)], [rng.randrange(1, 50) for _ in range(4)]) for _ in range(6)]
    rows = [
        row
        for number, (received, sent) in enumerate(layers)
        for row in (
            split(40 * number, [4] * 4, [4] * 4, 1, dtype="Long"),  # how many tokens come
            split(40 * number + 10, received, sent),
            split(40 * number + 20, sent, received),
        )
    ]
    engine = op("autograd::engine::evaluate_function: AllToAllBackward0", 300, 90, tid=AUTOGRAD)
    again = [{**row, "tid": AUTOGRAD, "ts": row["ts"] + 300} for row in rows[:6]]
    expected = [sum(received) for received, _ in layers]
    assert tokens(*rows, engine, *again) == (EXCHANGES, expected)
    assert tokens(*rows[2:], engine, *again) == (EXCHANGES, expected[1:])  # the window opens within a layer
    shaped = [exchange(500, 7, 9), exchange(510, 9, 7)]
    assert tokens(*rows, *shaped) == (EXCHANGES, [7])


@pytest.mark.parametrize(
    "splits", ["[]", "[1, 2, ...]", "[1, -2]", "[1.5]", "{}", 7, None, "[" * 2000, str([2**61] * 4)], ids=repr
)
def test_split_sizes_that_are_cut_short_or_none_tell_nothing(splits: object) -> None:
    odd = {"In split size": splits, "Out split size": splits}
    assert tokens(split(0, [1, 2], [1, 2], **odd), split(5, [1, 2], [1, 2], **odd)) == ("", [])


@pytest.mark.skipif(not EP_MOE.exists(), reason=f"no {TRACES}")
def test_split_sizes_and_shapes_of_a_real_trace_tell_the_same(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress(EP_MOE.read_bytes()))
    calls = [event for event in trace["traceEvents"] if event["name"] == "record_param_comms"]
    calls.sort(key=lambda event: event["ts"])
    received = [
        sum(json.loads(event["args"]["Out split size"])) for event in calls if event["args"].get("dtype") == "BFloat16"
    ]
    assert expert_tokens(read_trace(EP_MOE)).tokens.tolist() == received[::2] == [8192] * 10
    for event in trace["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps(trace))
    result = expert_tokens(read_trace(plain))
    assert (result.source, result.tokens.tolist()) == (EXCHANGES, received[::2])


def test_without_exchanges_the_rows_of_grouped_products_count() -> None:
    weight_gradient = product(20, [64, 30], [30, 128])
    assert tokens(product(0, [30, 64], [4, 64, 128]), product(10, [30, 128], [4, 128, 64]), weight_gradient) == (
        PRODUCTS,
        [30, 30],
    )


def test_the_backward_pass_does_not_count_again() -> None:
    engine = op("autograd::engine::evaluate_function: AllToAllBackward0", 100, 50, tid=AUTOGRAD)
    again = [{**exchange(start, *rows), "tid": AUTOGRAD} for start, rows in ((110, (30, 10)), (120, (10, 30)))]
    assert tokens(exchange(0, 30, 10), exchange(5, 10, 30), engine, *again) == (EXCHANGES, [30])


@pytest.mark.slow
@pytest.mark.torch
def test_what_two_ranks_exchange_is_what_they_counted(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    subprocess.run([sys.executable, str(TESTS / "support" / "expert_exchange_job.py"), str(tmp_path)], check=True)
    counted = [json.loads((tmp_path / f"tokens{rank}.txt").read_text()) for rank in (0, 1)]
    recorded = [expert_tokens(read_trace(tmp_path / f"rank{rank}.json")) for rank in (0, 1)]
    assert [each.tokens.tolist() for each in recorded] == counted
    assert {each.source for each in recorded} == {EXCHANGES}
    assert len({*map(tuple, counted)}) == 2  # the ranks differ
    of_layers = analyze(read(tmp_path), "experts").tables[1]
    assert [row[2] for row in of_layers.rows] == [max(each) for each in zip(*counted, strict=True)]


@pytest.mark.parametrize(("name", "source", "num"), [("ref", EXCHANGES, 8192), ("syncless", PRODUCTS, 16384)])
def test_a_real_mixture_of_experts_has_ten_layers(name: str, source: str, num: int) -> None:
    """Balanced by its authors: 8,192 rows with two choices of 4,096 tokens; without syncs, room for twice as many."""
    path = TRACES / "ep-moe-b200-ab" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no {TRACES}")
    result = expert_tokens(read_trace(path))
    assert (result.source, result.tokens.tolist()) == (source, [num] * 10)
