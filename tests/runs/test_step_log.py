"""Samples of all ranks become pairs; what a kill cut short is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec import json

from traceq.errors import UnreadableInput
from traceq.runs.step_log import StepLine, read_lines, read_pairs, timings_of

PAIR = '{{"kind":"pair","a":"{a}","b":"{b}","pair":{pair},"b_second":{second},"first_ns":{first},"second_ns":{last}}}\n'
STEP = (
    '{"kind":"step","arm":"on","a":"off","b":"on","pair":0,"half":1,"index":0,"phases":{"forward":5},'
    '"wall_ns":9,"cpu_ns":8,"device_ns":0,"peak_bytes":1,"added_later":true}\n'
)


def pair(number: int, first: int, last: int, *, b: str = "on", second: str = "true") -> str:
    return PAIR.format(a="off", b=b, pair=number, second=second, first=first, last=last)


def write(folder: Path, rank: int, *lines: str) -> None:
    (folder / f"rank{rank}.jsonl").write_text("".join(lines))


def test_pairs_of_all_ranks_stand_side_by_side(tmp_path: Path) -> None:
    write(tmp_path, 0, STEP, pair(0, 10, 11), pair(1, 12, 13, second="false"), pair(0, 1, 2, b="off"))
    write(tmp_path, 1, pair(0, 20, 21), STEP, pair(1, 22, 23, second="false"), pair(0, 3, 4, b="off"))
    result, control = read_pairs(tmp_path)
    assert (result.a, result.b, result.is_control, control.is_control) == ("off", "on", False, True)
    assert result.b_second.tolist() == [True, False]
    assert result.first_ns.tolist() == [[10, 12], [20, 22]]
    assert result.second_ns.tolist() == [[11, 13], [21, 23]]
    assert result.first_ns.dtype == np.int64


def test_a_pair_that_one_rank_lacks_counts_on_none(tmp_path: Path) -> None:
    write(tmp_path, 0, pair(0, 10, 11), pair(1, 12, 13))
    write(tmp_path, 1, pair(0, 20, 21))
    assert read_pairs(tmp_path)[0].first_ns.tolist() == [[10], [20]]


def test_pairs_say_how_many_looks_were_planned_where_it_was_more_than_one(tmp_path: Path) -> None:
    planned = pair(0, 10, 11).replace("}", ',"num_looks":9}')
    write(tmp_path, 0, planned, pair(0, 10, 11, b="off"))
    assert [pairs.num_looks for pairs in read_pairs(tmp_path)] == [9, 1]
    written = b"".join(json.encode(line) + b"\n" for line in read_lines(tmp_path / "rank0.jsonl"))
    assert written == (tmp_path / "rank0.jsonl").read_bytes()


def test_cpu_times_count_where_every_pair_has_them(tmp_path: Path) -> None:
    timed = pair(0, 10, 11).replace("}", ',"first_cpu_ns":7,"second_cpu_ns":8}')
    write(tmp_path, 0, timed, timed.replace('"on"', '"off"'), pair(1, 10, 11, b="off"))
    result, control = read_pairs(tmp_path)
    assert (result.first_cpu_ns.tolist(), result.second_cpu_ns.tolist()) == ([[7]], [[8]])
    assert (control.first_cpu_ns, control.second_cpu_ns) == (None, None)


def test_automatic_collections_are_shared_and_others_have_their_line(tmp_path: Path) -> None:
    first = '"first_pauses":{"num_steps":2,"allocated":-3,"kinds":{"2":[1,50,25],"2 a.py:7":[2,80,40]}}'
    paused = pair(0, 10, 11).replace("}", f',{first},"second_pauses":{{"num_steps":2,"allocated":9,"kinds":{{}}}}}}')
    write(tmp_path, 0, paused, pair(0, 10, 11, b="off"))
    result, control = read_pairs(tmp_path)
    assert control.events is None
    assert result.events is not None
    assert [(kind.name, kind.is_shared) for kind in result.events.kinds] == [
        ("garbage collection of generation 2", True),
        ("gc.collect(2) at a.py:7", False),
    ]
    assert result.events.num.tolist() == [[[[1, 2], [0, 0]]]]
    assert result.events.ns.tolist() == [[[[50, 80], [0, 0]]]]
    assert result.events.counted_ns.tolist() == [[[[25, 40], [0, 0]]]]
    assert (result.events.num_steps.tolist(), result.events.brought.tolist()) == ([[[2, 2]]], [[[-3, 9]]])


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 0, pair(0, 10, 11), pair(1, 12, 13)[:-20])
    assert read_pairs(tmp_path)[0].first_ns.tolist() == [[10]]


def test_a_rank_that_measured_nothing_leaves_no_pairs(tmp_path: Path) -> None:
    write(tmp_path, 0, pair(0, 10, 11))
    write(tmp_path, 1)
    assert read_pairs(tmp_path) == ()


def test_ranks_are_ordered_by_number_not_by_name(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        write(tmp_path, rank, pair(0, rank, rank))
    assert read_pairs(tmp_path)[0].first_ns.tolist() == [[0], [2], [10]]


def test_a_folder_without_samples_has_no_pairs(tmp_path: Path) -> None:
    assert read_pairs(tmp_path) == ()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, 0, pair(0, 10, 11), "{}\n", pair(1, 1, 1))
    with pytest.raises(UnreadableInput, match=r"rank0\.jsonl: line 2"):
        read_pairs(tmp_path)


def test_keys_added_later_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, 0, STEP)
    (line,) = read_lines(tmp_path / "rank0.jsonl")
    assert isinstance(line, StepLine)
    assert line.phases == {"forward": 5}


def test_collections_of_an_arm_are_those_of_the_rank_with_most_and_longest_first() -> None:
    def step(pauses: dict[str, tuple[int, int]]) -> StepLine:
        return StepLine("on", "", "", 0, 0, 0, {}, 100, 0, 0, 0, pauses=pauses)

    quiet, busy = [step({}), step({"0": (1, 2)})], [step({"0": (2, 4)}), step({"2 a.py:7": (1, 50), "0": (1, 3)})]
    timings = timings_of([quiet, busy], "on")
    assert timings is not None
    assert [(each.name, each.num, each.ns) for each in timings.pauses] == [
        ("gc.collect(2) at a.py:7", 1, 50),
        ("garbage collection of generation 0", 3, 7),
    ]
