"""The workflows in docs/ci: their steps run, in order and in a clean folder, as GitHub and GitLab run them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from paths import DOCS, ROOT
from terminal import PROGRAM, options_of

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FILES = sorted((DOCS / "ci").glob("*.yml"))
TRAINER = """
import time

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    time.sleep(0.02)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SLOWER = TRAINER.replace("0.02", "0.1").replace("loss.backward()", "loss.item(); loss.backward()")
LIMIT = "100%"
"""The slower step is five times as long, and no noise doubles one."""

Step = Mapping[str, Any]


def steps_of(file: Path) -> list[Step]:
    """The steps of the one job of a workflow; those of GitLab have no more than commands."""
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    if file.stem == "gitlab":
        return [{"run": script} for script in document["traceq"]["script"]]
    (job,) = document["jobs"].values()
    steps: list[Step] = job["steps"]
    return steps


def commands_of(file: Path) -> list[str]:
    return [step["run"] for step in steps_of(file) if "run" in step]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_commands_parse_and_have_their_options(file: Path) -> None:
    for script in commands_of(file):
        assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    text = "\n".join(commands_of(file)).replace("\\\n", " ")
    lines = re.findall(r"\btraceq (record|diff|check) ([^;\n]*)", text)
    assert [command for command, _ in lines] == ["record", "diff", "check"]
    for command, rest in lines:
        words = shlex.split(rest.partition(" -- ")[0].partition("||")[0])
        assert {word for word in words if word.startswith("--")} <= options_of(command)


def test_actions_are_pinned_as_those_of_the_project() -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert {step["uses"] for step in steps_of(DOCS / "ci" / "github.yml") if "uses" in step} <= {
        *re.findall(r"uses: (\S+)", ci)
    }


def test_what_a_pull_request_names_reaches_no_shell_as_code() -> None:
    assert not any("${{" in script for script in commands_of(DOCS / "ci" / "github.yml"))


# As they run

STUBS = {
    "python": 'case "$1 $2" in "-m pip") echo "$@" >> "$STATE/pip" ;; *) exec {python} "$@" ;; esac',
    "traceq": """
if [ "$1" = record ]; then  # each trainer is recorded once
    kept="$STATE/recorded-$(sha256sum < train.py | cut -c -8)"
    [ -e "$kept" ] || {python} -c {program} record --steps 16 --out "$kept" -- python train.py
    mkdir -p "$(dirname "$3")" && cp -r "$kept" "$3"
else
    {python} -c {program} "$@"
fi""",
    "gh": """
echo "$@" >> "$STATE/gh"
test -n "$GH_TOKEN"
case "$1 $2" in
"run list") [ ! -e "$STATE/artifacts/push/traceq" ] || echo 77 ;;
"run download") test "$3 $4 $5 $6" = "77 --name traceq --dir" && cp -r "$STATE/artifacts/push/traceq" "$7" ;;
"api --paginate") [ ! -e "$STATE/comment.md" ] || echo 5 ;;
"api --method") test "$3 $4" = "PATCH repos/me/job/issues/comments/5" && cp "${6#body=@}" "$STATE/comment.md" ;;
"pr comment") test "$3" = 7 && cp "$5" "$STATE/comment.md" ;;
esac""",
    "curl": """
echo "$@" >> "$STATE/curl"
file="" to=""
while [ $# -gt 0 ]; do
    case "$1" in
    --upload-file) cp "$2" "$STATE/package" ;;
    --output) to="$2" ;;
    --data-urlencode) cp "${2#body@}" "$STATE/comment.md" ;;
    *packages*) [ -z "$to" ] || cp "$STATE/package" "$to" ;;
    esac
    shift
done""",
}


@dataclass
class Ran:
    """What the steps of a job left behind: those that failed, all output, and values that steps set."""

    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    output: str = ""
    values: dict[str, str] = field(default_factory=dict)


class Runner:
    """A machine that checks out a repository into a clean folder, and runs the steps of a job there."""

    def __init__(self, root: Path, state: Path) -> None:
        self.root, self.state = root, state
        stubs = root / "stubs"
        stubs.mkdir()
        for name, text in STUBS.items():
            program = text.replace("{python}", sys.executable).replace("{program}", shlex.quote(PROGRAM))
            (stubs / name).write_text(f"#!/bin/bash\nset -e\n{program}\n")
            (stubs / name).chmod(0o755)
        keep = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        self.environment = keep | {"PATH": f"{stubs}:{os.environ['PATH']}", "STATE": str(state)}

    def check_out(self, name: str, trainer: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        (folder / "train.py").write_text(trainer)
        (folder / "traceq.toml").write_text('rules = ["scalar == 0"]\n')
        return folder

    def shell(self, script: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def github(self, folder: Path, event: str) -> Ran:
        document = yaml.safe_load((DOCS / "ci" / "github.yml").read_text(encoding="utf-8"))
        files = {name: folder.parent / f"{folder.name}-{name}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        system = {
            **{name: str(path) for name, path in files.items()},
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(folder),
            "GITHUB_WORKFLOW": document["name"],
            "GITHUB_REPOSITORY": "me/job",
            "GITHUB_EVENT_NAME": event,
            **{name: str(value) for name, value in document["env"].items()},
            "LIMIT": LIMIT,
            "RECORDINGS": "1",
        }
        context = {"github.event_name": event, "github.token": "secret"}
        if event == "pull_request":
            context |= {"github.event.pull_request.number": "7", "github.event.pull_request.base.ref": "main"}
        ran = Ran(values=context)
        for step in steps_of(DOCS / "ci" / "github.yml"):
            name = step.get("name", step.get("uses", ""))
            if not self._is_due(step.get("if", "success()"), ran):
                ran.skipped.append(name)
            elif "uses" in step:
                self._use(step, folder, self.state / "artifacts" / event)
            else:
                files["GITHUB_OUTPUT"].write_text("")
                of_step = {key: self._filled(value, ran) for key, value in step.get("env", {}).items()}
                code, output = self.shell(step["run"], folder, {**system, **of_step})
                ran.output += output
                pairs = (line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
                ran.values |= {f"steps.{step.get('id')}.outputs.{key}": value for key, value in pairs}
                if code and not step.get("continue-on-error"):
                    ran.failed.append(name)
        return ran

    def _use(self, step: Step, folder: Path, artifacts: Path) -> None:
        """Upload an artifact; other actions have done their work in `check_out`."""
        if step["uses"].startswith("actions/upload-artifact@"):
            source, target = folder / step["with"]["path"], artifacts / step["with"]["name"]
            shutil.rmtree(target, ignore_errors=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                target.mkdir(parents=True)
                shutil.copy(source, target)

    def _filled(self, value: str, ran: Ran) -> str:
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda match: ran.values.get(match[1], ""), str(value))

    def _is_due(self, condition: str, ran: Ran) -> bool:
        """Whether a step runs: as GitHub decides, for the few operators that are used."""
        terms = condition.removeprefix("${{ ").removesuffix(" }}").split(" && ")
        if "!cancelled()" in terms:
            terms.remove("!cancelled()")
        elif ran.failed:
            return False
        for term in terms:
            name, _, value = term.partition(" == ")
            if term != "success()" and ran.values.get(name, "") != value.strip("'"):
                return False
        return True

    def gitlab(self, folder: Path, request: str) -> tuple[int, str]:
        document = yaml.safe_load((DOCS / "ci" / "gitlab.yml").read_text(encoding="utf-8"))["traceq"]
        given = {"CI_API_V4_URL": "https://api", "CI_PROJECT_ID": "1", "CI_JOB_TOKEN": "j", "TRACEQ_TOKEN": "t"}
        settings = given | {"CI_MERGE_REQUEST_IID": request}
        for name, value in document["variables"].items():
            settings[name] = re.sub(r"\$(\w+)", lambda match: settings[match[1]], value)
        settings |= {"LIMIT": LIMIT, "RECORDINGS": "1"}
        return self.shell("\n".join(document["script"]), folder, settings)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where recordings of both trainers are kept."""
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture
def runner(recorded: Path, tmp_path: Path) -> Runner:
    if not find_spec("torch"):
        pytest.skip("the example trains a model")
    for left in ("artifacts", "comment.md", "gh", "package", "curl"):
        shutil.rmtree(recorded / left) if (recorded / left).is_dir() else (recorded / left).unlink(missing_ok=True)
    return Runner(tmp_path, recorded)


def comment(runner: Runner) -> str:
    return (runner.state / "comment.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_workflow_for_github_comments_on_a_pull_request_and_gates_it(runner: Runner) -> None:
    first = runner.github(runner.check_out("first", SLOWER), "pull_request")
    assert "main has no recording yet" in first.output
    assert first.failed == ["Rules"]

    main = runner.github(runner.check_out("main", TRAINER), "push")
    assert main.failed == []
    assert main.skipped == ["Fetch the recording of the main branch", "Compare", "Comment", "Gate"]

    slower = runner.github(runner.check_out("slower", SLOWER), "pull_request")
    assert slower.failed == ["Rules", "Gate"]
    assert "file=train.py,line=11," in slower.output
    assert comment(runner).startswith("<!-- traceq -->\n## ")
    assert "takes more than 100.0 % longer" in comment(runner).splitlines()[-1]
    assert (runner.root / "slower-GITHUB_STEP_SUMMARY").read_text(encoding="utf-8") == comment(runner)
    report = ElementTree.parse(runner.state / "artifacts" / "pull_request" / "traceq-junit" / "traceq.xml").getroot()
    assert report.get("failures") == "1"

    same = runner.github(runner.check_out("same", TRAINER), "pull_request")
    assert (same.failed, same.values["steps.diff.outputs.code"]) == ([], "0")
    assert "takes at most 100.0 % longer" in comment(runner).splitlines()[-1]
    calls = (runner.state / "gh").read_text().splitlines()
    assert [call.split()[:2] for call in calls if call.split()[1] in ("comment", "--method")] == [
        ["pr", "comment"],
        ["api", "--method"],  # the comment is edited
    ]


@pytest.mark.slow
def test_the_snippet_for_gitlab_comments_on_a_merge_request_and_gates_it(runner: Runner) -> None:
    assert runner.gitlab(runner.check_out("main", TRAINER), "")[0] == 0
    folder = runner.check_out("slower", SLOWER)
    code, output = runner.gitlab(folder, "7")
    assert (code, "takes more than 100.0 % longer" in output) == (3, True)
    assert comment(runner).startswith("## ")
    assert "projects/1/merge_requests/7/notes" in (runner.state / "curl").read_text().splitlines()[-1]
    assert ElementTree.parse(folder / "traceq.xml").getroot().get("failures") == "1"
    assert runner.gitlab(runner.check_out("same", TRAINER), "8")[0] == 0


@pytest.mark.slow
def test_the_ten_commands_of_the_page_end_in_a_pull_request(runner: Runner) -> None:
    folder = runner.check_out("repository", TRAINER)
    (folder / "traceq.toml").unlink()
    (runner.root / "Downloads").mkdir()
    shutil.copy(DOCS / "ci" / "github.yml", runner.root / "Downloads")
    author = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = {"HOME": str(runner.root), "GH_TOKEN": "secret", **author}
    before = (
        "git init --quiet --initial-branch main && git init --quiet --bare ../origin",
        "git remote add origin ../origin && git add . && git commit --quiet --message Begin && git push origin main",
    )
    block = re.findall(r"```console\n(.*?)```", (DOCS / "regressions.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    after = "git -C ../origin ls-tree -r --name-only change"
    lines = [line.removeprefix("$ ").replace("1 2 3 4", "1") for line in block.splitlines()]  # to be done soon
    code, output = runner.shell("\n".join((*before, *lines, after)), folder, settings)
    assert code == 0, output
    assert output.endswith("\n.github/workflows/traceq.yml\ntraceq.toml\ntrain.py\n"), output
    assert "ok     syncs per step <= 1\n" in output
    assert "traceq: --fail-on-delta: " in output
    assert (runner.state / "gh").read_text() == "pr create --fill\n"
