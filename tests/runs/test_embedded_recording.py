"""What a trace carries comes back out of it as it went in."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceq.errors import UnreadableInput
from traceq.model import Arm, EventKind, Manifest, PairedEvents, Pairs, SourceLines
from traceq.runs.embedded_recording import Embedded, decode, encode

MANIFEST = Manifest(1, "id", "r", 'a "quoted" question', {}, (Arm("off", "m", baseline=True),), ("f",), 2, 0)
PAIRS = Pairs("off", "on", np.array([True, False]), np.array([[1, 2], [3, 4]]), np.array([[5, 6], [7, 8]]))


def test_pairs_and_manifest_come_back() -> None:
    result = decode(encode(Embedded(MANIFEST, "on", (PAIRS,))))
    assert (result.manifest, result.arm, result.lines) == (MANIFEST, "on", None)
    (pairs,) = result.pairs
    assert (pairs.a, pairs.b, pairs.b_second.tolist()) == ("off", "on", [True, False])
    assert (pairs.first_ns.tolist(), pairs.second_ns.tolist()) == ([[1, 2], [3, 4]], [[5, 6], [7, 8]])


def test_pairs_keep_the_number_of_looks_and_have_one_where_a_trace_does_not_say() -> None:
    planned = replace(PAIRS, num_looks=9)
    text = encode(Embedded(MANIFEST, "on", (planned, PAIRS)))
    assert [pairs.num_looks for pairs in decode(text).pairs] == [9, 1]
    older = re.sub(rb',"num_looks":\d+', b"", base64.b64decode(text))
    assert [pairs.num_looks for pairs in decode(base64.b64encode(older).decode()).pairs] == [1, 1]


def test_cpu_times_come_back_where_they_were_recorded() -> None:
    timed = replace(PAIRS, first_cpu_ns=PAIRS.first_ns, second_cpu_ns=PAIRS.second_ns)
    with_cpu, without = decode(encode(Embedded(MANIFEST, "on", (timed, PAIRS)))).pairs
    assert with_cpu.second_cpu_ns.tolist() == [[5, 6], [7, 8]]
    assert without.first_cpu_ns is None


def test_events_of_pairs_come_back_and_those_of_other_pairs_are_refused() -> None:
    halves, of_kind = np.arange(8).reshape(2, 2, 2), np.arange(8).reshape(2, 2, 2, 1)
    events = PairedEvents((EventKind("pause", is_shared=True),), of_kind, of_kind + 1, of_kind + 2, halves, halves + 1)
    (result,) = decode(encode(Embedded(MANIFEST, "on", (replace(PAIRS, events=events),)))).pairs
    assert result.events is not None
    assert result.events.kinds == events.kinds
    for name in ("num", "ns", "counted_ns", "num_steps", "brought"):
        assert getattr(result.events, name).tolist() == getattr(events, name).tolist()
    with pytest.raises(UnreadableInput):
        decode(encode(Embedded(MANIFEST, "on", (replace(PAIRS, events=replace(events, brought=halves[:1])),))))


@given(st.dictionaries(st.text(), st.lists(st.integers(0, 2)).map(tuple)))
def test_every_occurrence_of_an_op_keeps_its_line(table: dict[str, tuple[int, ...]]) -> None:
    lines = SourceLines(("a.py:1 f", "b.py:2 g", "ü.py:3 h"), table)
    assert decode(encode(Embedded(MANIFEST, "on", (), lines))).lines == lines


PARTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100))).map(tuple)


@given(st.dictionaries(st.text(), st.lists(PARTS).map(tuple)))
def test_every_time_between_ops_keeps_its_lines(between: dict[str, tuple[tuple[tuple[int, int], ...], ...]]) -> None:
    lines = SourceLines(("a.py:1 f", "b.py:2 g", "ü.py:3 h"), {}, between)
    assert decode(encode(Embedded(MANIFEST, "on", (), lines))).lines == lines


def test_the_text_survives_a_writer_that_corrupts_quotes() -> None:
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", encode(Embedded(MANIFEST, "on")))


@pytest.mark.parametrize("text", ["", "!", "e30=", base64.b64encode(json.dumps({"format": 2}).encode()).decode()])
def test_damaged_or_newer_metadata_is_refused(text: str) -> None:
    with pytest.raises(UnreadableInput, match="traceq metadata"):
        decode(text)


@pytest.mark.parametrize(
    "times", [5, None, "1", [1, 2], [[1.5, 2], [3, 4]], [[1], [3, 4]], [["1", 2], [3, 4]], [[1 << 60, 2], [3, 4]], [{}]]
)
def test_times_that_are_no_whole_numbers_by_rank_and_pair_are_refused(times: object) -> None:
    document = json.loads(base64.b64decode(encode(Embedded(MANIFEST, "on", (PAIRS,)))))
    document["pairs"][0]["first_ns"] = times
    with pytest.raises(UnreadableInput):
        decode(base64.b64encode(json.dumps(document).encode()).decode())
