"""What ranks issue differently, and otherwise than their strategy predicts, is counted a second time."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import builder
import pytest
from oracle.differences import Difference, difference_of_dumps, difference_of_files, stuck_in
from oracle.strategies import deviations
from paths import FIXTURES
from strategy_traces import with_one_call

from traceq.analysis.registry import analyze
from traceq.claims.claim import Claim
from traceq.report import Report
from traceq.runs.read import read

ARRIVED = {
    "never arrived": "absent_ranks",
    "no dump": "undumped_ranks",
    "scheduled": "queued_ranks",
    "started": "waiting_ranks",
    "completed": "done_ranks",
}


def only(path: Path, analysis: str) -> tuple[Claim, Report]:
    """The only finding of an analysis, and its report."""
    report = analyze(read(path), analysis)
    (finding,) = report.findings
    return finding, report


def check_difference(path: Path, difference: Difference | None) -> None:
    """It is at that place, and has each rank with what it issues and how."""
    assert difference is not None
    finding, report = only(path, "desync")
    measures, ranks = finding.measures, defaultdict[tuple[str, str], list[int]](list)
    place = measures["sequence"], measures.get("step"), measures["group"]
    assert place == (difference.place, difference.step, difference.group)
    for row in report.table("desync").to_dicts():
        issued = f"{row['name']} {row['dtype']} x {row['elements']:,}" if row["name"] else "nothing"
        if row["key"] == finding.key:
            ranks[str(row["how"]), issued].append(int(row["rank"] or 0))
            assert issued in str(measures["issued"])
    assert ranks == difference.ranks
    assert {f"{how}_ranks" for how, _ in ranks if how} == {name for name in measures if name.endswith("_ranks")}


FAULTS = ("missing", "extra", "swapped", "different", "none")


def faulty(calls: list[tuple[str, int]], fault: str, place: int) -> list[tuple[str, int]]:
    """The calls of a step with a fault."""
    head, call, rest = calls[:place], calls[place], calls[place + 1 :]
    edited = {
        "missing": [*head, *rest],
        "extra": [*head, ("broadcast", 77), call, *rest],
        "swapped": [*head, *rest[:1], call, *rest[1:]],
        "different": [*head, ("broadcast", 77), *rest],
        "none": calls,
    }
    return edited[fault]


def write_job(folder: Path, seed: int, fault: str) -> None:
    """Ranks that issue the same in four steps and two groups, but for some that have a fault in one step."""
    random = Random(seed)
    size = random.choice([2, 4, 5])
    odd = {random.randrange(size)} if fault != "none" else set()
    at_step, at_place = random.randrange(3), random.randrange(5)
    usual = [("allreduce", 1000 + number) for number in range(6)]
    for rank in range(size):
        rows: list[builder.Event] = []
        for step in range(4):
            is_faulty = rank in odd and step == at_step
            calls = faulty(usual, fault, at_place) if is_faulty else usual
            rows.append(builder.step(1000 * step, 1000, step + 3))
            for place, (name, elements) in enumerate(calls):
                start = 1000 * step + 10 + 50 * place
                rows.append(builder.comms(name, start, 20, (elements, elements), **{"Process Group Name": "dp"}))
            rows.append(builder.comms("allreduce", 1000 * step + 900, 20, (5, 5), **{"Process Group Name": "tp"}))
        builder.write(folder / f"rank{rank}.json", *rows, **builder.world(rank, size, "gloo"))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(6))
def test_ranks_differ_where_their_calls_do(seed: int, fault: str, tmp_path: Path) -> None:
    write_job(tmp_path, seed, fault)
    difference = difference_of_files(sorted(tmp_path.iterdir()))
    if fault == "none":
        assert difference is None
        assert analyze(read(tmp_path), "desync").findings == ()
    else:
        check_difference(tmp_path, difference)


def test_the_example_differs_where_its_calls_do() -> None:
    path = FIXTURES / "example" / "uneven"
    check_difference(path, difference_of_files(sorted(path.glob("rank*.json"))))


def entry(number: int, state: str, name: str = "all_reduce", elements: int = 20) -> dict[str, Any]:
    """An entry of a flight recorder."""
    return {
        "frames": [{"name": "step", "filename": "/home/me/train.py", "line": 40 + number % 7}],
        "record_id": number,
        "process_group": ("7", "data_parallel"),
        "collective_seq_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": ((10, elements),),
        "input_dtypes": ["Float"],
        "output_sizes": ((10, elements),),
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
    }


def write_dumps(folder: Path, of_rank: dict[int, list[dict[str, Any]]], size: int) -> None:
    config = {"7": {"name": "7", "desc": "data_parallel", "ranks": json.dumps(list(range(size)))}}
    for rank, entries in of_rank.items():
        dump = {"version": "2.10", "pg_config": config, "pg_status": {"1": {}}, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


@pytest.mark.parametrize("seed", range(6))
def test_dumps_differ_where_their_calls_do(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    size, odd, number = random.choice([2, 3, 5]), random.randrange(2), random.randrange(103, 109)
    usual = {each: entry(each, "completed", elements=each) for each in range(100, 110)}
    other = {**usual, number: entry(number, "completed", random.choice(["broadcast", "reduce"]))}
    write_dumps(tmp_path, {rank: list((other if rank == odd else usual).values()) for rank in range(size)}, size)
    check_difference(tmp_path, difference_of_dumps(tmp_path))


def stuck_entries(random: Random, state: str) -> Iterator[dict[str, Any]]:
    """What a rank recorded that is in this state of collective 105; a ring of entries drops the first ones."""
    first = random.randrange(98, 103)
    if state == "completed":
        first = 106
    last = random.randrange(103, 105) if state == "never arrived" else 104
    yield from (entry(number, "completed") for number in range(first, last + 1))
    if state in ("scheduled", "started"):
        yield entry(105, state)
    yield from (entry(number, "scheduled") for number in range(106, 108) if state in ("completed", "started"))


@pytest.mark.parametrize("seed", range(12))
def test_who_never_arrived_is_who_has_no_entry(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    states = ["started", *(random.choice(list(ARRIVED)) for _ in range(5))]
    random.shuffle(states)
    of_rank = {rank: list(stuck_entries(random, state)) for rank, state in enumerate(states) if state != "no dump"}
    write_dumps(tmp_path, of_rank, len(states))
    (finding, report), stuck = only(tmp_path, "arrivals"), stuck_in(tmp_path)
    measures = finding.measures
    assert finding.subject.collective == stuck.name
    assert (measures["sequence"], measures["group"]) == (stuck.number, stuck.group)
    assert {state: stuck.ranks.get(state, []) for state in ARRIVED} == {
        state: [rank for rank, each in enumerate(states) if each == state] for state in ARRIVED
    }
    assert [row["state"] for row in report.table("arrivals").to_dicts()] == states
    assert {name for name in measures if name.endswith("_ranks")} == {ARRIVED[state] for state in stuck.ranks}
    if stuck.last:
        last = f"{measures['last_collective']} {measures['last_sequence']}"
        assert last == stuck.last[min(stuck.last)]


def over(issued: Any, expected: Any) -> int:
    return 0 if None in (issued, expected) else int(issued - expected)


def check_strategy(path: Path, file: Path) -> None:
    """Calls and elements that were issued over the prediction are those of the file."""
    finding, report = only(path, "strategy")
    checked = report.table("strategy_checks").to_dicts()
    off = [
        (
            str(row["role"]).replace("_", " "),
            over(row["num"], row["expected_num"]),
            over(row["elements"], row["expected_elements"]),
        )
        for row in checked
        if (row["rank"], row["verdict"]) == (finding.subject.rank, "unexplained")
    ]
    assert off == deviations(file, str(finding.measures["strategy"]).partition(" + ")[0])
    assert finding.measures["role"] == off[0][0]


def test_what_a_strategy_predicts_is_what_most_steps_issue() -> None:
    path = FIXTURES / "example" / "uneven"
    check_strategy(path, path / "rank1.json")


ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "_allgather_base_", "_reduce_scatter_base_", "allreduce_"
CALLS = {
    **dict.fromkeys(("ddp", "ddp_unused", "tensor_parallel", "zero1"), (ALL_REDUCE,)),
    **dict.fromkeys(("fsdp1_full_shard", "fsdp1_shard_grad_op"), ("allgather_", REDUCE_SCATTER)),
    **dict.fromkeys(("fsdp2", "fsdp2_accumulated", "fsdp2_all", "fsdp2_kept", "zero3"), (ALL_GATHER, REDUCE_SCATTER)),
    "zero2": (ALL_GATHER, ALL_REDUCE),
}
"""The calls of each recorded strategy without which a step is not as predicted."""


@pytest.mark.slow
@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize(("name", "op_name"), [(name, op_name) for name, ops in CALLS.items() for op_name in ops])
def test_a_call_more_or_less_than_a_strategy_predicts_is_counted(
    name: str, op_name: str, times: int, tmp_path: Path
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(with_one_call(name, op_name=op_name, times=times))
    check_strategy(path, path)
