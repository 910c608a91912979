"""HTA (Holistic Trace Analysis, the package traceinsight) on one trace, by its own parser, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from traceq.crosscheck.opinion import Opinion
from traceq.crosscheck.quantities import QUANTITIES
from traceq.units import Unit

__all__ = ["HtaOpinion", "ask_hta"]

_FAULT = re.compile(r"^[A-Za-z][\w.]*: .*", re.MULTILINE)
"""First line of what ends a traceback, which may have further ones."""

_TIMES = {quantity.key for quantity in QUANTITIES if quantity.unit is Unit.NS}


@dataclass(frozen=True, slots=True)
class HtaOpinion(Opinion):
    """`device_numbers`: what it says once rows of the host are taken out; None where it took none for device work.

    `num_of_host`: how many it took; `kinds`: its class of each kernel by name (COMPUTATION, COMMUNICATION, ...);
    `launches`: names of the calls that fill its launch queue.
    """

    device_numbers: Mapping[str, float] | None = None
    num_of_host: int = 0
    kinds: Mapping[str, str] = field(default_factory=dict)
    launches: frozenset[str] = frozenset()


def ask_hta(path: Path) -> HtaOpinion:
    """Return what HTA says; without the package, or where it fails, that there is nothing and why."""
    if importlib.util.find_spec("hta") is None:
        return HtaOpinion("HTA", failed=("is not installed: pip install traceinsight",))
    command = [sys.executable, "-m", "traceq.crosscheck.hta_answers", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        fault = (_FAULT.findall(done.stderr) or [f"exit code {done.returncode}"])[-1]
        return HtaOpinion("HTA", failed=(f"cannot analyse this trace: {fault[:200]}",))
    answer = json.loads(done.stdout.splitlines()[-1])
    device = answer["device_numbers"]
    return HtaOpinion(
        tool=f"HTA {answer['version']}",
        numbers=_in_ns(answer["numbers"]),
        failed=tuple(f"fails at {question}: {reason}" for question, reason in answer["failed"].items()),
        device_numbers=None if device is None else _in_ns(device),
        num_of_host=answer["num_of_host"],
        kinds=answer["kinds"],
        launches=frozenset(answer["launches"]),
    )


def _in_ns(numbers: Mapping[str, float]) -> dict[str, float]:
    return {key: number * 1000 if key in _TIMES else number for key, number in numbers.items()}
