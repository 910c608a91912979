"""Pipelines: each rank's step in passes, bubble, transfers and the rest; who is a pipeline, and who is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import Event, annotation, build, comms, kernel, launch, op, step, table, world
from oracle.pipelines import spent
from paths import FIXTURES, TRACES

from traceq.analysis.pipeline import summarize
from traceq.analysis.registry import analyze
from traceq.engines.rank_summary import pack, unpack
from traceq.facts.comm.microbatches import Passes
from traceq.facts.comm.rank_collectives import RankCalls, rank_calls
from traceq.model import Run, Trace
from traceq.runs.read import read

EXAMPLE = FIXTURES / "kinds" / "pipeline"
PARTS = ("passes", "warmup", "steady", "cooldown", "transfer", "other")


def rows_of(run: Run) -> list[dict[str, Any]]:
    return table(run, "pipeline")


def test_1f1b_of_four_ranks_is_what_its_events_say() -> None:
    """Six microbatches of 200 and 400 us: three forwards of 200 us fill rank 3's wait, and messages take 10 us."""
    rows = rows_of(read(EXAMPLE))
    assert [(row["rank"], row["position"], row["stages"]) for row in rows] == [(n, n, str(n)) for n in range(4)]
    assert {(row["schedule"], row["num_microbatches"], row["pipeline"]) for row in rows} == {("1F1B", 6, 0)}
    assert {row["passes_ns"] for row in rows} == {6 * 600_000}
    assert rows[3]["warmup_ns"] == 3 * 200_000 + 2 * 10_000
    for row, expected in zip(rows, spent(sorted(EXAMPLE.glob("*.json")), [0] * 4), strict=True):
        assert sum(row[f"{part}_ns"] for part in PARTS) == row["step_ns"]
        assert {part: row[f"{part}_ns"] for part in (*PARTS, "wait")} == {
            part: expected[part] for part in (*PARTS, "wait")
        }
        bubble = sum(row[f"{part}_ns"] for part in ("warmup", "steady", "cooldown"))
        assert row["bubble_pct"] == pytest.approx(100 * bubble / row["step_ns"])


def test_the_claim_has_the_schedule_and_what_it_leaves_idle() -> None:
    (claim,) = analyze(read(EXAMPLE), "pipeline").findings
    measures, rows = claim.measures, rows_of(read(EXAMPLE))
    assert (measures["schedule"], measures["num_ranks"], measures["num_microbatches"]) == ("1F1B", 4, 6)
    assert [measures[f"{part}_ns"] for part in ("warmup", "steady", "cooldown")] == [907_500, 12_500, 910_000]
    assert claim.ns == sum(row[f"{part}_ns"] for row in rows for part in ("warmup", "steady", "cooldown")) // 4
    assert measures["share_pct"] == pytest.approx(100 * claim.ns / rows[0]["step_ns"])
    assert measures["even_pct"] == pytest.approx(100 * 3 / (6 + 3))
    assert (claim.key, claim.gain, claim.remedy) == ("ranks 0-3", (0, claim.ns), "1f1b")


def test_messages_add_up_to_waits_transfers_and_the_rest() -> None:
    rows = analyze(read(EXAMPLE), "pipeline").table("pipeline_messages").to_dicts()
    assert [(row["rank"], row["peer"], row["direction"]) for row in rows[:4]] == [
        (0, 1, "recv"), (0, 1, "send"), (1, 0, "recv"), (1, 0, "send"),
    ]  # fmt: skip
    assert len(rows) == 12
    assert {(row["num"], row["num_matched"]) for row in rows} == {(6, 6)}
    assert all(row["wait_ns"] + row["transfer_ns"] + row["done_ns"] == row["dur_ns"] for row in rows)
    assert rows[1]["transfer_ns"] + rows[1]["done_ns"] >= 6 * 10_000  # grouped ones may end later


@pytest.mark.parametrize("ahead_ns", [-7_000_000, 40_000])
def test_a_clock_that_is_ahead_changes_little(ahead_ns: int) -> None:
    """Messages in both directions bound the difference of two clocks to less than they take."""
    run = read(EXAMPLE)
    moved = replace(run.traces[2], base_time_ns=run.traces[2].base_time_ns + ahead_ns)
    changed = rows_of(replace(run, traces=(*run.traces[:2], moved, run.traces[3])))
    for row, before in zip(changed, rows_of(run), strict=True):
        assert row["schedule"] == "1F1B"
        assert row["passes_ns"] == before["passes_ns"]
        for part in ("warmup", "steady", "cooldown", "transfer", "other"):
            assert row[f"{part}_ns"] == pytest.approx(before[f"{part}_ns"], abs=12 * 10_000)


def test_the_order_of_ranks_is_that_of_the_stages() -> None:
    """Rank numbers say nothing: here activations flow from the last rank to the first."""
    run = read(EXAMPLE)
    renamed = {rank: 3 - rank for rank in range(4)}
    traces = [
        build(*renumbered(path, renamed), **world(3 - rank, 4))
        for rank, path in enumerate(sorted(EXAMPLE.glob("*.json")))
    ]
    rows = rows_of(replace(run, traces=tuple(sorted(traces, key=lambda trace: trace.rank))))
    assert [(row["rank"], row["position"], row["schedule"]) for row in rows] == [(3 - n, n, "1F1B") for n in range(4)]


def renumbered(path: Path, ranks: dict[int, int]) -> list[Event]:
    """The events of a trace with the ranks in the titles of messages replaced."""
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    swap = re.compile(r"(\d+)(->|<-)(\d+)$")
    for event in events:
        event["name"] = swap.sub(lambda m: f"{ranks[int(m[1])]}{m[2]}{ranks[int(m[3])]}", event["name"])
    return events


def ring(rank: int, size: int = 4) -> Trace:
    """Each layer computes a block, and passes another on around the ring, as context parallelism does."""
    rows: list[Event] = [step(0, 2000)]
    for layer in range(8):
        begin, corr = 200 * layer, 3 * layer + 1
        name = "aten::attention" if layer < 4 else "autograd::engine::evaluate_function: AttentionBackward0"
        rows += [op(name, begin + 2, 4), launch(begin + 3, 1, corr), kernel("attention", begin + 10, 180, corr)]
        for index, (way, arrow, peer) in enumerate((("send", "->", rank + 1), ("recv", "<-", rank - 1))):
            posted = begin + 10 + 2 * index
            rows += [comms(way, posted, 1), annotation(f"nccl:{way} {rank}{arrow}{peer % size}", posted + 0.2, 0.5)]
        rows += [annotation("nccl:coalesced", begin + 14, 4), launch(begin + 15, 1, corr + 1)]
        rows.append(kernel("ncclDevKernel_SendRecv", begin + 16, 150, corr + 1, stream=20))
    return build(*rows, **world(rank, size))


def test_the_partition_takes_a_wait_for_the_other_side_of_a_message_for_a_wait() -> None:
    """All of the bubble of the first rank is inside its messages; after the last pass there is one all-reduce."""
    run = read(EXAMPLE)
    ns = {(row["phase"], row["category"]): row["dur_ns"] for row in table(run, "partition") if row["rank"] == 0}
    (first, *_) = rows_of(run)
    assert ns["forward", "exposed_wait"] == first["wait_ns"]
    assert ns["forward", "exposed_transfer"] == first["transfer_ns"]
    assert ns["other", "exposed_transfer"] == 15_000


def test_a_ring_is_no_pipeline() -> None:
    report = analyze(Run("job", tuple(ring(rank) for rank in range(4))), "pipeline")
    assert report.table("pipeline").rows == ()
    assert report.table("pipeline_messages").rows == ()
    assert report.findings == report.views == ()


def test_ranks_to_which_nothing_comes_back_are_no_pipeline() -> None:
    """Rank 0 sends something after each forward pass, as to a logger; rank 1 trains alone."""
    traces = []
    for rank, way in enumerate(("send", "recv")):
        rows: list[Event] = [step(0, 1000)]
        for place in range(4):
            begin = 200 * place
            rows += [op("aten::linear", begin, 80), annotation(f"gloo:{way}", begin + 85, 4)]
            rows.append(op("autograd::engine::evaluate_function: AddmmBackward0", begin + 95, 90))
        traces.append(build(*rows, **world(rank, 2, "gloo")))
    assert rows_of(Run("job", tuple(traces))) == []


def named(rank: int, order: str, *, us: int = 100) -> Trace:
    """A rank whose annotations name its passes, one after the other."""
    seen = {"F": 0, "B": 0}
    rows: list[Event] = [step(0, 1000)]
    for place, kind in enumerate(order):
        rows += [annotation(f"PP:{rank}{kind}{seen[kind]}", us * place, us), op("aten::mm", us * place, us)]
        seen[kind] += 1
    return build(*rows, annotation("gloo:send", 990, 1), **world(rank, 4, "gloo"))


def test_a_schedule_that_is_none_of_them_is_unknown() -> None:
    orders = ("FFFBBB", "FFBFBB")
    report = analyze(Run("job", tuple(named(rank, order) for rank, order in enumerate(orders))), "pipeline")
    rows = report.table("pipeline").to_dicts()
    assert [(row["schedule"], row["num_microbatches"], row["position"]) for row in rows] == [
        ("unknown", 3, 0),
        ("unknown", 3, 1),
    ]
    assert [row["wait_ns"] for row in rows] == [None, None]  # no message tells its other side
    assert "schedule unknown" in report.views[0].title


def test_a_slow_rank_is_named_instead_of_another_schedule() -> None:
    traces = (named(0, "FFBB", us=20), named(1, "FBFB", us=200))
    (claim,) = analyze(Run("job", traces), "pipeline").findings
    assert (claim.subject.rank, claim.remedy) == (1, "even_stages")
    assert claim.measures["passes_ratio"] == pytest.approx(200 / 110)


def test_one_rank_of_a_pipeline_is_a_row_without_a_schedule() -> None:
    (row,) = rows_of(Run("job", (named(2, "FFBB"),)))
    assert (row["rank"], row["stages"], row["schedule"], row["passes_ns"]) == (2, "2", "unknown", 400_000)


@pytest.mark.parametrize("folder", ["torchrec-v100-straggler-4r", "dlrm-v100-8r"])
def test_all_to_alls_by_sendrecv_kernels_are_no_pipeline(folder: str) -> None:
    if not (TRACES / folder).exists():
        pytest.skip("needs the public traces")
    assert rows_of(read(TRACES / folder)) == []


def test_passes_survive_the_way_between_processes() -> None:
    part = summarize(read(EXAMPLE).traces[0])
    assert np.array_equal(unpack(pack(part), Passes).start, part.start)
    calls = rank_calls(read(EXAMPLE).traces[0])
    assert np.array_equal(unpack(pack(calls), RankCalls).messages.peer, calls.messages.peer)
