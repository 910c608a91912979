"""What is replaced, and what only moved: a replacement is one kind of work less and another kind more. Times in us."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, comms, kernel, launch, op, step
from statements import of_code

from traceq.compare.cause_statements import cause_statements, what_of
from traceq.compare.explain import explain
from traceq.compare.replaced_kernels import fold_replacements, join_moved
from traceq.compare.result import Cause
from traceq.compare.statement import state
from traceq.model import Trace

NAMES = {
    "reduce_scatter": ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)"),
    "all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(x)"),
    "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"),
}


def job(backward: str, optimizer: str, *, exchange_us: float = 40) -> Trace:
    """A step whose phases launch kernels and collectives, by name, one after the other."""
    rows, time, number, free = list[Event](), 0.0, 0, 0.0
    for phase, names in (("forward", "mm mm mm"), ("backward", backward), ("optimizer", optimizer)):
        start = time
        for name in names.split():
            number += 1
            elements = (4096, 1024) if name == "reduce_scatter" else (1024, 4096)
            is_exchange = name in NAMES
            rows.append(comms(NAMES[name][0], time, 10, elements) if is_exchange else op(f"aten::{name}", time, 10))
            begin, dur = max(time + 13, free + 1), exchange_us if is_exchange else 20
            rows.append(launch(time + 3, 4, number))
            rows.append(kernel(NAMES[name][1] if is_exchange else f"{name}_kernel", begin, dur, number))
            time, free = time + 10, begin + dur
        if phase == "backward":
            rows.append(op("autograd::engine::evaluate_function: MmBackward0", start, time - start))
        if phase == "optimizer":
            rows.append(annotation("Optimizer.step#AdamW.step", start, time - start))
    return build(step(0, free + 5), *rows)


MULS = ("mul", "add")
CURRENT = job("mm mm mm mm mm mm", "reduce_scatter mul add all_gather div")
HOOKED = job("mm mm reduce_scatter mm mm mm mm", "all_gather mul add div")


def of_kind(a: Trace, b: Trace, kind: str = "collective") -> list[Cause]:
    traced, _, causes = explain(a, b)
    assert sum(cause.delta_ns for cause in causes) == traced.delta_ns
    return [cause for cause in causes if cause.kind == kind]


def test_a_collective_that_both_sides_issue_as_often_moved_and_replaced_nothing() -> None:
    for a, b, moved in (
        (CURRENT, HOOKED, "from optimizer to backward"),
        (HOOKED, CURRENT, "from backward to optimizer"),
    ):
        causes = of_kind(a, b)
        assert not [cause.name for cause in causes if cause.is_replacement]
        (scattered,) = (cause for cause in causes if cause.name.startswith("reduce_scatter"))
        assert (scattered.moved, scattered.delta_num, scattered.delta_bytes) == (moved, 0, 0)
        assert {cause.delta_num for cause in causes} == {0}


def test_a_move_is_told_also_where_it_costs_nothing() -> None:
    traced, _, causes = explain(CURRENT, HOOKED)
    moved = {what_of(cause) for cause in causes if cause.moved and cause.name.startswith("reduce_scatter")}
    assert moved <= {each.measures.get("what") for each in cause_statements(traced, causes)}
    doubt = state("not_seen", delta_ns=traced.delta_ns)
    untimed = cause_statements(traced, causes, doubt=doubt)
    assert moved & {each["what"] for each in of_code("moved", untimed)}
    assert all("delta_ns" not in each for each in of_code("moved", untimed))


def test_a_collective_less_and_another_one_more_is_a_replacement() -> None:
    a, b = (job(" ".join([*["mm"] * 3, name, *["mm"] * 3]), "mul add div") for name in ("all_reduce", "reduce_scatter"))
    (cause,) = of_kind(a, b)
    assert cause.name.startswith("all_reduce")
    assert " replaced by reduce_scatter" in cause.name
    assert (cause.delta_num, cause.moved) == (0, "")


def test_kernels_that_swap_places_replace_nothing() -> None:
    a, b = (job(" ".join(["mm mm", first, *["mm"] * 3, last, "mm"]), "div") for first, last in (MULS, MULS[::-1]))
    assert not [cause.name for cause in of_kind(a, b, "kernel") if cause.is_replacement]


def collective(name: str, phase: str, num: float, ns: int, moved: int = 0) -> Cause:
    return Cause(f"collective|{phase}|{name}|", "collective", phase, name, "", num, ns, ns, 0, None, delta_bytes=moved)


def test_calls_that_cancel_between_phases_are_one_row() -> None:
    old, new = collective("all_reduce", "opt", -2 / 3, -500, -8), collective("all_reduce", "bwd", 2 / 3, 200, 8)
    other = collective("all_gather", "bwd", 1, 10)
    kept, joined = join_moved([old, other, new], -290, ("opt", "bwd"))
    assert kept is other
    assert (joined.moved, joined.phase, joined.delta_ns) == ("from opt to bwd", "bwd and opt", -300)
    assert what_of(joined) == "all_reduce moved from opt to bwd"
    assert join_moved([old, other, collective("all_reduce", "bwd", 1, 200)], -290, ("opt", "bwd"))[0] is old
    assert join_moved([old, new], -300, ("bwd",)) == [old, new]


@pytest.mark.parametrize(("elsewhere", "replaced"), [(0, True), (1, False)])
def test_accounts_of_a_collective_are_replaced_only_where_there_are_fewer_in_all(
    elsewhere: float, replaced: bool
) -> None:
    """`elsewhere`: as many all_gather fewer in another phase as B has more in this one, and likewise reduce_scatter."""
    old, new = collective("reduce_scatter", "opt", -1, -50), collective("all_gather", "opt", 1, 60)
    more = [collective("reduce_scatter", "bwd", elsewhere, 5), collective("all_gather", "fwd", -elsewhere, -5)]
    causes = [old, new, *(more if elsewhere else [])]
    fewer, added = ([each.key for each in causes if sign * each.delta_num > 0] for sign in (-1, 1))
    result = fold_replacements(causes, fewer, added, 10)
    assert [cause.is_replacement for cause in result] == [True] if replaced else [False] * 4


@pytest.mark.parametrize(("name", "is_other"), [("Torch-Compiled Region: 8/0", False), ("aten::other", True)])
def test_a_compiled_region_of_another_number_is_no_other_work(name: str, is_other: bool) -> None:
    def trace(op_name: str) -> Trace:
        rows = [op(op_name, 100, 80)]
        for number in range(10):
            rows += [op("aten::mm", 20 * number + 200 * (number > 4), 10)]
            rows += [launch(20 * number + 200 * (number > 4) + 3, 4, number + 1)]
            rows.append(kernel("gemm", 20 * number + 200 * (number > 4) + 13, 5, number + 1))
        return build(step(0, 500), *rows)

    causes = of_kind(trace("Torch-Compiled Region: 5/0"), trace(name), "host")
    assert any(cause.is_replacement for cause in causes) == is_other
