"""Interventions by the words of the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from traceq.errors import UsageFault
from traceq.whatif.host_waits import WithoutLoader, WithoutSyncs
from traceq.whatif.intervention import Intervention
from traceq.whatif.interventions import CommBandwidth, Scaled, WithoutStraggler

__all__ = ["bandwidth", "scaled", "straggler", "without"]

_TIMES = re.compile(r"^(\d+(?:\.\d+)?)x?$")


def without(words: Sequence[str]) -> list[Intervention]:
    """Return what `--without` removes: syncs, sync:FILE:LINE or loader. Raises UsageFault."""
    removed: list[Intervention] = []
    for word in words:
        kind, _, line = word.partition(":")
        if word == "syncs":
            removed.append(WithoutSyncs())
        elif word == "loader":
            removed.append(WithoutLoader())
        elif kind == "sync" and line.strip():
            removed.append(WithoutSyncs(line.strip()))
        else:
            raise UsageFault(f"--without {word}: expected syncs, sync:FILE:LINE or loader")
    return removed


def scaled(words: Sequence[str]) -> list[Intervention]:
    """Return what `--scale NAME=FACTOR` changes. Raises UsageFault."""
    result: list[Intervention] = []
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not name.strip() or not math.isfinite(factor) or factor < 0:
            raise UsageFault(f"--scale {word}: expected a name and a factor of its time, like 'nvjet_*=0.5'")
        result.append(Scaled(name.strip(), factor))
    return result


def bandwidth(text: str) -> Intervention:
    """Return the change of bandwidth that `--comm-bandwidth 2x` asks for. Raises UsageFault."""
    match = _TIMES.match(text.strip())
    if match is None or not float(match[1]):
        raise UsageFault(f"--comm-bandwidth {text}: expected how many times the bandwidth, like 2x")
    return CommBandwidth(float(match[1]))


def straggler(text: str) -> Intervention:
    """Return which ranks `--without-straggler` is about; without a text, those that are late. Raises UsageFault."""
    ranks = text.split(",") if text else []
    if not all(rank.isdecimal() for rank in ranks):
        raise UsageFault(f"--without-straggler={text}: expected a rank, like 3, or several, like 0,6")
    return WithoutStraggler(tuple(sorted(set(map(int, ranks)))))
