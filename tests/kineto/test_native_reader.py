"""The native reader and the reference find the same in every file: columns, side tables, metadata, damage."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import zstandard
from builder import comms, kernel, memory, op, row, step, text
from catalogue import FILES
from examples import up_to
from generated import damaged, sound
from hypothesis import given
from hypothesis import strategies as st
from paths import CORPUS
from readers import assert_same, outcome, reading

from traceq.errors import UsageFault
from traceq.kineto import reader_choice
from traceq.kineto.raw_events import RawArgs, RawEvent
from traceq.kineto.reader_choice import Scan, reader

pytestmark = pytest.mark.skipif(
    bool(reader_choice.MISSING), reason=f"the native reader was not built: {reader_choice.MISSING}"
)

CORPUS = sorted((CORPUS).glob("*.json"))


def both(path: Path, *, window: int = 0, chunk: int = 0) -> tuple[Scan | str, Scan | str]:
    with reading("native", window=window, chunk=chunk):
        result = outcome(path)
    with reading("python"):
        return result, outcome(path)


def compare(content: bytes, **sizes: Any) -> Scan | str:
    """Read some bytes with both readers, which must agree."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        result, expected = both(path, **sizes)
    assert_same(result, expected)
    return result


@pytest.mark.parametrize("label", ["a", "", "\\u00e9", 7, 1.5, None, True, {"a": 1}, ["b"]])
@pytest.mark.parametrize("node", [0, 8589934593, "12", -1, 2**63, None, "x"])
def test_nodes_of_graphs_are_read_alike(label: Any, node: Any) -> None:
    keys = ("module_fqn", "name", "str", "annotation")
    ids = {"graph id": 2, "graph node id": node}
    kernels = [kernel("k", n, 1, 9, **ids, **{key: label}) for n, key in enumerate(keys)]
    compare(text(op("aten::mm", 0, 1), *kernels, kernel("k", 5, 1, 9, **ids, **dict.fromkeys(keys, label))))


def test_samples_of_counters_are_counted_alike() -> None:
    samples = [
        {
            "ph": "C",
            "cat": "hardware_counters",
            "name": name,
            "pid": "GPU 0 Counters",
            "tid": 0,
            "ts": 1.5,
            "args": {"": n},
        }
        for n, name in enumerate(("sm__throughput", "sm__\u00e9", ""))
    ]
    result = compare(text(*samples, op("aten::mm", 0, 1), {**samples[0], "ph": "\u0043"}))
    assert isinstance(result, Scan)
    assert (result.num_counters, len(result.events)) == (4, 1)


@pytest.mark.parametrize("path", FILES)
def test_every_real_trace_is_read_alike(path: Path) -> None:
    assert_same(*both(path))


@pytest.mark.slow
@up_to(200)
@given(
    content=sound() | damaged(),
    window=st.sampled_from([64, 1 << 10, 1 << 17]),
    chunk=st.sampled_from([1, 100, 1 << 10]),
)
def test_every_trace_is_read_alike_in_pieces_of_any_size(content: bytes, window: int, chunk: int) -> None:
    compare(content, window=window, chunk=chunk)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_once_was_read_differently_no_longer_is(path: Path) -> None:
    for chunk, window in ((1, 64), (64, 1000), (1000, 0), (0, 64)):
        assert_same(*both(path, chunk=chunk, window=window))


EVENTS = [
    step(0, 10**6),
    *(op(f'}},\n  {{\n    "ph": "X", "name": "{i}"', i, 1, detail=[{"a": 1}, {"b": "}, {"}]) for i in range(3000)),
    *(kernel("}, {" * (i % 7), i, 2, i, grid=[i, 2, 1], bytes=2**63 + i) for i in range(3000)),
    comms("allreduce", 10, 5, (64, 32)),
]


@pytest.mark.parametrize("chunk", [1 << 10, 5000, 1 << 19])
def test_a_name_that_contains_the_separator_is_a_name(chunk: int) -> None:
    result = compare(text(*EVENTS), chunk=chunk)
    assert isinstance(result, Scan)
    assert len(result.events) == len(EVENTS)
    assert result.damage.skipped_at == ()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_packed_trace_is_read_alike_whole_and_cut(pack: Any) -> None:
    packed = pack(text(*EVENTS))
    for content in (packed, packed + packed, packed[: len(packed) // 2], packed[:-4], packed[:40]):
        compare(content)


def test_an_event_longer_than_the_buffers_is_read() -> None:
    result = compare(text(step(0, 1), op("long", 0, 1, note="x" * 3_000_000), op("after", 2, 1)))
    assert isinstance(result, Scan)
    assert len(result.events) == 3


NUMBERS = [
    "0",
    "1",
    "-1",
    "1.5",
    "0.0005",
    "0.00049",
    "-0.0005",
    "-0.00051",
    "1700000000000000.123",
    "4458677009853.4225",
]
NUMBERS += [
    "8000000000000000",
    "8000000000000000.001",
    "8000000000000000.0001",
    "7999999999999999.9999",
    "-8000000000000000.001",
    "8000000000000001",
    "99999999999999999999",
    "1e3",
    '"7"',
    "null",
    "true",
    "[1]",
    "{}",
    "12345678",
]


@pytest.mark.parametrize("number", NUMBERS)
def test_every_spelling_of_a_time_is_read_alike(number: str) -> None:
    content = text(op("before", 0, 1), op("only", 123456, 1), op("after", 1, 1))
    compare(content.replace(b"123456", number.encode()))
    compare(content.replace(b'123456,"dur":1', b'0,"dur":' + number.encode()))


IDS = [
    "0",
    "-1",
    "-0",
    "7.0",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
]
IDS += [
    '"12"',
    '"-1"',
    '" 3 "',
    '"1_0"',
    "null",
    "false",
    "[3]",
    '{"a": 1}',
    "1e2",
    '"\\u0031"',
    "123456789012345678901",
]


@pytest.mark.parametrize("number", IDS)
@pytest.mark.parametrize(
    "key", ["External id", "correlation", "stream", "bytes", "Sequence number", "grid", "Call stack", "CallFrom"]
)
def test_every_spelling_of_an_id_is_read_alike(key: str, number: str) -> None:
    rows = (
        op("op", 0, 1, **{key: 123456, "external id": 5}),
        row("kernel", "k", 0, 1, **{key: 123456, "size": 3}),
        row("python_function", "a.py(3): f", 0, 1, **{key: 123456}),
    )
    compare(text(*rows).replace(b"123456", number.encode()))


@pytest.mark.parametrize("number", IDS)
@pytest.mark.parametrize("key", ["ts", "tid", "Bytes", "Total Allocated", "Device Id", "Addr"])
def test_every_spelling_of_an_allocation_is_read_alike(key: str, number: str) -> None:
    reported = memory(3, 64, 64, 128)
    reported |= {key: 123456} if key in reported else {"args": reported["args"] | {key: 123456}}
    compare(text(memory(1, 8, 8, 64), reported, memory(4, -8, 56, 64)).replace(b"123456", number.encode()))


@pytest.mark.parametrize("shapes", ["[[8, 4], []]", "[ [8,4]\n]", "null", "[]", '"[8]"', "[1e9, NaN]", "7"])
@pytest.mark.parametrize("key", ["Input Dims", "Input dims", "Input Strides", "Concrete Inputs"])
def test_every_spelling_of_a_shape_is_read_alike(key: str, shapes: str) -> None:
    compare(text(op("aten::mm", 0, 1, **{key: 123456}), op("after", 2, 1)).replace(b"123456", shapes.encode()))


def test_allocations_keep_their_order_where_the_readers_take_turns() -> None:
    broken = op("10%", 2, 1, note=["?"])
    events = [memory(1, 8, 8, 64), broken, memory(1, 16, 24, 64), memory(1, -8, 16, 64), memory(2, 1, 17, 64)]
    result = compare(text(*events).replace(b'["?"]', b"[?]"), chunk=64, window=64)
    assert isinstance(result, Scan)
    assert result.damage.skipped_at
    assert result.events.allocations.allocated.tolist() == [8, 24, 16, 17]


def test_the_scanner_keeps_the_arguments_that_the_reference_keeps() -> None:
    source = Path(reader_choice.__file__).with_name("scanner").joinpath("event.hpp").read_text()
    block = source[source.index("kKeys[kNumFields] = {") : source.index("constexpr uint64_t bit")]
    keys = re.findall('"(.*?)"', block)
    kept = [field.encode_name for kind in (RawEvent, RawArgs) for field in msgspec.structs.fields(kind)]
    assert sorted(keys) == sorted(kept)


def test_the_environment_chooses_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("python", "native"):
        monkeypatch.setenv("TRACEQ_READER", wanted)
        assert reader() == wanted
    monkeypatch.setenv("TRACEQ_READER", "fast")
    with pytest.raises(UsageFault, match="expected native or python"):
        reader()
    monkeypatch.setenv("TRACEQ_READER", "native")
    monkeypatch.setattr(reader_choice, "MISSING", "no compiler")
    with pytest.raises(UsageFault, match="no compiler"):
        reader()


def test_a_scanner_built_from_other_sources_than_those_beside_it_is_not_used(tmp_path: Path) -> None:
    package = Path(reader_choice.__file__).parents[1]
    shutil.copytree(package, tmp_path / "traceq", ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "traceq" / "kineto" / "_scan.cpp"
    reported = "from traceq.kineto.reader_choice import MISSING; print(MISSING)"
    of_copy = [sys.executable, "-c", reported]
    same = subprocess.run(of_copy, cwd=tmp_path, capture_output=True, text=True, check=True)
    source.write_bytes(source.read_bytes() + b"// changed since\n")
    changed = subprocess.run(of_copy, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (same.stdout.strip(), "other sources" in changed.stdout) == ("", True)
