"""Steps of inference engines: what their marks tell, and how long they take."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from builder import Event, annotation, build, call, kernel, launch, op, step, table, write
from paths import FIXTURES, TRACES

from traceq.compare.diff import diff
from traceq.facts.timeline.inference_marks import STEP_KINDS, inference_marks, parse
from traceq.facts.timeline.phases import phases
from traceq.facts.timeline.steps import steps
from traceq.kineto.read import read_trace

SGLANG = TRACES / "inference" / "sglang-prefill-decode-mi300.json.gz"
VLLM = TRACES / "inference" / "vllm-piecewise-mi300.json.gz"


@pytest.mark.parametrize(
    ("name", "kind", "batch", "tokens"),
    [
        ("execute_context_2(900)_generation_30(30)", "mixed", 32, 930),
        ("execute_context_0(0)_generation_64(64)", "decode", 64, 64),
        ("execute_8192_context_9(sq8155sk8430sqsq74sqsk76)_generation_37(sq37sk344sqsq37sqsk344)", "mixed", 46, 8192),
        ("execute_new_3_cached_0", "prefill", 3, -1),
        ("execute_new_0_cached_5", "decode", 5, 5),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15, 15360),
        ("step[DECODE bs=32]", "decode", 32, 32),
        ("[Executor] _forward_step 7: 2 ctx reqs, 900 ctx tokens, 30 gen reqs", "mixed", 32, 930),
        ("[Executor] _forward_step 8: 0 ctx reqs, 30 gen reqs", "decode", 30, 30),
        ("[Executor] _forward_step: 3 ctx reqs, 0 gen reqs", "prefill", 3, -1),
        ("prefill[bs=2 tok=16384]", "prefill", 2, 16384),
        ("prefill", "prefill", -1, -1),
        ("Decode step #3 (batch_size: 8, tokens=16)", "decode", 8, 16),
        ("execute_model", "step", -1, -1),
        ("gpu_model_runner: forward", "step", -1, -1),
    ],
)
def test_a_mark_tells_what_is_computed_for_how_many(name: str, kind: str, batch: int, tokens: int) -> None:
    requests = parse(name)
    assert requests is not None
    assert (STEP_KINDS[requests.kind], requests.batch, requests.tokens) == (kind, batch, tokens)


@pytest.mark.parametrize(
    "name", ["decoder", "decode_attention", "prefill_kernel", "aten::mm", "ProfilerStep#3", "forward"]
)
def test_other_names_are_no_steps(name: str) -> None:
    assert parse(name) is None


def decode(number: int, start: int, batch: int = 8, device_us: int = 50) -> list[Event]:
    """A decode whose graph runs 10 us after the host has launched it."""
    return [
        annotation(f"step[DECODE bs={batch}]", start, 30),
        call("cudaGraphLaunch", start + 5, 5, number + 1),
        kernel("attention", start + 20, device_us - 20, number + 1),
        kernel("mlp", start + device_us, 10, number + 1),
    ]


def test_a_step_takes_until_its_device_work_is_over_from_when_earlier_work_is() -> None:
    trace = build(*decode(0, 0), *decode(1, 40), *decode(2, 500))
    (row,) = table(trace, "inference")
    assert row["dur_ns"] == (60_000 + (40_000) + 60_000) // 3  # the second begins when the first is over, at 60 us
    assert (row["num"], row["batch"], row["tokens"]) == (3, 8, 24)
    assert row["token_ns"] == round(160_000 / 24)
    assert (row["replay_ns"], row["num_replays"]) == (row["gpu_ns"], 3) == (40_000, 3)


def test_they_are_the_steps_and_phases_of_a_trace_without_profiler_steps() -> None:
    rows = [*decode(0, 0), *decode(1, 100), annotation("step[EXTEND bs=2 toks=100]", 200, 30), launch(205, 5, 9)]
    trace = build(*rows, kernel("gemm", 220, 500, 9))
    assert steps(trace).names == ("step[DECODE bs=8]", "step[DECODE bs=8]", "step[EXTEND bs=2 toks=100]")
    assert steps(trace).by_device
    assert phases(trace).rule == "inference"
    assert {row["name"]: row["num_kernels"] for row in table(trace, "phases")} == {
        "prefill": 1,
        "decode": 4,
        "other": 0,
        "before_window": 0,
        "unattributed": 0,
    }


def test_profiler_steps_stay_steps() -> None:
    trace = build(step(0, 95), step(100, 95, 1), *decode(0, 0), *decode(1, 100))
    assert steps(trace).names == ("ProfilerStep#0", "ProfilerStep#1")
    assert len(table(trace, "inference")) == 1


def test_a_training_loop_that_decodes_is_no_inference() -> None:
    loop = [annotation(f"decode {number}", 100 * number, 50) for number in range(3)]
    assert len(inference_marks(build(*loop, op("aten::mm", 0, 5)))) == 3
    assert len(inference_marks(build(*loop, op("autograd::engine::evaluate_function: MmBackward0", 400, 5)))) == 0
    assert len(inference_marks(build(loop[0], op("aten::mm", 0, 5)))) == 0


def test_a_diff_compares_each_kind_at_each_batch_size(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", *decode(0, 0), *decode(1, 100, 16), *decode(2, 200))
    b = write(tmp_path / "b.json", *decode(0, 0), *decode(1, 100, 16, device_us=80), *decode(2, 200))
    deltas = diff(str(a), str(b)).inference
    assert [(each.kind, each.batch, each.num_a, each.delta_ns) for each in deltas] == [
        ("decode", 8, 2, 0),
        ("decode", 16, 1, 30_000),
    ]


def slow_answer(path: Path) -> dict[str, Any]:
    """Of the only mark of a file: from the first work in it to the end of the last, by plain Python."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    mark = next(e for e in events if e["name"].startswith("execute_") and e["cat"] == "user_annotation")
    begin, end = ns(mark["ts"]), ns(mark["ts"]) + ns(mark["dur"])
    calls = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") == "cuda_runtime" and begin <= ns(event["ts"]) < end
    }
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    launched = [event for event in device if event["args"]["correlation"] in calls]
    replayed = [e for e in launched if calls[e["args"]["correlation"]]["name"].endswith("GraphLaunch")]
    return {
        "end": max(ns(event["ts"]) + ns(event["dur"]) for event in launched),
        "gpu_ns": sum(ns(event["dur"]) for event in launched),
        "replay_ns": sum(ns(event["dur"]) for event in replayed),
        "num_replays": len({event["args"]["correlation"] for event in replayed}),
    }


def ns(microseconds: Any) -> int:
    return int(Decimal(str(microseconds)) * 1000)


@pytest.mark.parametrize(
    ("path", "kind", "batch", "tokens"), [(SGLANG, "prefill", 15, 15360), (VLLM, "mixed", 46, 8192)]
)
def test_real_engines_agree_with_plain_python(path: Path, kind: str, batch: int, tokens: int) -> None:
    if not path.exists():
        pytest.skip(f"no {TRACES}")
    trace, expected = read_trace(path), slow_answer(path)
    (row,) = table(trace, "inference")
    assert (row["kind"], row["batch"], row["tokens"]) == (kind, batch, tokens)
    assert row["dur_ns"] == expected["end"] - steps(trace).window[0, 0]
    assert {key: row[key] for key in expected if key != "end"} == {k: v for k, v in expected.items() if k != "end"}


def test_the_example_is_told_by_kind_and_batch() -> None:
    rows = table(read_trace(FIXTURES / "kinds" / "inference.json"), "inference")
    assert [(row["kind"], row["batch"], row["num"], row["tokens"]) for row in rows] == [
        ("prefill", 2, 1, 900),
        ("decode", 24, 3, 72),
        ("decode", 31, 3, 93),
        ("mixed", 31, 1, 530),
    ]
