"""`traceq show snapshot.pickle`: who is alive at the peak, at an error and at the end, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_files import check_golden
from hypothesis import given
from hypothesis import strategies as some
from snapshots import MIB, Allocator, stack, training
from terminal import traceq

import traceq as library
from traceq.errors import TraceqError

BASE = 1 << 40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of this machine are in no golden."""
    monkeypatch.chdir(tmp_path)


def shown(allocator: Allocator, *, last: int | None = None, **more: Any) -> dict[str, Any]:
    path = allocator.write(Path("snapshot.pickle"), last=last, **more)
    result = traceq("show", "--json", path)
    assert (result.code, result.err) == (0, "")
    document = json.loads(result.out)
    assert document["schema"] == "traceq.snapshot/2"
    return dict(document)


def moment(document: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = [row for row in document["memory_moments"] if row["moment"] == name]
    return dict(row)


@pytest.mark.parametrize(
    ("options", "golden"),
    [
        ([], "snapshot/show.txt"),
        (["--full"], "snapshot/show_full.txt"),
        (["--width", "60"], "snapshot/show_60.txt"),
        (["--markdown"], "snapshot/show.md"),
        (["--json"], "snapshot/show.json"),
    ],
)
def test_a_step_of_training_reads_like_this(options: list[str], golden: str) -> None:
    done = traceq("show", *options, training().write(Path("snapshot.pickle")))
    assert (done.code, done.err) == (0, "")
    check_golden(golden, done.out)


def test_an_out_of_memory_error_reads_like_this() -> None:
    done = traceq("show", training(oom=90 * MIB).write(Path("oom.pickle"), last=6))
    assert done.code == 0
    check_golden("snapshot/oom.txt", done.out + done.err)


@given(last=some.integers(0, 40), oom=some.booleans())
def test_kinds_and_lines_add_up_to_what_the_allocator_had_in_use(last: int, oom: bool) -> None:
    job = training(oom=90 * MIB if oom else 0)
    last = min(last, len(job.rows))
    document = shown(job, last=last)
    states = job.states[len(job.rows) - last :]
    rows = job.rows[len(job.rows) - last :]
    totals = [sum(state.values()) for state in states]
    truth = {"end": sum(block["requested_size"] for block in job.alive.values())}
    if any(row["action"] == "alloc" for row in rows):
        truth["peak"] = max(totals)
        peak = moment(document, "peak")
        assert peak["action"] == totals.index(max(totals)) - 1
        errors = [index for index, row in enumerate(rows) if row["action"] == "oom"]
        if errors:
            truth["oom"] = totals[errors[-1] + 1]
            assert moment(document, "oom")["action"] == errors[-1]
    assert {row["moment"]: row["allocated_bytes"] for row in document["memory_moments"]} == truth
    for name, total in truth.items():
        for table in ("memory_kinds", "memory_lines"):
            of_moment = [row for row in document[table] if row["moment"] == name]
            assert sum(row["size_bytes"] for row in of_moment) == total
            assert sum(row["share_pct"] for row in of_moment) == pytest.approx(100 if total else 0)


def test_who_is_alive_at_the_peak_by_kind_and_line() -> None:
    document = shown(training())
    at_peak = [row for row in document["memory_lines"] if row["moment"] == "peak"]
    assert [(row["kind"], row["line"], row["op"], row["num"], row["size_bytes"]) for row in at_peak] == [
        ("optimizer state", "optimizer.py:7 step", "", 2, 80 * MIB),
        ("weights", "train.py:10 main", "", 1, 40 * MIB),
        ("gradients", "(no Python frame)", "MmBackward0", 1, 40 * MIB),
        ("optimizer temporaries", "optimizer.py:9 step", "", 1, 5 * MIB),
        ("other", "train.py:20 batch", "", 1, 3 * MIB),
        ("other", "train.py:32 main", "", 1, 4),
    ]
    (finding,) = document["findings"]
    assert finding["code"] == "memory_peak"
    measures = finding["measures"]
    assert (measures["peak_bytes"], measures["reserved_bytes"]) == (168 * MIB + 4, 514 * MIB)
    assert [each.partition(" ")[0] for each in measures["holders"].split(", ") if "%" in each] == [
        "optimizer", "weights", "gradients"
    ]  # fmt: skip


def test_what_is_reserved_at_the_end_is_divided_to_the_byte() -> None:
    document = shown(training())
    parts = {row["part"]: row for row in document["memory_reserved"]}
    alive = 40 * MIB + 80 * MIB + 30 * MIB + 4
    blocks = 40 * MIB + 80 * MIB + 30 * MIB + 512
    assert {part: row["size_bytes"] for part, row in parts.items()} == {
        "allocated": alive,
        "rounding of blocks": blocks - alive,
        "free, beside blocks in use": 514 * MIB - blocks,
        "free, in segments without any": 0,
    }
    assert parts["free, beside blocks in use"]["largest_bytes"] == 512 * MIB - 340 * MIB
    large, small = document["memory_segments"]
    assert (large["address"], large["pool"], large["is_used"]) == ("0x10000000000", "large", True)
    assert (small["free_bytes"], small["rounding_bytes"], small["num_free_blocks"]) == (2 * MIB - 512, 508, 1)


def test_segments_without_a_block_in_use_are_apart() -> None:
    allocator = Allocator()
    allocator.segment(BASE, 20 * MIB)
    allocator.segment(2 * BASE, 4 * MIB, is_expandable=True)
    allocator.alloc(2 * BASE + MIB, MIB)
    document = shown(allocator)
    parts = {row["part"]: (row["num_blocks"], row["size_bytes"]) for row in document["memory_reserved"]}
    assert parts["free, in segments without any"] == (1, 20 * MIB)
    assert parts["free, beside blocks in use"] == (2, 3 * MIB)
    assert [row["is_expandable"] for row in document["memory_segments"]] == [True, False]


def test_history_that_was_cut_is_given_in_bytes() -> None:
    unrecorded, cut = shown(training(), last=10)["warnings"]
    assert (unrecorded["code"], cut["code"]) == ("unrecorded_allocations", "history_cut")
    assert unrecorded["text"].startswith("43.0 MiB of the 168")


def test_without_a_history_only_the_end_is_known() -> None:
    document = shown(training(), last=0)
    assert [row["moment"] for row in document["memory_moments"]] == ["end"]
    assert [caveat["code"] for caveat in document["warnings"]] == ["no_history"]
    assert document["findings"] == []


def test_what_was_never_allocated_but_freed_is_no_history_of_allocations() -> None:
    job = training()
    rows = [row for row in job.rows if row["action"] != "alloc"]  # skip_actions=["alloc"]
    document = shown(job, device_traces=[rows])
    assert [row["moment"] for row in document["memory_moments"]] == ["end"]


def test_the_device_with_the_highest_peak_is_shown_and_all_are_in_json() -> None:
    content = training().content()
    other = [segment | {"device": 1, "blocks": segment["blocks"][:1]} for segment in content["segments"]]
    more = {"segments": [*content["segments"], *other], "device_traces": [content["device_traces"][0], []]}
    document = shown(training(), **more)
    moments = [(row["device"], row["moment"]) for row in document["memory_moments"]]
    assert moments == [(0, "peak"), (0, "end"), (1, "end")]
    text = traceq("show", "snapshot.pickle").out
    assert "memory snapshot of devices 0, 1" in text
    assert "peak on device 0, by line" in text
    assert [each["measures"]["device"] for each in document["findings"]] == [0]


def test_fragmentation_explains_an_error_where_no_free_block_was_large_enough() -> None:
    def error(request: int, *, is_expandable: bool = False, later: bool = False) -> list[tuple[str, dict[str, int]]]:
        allocator = Allocator()
        allocator.segment(BASE, 100 * MIB, is_expandable=is_expandable)
        allocator.alloc(BASE + 40 * MIB, 20 * MIB, stack("model.py:1 forward"))
        allocator.oom(request, MIB, stack("model.py:2 forward"))
        if later:
            allocator.free(BASE + 40 * MIB)
        findings = shown(allocator)["findings"]
        return [(each["remedy"], each["measures"]) for each in findings if each["code"] == "fragmentation"]

    measures = {"free_bytes": 80 * MIB, "largest_bytes": 40 * MIB, "asked_bytes": 50 * MIB}
    assert error(50 * MIB) == [("expandable_segments", measures)]
    assert error(50 * MIB, is_expandable=True) == [("fragmentation", measures)]
    assert error(81 * MIB) == []  # no room at all
    assert error(40 * MIB) == []  # there was a block
    assert error(50 * MIB, later=True) == []  # the blocks are no longer those of the error


def test_lines_that_were_not_recorded_are_said_with_the_option_that_records_them() -> None:
    allocator = Allocator()
    allocator.alloc(BASE, 10)
    assert [unknown["argument"] for unknown in shown(allocator)["unknown"]] == ["_record_memory_history(context='all')"]
    allocator.alloc(BASE + MIB, 10, stack("train.py:1 main")[2:])
    assert [unknown["argument"] for unknown in shown(allocator)["unknown"]] == ["_record_memory_history(stacks='all')"]
    allocator.alloc(BASE + 2 * MIB, 10, stack("train.py:1 main"))
    assert shown(allocator)["unknown"] == []


@pytest.mark.parametrize("options", [["--step", "1"], ["--ranks", "0"], ["--only", "syncs"]])
def test_options_of_traces_are_refused(options: list[str]) -> None:
    done = traceq("show", *options, training().write(Path("snapshot.pickle")))
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_one_report_is_shown_alone_and_pages_are_written() -> None:
    path = training().write(Path("snapshot_0.pickle"))
    text = traceq("show", "--only", "memory_lines", path).out
    assert "Alive at the end, by line" in text
    assert "Reserved" not in text
    assert traceq("show", "--html", "page.html", path).code == 0
    assert "optimizer.py:7 step" in Path("page.html").read_text(encoding="utf-8")


def test_the_library_reads_the_same() -> None:
    path = training().write(Path("snapshot.pickle"))
    sheet = library.analyze(path)
    assert str(sheet) + "\n" == traceq("show", path).out
    assert library.analyze(path, "memory_kinds").table("memory_kinds").to_dicts()[0]["kind"] == "weights"
    with pytest.raises(TraceqError, match="`traceq show`"):
        library.read(path)
