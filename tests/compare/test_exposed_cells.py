"""Exposed communication in a diff is waits and transfers of both sides, as the oracle divides them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from oracle.exposed_waits import exposed_waits
from paths import FIXTURES, TRACES
from simulator import US, json_of, simulate
from simulator.meetings import Late, Meetings

from traceq.compare.diff import diff

NAMES = ("exposed_wait", "exposed_transfer")


def check(a: Path, b: Path, *, within_ns: int = 20) -> None:
    """Both sides of each cell are those of the explained rank, and nothing is left undivided."""
    result = diff(a, b)
    assert result.traced is not None
    files = [sorted(side.glob("rank*.json*")) for side in (a, b)]
    expected = [exposed_waits(side)[result.traced.rank] for side in files]
    cells = {(cell.phase, cell.category): (cell.a_ns, cell.b_ns) for cell in result.cells}
    assert not [key for key in cells if key[1] == "exposed_comm"]
    shown = {key: ns for key, ns in cells.items() if key[1] in NAMES}
    for key in shown.keys() | expected[0].keys() | expected[1].keys():
        sides = [side.get(key, 0) for side in expected]
        assert shown.get(key, (0, 0)) == pytest.approx(sides, abs=within_ns), key
    assert any(shown)


def written(folder: Path, seed: int, late: Late | None) -> Path:
    rng = random.Random(seed)
    plan = [("all_reduce", 1024), ("all_gather", 4096), ("reduce_scatter", 2048), ("all_reduce", 8192)]
    offsets = tuple(rng.randrange(-5_000_000, 5_000_000) for _ in range(4))
    job = Meetings(plan, num_ranks=4, num_steps=4, noise=0, late=late, offsets=offsets).job(rng)
    folder.mkdir()
    for timeline in simulate(job):
        (folder / f"rank{timeline.rank}.json").write_bytes(json_of(job, timeline))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_simulated_job_with_a_late_rank_waits_as_the_oracle_says(tmp_path: Path, seed: int) -> None:
    a, b = written(tmp_path / "a", seed, None), written(tmp_path / "b", 100 + seed, Late(seed, 2_500 * US))
    check(a, b)


def test_an_example_waits_as_the_oracle_says() -> None:
    check(FIXTURES / "example/job", FIXTURES / "example/uneven")


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no {TRACES}")
def test_a_real_pair_waits_as_the_oracle_says() -> None:
    """Of clocks that are known to some us."""
    check(TRACES / "torchrec-v100-ab/a", TRACES / "torchrec-v100-ab/b", within_ns=5_000)
