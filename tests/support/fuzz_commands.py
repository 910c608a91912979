"""`make fuzz`, second part: whole commands on input whose structure was changed, and not only its bytes.

Traces, recordings and dumps are trees of JSON in which a few members are dropped, repeated, exchanged or overwritten by
values that make no sense. A command must end with exit code 0 to 3, without a traceback, within MOST_MB, and both
readers must say the same. Each case follows from its number: --case N runs that one alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import builder
from readers import reading
from terminal import Outcome, traceq

MOST_MB = 1000
_CASES = 50
"""Cases of one process, whose memory is limited."""

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 0.5, -0.001, 1e300, 8e15, "", "x", "\x1b[2J"),
    *("\u202e", "9" * 5000, "ProfilerStep#0", "ProfilerStep#" + "9" * 30, "forward", "NaN", "../x", "/abs", [], {}),
    *([[]], [1, "a", None], {"a": {"b": []}}, "aten::item", "nccl:all_reduce", "cudaStreamSynchronize", "kernel"),
    *("cpu_op", "user_annotation", "gpu_memcpy", "[[0, 1], [2]]", "0-1000000000", "a" * 3000),
)


def trace(rank: int = 0) -> dict[str, Any]:
    """A trace of three steps with what most analyses look at."""
    events: list[dict[str, Any]] = []
    for index, start in enumerate((0, 1000, 2000)):
        corr = 10 * index
        events += [builder.step(start, 1000, index), builder.annotation("forward", start + 1, 400)]
        events += [builder.frame("/x/a.py(3): f", start + 1, 900), builder.op("aten::mm", start + 2, 100)]
        events += [builder.launch(start + 10, 5, corr + 1), builder.kernel("gemm", start + 20, 300, corr + 1)]
        events += [builder.op("aten::item", start + 380, 200), builder.launch(start + 390, 1, corr + 2)]
        events += [builder.memcpy("DtoH (Device -> Pinned)", start + 400, 90, corr + 2)]
        events += [builder.call("cudaStreamSynchronize", start + 395, 100, corr + 3)]
        events += [builder.comms("allreduce", start + 600, 50, (1000, 1000)), builder.launch(start + 610, 2, corr + 4)]
        events += [builder.kernel("ncclDevKernel_AllReduce_Sum_f32", start + 620, 200, corr + 4, stream=9)]
        events += [
            builder.call("cudaStreamWaitEvent", start + 660, 2, corr + 5),
            builder.launch(start + 670, 2, corr + 6),
        ]
        events += [builder.kernel("adam", start + 840, 50, corr + 6), builder.memory(start + 30, 512, 1024, 2048)]
    metadata = builder.world(rank, 2) | {"deviceProperties": [{"id": 0, "name": "H100"}], "schemaVersion": 1}
    return json.loads(builder.text(*events, **metadata))


def manifest() -> dict[str, Any]:
    """The manifest of a recording of two arms."""
    arms = [{"name": name, "meaning": "m", "baseline": name == "off", "samples_per_step": 8} for name in ("off", "on")]
    described = {"version": 1, "run_id": "x", "recipe": "r", "question": "q", "parameters": {"a": 1}, "arms": arms}
    described |= {"phases": ["forward"], "num_ranks": 2, "seed": 0, "status": "complete", "environment": {"gpu": "x"}}
    return described | {"hosts": ["a", "b"], "facts": [{"key": "loss", "title": "loss"}]}


def step_lines(dice: random.Random) -> list[dict[str, Any]]:
    """The log of one rank."""
    lines: list[dict[str, Any]] = []
    for pair in range(8):
        common = {"a": "off", "b": "on", "pair": pair}
        for half, arm in enumerate(("off", "on")):
            ns = 10**6 + dice.randrange(1000)
            line = {"kind": "step", "arm": arm, "half": half, "index": 0, "phases": {"forward": ns}, "wall_ns": ns}
            lines.append(common | line | {"cpu_ns": ns, "device_ns": 0, "peak_bytes": 5})
        lines.append(common | {"kind": "pair", "b_second": pair % 2 == 0, "first_ns": 10**6, "second_ns": 10**6 + pair})
    return lines


def dump(rank: int) -> dict[str, Any]:
    """A flight recorder's dump."""
    frames = [{"name": "f", "filename": "a.py", "line": 3}]
    entry = {"process_group": ["0", "default"], "profiling_name": "nccl:all_reduce", "input_sizes": [[4]]}
    entry |= {"input_dtypes": ["Float"], "state": "completed", "frames": frames, "time_created_ns": 10**18}
    entries = [entry | {"collective_seq_id": number} for number in range(4 - rank)]
    return {"version": "2.4", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": entries}


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every member of a tree."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, member in inside for place in ((value, key), *places(member))]


def mutated(value: Any, dice: random.Random) -> Any:
    """The tree with a few members changed."""
    value = copy.deepcopy(value)
    for _ in range(dice.choice([0, 1, 1, 2, 5, 20])):
        members = places(value)
        if not members:
            break
        holder, key = dice.choice(members)
        match dice.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(dice.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
            case 2:
                other, place = dice.choice(members)
                if isinstance(place, str) == isinstance(key, str):
                    holder[key] = copy.deepcopy(other[place]) if not isinstance(other[place], dict | list) else 0
            case _:
                holder[key] = copy.deepcopy(dice.choice(VALUES))
    return value


def written(folder: Path, dice: random.Random) -> Path:
    """A trace, a folder of ranks, a recording or dumps."""
    kind = dice.choice(["trace", "trace", "job", "run", "dumps"])
    path = folder / kind
    if kind == "trace":
        path = folder / "trace.json"
        path.write_text(json.dumps(mutated(trace(), dice)))
        return path
    path.mkdir()
    if kind == "job":
        for rank in range(2):
            (path / f"rank{rank}.json").write_text(json.dumps(mutated(trace(rank), dice)))
    elif kind == "dumps":
        for rank in range(2):
            content = mutated(dump(rank), dice)
            if dice.random() < 0.5:
                (path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content, dice.choice([2, 4])))
            else:
                (path / f"rank{rank}.flight.json").write_text(json.dumps(content))
    else:
        (path / "run.json").write_text(json.dumps(mutated(manifest(), dice)))
        (path / "steps").mkdir()
        for rank in range(2):
            lines = mutated(step_lines(dice), dice) if dice.random() < 0.5 else step_lines(dice)
            (path / "steps" / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for arm in ("off", "on"):
            (path / arm).mkdir()
            for rank in range(2):
                (path / arm / f"rank{rank}.json").write_text(json.dumps(mutated(trace(rank), dice)))
    return path


COMMANDS: tuple[Callable[[Path], tuple[str | Path, ...]], ...] = (
    *(lambda path: ("show", path, "--json"), lambda path: ("show", path, "--full"), lambda path: ("show", path)),
    *(lambda path: ("diff", path, path, "--json"), lambda path: ("diff", path), lambda path: ("diff", path, path)),
    lambda path: ("check", path, "--rule", "dtoh in forward == 0", "--rule", "step < 1 s"),
    lambda path: ("check", path, "--rule", "collectives identical across ranks"),
    *(lambda path, name=name: ("query", path, f"from {name}", "--json") for name in ("events", "syncs", "collectives")),
    *(lambda path, name=name: ("query", path, f"from {name}") for name in ("launches", "partition", "steps", "phases")),
    lambda path: ("export", path, "--to", "perfetto", "-o", "x.pftrace"),
    lambda path: ("show", path, "--html", "page.html"),
    lambda path: ("diff", path, path, "--html", "page.html"),
)


def run(number: int) -> str:
    """Run one case; return what was wrong, empty where nothing was."""
    dice = random.Random(number)
    with TemporaryDirectory() as name, chdir(name):
        path, command = written(Path(name), dice), dice.choice(COMMANDS)
        outcomes: list[Outcome] = []
        for reader in ("native", "python"):
            with reading(reader):
                try:
                    outcomes.append(traceq(*command(path)))
                except Exception:  # noqa: BLE001 - reported with its case
                    return f"case {number}: {command(path)}\n{traceback.format_exc()}"
    native, python = outcomes
    if native.code not in (0, 1, 2, 3) or (native.code in (1, 2) and native.err.count("\n") == 0):
        return f"case {number}: exit code {native.code}: {native.err}"
    return "" if native == python else f"case {number}: the readers differ on {command(path)}"


def in_process(first: int) -> int:
    """Run _CASES in a process of limited memory; return how many were wrong."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            print(f"cases from {first}: the process ended by signal {-code}", flush=True)  # noqa: T201
        return code if code >= 0 else 1
    os.environ |= {"TRACEQ_CACHE": "0", "OPENBLAS_NUM_THREADS": "1"}
    resource.setrlimit(resource.RLIMIT_DATA, (2 * MOST_MB << 20, 2 * MOST_MB << 20))
    wrong = [reason for number in range(first, first + _CASES) if (reason := run(number))]
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if peak_mb > MOST_MB:
        wrong.append(f"cases from {first}: {peak_mb} MB")
    print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)  # noqa: T201
    os._exit(min(len(wrong), 100))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--case", type=int)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    options = parser.parse_args()
    if options.case is not None:
        reason = run(options.case)
        print(reason or "nothing wrong")  # noqa: T201
        return bool(reason)
    for number in range(20):
        run(options.seed + number)  # imports once what each process would
    end, done, wrong = time.monotonic() + 60 * options.minutes, 0, 0
    while time.monotonic() < end:
        wrong += in_process(options.seed + done)
        done += _CASES
    print(f"{done:,} commands, {wrong} wrong, seed {options.seed}")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
