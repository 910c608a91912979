"""The fixture `traceq_step`, as someone who writes tests with it sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from paths import DOCS

for name in ("torch", "nvtx"):
    pytest.importorskip(name, reason="the fixture profiles with torch and nvtx")
for name in ("torch._dynamo", "traceq.recorder.tracing.profiler_window", "traceq.rules.evaluate"):
    import_module(name)  # an inner session forgets what it imported, and torch cannot be imported twice

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.torch

PAGE = DOCS / "pytest.md"
STEP = """
import torch

def read(tensor):
    ones = tensor + 1
    return ones.sum().item()

def step():
    return read(torch.ones(2))
"""


def run(pytester: pytest.Pytester, source: str) -> pytest.RunResult:
    """Run a test file in this process, on a CPU, with warnings as errors."""
    pytester.makepyfile(test_step=source)
    warnings = ("-W", "error", "-W", "ignore::pytest.PytestAssertRewriteWarning")  # traceq is imported here already
    return pytester.runpytest_inprocess("-p", "traceq", "-q", *warnings, "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_page_shows_what_a_broken_rule_prints(pytester: pytest.Pytester) -> None:
    (shown,) = blocks("console")
    result = run(pytester, blocks("python")[0])
    result.assert_outcomes(failed=1)
    for line in shown.splitlines()[1:]:
        assert line in result.outlines
    result.stdout.re_match_lines([r"E       traceq open .*step\.json\.gz"])


def test_the_pages_second_example_passes(pytester: pytest.Pytester) -> None:
    run(pytester, blocks("python")[1]).assert_outcomes(passed=1)


def test_syncs_are_listed_with_their_exact_lines(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        f"""{STEP}
def test(traceq_step):
    assert traceq_step(step, trace_steps=2).syncs == []
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*<2 scalar at test_step.py:5 * forward *_local_scalar_dense>"])


def test_a_call_without_a_line_of_its_own_is_blamed_on_the_test(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import torch

def test(traceq_step):
    (sync,) = traceq_step(torch.ones(1).item).syncs
    assert sync.line == "test_step.py:4 test"
""",
    )
    result.assert_outcomes(passed=1)


def test_a_rule_that_cannot_be_answered_does_not_pass(pytester: pytest.Pytester) -> None:
    reported = {
        "dtoh in forward == 0": "use 'scalar in forward == 0'",
        "dtho == 0": "did you mean 'dtoh'?",
        "step < 3 ms": "use traceq check on a recording",
        "scalar in forwad == 0": "did you mean 'forward'?",
    }
    result = run(
        pytester,
        f"""{STEP}
import pytest

@pytest.mark.parametrize("rule", {list(reported)})
def test(traceq_step, rule):
    traceq_step(step, trace_steps=1).check("scalar per step == 1", rule)
""",
    )
    result.assert_outcomes(failed=len(reported))
    for text in reported.values():
        assert any(text in line for line in result.outlines)
    assert not any("pytest_plugin.py" in line for line in result.outlines)


def test_a_fault_in_the_step_is_the_tests_and_leaves_no_tracer(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
import sys, pytest

def test(traceq_step):
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        traceq_step(lambda: 1 / 0)
    assert sys.gettrace() is before
    assert traceq_step(lambda: None).syncs == []
""",
    )
    result.assert_outcomes(passed=1)


def test_a_session_that_does_not_use_it_imports_neither_torch_nor_numpy(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import sys\ndef test(): assert not {'torch', 'numpy'} & sys.modules.keys()\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "traceq.pytest_plugin", "test_it.py"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
