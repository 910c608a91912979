"""Ops are given the Python line that was marked last, phase by phase, in order."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType, ModuleType

import msgspec
import pytest
from paths import ROOT

from traceq.facts.timeline.call_sites import user_line
from traceq.model import SourceLines
from traceq.recorder.tracing.line_marks import TraceRow, kept_facts, source_lines

MAIN = 7
STEP = TraceRow("ProfilerStep#2", "user_annotation", MAIN, 0, 100)


def mark(text: str, ts: float, depth: int = 0) -> TraceRow:
    return TraceRow(f"line:{depth} {text}", "cpu_op", MAIN, ts, 0.1)


def op(name: str, ts: float, dur: float, tid: int = MAIN) -> TraceRow:
    return TraceRow(name, "cpu_op", tid, ts, dur)


def phase(name: str, ts: float, dur: float) -> TraceRow:
    return TraceRow(name, "user_annotation", MAIN, ts, dur)


def resolved(table: SourceLines) -> dict[str, list[str]]:
    return {key: [table.lines[index] for index in indices] for key, indices in table.table.items()}


def test_the_nth_op_of_a_name_in_a_phase_has_the_nth_line() -> None:
    rows = [
        STEP,
        phase("forward", 10, 50),
        mark("a.py:1 f", 11),
        op("aten::cat", 12, 3),
        mark("a.py:2 f", 16),
        op("aten::cat", 17, 3),
        op("aten::max", 21, 3),
        phase("bwd", 61, 30),
        op("aten::cat", 62, 1),
    ]
    assert resolved(source_lines(rows, ["forward", "bwd"])) == {
        "forward|aten::cat": ["a.py:1 f", "a.py:2 f"],
        "forward|aten::max": ["a.py:2 f"],
        "bwd|aten::cat": ["a.py:2 f"],
    }


def test_only_outermost_ops_of_the_main_thread_count() -> None:
    rows = [
        STEP,
        mark("a.py:1 f", 1),
        op("aten::linear", 2, 10),
        op("aten::addmm", 3, 5),
        op("aten::linear", 4, 5, tid=8),
    ]
    assert resolved(source_lines(rows, [])) == {"other|aten::linear": ["a.py:1 f"]}


def test_an_op_in_which_lines_run_is_of_the_one_that_takes_most_of_it() -> None:
    """As a node of the backward pass that runs a hook of the user's; the line is the caller's again behind it."""
    hooked = [op("Accumulate", 20, 30), mark("log.py:5 hook", 22), op("aten::histc", 23, 2), mark("log.py:6 hook", 26)]
    rows = [STEP, mark("a.py:1 f", 1), op("Accumulate", 10, 9), *hooked, mark("a.py:1 f", 46), op("Accumulate", 60, 5)]
    assert resolved(source_lines(rows, [])) == {"other|Accumulate": ["a.py:1 f", "log.py:6 hook", "a.py:1 f"]}


def between(table: SourceLines) -> dict[str, list[dict[str, int]]]:
    return {
        key: [{table.lines[line]: percent for line, percent in parts} for parts in times]
        for key, times in table.between.items()
    }


def test_time_in_no_op_belongs_to_the_lines_that_run_then_without_the_cost_of_marks() -> None:
    rows = [
        STEP,
        mark("a.py:1 main", 1),
        mark("a.py:2 main", 2),  # 1 us apart: what a mark costs
        phase("forward", 5, 20),
        op("x", 5, 20),
        mark("b.py:7 check", 25),
        mark("b.py:8 check", 36),
        mark("a.py:3 main", 67),
        op("x", 78, 2),
    ]
    assert between(source_lines(rows, ["forward"])) == {
        "|": [{"a.py:2 main": 100}],
        "forward|": [{}],
        "forward|x": [{}],
        "|forward": [{"b.py:8 check": 80, "a.py:3 main": 20}],
        "other|x": [{"a.py:3 main": 100}],
    }


def test_time_of_many_short_functions_belongs_to_the_line_that_calls_them() -> None:
    """Not to that line of the largest of them which happens to take longest itself."""
    step = TraceRow("ProfilerStep#2", "user_annotation", MAIN, 0, 2_000)
    rows = [step, op("x", 0, 10), mark("train.py:12 main", 10), mark("train.py:13 main", 60)]
    rows.append(mark("env.py:5 act", 61, 1))
    for number in range(40):
        rows.append(mark(f"env.py:{100 + number} rule_{number}", 70 + 40 * number, 2))
        rows.append(mark("env.py:6 act", 105 + 40 * number, 1))
    rows += [mark("train.py:13 main", 1_680), mark("train.py:14 main", 1_690), op("x", 2_000, 1)]
    assert between(source_lines(rows, []))["other|x"] == [{"train.py:14 main": 19, "env.py:6 act": 81}]


def test_the_order_of_rows_in_the_file_is_irrelevant() -> None:
    rows = [
        STEP,
        phase("p", 1, 50),
        mark("a.py:1 f", 2),
        op("x", 3, 9),
        op("y", 4, 1),
        mark("b.py:2 g", 20),
        op("x", 21, 1),
    ]
    assert source_lines(rows[::-1], ["p"]) == source_lines(rows, ["p"])


def test_annotations_that_are_no_phases_do_not_hide_ops() -> None:
    rows = [STEP, phase("Optimizer.step#AdamW.step", 1, 50), mark("a.py:9 f", 2), op("aten::lerp_", 3, 1)]
    assert resolved(source_lines(rows, ["forward"])) == {"other|aten::lerp_": ["a.py:9 f"]}


def test_a_trace_without_steps_has_no_lines() -> None:
    assert source_lines([op("x", 1, 1)], []) == SourceLines((), {})


def test_the_line_of_a_loops_body_is_marked_while_it_runs() -> None:
    pytest.importorskip("torch", reason="marks are torch's")
    from traceq.recorder.tracing import line_marks

    marked: list[str] = []
    original = line_marks._mark
    line_marks._mark = lambda code, line, depth: marked.append(f"{code.co_name}+{line - code.co_firstlineno}")
    try:
        with line_marks.marked_lines():
            sorted([2, 1])
            _called()
            sorted([3])
    finally:
        line_marks._mark = original
    inner = [text for text in marked if text.startswith("_called")]
    assert inner == ["_called+1", "_called+2"]
    after = marked[marked.index("_called+2") + 1 :]
    assert len(after) >= 2  # the caller's line again, then its next one
    assert after[0] != after[1]


def test_what_has_no_name_belongs_to_the_function_around_it() -> None:
    pytest.importorskip("torch", reason="marks are torch's")
    from traceq.recorder.tracing.line_marks import function_name

    class Model:
        def forward(self) -> list[CodeType]:
            def inner() -> CodeType:
                return sys._getframe().f_code

            return [*(sys._getframe().f_code for _ in "a"), (lambda: sys._getframe().f_code)(), inner()]

    assert [function_name(code) for code in Model().forward()] == ["Model.forward", "Model.forward", "inner"]
    assert function_name(compile("", "train.py", "exec")) == "<module>"


def test_libraries_are_user_code_if_they_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once they have loaded what does: a line of pandas says less than the one that calls it."""
    torch = pytest.importorskip("torch", reason="marks are torch's")
    from traceq.recorder.tracing import line_marks

    frames, models = ModuleType("frames.core"), ModuleType("models.attention")
    models.__dict__["nn"] = torch.nn
    monkeypatch.setitem(sys.modules, "frames.core", frames)
    monkeypatch.setitem(sys.modules, "models.attention", models)
    packages = Path(sysconfig.get_path("purelib"))
    files = [str(packages / name) for name in ("frames/core.py", "models/rows.py", "models.py", "absent.py")]
    with line_marks.marked_lines():
        assert [line_marks.is_user_code(file) for file in files] == [False, True, True, False]
    frames.__dict__["Loss"] = torch.nn.Module
    assert not line_marks.is_user_code(files[0])
    with line_marks.marked_lines():
        assert line_marks.is_user_code(files[0])


class Untouchable(ModuleType):
    """A lazy module, or a proxy, that may not be asked for anything."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


def test_to_look_at_a_library_touches_none_of_its_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lazy modules would load, and proxies of frameworks for the web raise outside of a request."""
    pytest.importorskip("torch", reason="marks are torch's")
    from traceq.recorder.tracing import line_marks

    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError

    web = ModuleType("web")
    web.__dict__.update(request=Proxy(), lazy=Untouchable("lazy"))
    monkeypatch.setitem(sys.modules, "web", web)
    monkeypatch.setitem(sys.modules, "web.lazy", Untouchable("web.lazy"))
    with line_marks.marked_lines():
        assert not line_marks.is_user_code(str(Path(sysconfig.get_path("purelib")) / "web" / "app.py"))


def test_no_module_of_the_recorder_is_taken_for_user_code() -> None:
    pytest.importorskip("torch", reason="marks are torch's")
    from traceq.recorder.tracing import line_marks

    folder = ROOT / "traceq" / "recorder"
    modules = [str(path) for path in folder.rglob("*.py")]
    assert str(folder / "timing" / "stopwatch.py") in modules  # two levels below the package
    assert [path for path in modules if line_marks.is_user_code(path)] == []
    assert [path for path in modules if user_line([f"{path}(7): step"])] == []
    assert not line_marks.is_user_code(f"/home/me/caches/tj/ctj{'m7k4' * 12}.py")  # torch.compile's
    assert line_marks.is_user_code("/home/me/train.py")
    frames = [f"{folder / 'timing' / 'stopwatch.py'}(7): mark", "/home/me/train.py(41): step"]
    assert user_line(frames) == "train.py:41 step"


def _called() -> list[int]:
    numbers = [3, 1]
    return sorted(numbers)


def memory(ts: float, size: int, address: int, device_type: int = 0) -> TraceRow:
    args = {"Bytes": size, "Addr": address, "Device Type": device_type}
    return msgspec.convert({"name": "[memory]", "tid": MAIN, "ts": ts, "args": args}, TraceRow)


STEADY = [
    STEP,
    mark("a.py:1 f", -9),  # in the step before
    memory(-8, 400, 9),
    mark("a.py:1 f", 10),
    memory(11, 400, 2),
    memory(12, 64, 3),
    mark("a.py:2 f", 20),
    memory(21, -400, 9),
    memory(22, -64, 3),
]


def test_a_step_that_frees_as_much_of_the_step_before_keeps_nothing() -> None:
    assert kept_facts(STEADY, "cpu") == {}


def test_what_a_step_keeps_has_the_line_that_allocates_most_beyond_what_is_freed() -> None:
    """Line 1 allocates 400 bytes again, which the step before freed; the device of other blocks is another one."""
    rows = [*STEADY, memory(25, 300, 4), memory(26, 7000, 5, device_type=1), memory(28, -40, 8)]
    assert kept_facts(rows, "cpu") == {"kept_bytes": 260, "kept_line": "a.py:2 f"}
    assert kept_facts(rows, "cuda") == {"kept_bytes": 7000, "kept_line": "a.py:2 f"}
