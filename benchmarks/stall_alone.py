"""What does the wait of a `stall` recording cost a training script where traceq records nothing?

    python benchmarks/stall_alone.py --out FILE [--us 1000] [--optimizers 1] [--pairs 200] SCRIPT [ARGS ...]

The script runs as it is, alone or on each rank of a launcher. A hook of torch at the end of the optimizers' steps, of
which a step has `--optimizers`, takes the time and lets the first layer of the largest model wait or not, in pairs of
halves of random order as traceq's. FILE gets the estimate and its 95 % interval by traceq's formula, ns; then the
script is ended. `benchmarks/jobs.py` runs it: what is true of its recordings is what the wait costs here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import runpy
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from torch.optim.optimizer import register_optimizer_step_post_hook

from traceq.model import Pairs
from traceq.recorder.jobs.root_models import find_roots
from traceq.recorder.toggles.stall import StallToggle, create
from traceq.recorder.toggles.toggle import Job
from traceq.stats import compare_pairs

WARM_UP, IN_HALF = 24, 3
"""Steps before the first pair, and of each half, of which the first does not count."""


class Alternation:
    """Steps of a script of which halves wait and halves do not, until there are enough pairs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        rng = random.Random(7)  # the same order on all ranks
        self._b_second = [rng.random() < 0.5 for _ in range(options.pairs)]
        self._num_calls, self._num_steps = 0, 0
        self._began_ns = 0
        self._toggle: StallToggle | None = None
        self._halves_ns: list[list[int]] = []

    def stepped(self, *_: Any) -> None:
        """Note the end of an optimizer's step; with the last one of a training step, of that."""
        self._num_calls += 1
        if self._num_calls % self._options.optimizers:
            return
        ended_ns, number = perf_counter_ns(), self._num_steps - WARM_UP
        self._num_steps += 1
        if number >= 0 and number % IN_HALF:
            self._halves_ns[-1].append(ended_ns - self._began_ns)
        if number == -1:
            self._toggle = create(Job(find_roots(), ()), ("0", str(self._options.us)))
        if number >= -1 and (number + 1) % IN_HALF == 0:
            self._begin_half()
        self._began_ns = perf_counter_ns()

    def _begin_half(self) -> None:
        pair, is_second = divmod(len(self._halves_ns), 2)
        if pair == len(self._b_second):
            self._end()
        assert self._toggle is not None
        self._toggle.apply(int(bool(is_second) == self._b_second[pair]))
        self._halves_ns.append([])

    def _end(self) -> None:
        halves = np.mean(np.array(self._halves_ns), axis=1).astype(np.int64).reshape(-1, 2).T
        if int(os.environ.get("RANK", "0")) == 0:
            pairs = Pairs("off", "on", np.array(self._b_second), halves[:1], halves[1:])
            cost = compare_pairs(pairs)
            self._options.out.write_text(json.dumps({"delta_ns": cost.delta_ns, "ci95_ns": cost.ci95_ns}))
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    """Run the script, which ends with the last pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--us", type=float, default=1000.0)
    parser.add_argument("--optimizers", type=int, default=1, help="that step in each training step")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.out = options.out.absolute()
    register_optimizer_step_post_hook(Alternation(options).stepped)
    sys.argv = [options.script, *options.args]
    sys.path[0] = str(Path(options.script).parent)
    runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
