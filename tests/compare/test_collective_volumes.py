"""What arms exchange that share a model in different ways, from traces of torch and DeepSpeed themselves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from paths import FIXTURES

from traceq.compare.collective_volumes import Exchange, exchanges
from traceq.compare.diff import diff_runs
from traceq.compare.result import REPLACED_BY
from traceq.compare.side import Side
from traceq.model import Arm, Manifest, Processes, Run
from traceq.runs.read import read

FIXTURES = FIXTURES / "strategies"
PARAMETERS, BLOCKS, FLOAT = 52_308, 3 * 16_576, 4
GIVEN = ("ddp", "fsdp1_full_shard", "fsdp1_shard_grad_op", "fsdp2", "zero2", "zero3")
ARMS = tuple(Arm(name, "", baseline=name == "ddp", samples_per_step=16, facts={"state_bytes": 7}) for name in GIVEN)
MANIFEST = Manifest(1, "r", "sharding", "?", {}, ARMS, (), 2, 1, "complete", apart=True)


def arm(name: str) -> Run:
    """The recorded fixture as an arm of a run, whose step took 8 ms."""
    one = Processes(name, np.zeros(1, np.int64), np.full(1, 8_000_000), np.ones(1, np.int64), np.full(1, 5))
    return Run(name, read(FIXTURES / f"{name}.json.gz").traces, MANIFEST, name, processes=(one,))


@pytest.fixture(scope="module")
def result_of() -> Mapping[str, Exchange]:
    return {one.arm: one for one in exchanges([Side.of(arm(name)) for name in GIVEN])}


@pytest.mark.parametrize(
    ("name", "strategy", "moved"),
    [
        ("ddp", "DDP", {"all_reduce": (1, PARAMETERS)}),
        (
            "fsdp1_full_shard",
            "FSDP1 FULL_SHARD",
            {"all_gather": (7, PARAMETERS + BLOCKS), "reduce_scatter": (4, PARAMETERS)},
        ),
        (
            "fsdp1_shard_grad_op",
            "FSDP1 SHARD_GRAD_OP",
            dict.fromkeys(("all_gather", "reduce_scatter"), (4, PARAMETERS)),
        ),
        ("fsdp2", "FSDP2", {"all_gather": (7, PARAMETERS + BLOCKS), "reduce_scatter": (4, PARAMETERS)}),
        ("zero2", "ZeRO-1 or 2", {"all_gather": (1, PARAMETERS), "all_reduce": (2, PARAMETERS + 1)}),
        (
            "zero3",
            "ZeRO-3",
            {"all_gather": (10, 2 * PARAMETERS), "reduce_scatter": (1, PARAMETERS), "all_reduce": (1, 2)},
        ),
    ],
)
def test_an_arm_moves_what_its_strategy_predicts(
    result_of: Mapping[str, Exchange], name: str, strategy: str, moved: dict[str, tuple[int, int]]
) -> None:
    """DeepSpeed's all-reduce beside the gradients is a norm: one float, at stage 3 one double."""
    one = result_of[name]
    assert (one.strategy, one.verdict) == (strategy, "exact")
    reported = {each.name: (each.num, each.bytes / FLOAT) for each in one.moved if each.num}
    assert reported == moved
    assert (one.step_ns, one.samples_per_second, one.peak_bytes, one.state_bytes) == (8_000_000, 2000, 5, 7)


def test_arms_that_share_the_model_alike_are_no_table() -> None:
    assert exchanges([Side.of(arm("ddp")), Side.of(arm("ddp"))]) == ()


def test_what_replaces_a_collective_is_for_the_same_and_the_rest_stands_for_itself() -> None:
    causes = {
        tuple(cause.name.split(REPLACED_BY)): (cause.delta_num, cause.delta_bytes / FLOAT)
        for cause in diff_runs(arm("ddp"), arm("fsdp1_full_shard")).causes
        if cause.kind == "collective"
    }
    assert causes == {
        ("all_reduce for gradient reduction", "reduce_scatter for gradient reduction"): (3, 0),
        ("all_gather for parameter gather forward",): (4, PARAMETERS),
        ("all_gather for parameter gather backward",): (3, BLOCKS),
    }
