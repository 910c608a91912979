"""Damaged files give what they hold, say what they lost and where, and are refused by `strict`."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import zstandard
from builder import Event, build, call, comms, kernel, op, read_text, step, text, world
from examples import up_to
from hypothesis import given
from hypothesis import strategies as st
from readers import reading

from traceq.errors import UnreadableInput
from traceq.kineto import event_windows, reader_choice
from traceq.kineto.read import read_trace
from traceq.model import Trace

SMALL = (
    step(0, 100),
    comms("allreduce", 10, 5, (64, 32)),
    op("aten::add", 20, 5, **{"Input Dims": [[2, 3], []], "extra": [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}]}),
    call("cudaLaunchKernel", 30, 2, 7),
    kernel("gemm }, { [", 40, 10, 7),
)


def names(trace: Trace) -> list[str]:
    return [trace.events.text(row) for row in range(len(trace.events))]


def codes(trace: Trace) -> list[str]:
    return [caveat.code for caveat in trace.caveats]


def is_refused(content: bytes, message: str) -> bool:
    with pytest.raises(UnreadableInput, match=rf"{message}.*\(--strict refuses\)$"):
        read_text(content, strict=True)
    return True


LAYOUTS = {
    "object": text(*SMALL, schemaVersion=1),
    "array": text(*SMALL)[len(b'{"traceEvents":') : -1],
    "tail": text(*SMALL)[:-1] + b', "distributedInfo": {"rank": 3}, "host": "h"}\n',
    "lines": text(*SMALL).replace(b"},{", b"},\n  {"),
    "not finite": text(*SMALL).replace(b'"c":2', b'"c":NaN'),
    "broken event": text(*SMALL).replace(b"aten::add", b'aten::"add"'),
}


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("window", [64, 1 << 17])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_a_file_cut_at_any_byte_gives_a_prefix_and_says_so(
    layout: str, window: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_windows, "_WINDOW", window)
    content = LAYOUTS[layout]
    whole = names(read_text(content))
    for size in range(0, len(content.rstrip()), stride):
        try:
            trace = read_text(content[:size])
        except UnreadableInput:
            continue
        assert names(trace) == whole[: len(trace.events)], size
        if layout == "broken event" and content[:size].endswith(b"]}"):
            continue  # inside an event that is no JSON this cannot be told from the end of the file
        assert "truncated" in codes(trace), size
        assert trace.caveats[0].text.endswith(f"{len(trace.events)} of its events were read")


def test_a_cut_loses_nothing_but_the_event_it_hits() -> None:
    content = text(*SMALL)
    assert names(read_text(content[: content.rindex(b"{")])) == names(build(*SMALL))[:-1]
    assert names(read_text(content[:-2])) == names(build(*SMALL))
    assert is_refused(content[:-1], f"byte {len(content) - 1}: .*; 5 of its events")


MANY = tuple(op(f"aten::op{i}", i, 1, dims=list(range(20))) for i in range(1500))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_cut_gzip_gives_all_that_it_still_holds(tmp_path: Path, share: float) -> None:
    packed = gzip.compress(text(*MANY))
    cut = packed[: int(share * len(packed))]
    still_there = zlib_prefix(cut).count(b'"ph"') - 1
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(cut)
    trace = read_trace(path)
    assert still_there <= len(trace.events) <= still_there + 1
    assert names(trace) == [event["name"] for event in MANY[: len(trace.events)]]
    assert codes(trace) == ["damaged_archive" if zlib_prefix(cut) == text(*MANY) else "truncated"]
    assert "stream is cut off" in trace.caveats[0].text


def zlib_prefix(packed: bytes) -> bytes:
    import zlib

    return zlib.decompressobj(wbits=31).decompress(packed)


def test_a_gzip_whose_checksum_is_cut_off_keeps_all_events(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(text(*SMALL))[:-4])
    assert (len(read_trace(path).events), codes(read_trace(path))) == (len(SMALL), ["damaged_archive"])


@pytest.mark.parametrize("place", [-8, -1])
@pytest.mark.parametrize("events", [SMALL, MANY], ids=["small", "large"])
@pytest.mark.parametrize("end", [".json.gz", ".json.zst"])
@pytest.mark.parametrize("reader", ["native", "python"])
def test_a_wrong_checksum_loses_nothing_and_is_said(
    tmp_path: Path, reader: str, events: Sequence[Event], place: int, end: str
) -> None:
    content = text(*events)
    checked = zstandard.ZstdCompressor(write_checksum=True)
    packed = bytearray(gzip.compress(content) if end == ".json.gz" else checked.compress(content))
    packed[place if end == ".json.gz" else -1] ^= 255
    path = tmp_path / f"rank0{end}"
    path.write_bytes(packed)
    with reading(reader):
        trace = read_trace(path)
        assert names(trace) == [event["name"] for event in events]
        assert codes(trace) == ["damaged_archive"]
        assert f"its JSON is complete, with {len(events):,} events" in trace.caveats[0].text
        with pytest.raises(UnreadableInput, match="--strict refuses"):
            read_trace(path, strict=True)


def test_a_zstd_of_which_nothing_can_be_read_says_that_it_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(zstandard.compress(text(*SMALL))[:-20])
    with pytest.raises(UnreadableInput, match=r"damaged .*stream is cut off"):
        read_trace(path)


@pytest.mark.parametrize("pack", [bytes, partial(gzip.compress, mtime=0), zstandard.compress])
def test_a_file_is_read_or_refused_wherever_it_ends(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    packed, path = pack(text(*MANY[:60], **world(0, 2))), tmp_path / "rank0.json"
    num_read = []
    for end in range(0, len(packed), 64):
        path.write_bytes(packed[:end])
        with suppress(UnreadableInput):
            trace = read_trace(path)
            assert codes(trace) in (["truncated"], ["damaged_archive"])
            num_read.append(len(trace.events))
    assert num_read == sorted(num_read)
    assert pack is zstandard.compress or num_read[-1] > 40  # zstd gives a block or nothing


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"a\ud800b", "a\ufffdb"),
        (r"a\udc00", "a\ufffd"),
        (r"\ud83d\ude00\ud83d", "\U0001f600\ufffd"),
        (r"\ude00\ud83d", "\ufffd\ufffd"),
        (r"a\\ud800\ud800", "a\\ud800\ufffd"),
    ],
)
@pytest.mark.parametrize("reader", ["native", "python"])
def test_an_unpaired_surrogate_in_a_name_is_replaced_and_said(reader: str, written: str, read: str) -> None:
    content = text(op("before", 0, 1), op("NAME", 1, 1), op("after", 2, 1)).replace(b"NAME", written.encode())
    with reading(reader):
        trace = read_text(content)
    assert names(trace) == ["before", read, "after"]
    assert codes(trace) == ["mended_events"]


def test_an_unpaired_surrogate_costs_no_metadata() -> None:
    content = text(*SMALL, kernel("k", 9, 1), deviceProperties=[{"name": "DEVICE"}])
    assert read_text(content.replace(b"DEVICE", rb"H\ud800")).device == "H\ufffd"


def test_a_cut_or_damaged_zstd_is_never_more_than_a_caveat(tmp_path: Path) -> None:
    packed = zstandard.compress(text(*MANY, *MANY, *MANY))
    path = tmp_path / "rank0.json.zst"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    trace = read_trace(path)
    assert 0 < len(trace.events) < 4500
    assert codes(trace) == ["truncated"]
    path.write_bytes(packed[:20] + bytes(200) + packed[220:])
    with pytest.raises(UnreadableInput, match="the archive is damaged"):
        read_trace(path)


def with_damage(event: Event, old: bytes, new: bytes, *, around: int = 3) -> bytes:
    """A trace with an event in the middle in whose JSON `old` is replaced by `new`."""
    before, after = ([op(f"{side}{i}", i, 1) for i in range(around)] for side in ("before", "after"))
    content = text(*before, event, *after)
    assert content.count(old) == 1
    return content.replace(old, new)


NEIGHBOURS = ["before0", "before1", "before2", "after0", "after1", "after2"]


@pytest.mark.parametrize("name", ['say "hi"', '"', 'a"}, {"b', '"traceEvents": ["', '}, {"ph"'])
def test_an_event_with_a_bare_quote_in_its_name_is_skipped_alone(name: str) -> None:
    """Kineto writes the names of record_function unescaped."""
    content = with_damage(op("VICTIM", 5, 1), b"VICTIM", name.encode())
    trace = read_text(content)
    assert [result for result in names(trace) if result in NEIGHBOURS] == NEIGHBOURS
    assert "malformed_events" in codes(trace)
    assert is_refused(content, "byte [0-9]+: [12] events are not valid JSON")


@pytest.mark.slow
@pytest.mark.parametrize("window", [64, 300, 1 << 17])
def test_every_broken_event_is_counted_at_the_byte_of_the_first(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_windows, "_WINDOW", window)
    events = [op(f"ok{i}" if i % 2 else f"VICTIM{i}", i, 1) for i in range(2000)]
    content = text(*events).replace(b"VICTIM", b'"')
    trace = read_text(content)
    assert names(trace) == [f"ok{i}" for i in range(1, 2000, 2)]
    (caveat,) = trace.caveats
    assert (caveat.code, caveat.text.partition(" events")[0]) == ("malformed_events", "byte 16: 1,000")


def test_two_broken_neighbours_are_two() -> None:
    content = text(op("before", 0, 1), op("VICTIM", 1, 1), op("VICTIM", 2, 1), op("after", 3, 1))
    trace = read_text(content.replace(b"VICTIM", b'a "b" c'))
    assert names(trace) == ["before", "after"]
    assert ": 2 events" in trace.caveats[0].text


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "nan", "-inf"])
def test_a_bare_nan_is_an_absent_value_and_no_reason_to_lose_the_event(token: str) -> None:
    event = op("NaN, inf", 5, 1, detail=[{"a": i} for i in range(30)], value="VICTIM", **{"External id": 8})
    content = with_damage(event, b'"VICTIM"', token.encode())
    trace = read_text(content)
    assert names(trace) == [*NEIGHBOURS[:3], "NaN, inf", *NEIGHBOURS[3:]]
    assert trace.events.external_id[3] == 8
    assert codes(trace) == ["mended_events"]
    assert is_refused(content, "1 events with NaN")


def test_thousands_of_events_with_nan_and_nested_lists_all_survive() -> None:
    """One file of 6,000 such events, read in its windows, once lost 3,650 of them."""
    nested = {"x": [{"a": i} for i in range(6)]}
    events = [op(f"op{i}", i, 1, value="VICTIM" if i % 2 else 0, **nested) for i in range(6000)]
    trace = read_text(text(*events).replace(b'"VICTIM"', b"NaN"))
    assert names(trace) == [f"op{i}" for i in range(6000)]
    assert codes(trace) == ["mended_events"]


def test_broken_utf8_in_a_name_is_replaced() -> None:
    trace = read_text(with_damage(op("VICTIM", 5, 1), b"VICTIM", b"caf\xe9 \xff"))
    assert names(trace)[3] == "caf\ufffd \ufffd"
    assert codes(trace) == ["mended_events"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"ts":5', b'"ts":NaN'),
        (b'"ts":5', b'"ts":"soon"'),
        (b'"ts":5', b'"ts":1e999999'),
        (b'"dur":1.5', b'"dur":-1'),
        (b'"dur":1.5', b'"dur":1e17'),
        (b'"dur":1.5', b'"dur":2000000000000000'),
        (b'"dur":1.5', b'"dur":null'),
        (b',"dur":1.5', b""),
    ],
)
def test_an_event_without_a_usable_time_is_dropped_and_counted(old: bytes, new: bytes) -> None:
    content = with_damage(op("VICTIM", 5, 1.5), old, new)
    trace = read_text(content)
    assert names(trace) == NEIGHBOURS
    assert trace.num_dropped == 1
    assert "dropped_events" in codes(trace)
    assert is_refused(content, "1 events")


@pytest.mark.parametrize("number", [b'"5"', b"5.000", b"5e0", b"0.5E1"])
def test_a_time_may_be_written_as_text_or_with_an_exponent(number: bytes) -> None:
    content = text(op("only", 123456, 1)).replace(b"123456", number)
    assert read_text(content, strict=True).events.ts.tolist() == [5000]


@pytest.mark.parametrize("junk", [b"null", b"7", b'"x"', b"[]", b'{"ph": "X", "ts": 1, "dur": 1, "args": []}'])
def test_what_is_no_event_is_skipped(junk: bytes) -> None:
    marked = text(
        *(op(f"before{i}", i, 1) for i in range(3)), op("M", 5, 1), *(op(f"after{i}", i, 1) for i in range(3))
    )
    start = marked.index(b'{"ph":"X","cat":"cpu_op","name":"M"')
    end = marked.index(b"}", start) + 1
    trace = read_text(marked[:start] + junk + marked[end:])
    assert names(trace) == NEIGHBOURS
    assert codes(trace) == ["malformed_events"]


@pytest.mark.parametrize("separator", [b",,", b",", b" "])
def test_a_wrong_comma_costs_nothing(separator: bytes) -> None:
    content = text(*SMALL, schemaVersion=1)
    assert names(read_text(content[:-2] + separator + b"]}")) == names(build(*SMALL))
    wrong = content.replace(b'},{"ph"', b"}" + separator + b'{"ph"')
    assert names(read_text(wrong)) == names(build(*SMALL))
    if separator != b",":
        assert codes(read_text(wrong)) == ["misplaced_commas"]


E1, E2 = (b'{"ph":"X","name":"%s","ts":%d,"dur":1}' % (name, ts) for name, ts in ((b"a", 1), (b"b", 2)))


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (b"[%s,%s]" % (E1, E2), []),
        (b"[ %s ,\n%s ] " % (E1, E2), []),
        (b'{"a":1,"traceEvents":[%s,%s],"b":2}' % (E1, E2), []),
        (b"[,%s,%s]" % (E1, E2), [2]),
        (b"[%s,,%s]" % (E1, E2), [3 + len(E1)]),
        (b"[%s, , ,%s]" % (E1, E2), [6 + len(E1)]),
        (b"[%s %s]" % (E1, E2), [2 + len(E1)]),
        (b"[%s%s]" % (E1, E2), [1 + len(E1)]),
        (b"[%s,%s,]" % (E1, E2), [3 + len(E1 + E2)]),
        (b"[%s,%s]}" % (E1, E2), [3 + len(E1 + E2)]),
        (b'{"traceEvents":[%s,%s],}' % (E1, E2), [19 + len(E1 + E2)]),
        (b'{"traceEvents":[%s,%s] "b":2}' % (E1, E2), [19 + len(E1 + E2)]),
        (b'{"traceEvents":[%s,,%s,],}' % (E1, E2), [17 + len(E1) + 1, 19 + len(E1 + E2), 22 + len(E1 + E2)]),
    ],
)
@pytest.mark.parametrize("window", [64, 1 << 17])
def test_commas_are_judged_at_what_follows_them(content: bytes, places: list[int], window: int) -> None:
    for reader in ("python", "native") if not reader_choice.MISSING else ("python",):
        with reading(reader, window=window, chunk=window):
            assert names(read_text(content)) == ["a", "b"]
            if not places:
                assert read_text(content, strict=True).caveats == ()
                continue
            with pytest.raises(UnreadableInput, match=f"byte {places[0]}: {len(places)} missing or extra commas"):
                read_text(content, strict=True)


@pytest.mark.parametrize("broken", [b'"dur":,', b'"dur":,,', b'"dur" ', b'"dur":1,,'])
def test_a_missing_value_costs_its_event_and_strict_names_the_first_byte_that_is_wrong(broken: bytes) -> None:
    content = b"[%s,,%s,%s]" % (E1, E2.replace(b'"dur":1', broken), E2)
    with pytest.raises(UnreadableInput, match=f"byte {3 + len(E1)}: "):
        read_text(content, strict=True)
    assert codes(read_text(content)) == ["malformed_events", "misplaced_commas"]


DEEP = b"[" * 1_000_000 + b"]" * 1_000_000


def test_a_million_levels_cost_their_event_and_no_other() -> None:
    trace = read_text(with_damage(op("VICTIM", 5, 1, x="DEEP"), b'"DEEP"', DEEP))
    assert names(trace) == NEIGHBOURS
    assert codes(trace) == ["malformed_events"]


@pytest.mark.parametrize("damage", [b'"a"b"', b"NaN", b'"\xff"', DEEP, b'{"x": "a"b", "y": 1}'])
@pytest.mark.parametrize("place", ["head", "tail"])
def test_broken_metadata_does_not_take_the_rank_with_it(damage: bytes, place: str) -> None:
    """The rank decides which traces belong together: it is read although a neighbour is no JSON."""
    info = b'"bad":' + damage + b',"distributedInfo":{"rank":5,"world_size":8},"worse":' + damage
    events = text(*SMALL)
    content = b"{" + info + b"," + events[1:] if place == "head" else events[:-1] + b"," + info + b"}"
    trace = read_text(content)
    assert (trace.rank, len(trace.events)) == (5, len(SMALL))
    if damage != b'"\xff"':
        assert codes(trace) == ["malformed_metadata"]
        assert is_refused(content, "byte [0-9]+: the metadata")


def test_broken_utf8_in_the_metadata_keeps_the_rest_of_its_object() -> None:
    content = text(*SMALL, **world(5, 8, "VICTIM")).replace(b"VICTIM", b"\xff")
    assert (read_text(content).rank, read_text(content).backend) == (5, "\ufffd")


junk = st.binary(max_size=6) | st.sampled_from(
    [b'"', b"}, {", b"NaN", b"]", b"}", b"{", b"\\", b"[" * 3000, b"\xff", b","]
)


@pytest.mark.slow
@up_to(400)
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    position=st.floats(0, 1),
    removed=st.integers(0, 12),
    inserted=junk,
    window=st.sampled_from([64, 300, 1 << 17]),
)
def test_no_damage_ends_in_anything_but_a_trace_or_one_line(
    layout: str, position: float, removed: int, inserted: bytes, window: int
) -> None:
    content = LAYOUTS[layout]
    place = int(position * len(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_windows, "_WINDOW", window)
        try:
            trace = read_text(content[:place] + inserted + content[place + removed :])
        except UnreadableInput:
            return
        assert 0 < len(trace.events) <= len(SMALL) + 1
