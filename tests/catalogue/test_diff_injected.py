"""Changes of known cost, made to real traces: the diff must find each, and charge it with what it costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from injection import (
    Row,
    end,
    first_launch,
    hungry,
    is_device,
    kernels_launched,
    main_steps,
    ops_within,
    rows_of,
    spread,
    stretched,
    waits_for_kernels,
    with_all_reduces,
    with_longer_kernels,
    with_stalls,
    within,
)
from statements import only

from traceq.compare.cost_centers import LAUNCHES
from traceq.compare.diff import diff
from traceq.compare.explain import explain
from traceq.compare.result import Cause, Diff
from traceq.facts.events.kernel_names import kernel_family
from traceq.runs.read import read


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    def compare(a: Sequence[Row], b: Sequence[Row]) -> Diff:
        paths = []
        for name, rows in (("a", a), ("b", b)):
            paths.append(tmp_path / f"{name}.json")
            paths[-1].write_text(json.dumps({"traceEvents": rows}))
        result = diff(*paths)
        assert result.residual_ns == 0
        assert result.traced is not None
        assert sum(cause.delta_ns for cause in result.causes) == result.traced.delta_ns
        return result

    return compare


def total(causes: Sequence[Cause]) -> int:
    return sum(cause.delta_ns for cause in causes)


HOST_BOUND = [
    pytest.param("ddp-a100/rank0.json.gz", "aten::conv2d", 3, id="ddp-a100"),
    pytest.param("dlrm-v100-8r/rank7.json.gz", "aten::linear", 5, id="dlrm-v100"),
    pytest.param("resnet50-2021/workers0.json.gz", "aten::batch_norm", 2, id="resnet50-2021"),
]


def is_told(result: Diff, injected_ns: float) -> Cause:
    """The first cause has what was injected, within 2 %; all others together have less than 1 %."""
    first, *others = result.causes
    assert first.delta_ns == pytest.approx(injected_ns, rel=0.02)
    assert abs(total(others)) < 0.01 * abs(injected_ns)
    return first


# Syncs


@pytest.mark.parametrize(("name", "op", "num"), HOST_BOUND)
def test_an_injected_sync_is_found_with_all_that_it_costs(compare: Any, name: str, op: str, num: int) -> None:
    rows = rows_of(name)
    result = compare(rows, with_stalls(rows, spread(rows, op, num), 2000))
    injected = num * 2_000_000
    assert result.traced.delta_ns == pytest.approx(injected, rel=0.001)
    first = is_told(result, injected)
    assert (first.kind, first.name, first.delta_num) == ("sync", "dtoh aten::_local_scalar_dense", num)
    syncs = only("syncs", result)
    assert (syncs["added_syncs_mean"], syncs["delta_ns"]) == (num, first.delta_ns)


@pytest.fixture(scope="module")
def stalled() -> tuple[list[Row], list[Row]]:
    """A step, and the same with 20 reads of 2 ms each after `aten::linear`."""
    rows = rows_of("dlrm-v100-8r/rank7.json.gz")
    return rows, with_stalls(rows, (spread(rows, "aten::linear", 7) * 3)[:20], 2000)


@pytest.mark.slow
def test_twenty_stalls_of_two_milliseconds_are_forty_milliseconds_of_one_op(compare: Any, stalled: Any) -> None:
    result = compare(*stalled)
    first = is_told(result, 40_100_000)
    assert (first.kind, first.name, first.delta_num) == ("sync", "dtoh aten::_local_scalar_dense", 20)
    assert sum(abs(cause.delta_ns) for cause in result.causes[1:]) < 0.01 * 40_100_000
    syncs = only("syncs", result)
    assert (syncs["added_syncs_mean"], syncs["delta_ns"]) == (20, first.delta_ns)
    parts = [syncs[f"{part}_delta_ns"] for part in ("copied", "waited", "rest")]
    assert parts == pytest.approx([30_000, 39_900_000, 48_500], rel=0.01)


@pytest.mark.slow
def test_taking_them_out_again_saves_as_much(compare: Any, stalled: Any) -> None:
    there, back = compare(*stalled), compare(*reversed(stalled))
    is_told(back, -40_100_000)
    syncs = only("syncs", back)
    assert (syncs["removed_syncs_mean"], syncs["delta_ns"]) == (20, back.causes[0].delta_ns)
    assert [(cause.key, cause.delta_ns) for cause in there.causes] == [
        (cause.key, -cause.delta_ns) for cause in back.causes
    ]


# Host ops


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "op"),
    [
        pytest.param("ddp-a100/rank0.json.gz", "aten::cudnn_convolution", id="ddp-a100"),
        pytest.param("dlrm-v100-8r/rank7.json.gz", "aten::addmm", id="dlrm-v100"),
    ],
)
def test_an_op_that_got_slower_on_the_host_is_found_inside_the_one_that_called_it(
    compare: Any, name: str, op: str
) -> None:
    rows = rows_of(name)
    slow = [ops[len(ops) // 2] for step in main_steps(rows) if (ops := hungry(rows, ops_within(rows, op, step)))]
    slower = stretched(rows, sorted(row["ts"] + 0.5 for row in slow), 3000)
    result = compare(rows, slower)
    first = is_told(result, 3_000_000)
    assert (first.kind, first.self_op) == ("host", op)
    assert f"{op} in {first.phase}" in str(result.reasons[0].measures["what"])
    is_told(compare(slower, rows), -3_000_000)


@pytest.mark.slow
def test_python_that_got_slower_is_found_by_its_line(compare: Any) -> None:
    """As the device waits for the images, before anything is launched."""
    rows = rows_of("owlv2/h100.json.gz")
    zoom = next(row for row in rows if row["name"].endswith("_interpolation.py(739): zoom"))
    over = first_launch(rows, zoom) + 5000
    rows = [row for row in rows if row["ts"] < over]
    result = compare(rows, stretched(rows, [zoom["ts"] + 1.0], 50_000))
    first = is_told(result, 50_000_000)
    assert (first.kind, first.line, first.phase) == ("host", "_interpolation.py:739 zoom", "dataload")
    assert "_interpolation.py:739 zoom in dataload" in str(result.reasons[0].measures["what"])


# Kernels


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op", "num"), HOST_BOUND)
def test_a_slower_kernel_is_found_with_all_that_it_costs(compare: Any, name: str, op: str, num: int) -> None:
    rows, awaited = waits_for_kernels(rows_of(name), op)
    assert len(awaited) == len(main_steps(rows))
    result = compare(rows, with_longer_kernels(rows, [(kernel, 3000.0) for kernel in awaited]))
    first, *others = result.causes
    assert (first.kind, first.delta_num, first.count_ns) == ("kernel", 0, 0)
    assert first.name.rpartition(LAUNCHES)[2] in {kernel_family(kernel["name"]) for kernel in awaited}
    assert first.delta_ns == pytest.approx(3_000_000, rel=0.001)
    assert abs(total(others)) < 0.001 * result.traced.delta_ns


@pytest.mark.slow
def test_a_kernel_that_is_slower_in_one_of_five_steps_is_jitter(compare: Any) -> None:
    """It is no change of each step, though these have less than a microsecond of jitter."""
    rows, awaited = waits_for_kernels(rows_of("resnet50-2021/workers0.json.gz"), "aten::batch_norm")
    result = compare(rows, with_longer_kernels(rows, [(awaited[-1], 3000.0)]))
    (first,) = [cause for cause in result.causes if abs(cause.delta_ns) > 6_000]
    assert (first.kind, first.delta_ns) == ("jitter", pytest.approx(600_000, rel=0.001))


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.5, 4.0])
@pytest.mark.parametrize("name", ["torchrec-v100-ab/a/rank0.json.gz", "torchrec-v100-ab/a/rank3.json.gz"])
def test_one_kernel_of_one_phase_that_takes_longer_on_a_busy_device(compare: Any, name: str, times: float) -> None:
    rows = rows_of(name)
    forward = [within(rows, "## forward ##", step) for step in main_steps(rows)[1:]]
    slow = kernels_launched(rows, "volta_sgemm_128x64_tn", forward)
    injected = (times - 1) * 1000 * sum(row["dur"] for row in slow) / len(forward)
    slower = with_longer_kernels(rows, [(row, (times - 1) * row["dur"]) for row in slow])
    result = compare(rows, slower)
    assert result.traced.num_b == len(forward)
    first = is_told(result, injected)
    assert (first.kind, first.phase, first.delta_num) == ("kernel", "## forward ##", 0)
    assert first.name == "aten::addmm > volta_sgemm_128x64_tn"
    assert is_told(compare(slower, rows), -injected).key == first.key


# Collectives


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op", "num"), HOST_BOUND[:2])
def test_one_more_all_reduce_a_step_is_found_with_all_that_it_costs(compare: Any, name: str, op: str, num: int) -> None:
    """The host is inside its call until it is over, and nothing else waits for the kernel: the call has the cost."""
    rows = rows_of(name)
    afters = [hungry(rows, ops_within(rows, op, step), left_us=20)[-1] for step in main_steps(rows)]
    more = with_all_reduces(rows, afters, 2000)
    result, back = compare(rows, more), compare(more, rows)
    first = is_told(result, 2_000_000)
    assert (first.kind, first.name) == ("host", "c10d::allreduce_")
    assert is_told(back, -2_000_000).key == first.key
    for diffed, num_more in ((result, 1), (back, -1)):
        (collective,) = (cause for cause in diffed.causes if cause.kind == "collective")
        assert (collective.name, collective.delta_num) == ("all_reduce for activation exchange", num_more)
        assert collective.delta_ns == 0


# Ranks


def meetings(rows: Sequence[Row], first: float = 0.0) -> list[Row]:
    """Kernels of collectives by start."""
    result = [row for row in rows if is_device(row) and row["name"].startswith("nccl") and row["ts"] >= first]
    return sorted(result, key=lambda row: row["ts"])


@pytest.mark.slow
def test_one_slowed_rank_of_four_is_named(tmp_path: Path) -> None:
    """Rank 1 computes 20 ms longer in every forward; the others are as much longer in the collective that follows."""
    job = [rows_of(f"torchrec-v100-ab/a/rank{rank}.json.gz") for rank in range(4)]
    slow, waits = [], []
    for step in main_steps(job[1])[1:]:
        selected = kernels_launched(job[1], "volta_sgemm_128x64_tn", [within(job[1], "## forward ##", step)])
        slow.append((selected[-1], 20_000.0))
        waits.append(len(meetings(job[1], end(selected[-1]))))
    changed = [
        with_longer_kernels(rows, slow if rank == 1 else [(meetings(rows)[-nth], 20_000.0) for nth in waits])
        for rank, rows in enumerate(job)
    ]
    for side, ranks in (("a", job), ("b", changed)):
        (tmp_path / side).mkdir()
        for rank, rows in enumerate(ranks):
            document = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": rows}
            (tmp_path / side / f"rank{rank}.json").write_text(json.dumps(document))
    result, back = diff(tmp_path / "a", tmp_path / "b"), diff(tmp_path / "b", tmp_path / "a")
    for rank in result.ranks:
        assert rank.delta_ns == pytest.approx(20_000_000, rel=0.02)
        if rank.rank == 1:
            assert rank.own_delta_ns == pytest.approx(20_000_000, rel=0.01)
        else:  # what ran beside the collective and after it
            assert abs(rank.own_delta_ns) < 3_000_000
    assert result.residual_ns == 0
    sides = [read(tmp_path / side / "rank1.json").traces[0] for side in ("a", "b")]
    first = explain(*sides)[2][0]  # by itself: what was added to the others' traces is no physical wait
    assert (first.name, first.phase) == ("aten::addmm > volta_sgemm_128x64_tn", "## forward ##")
    assert first.delta_ns == pytest.approx(20_000_000, rel=0.02)
    for each, sign in ((result, 1), (back, -1)):
        only_rank = only("only_rank", each)
        assert (only_rank["rank"], only_rank["category"], only_rank["phase"]) == (1, "compute", "## forward ##")
        assert only_rank["delta_ns"] == pytest.approx(sign * 20_000_000, rel=0.01)
    assert str(only("only_rank", result)["waited_in"]).startswith("all_to_all")
