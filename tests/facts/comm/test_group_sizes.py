"""The ranks of a group are those that the trace tells, never those of the world by assumption."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, comms, op, table, world
from paths import TRACES

from traceq.analysis.registry import analyze
from traceq.facts.comm.collectives import collective_calls
from traceq.kineto.read import read_trace
from traceq.model import Run

SAMPLED = TRACES / "hta-groups" / "sampled-rank0.json.gz"


def issued(name: str, mark: str, dims: str, moved: str, kind: str = "float") -> list[Event]:
    """A c10d op with its shapes, and the annotation of the backend inside it."""
    types = {"Input type": [kind, kind, ""]}
    return [
        op(f"c10d::{name}", 10, 20, **{"Input Dims": dims}, **types),
        annotation(f"nccl:{mark}", 12, 10, **{"Input Dims": moved}, **types),
    ]


@pytest.mark.parametrize(
    ("name", "mark", "dims", "moved", "ranks", "elements"),
    [
        ("_allgather_base_", "_all_gather_base", [[1024], [16], []], [[16]], 64, 1024),
        ("allgather_", "all_gather", [[[8, 2], [8, 2], [8, 2]], [[16]], []], [[16]], 3, 48),
        ("_reduce_scatter_base_", "_reduce_scatter_base", [[4], [32], []], [[32]], 8, 32),
        ("_allgather_base_", "_all_gather_base", [[1000], [16], []], [[16]], -1, -1),
        ("_allgather_base_", "_all_gather_base", [], [[16]], -1, -1),
        ("allreduce_", "all_reduce", [[[1024]], []], [[1024]], -1, 1024),
    ],
)
def test_the_output_of_a_gather_is_the_input_of_all_ranks(
    name: str, mark: str, dims: list[object], moved: list[object], ranks: int, elements: int
) -> None:
    trace = build(*issued(name, mark, dims, moved), **world(0, 128))
    calls = collective_calls(trace)
    assert calls.group_size.tolist() == [ranks]
    assert calls.elements.tolist() == [elements]
    assert [row["group_size"] for row in table(trace, "collectives")] == [ranks if ranks > 0 else None]


@pytest.mark.parametrize(("sizes", "ranks"), [((4,), 4), ((4, 4), 4), ((8, 4), None)])
def test_where_all_groups_of_the_job_have_one_size_it_is_that(sizes: tuple[int, ...], ranks: int | None) -> None:
    groups = [{"pg_name": str(number), "pg_size": size} for number, size in enumerate(sizes)]
    job = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8, "pg_config": groups}}
    (row,) = table(build(annotation("nccl:all_reduce", 12, 10), **job), "collectives")
    assert row["group_size"] == ranks


@pytest.mark.skipif(not SAMPLED.exists(), reason=f"no {TRACES}")
def test_a_gather_of_64_ranks_in_a_world_of_128_is_no_zero_1() -> None:
    trace = read_trace(SAMPLED)
    (gather,) = (row for row in table(trace, "collectives") if row["name"] == "all_gather")
    assert (gather["group_size"], gather["bytes"], gather["num"]) == (64, 2 * 2**30, 2)
    assert gather["role"] == "optimizer_state"
    (row,) = table(trace, "strategy")
    assert row["strategy"] == "DDP + sharded embeddings"  # exchanged in 8 bits
    assert "ZeRO" not in " ".join(finding.text for finding in analyze(Run("", (trace,)), "strategy").findings)


def test_floats_gathered_after_the_update_are_parameters_only_if_there_are_about_as_many_as_were_reduced() -> None:
    def strategy(gathered: int) -> str:
        rows = [
            op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 20, 20),
            comms("allreduce", 25, 5, (1000, 1000)),
            annotation("Optimizer.step#SGD.step", 60, 40),
            comms("_allgather_base", 70, 5, (gathered // 4, gathered)),
            annotation("ProfilerStep#0", 0, 200),
        ]
        return str(table(build(*rows, **world(0, 4)), "strategy")[0]["strategy"])

    assert [strategy(1000), strategy(4000)] == ["ZeRO-1 or 2", "DDP"]
