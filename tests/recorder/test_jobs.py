"""`traceq record -- COMMAND` records a script that knows nothing of it, under any launcher."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from launching import torchrun
from paths import ROOT
from recording import MAIN
from terminal import Outcome
from terminal import traceq as run_here

pytest.importorskip("torch", reason="recording needs torch")

import traceq
from traceq.commands._record_job import _largest_phase, _reports
from traceq.model import WallTime
from traceq.recorder.job_arms_launch import check_files_of_arms
from traceq.recorder.job_launch import output_folders
from traceq.runs.run_folder import RunFolder

pytestmark = pytest.mark.torch

SCRIPT = """
import gc
import os
import sys
from dataclasses import dataclass
import torch
import torch.distributed as dist

@dataclass(frozen=True)
class Config:
    repeat: int = 1

def main(num_steps):
    config = Config()
    model = torch.nn.Linear(64, 64)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in torch.utils.data.DataLoader(torch.randn(num_steps, 64), batch_size=1):
        for _ in range(config.repeat):
            torch.sin(batch)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"trained {num_steps} steps\\n", end="", flush=True)  # in one write, as ranks share the pipe

main(int(sys.argv[1]))
gc.collect()  # the model and its reference to the group, whose threads may abort the process if they outlive it
if dist.is_initialized():
    dist.destroy_process_group()
"""
QUICK = ("--steps", "16", "--trace-steps", "1")


def record(folder: Path, *words: str, path: str = "", name: str = "record") -> subprocess.CompletedProcess[str]:
    """Run words that follow `traceq record --out run`, in a folder with the script train.py."""
    (folder / "train.py").write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)])), "OMP_NUM_THREADS": "1"}
    command = [*MAIN[:-3], name, "--out", "run", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """`record` in this process, for options that it refuses: torch is imported already."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return partial(run_here, "record", "--device", "cpu", "--out", "run")


@pytest.mark.slow
def test_two_values_of_a_local_variable_are_compared_and_the_job_stops(tmp_path: Path) -> None:
    done = record(tmp_path, *QUICK, "--toggle", "config.repeat=1,3000", "--", sys.executable, "train.py", "100000")
    assert (done.returncode, done.stdout) == (0, "")
    lines = done.stderr.splitlines()
    assert re.match("traceq: recording .* run; it stops ", lines[0])
    environment = RunFolder(tmp_path / "run").read_manifest().environment
    job = [environment[key] for key in ("step_pattern", "models", "optimizers")]
    assert job == ["batch, forward, backward, optimizer (6 of 6 alike)", "Linear", "AdamW"]
    assert re.findall(r"step: (.*); models: (.*); optimizers: (.*); 1 rank$", lines[1]) == [tuple(job)]
    assert any(line.startswith("repeat=3000 ") and " per step " in line for line in lines)
    assert lines[-2:] == [f"traceq diff {tmp_path}/run", f"traceq show {tmp_path}/run/repeat=3000"]
    (diff,) = traceq.diff(tmp_path / "run").diffs
    causes = [cause for cause in diff.causes if "aten::sin" in cause.name]
    assert causes
    assert {cause.line for cause in causes} == {"train.py:22 main"}


@pytest.mark.slow
def test_python_that_issues_no_op_is_named_by_its_line(tmp_path: Path) -> None:
    check = "def check(num):\n    total = 0\n    for number in range(num):\n        total += number\n\ndef main("
    program = SCRIPT.replace("repeat: int = 1", "checks: int = 0").replace("def main(", check)
    program = program.replace("for _ in range(config.repeat):\n            torch.sin(batch)", "check(config.checks)")
    (tmp_path / "python.py").write_text(program)
    words = ["--toggle", "config.checks=0,100000", "--", sys.executable, "python.py", "100000"]
    done = record(tmp_path, *QUICK, *words)
    assert done.returncode == 0, done.stderr
    (diff,) = traceq.diff(tmp_path / "run").diffs
    python = [cause for cause in diff.causes if cause.is_python and cause.line.endswith(" check")]
    assert {cause.line for cause in python} <= {"python.py:15 check", "python.py:16 check"}
    assert max(cause.delta_ns for cause in python) > 1_000_000
    assert any(" check in other" in str(each) for each in diff.reasons)


@pytest.mark.slow
def test_ranks_of_torchrun_write_one_run_and_train_on(tmp_path: Path) -> None:
    job = torchrun(2, "train.py", "400")
    done = record(tmp_path, *QUICK, "--toggle", "config.repeat=1,2", "--then", "continue", "--", *job)
    assert (done.returncode, done.stdout) == (0, "trained 400 steps\n" * 2), done.stderr
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.num_ranks) == ("complete", 2)
    assert manifest.environment["wrapper"] == "DistributedDataParallel"
    for rank in (0, 1):
        assert RunFolder(tmp_path / "run").trace("repeat=2", rank).is_file()


UNUSED = SCRIPT.replace(
    "model = torch.nn.Linear(64, 64)",
    "model = torch.nn.Linear(64, 64); model.ignored = torch.nn.Linear(2, 2)",
)


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_parameters_without_a_gradient_are_named_before_ddp_refuses_them(num_ranks: int, tmp_path: Path) -> None:
    (tmp_path / "unused.py").write_text(UNUSED)
    job = [sys.executable, "unused.py", "100"] if num_ranks == 1 else torchrun(2, "unused.py", "100")
    done = record(tmp_path, "--dry-run", "--", *job)
    rank = "" if num_ranks == 1 else "rank 0: "  # DDP ends the job in its second step
    assert (done.returncode != 0) == (num_ranks == 2)
    lines = [line for line in done.stderr.splitlines() if "without a gradient" in line and f"traceq: {rank}" in line]
    assert [line.partition(": ignored ")[2] for line in lines] == ["(weight, bias)"], done.stderr


@pytest.mark.slow
def test_a_job_as_it_is_ends_with_its_phases(tmp_path: Path) -> None:
    done = record(tmp_path, *QUICK, "--", sys.executable, "train.py", "100000")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    rows = [line.split()[0] for line in done.stderr.splitlines() if line]
    assert rows[rows.index("phase") :][:7] == [
        "phase",
        "dataload_wait",
        "forward",
        "backward",
        "optimizer",
        "zero_grad",
        "other",
    ]
    assert done.stderr.splitlines()[-1] == f"traceq show {tmp_path}/run/run"


AGENT = """
import torch

class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(64, 8), torch.nn.Linear(64, 1)
    def evaluate(self, batch):
        return self.actor(batch), self.critic(batch)

agent = Agent()
weights = torch.nn.Parameter(torch.ones(64))
optimizer = torch.optim.AdamW([weights, *agent.parameters()])
for number in range(100_000):
    if number % 8 == 0 and CALLS_MODULES:
        with torch.no_grad():
            for _ in range(16):
                agent.evaluate(torch.randn(1, 64))
    actions, values = agent.evaluate(torch.randn(8, 64)) if CALLS_MODULES else (torch.randn(8, 64) * weights, weights)
    (actions.square().mean() + values.mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls_modules", "step"), [(True, "forward, forward, backward, optimizer"), (False, "backward, optimizer")]
)
def test_a_loop_that_never_calls_a_model_s_forward_is_recorded(calls_modules: bool, step: str, tmp_path: Path) -> None:
    """It calls methods, of which some call an actor and a critic, as agents do: and without gradients to act."""
    (tmp_path / "agent.py").write_text(AGENT.replace("CALLS_MODULES", str(calls_modules)))
    done = record(tmp_path, *QUICK, "--", sys.executable, "agent.py")
    assert done.returncode == 0, done.stderr
    assert f"traceq: step: {step} (" in done.stderr, done.stderr
    assert ("\nforward " in done.stderr) == calls_modules
    assert "the recording is complete" in done.stderr


OFF_POLICY = """
import random
import torch

actor, critic = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
of_actor, of_critic = torch.optim.AdamW(actor.parameters()), torch.optim.AdamW(critic.parameters())

def train(module, optimizer, num_forwards=1):
    loss = sum(module(torch.randn(8, 64)).square().mean() for _ in range(num_forwards))
    loss.backward()
    optimizer.step()

def delayed(number):
    train(critic, of_critic)
    if number % 2 == 0:
        train(actor, of_actor)
        train(actor, of_actor)

def episode(number):
    train(actor, of_actor, random.randint(1, 40))

for number in range(100_000):
    LOOP(number)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "step"),
    [
        (
            "delayed",
            2 * "forward, backward, optimizer, " + "forward, backward, optimizer 1, forward, backward, optimizer 1",
        ),
        ("episode", "forward*, backward, optimizer"),
    ],
)
def test_steps_that_alternate_or_vary_in_length_all_count(loop: str, step: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(OFF_POLICY.replace("LOOP", loop))
    done = record(tmp_path, *QUICK, "--", sys.executable, "agent.py")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"traceq: step: {re.escape(step)} \((\d+) of \1 alike\)", done.stderr)
    assert "do not count" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [SCRIPT, AGENT.replace("CALLS_MODULES", "True"), OFF_POLICY.replace("LOOP", "delayed")]
)
def test_a_dry_run_says_the_step_that_is_recorded(program: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(program)
    job = ["--", sys.executable, "job.py", "100000"]
    done = [record(tmp_path, *options, *job) for options in (("--dry-run",), QUICK)]
    assert [each.returncode for each in done] == [0, 0]
    dry, recorded = ([line for line in each.stderr.splitlines() if "traceq: step: " in line] for each in done)
    assert dry == recorded != []


APART = """
import multiprocessing
import torch

def train(num_steps):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(num_steps):
        model(torch.randn(1, 64)).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=train, args=(2_000,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""


@pytest.mark.slow
def test_a_process_that_trains_beside_the_recorded_one_says_that_it_trains_on(tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text(APART)
    done = record(tmp_path, *QUICK, "--", sys.executable, "apart.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this one trains on") == 1
    assert "the recording is complete" in done.stderr


STARTED = """
import multiprocessing
import sys
import torch

def train(rank, num_steps, fails_at):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(num_steps):
        if step == fails_at:
            raise ValueError("a bad batch")
        model(torch.randn(1, 64)).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    num_steps, fails_at = int(sys.argv[2]), int(sys.argv[3])
    if sys.argv[1] == "torch":
        torch.multiprocessing.spawn(train, (num_steps, fails_at))
    else:
        process = multiprocessing.get_context(sys.argv[1]).Process(target=train, args=(0, num_steps, fails_at))
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["torch", "fork", "spawn"])
def test_the_end_of_a_process_that_multiprocessing_started_is_told(start: str, tmp_path: Path) -> None:
    """One that torch spawned and that raised `ended its loop`, and of one that was forked nothing was known."""
    (tmp_path / "started.py").write_text(STARTED)
    command = [sys.executable, "started.py", start]
    raised = record(tmp_path, "--", *command, "400", "40")
    assert raised.returncode == 1
    assert raised.stderr.splitlines()[-1].endswith("the recording failed: ValueError: a bad batch")
    shutil.rmtree(tmp_path / "run")
    ended = record(tmp_path, "--", *command, "40", "-1")
    assert "record fewer steps (--steps " in ended.stderr.splitlines()[-1]


@pytest.mark.slow
def test_what_gains_is_tried_and_confirmed_by_a_fresh_start(tmp_path: Path) -> None:
    """A loop over many small parameters: one fused op saves most of the optimizer's time."""
    many = "model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(40)])"
    program = SCRIPT.replace("model = torch.nn.Linear(64, 64)", many).replace("num_steps, 64)", "num_steps, 8)")
    (tmp_path / "many.py").write_text(program.replace("model.parameters())", "model.parameters(), foreach=False)"))
    done = record(tmp_path, "--minutes", "1", "--", sys.executable, "many.py", "100000", name="improve")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "run" / "improve.json").read_bytes())
    trials = {f"{trial['toggle']}={trial['value']}": trial for trial in document["trials"]}
    assert trials["@optimizer=fused"]["predicted_ns"][1] < document["step_ns"]
    assert "@checkpointing=on" not in trials
    assert {arm.name for arm in RunFolder(tmp_path / "run-trial").read_manifest().arms} >= {"as_is", "optimizer=fused"}
    if document["together"] is None:  # on a busy machine
        return
    manifest = RunFolder(tmp_path / "run-together").read_manifest()
    assert len(manifest.arms) == 2
    gaining = [name for name, trial in trials.items() if trial["verdict"] == "gains"]
    assert set(manifest.arms[1].varied) == {name.partition("=")[0] for name in gaining}
    (answer,) = (line for line in done.stderr.splitlines() if line.startswith("A fresh start "))
    assert ("confirms" in answer) == (document["together"]["verdict"] == "gains")


SEEDED = """
import torch

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        return torch.full((64,), index / 400)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(12):
    for batch in torch.utils.data.DataLoader(Samples(), batch_size=8, shuffle=True):
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
"""


@pytest.mark.slow
def test_losses_with_toggles_in_turns_are_those_of_the_bare_job_to_the_bit(tmp_path: Path) -> None:
    """Shuffled batches and dropout draw from one generator, in an order that a batch made ahead must not change."""
    (tmp_path / "seeded.py").write_text(SEEDED)
    bare = subprocess.run([sys.executable, "seeded.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    words = ["--toggle", "@prefetch=off,on", "--toggle", "@gc=on,off", "--then", "continue"]
    done = record(tmp_path, *QUICK, *words, "--", sys.executable, "seeded.py")
    assert done.returncode == 0, done.stderr
    assert {arm.status for arm in RunFolder(tmp_path / "run").read_manifest().arms} == {""}
    assert done.stdout.splitlines() == bare.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="only one number of threads to try")
def test_what_is_many_times_slower_is_told_after_its_first_steps(tmp_path: Path) -> None:
    wait = """
import time
wait_s, set_threads = 0.0, torch.set_num_threads
def set_slow_threads(number):
    global wait_s
    wait_s = 0.2 if number == 2 else 0.0
    set_threads(number)
torch.set_num_threads = set_slow_threads

def main("""
    program = SCRIPT.replace("\ndef main(", wait).replace("torch.sin(batch)", "time.sleep(wait_s)")
    (tmp_path / "slow.py").write_text(program)
    words = ["--minutes", "0.5", "--", sys.executable, "slow.py", "100000"]
    done = record(tmp_path, *words, name="improve")
    assert done.returncode == 0, done.stderr
    (note,) = {line for line in done.stderr.splitlines() if "much slower" in line and line.startswith("traceq: ")}
    assert note.startswith("traceq: note: arm threads=2: ")
    assert re.search(r" first 4 steps .* [\d.]+ times a step of as_is", note)
    compared = {diff.b_name for diff in traceq.diff(tmp_path / "run-trial").diffs}
    assert compared >= {"optimizer=foreach", "optimizer=fused", "gc=off"}
    assert "threads=2" not in compared
    assert run_here("show", str(tmp_path / "run-trial" / "threads=2")).code == 1


@pytest.mark.slow
def test_ranks_of_torchrun_stop_without_an_error(tmp_path: Path) -> None:
    done = record(tmp_path, *QUICK, "--", *torchrun(2, "train.py", "100000"))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "ChildFailedError" not in done.stderr


@pytest.mark.slow
def test_a_job_that_ends_too_early_says_how_many_steps_are_missing(tmp_path: Path) -> None:
    done = record(tmp_path, "--", sys.executable, "train.py", "40")
    assert (done.returncode, done.stdout) == (1, "trained 40 steps\n")
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert manifest.status == "failed"
    assert manifest.fault.startswith("the loop ended after ")
    assert manifest.fault in done.stderr
    fewer = re.search(r"record fewer steps \(--steps (\d+)\)", done.stderr)
    assert fewer, done.stderr
    shutil.rmtree(tmp_path / "run")
    assert record(tmp_path, "--steps", fewer[1], "--", sys.executable, "train.py", "40").returncode == 0


@pytest.mark.slow
def test_a_job_that_ends_before_its_recording_says_what_reads_the_measured_steps(tmp_path: Path) -> None:
    done = record(tmp_path, "--toggle", "@gc=off,on", "--", sys.executable, "train.py", "500")
    assert done.returncode == 1
    *_, measured, reason = done.stderr.splitlines()
    assert measured.endswith(f": traceq diff {tmp_path / 'run'}")
    assert "the loop ended after" in reason
    assert run_here("diff", str(tmp_path / "run")).code == 0


@pytest.mark.slow
def test_a_package_that_the_recorder_lacks_is_the_reason(tmp_path: Path) -> None:
    """It was said that the job imported no torch."""
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "statistics.py").write_text("raise ModuleNotFoundError(\"No module named 'statistics'\")")
    done = record(tmp_path, "--", sys.executable, "-c", "import torch", path=str(tmp_path / "lacking"))
    assert done.returncode == 1
    reason = done.stderr.splitlines()[-1]
    assert reason.startswith(f"traceq: {tmp_path / 'run'}: nothing was recorded: ")
    assert "ModuleNotFoundError: No module named 'statistics'; " in reason
    assert "pip install 'traceq-torch[record]'" in reason


@pytest.mark.slow
@pytest.mark.parametrize(("options", "code"), [((), 143), (("--dry-run",), 143), (("--then", "continue"), 1)])
def test_a_job_whose_python_cannot_load_the_recorder_is_ended(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    """It trained to its end for nothing; a job that is to train on does."""
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "statistics.py").write_text("raise ModuleNotFoundError(\"No module named 'statistics'\")")
    job = "import time, torch; time.sleep(8); open('trained', 'x')"
    done = record(tmp_path, *options, "--", sys.executable, "-c", job, path=str(tmp_path / "lacking"))
    assert done.returncode == code
    assert (tmp_path / "trained").exists() == (code == 1)
    assert ("the job is ended" in done.stderr) == (code != 1)


@pytest.mark.slow
def test_an_arm_whose_python_cannot_load_the_recorder_ends_its_job(tmp_path: Path) -> None:
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "statistics.py").write_text("raise ModuleNotFoundError(\"No module named 'statistics'\")")
    job = "import sys, time; sys.path.insert(0, 'lacking'); import torch; time.sleep(8); open('trained', 'x')"
    arms = ("--arm", "a=1", "--arm", "b=2")
    done = record(tmp_path, *arms, "--", sys.executable, "-c", job, "{arm}")
    assert (done.returncode, (tmp_path / "trained").exists()) == (1, False)
    assert "of the job is ended" in done.stderr
    assert re.search("arm a: .*: ModuleNotFoundError: No module named 'statistics'", done.stderr.splitlines()[-1])


@pytest.mark.slow
def test_an_arm_is_recorded_whose_helper_cannot_load_the_recorder(tmp_path: Path) -> None:
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "statistics.py").write_text("raise ModuleNotFoundError(\"No module named 'statistics'\")")
    helper = "import sys; sys.path.insert(0, 'lacking'); import torch"
    (tmp_path / "with_helper.py").write_text(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {helper!r}])\n" + SCRIPT
    )
    arms = ("--arm", "a=100000", "--arm", "b=200000", "--replicates", "1")
    done = record(tmp_path, *QUICK, *arms, "--", sys.executable, "with_helper.py", "{arm}")
    assert done.returncode == 0, done.stderr
    assert "is not recorded: ModuleNotFoundError" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("starts", ["bash -c", "python launcher"])
def test_a_command_that_starts_another_process_is_not_ended(tmp_path: Path, starts: str) -> None:
    """What it started may have another Python, and would train on alone."""
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "statistics.py").write_text("raise ModuleNotFoundError(\"No module named 'statistics'\")")
    trains = "import time, torch; time.sleep(6); open('trained', 'x')"
    launcher = f"import subprocess, sys, torch; subprocess.run([sys.executable, '-c', {trains!r}])"
    words = (
        ["bash", "-c", f'{sys.executable} -c "{trains}"; true']
        if starts == "bash -c"
        else [sys.executable, "-c", launcher]
    )
    done = record(tmp_path, "--", *words, path=str(tmp_path / "lacking"))
    assert (done.returncode, (tmp_path / "trained").exists()) == (1, True)
    assert "the job is ended" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        ([sys.executable, "-E", "-c", ""], 1, "no process of the job"),
        ([sys.executable, "-c", "raise SystemExit(7)"], 7, "exit code 7 before a training step"),
        ([sys.executable, "no_such.py"], 2, "exit code 2 before a training step"),
        ([sys.executable, "-c", "import torch, os; os.kill(os.getpid(), 9)"], 137, "exit code 137 before its steps"),
        ([sys.executable, "train.py", "3"], 1, "before its steps were known"),
        ([sys.executable, "train.py", "many"], 1, "were known: ValueError: invalid literal"),
        ([sys.executable, "-c", "import torch; torch.func.grad(torch.sum)(torch.ones(2))"], 1, "marks them"),
        (torchrun(2, "no_such.py"), 1, "exit code 1 before its steps"),
        (
            [
                sys.executable,
                "-c",
                "import torch, subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], check=True)",
                "train.py",
                "many",
            ],
            1,
            "were known: ValueError: invalid literal",
        ),
    ],
)
def test_a_job_that_cannot_be_recorded_keeps_its_exit_code(
    command: list[str], code: int, reason: str, tmp_path: Path
) -> None:
    done = record(tmp_path, "--", *command)
    assert done.returncode == code
    assert reason in done.stderr.splitlines()[-1]
    assert "===" not in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_job_without_a_recording_leaves_no_folder_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*MAIN[:-2], "--dry-run", "--", sys.executable, "-c", "import torch"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_job_that_aborts_after_its_recording_keeps_its_exit_code_and_the_recording(tmp_path: Path) -> None:
    """As gloo's threads may at interpreter exit: `terminate called without an active exception`."""
    (tmp_path / "aborts.py").write_text(f"import atexit, os\natexit.register(os.abort)\n{SCRIPT}")
    done = record(tmp_path, *QUICK, "--then", "continue", "--", sys.executable, "aborts.py", "1000")
    assert done.returncode == 134
    assert " exit code 134; its recording " in done.stderr
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.fault) == ("complete", "")


@pytest.mark.slow
def test_the_job_s_own_exception_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(SCRIPT.replace("optimizer.step()", "optimizer.step(); count()") + "")
    count = "import itertools\nnumbers = itertools.count()\ndef count():\n    assert next(numbers) < 30, 'bad batch'\n"
    (tmp_path / "raises.py").write_text(count + (tmp_path / "raises.py").read_text())
    done = record(tmp_path, "--", sys.executable, "raises.py", "400")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("the recording failed: AssertionError: bad batch")


WITH_WORKER = """
import time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return torch.randn(64)

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
for batch in torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=WORKERS):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


AVERAGED = """
import torch

def average(shadow, weight):
    return [decay * each + (1 - decay) * weight.double() for decay, each in shadow]

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
shadow = [(0.9, torch.zeros(1000, 1000))] * 4
while True:
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    average(shadow, torch.zeros(1000, 1000))
"""


@pytest.mark.slow
def test_the_line_of_what_is_in_no_phase_is_named_at_the_end(tmp_path: Path) -> None:
    """From Python 3.12 on a comprehension has no frame of its own."""
    (tmp_path / "averaged.py").write_text(AVERAGED)
    done = record(tmp_path, "--steps", "32", "--", sys.executable, "averaged.py")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "outside of" in line)
    assert re.search(r"[\d.]+ % .* [\d.]+ % of that at averaged\.py:5\b", line), line
    first, *_ = traceq.analyze(tmp_path / "run").top_findings
    assert first.code == "outside_phases"
    assert re.fullmatch(r"averaged\.py:5( average)?", first.subject.line)


@pytest.mark.slow
def test_the_workers_of_a_job_s_loader_are_seen(tmp_path: Path) -> None:
    (tmp_path / "fed.py").write_text(WITH_WORKER.replace("WORKERS", "1"))
    done = record(tmp_path, "--steps", "32", "--trace-steps", "24", "--", sys.executable, "fed.py")
    assert done.returncode == 0, done.stderr
    run = traceq.read(tmp_path / "run")
    (profile,) = traceq.analyze(run, "step_profile").tables[0].to_dicts()
    assert (profile["num_workers"], profile["prefetch_factor"]) == (1, 2)
    if sys.platform == "linux":
        training, worker, *_ = next(
            table for table in traceq.analyze(run, "loader").tables if table.key == "core_use"
        ).to_dicts()
        assert (worker["process"], worker["num"]) == ("loader worker", 1)
        assert worker["cpu_ns"] >= 30_000_000
        assert training["cpu_ns"] < worker["cpu_ns"]
        assert "most at fed.py:" in traceq.analyze(run, "loader").views[0].note


@pytest.mark.slow
def test_workers_that_each_epoch_starts_anew_are_told_with_their_time(tmp_path: Path) -> None:
    loop = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters())
loader = torch.utils.data.DataLoader(torch.randn(12, 64), num_workers=2, persistent_workers={persists})
for _ in range(60):
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    notes = {}
    for persists in (False, True):
        folder = tmp_path / str(persists)
        folder.mkdir()
        (folder / "loop.py").write_text(loop.format(persists=persists))
        result = record(folder, *QUICK, "--", sys.executable, "loop.py")
        assert result.returncode == 0, result.stderr
        notes[persists] = "starts its 2 workers anew" in result.stderr
    assert notes == {False: True, True: False}, result.stderr


@pytest.mark.slow
def test_arms_with_processes_of_their_own_get_their_words_and_variables(tmp_path: Path) -> None:
    """What a job reads only once, at the start."""
    program = "import os, sys; REPEAT = int(os.environ.get('REPEAT', '1')); open(sys.argv[2] + '/x', 'x')\n"
    (tmp_path / "once.py").write_text(program + SCRIPT.replace("config.repeat", "REPEAT"))
    arms = ["--arm", "one=3000", "--arm", "many=5000 env:REPEAT=40"]
    words = [*QUICK, *arms, "--replicates", "1", "--", sys.executable, "once.py", "{arm}", "{out}"]
    done = record(tmp_path, *words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert (manifest.status, manifest.num_ranks, manifest.apart) == ("complete", 1, True)
    assert [arm.meaning for arm in manifest.arms] == ["3000", "5000 env:REPEAT=40"]
    first_words = [
        line.partition(":")[2].split()[0] for line in done.stderr.splitlines() if line.startswith("traceq: ")
    ]
    assert first_words[:4] == ["recording", "arm", "step", "arm"]  # what is found in the job is said once
    assert "the recording is complete" not in done.stderr
    (diff,) = traceq.diff(tmp_path / "run").diffs
    assert (diff.a_name, diff.b_name) == ("one", "many")
    assert any("aten::sin" in cause.name for cause in diff.causes)


@pytest.mark.slow
def test_batch_sizes_are_compared_by_the_time_per_sample(tmp_path: Path) -> None:
    (tmp_path / "sized.py").write_text(SCRIPT.replace("batch_size=1", "batch_size=int(sys.argv[2])"))
    arms = ["--arm", "one=1", "--arm", "eight=8"]
    untraced = [*QUICK, "--trace-steps", "0", "--replicates", "2"]
    done = record(tmp_path, *untraced, *arms, "--", sys.executable, "sized.py", "20000", "{arm}")
    assert done.returncode == 0, done.stderr
    manifest = RunFolder(tmp_path / "run").read_manifest()
    assert {arm.name: arm.samples_per_step for arm in manifest.arms} == {"one": 1, "eight": 8}
    assert all("sd" in str(arm.facts["loss"]) for arm in manifest.arms), "of the timed steps"
    (diff,) = traceq.diff(tmp_path / "run").diffs
    assert diff.answer.measures["per"] == "per sample"


@pytest.mark.slow
def test_the_largest_batch_that_fits_is_searched(tmp_path: Path) -> None:
    """An arm that runs out of memory, even before its steps are known, is no fault of the recording."""
    script = SCRIPT.replace("batch_size=1", "batch_size=int(sys.argv[2])")
    full = "optimizer.step()\n        if int(sys.argv[2]) > 5: raise MemoryError"
    (tmp_path / "sized.py").write_text(script.replace("optimizer.step()", full))
    done = record(tmp_path, "--steps", "16", "--batch-arg", "{}", "--", sys.executable, "sized.py", "30000", "{arm}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    arms = RunFolder(tmp_path / "run").read_manifest().arms
    assert {arm.name: arm.status for arm in arms} == {
        "batch=8": "out of memory",
        "batch=4": "",
        "batch=6": "out of memory",
        "batch=5": "",
    }
    matrix, summary = traceq.analyze(traceq.read(tmp_path / "run"), "batches").views
    assert [row[0] for row in matrix.rows] == [4, 5, 6, 8]
    (job,) = summary.to_dicts()
    assert (job["backend"], job["largest"], job["refused"]) == ("this job", 5, 6)
    assert job["allocated_bytes"] > 0
    assert "The largest batch that fits" in done.stderr


@pytest.mark.slow
def test_the_loader_of_a_job_alone_ends_with_the_comparison_with_its_steps(tmp_path: Path) -> None:
    done = record(tmp_path, *QUICK, "--recipe", "dataloader", "--", sys.executable, "train.py", "100000")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Data loader alone" in done.stderr
    run = tmp_path / "run"
    steps, diff = done.stderr.splitlines()[-2:]
    assert steps.startswith(f"traceq record --out {run}-steps -- ")
    assert steps.endswith(f" {sys.executable} train.py 100000")
    assert diff == f"traceq diff {run} {run}-steps"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--arm", "a=1", "--arm", "b=2", "--", "true"], "expected the word {arm}"),
        (["--arm", "a=1", "--", "true", "{arm}"], "expected at least two arms"),
        (
            ["--arm", "a=a.py", "--arm", "b=b.py", "--", "true", "{arm}"],
            "file (did you mean a.py?)",
        ),
        (["--arm", "a=a.py 1", "--arm", "b=x/a.py 2", "--", "true", "{arm}"], "--arm b=x/a.py: no such file"),
        (["--arm", "a=1", "--arm", "b=b.py", "--", "python", "-u", "{arm}"], "--arm b=b.py: no such file"),
        (["--arm", "a=--cfg c.yml", "--arm", "b=--cfg d.yml", "--", "true", "{arm}"], "b=d.yml: no such file"),
        (["--arm", "a=1", "--arm", "b=2", "--dry-run", "--", "true", "{arm}"], "not together with --toggle, --dry-run"),
        (["--batch-arg", "--size", "--", "true", "{arm}"], "expected {} where the batch stands"),
        (["--batch-arg", "--size {}", "--", "true"], "expected the word {arm}"),
        (["--batch-arg", "{}", "--dry-run", "--", "true", "{arm}"], "not together with --toggle, --dry-run"),
        (["--batch-arg", "{}", "--arm", "a=1", "--", "true", "{arm}"], "not together with --arm"),
    ],
)
def test_arms_that_cannot_run_are_refused(
    words: list[str], message: str, refuse: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "c.yml").touch()
    done = refuse(*words)
    assert done.code == 2
    assert message in done.err.splitlines()[-1]


def test_words_of_arms_that_may_be_no_files_are_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "train.py"):
        (tmp_path / name).touch()
    to_new_file = {"a": ["--out", "a.json", "x.yml"], "b": ["--out", "b.json", "default"]}
    check_files_of_arms(["python", "train.py", "{arm}"], to_new_file)
    check_files_of_arms(["python", "-m", "run", "{arm}"], {"a": ["b.py"], "b": ["c.py"]})
    check_files_of_arms(["python", "{arm}"], {"a": ["train.py", "--size=2"], "b": ["./train.py", "env:A=b.py"]})


@pytest.mark.slow
def test_a_job_that_fails_in_an_arm_ends_the_recording(tmp_path: Path) -> None:
    done = record(tmp_path, "--arm", "a=1", "--arm", "b=2", "--", "false", "{arm}")
    assert done.returncode == 1
    assert re.search(r"arm a: .* exit code 1\b", done.stderr.splitlines()[-1])


@pytest.mark.slow
def test_an_arm_that_runs_out_of_memory_is_marked_and_the_others_run(tmp_path: Path) -> None:
    fails = "import sys\ndef step():\n    if sys.argv[2] == 'big': raise MemoryError('out of memory')\n"
    (tmp_path / "fails.py").write_text(fails + SCRIPT.replace("optimizer.step()", "optimizer.step(); late()"))
    late = "numbers = iter(range(10**9))\ndef late():\n    if next(numbers) > 30: step()\n"
    (tmp_path / "fails.py").write_text(late + (tmp_path / "fails.py").read_text())
    arms = ["--arm", "small=small", "--arm", "big=big", "--replicates", "2"]
    done = record(tmp_path, *QUICK, *arms, "--", sys.executable, "fails.py", "5000", "{arm}")
    assert done.returncode == 0, done.stderr
    statuses = {arm.name: arm.status for arm in RunFolder(tmp_path / "run").read_manifest().arms}
    assert statuses == {"small": "", "big": "out of memory"}


def test_a_sitecustomize_of_the_user_is_loaded_too(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins\nbuiltins.is_customized = True\n")
    program = "import builtins; print(builtins.is_customized)"
    done = record(tmp_path, "--", sys.executable, "-c", program, path=str(tmp_path / "site"))
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "command of a job after --"),
        (["--toggle", "a.b=1,2"], "command of a job after --"),
        (["--ranks", "2", "--", "true"], "--ranks: only for --recipe"),
        (["--recipe", "outlier_ab", "--", "true"], "job has only dataloader"),
        (["--recipe", "dataloader", "--dry-run", "--", "true"], "loader alone has no arms"),
        (["--toggle", "a.b=1", "--", "true"], "a.b=1: expected at least two"),
        (["--toggle", "lr=1,2", "--", "true"], "path such as main.lr"),
        (["--toggle", "@optimzer=loop,fused", "--", "true"], "(did you mean optimizer?)"),
        (["--toggle", "@optimizer=loop,fusde", "--", "true"], "fusde: expected one of default, "),
        (["--toggle", "@gc=off,no", "--", "true"], "@gc: no: expected one of "),
        (["--steps", "-1", "--", "true"], "--steps -1: expected 0 to 100000"),
        (["--until", "decided", "--", "true"], "there is only one arm"),
        (["--until", "decided", "--steps", "9", "--toggle", "@gc=on,off", "--", "true"], "--steps 9: --until decided"),
        (["--", "no-such-program"], "program: no such command"),
        (["outlier_ab"], "recorded by --recipe outlier_ab"),
        (["--", "train.py"], "its interpreter: -- python train.py ..."),
        (["--toggle", "--", "true"], "--toggle --: expected NAME=A,B"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_starts(
    words: list[str], message: str, refuse: Callable[..., Outcome], tmp_path: Path
) -> None:
    done = refuse(*words)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "run").exists()


def test_an_output_folder_that_is_not_empty_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("out", "data", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "ckpt.pt").touch()
    (tmp_path / "data" / "train.bin").touch()
    command = ["python", "train.py", "--out_dir=out", "--data", "data", "--save", "new", "--log-folder", "out"]
    assert output_folders(command) == ["out", "out"]


ACTING_AGENT = """
import time
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())

def act():
    for _ in range(10):
        with torch.no_grad():
            model(torch.randn(1, 8))
        time.sleep(0.3)

for _ in range(100):
    act()
    for _ in range(60):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_what_an_agent_does_between_updates_leads_with_its_line(tmp_path: Path) -> None:
    """The steps that are timed fit into one update: the recording goes on to the end of a cycle."""
    (tmp_path / "agent.py").write_text(ACTING_AGENT)
    done = record(tmp_path, *QUICK, "--", sys.executable, "agent.py")
    assert done.returncode == 0, done.stderr
    account = WallTime.of(RunFolder(tmp_path / "run").read_manifest().environment)
    assert account is not None
    largest = account.training[0]
    assert (largest.name, largest.line) == ("rollout", "agent.py:12 act")
    where = _largest_phase(_reports(RunFolder(tmp_path / "run"), "step_profile"), account.rank)
    assert f"traceq: {account.text(*where)}" in done.stderr.splitlines()
