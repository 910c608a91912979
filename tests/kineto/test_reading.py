"""A sound trace gives the same columns whatever its year, layout, packing and the size of the windows it is read in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from builder import (
    Event,
    annotation,
    build,
    call,
    comms,
    kernel,
    memcpy,
    memory,
    op,
    read_text,
    row,
    step,
    text,
    world,
)
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st

from traceq.errors import UnreadableInput
from traceq.kineto import event_windows
from traceq.kineto.read import read_trace
from traceq.model import Category, Trace

TRICKY = [
    "}, {",
    '"traceEvents": [',
    "a\\b",
    'say "hi"',
    "]}",
    "{",
    "[[",
    "ü\u2028",
    "NaN",
    "</script>",
    "-inf, NaN",
    "\n",
    "",
]


@pytest.fixture
def window() -> Iterator[Any]:
    """Sets the size of the windows in bytes."""
    with pytest.MonkeyPatch.context() as patch:
        yield lambda size: patch.setattr(event_windows, "_WINDOW", size)


def seen(trace: Trace) -> list[tuple[Any, ...]]:
    """(name, category, thread, ts, dur, correlation, bytes) of each event."""
    events = trace.events
    texts = (
        [events.strings[i] for i in column.tolist()] for column in (events.name, events.cat, events.pid, events.tid)
    )
    numbers = (column.tolist() for column in (events.ts, events.dur, events.correlation, events.bytes))
    return list(zip(*texts, *numbers, strict=True))


def expected(content: bytes) -> list[tuple[Any, ...]]:
    """The same by `json`: integer times only."""
    result = json.loads(content)
    result = result if isinstance(result, list) else result["traceEvents"]
    rows = []
    for event in result:
        if event["ph"] == "X":
            on_device = event["cat"] in ("kernel", "gpu_memcpy")
            args = event.get("args", {})
            linked = args.get("correlation", -1) if on_device or event["cat"] == "cuda_runtime" else -1
            texts = (event["name"], event["cat"], str(event["pid"]), str(event["tid"]))
            size = args.get("bytes", -1) if on_device else -1
            rows.append((*texts, event["ts"] * 1000, event["dur"] * 1000, linked, size))
    return rows


names = st.sampled_from(TRICKY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
nested = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)
start = st.integers(0, 2 * 10**15)
dur = st.integers(0, 10**9)
corr = st.integers(0, 2**40)
more = st.fixed_dictionaries({"detail": nested})


@st.composite
def event(draw: st.DrawFn) -> Event:
    name, ts, length, number, args = draw(names), draw(start), draw(dur), draw(corr), draw(more)
    made = draw(
        st.sampled_from(
            [
                op(name, ts, length, **args),
                annotation(name, ts, length, tid="thread 9", **args),
                call(name, ts, length, number, **args),
                kernel(name, ts, length, number, **args),
                memcpy("DtoH (Device -> Pinned)", ts, length, number),
                {"ph": "i", "name": name, "ts": ts, "s": "t", "args": args},
                {"ph": "s", "id": number, "name": "ac2g", "cat": "ac2g", "pid": 0, "tid": 7, "ts": ts},
            ]
        )
    )
    return dict(draw(st.permutations(list(made.items()))))


metadata = st.dictionaries(names.filter(lambda key: key not in ("traceEvents", "traceq")), nested, max_size=3)
LAYOUTS = {
    "minified": lambda value: msgspec.json.encode(value),
    "spaced": lambda value: json.dumps(value).encode(),
    "indented": lambda value: json.dumps(value, indent=4, ensure_ascii=False).encode(),
    "a line each": lambda value: msgspec.json.encode(value).replace(b"},{", b"},\r\n{"),
    "airy": lambda value: json.dumps(value, separators=(" ,\n\t ", " : ")).encode(),
}


@up_to(150)
@given(
    events=st.lists(event(), min_size=1, max_size=12).filter(lambda some: any(e["ph"] == "X" for e in some)),
    before=metadata,
    after=metadata,
    layout=st.sampled_from(sorted(LAYOUTS)),
    size=st.sampled_from([1, 7, 64, 200, 1000, 4096, 1 << 17]),
    bare=st.booleans(),
)
def test_the_columns_are_those_of_json_for_any_window_and_layout(
    events: list[Event], before: Event, after: Event, layout: str, size: int, bare: bool
) -> None:
    value: Any = events if bare else {**before, "distributedInfo": {"rank": 5}, "traceEvents": events, **after}
    content = LAYOUTS[layout](value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_windows, "_WINDOW", size)
        trace = read_text(content, strict=True)
    assert seen(trace) == expected(content)
    assert trace.rank == (0 if bare else 5)


SMALL = (
    step(0, 100, 3),
    comms("allreduce", 10, 5, (64, 32)),
    call("cudaLaunchKernel", 12, 2, 7),
    kernel("gemm", 30, 10, 7, grid=[2, 3, 1]),
)


def test_a_trace_of_today_is_read_with_its_metadata() -> None:
    trace = build(
        *SMALL,
        deviceProperties=[{"id": 0, "name": "NVIDIA H200"}],
        baseTimeNanoseconds=1700000000000000000,
        **world(2, 8),
    )
    assert (trace.rank, trace.world_size, trace.backend, trace.device) == (2, 8, "nccl", "NVIDIA H200")
    assert (trace.base_time_ns, trace.schema) == (1700000000000000000, "2025")
    events, messages = trace.events, trace.events.messages
    assert events.ts.tolist() == [0, 10_000, 12_000, 30_000]
    assert events.strings[events.grid[3]] == "2x3x1"
    assert (messages.row.tolist(), messages.elements_in.tolist(), messages.elements_out.tolist()) == ([1], [64], [32])
    assert [events.strings[i] for i in (messages.name[0], messages.dtype[0])] == ["allreduce", "float32"]


def test_metadata_behind_the_events_counts_as_much() -> None:
    content = text(*SMALL)[:-1] + b', "distributedInfo": {"rank": 3, "world_size": 4}}'
    assert (read_text(content).rank, read_text(content).world_size) == (3, 4)


def test_a_python_frame_has_the_line_that_called_it_and_an_op_none() -> None:
    frame = row("python_function", "b.py(3): g", 0, 9, CallFrom="a.py:7")
    stacks = build(row("cpu_op", "aten::add", 1, 2, CallFrom="a.py:8"), frame).events.stacks
    assert stacks.row.tolist() == [1]
    assert build(frame).events.strings[build(frame).events.stacks.text[0]] == "a.py:7"


def test_a_trace_of_2021_is_read_in_its_own_spelling() -> None:
    trace = build(
        row("Operator", "ProfilerStep#4", 0, 100),
        row("Operator", "Optimizer.step#SGD.step", 60, 30),
        row("Operator", "aten::add", 10, 5, **{"external id": 8, "Call stack": "a.py(3): f"}),
        row("Runtime", "cudaLaunchKernel", 12, 2, correlation=7),
        row("Kernel", "gemm", 30, 10, tid="7", correlation=7, stream=7, device=0),
        row("Memcpy", "Memcpy HtoD (Pageable -> Device)", 45, 1, tid="7", stream=7, device=0, bytes=64),
    )
    kinds = [
        Category.ANNOTATION,
        Category.ANNOTATION,
        Category.CPU_OP,
        Category.RUNTIME,
        Category.KERNEL,
        Category.MEMCPY,
    ]
    assert trace.events.category.tolist() == kinds
    assert trace.events.external_id[2] == 8
    assert trace.events.strings[trace.events.stacks.text[0]] == "a.py(3): f"
    assert (trace.schema, trace.device) == ("2021", "cuda")


def test_types_of_inputs_are_kept_of_ops_alone() -> None:
    reported = {"Input type": ["float", ""]}
    events = build(op("aten::mm", 0, 1, **reported), op("aten::add", 2, 1), step(4, 1) | {"args": reported}).events
    assert [events.strings[text] if text >= 0 else "" for text in events.types.tolist()] == ['["float",""]', "", ""]


def test_strides_and_values_of_inputs_are_kept_as_written() -> None:
    written = {"Input Strides": [[1, 0], []], "Concrete Inputs": ["", "[1, -1]"]}
    events = build(op("aten::expand", 0, 1, **written), op("aten::add", 4, 1)).events
    texts = [
        [events.strings[text] if text >= 0 else "" for text in each.tolist()]
        for each in (events.strides, events.inputs)
    ]
    assert texts == [["[[1,0],[]]", ""], ['["","[1, -1]"]', ""]]


def test_allocations_and_shapes_of_every_year_are_kept() -> None:
    early = {"ph": "i", "name": "[memory]", "pid": 4, "tid": 5, "ts": 7, "args": {"Device Type": 0, "Bytes": -16}}
    shaped = op("aten::mm", 0, 1, **{"Input dims": [[2, 3]]}), op("aten::mm", 2, 1, **{"Input Dims": [[4]]})
    events = build(memory(1.5, 64, 96, 128), early, *shaped, op("aten::add", 4, 1)).events
    result = events.allocations
    assert result.ts.tolist() == [1500, 7000]
    assert result.bytes.tolist() == [64, -16]
    assert (result.allocated.tolist(), result.reserved.tolist()) == ([96, -1], [128, -1])
    assert (result.device_type.tolist(), result.device.tolist()) == ([1, 0], [0, -1])
    assert [events.strings[text] for text in result.tid.tolist()] == ["1", "5"]
    assert [events.strings[text] if text >= 0 else "" for text in events.shapes.tolist()] == ["[[2,3]]", "[[4]]", ""]


def test_the_event_that_a_synchronize_waits_for_is_kept_where_its_row_names_stream_and_record() -> None:
    names = "wait_on_stream", "wait_on_cuda_event_record_corr_id"
    rows = [dict(zip(names, reported, strict=True)) for reported in ((20, 32), (-1, -1), (20, -1), ("21", "33"))]
    syncs = [
        row("cuda_sync", "Event Sync", n, 1, correlation=n, stream=-1, **reported) for n, reported in enumerate(rows)
    ]
    result = build(op("aten::mm", 0, 1, wait_on_stream=3, wait_on_cuda_event_record_corr_id=4), *syncs).events.waits
    assert (result.row.tolist(), result.stream.tolist(), result.record.tolist()) == ([1, 4], [20, 21], [32, 33])


def test_the_nodes_of_graphs_are_kept_with_the_annotations_of_torch() -> None:
    labels = [{"name": "attention"}, {"str": "mlp", "annotation": "x"}, {"annotation": "loss"}, {"name": ""}, {}]
    labels.append({"name": "block::layers.0", "module_fqn": "layers.0"})
    nodes = [
        kernel("k", n, 1, 9, **{"graph id": 5, "graph node id": (5 << 32) + n}, **args) for n, args in enumerate(labels)
    ]
    eager = kernel("k", 9, 1, 8, **{"graph id": 0, "graph node id": 0, "name": "no node"})
    events = build(op("aten::mm", 0, 1, **{"graph id": 7, "graph node id": 7}), eager, *nodes).events
    assert (events.nodes.row.tolist(), events.nodes.graph.tolist()) == ([2, 3, 4, 5, 6, 7], [5] * 6)
    assert events.nodes.node.tolist() == [(5 << 32) + n for n in range(6)]
    texts = [events.strings[text] if text >= 0 else "" for text in events.nodes.label.tolist()]
    assert texts == ["attention", "mlp", "loss", "", "", "layers.0"]


def test_an_mtia_copy_gets_the_name_that_other_devices_give_it() -> None:
    trace = build(
        row("mtia_runtime", "launch", 0, 2, correlation=1),
        row("mtia_ccp_events", "dma_request", 5, 3, size=256, direction="DEVICE_TO_HOST"),
        row("mtia_ccp_events", "fused_gemm", 9, 3, correlation=1),
    )
    assert [Category(kind).name for kind in trace.events.category.tolist()] == ["RUNTIME", "MEMCPY", "KERNEL"]
    assert (trace.events.text(1), trace.events.bytes[1]) == ("Memcpy DtoH (dma_request)", 256)
    assert trace.device == "mtia"


def test_a_stream_of_mtia_that_waits_for_another_does_no_work() -> None:
    trace = build(
        row("mtia_runtime", "launch", 0, 2, correlation=1),
        row("mtia_ccp_events", "event_wait", 2, 8, tid=2, stream=2, wait_on_stream=1),
        row("mtia_ccp_events", "event_record", 9, 1, tid=1, stream=1),
        row("mtia_ccp_events", "fused_gemm", 12, 3, tid=2, stream=2, correlation=1),
    )
    assert [Category(kind).name for kind in trace.events.category.tolist()] == ["RUNTIME", "SYNC", "SYNC", "KERNEL"]


def test_a_hip_trace_is_a_rocm_device() -> None:
    assert build(call("hipLaunchKernel", 0, 1, 1), row("kernel", "k", 2, 1, correlation=1)).device == "rocm"


@pytest.mark.parametrize(
    ("units", "size", "device"),
    [(304, 206_141_652_992, "AMD Instinct MI300X"), (304, 274_877_906_944, "AMD Instinct MI325X"), (228, 1, "rocm")],
)
def test_a_device_without_a_name_is_told_by_its_units_and_memory(units: int, size: int, device: str) -> None:
    properties = {"name": "", "totalGlobalMem": size, "computeMajor": 9, "computeMinor": 4, "numSms": units}
    rows = call("hipLaunchKernel", 0, 1, 1), row("kernel", "k", 2, 1, correlation=1)
    assert build(*rows, deviceProperties=[properties]).device == device


@pytest.mark.parametrize(("launches", "major"), [("cudaLaunchKernel", 8), ("hipLaunchKernel", 0)])
def test_the_compute_capability_is_that_of_cuda(launches: str, major: int) -> None:
    """AMD's devices have numbers of the same name: 9 of an MI100, without TF32."""
    rows = call(launches, 0, 1, 1), row("kernel", "k", 2, 1, correlation=1)
    assert build(*rows, deviceProperties=[{"name": "a device", "computeMajor": 8}]).compute_major == major
    assert build(*rows, deviceProperties=[{"name": "a device", "computeMajor": "?"}, 3]).compute_major == 0
    assert build(*rows, deviceProperties=[3]).compute_major == 0


@pytest.mark.parametrize("size", [1, 64, 1 << 17])
def test_a_nested_key_is_not_mistaken_for_the_list_of_events(window: Any, size: int) -> None:
    window(size)
    inner = {"config": {"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "not me"}]}, "pad": "x" * 3000}
    assert len(build(*SMALL, **inner).events) == len(SMALL)


def test_thread_names_and_ids_of_any_type_are_text() -> None:
    name = {"ph": "M", "name": "thread_name", "pid": "40", "tid": 9, "args": {"name": "pt_autograd_0"}}
    trace = build(name, op("a", 0, 1, tid=9), op("b", 2, 1, tid="9"))
    assert [(thread.tid, thread.name) for thread in trace.threads] == [("9", "pt_autograd_0")]
    assert trace.events.tid[0] == trace.events.tid[1]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (17, 17),
        ("17", 17),
        (2**63 + 5, -(2**63) + 5),
        (2**64 + 9, 9),
        (None, -1),
        ("seventeen", -1),
        ([17], -1),
        ({"id": 17}, -1),
        (-1, -1),
    ],
)
def test_an_id_of_any_type_reads_as_int64_or_absent(written: Any, read: int) -> None:
    trace = build(kernel("a", 0, 1, written), kernel("b", 5, 1, written), kernel("c", 9, 1, 4))
    assert trace.events.correlation.tolist() == [read, read, 4]


def test_ids_that_are_all_lists_are_all_absent() -> None:
    assert build(kernel("a", 0, 1, [1]), kernel("b", 5, 1, [2])).events.correlation.tolist() == [-1, -1]


def test_the_last_of_two_equal_keys_counts() -> None:
    content = b'[{"ph": "X", "name": "old", "ts": 1, "dur": 1, "name": "new", "dur": 2}]'
    assert seen(read_text(content)) == [("new", "", "", "", 1000, 2000, -1, -1)]


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_several_gzip_members_are_one_file(tmp_path: Path, pieces: int) -> None:
    content = text(*(op(f"op{i}", i, 1) for i in range(100)))
    cut = len(content) // pieces + 1
    path = tmp_path / "trace.json.gz"
    path.write_bytes(
        b"".join(gzip.compress(content[index : index + cut]) for index in range(0, len(content), cut)) + bytes(99)
    )
    assert len(read_trace(path, strict=True).events) == 100


def test_several_zstd_frames_are_one_file_of_which_some_are_skipped(tmp_path: Path) -> None:
    content = text(*(op(f"op{i}", i, 1) for i in range(100)))
    note = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"  # as pzstd writes before each frame
    path = tmp_path / "trace.json.zst"
    path.write_bytes(b"".join(note + zstandard.compress(half) for half in (content[:3000], content[3000:])))
    assert len(read_trace(path, strict=True).events) == 100


def test_a_file_that_needs_a_dictionary_says_so(tmp_path: Path) -> None:
    dictionary = zstandard.train_dictionary(1024, [text(op(f"op{i}", i, 1)) for i in range(500)])
    path = tmp_path / "trace.json.zst"
    path.write_bytes(zstandard.ZstdCompressor(dict_data=dictionary).compress(text(*SMALL)))
    with pytest.raises(UnreadableInput, match="with a dictionary"):
        read_trace(path)


def test_the_packing_is_told_by_the_first_bytes_not_by_the_name(tmp_path: Path) -> None:
    content = text(*SMALL)
    for name, packed in (
        ("a.json", gzip.compress(content)),
        ("b.json.gz", zstandard.compress(content)),
        ("c.json.zst", content),
        ("d.json", b"\xef\xbb\xbf  " + content),
    ):
        (tmp_path / name).write_bytes(packed)
        assert seen(read_trace(tmp_path / name, strict=True)) == seen(build(*SMALL))


SHAPES = {"Input Dims": [[2, 2], [2, 2]]}


@pytest.mark.parametrize(
    ("rows", "ranges"),
    [
        ([op("model_inference", 0, 90), op("aten::mm", 10, 40, **SHAPES)], ["model_inference"]),
        ([op("model_inference", 0, 90), op("aten::mm", 10, 40)], []),  # no shapes are recorded
        ([op("model_inference", 0, 90), op("aten::mm", 10, 40, **SHAPES), annotation("loss", 92, 2)], []),
        ([op("MmBackward0", 0, 90), op("aten::mm", 10, 40, **SHAPES)], []),
        ([op("Function", 0, 90, **SHAPES), op("aten::mm", 10, 40, **SHAPES)], []),
        ([op("triton_poi_fused_0", 0, 9), op("aten::mm", 10, 40, **SHAPES)], []),
        ([op("model_inference", 0, 90), op("aten::mm", 10, 40, tid=9, **SHAPES)], []),
    ],
)
def test_ranges_of_the_program_that_are_written_as_ops_are_annotations(rows: list[Event], ranges: list[str]) -> None:
    """29 % of an old trace were an op `model_inference`, in which Python ran between 6,536 others."""
    events = build(*rows).events
    annotations = [events.text(row) for row in events.rows(Category.ANNOTATION).tolist()]
    assert [name for name in annotations if name != "loss"] == ranges
