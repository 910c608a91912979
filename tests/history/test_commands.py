"""`traceq history`: what each command prints, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import chdir
from pathlib import Path

import duckdb
import numpy as np
import pytest
from builder import kernel, launch, step, write
from made_history import write_run
from pages import Elements
from terminal import Outcome, traceq

from traceq.history.store import read_rows

COMMIT = "c0ffee" + 34 * "0"
CI = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CI:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven runs of main, the last with a sync more, and one of a branch, with work more."""
    store, rng = tmp_path_factory.mktemp("commands") / "store", np.random.default_rng(3)
    for number in range(8):
        run = store / "runs" / str(number)
        write_run(run, rng, number=number, has_sync=number >= 6, has_work=number == 7, commit=f"{number}" * 40)
        assert traceq("history", "add", run, "--store", store, "--branch", "side" if number == 7 else "main").code == 0
    return store


def history(store: Path, *words: str | Path) -> Outcome:
    return traceq("history", words[0], *words[1:], "--store", store)


def test_alone_it_shows_the_store_of_the_working_directory(store: Path, tmp_path: Path) -> None:
    (tmp_path / "traceq-history").symlink_to(store)
    with chdir(tmp_path):
        outcome = traceq("history")
    assert outcome.code == 0
    assert "traceq-history · side · 1 run" in outcome.out


def test_branch_and_commit_are_those_of_git(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", step(0, 100), launch(1, 2, 1), kernel("gemm", 5, 20, 1))
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-qb", "topic"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    with chdir(tmp_path):
        assert traceq("history", "add", trace, "--store", "store").code == 0
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True)
    rows = read_rows(tmp_path / "store").rows
    assert {(row.branch, row.commit) for row in rows} == {("topic", head.stdout.strip())}
    assert {row.measure: row.value for row in rows}.items() >= {
        "traced step": 100_000,
        "kernels": 1,
        "dtoh syncs": 0,
    }.items()


def test_without_git_they_have_to_be_said(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.json", step(0, 100), launch(1, 2, 1), kernel("gemm", 5, 20, 1))
    with chdir(tmp_path):
        no_branch = traceq("history", "add", trace)
        no_commit = traceq("history", "add", trace, "--branch", "main")
        given = traceq("history", "add", trace, "--branch", "main", "--commit", COMMIT)
    assert [(each.code, "--" in each.err) for each in (no_branch, no_commit, given)] == [
        (2, True),
        (2, True),
        (0, False),
    ]


@pytest.mark.parametrize("name", CI)
def test_a_detached_head_has_the_branch_that_ci_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "feature")
    trace = write(tmp_path / "trace.json", step(0, 100), launch(1, 2, 1), kernel("gemm", 5, 20, 1))
    with chdir(tmp_path):
        assert traceq("history", "add", trace, "--commit", COMMIT).code == 0
    assert {row.branch for row in read_rows(tmp_path / "traceq-history").rows} == {"feature"}


def test_what_is_no_run_is_refused(tmp_path: Path, store: Path) -> None:
    assert history(tmp_path, "add", tmp_path / "none").code == 1
    assert history(tmp_path / "none", "show").code == 1
    assert history(tmp_path, "show").code == 1
    assert history(store, "show", "--branch", "x").code == 2


def test_a_run_that_is_added_again_counts_once(store: Path) -> None:
    before = json.loads(history(store, "show", "--json", "--branch", "main").out)
    assert history(store, "add", store / "runs" / "3", "--branch", "main").code == 0
    assert json.loads(history(store, "show", "--json", "--branch", "main").out) == before


def test_json_has_runs_values_and_changes(store: Path) -> None:
    document = json.loads(history(store, "show", "--json", "--branch", "main").out)
    assert document["schema"] == "traceq.history/1"
    assert [run["commit"][0] for run in document["runs"]] == list("0123456")
    change, of_ops = document["changes"]
    assert of_ops["measure"] == "ops"
    assert (change["measure"], change["commit"][0], change["before"], change["after"]) == ("scalar syncs", "6", 0, 1)
    assert "train.py:57" in change["cause"]
    steps = [value for value in document["values"] if value["measure"] == "step"]
    assert len(steps) == 7
    assert all(each["low"] <= each["value"] <= each["high"] for each in steps)


def test_the_page_is_one_file_with_a_chart_per_measure_and_a_cause_to_open(store: Path, tmp_path: Path) -> None:
    outcome = history(store, "show", "--branch", "main", "--html", tmp_path / "page.html")
    assert outcome.code == 0
    page = Elements((tmp_path / "page.html").read_text())
    tags = [tag for tag, _ in page.tags]
    assert tags.count("svg") == tags.count("figure") == 8
    assert tags.count("details") == 2  # the contents, and the event
    assert "train.py:57 log" in page.text
    links = {attributes.get("href") for tag, attributes in page.tags if tag == "a"}
    assert "#change-1" in links
    assert [
        url for _, attributes in page.tags for name in ("src", "href") if (url := attributes.get(name) or "#")[0] != "#"
    ] == []


def test_no_name_is_markup_of_the_page(store: Path, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    for number in (3, 6):
        words = ("--branch", name, "--commit", f"{name}{number}")
        assert history(tmp_path / "store", "add", store / "runs" / str(number), *words).code == 0
    history(tmp_path / "store", "show", "--html", tmp_path / "page.html")
    page = Elements((tmp_path / "page.html").read_text())
    assert "img" not in {tag for tag, _ in page.tags}
    assert name in page.text


def test_a_branch_is_compared_with_the_newest_of_main_or_with_a_tag(store: Path) -> None:
    compared = history(store, "compare")
    assert compared.code == 0
    assert "777777777 of side against 666666666 of main" in compared.out
    assert re.search(r"step .* \+\d\.\d % .* more", compared.out)
    assert re.search(r"scalar syncs +1 +1 .* same", compared.out)
    assert "at model.py:41 forward" in compared.out
    assert history(store, "tag", "v1", "2222").code == 0
    against_tag = json.loads(history(store, "compare", "6666", "--to", "v1", "--json").out)
    verdicts = {each["measure"]: each["verdict"] for each in against_tag["verdicts"]}
    assert verdicts["scalar syncs"] == "more"
    assert {verdicts[name] for name in ("backward", "optimizer")} <= {"in the noise", "not known"}
    assert history(store, "compare", "--to", "v9").code == 2


def test_a_diff_that_cannot_be_made_is_a_note(store: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        run = write_run(tmp_path / str(number), np.random.default_rng(number), number=number)
        assert history(tmp_path / "store", "add", run, "--branch", "main", "--commit", f"{number}" * 8).code == 0
    (tmp_path / "0").rename(tmp_path / "gone")
    outcome = history(tmp_path / "store", "compare")
    assert outcome.code == 0
    assert "no longer there" in outcome.err


def test_duckdb_asks_what_a_store_holds(store: Path) -> None:
    query = f"SELECT commit[1:1], value FROM '{store}/*.parquet' WHERE measure = 'scalar syncs' AND branch = 'main'"
    assert dict(duckdb.sql(query).fetchall()) == {str(number): float(number >= 6) for number in range(7)}


def test_no_secret_of_a_url_is_printed(tmp_path: Path, store: Path) -> None:
    url = f"memory://user:geheim@{tmp_path.name}/store"
    outcomes = [
        traceq("history", *words, "--store", url)
        for words in (["show"], ["add", str(store / "runs" / "1"), "--branch", "b"])
    ]
    assert [outcome.code for outcome in outcomes] == [1, 0]
    assert "geheim" not in "".join(outcome.out + outcome.err for outcome in outcomes)


def test_of_many_runs_the_latest_are_drawn(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceq.renderers.html.history.RUNS_DRAWN", 3)
    history(store, "show", "--branch", "main", "--html", tmp_path / "page.html")
    page = Elements((tmp_path / "page.html").read_text())
    tags = [tag for tag, _ in page.tags]
    assert tags.count("circle") == 3 * tags.count("figure")
    assert "4 earlier runs" in page.text
