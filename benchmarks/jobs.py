"""Does an A/B on public training scripts, unedited, find a cost that is known?

    python benchmarks/jobs.py [--scripts FOLDER] [--runs 1] [--null]

In one arm the first layer of the model waits for a known time (`@stall`); with `--null` it does so in no arm. The
scripts are those of public repositories: from FOLDER/<repository> if it has them, else cloned into it. A script that
can neither be found nor fetched, or whose packages are missing, is skipped, and that is said. `make jobs` runs it.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console

import traceq
from traceq.errors import TraceqError

CONSOLE = Console(highlight=False, soft_wrap=True)
TRACEQ = [sys.executable, "-c", "from traceq.cli import main; main()"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@dataclass(frozen=True)
class Script:
    """A training script; a step calls the first layer of its largest model `calls` times, each waits `stall_us`."""

    name: str
    repository: str
    folder: str
    words: Sequence[str]
    pattern: str
    calls: int = 1
    stall_us: int = 1_000
    packages: Sequence[str] = ()
    ranks: int = 1

    @property
    def command(self) -> list[str]:
        return [*(TORCHRUN if self.ranks > 1 else [sys.executable]), *self.words]


NANO_GPT = (
    "train.py --dataset=random --device=cpu --compile=False --dtype=float32 --eval_interval=200 --eval_iters=2 "
    "--block_size=64 --batch_size=8 --n_layer=4 --n_head=4 --n_embd=64 --max_iters=100000 "
    "--gradient_accumulation_steps=2 --always_save_checkpoint=False"
)
DLRM = (
    "dlrm_s_pytorch.py --data-generation=random --mini-batch-size=128 --num-batches=5000 --arch-sparse-feature-size=16 "
    "--arch-embedding-size=1000-1000-1000 --arch-mlp-bot=13-64-16 --arch-mlp-top=64-32-1 --print-freq=1000"
)
DCGAN = "main.py --dataset fake --batchSize 4 --imageSize 64 --ngf 16 --ndf 16 --niter 50 --workers 1"
SCRIPTS = (
    Script("nanoGPT", "karpathy/nanoGPT", ".", NANO_GPT.split(), "F B F B O0", calls=2),
    Script(
        "minGPT adder", "karpathy/minGPT", "projects/adder", ["adder.py"], "L F B O0", packages=["regex", "requests"]
    ),
    Script("DLRM", "facebookresearch/dlrm", ".", DLRM.split(), "L F B O0", packages=["sklearn", "onnx"]),
    Script(
        "DLRM, 2 ranks",
        "facebookresearch/dlrm",
        ".",
        [*DLRM.split(), "--dist-backend=gloo"],
        "L F B O0",
        packages=["sklearn", "onnx"],
        ranks=2,
    ),
    Script(
        "DCGAN",
        "pytorch/examples",
        "dcgan",
        DCGAN.split(),
        "L F B F F B O0 F B O1",
        stall_us=20_000,
        packages=["torchvision"],
    ),
)


def main() -> None:
    """Print one line per recording: the step that was found, the cost and its interval, and what was expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=Path, default=Path("build/jobs"))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--null", action="store_true", help="equal values in both arms")
    options = parser.parse_args()
    num_hits = num_runs = 0
    for script in SCRIPTS:
        folder = options.scripts.absolute() / script.repository.partition("/")[2]
        if reason := why_not(script, folder):
            CONSOLE.print(f"{script.name:14} skipped: {reason}")
            continue
        for _ in range(options.runs):
            num_hits += record(script, folder / script.folder, 0 if options.null else script.stall_us)
            num_runs += 1
    CONSOLE.print(f"{num_hits} of {num_runs} as expected")


def why_not(script: Script, folder: Path) -> str:
    """Return why the script cannot run here; "" if it can. Fetches its repository."""
    if missing := [package for package in script.packages if find_spec(package) is None]:
        return f"no package {', '.join(missing)}"
    if not folder.is_dir():
        url = f"https://github.com/{script.repository}"
        done = subprocess.run(
            ["git", "clone", "-q", "--depth", "1", url, str(folder)], check=False, capture_output=True
        )
        if done.returncode:
            return f"{url} cannot be fetched, and {folder} does not exist"
    if script.name == "nanoGPT":
        write_tokens(folder / "data" / "random")
    return ""


def write_tokens(folder: Path) -> None:
    """Write random tokens in the format of nanoGPT's data sets."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for name, size in (("train", 200_000), ("val", 20_000)):
        rng.integers(0, 65, size).astype(np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def record(script: Script, folder: Path, stall_us: int) -> bool:
    """Record the script, print what was found, and return whether it is what is true."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        command = [*TRACEQ, "record", "--toggle", f"@stall=0,{stall_us}", "--trace-steps", "0", "--out", str(out), "--"]
        environment = {"OMP_NUM_THREADS": "1"} | dict(os.environ)
        paths = [str(Path(traceq.__file__).parents[1]), str(folder.parents[1]), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        done = subprocess.run(
            [*command, *script.command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        shutil.rmtree(folder / "out", ignore_errors=True)
        try:
            manifest = traceq.read(out).manifest
            (diff,) = traceq.diff(out).diffs
        except (TraceqError, ValueError):
            manifest = diff = None
        if manifest is None or diff is None or diff.comparison is None or diff.comparison.ci95_ns is None:
            CONSOLE.print(f"{script.name:14} failed: {done.stderr.strip().splitlines()[-1:]}")
            return False
        low, high = (end / 1e3 for end in diff.comparison.ci95_ns)
        expected = stall_us * script.calls
        pattern = str(manifest.environment["step_pattern"]).partition(" (")[0]
        is_true = diff.verdict_name != "material" if stall_us == 0 else low <= expected <= high
        is_true = is_true and pattern == script.pattern
        cost = diff.comparison.delta_ns / 1e3
        CONSOLE.print(
            f"{script.name:14} step {pattern}: {cost:+,.0f} us ({low:+,.0f} to {high:+,.0f}), expected {expected:+,}, "
            f"{diff.verdict_name}{'' if is_true else '  <- not as expected'}",
        )
        return is_true


if __name__ == "__main__":
    main()
