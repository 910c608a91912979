"""Simulate long runs, to measure how often `traceq watch` says that steps became slower when none did, and how late.

    python benchmarks/watch.py [--steps 500000] [--onsets 20]
    python benchmarks/watch.py --cost
    python benchmarks/watch.py --scale

Two ranks compute, and exchange gradients; a step is as long as that of the slower one. What a rank computes has 3 % of
noise. An onset makes rank 1 compute longer, so that steps take 5, 10 or 20 % more, from a step on that follows 3,200
others. Its delay is the number of steps until it is said; one that is said of another kind or rank is not found.

With --scale, the launchers of 1,280 nodes of 8 ranks send a block a second through a real TCPStore on this machine, in
three processes: the store, the first launcher, and all others, with a thread and a client each. From block 200 on one
rank computes longer, by 10 % of a step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from traceq.long_runs.block_tree import BlockTree, Message, Part, Store, children_of
from traceq.long_runs.limits import STEPS_PER_BLOCK
from traceq.long_runs.onsets import SLOW_RANK, Onset, OnsetDetector
from traceq.long_runs.sentences import onset_text
from traceq.long_runs.step_store import MEASURES, REGULAR, STEP, StepBlocks, measure
from traceq.long_runs.watch_folder import FORMAT, WatchedJob, WatchFolder, WatchNode
from traceq.recorder.job_launch import open_store

OWN_S, BACKWARD_S = 0.03, 0.02
BEFORE, AFTER = 3200, 6400
PART = 1 << 14
"""Steps that are simulated at once."""
GROWTHS = (0.05, 0.10, 0.20)


@dataclass(frozen=True)
class Noise:
    """Noise of a rank's own time: standard deviation, autocorrelation, degrees of freedom of its tails.

    `drift`: growth in 100,000 steps. Every `pause_every`-th step takes five times as long; after every
    `evaluation_every`-th step five are 30 % longer, as caches are cold; of steps in `busy` runs of 40 in 2,000 another
    program takes 30 %.
    """

    name: str
    correlation: float = 0.0
    freedom: float = 0.0
    sd: float = 0.03
    drift: float = 0.0
    pause_every: int = 0
    evaluation_every: int = 0
    is_busy: bool = False

    def factors(self, rng: np.random.Generator, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return own times of steps as multiples of the usual one."""
        num = len(steps)
        noise = rng.standard_t(self.freedom, num) / self.freedom**0.5 if self.freedom else rng.normal(size=num)
        if self.correlation:
            kernel = self.correlation ** np.arange(int(8 / (1 - self.correlation)))
            noise = (
                np.convolve(rng.normal(size=num + len(kernel)), kernel, "valid")[:num]
                * (1 - self.correlation**2) ** 0.5
            )
        logs = self.sd * noise + self.drift * steps / 1e5
        if self.evaluation_every:
            logs += 0.3 * (steps % self.evaluation_every < 5)
        if self.is_busy:
            begins = np.flatnonzero(rng.random(num) < 1 / 2000)
            for begin in begins:
                logs[begin : begin + 40] += 0.3
        factors = np.exp(logs)
        if self.pause_every:
            factors[steps % self.pause_every == 0] *= 5
        return factors


NOISES = (
    Noise("independent, 3 %"),
    Noise("autocorrelation 0.9", correlation=0.9),
    Noise("autocorrelation 0.99", correlation=0.99),
    Noise("heavy tails, 2 degrees of freedom", freedom=2.0),
    Noise("drift of 5 % in 100,000 steps", correlation=0.9, drift=0.05),
    Noise("evaluations every 500 steps", correlation=0.9, evaluation_every=500),
    Noise("pauses every 100 steps", pause_every=100),
    Noise("busy machine", is_busy=True),
)


def simulated(
    noise: Noise, rng: np.random.Generator, num: int, growth: float = 0.0
) -> Iterator[list[NDArray[np.void]]]:
    """Yield rows of both ranks, part after part; from step BEFORE on rank 1 computes longer."""
    for first in range(0, num, PART):
        steps = np.arange(first, min(first + PART, num))
        computed_s = np.array([OWN_S * noise.factors(rng, steps) for _ in range(2)])
        computed_s[1] += growth * (OWN_S + BACKWARD_S) * (steps >= BEFORE)
        backward = BACKWARD_S * np.exp(0.03 * rng.normal(size=len(steps)))
        wall = computed_s.max(axis=0) + backward
        ranks = []
        for rank in range(2):
            rows = np.zeros(len(steps), STEP)
            rows["step"], rows["flags"], rows["wall"] = steps, REGULAR, wall
            rows["forward"] = rows["cpu"] = computed_s[rank]
            rows["backward"] = wall - computed_s[rank]
            rows[["memory", "queued", "clock", "throttled"]] = np.nan
            ranks.append(rows)
        yield ranks


def onsets(noise: Noise, rng: np.random.Generator, num: int, growth: float = 0.0) -> Iterator[Onset]:
    """Yield what is said of a simulated run."""
    blocks, detector = StepBlocks(2), OnsetDetector()
    for rows in simulated(noise, rng, num, growth):
        yield from filter(None, map(detector.add, blocks.add(rows)))


def delay(noise: Noise, rng: np.random.Generator, growth: float) -> float:
    """Return the steps until an onset is said; infinity where something else is, or nothing."""
    for onset in onsets(noise, rng, BEFORE + AFTER, growth):
        if onset.seen_at > BEFORE:
            return onset.seen_at - BEFORE if (onset.kind, onset.ranks) == (SLOW_RANK, (1,)) else np.inf
    return np.inf


LOOP = """
import sys, time, torch
from torch.utils.data import DataLoader

torch.set_num_threads(1)
model, times = torch.nn.Linear(8, 8), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in DataLoader(torch.randn(int(sys.argv[1]), 8), batch_size=1):
    times.append(time.thread_time_ns())
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
steps = sorted(end - begin for begin, end in zip(times[500:], times[501:]))
print(steps[len(steps) // 2] / 1e3)
"""


def print_cost(num_steps: int = 4000, num_times: int = 5) -> None:
    """Print the CPU time of a median step, alone and watched, by turns."""
    alone: list[float] = []
    watched: list[float] = []
    with TemporaryDirectory() as folder:
        for number in range(num_times):
            job = [sys.executable, "-c", LOOP, str(num_steps)]
            watch = [sys.executable, "-m", "traceq", "watch", "--out", f"{folder}/{number}", "--"]
            for command, times in ((job, alone), ([*watch, *job], watched)):
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                times.append(float(done.stdout))
    more = np.subtract(watched, alone)
    lines = (
        f"a step takes {np.median(alone):.0f} us of CPU time; watched {np.median(more):.0f} us more",
        f"({more.min():.0f} to {more.max():.0f} in {num_times} pairs): {np.median(more) / 500:.2f} % of one of 50 ms",
    )
    Console(width=120, highlight=False).print("\n".join(lines))


NUM_NODES, RANKS_PER_NODE, LATE_RANK, LATE_BLOCK, NUM_BLOCKS = 1280, 8, 7777, 200, 240
BLOCK_S = 8.0
"""Time of a block of steps of 0.5 s, to which rates refer."""


class CountingStore:
    """A store that counts the bytes of values."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.num_sent = self.num_received = self.num_calls = 0

    def flows(self, num_blocks: int) -> list[float]:
        """Return bytes sent and received, and calls, for a block."""
        return [num / num_blocks for num in (self.num_sent, self.num_received, self.num_calls)]

    def check(self, keys: list[str]) -> bool:
        """Count the call."""
        self.num_calls += 1
        return self._store.check(keys)

    def get(self, key: str) -> bytes:
        """Count the value."""
        value = self._store.get(key)
        self.num_received += len(value)
        self.num_calls += 1
        return value

    def set(self, key: str, value: bytes) -> None:
        """Count the value."""
        self.num_sent += len(value)
        self.num_calls += 1
        self._store.set(key, value)

    def delete_key(self, key: str) -> bool:
        """Count the call."""
        self.num_calls += 1
        return self._store.delete_key(key)


def opened(address: str) -> CountingStore:
    """Return the store, once the machine is not too busy to answer."""
    while True:
        try:
            return CountingStore(open_store(address))
        except (OSError, RuntimeError):
            time.sleep(0.1)


class ScaleNode:
    """A launcher whose ranks are simulated."""

    def __init__(self, number: int, run: str, store: CountingStore) -> None:
        self.number, self.store, self.num_blocks = number, store, 0
        self._ranks = np.arange(number * RANKS_PER_NODE, (number + 1) * RANKS_PER_NODE, dtype="<u4")
        self._rng = np.random.default_rng(number)
        node = WatchNode(number, NUM_NODES, tuple(self._ranks.tolist()), run, "")
        self.tree = BlockTree(node, lambda _: store)

    def send(self) -> Message:
        """Return the next block of its ranks."""
        values = np.zeros((RANKS_PER_NODE, len(MEASURES)), np.float32)
        more_s = 0.1 * (OWN_S + BACKWARD_S) * (self.num_blocks >= LATE_BLOCK)
        computed_s = OWN_S * (1 + 0.01 * self._rng.normal(size=RANKS_PER_NODE)) + more_s * (self._ranks == LATE_RANK)
        wall = 1.04 * OWN_S + BACKWARD_S + more_s
        values[:, measure("median")] = values[:, measure("wall")] = wall
        for name in ("forward", "cpu", "compute"):
            values[:, measure(name)] = computed_s
        values[:, measure("backward")] = wall - computed_s
        values[:, measure("memory")] = 1 << 30
        first_step = STEPS_PER_BLOCK * self.num_blocks
        self.num_blocks += 1
        part = Part(first_step, float(self.num_blocks), self._ranks.tobytes(), values.tobytes())
        return Message(first_step + STEPS_PER_BLOCK, [part])


def serve(answers: multiprocessing.Queue[float], is_over: Event) -> None:
    """Serve the store, and answer with its port and, at the end, the CPU time that it took."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    answers.put(store.port)
    before_s = time.process_time()
    is_over.wait()
    answers.put(time.process_time() - before_s)


Flows = list[list[float]]


def run_others(run: str, address: str, answers: multiprocessing.Queue[Flows], begin: Event, is_over: Event) -> None:
    """Run all launchers but the first, and answer with what each has sent, received and called for a block."""
    with ThreadPoolExecutor(8) as pool:  # all at once would be more than one machine answers in time
        stores = list(pool.map(opened, [address] * (NUM_NODES - 1)))
    nodes = [ScaleNode(number, run, store) for number, store in enumerate(stores, 1)]
    begin.set()
    while not is_over.wait(1.0):
        for node in nodes:
            node.tree.exchange(node.send())
    answers.put([node.store.flows(node.num_blocks) for node in nodes])
    for node in nodes:
        node.tree.close()


def print_scale() -> None:
    """Print what a tree of 1,280 launchers sends, and what the first of them takes for a block."""
    context = multiprocessing.get_context("spawn")
    begin, is_over = context.Event(), context.Event()
    of_store, of_others = context.Queue(), context.Queue()
    with TemporaryDirectory() as run:
        hosts = tuple(f"n{rank // RANKS_PER_NODE}" for rank in range(NUM_NODES * RANKS_PER_NODE))
        WatchFolder(Path(run)).write_job(WatchedJob(FORMAT, hosts, "", "", ()))
        server = context.Process(target=serve, args=(of_store, is_over), daemon=True)
        server.start()
        address = f"127.0.0.1:{of_store.get()}"
        context.Process(target=run_others, args=(run, address, of_others, begin, is_over), daemon=True).start()
        begin.wait()
        first, detector = ScaleNode(0, run, opened(address)), OnsetDetector()
        cpu_s, detect_s, onset = [time.process_time()], list[float](), None
        while len(detect_s) < NUM_BLOCKS and onset is None:
            time.sleep(1.0)
            for block in first.tree.exchange(first.send()):
                begun_s = time.thread_time()
                onset = onset or detector.add(block)
                detect_s.append(time.thread_time() - begun_s)
                cpu_s.append(time.process_time())
        is_over.set()
        sent, received, num_calls = np.array(of_others.get()).T
        store_s = of_store.get()
        first.tree.close()
    num = len(detect_s)
    num_children = np.array([len(children_of(number, NUM_NODES)) for number in range(1, NUM_NODES)])
    _, at_first, calls_of_first = first.store.flows(num)
    rows = (
        ("a rank", sent[-1] / RANKS_PER_NODE, 0.0),
        ("a node without children", sent[num_children == 0].mean(), 0.0),
        ("the node with most children below it", sent[0], received[0]),
        ("the first", 0.0, at_first),
        ("the store", received.sum() + at_first, sent.sum()),
    )
    table = Table("of", "sends, bytes a block", "receives, bytes a block", "both, bytes a second")
    for name, sends, receives in rows:
        table.add_row(name, f"{sends:,.0f}", f"{receives:,.0f}", f"{(sends + receives) / BLOCK_S:,.0f}")
    full = slice(-40, None)  # windows are full by then
    cost = (
        f"the first launcher takes {np.diff(cpu_s)[full].mean() * 1e3:.0f} ms of CPU time a block, "
        f"{np.mean(detect_s[full]) * 1e3:.0f} ms of it to look for onsets; "
        f"with a block a second, the store takes {store_s / num * 1e3:.0f} ms, "
        f"for {num_calls.sum() + calls_of_first:,.0f} calls"
    )
    answer = "not found" if onset is None else f"{onset_text(onset)} (seen at step {onset.seen_at:,})"
    Console(width=140, highlight=False).print(table, cost, *first.tree.take_lines(), answer, sep="\n")


def main() -> None:
    """Print a row for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500_000, help="of each run without an onset")
    parser.add_argument("--onsets", type=int, default=20, help="of each size")
    parser.add_argument("--cost", action="store_true", help="measure what a step of a small loop takes more instead")
    parser.add_argument("--scale", action="store_true", help="measure what launchers of 10,240 ranks send instead")
    options = parser.parse_args()
    if options.cost or options.scale:
        print_cost() if options.cost else print_scale()
        return
    table = Table("noise", "false in 100,000 steps", *(f"{growth:.0%}: found, steps until" for growth in GROWTHS))
    for number, noise in enumerate(NOISES):
        rng = np.random.default_rng(number)
        num_false = sum(1 for _ in onsets(noise, rng, options.steps))
        cells = []
        for growth in GROWTHS:
            delays = np.array([delay(noise, rng, growth) for _ in range(options.onsets)])
            finite = delays[np.isfinite(delays)]
            middle = f"{np.median(finite):.0f}" if len(finite) else "-"
            cells.append(f"{len(finite)} of {options.onsets}, {middle}")
        table.add_row(noise.name, f"{num_false * 1e5 / options.steps:.1f}", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
