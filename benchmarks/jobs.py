"""Does an A/B on public training scripts, unedited, find a cost that is known, and none where there is none?

    python benchmarks/jobs.py [SCRIPT ...] [--scripts FOLDER] [--out FOLDER] [--runs 20] [--nulls 8] [--minutes M]

In one arm of a `stall` recording the first layer of the largest model waits for a known time (`@stall`); of a `null`
recording both arms are the job as it is. The scripts are those of public repositories: from FOLDER/<repository> if it
has them, else cloned into it. A script that can neither be found nor fetched, or whose packages are missing, is
skipped, and that is said. What such a wait costs each script where nothing is recorded is measured besides, in several
processes, as it differs between these (`stall_alone.py`): their mean is the known time, as a wait costs more than it
lasts.

Each recording is a folder under --out. Complete ones are read and not repeated, so that the benchmark can be stopped,
and goes on where it was; with --minutes it begins no recording after that time. The scripts take turns. One table ends
it: of how many recordings the step was right, which part of a step is in no phase (median, worst), how many intervals
hold the known time, by wall time and by CPU time, how many name the place by file, line and phase among the first five
causes, how many do both, by wall time, and how many of equal arms are material. `make jobs` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import traceq
from traceq.compare.result import Diff
from traceq.runs.run_folder import RunFolder
from traceq.runs.step_log import StepLine, read_lines
from traceq.stats import Comparison
from traceq.units import Unit, format_value

CONSOLE = Console(highlight=False, soft_wrap=True)
TRACEQ = [sys.executable, "-c", "from traceq.cli import main; main()"]
LISTED_CAUSES = 5
STALL_US = 1_000
STEPS, TRACE_STEPS = 64, 5  # of each arm
ALONE = "alone"
"""The kind of recording that is none: `stall_alone.py` measures the wait."""


@dataclass(frozen=True, slots=True)
class Script:
    """A training script; a step calls the first layer of its largest model `calls` times, each waits `STALL_US`.

    `place` is the statement that calls this layer, in `file`, or several of them. `prepare` writes random data that the
    script would download. With `ranks` it is started by torchrun.
    """

    name: str
    repository: str
    folder: str
    words: Sequence[str]
    pattern: str
    file: str
    place: str | tuple[str, ...]
    calls: int = 1
    packages: Sequence[str] = ()
    ranks: int = 0
    prepare: Callable[[Path], None] = lambda _: None

    def command(self, *before: str) -> list[str]:
        """Return the words that start it, with others before the script's own."""
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        return [sys.executable, *(torchrun if self.ranks else []), *before, *self.words]

    @property
    def wait_ns(self) -> int:
        """How long a step waits in a `stall` recording."""
        return 1_000 * STALL_US * self.calls

    @property
    def slug(self) -> str:
        return self.name.replace(",", "").replace(" ", "-")

    def places(self, folder: Path) -> tuple[str, ...]:
        """Return `file:line` of every statement that is `place`."""
        lines = (folder / self.file).read_text(encoding="utf-8").splitlines()
        name = Path(self.file).name
        return tuple(f"{name}:{number}" for number, line in enumerate(lines, 1) if line.strip().startswith(self.place))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one recording shows. `is_inside`, by wall and by CPU time: the interval holds what is true."""

    is_step_right: bool
    uncovered: float
    step_ns: int
    is_inside: bool
    is_inside_by_cpu: bool
    is_named: bool
    is_material: bool
    words: str


def write_tokens(folder: Path) -> None:
    """Write random tokens in the format of nanoGPT's data sets."""
    data = folder / "data" / "random"
    data.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for name, size in (("train", 200_000), ("val", 20_000)):
        rng.integers(0, 65, size).astype(np.uint16).tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def write_digits(folder: Path) -> None:
    """Write random images in the format of MNIST, where Lightning's example and its data module look for them."""
    rng = np.random.default_rng(0)
    for root in (folder / "data", folder.parents[1] / "Datasets"):
        raw = root / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for name, num in (("train", 60_000), ("t10k", 10_000)):
            images = rng.integers(0, 256, num * 28 * 28, dtype=np.uint8).tobytes()
            labels = rng.integers(0, 10, num, dtype=np.uint8).tobytes()
            (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, num, 28, 28) + images)
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, num) + labels)


def write_text(folder: Path) -> None:
    """Write random text and a tokenizer of its words, for run_clm."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [f"w{number}" for number in range(200)]
    rng = np.random.default_rng(0)
    lines = (" ".join(words[number] for number in row) for row in rng.integers(0, len(words), (4_000, 64)).tolist())
    (folder / "random.txt").write_text("\n".join(lines), encoding="utf-8")
    vocabulary = {word: number for number, word in enumerate(["<end>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<end>")
    fast.save_pretrained(folder / "random-tokenizer")


def installed(package: str, file: str) -> str:
    """Return the path of a file of a package; "" without the package."""
    spec = find_spec(package)
    return str(Path(spec.origin).parent / file) if spec and spec.origin else ""


NANO_GPT = (
    "train.py --dataset=random --device=cpu --compile=False --dtype=float32 --eval_interval=200 --eval_iters=2 "
    "--block_size=64 --batch_size=4 --n_layer=4 --n_head=4 --n_embd=64 --max_iters=100000 "
    "--gradient_accumulation_steps=2 --always_save_checkpoint=False"
)
DLRM = (
    "dlrm_s_pytorch.py --data-generation=random --mini-batch-size=64 --num-batches=5000 --arch-sparse-feature-size=16 "
    "--arch-embedding-size=1000-1000-1000 --arch-mlp-bot=13-64-16 --arch-mlp-top=64-32-1 --print-freq=1000"
)
DCGAN = "main.py --dataset fake --batchSize 2 --imageSize 64 --ngf 8 --ndf 8 --niter 50 --workers 1"
AUTOENCODER = "autoencoder.py --trainer.accelerator=cpu --trainer.logger=false"
RUN_CLM = (
    "run_clm.py --model_type gpt2 --config_overrides n_embd=64,n_layer=4,n_head=4,vocab_size=201 --do_train "
    "--tokenizer_name random-tokenizer --train_file random.txt --block_size 64 --per_device_train_batch_size 4 "
    "--max_steps 100000 --output_dir out --use_cpu --report_to none --save_strategy no --logging_steps 100000"
)
CIFAR = "cifar10_deepspeed.py --deepspeed --epochs 10 --dtype fp32"
SCRIPTS = (
    Script(
        "nanoGPT",
        "karpathy/nanoGPT",
        ".",
        NANO_GPT.split(),
        "forward, backward, forward, backward, optimizer",
        "model.py",
        "tok_emb = self.transformer.wte(idx)",
        calls=2,
        prepare=write_tokens,
    ),
    Script(
        "minGPT adder",
        "karpathy/minGPT",
        "projects/adder",
        ["adder.py"],
        "batch, forward, backward, optimizer",
        "../../mingpt/model.py",
        "tok_emb = self.transformer.wte(idx)",
        packages=["regex", "requests"],
    ),
    Script(
        "DLRM",
        "facebookresearch/dlrm",
        ".",
        DLRM.split(),
        "batch, forward, backward, optimizer",
        "dlrm_s_pytorch.py",
        "V = E(",
        packages=["sklearn", "onnx", "tensorboard"],
    ),
    Script(
        "DLRM, 2 ranks",
        "facebookresearch/dlrm",
        ".",
        [*DLRM.split(), "--dist-backend=gloo"],
        "batch, forward, backward, optimizer",
        "dlrm_s_pytorch.py",
        "V = E(",
        packages=["sklearn", "onnx", "tensorboard"],
        ranks=2,
    ),
    Script(
        "DCGAN",
        "pytorch/examples",
        "dcgan",
        DCGAN.split(),
        "batch, forward, backward, forward, forward, backward, optimizer, forward, backward, optimizer 1",
        "main.py",
        "output = self.main(input)",
        packages=["torchvision"],
    ),
    Script(
        "HF run_clm",
        "huggingface/transformers",
        "examples/pytorch/language-modeling",
        RUN_CLM.split(),
        "batch, forward, backward, optimizer",
        installed("transformers", "models/gpt2/modeling_gpt2.py"),
        ("inputs_embeds = self.wte(input_ids)", "token_type_embeds = self.wte(token_type_ids)"),
        calls=2,  # the tokenizer yields types of tokens, too
        packages=["transformers", "datasets", "evaluate"],
        prepare=write_text,
    ),
    Script(
        "Lightning autoencoder",
        "Lightning-AI/pytorch-lightning",
        "examples/pytorch/basics",
        AUTOENCODER.split(),
        "batch, forward, backward, optimizer",
        "autoencoder.py",
        "z = self.encoder(x)",
        packages=["lightning", "torchvision", "jsonargparse"],
        prepare=write_digits,
    ),
    Script(
        "DeepSpeed CIFAR-10",
        "microsoft/DeepSpeedExamples",
        "training/cifar",
        CIFAR.split(),
        "batch, forward, backward, optimizer",
        "cifar10_deepspeed.py",
        "x = self.pool(F.relu(self.conv1(x)))",
        packages=["deepspeed", "torchvision"],
        ranks=1,
    ),
)


def main() -> None:
    """Record what is missing, and print one line per recording and one table."""
    options = _options()
    until = time.monotonic() + 60 * options.minutes
    scripts = []
    for script in (each for each in SCRIPTS if each.slug in options.names):
        if reason := why_not(script, options.scripts):
            CONSOLE.print(f"{script.name:21} skipped: {reason}")
        else:
            scripts.append(script)
    complete: list[tuple[Script, str, Path]] = []
    for script, kind, number in in_turns(scripts, {"stall": options.runs, "null": options.nulls, ALONE: options.alone}):
        folder, out = folder_of(script, options.scripts), options.out / script.slug / f"{kind}-{number:02}"
        if out.exists() or (time.monotonic() < until and record(script, folder, kind, out)):
            complete.append((script, kind, out))
            CONSOLE.print(f"{script.name:21} {kind:5} {number:2}")
    alone_ns = costs_alone_ns(complete)
    answers: dict[tuple[str, str], list[Answer]] = {}
    for script, kind, out in complete:
        if kind != ALONE:
            truth_ns = alone_ns.get(script.name, script.wait_ns) if kind == "stall" else 0
            answer = answer_of(script, folder_of(script, options.scripts), truth_ns, out)
            answers.setdefault((script.name, kind), []).append(answer)
            CONSOLE.print(f"{script.name:21} {out.name:8}  {answer.words}")
    console = Console(width=160)
    console.print(table_of(scripts, answers, alone_ns))


def _options() -> argparse.Namespace:
    names = [script.slug for script in SCRIPTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="SCRIPT", help=", ".join(names))
    parser.add_argument("--scripts", type=Path, default=Path("build/jobs"))
    parser.add_argument("--out", type=Path, default=Path("build/jobs-recordings"))
    parser.add_argument("--runs", type=int, default=20, help="recordings with a stall of each script")
    parser.add_argument("--nulls", type=int, default=8, help="recordings of equal arms of each script")
    parser.add_argument("--alone", type=int, default=5, help="measurements of the wait where nothing is recorded")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    options.names = options.names or names
    if unknown := set(options.names) - set(names):
        parser.error(f"no such script: {', '.join(sorted(unknown))}; one of {', '.join(names)}")
    options.scripts, options.out = options.scripts.absolute(), options.out.absolute()
    return options


def in_turns(scripts: Sequence[Script], nums: dict[str, int]) -> Iterator[tuple[Script, str, int]]:
    """Yield every recording of every script such that all are at the same part of theirs at any time."""
    recordings = [
        ((number + 0.5) / num, index, kind, number)
        for index in range(len(scripts))
        for kind, num in nums.items()
        for number in range(num)
    ]
    for _, index, kind, number in sorted(recordings):
        yield scripts[index], kind, number


def folder_of(script: Script, scripts: Path) -> Path:
    return scripts / script.repository.partition("/")[2] / script.folder


def why_not(script: Script, scripts: Path) -> str:
    """Return why the script cannot run here; "" if it can. Fetches its repository, and prepares its data."""
    if missing := [package for package in script.packages if find_spec(package) is None]:
        return f"no package {', '.join(missing)}"
    folder = folder_of(script, scripts)
    if not folder.is_dir():
        url, target = f"https://github.com/{script.repository}", scripts / script.repository.partition("/")[2]
        clone = ["git", "clone", "-q", "--depth", "1", url, str(target)]
        if subprocess.run(clone, check=False, capture_output=True).returncode:
            return f"{url} cannot be fetched, and {folder} does not exist"
    script.prepare(folder)
    return ""


def record(script: Script, folder: Path, kind: str, out: Path) -> bool:
    """Record into a folder, or measure into a file, which is there once complete; say so, and return False, if not."""
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    if run(script, folder, alone(script, partial) if kind == ALONE else recording(script, kind, partial)):
        partial.rename(out)
        return True
    return False


def recording(script: Script, kind: str, out: Path) -> list[str]:
    """Return the command that records a script with a wait or with equal arms."""
    stall_us = STALL_US if kind == "stall" else "0.0"  # equal, and not the same word
    sizes = ["--steps", str(STEPS), "--trace-steps", str(TRACE_STEPS)]
    toggle = ["--toggle", f"@stall=0,{stall_us}"]
    return [*TRACEQ, "record", *sizes, *toggle, "--out", str(out), "--", *script.command()]


def alone(script: Script, out: Path) -> list[str]:
    """Return the command that measures what the wait costs a step of a script where nothing is recorded."""
    num = len({event for event in script.pattern.split(", ") if event.startswith("optimizer")})
    measuring = str(Path(__file__).with_name("stall_alone.py")), "--out", str(out), "--us", str(STALL_US)
    return script.command(*measuring, "--optimizers", str(num))


def costs_alone_ns(complete: Sequence[tuple[Script, str, Path]]) -> dict[str, int]:
    """Return by script the mean of what the wait cost each of its processes where nothing was recorded; say all."""
    deltas_ns: dict[str, list[int]] = {}
    for script, kind, out in complete:
        if kind == ALONE:
            deltas_ns.setdefault(script.name, []).append(json.loads(out.read_text(encoding="utf-8"))["delta_ns"])
    for name, costs_ns in deltas_ns.items():
        words = ", ".join(format_value(each, Unit.DELTA_NS) for each in costs_ns)
        CONSOLE.print(f"{name:21} {ALONE}     {words}")
    return {name: round(statistics.mean(costs_ns)) for name, costs_ns in deltas_ns.items()}


def run(script: Script, folder: Path, command: Sequence[str]) -> bool:
    """Run a command in the folder of a script; say so, and return False, if that fails."""
    paths = [str(Path(traceq.__file__).parents[1]), str(folder.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = (
        {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        | dict(os.environ)
        | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    )
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if script.prepare in (write_tokens, write_text):
        shutil.rmtree(folder / "out", ignore_errors=True)
    if done.returncode:
        CONSOLE.print(f"{script.name:21} failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.returncode == 0


def answer_of(script: Script, folder: Path, truth_ns: int, out: Path) -> Answer:
    """Read a complete recording, whose true difference is 0 where both arms are the same."""
    run = RunFolder(out)
    pattern = str(run.read_manifest().environment["step_pattern"]).partition(" (")[0]
    steps = [line for line in read_lines(run.samples(0)) if isinstance(line, StepLine) and line.pair >= 0]
    uncovered = 1 - sum(sum(step.phases.values()) for step in steps) / sum(step.wall_ns for step in steps)
    (diff,) = traceq.diff(out).diffs
    assert diff.comparison is not None
    is_named = bool(truth_ns) and names(diff, script.places(folder), script.wait_ns)
    words = [f"step {pattern}", interval_of(diff.comparison), diff.verdict_name]
    if truth_ns:
        words += [f"expected {format_value(truth_ns, Unit.NS)}", "named" if is_named else "not named"]
    return Answer(
        pattern == script.pattern,
        uncovered,
        diff.comparison.a_ns,
        _holds(diff.comparison, truth_ns),
        diff.cpu is not None and _holds(diff.cpu, truth_ns),
        is_named,
        diff.verdict_name == "material",
        ", ".join(words),
    )


def names(diff: Diff, places: Sequence[str], wait_ns: int) -> bool:
    """Return True if one of the causes that are listed is Python at one of the places, of at least half of the wait."""
    listed = [cause for cause in diff.causes if cause.names_a_change][:LISTED_CAUSES]
    return any(
        cause.is_python
        and cause.phase == "forward"
        and cause.line.partition(" ")[0] in places
        and cause.delta_ns > wait_ns / 2
        for cause in listed
    )


def _holds(comparison: Comparison, truth_ns: int) -> bool:
    return comparison.ci95_ns is not None and comparison.ci95_ns[0] <= truth_ns <= comparison.ci95_ns[1]


def interval_of(comparison: Comparison) -> str:
    """Return `+2.04 ms (+1.84 ms to +2.22 ms)`."""
    ends = [comparison.delta_ns, *(comparison.ci95_ns or ())]
    delta, *interval = (format_value(end, Unit.DELTA_NS) for end in ends)
    return f"{delta} ({' to '.join(interval)})"


def table_of(
    scripts: Sequence[Script], answers: dict[tuple[str, str], list[Answer]], alone_ns: Mapping[str, int]
) -> Table:
    """Return one row per script, and their sum."""
    table = Table(title="public scripts, unedited", title_justify="left")
    for heading in ("script", "step"):
        table.add_column(heading)
    for heading in (
        "right",
        "time",
        "in no phase",
        "wait alone",
        "inside",
        "by CPU time",
        "named",
        "inside, named",
        "null material",
    ):
        table.add_column(heading, justify="right")
    for script in scripts:
        if of_script := [each for kind in ("stall", "null") for each in answers.get((script.name, kind), [])]:
            step = format_value(statistics.median(each.step_ns for each in of_script), Unit.NS)
            alone = format_value(alone_ns[script.name], Unit.NS) if alone_ns.get(script.name) else ""
            table.add_row(script.name, script.pattern, *_counts(answers, [script], step, alone))
    if any(answers.values()):
        table.add_section()
        table.add_row("all", "", *_counts(answers, scripts, "", ""))
    return table


def _counts(
    answers: dict[tuple[str, str], list[Answer]], scripts: Sequence[Script], step: str, alone: str
) -> list[str]:
    stalls, nulls = (
        [each for script in scripts for each in answers.get((script.name, kind), [])] for kind in ("stall", "null")
    )
    shares = [100 * each.uncovered for each in (*stalls, *nulls)]
    return [
        _count(each.is_step_right for each in (*stalls, *nulls)),
        step,
        f"{statistics.median(shares):.1f} % ({max(shares):.1f} %)",
        alone,
        _count(each.is_inside for each in stalls),
        _count(each.is_inside_by_cpu for each in stalls),
        _count(each.is_named for each in stalls),
        _count(each.is_inside and each.is_named for each in stalls),
        _count(each.is_material for each in nulls),
    ]


def _count(values: Iterator[bool]) -> str:
    listed = list(values)
    return f"{sum(listed)} of {len(listed)}"


if __name__ == "__main__":
    main()
