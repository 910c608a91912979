"""Rank and host from the name of a file, where its metadata lacks them."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import op, world, write

from traceq.kineto.read import read_trace

SMALL = [op("a", 0, 1)]


@pytest.mark.parametrize("name", ["job.rank_3.json", "rank-3.pt.trace.json", "rank3.json"])
def test_without_metadata_the_name_of_the_file_tells_the_rank(tmp_path: Path, name: str) -> None:
    assert read_trace(write(tmp_path / name, *SMALL)).rank == 3
    assert read_trace(write(tmp_path / name, *SMALL, **world(1, 2))).rank == 1


HANDLERS = "node-3.example.com_40.1690000000000.pt.trace.json"


@pytest.mark.parametrize("name", ["rank0.json", HANDLERS])
def test_the_host_is_the_one_that_the_profiler_noted(tmp_path: Path, name: str) -> None:
    assert read_trace(write(tmp_path / name, *SMALL, host_name="node-9")).host == "node-9"


def test_else_the_host_is_in_the_name_that_the_handler_of_tensorboard_gave(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path / HANDLERS, *SMALL)).host == "node-3.example.com"
    assert (
        read_trace(write(tmp_path / "renamed.json", *SMALL, traceName=f"./log/{HANDLERS}")).host == "node-3.example.com"
    )


@pytest.mark.parametrize("name", ["worker0_step_12.1694128201545.pt.trace.json", "rank3.json", "a_40.json"])
def test_a_name_without_the_process_tells_no_host(tmp_path: Path, name: str) -> None:
    assert read_trace(write(tmp_path / name, *SMALL)).host == ""
