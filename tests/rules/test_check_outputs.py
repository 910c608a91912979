"""`traceq check` for programs: JSON, JUnit XML, and annotations with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from builder import annotation, call, frame, kernel, launch, memcpy, op, step, world, write
from terminal import Outcome, traceq

HOSTILE = 'k<a&b>"c\x00\x1b[31m\ufffe\n::error::x]]>'


def waiting(line: str = "model.py(41): forward", name: str = "gemm") -> list[dict[str, Any]]:
    """A step whose forward waits for a copy, at that line."""
    return [
        step(0, 1000),
        annotation("forward", 0, 500),
        launch(10, 5, 1),
        kernel(name, 20, 200, 1),
        frame(line, 295, 110),
        op("aten::item", 300, 100),
        call("cudaMemcpyAsync", 305, 10, 2),
        memcpy("DtoH (Device -> Pageable)", 310, 10, 2, size=4),
        call("cudaStreamSynchronize", 316, 60),
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with a trace beside it."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    write(tmp_path / "trace.json", *waiting())
    return folder


def source(path: Path, function: str = "forward", lines: int = 41) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"def {function}(x):\n" + "    x += 1\n" * (lines - 1))
    return path


def check(*words: str | Path, rule: str = "dtoh == 0") -> Outcome:
    return traceq("check", "../trace.json", "--rule", rule, *words)


def properties(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> str:
    """What comes before the message of the annotation of a rule that is broken."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (line,) = (line for line in check(*words).out.splitlines() if line.startswith("::error "))
    return line.removeprefix("::error ").partition("::")[0]


# Annotations


def test_an_annotation_has_the_file_in_the_tree_and_the_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(here / "src" / "nets" / "model.py")
    source(here / "venv" / "lib" / "model.py")
    (here / "venv" / "pyvenv.cfg").touch()
    source(here / ".cache" / "model.py")
    assert properties(monkeypatch) == "file=src/nets/model.py,line=41,title=traceq check"


def test_the_path_is_that_in_the_checkout_when_the_job_is_below_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(here.parent / "src" / "model.py")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here.parent))
    assert properties(monkeypatch) == "file=src/model.py,line=41,title=traceq check"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here / "elsewhere"))
    assert properties(monkeypatch) == "title=traceq check"


@pytest.mark.parametrize(("function", "lines"), [("other", 41), ("forward", 40)])
def test_a_file_without_that_line_or_function_is_another_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, function: str, lines: int
) -> None:
    source(here / "model.py", function, lines)
    assert properties(monkeypatch) == "title=traceq check"
    source(here / "src" / "model.py")
    assert properties(monkeypatch) == "file=src/model.py,line=41,title=traceq check"
    source(here / "copy" / "model.py")
    assert properties(monkeypatch) == "title=traceq check"


def test_the_name_of_a_folder_ends_neither_property_nor_command(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(here / "a,b:c%\n::x" / "model.py")
    assert properties(monkeypatch) == "file=a%2Cb%3Ac%25%0A%3A%3Ax/model.py,line=41,title=traceq check"


def test_annotations_leave_json_whole(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = check("--json")
    assert json.loads(done.out)["schema"] == "traceq.check/1"
    assert done.err.startswith("::error title=")


# JSON


def rows(*words: str | Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(traceq("check", *words, "--json").out)["rules"]
    return result


def test_json_has_a_row_for_each_path_and_rule(here: Path) -> None:
    for rank, name in enumerate(("gemm", "fill")):
        write(here / "ranks" / f"rank{rank}.json", *waiting(name=name), kernel("more", 600, 9 + rank), **world(rank, 2))
    rules = ("dtoh == 0", "gpu_busy < 50 %", "compute max < 0.2 ms", "mfu > 0.1")
    every = rows("../trace.json", "ranks", *(word for rule in rules for word in ("--rule", rule)))
    assert [(row["path"], row["state"], row["value"], row["unit"], row["rank"]) for row in every] == [
        ("../trace.json", "broken", 1, "count", 0),
        ("../trace.json", "holds", pytest.approx(21), "%", 0),
        ("../trace.json", "broken", 200_000, "ns", 0),
        ("../trace.json", "cannot tell", None, "%", None),
        ("ranks", "broken", 1, "count", 0),
        ("ranks", "holds", pytest.approx(22), "%", 1),  # of those that hold the closest to the bound
        ("ranks", "broken", 210_000, "ns", 1),  # of those that do not the farthest
        ("ranks", "cannot tell", None, "%", None),
    ]
    assert [row["broken_ranks"] for row in every[4:]] == [[0, 1], [], [0, 1], []]
    assert [bool(row["reason"]) for row in every] == [False, False, False, True] * 2
    assert every[0]["culprits"] == [
        {
            "name": "aten::item at model.py:41 forward in forward",
            "value": 1,
            "source": "model.py:41 forward",
            "file": None,
            "line": None,
        }
    ]


def test_a_bound_of_any_size_is_json(here: Path) -> None:
    (row,) = rows("../trace.json", "--rule", f"step < {'9' * 30} s")
    assert (row["state"], row["bound"]) == ("holds", pytest.approx(1e39))


# JUnit XML


def test_junit_has_a_suite_for_each_path_and_a_case_for_each_rule(here: Path) -> None:
    write(here / "cpu.json", step(0, 100), annotation("forward", 0, 50), op("aten::mm", 5, 3))
    words = ("--rule", "dtoh in forward == 0", "--rule", "step < 1 s", "--junit", "out.xml")
    done = traceq("check", "../trace.json", "cpu.json", *words)
    root = ElementTree.fromstring((here / "out.xml").read_bytes())
    assert (done.code, root.tag, root.get("tests"), root.get("failures"), root.get("errors")) == (
        *(3, "testsuites"),
        *("4", "1", "1"),
    )
    assert [(suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("errors")) for suite in root] == [
        ("../trace.json", "2", "1", "0"),
        ("cpu.json", "2", "0", "1"),
    ]
    assert [[(child.tag, child.get("type")) for child in case] for case in root.iter("testcase")] == [
        [("failure", "broken")],
        [],
        [("error", "cannot tell")],
        [],
    ]
    assert {case.get("classname") for case in root.iter("testcase")} == {"../trace.json", "cpu.json"}
    failure = next(root.iter("failure"))
    assert "1 on rank 0 (1 aten::item at model.py:41 forward)" in (failure.text or "")
    values = {each.get("name"): each.get("value") for each in root[0].iter("property")}
    assert (values["ranks"], values["dtoh in forward == 0"], values["step < 1 s"]) == (
        "0",
        "1 on rank 0",
        "1.00 ms on rank 0",
    )


def test_no_name_breaks_junit(here: Path, tmp_path: Path) -> None:
    write(tmp_path / "trace.json", *waiting(name=HOSTILE))
    assert check("--junit", "out.xml", rule="kernels == 0").code == 3
    root = ElementTree.fromstring((here / "out.xml").read_bytes())
    (case,) = root.iter("testcase")
    assert 'k<a&b>"c' in (case[0].text or "")
    assert "\x1b" not in (case[0].get("message") or "")


def test_junit_replaces_a_file_and_never_an_input(here: Path, tmp_path: Path) -> None:
    (here / "out.xml").write_text("before")
    (here / "rules.toml").write_text('rules = ["dtoh == 0"]')
    write(here / "ranks" / "rank0.json", *waiting(), **world(0, 1))
    check("--junit", "out.xml")
    assert ElementTree.fromstring((here / "out.xml").read_bytes()).tag == "testsuites"
    for target in ("../trace.json", "rules.toml", "ranks/rank0.json"):
        before = (here / target).read_bytes()
        done = traceq("check", "../trace.json", "ranks", "--rules", "rules.toml", "--junit", target)
        assert (done.code, (here / target).read_bytes()) == (2, before)
    assert {path.name for path in here.iterdir()} == {"out.xml", "rules.toml", "ranks"}
