"""Passes of microbatches: as annotations name them, or as a phase computes between two messages."""

from __future__ import annotations

from builder import AUTOGRAD, Event, annotation, build, kernel, launch, op, step, world

from traceq.facts.comm.microbatches import PASS_KINDS, Passes, passes
from traceq.model import Trace


def kinds(result: Passes) -> str:
    return "".join(PASS_KINDS[kind] for kind in result.kind.tolist())


def times(result: Passes) -> list[tuple[float, float]]:
    return list(zip((result.start / 1000).tolist(), (result.end / 1000).tolist(), strict=True))


def gloo(*rows: Event) -> Trace:
    return build(step(0, 1000), *rows, **world(0, 2, "gloo"))


def forward(start: float, dur: float) -> Event:
    return op("aten::linear", start, dur)


def backward(start: float, dur: float) -> Event:
    return op("autograd::engine::evaluate_function: AddmmBackward0", start, dur)


def message(start: float, way: str = "send") -> Event:
    return annotation(f"gloo:{way}", start, 1)


def test_a_pass_is_what_one_phase_computes_between_two_messages() -> None:
    trace = gloo(
        op("aten::empty", 1, 1),  # of a barrier
        annotation("gloo:barrier", 3, 20),
        op("aten::slice", 30, 1),
        message(35, "recv"),
        forward(40, 30),
        forward(75, 25),
        op("aten::mse_loss", 102, 2),
        backward(110, 80),
        op("aten::detach", 195, 1),
        backward(200, 40),
        message(250),
        forward(260, 60),
        message(330),
        backward(335, 50),
        message(390),
        op("aten::div_", 400, 2),
    )
    result = passes(trace)
    assert not result.named
    assert kinds(result) == "FBFB"
    assert times(result) == [(40, 104), (110, 240), (260, 320), (335, 385)]
    assert result.stage.tolist() == [-1] * 4
    assert result.computing[0].tolist() == [30_000, 31_000]


def test_annotations_name_passes_and_their_stages() -> None:
    trace = gloo(
        annotation("PP:0F0", 10, 50),
        op("aten::empty_strided", 11, 2),
        message(24, "recv"),
        forward(30, 20),
        annotation("PP:0SEND_F0", 61, 2),
        annotation("PP:(3F1;0B0)OVERLAP_F_B", 100, 100),
        forward(110, 20),
        backward(160, 30),
        annotation("PP:0I1", 300, 8),
        annotation("PP:0W1", 310, 30),
        backward(320, 10),
    )
    result = passes(trace)
    assert result.named
    assert kinds(result) == "FOIW"
    assert result.stage.tolist() == [0, 3, 0, 0]
    assert times(result) == [(25, 60), (100, 200), (308, 308), (310, 340)]
    assert result.issued_ns.tolist() == [10_000, 100_000, 300_000, 310_000]


def test_a_pass_of_a_device_is_when_its_kernels_run() -> None:
    trace = build(
        step(0, 1000),
        annotation("Forward 0", 10, 20),
        launch(12, 2, 1),
        kernel("gemm", 100, 50, 1),
        launch(16, 2, 2),
        kernel("ncclDevKernel_SendRecv", 150, 500, 2, stream=20),
        annotation("Backward 0", 40, 30),
        launch(45, 2, 3, tid=AUTOGRAD),
        kernel("gemm", 650, 80, 3),
        launch(90, 2, 4),
        kernel("adam", 800, 20, 4),
        **world(0, 2),
    )
    result = passes(trace)
    assert kinds(result) == "FB"
    assert times(result) == [(100, 150), (650, 730)]
    assert result.computing.tolist() == [[100_000, 150_000], [650_000, 730_000], [800_000, 820_000]]


def test_without_messages_or_names_there_are_no_passes() -> None:
    assert len(passes(gloo(forward(10, 30), backward(50, 30)))) == 0
