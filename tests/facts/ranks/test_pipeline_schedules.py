"""A schedule is recognised by its whole order: torch's own lists of actions, and lists that differ by a little."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from traceq.facts.ranks.pipelines import UNKNOWN, schedule_of

torch = pytest.importorskip("torch", reason="the schedules are torch's")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="this torch has no pipelines")
if not hasattr(schedules, "ScheduleDualPipeV"):
    pytest.skip("this torch has fewer schedules", allow_module_level=True)

SEVERAL = {
    "ScheduleLoopedBFS": "looped BFS",
    "ScheduleInterleaved1F1B": "interleaved 1F1B",
    "ScheduleInterleavedZeroBubble": "interleaved ZB1P",
}
SINGLE = {"ScheduleGPipe": "GPipe", "Schedule1F1B": "1F1B"}
SIZES = [(2, 4), (2, 5), (3, 6), (4, 8), (4, 16), (8, 16), (8, 24)]
Orders = tuple[list[str], list[list[int]]]


def order_of(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> Orders:
    """The letters and stages of all ranks in a schedule of torch."""
    stage: Any = SimpleNamespace(
        group_size=num_ranks,
        group_rank=0,
        num_stages=num_ranks * num_chunks,
        submod=torch.nn.Identity(),
        is_first=True,
        is_last=False,
        has_backward=True,
        stage_index=0,
        device=torch.device("cpu"),
        group=None,
    )
    schedule = getattr(schedules, name)(stage if name in SINGLE else [stage] * num_chunks, num_microbatches)
    lists = schedule._get_pipeline_order() if name in SINGLE else schedule.pipeline_order
    orders, stages = [], []
    for rank in range(num_ranks):
        taken = [action for action in lists[rank] if action is not None and action.is_compute_op]
        orders.append("".join("O" if action.sub_actions else action.computation_type.value for action in taken))
        stages.append([(action.sub_actions or (action,))[0].stage_index for action in taken])
    return orders, stages


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), SIZES)
def test_schedules_of_several_stages_per_rank(name: str, num_ranks: int, num_microbatches: int) -> None:
    num_microbatches += -num_microbatches % num_ranks  # torch needs whole rounds
    for num_chunks in (2, 3):
        orders, stages = order_of(name, num_ranks, num_microbatches, num_chunks)
        assert schedule_of(orders, stages, wraps=True) == SEVERAL[name]


@pytest.mark.parametrize("name", ["ScheduleZBVZeroBubble", "ScheduleDualPipeV"])
def test_schedules_in_the_shape_of_a_v_are_unknown(name: str) -> None:
    assert schedule_of(*order_of(name, 4, 8, 2), wraps=False) == UNKNOWN


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(("num_ranks", "num_microbatches"), SIZES)
def test_schedules_of_one_stage_per_rank(name: str, num_ranks: int, num_microbatches: int) -> None:
    orders, stages = order_of(name, num_ranks, num_microbatches)
    unnumbered = [[-1] * len(each) for each in stages]
    assert schedule_of(orders, stages, wraps=False) == SINGLE[name]
    assert schedule_of(orders, unnumbered, wraps=False) == SINGLE[name]


def test_interleaved_1f1b_is_recognised_without_the_numbers_of_stages() -> None:
    orders, stages = order_of("ScheduleInterleaved1F1B", 4, 8, 2)
    unnumbered = [[-1] * len(each) for each in stages]
    assert schedule_of(orders, unnumbered, wraps=True) == "interleaved 1F1B"
    assert schedule_of(orders, unnumbered, wraps=False) == UNKNOWN


@pytest.mark.parametrize(
    ("first", "expected"), [("FFIFIWFIWIWW", "ZB1P"), ("FFIWFIFIIWWW", "ZB1P"), ("FFWIFIFIWIWW", UNKNOWN)]
)
def test_weight_gradients_are_anywhere_after_their_input_gradients(first: str, expected: str) -> None:
    orders = [first, "FIFIWFIWFIWW"]
    assert schedule_of(orders, [[0] * 12, [1] * 12], wraps=False) == expected


@pytest.mark.parametrize("name", [*SEVERAL, *SINGLE])
def test_an_order_with_two_passes_swapped_is_unknown(name: str) -> None:
    orders, stages = order_of(name, 4, 8, 1 if name in SINGLE else 2)
    for rank in range(4):
        for place in range(len(orders[rank]) - 1):
            order, numbers = list(orders[rank]), list(stages[rank])
            for values in (order, numbers):
                values[place], values[place + 1] = values[place + 1], values[place]  # type: ignore[index]
            is_same = order == list(orders[rank]) and numbers == stages[rank]
            if not is_same and "W" not in order[place : place + 2]:
                changed = [*orders[:rank], "".join(order), *orders[rank + 1 :]]
                of_ranks = [*stages[:rank], numbers, *stages[rank + 1 :]]
                assert schedule_of(changed, of_ranks, wraps=True) == UNKNOWN, (rank, place)


@pytest.mark.parametrize(
    "orders", [[], ["FFBB"], ["FB", "FB"], ["FFBB", "FBF"], ["FFFBBB", "FFBFBB"], ["FFBB", "FFFBBB"], ["FFWW", "FFWW"]]
)
def test_anything_else_is_unknown(orders: list[str]) -> None:
    assert schedule_of(orders, [[rank] * len(order) for rank, order in enumerate(orders)], wraps=False) == UNKNOWN
