"""Each recipe on two CPU ranks shows what it says it shows. `make recipes`; one of them is in the suite."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from builder import table
from recording import start

from traceq.links.nesting import tracks
from traceq.links.phases import phases
from traceq.links.steps import main_track
from traceq.model import Category, Run
from traceq.runs.read import read

pytest.importorskip("torch", reason="recording needs torch")
pytest.importorskip("accelerate", reason="the recipes gather metrics through accelerate")
pytestmark = [pytest.mark.torch, pytest.mark.slow]


def recorded(folder: Path, name: str, *options: str) -> Path:
    """A run of the recipe with the least number of timed steps and two traced ones an arm."""
    done = start(folder, "--ranks", "2", "--steps", "2", "--trace-steps", "2", *options, recipe=name).finish()
    assert done.code == 0, done.stderr
    return done.out


def syncs(run: Run, phase: str) -> int:
    """Scalar syncs of rank 0 in a phase of all traced steps."""
    return sum(row["num"] for row in table(run, "syncs") if (row["rank"], row["phase"]) == (0, phase))


def collectives(run: Run, phase: str) -> Counter[str]:
    """Collectives of rank 0 in a phase of all traced steps."""
    rows = [row for row in table(run, "collectives") if (row["rank"], row["phase"]) == (0, phase)]
    return Counter({name: sum(row["num"] for row in rows if row["name"] == name) for name in {r["name"] for r in rows}})


def ops(run: Run, phase: str) -> Counter[str]:
    """Host ops of rank 0 that begin on the main thread in a phase of all traced steps, those inside others too."""
    (trace,) = [trace for trace in run.traces if trace.rank == 0]
    events = trace.events
    rows = events.rows(Category.CPU_OP)
    names = phases(trace).names
    within = phases(trace).at(events.ts[rows]) == names.index(phase)
    on_main = tracks(trace)[rows] == main_track(trace)
    return Counter(events.text(row) for row in rows[within & on_main])


def test_metrics_fetched_every_second_step_sync_half_as_often_and_sums_gather_once(tmp_path: Path) -> None:
    out = recorded(tmp_path, "metrics_sync_ab", "--set", "every=2", "--set", "batch_size=1")
    arms = {arm: read(out / arm) for arm in ("every", "every_kth", "summed")}
    assert {arm: syncs(run, "sync_gather") for arm, run in arms.items()} == {"every": 10, "every_kth": 5, "summed": 0}
    gathers = {arm: collectives(run, "sync_gather") for arm, run in arms.items()}
    assert gathers == {"every": {"all_gather": 10}, "every_kth": {"all_gather": 5}, "summed": {"all_gather": 1}}


@pytest.mark.recipes
def test_fused_adamw_launches_fewer_ops_and_leaves_the_overflow_flag_on_the_device(tmp_path: Path) -> None:
    out = recorded(tmp_path, "fused_adamw_ab", "--set", "batch_size=1")
    arms = {arm: read(out / arm) for arm in ("foreach", "fused", "loop")}
    assert {arm: syncs(run, "optim_step") for arm, run in arms.items()} == {"foreach": 2, "fused": 0, "loop": 2}
    fused, foreach, loop = (ops(arms[arm], "optim_step") for arm in ("fused", "foreach", "loop"))
    assert (fused["aten::_fused_adamw_"], foreach["aten::_fused_adamw_"]) == (2, 0)
    assert 3 * fused.total() < foreach.total() < loop.total()
