"""Answers to the questions of the exam, counted from the events of the files alone: nothing here imports the product.

What the oracle computes of one file is there under a dotted name, like `syncs.dtoh.num`; the rest are the
functions below, each for one question or a few.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from . import answer
from .phases import Phases
from .pipelines import spent
from .reader import Event, Trace, read
from .syncs import find_syncs

__all__ = ["oracle_answer"]

ANSWERS: dict[str, Callable[..., Any]] = {}
read_once = cache(read)
answer_once = cache(answer)


def oracle_answer(path: Path, name: str, **options: Any) -> Any:
    """The answer of a function, or of the oracle under a dotted name, for the file of one rank."""
    if name in ANSWERS:
        return ANSWERS[name](path, **options)
    value: Any = answer_once(path / f"rank{options['rank']}.json" if "rank" in options else path)
    for key in options.get("keys", name.split(".")):
        value = value[int(key) if isinstance(value, list) else key]
    return value


def answers(function: Callable[..., Any]) -> Callable[..., Any]:
    ANSWERS[function.__name__] = function
    return function


def ranks_of(folder: Path) -> list[Trace]:
    return [read_once(file) for file in sorted(folder.glob("rank*.json*")) if "stacks" not in file.name]


def kernels_named(trace: Trace, word: str) -> list[Event]:
    return sorted((op for op in trace.device_ops if word in op.name), key=lambda op: op.start)


@answers
def line_of_syncs(path: Path) -> list[str]:
    """The innermost Python frames in which the syncs begin."""
    trace, lines = read_once(path), set()
    frames = [event for event in trace.events if re.fullmatch(r".+\.py\(\d+\): .+", event.name)]
    for sync in find_syncs(trace):
        around = [frame for frame in frames if frame.thread == sync.thread and frame.start <= sync.start < frame.end]
        inner = min(around, key=lambda frame: frame.end - frame.start)
        lines.add(re.sub(r"^(.+)\((\d+)\): (.+)$", r"\1:\2 \3", inner.name))
    return sorted(lines)


@answers
def category_ns(path: Path, category: str) -> int:
    """Time of a category in all windows."""
    cells = answer_once(path)["partition"]
    return sum(ns for row in cells for (_, name), ns in row.items() if name == category)


@answers
def partial_steps(path: Path) -> list[int]:
    return [step["index"] for step in answer_once(path)["steps"] if step["partial"]]


@answers
def calls_of_collectives(path: Path) -> list[list[Any]]:
    return sorted([name, num] for name, num in answer_once(path)["collectives"]["calls"].items())


@answers
def size_of_gather(path: Path) -> int:
    """Ranks of an all-gather: how many times its output is larger than its input."""
    [op] = [event for event in read_once(path).events if event.name.startswith("c10d::_allgather")]
    (out,), (given,) = op.args["input dims"][:2]
    return int(out / given)


@answers
def last_to_arrive(path: Path) -> int:
    """The rank that starts most collectives last."""
    starts = [[op.start for op in kernels_named(trace, "nccl")] for trace in ranks_of(path)]
    return Counter(max(range(len(each)), key=lambda n: each[n]) for each in zip(*starts, strict=True)).most_common(1)[
        0
    ][0]


@answers
def waited_in_collectives(path: Path, rank: int) -> int:
    """Time until the last rank joins, over all collectives of the steps that are not partial, but the trace's first."""
    starts = [[op.start for op in kernels_named(trace, "nccl")] for trace in ranks_of(path)]
    steps = [step for step in answer_once(path / f"rank{rank}.json")["steps"] if not step["partial"]]
    counted = [each for each in list(zip(*starts, strict=True))[1:] if each[rank] >= steps[0]["start_ns"]]
    return sum(max(each) - each[rank] for each in counted)


@answers
def shortest_in_messages(path: Path) -> int:
    """The rank whose kernels of collectives take least time: the others wait for it in theirs."""
    times = [answer_once(file)["collectives"]["gpu_ns"] for file in sorted(path.glob("rank*.json.gz"))]
    return times.index(min(times))


@answers
def most_tokens(path: Path) -> int:
    """The rank that receives most rows in the exchanges of the experts."""
    received = [
        sum(event.args["input dims"][0][0] for event in trace.events if "alltoall" in event.name)
        for trace in ranks_of(path)
    ]
    return received.index(max(received))


@answers
def loader_wait(path: Path, step: int) -> int:
    trace = read_once(path)
    _, start, end = trace.host_steps[step]
    return sum(e.end - e.start for e in trace.events if "DataLoader" in e.name and start <= e.start < end)


@answers
def num_annotations(path: Path, pattern: str) -> int:
    return sum(event.cat == "annotation" and bool(re.search(pattern, event.name)) for event in read_once(path).events)


@answers
def peak_allocated(path: Path) -> int:
    rows = json.loads(path.read_bytes())["traceEvents"]
    return max(row["args"]["Total Allocated"] for row in rows if row.get("name") == "[memory]")


@answers
def bubble_part(path: Path, rank: int, part: str) -> float:
    files = sorted(path.glob("rank*.json"))
    return spent(files, [0] * len(files))[rank][part]


def elements(path: Path) -> list[list[int]]:
    """Elements of each collective of each rank."""
    calls = [[e for e in trace.events if e.name == "record_param_comms"] for trace in ranks_of(path)]
    return [[call.args["in msg nelems"] for call in of_rank] for of_rank in calls]


@answers
def elements_that_differ(path: Path) -> list[int]:
    """Elements that each rank reduces at the first position where ranks differ."""
    return list(next(each for each in zip(*elements(path), strict=True) if len(set(each)) > 1))


@answers
def rule_of_identical_collectives(path: Path) -> str:
    return "holds" if all(each == elements(path)[0] for each in elements(path)) else "broken"


@answers
def rule_of_no_waited_copies(path: Path) -> str:
    """Whether no rank waits for a copy that it launched while forward was open."""
    phases = [Phases(trace) for trace in ranks_of(path)]
    waits = [(phase, sync) for phase in phases for sync in find_syncs(phase.trace) if sync.kind == "dtoh"]
    return "broken" if any(phase.main_at(sync.start) == "forward" for phase, sync in waits) else "holds"


# memory snapshots


def levels(path: Path) -> list[int]:
    """Bytes that are allocated after each action, which ends with what the segments hold."""
    content = pickle.loads(path.read_bytes())
    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    level = sum(block["requested_size"] for block in blocks if block["state"] != "inactive")
    result = [level]
    for row in reversed(content["device_traces"][0]):
        level += {"alloc": -row["size"], "free_completed": row["size"]}.get(row["action"], 0)
        result.append(level)
    return result


@answers
def snapshot_peak(path: Path) -> int:
    return max(levels(path))


@answers
def snapshot_peak_delta(path: Path, other: str) -> int:
    return max(levels(path.with_name(other))) - max(levels(path))


@answers
def asked_in_vain(path: Path) -> int:
    [row] = [row for row in pickle.loads(path.read_bytes())["device_traces"][0] if row["action"] == "oom"]
    return int(row["size"])


# recorded runs


def pairs(run: Path, arm: str) -> tuple[list[int], list[int]]:
    """Change from the first to the second half of each pair on the slowest rank: of AB pairs, and of BA pairs."""
    halves: dict[int, list[tuple[int, int]]] = defaultdict(list)
    orders: dict[int, bool] = {}
    for file in sorted((run / "steps").glob("rank*.jsonl")):
        for row in map(json.loads, file.read_text().splitlines()):
            if row["kind"] == "pair" and row["b"] == arm and row["a"] != arm:
                halves[row["pair"]].append((row["first_ns"], row["second_ns"]))
                orders[row["pair"]] = row["b_second"]
    change = {pair: max(b for _, b in each) - max(a for a, _ in each) for pair, each in halves.items()}
    return [change[p] for p in change if orders[p]], [change[p] for p in change if not orders[p]]


@answers
def num_pairs(path: Path, arm: str) -> int:
    return sum(map(len, pairs(path, arm)))


@answers
def hodges_lehmann(path: Path, arm: str) -> int:
    """Median of half the differences between pairs of either order: what running second costs cancels."""
    later, earlier = pairs(path, arm)
    return round(median((x - y) / 2 for x in later for y in earlier))


@answers
def interval95(path: Path, arm: str) -> list[int]:
    """The k-th smallest to the k-th largest of these (Hollander, Wolfe and Chicken, 4.3), ns."""
    later, earlier = pairs(path, arm)
    m, n = len(later), len(earlier)
    differences = sorted(x - y for x in later for y in earlier)
    k = math.floor(m * n / 2 - 1.959963984540054 * math.sqrt(m * n * (m + n + 1) / 12))
    return [round(differences[k - 1] / 2), round(differences[-k] / 2)]


@answers
def added_per_step(path: Path, a: str, b: str, op: str) -> float:
    of_a, of_b = (read_once(path / arm / "rank0.json.gz") for arm in (a, b))
    before, after = (sum(event.name == op for event in trace.events) for trace in (of_a, of_b))
    return (after - before) / len(of_a.host_steps)


@answers
def slower_kernel(path: Path, other: str) -> str:
    """The kernel whose time grows most."""
    sums: Counter[str] = Counter()
    for sign, file in ((-1, path), (1, path.with_name(other))):
        for op in read_once(file).device_ops:
            sums[op.name] += sign * (op.end - op.start)
    return sums.most_common(1)[0][0]


@answers
def tflops_of_products(path: Path, op: str) -> float:
    """2 m n k of every call of an op on two matrices, over the time of the kernels that are launched in these calls."""
    trace = read_once(path)
    calls = [event for event in trace.events if event.name == op and event.cat == "cpu_op"]
    flops = sum(2 * m * k * n for (m, k), (_, n) in (call.args["input dims"][:2] for call in calls))
    launched = {
        row
        for row, launch in trace.launches.items()
        if any(call.thread == launch.thread and call.start <= launch.start < call.end for call in calls)
    }
    kernels = (op for op in trace.device_ops if op.cat == "kernel" and op.row in launched)
    return flops / sum(op.end - op.start for op in kernels) / 1000


@answers
def bytes_of_all_reduce(path: Path) -> int:
    """Bytes of float32 that gloo's calls were given."""
    calls = [event for event in read_once(path).events if event.name == "c10d::allreduce_"]
    return sum(4 * math.prod(dims) for call in calls for dims in call.args["input dims"][0])
