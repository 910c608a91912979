"""Which op, module and Python line a sync comes from."""

from __future__ import annotations

import pytest
from builder import Event, annotation, build, call, frame, kernel, launch, memcpy, op, step, table

from traceq.model import Manifest, SourceLines

SYNC = (launch(5, 1, 1), kernel("a", 8, 30, 1), call("cudaStreamSynchronize", 32, 10))


def origin(*events: Event) -> tuple[str, str, str]:
    """(op, module, line) of the only sync."""
    (row,) = table(build(step(0, 100), *SYNC, *events), "syncs")
    return row["op"], row["module"], row["line"]


def test_a_function_that_runs_as_the_profiler_starts_has_no_line() -> None:
    """Kineto has the line at which it stood then; functions called since have their first."""
    loop = frame("train.py(90): <module>", 0, 100), frame("train.py(88): main", 1, 98)
    starts = frame("torch/profiler/profiler.py(1227): step", 2, 5), frame("torch/autograd/profiler.py(4): start", 3, 2)
    assert origin(*loop, *starts)[2] == "train.py main"
    assert origin(*loop, *starts, frame("train.py(7): check", 30, 20))[2] == "train.py:7 check"
    assert origin(*loop, frame("model.py(3): forward", 1.2, 0.5), *starts)[2] == "train.py:88 main"  # not the first
    assert origin(*loop)[2] == "train.py:88 main"
    starts = [frame(str(each["name"]).replace("/", "\\"), each["ts"], each["dur"]) for each in starts]
    assert origin(*loop, *starts)[2] == "train.py main"  # on Windows


def test_the_line_is_that_of_the_innermost_user_frame() -> None:
    assert origin(
        frame("train.py(88): main", 0, 100),
        frame("/home/me/model.py(20): forward", 10, 60),
        frame("nn.Module: Linear_3", 20, 40),
        frame("site-packages/torch/_tensor.py(9): item", 25, 30),
        frame("<built-in method item of Tensor>", 28, 20),
    ) == ("", "Linear_3", "model.py:20 forward")


def test_since_torch_2_14_the_line_is_the_one_that_makes_the_call() -> None:
    main = frame("/repo/train.py(88): main", 0, 100, CallFrom="/repo/train.py:120")
    loss = frame("/repo/loss.py(20): check", 10, 60, CallFrom="/repo/train.py:95")
    item = frame("<built-in method item of Tensor>", 28, 20, CallFrom="/repo/loss.py:24")
    inside = frame("torch/_tensor.py(9): wrapped", 25, 30, CallFrom="/repo/loss.py:23")
    assert origin(main)[2] == "train.py:88 main"  # what calls nothing is somewhere in the function
    assert origin(main, loss)[2] == "loss.py:20 check"
    assert origin(main, loss, item)[2] == "loss.py:24 check"
    assert origin(main, loss, inside, item)[2] == "loss.py:23 check"
    assert origin(main, item)[2] == "train.py:88 main"  # a line of another file is none of this function's
    assert origin(main, loss, op("aten::item", 29, 15, **{"Call stack": "old.py(3): f"}), item)[2] == "loss.py:24 check"


def test_the_module_is_the_path_to_the_innermost() -> None:
    frames = (
        frame("nn.Module: Net_0", 0, 100),
        frame("nn.Module: Block_3", 10, 60),
        frame("nn.Module: Linear_7", 20, 40),
    )
    assert origin(*frames)[1] == "Net_0.Block_3.Linear_7"


@pytest.mark.parametrize(
    "library",
    [
        "torch/nn/modules/module.py(1): _call_impl",
        "/x/accelerate/y.py(3): f",
        "/x/traceq/recorder/rank_process.py(3): main",
        "/x/traceq/recorder/timing/stopwatch.py(3): f",
        "threading.py(9): run",
        "contextlib.py(7): inner",
        "typing.py(359): inner",
        "random.py(385): sample",
        "collections/__init__.py(599): __init__",
        "numpy/lib/_shape_base_impl.py(1078): kron",
        "/tmp/torchinductor_me/td/ctdohded2joxbr65dap4lhqshj4f44heltdwej7ddnuuwqec4cx4.py(1011): call",
        "/lib/python3.12/json/decoder.py(5): decode",
    ],
)
def test_a_library_frame_is_never_the_line(library: str) -> None:
    assert origin(frame("train.py(88): main", 0, 100), frame(library, 10, 60))[2] == "train.py:88 main"


@pytest.mark.parametrize(
    "name",
    [
        "profile.py(88): main",
        "data/random.py(88): main",
        "/lib/python3.12/site-packages/m.py(88): main",
    ],
)
def test_a_user_frame_may_be_named_like_a_librarys_or_be_installed(name: str) -> None:
    assert origin(frame(name, 0, 100))[2] == f"{name.rpartition('/')[2].partition('(')[0]}:88 main"


def test_the_op_is_the_one_that_copies_not_the_one_around_it() -> None:
    ops = op("aten::to", 28, 30), op("aten::_to_copy", 29, 28), op("aten::copy_", 30, 20)
    assert origin(*ops)[0] == "aten::copy_"
    assert origin(op("aten::nonzero", 28, 30), op("aten::as_strided", 30, 14))[0] == "aten::nonzero"


@pytest.mark.parametrize(("start", "expected"), [(79, "aten::copy_"), (81, "")])
def test_clocks_may_disagree_by_30_us_about_the_op_of_a_copy(start: int, expected: str) -> None:
    copy = call("cudaMemcpyAsync", 30, 2, 2), memcpy("DtoH (Device -> Pinned)", 40, 5, 2)
    after = op("aten::copy_", start, 10)
    (row,) = table(build(step(0, 100), *copy, call("cudaStreamSynchronize", 33, 17), after), "syncs")
    assert row["op"] == expected


@pytest.mark.parametrize(("start", "expected"), [(75, "aten::copy_"), (81, "aten::empty_strided")])
def test_a_copy_inside_an_op_that_allocates_belongs_to_the_copying_op_after_it(start: int, expected: str) -> None:
    copy = call("cudaMemcpyAsync", 30, 2, 2), memcpy("DtoH (Device -> Pinned)", 40, 5, 2)
    ops = op("aten::_to_copy", 25, 70), op("aten::empty_strided", 28, 24), op("aten::copy_", start, 10)
    (row,) = table(build(step(0, 100), *copy, call("cudaStreamSynchronize", 33, 17), *ops), "syncs")
    assert row["op"] == expected
    (row,) = table(build(step(0, 100), *SYNC[:2], call("cudaStreamSynchronize", 33, 17), *ops), "syncs")
    assert row["op"] == "aten::empty_strided"  # it copies nothing


def test_a_wait_without_a_copy_belongs_to_no_nearby_op() -> None:
    assert origin(op("aten::copy_", 71, 10))[0] == ""


def test_of_ops_that_start_together_the_shorter_is_inside() -> None:
    ops = op("aten::inner", 30, 15), op("aten::outer", 30, 20)
    assert origin(*ops)[0] == origin(*reversed(ops))[0] == "aten::inner"


def test_an_op_of_another_thread_is_not_the_origin() -> None:
    assert origin(op("aten::copy_", 20, 40, tid=9))[0] == ""


def test_the_call_stack_of_2021_is_read_innermost_first() -> None:
    stack = "torch/tensor.py(9): item;/repo/loss.py(33): check;/repo/train.py(8): main"
    assert origin(op("aten::item", 30, 20, **{"Call stack": stack}))[2] == "loss.py:33 check"
    outer = op("aten::item", 28, 30, **{"Call stack": stack})
    assert origin(outer, op("aten::_local_scalar_dense", 30, 20))[2] == "loss.py:33 check"


def test_the_embedded_table_tells_lines_by_occurrence_within_the_step() -> None:
    lines = SourceLines(("a.py:1 f", "b.py:2 g"), {"other|aten::item": (0, 1)})
    events: list[Event] = []
    for number in (0, 1):
        begin = 100 * number
        events += [step(begin, 100, number), launch(begin + 1, 1, number + 1), kernel("k", begin + 3, 95, number + 1)]
        for start in (begin + 10, begin + 40, begin + 70):
            events += [op("aten::item", start, 20), op("aten::item", start + 1, 5)]
            events += [call("cudaStreamSynchronize", start + 2, 10)]
    rows = table(build(*events, recorded={"lines": lines}), "syncs")
    assert {row["line"]: row["num"] for row in rows} == {"a.py:1 f": 2, "b.py:2 g": 2, "": 2}


def test_an_op_outside_any_declared_phase_has_its_line_too() -> None:
    lines = SourceLines(("a.py:1 f", "b.py:2 g"), {"other|aten::item": (0,), "forward|aten::item": (1,)})
    manifest = Manifest(1, "", "", "", {}, (), ("forward",), 1, 0)
    events = *SYNC[:2], annotation("forward", 5, 20), op("aten::item", 10, 5), call("cudaStreamSynchronize", 11, 2)
    later = op("aten::item", 40, 5), call("cudaStreamSynchronize", 41, 2)
    rows = table(build(step(0, 100), *events, *later, recorded={"lines": lines, "manifest": manifest}), "syncs")
    assert {row["line"] for row in rows} == {"a.py:1 f", "b.py:2 g"}


def test_the_embedded_table_covers_the_main_thread_only() -> None:
    lines = SourceLines(("a.py:1 f",), {"other|aten::item": (0,)})
    events = op("aten::item", 10, 20, tid=9), call("cudaStreamSynchronize", 12, 10, tid=9), op("aten::item", 40, 5)
    (row,) = table(build(step(0, 100), *SYNC[:2], *events, recorded={"lines": lines}), "syncs")
    assert (row["op"], row["line"]) == ("aten::item", "")


def test_syncs_of_one_line_are_one_row_and_of_two_lines_two() -> None:
    frames = [(10, "a.py(1): f"), (30, "a.py(1): f"), (50, "a.py(2): f")]
    events = [
        row for start, line in frames for row in (frame(line, start, 12), call("cudaEventSynchronize", start + 1, 5))
    ]
    rows = table(build(step(0, 100), launch(1, 1, 1), kernel("k", 2, 3, 1), *events), "syncs")
    assert {row["line"]: row["num"] for row in rows} == {"a.py:1 f": 2, "a.py:2 f": 1}
